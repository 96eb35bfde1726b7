"""Waiters of a limiter: a change of its limits wakes them, and closing the limiter ends their waits."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from weakref import WeakSet

from curtsy.core.errors import LimiterClosed
from curtsy.engine.timers import TaskWaiter, Waiter

LEAVE = 2.0
"""Seconds that closing waits for waiters to leave: their event loop may never run again."""


class Waiters:
    """Tasks and threads that wait for one limiter."""

    def __init__(self) -> None:
        self.is_closed = False
        self.renew_lock()

    def renew_lock(self) -> None:
        """Create a free lock and forget all waiters. A forked child calls this: their threads do not exist there."""
        self._lock = threading.Lock()
        self._waiters: WeakSet[Waiter] = WeakSet()
        self._closing: WeakSet[TaskWaiter] = WeakSet()

    @contextlib.contextmanager
    def register(self, waiter: Waiter) -> Iterator[Waiter]:
        """Register a waiter during the block. Raises LimiterClosed after `close()`."""
        with self._lock:  # orders this with `close()`
            self.check_open()
            self._waiters.add(waiter)
        try:
            yield waiter
        finally:
            if not waiter.is_gone:  # else the garbage collector runs this, perhaps while this thread holds the lock
                with self._lock:
                    self._waiters.discard(waiter)
                    closing = list(self._closing)
                for each in closing:
                    each.wake()

    def wake(self) -> None:
        """Wake all waiters: a change may affect a waiter and not those ahead of it."""
        for waiter in self._copy():
            waiter.wake()

    def close(self) -> None:
        """End all waits and refuse later ones. Idempotent."""
        with self._lock:
            self.is_closed = True
        for waiter in self._copy():
            waiter.closed = True
            waiter.wake()

    async def wait_until_left(self) -> None:
        """Wait until closed waiters have left, because they may be using the store."""
        waiter = TaskWaiter()
        self._closing.add(waiter)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LEAVE):
                while not all(each.is_gone for each in self._copy()):
                    await waiter.rest()

    def check_open(self) -> None:
        """Raise LimiterClosed after `close()`."""
        if self.is_closed:
            raise closed_error()

    def _copy(self) -> list[Waiter]:
        with self._lock:
            return list(self._waiters)


def closed_error() -> LimiterClosed:
    """Return the error for waiters at `close()` and for later calls."""
    return LimiterClosed("This rate limiter is closed. Make another one to go on.")
