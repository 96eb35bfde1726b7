"""A process that fetches, says so, and then waits to be ended: `python -m tests.observe.worker STORE URL …`."""

from __future__ import annotations

import asyncio
import sys

from tests.client.fetching import UNPACED, client


async def fetch() -> None:
    """Fetch, and tell how many pages came."""
    store, *urls = sys.argv[1:]
    async with client(store=store, clock=None, **UNPACED) as web:
        results = [await web.fetch(url) for url in urls]
        print(sum(result.ok for result in results), flush=True)
        await asyncio.to_thread(sys.stdin.read)


def main() -> None:
    asyncio.run(fetch())


if __name__ == "__main__":
    main()
