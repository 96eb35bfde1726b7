"""A crawl of many machines: processes on one Redis server, some of them killed. The site's journal is the judge."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.crawling.crawl_process import CrawlProcess
from tests.crawling.web import html
from tests.support.redis_server import RedisServer
from tests.support.site import Reply, Site, Visit

HOSTS = [f"127.0.0.{number}" for number in range(1, 7)]
GAP = 0.25
AT_ONCE = 16
LATENESS = 0.1
"""Seconds by which a busy machine may notice a request too late: that makes the next gap look shorter."""


@pytest.fixture
def site() -> Iterator[Site]:
    with Site() as site:
        yield site


def build(site: Site, pages: int) -> list[str]:
    """Hosts with so many pages each, in a tree; the front pages."""

    def answer(visit: Visit) -> Reply:
        if visit.path == "/robots.txt":
            return Reply(404)
        number = int(visit.path.rpartition("/")[2])
        below = [each for each in (2 * number + 1, 2 * number + 2, 0) if each < pages]
        return Reply(body=html(*(f"/page/{each}" for each in below)), headers={"Content-Type": "text/html"})

    site.on("/*", answer)
    return [site.url("/page/0", host=host) for host in HOSTS]


def test_four_workers_are_one_crawl_though_two_are_killed_and_one_comes_late(site: Site, tmp_path: Path) -> None:
    """F53, Issue 5: nothing is lost, and pace, concurrency and budget hold over all of them"""
    pages = 14
    seeds = build(site, pages)
    with RedisServer() as server:
        options: dict[str, Any] = {
            "seeds": seeds, "store": server.url, "cache": False, "allow_private": True, "global_qps": None, "qps": None,
            "pause_min": GAP, "pause_max": GAP, "scope": "host", "max_requests_per_day": 60, "max_pages_per_day": 0,
            "lease": 3.0,
        }  # fmt: skip

        def options_of(worker: str) -> dict[str, Any]:
            return {**options, "job": str(tmp_path / worker / "shared")}

        victims = [CrawlProcess(**options_of(f"victim{number}")) for number in range(2)]
        others = [CrawlProcess(**options_of("steady"))]
        assert victims[0].kill_when(lambda: len(site.journal) > 20), victims[0].said
        others.append(CrawlProcess(**options_of("late")))
        assert victims[1].kill_when(lambda: len(site.journal) > 50), victims[1].said
        summaries = [each.summary() for each in others]

    seen = Counter((visit.host, visit.path) for visit in site.visits() if visit.path != "/robots.txt")
    assert len(seen) == pages * len(HOSTS), "some page was lost"
    assert sum(seen.values()) - len(seen) <= 2 * AT_ONCE
    assert {summary["ended"] for summary in summaries} == {"done"}
    assert all(summary["queued"] == 0 for summary in summaries)
    for host in HOSTS:
        visits = site.visits(host=host)
        assert len(visits) <= 60
        assert site.max_concurrency(host) == 1
        assert all(after.at - before.at >= GAP - LATENESS for before, after in pairwise(visits))
