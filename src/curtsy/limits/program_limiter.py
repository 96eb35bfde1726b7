"""The program's limiter, shared by everything in it that sends requests (Q1, Q6, Q7, C15)."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, overload

from curtsy.core.breaker import State
from curtsy.core.decision import No
from curtsy.core.errors import Reason, StoreError
from curtsy.core.host import Host
from curtsy.core.message import SECOND, Now, parse_domain
from curtsy.core.policy import Policies, rate
from curtsy.core.record import StatsSnapshot, TotalStats, snapshot_of
from curtsy.core.statistics import HostStatistics, summed
from curtsy.engine.counters import Counters
from curtsy.engine.stats_publisher import EVERY, Publisher, whole_statistics
from curtsy.limits.domain_limiter import DomainLimiter
from curtsy.limits.domain_limits import DomainLimits, Rates
from curtsy.limits.limiter import RateLimiter, overall_of
from curtsy.limits.opening import opened_by_settings
from curtsy.system.log import library_logger
from curtsy.system.shutdown import at_exit
from curtsy.system.threads import in_thread

if TYPE_CHECKING:
    from curtsy.settings.live import LiveSettings

_log = library_logger("guards")

_program: ProgramLimiter | None = None
_lock = threading.Lock()


def get_rate_limiter(global_qps: float | None = None) -> RateLimiter:
    """Return the program's limiter, on the settings and the store that clients, crawls and downloads use.

    They share one global rate, one breaker per host and one set of statistics, also across processes. If `global_qps`
    differs from the settings, the lower rate applies, with one warning. Changed settings files are read again while the
    limiter is in use. After `close()`, the next call creates a new limiter.
    """
    global _program
    with _lock:
        if _program is None or _program.is_closed:
            from curtsy.settings import new_notices
            from curtsy.settings.live import LiveSettings  # late import: settings are slow to import

            live = LiveSettings()
            for warning in (*live.current.warnings, *new_notices(live.current)):
                _log.warning(warning)
            _program = ProgramLimiter(live)
        if global_qps is not None:
            _program.use_global(global_qps)
        return _program


class ProgramLimiter(RateLimiter):
    """Limiter that follows the settings (U9) and shares records and statistics through their store (C15)."""

    def __init__(self, live: LiveSettings) -> None:
        policies = live.current.policies
        self._own_qps: float | None = None
        super().__init__(
            global_qps=policies.global_qps,
            per_domain_qps=policies.default.qps,
            policies=policies,
            store=opened_by_settings(live.current),
        )
        self._is_store_ours = True
        # The settings reader has already checked these and logged warnings; as arguments they would be checked twice.
        self._put(policies, overall_of(self.overall.qps, policies.overall.burst))
        self._live = live
        self._stats_every = live.current.stats_every
        self._followed = policies
        self._counters = Counters()
        self._publisher = Publisher(self._counters, self._async_store)
        self._before: dict[str, HostStatistics] = {}
        """Counts by domain at the last `reset()`; "" is the sum of hosts without their own row."""

    def _renew_locks(self) -> None:
        """Create free locks. A forked child calls this because the threads that held them do not exist there."""
        super()._renew_locks()
        self._following = threading.Lock()
        self._timer: threading.Timer | None = None

    def domain(self, domain: str) -> DomainLimiter:
        """Return the limiter of a domain, created on first use, under the current settings."""
        self.terms()
        return super().domain(domain)

    def terms(self) -> DomainLimits:
        """Return the limits under the current settings."""
        policies = self._live.check().policies
        if policies is not self._followed:
            self._follow(policies)
        return super().terms()

    def use_global(self, global_qps: float | None) -> None:
        """Change the global rate at runtime. A lower rate in the settings takes precedence (C26)."""
        with self._following:
            own = None if global_qps is None else rate("global_qps", global_qps)
            is_news, self._own_qps = own != self._own_qps, own
            super().use_global(self._lower(self._followed))
        settings_qps = self._followed.global_qps
        if is_news and own is not None and own != settings_qps:
            _log.warning(
                f"global_qps = {own:g} differs from the settings; this limiter uses the lower rate, "
                f"{self.overall.qps:g} a second. Change global_qps in the settings to change it for the whole program.",
                settings=settings_qps,
            )

    def _lower(self, policies: Policies) -> float | None:
        """Return the lower of the settings' global rate and the program's own; None without either."""
        return min((qps for qps in (self._own_qps, policies.global_qps) if qps is not None), default=None)

    def _follow(self, policies: Policies) -> None:
        with self._following:
            if policies is self._followed:
                return
            wrong = None
            try:
                self._put(policies, overall_of(self._lower(policies), policies.overall.burst))
            except Exception as error:  # invalid settings never fail a request (U9)
                wrong = error
            # Also set for unusable policies, so that this is logged once; and set last because of forks.
            self._followed = policies
        if wrong is not None:
            _log.warning("The limiter cannot use the changed settings; it keeps the ones before", error=str(wrong))

    # Statistics, shared with all clients and processes on the store

    def count_granted(self, limiter: DomainLimiter, epoch: int, waited: float, n: int) -> None:
        """Count `n` granted requests at `epoch` (microseconds), after `waited` seconds."""
        super().count_granted(limiter, epoch, waited, n)
        self._counters.count_turn(limiter.domain, requests=n, waited=waited)
        self._publish_soon()

    def count_refused(self, limiter: DomainLimiter, no: No) -> None:
        """Count a refused request and keep the reason."""
        super().count_refused(limiter, no)
        self._counters.count_turn(limiter.domain, reason=no.reason.value)
        self._publish_soon()

    def count_trip(self, limiter: DomainLimiter) -> None:
        """Count an opening of a domain's breaker."""
        super().count_trip(limiter)
        self._counters.count_trip(limiter.domain)
        self._publish_soon()

    def _publish_soon(self) -> None:
        """Schedule publication of the counts in `EVERY` seconds, so that the dashboard and other processes see them."""
        if self._timer is None and not self.async_gate.is_immediate:
            with self._lock:
                if self._timer is not None:
                    return
                self._timer = threading.Timer(EVERY, self.publish)
                self._timer.daemon = True
            try:
                self._timer.start()
            except RuntimeError:  # the program ends, and `close()` publishes
                pass

    def publish(self) -> None:
        """Publish the new counts now."""
        with self._lock:
            timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()
        if not self._has_let_go:
            self._publisher.publish_blocking(self.store)

    @overload
    def get_stats(self, domain: None = None) -> TotalStats: ...

    @overload
    def get_stats(self, domain: str) -> StatsSnapshot: ...

    def get_stats(self, domain: str | None = None) -> StatsSnapshot | TotalStats:
        """Return the statistics of a domain, or the totals of all domains.

        An unknown domain raises UnknownDomain. The counts include clients, crawls and other processes on the same store
        in the last day, since `reset()`.
        """
        if domain is not None:
            name = parse_domain(domain)
            host = self._counted().get(name)
            return super().get_stats(name) if host is None else self._snapshot(host)
        if self._has_let_go:
            raise self.closed_error()
        counted = self._counted()
        hosts = [host for name, host in counted.items() if name]
        suspects = {self._followed.of(host.domain).key_for(host.domain) for host in hosts if host.trips}
        suspects |= {limiter.key for limiter in self._known()}
        states = self.store.update_many([(key, _is_open) for key in suspects])
        blocked = sum(_blocked(host) for host in counted.values())
        return TotalStats(
            total_requests=blocked + sum(_requests(host) for host in counted.values()),
            blocked_requests=blocked,
            circuit_breaker_trips=sum(host.trips for host in counted.values()),
            circuit_breakers_open=sum(states),
            domains=len(hosts),
            delayed_requests=sum(host.delayed for host in counted.values()),
            total_wait_time_ms=sum(host.waited for host in counted.values()) * 1000,
        )

    def get_all_stats(self) -> dict[str, StatsSnapshot]:
        """Return a copy of the statistics of every known domain."""
        return super().get_all_stats() | {
            name: self._snapshot(host) for name, host in self._counted().items() if name
        }  # fmt: skip

    def _rates_seen(self) -> dict[str, Rates]:
        """Return the limits of each domain that this limiter, a client or another process has requested."""
        terms = self.terms()
        return {name: terms.of(name) for name in self._shared() if name} | super()._rates_seen()

    def reset(self, domain: str | None = None) -> None:
        """Reset this limiter's statistics of a domain, or of all. Tokens and breakers are kept."""
        shared = self._shared()
        if domain is None:
            super().reset()
            self._before = shared
            return
        name = parse_domain(domain)
        if name in self._limiters or name not in shared:
            super().reset(name)
        if name in shared:
            self._before[name] = shared[name]

    def _shared(self) -> dict[str, HostStatistics]:
        """Return the counts of all processes by domain; "" is the sum of hosts without their own row."""
        whole = summed(whole_statistics(self.store))
        return {**whole.hosts, "": whole.other}

    def _counted(self) -> dict[str, HostStatistics]:
        """Return the same since the last `reset()`."""
        return {name: host.since(self._before.get(name)) for name, host in self._shared().items()}

    def _snapshot(self, host: HostStatistics) -> StatsSnapshot:
        limiter = self._limiters.get(host.domain)
        last, canceled = (None, 0) if limiter is None else limiter.stats.last_and_canceled()
        last = max(last or 0, round(host.last_at * SECOND)) or None
        return snapshot_of(host.domain, _requests(host), host.delayed, host.waited * 1000, last, canceled)

    async def _tell_slowly(self) -> None:
        try:
            await in_thread(self.log_stats)
        except StoreError as error:
            _log.warning("The statistics cannot be read", error=str(error))

    def close(self) -> None:
        """Publish the counts and close the limiter. Idempotent."""
        if not self.is_closed:
            self.publish()
        super().close()


def _requests(host: HostStatistics) -> int:
    return host.requests + host.robots_requests


def _blocked(host: HostStatistics) -> int:
    """Return how many requests a breaker or the denylist refused (Q6)."""
    return host.refused.get(Reason.CIRCUIT_OPEN, 0) + host.refused.get(Reason.DOMAIN_DENIED, 0)


def _is_open(host: Host | None, now: Now) -> tuple[Host | None, bool]:
    return host, host is not None and host.breaker_state(now) is State.OPEN


def _publish_at_exit() -> None:
    if _program is not None and not _program.is_closed:
        _program.publish()


at_exit(_publish_at_exit, first=True)


def _after_fork() -> None:
    global _lock
    _lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
