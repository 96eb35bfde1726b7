"""The time of a crawl is up when it is up, whatever the crawl is doing just then."""

from __future__ import annotations

import asyncio
import gzip
import itertools
import os
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from curtsy.core.errors import NotWritten
from curtsy.crawling.crawler import OVERTIME
from curtsy.crawling.progress import CrawlSummary
from curtsy.crawling.start import acrawl
from tests.crawling.web import QUICK, html
from tests.support.bounds import ends_within
from tests.support.site import Reply, Site, dripping, hang

TIME = 0.4
SPARE = 3.0
"""Seconds by which a busy machine may be late."""

Phase = Callable[[Site, ExitStack], dict[str, Any]]
"""Sets the site up, and says with which options it is crawled."""


def blocked_seeds(site: Site, stack: ExitStack) -> dict[str, Any]:
    over = threading.Event()
    stack.callback(over.set)

    def endless() -> Iterator[str]:
        yield site.url("/")
        over.wait(120)

    return {"seeds": endless()}


def no_seed(site: Site, stack: ExitStack) -> dict[str, Any]:
    over = threading.Event()
    stack.callback(over.set)

    def endless() -> Iterator[str]:
        over.wait(120)
        yield site.url("/")

    return {"seeds": endless()}


def no_awaited_seed(site: Site, stack: ExitStack) -> dict[str, Any]:
    async def endless() -> AsyncIterator[str]:
        await asyncio.Event().wait()
        yield site.url("/")

    return {"seeds": endless()}


def endless_seeds(site: Site, stack: ExitStack) -> dict[str, Any]:
    return {"seeds": (site.url(f"/{number}") for number in itertools.count()), "max_in_flight": 2}


def hanging_robots(site: Site, stack: ExitStack) -> dict[str, Any]:
    site.reply("/robots.txt", hang())
    return {"preset": None, "qps": None, "pause_min": 0, "pause_max": 0}


def hanging_page(site: Site, stack: ExitStack) -> dict[str, Any]:
    site.reply("/", hang())
    return {}


def endless_sitemaps(site: Site, stack: ExitStack) -> dict[str, Any]:
    site.on("/map/*", lambda visit: Reply(body=index(*(site.url(f"{visit.path}{n}") for n in range(9))), wait=0.05))
    site.reply("/sitemap.xml", Reply(body=index(site.url("/map/"))))
    return {"sitemaps": True, "max_in_flight": 1}


def dripping_sitemap(site: Site, stack: ExitStack) -> dict[str, Any]:
    site.reply("/sitemap.xml", dripping(b"<urlset>" + b" " * 10_000, 0.01, 20))
    return {"sitemaps": True}


def large_sitemap(site: Site, stack: ExitStack) -> dict[str, Any]:
    entries = "".join(f"<url><loc>{site.url(f'/{number}')}</loc></url>" for number in range(50_000))
    site.reply("/sitemap.xml", Reply(body=gzip.compress(f"<urlset>{entries}</urlset>".encode(), 1)))
    return {"sitemaps": True}


def full_device(site: Site, stack: ExitStack) -> dict[str, Any]:
    return {"outputs": "jsonl:/dev/full"}


def full_pipe(site: Site, stack: ExitStack) -> dict[str, Any]:
    end, start = os.pipe()
    stack.callback(os.close, end)
    stack.callback(os.close, start)
    os.set_blocking(start, False)
    while True:
        try:
            os.write(start, b"x" * 4096)
        except BlockingIOError:
            break
    os.set_blocking(start, True)
    return {"outputs": f"jsonl:/dev/fd/{start}"}


def spent_budget(site: Site, stack: ExitStack) -> dict[str, Any]:
    return {"max_pages_per_day": 1, "max_requests_per_day": 3, "patience": 10_000_000.0}


def slow_pace(site: Site, stack: ExitStack) -> dict[str, Any]:
    return {"delay": 60.0}


def open_breaker(site: Site, stack: ExitStack) -> dict[str, Any]:
    site.reply("/*", Reply(503, headers={"Retry-After": "500"}))
    return {"preset": None}


def index(*urls: str) -> str:
    return f"<sitemapindex>{''.join(f'<sitemap><loc>{url}</loc></sitemap>' for url in urls)}</sitemapindex>"


PHASES: list[Phase] = [
    blocked_seeds, no_seed, no_awaited_seed, endless_seeds, hanging_robots, hanging_page, endless_sitemaps,
    dripping_sitemap, large_sitemap, full_device, full_pipe, spent_budget, slow_pace, open_breaker,
]  # fmt: skip


@pytest.mark.parametrize("phase", PHASES, ids=lambda phase: phase.__name__)
async def test_a_crawl_ends_when_its_time_is_up(site: Site, phase: Phase) -> None:
    """Issue 5: while it waits for seeds, sitemaps, robots.txt, a page, a full device, a reader, a budget or a host"""
    site.page("/*", html(*(f"/{number}" for number in range(20))))
    with ExitStack() as stack:
        given: dict[str, Any] = {"seeds": site.url("/"), **QUICK, **phase(site, stack)}
        with ends_within(TIME + OVERTIME + SPARE, work=2):
            summary, took = await timed(given)

    assert summary.ended in ("max_time", "later")
    assert took >= TIME


async def timed(given: dict[str, Any]) -> tuple[CrawlSummary, float]:
    began = time.monotonic()
    async with acrawl(given.pop("seeds"), max_time=TIME, **given) as crawl:
        try:
            await crawl.run()
        except NotWritten:
            assert "outputs" in given
    assert crawl.summary is not None
    return crawl.summary, time.monotonic() - began
