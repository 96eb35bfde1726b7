"""RateLimiter: a rate per domain, one for all, and a breaker (L, Q6, U8)."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from weakref import WeakSet

from curtsy.alarm import Alarm, Waiter
from curtsy.core.admission import Decision, Go, Late, No, Reset, admit, settle
from curtsy.core.breaker import State
from curtsy.core.errors import (
    FetchError,
    InvalidDomain,
    LimiterClosed,
    PolicyError,
    Reason,
    UnknownDomain,
    WaitTimeout,
)
from curtsy.core.host import Host
from curtsy.core.message import SECOND, Now, Url, parse_domain, parse_url
from curtsy.core.outcome import Kind, Outcome
from curtsy.core.policy import UNLIMITED, LimitConfig, Policies, Strategy, number, rule
from curtsy.core.record import LimitStats, StatsSnapshot, TotalStats
from curtsy.gate import Answer, AsyncGate, Gate, Request, Ticket
from curtsy.guards.breaker import outcome_of
from curtsy.log import library_logger
from curtsy.stores import AsyncStore, Store, open_async_store, open_store
from curtsy.stores.memory import AsyncMemoryStore, MemoryStore

_log = library_logger("guards")

STATS_EVERY = 60.0
"""Seconds between two lines of statistics in the log (Q10)."""


class DomainLimiter:
    """The limiter of one domain. `RateLimiter` makes one for each domain that it meets."""

    def __init__(self, domain: str, config: LimitConfig | None = None, *, limiter: RateLimiter | None = None) -> None:
        self.domain = parse_domain(domain)
        self._limiter = limiter or RateLimiter(config)
        self.stats = LimitStats(self.domain)
        self.key = UNLIMITED.key_for(self.domain)
        self.use(config or LimitConfig())

    def use(self, config: LimitConfig) -> None:
        """Replace the configuration whole. Tokens and statistics stay."""
        self.config = config
        rate: dict[str, float | None] = {"qps": config.requests_per_second, "burst": config.burst_capacity}
        if self._limiter.is_unlimited(self.domain):
            rate = {"qps": None}
        self.policy = self._limiter.base.but(**rate)
        """The rate alone, for `wait` and `allow`."""
        self.guarded = self._limiter.guarded.but(**rate)
        """The rate and the breaker, for `acquire`."""
        if config.warning:
            _log.warning(f"{self.domain}: {config.warning}")

    async def wait(self, timeout: float | None = None, n: int = 1) -> None:
        """Wait for `n` tokens, first come first served."""
        limiter = self._limiter
        request = self._request(n, timeout)
        with limiter.waiting(limiter.async_gate.alarm.async_waiter(), self) as waiter:
            answer = await limiter.async_gate.enter(request, waiter)
        self._entered(answer, timeout, n)

    def wait_blocking(self, timeout: float | None = None, n: int = 1) -> None:
        """Wait for `n` tokens, first come first served, in a thread that may block."""
        limiter = self._limiter
        request = self._request(n, timeout)
        with limiter.waiting(limiter.gate.alarm.waiter(), self) as waiter:
            answer = limiter.gate.enter(request, waiter)
        self._entered(answer, timeout, n)

    def allow(self, n: int = 1) -> bool:
        """Take `n` tokens if they are there, without waiting and without going ahead of those who wait."""
        limiter = self._limiter
        limiter.check_open()
        policy = self._request(n, None).policy
        if limiter.gate.lines.is_queued(self.key):
            return False

        def step(host: Host | None, now: Now) -> tuple[Host | None, tuple[Decision, int]]:
            changed, decision = admit(host, now, policy, page=False, count=n)
            return changed, (decision, now.epoch)

        decision, epoch = limiter.store.update(self.key, step)
        if not isinstance(decision, Go):
            return False
        self.stats.count(epoch, 0.0, n)
        return True

    def _request(self, n: int, timeout: float | None) -> Request:
        if isinstance(n, bool) or not isinstance(n, int) or n < 1:
            raise rule("n", n, "a whole number of at least 1")
        if n > self.config.burst_capacity:
            raise PolicyError(
                f"{self.domain}: n = {n} must be at most burst_capacity ({self.config.burst_capacity}), for the bucket "
                "never holds more. Ask for fewer at once, or raise burst_capacity."
            )
        if timeout is not None:
            number("timeout", timeout)
        return Request(self.key, self.policy, page=False, count=n, deadline=timeout)

    def _entered(self, answer: Answer, timeout: float | None, n: int) -> None:
        match answer:
            case Ticket():
                self.stats.count(self._limiter.store.now().epoch, answer.waited, n)
            case Late(needed):
                self.stats.count_canceled()
                raise WaitTimeout(
                    f"{self.domain} cannot be asked within {timeout:g} s: it would take {needed:.3f} s. "
                    "Allow more time, or ask less often.",
                    needed,
                )
            case No():
                raise self._limiter.closed_error()


class RateLimiter:
    """Limits how fast domains are asked, each by itself and all together, and leaves failing ones alone.

    `config` is the rate of a domain that is not in `domains`; a path is read as the JSON file of that form. By
    itself it knows no global rate: `get_rate_limiter()` is the program's own, which does.
    """

    def __init__(
        self,
        config: LimitConfig | str | os.PathLike[str] | None = None,
        domains: Mapping[str, LimitConfig] | None = None,
        *,
        global_qps: float | None = None,
        per_domain_qps: float | None = None,
        circuit_breaker: bool = True,
        cooldown_seconds: float = 300.0,
        strategy: Strategy = "token_bucket",
        unlimited: tuple[str, ...] = (),
        store: str | MemoryStore | tuple[Store, AsyncStore] | None = None,
        alarm: Alarm | None = None,
    ) -> None:
        listed: Mapping[str, LimitConfig] = {}
        if isinstance(config, str | os.PathLike):
            from curtsy.settings import load_limits  # not before it is needed: settings are slow to import

            default, listed = load_limits(Path(config))
        else:
            default = config or LimitConfig()
        if per_domain_qps is not None:
            default = LimitConfig(per_domain_qps, default.burst_capacity)
        self._default = default
        self._configs = {parse_domain(name): each for name, each in {**listed, **(domains or {})}.items()}
        self._unlimited = Policies(UNLIMITED, {domain: UNLIMITED.but(category="unlimited") for domain in unlimited})
        self.base = UNLIMITED.but(strategy=strategy)
        self.guarded = self.base.but(
            breaker=circuit_breaker,
            breaker_cooldown=cooldown_seconds,
            breaker_error_rate=None,
            on_429="trip",
            adapt=False,
        )
        self.overall = UNLIMITED.but(qps=global_qps)
        self.store, async_store = _open(store)
        self.gate = Gate(self.store, alarm=alarm)
        self.async_gate = AsyncGate(async_store, alarm=self.gate.alarm)
        self._async_store = async_store
        self._limiters: dict[str, DomainLimiter] = {}
        self._waiters: WeakSet[Waiter] = WeakSet()
        self._lock = threading.Lock()
        self._is_closed = False
        self._asked = self._blocked = 0
        self._refusals: dict[str, No] = {}
        self._told_at = self.gate.alarm.now()
        self._alerts: tuple[str, ...] = ()
        _log.info(
            "Rate limiter ready",
            global_qps=global_qps,
            per_domain_qps=self._default.requests_per_second,
            burst=self._default.burst_capacity,
            circuit_breaker=circuit_breaker,
            cooldown=cooldown_seconds,
        )

    # The limiter of L

    async def wait(self, domain: str, timeout: float | None = None) -> None:
        """Wait for a token of the domain, first come first served.

        A timeout that cannot be met raises `WaitTimeout` at once. Cancelled or timed out, no token is lost.
        """
        await self.domain(domain).wait(timeout)

    async def wait_n(self, domain: str, n: int, timeout: float | None = None) -> None:
        """Wait for `n` tokens at once; more than the burst is an error."""
        await self.domain(domain).wait(timeout, n)

    def wait_blocking(self, domain: str, timeout: float | None = None) -> None:
        """Wait for a token of the domain in a thread that may block."""
        self.domain(domain).wait_blocking(timeout)

    def allow(self, domain: str) -> bool:
        """Take a token if there is one, and say so. Never waits; False changes nothing."""
        return self.domain(domain).allow()

    def allow_n(self, domain: str, n: int) -> bool:
        """Take `n` tokens if they are there, and say so. Never waits; more than the burst is an error."""
        return self.domain(domain).allow(n)

    def update_config(self, domain: str, config: LimitConfig) -> None:
        """Replace the configuration of a domain, while running. It holds for the very next request."""
        if not isinstance(config, LimitConfig):
            raise rule("config", config, "a LimitConfig(requests_per_second, burst_capacity)")
        limiter = self.domain(domain)
        with self._lock:
            self._configs[limiter.domain] = config
        limiter.use(config)
        self.gate.lines.nudge(limiter.key)

    def domain(self, domain: str) -> DomainLimiter:
        """The limiter of one domain, made on first use."""
        self.check_open()
        limiter = self._limiters.get(domain)
        if limiter is None:
            name = parse_domain(domain)
            with self._lock:
                limiter = self._limiters.get(name)
                if limiter is None:
                    limiter = DomainLimiter(name, self._configs.get(name, self._default), limiter=self)
                    self._limiters[name] = limiter
        return limiter

    def is_unlimited(self, domain: str) -> bool:
        """Whether a domain is on the list of those that have no limit (Q12)."""
        return self._unlimited.of(domain).category == "unlimited"

    def get_all_stats(self) -> dict[str, StatsSnapshot]:
        """The statistics of every domain seen, by domain: a copy."""
        with self._lock:
            limiters = list(self._limiters.values())
        return {limiter.domain: limiter.stats.snapshot() for limiter in limiters}

    def reset(self, domain: str | None = None) -> None:
        """Zero the statistics of a domain, or of all. Its tokens and its breaker stay as they are."""
        if domain is not None:
            self._seen(domain).stats.reset()
            return
        with self._lock:
            self._asked = self._blocked = 0
            for limiter in self._limiters.values():
                limiter.stats.reset()

    def _seen(self, domain: str) -> DomainLimiter:
        name = parse_domain(domain)
        limiter = self._limiters.get(name)
        if limiter is None:
            raise UnknownDomain(f"{name} was never asked for, so there are no statistics of it.")
        return limiter

    # The limiter of Q

    async def acquire(self, url: str) -> bool:
        """Wait until the URL's domain and the global rate let a request go; False if its breaker is open.

        Why it was refused, and for how long, is in `refusal(url)`.
        """
        limiter = self._of_url(url)
        request = Request(limiter.key, limiter.guarded, self.overall, page=False)
        self._tell()
        with self.waiting(self.async_gate.alarm.async_waiter(), limiter) as waiter:
            answer = await self.async_gate.enter(request, waiter)
        with self._lock:
            self._asked += 1
            self._refusals.pop(limiter.domain, None)
            if isinstance(answer, No) and answer.reason is not Reason.CLOSED:
                self._blocked += 1
                self._refusals[limiter.domain] = answer
                return False
        limiter._entered(answer, None, 1)
        return True

    def refusal(self, url: str) -> No | None:
        """Why the last `acquire` for the URL's domain was refused, with the seconds left; None if it was not."""
        return self._refusals.get(self._of_url(url).domain)

    def record_success(self, url: str) -> None:
        """A request succeeded: failures in a row are forgotten, and a trial closes the breaker."""
        self._report(url, Outcome(Kind.ANSWERED))

    def record_failure(self, url: str, status: int | None = None) -> None:
        """A request failed; 403 and 429 open the domain's breaker at once, others after three in a row."""
        self._report(url, outcome_of(status))

    def reset_breaker(self, domain: str) -> None:
        """Close a domain's breaker by hand."""
        limiter = self.domain(domain)
        self.gate.amend(limiter.key, limiter.guarded, Reset())

    def breaker_state(self, domain: str) -> tuple[State, float]:
        """Where a domain's breaker stands, and the seconds until a trial is let through."""
        limiter = self.domain(domain)
        host, now = self.store.update(limiter.key, lambda host, now: (host, (host, now)))
        if host is None or not host.tripped_at:
            return State.CLOSED, 0.0
        return host.breaker_state(now), max(0, host.tripped_at + host.cooldown - now.at) / SECOND

    def get_stats(self, domain: str | None = None) -> StatsSnapshot | TotalStats:
        """The statistics of a domain (an error if it was never seen), or without one the totals over all."""
        if domain is not None:
            return self._seen(domain).stats.snapshot()
        with self._lock:
            limiters, asked, blocked = list(self._limiters.values()), self._asked, self._blocked
        trips = opened = 0
        for limiter in limiters:
            host = self.store.read(limiter.key)
            if host is not None:
                trips += host.trips
                opened += host.breaker_state(self.store.now()) is State.OPEN
        each = [limiter.stats.snapshot() for limiter in limiters]
        # What came by wait() and allow() was asked for as well, and is never blocked.
        return TotalStats(
            total_requests=max(asked, blocked + sum(one.total_requests for one in each)),
            blocked_requests=blocked,
            circuit_breaker_trips=trips,
            circuit_breakers_open=opened,
            domains=len(limiters),
            delayed_requests=sum(one.delayed_requests for one in each),
            total_wait_time_ms=sum(one.total_wait_time_ms for one in each),
        )

    def _of_url(self, url: str) -> DomainLimiter:
        found = parse_url(url)
        if not isinstance(found, Url):
            raise InvalidDomain(f"url = {url!r} cannot be asked for: {found.why}.")
        return self.domain(found.domain)

    def _report(self, url: str, outcome: Outcome) -> None:
        limiter = self._of_url(url)

        def step(host: Host | None, now: Now) -> tuple[Host, bool]:
            settled = settle(host, now, limiter.guarded, None, outcome)
            return settled, settled.trips > (host.trips if host else 0)

        has_tripped = self.store.update(limiter.key, step)
        if has_tripped:
            _log.warning("Circuit breaker opened", domain=limiter.domain)
        self.gate.lines.nudge(limiter.key)

    def _tell(self) -> None:
        """Write the line of statistics when it is time, and alerts as they begin and end (Q10)."""
        now = self.gate.alarm.now()
        if now - self._told_at < STATS_EVERY:
            return
        self._told_at = now
        self.log_stats()

    def log_stats(self) -> None:
        """Write a line of statistics to the log now, and what has become alarming, or no longer is."""
        stats = self.get_stats()
        assert isinstance(stats, TotalStats)
        _log.info("Rate limiter statistics", **stats.as_dict())
        alerts, before = stats.alerts, self._alerts
        self._alerts = alerts
        for alert in alerts:
            if alert not in before:
                _log.warning(f"Alert: {alert}", alert=alert, **stats.as_dict())
        for alert in before:
            if alert not in alerts:
                _log.warning(f"Alert over: {alert}", alert=alert)

    # Its end

    def close(self) -> None:
        """Tell everybody who waits, and refuse everybody who comes. Idempotent."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            waiters = list(self._waiters)
        for waiter in waiters:
            waiter.closed = True
            waiter.wake()

    def check_open(self) -> None:
        """Raise `LimiterClosed` after `close()`."""
        if self._is_closed:
            raise self.closed_error()

    def closed_error(self) -> LimiterClosed:
        """The error for whoever waits when it is closed, or comes later."""
        return LimiterClosed("This rate limiter is closed. Make another one to go on.")

    @contextmanager
    def waiting(self, waiter: Waiter, limiter: DomainLimiter) -> Iterator[Waiter]:
        """Have a waiter told when the limiter is closed, and count it if it gives up."""
        self.check_open()
        with self._lock:
            self._waiters.add(waiter)
        try:
            yield waiter
        except (asyncio.CancelledError, KeyboardInterrupt):
            limiter.stats.count_canceled()
            raise
        finally:
            with self._lock:
                self._waiters.discard(waiter)


def _open(store: str | MemoryStore | tuple[Store, AsyncStore] | None) -> tuple[Store, AsyncStore]:
    if store is None:
        store = MemoryStore()
    if isinstance(store, MemoryStore):
        return store, AsyncMemoryStore(store)
    if isinstance(store, str):
        return open_store(store), open_async_store(store)
    return store


def adapt_delay(current: float, error: FetchError, *, max_delay: float = 10.0) -> float:
    """The delay after an error (N8): doubled by a 429 up to `max_delay`, or its Retry-After; as it was by any other."""
    if error.status != 429:
        return current
    if error.retry_after is not None:
        return max(current, error.retry_after)
    return max(current, min(2 * current, max_delay))


_program: RateLimiter | None = None
_program_lock = threading.Lock()


def get_rate_limiter(global_qps: float | None = None) -> RateLimiter:
    """The program's own limiter: settings and environment, 0.8 a second over all and per domain if nothing is said.

    Given later, `global_qps` changes the rate of the one that is there.
    """
    global _program
    with _program_lock:
        if _program is None:
            from curtsy.settings import load  # not before it is needed: settings are slow to import

            policies = load().policies
            default = policies.default
            _program = RateLimiter(
                global_qps=policies.global_qps if global_qps is None else global_qps,
                per_domain_qps=default.qps,
                circuit_breaker=default.breaker,
                cooldown_seconds=default.breaker_cooldown,
                strategy=default.strategy,
            )
        elif global_qps is not None and global_qps != _program.overall.qps:
            _program.overall = UNLIMITED.but(qps=global_qps)
        return _program
