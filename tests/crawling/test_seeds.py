"""Seeds are read while a crawl runs: in little memory, from wherever they come, and under every limit."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
import textwrap
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from curtsy.core.errors import PolicyError
from curtsy.crawling import jobs
from curtsy.crawling.seeds import AHEAD, HEAD, Given, Seeds
from curtsy.crawling.start import acrawl
from tests.crawling.crawl_process import ROOT
from tests.crawling.web import QUICK, html
from tests.support.bounds import Slowness, ends_within
from tests.support.polling import PATIENCE, until
from tests.support.redis_server import RedisServer
from tests.support.site import Site


def links(site: Site, count: int) -> list[str]:
    return [site.url(f"/p/{number}") for number in range(count)]


def generated(urls: Iterable[str]) -> Iterator[str]:
    yield from urls


async def awaited(urls: Iterable[str]) -> AsyncIterator[str]:
    for url in urls:
        await asyncio.sleep(0)
        yield url


SOURCES: list[Callable[[list[str]], Given]] = [list, tuple, set, dict.fromkeys, generated, awaited]


@pytest.mark.parametrize("source", SOURCES, ids=["list", "tuple", "set", "dict", "generator", "async generator"])
@pytest.mark.parametrize("is_job", [False, True], ids=["memory", "job"])
async def test_seeds_are_fetched_once_each_wherever_they_come_from(
    site: Site, source: Callable[[list[str]], Given], is_job: bool, tmp_path: Path
) -> None:
    """Issue 5: all of them, and those that are listed twice once"""
    site.page("/*", html())
    urls = links(site, 60)
    job = tmp_path / "job" if is_job else None

    async with acrawl(source([*urls, *urls[:20]]), **QUICK, job=job) as crawl:
        summary = await crawl.run()

    assert (summary.ended, summary.fetched) == ("done", 60)
    assert sorted(visit.path for visit in site.visits() if visit.path != "/robots.txt") == sorted(
        url.removeprefix(site.url("")) for url in urls
    )


async def test_the_links_of_a_late_seed_are_in_scope_as_those_of_an_early_one(site: Site) -> None:
    """Issue 5: the scope is that of all seeds, however late they come"""
    first = [site.url("/early")] * (HEAD + 300)
    late = site.url("/start", host="127.0.0.7")
    site.page("/start", html("/found", "http://127.0.0.8/no"), host="127.0.0.7")
    site.page("/*", html())

    for scope in ("host", "site", "prefix"):
        site.clear()
        async with acrawl(generated([*first, late]), **QUICK, scope=scope) as crawl:
            summary = await crawl.run()

        assert site.paths("127.0.0.7")[1:] == ["/start", "/found"]
        assert summary.totals.left_out


async def test_a_page_is_fetched_while_seeds_are_still_to_come(site: Site) -> None:
    """Issue 5: and a generator that blocks holds up nobody"""
    site.page("/*", html())
    fetched = threading.Event()

    def slowly() -> Iterator[str]:
        yield site.url("/first")
        assert fetched.wait(60)
        yield site.url("/second")

    async with acrawl(slowly(), **QUICK) as crawl:
        paths = []
        async for page in crawl:
            paths.append(page.url.removeprefix(site.url("")))
            fetched.set()

    assert paths == ["/first", "/second"]


@pytest.mark.parametrize("end", ["max_pages", "max_time", "stop"])
async def test_every_limit_holds_while_a_generator_blocks(site: Site, end: str) -> None:
    """Issue 5"""
    site.page("/*", html())
    over = threading.Event()

    def endless() -> Iterator[str]:
        yield site.url("/first")
        over.wait(PATIENCE)

    limits: dict[str, dict[str, Any]] = {"max_pages": {"max_pages": 1}, "max_time": {"max_time": 0.3}, "stop": {}}
    with ends_within(10):
        async with acrawl(endless(), **QUICK, **limits[end]) as crawl:
            running = asyncio.ensure_future(crawl.run())
            if end == "stop":
                await until(lambda: site.count("/first"))
                crawl.stop()
            summary = await running
    over.set()

    assert summary.ended == {"stop": "stopped"}.get(end, end)


async def test_no_more_seeds_are_read_than_are_soon_wanted(site: Site) -> None:
    """Issue 5: an endless generator fills neither memory nor disk"""
    site.page("/*", html())
    read = 0

    def endless() -> Iterator[str]:
        nonlocal read
        while True:
            read += 1
            yield site.url(f"/{read}")

    async with acrawl(endless(), **QUICK, max_pages=5) as crawl:
        summary = await crawl.run()

    assert summary.fetched == 5
    assert read <= 20_000


def test_a_generator_is_read_no_further_than_a_little_ahead() -> None:
    read = 0

    def endless() -> Iterator[str]:
        nonlocal read
        while True:
            read += 1
            yield f"https://example.org/{read}"

    seeds = Seeds(endless())
    seeds.peek()

    assert len(seeds.head) == HEAD
    assert seeds.take(10) == [f"https://example.org/{number}" for number in range(1, 11)]
    assert read <= AHEAD + 12
    asyncio.run(seeds.close())


async def test_a_late_seed_that_is_no_url_is_skipped_and_told(site: Site) -> None:
    """U9: an early one is an error before anything is asked"""
    site.page("/*", html())
    urls = [site.url("/early")] * HEAD

    async with acrawl([*urls, "http://[", site.url("/last")], **QUICK) as crawl:
        summary = await crawl.run()

    assert summary.fetched == 2
    assert summary.totals.skipped == {"invalid_url": 1}
    assert summary.reasons == {"http://[": "invalid_url"}
    with pytest.raises(PolicyError, match=r"http://\["):
        acrawl(["http://[", *urls], **QUICK)


@pytest.mark.parametrize("source", [generated, awaited], ids=["generator", "async generator"])
async def test_what_goes_wrong_with_a_source_is_raised(site: Site, source: Any) -> None:
    """Issue 5"""
    site.page("/*", html())

    def wrong() -> Iterator[str]:
        yield site.url("/first")
        raise LookupError("the table is gone")

    for given, error, words in (
        (wrong(), LookupError, "the table is gone"),
        ([], PolicyError, "URL"),
        ([7], PolicyError, r"seeds\[0\]"),
    ):
        with pytest.raises(error, match=words):
            async with acrawl(source(given), **QUICK) as crawl:
                await crawl.run()


async def test_a_stream_of_seeds_of_another_job_is_refused(site: Site, tmp_path: Path) -> None:
    """Issue 5, point 4: before anything is asked"""
    site.page("/*", html())
    job = tmp_path / "job"
    async with acrawl(generated(links(site, 2)), **QUICK, job=job) as crawl:
        await crawl.run()
    site.clear()

    async with acrawl(generated([site.url("/", host="127.0.0.2")]), **QUICK, job=job) as crawl:
        with pytest.raises(PolicyError, match=re.escape(site.url("/", host="127.0.0.2"))):
            await crawl.run()

    assert site.count() == 0
    assert len(jobs.look(job).seeds) == 2


# What it costs.

PROGRAM = """
    import asyncio, json, sys, time
    from curtsy.crawling.start import acrawl

    urls, options = sys.argv[1], json.loads(sys.argv[2])
    limits, count = options.pop("limits"), options.pop("count")

    def peak():
        return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM")) / 1024

    async def main():
        warm = {"job": limits["job"] + "-warm"} if "job" in limits else {}
        async with acrawl(urls + "warm", **options, max_pages=1, **warm) as crawl:
            await crawl.run()
        before, began, cpu, first = peak(), time.monotonic(), time.process_time(), None
        async with acrawl((f"{urls}{number}" for number in range(count)), **options, **limits) as crawl:
            async for page in crawl:
                first = first or time.process_time() - cpu
        took = time.monotonic() - began
        print(json.dumps({"mib": peak() - before, "first": first, "took": took, "ended": crawl.summary.ended}))

    asyncio.run(main())
"""


def cost(site: Site, count: int, **limits: Any) -> dict[str, Any]:
    site.page("/*", html())
    options = {**QUICK, "limits": limits, "count": count}
    command = [sys.executable, "-c", textwrap.dedent(PROGRAM), site.url("/p/"), json.dumps(options)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


linux = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="only Linux tells its peak")


@linux
@pytest.mark.alone
@pytest.mark.parametrize("is_job", [False, True], ids=["memory", "job"])
def test_very_many_seeds_cost_little_before_the_first_page(site: Site, tmp_path: Path, is_job: bool) -> None:
    """Issue 5: seconds of CPU time, for the machine may be busy"""
    job = {"job": str(tmp_path / "job")} if is_job else {}

    with Slowness() as machine:
        found = cost(site, 100_000, max_time=0.5, **job)

    assert found["ended"] == "max_time"
    assert found["first"] < 1.0 * machine.cpu
    assert found["took"] < 10 * machine.wall
    assert found["mib"] < 32


@linux
@pytest.mark.soak
@pytest.mark.timeout(600)
@pytest.mark.parametrize("is_job", [False, True], ids=["memory", "job"])
def test_a_million_seeds(site: Site, tmp_path: Path, is_job: bool) -> None:
    """Issue 5"""
    job = {"job": str(tmp_path / "job")} if is_job else {}

    found = cost(site, 1_000_000, max_time=60.0, **job)

    assert found["ended"] == "max_time"
    assert found["first"] < 2.0
    assert found["mib"] < 64


async def test_a_shared_job_reads_its_seeds_while_it_runs_too(site: Site, server: RedisServer, tmp_path: Path) -> None:
    """Issue 5: two that are given the same ones fetch each once between them"""
    site.page("/*", html())
    given: dict[str, Any] = {**QUICK, "store": server.url, "scope": "host"}
    urls = links(site, 400)

    async with (
        acrawl(generated(urls), **given, job=tmp_path / "a" / "seeds", max_pages=60) as one,
        acrawl(awaited(urls), **given, job=tmp_path / "b" / "seeds", max_pages=60) as other,
    ):
        await asyncio.gather(one.run(), other.run())

    paths = [visit.path for visit in site.visits() if visit.path != "/robots.txt"]
    assert len(paths) == len(set(paths)) >= 60
