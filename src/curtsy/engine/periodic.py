"""Periodic work that runs only while there is activity."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable


class Periodic:
    """Work that runs `every` seconds after `start()`, and repeats while it returns True.

    Activity calls `start()` if the timer is not running. An idle program therefore has no timer, and the last activity
    is still handled. For the tasks of one event loop.
    """

    def __init__(self, work: Callable[[], Awaitable[bool]], every: float) -> None:
        self._work = work
        self._every = every
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None
        self._is_stopped = False
        self.is_running = False
        """True if a run is scheduled or active. Check it before `start()`: it is cheaper."""

    def start(self) -> None:
        """Schedule the next run, unless `stop()` was called."""
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
        """Stop permanently, after the current run has ended."""
        self._is_stopped = True
        if self._timer is not None:
            self._timer.cancel()
        if self._task is not None and not self._task.done():
            await asyncio.wait([self._task])
