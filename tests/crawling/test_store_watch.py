"""A crawl of this machine whose limits are on a server that does not answer: it waits as a shared crawl does."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from curtsy.core.errors import StoreError
from curtsy.crawling.crawl import AsyncCrawl
from curtsy.crawling.start import acrawl
from curtsy.crawling.store_watch import LONGEST_OUTAGE, StoreOut, StoreWatch
from curtsy.stores import open_async_store
from tests.crawling.web import QUICK, html
from tests.support.redis_server import RedisServer, redis_available
from tests.support.site import Site

NOWHERE = "redis://127.0.0.1:1/0"


@pytest.fixture
def own_server() -> Iterator[RedisServer]:
    if reason := redis_available():
        pytest.skip(reason)
    with RedisServer() as server:
        yield server


async def told(crawl: AsyncCrawl, words: str) -> None:
    """Wait until the progress of a crawl names what it waits for."""
    async for snapshot in crawl.snapshots(0.01):
        if words in (snapshot.waiting_for or ""):
            assert snapshot.state == "waiting"
            return
    raise AssertionError(f"the crawl ended, and {words!r} was never said")


@pytest.mark.parametrize("workers", [1, 2])
async def test_a_crawl_that_starts_while_the_store_is_out_waits_and_names_its_error(
    site: Site, tmp_path: Path, own_server: RedisServer, workers: int
) -> None:
    """Issue 17: no request is sent meanwhile, and it continues by itself"""
    site.page("/", html("/a"))
    site.page("/a", html())
    own_server.stop()
    given: dict[str, Any] = {**QUICK, "store": own_server.url, "job": tmp_path / "job", "shared": False}
    async with acrawl(site.url("/"), **given, workers=workers) as crawl:
        running = asyncio.ensure_future(crawl.run())
        await told(crawl, f"127.0.0.1:{own_server.port}")
        asked = list(site.journal)
        own_server.start()
        summary = await running

    assert (asked, summary.ended, summary.totals.pages) == ([], "done", 2)


@pytest.mark.parametrize("workers", [1, 2])
async def test_a_crawl_pauses_while_the_store_is_out_and_names_its_error(
    site: Site, tmp_path: Path, own_server: RedisServer, workers: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Issue 17: and one process logs the outage for all"""
    site.page("/", html(*(f"/{number}" for number in range(40))))
    for number in range(40):
        site.page(f"/{number}", html())
    manners = {"preset": "gentle", "global_qps": None, "qps": None, "pause_min": 0.05, "pause_max": 0.05}
    store = f"{own_server.url}?timeout=0.3"
    given: dict[str, Any] = {**QUICK, **manners, "store": store, "job": tmp_path / "job", "shared": False}
    async with acrawl(site.url("/"), **given, workers=workers) as crawl:
        running = asyncio.ensure_future(crawl.run())
        async for snapshot in crawl.snapshots(0.01):
            if snapshot.totals.pages > 3:
                break
        own_server.pause()
        await told(crawl, f"127.0.0.1:{own_server.port}")
        own_server.resume()
        summary = await running

    assert (summary.ended, summary.totals.pages, summary.totals.failed) == ("done", 41, {})
    assert len(site.visits("/7")) == 1
    assert len([each for each in caplog.records if "No request is sent until" in each.getMessage()]) == 1


@pytest.mark.parametrize("workers", [1, 2])
async def test_a_crawl_whose_store_stays_out_ends_after_its_patience_and_can_be_resumed(
    site: Site, tmp_path: Path, workers: int
) -> None:
    """Issue 17"""
    site.page("/", html())
    given: dict[str, Any] = {**QUICK, "job": tmp_path / "job", "shared": False}
    async with acrawl(site.url("/"), **{**given, "store": NOWHERE}, workers=workers, patience=0.5) as crawl:
        with pytest.raises(StoreError):
            await crawl.run()
    asked = list(site.journal)
    async with acrawl(site.url("/"), **given) as resumed:
        summary = await resumed.run()

    assert crawl.summary is not None
    assert (asked, crawl.summary.ended, crawl.summary.queued) == ([], "later", 1)
    assert (summary.ended, summary.totals.pages) == ("done", 1)


async def test_with_outage_alone_no_crawl_waits(site: Site, tmp_path: Path) -> None:
    """C18"""
    site.page("/", html())
    given: dict[str, Any] = {**QUICK, "store": NOWHERE, "outage": "alone", "job": tmp_path / "job", "shared": False}
    async with acrawl(site.url("/"), **given) as crawl:
        summary = await crawl.run()

    assert (summary.ended, summary.totals.pages) == ("done", 1)


async def test_a_start_waits_a_minute_at_most_and_a_running_crawl_as_long_as_its_patience(
    own_server: RedisServer,
) -> None:
    """Issue 17: and the start no longer than the patience"""
    store = open_async_store(own_server.url)
    early, hasty, late = StoreWatch(store, 600.0), StoreWatch(store, 5.0), StoreWatch(store, 600.0)
    await late.check()
    own_server.stop()
    patience = []
    await store.now()
    for watch in (early, hasty, late):
        with pytest.raises(StoreOut) as out:
            await watch.check()
        patience.append(out.value.patience)
    await store.close()

    assert patience == [LONGEST_OUTAGE, 5.0, 600.0]
    assert LONGEST_OUTAGE == 60.0
