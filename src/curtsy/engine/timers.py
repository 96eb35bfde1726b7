"""Timers for the waits of tasks: one heap and one timer per event loop."""

from __future__ import annotations

import asyncio
import heapq
import itertools
import threading
import time
from collections.abc import Callable
from typing import ClassVar, Protocol

from curtsy.core.time import Now

EARLY = 0.0011
"""Seconds by which a loop's timer fires early, because epoll rounds up to a millisecond and the kernel adds some.

The loop spins for the rest: half a millisecond on average.
"""

LATE = 0.0001
"""Seconds by which a task is woken after its time.

A task resumes some microseconds after its admission, and that delay varies. Without this margin, the gap between two
requests that a task measures would sometimes be too short.
"""

SLACK = 0.002
"""Share of a long wait by which its timer also fires early: the kernel may be late by a thousandth."""


GATHERING, IDLE = 0.01, 2
"""Seconds for which events are gathered while the event loop is busy, and its iterations without one that end this: in
the first, a response may be received that is read in the second."""

LONGEST = threading.TIMEOUT_MAX
"""Maximum wait in seconds, some centuries: timers reject infinity and NaN."""


def bounded(seconds: float) -> float:
    """Return the seconds within the allowed range; 0 for negative values and NaN."""
    return min(max(0.0, seconds), LONGEST)


class Waiter:
    """Task that waits and can be woken from any thread. Wake-ups are merged, never lost."""

    __slots__ = ("__weakref__", "closed", "due")

    loop: asyncio.AbstractEventLoop | None = None
    """Event loop of the waiting task; None in a simulation without one."""

    def __init__(self) -> None:
        self.closed = False
        """True if the object that it waits for was closed: the waiter must give up."""
        self.due: float | None = None
        """Time at which the current wait ends by itself; None without one. Heap entries with another time are stale."""

    @property
    def is_gone(self) -> bool:
        """Return whether the waiter's event loop is closed."""
        return False

    def wake(self) -> None:
        """End the current wait, or the next one immediately."""
        raise NotImplementedError


class TaskWaiter(Waiter):
    """Waiting task, on the event loop that is running at construction."""

    __slots__ = ("_thread", "future", "loop", "woken")

    def __init__(self) -> None:
        super().__init__()
        self.loop: asyncio.AbstractEventLoop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self.future: asyncio.Future[None] | None = None
        self.woken = False

    @property
    def is_gone(self) -> bool:
        """Return whether the waiter's event loop is closed, which happens without notice to its waiters."""
        return self.loop.is_closed()

    def wake(self) -> None:
        """End the current wait, or the next one immediately."""
        if threading.get_ident() == self._thread:
            self._set()
        else:
            try:
                self.loop.call_soon_threadsafe(self._set)
            except RuntimeError:
                pass  # a closed loop has no waiters

    def _set(self) -> None:
        self.woken = True
        if self.future is not None and not self.future.done():
            self.future.set_result(None)

    async def rest(self) -> None:
        """Wait to be woken."""
        if not self.woken:
            self.future = self.loop.create_future()
            try:
                await self.future
            finally:
                self.future = None
        self.woken = False


class Timers(Protocol):
    """Clock and waits of the gate."""

    def now(self) -> float:
        """Return the time in seconds of a monotonic clock."""
        ...

    def waiter(self) -> Waiter:
        """Return a waiter for the running task."""
        ...

    async def sleep(self, waiter: Waiter, seconds: float | None, *, is_exact: bool = True) -> None:
        """Wait until woken, at most `seconds`; None for no limit.

        A wait that is not exact may end a millisecond late. It costs less CPU time.
        """
        ...

    def stop_while(self, is_busy: Callable[[], bool]) -> None:
        """Stop virtual time while `is_busy()` returns True. Real time never stops."""
        ...


class BatchWaiter:
    """Waiter of the running task for events that it handles together, because many cost little more than one."""

    def __init__(self, timers: Timers) -> None:
        self._timers = timers
        self._waiter = timers.waiter()
        self._is_woken = False

    def wake(self) -> None:
        """End the current wait, or the next one, as soon as no further event is ready. Any thread may call it."""
        self._is_woken = True
        self._waiter.wake()

    async def sleep(self, seconds: float | None) -> None:
        """Wait until woken, at most `seconds`; None for no limit. Then other tasks run while they cause events."""
        await self._timers.sleep(self._waiter, seconds, is_exact=False)
        until, idle = time.perf_counter() + GATHERING, 0
        while idle < IDLE and time.perf_counter() < until:
            self._is_woken = False
            await asyncio.sleep(0)
            idle = 0 if self._is_woken else idle + 1


class VirtualClock(Protocol):
    """Clock whose waits take no real time, such as `curtsy.testing.FakeClock`."""

    def now(self) -> Now:
        """Return the current time."""
        ...

    def timers(self) -> Timers:
        """Return timers on this clock."""
        ...


class _Timer:
    """Timer of an event loop, with the heap of its waiters."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, TaskWaiter]] = []
        self._past = 0  # stale entries, of waits that ended early
        self._count = itertools.count()
        self._handle: asyncio.Handle | None = None
        self._due = 0.0

    def set(self, due: float, waiter: TaskWaiter) -> None:
        """Wake `waiter` at `due`."""
        waiter.due = due
        heapq.heappush(self._heap, (due, next(self._count), waiter))
        if self._handle is None or due < self._due:
            self._arm(due, time.monotonic())

    def unset(self, waiter: TaskWaiter) -> None:
        """End a wait, perhaps early. Stale entries are dropped once they are most of the heap."""
        if waiter.due is None:
            return
        waiter.due = None
        self._past += 1
        if self._past > len(self._heap) // 2 + 64:
            self._heap = [entry for entry in self._heap if entry[2].due == entry[0]]
            heapq.heapify(self._heap)
            self._past = 0

    def _arm(self, due: float, now: float) -> None:
        if self._handle is not None:
            self._handle.cancel()
        self._due = due
        loop = asyncio.get_running_loop()
        left = due - now
        if left <= EARLY:
            self._handle = loop.call_soon(self._fire)
        else:
            self._handle = loop.call_later(left - max(EARLY, left * SLACK), self._fire)

    def _fire(self) -> None:
        self._handle = None
        now = time.monotonic()
        heap = self._heap
        while heap and (heap[0][0] <= now or heap[0][2].due != heap[0][0]):
            due, _, waiter = heapq.heappop(heap)
            if waiter.due == due:
                waiter.due = None
                waiter.wake()
            else:
                self._past = max(0, self._past - 1)
        if heap:
            self._arm(heap[0][0], now)


class SystemTimers:
    """Timers in real time."""

    _timers: ClassVar[dict[asyncio.AbstractEventLoop, _Timer]] = {}
    """Timer of each event loop, shared by all gates."""

    now = staticmethod(time.monotonic)

    def waiter(self) -> Waiter:
        """Return a waiter for the running task."""
        return TaskWaiter()

    async def sleep(self, waiter: Waiter, seconds: float | None, *, is_exact: bool = True) -> None:
        """Wait until woken, at most `seconds`; None for no limit."""
        assert isinstance(waiter, TaskWaiter)
        if seconds is None or waiter.woken:
            await waiter.rest()
        elif is_exact:
            timer = self._timer()
            timer.set(time.monotonic() + bounded(seconds) + LATE, waiter)
            try:
                await waiter.rest()
            finally:
                timer.unset(waiter)
        else:
            handle = waiter.loop.call_later(bounded(seconds), waiter.wake)  # never early
            try:
                await waiter.rest()
            finally:
                handle.cancel()

    def stop_while(self, is_busy: Callable[[], bool]) -> None:
        """Do nothing: real time never stops."""

    def _timer(self) -> _Timer:
        loop = asyncio.get_running_loop()
        timer = self._timers.get(loop)
        if timer is None:
            for each in list(self._timers):  # not a weak table: an armed timer references its loop
                if each.is_closed():
                    self._timers.pop(each, None)
            timer = self._timers[loop] = _Timer()
        return timer
