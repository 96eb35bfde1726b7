"""One limiter over several processes (Q12, B7), and a store that does not answer (B8)."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from curtsy.core.errors import StoreError
from curtsy.core.policy import LimitConfig
from curtsy.guards import RateLimiter
from curtsy.stores.redis import RedisStore
from tests.guards.conftest import Told
from tests.support.redis_server import RedisServer, redis_available

WORKER = """
import asyncio, json, sys, time
from curtsy.core.policy import LimitConfig
from curtsy.guards import RateLimiter


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
        subprocess.Popen(
            [sys.executable, "-W", "always", "-c", WORKER, url, str(number)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
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
    complaints = [worker.communicate(timeout=30)[1] for worker in workers]

    assert max(waited for _, waited, _ in times) - began >= 19 / 40
    assert max(acquired for _, _, acquired in times) - min(waited for _, waited, _ in times) >= 19 / 100 - 0.05
    assert ends[1][0] is True
    assert ends[1][1] == 1
    assert complaints == ["", ""]


async def test_a_server_that_does_not_answer_is_bridged_in_memory(told: Told) -> None:
    """B8, issue 2: nothing is refused because our memory failed; limits hold, and it is told once."""
    limiter = RateLimiter(LimitConfig(0.1, 2), store="redis://127.0.0.1:1/0")

    assert limiter.allow("example.org")
    assert limiter.allow("example.org")
    assert not limiter.allow("example.org")
    await limiter.wait("example.net")

    warnings = [line for line in told(logging.WARNING) if "Going on in memory" in line]
    assert 1 <= len(warnings) <= 2  # once for threads and once for tasks
    assert "redis://127.0.0.1:1/0 cannot be reached" in warnings[0]
    await limiter.aclose()


def test_a_redis_url_that_does_not_answer_says_what_to_do() -> None:
    """Issue 2, the last paragraph; without user and password (F62)."""
    store = RedisStore("redis://user:secret@127.0.0.1:1/0")

    with pytest.raises(StoreError) as error:
        store.check()

    assert str(error.value).startswith("redis://127.0.0.1:1/0 cannot be reached: ")
    assert str(error.value).endswith("Start the server, or correct the store's URL.")
    assert "secret" not in str(error.value)
    store.close()


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
