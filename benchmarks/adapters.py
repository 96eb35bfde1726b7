"""Adapters: the CPU time of a request of a library with curtsy over the bare library, in the same run.

    python -m benchmarks.adapters [PART ...] [--quick]

A site in a process of its own answers with 20 KB pages of five real kinds. Every URL is new. The adapters have all
checks on (robots.txt, gate, budget, breaker, statistics), no pauses, and their records in memory. Peers stand beside
them: what their users add to a library for pace, retries or a cache. Figures are CPU time of the process with all its
threads. The candidates take turns in short rounds; a ratio is the median of the ratios of the rounds.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import aiohttp
import httpx
import requests

import curtsy.adapters.aiohttp
import curtsy.adapters.httpx
import curtsy.adapters.requests
from benchmarks.crawlers import AGENT
from benchmarks.fetch import Comparison, Fetch, bare_aiohttp, cost
from benchmarks.measure import homes, is_installed, ratios
from benchmarks.report import Report, run
from benchmarks.site import Plan, Site

SETTINGS: Any = {"preset": "own", "allow_private": True, "concurrency": 16, "store": "memory:", "user_agent": AGENT}
HEADERS = {"User-Agent": AGENT}
CURTSY = "curtsy"
"""Name of the candidate with the adapter; the peers have their own."""

MOST = 120.0
"""Most microseconds that an adapter may add to a request."""


def of_requests(stack: AsyncExitStack, session: requests.Session) -> Fetch:
    """Return the function that gets a page by a session."""
    stack.enter_context(session)
    session.headers.update(HEADERS)

    async def get(url: str) -> object:
        return session.get(url).content

    return get


def of_httpx(stack: AsyncExitStack, client: httpx.Client) -> Fetch:
    """Return the function that gets a page by a blocking client."""
    stack.enter_context(client)

    async def get(url: str) -> object:
        return client.get(url).content  # noqa: ASYNC212 -- nothing else runs in this loop

    return get


@asynccontextmanager
async def with_requests(folder: Path) -> AsyncIterator[Mapping[str, Fetch]]:
    """Open sessions of requests."""
    async with AsyncExitStack() as stack:
        polite = requests.Session()
        curtsy.adapters.requests.mount(polite, **SETTINGS)
        found = {"requests": of_requests(stack, requests.Session()), CURTSY: of_requests(stack, polite)}
        if is_installed("requests-ratelimiter") and is_installed("requests-cache"):
            cached = import_module("requests_cache").CachedSession(str(folder / "requests"), backend="filesystem")
            adapter = import_module("requests_ratelimiter").LimiterAdapter(per_second=1_000_000, burst=1_000_000)
            cached.mount("http://", adapter)
            found["requests-ratelimiter and requests-cache"] = of_requests(stack, cached)
        yield found


@asynccontextmanager
async def with_httpx_in_threads(folder: Path) -> AsyncIterator[Mapping[str, Fetch]]:
    """Open blocking clients of httpx."""
    async with AsyncExitStack() as stack:
        polite = curtsy.adapters.httpx.Transport(**SETTINGS)
        yield {
            "httpx": of_httpx(stack, httpx.Client(headers=HEADERS)),
            CURTSY: of_httpx(stack, httpx.Client(headers=HEADERS, transport=polite)),
        }


@asynccontextmanager
async def with_httpx(folder: Path) -> AsyncIterator[Mapping[str, Fetch]]:
    """Open clients of httpx for tasks."""
    async with AsyncExitStack() as stack:
        polite = curtsy.adapters.httpx.AsyncTransport(**SETTINGS)
        bare = await stack.enter_async_context(httpx.AsyncClient(headers=HEADERS))
        own = await stack.enter_async_context(httpx.AsyncClient(headers=HEADERS, transport=polite))
        found: dict[str, Fetch] = {"httpx": bare.get, CURTSY: own.get}
        if is_installed("hishel"):
            storage = import_module("hishel").AsyncSqliteStorage(database_path=str(folder / "hishel.db"))
            client = import_module("hishel.httpx").AsyncCacheClient(storage=storage, headers=HEADERS)
            found["hishel"] = (await stack.enter_async_context(client)).get
        yield found


@asynccontextmanager
async def with_aiohttp(folder: Path) -> AsyncIterator[Mapping[str, Fetch]]:
    """Open sessions of aiohttp."""
    async with AsyncExitStack() as stack:
        polite = await stack.enter_async_context(curtsy.adapters.aiohttp.Middleware(**SETTINGS))
        session = await stack.enter_async_context(aiohttp.ClientSession(headers=HEADERS, middlewares=[polite]))

        async def get(url: str) -> object:
            async with session.get(url) as answer:
                return await answer.read()

        found: dict[str, Fetch] = {"aiohttp": await stack.enter_async_context(bare_aiohttp()), CURTSY: get}
        if is_installed("aiohttp-retry"):
            client = await stack.enter_async_context(import_module("aiohttp_retry").RetryClient(headers=HEADERS))

            async def retrying(url: str) -> object:
                async with client.get(url) as answer:
                    return await answer.read()

            found["aiohttp-retry"] = retrying
        yield found


LIBRARIES = {
    "httpx": (with_httpx, "httpx", 1.15),
    "httpx-threads": (with_httpx_in_threads, "httpx", 1.15),
    "requests": (with_requests, "requests", 1.3),
    "aiohttp": (with_aiohttp, "aiohttp", 2.0),
}
"""For each part: the candidates, the bare library among them, and the goal of the ratio."""


async def compare(report: Report, site: str, folder: Path, part: str, count: int, rounds: int) -> None:
    """Report the cost of a request of each candidate, and of the adapter over the bare library."""
    opened, library, goal = LIBRARIES[part]
    number = itertools.count()

    def new() -> list[str]:
        return [f"{site}new/{next(number)}" for _ in range(count)]

    async with opened(folder) as candidates:
        comparison = Comparison(dict(candidates))
        for fetch in comparison.candidates.values():
            await cost(fetch, new()[:16], 1)  # opens connections and files
        for _ in range(rounds):
            await comparison.round(new, 1)
    for name, costs in comparison.costs.items():
        report.add(f"{name}, CPU a request", costs, "µs")
    bare, ours = comparison.costs[library], comparison.costs[CURTSY]
    report.add(f"curtsy over bare {library}", ratios(ours, bare), "x", at_most=goal)
    added = [mine - its for mine, its in zip(ours, bare, strict=True)]
    report.add(f"curtsy adds to {library}", added, "µs", at_most=MOST)


def adapter(part: str) -> Callable[[Report], None]:
    """Return the part of the benchmark for a library."""

    def measure(report: Report) -> None:
        count, rounds = (30, 2) if report.is_quick else (200, 15)
        report.title(f"{part}: new URLs, one after another")
        with tempfile.TemporaryDirectory() as folder, Site(Plan((1,))) as site:
            os.environ |= homes(folder)
            asyncio.run(compare(report, site.seeds[0], Path(folder), part, count, rounds))

    return measure


if __name__ == "__main__":
    run("adapters", __doc__, {part: adapter(part) for part in LIBRARIES})
