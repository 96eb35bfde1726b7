"""The program's limiter, clients and downloads share one rate, one breaker and one set of statistics (Q1, C15)."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.limits.test_program import run
from tests.support.site import Reply, Site
from tests.support.warm import Process

SETTINGS = {
    "CURTSY_ALLOW_PRIVATE": "true", "CURTSY_RESPECT_ROBOTS": "false", "CURTSY_USER_AGENT": "Test/1.0 (+https://t.org/)",
    "CURTSY_PAUSE_MIN": "0", "CURTSY_PAUSE_MAX": "0", "CURTSY_QPS": "none", "CURTSY_GLOBAL_QPS": "10",
}  # fmt: skip

ALL_WAYS = """
import asyncio, json, sys, time
from curtsy import AsyncClient, get_rate_limiter
from curtsy.limits import PDFDownloader

async def main(base, port):
    limiter, downloader = get_rate_limiter(), PDFDownloader()
    assert downloader.rate_limiter is limiter
    left = []
    async def acquire():
        assert await limiter.acquire("https://example.org/")
        left.append(time.monotonic())
    async with AsyncClient(cache=False) as client, downloader:
        await asyncio.gather(
            acquire(), acquire(),
            *(client.fetch(f"http://127.0.0.{base + n}:{port}/") for n in range(2)),
            *(downloader.download(f"http://127.0.0.{base + 2 + n}:{port}/", f"{base}-{n}.pdf") for n in range(2)),
        )
    await limiter.aclose()
    print(json.dumps(left))

asyncio.run(main(int(sys.argv[1]), int(sys.argv[2])))
"""

LOOK = """
import json
from curtsy import get_rate_limiter
limiter = get_rate_limiter()
print(json.dumps([limiter.get_stats(), limiter.get_all_stats()]))
"""


def begin(program: str, directory: Path, *arguments: str) -> Process[str]:
    home = {"HOME": str(directory), "XDG_STATE_HOME": str(directory), "XDG_CONFIG_HOME": str(directory)}
    return Process(
        "tests.support.program", program, *arguments, text=True, cwd=directory, env={**SETTINGS, **home},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def looked(directory: Path) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    code, out, err = run(LOOK, directory, **{**SETTINGS, "XDG_STATE_HOME": str(directory)})
    assert (code, err) == (0, "")
    totals, each = json.loads(out)
    return totals, each


def test_clients_downloads_and_acquire_share_one_rate_over_processes(site: Site, tmp_path: Path) -> None:
    """Q1, Q6, C15: judged by the site's journal; every process sees the same statistics afterwards."""
    for last in range(10, 18):
        site.page("/", "a page", host=f"127.0.0.{last}")
        site.url(host=f"127.0.0.{last}")
    port = site.url().rpartition(":")[2].strip("/")
    processes = [begin(ALL_WAYS, tmp_path, str(base), port) for base in (10, 14)]

    acquired = []
    for process in processes:
        out, err = process.communicate(120)
        assert (process.returncode, err) == (0, "")
        acquired += json.loads(out)
    left = sorted(acquired + [visit.at for visit in site.journal])

    assert len(left) == 12
    assert min(left[at + 6] - left[at] for at in range(6)) > 0.3, "six tenths, less what the way takes"
    assert left[-1] - left[0] > 0.9
    totals, each = looked(tmp_path)
    assert totals["total_requests"] == 12
    assert each["example.org"]["total_requests"] == 4
    assert {name: stats["total_requests"] for name, stats in each.items() if name != "example.org"} == {
        f"127.0.0.{last}:{port}": 1 for last in range(10, 18)
    }


BREAKER = """
import asyncio, json, sys
from curtsy import AsyncClient, get_rate_limiter

async def main(url):
    limiter = get_rate_limiter()
    async with AsyncClient(cache=False) as client:
        first = await client.fetch(url)
        granted = await limiter.acquire(url)
        stats = limiter.get_stats()
    print(json.dumps([first.status, granted, stats["circuit_breaker_trips"], stats["circuit_breakers_open"],
        stats["blocked_requests"], stats["total_requests"]]))

asyncio.run(main(sys.argv[1]))
"""


def test_a_block_that_a_client_meets_stops_acquire_too(site: Site, tmp_path: Path) -> None:
    """Q5, Q6, C15: one breaker, and its trip is in the limiter's statistics at once."""
    site.reply("/", Reply(403))

    process = begin(BREAKER, tmp_path, site.url("/"))
    out, err = process.communicate(120)

    assert (process.returncode, err) == (0, "")
    assert json.loads(out) == [403, False, 1, 1, 1, 2]
    assert site.count() == 1


VIEWS = """
import asyncio, json, sys
from curtsy import AsyncClient, get_rate_limiter

async def main(url):
    limiter = get_rate_limiter()
    async with AsyncClient(cache=False) as client:
        await client.fetch(url)
    print(json.dumps([
        {name: view.is_open for name, view in limiter.circuit_breakers.items()},
        {name: view.tokens_per_second for name, view in limiter.domain_buckets.items()},
    ]))

asyncio.run(main(sys.argv[1]))
"""


def test_the_views_show_the_domains_that_clients_have_asked(site: Site, tmp_path: Path) -> None:
    """Q6, C15: as the statistics do"""
    site.reply("/", Reply(403))
    domain = site.url().removeprefix("http://").strip("/")

    process = begin(VIEWS, tmp_path, site.url("/"))
    out, err = process.communicate(120)

    assert (process.returncode, err) == (0, "")
    assert json.loads(out) == [{domain: True}, {domain: None}]


RESET = """
import json
from curtsy import get_rate_limiter
limiter = get_rate_limiter(global_qps=%s)
for domain in ("a.org", "b.org"):
    limiter.allow(domain)
limiter.reset("a.org")
after_one = [limiter.get_stats("a.org").total_requests, limiter.get_stats().total_requests]
limiter.allow("a.org")
limiter.reset()
print(json.dumps([after_one, limiter.get_stats().total_requests, limiter.overall.qps]))
"""


@pytest.mark.parametrize(("asked", "holds"), [(3.0, 0.8), (0.5, 0.5)])
def test_statistics_can_be_reset_and_the_lower_global_rate_holds(tmp_path: Path, asked: float, holds: float) -> None:
    """L4, C26: a reset is for this limiter alone; others' counts stay in the store."""
    code, out, err = run(RESET % asked, tmp_path)

    assert (code, err) == (0, "")
    assert json.loads(out) == [[0, 1], 0, holds]
    _, out, _ = run(LOOK, tmp_path)
    assert json.loads(out)[0]["total_requests"] == 2
