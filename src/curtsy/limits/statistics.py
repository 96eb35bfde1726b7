"""Statistics of a limiter: per domain (L4, L5) and in total (Q6)."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import Callable, Collection, Iterable
from datetime import UTC, datetime
from typing import Any

from curtsy.core.decision import No
from curtsy.core.errors import StoreError
from curtsy.core.statistics import DELAYED_MS, alarming
from curtsy.core.time import SECOND
from curtsy.limits.breaker import BreakerView
from curtsy.system.log import library_logger
from curtsy.system.threads import in_thread

_log = library_logger("guards")

LOCK = threading.RLock()
"""Lock of the state of all parts in this process, held only briefly. A fork waits for it, so that a child finds
consistent state, and no lock that a thread of its parent holds."""

if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=LOCK.acquire, after_in_parent=LOCK.release, after_in_child=LOCK.release)

STATS_EVERY = 60.0
"""Seconds between two statistics lines in the log (Q10)."""


class LimiterStats(dict[str, Any]):
    """Statistics of a limiter: a dict, ready for `json.dumps`, with its items as attributes."""

    def __getattr__(self, name: str) -> Any:
        if name not in self:
            raise AttributeError(name)
        return self[name]

    def as_dict(self) -> dict[str, Any]:
        """Return a plain dict of JSON values."""
        return dict(self)


class StatsSnapshot(LimiterStats):
    """Snapshot of a limiter's statistics for one domain (L5)."""

    domain: str
    total_requests: int
    delayed_requests: int
    """Requests that waited more than 10 ms."""

    total_wait_time_ms: float
    average_wait_time_ms: float
    """Total wait / delayed requests; 0 if none was delayed."""

    last_request_time: str | None
    """ISO 8601 time in UTC; None before the first request."""

    delay_rate: float
    """Delayed / total requests; 0 without requests."""

    canceled_requests: int
    """Waits that were cancelled or timed out."""


class LimitStats:
    """Counts of one domain. A count takes well under a microsecond; a snapshot is consistent."""

    __slots__ = ("_delayed", "_total", "_wait_ms", "blocked", "canceled", "domain", "last", "refusal")

    def __init__(self, domain: str) -> None:
        self.domain = domain
        self.refusal: No | None = None
        """Why the last request was refused; None if it was granted."""
        self.reset()

    def reset(self) -> None:
        """Set all counts to zero."""
        with LOCK:
            self._total = self._delayed = 0
            self._wait_ms = 0.0
            self.blocked = 0
            """Requests that a breaker or the denylist refused."""
            self.canceled = 0
            """Waits that were cancelled or timed out."""
            self.last: int | None = None
            """Time of the last request in microseconds since 1970; None before the first."""

    def count(self, epoch: int, waited: float = 0.0, requests: int = 1) -> None:
        """Count admitted requests at `epoch` microseconds, after a wait of `waited` seconds."""
        with LOCK:
            self._total += requests
            self.last = epoch
            self._wait_ms += waited * 1000
            if waited * 1000 > DELAYED_MS:
                self._delayed += requests

    def count_canceled(self) -> None:
        """Count a wait that was cancelled or timed out."""
        with LOCK:
            self.canceled += 1

    def count_refused(self, no: No) -> None:
        """Count a refused request and keep the reason."""
        with LOCK:
            self.blocked += 1
            self.refusal = no

    def snapshot(self) -> StatsSnapshot:
        """Return a consistent snapshot of all counts."""
        with LOCK:
            counts = self._total, self._delayed, self._wait_ms, self.last, self.canceled
        return snapshot_of(self.domain, *counts)


def snapshot_of(
    domain: str, total: int, delayed: int, wait_ms: float, last: int | None, canceled: int
) -> StatsSnapshot:  # fmt: skip
    """Return the statistics of a domain from its counts; `last` is in microseconds since 1970."""
    return StatsSnapshot(
        domain=domain,
        total_requests=total,
        delayed_requests=delayed,
        total_wait_time_ms=wait_ms,
        average_wait_time_ms=wait_ms / delayed if delayed else 0.0,
        last_request_time=None if last is None else _utc_text(last),
        delay_rate=delayed / total if total else 0.0,
        canceled_requests=canceled,
    )


def _utc_text(epoch: int) -> str:
    """Return microseconds since 1970 as ISO 8601 in UTC, to the millisecond, with a final `Z`."""
    return datetime.fromtimestamp(epoch / SECOND, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


class TotalStats(LimiterStats):
    """Statistics of a limiter over all domains (Q6). Omitted counts are 0."""

    total_requests: int
    """Requests to be sent, including refused ones."""

    blocked_requests: int
    """Requests refused because a breaker was open or the domain is denied."""

    circuit_breaker_trips: int
    circuit_breakers_open: int
    domains: int
    delayed_requests: int
    total_wait_time_ms: float

    def __init__(self, **counts: float) -> None:
        super().__init__({**dict.fromkeys(TotalStats.__annotations__, 0), **counts})

    @property
    def alerts(self) -> tuple[str, ...]:
        """Return the names of the active alerts (Q10)."""
        return alarming(
            self.total_requests, self.blocked_requests, self.circuit_breaker_trips, self.circuit_breakers_open
        )  # fmt: skip

    def as_dict(self) -> dict[str, Any]:
        """Return the fields and the alerts as plain JSON values."""
        return {**self, "alerts": list(self.alerts)}


def total_of(
    domains: Collection[StatsSnapshot], blocked: int, trips: int, breakers: Iterable[BreakerView]
) -> TotalStats:
    """Return the totals of the statistics of all domains, and of their breakers."""
    return TotalStats(
        total_requests=blocked + sum(each.total_requests for each in domains),
        blocked_requests=blocked,
        circuit_breaker_trips=trips,
        circuit_breakers_open=sum(each.is_open for each in breakers),
        domains=sum(bool(each.domain) for each in domains),
        delayed_requests=sum(each.delayed_requests for each in domains),
        total_wait_time_ms=sum(each.total_wait_time_ms for each in domains),
    )


class StatsLog:
    """Periodic log of a limiter's totals, and of its alerts as they begin and end (Q10)."""

    def __init__(self, read: Callable[[], TotalStats], now: Callable[[], float], is_immediate: bool) -> None:
        self.every: float | None = STATS_EVERY
        """Seconds between two lines; None for no lines."""
        self._read = read
        self._now = now
        self._is_immediate = is_immediate
        self._logged_at = now()
        self._alerts: tuple[str, ...] = ()
        self._task: asyncio.Task[None] | None = None

    def write_if_due(self) -> None:
        """Log the totals if a line is due: in a task if reading them may block the event loop."""
        now = self._now()
        if self.every is None or now - self._logged_at < self.every:
            return
        self._logged_at = now
        if self._is_immediate:
            self.write(self._read())
        elif self._task is None or self._task.done() or self._task.get_loop().is_closed():
            self._task = asyncio.ensure_future(self._write_slowly())

    async def _write_slowly(self) -> None:
        try:
            self.write(await in_thread(self._read))
        except StoreError as error:
            _log.warning("The statistics cannot be read", error=str(error))

    def close(self) -> None:
        """Cancel the task. Idempotent."""
        if self._task is not None:
            with contextlib.suppress(RuntimeError):  # its loop is closed
                self._task.get_loop().call_soon_threadsafe(self._task.cancel)

    async def wait_until_closed(self) -> None:
        """Wait for the end of a cancelled task of this event loop."""
        if self._task is not None and self._task.get_loop() is asyncio.get_running_loop():
            await asyncio.wait([self._task])

    def write(self, stats: TotalStats) -> None:
        """Log the totals, and the alerts that have begun or ended since the last line."""
        _log.info("Rate limiter statistics", **stats.as_dict())
        before, self._alerts = self._alerts, stats.alerts
        for alert in stats.alerts:
            if alert not in before:
                _log.warning(f"Alert: {alert}", alert=alert, **stats.as_dict())
        for alert in before:
            if alert not in stats.alerts:
                _log.warning(f"Alert over: {alert}", alert=alert)
