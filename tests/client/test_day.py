"""Whole days of fetching, in seconds: budgets, the breaker with its one trial, and the pace that adapts."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable

import pytest

from curtsy.core.errors import Reason
from curtsy.testing import FakeClock
from tests.client.fetching import DAWN, TICK, client, host_of
from tests.support.site import Reply, Site, Visit, later

HOUR = 3600.0
MIDNIGHT = DAWN + 16 * HOUR


class Log:
    """When each page was asked for, in seconds of the fake clock since it was started."""

    def __init__(self, clock: FakeClock, answer: Callable[[float], Reply]) -> None:
        self._clock = clock
        self._began = clock.now().at
        self._answer = answer
        self.times: list[float] = []

    @property
    def now(self) -> float:
        return (self._clock.now().at - self._began) / 1e6

    def __call__(self, visit: Visit) -> Reply:
        self.times.append(self.now)
        return self._answer(self.now)

    @property
    def gaps(self) -> list[float]:
        return [b - a for a, b in itertools.pairwise(self.times)]


async def test_a_day_has_its_budget_and_the_next_day_starts_fresh(site: Site) -> None:
    """B1, B2, B6: from eight in the morning of one day to the evening of the next"""
    site.page("/*", "x")
    clock = FakeClock(DAWN)
    by_day: dict[int, list[Reason | None]] = {}

    async with client(clock=clock) as web:
        for number in range(0, 40 * 60, 8):  # a page every eight minutes, for forty hours
            clock.advance(max(0.0, DAWN + number * 60 - clock.now().epoch / 1e6))
            result = await web.fetch(site.url(f"/{number}"))
            by_day.setdefault(int(clock.now().epoch / 1e6 >= MIDNIGHT), []).append(result.reason)
            if result.reason is Reason.DOMAIN_BUDGET_EXCEEDED:
                left = (MIDNIGHT + (86_400 if len(by_day) == 2 else 0)) - clock.now().epoch / 1e6
                assert result.retry_after == pytest.approx(left, abs=1)
                assert "100 pages" in result.message
                assert f"2027-01-{14 + len(by_day)}" in result.message
                assert "max_pages_per_day" in result.message

    for reasons in by_day.values():
        assert reasons[:100] == [None] * 100
        assert set(reasons[100:]) == {Reason.DOMAIN_BUDGET_EXCEEDED}
    assert len(by_day[0]) > 110
    assert len(by_day[1]) > 110
    assert site.count() - site.count("/robots.txt") == 200
    assert 25 <= site.count("/robots.txt") <= 41  # once an hour, while there was something to ask for


async def test_requests_that_bring_no_page_are_limited_too(site: Site) -> None:
    """B1: two hundred a day, robots.txt among them"""
    clock = FakeClock(DAWN)

    async with client(clock=clock) as web:
        for number in range(220):
            result = await web.fetch(site.url(f"/missing/{number}"))

    assert result.reason is Reason.DOMAIN_BUDGET_EXCEEDED
    assert "200 requests" in result.message
    assert "2027-01-15" in result.message
    assert "max_requests_per_day" in result.message
    assert site.count() == 200


async def test_a_site_that_is_down_is_tried_once_after_each_cooldown(site: Site) -> None:
    """Q4, Q5, F52: five minutes, ten, twenty …; however many ask, be it for a page or for robots.txt"""
    clock = FakeClock(DAWN)
    log = Log(clock, lambda now: Reply(500) if now < 2 * HOUR else Reply(body=""))
    site.on("/*", log)
    reasons = []

    async with client(clock=clock, max_retries=0, max_requests_per_day=0, max_pages_per_day=0) as web:
        for minute in range(4 * 60):
            clock.advance(max(0.0, minute * 60 - log.now))
            results = await asyncio.gather(*(web.fetch(site.url(f"/page/{minute}/{n}")) for n in range(5)))
            reasons.append({result.reason for result in results})
        host = await host_of(web, site.url("/"))

    down = [at for at in log.times if at < 2 * HOUR]
    trials = [b - a for a, b in itertools.pairwise(down[2:])]
    assert trials[:4] == pytest.approx([300, 600, 1200, 2400], abs=70)
    assert len(down) == 3 + 4
    assert reasons[-1] == {None}
    assert host.tripped_at == 0
    assert host.failed_trials == 0
    well = next(at for at in log.times if at >= 2 * HOUR)
    assert well - down[-1] <= 4800 + 70


async def test_a_hundred_tasks_make_one_trial(site: Site) -> None:
    """Q4: half-open lets one through, the others wait for what comes of it"""
    site.robots()
    clock = FakeClock(DAWN)
    replies = iter([Reply(403), Reply(500, wait=0.05)])
    site.on("/page/*", lambda visit: next(replies))

    async with client(clock=clock, max_retries=0) as web:
        await web.fetch(site.url("/page/first"))
        clock.advance(301)
        results = await asyncio.gather(*(web.fetch(site.url(f"/page/{number}")) for number in range(100)))

    assert sorted(result.reason or "" for result in results) == [Reason.CIRCUIT_OPEN] * 99 + [Reason.HTTP_STATUS]
    assert len(site.paths()) == 3
    refused = [result.retry_after for result in results if result.reason is Reason.CIRCUIT_OPEN]
    assert set(refused) == {600.0}


async def test_the_pace_slows_when_the_site_asks_and_comes_back_when_it_is_well(site: Site) -> None:
    """N8, Q12: up by doubling or by what the site says, down by a tenth after every ten successes"""
    site.robots()
    clock = FakeClock(DAWN)
    troubles = iter([later(7), later(9)])
    log = Log(clock, lambda now: next(troubles, Reply(body="x")))
    site.on("/page/*", log)
    settings = {"pause_min": 0.0, "pause_max": 0.0, "qps": 1.0, "global_qps": None}

    async with client(clock=clock, max_requests_per_day=0, max_pages_per_day=0, **settings) as web:
        for number in range(260):
            assert (await web.fetch(site.url(f"/page/{number}"))).ok
        host = await host_of(web, site.url("/"))

    gaps = log.gaps
    assert gaps[0] >= 7 - TICK
    assert gaps[1] >= 9 - TICK
    assert gaps[2:11] == pytest.approx([9] * 9, abs=0.05)  # the pace that the site asked for
    assert gaps[12:21] == pytest.approx([8.1] * 9, abs=0.05)  # a tenth less after ten successes
    assert all(later_gap <= sooner + 0.05 for sooner, later_gap in itertools.pairwise(gaps[2:]))
    assert gaps[-1] == pytest.approx(1.0, abs=0.05)
    assert min(gaps) >= 1 - TICK
    assert host.delay == 0


async def test_a_429_that_does_not_say_doubles_the_delay_where_it_may_be_retried(site: Site) -> None:
    """N8, C2: `on_429: retry`, up to ten seconds"""
    site.robots()
    clock = FakeClock(DAWN)
    log = Log(clock, lambda now: later() if len(log.times) <= 6 else Reply(body="x"))
    site.on("/page/*", log)
    settings = {"pause_min": 0.0, "pause_max": 0.0, "qps": 1.0, "global_qps": None, "on_429": "retry"}

    async with client(clock=clock, max_retries=8, retry_delay=0.0, **settings) as web:
        result = await web.fetch(site.url("/page/1"))

    assert result.ok
    assert log.gaps == pytest.approx([2, 4, 8, 10, 10, 10], abs=0.05)


async def test_a_slow_site_is_asked_less_often(site: Site) -> None:
    """Q12: five seconds of delay for each second above the target"""
    site.reply("/*", Reply(body="x", wait=0.12))
    clock = FakeClock(DAWN)
    settings = {"pause_min": 0.0, "pause_max": 0.0, "qps": 10.0, "global_qps": None, "target_latency": 0.02}

    async with client(clock=clock, respect_robots=False, **settings) as web:
        await web.fetch(site.url("/1"))
        result = await web.fetch(site.url("/2"))

    assert result.record.waited >= 0.45


async def test_a_clock_set_back_opens_no_second_budget(site: Site) -> None:
    """B6"""
    site.page("/*", "x")
    clock = FakeClock(DAWN)

    async with client(clock=clock, max_pages_per_day=3) as web:
        spent = [(await web.fetch(site.url(f"/{number}"))).reason for number in range(4)]
        clock.set_back(3 * 86_400)
        earlier = [(await web.fetch(site.url(f"/e{number}"))).reason for number in range(4)]
        clock.set_back(-3 * 86_400)
        again = await web.fetch(site.url("/again"))
        clock.advance(16 * HOUR)
        fresh = await web.fetch(site.url("/fresh"))

    assert spent == [None, None, None, Reason.DOMAIN_BUDGET_EXCEEDED]
    assert earlier.count(None) <= 3
    assert again.reason is Reason.DOMAIN_BUDGET_EXCEEDED
    assert fresh.ok


async def test_a_clock_that_jumps_a_day_ahead_shortens_no_pause(site: Site) -> None:
    """F48"""
    site.page("/*", "x")
    clock = FakeClock(DAWN)
    log = Log(clock, lambda now: Reply(body="x"))
    site.on("/page/*", log)

    async with client(clock=clock) as web:
        for number in range(6):
            if number == 3:
                clock.set_back(-86_400)
            await web.fetch(site.url(f"/page/{number}"))

    assert min(log.gaps) >= 1.5 - TICK
    assert max(log.gaps) <= 12  # robots.txt was asked for again meanwhile
