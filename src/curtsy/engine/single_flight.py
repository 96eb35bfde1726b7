"""What is under way in a client, so that others may join it, and that it can be ended before its time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


def always(result: object) -> bool:
    """Whether what came of work is for all who joined it: yes."""
    return True


class _Flight:
    """Work under way in the task that asked first, and the others that wait for what comes of it."""

    __slots__ = ("_waiting", "is_closing", "task", "was_cancelling")

    def __init__(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.task = task
        self.was_cancelling = task.cancelling()
        self.is_closing = False
        self._waiting: list[asyncio.Future[tuple[bool, Any]]] = []

    def end(self) -> asyncio.Future[tuple[bool, Any]]:
        """Its end, to be waited for: whether it came to it by itself, and what came of it."""
        future: asyncio.Future[tuple[bool, Any]] = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        return future

    def land(self, is_whole: bool, result: Any = None) -> None:
        """Tell those who wait."""
        for future in self._waiting:
            if not future.done():
                future.set_result((is_whole, result))

    def close(self) -> None:
        """End it before its time: the client is being closed."""
        self.is_closing = True
        self.task.cancel()

    def was_closed(self) -> bool:
        """Whether that is what its cancellation meant, and not that its task is to end (as in `asyncio.timeout`)."""
        return self.is_closing and self.task.uncancel() <= self.was_cancelling


class SingleFlight:
    """All that is under way, each by a key."""

    def __init__(self) -> None:
        self.under_way: dict[object, _Flight] = {}
        self._is_closed = False

    def __contains__(self, key: object) -> bool:
        return key in self.under_way

    async def join(
        self,
        key: object,
        work: Callable[[], Coroutine[Any, Any, T]],
        closed: Callable[[], T],
        is_for_all: Callable[[T], bool] = always,
    ) -> T:
        """Do work that others may join; `closed` says what comes of it if it is ended before its time, or not begun.

        It runs in the task of the first; if that is cancelled, or what came of it is for the first alone, the next
        takes over, unless all was closed meanwhile.
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
        """End everything, for good: what is cancelled gives back what it held."""
        self._is_closed = True
        while single_flight := list(self.under_way.values()):
            ends = [flight.end() for flight in single_flight]
            for flight in single_flight:
                flight.close()
            await asyncio.gather(*ends)
        await asyncio.sleep(0)  # who has joined one that has just ended has not woken yet, and has something to say
