"""Timeline: one clock of whole microseconds, and what is to happen at which of them."""

from __future__ import annotations

import heapq
from collections.abc import Callable

from curtsy.core.time import SECOND, Instant, Now
from curtsy.engine.timers import Waiter

NOON = 1_800_014_400 * SECOND
"""The calendar when a simulation begins: 15 January 2027, 12:00 UTC, so that midnight comes in the middle of a day."""


class Timeline:
    """The clock of stores and frontier, the alarm of gates, and the heap of what is to come.

    What is to happen at the same microsecond happens in the order in which it was called for.
    """

    def __init__(self, epoch: int = NOON) -> None:
        self.began = self.at = 1000 * SECOND
        self._offset = epoch - self.at
        self._heap: list[tuple[int, int, Callable[[], None]]] = []
        self.events = 0
        """How many have been called for so far."""
        self._now = Now(Instant(self.at), epoch, 1)
        self.current_waiter: Waiter | None = None

    def now_of_store(self) -> Now:
        """The present, as a store's clock tells it."""
        return self._now

    def now(self) -> float:
        """Seconds of a clock that never jumps."""
        return self.at / SECOND

    def epoch(self) -> float:
        """The calendar's second."""
        return (self.at + self._offset) / SECOND

    def call(self, at: int, action: Callable[[], None]) -> None:
        """Have something happen at an instant."""
        self.events += 1
        heapq.heappush(self._heap, (at, self.events, action))

    def after(self, microseconds: int, action: Callable[[], None]) -> None:
        """Have something happen in a while."""
        self.call(self.at + microseconds, action)

    def run(self, until: int) -> None:
        """Let everything happen up to an instant, and have it be then."""
        heap = self._heap
        while heap and heap[0][0] <= until:
            at, _, action = heapq.heappop(heap)
            self.move(at)
            action()
        self.move(until)

    def move(self, at: int) -> None:
        """Have it be another time."""
        if at != self.at:
            self.at = at
            self._now = Now(Instant(at), at + self._offset, 1)

    # The rest of an alarm, of which a gate needs the time and a waiter while its procedures are carried out by hand.

    def waiter(self) -> Waiter:
        """The waiter of the visit that goes on now."""
        assert self.current_waiter is not None
        return self.current_waiter

    async def sleep(self, waiter: Waiter, seconds: float | None, *, is_exact: bool = True) -> None:
        raise NotImplementedError("nobody sleeps here")

    def stop_while(self, is_busy: Callable[[], bool]) -> None:
        raise NotImplementedError("no client uses this alarm")


class StoreClock:
    """The same time for a store."""

    def __init__(self, timeline: Timeline) -> None:
        self.now = timeline.now_of_store


def whole(seconds: float) -> int:
    """A duration in whole microseconds, rounded up: nobody comes too early."""
    return max(0, -int(-seconds * SECOND // 1))
