"""RateLimiter: a rate per domain, a global rate and a breaker (L, Q6, U8). DomainLimiter: the same for one domain."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable, Mapping
from types import MappingProxyType, TracebackType
from typing import Any, Self, overload
from weakref import WeakSet

from curtsy.blocking import shared_loop
from curtsy.core.amendment import Reset
from curtsy.core.breaker import State
from curtsy.core.decision import Late, No
from curtsy.core.errors import InvalidDomain, LimiterClosed, PolicyError, Reason, UnknownDomain
from curtsy.core.outcome import Kind, Outcome
from curtsy.core.policy import UNLIMITED, LimitConfig, Policies, Policy, Strategy
from curtsy.core.setting import rule
from curtsy.core.url import Url, parse_domain, parse_url
from curtsy.engine.arguments import check_parts
from curtsy.engine.gate import GLOBAL, Answer, Gate, Ticket
from curtsy.engine.gate_steps import Request, amended, settled
from curtsy.engine.timers import Timers, Waiter
from curtsy.limits.arguments import opened
from curtsy.limits.breaker import BreakerView, outcome_of, read_breaker
from curtsy.limits.bucket import BucketView, read_bucket, take_tokens
from curtsy.limits.domain_limits import (
    DomainLimits,
    Rates,
    checked_config,
    checked_policies,
    overall_of,
    token_request,
    wait_error,
)
from curtsy.limits.statistics import LOCK, LimitStats, StatsLog, StatsSnapshot, TotalStats, total_of
from curtsy.stores import NOT_NOW, BlockingStore, Shared, Step, Store
from curtsy.stores.blocking import for_tasks
from curtsy.system.log import library_logger

_log = library_logger("guards")

BATCH = 64
"""Records that statistics read together, which bounds the delay of other users of the store."""


LEAVE = 2.0
"""Seconds that closing waits for waiters to leave: their event loop may never run again."""

POLL = 0.005
"""Seconds between checks that they have left."""


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
        store: str | Store | None = None,
        timers: Timers | None = None,
    ) -> None:
        self._limits = DomainLimits.of_arguments(
            config, domains, per_domain_qps, circuit_breaker, cooldown_seconds, strategy, unlimited, policies
        )
        self.overall = overall_of(global_qps)
        check_parts(timers=timers)
        self.store, self._is_store_ours = self._open(store)
        self._has_closed_store = False
        tasks = for_tasks(self.store)
        self.gate = Gate(self.store.inner if self._is_store_ours else tasks, timers=timers)
        # Threads wait on an event loop of their own, whose connections `aclose()` could not close.
        self._thread_gate = self.gate if tasks is self.store.inner else Gate(tasks, timers=self.gate.timers)
        self._domains: dict[str, LimitStats] = {}
        self._domain_limiters: dict[str, DomainLimiter] = {}
        self._waiters: WeakSet[Waiter] = WeakSet()
        self.is_closed = False
        """True after `close()`."""
        self._stats_log = StatsLog(self._total_stats, self.gate.timers.now, self.gate.is_immediate)
        usual = self._limits.usual
        _log.info(
            "Rate limiter ready", global_qps=self.overall.qps, per_domain_qps=usual.qps,
            burst=None if usual.qps is None else usual.burst,
            circuit_breaker=usual.breaker, cooldown=usual.breaker_cooldown,
        )  # fmt: skip

    def _open(self, store: str | Store | None) -> tuple[BlockingStore, bool]:
        """Return the store, and whether `aclose()` closes it."""
        return opened(store), isinstance(store, str)

    # Limiter of L

    async def wait(self, domain: str, timeout: float | None = None) -> None:
        """Wait in FIFO order for a token of the domain; `timeout` is in seconds.

        A timeout that cannot be met raises `WaitTimeout` immediately. Cancellation and timeout lose no token. An entry
        in a shared record raises `Refused` with its reason: a pause, a Crawl-delay that is too long, a spent budget.
        """
        await self._wait(self._find(domain), self.gate, timeout, 1)

    async def wait_n(self, domain: str, n: int, timeout: float | None = None) -> None:
        """Wait for `n` tokens at once. Raises PolicyError if `n` exceeds the burst, also if it is lowered meanwhile."""
        await self._wait(self._find(domain), self.gate, timeout, n)

    def wait_blocking(self, domain: str, timeout: float | None = None) -> None:
        """Wait in a blocking thread for a token of the domain; `timeout` is in seconds."""
        stats = self._find(domain)
        if not self._take(stats, timeout, 1):  # an available token costs no switch of threads
            shared_loop().call(self._wait(stats, self._thread_gate, timeout, 1))

    def allow(self, domain: str) -> bool:
        """Take a token if one is available, without waiting; return whether it was taken."""
        return self.allow_n(domain, 1)

    def allow_n(self, domain: str, n: int) -> bool:
        """Take `n` tokens if available, without waiting; return whether they were taken.

        Raises PolicyError if `n` exceeds the burst.
        """
        return self._take(self._find(domain), None, n)

    def update_config(self, domain: str, config: LimitConfig) -> None:
        """Replace the rate and burst of a domain at runtime. The next request uses them."""
        checked_config(config)
        name = self._find(domain).domain
        self._current_limits()
        with LOCK:
            self._limits.configure(name, config)
        self.gate.queues.nudge(self._rates(name).key)

    def domain(self, domain: str) -> DomainLimiter:
        """Return the limiter of a domain, created on first use."""
        self._current_limits()
        name = self._find(domain).domain
        return self._domain_limiters.get(name) or self._domain_limiters.setdefault(
            name, DomainLimiter(name, limiter=self)
        )

    def get_all_stats(self) -> dict[str, StatsSnapshot]:
        """Return a copy of the statistics of every known domain."""
        return {stats.domain: stats.snapshot() for stats in self._known()}

    def reset(self, domain: str | None = None) -> None:
        """Reset the statistics of a domain, or of all. Tokens and breakers are kept."""
        for stats in self._known() if domain is None else [self._seen(domain)]:
            stats.reset()

    def _find(self, domain: str) -> LimitStats:
        """Return the statistics of a domain, created on first use."""
        self._check_open()
        found = self._domains.get(domain) if isinstance(domain, str) else None
        if found is None:
            name = parse_domain(domain)
            with LOCK:
                found = self._domains.get(name) or self._domains.setdefault(name, LimitStats(name))
        return found

    def _known(self) -> list[LimitStats]:
        with LOCK:
            return list(self._domains.values())

    def _seen(self, domain: str) -> LimitStats:
        found = self._domains.get(name := parse_domain(domain))
        if found is None:
            raise UnknownDomain(f"{name} was never requested, so it has no statistics.")
        return found

    def _current_limits(self) -> DomainLimits:
        return self._limits

    def _rates(self, domain: str) -> Rates:
        return self._current_limits().of(domain)

    def _take(self, stats: LimitStats, timeout: float | None, n: int) -> bool:
        """Take tokens if they are available and no waiter is queued."""
        request = token_request(stats.domain, self._current_limits, timeout, n)
        if self.gate.queues.is_queued(request.key):
            return False
        epoch = self.store.update(request.key, Shared(take_tokens(request.policy, n)))
        if epoch is None or epoch is NOT_NOW:
            return False
        self._count_granted(stats, epoch, 0.0, n)
        return True

    async def _wait(self, stats: LimitStats, gate: Gate, timeout: float | None, n: int) -> None:
        request = token_request(stats.domain, self._current_limits, timeout, n)
        answer = await self._enter(stats, gate, request)
        if isinstance(answer, Late):
            stats.count_canceled()
        if not isinstance(answer, Ticket):
            raise wait_error(stats.domain, answer, request)
        self._count_granted(stats, answer.epoch, answer.waited, n)

    async def _enter(self, stats: LimitStats, gate: Gate, request: Request) -> Answer:
        """Wait at the gate. Raises LimiterClosed if the limiter is closed meanwhile."""
        waiter = gate.timers.waiter()
        with LOCK:  # orders this with `close()`
            self._check_open()
            self._waiters.add(waiter)
        try:
            answer = await gate.enter(request, waiter)
        except (asyncio.CancelledError, KeyboardInterrupt, PolicyError):
            stats.count_canceled()
            raise
        finally:
            if not waiter.is_gone:  # else the garbage collector runs this, perhaps while this thread reads the set
                with LOCK:
                    self._waiters.discard(waiter)
        if isinstance(answer, No) and answer.reason is Reason.CLOSED:
            raise closed_error()
        return answer

    # Limiter of Q

    async def acquire(self, url: str) -> bool:
        """Wait until the URL's domain and the global rate allow a request.

        Returns False if the breaker is open or the domain is denied; `refusal(url)` has the reason and the remaining
        seconds.
        """
        stats = self._find(_domain_of(url))
        self._stats_log.write_if_due()

        def current() -> tuple[str, Policy, Policy] | No:
            rates = self._rates(stats.domain)
            if rates.denied:
                return No(Reason.DOMAIN_DENIED, None)
            # A domain may be excluded from the global rate (C16).
            return rates.key, rates.guarded, self.overall if rates.guarded.global_rate else UNLIMITED

        answer: Answer | tuple[str, Policy, Policy] = current()
        if isinstance(answer, tuple):
            answer = await self._enter(stats, self.gate, Request(*answer, page=False, renew=current))
        if isinstance(answer, No):
            self._count_refused(stats, answer)
            return False
        assert isinstance(answer, Ticket)  # there is no deadline
        stats.refusal = None
        self._count_granted(stats, answer.epoch, answer.waited, 1)
        return True

    def _count_granted(self, stats: LimitStats, epoch: int, waited: float, n: int) -> None:
        """Count `n` granted requests at `epoch` (microseconds), after `waited` seconds."""
        stats.count(epoch, waited, n)

    def _count_refused(self, stats: LimitStats, no: No) -> None:
        stats.count_refused(no)

    def _count_trip(self, domain: str) -> None:
        _log.warning("Circuit breaker opened", domain=domain)

    def refusal(self, url: str) -> No | None:
        """Return why the last `acquire` of the URL's domain was refused, with the seconds left; None if granted."""
        self._check_open()
        stats = self._domains.get(_domain_of(url))
        return None if stats is None else stats.refusal

    def record_success(self, url: str) -> None:
        """Report a success, which clears consecutive failures; after a trial it closes the breaker."""
        self._report(url, Outcome(Kind.ANSWERED))

    def record_failure(self, url: str, status: int | None = None) -> None:
        """Report a failure. 403 and 429 open the domain's breaker immediately, 5xx and None after three in a row.

        Any other status is an answer and counts as a success (U6).
        """
        self._report(url, outcome_of(status))

    def _report(self, url: str, outcome: Outcome) -> None:
        domain = self._find(_domain_of(url)).domain
        rates = self._rates(domain)
        _, has_tripped = self.store.update(rates.key, settled(rates.guarded, None, outcome))
        if has_tripped:
            self._count_trip(domain)
        self.gate.queues.nudge(rates.key)

    def reset_breaker(self, domain: str) -> None:
        """Close a domain's breaker."""
        rates = self._rates(self._find(domain).domain)
        self.store.update(rates.key, amended(rates.guarded, Reset()))
        self.gate.queues.nudge(rates.key)

    def breaker_state(self, domain: str) -> tuple[State, float]:
        """Return the state of a domain's breaker and the seconds until a trial is allowed."""
        self._check_open()
        view = self.store.update(self._rates(parse_domain(domain)).key, read_breaker)
        return view.state, view.time_left

    @property
    def global_bucket(self) -> BucketView:
        """Return a read-only view of the global bucket, as of now."""
        return self.store.update(GLOBAL, read_bucket(self.overall))

    @property
    def domain_buckets(self) -> Mapping[str, BucketView]:
        """Return read-only views of the buckets of all known domains, as of now."""
        return self._views(lambda rates: read_bucket(rates.policy))

    @property
    def circuit_breakers(self) -> Mapping[str, BreakerView]:
        """Return read-only views of the breakers of all known domains, as of now."""
        return self._views(lambda rates: read_breaker)

    def _views(self, step_of: Callable[[Rates], Step[Any]]) -> Mapping[str, Any]:
        known = self._known_rates()
        views = self._read([(rates.key, step_of(rates)) for rates in known.values()])
        return MappingProxyType(dict(zip(known, views, strict=True)))

    def _read(self, steps: list[tuple[str, Step[Any]]]) -> list[Any]:
        """Run steps that only read, a batch at a time. Raises LimiterClosed after the store was closed."""
        if self._has_closed_store:
            raise closed_error()
        batches = [steps[start : start + BATCH] for start in range(0, len(steps), BATCH)]
        return [answer for batch in batches for answer in self.store.update_many(batch)]

    def _known_rates(self) -> dict[str, Rates]:
        return {stats.domain: self._rates(stats.domain) for stats in self._known()}

    @overload
    def get_stats(self, domain: None = None) -> TotalStats: ...

    @overload
    def get_stats(self, domain: str) -> StatsSnapshot: ...

    def get_stats(self, domain: str | None = None) -> StatsSnapshot | TotalStats:
        """Return the statistics of a domain, or the totals of all domains.

        An unknown domain raises UnknownDomain. The totals count the breakers in the store: they raise `LimiterClosed`
        after `aclose()` has closed it.
        """
        return self._total_stats() if domain is None else self._domain_stats(parse_domain(domain))

    def _domain_stats(self, name: str) -> StatsSnapshot:
        return self._seen(name).snapshot()

    def _total_stats(self) -> TotalStats:
        domains = self._known()
        breakers = self._read_breakers({self._rates(stats.domain).key for stats in domains})
        each = [stats.snapshot() for stats in domains]
        trips = sum(one.trips for one in breakers)
        return total_of(each, sum(stats.blocked for stats in domains), trips, breakers)

    def _read_breakers(self, keys: set[str]) -> list[BreakerView]:
        """Return the breakers of records. Domains may share a record, which is read once."""
        return self._read([(key, read_breaker) for key in keys])

    def use_policies(self, policies: Policies) -> None:
        """Apply new policies at runtime, also to current waiters; the global rate is kept.

        A domain with its own configuration keeps that rate and burst, and has the rest of its policy.
        """
        self._use(policies)

    def use_global(self, global_qps: float | None) -> None:
        """Change the global rate at runtime, also for current waiters; None for no limit."""
        with LOCK:
            self.overall = overall_of(global_qps, self.overall.burst)
        self.gate.queues.nudge(GLOBAL)

    def _use(self, policies: Policies, overall: Policy | None = None) -> None:
        """Replace the policies and the global rate together, and wake all waiters."""
        checked_policies(policies)
        with LOCK:
            self._limits = self._limits.under(policies)
            self.overall = overall or self.overall
        self._wake()

    def log_stats(self) -> None:
        """Log a statistics line now, with the alerts that begin or end."""
        self._stats_log.write(self._total_stats())

    # Closing

    def close(self) -> None:
        """Close the limiter: waiters and later calls raise `LimiterClosed`. Idempotent."""
        with LOCK:
            self.is_closed = True
            for waiter in self._waiters:
                waiter.closed = True
        self._wake()
        self._stats_log.close()

    async def aclose(self) -> None:
        """Close the limiter, and, after its waiters have left, a store opened by its URL. Idempotent."""
        self.close()
        await self._stats_log.wait_until_closed()
        if self._is_store_ours:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LEAVE):  # the waiters may be using the store
                    while not all(each.is_gone for each in self._waiting()):  # noqa: ASYNC110 -- of other loops too
                        await asyncio.sleep(POLL)
            self._has_closed_store = True
            await self.store.inner.close()
            self.store.close()

    def _check_open(self) -> None:
        if self.is_closed:
            raise closed_error()

    def _wake(self) -> None:
        """Wake all waiters: a change may affect a waiter and not those ahead of it."""
        for waiter in self._waiting():
            waiter.wake()

    def _waiting(self) -> list[Waiter]:
        with LOCK:
            return list(self._waiters)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()


def closed_error() -> LimiterClosed:
    """Return the error for waiters at `close()` and for later calls."""
    return LimiterClosed("This rate limiter is closed. Make another one to go on.")


class DomainLimiter:
    """Limiter of one domain (L10).

    With `limiter`, it shares that limiter's rate, tokens and statistics of the domain.
    """

    def __init__(self, domain: str, config: LimitConfig | None = None, *, limiter: RateLimiter | None = None) -> None:
        if limiter is None:
            limiter = RateLimiter(config)
        elif not isinstance(limiter, RateLimiter):
            raise rule("limiter", limiter, "a RateLimiter, or left out")
        elif config is not None:
            raise rule("config", config, "left out if there is a limiter, which has the configurations of its domains")
        self._limiter = limiter
        self.stats = limiter._find(domain)
        self.domain = self.stats.domain

    @property
    def config(self) -> LimitConfig:
        """Return the configuration, or the equivalent of the domain's policy."""
        return self._limiter._rates(self.domain).config

    @property
    def policy(self) -> Policy:
        """Return the policy with the rate only, for `wait` and `allow`."""
        return self._limiter._rates(self.domain).policy

    @property
    def guarded(self) -> Policy:
        """Return the policy with rate and breaker, for `acquire`."""
        return self._limiter._rates(self.domain).guarded

    @property
    def key(self) -> str:
        """Return the key of the domain's record."""
        return self._limiter._rates(self.domain).key

    async def wait(self, timeout: float | None = None, n: int = 1) -> None:
        """Wait in FIFO order for `n` tokens and take them; `timeout` is in seconds."""
        await self._limiter.wait_n(self.domain, n, timeout)

    def wait_blocking(self, timeout: float | None = None) -> None:
        """Wait in a blocking thread for a token; `timeout` is in seconds."""
        self._limiter.wait_blocking(self.domain, timeout)

    def allow(self, n: int = 1) -> bool:
        """Take `n` tokens if they are available and no waiter is queued; return whether they were taken."""
        return self._limiter.allow_n(self.domain, n)


def _domain_of(url: str) -> str:
    found = parse_url(url)
    if not isinstance(found, Url):
        raise InvalidDomain(f"url = {url!r} cannot be requested: {found.why}.")
    return found.domain
