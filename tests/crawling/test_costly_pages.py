"""Pages made to hurt, met by a crawl: they cost a bounded time, stall nothing, and no link is lost in silence."""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from pathlib import Path
from typing import Any, Self

import pytest

from curtsy.crawling.start import acrawl
from tests.crawling.costly import BOMBS
from tests.crawling.web import QUICK, crawled, graph, html
from tests.support.bounds import Slowness, cpu_within
from tests.support.site import Reply, Site
from tests.support.snapshot import Snapshot

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
    site: Site, tmp_path: Path, caplog: pytest.LogCaptureFixture, snapshot: Snapshot
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
    [told] = [record.getMessage() for record in caplog.records if record.name == "curtsy.crawl"]
    assert "70" in told.split()
    snapshot(told)


class Beat:
    """Measures the most CPU time that the loop's thread takes between two turns."""

    def __init__(self) -> None:
        self.longest = 0.0
        self._machine = Slowness()

    @property
    def slowness(self) -> float:
        """How many times longer than usual the machine needed meanwhile."""
        return self._machine.cpu

    async def __aenter__(self) -> Self:
        self._machine.__enter__()
        self._beating = asyncio.ensure_future(self._beat())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._beating.cancel()
        await asyncio.wait([self._beating])
        self._machine.__exit__()

    async def _beat(self) -> None:
        while True:
            before = time.thread_time()
            await asyncio.sleep(0)
            self.longest = max(self.longest, time.thread_time() - before)


async def test_a_page_of_very_many_links_stalls_nothing(site: Site) -> None:
    """F32: between two turns of the event loop, its thread is busy for a moment only"""
    site.reply("/", typed(BOMBS["plain links"]()))

    async with acrawl(site.url("/"), max_pages=1, **QUICK, **BIG) as crawl, Beat() as beat:
        summary = await crawl.run()

    assert summary.fetched == 1
    assert summary.totals.left_out["too_many_links"] > 300_000
    assert beat.longest < 0.25 * beat.slowness


async def test_a_page_with_a_long_base_stalls_nothing(site: Site) -> None:
    """F32: it is small enough to be read on the event loop"""
    links = "".join(f"<a href='é{number}'>" for number in range(1500))
    site.page("/", f"<base href='/{'é' * 900}/'>{links}")

    async with acrawl(site.url("/"), max_pages=1, **QUICK) as crawl, Beat() as beat:
        summary = await crawl.run()

    assert summary.totals.left_out["too_many_links"] > 1000
    assert beat.longest < 0.25 * beat.slowness


async def test_many_urls_for_which_robots_txt_takes_long_stall_nothing(site: Site) -> None:
    """F32: 20 verdicts at once, each of which looks for 100,000 pieces in a path of 1,600 octets"""
    letters = "abcdefghijklmnopqrstuvwxyz"
    patterns = (f"/*a*b*c*{a}*{b}*{c}*!" for a, b, c in itertools.product(letters, letters, letters))
    site.robots("User-agent: *\nDisallow: /*\nAllow: /$\n" + "".join(f"Disallow: {each}\n" for each in patterns))
    site.page("/", html(*(f"/{letters * 60}{number}" for number in range(20))))

    async with acrawl(site.url("/"), **QUICK) as crawl, Beat() as beat:
        summary = await crawl.run()

    assert summary.totals.skipped == {"robots_disallowed": 20}
    assert beat.longest < 0.25 * beat.slowness


async def test_a_pattern_that_takes_long_for_long_urls_is_given_up_in_time(site: Site) -> None:
    """F32: the time of a pattern such as this grows with the square of a URL"""
    site.page("/", "".join(f"<a href=/{number}/{'x' * 1900}>" for number in range(3000)))

    with cpu_within(4):
        async with acrawl(site.url("/"), match=r"/.*x.*y$", **QUICK) as crawl:
            summary = await crawl.run()

    assert summary.totals.left_out["too_many_links"] > 0
    assert summary.totals.left_out["not_matched"] > 0


async def test_pages_that_wait_to_be_read_do_not_outlive_the_time_of_a_crawl(site: Site) -> None:
    """U17, F32: what could not be read in time goes back to the frontier"""
    body = BOMBS["capitals"]()
    paths = [f"/{number}" for number in range(12)]
    for path in paths:
        site.reply(path, typed(body))
    given = {**QUICK, **BIG, "max_time": 0.5, "main_text": "plain", "max_in_flight": 12}

    async with acrawl([site.url(path) for path in paths], **given) as crawl:
        summary = await crawl.run()

    assert summary.ended == "max_time"
    assert summary.queued == len(paths) - summary.fetched > 0
