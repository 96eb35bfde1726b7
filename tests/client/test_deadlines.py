"""Deadlines: for the whole of a fetch; one that cannot be met is refused at once, with the time it would have taken."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from curtsy.client import session_of
from curtsy.core.errors import Reason, RefusedByPolicy
from curtsy.testing import FakeClock
from tests.client.fetching import UNPACED, client, host_of, lease_is_renewed, lease_until
from tests.support.bounds import ends_within
from tests.support.polling import until
from tests.support.site import Reply, Site, dripping, hang, later, redirect
from tests.support.snapshot import Snapshot

STEADY: dict[str, Any] = {"pause_min": 3.0, "pause_max": 3.0, "global_qps": None, "respect_robots": False}


async def test_a_deadline_that_cannot_be_met_is_refused_at_once_with_the_time_it_would_take(
    site: Site, snapshot: Snapshot
) -> None:
    """U5"""
    site.page("/*", "x")
    clock = FakeClock()

    async with client(clock=clock, **STEADY) as web:
        await web.fetch(site.url("/1"))
        began = clock.now().at
        result = await web.fetch(site.url("/2"), deadline=2)

    assert clock.now().at == began
    assert (result.reason, result.status) == (Reason.DEADLINE, None)
    assert result.retry_after == pytest.approx(3, abs=0.01)
    assert site.url("/2") in result.message
    assert "in 3 s" in result.message
    snapshot(result.message)
    assert site.count() == 1
    with pytest.raises(RefusedByPolicy):
        result.raise_for_reason()


async def test_those_who_stand_before_it_are_counted(site: Site) -> None:
    """U5: the twentieth in line knows that its turn comes in a minute"""
    site.reply("/*", hang())

    async with client(**STEADY) as web:
        tasks = [asyncio.ensure_future(web.fetch(site.url(f"/{number}"))) for number in range(20)]
        await until(lambda: site.count() == 1 and session_of(web).gate.queues.waiting == 19)
        with ends_within(5):
            late = await web.fetch(site.url("/late"), deadline=50)
        for task in tasks:
            task.cancel()

    assert late.reason is Reason.DEADLINE
    assert late.retry_after is not None
    assert late.retry_after >= 57 - 3


async def test_a_deadline_that_can_be_met_changes_nothing(site: Site) -> None:
    """U5"""
    site.page("/*", "x")

    async with client(**STEADY) as web:
        results = [await web.fetch(site.url(f"/{number}"), deadline=3.5) for number in range(4)]

    assert [result.ok for result in results] == [True] * 4


async def test_a_retry_that_would_come_too_late_is_not_waited_for(site: Site) -> None:
    """U5, U4: the result keeps the last status, and says when to come back"""
    site.reply("/", later(30, 503))
    clock = FakeClock()

    async with client(clock=clock, **STEADY) as web:
        began = clock.now().at
        result = await web.fetch(site.url("/"), deadline=20)

    assert clock.now().at == began
    assert (result.status, result.reason, result.record.attempts) == (503, Reason.HTTP_STATUS, 1)
    assert result.retry_after == pytest.approx(30, abs=0.1)
    assert "in 30 s" in result.message


async def test_redirects_and_retries_share_one_deadline(site: Site) -> None:
    """U5"""
    site.reply("/1", redirect("/2"))
    site.script("/2", [Reply(500), Reply(body="x")])

    async with client(**STEADY) as web:
        short = await web.fetch(site.url("/1"), deadline=4)
        site.script("/2", [Reply(500), Reply(body="x")])
        enough = await web.fetch(site.url("/1"), deadline=13)

    assert (short.status, short.record.attempts) == (500, 2)
    assert (enough.text, enough.record.attempts) == ("x", 3)


async def test_a_client_may_have_a_deadline_for_all_of_its_fetches(site: Site) -> None:
    """U5"""
    site.page("/*", "x")

    async with client(deadline=1, **STEADY) as web:
        results = [await web.fetch(site.url("/1")), await web.fetch(site.url("/2"))]
        patient = await web.fetch(site.url("/3"), deadline=60)

    assert [result.reason for result in results] == [None, Reason.DEADLINE]
    assert patient.ok


async def test_an_answer_that_does_not_come_by_the_deadline_is_a_timeout_and_no_fault_of_the_site(site: Site) -> None:
    """U5, U6: three hasty callers do not close a site for everybody"""
    site.reply("/slow/*", hang())
    site.page("/quick", "x")

    async with client(clock=None, **UNPACED, respect_robots=False, concurrency=3) as web:
        with ends_within(10):
            hasty = await asyncio.gather(*(web.fetch(site.url(f"/slow/{number}"), deadline=1.5) for number in range(3)))
        host = await host_of(web, site.url("/"))
        quick = await web.fetch(site.url("/quick"))

    assert {result.reason for result in hasty} == {Reason.TIMEOUT}
    assert (host.failures, host.places) == (0, ())
    assert [day.requests for day in host.days] == [3]
    assert quick.ok


async def test_no_connection_by_the_deadline_is_no_fault_of_a_site_that_was_not_asked(
    site: Site, snapshot: Snapshot
) -> None:
    """U5, U6, B5: others have them all"""
    site.reply("/hang", hang(), host="127.0.0.1")
    site.page("/", "x", host="127.0.0.2")
    url = site.url("/", host="127.0.0.2")

    async with client(clock=None, **UNPACED, respect_robots=False, max_in_flight=1) as web:
        first = asyncio.ensure_future(web.fetch(site.url("/hang")))
        await until(lambda: site.count("/hang"))
        with ends_within(10):
            hasty = [await web.fetch(url, deadline=0.3) for _ in range(4)]
        host = await host_of(web, url)
        patient = asyncio.ensure_future(web.fetch(url))
        await until(lambda: lease_until(web, url))
        first.cancel()
        answer = await patient

    assert {result.reason for result in hasty} == {Reason.DEADLINE}
    assert "all 1 connections" in hasty[0].message
    snapshot(hasty[0].message)
    assert (host.failures, host.places) == (0, ())
    assert [day.requests for day in host.days] == [0]
    assert answer.ok
    assert site.paths("127.0.0.2") == ["/"]


async def test_a_request_that_waits_for_a_connection_keeps_its_place(site: Site, tmp_path: Path) -> None:
    """Design, rule 5: the lease is renewed, however long others have them all"""
    clock = FakeClock()
    site.reply("/long", dripping(b"x" * 10_000, 0.005), host="127.0.0.1")
    url = site.url("/", host="127.0.0.2")
    settings: dict[str, Any] = {**UNPACED, "timeout": 0.4, "robots_timeout": 0.4, "min_speed": 0}

    async with client(clock=clock, max_in_flight=1, respect_robots=False, **settings) as web:
        others = asyncio.ensure_future(web.download(site.url("/long"), tmp_path / "long"))
        await until(lambda: site.count("/long"))
        waiting = asyncio.ensure_future(web.fetch(url))
        await until(lambda: lease_until(web, url))
        before = await lease_until(web, url)
        clock.advance(4)  # of the 5.4 s that the place was given for
        await until(lambda: lease_is_renewed(web, url, before))
        others.cancel()
        answer = await waiting

    assert answer.status == 404


async def test_the_sites_own_silence_is_still_its_fault(site: Site) -> None:
    """U6"""
    site.reply("/slow", hang())

    async with client(clock=None, **UNPACED, respect_robots=False, timeout=0.5, max_retries=0) as web:
        await web.fetch(site.url("/slow"), deadline=30)
        host = await host_of(web, site.url("/"))

    assert host.failures == 1


@pytest.mark.alone
async def test_who_waits_for_robots_txt_waits_no_longer_than_his_deadline(site: Site) -> None:
    """U5, R5: in real time, behind somebody who has no deadline"""
    site.reply("/robots.txt", Reply(wait=0.8))
    site.page("/*", "x")

    async with client(clock=None, **UNPACED) as web:
        patient = asyncio.ensure_future(web.fetch(site.url("/patient")))
        await until(lambda: site.count("/robots.txt"))
        with ends_within(0.6):
            hasty = await web.fetch(site.url("/hasty"), deadline=0.2)

        assert (await patient).ok

    assert hasty.reason is Reason.DEADLINE
    assert site.count("/hasty") == 0


@pytest.mark.alone
async def test_who_takes_over_from_another_has_waited_already(site: Site) -> None:
    """U5: one deadline, though the one that it shared a fetch with has left"""
    site.reply("/slow", hang())

    async with client(clock=None, **UNPACED, respect_robots=False) as web:
        first = asyncio.ensure_future(web.fetch(site.url("/slow"), deadline=0.6))
        second = asyncio.ensure_future(web.fetch(site.url("/slow"), deadline=0.6))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(first, 0.4)
        with ends_within(0.5):
            result = await second

    assert result.reason is Reason.TIMEOUT


@pytest.mark.parametrize("deadline", [0, 0.0001, -1])
async def test_no_time_at_all_is_refused_but_for_what_is_kept(site: Site, tmp_path: Path, deadline: float) -> None:
    """U5"""
    site.reply("/kept", Reply(body="x", headers={"Cache-Control": "max-age=900000000"}))

    async with client(cache=tmp_path / "pages", **STEADY) as web:
        await web.fetch(site.url("/kept"))
        kept = await web.fetch(site.url("/kept"), deadline=deadline)
        other = await web.fetch(site.url("/other"), deadline=deadline)

    assert kept.from_cache
    assert other.reason is Reason.DEADLINE
    assert site.count("/other") == 0


async def test_a_deadline_before_an_open_breaker_or_a_spent_budget_is_told_the_reason(site: Site) -> None:
    """U5, B2: what refuses goes before what waits"""
    site.page("/*", "x")

    async with client(max_requests_per_day=1, **STEADY) as web:
        await web.fetch(site.url("/1"))
        result = await web.fetch(site.url("/2"), deadline=1)

    assert result.reason is Reason.DOMAIN_BUDGET_EXCEEDED
