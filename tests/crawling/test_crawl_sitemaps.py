"""Sitemaps in a crawl: how many are asked for, of whom, and at what cost. The site's journal judges."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import textwrap
import zlib
from pathlib import Path
from typing import Any

import pytest

from curtsy.crawling.start import acrawl
from tests.crawling.crawl_process import ROOT
from tests.crawling.web import QUICK, crawled, html
from tests.support.bounds import cpu_within
from tests.support.polling import until
from tests.support.site import Reply, Site, Visit, redirect


def sitemap_of(*urls: str) -> Reply:
    entries = "".join(f"<url><loc>{url}</loc></url>" for url in urls)
    return Reply(body=f"<urlset>{entries}</urlset>", headers={"Content-Type": "application/xml"})


def index_of(*urls: str) -> Reply:
    entries = "".join(f"<sitemap><loc>{url}</loc></sitemap>" for url in urls)
    return Reply(body=f"<sitemapindex>{entries}</sitemapindex>", headers={"Content-Type": "application/xml"})


def sitemaps_asked(site: Site) -> int:
    return sum(visit.path.startswith(("/map", "/sitemap")) for visit in site.visits())


@pytest.mark.parametrize("named_in", ["robots.txt", "index"])
async def test_a_limit_of_pages_ends_the_sitemaps_too(site: Site, named_in: str) -> None:
    """F01: with enough pages to ask for, no further sitemap is"""
    maps = [site.url(f"/map/{number}") for number in range(300)]
    if named_in == "index":
        site.reply("/sitemap.xml", index_of(*maps))
    else:
        site.robots("".join(f"Sitemap: {url}\n" for url in maps))
    site.on("/map/*", lambda visit: sitemap_of(*(site.url(f"/p{visit.path}/{each}") for each in range(20))))
    site.page("/*", html())

    paths, _ = await crawled(site, sitemaps=True, max_pages=5)

    assert len(paths) == 5
    assert sitemaps_asked(site) <= 2


async def test_sitemaps_are_read_one_by_one_until_there_are_enough_pages(site: Site) -> None:
    """F01: those that list nothing, or fail, are no reason to end early"""
    site.robots("".join(f"Sitemap: {site.url(f'/map/{number}')}\n" for number in range(40)))
    site.on("/map/*", lambda visit: sitemap_of(site.url(f"/p{visit.path}")) if visit.path[-1] in "37" else Reply(404))
    site.page("/*", html())

    paths, done = await crawled(site, sitemaps=True, max_pages=6)

    assert len(paths) == 6
    assert 20 <= sitemaps_asked(site) < 30
    assert done.summary is not None
    assert done.summary.ended == "max_pages"


@pytest.mark.parametrize("shape", ["list", "tree", "circle", "chain", "redirects"])
async def test_no_site_has_more_sitemaps_read_than_it_may(site: Site, shape: str) -> None:
    """F01: in whatever way they name one another"""
    site.page("/*", html())

    def answer(visit: Visit) -> Reply:
        name = visit.path.rpartition("/")[2]
        match shape:
            case "tree":
                return index_of(*(site.url(f"/map/{name}{each}") for each in range(10)))
            case "circle":
                return index_of(*(site.url(f"/map/{each}") for each in range(10)))
            case "chain":
                return index_of(site.url(f"/map/{name}0"))
            case "redirects":
                return redirect(site.url(f"/map/{name}0"))
            case _:
                return sitemap_of(site.url(f"/p/{name}"))

    site.on("/map/*", answer)
    site.robots("".join(f"Sitemap: {site.url(f'/map/{number}')}\n" for number in range(100)))

    _, done = await crawled(site, sitemaps=True, max_sitemaps=30)

    assert sitemaps_asked(site) <= 30
    assert done.summary is not None
    assert done.summary.ended == "done"


async def test_a_robots_txt_cannot_send_a_crawl_to_other_hosts(site: Site) -> None:
    """F01: whether it names many sitemaps on one of them or one on many"""
    here = site.url("/", host="127.0.0.1")
    lines = [site.url(f"/map/{number}", host="127.0.0.9") for number in range(50)]
    lines += [site.url("/map", host=f"127.0.0.{number}") for number in range(10, 60)]
    site.robots("".join(f"Sitemap: {url}\n" for url in [*lines, site.url("/own-map")]), host="127.0.0.1")
    site.on("/*map*", lambda visit: sitemap_of(site.url("/p")))
    site.on("/own-map", lambda visit: sitemap_of(site.url("/p")))
    site.page("/*", html())

    async with acrawl(here, **QUICK, sitemaps=True) as crawl:
        await crawl.run()

    elsewhere = [visit for visit in site.visits() if visit.host != "127.0.0.1"]
    assert len([visit for visit in elsewhere if visit.path != "/robots.txt"]) <= 3
    assert len(elsewhere) <= 6
    assert site.count("/own-map") == 1
    assert site.count("/p") == 1


async def test_a_robots_txt_with_very_many_sitemaps_holds_nobody_up(site: Site) -> None:
    """F01: 100,000 lines cost no more than those that are read"""
    site.robots("".join(f"Sitemap: /map/{number}\n" for number in range(20_000)))
    site.on("/map/*", lambda visit: sitemap_of(site.url("/p")))
    site.page("/*", html())

    with cpu_within(5):
        _, done = await crawled(site, sitemaps=True, max_sitemaps=20)

    assert done.totals.sitemaps == 20


async def test_the_number_of_sitemaps_holds_over_all_parts_of_a_job(site: Site, tmp_path: Path) -> None:
    """F01: stopped in the middle, it goes on, and has no second thousand"""
    site.on(
        "/map/*",
        lambda visit: index_of(*(site.url(f"{visit.path}{each}") for each in range(10))),
    )
    site.reply("/sitemap.xml", index_of(site.url("/map/")))
    site.page("/*", html())
    job = tmp_path / "job"

    for _ in range(4):
        async with acrawl(site.url("/"), **QUICK, sitemaps=True, max_sitemaps=60, job=job) as crawl:
            running = asyncio.ensure_future(crawl.run())
            seen = sitemaps_asked(site)
            await until(lambda: sitemaps_asked(site) >= seen + 15 or running.done())  # noqa: B023
            crawl.stop()
            await running
    _, done = await crawled(site, sitemaps=True, max_sitemaps=60, job=job)

    assert 50 <= len({visit.path for visit in site.visits() if "map" in visit.path}) <= 62
    assert done.summary is not None
    assert done.summary.ended == "done"


# What one costs.

PROGRAM = """
    import asyncio, json, sys
    from curtsy.crawling.start import acrawl

    url, options = sys.argv[1], json.loads(sys.argv[2])
    job = options.pop("job")  # None for a crawl in memory

    def peak():
        return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM")) / 1024

    async def main():
        async with acrawl(url + "warm", **options, job=job and job + "-warm") as crawl:
            await crawl.run()
        before = peak()
        async with acrawl(url, **options, job=job, sitemaps=True, max_pages=2) as crawl:
            summary = await crawl.run()
        print(json.dumps({"mib": peak() - before, "sitemaps": summary.totals.sitemaps, "queued": summary.queued}))

    asyncio.run(main())
"""


def cost(site: Site, job: Path | None, size: int) -> dict[str, Any]:
    """What a gzipped sitemap of 50,000 URLs of so many bytes costs, that has all the bytes that the standard allows."""
    base = site.url("/")
    url, filler = base + "x" * (size - len(base) - 6), "y" * (52_428_800 // 50_000 - size - 50)
    press = zlib.compressobj(1, wbits=31)
    body = press.compress(b"<urlset>")
    for number in range(50_000):
        body += press.compress(f"<url><loc>{url}{number:06}</loc><!--{filler}--></url>\n".encode())
    site.reply("/sitemap.xml", Reply(body=body + press.flush(), headers={"Content-Type": "application/gzip"}))
    site.page("/*", html())
    command = [sys.executable, "-c", textwrap.dedent(PROGRAM), base, json.dumps({**QUICK, "job": job and str(job)})]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="only Linux tells its peak")
@pytest.mark.parametrize(
    ("size", "is_job"),
    [(100, True), pytest.param(900, True, marks=pytest.mark.soak), pytest.param(900, False, marks=pytest.mark.soak)],
)
def test_the_largest_sitemap_is_read_in_little_memory(site: Site, tmp_path: Path, size: int, is_job: bool) -> None:
    """F01: 50 MB and 50,000 URLs, gzipped, however long its URLs are"""
    found = cost(site, tmp_path / "job" if is_job else None, size)

    assert found["sitemaps"] == 1
    assert found["queued"] > 49_000
    assert found["mib"] < (32 if size == 100 else 64)
