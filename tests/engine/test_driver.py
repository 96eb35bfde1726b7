"""The same flow carried out for threads, with another library's sender, and for tasks; and places slept away."""

from __future__ import annotations

import http.client
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from curtsy.core.effects import FetchRequest
from curtsy.core.errors import Reason
from curtsy.core.flow import fetch
from curtsy.core.host import Host
from curtsy.core.message import SECOND, Failure, Headers, Reply, Request, Response
from curtsy.core.policy import UTC, Policies, Policy
from curtsy.core.record import FetchRecord
from curtsy.core.result import FetchResult
from curtsy.engine.context import Context
from curtsy.engine.driver import AsyncDriver, BlockingSender, Driver, adrive, drive
from curtsy.engine.gate import AsyncGate, Gate
from curtsy.engine.timers import FakeTimers
from curtsy.http.sender import AiohttpSender, Limits
from curtsy.stores import Answer, Step
from curtsy.stores.memory import AsyncMemoryStore, MemoryStore
from curtsy.system.clock import FakeClock
from tests.client.fetching import AGENT, UNPACED, client, domain_of, host_of
from tests.support.site import Reply as Played
from tests.support.site import Site, later, redirect

FREE: dict[str, Any] = {"qps": None, "pause_min": 0.0, "pause_max": 0.0}


def plain_sender(request: Request, limits: Limits) -> Reply:
    """The standard library's HTTP, one hop."""
    began = time.monotonic()
    connection = http.client.HTTPConnection(request.url.host, request.url.port, timeout=limits.timeout)
    try:
        connection.request(request.method, request.url.target, request.body, dict(request.headers.fields))
        answer = connection.getresponse()
        body = answer.read()
    except OSError as error:
        return Failure(Reason.CONNECTION_ERROR, str(error))
    finally:
        connection.close()
    took = time.monotonic() - began
    return Response(answer.status, Headers(answer.getheaders()), body, took, took, len(body))


class Threads:
    """What carries out flows for threads, on a fake clock."""

    def __init__(self, store: MemoryStore | None = None, clock: FakeClock | None = None, **limits: Any) -> None:
        self.clock = clock or FakeClock()
        self.store = store or MemoryStore(self.clock)
        policies = Policies(Policy(allow_private=True, zone=UTC, **limits), global_qps=None, user_agent=AGENT)
        timers = FakeTimers(self.clock)
        self.gate = Gate(self.store, timers=timers)
        timers.quiet = lambda: self.gate.lines.out == 0
        self.told: list[FetchRecord] = []
        self._around = Context(
            lambda: policies, timers.now, lambda: self.clock.now().epoch / SECOND, told=self.told.append
        )

    def fetch(self, url: str, sender: BlockingSender = plain_sender) -> FetchResult:
        driver = Driver(self._around, self.store, self.gate, sender)
        return drive(fetch(FetchRequest(url), self._around), driver)

    def host(self, url: str) -> Host:
        found = self.store.read("host:" + domain_of(url))
        assert isinstance(found, Host)
        return found


class Tasks(Threads):
    """The same for tasks, with the sender that comes with curtsy."""

    def __init__(self) -> None:
        super().__init__()
        timers = FakeTimers(self.clock)
        self._tasks_store = AsyncMemoryStore(self.store)
        self._tasks_gate = AsyncGate(self._tasks_store, timers=timers)
        timers.quiet = lambda: self._tasks_gate.lines.out == 0

    async def afetch(self, url: str, sender: AiohttpSender) -> FetchResult:
        driver = AsyncDriver(self._around, self._tasks_store, self._tasks_gate, sender)
        return await adrive(fetch(FetchRequest(url), self._around), driver)


def play_all(site: Site) -> None:
    """Robots.txt, redirects, retries, Retry-After, refusals."""
    site.robots("User-agent: *\nDisallow: /private\nCrawl-delay: 2\n")
    site.reply("/old", redirect("/new"))
    site.script("/new", [Played(500), later(7), Played(body="fine")])
    site.reply("/sly", redirect("/private/x"))


def has_gone_its_way(site: Site, threads: Threads, result: FetchResult, refused: list[Reason | None]) -> None:
    """All of that was obeyed, counted and told."""
    assert (result.text, result.final_url, result.record.attempts) == ("fine", site.url("/new"), 4)
    assert refused == [Reason.ROBOTS_DISALLOWED, Reason.ROBOTS_DISALLOWED]
    assert site.paths() == ["/robots.txt", "/old", "/new", "/new", "/new", "/sly"]
    assert {visit.header("User-Agent") for visit in site.journal} == {AGENT}
    host = threads.host(site.url("/"))
    assert (host.places, host.crawl_delay) == ((), 2 * SECOND)
    assert [(day.requests, day.pages) for day in host.days] == [(6, 1)]
    assert threads.clock.now().at - 1000 * SECOND >= (2 + 2 + 2 + 7 + 2) * SECOND
    assert [record.reason for record in threads.told] == [None, "robots_disallowed", "robots_disallowed"]


def test_one_flow_goes_the_same_way_for_threads(site: Site) -> None:
    """Issue 4, 1 and 2"""
    play_all(site)
    threads = Threads()

    result = threads.fetch(site.url("/old"))
    refused = [threads.fetch(site.url(path)).reason for path in ("/private", "/sly")]

    has_gone_its_way(site, threads, result, refused)


async def test_one_flow_goes_the_same_way_for_tasks(site: Site) -> None:
    """Issue 4, 1 and 2"""
    play_all(site)
    tasks, sender = Tasks(), AiohttpSender()

    result = await tasks.afetch(site.url("/old"), sender)
    refused = [(await tasks.afetch(site.url(path), sender)).reason for path in ("/private", "/sly")]
    await sender.close()

    has_gone_its_way(site, tasks, result, refused)


def test_threads_share_one_robots_txt_and_one_place(site: Site) -> None:
    """R5, P1, L9"""
    site.reply("/robots.txt", Played(body="User-agent: *\nDisallow: /private\n", wait=0.05))
    site.reply("/*", Played(body="x", wait=0.002))
    threads = Threads(**FREE)

    with ThreadPoolExecutor(12) as pool:
        kinds = ("private", "open")
        results = list(pool.map(lambda n: threads.fetch(site.url(f"/{kinds[n % 2]}/{n}")), range(24)))

    assert [result.ok for result in results] == [False, True] * 12
    assert site.count("/robots.txt") == 1
    assert len(site.paths()) == 13
    assert site.max_concurrency() == 1


def test_a_sender_that_raises_gives_everything_back(site: Site) -> None:
    """B5: what another library does not foresee comes out, and nothing is held"""
    threads = Threads(**FREE)

    def broken(request: Request, limits: Limits) -> Reply:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        threads.fetch(site.url("/"), broken)

    assert (threads.gate.lines.out, threads.gate.lines.waiting) == (0, 0)
    assert threads.host(site.url("/")).places == ()
    rules = threads.store.read("rules:http://" + domain_of(site.url("/")))
    assert (rules.claimed_by, rules.claimed_until) == (0, 0.0)
    assert threads.fetch(site.url("/")).status == 404


class Drowsy(MemoryStore):
    """A store in whose answer to the first charge a long sleep comes, as when a laptop is closed."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__(clock)
        self._fake = clock
        self.naps = 1

    def update(self, key: str, step: Step[Answer]) -> Answer:
        answer = super().update(key, step)
        if key.startswith("host:") and self.naps:
            self.naps -= 1
            self._fake.advance(100)
        return answer


def test_a_thread_that_slept_its_place_away_asks_for_another(site: Site) -> None:
    """Design, section 4: it looks before it sends"""
    site.page("/", "x")
    clock = FakeClock()
    threads = Threads(Drowsy(clock), clock, respect_robots=False, **FREE)

    assert threads.fetch(site.url("/")).ok

    assert site.count() == 1
    host = threads.host(site.url("/"))
    assert (host.places, sum(day.requests for day in host.days)) == ((), 2)  # what ran out is not given back


async def test_a_task_that_slept_its_place_away_asks_for_another(site: Site) -> None:
    """Design, section 4"""
    site.page("/", "x")
    clock = FakeClock()

    async with client(clock=clock, store=Drowsy(clock), respect_robots=False, **UNPACED) as web:
        assert (await web.fetch(site.url("/"))).ok
        host = await host_of(web, site.url("/"))

    assert site.count() == 1
    assert (host.places, sum(day.requests for day in host.days)) == ((), 2)
