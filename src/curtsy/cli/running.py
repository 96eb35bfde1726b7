"""Run something async from the command line, so that a signal ends it in good order (U17, F46)."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Coroutine
from importlib import import_module
from typing import Any, NoReturn, TypeVar

from curtsy.cli.exits import Exit

T = TypeVar("T")

PATIENCE = 10.0
"""Seconds that giving everything back may take after a signal."""

SIGNALS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
"""What ends a command in good order: Ctrl-C, a service that is stopped, a terminal that is closed."""


def run(work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run to the end. The first signal cancels it, and what it holds is given back; the second one ends it at once.

    Raises KeyboardInterrupt when a signal ended it.
    """
    try:
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            return runner.run(_watched(work))
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """What makes the event loop: uvloop if it is there (`curtsy[fast]`), else asyncio's own."""
    try:
        factory: Callable[[], asyncio.AbstractEventLoop] = import_module("uvloop").new_event_loop
    except ImportError:
        return None
    return factory


async def _watched(work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None
    stopping = False

    def stop() -> None:
        nonlocal stopping
        if stopping:
            leave()
        stopping = True
        task.cancel()
        loop.call_later(PATIENCE, leave)

    try:
        for each in SIGNALS:
            loop.add_signal_handler(each, stop)
    except NotImplementedError:  # Windows: asyncio itself cancels on Ctrl-C
        pass
    return await work()


def leave() -> NoReturn:
    """End at once: what is held then comes back when its lease runs out."""
    os._exit(Exit.INTERRUPTED)
