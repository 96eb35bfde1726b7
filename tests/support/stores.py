"""Blocking forms of the stores, and wrappers of them."""

from __future__ import annotations

from typing import Any

from curtsy.stores import AsyncStore, BlockingStore, Store
from curtsy.stores.blocking import for_tasks
from curtsy.stores.fallback import AsyncFallbackStore
from curtsy.stores.redis import AsyncRedisStore
from curtsy.stores.sqlite import AsyncSQLiteStore


def sqlite_store(path: Any, **options: Any) -> BlockingStore:
    return BlockingStore(AsyncSQLiteStore(path, **options))


def redis_store(url: str, **options: Any) -> BlockingStore:
    return BlockingStore(AsyncRedisStore(url, **options))


def fallback_store(inner: Store | AsyncStore, **options: Any) -> BlockingStore:
    return BlockingStore(
        AsyncFallbackStore(inner.inner if isinstance(inner, BlockingStore) else for_tasks(inner), **options)
    )
