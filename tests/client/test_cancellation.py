"""Cancellation at any await gives everything back: the place at the host, the budget, the line, the claim on rules."""

from __future__ import annotations

import asyncio
import gc
import weakref
from pathlib import Path

import pytest

from curtsy.client import AsyncClient, session_of
from curtsy.core.host import Host
from curtsy.core.record import FetchRecord
from curtsy.core.rules import Rules
from curtsy.http.sender import HttpSender
from curtsy.stores import open_async_store
from curtsy.testing import FakeClock
from tests.client.fetching import DAWN, UNPACED, client, domain_of, host_of
from tests.support.polling import until
from tests.support.site import Reply, Site, deaf_port, hang

TO_THE_END = 1_000_000_000
IN_MEMORY = [*range(60), TO_THE_END]
"""After how many turns of the event loop a fetch is cancelled: at each await of it, and once when it is over."""

IN_A_FILE = [*range(0, 30, 3), *range(30, 1500, 40)]
"""The same where another thread has to answer, which takes a thousand turns or so."""


async def cancelled_after(turns: int, web: AsyncClient, url: str) -> bool:
    """Begin a fetch and cancel it after so many turns of the loop; whether it was still under way."""
    task = asyncio.ensure_future(web.fetch(url))
    while turns and not (turns > 60 and task.done()):
        turns -= 1
        await asyncio.sleep(0)
    is_early = task.cancel()
    await asyncio.wait([task])
    return is_early and task.cancelled()


def is_given_back(host: Host | None, rules: Rules | None, seen: int) -> None:
    """Nothing is held, and no more is charged than was sent, or may have been."""
    if host is not None:
        assert host.places == ()
        charged = sum(day.requests for day in host.days)
        assert seen <= charged <= seen + 1
        assert sum(day.pages for day in host.days) <= 1
    if rules is not None:
        assert (rules.claimed_by, rules.claimed_until) == (0, 0.0)


async def test_wherever_it_is_cancelled_a_fetch_gives_everything_back(site: Site) -> None:
    """Issue 4, B5: with the store in memory"""
    site.reply("/*", Reply(body="x"))
    early = 0

    for turns in IN_MEMORY:
        site.clear()
        async with client(**UNPACED) as web:
            early += await cancelled_after(turns, web, site.url("/a"))

            assert (session_of(web).gate.queues.out, session_of(web).gate.queues.waiting) == (0, 0)
            host = await session_of(web).store.read("host:" + domain_of(site.url("/")))
            rules = await session_of(web).store.read("rules:http://" + domain_of(site.url("/")))
            is_given_back(host, rules, site.count())
            assert (await web.fetch(site.url("/b"))).ok
        await site.left()  # nothing of this turn is still to be seen in the next

    assert 5 < early < len(IN_MEMORY)


async def test_what_was_cancelled_is_given_back_before_a_file_is_closed(site: Site, tmp_path: Path) -> None:
    """Issue 4, B5: with the store in a file, and a client that is closed at once"""
    site.reply("/*", Reply(body="x"))
    early = 0

    for turns in IN_A_FILE:
        site.clear()
        place = f"sqlite:///{tmp_path}/{turns}.sqlite"
        web = client(store=place, clock=FakeClock(DAWN), **UNPACED)
        task = asyncio.ensure_future(web.fetch(site.url("/a")))
        for _ in range(turns):
            await asyncio.sleep(0)
        early += task.cancel()
        await web.close()
        await asyncio.wait([task])
        await site.left()  # nothing of this turn is still to be seen in the next

        store = open_async_store(place, clock=FakeClock(DAWN + 100))
        host = await store.read("host:" + domain_of(site.url("/")))
        rules = await store.read("rules:http://" + domain_of(site.url("/")))
        await store.close()
        is_given_back(host, rules, site.count())

    assert early > 10


async def test_one_who_waits_in_line_leaves_it_and_the_others_go_on(site: Site) -> None:
    """L2, issue 4: queue place"""
    site.page("/*", "x")

    async with client() as web:
        tasks = [asyncio.ensure_future(web.fetch(site.url(f"/{number}"))) for number in range(9)]
        await asyncio.sleep(0)
        for task in tasks[1::2]:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)

        assert [isinstance(each, asyncio.CancelledError) for each in results] == [False, True] * 4 + [False]
        assert session_of(web).gate.queues.waiting == 0
        host = await host_of(web, site.url("/"))

    assert site.paths() == ["/robots.txt", "/0", "/2", "/4", "/6", "/8"]
    assert [(day.requests, day.pages) for day in host.days] == [(6, 5)]


async def test_a_request_cancelled_on_the_wire_is_charged_and_its_page_is_not(site: Site) -> None:
    """B5"""
    site.reply("/a", hang())
    site.page("/b", "x")

    async with client(respect_robots=False, max_pages_per_day=1) as web:
        task = asyncio.ensure_future(web.fetch(site.url("/a")))
        await until(lambda: site.count("/a"))
        task.cancel()
        await asyncio.wait([task])
        host = await host_of(web, site.url("/"))

        assert [(day.requests, day.pages) for day in host.days] == [(1, 0)]
        assert host.failures == 0
        assert (await web.fetch(site.url("/b"))).ok
    await site.left()


async def test_a_cancelled_trial_leaves_the_trial_to_the_next(site: Site) -> None:
    """Q4: half-open's one trial is the lease itself"""
    site.script("/", [Reply(403), hang(), Reply(body="well again")])
    clock = FakeClock()

    async with client(clock=clock, respect_robots=False) as web:
        await web.fetch(site.url("/"))
        clock.advance(301)
        trial = asyncio.ensure_future(web.fetch(site.url("/")))
        await until(lambda: site.count("/") == 2)
        trial.cancel()
        await asyncio.wait([trial])
        result = await web.fetch(site.url("/"))

    assert result.text == "well again"


async def test_cancelled_twice_it_still_gives_back(site: Site) -> None:
    """Issue 4"""
    site.reply("/a", hang())

    async with client(**UNPACED, respect_robots=False) as web:
        task = asyncio.ensure_future(web.fetch(site.url("/a")))
        await until(lambda: site.count("/a"))
        task.cancel()
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await until(lambda: session_of(web).gate.queues.out == 0)

        assert (await host_of(web, site.url("/"))).places == ()


async def test_a_timeout_of_the_callers_own_is_a_cancellation_like_any_other(site: Site) -> None:
    """Issue 4"""
    site.reply("/a", hang())
    site.page("/b", "x")

    async with client(**UNPACED, respect_robots=False) as web:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await web.fetch(site.url("/a"))

        assert session_of(web).gate.queues.out == 0
        assert (await web.fetch(site.url("/b"))).ok


async def test_a_batch_that_is_left_early_gives_back_what_it_had_begun(site: Site) -> None:
    """B5"""
    site.reply("/slow", hang())
    site.page("/*", "x")

    async with client(**UNPACED, respect_robots=False, concurrency=2) as web:
        async for result in web.fetch_many([site.url("/slow"), site.url("/a"), site.url("/b")]):
            assert result.ok
            break
        await until(lambda: session_of(web).gate.queues.out == 0)

        assert (await host_of(web, site.url("/"))).places == ()


async def test_a_request_cancelled_before_it_is_sent_is_not_charged() -> None:
    """B5: there was not even a connection"""
    with deaf_port() as port:
        url = f"http://127.0.0.1:{port}/"
        async with client(clock=None, **UNPACED, respect_robots=False, max_requests_per_day=5) as web:
            for _ in range(6):
                task = asyncio.ensure_future(web.fetch(url))
                await until(lambda: session_of(web).gate.queues.out)
                task.cancel()
                await asyncio.wait([task])
            host = await host_of(web, url)

    assert [day.requests for day in host.days] == [0]
    assert host.requests == 0


class Silent:
    """Never answers."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()

    async def resolve(self, host: str) -> list[str]:
        self.asked.set()
        await asyncio.Event().wait()
        return []


async def test_behind_a_proxy_a_request_cancelled_while_its_name_is_looked_up_is_not_charged() -> None:
    """B5: the guard looks the name up before anything goes to the proxy"""
    urls, names = [f"http://shop{number}.test/" for number in range(3)], Silent()
    sender = HttpSender(proxy="http://127.0.0.1:1", resolver=names)
    settings = {"respect_robots": False, "allow_private": False, "max_requests_per_day": 5}
    async with client(clock=None, **UNPACED, **settings, sender=sender) as web:
        for url in urls:
            names.asked.clear()
            task = asyncio.ensure_future(web.fetch(url))
            await names.asked.wait()
            task.cancel()
            await asyncio.wait([task])
        hosts = [await host_of(web, url) for url in urls]

    assert [[day.requests for day in host.days] for host in hosts] == [[0]] * 3
    assert [host.requests for host in hosts] == [0] * 3


class Program:
    """A program that hears records, and keeps the error that ended its fetch."""

    def __init__(self) -> None:
        self.client = client(on_record=self.hear, respect_robots=False, clock=None)
        self.error: TimeoutError | None = None

    def hear(self, record: FetchRecord) -> None:
        """Nothing is made of it."""


async def test_what_ended_a_fetch_keeps_no_closed_client_alive(site: Site) -> None:
    """Its traceback leads to the fetch, and from there to the client: a circle that the collector can see"""
    site.reply("/", hang())
    program = Program()
    try:
        async with asyncio.timeout(0.1):
            await program.client.fetch(site.url("/"))
    except TimeoutError as error:
        program.error = error
    await program.client.close()
    there = weakref.ref(program.client)

    del program
    gc.collect()

    assert there() is None
