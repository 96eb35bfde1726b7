"""Kept pages that are past their time: asked about, renewed behind, or standing in for an answer that failed."""

from __future__ import annotations

import asyncio
import itertools
from pathlib import Path
from typing import Any

import pytest

from curtsy.blocking import get
from curtsy.cache.disk import DiskCache
from curtsy.client import fetch_url, session_of
from curtsy.core.errors import Reason, RefusedByPolicy
from curtsy.core.record import FetchRecord
from curtsy.stores.memory import MemoryStore
from curtsy.testing import FakeClock
from tests.client.fetching import UNPACED, client, host_of
from tests.client.keeping import HOUR, dated, keeping
from tests.support.polling import until
from tests.support.site import Reply, Site, redirect, reset
from tests.support.snapshot import Snapshot


async def test_a_stale_page_is_asked_about_and_a_304_renews_it(site: Site, place: Path, clock: FakeClock) -> None:
    """N6, B5: 304 costs no budget, and keeps the page"""
    site.on(
        "/a",
        lambda visit: Reply(
            304 if visit.header("If-None-Match") else 200, "kept", dated(clock, "max-age=60", ETag='"1"')
        ),
    )

    async with keeping(place, clock) as web:
        await web.fetch(site.url("/a"))
        before = (await host_of(web, site.url("/"))).days
        clock.advance(100)
        renewed = await web.fetch(site.url("/a"))
        after = (await host_of(web, site.url("/"))).days
        hit = await web.fetch(site.url("/a"))

    assert (renewed.text, renewed.status, renewed.record.cache) == ("kept", 200, "revalidated")
    assert (renewed.from_cache, renewed.record.bytes, renewed.record.attempts) == (True, 0, 1)
    assert site.visits("/a")[1].header("If-None-Match") == '"1"'
    assert site.visits("/a")[1].status == 304
    assert before == after
    assert hit.record.cache == "hit"
    assert site.count("/a") == 2


async def test_a_stale_page_that_has_changed_is_replaced(site: Site, place: Path, clock: FakeClock) -> None:
    """N6"""
    site.page("/a", "old", etag='"1"')

    async with keeping(place, clock) as web:
        await web.fetch(site.url("/a"))
        site.page("/a", "new", etag='"2"')
        changed = await web.fetch(site.url("/a"))
        again = await web.fetch(site.url("/a"))

    assert (changed.text, changed.from_cache) == ("new", False)
    assert (again.text, again.record.cache) == ("new", "revalidated")


async def test_a_second_run_over_unchanged_pages_downloads_next_to_nothing(
    site: Site, place: Path, clock: FakeClock
) -> None:
    """N11: the document's 19 chapters of 100 KB, in its own always-revalidate mode"""
    for chapter in range(19):
        site.page(f"/{chapter}", f"{chapter}" * 100_000, etag=f'"{chapter}"')
    urls = [site.url(f"/{chapter}") for chapter in range(19)]
    runs: list[list[FetchRecord]] = []

    for _ in range(2):
        told: list[FetchRecord] = []
        async with keeping(place, clock, cache_mode="revalidate", on_record=told.append, **UNPACED) as web:
            results = [result async for result in web.fetch_many(urls)]
        assert all(result.ok and len(result.body) >= 100_000 for result in results)
        runs.append(told)

    assert sum(record.bytes for record in runs[0]) >= 1_900_000
    assert sum(record.bytes for record in runs[1]) == 0
    assert {record.cache for record in runs[1]} == {"revalidated"}
    assert sum(visit.taken for visit in site.journal[-19:]) < 19 * 400


async def test_always_revalidate_asks_even_for_what_is_fresh(site: Site, place: Path, clock: FakeClock) -> None:
    """N6"""
    site.page("/a", "kept", etag='"1"', headers=HOUR)

    async with keeping(place, clock, cache_mode="revalidate") as web:
        results = [await web.fetch(site.url("/a")) for _ in range(2)]

    assert results[1].record.cache == "revalidated"
    assert site.count("/a") == 2


async def test_refresh_asks_as_if_nothing_were_kept_and_keeps_what_comes(
    site: Site, place: Path, clock: FakeClock
) -> None:
    """Issue 4, 5"""
    site.page("/a", "kept", etag='"1"', headers=HOUR)

    async with keeping(place, clock, cache_mode="refresh") as web:
        results = [await web.fetch(site.url("/a")) for _ in range(2)]
    async with keeping(place, clock) as web:
        hit = await web.fetch(site.url("/a"))

    assert [result.record.cache for result in results] == [None, None]
    assert site.visits("/a")[1].header("If-None-Match") is None
    assert hit.record.cache == "hit"


async def test_offline_answers_from_the_cache_only(
    site: Site, place: Path, clock: FakeClock, tmp_path: Path, snapshot: Snapshot
) -> None:
    """Issue 4, 5: however old; a miss is a clear result; nothing is ever sent"""
    site.page("/a", "kept", headers={"Cache-Control": "max-age=1"})
    async with keeping(place, clock) as web:
        await web.fetch(site.url("/a"))
    clock.advance(1_000_000)
    site.clear()

    async with keeping(place, clock, cache_mode="offline") as web:
        hit = await web.fetch(site.url("/a"))
        miss = await web.fetch(site.url("/b"))
        post = await web.fetch(site.url("/a"), method="POST", body=b"x")
        download = await web.download(site.url("/a"), tmp_path / "file")

    assert (hit.text, hit.from_cache) == ("kept", True)
    assert miss.reason is post.reason is download.reason is Reason.NOT_IN_CACHE
    assert site.url("/b") in miss.message
    snapshot(miss.message)
    with pytest.raises(RefusedByPolicy):
        miss.raise_for_reason()
    assert site.journal == []


async def test_offline_without_a_cache_sends_nothing_either(site: Site) -> None:
    """Issue 4, 5"""
    async with client(cache=False, cache_mode="offline") as web:
        result = await web.fetch(site.url("/"))

    assert result.reason is Reason.NOT_IN_CACHE
    assert site.journal == []


async def test_a_page_that_may_be_stale_is_given_out_at_once_and_renewed_behind(
    site: Site, place: Path, clock: FakeClock
) -> None:
    """Issue 4, 5: stale-while-revalidate"""
    site.page("/a", "old", headers={"Cache-Control": "max-age=60, stale-while-revalidate=600"})

    async with keeping(place, clock) as web:
        await web.fetch(site.url("/a"))
        clock.advance(100)
        site.on("/a", lambda visit: Reply(body="new", headers=dated(clock, "max-age=60")))
        stale = await asyncio.gather(*(web.fetch(site.url("/a")) for _ in range(3)))
        await until(lambda: site.count("/a") == 2 and not session_of(web).revalidations)
        fresh = await web.fetch(site.url("/a"))

    assert {(result.text, result.record.cache) for result in stale} == {("old", "stale")}
    assert (fresh.text, fresh.record.cache) == ("new", "hit")
    assert site.count("/a") == 2


async def test_a_post_that_led_to_a_stale_page_is_not_sent_again_to_renew_it(
    site: Site, place: Path, clock: FakeClock
) -> None:
    """Issue 4, 4 and 5"""
    site.reply("/form", redirect("/a", 303))
    site.page("/a", "old", headers={"Cache-Control": "max-age=60, stale-while-revalidate=600"})

    async with keeping(place, clock) as web:
        await web.fetch(site.url("/a"))
        clock.advance(100)
        result = await web.fetch(site.url("/form"), method="POST", body=b"order")
        await until(lambda: site.count("/a") == 2 and not session_of(web).revalidations)

    assert result.record.cache == "stale"
    assert site.count("/form") == 1


@pytest.mark.parametrize("fault", ["500", "503", "reset", "gone"])
async def test_a_kept_page_stands_in_for_an_answer_that_failed(
    site: Site, place: Path, clock: FakeClock, fault: str
) -> None:
    """Issue 4, 5: stale-if-error, the site's permission or the user's own"""
    site.page("/a", "kept", headers={"Cache-Control": "max-age=60, stale-if-error=600"})
    site.page("/b", "kept", headers={"Cache-Control": "max-age=60"})
    replies = {"500": Reply(500), "503": Reply(503), "reset": reset(), "gone": Reply(404)}

    async with keeping(place, clock, max_retries=0, breaker=False) as web:
        for path in ("/a", "/b"):
            await web.fetch(site.url(path))
        clock.advance(100)
        for path in ("/a", "/b"):
            site.reply(path, replies[fault])
        permitted, strict = [await web.fetch(site.url(path)) for path in ("/a", "/b")]
    async with keeping(place, clock, max_retries=0, breaker=False, stale_if_error=600) as web:
        own = await web.fetch(site.url("/b"))

    if fault == "gone":
        assert permitted.status == 404
    else:
        assert (permitted.text, permitted.record.cache, permitted.ok) == ("kept", "stale", True)
        assert not strict.ok
        assert (own.text, own.record.cache) == ("kept", "stale")


@pytest.mark.parametrize("robots", ["known", "also failing"])
async def test_a_kept_page_goes_on_standing_in_when_the_breaker_has_opened(
    site: Site, place: Path, clock: FakeClock, robots: str
) -> None:
    """Issue 4, 5: not only until we stop asking; that the site fails is what the breaker says, too"""
    site.page("/*", "kept", headers={"Cache-Control": "max-age=60, stale-if-error=86400"})
    urls = [site.url(f"/{number}") for number in range(8)]

    async with keeping(place, clock, max_retries=0, robots_unreachable="disallow", **UNPACED) as web:
        for url in urls:
            await web.fetch(url)
        clock.advance(100 if robots == "known" else 7200)
        site.reply("/*", Reply(500))
        asked = site.count()
        results = [await web.fetch(url) for url in urls]
        unknown = await web.fetch(site.url("/unknown"))

    assert {(result.text, result.record.cache) for result in results} == {("kept", "stale")}
    assert unknown.reason is Reason.CIRCUIT_OPEN
    assert site.count() - asked < len(urls)


async def test_a_page_that_may_stand_in_does_so_from_its_last_304_on(site: Site, place: Path, clock: FakeClock) -> None:
    """N6: a 304 that says nothing new still says when"""
    statuses = iter((200, 304, 500))
    site.on("/a", lambda visit: Reply(next(statuses), "kept", dated(clock, "max-age=0, stale-if-error=60", ETag='"1"')))

    async with keeping(place, clock, max_retries=0) as web:
        await web.fetch(site.url("/a"))
        clock.advance(300)
        renewed = await web.fetch(site.url("/a"))
        clock.advance(30)
        failed = await web.fetch(site.url("/a"))

    assert renewed.record.cache == "revalidated"
    assert (failed.text, failed.record.cache) == ("kept", "stale")


@pytest.mark.parametrize("bound", ["must-revalidate", "no-cache"])
async def test_what_must_be_asked_about_first_is_not_served_stale_meanwhile(
    site: Site, place: Path, clock: FakeClock, bound: str
) -> None:
    """N6: RFC 9111, 5.2.2: whatever stale-while-revalidate says"""
    numbers = itertools.count(1)
    said = f"max-age=60, stale-while-revalidate=600, {bound}"
    site.on("/a", lambda visit: Reply(body=f"{next(numbers)}", headers=dated(clock, said)))

    async with keeping(place, clock) as web:
        await web.fetch(site.url("/a"))
        clock.advance(100)
        renewed = await web.fetch(site.url("/a"))

    assert (renewed.text, renewed.record.cache) == ("2", None)
    assert site.count("/a") == 2


async def test_renewing_a_kept_redirect_does_not_follow_it(site: Site, place: Path, clock: FakeClock) -> None:
    """Issue 4, 5: behind, it is this one page that is renewed"""
    swr = {"Cache-Control": "max-age=60, stale-while-revalidate=600"}
    site.reply("/a", Reply(301, headers={"Location": "/b", **swr}))
    site.page("/b", "end")
    records: list[FetchRecord] = []

    async with keeping(place, clock, on_record=records.append) as web:
        await web.fetch(site.url("/a"))
        clock.advance(100)
        await web.fetch(site.url("/a"))
        await until(lambda: site.count("/a") == 2 and not session_of(web).revalidations)

    assert site.count("/b") == 2
    assert sorted((record.status, record.reason) for record in records) == [(200, None), (200, None), (301, None)]


async def test_a_page_that_another_client_has_renewed_meanwhile_is_not_renewed_again(
    site: Site, place: Path, clock: FakeClock
) -> None:
    """Issue 4: never a request that the cache could answer"""
    swr = "max-age=60, stale-while-revalidate=600"
    site.on(
        "/a", lambda visit: Reply(304 if visit.header("If-None-Match") else 200, "x", dated(clock, swr, ETag='"1"'))
    )
    store = MemoryStore(clock)

    async with (
        keeping(place, clock, store=store, respect_robots=False) as one,
        keeping(place, clock, store=store, respect_robots=False) as other,
    ):
        await one.fetch(site.url("/a"))
        clock.advance(100)
        stale = [await one.fetch(site.url("/a")), await other.fetch(site.url("/a"))]
        await until(lambda: not (session_of(one).revalidations or session_of(other).revalidations))

    assert [result.record.cache for result in stale] == ["stale", "stale"]
    assert [visit.status for visit in site.visits("/a")] == [200, 304]


async def test_rules_that_are_forgotten_stay_so_when_a_page_is_renewed_behind(
    site: Site, place: Path, clock: FakeClock
) -> None:
    """R5: what the store has of them from before is old for everybody"""
    site.robots("")
    swr = {"Cache-Control": "max-age=60, stale-while-revalidate=600"}
    site.reply("/a", Reply(body="kept", headers=swr))
    site.page("/secret", "x")

    async with keeping(place, clock) as web:
        await web.fetch(site.url("/a"))
        clock.advance(100)
        site.robots("User-agent: *\nDisallow: /secret\n")
        session_of(web).forget_rules()
        await web.fetch(site.url("/a"))
        await until(lambda: site.count("/a") == 2 and not session_of(web).revalidations)
        result = await web.fetch(site.url("/secret"))

    assert result.reason is Reason.ROBOTS_DISALLOWED
    assert (site.count("/robots.txt"), site.count("/secret")) == (2, 0)


async def test_a_page_behind_a_login_is_renewed_with_it(site: Site, place: Path, clock: FakeClock) -> None:
    """Issue 4, 5: as the same variant, with its validators"""
    site.on(
        "/a",
        lambda visit: Reply(
            304 if visit.header("If-None-Match") else 200,
            "kept",
            dated(clock, "max-age=60, stale-while-revalidate=600", ETag='"1"'),
        ),
    )
    url = site.url("/a").replace("://", "://me:secret@")

    async with keeping(place, clock) as web:
        await web.fetch(url)
        clock.advance(100)
        stale = await web.fetch(url)
        await until(lambda: site.count("/a") == 2 and not session_of(web).revalidations)
        fresh = await web.fetch(url)

    assert (stale.record.cache, fresh.record.cache) == ("stale", "hit")
    first, renewal = site.visits("/a")
    assert renewal.status == 304
    assert renewal.header("Authorization") == first.header("Authorization")


async def test_who_asks_once_has_a_page_renewed_first(site: Site, place: Path) -> None:
    """Issue 4, 5: a program that ends would never see the new one"""
    past = {"Cache-Control": "max-age=1, stale-while-revalidate=86400", "Age": "100"}
    numbers = itertools.count(1)
    site.on("/a", lambda visit: Reply(body=f"{next(numbers)}", headers=past))
    settings: dict[str, Any] = {"cache": place, "store": "memory:", "allow_private": True, **UNPACED}

    texts = [(await fetch_url(site.url("/a"), **settings)).text for _ in range(2)]
    texts += [(await asyncio.to_thread(get, site.url("/a"), **settings)).text]

    assert texts == ["1", "2", "3"]


async def test_a_copy_whose_time_ended_in_the_line_does_not_stand_in(site: Site, place: Path, clock: FakeClock) -> None:
    """RFC 5861, 4: its age is that of the moment when it is given out"""
    site.on("/a", lambda visit: Reply(body="kept", headers=dated(clock, "max-age=1, stale-if-error=60")))
    site.page("/b", "x")

    async with keeping(place, clock, max_retries=0, respect_robots=False, delay=300) as web:
        await web.fetch(site.url("/a"))
        clock.advance(290)
        site.reply("/a", Reply(500))
        late = await web.fetch(site.url("/a"))

    assert (late.status, late.from_cache) == (500, False)


async def test_a_page_that_was_put_by_hand_is_asked_about_with_its_etag(site: Site, tmp_path: Path) -> None:
    """N6: a collection and a document are named, and a client uses what is there"""
    site.page("/a", "from the site", etag='"1"')
    DiskCache(tmp_path).put("handbook", "one", site.url("/a"), b"put by hand", '"1"')

    async with client(cache=DiskCache(tmp_path, collection="handbook", document="one")) as web:
        result = await web.fetch(site.url("/a"))

    assert (result.text, result.record.cache) == ("put by hand", "revalidated")
    assert site.visits("/a")[0].header("If-None-Match") == '"1"'
