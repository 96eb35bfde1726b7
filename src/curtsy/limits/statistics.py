"""Statistics of a limiter: per domain (L4, L5) and in total (Q6)."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from curtsy.core.errors import StoreError
from curtsy.core.message import SECOND
from curtsy.core.statistics import DELAYED_MS, alarming
from curtsy.system.log import library_logger
from curtsy.system.threads import in_thread

_log = library_logger("guards")

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

    __slots__ = ("_canceled", "_delayed", "_last", "_lock", "_total", "_wait_ms", "domain")

    def __init__(self, domain: str) -> None:
        self.domain = domain
        self.renew_lock()
        self.reset()

    def renew_lock(self) -> None:
        """Replace the lock, as in a forked child, where its holder does not exist."""
        self._lock = threading.Lock()

    def reset(self) -> None:
        """Set all counts to zero."""
        with self._lock:
            self._total = self._delayed = self._canceled = 0
            self._wait_ms = 0.0
            self._last: int | None = None

    def count(self, epoch: int, waited: float = 0.0, requests: int = 1) -> None:
        """Count admitted requests at `epoch` microseconds, after a wait of `waited` seconds."""
        with self._lock:
            self._total += requests
            self._last = epoch
            self._wait_ms += waited * 1000
            if waited * 1000 > DELAYED_MS:
                self._delayed += requests

    def count_canceled(self) -> None:
        """Count a wait that was cancelled or timed out."""
        with self._lock:
            self._canceled += 1

    def last_and_canceled(self) -> tuple[int | None, int]:
        """Return the time of the last request in microseconds since 1970 (None if none), and the cancelled waits."""
        with self._lock:
            return self._last, self._canceled

    def snapshot(self) -> StatsSnapshot:
        """Return a consistent snapshot of all counts."""
        with self._lock:
            total, delayed, wait_ms = self._total, self._delayed, self._wait_ms
            last, canceled = self._last, self._canceled
        return snapshot_of(self.domain, total, delayed, wait_ms, last, canceled)


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
        last_request_time=None if last is None else utc_text(last),
        delay_rate=delayed / total if total else 0.0,
        canceled_requests=canceled,
    )


def utc_text(epoch: int) -> str:
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
        self._is_closed = False
        self.renew_lock()

    def renew_lock(self) -> None:
        """Create a free lock and forget the task. A forked child calls this: their threads do not exist there."""
        self._lock = threading.Lock()
        self._task: asyncio.Task[None] | None = None

    def write_if_due(self) -> None:
        """Log the totals if a line is due: in a task if reading them may block the event loop."""
        now = self._now()
        if self.every is None or now - self._logged_at < self.every:
            return
        self._logged_at = now
        if self._is_immediate:
            self.write(self._read())
            return
        with self._lock:  # never two at once, nor after `close()`
            before = self._task
            if not self._is_closed and (before is None or before.done() or before.get_loop().is_closed()):
                self._task = asyncio.ensure_future(self._write_slowly())

    async def _write_slowly(self) -> None:
        try:
            stats = await in_thread(self._read)
        except StoreError as error:
            _log.warning("The statistics cannot be read", error=str(error))
        else:
            self.write(stats)

    def close(self) -> None:
        """Cancel the task, and start no other. Idempotent."""
        with self._lock:
            self._is_closed = True
            task = self._task
        if task is not None:
            with contextlib.suppress(RuntimeError):  # its loop is closed
                task.get_loop().call_soon_threadsafe(task.cancel)

    async def wait_until_closed(self) -> None:
        """Wait for the end of a cancelled task of this event loop."""
        if self._task is not None and self._task.get_loop() is asyncio.get_running_loop():
            await asyncio.wait([self._task])

    def write(self, stats: TotalStats) -> None:
        """Log the totals, and the alerts that have begun or ended since the last line."""
        _log.info("Rate limiter statistics", **stats.as_dict())
        alerts, before = stats.alerts, self._alerts
        self._alerts = alerts
        for alert in alerts:
            if alert not in before:
                _log.warning(f"Alert: {alert}", alert=alert, **stats.as_dict())
        for alert in before:
            if alert not in alerts:
                _log.warning(f"Alert over: {alert}", alert=alert)
