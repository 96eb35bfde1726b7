"""How a wait is waited: threads on an event each, tasks on one heap and one timer per event loop.

A fake alarm waits on a fake clock: then a day passes in milliseconds.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import threading
import time
from collections.abc import Callable
from typing import ClassVar, Protocol
from weakref import WeakKeyDictionary

from curtsy.clock import FakeClock
from curtsy.core.message import SECOND

EARLY = 0.0005
"""Seconds by which a loop's timer is set too early, for epoll rounds up to a millisecond; what is left over is spun."""


class Waiter:
    """One thread or task that waits, and can be woken from anywhere. A wake-up is never lost, only merged."""

    __slots__ = ("__weakref__", "closed")

    def __init__(self) -> None:
        self.closed = False
        """Told to give up: what it waits for has been closed."""

    def wake(self) -> None:
        """End the present wait, or the next one at once."""
        raise NotImplementedError


class ThreadWaiter(Waiter):
    """A thread that waits."""

    __slots__ = ("event",)

    def __init__(self) -> None:
        super().__init__()
        self.event = threading.Event()

    def wake(self) -> None:
        """End the present wait, or the next one at once."""
        self.event.set()


class TaskWaiter(Waiter):
    """A task that waits, on the event loop that it was made in."""

    __slots__ = ("_loop", "_thread", "future", "woken")

    def __init__(self) -> None:
        super().__init__()
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self.future: asyncio.Future[None] | None = None
        self.woken = False

    def wake(self) -> None:
        """End the present wait, or the next one at once."""
        if threading.get_ident() == self._thread:
            self._set()
        else:
            try:
                self._loop.call_soon_threadsafe(self._set)
            except RuntimeError:
                pass  # its loop is closed: nobody waits there any more

    def _set(self) -> None:
        self.woken = True
        if self.future is not None and not self.future.done():
            self.future.set_result(None)

    async def rest(self) -> None:
        """Wait to be woken."""
        if not self.woken:
            self.future = self._loop.create_future()
            try:
                await self.future
            finally:
                self.future = None
        self.woken = False


class Alarm(Protocol):
    """What the gate waits on."""

    def now(self) -> float:
        """The present, in seconds of a clock that never jumps."""
        ...

    def waiter(self) -> Waiter:
        """A waiter for the calling thread."""
        ...

    def async_waiter(self) -> Waiter:
        """A waiter for the running task."""
        ...

    def sleep(self, waiter: Waiter, seconds: float | None) -> None:
        """Wait until woken, at most so long."""
        ...

    async def async_sleep(self, waiter: Waiter, seconds: float | None) -> None:
        """Wait until woken, at most so long."""
        ...


class _Timer:
    """The one timer of an event loop, and the heap of those who wait for it."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, TaskWaiter]] = []
        self._count = itertools.count()
        self._handle: asyncio.Handle | None = None
        self._due = 0.0

    def set(self, due: float, waiter: TaskWaiter) -> None:
        """Wake `waiter` at `due`. Who is woken before that simply asks once too often."""
        heapq.heappush(self._heap, (due, next(self._count), waiter))
        if self._handle is None or due < self._due:
            self._arm(due, time.monotonic())

    def _arm(self, due: float, now: float) -> None:
        if self._handle is not None:
            self._handle.cancel()
        self._due = due
        loop = asyncio.get_running_loop()  # not kept: timers live in a table of loops that holds none of them alive
        if due - now <= EARLY:
            self._handle = loop.call_soon(self._fire)
        else:
            self._handle = loop.call_later(due - now - EARLY, self._fire)

    def _fire(self) -> None:
        self._handle = None
        now = time.monotonic()
        heap = self._heap
        while heap and heap[0][0] <= now:
            heapq.heappop(heap)[2].wake()
        if heap:
            self._arm(heap[0][0], now)


class SystemAlarm:
    """Real time."""

    _timers: ClassVar[WeakKeyDictionary[asyncio.AbstractEventLoop, _Timer]] = WeakKeyDictionary()
    """One per event loop, whatever gate its tasks wait at."""

    def now(self) -> float:
        """The present, in seconds of the monotonic clock."""
        return time.monotonic()

    def waiter(self) -> Waiter:
        """A waiter for the calling thread."""
        return ThreadWaiter()

    def async_waiter(self) -> Waiter:
        """A waiter for the running task."""
        return TaskWaiter()

    def sleep(self, waiter: Waiter, seconds: float | None) -> None:
        """Wait until woken, at most so long."""
        assert isinstance(waiter, ThreadWaiter)
        waiter.event.wait(None if seconds is None else max(0.0, seconds))
        waiter.event.clear()

    async def async_sleep(self, waiter: Waiter, seconds: float | None) -> None:
        """Wait until woken, at most so long."""
        assert isinstance(waiter, TaskWaiter)
        if seconds is not None and not waiter.woken:
            loop = asyncio.get_running_loop()
            timer = self._timers.get(loop)
            if timer is None:
                timer = self._timers[loop] = _Timer()
            timer.set(time.monotonic() + seconds, waiter)
        await waiter.rest()


class FakeAlarm:
    """Waits on a fake clock. With `jump` (the default) time passes by itself whenever everybody waits.

    `quiet` says whether nothing is going on besides the waiting; while it is False, time stands still.
    """

    PATIENCE = 0.001
    """Real seconds without news after which everybody is taken to be waiting."""

    def __init__(self, clock: FakeClock, *, jump: bool = True, quiet: Callable[[], bool] = lambda: True) -> None:
        self.clock = clock
        self.quiet = quiet
        self._jump = jump
        self._changed = threading.Condition()
        self._heap: list[tuple[int, int, Waiter]] = []
        self._count = itertools.count()
        self._news = 0
        self._jumper: threading.Thread | None = None
        clock.on_advance(self._fire)

    def now(self) -> float:
        """The present, in seconds of the fake clock."""
        return self.clock.now().at / SECOND

    def waiter(self) -> Waiter:
        """A waiter for the calling thread."""
        return ThreadWaiter()

    def async_waiter(self) -> Waiter:
        """A waiter for the running task."""
        return TaskWaiter()

    def sleep(self, waiter: Waiter, seconds: float | None) -> None:
        """Wait until woken, at most so long in fake time."""
        assert isinstance(waiter, ThreadWaiter)
        self._set(waiter, seconds)
        waiter.event.wait()
        waiter.event.clear()

    async def async_sleep(self, waiter: Waiter, seconds: float | None) -> None:
        """Wait until woken, at most so long in fake time."""
        assert isinstance(waiter, TaskWaiter)
        self._set(waiter, seconds)
        await waiter.rest()

    def _set(self, waiter: Waiter, seconds: float | None) -> None:
        with self._changed:
            self._news += 1
            if seconds is not None:
                # Rounded up, as the decision's own microseconds are: else a wait would end just before its time.
                due = self.clock.now().at - int(-max(0.0, seconds) * SECOND // 1)
                heapq.heappush(self._heap, (due, next(self._count), waiter))
                if self._jump and self._jumper is None:
                    self._jumper = threading.Thread(target=self._run, name="curtsy-fake-time", daemon=True)
                    self._jumper.start()
            self._changed.notify_all()

    def _fire(self) -> None:
        at = self.clock.now().at
        woken = []
        with self._changed:
            while self._heap and self._heap[0][0] <= at:
                woken.append(heapq.heappop(self._heap)[2])
                self._news += 1
        for waiter in woken:
            waiter.wake()

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._heap:
                    if not self._changed.wait(1.0):
                        self._jumper = None
                        return
                news = self._news
                self._changed.wait(self.PATIENCE)
                if news != self._news or not self.quiet():
                    continue
                due = self._heap[0][0]
            self.clock.advance(max(0, due - self.clock.now().at) / SECOND)
