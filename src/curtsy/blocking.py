"""The same way in for threads: `Client`, and `get()` for one line."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import Coroutine, Generator, Iterable, Mapping
from concurrent.futures import Future
from queue import SimpleQueue
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack

from curtsy.batch import MOST_AT_ONCE, Batch, NoUrl
from curtsy.client import AsyncClient
from curtsy.core.errors import PolicyError
from curtsy.core.policy import Policies
from curtsy.core.result import FetchResult
from curtsy.download import GIB, DownloadResult
from curtsy.keywords import ClientKeywords, FetchKeywords
from curtsy.watch.statistics import StatisticsSnapshot

T = TypeVar("T")


class LoopThread:
    """An event loop in a thread of its own, for those who cannot await."""

    def __init__(self, name: str) -> None:
        self.loop = asyncio.new_event_loop()
        self._lock = threading.Lock()
        self._is_stopped = False
        self._has_ended = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._has_ended:
            # An exit that is raised in a task stops the loop. It is for who waits for that task, and all others go on.
            with contextlib.suppress(SystemExit, KeyboardInterrupt):
                self.loop.run_forever()

    def _end(self) -> None:
        self._has_ended = True
        self.loop.stop()

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
        self.loop.call_soon_threadsafe(self._end)
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

    It takes what that takes. In a forked child it starts anew, for threads are not inherited: fork while no other
    thread is using it.
    """

    def __init__(self, **settings: Unpack[ClientKeywords]) -> None:
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

    def fetch(
        self,
        url: str,
        *,
        method: str = "GET",
        headers: Mapping[str, str] | None = None,
        body: bytes | None = None,
        deadline: float | None = None,
        repeatable: bool | None = None,
    ) -> FetchResult:
        """Fetch one URL, when its turn comes; see `AsyncClient.fetch`."""
        client = self._opened()
        return self._thread.call(
            client.fetch(url, method=method, headers=headers, body=body, deadline=deadline, repeatable=repeatable)
        )

    def fetch_many(
        self, urls: Iterable[str], *, at_once: int = MOST_AT_ONCE, **options: Unpack[FetchKeywords]
    ) -> Generator[FetchResult, None, None]:
        """Fetch many URLs, and yield each result as it comes; see `AsyncClient.fetch_many`.

        `urls` is read by the calling thread, as it goes on.
        """
        client, batch = self._opened(), Batch(urls, at_once)
        done: SimpleQueue[Future[FetchResult]] = SimpleQueue()
        under_way: dict[Future[FetchResult], str] = {}
        try:
            while True:
                while (url := batch.next()) is not NoUrl.NOW:
                    if url is not NoUrl.YET:
                        future = self._thread.submit(client.fetch(url, **options))
                        under_way[future] = url
                        future.add_done_callback(done.put)
                    elif not done.empty():
                        break
                if not under_way:
                    return
                future = done.get()
                batch.end(under_way.pop(future))
                yield future.result()
        finally:
            for future in under_way:
                future.cancel()

    def download(
        self, url: str, path: str | os.PathLike[str], *, max_size: int | None = GIB, deadline: float | None = None
    ) -> DownloadResult:
        """Save a URL as a file, in its turn; see `AsyncClient.download`."""
        client = self._opened()
        return self._thread.call(client.download(url, path, max_size=max_size, deadline=deadline))

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


async def _make(settings: ClientKeywords) -> AsyncClient:
    return AsyncClient(**settings)


def get(url: str, **settings: Unpack[ClientKeywords]) -> FetchResult:
    """Fetch one URL politely, blocking, with a client of its own."""
    settings.setdefault("stale_while_revalidate", False)
    with Client(**settings) as client:
        return client.fetch(url)
