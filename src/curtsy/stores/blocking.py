"""Adapters between blocking and async stores."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, TypeGuard

from curtsy.core.errors import CurtsyError
from curtsy.core.time import Now
from curtsy.stores.protocol import NOT_NOW, Answer, AsyncStore, Outages, Step, Store
from curtsy.stores.survey import Survey
from curtsy.system.threads import in_thread, run_blocking


class BlockingStore:
    """Blocking form of an async store of curtsy: it runs each call in the caller's thread. Thread-safe."""

    def __init__(self, inner: AsyncStore) -> None:
        self.inner = inner
        """The same store for tasks."""

    @property
    def identity(self) -> str:
        """Text that identifies the records; see `Store.identity`."""
        return self.inner.identity

    def update(self, key: str, step: Step[Answer]) -> Answer:
        """Change one record atomically by `step`, and return its answer."""
        answer = self.inner.update_now(key, step)
        return run_blocking(self.inner.update(key, step)) if answer is NOT_NOW else answer

    def update_many(self, steps: Sequence[tuple[str, Step[Any]]]) -> list[Any]:
        """Do several updates; see `AsyncStore.update_many`."""
        return run_blocking(self.inner.update_many(steps))

    def read(self, key: str) -> Any:
        """Return the record under `key`, or None."""
        return run_blocking(self.inner.read(key))

    def keys(self, prefix: str = "") -> list[str]:
        """Return all keys that begin with `prefix`, sorted."""
        return run_blocking(self.inner.keys(prefix))

    def records(self, prefix: str) -> list[tuple[str, Any]]:
        """Return all records whose keys begin with `prefix`, with their keys, sorted."""
        return run_blocking(self.inner.records(prefix))

    def page(self, prefix: str, *, part: str = "", after: str = "", most: int) -> list[tuple[str, Any]]:
        """Return the first `most` records of a prefix; see `AsyncStore.page`."""
        return run_blocking(self.inner.page(prefix, part=part, after=after, most=most))

    def survey(self, recent: int, troubled: int) -> Survey:
        """Return hosts used last and hosts in trouble; see `AsyncStore.survey`."""
        return run_blocking(self.inner.survey(recent, troubled))

    def forget(self, key: str) -> None:
        """Remove the record under `key`, if present."""
        run_blocking(self.inner.forget(key))

    def now(self) -> Now:
        """Return the store's current time."""
        return run_blocking(self.inner.now())

    def close(self) -> None:
        """Release all open resources. Idempotent."""
        run_blocking(self.inner.close())


class ThreadedStore(AsyncStore):
    """Async form of a blocking store, or of any object with the methods of a store.

    Blocking methods run in a thread.
    """

    def __init__(self, store: Any) -> None:
        self._store = store
        self._inner = store.inner if isinstance(store, BlockingStore) else None

    @property
    def is_out(self) -> bool:
        return self._inner is not None and self._inner.is_out

    @property
    def is_waiting(self) -> bool:
        return self._inner is not None and self._inner.is_waiting

    @property
    def outage(self) -> CurtsyError | None:
        return None if self._inner is None else self._inner.outage

    @property
    def held(self) -> int:
        return 0 if self._inner is None else self._inner.held

    @property
    def share(self) -> float:
        return 1.0 if self._inner is None else self._inner.share

    @property
    def outages(self) -> Outages:
        return Outages() if self._inner is None else self._inner.outages

    async def _call(self, method: Callable[..., Any], *arguments: Any) -> Any:
        if inspect.iscoroutinefunction(method):
            return await method(*arguments)
        return await in_thread(method, *arguments)

    @property
    def identity(self) -> str:
        return str(self._store.identity)

    async def update(self, key: str, step: Step[Answer]) -> Answer:
        answer: Answer = await self._call(self._store.update, key, step)
        return answer

    async def update_many(self, steps: Sequence[tuple[str, Step[Any]]]) -> list[Any]:
        answers: list[Any] = await self._call(self._store.update_many, steps)
        return answers

    async def read(self, key: str) -> Any:
        return await self._call(self._store.read, key)

    async def keys(self, prefix: str = "") -> list[str]:
        keys: list[str] = await self._call(self._store.keys, prefix)
        return keys

    async def forget(self, key: str) -> None:
        await self._call(self._store.forget, key)

    async def now(self) -> Now:
        now: Now = await self._call(self._store.now)
        return now

    async def close(self) -> None:
        await self._call(self._store.close)


def is_store(what: object) -> TypeGuard[Store | AsyncStore]:
    """Return whether `what` is a store, blocking or async, of curtsy or a user's own."""
    return not isinstance(what, type) and hasattr(what, "identity") and hasattr(what, "update")


def for_tasks(store: Store | AsyncStore) -> AsyncStore:
    """Return the async form of a store."""
    if isinstance(store, BlockingStore) and not store.inner.is_per_loop:
        return store.inner
    return store if isinstance(store, AsyncStore) else ThreadedStore(store)


def for_threads(store: Store) -> BlockingStore:
    """Return a blocking store with all methods of `BlockingStore`."""
    return store if isinstance(store, BlockingStore) else BlockingStore(ThreadedStore(store))
