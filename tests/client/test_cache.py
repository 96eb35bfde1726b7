"""The cache as a client uses it: a page that is kept and fresh costs the site nothing."""

from __future__ import annotations

import asyncio
import time
from email.utils import formatdate
from pathlib import Path
from typing import Any

import pytest

from curtsy.client import AsyncClient
from curtsy.clock import FakeClock
from curtsy.core.errors import Reason, RefusedByPolicy
from curtsy.core.record import FetchRecord
from tests.client.fetching import UNPACED, client, host_of, until
from tests.support.bounds import ends_within
from tests.support.site import Reply, Site, closed_port, hang, redirect, reset

HOUR = {"Cache-Control": "max-age=3600"}


@pytest.fixture
def clock() -> FakeClock:
    """Set right: the site's answers have the real date."""
    return FakeClock(time.time())


@pytest.fixture(params=["pages", "pages.sqlite"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Where pages are kept: in files, and packed into one."""
    return tmp_path / str(request.param)


def dated(clock: FakeClock, cache_control: str, **fields: str) -> dict[str, str]:
    """The fields of an answer that is sent now, by the fake clock."""
    return {"Date": formatdate(clock.now().epoch / 1e6, usegmt=True), "Cache-Control": cache_control, **fields}


def keeping(place: Path, clock: FakeClock, **settings: Any) -> AsyncClient:
    return client(cache=place, clock=clock, max_requests_per_day=0, max_pages_per_day=0, **settings)


async def test_a_fresh_page_is_not_asked_for_again(site: Site, place: Path, clock: FakeClock) -> None:
    """N6, design section 2: neither pace nor budget"""
    site.page("/a", "kept", headers=HOUR)

    async with keeping(place, clock) as web:
        first = await web.fetch(site.url("/a"))
        clock.advance(3500)
        began = clock.now().at
        again = await web.fetch(site.url("/a"))

        assert clock.now().at == began
        assert web.stats().cache_hits == 1
    assert site.paths() == ["/robots.txt", "/a"]
    assert (first.from_cache, first.record.cache) == (False, None)
    assert (again.text, again.from_cache, again.record.cache) == ("kept", True, "hit")
    assert (again.record.attempts, again.record.bytes, again.record.waited) == (0, 0, 0)
    assert again.headers.get("content-type") == first.headers.get("content-type")


async def test_a_hit_never_causes_a_request_for_robots_txt(site: Site, place: Path, clock: FakeClock) -> None:
    """Design section 2, 4: it is judged by the rules remembered, even old ones"""
    site.robots("User-agent: *\nAllow: /\n")
    site.page("/a", "kept", headers={"Cache-Control": "max-age=900000"})

    async with keeping(place, clock) as web:
        await web.fetch(site.url("/a"))
        clock.advance(100_000)
        hit = await web.fetch(site.url("/a"))

    assert hit.from_cache
    assert site.paths() == ["/robots.txt", "/a"]


async def test_a_kept_page_that_has_been_disallowed_since_is_not_given_out(
    site: Site, place: Path, clock: FakeClock
) -> None:
    """R1"""
    site.script("/robots.txt", [Reply(body="User-agent: *\nAllow: /"), Reply(body="User-agent: *\nDisallow: /a")])
    site.page("/a", "kept", headers={"Cache-Control": "max-age=900000"})
    site.page("/b", "other")

    async with keeping(place, clock) as web:
        await web.fetch(site.url("/a"))
        clock.advance(4000)
        await web.fetch(site.url("/b"))
        result = await web.fetch(site.url("/a"))

    assert result.reason is Reason.ROBOTS_DISALLOWED


async def test_a_claim_alone_is_no_verdict_on_a_kept_page(site: Site, place: Path, clock: FakeClock) -> None:
    """R6: somebody who is just fetching robots.txt has not found it unreachable"""
    site.page("/a", "kept", headers=HOUR)
    settings: dict[str, Any] = {"robots_unreachable": "disallow"}
    async with keeping(place, clock) as web:
        await web.fetch(site.url("/a"))

    async with keeping(place, clock, **settings) as web:
        site.reply("/robots.txt", hang())
        asking = asyncio.ensure_future(web.fetch(site.url("/other")))
        await until(lambda: site.count("/robots.txt") == 2)
        result = await web.fetch(site.url("/a"))
        asking.cancel()

    assert result.ok


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


async def test_last_modified_is_a_validator_too(site: Site, place: Path, clock: FakeClock) -> None:
    """N6"""
    site.page("/a", "kept", last_modified="Sun, 06 Nov 1994 08:49:37 GMT", headers={"Cache-Control": "no-cache"})

    async with keeping(place, clock) as web:
        results = [await web.fetch(site.url("/a")) for _ in range(2)]

    assert results[1].record.cache == "revalidated"
    assert site.visits("/a")[1].header("If-Modified-Since") == "Sun, 06 Nov 1994 08:49:37 GMT"


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


async def test_offline_answers_from_the_cache_only(site: Site, place: Path, clock: FakeClock, tmp_path: Path) -> None:
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
    assert "is not in the cache" in miss.message
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
        await until(lambda: site.count("/a") == 2 and not web._renewals)
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
        await until(lambda: site.count("/a") == 2 and not web._renewals)

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


async def test_what_may_not_be_kept_is_not(site: Site, place: Path, clock: FakeClock) -> None:
    """Issue 4, 5: no-store, Vary: *, and statuses that say nothing of the page"""
    site.page("/secret", "x", headers={"Cache-Control": "no-store, max-age=900"})
    site.page("/moody", "x", headers={"Cache-Control": "max-age=900", "Vary": "*"})
    site.reply("/busy", Reply(400, "x", HOUR))

    async with keeping(place, clock) as web:
        for path in ("/secret", "/moody", "/busy") * 2:
            assert not (await web.fetch(site.url(path))).from_cache

    assert site.count() == 1 + 6


async def test_a_page_kept_for_one_language_is_not_given_to_another(site: Site, place: Path, clock: FakeClock) -> None:
    """Issue 4, 5: Vary"""
    site.on(
        "/a",
        lambda visit: Reply(body=visit.header("Accept-Language") or "", headers={**HOUR, "Vary": "Accept-Language"}),
    )

    async with keeping(place, clock) as web:
        texts = [
            (await web.fetch(site.url("/a"), headers={"Accept-Language": language})).text
            for language in ("de", "de", "fr", "fr")
        ]

    assert texts == ["de", "de", "fr", "fr"]
    assert site.count("/a") == 2


async def test_what_one_login_was_shown_is_not_for_another(site: Site, place: Path, clock: FakeClock) -> None:
    """F62"""
    site.on("/me", lambda visit: Reply(body=visit.header("Authorization") or "nobody", headers=HOUR))

    async with keeping(place, clock) as web:
        texts = [
            (await web.fetch(site.url("/me"), headers=headers)).text
            for headers in ({"Authorization": "a"}, {"Authorization": "b"}, {}, {"Authorization": "a"})
        ]

    assert texts == ["a", "b", "nobody", "a"]


async def test_a_hostile_etag_is_not_sent_back(site: Site, place: Path, clock: FakeClock) -> None:
    """F15"""
    site.reply(
        "/a", Reply(raw=b'HTTP/1.1 200 OK\r\nETag: "a\x01b"\r\nContent-Length: 1\r\nCache-Control: no-cache\r\n\r\nx')
    )

    async with keeping(place, clock, max_retries=0) as web:
        for _ in range(2):
            await web.fetch(site.url("/a"))

    assert [visit.header("If-None-Match") for visit in site.visits("/a")] == [None, None]


async def test_a_304_for_another_version_is_an_error_and_heals(site: Site, place: Path, clock: FakeClock) -> None:
    """F15"""
    site.script(
        "/a",
        [Reply(body="kept", headers={"ETag": '"1"'}), Reply(304, headers={"ETag": '"9"'}), Reply(body="new")],
    )

    async with keeping(place, clock) as web:
        results = [await web.fetch(site.url("/a")) for _ in range(3)]

    assert [(result.ok, result.reason) for result in results] == [
        (True, None),
        (False, Reason.BAD_RESPONSE),
        (True, None),
    ]
    assert results[2].text == "new"


async def test_a_damaged_copy_is_fetched_again_and_never_given_out(
    site: Site, tmp_path: Path, clock: FakeClock
) -> None:
    """N7, U16"""
    site.page("/a", "kept" * 100, headers=HOUR)
    place = tmp_path / "pages"
    async with keeping(place, clock) as web:
        await web.fetch(site.url("/a"))
    [body] = [path for path in place.rglob("*") if path.is_file() and path.suffix == ".html"]
    body.write_bytes(b"x" + body.read_bytes()[1:])

    async with keeping(place, clock) as web:
        result = await web.fetch(site.url("/a"))

    assert (result.text, result.from_cache) == ("kept" * 100, False)
    assert site.count("/a") == 2


async def test_a_cache_that_cannot_be_written_fails_no_fetch(site: Site, tmp_path: Path, clock: FakeClock) -> None:
    """U16"""
    site.page("/a", "x", headers=HOUR)
    (tmp_path / "pages").write_text("a file where the folder should be")

    async with keeping(tmp_path / "pages", clock) as web:
        results = [await web.fetch(site.url("/a")) for _ in range(2)]

    assert [result.ok for result in results] == [True, True]


async def test_a_post_drops_the_page_that_it_changed(site: Site, place: Path, clock: FakeClock) -> None:
    """Issue 4, 5: RFC 9111, 4.4"""
    site.page("/a", "x", headers=HOUR)

    async with keeping(place, clock) as web:
        await web.fetch(site.url("/a"))
        await web.fetch(site.url("/a"), method="POST", body=b"change")
        result = await web.fetch(site.url("/a"))

    assert not result.from_cache


async def test_a_head_request_is_answered_by_the_kept_page(site: Site, place: Path, clock: FakeClock) -> None:
    site.page("/a", "kept", headers=HOUR)

    async with keeping(place, clock) as web:
        await web.fetch(site.url("/a"))
        head = await web.fetch(site.url("/a"), method="HEAD")

    assert (head.status, head.body, head.from_cache) == (200, b"", True)
    assert head.headers.get("content-type") == "text/html; charset=utf-8"


async def test_a_caller_who_wants_it_fresh_gets_it_fresh(site: Site, place: Path, clock: FakeClock) -> None:
    """RFC 9111, 5.2.1"""
    site.page("/a", "kept", headers=HOUR)

    async with keeping(place, clock) as web:
        await web.fetch(site.url("/a"))
        fresh = await web.fetch(site.url("/a"), headers={"Cache-Control": "no-cache"})
        only = await web.fetch(site.url("/b"), headers={"Cache-Control": "only-if-cached"})

    assert not fresh.from_cache
    assert only.reason is Reason.NOT_IN_CACHE
    assert site.count("/a") == 2
    assert site.count("/b") == 0


async def test_a_page_is_served_from_the_cache_when_its_budget_is_spent(
    site: Site, place: Path, clock: FakeClock
) -> None:
    """B1: a hit costs nothing"""
    site.page("/*", "x", headers=HOUR)

    async with client(cache=place, clock=clock, max_pages_per_day=1) as web:
        results = [await web.fetch(site.url(path)) for path in ("/a", "/a", "/b", "/a")]

    assert [result.reason for result in results] == [None, None, Reason.DOMAIN_BUDGET_EXCEEDED, None]


async def test_two_clients_with_one_folder_share_what_is_kept(site: Site, place: Path, clock: FakeClock) -> None:
    """N7"""
    site.page("/a", "kept", headers=HOUR)

    async with keeping(place, clock) as one, keeping(place, clock) as two:
        await one.fetch(site.url("/a"))
        hit = await two.fetch(site.url("/a"))

    assert hit.from_cache
    assert site.count("/a") == 1


async def test_a_hit_needs_no_network_at_all(place: Path, clock: FakeClock) -> None:
    with Site() as site:
        site.page("/a", "kept", headers=HOUR)
        url = site.url("/a")
        async with keeping(place, clock) as web:
            await web.fetch(url)

    async with keeping(place, clock) as web:
        with ends_within(0.5):
            assert (await web.fetch(url)).text == "kept"


async def test_nothing_listens_any_more_and_the_result_says_so(place: Path, clock: FakeClock) -> None:
    with closed_port() as port:
        async with keeping(place, clock, max_retries=0, stale_if_error=900) as web:
            result = await web.fetch(f"http://127.0.0.1:{port}/")

    assert result.reason is Reason.CONNECTION_ERROR
