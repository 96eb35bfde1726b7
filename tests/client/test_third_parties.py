"""What one site can do to another by redirects: open its breaker, reach what it forbids, spend its budget. Nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from curtsy.client import AsyncClient, session_of
from curtsy.core.admission import GUESTS
from curtsy.core.errors import Reason
from curtsy.crawling.start import acrawl
from curtsy.http.sender import HttpSender
from curtsy.testing import FakeClock
from tests.client.fetching import DAWN, UNPACED, client, host_of
from tests.client.keeping import dated
from tests.support.polling import until
from tests.support.site import Reply, Site, later, redirect, reset

EVIL, OTHER = "evil.test", "other.test"


def web_of(site: Site, **settings: Any) -> AsyncClient:
    """A client to which every name is the site."""
    return client(sender=HttpSender(resolver=site.names), **settings)


def lead(site: Site, path: str, *, to: str = OTHER, by: str = EVIL, at: str = "/go") -> str:
    """A URL that redirects to a path of another host."""
    site.reply(at, redirect(site.url(path, host=to)), host=by)
    return site.url(at, host=by)


TROUBLE = {
    "403": Reply(403),
    "429": later(),
    "429 for an hour": later(3600),
    "500": Reply(500),
    "reset": reset(),
}


@pytest.mark.parametrize("kind", TROUBLE)
async def test_a_failure_behind_a_redirect_of_another_site_opens_no_breaker(site: Site, kind: str) -> None:
    """C22: not even after several, and the host's own pages are fetched as before"""
    site.reply("/x", TROUBLE[kind], host=OTHER)
    site.page("/page", "x", host=OTHER)
    clock = FakeClock(DAWN)

    async with web_of(site, clock=clock, max_retries=1) as web:
        for number in range(5):
            failed = await web.fetch(lead(site, "/x", at=f"/go{number}"))
            assert not failed.ok
            clock.advance(3600)  # what the target itself asks for binds
        host = await host_of(web, site.url("/", host=OTHER))
        page = await web.fetch(site.url("/page", host=OTHER))

    assert (host.tripped_at, host.trips, host.failures, host.errors) == (0, 0, 0, 0)
    assert page.ok
    assert site.paths(OTHER).count("/x") >= 5
    assert site.paths(OTHER)[-1] == "/page"


@pytest.mark.parametrize(
    ("by", "to", "is_apart"),
    [
        ("site.test", "www.site.test", False),
        ("www.site.test", "site.test", False),
        ("a.co.uk", "b.co.uk", True),
        ("a.github.io", "b.github.io", True),
        ("127.0.0.1", "127.0.0.2", True),
    ],
)
async def test_only_hosts_of_one_registered_domain_answer_for_each_other(
    site: Site, by: str, to: str, is_apart: bool
) -> None:
    """C22: from the apex to www counts as usual"""
    site.reply("/x", Reply(403), host=to)
    site.page("/page", "x", host=to)

    async with web_of(site) as web:
        await web.fetch(lead(site, "/x", by=by, to=to))
        page = await web.fetch(site.url("/page", host=to))

    assert page.reason is (None if is_apart else Reason.CIRCUIT_OPEN)
    assert site.count("/page") == is_apart


async def test_what_comes_behind_such_a_redirect_is_not_its_hosts_doing_either(site: Site) -> None:
    """C22: a chain that has left its site once has been led"""
    site.reply("/a", redirect("/b"), host=OTHER)
    site.reply("/b", Reply(403), host=OTHER)
    site.page("/page", "x", host=OTHER)

    async with web_of(site) as web:
        await web.fetch(lead(site, "/a"))
        page = await web.fetch(site.url("/page", host=OTHER))

    assert page.ok


async def test_a_retry_after_binds_whoever_led_there(site: Site) -> None:
    """C22, C2: the host said so itself"""
    site.reply("/x", later(50), host=OTHER)
    site.page("/page", "x", host=OTHER)

    async with web_of(site, max_retries=0) as web:
        await web.fetch(lead(site, "/x"))
        page = await web.fetch(site.url("/page", host=OTHER))

    assert page.ok
    assert page.record.waited >= 49.9


async def test_a_redirect_of_another_site_neither_takes_nor_fails_the_one_trial(site: Site) -> None:
    """C22, Q4: half open, the host is tried by a request of its own"""
    site.script("/page", [Reply(403), Reply(200, "x")], host=OTHER)
    site.reply("/x", Reply(403), host=OTHER)
    clock = FakeClock(DAWN)

    async with web_of(site, clock=clock) as web:
        await web.fetch(site.url("/page", host=OTHER))
        clock.advance(301)
        led = await web.fetch(lead(site, "/x"))
        asked = site.count("/x")
        trial = await web.fetch(site.url("/page", host=OTHER))

    assert (led.reason, asked) == (Reason.CIRCUIT_OPEN, 0)
    assert led.retry_after == 300
    assert trial.ok


@pytest.mark.parametrize("kept", ["the redirect", "the page behind it"])
async def test_a_kept_redirect_is_one_of_another_site_as_well(site: Site, tmp_path: Path, kept: str) -> None:
    """C22: from the cache as from the wire, and when a stale copy is renewed behind"""
    clock = FakeClock(DAWN)
    long, swr = "max-age=900000", "max-age=60, stale-while-revalidate=6000"
    at_home = {"Location": site.url("/x", host=OTHER), **dated(clock, long)}
    site.reply("/go", Reply(301, headers=at_home), host=EVIL)
    first = Reply(200, "x", dated(clock, "no-store" if kept == "the redirect" else swr))
    site.script("/x", [first, Reply(403)], host=OTHER)
    site.page("/page", "x", host=OTHER)

    async with web_of(site, clock=clock, cache=tmp_path / "pages", stale_while_revalidate=True) as web:
        await web.fetch(site.url("/go", host=EVIL))
        clock.advance(100)
        await web.fetch(site.url("/go", host=EVIL))
        await until(lambda: site.count("/x") == 2 and not session_of(web).revalidations)
        page = await web.fetch(site.url("/page", host=OTHER))

    assert site.count("/go") == 1
    assert page.ok


@pytest.mark.parametrize("way", ["redirect", "redirects", "sitemap", "redirected sitemap"])
async def test_a_crawl_holds_nothing_that_another_site_led_to_against_its_target(site: Site, way: str) -> None:
    """C22: there, a redirect is queued as a URL of its own, and a sitemap is fetched wherever it is"""
    first = lead(site, "/on" if way == "redirects" else "/x")
    lead(site, "/x", by=OTHER, at="/on")
    links = f'<a href="{site.url("/later", host=OTHER)}">y</a>'
    if way.endswith("sitemap"):
        site.robots(f"Sitemap: {site.url('/x', host=OTHER) if way == 'sitemap' else first}", host=EVIL)
    else:
        links += f'<a href="{first}">x</a>'
    site.page("/", links, host=EVIL)
    site.reply("/x", Reply(403), host=OTHER)
    site.page("/later", "<p>y", host=OTHER)
    seed = site.url("/", host=EVIL)

    async with web_of(site, clock=None, **UNPACED) as web:
        async with acrawl(seed, scope="any", client=web, sitemaps=True) as crawl:
            async for _ in crawl:
                pass
        host = await host_of(web, site.url("/", host=OTHER))

    assert site.count("/x", host=OTHER) == 1
    assert host.tripped_at == 0


# robots.txt


async def test_a_robots_txt_redirects_to_nothing_that_its_target_forbids(site: Site) -> None:
    """R1, R7: what is known of another host's rules holds, whoever leads there"""
    site.robots("User-agent: *\nDisallow: /private\n", host=OTHER)
    site.page("/page", "x")
    site.page("/private", "User-agent: *\nDisallow: /\n", host=OTHER)
    lead(site, "/private", at="/robots.txt")

    async with web_of(site) as web:
        await web.fetch(site.url("/page", host=OTHER))
        result = await web.fetch(site.url("/page", host=EVIL))

    assert result.ok  # as if it could not be had (R6)
    assert site.paths(OTHER) == ["/robots.txt", "/page"]


@pytest.mark.parametrize("answer", ["rules", "403", "500"])
async def test_robots_txt_files_of_other_sites_spend_an_allowance_and_not_the_budget(site: Site, answer: str) -> None:
    """B4, C22, R7: and open no breaker; the next day there is another allowance"""
    replies = {"rules": Reply(body="User-agent: *\n"), "403": Reply(403), "500": Reply(500)}
    site.reply("/r", replies[answer], host=OTHER)
    site.page("/page", "x")
    clock = FakeClock(DAWN)

    async with web_of(site, clock=clock, max_requests_per_day=8) as web:
        for number in range(2 * GUESTS):
            lead(site, "/r", by=f"evil{number}.test", at="/robots.txt")
            await web.fetch(site.url("/page", host=f"evil{number}.test"))
        led, host = site.count("/r"), await host_of(web, site.url("/", host=OTHER))
        own = [await web.fetch(site.url("/page", host=OTHER)) for _ in range(9)]
        clock.advance(86_400)
        lead(site, "/r", by="late.test", at="/robots.txt")
        await web.fetch(site.url("/page", host="late.test"))

    assert led == GUESTS
    assert (host.day, host.tripped_at, host.failures) == (None, 0, 0)
    assert sum(each.ok for each in own) == 8 - 1  # robots.txt is one of them
    assert site.count("/r") == GUESTS + 1


async def test_within_one_registered_domain_robots_txt_redirects_as_often_as_it_is_wanted(site: Site) -> None:
    """R7, C22: from the apex to www, all is charged as usual"""
    site.robots("User-agent: *\nDisallow: /private\n", host="www.site.test")
    for number in range(GUESTS + 2):
        lead(site, "/robots.txt", by=f"{number}.site.test", to="www.site.test", at="/robots.txt")

    async with web_of(site) as web:
        results = [await web.fetch(site.url("/private", host=f"{each}.site.test")) for each in range(GUESTS + 2)]
        host = await host_of(web, site.url("/", host="www.site.test"))

    assert {each.reason for each in results} == {Reason.ROBOTS_DISALLOWED}
    assert host.day is not None
    assert host.day.requests == GUESTS + 2
