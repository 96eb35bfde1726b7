"""Commands and counters: `curtsy status` and `curtsy cache ls` at scale, and the cost of counting a fetch.

    python -m benchmarks.commands [PART ...] [--quick]

The state file and the cache are written by the store and the cache themselves. The time of a command includes the start
of its process.
"""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.crawlers import AGENT
from benchmarks.limiter import ANSWERED, EVERYTHING
from benchmarks.measure import Heartbeat, cpu, homes, memory
from benchmarks.report import Report, run
from curtsy.client import AsyncClient, session_of
from curtsy.core.admission import admit
from curtsy.core.cache import Absent, Store, absorb
from curtsy.core.decision import Go
from curtsy.core.host import Host
from curtsy.core.record import FetchRecord
from curtsy.core.request import Headers, Request, Response
from curtsy.core.settlement import settle
from curtsy.core.time import Now
from curtsy.core.url import Url, parse_url
from curtsy.engine.counters import Counters
from curtsy.stores import open_store

BATCH = 1_000
BODY = 2_000
"""Bytes of a page in the large cache."""

LIMIT = 120.0
"""Maximum seconds of a command."""


def run_command(report: Report, words: list[str], folder: str, seconds: float = 1) -> None:
    """Report the seconds and the peak memory of a command of curtsy, over at most three rounds.

    Its goal is so many `seconds`.
    """
    name, found = f"curtsy {' '.join(words)}", [_run(words, folder)]
    while len(found) < 3 and found[-1][0] < 10:
        found.append(_run(words, folder))
    report.add(f"{name}, time", [taken for taken, _ in found], "s", at_most=seconds)
    report.add(f"{name}, peak of the memory", [peak for _, peak in found], "MB", at_most=100)


def _run(words: list[str], folder: str) -> tuple[float, float]:
    """Run a command, for LIMIT seconds at most; return its seconds, and the peak of its memory in MB."""
    began, peak = time.monotonic(), 0.0
    process = subprocess.Popen(
        [sys.executable, "-m", "curtsy", *words],
        env=os.environ | homes(folder),
        cwd=folder,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    while process.poll() is None:
        peak = max(peak, memory("VmHWM", process.pid))
        if time.monotonic() - began > LIMIT:
            process.kill()
        time.sleep(0.005)
    return time.monotonic() - began, peak / 2**20


def _request(host: Host | None, now: Now) -> tuple[Host, None]:
    """Change a record as one request does: admitted, answered, settled."""
    admitted, decision = admit(host, now, EVERYTHING, 0.5)
    assert isinstance(decision, Go)
    return settle(admitted, now, EVERYTHING, decision.lease, ANSWERED), None


def status(report: Report) -> None:
    """Report the figures of `curtsy status` over a state file of many hosts."""
    count = 2_000 if report.is_quick else 1_000_000
    report.title(f"state of {count:,} hosts")
    with tempfile.TemporaryDirectory() as folder:
        os.environ |= homes(folder)
        store, began = open_store(fallback=False), time.monotonic()
        for first in range(0, count, BATCH):
            numbers = range(first, min(first + BATCH, count))
            store.update_many([(f"host:site-{number}.org", _request) for number in numbers])
        store.close()
        report.add("written", time.monotonic() - began, "s")
        size = sum(file.stat().st_size for file in Path(folder).rglob("*.sqlite"))
        report.add("disk of a host", size / count, "bytes")
        run_command(report, ["status"], folder)


async def _keep(count: int, size: int) -> float:
    """Write pages to the default cache, limited to `size` bytes; return the longest stall in milliseconds."""
    chance, headers = random.Random(1), Headers([("Content-Type", "text/html"), ("Cache-Control", "max-age=3600")])
    async with AsyncClient(cache_size=size, user_agent=AGENT) as client, Heartbeat() as heart:
        cache = session_of(client).context.cache
        assert cache is not None
        for number in range(count):
            url = parse_url(f"https://www.site-{number % 1000}.example.org/page/{number}")
            assert isinstance(url, Url)
            reply = Response(200, headers, chance.randbytes(BODY))
            absorbed = absorb(Absent(), Request(url), reply, time.time())
            assert isinstance(absorbed, Store)
            cache.keep(absorbed.entry, absorbed.body)
            if number % 10 == 0:
                await asyncio.sleep(0)
    return heart.longest * 1e3


def cache(report: Report) -> None:
    """Report the longest stall while a large cache fills and evicts, and the figures of `curtsy cache ls`."""
    count = 1_000 if report.is_quick else 110_000
    report.title(f"default cache, {count:,} pages written, the last tenth above its limit")
    with tempfile.TemporaryDirectory() as folder:
        os.environ |= homes(folder)
        began = time.monotonic()
        stall = asyncio.run(_keep(count, count * 9 // 10 * (BODY + 400)))
        report.add("written", time.monotonic() - began, "s")
        report.add("longest stall", stall, "ms", at_most=50)
        run_command(report, ["cache", "ls", "--limit", "100"], folder)
        run_command(report, ["cache", "ls"], folder, 5)


def counters(report: Report) -> None:
    """Report the cost of counting a fetch."""
    fetches = 2_000 if report.is_quick else 50_000
    report.title("statistics")
    for hosts in (1, 10_000):
        records = [_record(number, number % hosts) for number in range(fetches)]

        def count(records: list[FetchRecord] = records) -> None:
            counted = Counters().count
            for each in records:
                counted(each)

        found = [cpu(count, 1) / fetches for _ in range(5)]
        report.add(f"count a fetch, {hosts:,} hosts", found, "µs", at_most=1)


def _record(number: int, host: int) -> FetchRecord:
    url = f"https://host-{host}.example/page/{number}"
    return FetchRecord(
        url, url, f"host-{host}.example", "GET", 200, None, 1, 0, 0.7, 1.2, 20_000, None, None, 150, 80, None,
        1_800_000_000.0 + number, 0.123,
    )  # fmt: skip


if __name__ == "__main__":
    run("commands", __doc__, {"status": status, "cache": cache, "counters": counters})
