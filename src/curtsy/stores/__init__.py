"""Stores of records: in memory, in an SQLite file, or on a Redis server. `stores/protocol.py` describes a store."""

from __future__ import annotations

import os
from typing import Any, Literal

from curtsy.stores.blocking import BlockingStore, for_threads
from curtsy.stores.memory import AsyncMemoryStore, MemoryStore
from curtsy.stores.protocol import (
    NOT_NOW,
    Answer,
    AsyncStore,
    Loss,
    NotNow,
    Outages,
    Proposal,
    Shared,
    Step,
    Store,
    WrappedStore,
)
from curtsy.stores.url import parse_store_url
from curtsy.system.clock import Clock

__all__ = [
    "NOT_NOW", "Answer", "AsyncMemoryStore", "AsyncStore", "BlockingStore", "Loss", "MemoryStore", "NotNow",
    "Outage", "Outages", "Proposal", "Shared", "Step", "Store", "WrappedStore", "for_threads", "open_async_store",
    "open_store", "read_all",
]  # fmt: skip


Outage = Literal["wait", "alone"]
"""What happens while the store is unreachable."""


def open_store(
    url: str | None = None,
    *,
    clock: Clock | None = None,
    fallback: bool = True,
    share: float | None = None,
    outage: Outage | None = None,
) -> BlockingStore:
    """Return the store at `url`, which connects at its first use.

        memory:                          this process alone
        sqlite:///state.sqlite           a file, relative to the working directory
        sqlite:////var/lib/state.sqlite  a file, absolute
        redis://host:6379/0              a server; also rediss://, unix://, redis+cluster://, redis+sentinel://

    None means the store that $CURTSY_STORE names, else a file in the user's state directory. Raises PolicyError for a
    bad URL or a missing library. Without `fallback`, an unreachable store raises StoreError. With it, `outage` says
    what happens meanwhile (C18). `wait`, the default on a server: no request is admitted until the store answers.
    `alone`, the default for a file: the process continues in memory, with `share` of the common limits (None: see
    `AsyncStore.divide`). All stores of the process with the same records share that memory.
    """
    return BlockingStore(open_async_store(url, clock=clock, fallback=fallback, share=share, outage=outage))


def open_async_store(
    url: str | None = None,
    *,
    clock: Clock | None = None,
    fallback: bool = True,
    share: float | None = None,
    outage: Outage | None = None,
) -> AsyncStore:
    """Return the async store at `url`; see `open_store`."""
    kind, place = _find(url)
    if kind == "memory":
        return AsyncMemoryStore(clock)  # it has no outages
    from curtsy.stores.fallback import AsyncFallbackStore
    from curtsy.stores.fallback_state import fallback_state_of
    from curtsy.stores.outage_ledger import ledger_of

    store: AsyncStore
    if kind == "sqlite":
        from curtsy.stores.sqlite import AsyncSQLiteStore

        store, ledger = AsyncSQLiteStore(place, clock=clock), ledger_of(place)
    else:
        from curtsy.stores.redis import AsyncRedisStore

        store, ledger = AsyncRedisStore(place, clock=clock), None
    if not fallback:
        return store
    waits = _outage(kind, outage) == "wait"
    return AsyncFallbackStore(store, state=fallback_state_of(store.identity, share, waits, ledger))


def outage_of(url: str | None, outage: Outage | None = None) -> Outage:
    """Return what happens while the store at `url` is unreachable. `outage` is the setting; None for its default."""
    return _outage(_find(url)[0], outage)


def _outage(kind: str, outage: Outage | None) -> Outage:
    return outage or ("wait" if kind == "redis" else "alone")


def read_all(store: Store, prefix: str) -> list[tuple[str, Any]]:
    """Return all records whose keys begin with `prefix`, with their keys, sorted."""
    return for_threads(store).records(prefix)


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
