"""What blocks, done in a thread; at a program's end, when no thread takes anything more, done at once instead."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable
from functools import partial
from typing import ParamSpec, TypeVar

T = TypeVar("T")
P = ParamSpec("P")


async def in_thread(work: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
    """Do what blocks in a thread of the loop's pool, and await it."""
    return await begun_in_thread(work, *arguments, **named)


async def seen_through(task: asyncio.Task[None]) -> None:
    """Await a task that goes on though who awaits it is cancelled; it may be another loop's, as long as that runs."""
    loop = task.get_loop()
    if loop is asyncio.get_running_loop():
        await asyncio.shield(task)
    elif loop.is_running():
        await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(_outcome(task), loop))


async def _outcome(task: asyncio.Task[None]) -> None:
    await asyncio.shield(task)


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
