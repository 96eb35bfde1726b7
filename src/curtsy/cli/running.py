"""Runner of async commands with graceful stop on signals (U17, F46)."""

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
"""Maximum seconds for cleanup after a signal."""

SIGNALS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
"""Signals that stop a command gracefully: Ctrl-C, service stop, closed terminal."""


def run(work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run a coroutine to its end. The first signal cancels it with cleanup, the second exits at once.

    Raises KeyboardInterrupt if a signal ended it.
    """
    try:
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            return runner.run(_watched(work))
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return uvloop's event loop factory if installed (`curtsy[fast]`); None for asyncio's default."""
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
    """Exit at once; leases held now expire by themselves."""
    os._exit(Exit.INTERRUPTED)
