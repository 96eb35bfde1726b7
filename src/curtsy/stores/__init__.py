"""Store interface, implemented by the memory, SQLite and Redis stores.

A store keeps records under keys and changes each record by an atomic step:

    def step(record, now):          # pure and quick: it may run again
        return changed, answer

    answer = store.update("host:example.org", step)

A missing record is None. A step removes the record by returning None, and keeps it by returning the same object. If a
step raises, the record stays unchanged and the exception propagates. No update is lost among tasks and threads, among
processes (SQLite, Redis) or among machines (Redis). `now.at` never decreases for one key, even if the system clock is
set. Any text is a key. A store that cannot be read or written raises `StoreError`. A store that can lose records lists
its `losses`, so that its user can restore them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

from curtsy.core.errors import not_imported
from curtsy.core.message import Now
from curtsy.core.record import Record
from curtsy.stores.url import parse_store_url
from curtsy.system.clock import Clock


class Loss(NamedTuple):
    """Loss of a store's records: they are gone, or older than before."""

    name: object
    """Identifier, equal for all stores that detect the same loss."""

    why: str = ""
    """Reason for the log message; empty if the loss is already logged."""

    key: str | None = None
    """Key of the one damaged record that was lost; None for all records."""


Answer = TypeVar("Answer")
Step = Callable[[Any, Now], tuple[Record | None, Answer]]
"""Function `step(record, now) -> (record, answer)`; its argument is the record under the key, or None."""


class Store(Protocol):
    """Blocking store. Thread-safe."""

    @property
    def identity(self) -> str:
        """Text that is equal for two stores of one process if and only if they hold the same records."""
        ...

    def update(self, key: str, step: Step[Answer]) -> Answer:
        """Change one record atomically by `step`, and return its answer."""
        ...

    def update_many(self, steps: Sequence[tuple[str, Step[Any]]]) -> list[Any]:
        """Do several updates in one batch, which costs little more than one update.

        Each update is atomic by itself. An exception of any step propagates after the others are done.
        """
        ...

    def read(self, key: str) -> Any:
        """Return the record under `key`, or None."""
        ...

    def keys(self, prefix: str = "") -> list[str]:
        """Return all keys that begin with `prefix`, sorted."""
        ...

    def forget(self, key: str) -> None:
        """Remove the record under `key`, if present."""
        ...

    def now(self) -> Now:
        """Return the store's current time."""
        ...

    def close(self) -> None:
        """Release all open resources. Idempotent."""
        ...


class AsyncStore(Protocol):
    """Async variant of `Store`; its methods do not block the event loop."""

    @property
    def identity(self) -> str:
        """Text that identifies the records; see `Store.identity`."""
        ...

    async def update(self, key: str, step: Step[Answer]) -> Answer:
        """Change one record by `step`, and return its answer."""
        ...

    async def update_many(self, steps: Sequence[tuple[str, Step[Any]]]) -> list[Any]:
        """Do several updates; see `Store.update_many`."""
        ...

    async def read(self, key: str) -> Any:
        """Return the record under `key`, or None."""
        ...

    async def keys(self, prefix: str = "") -> list[str]:
        """Return all keys that begin with `prefix`, sorted."""
        ...

    async def forget(self, key: str) -> None:
        """Remove the record under `key`, if present."""
        ...

    async def now(self) -> Now:
        """Return the store's current time."""
        ...

    async def close(self) -> None:
        """Release all open resources. Idempotent."""
        ...


def open_store(
    url: str | None = None, *, clock: Clock | None = None, fallback: bool = True, share: float = 1.0
) -> Store:
    """Return the store at `url`, which connects at its first use.

        memory:                          this process alone
        sqlite:///state.sqlite           a file, relative to the working directory
        sqlite:////var/lib/state.sqlite  a file, absolute
        redis://host:6379/0              a server; also rediss://, unix://, redis+cluster://, redis+sentinel://

    None means the store that $CURTSY_STORE names, else a file in the user's state directory. Raises PolicyError for a
    bad URL or a missing library. With `fallback`, the process counts in memory during an outage. All stores of the
    process with the same records share that memory. `share` is the process's part of the global rate in an outage.
    """
    kind, place = _find(url)
    if kind == "memory":
        from curtsy.stores.memory import MemoryStore

        return MemoryStore(clock)  # it has no outages
    store: Store
    ledger = None
    if kind == "sqlite":
        from curtsy.stores.outage_spending import ledger_of
        from curtsy.stores.sqlite import SQLiteStore

        store = SQLiteStore(place, clock=clock)
        ledger = ledger_of(place)
    else:
        store = _redis().RedisStore(place, clock=clock)
    if fallback:
        from curtsy.stores.fallback import FallbackStore
        from curtsy.stores.fallback_state import fallback_state_of

        store = FallbackStore(store, fallback_state=fallback_state_of(store.identity, lambda: share, ledger))
    return store


def open_async_store(
    url: str | None = None, *, clock: Clock | None = None, fallback: bool = True, share: float = 1.0
) -> AsyncStore:
    """Return the async store at `url`; see `open_store`."""
    kind, place = _find(url)
    if kind == "memory":
        from curtsy.stores.memory import AsyncMemoryStore

        return AsyncMemoryStore(clock=clock)
    store: AsyncStore
    ledger = None
    if kind == "sqlite":
        from curtsy.stores.outage_spending import ledger_of
        from curtsy.stores.sqlite import AsyncSQLiteStore

        store = AsyncSQLiteStore(place, clock=clock)
        ledger = ledger_of(place)
    else:
        store = _redis().AsyncRedisStore(place, clock=clock)
    if fallback:
        from curtsy.stores.fallback import AsyncFallbackStore
        from curtsy.stores.fallback_state import fallback_state_of

        store = AsyncFallbackStore(store, fallback_state=fallback_state_of(store.identity, lambda: share, ledger))
    return store


def read_all(store: Store, prefix: str) -> list[tuple[str, Any]]:
    """Return all records whose keys begin with `prefix`, with their keys.

    A store with the method `records` reads thousands of them in a few queries.
    """
    records = getattr(store, "records", None)
    if records is not None:
        found: list[tuple[str, Any]] = records(prefix)
        return found
    each = ((key, store.read(key)) for key in store.keys(prefix))
    return [(key, record) for key, record in each if record is not None]


_NOWHERE = ("", "~", "null", "none")
"""Values of $CURTSY_STORE that name no store; see `settings.document.scalar`."""


def _find(url: str | None) -> tuple[str, str]:
    """Return the kind of store (memory, sqlite or redis), and its path or URL."""
    if url is None:
        url = os.environ.get("CURTSY_STORE")
        if url is not None and url.lower() in _NOWHERE:
            url = None
    if url is None:
        import platformdirs

        return "sqlite", str(platformdirs.user_state_path("curtsy") / "state.sqlite")
    kind, place = parse_store_url(url)
    return kind, os.path.expanduser(place) if kind == "sqlite" else place


def _redis() -> Any:
    try:
        from curtsy.stores import redis
    except ImportError as error:
        cause = error.__cause__ if isinstance(error.__cause__, ImportError) else error
        raise not_imported("a Redis store needs the library redis-py", "redis", "redis", cause) from error
    return redis
