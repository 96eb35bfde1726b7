"""An event loop in a thread of its own, for libraries that keep theirs: Scrapy with its reactor, and a browser."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from importlib import import_module
from typing import Any, TypeVar

from tests.support.polling import PATIENCE

T = TypeVar("T")


class Loop:
    """Event loop of Twisted's reactor, which starts once in a process and then stays."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ready = threading.Event()

    def _run(self) -> None:
        self._loop = asyncio.new_event_loop()
        asyncio.set_event_loop(self._loop)
        import_module("twisted.internet.asyncioreactor").install(self._loop)
        reactor = import_module("twisted.internet.reactor")
        self._loop.call_soon(self._ready.set)
        reactor.run(installSignalHandlers=False)

    def start(self, work: Coroutine[Any, Any, T]) -> asyncio.Future[T]:
        """Start a coroutine there; its future is of the running loop."""
        return asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._opened()))

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine there, and block."""
        return asyncio.run_coroutine_threadsafe(work, self._opened()).result(PATIENCE)

    def _opened(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            threading.Thread(target=self._run, name="reactor", daemon=True).start()
        self._ready.wait(PATIENCE)
        assert self._loop is not None
        return self._loop


LOOP = Loop()
