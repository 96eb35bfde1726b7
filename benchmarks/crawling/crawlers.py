"""Crawlers: curtsy and its peers, each told the same manners, each run in a process of its own.

    python -m benchmarks.crawling.crawlers scrapy < job.json

What only one of them needs is imported by that one, so that memory is its own. None of them keeps the pages.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import asdict, dataclass
from datetime import timedelta
from importlib import import_module
from typing import Any
from urllib.parse import urljoin, urlsplit

AGENT = "CurtsyBench/1.0 (+https://curtsy.example/)"


@dataclass(frozen=True, slots=True)
class Job:
    """What a crawler is told: where to begin, and its manners. It follows every link that robots.txt allows."""

    seeds: list[str]
    pause: float
    """Seconds between two requests to a host."""

    per_host: int
    """Requests to a host at once."""

    in_flight: int
    """Requests in all at once."""

    def packed(self) -> str:
        """The job as text for another process."""
        return json.dumps(asdict(self))


def curtsy(job: Job) -> None:
    """Ours: all manners on, and the pages handed to whoever iterates."""
    acrawl = import_module("curtsy").acrawl

    async def run() -> None:
        pages = acrawl(
            job.seeds,
            scope="host",
            max_concurrent=job.in_flight,
            preset="own",
            concurrency=job.per_host,
            delay=job.pause,
            allow_private=True,
            store="memory:",
            cache=False,
            user_agent=AGENT,
        )
        async for _ in pages:
            pass

    asyncio.run(run())


def bare(job: Job) -> None:
    """A loop of aiohttp and selectolax without any manners but robots.txt: what is left when all else is."""
    aiohttp, parser = import_module("aiohttp"), import_module("selectolax.lexbor").LexborHTMLParser

    async def run() -> None:
        waiting, seen = deque(job.seeds), set(job.seeds)
        refused: dict[str, tuple[str, ...]] = {}
        under_way = 0

        async def rules(session: Any, origin: str) -> tuple[str, ...]:
            async with session.get(f"{origin}/robots.txt") as reply:
                lines = (await reply.text()).splitlines()
            return tuple(origin + line[9:].strip() for line in lines if line.startswith("Disallow:"))

        async def work(session: Any) -> None:
            nonlocal under_way
            while waiting or under_way:
                if not waiting:
                    await asyncio.sleep(0.001)
                    continue
                url = waiting.popleft()
                under_way += 1
                origin = "http://" + urlsplit(url).netloc
                if origin not in refused:
                    refused[origin] = await rules(session, origin)
                async with session.get(url) as reply:
                    body = await reply.read()
                for link in parser(body).css("a[href]"):
                    href = link.attributes["href"]
                    if origin + href in seen:
                        continue
                    found = urljoin(url, href).partition("#")[0]
                    if found not in seen and not found.startswith(refused[origin]):
                        seen.add(found)
                        waiting.append(found)
                under_way -= 1

        async with aiohttp.ClientSession(headers={"User-Agent": AGENT}) as session:
            await asyncio.gather(*(work(session) for _ in range(job.in_flight)))

    asyncio.run(run())


def scrapy(job: Job) -> None:
    """Scrapy with its own link extractor and queues in memory."""
    library = import_module("scrapy")
    process = import_module("scrapy.crawler").CrawlerProcess
    extractor = import_module("scrapy.linkextractors").LinkExtractor()

    async def start(self: Any) -> AsyncIterator[Any]:
        for url in job.seeds:
            yield library.Request(url)

    def parse(self: Any, response: Any) -> Iterator[Any]:
        for link in extractor.extract_links(response):
            yield library.Request(link.url)

    settings = {
        "USER_AGENT": AGENT,
        "ROBOTSTXT_OBEY": True,
        "DOWNLOAD_DELAY": job.pause,
        "DOWNLOAD_DELAY_JITTER": 0.0,
        "CONCURRENT_REQUESTS_PER_DOMAIN": job.per_host,
        "CONCURRENT_REQUESTS": job.in_flight,
        "COOKIES_ENABLED": False,
        "TELNETCONSOLE_ENABLED": False,
        "LOG_ENABLED": False,
    }
    runner = process(settings=settings)
    runner.crawl(type("Spider", (library.Spider,), {"name": "bench", "start": start, "parse": parse}))
    runner.start()


def crawlee(job: Job) -> None:
    """Crawlee's crawler on Parsel, with its own throttle where there is a pause. It cannot limit a host's requests."""
    library, crawlers = import_module("crawlee"), import_module("crawlee.crawlers")
    loaders, storages = import_module("crawlee.request_loaders"), import_module("crawlee.storages")
    logging.disable(logging.ERROR)

    async def run() -> None:
        memory = import_module("crawlee.storage_clients").MemoryStorageClient()
        library.service_locator.set_storage_client(memory)
        queue = await storages.RequestQueue.open()
        if job.per_host == 1:  # it opens a queue for each host, so only where manners ask for it
            queue = loaders.ThrottlingRequestManager(
                inner=queue, domains=job.seeds, request_manager_opener=storages.RequestQueue.open
            )
            for url in job.seeds if job.pause else ():
                queue.set_crawl_delay(url, job.pause)
        crawler = crawlers.ParselCrawler(
            request_manager=queue,
            respect_robots_txt_file=True,
            configure_logging=False,
            concurrency_settings=library.ConcurrencySettings(
                min_concurrency=job.in_flight, desired_concurrency=job.in_flight, max_concurrency=job.in_flight
            ),
            request_handler_timeout=timedelta(minutes=5),
        )

        async def follow(context: Any) -> None:
            await context.enqueue_links(strategy="same-hostname")

        crawler.router.default_handler(follow)
        await crawler.run(job.seeds)

    asyncio.run(run())


CRAWLERS: dict[str, Callable[[Job], None]] = {"curtsy": curtsy, "scrapy": scrapy, "crawlee": crawlee, "bare": bare}


if __name__ == "__main__":
    CRAWLERS[sys.argv[1]](Job(**json.load(sys.stdin)))
