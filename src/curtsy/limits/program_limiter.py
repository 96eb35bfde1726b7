"""The limiter that a whole program shares (Q1, Q6, Q7, C15), and a downloader that uses it (Q8)."""

from __future__ import annotations

import contextlib
import os
import threading
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from curtsy.client import AsyncClient
from curtsy.core.decision import No
from curtsy.core.errors import Reason
from curtsy.core.policy import Policies
from curtsy.core.setting import rate
from curtsy.core.statistics import HostStatistics, summed
from curtsy.core.time import SECOND
from curtsy.core.url import parse_domain
from curtsy.engine.arguments import check_names
from curtsy.engine.counters import EVERY, Counters, Publisher, whole_statistics
from curtsy.limits.arguments import program_settings
from curtsy.limits.domain_limits import DomainLimits, Rates, overall_of
from curtsy.limits.limiter import RateLimiter, closed_error
from curtsy.limits.statistics import LOCK, LimitStats, StatsSnapshot, TotalStats, snapshot_of, total_of
from curtsy.stores import BlockingStore, Store, open_store
from curtsy.system.log import library_logger
from curtsy.system.shutdown import at_exit

if TYPE_CHECKING:
    from curtsy.settings.live import LiveSettings

_log = library_logger("guards")

_program: ProgramLimiter | None = None


def get_rate_limiter(global_qps: float | None = None) -> RateLimiter:
    """Return the program's limiter, on the settings and the store that clients, crawls and downloads use.

    They share one global rate, one breaker per host and one set of statistics, also across processes. If `global_qps`
    differs from the settings, the lower rate applies, with one warning. Changed settings files are read again while the
    limiter is in use. After `close()`, the next call creates a new limiter.
    """
    global _program
    with LOCK:
        if _program is None or _program.is_closed:
            _program = ProgramLimiter(program_settings())
        if global_qps is not None:
            _program.use_global(global_qps)
        return _program


class ProgramLimiter(RateLimiter):
    """Limiter that follows the settings (U9) and shares records and statistics through their store (C15)."""

    def __init__(self, live: LiveSettings) -> None:
        policies = live.current.policies
        self._live = live
        self._followed = policies
        self._own_qps: float | None = None
        self._timer: threading.Timer | None = None
        super().__init__(global_qps=policies.global_qps, per_domain_qps=policies.default.qps, policies=policies)
        # The settings reader has already checked these and logged warnings; as arguments they would be checked twice.
        self._use(policies, overall_of(self.overall.qps, policies.overall.burst))
        self._stats_log.every = live.current.stats_every
        self._counters = Counters()
        self._publisher = Publisher(self._counters, self.store.inner)
        self._before: dict[str, HostStatistics] = {}
        """Counts by domain at the last `reset()`; "" is the sum of hosts without their own row."""

    def _open(self, store: str | Store | None) -> tuple[BlockingStore, bool]:
        """Open the store of the settings (C15)."""
        settings = self._live.current
        return open_store(settings.store, **settings.outages()), True

    def _current_limits(self) -> DomainLimits:
        """Return the limits under the current settings."""
        policies = self._live.check().policies
        if policies is not self._followed:
            self._follow(policies)
        return super()._current_limits()

    def use_global(self, global_qps: float | None) -> None:
        """Change the global rate at runtime. A lower rate in the settings takes precedence (C26)."""
        with LOCK:
            own = None if global_qps is None else rate("global_qps", global_qps)
            is_new, self._own_qps = own != self._own_qps, own
            super().use_global(self._lower(self._followed))
        settings_qps = self._followed.global_qps
        if is_new and own is not None and own != settings_qps:
            _log.warning(
                f"global_qps = {own:g} differs from the settings; this limiter uses the lower rate, "
                f"{self.overall.qps:g} a second. Change global_qps in the settings to change it for the whole program.",
                settings=settings_qps,
            )

    def _lower(self, policies: Policies) -> float | None:
        """Return the lower of the settings' global rate and the program's own; None without either."""
        return min((qps for qps in (self._own_qps, policies.global_qps) if qps is not None), default=None)

    def _follow(self, policies: Policies) -> None:
        with LOCK:
            if policies is self._followed:
                return
            wrong = None
            try:
                self._use(policies, overall_of(self._lower(policies), policies.overall.burst))
            except Exception as error:  # invalid settings never fail a request (U9)
                wrong = error
            # Also set for unusable policies, so that this is logged once; and set last because of forks.
            self._followed = policies
        if wrong is not None:
            _log.warning("The limiter cannot use the changed settings; it keeps the ones before", error=str(wrong))

    # Statistics, shared with all clients and processes on the store

    def _count_granted(self, stats: LimitStats, epoch: int, waited: float, n: int) -> None:
        """Count `n` granted requests at `epoch` (microseconds), after `waited` seconds."""
        super()._count_granted(stats, epoch, waited, n)
        self._counters.count_turn(stats.domain, requests=n, waited=waited)
        self._publish_soon()

    def _count_refused(self, stats: LimitStats, no: No) -> None:
        """Count a refused request and keep the reason."""
        super()._count_refused(stats, no)
        self._counters.count_turn(stats.domain, reason=no.reason.value)
        self._publish_soon()

    def _count_trip(self, domain: str) -> None:
        """Count an opening of a domain's breaker."""
        super()._count_trip(domain)
        self._counters.count_trip(domain)
        self._publish_soon()

    def _publish_soon(self) -> None:
        """Schedule publication of the counts in `EVERY` seconds, so that the dashboard and other processes see them."""
        if self.gate.is_immediate or (self._timer is not None and self._timer.is_alive()):
            return
        with LOCK, contextlib.suppress(RuntimeError):  # RuntimeError: the program ends, and `close()` publishes
            if self._timer is None or not self._timer.is_alive():  # as in a forked child
                self._timer = threading.Timer(EVERY, self.publish)
                self._timer.daemon = True
                self._timer.start()

    def publish(self) -> None:
        """Publish the new counts now."""
        with LOCK:
            timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()
        if not self._has_closed_store:
            self._publisher.publish_blocking(self.store)

    # The statistics include clients, crawls and other processes on the same store in the last day, since `reset()`.

    def _domain_stats(self, name: str) -> StatsSnapshot:
        host = self._counted().get(name)
        return super()._domain_stats(name) if host is None else self._snapshot(host)

    def _total_stats(self) -> TotalStats:
        counted = self._counted()
        keys = {self._followed.of(name).key_for(name) for name, host in counted.items() if name and host.trips}
        keys |= {self._rates(stats.domain).key for stats in self._known()}
        each = [self._snapshot(host) for host in counted.values()]
        trips = sum(host.trips for host in counted.values())
        return total_of(each, sum(map(_blocked, counted.values())), trips, self._read_breakers(keys))

    def get_all_stats(self) -> dict[str, StatsSnapshot]:
        """Return a copy of the statistics of every known domain."""
        return super().get_all_stats() | {
            name: self._snapshot(host) for name, host in self._counted().items() if name
        }  # fmt: skip

    def _known_rates(self) -> dict[str, Rates]:
        """Return the limits of each domain that this limiter, a client or another process has requested."""
        limits = self._current_limits()
        return {name: limits.of(name) for name in self._shared() if name} | super()._known_rates()

    def reset(self, domain: str | None = None) -> None:
        """Reset this limiter's statistics of a domain, or of all. Tokens and breakers are kept."""
        shared = self._shared()
        if domain is None:
            super().reset()
            self._before = shared
            return
        name = parse_domain(domain)
        if name in self._domains or name not in shared:
            super().reset(name)
        if name in shared:
            self._before[name] = shared[name]

    def _shared(self) -> dict[str, HostStatistics]:
        """Return the counts of all processes by domain; "" is the sum of hosts without their own row."""
        if self._has_closed_store:
            raise closed_error()
        whole = summed(whole_statistics(self.store))
        return {**whole.hosts, "": whole.other}

    def _counted(self) -> dict[str, HostStatistics]:
        """Return the same since the last `reset()`."""
        return {name: host.since(self._before.get(name)) for name, host in self._shared().items()}

    def _snapshot(self, host: HostStatistics) -> StatsSnapshot:
        own = self._domains.get(host.domain)
        last = max((own and own.last) or 0, round(host.last_at * SECOND)) or None
        requests, canceled = host.requests + host.robots_requests, 0 if own is None else own.canceled
        return snapshot_of(host.domain, requests, host.delayed, host.waited * 1000, last, canceled)

    def close(self) -> None:
        """Publish the counts and close the limiter. Idempotent."""
        if not self.is_closed:
            self.publish()
        super().close()


class PDFDownloader:
    """Downloader of PDFs and other files that returns only success or failure.

    With `enable_rate_limit`, `rate_limiter` is `get_rate_limiter()`, which the whole program shares (C15). Without it,
    there is no pace and no budget; requests still pass the gate, and robots.txt applies (C13). `AsyncClient.download`
    returns more details.
    """

    def __init__(self, enable_rate_limit: bool = True, **settings: Any) -> None:
        check_names(settings, ("enable_rate_limit",), "PDFDownloader")
        if not enable_rate_limit:
            settings.setdefault("preset", "own")
        self._is_limited = enable_rate_limit
        self._client = AsyncClient(**settings)

    @property
    def rate_limiter(self) -> RateLimiter | None:
        """Return the program's limiter; None without `enable_rate_limit`."""
        return get_rate_limiter() if self._is_limited else None

    async def download(self, url: str, save_path: str | os.PathLike[str]) -> bool:
        """Save a URL as a file; return whether the complete file is in place."""
        result = await self._client.download(url, save_path)
        if not result.ok:
            _log.warning("Not downloaded", url=url, reason=result.reason, message=result.message)
        return result.ok

    async def close(self) -> None:
        """Close the client. Idempotent."""
        await self._client.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


def _blocked(host: HostStatistics) -> int:
    """Return how many requests a breaker or the denylist refused (Q6)."""
    return host.refused.get(Reason.CIRCUIT_OPEN, 0) + host.refused.get(Reason.DOMAIN_DENIED, 0)


def _publish_at_exit() -> None:
    if _program is not None and not _program.is_closed:
        _program.publish()


at_exit(_publish_at_exit, first=True)
