"""Cooperation with the event loop: Wakeup of the crawl's task, and Slices and Turn, which bound its blocking work."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from curtsy.engine.timers import Timers, Waiter

TURN = 0.01
"""CPU seconds of checking links before other tasks run."""


class Wakeup:
    """Event on which the one task of a loop sleeps. If it is set while the task is awake, the next sleep ends at
    once."""

    def __init__(self, timers: Timers, is_quiet: Callable[[], bool]) -> None:
        """Create it. `is_quiet` returns whether the crawl has no running work; a fake clock advances only then."""
        self._timers = timers
        self._waiter: Waiter | None = None
        self._events: asyncio.AbstractEventLoop | None = None
        self._is_set = False
        timers.stop_while(lambda: not is_quiet() or self._is_set)

    def bind(self) -> None:
        """Bind it to the calling task and its event loop."""
        self._waiter, self._events = self._timers.waiter(), asyncio.get_running_loop()

    def unbind(self) -> None:
        """Unbind it from its task."""
        self._waiter, self._is_set = None, False

    def reset(self) -> None:
        """Reset it before events are handled; a later event sets it again."""
        self._is_set = False

    def wake(self) -> None:
        """Wake the loop, once for simultaneous events."""
        if self._waiter is not None and self._events is not None and not self._is_set:
            self._is_set = True
            self._events.call_soon(self._waiter.wake)

    def wake_from_any_thread(self) -> None:
        """Wake the loop from any thread."""
        if self._waiter is not None:
            self._waiter.wake()

    async def sleep(self, seconds: float | None) -> None:
        """Sleep until it is woken, or for `seconds`; None for no limit."""
        assert self._waiter is not None
        await self._timers.sleep(self._waiter, seconds, is_exact=False)


class Slices:
    """CPU time of event-loop work that yields to other tasks periodically."""

    def __init__(self) -> None:
        self.spent = 0.0
        """CPU seconds of all slices up to the end of the last one."""
        self.begin()

    def begin(self) -> None:
        """Start a slice."""
        self._began_at = time.thread_time()

    def is_over(self) -> bool:
        """Return whether the slice has used its time."""
        seconds = time.thread_time() - self._began_at
        if seconds < TURN:
            return False
        self.spent += seconds
        return True


class Turn:
    """CPU time of all fetches in one iteration of the event loop.

    Checking or reading a malicious robots.txt or page takes some hundredth of a second on the loop. Many at once would
    block all other tasks.
    """

    def __init__(self) -> None:
        self._slice: Slices | None = None

    async def has_time(self) -> None:
        """Wait for an iteration of the loop with time left."""
        while True:
            if self._slice is None:
                self._slice = Slices()
                asyncio.get_running_loop().call_soon(self._end)
            if not self._slice.is_over():
                return
            await asyncio.sleep(0)

    def _end(self) -> None:
        self._slice = None
