"""Opening of the stores of the parts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from curtsy.core.policy import rule
from curtsy.stores import AsyncStore, Store, open_async_store, open_store
from curtsy.stores.memory import AsyncMemoryStore, MemoryStore
from curtsy.stores.threaded import ThreadedStore, is_async_store, is_store
from curtsy.stores.url import parse_store_url

if TYPE_CHECKING:
    from curtsy.settings import Settings

AnyStore = str | Store | tuple[Store, AsyncStore]
"""URL of a store, a store, or a pair of the same store for threads and for tasks."""


def opened(store: str | Store | None) -> Store:
    """Return a store for threads; None opens a private one in memory."""
    if store is None:
        return MemoryStore()
    if isinstance(store, str):
        return open_store(store)
    if not is_store(store):
        raise rule("store", store, "a store such as open_store('sqlite:///state.sqlite'), its URL, or left out")
    return store


def opened_by_settings(settings: Settings) -> tuple[Store, AsyncStore]:
    """Open the store of the settings for threads and for tasks (C15)."""
    url, share = settings.store, settings.outage_share
    if url is not None and parse_store_url(url)[0] == "memory":
        return opened_for_both(None)
    return open_store(url, share=share), open_async_store(url, share=share)


def opened_for_both(store: AnyStore | None) -> tuple[Store, AsyncStore]:
    """Return a store for threads and for tasks; None opens a private one in memory."""
    if store is None or (isinstance(store, str) and parse_store_url(store)[0] == "memory"):
        store = MemoryStore()
    if isinstance(store, MemoryStore):
        return store, AsyncMemoryStore(store)
    if isinstance(store, str):
        return open_store(store), open_async_store(store)
    if isinstance(store, tuple):
        if len(store) == 2 and is_store(store[0]) and is_async_store(store[1]):
            return store
    elif is_store(store):
        return store, ThreadedStore(store)
    must = "a URL such as 'sqlite:///state.sqlite', a store, or a pair of a blocking store and its async one"
    raise rule("store", store, must)
