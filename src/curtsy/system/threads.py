"""Blocking work in a thread, coroutines without an event loop, and work that runs once for many waiters.

At the end of a program, when the pool accepts no more work, blocking work runs in the caller's thread.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
import time
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, ParamSpec, TypeVar

T = TypeVar("T")
P = ParamSpec("P")


class _Mode(threading.local):
    is_blocking = False


_mode = _Mode()


def run_blocking(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine in this thread, without an event loop, and return its result.

    Each of its waits must block the thread if `is_blocking()` is True, as those of `in_thread` and `pause` do.
    """
    before, _mode.is_blocking = _mode.is_blocking, True
    try:
        work.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    finally:
        _mode.is_blocking = before
    work.close()
    raise RuntimeError(f"{work} waits for an event loop")


def is_blocking() -> bool:
    """Return whether the caller is a coroutine that `run_blocking` runs."""
    return _mode.is_blocking


async def in_thread(work: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
    """Run blocking work in a thread of the loop's pool, and await its result."""
    if _mode.is_blocking:
        return work(*arguments, **named)
    return await begun_in_thread(work, *arguments, **named)


async def pause(seconds: float) -> None:
    """Wait for some seconds."""
    if _mode.is_blocking:
        time.sleep(seconds)  # noqa: ASYNC251 -- no event loop runs it
    else:
        await asyncio.sleep(seconds)


class Once:
    """Work that runs once and to its end for any number of waiters, even if some are cancelled."""

    def __init__(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._work = work
        self._task: asyncio.Task[None] | None = None

    async def wait(self) -> None:
        """Start the work unless it has started, and wait for its end.

        A caller in another event loop waits only while the work's own loop runs.
        """
        if self._task is None or self._task.cancelled():  # cancelled by the end of its loop
            self._task = asyncio.ensure_future(self._work())
        loop = self._task.get_loop()
        if self._task.done():
            return  # an earlier waiter received its exception, if any
        if loop is asyncio.get_running_loop():
            await asyncio.shield(self._task)
        elif loop.is_running():
            await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self.wait(), loop))


def begun_in_thread(work: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> asyncio.Future[T]:
    """Start blocking work in a thread of the loop's pool; run it here if the pool refuses.

    The pool refuses work once the main thread has ended. `atexit` and other threads may still fetch and close then.
    """
    loop = asyncio.get_running_loop()
    whole = partial(contextvars.copy_context().run, partial(work, *arguments, **named))
    to_do = [whole]  # popped, so that it runs once: a pool that refuses may have queued it before
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
