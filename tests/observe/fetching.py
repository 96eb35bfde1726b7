"""A process that fetches while somebody watches: `python -m tests.observe.fetching '{"store": …, "urls": […]}'`.

Each host has its URLs asked in turn, over and over, until the process is ended. With `seeds` a crawl runs
besides, the job "museum".
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import cycle
from pathlib import Path

from curtsy.client import AsyncClient
from curtsy.crawling.start import acrawl
from tests.observe.serving import environment, store_url
from tests.support.warm import Process

AGENT = "testbot/1.0 (+https://example.org/bot)"


async def go(store: str, urls: list[list[str]], pause: float, seeds: list[str]) -> None:
    """Fetch until somebody ends it."""

    async def crawl() -> None:
        async for _ in acrawl(seeds, job="museum", client=client, max_pages=10_000):
            pass

    async def one(of_host: list[str]) -> None:
        for url in cycle(of_host):
            result = await client.fetch(url)
            if not result.ok:
                await asyncio.sleep(0.05)  # a refusal comes at once, and is no reason to ask faster

    async with AsyncClient(
        store=store, cache=False, allow_private=True, user_agent=AGENT, global_qps=None, qps=None, pause_min=pause,
        pause_max=2 * pause, max_retries=0, max_requests_per_day=0, max_pages_per_day=0,
    ) as client:  # fmt: skip
        await asyncio.gather(*(one(each) for each in urls), *([crawl()] if seeds else []))


@contextmanager
def fetching(
    home: Path, urls: list[list[str]], *, pause: float = 0.02, seeds: Sequence[str] = ()
) -> Iterator[Process[bytes]]:
    """Have a process fetch until the end of the block."""
    task = json.dumps({"store": store_url(home), "urls": urls, "pause": pause, "seeds": seeds})
    with (home / "fetching.txt").open("wb") as err:
        process: Process[bytes] = Process(
            "tests.observe.fetching", task, text=False, cwd=home, env=environment(home), stderr=err
        )
    try:
        yield process
        assert process.poll() is None, f"it has ended by itself: {(home / 'fetching.txt').read_text()[-3000:]}"
    finally:
        process.kill()
        process.wait(60)


def main() -> None:
    asyncio.run(go(**json.loads(sys.argv[1])))


if __name__ == "__main__":
    main()
