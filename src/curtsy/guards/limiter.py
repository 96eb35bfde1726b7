"""RateLimiter: a rate per domain, one for all, and a breaker (L, Q6, U8)."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from weakref import WeakKeyDictionary, WeakSet

from curtsy.alarm import Alarm, Waiter
from curtsy.core.admission import No, Reset, settle
from curtsy.core.breaker import State
from curtsy.core.errors import InvalidDomain, LimiterClosed, Reason, UnknownDomain
from curtsy.core.host import Host
from curtsy.core.message import Now, Url, parse_domain, parse_url
from curtsy.core.outcome import Kind, Outcome
from curtsy.core.policy import UNLIMITED, LimitConfig, Policies, Policy, Strategy, flag, rate, rule
from curtsy.core.record import StatsSnapshot, TotalStats
from curtsy.gate import GLOBAL, Answer, AsyncGate, Gate, Request, Ticket
from curtsy.guards.breaker import outcome_of
from curtsy.guards.domain import DomainLimiter
from curtsy.guards.terms import Rates, Terms, templates
from curtsy.log import library_logger
from curtsy.stores import AsyncStore, Store, open_async_store, open_store
from curtsy.stores.memory import AsyncMemoryStore, MemoryStore

_log = library_logger("guards")

STATS_EVERY = 60.0
"""Seconds between two lines of statistics in the log (Q10)."""


class RateLimiter:
    """Limits how fast domains are asked, each by itself and all together, and leaves failing ones alone.

    `config` is the rate of a domain that is not in `domains`; a path is read as the JSON file of that form. With
    `policies`, such a domain has the rate, strategy and breaker of its policy. By itself a limiter knows no global
    rate: `get_rate_limiter()` is the program's own, which does.
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
        store: str | MemoryStore | tuple[Store, AsyncStore] | None = None,
        alarm: Alarm | None = None,
    ) -> None:
        if config is not None and not isinstance(config, LimitConfig | str | os.PathLike):
            raise rule(
                "config", config, "a LimitConfig(requests_per_second, burst_capacity), or the path of a JSON file"
            )
        listed: Mapping[str, LimitConfig] = {}
        if isinstance(config, str | os.PathLike):
            from curtsy.settings import load_limits  # not before it is needed: settings are slow to import

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
        self._configs = {parse_domain(name): each for name, each in {**listed, **_checked(domains)}.items()}
        self._terms = Terms(
            default,
            self._configs,
            templates(strategy, circuit_breaker, cooldown_seconds),
            Policies(UNLIMITED, {domain: UNLIMITED.but(category="unlimited") for domain in unlimited}),
            policies,
        )
        self.overall = overall_of(global_qps)
        self.store, self._async_store = _open(store)
        self._is_store_ours = isinstance(store, str)
        self.gate = Gate(self.store, alarm=alarm)
        self.async_gate = AsyncGate(self._async_store, alarm=self.gate.alarm)
        self._limiters: dict[str, DomainLimiter] = {}
        self._renew_locks()
        _all_limiters.add(self)
        self.is_closed = False
        self._asked = self._blocked = 0
        self._refusals: dict[str, No] = {}
        self._told_at = self.gate.alarm.now()
        self._alerts: tuple[str, ...] = ()
        usual = self._terms.usual
        _log.info(
            "Rate limiter ready",
            global_qps=global_qps,
            per_domain_qps=usual.qps,
            burst=None if usual.qps is None else usual.burst,
            circuit_breaker=usual.breaker,
            cooldown=usual.breaker_cooldown,
        )

    def _renew_locks(self) -> None:
        """Start with free locks and nobody waiting, as a forked child does: who held them is not there."""
        self._lock = threading.Lock()
        self._waiters: WeakKeyDictionary[Waiter, str] = WeakKeyDictionary()
        for limiter in self._limiters.values():
            limiter.stats.renew_lock()

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
        key = limiter.key  # those who wait stand in the line of this one
        with self._lock:
            self._terms.check(config)
            self._configs[limiter.domain] = config
            limiter.use(self._terms)
        self.gate.lines.nudge(key)

    def domain(self, domain: str) -> DomainLimiter:
        """The limiter of one domain, made on first use."""
        self.check_open()
        limiter = self._limiters.get(domain) if isinstance(domain, str) else None
        if limiter is None:
            name = parse_domain(domain)
            with self._lock:
                limiter = self._limiters.get(name)
                if limiter is None:
                    limiter = self._limiters[name] = DomainLimiter(name, limiter=self)
        return limiter

    def terms(self) -> Terms:
        """What holds now."""
        return self._terms

    def renewed(self, limiter: DomainLimiter) -> Rates:
        """Have a domain's limiter use the terms that hold now."""
        with self._lock:  # so that `update_config()` comes either before, or after
            return limiter.use(self._terms)

    def is_unlimited(self, domain: str) -> bool:
        """Whether a domain is on the list of those that have no limit, or its policy has none (Q12)."""
        return self.terms().of(domain).policy.qps is None

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
        """Wait until the URL's domain and the global rate let a request go.

        False if its breaker is open or it is on the denylist: why, and for how long, is in `refusal(url)`.
        """
        limiter = self._of_url(url)
        rates = limiter.rates
        self._tell()
        answer: Answer = No(Reason.DOMAIN_DENIED, None)
        if not rates.denied:
            request = Request(
                rates.key, rates.guarded, self.overall, page=False,
                renew=lambda: (limiter.rates.guarded, self.overall),
            )  # fmt: skip
            with self.waiting(self.async_gate.alarm.async_waiter(), limiter, rates.key) as waiter:
                answer = await self.async_gate.enter(request, waiter)
            if isinstance(answer, Ticket) and limiter.rates.denied:  # since it came
                answer = No(Reason.DOMAIN_DENIED, None)
        with self._lock:
            self._asked += 1
            self._refusals.pop(limiter.domain, None)
            if isinstance(answer, No) and answer.reason is not Reason.CLOSED:
                self._blocked += 1
                self._refusals[limiter.domain] = answer
                return False
        limiter.count(answer)
        return True

    def refusal(self, url: str) -> No | None:
        """Why the last `acquire` for the URL's domain was refused, with the seconds left; None if it was not."""
        return self._refusals.get(self._of_url(url).domain)

    def record_success(self, url: str) -> None:
        """A request succeeded: failures in a row are forgotten, and a trial closes the breaker."""
        self._report(url, Outcome(Kind.ANSWERED))

    def record_failure(self, url: str, status: int | None = None) -> None:
        """A request failed; 403 and 429 open the domain's breaker at once, 5xx and no status after three in a row.

        Any other status is an answer, and counts as a success (U6).
        """
        self._report(url, outcome_of(status))

    def reset_breaker(self, domain: str) -> None:
        """Close a domain's breaker by hand."""
        rates = self.domain(domain).rates
        self.gate.amend(rates.key, rates.guarded, Reset())

    def breaker_state(self, domain: str) -> tuple[State, float]:
        """Where a domain's breaker stands, and the seconds until a trial is let through."""
        host, now = self.store.update(self.domain(domain).key, lambda host, now: (host, (host, now)))
        if host is None or not host.tripped_at:
            return State.CLOSED, 0.0
        return host.breaker_state(now), host.breaker_left(now)

    def get_stats(self, domain: str | None = None) -> StatsSnapshot | TotalStats:
        """The statistics of a domain (an error if it was never seen), or without one the totals over all."""
        if domain is not None:
            return self._seen(domain).stats.snapshot()
        with self._lock:
            limiters, asked, blocked = list(self._limiters.values()), self._asked, self._blocked
        keys = dict.fromkeys(limiter.key for limiter in limiters)  # each once: some may share a record
        breakers = self.store.update_many([(key, _breaker) for key in keys])
        each = [limiter.stats.snapshot() for limiter in limiters]
        # What came by wait() and allow() was asked for as well, and is never blocked.
        return TotalStats(
            total_requests=max(asked, blocked + sum(one.total_requests for one in each)),
            blocked_requests=blocked,
            circuit_breaker_trips=sum(trips for trips, _ in breakers),
            circuit_breakers_open=sum(is_open for _, is_open in breakers),
            domains=len(limiters),
            delayed_requests=sum(one.delayed_requests for one in each),
            total_wait_time_ms=sum(one.total_wait_time_ms for one in each),
        )

    def use_policies(self, policies: Policies) -> None:
        """Change rates, strategy and breaker to those of other policies, while running; the global rate stays.

        Domains that have a configuration of their own keep it. It holds for those who wait already.
        """
        self._put(policies, self.overall)

    def use_global(self, global_qps: float | None) -> None:
        """Change the global rate, while running; None for no limit. It holds for those who wait already."""
        self.overall = overall_of(global_qps, self.overall.burst)
        self.gate.lines.nudge(GLOBAL)

    def _put(self, policies: Policies, overall: Policy) -> None:
        """Put other settings in place, all or none of them, and tell those who wait."""
        if not isinstance(policies, Policies):
            raise rule("policies", policies, "a Policies(default, entries)")
        with self._lock:
            self._terms = self._terms.under(policies)
            self.overall = overall
            keys = set(self._waiters.values())
        for key in (GLOBAL, *keys):
            self.gate.lines.nudge(key)

    def _of_url(self, url: str) -> DomainLimiter:
        found = parse_url(url)
        if not isinstance(found, Url):
            raise InvalidDomain(f"url = {url!r} cannot be asked for: {found.why}.")
        return self.domain(found.domain)

    def _report(self, url: str, outcome: Outcome) -> None:
        limiter = self._of_url(url)
        rates = limiter.rates

        def step(host: Host | None, now: Now) -> tuple[Host, bool]:
            settled = settle(host, now, rates.guarded, None, outcome)
            return settled, settled.trips > (host.trips if host else 0)

        has_tripped = self.store.update(rates.key, step)
        if has_tripped:
            _log.warning("Circuit breaker opened", domain=limiter.domain)
        self.gate.lines.nudge(rates.key)

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
            if self.is_closed:
                return
            self.is_closed = True
            waiters = list(self._waiters)
        for waiter in waiters:
            waiter.closed = True
            waiter.wake()

    async def aclose(self) -> None:
        """Close it, and let go of the store if this opened one by its URL. Idempotent."""
        self.close()
        if self._is_store_ours:
            await self._async_store.close()
            self.store.close()

    def check_open(self) -> None:
        """Raise `LimiterClosed` after `close()`."""
        if self.is_closed:
            raise self.closed_error()

    def closed_error(self) -> LimiterClosed:
        """The error for whoever waits when it is closed, or comes later."""
        return LimiterClosed("This rate limiter is closed. Make another one to go on.")

    @contextmanager
    def waiting(self, waiter: Waiter, limiter: DomainLimiter, key: str) -> Iterator[Waiter]:
        """Have a waiter in the line of `key` told when the limiter is closed or changed; count it if it gives up."""
        with self._lock:  # so that `close()` comes either before, or finds it
            self.check_open()
            self._waiters[waiter] = key
        try:
            yield waiter
        except (asyncio.CancelledError, KeyboardInterrupt):
            limiter.stats.count_canceled()
            raise
        finally:
            with self._lock:
                self._waiters.pop(waiter, None)


def _checked(domains: Mapping[str, LimitConfig] | None) -> Mapping[str, LimitConfig]:
    if domains is None:
        return {}
    if not isinstance(domains, Mapping):
        raise rule("domains", domains, "a dict of a LimitConfig for each domain")
    for name, each in domains.items():
        if not isinstance(each, LimitConfig):
            raise rule(f"domains[{name!r}]", each, "a LimitConfig(requests_per_second, burst_capacity)")
    return domains


def _open(store: str | MemoryStore | tuple[Store, AsyncStore] | None) -> tuple[Store, AsyncStore]:
    if store is None or (isinstance(store, str) and store == "memory:"):
        store = MemoryStore()
    if isinstance(store, MemoryStore):
        return store, AsyncMemoryStore(store)
    if isinstance(store, str):
        return open_store(store), open_async_store(store)
    if not isinstance(store, tuple) or len(store) != 2 or not all(hasattr(each, "update") for each in store):
        must = "a URL such as 'sqlite:///state.sqlite', a MemoryStore, or a pair of a blocking store and its async one"
        raise rule("store", store, must)
    return store


def overall_of(global_qps: float | None, burst: float = 1) -> Policy:
    """The policy of a global rate; None for no limit."""
    return UNLIMITED.but(qps=None if global_qps is None else rate("global_qps", global_qps), burst=burst)


def _breaker(host: Host | None, now: Now) -> tuple[Host | None, tuple[int, bool]]:
    """How often a breaker has opened, and whether it is open."""
    return host, (0, False) if host is None else (host.trips, host.breaker_state(now) is State.OPEN)


_all_limiters: WeakSet[RateLimiter] = WeakSet()


def _after_fork() -> None:
    for limiter in list(_all_limiters):
        limiter._renew_locks()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
