"""Fake time for the tasks of one event loop: it leaps to the next moment as soon as the loop has nothing else to do."""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import Callable

from curtsy.core.time import SECOND
from curtsy.engine.timers import TaskWaiter, Waiter
from curtsy.testing import FakeClock

IDLE = 12
"""Turns of the loop without news after which everybody is taken to be waiting. A step of the gate takes fewer."""


class LeapAlarm:
    """An alarm for tasks over a store in memory. No real time is looked at, so it is exact however busy the machine."""

    def __init__(self, clock: FakeClock) -> None:
        self.clock = clock
        self._heap: list[tuple[int, int, TaskWaiter]] = []
        self._count = itertools.count()
        self._news = 0
        self._is_looking = False
        self.asleep = 0
        """Tasks that wait here now."""

    def now(self) -> float:
        return self.clock.now().at / SECOND

    def waiter(self) -> Waiter:
        return TaskWaiter()

    async def sleep(self, waiter: Waiter, seconds: float | None, *, is_exact: bool = True) -> None:
        assert isinstance(waiter, TaskWaiter)
        self._news += 1
        self.asleep += 1
        if seconds is not None:
            due = self.clock.now().at - int(-max(0.0, seconds) * SECOND // 1)
            waiter.due = due
            heapq.heappush(self._heap, (due, next(self._count), waiter))
            if not self._is_looking:
                self._is_looking = True
                self._look(self._news, 0)
        try:
            await waiter.rest()
        finally:
            waiter.due = None
            self._news += 1
            self.asleep -= 1

    def stop_while(self, is_busy: Callable[[], bool]) -> None:
        raise NotImplementedError("no client uses this alarm")

    def _look(self, news: int, turns: int) -> None:
        heap = self._heap
        while heap and heap[0][2].due != heap[0][0]:
            heapq.heappop(heap)
        self._is_looking = bool(heap)
        if not heap:
            return
        turns = turns + 1 if news == self._news else 0
        if turns > IDLE:
            self._leap()
            turns = 0
        asyncio.get_running_loop().call_soon(self._look, self._news, turns)

    def _leap(self) -> None:
        due = self._heap[0][0]
        self.clock.advance(max(0, due - self.clock.now().at) / SECOND)
        while self._heap and self._heap[0][0] <= due:
            _, _, waiter = heapq.heappop(self._heap)
            if waiter.due == due:
                waiter.due = None
                waiter.wake()
