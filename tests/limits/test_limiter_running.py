"""A limiter while it runs: several tokens, other limits, the end (U8)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from curtsy.core.errors import LimiterClosed, PolicyError
from curtsy.core.policy import LimitConfig, Policies, Policy
from curtsy.core.time import SECOND
from curtsy.limits import DomainLimiter
from curtsy.testing import FakeClock
from tests.limits.asking import DOMAIN, stats_of, waits
from tests.limits.conftest import Made
from tests.support.said import missing
from tests.support.snapshot import Snapshot

# U8: several tokens, other limits, the end


async def test_several_tokens_are_taken_together_or_not_at_all(made: Made, clock: FakeClock) -> None:
    """U8"""
    limiter = made(LimitConfig(1.0, 5))

    assert limiter.allow_n(DOMAIN, 3)
    assert not limiter.allow_n(DOMAIN, 3)
    assert limiter.allow_n(DOMAIN, 2)
    began = clock.now().at
    await limiter.wait_n(DOMAIN, 5)

    assert clock.now().at - began == 5 * SECOND
    assert stats_of(limiter).total_requests == 10


@pytest.mark.parametrize("n", [0, -1, 1.5, True, "2"])
async def test_a_number_of_tokens_that_is_none_is_an_error(made: Made, n: Any, snapshot: Snapshot) -> None:
    """U8"""
    limiter = made(LimitConfig(1.0, 5))

    with pytest.raises(PolicyError) as by_allow:
        limiter.allow_n(DOMAIN, n)
    with pytest.raises(PolicyError) as by_wait:
        await limiter.wait_n(DOMAIN, n)

    assert str(by_allow.value) == str(by_wait.value)
    assert missing(str(by_wait.value), f"n = {n!r} ", " 1") == []
    snapshot(str(by_wait.value))


async def test_more_tokens_than_the_bucket_holds_are_an_error_at_once(made: Made, snapshot: Snapshot) -> None:
    """U8: it could be waited for in vain for ever."""
    limiter = made(LimitConfig(1.0, 5))

    with pytest.raises(PolicyError) as by_wait:
        await limiter.wait_n(DOMAIN, 6)
    with pytest.raises(PolicyError) as by_allow:
        limiter.allow_n(DOMAIN, 6)

    assert str(by_allow.value) == str(by_wait.value)
    assert missing(str(by_wait.value), DOMAIN, "n = 6 ", "burst_capacity (5)") == []
    snapshot(str(by_wait.value))


@pytest.mark.parametrize("place", ["first in line", "behind another"])
async def test_who_waits_for_more_than_a_lowered_burst_is_told_and_takes_nothing(
    made: Made, clock: FakeClock, place: str
) -> None:
    """U8: it would have gone at once, with more than the burst, or waited for ever"""
    limiter = made(LimitConfig(1.0, 5))
    assert limiter.allow_n(DOMAIN, 5)
    began = clock.now().at
    ahead = [asyncio.ensure_future(limiter.wait(DOMAIN))] if place == "behind another" else []
    many = asyncio.ensure_future(limiter.wait_n(DOMAIN, 5))
    one = asyncio.ensure_future(limiter.wait(DOMAIN))
    for _ in range(5):
        await asyncio.sleep(0)

    limiter.update_config(DOMAIN, LimitConfig(0.01, 2))

    with pytest.raises(PolicyError) as error:
        await many
    assert missing(str(error.value), DOMAIN, "n = 5 ", "burst_capacity (2)") == []
    await asyncio.gather(one, *ahead)
    assert clock.now().at - began == (5 - 2 + 1 + len(ahead)) * 100 * SECOND
    assert (stats_of(limiter).total_requests, stats_of(limiter).canceled_requests) == (6 + len(ahead), 1)


async def test_a_faster_rate_holds_for_those_who_wait_already(made: Made, clock: FakeClock) -> None:
    """U8: they are woken, and leave at the new rate."""
    limiter = made(LimitConfig(0.01, 1))
    await limiter.wait(DOMAIN)
    waiting = [asyncio.ensure_future(limiter.wait(DOMAIN)) for _ in range(3)]
    for _ in range(5):
        await asyncio.sleep(0)
    began = clock.now().at

    limiter.update_config(DOMAIN, LimitConfig(10.0, 1))

    await asyncio.gather(*waiting)
    assert clock.now().at - began == 3 * SECOND // 10


async def test_a_slower_rate_holds_for_the_very_next_request(made: Made, clock: FakeClock) -> None:
    """U8, L6: also for one who waits already, and only for that domain."""
    limiter = made(LimitConfig(1.0, 1))
    await limiter.wait(DOMAIN)
    waiting = asyncio.ensure_future(waits(limiter, clock, 1))
    for _ in range(5):
        await asyncio.sleep(0)

    limiter.update_config("Example.org", LimitConfig(0.1, 1))

    assert await waiting == [10.0]
    assert await waits(limiter, clock, 2, "example.net") == [0, 1.0]


def test_a_configuration_by_any_other_name_is_an_error(made: Made) -> None:
    """U8"""
    with pytest.raises(PolicyError, match=r"^config = 5 "):
        made().update_config(DOMAIN, 5)  # type: ignore[arg-type]


async def test_closing_tells_those_who_wait_and_refuses_those_who_come(made: Made, snapshot: Snapshot) -> None:
    """U8: idempotent; first and last in line alike."""
    limiter = made(LimitConfig(0.01, 1))
    await limiter.wait(DOMAIN)
    waiting: list[asyncio.Future[object]] = [asyncio.ensure_future(limiter.wait(DOMAIN)) for _ in range(3)]
    waiting.append(asyncio.ensure_future(limiter.wait(DOMAIN, timeout=1000)))
    waiting.append(asyncio.ensure_future(limiter.acquire(f"https://{DOMAIN}/")))
    for _ in range(5):
        await asyncio.sleep(0)

    limiter.close()
    limiter.close()

    told = await asyncio.gather(*waiting, return_exceptions=True)
    assert len(told) == 5
    assert all(isinstance(each, LimiterClosed) for each in told)
    (message,) = {str(each) for each in told}
    snapshot(message)
    calls: list[Callable[[], object]] = [
        lambda: limiter.allow(DOMAIN),
        lambda: limiter.allow_n("example.net", 1),
        lambda: limiter.wait_blocking(DOMAIN),
        lambda: limiter.update_config(DOMAIN, LimitConfig()),
        lambda: limiter.record_success("https://example.org/"),
    ]
    for call in calls:
        with pytest.raises(LimiterClosed):
            call()
    with pytest.raises(LimiterClosed):
        await limiter.wait("example.net")
    with pytest.raises(LimiterClosed):
        await limiter.acquire("https://example.org/")
    assert limiter.gate.queues.waiting == 0
    assert stats_of(limiter).total_requests == 1


async def test_a_limiter_for_one_domain_stands_by_itself(clock: FakeClock) -> None:
    """L10: the same calls without naming the domain."""
    limiter = DomainLimiter("Example.org", LimitConfig(100.0, 2))

    assert limiter.allow()
    await limiter.wait()
    await limiter.wait(timeout=1.0)
    limiter.wait_blocking(timeout=1.0)

    assert limiter.domain == DOMAIN
    assert limiter.stats.snapshot().total_requests == 4
    assert limiter.stats.snapshot().domain == DOMAIN


@pytest.mark.parametrize("first", ["the limiter's", "the other"])
async def test_a_domains_limiter_of_a_limiter_is_that_limiters(made: Made, first: str) -> None:
    """L10, U8: its configuration, its tokens and its statistics, whichever was there first"""
    limiter = made(LimitConfig(1.0, 1))
    if first == "the limiter's":
        limiter.domain(DOMAIN)
    other = DomainLimiter(DOMAIN, limiter=limiter)
    assert other.allow()

    limiter.update_config(DOMAIN, LimitConfig(100.0, 50))

    assert other.config == limiter.domain(DOMAIN).config == LimitConfig(100.0, 50)
    assert limiter.allow(DOMAIN)
    assert stats_of(limiter) == other.stats.snapshot()
    assert stats_of(limiter).total_requests == 2


async def test_who_stands_behind_another_is_told_of_its_own_new_policy(made: Made, clock: FakeClock) -> None:
    """U8, C6: what is new to one may not be to those before it"""
    shared = Policy(qps=0.01, key="e.org")
    limiter = made(policies=Policies(entries={"e.org": shared}))
    await limiter.acquire("https://x.e.org/")
    first, own, denied = (asyncio.ensure_future(limiter.acquire(f"https://{name}.e.org/")) for name in "xab")
    for _ in range(5):
        await asyncio.sleep(0)
    began = clock.now().at

    entries = {"e.org": shared, "a.e.org": Policy(qps=10.0), "b.e.org": Policy(denied=True)}
    limiter.use_policies(Policies(entries=entries))

    assert [await own, await denied] == [True, False]
    assert clock.now().at == began
    first.cancel()
