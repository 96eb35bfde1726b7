"""Deduplication of concurrent work: callers join the same work, and `close()` ends it early."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


def always(result: object) -> bool:
    """Return True: the result is for every caller that joined."""
    return True


class _Flight:
    """Work in the task of the first caller, with the other callers that wait for its result."""

    __slots__ = ("_waiting", "is_closing", "task", "was_cancelling")

    def __init__(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.task = task
        self.was_cancelling = task.cancelling()
        self.is_closing = False
        self._waiting: list[asyncio.Future[tuple[bool, Any]]] = []

    def end(self) -> asyncio.Future[tuple[bool, Any]]:
        """Return a future of the end: whether the result can be shared, and the result."""
        future: asyncio.Future[tuple[bool, Any]] = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        return future

    def land(self, is_whole: bool, result: Any = None) -> None:
        """Pass the result to the waiting callers."""
        for future in self._waiting:
            if not future.done():
                future.set_result((is_whole, result))

    def close(self) -> None:
        """End the work early because the client is closing."""
        self.is_closing = True
        self.task.cancel()

    def was_closed(self) -> bool:
        """Return whether `close()` caused the cancellation, not the task's owner (as in `asyncio.timeout`)."""
        return self.is_closing and self.task.uncancel() <= self.was_cancelling


class SingleFlight:
    """All work in progress, by key."""

    def __init__(self) -> None:
        self.under_way: dict[object, _Flight] = {}
        self._is_closed = False

    async def join(
        self,
        key: object,
        work: Callable[[], Coroutine[Any, Any, T]],
        closed: Callable[[], T],
        is_for_all: Callable[[T], bool] = always,
    ) -> T:
        """Run work that other callers with the same key join. `closed` returns the result after an early end.

        The work runs in the first caller's task. If that task is cancelled, or its result is for it alone, the next
        caller takes over, unless `close()` was called.
        """
        while (flight := self.under_way.get(key)) is not None:
            is_whole, result = await flight.end()
            if is_whole:
                shared: T = result
                return shared
        if self._is_closed:
            return closed()
        flight = self.under_way[key] = _Flight()
        is_whole, result = False, None
        try:
            result = await work()
            is_whole = is_for_all(result)
        except asyncio.CancelledError:
            if not flight.was_closed():
                raise
            result, is_whole = closed(), True
        finally:
            del self.under_way[key]
            flight.land(is_whole, result)
        return result

    async def close(self) -> None:
        """End all work permanently; cancelled work returns what it holds."""
        self._is_closed = True
        while single_flight := list(self.under_way.values()):
            ends = [flight.end() for flight in single_flight]
            for flight in single_flight:
                flight.close()
            await asyncio.gather(*ends)
        await asyncio.sleep(0)  # callers that joined work that just ended must still run
