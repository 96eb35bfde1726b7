"""Clients on a Redis server that does not answer: no limit opens, and they come back by themselves (C18, F55)."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterator
from typing import Any

import pytest

from curtsy.client import AsyncClient, session_of
from curtsy.core import messages
from curtsy.core.decision import Late
from curtsy.core.errors import PolicyError, Reason
from curtsy.core.result import FetchResult
from curtsy.core.statistics import summed
from curtsy.core.url import Url, parse_url
from curtsy.engine.counters import read_statistics
from curtsy.limits import RateLimiter
from curtsy.stores import open_store
from curtsy.stores.url import parse_server
from tests.client.fetching import AGENT, UNPACED
from tests.support.polling import until
from tests.support.redis_server import RedisServer, redis_available
from tests.support.site import Reply, Site, Visit

TIMEOUT = 0.3


@pytest.fixture
def server() -> Iterator[RedisServer]:
    if reason := redis_available():
        pytest.skip(reason)
    with RedisServer() as server:
        yield server


def client(server: RedisServer, **given: Any) -> AsyncClient:
    return AsyncClient(
        store=f"{server.url}?timeout={TIMEOUT}", cache=False, allow_private=True, user_agent=AGENT,
        **{**UNPACED, "respect_robots": False, **given},
    )  # fmt: skip


def names_the_store(late: FetchResult) -> bool:
    """Whether the message of a late fetch is that of a store that does not answer, and not that of a pace."""
    url = parse_url(late.url)
    assert isinstance(url, Url)
    return late.message == messages.late(url, Late(0.0, "outage"))


@contextlib.contextmanager
def out(server: RedisServer) -> Iterator[None]:
    server.pause()
    try:
        yield
    finally:
        server.resume()


async def test_no_request_is_sent_until_the_store_answers(
    site: Site, server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    """C18, F55, issue 17, 1: with a budget that has room, and one warning"""
    site.page("/*", "x")

    async with client(server, max_requests_per_day=10) as web:
        assert (await web.fetch(site.url("/before"))).ok
        with caplog.at_level(logging.WARNING, "curtsy"):
            with out(server):
                waiting = [asyncio.ensure_future(web.fetch(site.url(f"/{number}"))) for number in range(3)]
                await until(lambda: caplog.records)
                late = await web.fetch(site.url("/late"), deadline=2 * TIMEOUT)
                assert site.count() == 1
            results = await asyncio.gather(*waiting)

    assert late.reason is Reason.DEADLINE
    assert names_the_store(late)
    assert all(result.ok for result in results)
    assert site.count() == 4
    assert len([each for each in caplog.records if each.levelno == logging.WARNING]) == 1


async def test_a_client_that_starts_in_an_outage_waits(site: Site, server: RedisServer) -> None:
    """C18, issue 17, 1: it does not begin with empty records"""
    site.page("/*", "x")
    async with client(server, max_requests_per_day=1) as web:
        assert (await web.fetch(site.url("/a"))).ok

    with out(server):
        second = client(server, max_requests_per_day=1)
        waiting = asyncio.ensure_future(second.fetch(site.url("/b")))
        late = await second.fetch(site.url("/c"), deadline=2 * TIMEOUT)
    result = await waiting
    await second.close()

    assert late.reason is Reason.DEADLINE
    assert names_the_store(late)
    assert result.reason is Reason.DOMAIN_BUDGET_EXCEEDED
    assert site.count() == 1


async def test_a_request_in_flight_ends_and_counts(site: Site, server: RedisServer) -> None:
    """C18, B5: its consequences reach the store when that is back"""
    arrived, leave = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def answer(visit: Visit) -> Reply:
        loop.call_soon_threadsafe(arrived.set)
        asyncio.run_coroutine_threadsafe(leave.wait(), loop).result(60)
        return Reply(body=b"x")

    site.on("/slow", answer)
    site.page("/b", "x")
    async with client(server, max_requests_per_day=2) as web:
        fetching = asyncio.ensure_future(web.fetch(site.url("/slow")))
        await arrived.wait()
        with out(server):
            leave.set()
            result = await fetching
        again = await web.fetch(site.url("/b"))
        refused = await web.fetch(site.url("/c"))

    assert result.ok
    assert again.ok
    assert refused.reason is Reason.DOMAIN_BUDGET_EXCEEDED


async def test_alone_continues_with_limits_of_this_process(site: Site, server: RedisServer) -> None:
    """C18, B8: if the user chooses it, from the records that are remembered"""
    site.page("/*", "x")
    async with client(server, max_requests_per_day=2, outage="alone") as web:
        assert (await web.fetch(site.url("/a"))).ok
        with out(server):
            in_outage = [await web.fetch(site.url(path)) for path in ("/b", "/c")]

    assert [result.reason for result in in_outage] == [None, Reason.DOMAIN_BUDGET_EXCEEDED]


async def test_alone_uses_the_share_of_the_limits(site: Site, server: RedisServer) -> None:
    """Issue 17, 1: outage_share"""
    site.page("/*", "x")
    async with client(server, max_requests_per_day=8, outage="alone", outage_share=0.25) as web:
        with out(server):
            results = [await web.fetch(site.url(f"/{number}")) for number in range(3)]

    assert [result.ok for result in results] == [True, True, False]


@pytest.mark.parametrize(("deadline", "fetches"), [(TIMEOUT / 2, 1), (3 * TIMEOUT, 3)], ids=["first attempt", "later"])
@pytest.mark.parametrize("respects", [False, True], ids=["page", "robots.txt"])
async def test_a_deadline_in_an_outage_names_the_store(
    site: Site, server: RedisServer, deadline: float, fetches: int, respects: bool
) -> None:
    """Issue 18: each of several waiters, and also if the first attempt is longer than the deadline"""
    async with client(server, respect_robots=respects) as web:
        with out(server):
            urls = [site.url(f"/{number}") for number in range(fetches)]
            late = await asyncio.gather(*(web.fetch(url, deadline=deadline) for url in urls))

    assert {each.reason for each in late} == {Reason.DEADLINE}
    assert all("store" in each.message for each in late)
    assert site.journal == []


@pytest.mark.parametrize(("given", "allowed"), [(None, 2), (0.5, 4)])
async def test_workers_divide_the_limits_unless_a_share_is_given(
    site: Site, server: RedisServer, given: float | None, allowed: int
) -> None:
    """Issue 17, 1: outage_share is by default that of one of the workers"""
    site.page("/*", "x")
    async with client(server, max_requests_per_day=8, outage="alone", outage_share=given) as web:
        session_of(web).store.divide(4)
        with out(server):
            results = [await web.fetch(site.url(f"/{number}")) for number in range(allowed + 1)]

    assert [result.ok for result in results] == [True] * allowed + [False]


async def test_a_wait_for_the_store_can_be_limited(site: Site, server: RedisServer) -> None:
    """C18: max_outage"""
    async with client(server, max_outage=TIMEOUT) as web:
        with out(server):
            result = await web.fetch(site.url("/"))

    assert result.reason is Reason.STORE_UNREACHABLE
    assert site.count() == 0


async def test_an_outage_is_an_alert_until_it_ends(
    site: Site, server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    """Issue 17, 1: one alert"""
    site.page("/*", "x")

    def levels() -> list[str]:
        lines = [each for each in list(caplog.records) if each.name == "curtsy.alerts"]
        return [each.levelname for each in lines if '"store_out"' in each.getMessage()]

    with caplog.at_level(logging.INFO, "curtsy"):
        async with client(server, stats_every=0.05) as web:
            assert (await web.fetch(site.url("/a"))).ok
            with out(server):
                waiting = asyncio.ensure_future(web.fetch(site.url("/b")))
                await until(levels)
            assert (await waiting).ok
            await until(lambda: levels() == ["WARNING", "INFO"])
            seen = web.stats()
    with contextlib.closing(open_store(server.url)) as store:
        told = summed(read_statistics(store))

    assert told.outages == seen.outages == 1
    assert told.outage_seconds == pytest.approx(seen.outage_seconds)
    assert seen.outage_seconds > 0


async def test_a_limiter_allows_nothing_in_an_outage(server: RedisServer) -> None:
    """C18, L3: and waits for the store"""
    with contextlib.closing(open_store(f"{server.url}?timeout={TIMEOUT}")) as store:
        limiter = RateLimiter(store=store)
        assert limiter.allow("example.org")

        with out(server):
            allowed = [limiter.allow("other.test") for _ in range(2)]
            waiting = asyncio.ensure_future(limiter.wait("other.test"))
            done, _ = await asyncio.wait([waiting], timeout=2 * TIMEOUT)
            assert not done
        await waiting
        await limiter.aclose()

    assert allowed == [False, False]


@pytest.mark.parametrize("value", ["0", "-1", "soon", "inf"])
def test_a_timeout_of_a_url_must_be_a_number_above_zero(value: str) -> None:
    """Issue 17, 1: `?timeout=5`"""
    with pytest.raises(PolicyError):
        parse_server(f"redis://host?timeout={value}")


def test_a_timeout_of_a_url_is_no_option_of_the_library() -> None:
    """Issue 17, 1"""
    found = parse_server("redis://host:1/0?timeout=2.5&client_name=x")

    assert (found.timeout, found.url) == (2.5, "redis://host:1/0?client_name=x")
