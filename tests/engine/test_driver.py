"""The driver: a flow is carried out to its end, and gives everything back."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from curtsy.core.effects import FetchRequest
from curtsy.core.errors import Reason
from curtsy.core.flow import fetch
from curtsy.core.host import Host
from curtsy.core.policy import UTC, Policies, Policy
from curtsy.core.record import FetchRecord
from curtsy.core.request import Reply, Request
from curtsy.core.result import FetchResult
from curtsy.core.time import SECOND
from curtsy.engine.context import Context
from curtsy.engine.driver import Driver
from curtsy.engine.gate import Gate
from curtsy.http.sender import HttpSender, Limits, Sender
from curtsy.stores import Answer, Proposal, Step
from curtsy.stores.codec import unpack
from curtsy.stores.memory import AsyncMemoryStore, MemoryStore
from curtsy.stores.sqlite import AsyncSQLiteStore
from curtsy.testing import FakeClock, FakeTimers
from tests.client.fetching import AGENT, UNPACED, client, domain_of, host_of
from tests.support.polling import until
from tests.support.site import Reply as Played
from tests.support.site import Site, later, redirect

FREE: dict[str, Any] = {"qps": None, "pause_min": 0.0, "pause_max": 0.0}


class Tasks:
    """A driver on a fake clock, with what it uses."""

    def __init__(self, **limits: Any) -> None:
        self.clock = FakeClock()
        self.store = MemoryStore(self.clock)
        policies = Policies(Policy(allow_private=True, timezone=UTC, **limits), global_qps=None, user_agent=AGENT)
        timers = FakeTimers(self.clock)
        self.told: list[FetchRecord] = []
        self._context = Context(
            lambda: policies, timers.now, lambda: self.clock.now().epoch / SECOND, told=self.told.append
        )
        self._tasks_store = self.store.inner
        self.gate = Gate(self._tasks_store, timers=timers)
        timers.stop_while(lambda: self.gate.queues.out > 0)

    async def fetch(self, url: str, sender: Sender) -> FetchResult:
        driver = Driver(self._context, self.gate, sender)
        return await driver.run_flow(fetch(FetchRequest(url), self._context))

    def host(self, url: str) -> Host:
        found = self.store.read("host:" + domain_of(url))
        assert isinstance(found, Host)
        return found


def play_all(site: Site) -> None:
    """Robots.txt, redirects, retries, Retry-After, refusals."""
    site.robots("User-agent: *\nDisallow: /private\nCrawl-delay: 2\n")
    site.reply("/old", redirect("/new"))
    site.script("/new", [Played(500), later(7), Played(body="fine")])
    site.reply("/sly", redirect("/private/x"))


async def test_a_flow_obeys_counts_and_reports_everything(site: Site) -> None:
    """Issue 4, 1 and 2"""
    play_all(site)
    tasks, sender = Tasks(), HttpSender()

    result = await tasks.fetch(site.url("/old"), sender)
    refused = [(await tasks.fetch(site.url(path), sender)).reason for path in ("/private", "/sly")]
    await sender.close()

    assert (result.text, result.final_url, result.record.attempts) == ("fine", site.url("/new"), 4)
    assert refused == [Reason.ROBOTS_DISALLOWED, Reason.ROBOTS_DISALLOWED]
    assert site.paths() == ["/robots.txt", "/old", "/new", "/new", "/new", "/sly"]
    assert {visit.header("User-Agent") for visit in site.journal} == {AGENT}
    host = tasks.host(site.url("/"))
    assert (host.places, host.crawl_delay) == ((), 2 * SECOND)
    assert [(day.requests, day.pages) for day in host.days] == [(6, 1)]
    assert tasks.clock.now().at - 1000 * SECOND >= (2 + 2 + 2 + 7 + 2) * SECOND
    assert [record.reason for record in tasks.told] == [None, "robots_disallowed", "robots_disallowed"]


class Broken(HttpSender):
    """A sender with a programming error."""

    async def send(self, request: Request, limits: Limits) -> Reply:
        raise ZeroDivisionError


async def test_a_sender_that_raises_gives_everything_back(site: Site) -> None:
    """B5: a programming error comes out, and nothing is held"""
    tasks, broken, sender = Tasks(**FREE), Broken(), HttpSender()

    with pytest.raises(ZeroDivisionError):
        await tasks.fetch(site.url("/"), broken)

    assert (tasks.gate.queues.out, tasks.gate.queues.waiting) == (0, 0)
    assert tasks.host(site.url("/")).places == ()
    rules = tasks.store.read("rules:http://" + domain_of(site.url("/")))
    assert (rules.claimed_by, rules.claimed_until) == (0, 0.0)
    assert (await tasks.fetch(site.url("/"), sender)).status == 404
    await broken.close()
    await sender.close()


class Drowsy(AsyncMemoryStore):
    """A store in whose answer to the first charge a long sleep comes, as when a laptop is closed."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__(clock)
        self._fake = clock
        self.naps = 1

    def update_now(self, key: str, step: Step[Answer]) -> Answer:
        answer = super().update_now(key, step)
        if key.startswith("host:") and self.naps:
            self.naps -= 1
            self._fake.advance(100)
        return answer


async def test_a_task_that_slept_its_place_away_asks_for_another(site: Site) -> None:
    """Design, section 4"""
    site.page("/", "x")
    clock = FakeClock()

    async with client(clock=clock, store=Drowsy(clock), respect_robots=False, **UNPACED) as web:
        assert (await web.fetch(site.url("/"))).ok
        host = await host_of(web, site.url("/"))

    assert site.count() == 1
    assert (host.places, sum(day.requests for day in host.days)) == ((), 2)


class Checking(HttpSender):
    """A sender that looks into the file of the state before each request: has it all charges by then?"""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path
        self.sent = self.under_way = 0
        self.uncharged: list[tuple[int, int]] = []

    async def send(self, request: Request, limits: Limits) -> Reply:
        self.sent += 1
        self.under_way += 1
        try:
            with contextlib.closing(sqlite3.connect(self._path)) as file:
                key = f"host:{request.url.domain}".encode()
                [data] = file.execute("SELECT data FROM records WHERE key = ?", (key,)).fetchone()
            host = unpack(data)
            assert isinstance(host, Host)
            if len(host.places) < self.under_way:
                self.uncharged.append((len(host.places), self.under_way))
            return await super().send(request, limits)
        finally:
            self.under_way -= 1


class Confirming(AsyncSQLiteStore):
    """A store that counts the charges that were written together with others."""

    confirmed = 0

    def confirm(self, proposal: Proposal) -> bool:
        self.confirmed += 1
        return super().confirm(proposal)


async def test_no_request_leaves_before_its_charge_is_in_the_file(site: Site, tmp_path: Path) -> None:
    """F38: also if they are charged together, and some are cancelled meanwhile. Those are not charged."""
    path = tmp_path / "state.sqlite"
    store, sender = Confirming(path), Checking(path)
    site.page("/", "x")

    limits = {**UNPACED, "concurrency": 16, "max_requests_per_day": 100_000, "max_pages_per_day": 0}
    async with client(clock=None, store=store, sender=sender, respect_robots=False, **limits) as web:

        async def some() -> bool:
            tasks = [asyncio.ensure_future(web.fetch(site.url(f"/?{number}"))) for number in range(16)]
            for _ in range(sender.sent % 9):
                await asyncio.sleep(0)
            for task in tasks[::5]:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            return store.confirmed >= 100

        await until(some)
        host = await host_of(web, site.url("/"))

    assert sender.uncharged == []
    assert host.places == ()
    assert site.count() <= sum(day.requests for day in host.days) <= sender.sent
