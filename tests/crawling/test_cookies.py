"""A crawl of a site that wants its cookie back before it shows anything."""

from __future__ import annotations

import pytest

from curtsy.core.record import FetchRecord
from curtsy.core.time import SECOND
from curtsy.crawling.outputs.skipped import Examples
from tests.client.fetching import TICK
from tests.crawling.web import crawled, html, polite
from tests.support.site import Reply, Site, Visit, redirect
from tests.support.snapshot import Snapshot
from tests.support.wall import wall


async def test_it_is_crawled_if_cookies_are_kept(site: Site) -> None:
    """U3, F64: a redirect to the very same URL is followed at once, and the cookie goes with every page from then on"""
    wall(site, html("/a", "/b"))

    paths, done = await crawled(site, cookies=True)

    assert sorted(paths) == ["/", "/a", "/b"]
    assert site.paths() == ["/robots.txt", "/", "/", *paths[1:]]
    assert (done.totals.redirected, done.totals.failed) == (0, {})


async def test_a_wall_by_way_of_another_url_is_passed_too(site: Site) -> None:
    """U3, F64: where the cookie is set is asked for again, and followed to the page"""

    def answer(visit: Visit) -> Reply:
        if visit.header("Cookie") == "seen=yes":
            return Reply(body=html("/b"), headers={"Content-Type": "text/html"})
        return Reply(302, headers={"Location": "/set"})

    site.on("/*", answer)
    site.reply("/set", Reply(302, headers=[("Location", "/"), ("Set-Cookie", "seen=yes; Path=/")]))
    site.robots("")

    paths, done = await crawled(site, cookies=True)

    assert paths == ["/set", "/b"]
    assert site.paths() == ["/robots.txt", "/", "/set", "/set", "/", "/b"]
    assert done.totals.failed == {}


async def test_the_second_request_waits_its_turn(site: Site) -> None:
    """P1, U3: every hop with every check of its host"""
    records: list[FetchRecord] = []
    given = polite(preset=None, store=None, cookies=True, on_record=records.append)
    times: list[float] = []
    wall(site, html(), asked=lambda: times.append(given["clock"].now().at / SECOND))

    paths, _ = await crawled(site, **given)

    assert paths == ["/"]
    assert [record.attempts for record in records] == [2]
    assert times[1] - times[0] >= 1.5 - TICK


async def test_without_cookies_it_is_told_what_to_do(site: Site, snapshot: Snapshot) -> None:
    """U3, U14: and the site is not asked in vain"""
    wall(site, html("/a"))
    told = Examples()

    paths, done = await crawled(site, outputs=[told])

    assert (paths, done.totals.failed) == ([], {"too_many_redirects": 1})
    assert site.paths() == ["/robots.txt", "/"]
    message = told.by_reason["too_many_redirects"].message
    assert "cookies=True, --cookies" in message
    snapshot(message)


async def test_a_page_that_always_wants_another_cookie_comes_to_an_end(site: Site) -> None:
    """F17: within the same limits as any redirect"""
    wall(site, "", last=False)

    paths, done = await crawled(site, cookies=True)

    assert (paths, done.totals.failed) == ([], {"too_many_redirects": 1})
    assert site.count("/") == 6


@pytest.mark.parametrize("headers", [[], [("Set-Cookie", "a=1; Domain=elsewhere.example")], [("Set-Cookie", "a=1")]])
async def test_a_redirect_to_itself_is_not_followed_if_nothing_has_changed(
    site: Site, headers: list[tuple[str, str]]
) -> None:
    """F17: the same request would have the same answer"""
    site.reply("/", Reply(302, headers=[("Location", "/"), *headers]))

    _, done = await crawled(site, cookies=True)

    assert done.totals.failed == {"too_many_redirects": 1}
    assert site.count("/") == (2 if headers == [("Set-Cookie", "a=1")] else 1)


async def test_a_redirect_elsewhere_is_still_a_url_of_its_own(site: Site) -> None:
    """U3: whatever cookie it sets"""
    site.reply("/", Reply(302, headers=[("Location", "/a"), ("Set-Cookie", "a=1")]))
    site.reply("/a", redirect("/b"))
    site.page("/b", html("/", "/a"))

    paths, done = await crawled(site, cookies=True)

    assert paths == ["/b"]
    assert site.paths() == ["/robots.txt", "/", "/a", "/b"]
    assert done.totals.redirected == 2
