"""What remembers: one small contract, kept by memory, SQLite and Redis alike.

A store holds records under keys and changes them one atomic step at a time:

    def step(record, now):          # pure and quick: it may be run again
        return changed, answer

    answer = store.update("host:example.org", step)

A missing record is None; returning None removes it; returning the very record that was given changes nothing. A step
that raises changes nothing, and its exception comes out. No update is lost among tasks and threads, nor among
processes (SQLite, Redis) or machines (Redis). `now.at` never runs backwards for one key, whatever the system's clock
does. Any text is a key. A store that cannot be read or written raises `StoreError`. One that can lose its records has
a list of its `losses`, by which who remembers them sees that they are to be put back.
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
    """That a store has lost its records: what it had is gone, or is older than what was there."""

    name: object
    """The same for all who have found it out."""

    why: str = ""
    """To go on with after the store's name; empty if it was told already."""

    key: str | None = None
    """The one record that was lost, because it was damaged; None for all."""


Answer = TypeVar("Answer")
Step = Callable[[Any, Now], tuple[Record | None, Answer]]
"""`step(record, now) -> (record, answer)`; the record given is the one under the key, or None."""


class Store(Protocol):
    """A blocking store. Safe to share among threads."""

    @property
    def identity(self) -> str:
        """The same text for two stores of one process exactly if they hold the same records."""
        ...

    def update(self, key: str, step: Step[Answer]) -> Answer:
        """Change one record by `step`, as one atomic step, and return its answer."""
        ...

    def update_many(self, steps: Sequence[tuple[str, Step[Any]]]) -> list[Any]:
        """Do several updates at once: each is atomic by itself, together they cost little more than one.

        An exception of any step comes out after the others are done.
        """
        ...

    def read(self, key: str) -> Any:
        """The record under `key`, or None."""
        ...

    def keys(self, prefix: str = "") -> list[str]:
        """All keys that begin with `prefix`, in order."""
        ...

    def forget(self, key: str) -> None:
        """Remove the record under `key`, if there is one."""
        ...

    def now(self) -> Now:
        """The store's own present."""
        ...

    def close(self) -> None:
        """Give back what is held open. Idempotent."""
        ...


class AsyncStore(Protocol):
    """The same for tasks; nothing here blocks the event loop."""

    @property
    def identity(self) -> str:
        """The same text for two stores of one process exactly if they hold the same records."""
        ...

    async def update(self, key: str, step: Step[Answer]) -> Answer:
        """Change one record by `step`, as one atomic step, and return its answer."""
        ...

    async def update_many(self, steps: Sequence[tuple[str, Step[Any]]]) -> list[Any]:
        """Do several updates at once: each is atomic by itself."""
        ...

    async def read(self, key: str) -> Any:
        """The record under `key`, or None."""
        ...

    async def keys(self, prefix: str = "") -> list[str]:
        """All keys that begin with `prefix`, in order."""
        ...

    async def forget(self, key: str) -> None:
        """Remove the record under `key`, if there is one."""
        ...

    async def now(self) -> Now:
        """The store's own present."""
        ...

    async def close(self) -> None:
        """Give back what is held open. Idempotent."""
        ...


def open_store(
    url: str | None = None, *, clock: Clock | None = None, fallback: bool = True, share: float = 1.0
) -> Store:
    """Open the store at `url`. None: the one that $CURTSY_STORE names, else a file in the user's state directory.

        memory:                          this process alone
        sqlite:///state.sqlite           a file, from where we are
        sqlite:////var/lib/state.sqlite  a file, absolute
        redis://host:6379/0              a server; also rediss://, unix://, redis+cluster://, redis+sentinel://

    Nothing is opened or connected to yet. With `fallback`, an outage of the store is bridged in memory, which all
    who open it in this process share; `share` is then this process's part of what all have together, the global rate.
    """
    kind, place = _find(url)
    if kind == "memory":
        from curtsy.stores.memory import MemoryStore

        return MemoryStore(clock)  # what cannot fail needs no shelter
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
    """Open the store at `url` for tasks; see `open_store`."""
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
    """All records whose keys begin with `prefix`, with their keys: for whoever watches thousands of them.

    Where the store can read many at once (`records`), that costs far less than one by one.
    """
    records = getattr(store, "records", None)
    if records is not None:
        found: list[tuple[str, Any]] = records(prefix)
        return found
    each = ((key, store.read(key)) for key in store.keys(prefix))
    return [(key, record) for key, record in each if record is not None]


_NOWHERE = ("", "~", "null", "none")
"""What a variable says that names no store; see `settings.document.scalar`."""


def _find(url: str | None) -> tuple[str, str]:
    """Which kind of store a URL names (memory, sqlite or redis), and where it is."""
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
