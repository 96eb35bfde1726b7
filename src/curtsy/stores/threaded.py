"""Blocking store for tasks: each call runs in a thread of the event loop's pool."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any, TypeGuard

from curtsy.core.message import Now
from curtsy.stores import Answer, AsyncStore, Step, Store
from curtsy.system.threads import in_thread


def is_store(what: object) -> TypeGuard[Store]:
    """Return whether `what` is a blocking store."""
    return _is_made(what) and not inspect.iscoroutinefunction(getattr(what, "update", None))


def is_async_store(what: object) -> TypeGuard[AsyncStore]:
    """Return whether `what` is an async store."""
    return _is_made(what) and inspect.iscoroutinefunction(getattr(what, "update", None))


def _is_made(what: object) -> bool:
    return not isinstance(what, type) and hasattr(what, "identity") and hasattr(what, "update")


class ThreadedStore:
    """Async store over a blocking one."""

    def __init__(self, store: Store) -> None:
        self._store = store

    @property
    def identity(self) -> str:
        """Identity of the blocking store."""
        return self._store.identity

    @property
    def share(self) -> float:
        """This process's share of the global limit: 1.0 unless the store is out."""
        share: float = getattr(self._store, "share", 1.0)
        return share

    async def update(self, key: str, step: Step[Answer]) -> Answer:
        """Change one record by `step`, and return its answer."""
        return await in_thread(self._store.update, key, step)

    async def update_many(self, steps: Sequence[tuple[str, Step[Any]]]) -> list[Any]:
        """Do several updates; see `Store.update_many`."""
        return await in_thread(self._store.update_many, steps)

    async def read(self, key: str) -> Any:
        """Return the record under `key`, or None."""
        return await in_thread(self._store.read, key)

    async def keys(self, prefix: str = "") -> list[str]:
        """Return all keys that begin with `prefix`, sorted."""
        return await in_thread(self._store.keys, prefix)

    async def forget(self, key: str) -> None:
        """Remove the record under `key`, if present."""
        await in_thread(self._store.forget, key)

    async def now(self) -> Now:
        """Return the store's current time."""
        return await in_thread(self._store.now)

    async def close(self) -> None:
        """Release all open resources. Idempotent."""
        await in_thread(self._store.close)
