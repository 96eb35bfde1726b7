"""RateLimiter as the document on rates per domain has it: buckets, waiting, many at once (L1-L3, L9, L10)."""

from __future__ import annotations

import asyncio
import math
import threading
import time
import tracemalloc
from typing import Any

import pytest

from curtsy.core.errors import PolicyError, WaitTimeout
from curtsy.core.policy import LimitConfig
from curtsy.core.time import SECOND
from curtsy.limits import RateLimiter
from curtsy.testing import FakeClock
from tests.limits.asking import DOMAIN, stats_of, waits
from tests.limits.conftest import Made
from tests.support.bounds import ends_within, slowness
from tests.support.said import missing
from tests.support.snapshot import Snapshot

# L1: a token bucket for each domain


async def test_a_bucket_starts_full_and_is_refilled_at_the_rate(made: Made, clock: FakeClock) -> None:
    """L1: three tokens at once, then one every half second."""
    limiter = made(LimitConfig(2.0, 3))

    assert await waits(limiter, clock, 6) == [0, 0, 0, 0.5, 1.0, 1.5]
    clock.advance(60)
    assert await waits(limiter, clock, 4) == [0, 0, 0, 0.5]


async def test_each_domain_has_a_limiter_of_its_own_made_on_first_use(made: Made) -> None:
    """L1, B9: and the same one afterwards, whatever the case of its name."""
    limiter = made(domains={DOMAIN: LimitConfig(5.0, 2)})

    assert limiter.get_all_stats() == {}
    assert limiter.domain(DOMAIN) is limiter.domain("EXAMPLE.org")
    assert limiter.domain(DOMAIN).config == LimitConfig(5.0, 2)
    assert limiter.domain("example.net").config == LimitConfig(1.0, 1)
    assert limiter.allow(DOMAIN)
    assert limiter.allow("example.net")
    assert set(limiter.get_all_stats()) == {DOMAIN, "example.net"}


# L2: waiting


async def test_a_wait_for_a_token_that_is_there_takes_under_a_millisecond() -> None:
    """L2, real time: the median of a hundred."""
    limiter = RateLimiter(LimitConfig(100.0, 1000))
    took = []
    for _ in range(100):
        began = time.perf_counter()
        await limiter.wait(DOMAIN)
        took.append(time.perf_counter() - began)

    assert sorted(took)[50] < 0.001 * slowness()
    assert stats_of(limiter).delayed_requests <= sum(each > 0.001 for each in took)  # the machine stood still


async def test_who_comes_first_is_served_first(made: Made) -> None:
    """L2"""
    limiter = made(LimitConfig(1.0, 1))
    served: list[int] = []

    async def wait(number: int) -> None:
        await limiter.wait(DOMAIN)
        served.append(number)

    await asyncio.gather(*(wait(number) for number in range(20)))

    assert served == list(range(20))


async def test_a_cancelled_wait_ends_at_once_and_loses_no_token(made: Made, clock: FakeClock) -> None:
    """L2: those behind it move up."""
    limiter = made(LimitConfig(1.0, 1))
    await limiter.wait(DOMAIN)
    cancelled = asyncio.ensure_future(limiter.wait(DOMAIN))
    behind = asyncio.ensure_future(waits(limiter, clock, 1))
    for _ in range(5):
        await asyncio.sleep(0)

    cancelled.cancel()
    with ends_within(0.1), pytest.raises(asyncio.CancelledError):
        await cancelled

    assert await behind == [1.0]
    assert stats_of(limiter).canceled_requests == 1


async def test_giving_up_takes_under_a_millisecond() -> None:
    """L2, real time: cancelled, or with a timeout that cannot be met; the median of fifty of each."""
    limiter = RateLimiter(LimitConfig(0.001, 1))
    await limiter.wait(DOMAIN)
    cancelled, late = [], []
    for _ in range(50):
        waiting = asyncio.ensure_future(limiter.wait(DOMAIN))
        await asyncio.sleep(0)
        began = time.perf_counter()
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        cancelled.append(time.perf_counter() - began)
        began = time.perf_counter()
        with pytest.raises(WaitTimeout):
            await limiter.wait(DOMAIN, timeout=60)
        late.append(time.perf_counter() - began)

    assert sorted(cancelled)[25] < 0.001 * slowness()
    assert sorted(late)[25] < 0.001 * slowness()
    assert stats_of(limiter).canceled_requests == 100


async def test_a_timeout_that_cannot_be_met_fails_at_once_and_says_how_long_it_would_take(
    made: Made, clock: FakeClock, snapshot: Snapshot
) -> None:
    """L2: no fake time passes, and no token is taken."""
    limiter = made(LimitConfig(0.1, 1))
    await limiter.wait(DOMAIN)
    before = clock.now().at

    with pytest.raises(WaitTimeout, match=DOMAIN) as error:
        await limiter.wait(DOMAIN, timeout=9)

    snapshot(str(error.value))
    assert missing(str(error.value), "9 s", "10.000 s") == []
    assert error.value.needed == 10.0
    assert isinstance(error.value, TimeoutError)
    assert clock.now().at == before
    assert stats_of(limiter).canceled_requests == 1
    assert await waits(limiter, clock, 1) == [10.0]


@pytest.mark.parametrize("timeout", [-1, math.nan, math.inf, "5", True])
async def test_a_timeout_that_is_no_time_is_an_error(made: Made, timeout: Any) -> None:
    """L2, L6"""
    with pytest.raises(PolicyError, match="timeout = ") as error:
        await made().wait(DOMAIN, timeout=timeout)

    assert repr(timeout) in str(error.value)


# L3: asking without waiting


def test_allow_takes_a_token_or_changes_nothing(made: Made, clock: FakeClock) -> None:
    """L3: False is not even counted."""
    limiter = made(LimitConfig(1.0, 2))

    assert [limiter.allow(DOMAIN) for _ in range(4)] == [True, True, False, False]

    assert stats_of(limiter).total_requests == 2
    assert stats_of(limiter).delayed_requests == 0
    before = stats_of(limiter), limiter.store.read("host:example.org")
    assert not limiter.allow(DOMAIN)
    assert (stats_of(limiter), limiter.store.read("host:example.org")) == before
    clock.advance(1.0)
    assert limiter.allow(DOMAIN)


async def test_allow_does_not_go_ahead_of_those_who_wait(made: Made, clock: FakeClock) -> None:
    """L2, L3: not even in the moment when the token is there."""
    limiter = made(LimitConfig(1.0, 1))
    await limiter.wait(DOMAIN)
    waiting = asyncio.ensure_future(limiter.wait(DOMAIN))
    for _ in range(5):
        await asyncio.sleep(0)
    clock.advance(1.0)

    assert not limiter.allow(DOMAIN)

    await waiting


# L9, U8: many at once


async def test_a_hundred_callers_at_once_are_served_at_the_rate(made: Made, clock: FakeClock) -> None:
    """U8, L9"""
    limiter = made(LimitConfig(10.0, 5))
    began = clock.now().at
    left: list[float] = []

    async def wait() -> None:
        await limiter.wait(DOMAIN)
        left.append((clock.now().at - began) / SECOND)

    await asyncio.gather(*(wait() for _ in range(100)))

    assert left == pytest.approx([max(0.0, (number - 4) / 10) for number in range(100)])
    assert stats_of(limiter).total_requests == 100
    assert stats_of(limiter).delayed_requests == 95


def test_a_hundred_threads_at_once_take_no_more_than_there_is() -> None:
    """L9, U8: `allow` and `wait_blocking` from many threads, in real time."""
    limiter = RateLimiter(LimitConfig(0.001, 40))
    taken: list[bool] = []
    start = threading.Barrier(50)

    def allow() -> None:
        start.wait()
        taken.extend([limiter.allow(DOMAIN), limiter.allow("example.net")])

    threads = [threading.Thread(target=allow) for _ in range(50)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert sum(taken) == 80
    assert stats_of(limiter).total_requests == 40


def test_threads_wait_their_turn() -> None:
    """L9: ten threads at a hundred a second leave no closer than that."""
    limiter = RateLimiter(LimitConfig(100.0, 1))
    began = time.monotonic()
    threads = [threading.Thread(target=limiter.wait_blocking, args=(DOMAIN,)) for _ in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert time.monotonic() - began >= 0.09
    assert stats_of(limiter).total_requests == 10


def test_a_thread_has_timeouts_too() -> None:
    """L2, L9"""
    limiter = RateLimiter(LimitConfig(0.1, 1))
    limiter.wait_blocking(DOMAIN)

    with pytest.raises(WaitTimeout):
        limiter.wait_blocking(DOMAIN, timeout=0.5)

    assert stats_of(limiter).canceled_requests == 1


# L10, Q11: memory


def test_a_domain_costs_a_few_kilobytes() -> None:
    """L10, Q11: under 10 MB for 100 domains; about 10 KB each at the most."""
    limiter = RateLimiter()
    limiter.allow("warm.example.org")
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()

    for number in range(1000):
        limiter.allow(f"{number}.example.org")

    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (after - before) / 1000 < 10_000
