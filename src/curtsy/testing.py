"""Fake time for tests: `FakeClock`, on which a day of waiting passes in milliseconds."""

from __future__ import annotations

import asyncio
import heapq
import itertools
import threading
from collections.abc import Callable

from curtsy.core.time import SECOND, Instant, Now
from curtsy.engine.timers import TaskWaiter, Timers, Waiter, bounded
from curtsy.engine.timers import VirtualClock as VirtualClock

__all__ = ["FakeClock"]


class FakeClock:
    """Clock for tests, which moves only on request."""

    def __init__(self, epoch: float = 1_800_000_000.0, at: float = 1_000.0, boot: int = 1) -> None:
        self._lock = threading.Lock()
        self._at = round(at * SECOND)
        self._epoch = round(epoch * SECOND)
        self._boot = boot
        self._listeners: list[Callable[[], None]] = []

    def on_advance(self, listener: Callable[[], None]) -> None:
        """Call `listener` after each `advance()`."""
        self._listeners.append(listener)

    def now(self) -> Now:
        """Return the current time."""
        with self._lock:
            return Now(Instant(self._at), self._epoch, self._boot)

    def advance(self, seconds: float) -> None:
        """Let `seconds` pass. Raises ValueError if they are negative."""
        if seconds < 0:
            raise ValueError(f"seconds = {seconds!r} must be at least 0. To set the calendar back, use set_back().")
        with self._lock:
            self._at += round(seconds * SECOND)
            self._epoch += round(seconds * SECOND)
        for listener in self._listeners:
            listener()

    def set_back(self, seconds: float) -> None:
        """Set the calendar back by `seconds` (forward if negative), as an operator or a time server does."""
        with self._lock:
            self._epoch -= round(seconds * SECOND)

    def reboot(self, down: float = 60.0) -> None:
        """Restart the machine: the calendar advances by `down` seconds, and the boot-time clock restarts."""
        with self._lock:
            self._epoch += round(down * SECOND)
            self._at = SECOND
            self._boot += 1

    def timers(self) -> Timers:
        """Return timers on this clock, whose waits advance it."""
        return FakeTimers(self)


class _FakeWaiter(TaskWaiter):
    """Waiting task that reports each wake-up to its fake timers."""

    __slots__ = ("_on_wake",)

    def __init__(self, on_wake: Callable[[Waiter], None]) -> None:
        super().__init__()
        self._on_wake = on_wake

    def wake(self) -> None:
        """End the current wait, or the next one immediately."""
        self._on_wake(self)
        super().wake()


class FakeTimers:
    """Timers on a fake clock. With `jump` (the default), time advances whenever all waiters wait."""

    PATIENCE = 0.001
    """Real seconds without a change after which all waiters count as waiting."""

    BUSY = 1.0
    """Real seconds for which a busy event loop with waiters stops time.

    Afterwards the loop counts as blocked by its own wait.
    """

    def __init__(self, clock: FakeClock, *, jump: bool = True) -> None:
        self.clock = clock
        self._busy: list[Callable[[], bool]] = []
        self._jump = jump
        self._changed = threading.Condition()
        self._heap: list[tuple[int, int, Waiter]] = []
        self._count = itertools.count()
        self._changes = 0
        self._asleep: set[Waiter] = set()
        self._stirring: set[Waiter] = set()  # woken, but not yet running
        self._jumper: threading.Thread | None = None
        clock.on_advance(self._fire)

    def now(self) -> float:
        """Return the time in seconds of the fake clock."""
        return self.clock.now().at / SECOND

    def waiter(self) -> Waiter:
        """Return a waiter for the running task."""
        return _FakeWaiter(self._note_wake)

    async def sleep(self, waiter: Waiter, seconds: float | None, *, is_exact: bool = True) -> None:
        """Wait until woken, at most `seconds` of fake time; None for no limit."""
        assert isinstance(waiter, TaskWaiter)
        self._set(waiter, seconds)
        try:
            await waiter.rest()
        finally:
            self._unset(waiter)

    def stop_while(self, is_busy: Callable[[], bool]) -> None:
        """Stop time while `is_busy()` returns True."""
        self._busy.append(is_busy)

    def _is_quiet(self) -> bool:
        return not any(is_busy() for is_busy in self._busy)

    def _set(self, waiter: Waiter, seconds: float | None) -> None:
        with self._changed:
            self._changes += 1
            self._asleep.add(waiter)
            if seconds is not None:
                # Rounded up like the decision's microseconds. Otherwise a wait would end just before its time.
                due = self.clock.now().at - int(-bounded(seconds) * SECOND // 1)
                waiter.due = due
                heapq.heappush(self._heap, (due, next(self._count), waiter))
                if self._jump and self._jumper is None:
                    self._jumper = threading.Thread(target=self._run, name="curtsy-fake-time", daemon=True)
                    self._jumper.start()
            self._changed.notify_all()

    def _unset(self, waiter: Waiter) -> None:
        with self._changed:
            self._changes += 1
            self._asleep.discard(waiter)
            self._stirring.discard(waiter)
            waiter.due = None

    def _note_wake(self, waiter: Waiter) -> None:
        with self._changed:
            self._changes += 1
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
                changes, is_quiet = self._changes, self._is_quiet()
                self._changed.wait(self.PATIENCE)
                held_up = self._wait_for_loops()
                is_stirring = any(waiter.loop not in held_up for waiter in self._stirring)
                if (
                    changes != self._changes
                    or is_stirring
                    or not self._is_awaited()
                    or not (is_quiet and self._is_quiet())
                ):
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
