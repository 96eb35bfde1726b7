"""Where the parts keep their records: in any store, named in any way."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Sequence
from typing import Any

from curtsy.core.message import Now
from curtsy.core.policy import rule
from curtsy.place import parse_place
from curtsy.stores import Answer, AsyncStore, Step, Store, open_async_store, open_store
from curtsy.stores.memory import AsyncMemoryStore, MemoryStore

AnyStore = str | Store | tuple[Store, AsyncStore]
"""The URL of a store; a store; or one and the same for threads and for tasks."""


def opened(store: str | Store | None) -> Store:
    """A store to be used by threads; without one, memory of our own."""
    if store is None:
        return MemoryStore()
    if isinstance(store, str):
        return open_store(store)
    if not _is_store(store, is_async=False):
        raise rule("store", store, "a store such as open_store('sqlite:///state.sqlite'), its URL, or left out")
    return store


def opened_for_both(store: AnyStore | None) -> tuple[Store, AsyncStore]:
    """A store to be used by threads and by tasks."""
    if store is None or (isinstance(store, str) and parse_place(store)[0] == "memory"):
        store = MemoryStore()
    if isinstance(store, MemoryStore):
        return store, AsyncMemoryStore(store)
    if isinstance(store, str):
        return open_store(store), open_async_store(store)
    if isinstance(store, tuple):
        if len(store) == 2 and _is_store(store[0], is_async=False) and _is_store(store[1], is_async=True):
            return store
    elif _is_store(store, is_async=False):
        return store, _Threaded(store)
    must = "a URL such as 'sqlite:///state.sqlite', a store, or a pair of a blocking store and its async one"
    raise rule("store", store, must)


def _is_store(what: object, *, is_async: bool) -> bool:
    """Whether it is a store, of the one colour or the other."""
    is_made = not isinstance(what, type) and hasattr(what, "identity")
    return is_made and inspect.iscoroutinefunction(getattr(what, "update", None)) == is_async


class _Threaded:
    """A blocking store for tasks: each call is made in a thread of the event loop's own pool."""

    def __init__(self, store: Store) -> None:
        self._store = store

    @property
    def identity(self) -> str:
        """That of the store."""
        return self._store.identity

    @property
    def share(self) -> float:
        """This process's share of the global limit, while the store is out."""
        share: float = getattr(self._store, "share", 1.0)
        return share

    async def update(self, key: str, step: Step[Answer]) -> Answer:
        """Change one record by `step`, as one atomic step, and return its answer."""
        return await asyncio.to_thread(self._store.update, key, step)

    async def update_many(self, steps: Sequence[tuple[str, Step[Any]]]) -> list[Any]:
        """Do several updates at once: each is atomic by itself."""
        return await asyncio.to_thread(self._store.update_many, steps)

    async def read(self, key: str) -> Any:
        """The record under `key`, or None."""
        return await asyncio.to_thread(self._store.read, key)

    async def keys(self, prefix: str = "") -> list[str]:
        """All keys that begin with `prefix`, in order."""
        return await asyncio.to_thread(self._store.keys, prefix)

    async def forget(self, key: str) -> None:
        """Remove the record under `key`, if there is one."""
        await asyncio.to_thread(self._store.forget, key)

    async def now(self) -> Now:
        """The store's own present."""
        return await asyncio.to_thread(self._store.now)

    async def close(self) -> None:
        """Give back what is held open. Idempotent."""
        await asyncio.to_thread(self._store.close)
