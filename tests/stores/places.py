"""Places where the stores under test keep their records. Only here is it known which store is which."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from curtsy.core.time import Now
from curtsy.stores import Answer, AsyncStore, BlockingStore, Step, Store
from curtsy.stores.memory import MemoryStore
from curtsy.stores.redis import AsyncRedisStore
from curtsy.stores.sqlite import AsyncSQLiteStore
from curtsy.system.clock import Clock
from tests.support.stores import redis_store, sqlite_store


class Place(Protocol):
    """Opens stores that hold the same records."""

    def open(self, clock: Clock | None = None) -> Store: ...

    def open_async(self, clock: Clock | None = None) -> AsyncStore: ...

    def words(self) -> list[str]:
        """What `place_of` takes in another process."""
        ...


class InMemory:
    def __init__(self, hot: int = 3) -> None:
        self._hot = hot
        self._store: MemoryStore | None = None

    def open(self, clock: Clock | None = None) -> MemoryStore:
        self._store = self._store or MemoryStore(clock, hot=self._hot)
        return self._store

    def open_async(self, clock: Clock | None = None) -> AsyncStore:
        return self.open(clock).inner

    def words(self) -> list[str]:
        raise NotImplementedError("no other process can have this")


class InFile:
    def __init__(self, path: str) -> None:
        self._path = path

    def open(self, clock: Clock | None = None) -> BlockingStore:
        return sqlite_store(self._path, clock=clock)

    def open_async(self, clock: Clock | None = None) -> AsyncSQLiteStore:
        return AsyncSQLiteStore(self._path, clock=clock)

    def words(self) -> list[str]:
        return [self._path]


class OnServer:
    def __init__(self, url: str, prefix: str) -> None:
        self._url = url
        self._prefix = prefix

    # A busy machine may keep a server waiting for a second: the suite asks what is right, not what is quick.
    def open(self, clock: Clock | None = None) -> BlockingStore:
        return redis_store(self._url, clock=clock, prefix=self._prefix, timeout=10.0)

    def open_async(self, clock: Clock | None = None) -> AsyncRedisStore:
        return AsyncRedisStore(self._url, clock=clock, prefix=self._prefix, timeout=10.0)

    def words(self) -> list[str]:
        return [self._url, self._prefix]


def place_of(words: Sequence[str]) -> Place:
    """A place that another process has."""
    match words:
        case [path]:
            return InFile(path)
        case [url, prefix]:
            return OnServer(url, prefix)
    raise ValueError(words)


class Awaited(AsyncStore):
    """A blocking store behind the methods of an async one, so that one suite does for both."""

    def __init__(self, store: Store) -> None:
        self._store = store

    @property
    def identity(self) -> str:
        return self._store.identity

    async def update(self, key: str, step: Step[Answer]) -> Answer:
        return self._store.update(key, step)

    async def update_many(self, steps: Sequence[tuple[str, Step[Any]]]) -> list[Any]:
        return self._store.update_many(steps)

    async def read(self, key: str) -> Any:
        return self._store.read(key)

    async def keys(self, prefix: str = "") -> list[str]:
        return self._store.keys(prefix)

    async def forget(self, key: str) -> None:
        self._store.forget(key)

    async def now(self) -> Now:
        return self._store.now()

    async def close(self) -> None:
        self._store.close()
