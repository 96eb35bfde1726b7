"""Polling for a condition that another task, thread or process makes true."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable
from typing import Protocol, TypeVar

T = TypeVar("T")
PATIENCE = 120.0
"""Seconds after which a test is taken to hang. No test waits so long, however slow the machine is."""


class Running(Protocol):
    """A process, as far as polling looks at it."""

    def poll(self) -> int | None: ...

    def communicate(self) -> object: ...


async def until(condition: Callable[[], object], within: float = PATIENCE, every: float = 0.002) -> None:
    """Wait until a condition, which may be a coroutine function, is true. Fail after `within` seconds."""
    give_up_at = time.monotonic() + within
    while True:
        found = condition()
        if inspect.isawaitable(found):
            found = await found
        if found:
            return
        assert time.monotonic() < give_up_at, f"not true within {within} s"
        await asyncio.sleep(every)


def block_until(
    condition: Callable[[], T], process: Running | None = None, *, within: float = PATIENCE, every: float = 0.002
) -> T:
    """Block the thread, and its event loop, until a condition is true, and return its value.

    Fail after `within` seconds, or as soon as the process that is to make it true has ended.
    """
    give_up_at = time.monotonic() + within
    while not (found := condition()):
        assert process is None or process.poll() is None, process.communicate()
        assert time.monotonic() < give_up_at, f"not true within {within} s"
        time.sleep(every)
    return found


def steady(value: Callable[[], object]) -> Callable[[], bool]:
    """Return a condition that is true if a value is the same as when the condition was checked before."""
    seen: list[object] = []

    def is_steady() -> bool:
        seen.append(value())
        return len(seen) > 1 and seen[-1] == seen[-2]

    return is_steady
