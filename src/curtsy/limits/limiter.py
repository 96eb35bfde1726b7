"""RateLimiter: a rate per domain, a global rate and a breaker (L, Q6, U8)."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Self, overload
from weakref import WeakSet

from curtsy.core.amendment import Reset
from curtsy.core.breaker import State
from curtsy.core.decision import No
from curtsy.core.errors import InvalidDomain, LimiterClosed, PolicyError, Reason, StoreError, UnknownDomain
from curtsy.core.host import Host
from curtsy.core.message import Now, Url, parse_domain, parse_url
from curtsy.core.outcome import Kind, Outcome
from curtsy.core.policy import UNLIMITED, LimitConfig, Policies, Policy, Strategy, entry_name, flag, rate, rule
from curtsy.core.record import StatsSnapshot, TotalStats
from curtsy.core.settlement import settle
from curtsy.engine.gate import GLOBAL, Answer, AsyncGate, Gate, Request
from curtsy.engine.timers import TaskWaiter, Timers, Waiter
from curtsy.limits.arguments import checked_alarm, named_domain
from curtsy.limits.breaker import outcome_of
from curtsy.limits.domain_limiter import DomainLimiter
from curtsy.limits.domain_limits import DomainLimits, Rates, templates
from curtsy.limits.opening import AnyStore, opened_for_both
from curtsy.limits.views import BreakerView, BucketView, breaker_view, bucket_view
from curtsy.stores import Step
from curtsy.system.log import library_logger

_log = library_logger("guards")

STATS_EVERY = 60.0
"""Seconds between two statistics lines in the log (Q10)."""

BATCH = 64
"""Records read together for that line, which bounds the delay of other users of the store."""

LEAVE = 2.0
"""Seconds that `aclose()` waits for waiters to leave: their event loop may never run again."""


class RateLimiter:
    """Limiter of the request rate per domain and in total, with a breaker per domain.

    `config` is the rate and burst of domains that are not in `domains`; a path is read as a JSON file in that format.
    With `policies`, such a domain has the rate and burst of its policy. Every domain then has the strategy, breaker,
    shared record and denial of its policy. Without `global_qps` there is no global rate; `get_rate_limiter()` returns
    the program's limiter, which takes it from the settings.
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
        policies: Policies | None = None,
        store: AnyStore | None = None,
        timers: Timers | None = None,
    ) -> None:
        if config is not None and not isinstance(config, LimitConfig | str | os.PathLike):
            raise rule(
                "config", config, "a LimitConfig(requests_per_second, burst_capacity), or the path of a JSON file"
            )
        listed: Mapping[str, LimitConfig] = {}
        if isinstance(config, str | os.PathLike):
            from curtsy.settings import load_limits  # late import: settings are slow to import

            default, listed = load_limits(Path(config))
        else:
            default = config or LimitConfig()
        if per_domain_qps is not None:
            default = LimitConfig(rate("per_domain_qps", per_domain_qps), default.burst_capacity)
        if policies is not None and not isinstance(policies, Policies):
            raise rule("policies", policies, "a Policies(default, entries)")
        flag("circuit_breaker", circuit_breaker)
        if not isinstance(unlimited, tuple | list | set | frozenset):
            raise rule("unlimited", unlimited, "a list of domains, such as ['example.com']")
        free = {entry_name(named_domain("unlimited", domain)) for domain in unlimited}
        self._terms = DomainLimits(
            default,
            {**listed, **_checked(domains)},
            templates(strategy, circuit_breaker, cooldown_seconds),
            Policies(UNLIMITED, dict.fromkeys(free, UNLIMITED.replace(category="unlimited"))),
            policies,
        )
        self.overall = overall_of(global_qps)
        self.store, self._async_store = opened_for_both(store)
        self._is_store_ours = isinstance(store, str)
        self.gate = Gate(self.store, timers=checked_alarm(timers))
        self.async_gate = AsyncGate(self._async_store, timers=self.gate.timers)
        self._limiters: dict[str, DomainLimiter] = {}
        self._renew_locks()
        _all_limiters.add(self)
        self.is_closed = False
        self._has_let_go = False
        self._blocked: Counter[str] = Counter()
        self._refusals: dict[str, No] = {}
        self._told_at = self.gate.timers.now()
        self._stats_every: float | None = STATS_EVERY
        self._alerts: tuple[str, ...] = ()
        usual = self._terms.usual
        if self._terms.warning is not None:
            _log.warning(self._terms.warning)
        _log.info(
            "Rate limiter ready",
            global_qps=global_qps,
            per_domain_qps=usual.qps,
            burst=None if usual.qps is None else usual.burst,
            circuit_breaker=usual.breaker,
            cooldown=usual.breaker_cooldown,
        )

    def _renew_locks(self) -> None:
        """Create free locks and forget waiters. A forked child calls this: their threads do not exist there."""
        self._lock = threading.Lock()
        self._waiters: WeakSet[Waiter] = WeakSet()
        self._closing: WeakSet[TaskWaiter] = WeakSet()
        self._telling: asyncio.Task[None] | None = None
        for limiter in self._limiters.values():
            limiter.stats.renew_lock()

    # Limiter of L

    async def wait(self, domain: str, timeout: float | None = None) -> None:
        """Wait in FIFO order for a token of the domain; `timeout` is in seconds.

        A timeout that cannot be met raises `WaitTimeout` immediately. Cancellation and timeout lose no token. An entry
        in a shared record raises `Refused` with its reason: a pause, a Crawl-delay that is too long, a spent budget.
        """
        await self.domain(domain).wait(timeout)

    async def wait_n(self, domain: str, n: int, timeout: float | None = None) -> None:
        """Wait for `n` tokens at once. Raises PolicyError if `n` exceeds the burst, also if it is lowered meanwhile."""
        await self.domain(domain).wait(timeout, n)

    def wait_blocking(self, domain: str, timeout: float | None = None) -> None:
        """Wait in a blocking thread for a token of the domain; `timeout` is in seconds."""
        self.domain(domain).wait_blocking(timeout)

    def allow(self, domain: str) -> bool:
        """Take a token if one is available, without waiting; return whether it was taken."""
        return self.domain(domain).allow()

    def allow_n(self, domain: str, n: int) -> bool:
        """Take `n` tokens if available, without waiting; return whether they were taken.

        Raises PolicyError if `n` exceeds the burst.
        """
        return self.domain(domain).allow(n)

    def update_config(self, domain: str, config: LimitConfig) -> None:
        """Replace the rate and burst of a domain at runtime. The next request uses them."""
        if not isinstance(config, LimitConfig):
            raise rule("config", config, "a LimitConfig(requests_per_second, burst_capacity)")
        limiter = self.domain(domain)
        key = limiter.key  # the waiters are in the queue of this key
        with self._lock:
            self._terms = self._terms.having(limiter.domain, config)
        self.gate.lines.nudge(key)

    def domain(self, domain: str) -> DomainLimiter:
        """Return the limiter of a domain, created on first use."""
        self.check_open()
        limiter = self._limiters.get(domain) if isinstance(domain, str) else None
        if limiter is None:
            name = parse_domain(domain)
            if name not in self._limiters:
                DomainLimiter(name, limiter=self)
            limiter = self._limiters[name]
        return limiter

    def adopt(self, limiter: DomainLimiter) -> DomainLimiter:
        """Register a domain's limiter; return the first one of the domain, which keeps the statistics."""
        with self._lock:
            return self._limiters.setdefault(limiter.domain, limiter)

    def terms(self) -> DomainLimits:
        """Return the current limits."""
        return self._terms

    def renewed(self, limiter: DomainLimiter) -> Rates:
        """Apply the current limits to a domain's limiter and return its rates."""
        with self._lock:  # orders this with changes of the limits
            return limiter.use(self._terms)

    def is_unlimited(self, domain: str) -> bool:
        """Return whether a domain has no rate limit, by the `unlimited` list or its policy (Q12)."""
        return self.terms().of(parse_domain(domain)).policy.qps is None

    def get_all_stats(self) -> dict[str, StatsSnapshot]:
        """Return a copy of the statistics of every known domain."""
        return {limiter.domain: limiter.stats.snapshot() for limiter in self._known()}

    def reset(self, domain: str | None = None) -> None:
        """Reset the statistics of a domain, or of all. Tokens and breakers are kept."""
        for limiter in self._known() if domain is None else [self._seen(domain)]:
            with self._lock:
                self._blocked.pop(limiter.domain, None)
                limiter.stats.reset()

    def _known(self) -> list[DomainLimiter]:
        with self._lock:
            return list(self._limiters.values())

    def _seen(self, domain: str) -> DomainLimiter:
        name = parse_domain(domain)
        limiter = self._limiters.get(name)
        if limiter is None:
            raise UnknownDomain(f"{name} was never asked for, so there are no statistics of it.")
        return limiter

    # Limiter of Q

    async def acquire(self, url: str) -> bool:
        """Wait until the URL's domain and the global rate allow a request.

        Returns False if the breaker is open or the domain is denied; `refusal(url)` has the reason and the remaining
        seconds.
        """
        limiter = self._of_url(url)
        rates = limiter.rates
        self._tell()
        answer: Answer = No(Reason.DOMAIN_DENIED, None)
        if not rates.denied:
            request = Request(
                rates.key, rates.guarded, self._overall_for(rates), page=False,
                renew=lambda: self._present(limiter),
            )  # fmt: skip
            with self.waiting(self.async_gate.timers.async_waiter(), limiter) as waiter:
                answer = await self.async_gate.enter(request, waiter)
        if isinstance(answer, No) and answer.reason is not Reason.CLOSED:
            self.count_refused(limiter, answer)
            return False
        with self._lock:
            self._refusals.pop(limiter.domain, None)
        limiter.count(answer)
        return True

    def count_granted(self, limiter: DomainLimiter, epoch: int, waited: float, n: int) -> None:
        """Count `n` granted requests at `epoch` (microseconds), after `waited` seconds."""
        limiter.stats.count(epoch, waited, n)

    def count_refused(self, limiter: DomainLimiter, no: No) -> None:
        """Count a refused request and keep the reason."""
        with self._lock:
            self._blocked[limiter.domain] += 1
            self._refusals[limiter.domain] = no

    def count_trip(self, limiter: DomainLimiter) -> None:
        """Log that a domain's breaker has opened."""
        _log.warning("Circuit breaker opened", domain=limiter.domain)

    def _overall_for(self, rates: Rates) -> Policy:
        """Return the global rate for a domain; no limit for a domain excluded from it (C16)."""
        return self.overall if rates.guarded.global_rate else UNLIMITED

    def _present(self, limiter: DomainLimiter) -> tuple[str, Policy, Policy] | No:
        """Return the current key and policies for a waiter."""
        rates = limiter.rates
        if rates.denied:
            return No(Reason.DOMAIN_DENIED, None)
        return rates.key, rates.guarded, self._overall_for(rates)

    def refusal(self, url: str) -> No | None:
        """Return why the last `acquire` of the URL's domain was refused, with the seconds left; None if granted."""
        self.check_open()
        return self._refusals.get(_domain_of(url))

    def record_success(self, url: str) -> None:
        """Report a success, which clears consecutive failures; after a trial it closes the breaker."""
        self._report(url, Outcome(Kind.ANSWERED))

    def record_failure(self, url: str, status: int | None = None) -> None:
        """Report a failure. 403 and 429 open the domain's breaker immediately, 5xx and None after three in a row.

        Any other status is an answer and counts as a success (U6).
        """
        self._report(url, outcome_of(status))

    def reset_breaker(self, domain: str) -> None:
        """Close a domain's breaker."""
        rates = self.domain(domain).rates
        self.gate.amend(rates.key, rates.guarded, Reset())

    def breaker_state(self, domain: str) -> tuple[State, float]:
        """Return the state of a domain's breaker and the seconds until a trial is allowed."""
        self.check_open()
        key = self.terms().of(parse_domain(domain)).key
        view = self.store.update(key, _breaker)
        return view.state, view.time_left

    @property
    def global_bucket(self) -> BucketView:
        """Return a read-only view of the global bucket, as of now."""
        overall = self.overall
        return self.store.update(GLOBAL, lambda host, now: (host, bucket_view(overall, host, now)))

    @property
    def domain_buckets(self) -> Mapping[str, BucketView]:
        """Return read-only views of the buckets of all known domains, as of now."""
        seen = self._rates_seen()
        buckets = self.store.update_many([(each.key, _bucket(each.policy)) for each in seen.values()])
        return MappingProxyType(dict(zip(seen, buckets, strict=True)))

    @property
    def circuit_breakers(self) -> Mapping[str, BreakerView]:
        """Return read-only views of the breakers of all known domains, as of now."""
        seen = self._rates_seen()
        breakers = self.store.update_many([(each.key, _breaker) for each in seen.values()])
        return MappingProxyType(dict(zip(seen, breakers, strict=True)))

    def _rates_seen(self) -> dict[str, Rates]:
        """Return the limits of each known domain."""
        return {each.domain: each.rates for each in self._known()}

    @overload
    def get_stats(self, domain: None = None) -> TotalStats: ...

    @overload
    def get_stats(self, domain: str) -> StatsSnapshot: ...

    def get_stats(self, domain: str | None = None) -> StatsSnapshot | TotalStats:
        """Return the statistics of a domain, or the totals of all domains.

        An unknown domain raises UnknownDomain. The totals count the breakers in the store: they raise `LimiterClosed`
        after `aclose()` has closed it.
        """
        if domain is not None:
            return self._seen(domain).stats.snapshot()
        if self._has_let_go:
            raise self.closed_error()
        limiters = self._known()
        keys = dict.fromkeys(limiter.key for limiter in limiters)  # once each: domains may share a record
        breakers = self.store.update_many([(key, _breaker) for key in keys])
        return self._totals([limiter.stats.snapshot() for limiter in limiters], breakers)

    def _totals(self, each: list[StatsSnapshot], breakers: list[BreakerView]) -> TotalStats:
        with self._lock:
            blocked = self._blocked.total()
        return TotalStats(
            total_requests=blocked + sum(one.total_requests for one in each),
            blocked_requests=blocked,
            circuit_breaker_trips=sum(one.trips for one in breakers),
            circuit_breakers_open=sum(one.is_open for one in breakers),
            domains=len(each),
            delayed_requests=sum(one.delayed_requests for one in each),
            total_wait_time_ms=sum(one.total_wait_time_ms for one in each),
        )

    def use_policies(self, policies: Policies) -> None:
        """Apply new policies at runtime, also to current waiters; the global rate is kept.

        A domain with its own configuration keeps that rate and burst, and has the rest of its policy.
        """
        self._put(policies)

    def use_global(self, global_qps: float | None) -> None:
        """Change the global rate at runtime, also for current waiters; None for no limit."""
        with self._lock:
            self.overall = overall_of(global_qps, self.overall.burst)
        self.gate.lines.nudge(GLOBAL)

    def _put(self, policies: Policies, overall: Policy | None = None) -> None:
        """Replace the policies and the global rate together, and wake all waiters."""
        if not isinstance(policies, Policies):
            raise rule("policies", policies, "a Policies(default, entries)")
        with self._lock:
            self._terms = self._terms.under(policies)
            self.overall = overall or self.overall
            waiters = list(self._waiters)
        for waiter in waiters:  # all of them: a change may affect a waiter and not those ahead of it
            waiter.wake()

    def _of_url(self, url: str) -> DomainLimiter:
        return self.domain(_domain_of(url))

    def _report(self, url: str, outcome: Outcome) -> None:
        limiter = self._of_url(url)
        rates = limiter.rates

        def step(host: Host | None, now: Now) -> tuple[Host, bool]:
            settled = settle(host, now, rates.guarded, None, outcome)
            return settled, settled.trips > (host.trips if host else 0)

        has_tripped = self.store.update(rates.key, step)
        if has_tripped:
            self.count_trip(limiter)
        self.gate.lines.nudge(rates.key)

    def _tell(self) -> None:
        """Log the statistics line when it is due, and alerts as they begin and end (Q10)."""
        now = self.gate.timers.now()
        if self._stats_every is None or now - self._told_at < self._stats_every:
            return
        self._told_at = now
        if self.async_gate.is_immediate:
            self.log_stats()
            return
        with self._lock:  # never two at once, nor after `close()`
            before = self._telling
            if not self.is_closed and (before is None or before.done() or before.get_loop().is_closed()):
                self._telling = asyncio.ensure_future(self._tell_slowly())

    async def _tell_slowly(self) -> None:
        """Log the statistics line without blocking the event loop or other users of the store."""
        limiters, seen = self._known(), set[str]()
        each: list[StatsSnapshot] = []
        breakers: list[BreakerView] = []
        try:
            for place in range(0, len(limiters), BATCH):
                some = limiters[place : place + BATCH]
                each += [limiter.stats.snapshot() for limiter in some]
                keys = {limiter.key for limiter in some} - seen
                seen |= keys
                breakers += await self._async_store.update_many([(key, _breaker) for key in keys])
        except StoreError as error:
            _log.warning("The statistics cannot be read", error=str(error))
        else:
            self._log(self._totals(each, breakers))

    def log_stats(self) -> None:
        """Log a statistics line now, with the alerts that begin or end."""
        self._log(self.get_stats())

    def _log(self, stats: TotalStats) -> None:
        _log.info("Rate limiter statistics", **stats.as_dict())
        alerts, before = stats.alerts, self._alerts
        self._alerts = alerts
        for alert in alerts:
            if alert not in before:
                _log.warning(f"Alert: {alert}", alert=alert, **stats.as_dict())
        for alert in before:
            if alert not in alerts:
                _log.warning(f"Alert over: {alert}", alert=alert)

    # Closing

    def close(self) -> None:
        """Close the limiter: waiters and later calls raise `LimiterClosed`. Idempotent."""
        with self._lock:
            if self.is_closed:
                return
            self.is_closed = True
            waiters, telling = list(self._waiters), self._telling
        for waiter in waiters:
            waiter.closed = True
            waiter.wake()
        if telling is not None:
            with contextlib.suppress(RuntimeError):  # its loop is closed
                telling.get_loop().call_soon_threadsafe(telling.cancel)

    async def aclose(self) -> None:
        """Close the limiter, and, after its waiters have left, a store opened by its URL. Idempotent."""
        self.close()
        if self._telling is not None and self._telling.get_loop() is asyncio.get_running_loop():
            await asyncio.wait([self._telling])
        if self._is_store_ours:
            await self._emptied()
            self._has_let_go = True
            await self._async_store.close()
            self.store.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def _emptied(self) -> None:
        """Wait until closed waiters have left, because they may be using the store."""
        waiter = TaskWaiter()
        self._closing.add(waiter)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LEAVE):
                while not self._has_emptied():
                    await waiter.rest()

    def _has_emptied(self) -> bool:
        with self._lock:
            return all(each.is_gone for each in self._waiters)

    def check_open(self) -> None:
        """Raise `LimiterClosed` after `close()`."""
        if self.is_closed:
            raise self.closed_error()

    def closed_error(self) -> LimiterClosed:
        """Return the error for waiters at `close()` and for later calls."""
        return LimiterClosed("This rate limiter is closed. Make another one to go on.")

    @contextlib.contextmanager
    def waiting(self, waiter: Waiter, limiter: DomainLimiter) -> Iterator[Waiter]:
        """Register a waiter, so that closing or changing the limiter wakes it; count it if it is cancelled."""
        with self._lock:  # orders this with `close()`
            self.check_open()
            self._waiters.add(waiter)
        try:
            yield waiter
        except (asyncio.CancelledError, KeyboardInterrupt):
            limiter.stats.count_canceled()
            raise
        finally:
            if not waiter.is_gone:  # else the garbage collector runs this, perhaps while this thread holds the lock
                with self._lock:
                    self._waiters.discard(waiter)
                    closing = list(self._closing)
                for each in closing:
                    each.wake()


def _checked(domains: Mapping[str, LimitConfig] | None) -> dict[str, LimitConfig]:
    """Return the configurations by canonical domain."""
    if domains is not None and not isinstance(domains, Mapping):
        raise rule("domains", domains, "a dict of a LimitConfig for each domain")
    given: dict[str, str] = {}
    for name, each in (domains or {}).items():
        if not isinstance(each, LimitConfig):
            raise rule(f"domains[{name!r}]", each, "a LimitConfig(requests_per_second, burst_capacity)")
        first = given.setdefault(named_domain("domains", name), name)
        if first is not name:
            raise PolicyError(f"domains: {first!r} and {name!r} are one domain. Remove one of them.")
    return {name: (domains or {})[first] for name, first in given.items()}


def _domain_of(url: str) -> str:
    found = parse_url(url)
    if not isinstance(found, Url):
        raise InvalidDomain(f"url = {url!r} cannot be asked for: {found.why}.")
    return found.domain


def overall_of(global_qps: float | None, burst: float = 1) -> Policy:
    """Return the policy of a global rate; None for no limit."""
    return UNLIMITED.replace(qps=None if global_qps is None else rate("global_qps", global_qps), burst=burst)


def _breaker(host: Host | None, now: Now) -> tuple[Host | None, BreakerView]:
    """Read a breaker, as a step."""
    return host, breaker_view(host, now)


def _bucket(policy: Policy) -> Step[BucketView]:
    """Return the step that reads a bucket of this policy."""
    return lambda host, now: (host, bucket_view(policy, host, now))


_all_limiters: WeakSet[RateLimiter] = WeakSet()


def _after_fork() -> None:
    for limiter in list(_all_limiters):
        limiter._renew_locks()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
