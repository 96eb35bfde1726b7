"""Fixtures of crawls that are shared."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.redis_server import RedisServer, redis_available


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    """A Redis server for one module of tests; they are skipped where there is none."""
    if reason := redis_available():
        pytest.skip(reason)
    with RedisServer() as started:
        yield started
