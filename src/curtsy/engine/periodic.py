"""Rhythm: something to be done now and then, while something happens."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable


class Periodic:
    """Does its work so many seconds after `start()`, and again as long as the work answers that there is more.

    What happens starts it if it does not run; so it costs nothing while nothing happens, and what has happened last is
    worked on too. For the tasks of one event loop.
    """

    def __init__(self, work: Callable[[], Awaitable[bool]], every: float) -> None:
        self._work = work
        self._every = every
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None
        self._is_stopped = False
        self.is_running = False
        """Whether its time will come by itself. Ask this before `start()`: it is cheaper."""

    def start(self) -> None:
        """Set it going, unless it was stopped for good."""
        self.is_running = True
        if not self._is_stopped:
            self._timer = asyncio.get_running_loop().call_later(self._every, self._due)

    def _due(self) -> None:
        self._task = asyncio.ensure_future(self._run())

    async def _run(self) -> None:
        is_more = True
        try:
            is_more = await self._work()
        finally:
            self.is_running = False
            if is_more:
                self.start()

    async def stop(self) -> None:
        """End it for good. What is under way is seen through."""
        self._is_stopped = True
        if self._timer is not None:
            self._timer.cancel()
        if self._task is not None and not self._task.done():
            await asyncio.wait([self._task])
