"""Records that a later version of curtsy wrote: their host is refused, and the store counts as working."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from curtsy.client import AsyncClient
from curtsy.core.errors import Reason
from curtsy.core.record import Record
from curtsy.core.time import Now
from curtsy.crawling.start import acrawl
from curtsy.engine.context import rules_key
from curtsy.stores import open_async_store
from tests.client.fetching import AGENT, UNPACED, domain_of
from tests.support.redis_server import RedisServer, redis_available
from tests.support.site import Site

OTHER = "127.0.0.2"


@pytest.fixture(params=["sqlite", "redis"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'state.sqlite'}"
    elif reason := redis_available():
        pytest.skip(reason)
    else:
        with RedisServer() as server:
            yield server.url


def given(store: str, **more: Any) -> dict[str, Any]:
    return {"store": store, "cache": False, "allow_private": True, "user_agent": AGENT, **UNPACED, **more}


async def grow_older(store: str, key: str) -> None:
    """Write a record again as a later version would: with the number of a format that nobody knows yet."""

    def later(record: Record | None, now: Now) -> tuple[Record | None, None]:
        assert record is not None
        return msgspec.structs.replace(record, format=99), None

    if store.startswith("redis"):
        store += "?timeout=4"  # its values are remembered apart from those of the client
    writer = open_async_store(store)
    await writer.update(key, later)
    await writer.close()


@pytest.mark.parametrize("kind", ["host", "rules"])
async def test_a_host_with_a_record_of_a_later_version_is_refused_and_the_others_are_not(
    site: Site, store: str, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Issue 17, 1: with a clear message, and never as an outage; a client that knew the host included"""
    site.page("/*", "x")
    url, other = site.url("/a"), site.url("/a", host=OTHER)
    key = f"host:{domain_of(url)}" if kind == "host" else rules_key(url.removesuffix("/a"))
    async with AsyncClient(**given(store)) as first:
        assert (await first.fetch(url)).ok
    await grow_older(store, key)

    with caplog.at_level(logging.WARNING, "curtsy"):
        async with AsyncClient(**given(store)) as web:
            results = [await web.fetch(each) for each in (url, other, url, other)]
            outages = web.stats().outages

    assert [result.reason for result in results] == [Reason.RECORD_TOO_NEW, None] * 2
    assert "format 99" in results[0].message
    assert "Upgrade curtsy" in results[0].message
    assert (outages, caplog.records) == (0, [])
    assert site.count("/a", host=domain_of(url).partition(":")[0]) == 1


async def test_the_urls_of_such_a_host_stay_in_the_queue_of_a_crawl(site: Site, store: str, tmp_path: Path) -> None:
    """Issue 17, 1: the other hosts are crawled to the end, and the crawl says that the rest is due later"""
    site.page("/*", "x")
    url, others = site.url("/a"), [site.url("/a", host=OTHER), site.url("/b", host=OTHER)]
    async with AsyncClient(**given(store)) as first:
        assert (await first.fetch(url)).ok
    await grow_older(store, f"host:{domain_of(url)}")

    async with acrawl([url, *others], **given(store, job=tmp_path / "job")) as crawl:
        summary = await crawl.run()

    assert (summary.ended, summary.totals.pages, summary.queued) == ("later", 2, 1)
