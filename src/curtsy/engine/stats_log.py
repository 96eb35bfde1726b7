"""Statistics line that is logged every minute, and the check for alerts (Q10)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from curtsy.core.errors import CurtsyError
from curtsy.core.policy import Policies
from curtsy.core.statistics import HostStatistics, StatisticsSnapshot
from curtsy.engine.alerts import NEARLY, AlertWatch, alerts_of
from curtsy.engine.counters import Counters
from curtsy.engine.host_view import HostView, view_of
from curtsy.stores import AsyncStore
from curtsy.system.log import LibraryLogger, library_logger

_log: LibraryLogger = library_logger("statistics")

TOLD = (
    "fetches", "ok", "requests", "robots_requests", "pages", "bytes", "cache_hits", "revalidated", "retries",
    "delayed", "trips", "refused", "failed",
)  # fmt: skip
"""Counters in the line, since the start."""


class StatsLog:
    """Log of the counters and their alerts."""

    def __init__(self, counters: Counters, store: AsyncStore, policies: Callable[[], Policies]) -> None:
        self._counters = counters
        self._store = store
        self._policies = policies
        self._told = 0
        self.alerts = AlertWatch()

    async def report(self) -> bool:
        """Log the statistics if they changed; return whether to check again without further activity."""
        counted = self._counters.snapshot()
        if counted.fetches != self._told:
            self._told = counted.fetches
            _log.info("Statistics", **line(counted))
        try:
            hosts = [await self._view(host.domain) for host in counted.hosts.values() if self._is_suspect(host)]
        except CurtsyError:  # the store failed: the fetches report it
            return True
        self.alerts.look(alerts_of(counted, hosts))
        return bool(self.alerts.active)  # so that the end of an alert is logged

    def _is_suspect(self, host: HostStatistics) -> bool:
        """Return whether the host may cause an alert, so that its record must be read."""
        policy = self._policies().of(host.domain)
        left = ((host.requests_left, policy.max_requests_per_day), (host.pages_left, policy.max_pages_per_day))
        is_nearly_spent = any(count is not None and limit - count >= NEARLY * limit for count, limit in left)
        return bool(host.trips or host.blocked or is_nearly_spent)

    async def _view(self, domain: str) -> HostView:
        policy = self._policies().of(domain)
        record = await self._store.read(policy.key_for(domain))
        return view_of(domain, record, await self._store.now(), policy)


def line(counted: StatisticsSnapshot) -> dict[str, Any]:
    """Return the fields of the statistics line."""
    return {
        **{name: getattr(counted, name) for name in TOLD},
        "hosts": len(counted.domains),
        "waited": round(counted.waited, 3),
        "wait_p95": round(counted.waits.quantile(0.95), 3),
        "latency_p95": round(counted.latency.quantile(0.95), 3),
    }
