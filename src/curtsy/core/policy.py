"""Policy: limits of a host, and their lookup by domain. `curtsy.settings` reads them from files."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta, timezone, tzinfo
from functools import lru_cache
from typing import Annotated, Any, Literal, Self

from curtsy.core.errors import PolicyError
from curtsy.core.longest_match import matches
from curtsy.core.setting import DAY, Mark, Range, Rate, check_fields, number, rate, rule, settings_of
from curtsy.core.time import SECOND, Calendar, calendar
from curtsy.core.url import parse_domain

Strategy = Literal["token_bucket", "leaky_bucket", "sliding_window"]
On429 = Literal["obey", "trip", "retry"]

TOKEN = 1_000_000
"""One request, in the millionths that a token bucket counts."""

MOST_BURST = 10**12
"""Largest burst. Stores keep the spent tokens, in millionths, as a 64-bit number."""

WINDOW = 256
"""Largest burst of a sliding window, which remembers each request."""

SHORT_COOLDOWN = 300
"""Seconds below which a breaker's cooldown causes a warning: a site that blocks wants a longer rest (Q4)."""

Seconds = Annotated[float, Range(unit="seconds")]
UpToADay = Annotated[float, Range(most=DAY, unit="seconds")]
UpToAMonth = Annotated[float, Range(most=30 * DAY, above=True, unit="seconds")]
PER_HOST: Mark = "per host at run time"


def large_burst(name: str, burst: float, qps: float | None) -> str | None:
    """Return a warning if a burst exceeds a minute's worth of requests (L6); None otherwise."""
    if qps is None or burst <= 1 or burst <= qps * 60:
        return None
    return (
        f"{name} = {burst:g} is more than a minute's worth of requests ({qps:g} a second make {qps * 60:g}). "
        "A site may take such a burst for an attack."
    )


def short_cooldown(name: str, seconds: float, written: str | None = None) -> str | None:
    """Return a warning if the cooldown of a breaker is short (Q4); None otherwise. `written` shows the value."""
    if seconds >= SHORT_COOLDOWN:
        return None
    return (
        f"{name} = {written or f'{seconds:g}'} is below {SHORT_COOLDOWN} s. "
        "A site that fails or denies access may need longer."
    )


@dataclass(frozen=True, slots=True)
class LimitConfig:
    """Rate limit of one domain: a token bucket (L6)."""

    requests_per_second: Rate = 1.0
    """Tokens refilled per second. Above 0."""

    burst_capacity: Annotated[int, Range(1, MOST_BURST, unit="requests")] = 1
    """Tokens in the full bucket, which starts full. At least 1."""

    def __post_init__(self) -> None:
        check_fields(self)

    @property
    def warning(self) -> str | None:
        """Return a warning if the burst exceeds a minute's worth of requests; None otherwise."""
        return large_burst("burst_capacity", self.burst_capacity, self.requests_per_second)


@dataclass(frozen=True, eq=False, slots=True)
class Policy:
    """Limits of one host. Durations are seconds. None means "no limit"; some fields use 0 for that, as documented.

    Two policies are equal only if they are the same object; lookups and caches rely on that.
    """

    # Host
    key: str | None = None
    """Name of the record in use: None for the host's own, or the entry's name if its hosts are `shared` (C6)."""

    denied: bool = False
    """True to refuse every request (the denylist)."""

    domain_category: str = "default"
    """User-defined kind of site, such as `trusted`; displayed, never interpreted."""

    # Pace
    qps: Annotated[Rate | None, PER_HOST] = 0.8
    """Requests per second to this host; None for no limit."""

    burst: Annotated[float, Range(1, MOST_BURST, whole=True, unit="requests"), PER_HOST] = 1
    """Requests that may be sent at once after an idle period (C3). A burst above one minute's worth causes a warning.
    """

    strategy: Strategy = "token_bucket"
    """Rate strategy. `token_bucket` saves up to `burst` requests. `leaky_bucket` saves none: its requests leave evenly.
    `sliding_window` allows `burst` requests in any `burst / qps` seconds."""

    pause_min: Annotated[UpToADay, PER_HOST] = 1.5
    """Minimum random pause between two requests, from the sending of one to the sending of the next."""

    pause_max: Annotated[UpToADay, PER_HOST] = 5.5
    """Maximum random pause between two requests, from the sending of one to the sending of the next."""

    delay: Annotated[UpToADay, PER_HOST] = 0.0
    """Fixed delay between two requests; the larger of it and the site's Crawl-delay applies."""

    concurrency: Annotated[int | None, Range(1, unit="requests"), PER_HOST] = 1
    """Requests in flight at once; None for no limit."""

    max_crawl_delay: UpToADay = 300.0
    """Longest Crawl-delay obeyed. A site that requests a longer one is skipped."""

    global_rate: bool = True
    """True to apply the global rate to the host and to count its requests there (C16)."""

    # Adaptation
    adapt: bool = True
    """True to adapt the delay to 429 and to the response time."""

    max_delay: UpToADay = 10.0
    """Upper bound of the delay after a 429, and of the delay for a slow site."""

    target_latency: UpToAMonth = 1.0
    """Smoothed response time above which requests to the site slow down."""

    latency_factor: Annotated[float, Range()] = 5.0
    """Seconds of delay for each second above `target_latency`; 0 disables it."""

    # Budget
    max_requests_per_day: Annotated[int, Range(unit="requests"), PER_HOST] = 200
    """Requests a day; 0 means unlimited."""

    max_pages_per_day: Annotated[int, Range(unit="pages"), PER_HOST] = 100
    """Pages (successful answers with a body) a day; 0 means unlimited."""

    timezone: tzinfo | None = None
    """Time zone that defines the day. In files its IANA name, such as `Europe/Berlin`, or `local` for the machine's."""

    # Breaker
    breaker: bool = True
    """True to block a failing host for a while."""

    breaker_failures: Annotated[int, Range(1, unit="failures")] = 3
    """Failures in a row that open the breaker."""

    breaker_cooldown: UpToAMonth = 300.0
    """Time that the breaker stays open before one trial request. A value below 300 causes a warning."""

    breaker_max_cooldown: UpToAMonth = 21_600.0
    """Maximum cooldown; every failed trial doubles the cooldown up to it."""

    breaker_error_rate: Annotated[float | None, Range(most=1, above=True)] = 0.5
    """Share of failures within `breaker_window` that also opens the breaker; None disables it."""

    breaker_window: UpToAMonth = 300.0
    """Period over which `breaker_error_rate` is measured."""

    breaker_min_replies: Annotated[int, Range(1, unit="replies")] = 20
    """Minimum number of replies in the window before the error rate counts."""

    # Meaning of a 429 (C2)
    on_429: On429 = "obey"
    """Reaction to a 429. `obey`: obey a short Retry-After, else open the breaker; `trip`: always open the breaker;
    `retry`: never open it."""

    obey_retry_after: Seconds = 60.0
    """Longest Retry-After or RateLimit window that requests wait for. A longer one opens the breaker for as long, and
    at least for `breaker_cooldown`. Without the breaker, requests are refused until it ends."""

    max_retry_after: Annotated[float, Range(most=30 * DAY, unit="seconds")] = 86_400.0
    """Upper bound of a Retry-After; longer values are cut to it."""

    # robots.txt
    respect_robots: bool = True
    """True to fetch and obey robots.txt."""

    robots_ttl: UpToADay = 3600.0
    """Time that a robots.txt is cached."""

    robots_timeout: UpToAMonth = 10.0
    """Limit for the whole request for a robots.txt."""

    robots_unreachable: Literal["allow", "disallow"] = "allow"
    """Meaning of an unreachable robots.txt without an earlier copy (R6, C5); RFC 9309 says `disallow`."""

    # Request
    timeout: UpToAMonth = 30.0
    """Time limit of the whole request, from connect to the last byte."""

    connect_timeout: UpToAMonth = 5.0
    """Limit for establishing a connection, TLS included."""

    max_body: Annotated[int | None, Range(1, unit="bytes")] = 10 * 1024 * 1024
    """Maximum size of the body in bytes, after decompression; None for no limit."""

    max_head: Annotated[int, Range(1024, unit="bytes")] = 65_536
    """Maximum size of a response's status line and header fields."""

    max_redirects: Annotated[int, Range(unit="hops")] = 5
    """Maximum number of redirects followed; each hop passes all checks of its own host."""

    min_speed: Annotated[float, Range(unit="bytes per second")] = 100.0
    """Minimum speed over 10 s; a slower body is aborted."""

    max_retries: Annotated[int, Range(unit="retries")] = 3
    """Maximum number of retries; each retry is admitted, paced and counted like any request."""

    retry_delay: Seconds = 1.0
    """Wait before the first retry; doubled for each further retry, with 25 % jitter."""

    deny_paths: tuple[str, ...] = ()
    """Refused paths, written as in robots.txt: `*` any run, `$` the end, otherwise a prefix."""

    allow_private: bool = False
    """True to allow connections to private, loopback, link-local and reserved addresses."""

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
        # Without a rate, a pause or a delay, a host has always rested.
        rested = longest + SECOND if longest else -1
        derive(self, "rested_us", math.inf if self.strategy == "sliding_window" else rested)
        derive(self, "floor_us", max(interval if self.burst_tokens == TOKEN else 0, self.delay_us))
        derive(self, "calendar", calendar(self.timezone))
        derive(self, "target_us", round(self.target_latency * SECOND))

    def _check(self) -> None:
        check_fields(self)
        if self.pause_max < self.pause_min:
            raise rule("pause_max", self.pause_max, f"at least pause_min ({self.pause_min:g})")
        if self.strategy == "sliding_window" and not (self.burst <= WINDOW and self.burst == int(self.burst)):
            must = f"a whole number up to {WINDOW} with sliding_window, which remembers each request"
            raise rule("burst", self.burst, must)

    def replace(self, **changes: Any) -> Self:
        """Return a copy with some values changed; all values are checked again."""
        return replace(self, **changes)

    def shared_out(self, share: float) -> Policy:
        """Return the policy of one process that may use only a share of the limits; 0.25 means a quarter."""
        return _shared_out(self, share)

    def key_for(self, domain: str) -> str:
        """Return the key of the record with pace, budget and breaker of `domain`."""
        return "host:" + (self.key or domain)

    def refuses_path(self, target: str) -> str | None:
        """Return the pattern of `deny_paths` that refuses a path with query; None if allowed."""
        for pattern in self.deny_paths:
            if matches(pattern, target):
                return pattern
        return None


@lru_cache(maxsize=1024)
def _shared_out(policy: Policy, share: float) -> Policy:
    days = {name: getattr(policy, name) for name in ("max_requests_per_day", "max_pages_per_day")}
    longer = {name: min(DAY, getattr(policy, name) / share) for name in ("pause_min", "pause_max", "delay")}
    return policy.replace(
        qps=None if policy.qps is None else policy.qps * share,
        **{name: limit and max(1, int(limit * share)) for name, limit in days.items()},
        **longer,
    )


UTC = timezone(timedelta(0), "UTC")
"""Zone of policies without a daily budget."""

UNLIMITED = Policy(
    qps=None, pause_min=0, pause_max=0, concurrency=None, adapt=False, max_requests_per_day=0, max_pages_per_day=0,
    breaker=False, timezone=UTC,
)  # fmt: skip
"""Policy without any limit: the base of components that enforce a single rule."""

OVERRIDABLE = {name: each.kind for name, each in settings_of(Policy).items() if PER_HOST in each.marks}
"""Limits that a user can override for a host at run time, and the type of each."""


@lru_cache(maxsize=1024)
def overridden(policy: Policy, limits: tuple[tuple[str, float | None], ...]) -> Policy:
    """Return the policy with the overrides applied.

    Overrides that have become invalid because the settings changed are skipped.
    """
    try:
        return changed(policy, limits)
    except PolicyError:
        for limit in (*limits, *limits):  # two passes, because a limit may become valid only after another
            try:
                policy = changed(policy, (limit,))
            except PolicyError:
                continue
        return policy


def changed(policy: Policy, limits: tuple[tuple[str, float | None], ...]) -> Policy:
    """Return the policy with other limits. Raises PolicyError for one that is unknown or out of range."""
    changes: dict[str, float | None] = {}
    for name, value in limits:
        if name not in OVERRIDABLE:
            raise PolicyError(f"{name} cannot be changed while running. These can: {', '.join(OVERRIDABLE)}.")
        is_whole = OVERRIDABLE[name] is int and isinstance(value, float) and value.is_integer()
        changes[name] = int(value) if is_whole and value is not None else value
    return policy.replace(**changes)


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
