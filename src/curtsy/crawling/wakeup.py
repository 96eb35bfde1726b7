"""Bell: wakes the loop of a crawl, at news or after a while."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from curtsy.engine.timers import FakeTimers, Timers, Waiter


class Wakeup:
    """What the one task of a loop sleeps on. Rung before anybody sleeps, it ends the next sleep at once."""

    def __init__(self, timers: Timers, is_quiet: Callable[[], bool]) -> None:
        """`is_quiet` says whether nothing is under way in the crawl: a fake clock stands still while something is."""
        self._timers = timers
        self._waiter: Waiter | None = None
        self._events: asyncio.AbstractEventLoop | None = None
        self._is_ringing = False
        if isinstance(timers, FakeTimers):
            others = timers.quiet
            timers.quiet = lambda: others() and is_quiet() and not self._is_ringing

    def hang(self) -> None:
        """Make it ready for the task and the event loop that call this."""
        self._waiter, self._events = self._timers.async_waiter(), asyncio.get_running_loop()

    def take_down(self) -> None:
        """Nobody sleeps on it any more."""
        self._waiter, self._is_ringing = None, False

    def hear(self) -> None:
        """What has happened so far is going to be seen: whatever comes from now on rings anew."""
        self._is_ringing = False

    def ring(self) -> None:
        """Wake the loop, once for all that comes at the same time."""
        if self._waiter is not None and self._events is not None and not self._is_ringing:
            self._is_ringing = True
            self._events.call_soon(self._waiter.wake)

    def ring_from_anywhere(self) -> None:
        """Wake the loop from any thread."""
        if self._waiter is not None:
            self._waiter.wake()

    async def sleep(self, seconds: float | None) -> None:
        """Sleep until it rings, or for so many seconds; None for any number."""
        assert self._waiter is not None
        assert self._events is not None
        if seconds is None or isinstance(self._timers, FakeTimers):
            await self._timers.async_sleep(self._waiter, seconds)
            return
        # The alarm is exact to microseconds, which costs it half a millisecond of CPU each time. Here the event loop's
        # own timer will do: it is never early, and a millisecond late at most.
        timer = self._events.call_later(seconds, self._waiter.wake)
        try:
            await self._timers.async_sleep(self._waiter, None)
        finally:
            timer.cancel()
