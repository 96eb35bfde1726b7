"""Pages made to hurt, met by a crawl: they cost a bounded time, stall nothing, and no link is lost in silence."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import pytest

from curtsy.crawling.start import acrawl
from tests.crawling.costly import BOMBS
from tests.crawling.web import QUICK, crawled, graph, html
from tests.support.site import Reply, Site

BIG: dict[str, Any] = {"max_body": 64 << 20}


def typed(body: bytes | str) -> Reply:
    return Reply(body=body, headers={"Content-Type": "text/html"})


@pytest.mark.parametrize("name", ["title", "style", "script", "textarea"])
@pytest.mark.parametrize("kind", ["svg", "math"])
async def test_an_empty_element_in_a_drawing_swallows_no_page(site: Site, kind: str, name: str) -> None:
    """U12"""
    site.page("/", html("/a", text=f"<{kind}><{name}/></{kind}>"))
    graph(site, {"/a": ["/b"], "/b": []})

    await crawled(site)

    assert [path for path in site.paths() if path != "/robots.txt"] == ["/", "/a", "/b"]


async def test_links_of_a_template_are_not_followed(site: Site) -> None:
    """U12"""
    site.page("/", html("/a", text="<template><a href=/no><template></template><a href=/no></template>"))
    graph(site, {"/a": [], "/no": []})

    await crawled(site)

    assert site.count("/a") == 1
    assert site.count("/no") == 0


async def test_links_that_are_too_many_are_cut_and_told(
    site: Site, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """F32: in the page's record, in the summary and in the log"""
    site.page("/", html(*(f"/{number}" for number in range(100))))
    graph(site, {f"/{number}": [] for number in range(100)})

    async with acrawl(site.url("/"), max_links_per_page=30, outputs=tmp_path / "p.jsonl", **QUICK) as crawl:
        summary = await crawl.run()

    asked = {path for path in site.paths() if path != "/robots.txt"}
    assert asked == {"/", *(f"/{number}" for number in range(30))}
    assert summary.totals.left_out == {"too_many_links": 70}
    lines = map(json.loads, (tmp_path / "p.jsonl").read_text().splitlines())
    assert {line["url"]: line["links_cut"] for line in lines if line["links_cut"]} == {site.url("/"): 70}
    assert caplog.text.count("70 or more links were not taken") == 1


async def test_a_page_of_very_many_links_stalls_nothing(site: Site) -> None:
    """F32: between two turns of the event loop, its thread is busy for a moment only"""
    site.reply("/", typed(BOMBS["plain links"]()))
    longest, is_over = 0.0, False

    async def beat() -> None:
        nonlocal longest
        while not is_over:
            before = time.thread_time()
            await asyncio.sleep(0)
            longest = max(longest, time.thread_time() - before)

    beating = asyncio.ensure_future(beat())
    async with acrawl(site.url("/"), max_pages=1, **QUICK, **BIG) as crawl:
        summary = await crawl.run()
    is_over = True
    await beating

    assert summary.fetched == 1
    assert summary.totals.left_out["too_many_links"] > 300_000
    assert longest < 0.25


async def test_a_pattern_that_takes_long_for_long_urls_is_given_up_in_time(site: Site) -> None:
    """F32: the time of a pattern such as this grows with the square of a URL"""
    site.page("/", "".join(f"<a href=/{number}/{'x' * 1900}>" for number in range(3000)))
    began = time.process_time()

    async with acrawl(site.url("/"), match=r"/.*x.*y$", **QUICK) as crawl:
        summary = await crawl.run()

    assert time.process_time() - began < 4
    assert summary.totals.left_out["too_many_links"] > 0
    assert summary.totals.left_out["not_matched"] > 0


async def test_pages_that_wait_to_be_read_do_not_outlive_the_time_of_a_crawl(site: Site) -> None:
    """U17, F32: what could not be read in time goes back to the frontier"""
    body = BOMBS["capitals"]()
    paths = [f"/{number}" for number in range(12)]
    for path in paths:
        site.reply(path, typed(body))
    given = {**QUICK, **BIG, "max_time": 0.5, "text": "plain", "max_concurrent": 12}

    async with acrawl([site.url(path) for path in paths], **given) as crawl:
        summary = await crawl.run()

    assert summary.ended == "max_time"
    assert summary.queued == len(paths) - summary.fetched > 0
