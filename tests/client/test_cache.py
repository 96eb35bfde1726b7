"""The cache as a client uses it: a page that is kept and fresh costs the site nothing."""

from __future__ import annotations

import asyncio
from email.utils import formatdate
from pathlib import Path
from typing import Any

import pytest

from curtsy.core.errors import Reason
from curtsy.testing import FakeClock
from tests.client.fetching import client
from tests.client.keeping import HOUR, dated, keeping
from tests.support.bounds import ends_within
from tests.support.noon import zone_at_noon
from tests.support.polling import until
from tests.support.site import Reply, Site, closed_port, hang, redirect


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


async def test_last_modified_is_a_validator_too(site: Site, place: Path, clock: FakeClock) -> None:
    """N6"""
    modified = formatdate(784_111_777, usegmt=True)
    site.page("/a", "kept", last_modified=modified, headers={"Cache-Control": "no-cache"})

    async with keeping(place, clock) as web:
        results = [await web.fetch(site.url("/a")) for _ in range(2)]

    assert results[1].record.cache == "revalidated"
    assert site.visits("/a")[1].header("If-Modified-Since") == modified


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


@pytest.mark.parametrize("etag", [b'"\xe9"', b'"\xc3\xa9"', b'W/"\xff\x80"', b'"\xe2\x82\xac"'], ids=range(4))
async def test_an_etag_goes_back_octet_for_octet(site: Site, place: Path, clock: FakeClock, etag: bytes) -> None:
    """F15: RFC 9110, 8.8.3: above 0x7F it has no encoding"""
    head = b"HTTP/1.1 200 OK\r\nETag: " + etag + b"\r\nCache-Control: no-cache\r\nContent-Length: 1\r\n\r\nx"
    site.reply("/a", Reply(raw=head))

    for _ in range(2):
        async with client(cache=place, clock=clock) as web:
            assert (await web.fetch(site.url("/a"))).ok

    sent = site.visits("/a")[1].header("If-None-Match")
    assert sent is not None
    assert sent.encode("latin-1") == etag


async def test_a_hostile_etag_is_not_sent_back(site: Site, place: Path, clock: FakeClock) -> None:
    """F15"""
    site.reply(
        "/a", Reply(raw=b'HTTP/1.1 200 OK\r\nETag: "a\x01b"\r\nContent-Length: 1\r\nCache-Control: no-cache\r\n\r\nx')
    )

    async with keeping(place, clock, max_retries=0) as web:
        for _ in range(2):
            await web.fetch(site.url("/a"))

    assert [visit.header("If-None-Match") for visit in site.visits("/a")] == [None, None]


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
    """Issue 4, 5: RFC 9111, 4"""
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

    async with client(cache=place, clock=clock, max_pages_per_day=1, timezone=zone_at_noon()) as web:
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
    """N6"""
    with Site() as site:
        site.page("/a", "kept", headers=HOUR)
        url = site.url("/a")
        async with keeping(place, clock) as web:
            await web.fetch(url)

    async with keeping(place, clock) as web:
        with ends_within(3):
            assert (await web.fetch(url)).text == "kept"


async def test_nothing_listens_any_more_and_the_result_says_so(place: Path, clock: FakeClock) -> None:
    """F12, U16"""
    with closed_port() as port:
        async with keeping(place, clock, max_retries=0, stale_if_error=900) as web:
            result = await web.fetch(f"http://127.0.0.1:{port}/")

    assert result.reason is Reason.CONNECTION_ERROR


async def test_a_kept_page_says_how_old_it_is(site: Site, place: Path, clock: FakeClock) -> None:
    """RFC 9111, 4: in place of the age that it came with; not when the site has just been asked"""
    site.on(
        "/a",
        lambda visit: Reply(
            304 if visit.header("If-None-Match") else 200, "x", dated(clock, "max-age=60", ETag='"1"', Age="5")
        ),
    )

    async with keeping(place, clock) as web:
        first = await web.fetch(site.url("/a"))
        clock.advance(20.5)
        hit = await web.fetch(site.url("/a"))
        clock.advance(100)
        asked = await web.fetch(site.url("/a"))

    assert first.headers.all("Age") == ["5"]
    assert hit.headers.all("Age") == ["25"]
    assert (asked.record.cache, asked.headers.all("Age")) == ("revalidated", [])


async def test_a_head_that_shows_another_version_drops_the_kept_page(site: Site, place: Path, clock: FakeClock) -> None:
    """RFC 9111, 4.3.5"""
    site.page("/a", "old", etag='"1"', headers=HOUR)
    site.page("/b", "old", etag='"1"', headers=HOUR)

    async with keeping(place, clock) as web:
        for path in ("/a", "/b"):
            await web.fetch(site.url(path))
        site.page("/a", "new", etag='"2"', headers=HOUR)
        for path in ("/a", "/b"):
            await web.fetch(site.url(path), method="HEAD", headers={"Cache-Control": "no-cache"})
        changed, unchanged = [await web.fetch(site.url(path)) for path in ("/a", "/b")]

    assert (changed.text, changed.record.cache) == ("new", None)
    assert unchanged.record.cache == "hit"


async def test_a_redirect_that_sets_a_cookie_is_not_kept(site: Site, place: Path, clock: FakeClock) -> None:
    """F62: the next run would come without the cookie, and be sent in a circle"""
    site.reply("/a", Reply(301, headers={"Location": "/b", "Set-Cookie": "been=1", **HOUR}))
    site.on("/b", lambda visit: Reply(body="x") if visit.header("Cookie") else redirect("/a"))

    texts = []
    for _ in range(2):
        async with keeping(place, clock, cookies=True) as web:
            texts.append((await web.fetch(site.url("/a"))).text)

    assert texts == ["x", "x"]


async def test_a_page_that_varies_by_credentials_is_kept_for_each(site: Site, place: Path, clock: FakeClock) -> None:
    """RFC 9111, 4.1: a login is no field, whatever a field is called"""
    site.page("/a", "x", headers={"Vary": "Credentials", **HOUR})
    url = site.url("/a").replace("://", "://me:secret@")

    async with keeping(place, clock) as web:
        results = [await web.fetch(url) for _ in range(2)]

    assert [result.record.cache for result in results] == [None, "hit"]
