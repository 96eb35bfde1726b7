"""Asking again: what, how often, when; and what a site may say about it."""

from __future__ import annotations

import asyncio
import errno
import itertools
import json
import os
from email.utils import formatdate
from typing import Any

import pytest

from curtsy.core.errors import BadStatus, Reason
from curtsy.core.record import FetchRecord
from curtsy.http.sender import HttpSender
from curtsy.testing import FakeClock
from tests.client.fetching import DAWN, TICK, UNPACED, client, host_of
from tests.support.bounds import Lateness
from tests.support.site import Reply, Site, closed_port, cut_short, hang, later, reset
from tests.support.snapshot import Snapshot

ALONE: dict[str, Any] = {**UNPACED, "respect_robots": False, "breaker": False, "adapt": False}
"""Nothing makes a request wait but the retries themselves."""


def date(seconds: float) -> str:
    return formatdate(seconds, usegmt=True)


async def test_four_attempts_wait_one_two_and_four_seconds_give_or_take_a_quarter(
    site: Site, snapshot: Snapshot
) -> None:
    """N2"""
    clock = FakeClock()
    came: list[float] = []
    site.on("/", lambda visit: came.append(clock.now().at / 1e6) or Reply(500))  # type: ignore[func-returns-value]

    async with client(clock=clock, **ALONE) as web:
        result = await web.fetch(site.url("/"))

    gaps = [b - a for a, b in itertools.pairwise(came)]
    assert (result.record.attempts, result.record.retries) == (4, 3)
    assert len(gaps) == 3
    for gap, wait in zip(gaps, (1, 2, 4), strict=True):
        assert 0.75 * wait - TICK <= gap <= 1.25 * wait + 0.001
    assert [each in result.message for each in (site.url("/"), "status 500", "4 tries")] == [True] * 3
    snapshot(result.message)


async def test_no_two_fetches_wait_the_same(site: Site) -> None:
    """N2: jitter"""
    site.reply("/", Reply(500))
    waits = set()

    for _ in range(5):
        async with client(**ALONE, max_retries=1) as web:
            waits.add((await web.fetch(site.url("/"))).record.waited)

    assert len(waits) == 5


PASSING: dict[str, Reply] = {
    "429": later(1),
    "500": Reply(500),
    "502": Reply(502),
    "503": Reply(503),
    "599": Reply(599),
    "a reset": reset(),
    "silence": hang(),
    "a body cut short": cut_short(b"x" * 50, 5),
}


@pytest.mark.parametrize("kind", PASSING)
async def test_what_may_pass_is_asked_for_again(site: Site, kind: str) -> None:
    """N3"""
    site.script("/", [PASSING[kind], Reply(body="fine")])

    async with client(**ALONE, timeout=1.5) as web:
        result = await web.fetch(site.url("/"))

    assert (result.text, result.status, result.record.attempts, result.record.retries) == ("fine", 200, 2, 1)
    assert result.retry_after is None


@pytest.mark.parametrize("status", [300, 304, 400, 401, 403, 404, 408, 409, 410, 425, 600])
async def test_what_will_not_pass_is_asked_for_once(site: Site, status: int) -> None:
    """N3"""
    site.reply("/", Reply(status))

    async with client(**ALONE) as web:
        await web.fetch(site.url("/"))

    assert site.count("/") == 1


async def test_every_retry_is_admitted_paced_and_counted(site: Site) -> None:
    """U4, F06"""
    site.reply("/", Reply(500))

    async with client(breaker=False, max_requests_per_day=3) as web:
        result = await web.fetch(site.url("/"))
        host = await host_of(web, site.url("/"))

    assert site.paths() == ["/robots.txt", "/", "/"]
    assert (result.status, result.reason) == (500, Reason.HTTP_STATUS)
    assert result.retry_after == pytest.approx(16 * 3600, abs=60)
    assert [(day.requests, day.pages) for day in host.days] == [(3, 0)]


async def test_a_failing_host_is_left_alone_after_three(site: Site) -> None:
    """Q5, F52: retries count, and the result says when to come back"""
    site.robots()
    site.reply("/*", Reply(500))

    async with client() as web:
        first = await web.fetch(site.url("/1"))
        others = await asyncio.gather(*(web.fetch(site.url(f"/{number}")) for number in range(2, 20)))

    assert (first.status, first.record.attempts) == (500, 3)
    assert first.retry_after == pytest.approx(300, abs=1)
    assert {result.reason for result in others} == {Reason.CIRCUIT_OPEN}
    assert site.paths() == ["/robots.txt", "/1", "/1", "/1"]


async def test_nothing_is_held_while_a_retry_waits(site: Site) -> None:
    """Issue 4, 4: its place in line is the next one's, who waits for the host's rest all the same"""
    site.script("/flaky", [later(30, 503), Reply(body="x")])
    site.page("/other", "x")

    async with client() as web:
        flaky, other = await asyncio.gather(web.fetch(site.url("/flaky")), web.fetch(site.url("/other")))

    assert site.paths() == ["/robots.txt", "/flaky", "/other", "/flaky"]
    assert other.record.waited >= 30 - TICK
    assert flaky.record.at > other.record.at
    assert site.max_concurrency() == 1


@pytest.mark.parametrize("status", [429, 503])
@pytest.mark.parametrize(
    ("said", "seconds"),
    [("7", 7), (" 7 ", 7), (date(DAWN + 30), 30), ("0", 0), (date(DAWN - 1000), 0), ("-3", None), ("soon", None),
     ("1.5", None), ("", None)],
)  # fmt: skip
async def test_retry_after_is_obeyed_to_the_second(site: Site, status: int, said: str, seconds: float | None) -> None:
    """N4, F50, U7: a date is read against the response's own; garbage counts as absent (C2)"""
    clock = FakeClock(DAWN + 5_000)  # our clock and the site's differ: that must not matter
    came: list[float] = []
    reply = Reply(status, headers={"Retry-After": said, "Date": date(DAWN)})
    turns = iter([reply, Reply(body="fine")])
    site.on("/", lambda visit: came.append(clock.now().at / 1e6) or next(turns))  # type: ignore[func-returns-value]

    async with client(clock=clock, **UNPACED, respect_robots=False, adapt=False) as web:
        result = await web.fetch(site.url("/"))

    if seconds is None and status == 429:
        assert (result.status, len(came)) == (429, 1)
        assert result.retry_after == pytest.approx(300, abs=2)
    else:
        assert result.ok
        gap = came[1] - came[0]
        assert gap >= (0.75 if seconds is None else seconds) - TICK
        assert gap <= (1.3 if seconds is None else seconds + 0.05)


async def test_no_request_arrives_before_retry_after_by_the_sites_own_clock(site: Site) -> None:
    """F50"""
    site.script("/a", [later(1), Reply(body="x")])
    site.page("/b", "x")

    with Lateness() as late:
        async with client(clock=None, **UNPACED, respect_robots=False, adapt=False) as web:
            await asyncio.gather(web.fetch(site.url("/a")), web.fetch(site.url("/b")))

    assert site.paths()[0] == "/a"
    assert site.gaps()[0] >= 0.95 - late.most


@pytest.mark.parametrize("said", ["61", "100000", "1000000000000", "9" * 40])
async def test_a_retry_after_that_is_too_long_to_wait_for_opens_the_breaker_for_as_long(site: Site, said: str) -> None:
    """C2, F50: a day at most, and the result says so"""
    site.reply("/", later(said))

    async with client() as web:
        result = await web.fetch(site.url("/"))
        second = await web.fetch(site.url("/"))

    expected = min(max(float(said), 300), 86_400)
    assert (result.status, site.count("/")) == (429, 1)
    assert result.retry_after == pytest.approx(expected, abs=2)
    assert ("max_retry_after" in result.message) is (float(said) > 86_400)
    assert second.reason is Reason.CIRCUIT_OPEN
    assert second.retry_after == pytest.approx(expected, abs=10)


async def test_a_retry_after_above_the_cap_is_named_in_the_result(site: Site, snapshot: Snapshot) -> None:
    """F50: by what the site asked for, what holds instead, and the setting that says so"""
    site.reply("/", later(7200, 503))

    async with client(max_retries=0, max_retry_after=1800) as web:
        result = await web.fetch(site.url("/"))

    assert result.retry_after == 1800
    assert [each in result.message for each in ("30 min", "2 h", "max_retry_after")] == [True] * 3
    snapshot(result.message)


@pytest.mark.parametrize("mode", ["obey", "trip", "retry"])
@pytest.mark.parametrize("status", [429, 503])
@pytest.mark.parametrize("after", [None, 5])
async def test_what_a_429_means_is_a_setting(site: Site, mode: str, status: int, after: int | None) -> None:
    """C2, Q5, N3, N8"""
    site.script("/", [later(after, status), Reply(body="fine")])

    async with client(on_429=mode, respect_robots=False) as web:
        result = await web.fetch(site.url("/"))
        host = await host_of(web, site.url("/"))

    trips = status == 429 and (mode == "trip" or (mode == "obey" and after is None))
    assert host.trips == (1 if trips else 0)
    assert result.status == (429 if trips else 200)
    assert result.record.attempts == (1 if trips else 2)
    if trips:
        assert result.retry_after == pytest.approx(300, abs=2)
    elif status == 429 or after:
        assert host.delay > 1_000_000  # the pace slows


async def test_a_post_is_not_sent_twice_unless_the_caller_says_so(site: Site) -> None:
    """Issue 4, 4"""
    site.reply("/", Reply(500))

    async with client(**ALONE) as web:
        once = await web.fetch(site.url("/"), method="POST", body=b"x")
        often = await web.fetch(site.url("/"), method="POST", body=b"x", idempotent=True)
        never = await web.fetch(site.url("/"), idempotent=False)

    assert (once.record.attempts, often.record.attempts, never.record.attempts) == (1, 4, 1)
    assert [visit.body for visit in site.journal] == [b"x"] * 5 + [b""]


async def test_an_outage_is_not_answered_with_a_storm(site: Site) -> None:
    """Issue 4, 4: a bucket of ten retries, and a tenth for every request"""
    site.reply("/*", Reply(500))

    async with client(**ALONE) as web:
        results = [await web.fetch(site.url(f"/{number}")) for number in range(100)]

    requests = len(site.journal)
    assert sum(result.record.retries for result in results) == requests - 100
    assert 100 + 10 < requests <= 100 + 10 + 0.1 * requests + 1


async def test_a_site_that_fails_leaves_retries_for_the_others(site: Site) -> None:
    """N3: with one bucket for all, its subdomains would take them all, and a page that fails once would be lost"""
    site.reply("/*", Reply(500))
    site.script("/", [Reply(500), Reply(500), Reply(body="fine")], host="honest.test")

    async with client(**ALONE, sender=HttpSender(resolver=site.names)) as web:
        for number in range(30):
            await web.fetch(site.url("/", host=f"h{number}.evil.test"))
        result = await web.fetch(site.url("/", host="honest.test"))

    assert (result.text, result.record.retries) == ("fine", 2)
    assert site.count() <= 30 + 10 + 6


async def test_a_retry_that_was_never_sent_is_not_counted_against_the_others(site: Site) -> None:
    """Issue 4, 4"""
    for number in range(2, 30):
        site.reply("/", later(), host=f"127.0.0.{number}")  # blocks: nothing is sent twice
    site.script("/", [Reply(500), Reply(500), Reply(body="fine")], host="127.0.0.1")

    async with client(**UNPACED, respect_robots=False) as web:
        await asyncio.gather(*(web.fetch(site.url("/", host=f"127.0.0.{number}")) for number in range(2, 30)))
        result = await web.fetch(site.url("/"))

    assert (result.text, result.record.retries) == ("fine", 2)


def spent(seconds: int) -> dict[str, dict[str, str]]:
    """The fields by which a site says that nothing is left for so many seconds."""
    return {
        "the draft's": {"RateLimit": f'"default";r=0;t={seconds}'},
        "a strange name": {"RateLimit": f'"remaining, r=9";r=0;t={seconds}'},
        "several limits": {"RateLimit": f'"burst";r=0;t={seconds}, "day";r=500;t=9000'},
        "its policy's window": {"RateLimit": '"default";r=0', "RateLimit-Policy": f'"default";q=10;w={seconds}'},
        "the older draft's": {"RateLimit": f"limit=100, remaining=0, reset={seconds}"},
        "separate fields": {"RateLimit-Limit": "9", "RateLimit-Remaining": "0", "RateLimit-Reset": str(seconds)},
        "the common ones": {"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": str(seconds)},
        "an epoch second": {
            "X-RateLimit-Remaining": "0", "X-RateLimit-Reset": str(int(DAWN) + seconds), "Date": date(DAWN),
        },
        "an epoch millisecond": {
            "X-RateLimit-Remaining": "0", "X-RateLimit-Reset": f"{int(DAWN) + seconds}000", "Date": date(DAWN),
        },
    }  # fmt: skip


SPENT = spent(40)


@pytest.mark.parametrize("kind", SPENT)
@pytest.mark.parametrize(("status", "breaker"), [(200, True), (404, True), (500, True), (200, False)])
async def test_a_long_rest_that_a_quota_asks_for_is_refused_and_not_waited_for(
    site: Site, kind: str, status: int, breaker: bool
) -> None:
    """C2: as after a Retry-After above obey_retry_after, the caller is told when to come back"""
    clock = FakeClock(DAWN)
    site.reply("/", Reply(status, body="x", headers=spent(3000)[kind]))
    site.page("/next", "x")

    async with client(clock=clock, max_retries=0, breaker=breaker) as web:
        first = await web.fetch(site.url("/"))
        refused = await web.fetch(site.url("/next"))
        clock.advance(3000)
        result = await web.fetch(site.url("/next"))

    assert first.status == status
    assert refused.reason is Reason.CIRCUIT_OPEN
    assert refused.retry_after == pytest.approx(3000, abs=10)
    assert refused.record.waited == 0
    assert result.ok
    assert site.paths() == ["/robots.txt", "/", "/next"]


@pytest.mark.parametrize("settings", [{}, {"breaker": False}, {"preset": "own"}, {"on_429": "retry"}], ids=str)
@pytest.mark.parametrize("status", [429, 500, 502, 503])
async def test_a_long_retry_after_is_refused_whatever_the_status_is(
    site: Site, status: int, settings: dict[str, Any]
) -> None:
    """C2, F50: and whether there is a breaker or not"""
    site.reply("/", later(3000, status))
    site.page("/next", "x")

    async with client(max_retries=0, **settings) as web:
        first = await web.fetch(site.url("/"))
        refused = await web.fetch(site.url("/next"))

    assert first.retry_after == pytest.approx(3000, abs=1)
    assert (refused.reason, refused.record.waited) == (Reason.CIRCUIT_OPEN, 0)
    assert refused.retry_after == pytest.approx(3000, abs=10)


async def test_retry_after_takes_precedence_over_a_quota(site: Site) -> None:
    """C2: the site knows best when it wants to be asked again"""
    site.script("/", [Reply(429, "x", {"Retry-After": "5", "RateLimit": '"day";r=0;t=3000'}), Reply(200, "fine")])

    async with client() as web:
        result = await web.fetch(site.url("/"))

    assert (result.text, result.record.retries) == ("fine", 1)
    assert result.record.waited < 20


@pytest.mark.parametrize("kind", SPENT)
async def test_a_host_whose_quota_is_spent_rests_until_the_reset(site: Site, kind: str) -> None:
    """Issue 4, 4"""
    site.reply("/", Reply(body="x", headers=SPENT[kind]))
    site.page("/next", "x")

    async with client() as web:
        assert (await web.fetch(site.url("/"))).ok
        result = await web.fetch(site.url("/next"))

    assert 40 - TICK <= result.record.waited <= 45


@pytest.mark.parametrize(
    "headers",
    [{"RateLimit": '"default";r=3;t=900'}, {"RateLimit": "nonsense"}, {"X-RateLimit-Remaining": "0"},
     {"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "nan"},
     {"X-RateLimit-Remaining": "7", "X-RateLimit-Reset": "900"},
     {"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "-5"}],
)  # fmt: skip
async def test_a_quota_that_is_not_spent_or_cannot_be_read_changes_nothing(site: Site, headers: dict[str, str]) -> None:
    """Issue 4, 4"""
    site.reply("/", Reply(body="x", headers=headers))
    site.page("/next", "x")

    async with client() as web:
        await web.fetch(site.url("/"))
        result = await web.fetch(site.url("/next"))

    assert result.record.waited <= 5.5


async def test_retry_after_zero_never_makes_us_faster_than_the_pace(site: Site) -> None:
    """U7"""
    site.script("/", [later(0), later(0, 503), Reply(body="x")])

    async with client(respect_robots=False) as web:
        result = await web.fetch(site.url("/"))

    assert result.record.attempts == 3
    assert result.record.waited >= 2 * 1.5 - TICK


async def test_a_bad_status_says_when_to_come_back(site: Site) -> None:
    """N5"""
    site.reply("/", later(120, 503))

    async with client(max_retries=0, breaker=False) as web:
        result = await web.fetch(site.url("/"))

    with pytest.raises(BadStatus) as caught:
        result.raise_for_reason()
    assert (caught.value.status, caught.value.retry_after) == (503, 120)
    assert (caught.value.url, caught.value.reason) == (site.url("/"), Reason.HTTP_STATUS)


@pytest.mark.parametrize(
    ("status", "seconds", "settings"),
    [
        (403, 20, {}),
        (429, 90, {"max_retries": 0}),
        (503, 90, {"max_retries": 0}),
        (429, 20, {"on_429": "trip"}),
    ],
)
async def test_when_to_come_back_is_not_before_the_breaker_closes(
    site: Site, status: int, seconds: int, settings: dict[str, Any]
) -> None:
    """C2: of the two waits it is the longer one"""
    site.script("/", [later(seconds, status), Reply(body="fine")])
    clock = FakeClock(DAWN)

    async with client(clock=clock, respect_robots=False, **settings) as web:
        first = await web.fetch(site.url("/"))
        assert first.retry_after is not None
        assert first.next_in == pytest.approx(first.retry_after, abs=TICK)
        clock.advance(first.retry_after + 0.01)
        second = await web.fetch(site.url("/"))

    assert first.retry_after == pytest.approx(300, abs=TICK)
    assert ("5 min" in first.message) == (status != 403)
    assert second.text == "fine"


async def test_connections_that_are_refused_are_tried_again() -> None:
    """N3"""
    with closed_port() as port:
        async with client(**ALONE) as web:
            result = await web.fetch(f"http://127.0.0.1:{port}/")

    assert (result.reason, result.record.attempts, result.record.retries) == (Reason.CONNECTION_ERROR, 0, 0)
    assert "4 tries" in result.message
    assert os.strerror(errno.ECONNREFUSED).lower() in result.message.lower()


async def test_who_looks_for_a_fault_is_told_of_each_wait_and_each_answer(
    site: Site, caplog: pytest.LogCaptureFixture, snapshot: Snapshot
) -> None:
    """N1: while it happens, not only at the end"""
    site.script("/a", [Reply(500), Reply(body="x")])

    with caplog.at_level("DEBUG", "curtsy"):
        async with client(**ALONE, retry_delay=10) as web:
            result = await web.fetch(site.url("/a"))

    lines = [record.getMessage().partition(" {") for record in caplog.records]
    told = [(words, json.loads(brace + fields)) for words, brace, fields in lines if brace]
    assert result.ok
    assert [(fields.get("status"), fields.get("because")) for _, fields in told] == [
        (500, None), (None, "rest"), (200, None), (200, None)
    ]  # fmt: skip
    snapshot("\n".join(words for words, _ in told))


async def test_the_record_of_a_failure_says_in_words_what_happened(site: Site) -> None:
    """Issue 4, 9"""
    site.reply("/a", Reply(404))
    told: list[FetchRecord] = []

    async with client(on_record=told.append) as web:
        good, bad = await web.fetch(site.url("/")), await web.fetch(site.url("/a"))

    assert (told[1].message, told[1].as_dict()["message"]) == (bad.message, bad.message)
    assert good.record is told[0]
