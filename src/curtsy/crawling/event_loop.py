"""Cooperation with the event loop: Slices and Turn bound the CPU time that a crawl takes from other tasks."""

from __future__ import annotations

import asyncio
import time

TURN = 0.01
"""CPU seconds of checking links before other tasks run."""


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
