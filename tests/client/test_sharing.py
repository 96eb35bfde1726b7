"""Many tasks with one client: who shares a fetch, who waits for whom, and what becomes of them when it is closed."""

from __future__ import annotations

import asyncio
import gc
import itertools
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from curtsy.client import AsyncClient, session_of
from curtsy.core.errors import PolicyError, Reason
from curtsy.core.record import FetchRecord
from curtsy.engine.single_flight import SingleFlight
from curtsy.stores.memory import MemoryStore
from curtsy.testing import FakeClock
from tests.client.fetching import DAWN, TICK, UNPACED, client
from tests.support.bounds import Lateness
from tests.support.polling import until
from tests.support.site import (
    Reply,
    Site,
    deaf_port,
    hang,
    redirect,
)
from tests.support.snapshot import Snapshot


async def test_a_hundred_tasks_for_one_page_are_one_fetch(site: Site) -> None:
    """Issue 4, 5: one fetch however many tasks ask for the same URL at once"""
    site.page("/a", "x")

    async with client() as web:
        results = await asyncio.gather(*(web.fetch(site.url("/a")) for _ in range(100)))

    assert all(result.ok for result in results)
    assert site.paths() == ["/robots.txt", "/a"]


async def test_tasks_that_differ_in_their_headers_do_not_share(site: Site) -> None:
    """Issue 4, 5"""
    site.on("/a", lambda visit: Reply(body=visit.header("Accept-Language") or ""))

    async with client() as web:
        texts = await asyncio.gather(
            web.fetch(site.url("/a"), headers={"Accept-Language": "de"}),
            web.fetch(site.url("/a"), headers={"Accept-Language": "fr"}),
        )

    assert [each.text for each in texts] == ["de", "fr"]


async def test_all_spellings_of_a_url_are_one_fetch(site: Site) -> None:
    """Issue 4, 5, U1"""
    site.page("/a", "x")
    given = [(site.url(path), name) for path in ("/a", "/a#1", "/b/../a") for name in ("Accept", "accept")]

    async with client() as web:
        results = await asyncio.gather(*(web.fetch(url, headers={name: "text/html"}) for url, name in given))

    assert {result.text for result in results} == {"x"}
    assert site.paths() == ["/robots.txt", "/a"]


async def test_who_gives_credentials_does_not_share_with_who_has_none(site: Site) -> None:
    """Issue 4, 6"""
    site.on("/a", lambda visit: Reply(body=visit.header("Authorization") or "nobody"))

    async with client() as web:
        known, unknown = await asyncio.gather(
            web.fetch(site.url("/a").replace("://", "://me:secret@")), web.fetch(site.url("/a"))
        )

    assert known.text.startswith("Basic ")
    assert unknown.text == "nobody"


@pytest.mark.parametrize("ways", ["deadlines", "redirects", "clients"])
async def test_who_stood_in_line_for_a_page_that_is_kept_by_then_does_not_ask_for_it(
    site: Site, tmp_path: Path, ways: str
) -> None:
    """Issue 4: never a request that the cache could answer"""
    for number in range(3):
        site.reply(f"/to/{number}", redirect("/a"))
    site.page("/a", "x", headers={"Cache-Control": "max-age=900000000"})
    clock = FakeClock(DAWN)
    store = MemoryStore(clock)
    webs = [client(clock=clock, cache=tmp_path, store=store) for _ in range(3)]
    if ways == "clients":
        work = [web.fetch(site.url("/a")) for web in webs]
    elif ways == "deadlines":
        work = [webs[0].fetch(site.url("/a"), deadline=1000 + number) for number in range(3)]
    else:
        work = [webs[0].fetch(site.url(f"/to/{number}")) for number in range(3)]

    results = await asyncio.gather(*work)
    after = await webs[0].fetch(site.url("/other"), deadline=1000)
    for web in webs:
        await web.close()

    assert [result.text for result in results] == ["x"] * 3
    assert sorted(result.record.cache or "" for result in results) == ["", "hit", "hit"]
    assert site.count("/a") == 1
    assert after.status == 404


async def test_who_joins_late_has_his_own_deadline(site: Site) -> None:
    """U5: the first one's time is up, not his"""
    released = threading.Event()
    site.on("/a", lambda visit: Reply(body="x") if released.is_set() else hang())

    async with client(clock=None, **UNPACED, respect_robots=False) as web:
        first = asyncio.ensure_future(web.fetch(site.url("/a"), deadline=1.6))
        await until(lambda: site.count("/a"))
        assert not (await asyncio.wait([first], timeout=0.8))[0]
        second = asyncio.ensure_future(web.fetch(site.url("/a"), deadline=1.6))
        await asyncio.sleep(0)
        released.set()

        assert (await first).reason is Reason.TIMEOUT
        assert (await second).text == "x"


async def test_who_takes_over_has_waited_since_he_asked(site: Site) -> None:
    """U5: his deadline too is from then on"""
    site.reply("/a", hang())
    clock = FakeClock(DAWN)

    async with client(clock=clock, respect_robots=False) as web:
        first = asyncio.ensure_future(web.fetch(site.url("/a"), deadline=5))
        await until(lambda: site.count("/a"))
        clock.advance(1)
        second = asyncio.ensure_future(web.fetch(site.url("/a"), deadline=5))
        await asyncio.sleep(0)
        clock.advance(7)
        first.cancel()
        result = await second

    assert (result.reason, result.record.took) == (Reason.DEADLINE, 7)
    assert site.count("/a") == 1


async def test_who_takes_over_from_another_goes_by_what_holds_then(site: Site, tmp_path: Path) -> None:
    """U9: not by what held when he asked"""
    site.on("/a", lambda visit: Reply(body=visit.header("User-Agent") or "") if site.count("/a") > 1 else hang())
    settings = tmp_path / "curtsy.yaml"
    text = "user_agent: {}\ndefault_policy:\n  pause: [0, 0]\n  qps: null\n  respect_robots: false\n"
    settings.write_text(text.format("first/1.0 (+https://example.org/bot)"))
    async with AsyncClient(config=settings, store="memory:", cache=False, allow_private=True, global_qps=None) as web:
        first = asyncio.ensure_future(web.fetch(site.url("/a")))
        await until(lambda: site.count("/a"))
        second = asyncio.ensure_future(web.fetch(site.url("/a")))
        await asyncio.sleep(0)
        settings.write_text(text.format("second/1.0 (+https://example.org/bot)"))
        os.utime(settings, ns=(1, 1))
        session_of(web).settings.reload()
        first.cancel()

        result = await second

    assert result.text == "second/1.0 (+https://example.org/bot)"


async def test_one_of_those_who_share_may_go_without_harm_to_the_others(site: Site) -> None:
    """Issue 4, 5"""
    site.reply("/a", Reply(body="x", wait=0.1))

    async with client() as web:
        leaver = asyncio.ensure_future(web.fetch(site.url("/a")))
        stayer = asyncio.ensure_future(web.fetch(site.url("/a")))
        await until(lambda: site.count("/a"))
        leaver.cancel()

        assert (await stayer).ok

    assert leaver.cancelled()
    assert site.count("/a") == 2  # the first one's request ended with it: the one who stayed asked anew, in its turn
    assert site.max_concurrency() == 1


async def test_posts_are_never_shared(site: Site) -> None:
    """Issue 4, 4"""
    site.on("/form", lambda visit: Reply(body=visit.body))

    async with client() as web:
        results = await asyncio.gather(
            *(web.fetch(site.url("/form"), method="POST", body=each) for each in (b"1", b"2"))
        )

    assert [each.body for each in results] == [b"1", b"2"]


async def test_a_hundred_tasks_are_served_first_come_first_served_and_one_at_a_time(site: Site) -> None:
    """P1, issue 4, 1"""
    site.reply("/*", Reply(body="x", wait=0.001))
    told: list[FetchRecord] = []

    async with client(on_record=told.append, max_requests_per_day=0, max_pages_per_day=0) as web:
        await asyncio.gather(*(web.fetch(site.url(f"/{number}")) for number in range(100)))

    assert site.paths() == ["/robots.txt", *(f"/{number}" for number in range(100))]
    assert site.max_concurrency() == 1
    gaps = [b.at - a.at for a, b in itertools.pairwise(told)]
    assert min(gaps) >= 1.5 - TICK


async def test_fetches_that_wait_for_robots_txt_keep_their_order_on_every_store(site: Site, tmp_path: Path) -> None:
    """P1: the fetch that requested robots.txt was first, so its page comes first, also if the store takes time"""
    site.page("/*", "x")

    async with client(store=f"sqlite:///{tmp_path / 'state.sqlite'}") as web:
        await asyncio.gather(*(web.fetch(site.url(f"/{number}")) for number in range(8)))

    assert site.paths() == ["/robots.txt", *(f"/{number}" for number in range(8))]


async def test_in_real_time_no_two_requests_are_closer_than_the_pause(site: Site) -> None:
    """P1, Q1: by the site's own clock"""
    site.page("/*", "x")

    with Lateness() as late:
        async with client(clock=None, global_qps=None, qps=None, pause_min=0.25, pause_max=0.3) as web:
            await asyncio.gather(*(web.fetch(site.url(f"/{number}")) for number in range(6)))

    assert site.count() == 7
    assert min(site.gaps()) >= 0.2 - late.most  # a request that is noticed late makes the next gap look shorter
    assert sum(site.gaps()) < 6 * (0.3 + late.most) + 2
    assert site.max_concurrency() == 1


async def test_many_are_given_out_as_they_come_and_one_that_fails_stops_nobody(site: Site) -> None:
    """N10"""
    site.reply("/slow", Reply(body="slow", wait=0.3))
    site.page("/quick", "quick", host="127.0.0.2")
    urls = [site.url("/slow"), "nonsense", site.url("/quick", host="127.0.0.2")]

    async with client(clock=None, **UNPACED, respect_robots=False) as web:
        results = [result async for result in web.fetch_many(iter(urls))]

    assert [result.reason for result in results] == [Reason.INVALID_URL, None, None]
    assert [result.text for result in results[1:]] == ["quick", "slow"]


async def test_many_may_be_endless_and_what_is_not_wanted_any_more_is_given_back(site: Site) -> None:
    """B5"""
    site.page("/*", "x")

    def numbers() -> Any:
        number = 0
        while True:
            yield site.url(f"/{number}")
            number += 1

    async with client(**UNPACED) as web:
        results = web.fetch_many(numbers(), max_in_flight=4)
        got = [await anext(results) for _ in range(3)]
        await results.aclose()

        assert all(result.ok for result in got)
        assert session_of(web).gate.queues.waiting == 0
        assert session_of(web).gate.queues.out == 0


async def test_a_batch_that_cannot_be_sent_is_one_error(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    """F26: and nothing is left over that nobody looks at"""
    async with client() as web:
        with pytest.raises(PolicyError, match="header"):
            async for _ in web.fetch_many([site.url(f"/{number}") for number in range(5)], headers={"X": "a\nb"}):
                pass
    gc.collect()

    assert site.journal == []
    assert "never retrieved" not in caplog.text


async def test_an_url_that_is_none_does_not_end_a_batch(site: Site) -> None:
    """N10"""
    site.page("/*", "x")
    urls: list[Any] = [site.url("/1"), None, site.url("/2")]

    async with client() as web:
        results = [result async for result in web.fetch_many(urls)]

    assert sorted(result.ok for result in results) == [False, True, True]


async def test_a_client_that_is_closed_ends_what_is_under_way_with_a_result(
    site: Site, tmp_path: Path, snapshot: Snapshot
) -> None:
    """Issue 4, 1: a task that was not cancelled itself is not told that it was"""
    site.reply("/*", hang())
    told: list[FetchRecord] = []
    clock = FakeClock(DAWN)
    web = client(clock=clock, respect_robots=False, concurrency=4, on_record=told.append, **UNPACED)
    waiting: list[asyncio.Future[Any]] = [
        asyncio.ensure_future(web.fetch(site.url("/get"))),
        asyncio.ensure_future(web.fetch(site.url("/post"), method="POST", body=b"x")),
        asyncio.ensure_future(web.download(site.url("/file"), tmp_path / "file")),
    ]
    await until(lambda: site.count() == 3)

    clock.advance(7)
    await web.close()

    results = await asyncio.gather(*waiting)
    assert [result.reason for result in results] == [Reason.CLOSED] * 3
    assert site.url("/get") in results[0].message
    snapshot(results[0].message)
    assert [(record.attempts, record.robots_requests, record.took) for record in told] == [(1, 0, 7)] * 3
    assert all(result.record in told for result in results)
    assert session_of(web).gate.queues.out == 0
    await web.close()
    with pytest.raises(PolicyError, match="closed"):
        await web.fetch(site.url("/late"))


@pytest.mark.parametrize("download", [False, True])
async def test_a_fetch_that_is_closed_while_its_robots_txt_is_asked_for_has_sent_that_alone(
    site: Site, path: Path, download: bool
) -> None:
    """Issue 4, 9: attempts are without robots.txt"""
    site.reply("/robots.txt", hang())
    told: list[FetchRecord] = []
    web = client(on_record=told.append)
    url = site.url("/a")
    waiting: asyncio.Future[Any] = asyncio.ensure_future(web.download(url, path) if download else web.fetch(url))
    await until(lambda: site.count("/robots.txt"))

    await web.close()

    assert (await waiting).reason is Reason.CLOSED
    assert [(record.attempts, record.robots_requests) for record in told] == [(0, 1)]


async def test_a_fetch_that_is_closed_at_its_second_try_has_been_tried_twice(site: Site) -> None:
    """Issue 4, 9"""
    site.script("/a", [Reply(503), hang()])
    told: list[FetchRecord] = []
    web = client(on_record=told.append)
    waiting = asyncio.ensure_future(web.fetch(site.url("/a")))
    await until(lambda: site.count("/a") == 2)

    await web.close()

    assert (await waiting).reason is Reason.CLOSED
    assert [(each.attempts, each.retries, each.robots_requests) for each in told] == [(2, 1, 1)]


@pytest.mark.parametrize("place", ["memory:", "hosts.sqlite"])
async def test_who_would_take_over_when_all_is_closed_is_told_so_and_asks_nobody(
    site: Site, tmp_path: Path, place: str
) -> None:
    """Issue 4, 1: the first one has gone, and the second has not heard of it when the client is closed"""
    site.reply("/a", hang())
    told: list[FetchRecord] = []
    clock = FakeClock(DAWN)
    store = place if place == "memory:" else tmp_path / place
    web = client(clock=clock, store=store, respect_robots=False, on_record=told.append, **UNPACED)
    first = asyncio.ensure_future(web.fetch(site.url("/a")))
    await until(lambda: site.count("/a"))
    second = asyncio.ensure_future(web.fetch(site.url("/a")))
    await asyncio.sleep(0)
    clock.advance(7)
    first.cancel()
    while session_of(web)._single_flight.under_way:  # noqa: ASYNC110 -- the very turn of the loop counts
        await asyncio.sleep(0)

    await web.close()

    assert second.done()
    assert second.result().reason is Reason.CLOSED
    assert [(each.reason, each.attempts, each.took) for each in told] == [("closed", 0, 7)]
    assert site.count() == 1


async def test_when_all_is_closed_whoever_had_joined_has_been_told() -> None:
    """Issue 4, 1: what he has to say comes before the store is closed"""
    single_flight = SingleFlight()
    endless = asyncio.Event()

    async def work() -> str:
        await endless.wait()
        return "done"

    first, second = [asyncio.ensure_future(single_flight.join("a", work, lambda: "closed")) for _ in range(2)]
    await asyncio.sleep(0)
    first.cancel()
    while single_flight.under_way:  # noqa: ASYNC110 -- the very turn of the loop counts
        await asyncio.sleep(0)

    await single_flight.close()

    assert first.cancelled()
    assert second.done()
    assert second.result() == "closed"


async def test_requests_to_all_hosts_together_keep_the_global_rate(site: Site) -> None:
    """Q1, C8: 0.8 a second, or none with the preset for many hosts"""
    clock = FakeClock()
    came: list[float] = []
    site.on("/*", lambda visit: came.append(clock.now().at / 1e6) or Reply(body="x"))  # type: ignore[func-returns-value]
    urls = [site.url("/", host=f"127.0.0.{number}") for number in range(1, 7)]

    async with client(clock=clock) as web:
        await asyncio.gather(*(web.fetch(url) for url in urls))
    gaps = [b - a for a, b in itertools.pairwise(came)]
    came.clear()
    async with client(clock=clock, preset="broad") as web:
        await asyncio.gather(*(web.fetch(url) for url in urls))

    assert len(gaps) == 11
    assert min(gaps) >= 1.25 - TICK
    assert came[5] == came[0]


async def test_a_site_of_ones_own_is_asked_sixteen_times_at_once(site: Site) -> None:
    """C8"""
    site.reply("/*", Reply(body="x", wait=0.05))

    async with client(clock=None, preset="own", respect_robots=False) as web:
        results = await asyncio.gather(*(web.fetch(site.url(f"/{number}")) for number in range(40)))

    assert all(result.ok for result in results)
    assert 8 < site.max_concurrency() <= 16


async def test_a_fetch_that_is_closed_while_it_connects_has_sent_nothing() -> None:
    """Issue 4, 9"""
    told: list[FetchRecord] = []
    with deaf_port() as port:
        web = client(clock=None, respect_robots=False, on_record=told.append, **UNPACED)
        waiting = asyncio.ensure_future(web.fetch(f"http://127.0.0.1:{port}/"))
        await until(lambda: session_of(web).gate.queues.out)
        await asyncio.sleep(0)
        await web.close()
        await waiting

    assert [(record.reason, record.attempts) for record in told] == [("closed", 0)]
