"""Opening of a client's store and cache."""

from __future__ import annotations

import os
from pathlib import Path

from curtsy.cache.keys import PageCache
from curtsy.settings import Settings
from curtsy.stores import AsyncMemoryStore, AsyncStore, Store, open_async_store
from curtsy.stores.blocking import for_tasks
from curtsy.system.clock import Clock

UNBOUNDED = 2**62
"""Bytes: more than any disk holds."""


def opened_store(
    store: str | os.PathLike[str] | Store | AsyncStore | None, settings: Settings, clock: Clock | None
) -> AsyncStore:
    """Return the client's store for tasks: the given one, memory with a fake clock, or that of the settings."""
    if store is None and clock is not None:
        return AsyncMemoryStore(clock)
    if store is None or isinstance(store, str | os.PathLike):
        return open_async_store(settings.store, clock=clock, share=settings.outage_share)
    return for_tasks(store)


def opened_cache(
    cache: str | os.PathLike[str] | PageCache | bool | None, settings: Settings
) -> PageCache | None:  # fmt: skip
    """Return the client's cache: the given one or that of the settings; None if caching is off."""
    if cache is False or settings.cache_mode == "off":
        return None
    if cache is None or cache is True:
        from platformdirs import user_cache_path

        cache = settings.cache_dir or user_cache_path("curtsy", appauthor=False)
    if not isinstance(cache, str | os.PathLike):
        return cache
    path, size = Path(cache), UNBOUNDED if settings.cache_size is None else settings.cache_size
    if path.suffix == ".sqlite":
        from curtsy.cache.packed import DELAY, PackedCache

        return PackedCache(path, max_size=size, delay=DELAY)
    from curtsy.cache.disk import DiskCache

    return DiskCache(path, max_size=size)
