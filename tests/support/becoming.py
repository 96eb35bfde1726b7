"""Waiting for something that others bring about."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable


async def becomes(condition: Callable[[], bool], within: float = 20.0) -> None:
    """Wait until something is so, and fail if it never is. Tasks and threads go on meanwhile."""
    give_up_at = time.monotonic() + within
    while not condition():
        assert time.monotonic() < give_up_at, "it never came about"
        await asyncio.sleep(0.0005)


def blocks_until(condition: Callable[[], bool], within: float = 20.0) -> None:
    """The same, but the calling thread does nothing else meanwhile, and its event loop stands still."""
    give_up_at = time.monotonic() + within
    while not condition():
        assert time.monotonic() < give_up_at, "it never came about"
        time.sleep(0.0005)
