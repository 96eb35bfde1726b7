"""Frontier: the memory and disk of waiting URLs, and how many are added, claimed and ended per second.

    python -m benchmarks.frontier [PART ...] [--quick]

URLs of about 60 characters over 50,000 hosts, added 20 at a time as the links of a page, 15 of them on its own host.
Each case runs in a process of its own. The memory of a frontier is the growth of the process while all are added, with
the pages that SQLite holds. That of a URL is the growth after the first fifth, when all caches are full: what another
URL costs. Over all URLs, the whole process is counted, with the interpreter, the hosts and the caches. For the frontier
on Redis the memory is that of the server.
"""

from __future__ import annotations

import asyncio
import gc
import random
import tempfile
import time
from collections.abc import Iterable, Iterator
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Any

from benchmarks.measure import in_process, is_installed, memory, redis_server
from benchmarks.report import Report, run
from curtsy.crawling.frontier.local import LocalFrontier
from curtsy.crawling.frontier.protocol import AsyncFrontier, Claimed, Done, Ending, Found

HOSTS = 50_000
PAGE = 20
"""Links of a page."""


def pages(urls: int) -> Iterator[Found]:
    """Yield the links of pages, over all hosts in random order."""
    chance = random.Random(7)
    order = [number % HOSTS for number in range(urls // PAGE)]
    chance.shuffle(order)
    for number, host in enumerate(order):
        places = [host] * 15 + [chance.randrange(HOSTS) for _ in range(PAGE - 15)]
        links = [
            f"https://www.host{at}.example.org/2026/11/item-{number}-{each:03}.html" for each, at in enumerate(places)
        ]
        yield Found(links, depth=1, parent=f"https://www.host{host}.example.org/2026/list-{number}")


async def fill(frontier: AsyncFrontier, links: Iterable[Found]) -> float:
    """Add the links of pages; return how many per second."""
    spent, urls = 0.0, 0
    for found in links:
        began = time.perf_counter()
        await frontier.add(found)
        spent += time.perf_counter() - began
        urls += len(found.urls)
    return urls / spent


async def drain(frontier: AsyncFrontier, limit: int, batch: int) -> float:
    """Claim and end URLs, `batch` at a time; return how many per second."""
    began, count = time.perf_counter(), 0
    while count < limit and (claims := await frontier.claim(batch)):
        await frontier.conclude([Ending(claimed, Done()) for claimed in claims])
        count += len(claims)
    return count / (time.perf_counter() - began)


async def claim(frontier: AsyncFrontier, limit: int) -> float:
    """Claim URLs, 100 at a time; return how many per second. Their hosts are free again afterwards."""
    began, claimed = time.perf_counter(), list[Claimed]()
    while len(claimed) < limit and (claims := await frontier.claim(100)):
        claimed += claims
    seconds = time.perf_counter() - began
    await frontier.conclude([Ending(each, Done()) for each in claimed])
    return len(claimed) / seconds


async def local_figures(path: Path | None, urls: int) -> dict[str, float]:
    """Return the figures of a frontier in a file, or in memory."""
    found: dict[str, float] = {}
    frontier = LocalFrontier(path)
    gc.collect()
    before = memory("VmRSS")
    links = pages(urls)
    await fill(frontier, islice(links, urls // 5 // PAGE))
    filled = memory("VmRSS")
    found["added"] = await fill(frontier, links)
    gc.collect()
    found["memory"] = (memory("VmRSS") - before) / 2**20
    found["of a URL"] = (memory("VmRSS") - filled) / (urls * 4 // 5)
    found["in all"] = memory("VmRSS") / urls
    if path is not None:
        found["disk"] = sum(file.stat().st_size for file in path.parent.iterdir()) / urls
    found["claimed"] = await claim(frontier, urls // 10)
    found["ended"] = await drain(frontier, urls // 10, 16)
    await frontier.close()
    found["peak"] = memory("VmHWM") / 2**20
    return found


def measure_local(is_durable: bool, urls: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        return asyncio.run(local_figures(Path(folder, "frontier.sqlite") if is_durable else None, urls))


def local(report: Report) -> None:
    """Report the figures of the frontier of one process, as a job and in memory."""
    urls = 10_000 if report.is_quick else 1_000_000
    for is_durable in (True, False):
        report.title(f"{urls:,} URLs over {HOSTS:,} hosts, {'SQLite' if is_durable else 'memory'}")
        found = in_process(measure_local, is_durable, urls)
        # The goals are the figures of the version before.
        report.add("memory", found["memory"], "MB")
        report.add("memory of a URL", found["of a URL"], "bytes", at_most=12 if is_durable else None)
        report.add("memory of the whole process, over its URLs", found["in all"], "bytes")
        report.add("peak of the process", found["peak"], "MB", at_most=150 if is_durable else None)
        if is_durable:
            report.add("disk of a URL", found["disk"], "bytes", at_most=107)
        report.add("added, 20 at a time", found["added"], "URLs/s")
        report.add("claimed, 100 at a time", found["claimed"], "URLs/s", at_least=57_600 if is_durable else None)
        report.add("claimed and ended, 16 at a time", found["ended"], "URLs/s")


async def shared_figures(url: str, client: Any, urls: int) -> dict[str, float]:
    """Return the figures of a frontier on a Redis server."""
    frontier = import_module("curtsy.crawling.frontier.redis").RedisFrontier(url, "bench", lease=3600.0, timeout=30.0)
    await frontier.check()
    before = client.info("memory")["used_memory"]
    found = {"added": await fill(frontier, pages(urls))}
    found["memory"] = (client.info("memory")["used_memory"] - before) / urls
    found["seen"] = sum(client.memory_usage(key) for key in client.scan_iter("*:seen:*", count=10_000)) / urls
    found["ended"] = await drain(frontier, urls // 10, 100)
    await frontier.close()
    return found


def shared(report: Report) -> None:
    """Report the figures of the frontier on a Redis server, with one worker."""
    if not (is_installed("redis-server") and is_installed("redis")):
        return
    urls = 5_000 if report.is_quick else 200_000
    report.title(f"{urls:,} URLs over {HOSTS:,} hosts, Redis")
    with redis_server() as url, import_module("redis").Redis.from_url(url, socket_timeout=60) as client:
        found = asyncio.run(shared_figures(url, client, urls))
    report.add("memory of a URL", found["memory"], "bytes")
    report.add("memory of a URL that was ever seen", found["seen"], "bytes", at_most=10)
    report.add("added, 20 at a time", found["added"], "URLs/s")
    report.add("claimed and ended, 100 at a time", found["ended"], "URLs/s")


async def mean_turn(path: Path, large: int) -> float:
    """Return the mean position in the order of claims of 10,000 small hosts, beside one with `large` URLs."""
    frontier = LocalFrontier(path)
    for first in range(0, large, 10_000):
        numbers = range(first, min(first + 10_000, large))
        await frontier.add(Found([f"https://big.example.org/2026/articles/item-{each:07}.html" for each in numbers]))
    await frontier.add(
        Found([f"https://www.host{number}.example.org/{each}" for number in range(10_000) for each in range(3)])
    )
    turns = []
    for number in range(10_001):
        claims = await frontier.claim()
        if claims and claims[0].host != "big.example.org":
            turns.append(number)
    await frontier.close()
    return sum(turns) / len(turns)


def skewed(report: Report) -> None:
    """Report whether small hosts wait longer beside a very large one (F61)."""
    large = 10_000 if report.is_quick else 1_000_000
    report.title(f"10,000 small hosts beside one of {large:,} URLs, SQLite")
    with tempfile.TemporaryDirectory() as folder:
        alone = asyncio.run(mean_turn(Path(folder, "alone.sqlite"), 0))
        beside = asyncio.run(mean_turn(Path(folder, "beside.sqlite"), large))
    report.add("mean turn of the small hosts, over that without the large one", beside / alone, "x", at_most=1.05)


if __name__ == "__main__":
    run("frontier", __doc__, {"local": local, "shared": shared, "skewed": skewed})
