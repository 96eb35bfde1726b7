"""Wakeup of a crawl's loop, on an event or after a timeout."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from curtsy.engine.timers import FakeTimers, Timers, Waiter


class Wakeup:
    """Event on which the one task of a loop sleeps. If it rings while the task is awake, the next sleep ends at
    once."""

    def __init__(self, timers: Timers, is_quiet: Callable[[], bool]) -> None:
        """Create it. `is_quiet` returns whether the crawl has no running work; a fake clock advances only then."""
        self._timers = timers
        self._waiter: Waiter | None = None
        self._events: asyncio.AbstractEventLoop | None = None
        self._is_ringing = False
        if isinstance(timers, FakeTimers):
            others = timers.quiet
            timers.quiet = lambda: others() and is_quiet() and not self._is_ringing

    def hang(self) -> None:
        """Bind it to the calling task and its event loop."""
        self._waiter, self._events = self._timers.async_waiter(), asyncio.get_running_loop()

    def take_down(self) -> None:
        """Unbind it from its task."""
        self._waiter, self._is_ringing = None, False

    def hear(self) -> None:
        """Reset it before events are handled; a later event rings again."""
        self._is_ringing = False

    def ring(self) -> None:
        """Wake the loop, once for simultaneous events."""
        if self._waiter is not None and self._events is not None and not self._is_ringing:
            self._is_ringing = True
            self._events.call_soon(self._waiter.wake)

    def ring_from_anywhere(self) -> None:
        """Wake the loop from any thread."""
        if self._waiter is not None:
            self._waiter.wake()

    async def sleep(self, seconds: float | None) -> None:
        """Sleep until it rings, or for `seconds`; None for no limit."""
        assert self._waiter is not None
        assert self._events is not None
        if seconds is None or isinstance(self._timers, FakeTimers):
            await self._timers.async_sleep(self._waiter, seconds)
            return
        # The timers' own alarm is exact to microseconds, but costs half a millisecond of CPU each time. The event
        # loop's timer suffices here: it is never early, and at most a millisecond late.
        timer = self._events.call_later(seconds, self._waiter.wake)
        try:
            await self._timers.async_sleep(self._waiter, None)
        finally:
            timer.cancel()
