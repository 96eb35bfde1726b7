"""Processes that fetch at once: `python -m tests.client.worker '{"settings": …, "urls": [[…], […]]}'`.

One process for each list of URLs, forked when everything is imported, so that all begin together. Each has a client of
its own or, with `"inherited": true`, the one that was made before the fork; each writes a line of JSON, its results, to
standard output.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from typing import Any

from curtsy.client import AsyncClient


async def fetch_all(client: AsyncClient, urls: list[str], max_in_flight: int) -> list[dict[str, Any]]:
    """What came of each URL."""
    async with client:
        return [
            {"url": result.url, "ok": result.ok, "reason": result.reason, "status": result.status}
            async for result in client.fetch_many(urls, max_in_flight=max_in_flight)
        ]


def main() -> None:
    """Fork, fetch, tell."""
    task = json.loads(sys.argv[1])
    client = AsyncClient(**task["settings"]) if task.get("inherited") else None
    children = []
    for urls in task["urls"]:
        child = os.fork()
        if not child:
            results = asyncio.run(fetch_all(client or AsyncClient(**task["settings"]), urls, task["max_in_flight"]))
            os.write(1, json.dumps(results).encode() + b"\n")
            os._exit(0)
        children.append(child)
    failed = [child for child in children if os.waitpid(child, 0)[1]]
    sys.exit(f"{len(failed)} processes failed" if failed else 0)


if __name__ == "__main__":
    main()
