"""The same way in for threads: `Client`, and `get()` for one line."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Coroutine, Generator, Iterable
from concurrent.futures import Future
from queue import SimpleQueue
from types import TracebackType
from typing import Any, Self, TypeVar

from curtsy.client import END, MOST_AT_ONCE, AsyncClient, many
from curtsy.core.errors import PolicyError
from curtsy.core.policy import Policies
from curtsy.core.result import FetchResult
from curtsy.download import DownloadResult
from curtsy.watch.statistics import StatisticsSnapshot

T = TypeVar("T")


class LoopThread:
    """An event loop in a thread of its own, for those who cannot await."""

    def __init__(self, name: str) -> None:
        self.loop = asyncio.new_event_loop()
        self._lock = threading.Lock()
        self._is_stopped = False
        self._thread = threading.Thread(target=self.loop.run_forever, name=name, daemon=True)
        self._thread.start()

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Have something done, and go on."""
        with self._lock:  # so that `stop()` comes either before, or waits for it
            if not self._is_stopped:
                return asyncio.run_coroutine_threadsafe(work, self.loop)
        work.close()
        raise PolicyError("This was closed meanwhile. Make another one, or keep it open for longer.")

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Have something done, and wait for it."""
        future = self.submit(work)
        try:
            return future.result()
        except BaseException:  # Ctrl-C while waiting: what is under way gives everything back
            future.cancel()
            raise

    def stop(self) -> None:
        """End the thread, once nobody waits for it any more."""
        with self._lock:
            self._is_stopped = True
        asyncio.run_coroutine_threadsafe(_ended(), self.loop).result()
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()


async def _ended() -> None:
    """End what else runs in this loop: what came last, when all was closed already."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


class Client:
    """The same, blocking: an `AsyncClient` on an event loop in a thread of its own. Safe to share among threads.

    In a forked child it starts anew, for threads are not inherited: fork while no other thread is using it.
    """

    def __init__(self, **settings: Any) -> None:
        self._settings = settings
        self._is_closed = False
        self._start()

    def _start(self) -> None:
        self._process = os.getpid()
        self._thread = LoopThread("curtsy-client")
        try:
            self._client: AsyncClient = self._thread.call(_make(self._settings))
        except BaseException:
            self._thread.stop()
            raise

    def _opened(self) -> AsyncClient:
        if self._is_closed:
            raise PolicyError("This client is closed. Make another one, or keep it open for longer.")
        if self._process != os.getpid():
            _INHERITED.append((self._thread, self._client))
            self._start()
        return self._client

    @property
    def policies(self) -> Policies:
        """The policies in force: files that have changed are read again."""
        return self._opened().policies

    def fetch(self, url: str, **options: Any) -> FetchResult:
        """Fetch one URL, when its turn comes; see `AsyncClient.fetch`."""
        work = self._opened().fetch(url, **options)
        return self._thread.call(work)

    def fetch_many(
        self, urls: Iterable[str], *, at_once: int = MOST_AT_ONCE, **options: Any
    ) -> Generator[FetchResult, None, None]:
        """Fetch many URLs, and yield each result as it comes. `urls` is read by the calling thread, as it goes on."""
        client, waiting = self._opened(), iter(many(urls))
        done: SimpleQueue[Future[FetchResult]] = SimpleQueue()
        under_way: set[Future[FetchResult]] = set()
        try:
            while True:
                while len(under_way) < at_once and (url := next(waiting, END)) is not END:
                    future = self._thread.submit(client.fetch(url, **options))
                    under_way.add(future)
                    future.add_done_callback(done.put)
                if not under_way:
                    return
                under_way.discard(future := done.get())
                yield future.result()
        finally:
            for future in under_way:
                future.cancel()

    def download(self, url: str, path: str | os.PathLike[str], **options: Any) -> DownloadResult:
        """Save a URL as a file, in its turn; see `AsyncClient.download`."""
        work = self._opened().download(url, path, **options)
        return self._thread.call(work)

    def stats(self) -> StatisticsSnapshot:
        """What this client has done so far."""
        return self._client.stats()

    def close(self) -> None:
        """End what is under way, and give back what is held open. Idempotent."""
        if self._is_closed:
            return
        self._is_closed = True
        if self._process != os.getpid():
            _INHERITED.append((self._thread, self._client))
            return
        try:
            self._thread.call(self._client.close())
        finally:
            self._thread.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


_INHERITED: list[object] = []
"""What a fork left us of the parent's, kept so that it is never cleaned up in its name."""


async def _make(settings: dict[str, Any]) -> AsyncClient:
    return AsyncClient(**settings)


def get(url: str, **settings: Any) -> FetchResult:
    """Fetch one URL politely, blocking, with a client of its own."""
    with Client(**{"stale_while_revalidate": False, **settings}) as client:
        return client.fetch(url)
