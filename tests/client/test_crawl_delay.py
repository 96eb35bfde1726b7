"""Crawl-delay: joined with the pace from the very first page, refused when it is too long."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from curtsy.client import AsyncClient, session_of
from curtsy.core.errors import Reason
from curtsy.http.sender import HttpSender
from curtsy.limits import RobotsTxtChecker
from curtsy.stores.memory import MemoryStore
from curtsy.testing import FakeClock
from tests.client.fetching import TICK, UNPACED, client
from tests.support.bounds import Lateness, ends_within
from tests.support.site import Reply, Site
from tests.support.snapshot import Snapshot


async def test_a_crawl_delay_holds_from_the_very_first_page(site: Site) -> None:
    """R8: the larger of the site's and ours"""
    site.robots("User-agent: *\nCrawl-delay: 12.5\n")
    site.page("/*", "x")

    async with client() as web:
        results = await asyncio.gather(*(web.fetch(site.url(f"/{number}")) for number in range(4)))

    waits = sorted(result.record.at for result in results)
    gaps = [b - a for a, b in itertools.pairwise(waits)]
    assert min(gaps) >= 12.5 - TICK
    assert min(result.record.waited for result in results) >= 12.5 - TICK


async def test_a_crawl_delay_holds_by_the_sites_own_clock(site: Site) -> None:
    """R8: but for the moment by which a busy machine notices a request too late"""
    site.robots("User-agent: *\nCrawl-delay: 0.5\n")
    site.page("/*", "x")

    with Lateness() as late:
        async with client(clock=None, **UNPACED) as web:
            await asyncio.gather(*(web.fetch(site.url(f"/{number}")) for number in range(3)))

    assert len(site.paths()) == 4
    assert min(site.gaps()) >= 0.4 - late.most


async def test_a_crawl_delay_shorter_than_ours_changes_nothing(site: Site) -> None:
    """R8"""
    site.robots("User-agent: *\nCrawl-delay: 0.1\n")
    site.page("/*", "x")

    async with client() as web:
        results = [await web.fetch(site.url(f"/{number}")) for number in range(3)]

    assert min(result.record.waited for result in results) >= 1.5 - TICK


@pytest.mark.parametrize("delay", ["999999999", "301", "1e5"])
async def test_a_crawl_delay_that_is_too_long_makes_the_host_refused(
    site: Site, delay: str, snapshot: Snapshot
) -> None:
    """R8, F33: at once, and the reason names it"""
    site.robots(f"User-agent: *\nCrawl-delay: {delay}\n")
    site.page("/*", "x")

    with ends_within(5):
        async with client() as web:
            results = [await web.fetch(site.url(f"/{number}")) for number in range(2)]

    assert {result.reason for result in results} == {Reason.CRAWL_DELAY_TOO_LONG}
    assert "max_crawl_delay (300 s)" in results[0].message
    snapshot(results[0].message)
    assert site.paths() == ["/robots.txt"]


@pytest.mark.parametrize("delay", ["nan", "inf", "-5", "soon", ""])
async def test_a_crawl_delay_that_is_no_number_is_ignored(site: Site, delay: str) -> None:
    """R8, F33"""
    site.robots(f"User-agent: *\nCrawl-delay: {delay}\n")
    site.page("/*", "x")

    async with client() as web:
        result = await web.fetch(site.url("/1"))

    assert result.ok
    assert result.record.waited <= 5.5


async def test_a_crawl_delay_is_that_of_the_agent_that_is_sent(site: Site) -> None:
    """R8, U10: one's own for a single request too"""
    site.robots("User-agent: otherbot\nCrawl-delay: 20\n\nUser-agent: *\nAllow: /\n")
    site.page("/page", "x")

    async with client() as web:
        result = await web.fetch(site.url("/page"), headers={"User-Agent": "otherbot/1.0"})

    assert result.record.waited >= 20 - TICK
    assert {visit.header("User-Agent") for visit in site.journal} == {"otherbot/1.0"}


async def test_a_crawl_delay_that_is_lifted_is_forgotten(site: Site) -> None:
    """R8: after too long a one, too"""
    site.script("/robots.txt", [Reply(body="User-agent: *\nCrawl-delay: 9999\n"), Reply(body="User-agent: *\n")])
    site.page("/page", "x")
    clock = FakeClock()

    async with client(clock=clock) as web:
        refused = await web.fetch(site.url("/page"))
        clock.advance(3700)
        page = await web.fetch(site.url("/page"))

    assert refused.reason is Reason.CRAWL_DELAY_TOO_LONG
    assert page.ok


async def test_an_origin_without_a_crawl_delay_takes_none_from_another_with_the_same_record(site: Site) -> None:
    """R8, C6"""
    site.robots("User-agent: *\nCrawl-delay: 20\n", host="a.shop.test")
    site.page("/*", "x")
    entries = [{"domain": "shop.test", "shared": True}]

    async with client(allowlist=entries, sender=HttpSender(resolver=site.names)) as web:
        await web.fetch(site.url("/1", host="a.shop.test"))
        await web.fetch(site.url("/1", host="b.shop.test"))
        result = await web.fetch(site.url("/2", host="a.shop.test"))

    assert result.record.waited >= 20 - TICK


@asynccontextmanager
async def two_agents() -> AsyncIterator[tuple[AsyncClient, AsyncClient, FakeClock]]:
    """A client, and another one called slowbot on the same store."""
    clock = FakeClock()
    store = MemoryStore(clock)
    async with (
        client(clock=clock, store=store) as first,
        client(clock=clock, store=store, user_agent="slowbot/1.0") as second,
    ):
        yield first, second, clock


async def test_each_agent_learns_its_own_delay_from_rules_that_another_has_fetched(site: Site) -> None:
    """R8: from its very first page; and the host keeps the longer of the two, for its pace is one for both"""
    site.robots("User-agent: slowbot\nCrawl-delay: 20\n\nUser-agent: *\nCrawl-delay: 5\n")
    site.page("/*", "x")

    async with two_agents() as (first, second, _):
        await first.fetch(site.url("/1"))
        slow = await second.fetch(site.url("/2"))
        after = await first.fetch(site.url("/3"))

    assert site.count("/robots.txt") == 1
    assert slow.record.waited >= 20 - TICK
    assert after.record.waited >= 20 - TICK


async def test_an_agent_of_a_single_request_learns_its_own_delay_too(site: Site) -> None:
    """R8, U10: from rules that the client knows already"""
    site.robots("User-agent: slowbot\nCrawl-delay: 20\n\nUser-agent: *\nAllow: /\n")
    site.page("/*", "x")

    async with client() as web:
        plain = await web.fetch(site.url("/1"))
        slow = await web.fetch(site.url("/2"), headers={"User-Agent": "slowbot/1.0"})

    assert plain.record.waited < 10
    assert slow.record.waited >= 20 - TICK


async def test_a_delay_of_another_agent_ends_with_the_file_that_asked_for_it(site: Site) -> None:
    """R8: whoever fetches a changed file"""
    lifted = "User-agent: *\nAllow: /\n"
    site.script(
        "/robots.txt", [Reply(body=f"User-agent: slowbot\nCrawl-delay: 9999\n\n{lifted}"), Reply(body=lifted)]
    )  # fmt: skip
    site.page("/*", "x")

    async with two_agents() as (first, second, clock):
        await first.fetch(site.url("/1"))
        refused = await second.fetch(site.url("/2"))
        clock.advance(3700)
        pages = [await first.fetch(site.url("/3")), await second.fetch(site.url("/4"))]

    assert refused.reason is Reason.CRAWL_DELAY_TOO_LONG
    assert [page.ok for page in pages] == [True, True]


SLOW = "User-agent: slowbot\nCrawl-delay: 20\n\nUser-agent: *\nAllow: /\n"


async def test_the_delay_of_an_agent_that_is_gone_ends_when_the_file_is_fetched_again(site: Site) -> None:
    """R8: and one that is not gone keeps to its own"""
    site.robots(SLOW)
    site.page("/*", "x")

    async with two_agents() as (first, second, clock):
        await second.fetch(site.url("/1"))
        clock.advance(3700)
        await first.fetch(site.url("/2"))
        after = await first.fetch(site.url("/3"))
        slow = await second.fetch(site.url("/4"))

    assert site.count("/robots.txt") == 2
    assert after.record.waited < 10
    assert slow.record.waited >= 20 - TICK


async def test_an_old_copy_that_another_has_fetched_has_our_own_delay(site: Site) -> None:
    """R8, R6: while the site cannot be reached"""
    site.script("/robots.txt", [Reply(body=SLOW), Reply(503)])
    site.page("/*", "x")

    async with two_agents() as (first, second, clock):
        await first.fetch(site.url("/1"))
        clock.advance(4000)
        results = [await second.fetch(site.url(f"/{number}")) for number in (2, 3)]

    assert [result.ok for result in results] == [True, True]
    assert min(result.record.waited for result in results) >= 20 - TICK


async def test_a_delay_holds_though_the_record_has_lost_it(site: Site) -> None:
    """R8: a store that was emptied, or another who has had the file fetched anew"""
    site.robots(SLOW)
    site.page("/*", "x")
    clock = FakeClock()
    store = MemoryStore(clock)

    async with client(clock=clock, store=store, user_agent="slowbot/1.0") as web:
        await web.fetch(site.url("/1"))
        for key in store.keys("host:"):
            store.forget(key)
        await web.fetch(site.url("/2"))
        after = await web.fetch(site.url("/3"))
        async with client(clock=clock, store=store) as other:
            site.robots(SLOW + "# changed")
            session_of(other).forget_rules()
            await other.fetch(site.url("/4"))
        last = await web.fetch(site.url("/5"))

    assert min(after.record.waited, last.record.waited) >= 20 - TICK


async def test_a_delay_that_is_too_long_for_one_agent_refuses_nobody_else(site: Site) -> None:
    """R8: nor does the mere question whether something is allowed slow anybody down"""
    site.robots(
        "User-agent: quick\nAllow: /\n\nUser-agent: middling\nCrawl-delay: 30\n\nUser-agent: *\nCrawl-delay: 999\n"
    )
    site.page("/*", "x")

    async with client(user_agent="quick/1.0") as web:
        await web.fetch(site.url("/1"))
        refused = await web.fetch(site.url("/2"), headers={"User-Agent": "other/1.0"})
        asked = await RobotsTxtChecker("middling/1.0", client=web).is_allowed(site.url("/"))
        after = await web.fetch(site.url("/3"))

    assert (refused.reason, asked) == (Reason.CRAWL_DELAY_TOO_LONG, True)
    assert after.ok
    assert after.record.waited < 10
    assert "/2" not in site.paths()
