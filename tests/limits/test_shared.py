"""One limiter over several processes (Q12, B7), and a store that does not answer (B8)."""

from __future__ import annotations

import asyncio
import json
import logging
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from curtsy.core.amendment import Amendment, CrawlDelay, Override, Pause
from curtsy.core.errors import (
    LimiterClosed,
    Reason,
    Refused,
    RefusedByBudget,
    RefusedByPolicy,
    RefusedByRobots,
    WaitTimeout,
)
from curtsy.core.policy import LimitConfig, Policies, Policy
from curtsy.core.time import span
from curtsy.limits import RateLimiter
from curtsy.stores import open_store
from curtsy.testing import FakeClock
from tests.limits.asking import DOMAIN
from tests.limits.conftest import Made, Told
from tests.support.ending import ends_with_test
from tests.support.leap import LeapAlarm
from tests.support.polling import until
from tests.support.redis_server import RedisServer, redis_available
from tests.support.said import missing
from tests.support.snapshot import Snapshot

WORKER = """
import asyncio, json, sys, time
from curtsy.core.policy import LimitConfig
from curtsy.limits import RateLimiter


async def main():
    limiter = RateLimiter(LimitConfig(40.0, 1), store=sys.argv[1], global_qps=100.0)
    limiter.allow("ready.org")
    await limiter.wait("ready.org")
    print("ready", flush=True)
    sys.stdin.readline()
    began = time.monotonic()
    for _ in range(10):
        await limiter.wait("example.org")
    waited = time.monotonic()
    for number in range(10):
        assert await limiter.acquire(f"https://{sys.argv[2]}-{number}.org/")
    acquired = time.monotonic()
    if sys.argv[2] == "0":
        limiter.record_failure("https://blocked.org/", 403)
    print(json.dumps([began, waited, acquired]), flush=True)
    sys.stdin.readline()
    refused = not await limiter.acquire("https://blocked.org/")
    stats = limiter.get_stats()
    print(json.dumps([refused, stats.circuit_breakers_open]), flush=True)
    await limiter.aclose()


asyncio.run(main())
"""


@pytest.fixture(params=["sqlite", "redis"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'state.sqlite'}"
        return
    if reason := redis_available():
        pytest.skip(reason)
    with RedisServer() as server:
        yield server.url


def test_two_processes_share_every_rate_and_every_breaker(url: str) -> None:
    """Q12, B7, L1: twenty waits at 40 a second over both, twenty acquires at 100 over both, and one breaker."""
    workers = [
        ends_with_test(
            subprocess.Popen(
                [sys.executable, "-W", "always", "-c", WORKER, url, str(number)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
        for number in range(2)
    ]

    def heard(worker: subprocess.Popen[str]) -> str:
        assert worker.stdout is not None
        return worker.stdout.readline()

    def go(worker: subprocess.Popen[str]) -> None:
        assert worker.stdin is not None
        worker.stdin.write("go\n")
        worker.stdin.flush()

    assert [heard(worker) for worker in workers] == ["ready\n"] * 2
    began = time.monotonic()
    for worker in workers:
        go(worker)
    times: list[list[float]] = [json.loads(heard(worker)) for worker in workers]
    for worker in workers:
        go(worker)
    ends: list[list[Any]] = [json.loads(heard(worker)) for worker in workers]
    complaints = [worker.communicate(timeout=120)[1] for worker in workers]

    assert max(waited for _, waited, _ in times) - began >= 19 / 40
    assert max(acquired for _, _, acquired in times) - min(waited for _, waited, _ in times) >= 19 / 100 - 0.05
    assert ends[1][0] is True
    assert ends[1][1] == 1
    assert complaints == ["", ""]


async def test_closing_lets_go_of_a_store_that_it_opened(tmp_path: Path) -> None:
    """U8: and only of such a one; idempotent."""
    url = f"sqlite:///{tmp_path / 'state.sqlite'}"
    limiter = RateLimiter(store=url)
    await limiter.wait("example.org")
    limiter.wait_blocking("example.net")

    await limiter.aclose()
    await limiter.aclose()

    again = RateLimiter(LimitConfig(0.01, 1), store=url)
    assert not again.allow("example.org")
    await again.aclose()


@pytest.mark.parametrize("url", ["memory:", "memory://", "MEMORY:", "memory:x"])
async def test_tasks_and_threads_have_one_memory_however_its_url_is_written(url: str) -> None:
    """Q12, L9"""
    limiter = RateLimiter(LimitConfig(0.01, 1), store=url)

    await limiter.wait(DOMAIN)
    limiter.record_failure("https://example.net/", 403)

    assert not limiter.allow(DOMAIN)
    assert not await limiter.acquire("https://example.net/")
    await limiter.aclose()


async def test_the_largest_burst_can_be_kept(url: str) -> None:
    """L6, Q12"""
    limiter = RateLimiter(LimitConfig(1.0, 10**12), store=url)

    assert limiter.allow_n(DOMAIN, 10**12)
    await limiter.wait_n("example.net", 10**12)

    assert not limiter.allow(DOMAIN)
    with pytest.raises(WaitTimeout):
        await limiter.wait_n(DOMAIN, 10**12, timeout=1.0)
    await limiter.aclose()


# What others have said in a shared record


@pytest.mark.parametrize(
    ("change", "kind", "reason", "retry_after", "data"),
    [
        pytest.param(Pause(60), RefusedByPolicy, Reason.PAUSED, 60.0, ["1 min"], id="paused"),
        pytest.param(
            CrawlDelay(1000, "https://example.org"),
            RefusedByRobots,
            Reason.CRAWL_DELAY_TOO_LONG,
            None,
            ["robots.txt", "max_crawl_delay", "300 s"],
            id="crawl delay",
        ),
    ],
)
async def test_a_wait_that_is_refused_says_why(
    made: Made, change: Amendment, kind: type[Refused], reason: Reason, retry_after: float | None, data: list[str]
) -> None:
    """Q12, conventions: it is not closed"""
    limiter = made()
    one = limiter.domain(DOMAIN)
    await limiter.gate.amend(one.key, one.policy, change)

    with pytest.raises(kind) as caught:
        await limiter.wait(DOMAIN)

    assert (caught.value.reason, caught.value.retry_after) == (reason, retry_after)
    assert missing(str(caught.value), DOMAIN, *data) == []
    assert not limiter.allow(DOMAIN)


async def test_a_wait_for_a_day_that_is_spent_says_so(made: Made, snapshot: Snapshot) -> None:
    """Q12, B2: a limit of the record's own, which another hand has put there"""
    limiter = made(LimitConfig(10.0, 5))
    one = limiter.domain(DOMAIN)
    await limiter.gate.amend(one.key, one.policy, Override((("max_requests_per_day", 1),)))
    await limiter.wait(DOMAIN)

    with pytest.raises(RefusedByBudget, match=DOMAIN) as it:
        await limiter.wait_n(DOMAIN, 2)

    assert it.value.reason is Reason.DOMAIN_BUDGET_EXCEEDED
    assert it.value.retry_after is not None
    how_long = span(it.value.retry_after)
    assert how_long in str(it.value)
    snapshot(str(it.value).replace(how_long, "…"))


async def test_a_crawl_delay_that_the_policy_allows_is_waited_for(made: Made) -> None:
    """R8, U9"""
    limiter = made(policies=Policies(Policy(max_crawl_delay=2000)))
    one = limiter.domain(DOMAIN)

    await limiter.gate.amend(one.key, one.policy, CrawlDelay(1000, "https://example.org"))

    await limiter.wait(DOMAIN)


# The end, and what is told meanwhile


async def test_those_who_wait_for_a_file_are_told_of_the_end_before_it_is_closed(tmp_path: Path) -> None:
    """U8: wherever on their way they are"""
    for turns in range(6):
        limiter = RateLimiter(LimitConfig(5.0, 1), store=f"sqlite:///{tmp_path / f'{turns}.sqlite'}")
        waiting = [asyncio.ensure_future(limiter.wait(f"{number % 3}.org")) for number in range(9)]
        for _ in range(turns):
            await asyncio.sleep(0)

        await limiter.aclose()

        told = await asyncio.gather(*waiting, return_exceptions=True)
        assert {type(each) for each in told} <= {type(None), LimiterClosed}
        assert LimiterClosed in {type(each) for each in told}


async def test_a_loop_that_never_runs_again_does_not_hold_up_the_end(tmp_path: Path) -> None:
    """U8: its tasks cannot leave"""
    limiter = RateLimiter(LimitConfig(0.01, 1), store=f"sqlite:///{tmp_path / 'state.sqlite'}")
    limiter.allow(DOMAIN)
    loop = asyncio.new_event_loop()
    waiting = loop.create_task(limiter.wait(DOMAIN))
    await asyncio.to_thread(loop.run_until_complete, asyncio.sleep(0))

    await asyncio.wait_for(limiter.aclose(), 60)

    waiting.cancel()
    with pytest.raises((asyncio.CancelledError, LimiterClosed)):
        await asyncio.to_thread(loop.run_until_complete, waiting)
    loop.close()


async def test_after_the_end_there_are_statistics_of_domains_and_no_totals(tmp_path: Path) -> None:
    """U8, L4: the totals count the breakers in a store that was let go of"""
    limiter = RateLimiter(store=f"sqlite:///{tmp_path / 'state.sqlite'}")
    limiter.allow(DOMAIN)

    await limiter.aclose()

    assert limiter.get_stats(DOMAIN).total_requests == 1
    with pytest.raises(LimiterClosed):
        limiter.get_stats()


async def test_the_line_of_statistics_holds_up_neither_the_loop_nor_who_asks(
    tmp_path: Path, clock: FakeClock, told: Told
) -> None:
    """Q10: while another holds the file, it waits by itself, and only once"""
    file = tmp_path / "state.sqlite"
    limiter = RateLimiter(LimitConfig(1000.0, 100), store=f"sqlite:///{file}", timers=LeapAlarm(clock))
    for number in range(150):
        assert await limiter.acquire(f"https://{number}.org/")
    other = sqlite3.connect(file, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")

    asking = []
    for _ in range(2):
        clock.advance(60)
        asking.append(asyncio.ensure_future(limiter.acquire("https://example.org/")))
        for _ in range(5):
            await asyncio.sleep(0)
    assert not any(line.startswith("Rate limiter statistics") for line in told(logging.INFO))
    other.execute("ROLLBACK")
    other.close()

    assert await asyncio.gather(*asking) == [True, True]
    await until(lambda: any(line.startswith("Rate limiter statistics") for line in told(logging.INFO)))
    [line] = [line for line in told(logging.INFO) if line.startswith("Rate limiter statistics")]
    assert json.loads(line.removeprefix("Rate limiter statistics "))["domains"] == 151
    await limiter.aclose()


async def test_the_end_leaves_no_line_of_statistics_behind(tmp_path: Path, clock: FakeClock) -> None:
    """Q10, U8: not even while another holds the file"""
    file = tmp_path / "state.sqlite"
    store = open_store(f"sqlite:///{file}")
    limiter = RateLimiter(store=store, timers=LeapAlarm(clock))
    await limiter.acquire("https://example.org/")
    other = sqlite3.connect(file, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    clock.advance(60)
    asking = asyncio.ensure_future(limiter.acquire("https://example.net/"))
    await asyncio.sleep(0)
    assert limiter._stats_log._task is not None

    await limiter.aclose()

    assert limiter._stats_log._task.done()
    other.execute("ROLLBACK")
    other.close()
    await asyncio.gather(asking, return_exceptions=True)
    store.close()
