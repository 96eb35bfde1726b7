"""Crawlers: curtsy in several configurations, and Scrapy. Each has the same limits and a process of its own.

    python -m benchmarks.crawlers curtsy < job.json

All run on uvloop if it is installed, as the command `curtsy` does. Every crawler follows every link that robots.txt
allows. The process writes a JSON object with the longest stall of its event loop, as far as it is known.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
from importlib import import_module
from typing import Any

from benchmarks.measure import Heartbeat, event_loop

AGENT = "CurtsyBench/1.0 (+https://curtsy.example/)"


@dataclass(frozen=True, slots=True)
class Job:
    """Seeds and limits of a crawl."""

    seeds: list[str]
    pause: float
    """Seconds between two requests to a host."""

    per_host: int
    """Maximum requests to a host at the same time."""

    in_flight: int
    """Maximum requests at the same time."""

    options: dict[str, Any] = field(default_factory=dict)
    """Arguments of `acrawl()`, or settings of Scrapy."""

    def packed(self) -> str:
        """Return the job as text for another process."""
        return json.dumps(asdict(self))


def curtsy(job: Job) -> float:
    """Crawl with `acrawl()`, all checks on; return the longest stall in seconds."""
    acrawl = import_module("curtsy").acrawl

    async def crawl() -> float:
        async with Heartbeat() as heart:
            pages = acrawl(
                job.seeds,
                scope="host",
                max_in_flight=job.in_flight,
                preset="own",
                concurrency=job.per_host,
                delay=job.pause,
                allow_private=True,
                user_agent=AGENT,
                **job.options,
            )
            async for _ in pages:
                pass
        return heart.longest

    with asyncio.Runner(loop_factory=event_loop()) as runner:
        return runner.run(crawl())


def scrapy(job: Job) -> None:
    """Crawl with Scrapy and its own link extractor."""
    library = import_module("scrapy")
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
        "TWISTED_REACTOR": "twisted.internet.asyncioreactor.AsyncioSelectorReactor",
        "ASYNCIO_EVENT_LOOP": None if event_loop() is None else "uvloop.Loop",
        **job.options,
    }
    runner = import_module("scrapy.crawler").CrawlerProcess(settings=settings)
    runner.crawl(type("Spider", (library.Spider,), {"name": "bench", "start": start, "parse": parse}))
    runner.start()


def scrapy_with_curtsy(job: Job) -> None:
    """Crawl with Scrapy and curtsy's add-on."""
    limits = {"preset": "own", "concurrency": job.per_host, "delay": job.pause, "allow_private": True}
    addon = {"ADDONS": {"curtsy.adapters.scrapy.Addon": 300}, "CURTSY": limits | job.options}
    scrapy(replace(job, options=addon))


CRAWLERS: dict[str, Callable[[Job], float | None]] = {
    "curtsy": curtsy,
    "scrapy": scrapy,
    "scrapy-with-curtsy": scrapy_with_curtsy,
}


if __name__ == "__main__":
    stall = CRAWLERS[sys.argv[1]](Job(**json.load(sys.stdin)))
    print(json.dumps({"stall": stall}))
