"""What holds for a host: values and look-up. Reading them from files is `settings.py`."""

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
"""Seconds in a day. No pace is slower than one request a day: to ask never, there is the denylist."""


TOKEN = 1_000_000
"""One request, in the millionths that a bucket counts."""

MOST_BURST = 10**12
"""The largest burst: stores keep what is spent of it, in millionths, as a number of 64 bits."""


MOST_SHOWN = 200
"""Characters of a wrong value that an error shows."""


def rule(name: str, value: object, must: str, default: object = None) -> PolicyError:
    """The error for a value that breaks a rule: the field, the rule, the value given, and what to do."""
    hint = "" if default is None else f" Leave it out to use the default, {default}."
    return PolicyError(f"{name} = {_shown(value)} must be {must}.{hint}")


def _shown(value: object) -> str:
    """What was given, but not by the page."""
    try:
        text = repr(value)
    except ValueError:  # a number of thousands of digits
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
    """Check that `value` is a finite number within bounds, and return it as a float."""
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
    """How fast one domain may be asked: a token bucket (L6)."""

    requests_per_second: float = 1.0
    """Tokens that flow back in a second. Above 0."""

    burst_capacity: int = 1
    """Tokens that the bucket holds, and starts with. At least 1."""

    def __post_init__(self) -> None:
        rate("requests_per_second", self.requests_per_second, 1.0)
        whole = isinstance(self.burst_capacity, int) and not isinstance(self.burst_capacity, bool)
        if not whole or self.burst_capacity < 1:
            raise rule("burst_capacity", self.burst_capacity, "a whole number of at least 1", 1)
        if self.burst_capacity > MOST_BURST:
            raise rule("burst_capacity", self.burst_capacity, f"at most {MOST_BURST}, for stores count no further", 1)

    @property
    def warning(self) -> str | None:
        """What is odd about it though allowed: a burst of more than a minute's worth of requests."""
        if self.burst_capacity <= self.requests_per_second * 60:
            return None
        return (
            f"burst_capacity = {self.burst_capacity} is more than a minute's worth of requests "
            f"({self.requests_per_second:g} a second make {self.requests_per_second * 60:g}). "
            "A site may take such a burst for an attack."
        )


@dataclass(frozen=True, eq=False, slots=True)
class Policy:
    """Everything that holds for one host. Durations are seconds; None means "no limit" except where 0 is said to.

    Two policies are the same only if they are the same object: look-ups and memos rely on that.
    """

    # Which host
    key: str | None = None
    """Whose record is used: the host's own (None), or that of the entry, if its hosts are `shared` (C6)."""

    category: str = "default"
    """A word of the user's for the kind of site, such as `trusted`; shown, never interpreted."""

    denied: bool = False
    """Nothing is ever sent (the denylist)."""

    deny_paths: tuple[str, ...] = ()
    """Paths that are refused, written as in robots.txt: `*` any run, `$` the end, otherwise a prefix."""

    allow_private: bool = False
    """Whether private, loopback, link-local and reserved addresses may be connected to."""

    # Pace
    qps: float | None = 0.8
    """Requests per second to this host; None for no limit."""

    burst: float = 1
    """Requests that may go at once after a rest (C3). At least 1; whole but for `TokenBucket`, which may hold 1.6."""

    strategy: Strategy = "token_bucket"
    """`token_bucket` saves up to `burst` requests; `leaky_bucket` saves nothing, its requests leave evenly;
    `sliding_window` lets `burst` requests go in any `burst / qps` seconds."""

    pause_min: float = 1.5
    """Least random pause between two requests."""

    pause_max: float = 5.5
    """Largest random pause between two requests."""

    delay: float = 0.0
    """A fixed delay between two requests; the site's Crawl-delay is joined with it, the larger wins."""

    concurrency: int | None = 1
    """Requests in flight at once; None for no limit."""

    max_crawl_delay: float = 300.0
    """A site that asks for a longer Crawl-delay is left alone, instead of being asked sooner than it wishes."""

    global_rate: bool = True
    """Whether requests to the host wait for the global rate and count in it (C16)."""

    # Adapting
    adapt: bool = True
    """Whether the delay adapts to 429 and to the response time."""

    max_delay: float = 10.0
    """Where doubling on 429, and slowing down for a slow site, end."""

    target_latency: float = 1.0
    """Response time, smoothed, above which the site is asked less often."""

    latency_factor: float = 5.0
    """Seconds of delay for each second above `target_latency`; 0 switches that off."""

    # Budget
    max_requests_per_day: int = 200
    """Requests a day; 0 means unlimited."""

    max_pages_per_day: int = 100
    """Pages (successful answers with a body) a day; 0 means unlimited."""

    zone: tzinfo | None = None
    """Time zone in which the day changes; None for the machine's own."""

    # Breaker
    breaker: bool = True
    """Whether a failing host is left alone."""

    breaker_failures: int = 3
    """Failures in a row that open it."""

    breaker_cooldown: float = 300.0
    """How long it stays open before one trial request."""

    breaker_max_cooldown: float = 21_600.0
    """Every failed trial doubles the cooldown, up to this."""

    breaker_error_rate: float | None = 0.5
    """Share of failures within `breaker_window` that opens it too; None switches that off."""

    breaker_window: float = 300.0
    breaker_min_replies: int = 20
    """Replies in the window before the error rate means anything."""

    # What a 429 means (C2)
    on_429: On429 = "obey"
    """`obey`: short Retry-After obeyed, else the breaker; `trip`: always the breaker; `retry`: never the breaker."""

    obey_retry_after: float = 60.0
    """The longest Retry-After or RateLimit window that is waited for. A longer one opens the breaker for as long, and
    at least for `breaker_cooldown`. Without the breaker requests are refused until it ends."""

    max_retry_after: float = 86_400.0
    """No Retry-After is believed beyond this."""

    # The request
    timeout: float = 30.0
    """The whole request, from connect to the last byte."""

    connect_timeout: float = 5.0
    max_body: int | None = 10 * 1024 * 1024
    """Bytes of body, after decompression."""

    max_head: int = 65_536
    max_redirects: int = 5
    min_speed: float = 100.0
    """Bytes per second, over 10 s, below which a body is given up."""

    max_retries: int = 3
    retry_delay: float = 1.0
    """Wait before the first retry; doubled for each further one, with 25 % jitter."""

    # robots.txt
    respect_robots: bool = True
    robots_ttl: float = 3600.0
    robots_timeout: float = 10.0
    robots_unreachable: Literal["allow", "disallow"] = "allow"
    """What a robots.txt that cannot be had means (R6, C5)."""

    # Derived, in microseconds, so that a decision does no arithmetic on units.
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
        # In nanoseconds, rounded up: at a thousand a second a whole microsecond is already a tenth of a percent.
        nanoseconds = 0 if self.qps is None else math.ceil(1000 * SECOND / self.qps)
        interval = -(-nanoseconds // 1000)
        derive(self, "interval_ns", nanoseconds)
        derive(self, "interval_us", interval)
        derive(self, "burst_tokens", TOKEN if self.strategy == "leaky_bucket" else int(self.burst * TOKEN))
        derive(self, "pause_us", math.ceil(self.pause_min * SECOND))
        derive(self, "pause_span_us", round((self.pause_max - self.pause_min) * SECOND))
        derive(self, "delay_us", math.ceil(self.delay * SECOND))
        derive(self, "max_delay_us", round(self.max_delay * SECOND))
        # A crashed holder's place is free again when its request must have ended (rule 5 of the design).
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
        """A copy with some values changed, all of them checked again."""
        return replace(self, **changes)

    def key_for(self, domain: str) -> str:
        """The key of the record that pace, budget and breaker of `domain` are kept in."""
        return "host:" + (self.key or domain)

    def refuses_path(self, target: str) -> str | None:
        """The pattern of `deny_paths` that refuses a path with query, or None."""
        for pattern in self.deny_paths:
            if matches(pattern, target):
                return pattern
        return None


POLICY_FIELDS = tuple(each.name for each in fields(Policy) if each.init)
"""The names that a policy can be given, in the order of the reference page."""


def rate(name: str, value: object, default: float | None = None) -> float:
    """Check that `value` is a number of requests per second, at least one a day, and return it as a float."""
    per_second = number(name, value, above=True, default=default)
    if per_second < 1 / DAY:
        raise rule(name, value, "at least one a day (1 / 86400)", default)
    return per_second


def flag(name: str, value: object) -> None:
    """Check that `value` is True or False: a text would pass for True, whatever it says."""
    if not isinstance(value, bool):
        raise rule(name, value, "True or False")


def whole(name: str, value: object, least: int) -> int:
    """Check that `value` is a whole number of at least so much, and return it."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise rule(name, value, f"a whole number of at least {least}")
    return value


def _one_of(name: str, value: object, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise rule(name, value, "one of " + ", ".join(choices))


class Calendar:
    """The days of one time zone, as stretches of epoch seconds. Remembers the last one that was asked for."""

    __slots__ = ("_last", "_zone")

    def __init__(self, zone: tzinfo | None) -> None:
        self._zone = zone
        self._last = 0, 0  # one value, so that no thread ever reads a mixture of two days

    def day_of(self, second: int) -> tuple[int, int]:
        """When the local day that holds `second` starts and ends, in epoch seconds (23 to 25 hours apart).

        A day goes from the first moment that has its date to the first that has the next one's. So days never
        overlap, even where clocks are set back over midnight and an hour of the old date comes again.
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
        """The local date that holds `second`, as `YYYY-MM-DD`."""
        return datetime.fromtimestamp(second, self._zone).date().isoformat()


@lru_cache(maxsize=64)
def calendar(zone: tzinfo | None) -> Calendar:
    """The one calendar of a zone."""
    return Calendar(zone)


UTC = timezone(timedelta(0), "UTC")
"""The zone of what has no day of its own."""

UNLIMITED = Policy(
    qps=None, pause_min=0, pause_max=0, concurrency=None, adapt=False, max_requests_per_day=0, max_pages_per_day=0,
    breaker=False, zone=UTC,
)  # fmt: skip
"""No limit of any kind: what parts that enforce a single rule start from."""


class Policies:
    """The policies of all hosts: a default, and entries for some; the most specific entry wins (U9).

    An entry matches its host and every host under it, on any port; one with a port only that port. A leading `www.`
    is nothing on either side. Immutable: a reload makes a new one.
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
        """What is sent, and what robots.txt is asked for (U10)."""
        self.overall = UNLIMITED.replace(
            qps=None if global_qps is None else rate("global_qps", global_qps, 0.8),
            burst=number("global_burst", global_burst, least=1, most=MOST_BURST, default=1),
            key="global",
        )
        """The policy of the one record that every request of the program passes (Q1)."""
        self._known: dict[str, Policy] = {}

    @property
    def global_qps(self) -> float | None:
        """Requests per second over all hosts; None for no limit."""
        return self.overall.qps

    def overall_for(self, policy: Policy) -> Policy:
        """Return the policy of the global rate for a host; one without limits if the host is outside it (C16)."""
        return self.overall if policy.global_rate else UNLIMITED

    def of(self, domain: str) -> Policy:
        """The policy of a canonical domain (`example.org`, `example.org:8080`). Under a microsecond when warm."""
        known = self._known.get(domain)
        if known is not None:
            return known
        found = self._find(domain)
        if len(self._known) >= 65_536:  # bounded: a broad crawl meets millions
            self._known.clear()
        self._known[domain] = found
        return found

    def entry(self, domain: str) -> str | None:
        """The name of the most specific entry for a canonical domain; None where the default holds."""
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
            host = host.partition(".")[2]  # of an address too: no entry is a part of one
        return None

    def _find(self, domain: str) -> Policy:
        name = self.entry(domain)
        return self.default if name is None else self.entries[name]


def _pairs(entries: object) -> Iterable[tuple[Any, Any]]:
    """Each domain with what is said of it."""
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
    """The name that an entry for `domain` is kept under: canonical, no leading `www.`. Raises InvalidDomain."""
    return _plain(parse_domain(domain))


def _plain(domain: str) -> str:
    """The domain without a leading `www.`."""
    return domain[4:] if domain.startswith("www.") and domain.count(".") > 1 else domain
