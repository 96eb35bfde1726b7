"""Fetches: the CPU time of a polite fetch over bare aiohttp, and of a cache hit over other caches, in the same run.

    python -m benchmarks.fetch [PART ...] [--quick]

A site in a process of its own answers with 20 KB pages of five real kinds. Every URL is new. curtsy has all checks on
(robots.txt, gate, budget, breaker, statistics) and no pauses. "As it comes" is an `AsyncClient` without `store` and
`cache`: SQLite, and the default cache. Figures are CPU time of the client's process with all its threads, until all
pages are written. The candidates take turns in short rounds; a ratio is the median of the ratios of the rounds.

Hits are of pages that were fetched before, in the order of that, from a cache larger than a client keeps in memory:
each is read from its file. Scrapy's storage and policy are called without its downloader.

robots.txt costs what the first fetch of a new host takes more with it than without, less one further request.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from email.utils import formatdate
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import aiohttp

from benchmarks.crawlers import AGENT
from benchmarks.measure import Heartbeat, homes, is_installed, ratios
from benchmarks.report import Report, run
from benchmarks.site import Plan, Site
from curtsy.client import AsyncClient

HITS = 200
"""Hits of a round."""

WRITTEN = 0.2
"""Seconds after which a client has written its pages; no CPU time passes while it waits."""

AS_IT_COMES = "curtsy as it comes"
NOT_DEFAULT = "Scrapy, dbm"
"""Peer without a goal: its storage is not the default, and has neither a check nor a limit of its size."""

Fetch = Callable[[str], Awaitable[object]]


async def cost(fetch: Fetch, urls: list[str], at_once: int) -> tuple[float, float]:
    """Return the microseconds of CPU time of one fetch, and the longest stall in milliseconds."""
    waiting = iter(urls)

    async def worker() -> None:
        for url in waiting:
            await fetch(url)

    async with Heartbeat() as heart:
        began = time.process_time()
        await asyncio.gather(*(worker() for _ in range(at_once)))
        await asyncio.sleep(WRITTEN)
        spent = time.process_time() - began
    return spent / len(urls) * 1e6, heart.longest * 1e3


class Comparison:
    """Candidates that fetch in turns."""

    def __init__(self, candidates: dict[str, Fetch]) -> None:
        self.candidates = candidates
        self.costs: dict[str, list[float]] = {name: [] for name in candidates}
        """Microseconds of CPU time of one fetch, for each round."""
        self.stall = 0.0
        """Longest stall of curtsy in milliseconds."""

    async def round(self, urls_of: Callable[[], list[str]], at_once: int) -> None:
        """Let each candidate fetch the URLs that `urls_of` returns for it."""
        for name, fetch in self.candidates.items():
            spent, stall = await cost(fetch, urls_of(), at_once)
            self.costs[name].append(spent)
            if name.startswith("curtsy"):
                self.stall = max(self.stall, stall)

    def report(self, report: Report, unit: str) -> None:
        """Report the costs of all candidates, and the stall of ours."""
        for name, costs in self.costs.items():
            report.add(f"{name}, CPU a {unit}", costs, "µs")
        report.add("longest stall of curtsy", self.stall, "ms", at_most=50)


def client(**options: Any) -> AsyncClient:
    """Return a client with all checks and no pauses."""
    return AsyncClient(preset="own", user_agent=AGENT, allow_private=True, concurrency=16, **options)


@asynccontextmanager
async def bare_aiohttp() -> AsyncIterator[Fetch]:
    """Open a session of aiohttp without a cache."""
    async with aiohttp.ClientSession(headers={"User-Agent": AGENT}) as session:

        async def get(url: str) -> bytes:
            async with session.get(url) as answer:
                return await answer.read()

        yield get


async def compare(report: Report, site: str, at_once: int, count: int, rounds: int) -> None:
    """Report the cost of a fetch of a new URL, for each configuration."""
    async with (
        bare_aiohttp() as bare,
        client(store="memory:", cache=False) as memory,
        client(cache=False) as sqlite,
        client() as default,
    ):
        comparison = Comparison(
            {
                "aiohttp": bare,
                "curtsy in memory": memory.fetch,
                "curtsy, SQLite": sqlite.fetch,
                AS_IT_COMES: default.fetch,
            }
        )
        number = itertools.count()

        def new() -> list[str]:
            return [f"{site}new/{next(number)}" for _ in range(count)]

        for fetch in comparison.candidates.values():
            await cost(fetch, new()[:16], at_once)  # opens connections and files
        for _ in range(rounds):
            await comparison.round(new, at_once)
    comparison.report(report, "fetch")
    for name, goal in {"curtsy in memory": 1.0, "curtsy, SQLite": 1.3, AS_IT_COMES: 2.0}.items():
        found = ratios(comparison.costs[name], comparison.costs["aiohttp"])
        report.add(f"{name}, over bare aiohttp", found, "x", at_most=goal)


def fetches(report: Report, at_once: int) -> None:
    """Report the cost of fetches, so many at a time."""
    count, rounds = (40, 2) if report.is_quick else (400, 9)
    report.title("new URLs, one after another" if at_once == 1 else f"new URLs, {at_once} at a time")
    with tempfile.TemporaryDirectory() as folder, Site(Plan((1,))) as site:
        os.environ |= homes(folder)
        asyncio.run(compare(report, site.seeds[0], at_once, count, rounds))


# Caches of peers, each on a disk.


async def _hishel(stack: AsyncExitStack, folder: Path) -> Mapping[str, Fetch]:
    storage = import_module("hishel").AsyncSqliteStorage(database_path=str(folder / "hishel.db"))
    session = await stack.enter_async_context(import_module("hishel.httpx").AsyncCacheClient(storage=storage))
    return {"hishel, SQLite": session.get}


async def _aiohttp_client_cache(stack: AsyncExitStack, folder: Path) -> Mapping[str, Fetch]:
    library = import_module("aiohttp_client_cache")
    backend = library.SQLiteBackend(str(folder / "acc.sqlite"))
    session = await stack.enter_async_context(library.CachedSession(cache=backend))

    async def get(url: str) -> object:
        async with session.get(url) as answer:
            return await answer.read()

    return {"aiohttp-client-cache, SQLite": get}


async def _requests_cache(stack: AsyncExitStack, folder: Path) -> Mapping[str, Fetch]:
    library = import_module("requests_cache")
    session = stack.enter_context(library.CachedSession(str(folder / "requests"), backend="filesystem"))

    async def get(url: str) -> object:
        return session.get(url).content

    return {"requests-cache, files": get}


async def _scrapy(stack: AsyncExitStack, folder: Path) -> Mapping[str, Fetch]:
    """Return the storages of HTTPCACHE: files (its default) and dbm, with the policy that obeys Cache-Control."""
    library, cache = import_module("scrapy"), import_module("scrapy.extensions.httpcache")
    settings = import_module("scrapy.settings").Settings({"HTTPCACHE_DIR": str(folder / "scrapy")})
    bare = await stack.enter_async_context(bare_aiohttp())
    spider = import_module("scrapy.spiders").Spider("bench")
    spider.crawler = import_module("scrapy.utils.test").get_crawler(settings_dict={"HTTPCACHE_DIR": str(folder)})
    policy = cache.RFC2616Policy(settings)
    html = import_module("scrapy.http").HtmlResponse
    found: dict[str, Fetch] = {}
    for name, kind in {"files": cache.FilesystemCacheStorage, "dbm": cache.DbmCacheStorage}.items():
        storage = kind(settings)
        storage.open_spider(spider)
        stack.callback(storage.close_spider, spider)

        async def get(url: str, storage: Any = storage) -> object:
            request = library.Request(url)
            response = storage.retrieve_response(spider, request)
            if response is not None and policy.is_cached_response_fresh(response, request):
                return response
            fields = {"Cache-Control": "max-age=3600", "Date": formatdate(usegmt=True), "Content-Type": "text/html"}
            response = html(url, headers=fields, body=await bare(url))
            storage.store_response(spider, request, response)
            return response

        found[f"Scrapy, {name}"] = get
    return found


PEERS = {
    "hishel": _hishel,
    "requests-cache": _requests_cache,
    "aiohttp-client-cache": _aiohttp_client_cache,
    "scrapy": _scrapy,
}


async def compare_hits(report: Report, site: str, folder: Path, pages: int, rounds: int) -> None:
    """Report the cost of a fresh hit, for each of our caches and each peer."""
    urls = [f"{site}new/{number}" for number in range(pages)]
    async with AsyncExitStack() as stack:
        files = await stack.enter_async_context(client(store="memory:", cache=str(folder / "pages")))
        default = await stack.enter_async_context(client())
        candidates: dict[str, Fetch] = {"curtsy, cache of files": files.fetch, AS_IT_COMES: default.fetch}
        for name, opened in PEERS.items():
            if is_installed(name):
                candidates |= await opened(stack, folder)
        for fetch in candidates.values():
            await cost(fetch, urls, 16)  # fills the cache
        comparison = Comparison(candidates)
        for number in range(rounds):
            chosen = urls[number * HITS % pages :][:HITS]
            await comparison.round(chosen.copy, 1)
    comparison.report(report, "hit")
    for name, costs in comparison.costs.items():
        if not name.startswith("curtsy"):
            goal = None if name == NOT_DEFAULT else 5
            report.add(f"{name}, over {AS_IT_COMES}", ratios(costs, comparison.costs[AS_IT_COMES]), "x", at_least=goal)


def hits(report: Report) -> None:
    """Report the cost of a fresh hit from a cache larger than memory."""
    pages, rounds = (50, 2) if report.is_quick else (1000, 9)
    report.title(f"fresh hit, cache of {pages:,} pages")
    with tempfile.TemporaryDirectory() as folder, Site(Plan((1,))) as site:
        os.environ |= homes(folder)
        asyncio.run(compare_hits(report, site.seeds[0], Path(folder), pages, rounds))


async def robots_cost(seeds: list[str], folder: Path) -> float:
    """Return the microseconds of CPU time that robots.txt adds to the first fetch of a host, beyond its request."""
    first, further = dict[bool, float](), 0.0
    for respects in (True, False):
        store = f"sqlite:///{folder}/{respects}.sqlite"
        async with client(store=store, cache=False, respect_robots=respects) as fetching:
            await cost(fetching.fetch, seeds[:1], 1)  # opens files
            first[respects], _ = await cost(fetching.fetch, [f"{seed}new/{respects}/1" for seed in seeds[1:]], 16)
            further, _ = await cost(fetching.fetch, [f"{seed}new/{respects}/2" for seed in seeds[1:]], 16)
    return first[True] - first[False] - further


def robots(report: Report) -> None:
    """Report the cost of a small robots.txt, for new hosts, with the default store."""
    hosts, rounds = (20, 1) if report.is_quick else (1000, 5)
    report.title(f"first fetch of {hosts:,} new hosts, 16 at a time")
    costs: list[float] = []
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as folder, Site(Plan((3,) * hosts)) as site:
            os.environ |= homes(folder)
            costs.append(asyncio.run(robots_cost(site.seeds, Path(folder))))
    report.add("robots.txt, CPU beyond its request", costs, "µs", at_most=300)


if __name__ == "__main__":
    parts: dict[str, Callable[[Report], None]] = {
        "one": partial(fetches, at_once=1),
        "sixteen": partial(fetches, at_once=16),
        "hits": hits,
        "robots": robots,
    }
    run("fetch", __doc__, parts)
