"""What blocks, done in a thread; at a program's end, when no thread takes anything more, done at once instead.

And what is done once, whoever waits for it.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, ParamSpec, TypeVar

T = TypeVar("T")
P = ParamSpec("P")


async def in_thread(work: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
    """Do what blocks in a thread of the loop's pool, and await it."""
    return await begun_in_thread(work, *arguments, **named)


class Once:
    """Work that is done once, and to its end, however many wait for it and whoever of them is cancelled."""

    def __init__(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._work = work
        self._task: asyncio.Task[None] | None = None

    async def wait(self) -> None:
        """Begin it, unless that was done, and wait for its end: in another loop, too, as long as that one runs."""
        if self._task is None or self._task.cancelled():  # by the end of its loop
            self._task = asyncio.ensure_future(self._work())
        loop = self._task.get_loop()
        if self._task.done():
            return  # somebody has heard what came of it
        if loop is asyncio.get_running_loop():
            await asyncio.shield(self._task)
        elif loop.is_running():
            await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self.wait(), loop))


def begun_in_thread(work: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> asyncio.Future[T]:
    """Begin what blocks in a thread of the loop's pool; it is done here and now if the pool refuses.

    It does once the main thread has ended, though `atexit` and other threads may still fetch and close then.
    """
    loop = asyncio.get_running_loop()
    whole = partial(contextvars.copy_context().run, partial(work, *arguments, **named))
    to_do = [whole]  # whoever takes it does it: the pool may have queued what it had no thread for
    try:
        return loop.run_in_executor(None, lambda: to_do.pop()())
    except RuntimeError:
        if not to_do:
            raise
    future: asyncio.Future[T] = loop.create_future()
    try:
        future.set_result(to_do.pop()())
    except Exception as error:
        future.set_exception(error)
    return future
