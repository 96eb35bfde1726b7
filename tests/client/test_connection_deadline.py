"""Deadlines of requests that wait for one of the client's own connections."""

from __future__ import annotations

import asyncio
import time

from tests.client.fetching import UNPACED, client
from tests.support.bounds import ends_within
from tests.support.polling import until
from tests.support.site import Site, hang


async def test_a_deadline_longer_than_the_timeout_holds_while_all_connections_are_in_use(site: Site) -> None:
    """U5, N9: what waits for a connection is not sent after its deadline, nor does it end long after it"""
    site.on("/*", lambda visit: hang())
    quick = {**UNPACED, "clock": None, "max_in_flight": 1, "timeout": 1.0, "max_retries": 0, "respect_robots": False}

    async with client(**quick) as asking:
        first = asyncio.ensure_future(asking.fetch(site.url("/")))
        await until(lambda: site.count() == 1)
        began = time.monotonic()
        others = (asking.fetch(site.url("/", host=f"127.0.0.{number}"), deadline=1.5) for number in range(2, 6))
        with ends_within(2.5):
            results = await asyncio.gather(*others)
        await first

    assert not any(result.ok for result in results)
    assert all(visit.at - began < 2.0 for visit in site.journal)
