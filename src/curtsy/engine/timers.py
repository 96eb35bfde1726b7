"""Timers for waits: one event per thread; one heap and one timer per event loop for tasks.

Fake timers use a fake clock, on which a day passes in milliseconds.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import threading
import time
from collections.abc import Callable
from typing import ClassVar, Protocol

from curtsy.core.message import SECOND
from curtsy.system.clock import FakeClock

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


LONGEST = threading.TIMEOUT_MAX
"""Maximum wait in seconds, some centuries: timers reject infinity and NaN."""


def _bounded(seconds: float) -> float:
    """Return the seconds within the allowed range; 0 for negative values and NaN."""
    return min(max(0.0, seconds), LONGEST)


class Waiter:
    """Thread or task that waits and can be woken from any thread. Wake-ups are merged, never lost."""

    __slots__ = ("__weakref__", "closed", "due")

    loop: asyncio.AbstractEventLoop | None = None
    """Event loop of the waiting task; None for a thread."""

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


class ThreadWaiter(Waiter):
    """Waiting thread."""

    __slots__ = ("event",)

    def __init__(self) -> None:
        super().__init__()
        self.event = threading.Event()

    def wake(self) -> None:
        """End the current wait, or the next one immediately."""
        self.event.set()


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
        """Return a waiter for the calling thread."""
        ...

    def async_waiter(self) -> Waiter:
        """Return a waiter for the running task."""
        ...

    def sleep(self, waiter: Waiter, seconds: float | None) -> None:
        """Wait until woken, at most `seconds`; None for no limit."""
        ...

    async def async_sleep(self, waiter: Waiter, seconds: float | None) -> None:
        """Wait until woken, at most `seconds`; None for no limit."""
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

    def now(self) -> float:
        """Return the time in seconds of the monotonic clock."""
        return time.monotonic()

    def waiter(self) -> Waiter:
        """Return a waiter for the calling thread."""
        return ThreadWaiter()

    def async_waiter(self) -> Waiter:
        """Return a waiter for the running task."""
        return TaskWaiter()

    def sleep(self, waiter: Waiter, seconds: float | None) -> None:
        """Wait until woken, at most `seconds`; None for no limit."""
        assert isinstance(waiter, ThreadWaiter)
        waiter.event.wait(None if seconds is None else _bounded(seconds))
        waiter.event.clear()

    async def async_sleep(self, waiter: Waiter, seconds: float | None) -> None:
        """Wait until woken, at most `seconds`; None for no limit."""
        assert isinstance(waiter, TaskWaiter)
        if seconds is None or waiter.woken:
            await waiter.rest()
            return
        timer = self._timer()
        timer.set(time.monotonic() + _bounded(seconds) + LATE, waiter)
        try:
            await waiter.rest()
        finally:
            timer.unset(waiter)

    def _timer(self) -> _Timer:
        loop = asyncio.get_running_loop()
        timer = self._timers.get(loop)
        if timer is None:
            for each in list(self._timers):  # not a weak table: an armed timer references its loop
                if each.is_closed():
                    self._timers.pop(each, None)
            timer = self._timers[loop] = _Timer()
        return timer


class _FakeThreadWaiter(ThreadWaiter):
    """Waiting thread that reports each wake-up to its fake timers."""

    __slots__ = ("_heard",)

    def __init__(self, heard: Callable[[Waiter], None]) -> None:
        super().__init__()
        self._heard = heard

    def wake(self) -> None:
        """End the current wait, or the next one immediately."""
        self._heard(self)
        super().wake()


class _FakeTaskWaiter(TaskWaiter):
    """Waiting task that reports each wake-up to its fake timers."""

    __slots__ = ("_heard",)

    def __init__(self, heard: Callable[[Waiter], None]) -> None:
        super().__init__()
        self._heard = heard

    def wake(self) -> None:
        """End the current wait, or the next one immediately."""
        self._heard(self)
        super().wake()


class FakeTimers:
    """Timers on a fake clock. With `jump` (the default), time advances whenever all waiters wait.

    `quiet` returns whether nothing but waiting is in progress. While it returns False, time does not advance.
    """

    PATIENCE = 0.001
    """Real seconds without a change after which all waiters count as waiting."""

    BUSY = 1.0
    """Real seconds for which a busy event loop with waiters stops time.

    Afterwards the loop counts as blocked by its own wait.
    """

    def __init__(self, clock: FakeClock, *, jump: bool = True, quiet: Callable[[], bool] = lambda: True) -> None:
        self.clock = clock
        self.quiet = quiet
        self._jump = jump
        self._changed = threading.Condition()
        self._heap: list[tuple[int, int, Waiter]] = []
        self._count = itertools.count()
        self._news = 0
        self._asleep: set[Waiter] = set()
        self._stirring: set[Waiter] = set()  # woken, but not yet running
        self._jumper: threading.Thread | None = None
        clock.on_advance(self._fire)

    def now(self) -> float:
        """Return the time in seconds of the fake clock."""
        return self.clock.now().at / SECOND

    def waiter(self) -> Waiter:
        """Return a waiter for the calling thread."""
        return _FakeThreadWaiter(self._heard)

    def async_waiter(self) -> Waiter:
        """Return a waiter for the running task."""
        return _FakeTaskWaiter(self._heard)

    def sleep(self, waiter: Waiter, seconds: float | None) -> None:
        """Wait until woken, at most `seconds` of fake time; None for no limit."""
        assert isinstance(waiter, ThreadWaiter)
        self._set(waiter, seconds)
        try:
            waiter.event.wait()
            waiter.event.clear()
        finally:
            self._unset(waiter)

    async def async_sleep(self, waiter: Waiter, seconds: float | None) -> None:
        """Wait until woken, at most `seconds` of fake time; None for no limit."""
        assert isinstance(waiter, TaskWaiter)
        self._set(waiter, seconds)
        try:
            await waiter.rest()
        finally:
            self._unset(waiter)

    def _set(self, waiter: Waiter, seconds: float | None) -> None:
        with self._changed:
            self._news += 1
            self._asleep.add(waiter)
            if seconds is not None:
                # Rounded up like the decision's microseconds. Otherwise a wait would end just before its time.
                due = self.clock.now().at - int(-_bounded(seconds) * SECOND // 1)
                waiter.due = due
                heapq.heappush(self._heap, (due, next(self._count), waiter))
                if self._jump and self._jumper is None:
                    self._jumper = threading.Thread(target=self._run, name="curtsy-fake-time", daemon=True)
                    self._jumper.start()
            self._changed.notify_all()

    def _unset(self, waiter: Waiter) -> None:
        with self._changed:
            self._news += 1
            self._asleep.discard(waiter)
            self._stirring.discard(waiter)
            waiter.due = None

    def _heard(self, waiter: Waiter) -> None:
        with self._changed:
            self._news += 1
            if waiter in self._asleep:
                self._stirring.add(waiter)

    def _fire(self) -> None:
        at = self.clock.now().at
        woken = []
        with self._changed:
            while self._heap and self._heap[0][0] <= at:
                due, _, waiter = heapq.heappop(self._heap)
                if waiter.due == due:
                    woken.append(waiter)
        for waiter in woken:
            waiter.wake()

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._is_awaited():
                    if not self._changed.wait(1.0):
                        self._jumper = None
                        return
                news, is_quiet = self._news, self.quiet()
                self._changed.wait(self.PATIENCE)
                held_up = self._wait_for_loops()
                is_stirring = any(getattr(waiter, "loop", None) not in held_up for waiter in self._stirring)
                if news != self._news or is_stirring or not self._is_awaited() or not (is_quiet and self.quiet()):
                    continue
                due = self._heap[0][0]
            self.clock.advance(max(0, due - self.clock.now().at) / SECOND)

    def _wait_for_loops(self) -> set[asyncio.AbstractEventLoop]:
        """Wait until every event loop with waiters has run its ready callbacks; return the loops that did not.

        On a busy machine this takes a while.
        """
        busy: set[asyncio.AbstractEventLoop] = set()

        def went_round(loop: asyncio.AbstractEventLoop) -> None:
            with self._changed:
                busy.discard(loop)
                self._changed.notify_all()

        for loop in {waiter.loop for waiter in self._asleep if isinstance(waiter, TaskWaiter)}:
            busy.add(loop)
            try:
                loop.call_soon_threadsafe(went_round, loop)
            except RuntimeError:
                busy.discard(loop)  # a closed loop has no waiters
        self._changed.wait_for(lambda: not busy, self.BUSY)
        return busy

    def _is_awaited(self) -> bool:
        """Return whether a waiter waits for time to pass; drop stale heap entries."""
        while self._heap and self._heap[0][2].due != self._heap[0][0]:
            heapq.heappop(self._heap)
        return bool(self._heap)
