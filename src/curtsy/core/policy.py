"""Policy: limits of a host, and their lookup by domain. `curtsy.settings` reads them from files."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import datetime, timedelta, timezone, tzinfo
from functools import lru_cache
from typing import Any, Literal, Self

from curtsy.core.errors import PolicyError
from curtsy.core.message import SECOND, parse_domain
from curtsy.core.pattern import matches

Strategy = Literal["token_bucket", "leaky_bucket", "sliding_window"]
On429 = Literal["obey", "trip", "retry"]

DAY = 86_400
"""Seconds in a day. No rate is slower than one request a day; the denylist blocks a host entirely."""


TOKEN = 1_000_000
"""One request, in the millionths that a token bucket counts."""

MOST_BURST = 10**12
"""Largest burst. Stores keep the spent tokens, in millionths, as a 64-bit number."""


MOST_SHOWN = 200
"""Maximum number of characters of an invalid value in an error message."""


def rule(name: str, value: object, must: str, default: object = None) -> PolicyError:
    """Return the error for an invalid value: field, rule, value and remedy."""
    hint = "" if default is None else f" Leave it out to use the default, {default}."
    return PolicyError(f"{name} = {_shown(value)} must be {must}.{hint}")


def _shown(value: object) -> str:
    """Return the value as text, cut to `MOST_SHOWN` characters."""
    try:
        text = repr(value)
    except ValueError:  # an integer of thousands of digits
        return f"a {type(value).__name__} that is too large to be shown"
    return text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]}…"


def number(
    name: str,
    value: object,
    *,
    least: float = 0.0,
    most: float = math.inf,
    above: bool = False,
    default: object = None,
) -> float:
    """Return `value` as a float; raise PolicyError unless it is a finite number within bounds."""
    kind = "a finite number" if isinstance(value, float) and math.isinf(value) else "a number"
    bounds = f"{kind} {'above' if above else 'of at least'} {least:g}"
    if most < math.inf:
        bounds += f" and at most {most:.15g}"
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= sys.float_info.max:
        raise rule(name, value, bounds, default)
    if value < least or (above and value == least) or value > most:
        raise rule(name, value, bounds, default)
    return float(value)


@dataclass(frozen=True, slots=True)
class LimitConfig:
    """Rate limit of one domain: a token bucket (L6)."""

    requests_per_second: float = 1.0
    """Tokens refilled per second. Above 0."""

    burst_capacity: int = 1
    """Tokens in the full bucket, which starts full. At least 1."""

    def __post_init__(self) -> None:
        rate("requests_per_second", self.requests_per_second, 1.0)
        whole = isinstance(self.burst_capacity, int) and not isinstance(self.burst_capacity, bool)
        if not whole or self.burst_capacity < 1:
            raise rule("burst_capacity", self.burst_capacity, "a whole number of at least 1", 1)
        if self.burst_capacity > MOST_BURST:
            raise rule("burst_capacity", self.burst_capacity, f"at most {MOST_BURST}, for stores count no further", 1)

    @property
    def warning(self) -> str | None:
        """Return a warning if the burst exceeds a minute's worth of requests; None otherwise."""
        if self.burst_capacity <= self.requests_per_second * 60:
            return None
        return (
            f"burst_capacity = {self.burst_capacity} is more than a minute's worth of requests "
            f"({self.requests_per_second:g} a second make {self.requests_per_second * 60:g}). "
            "A site may take such a burst for an attack."
        )


@dataclass(frozen=True, eq=False, slots=True)
class Policy:
    """Limits of one host. Durations are seconds. None means "no limit"; some fields use 0 for that, as documented.

    Two policies are equal only if they are the same object; lookups and caches rely on that.
    """

    # Host
    key: str | None = None
    """Name of the record in use: None for the host's own, or the entry's name if its hosts are `shared` (C6)."""

    category: str = "default"
    """User-defined kind of site, such as `trusted`; displayed, never interpreted."""

    denied: bool = False
    """True to refuse every request (the denylist)."""

    deny_paths: tuple[str, ...] = ()
    """Refused paths, written as in robots.txt: `*` any run, `$` the end, otherwise a prefix."""

    allow_private: bool = False
    """True to allow connections to private, loopback, link-local and reserved addresses."""

    # Pace
    qps: float | None = 0.8
    """Requests per second to this host; None for no limit."""

    burst: float = 1
    """Requests that may leave at once after a rest (C3). At least 1; a whole number except for `TokenBucket`, which may
    hold 1.6."""

    strategy: Strategy = "token_bucket"
    """Rate strategy. `token_bucket` saves up to `burst` requests. `leaky_bucket` saves none: its requests leave evenly.
    `sliding_window` allows `burst` requests in any `burst / qps` seconds."""

    pause_min: float = 1.5
    """Minimum random pause between two requests."""

    pause_max: float = 5.5
    """Maximum random pause between two requests."""

    delay: float = 0.0
    """Fixed delay between two requests; the larger of it and the site's Crawl-delay applies."""

    concurrency: int | None = 1
    """Requests in flight at once; None for no limit."""

    max_crawl_delay: float = 300.0
    """Longest Crawl-delay obeyed. A site that requests a longer one is skipped."""

    global_rate: bool = True
    """True to apply the global rate to the host and to count its requests there (C16)."""

    # Adaptation
    adapt: bool = True
    """True to adapt the delay to 429 and to the response time."""

    max_delay: float = 10.0
    """Upper bound of the delay after a 429, and of the delay for a slow site."""

    target_latency: float = 1.0
    """Smoothed response time above which requests to the site slow down."""

    latency_factor: float = 5.0
    """Seconds of delay for each second above `target_latency`; 0 disables it."""

    # Budget
    max_requests_per_day: int = 200
    """Requests a day; 0 means unlimited."""

    max_pages_per_day: int = 100
    """Pages (successful answers with a body) a day; 0 means unlimited."""

    zone: tzinfo | None = None
    """Time zone in which the day changes; None for the machine's own."""

    # Breaker
    breaker: bool = True
    """True to block a failing host for a while."""

    breaker_failures: int = 3
    """Failures in a row that open the breaker."""

    breaker_cooldown: float = 300.0
    """Duration for which the breaker stays open before one trial request."""

    breaker_max_cooldown: float = 21_600.0
    """Maximum cooldown; every failed trial doubles the cooldown up to it."""

    breaker_error_rate: float | None = 0.5
    """Share of failures within `breaker_window` that also opens the breaker; None disables it."""

    breaker_window: float = 300.0
    breaker_min_replies: int = 20
    """Minimum number of replies in the window before the error rate counts."""

    # Meaning of a 429 (C2)
    on_429: On429 = "obey"
    """Reaction to a 429. `obey`: obey a short Retry-After, else open the breaker; `trip`: always open the breaker;
    `retry`: never open it."""

    obey_retry_after: float = 60.0
    """Longest Retry-After or RateLimit window that requests wait for. A longer one opens the breaker for as long, and
    at least for `breaker_cooldown`. Without the breaker, requests are refused until it ends."""

    max_retry_after: float = 86_400.0
    """Upper bound of a Retry-After; longer values are cut to it."""

    # Request
    timeout: float = 30.0
    """Time limit of the whole request, from connect to the last byte."""

    connect_timeout: float = 5.0
    max_body: int | None = 10 * 1024 * 1024
    """Maximum size of the body in bytes, after decompression; None for no limit."""

    max_head: int = 65_536
    max_redirects: int = 5
    min_speed: float = 100.0
    """Minimum bytes per second over 10 s; a slower body is aborted."""

    max_retries: int = 3
    retry_delay: float = 1.0
    """Wait before the first retry; doubled for each further retry, with 25 % jitter."""

    # robots.txt
    respect_robots: bool = True
    robots_ttl: float = 3600.0
    robots_timeout: float = 10.0
    robots_unreachable: Literal["allow", "disallow"] = "allow"
    """Rule for a host whose robots.txt is unreachable (R6, C5)."""

    # Derived values, so that a decision converts no units.
    interval_ns: int = field(init=False, repr=False)
    interval_us: int = field(init=False, repr=False)
    burst_tokens: int = field(init=False, repr=False)
    pause_us: int = field(init=False, repr=False)
    pause_span_us: int = field(init=False, repr=False)
    delay_us: int = field(init=False, repr=False)
    max_delay_us: int = field(init=False, repr=False)
    lease_us: int = field(init=False, repr=False)
    lease: float = field(init=False, repr=False)
    robots_lease: float = field(init=False, repr=False)
    rested_us: float = field(init=False, repr=False)
    floor_us: int = field(init=False, repr=False)
    calendar: Calendar = field(init=False, repr=False)
    target_us: int = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._check()
        derive = object.__setattr__
        # Nanoseconds, rounded up: at 1000 requests per second, a whole microsecond is already 0.1 %.
        nanoseconds = 0 if self.qps is None else math.ceil(1000 * SECOND / self.qps)
        interval = -(-nanoseconds // 1000)
        derive(self, "interval_ns", nanoseconds)
        derive(self, "interval_us", interval)
        derive(self, "burst_tokens", TOKEN if self.strategy == "leaky_bucket" else int(self.burst * TOKEN))
        derive(self, "pause_us", math.ceil(self.pause_min * SECOND))
        derive(self, "pause_span_us", round((self.pause_max - self.pause_min) * SECOND))
        derive(self, "delay_us", math.ceil(self.delay * SECOND))
        derive(self, "max_delay_us", round(self.max_delay * SECOND))
        # A crashed holder's slot expires when its request must have ended (rule 5 of the design).
        derive(self, "lease_us", round((max(self.timeout, self.robots_timeout) + 5) * SECOND))
        derive(self, "lease", self.lease_us / SECOND)
        derive(self, "robots_lease", self.robots_timeout + min(5.0, max(1.0, self.robots_timeout / 2)))
        longest = max(interval, self.pause_us + self.pause_span_us, self.delay_us)
        derive(self, "rested_us", math.inf if self.strategy == "sliding_window" else longest + SECOND)
        derive(self, "floor_us", max(interval if self.burst_tokens == TOKEN else 0, math.ceil(self.delay * SECOND)))
        derive(self, "calendar", calendar(self.zone))
        derive(self, "target_us", round(self.target_latency * SECOND))

    def _check(self) -> None:
        for name in ("denied", "allow_private", "adapt", "breaker", "respect_robots"):
            flag(name, getattr(self, name))
        if self.key is not None and not isinstance(self.key, str):
            raise rule("key", self.key, "the name of a record, or None for the host's own")
        if not isinstance(self.category, str):
            raise rule("category", self.category, "a word, such as trusted", "default")
        if self.zone is not None and not isinstance(self.zone, tzinfo):
            raise rule("zone", self.zone, "a tzinfo, such as ZoneInfo('Europe/Berlin'), or None")
        if not isinstance(self.deny_paths, tuple) or not all(isinstance(path, str) for path in self.deny_paths):
            raise rule("deny_paths", self.deny_paths, "a tuple of paths, such as ('/private/', '*.pdf$')")
        if self.qps is not None:
            rate("qps", self.qps)
        number("burst", self.burst, least=1, most=MOST_BURST)
        for name in ("breaker_failures", "breaker_min_replies"):
            whole(name, getattr(self, name), 1)
        for name in ("max_requests_per_day", "max_pages_per_day", "max_redirects", "max_retries"):
            whole(name, getattr(self, name), 0)
        if self.concurrency is not None:
            whole("concurrency", self.concurrency, 1)
        if self.max_body is not None:
            whole("max_body", self.max_body, 1)
        whole("max_head", self.max_head, 1024)
        for name in ("delay", "pause_min", "pause_max", "max_crawl_delay", "max_delay"):
            number(name, getattr(self, name), most=DAY)
        if self.pause_max < self.pause_min:
            raise rule("pause_max", self.pause_max, f"at least pause_min ({self.pause_min:g})")
        for name in ("latency_factor", "obey_retry_after", "min_speed", "retry_delay"):
            number(name, getattr(self, name))
        number("max_retry_after", self.max_retry_after, most=30 * DAY)
        for name in ("timeout", "connect_timeout", "target_latency", "breaker_window", "robots_timeout"):
            number(name, getattr(self, name), above=True, most=30 * DAY)
        number("robots_ttl", self.robots_ttl, most=DAY)
        number("breaker_cooldown", self.breaker_cooldown, above=True, most=30 * DAY)
        number("breaker_max_cooldown", self.breaker_max_cooldown, above=True, most=30 * DAY)
        if self.breaker_error_rate is not None:
            number("breaker_error_rate", self.breaker_error_rate, above=True, most=1.0)
        _one_of("strategy", self.strategy, ("token_bucket", "leaky_bucket", "sliding_window"))
        _one_of("on_429", self.on_429, ("obey", "trip", "retry"))
        _one_of("robots_unreachable", self.robots_unreachable, ("allow", "disallow"))
        if self.strategy == "sliding_window" and not (self.burst <= 256 and self.burst == int(self.burst)):
            raise rule(
                "burst", self.burst, "a whole number up to 256 with sliding_window, which remembers each request"
            )

    def replace(self, **changes: Any) -> Self:
        """Return a copy with some values changed; all values are checked again."""
        return replace(self, **changes)

    def key_for(self, domain: str) -> str:
        """Return the key of the record with pace, budget and breaker of `domain`."""
        return "host:" + (self.key or domain)

    def refuses_path(self, target: str) -> str | None:
        """Return the pattern of `deny_paths` that refuses a path with query; None if allowed."""
        for pattern in self.deny_paths:
            if matches(pattern, target):
                return pattern
        return None


POLICY_FIELDS = tuple(each.name for each in fields(Policy) if each.init)
"""Names of the fields that can be set, in the order of the reference page."""


def rate(name: str, value: object, default: float | None = None) -> float:
    """Return `value` as a float; raise PolicyError unless it is a rate of at least one request a day."""
    per_second = number(name, value, above=True, default=default)
    if per_second < 1 / DAY:
        raise rule(name, value, "at least one a day (1 / 86400)", default)
    return per_second


def flag(name: str, value: object) -> None:
    """Raise PolicyError unless `value` is a bool. Non-empty text would count as True."""
    if not isinstance(value, bool):
        raise rule(name, value, "True or False")


def whole(name: str, value: object, least: int) -> int:
    """Return `value`; raise PolicyError unless it is a whole number of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise rule(name, value, f"a whole number of at least {least}")
    return value


def _one_of(name: str, value: object, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise rule(name, value, "one of " + ", ".join(choices))


class Calendar:
    """Days of one time zone as ranges of epoch seconds. The last range is cached."""

    __slots__ = ("_last", "_zone")

    def __init__(self, zone: tzinfo | None) -> None:
        self._zone = zone
        self._last = 0, 0  # one tuple, so that no thread reads a mixture of two days

    def day_of(self, second: int) -> tuple[int, int]:
        """Return the start and end of the local day of `second`, in epoch seconds (23 to 25 hours apart).

        A day lasts from the first moment with its date to the first moment with the next date. Days therefore never
        overlap, even if clocks are set back over midnight and an hour of the old date repeats.
        """
        last = self._last
        if not last[0] <= second < last[1]:
            day = datetime.fromtimestamp(second, self._zone).date().toordinal()
            starts, ends = self._midnight(day), self._midnight(day + 1)
            if ends <= second:
                starts, ends = ends, self._midnight(day + 2)
            self._last = last = min(starts, second), ends
        return last

    def _midnight(self, ordinal: int) -> int:
        return math.floor(datetime.fromordinal(ordinal).replace(tzinfo=self._zone).timestamp())

    def date_of(self, second: int) -> str:
        """Return the local date of `second`, as `YYYY-MM-DD`."""
        return datetime.fromtimestamp(second, self._zone).date().isoformat()


@lru_cache(maxsize=64)
def calendar(zone: tzinfo | None) -> Calendar:
    """Return the shared calendar of a zone."""
    return Calendar(zone)


UTC = timezone(timedelta(0), "UTC")
"""Zone of policies without a daily budget."""

UNLIMITED = Policy(
    qps=None, pause_min=0, pause_max=0, concurrency=None, adapt=False, max_requests_per_day=0, max_pages_per_day=0,
    breaker=False, zone=UTC,
)  # fmt: skip
"""Policy without any limit: the base of components that enforce a single rule."""


class Policies:
    """Policies of all hosts: a default and entries for domains; the most specific entry applies (U9).

    An entry matches its host and every subdomain, on any port. An entry with a port matches only that port. A leading
    `www.` is ignored on both sides. The object is immutable: a reload creates a new one.
    """

    def __init__(
        self,
        default: Policy | None = None,
        entries: Mapping[str, Policy] | Iterable[tuple[str, Policy]] = (),
        *,
        global_qps: float | None = 0.8,
        global_burst: float = 1,
        user_agent: str = "curtsy",
    ) -> None:
        self.default = Policy() if default is None else _checked("default", default)
        self.entries: dict[str, Policy] = {}
        for domain, policy in _pairs(entries):
            name = entry_name(domain)
            if name in self.entries:
                raise PolicyError(f"there are two entries for {name} (www. makes no difference). Remove one of them.")
            self.entries[name] = _checked(f"entries[{domain!r}]", policy)
        if not isinstance(user_agent, str) or not user_agent:
            raise rule("user_agent", user_agent, "text that says who asks", "'curtsy'")
        self.user_agent = user_agent
        """User agent that is sent, and whose rules of robots.txt apply (U10)."""
        self.overall = UNLIMITED.replace(
            qps=None if global_qps is None else rate("global_qps", global_qps, 0.8),
            burst=number("global_burst", global_burst, least=1, most=MOST_BURST, default=1),
            key="global",
        )
        """Policy of the global record that every request of the program passes (Q1)."""
        self._known: dict[str, Policy] = {}

    @property
    def global_qps(self) -> float | None:
        """Return the requests per second over all hosts; None for no limit."""
        return self.overall.qps

    def overall_for(self, policy: Policy) -> Policy:
        """Return the policy of the global rate for a host; `UNLIMITED` if the host is exempt (C16)."""
        return self.overall if policy.global_rate else UNLIMITED

    def of(self, domain: str) -> Policy:
        """Return the policy of a canonical domain (`example.org`, `example.org:8080`).

        Takes under a microsecond if cached.
        """
        known = self._known.get(domain)
        if known is not None:
            return known
        found = self._find(domain)
        if len(self._known) >= 65_536:  # bounded: a broad crawl visits millions of domains
            self._known.clear()
        self._known[domain] = found
        return found

    def entry(self, domain: str) -> str | None:
        """Return the name of the most specific entry for a canonical domain; None if the default applies."""
        entries = self.entries
        if not entries:
            return None
        name = _plain(domain)
        host, colon, port = name.rpartition(":")
        if not colon or name.endswith("]"):
            host, port = name, ""
        while host:
            if port and f"{host}:{port}" in entries:
                return f"{host}:{port}"
            if host in entries:
                return host
            host = host.partition(".")[2]  # also for IP addresses: no entry is a suffix of one
        return None

    def _find(self, domain: str) -> Policy:
        name = self.entry(domain)
        return self.default if name is None else self.entries[name]


def _pairs(entries: object) -> Iterable[tuple[Any, Any]]:
    """Return pairs of domain and policy; raise PolicyError for other input."""
    if isinstance(entries, Mapping):
        return entries.items()
    pairs: list[Any] = list(entries) if isinstance(entries, Iterable) else [None]
    if not all(isinstance(pair, tuple | list) and len(pair) == 2 for pair in pairs):
        raise rule("entries", entries, "a dict of a Policy for each domain, or pairs of a domain and a Policy")
    return pairs


def _checked(name: str, policy: object) -> Policy:
    if not isinstance(policy, Policy):
        raise rule(name, policy, "a Policy")
    return policy


def entry_name(domain: str) -> str:
    """Return the canonical name of an entry for `domain`, without `www.`. Raises InvalidDomain."""
    return _plain(parse_domain(domain))


def _plain(domain: str) -> str:
    """Return the domain without a leading `www.`."""
    return domain[4:] if domain.startswith("www.") and domain.count(".") > 1 else domain
