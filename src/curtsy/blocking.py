"""Client for threads: `Client`, and `get()` for a single URL."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import threading
import time
import warnings
from collections.abc import Callable, Coroutine, Generator, Iterable, Mapping, Sequence
from concurrent.futures import Future
from queue import SimpleQueue
from types import TracebackType
from typing import Any, Never, Protocol, Self, TypeVar, Unpack
from weakref import WeakSet

from curtsy.client import AsyncClient, open_again, parted, session_of
from curtsy.core.errors import PolicyError
from curtsy.core.policy import Policies
from curtsy.core.result import FetchResult
from curtsy.core.statistics import StatisticsSnapshot
from curtsy.engine.arguments import check_options, portable
from curtsy.engine.batch import MAX_IN_FLIGHT, Batch, NoUrl
from curtsy.engine.download import GIB, DownloadResult
from curtsy.engine.keywords import ClientKeywords, FetchKeywords, GetKeywords
from curtsy.engine.session import Session
from curtsy.system.log import LibraryLogger, library_logger
from curtsy.system.shutdown import at_exit

T = TypeVar("T")

_log: LibraryLogger = library_logger("client")

_TOO_LATE = "The program has ended, and its threads have stopped. Fetch and close before its end."

_LEFT_BEHIND = "After a fork, the thread belongs to the parent. Create a new client in the child."

AT_EXIT = 5.0
"""Seconds that the program's end waits for clients that are still open."""


class LoopThread:
    """Event loop in its own thread, for callers that cannot await."""

    def __init__(self, name: str) -> None:
        if sys.is_finalizing():
            raise PolicyError(_TOO_LATE)
        self.loop = asyncio.new_event_loop()
        self._lock = threading.Lock()
        self._is_stopped = False
        self._has_ended = False
        self._process = os.getpid()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        try:
            self._thread.start()
        except RuntimeError as error:
            self.loop.close()
            raise PolicyError(
                f"No thread can be started for it: {error}. Make it before the program ends, and fewer at once."
            ) from error

    def _run(self) -> None:
        while not self._has_ended:
            # A SystemExit or KeyboardInterrupt in a task stops the loop. Only the caller of that task gets it; others
            # continue.
            with contextlib.suppress(SystemExit, KeyboardInterrupt):
                self.loop.run_forever()
        self.loop.close()
        _GOING.discard(self)

    @property
    def is_inherited(self) -> bool:
        """Return whether this process is a fork of the one with the thread."""
        return self._process != os.getpid()

    @property
    def is_stopped(self) -> bool:
        """Return whether the thread has ended or is ending."""
        return self._is_stopped

    @property
    def is_this(self) -> bool:
        """Return whether the caller runs in this thread."""
        return threading.current_thread() is self._thread

    def check_is_other(self) -> None:
        """Raise PolicyError if the caller runs in this thread, because it would wait for itself."""
        if self.is_this:
            raise PolicyError(
                "This was called from a callback, which is run by the very thread that would have to answer. "
                "Have another thread call it, or use the asynchronous form."
            )

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Start a coroutine in the loop and return its future."""
        try:
            self.check_is_other()
        except PolicyError:
            work.close()
            raise
        if sys.is_finalizing() or self.is_inherited:  # the thread is frozen, or not in this process
            work.close()
            raise PolicyError(_LEFT_BEHIND if self.is_inherited else _TOO_LATE)
        with self._lock:  # orders this with `stop()`
            if not self._is_stopped:
                return asyncio.run_coroutine_threadsafe(work, self.loop)
        work.close()
        raise PolicyError("This was closed meanwhile. Make another one, or keep it open for longer.")

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the loop and return its result."""
        future = self.submit(work)
        try:
            return future.result()
        except BaseException:  # Ctrl-C during the wait: the work is cancelled and returns its resources
            future.cancel()
            raise

    def stop(self) -> None:
        """End the thread and wait for it."""
        self.check_is_other()
        if self.let_go(_nothing):
            self.join()

    def close(self, last: Callable[[], Coroutine[Any, Any, T]]) -> T | None:
        """Run a last coroutine, end the thread and wait for both; None if the thread cannot run here."""
        if self._is_left(last):
            return None
        try:
            return self.call(last())
        finally:  # after Ctrl-C in between; closing twice takes no time
            if self.let_go(last):
                self.join()

    def let_go(self, last: Callable[[], Coroutine[Any, Any, object]]) -> bool:
        """Run a last coroutine and end the thread without waiting; return whether the thread can be joined."""
        if self._is_left(last):
            return False
        with self._lock:
            is_first, self._is_stopped = not self._is_stopped, True
        if is_first:
            _GOING.add(self)
            asyncio.run_coroutine_threadsafe(self._finish(last), self.loop)
        return True

    def join(self, seconds: float | None = None) -> None:
        """Wait for the end of the thread, at most `seconds`; None for no limit."""
        self._thread.join(seconds)

    def _is_left(self, last: object) -> bool:
        """Return whether the thread can never run again: in a forked child, and during interpreter shutdown."""
        if self._process == os.getpid():
            return sys.is_finalizing()
        _INHERITED.append((self, last))
        return True

    async def _finish(self, last: Callable[[], Coroutine[Any, Any, object]]) -> None:
        try:
            await last()
        except Exception as error:  # no caller waits for it
            _log.warning("An open client could not be closed at exit", error=repr(error))
        finally:
            await _ended()
            self._has_ended = True
            self.loop.stop()


_INHERITED: list[object] = []
"""Objects of the parent that a forked child keeps, so that it never finalizes them."""


async def _nothing() -> None:
    """Do nothing, as the last coroutine of `stop()`."""


async def _ended() -> None:
    """Cancel all other tasks of this loop, such as those started during closing."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


_shared: LoopThread | None = None
_shared_lock = threading.Lock()


def shared_loop() -> LoopThread:
    """Return the thread that runs the waits of blocking parts without a client: one per process."""
    global _shared
    with _shared_lock:
        if _shared is None or _shared.is_stopped:
            _shared = LoopThread("curtsy-waits")
        return _shared


def _after_fork() -> None:
    global _shared, _shared_lock
    _INHERITED.append(_shared)
    _shared, _shared_lock = None, threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


class _Owner(Protocol):
    """Object with a thread and a resource to close in it."""

    _thread: LoopThread

    def _let_go(self) -> bool:
        """Close without waiting; return whether the thread can be joined."""


_OPEN: WeakSet[_Owner] = WeakSet()
"""Objects to close at the program's end if they are still open."""


_GOING: set[LoopThread] = set()
"""Threads that are ending."""


def close_at_exit(owner: _Owner) -> None:
    """Register an object to close at the program's end, before its store's last writes."""
    _OPEN.add(owner)


def _close_all() -> None:
    until = time.monotonic() + AT_EXIT
    for owner in list(_OPEN):
        owner._let_go()
    if _shared is not None:
        _shared.let_go(_nothing)
    with contextlib.suppress(KeyboardInterrupt):
        for thread in list(_GOING):
            thread.join(max(0.0, until - time.monotonic()))


at_exit(_close_all, first=True)


class Client:
    """Blocking `AsyncClient`, on an event loop in its own thread. Safe to share among threads.

    It takes the same arguments. A forked child starts a new thread and client because threads are not inherited: fork
    while no other thread uses the client.
    """

    _is_closed = True  # until construction succeeds

    def __init__(self, **settings: Unpack[ClientKeywords]) -> None:
        self._settings = settings
        self._start()
        self._is_closed = False
        close_at_exit(self)

    def _start(self) -> None:
        self._thread = LoopThread("curtsy-client")
        try:
            self._client: AsyncClient = self._thread.call(_make(self._settings))
        except BaseException:
            self._thread.stop()
            raise

    def _opened(self) -> AsyncClient:
        if self._is_closed:
            raise PolicyError("This client is closed. Make another one, or keep it open for longer.")
        if self._thread.is_inherited:
            _INHERITED.append((self._thread, self._client))
            self._start()
        return self._client

    @property
    def policies(self) -> Policies:
        """Return the policies in force. Changed files are read again."""
        return self._opened().policies

    def fetch(
        self,
        url: str,
        *,
        method: str | None = None,
        params: Mapping[str, Any] | Sequence[tuple[str, Any]] | None = None,
        headers: Mapping[str, str] | None = None,
        json: Any = None,
        body: bytes | None = None,
        timeout: float | None = None,
        deadline: float | None = None,
        idempotent: bool | None = None,
        **unknown: Never,
    ) -> FetchResult:
        """Fetch one URL when its turn comes; see `AsyncClient.fetch`."""
        check_options(unknown)
        client = self._opened()
        return self._thread.call(
            client.fetch(
                url, method=method, params=params, headers=headers, json=json, body=body, timeout=timeout,
                deadline=deadline, idempotent=idempotent,
            )
        )  # fmt: skip

    def fetch_many(
        self, urls: Iterable[str], *, max_in_flight: int = MAX_IN_FLIGHT, **options: Unpack[FetchKeywords]
    ) -> Generator[FetchResult, None, None]:
        """Fetch many URLs and yield each result as it arrives; see `AsyncClient.fetch_many`.

        The calling thread reads `urls` between results.
        """
        client, batch = self._opened(), Batch(urls, max_in_flight)
        check_options(options)
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
        self,
        url: str,
        path: str | os.PathLike[str],
        *,
        max_size: int | None = GIB,
        deadline: float | None = None,
        decode: bool = False,
    ) -> DownloadResult:
        """Save a URL as a file when its turn comes; see `AsyncClient.download`."""
        client = self._opened()
        return self._thread.call(client.download(url, path, max_size=max_size, deadline=deadline, decode=decode))

    def stats(self) -> StatisticsSnapshot:
        """Return the counts of this client so far."""
        return self._client.stats()

    def close(self) -> None:
        """End active fetches and close all resources. Idempotent.

        An unclosed client causes a ResourceWarning; one that is open at the program's end is closed then.
        """
        if self._is_closed:
            return
        self._thread.check_is_other()
        self._is_closed = True
        self._thread.close(self._client.close)

    def _let_go(self) -> bool:
        is_open, self._is_closed = not self._is_closed, True
        return is_open and self._thread.let_go(self._client.close)

    def __del__(self) -> None:
        if self._let_go():
            warnings.warn("unclosed curtsy.Client; close it, or use `with`", ResourceWarning, stacklevel=2, source=self)

    def __reduce__(self) -> tuple[Any, ...]:
        return open_again, (type(self), portable(self._settings))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def parts_of(client: Client) -> tuple[LoopThread, Session]:
    """Return the thread and the session of a client, for other parts of curtsy."""
    opened = client._opened()
    return client._thread, session_of(opened)


async def _make(settings: ClientKeywords) -> AsyncClient:
    return AsyncClient(**settings)


def get(url: str, **given: Unpack[GetKeywords]) -> FetchResult:
    """Fetch one URL politely with a temporary client, blocking.

    It takes the arguments of `Client` and of its `fetch`.
    """
    settings, options = parted(given)
    with Client(**settings) as client:
        return client.fetch(url, **options)
