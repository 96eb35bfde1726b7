"""Fixtures of crawls that are shared."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.crawling.crawl_process import CrawlProcess
from tests.support.redis_server import RedisServer, redis_available


@pytest.fixture(autouse=True)
def _no_crawl_is_left_running() -> Iterator[None]:
    """A test that fails does not have the next ones fail, too."""
    yield
    CrawlProcess.end_all()


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    """A Redis server for one module of tests; they are skipped where there is none."""
    if reason := redis_available():
        pytest.skip(reason)
    with RedisServer() as started:
        yield started
