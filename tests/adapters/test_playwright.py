"""Playwright with curtsy: one visit of a real Chromium for all of these tests. The site's journal is the judge."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

import curtsy
from tests.adapters.doors import PLAIN
from tests.adapters.loop import LOOP
from tests.adapters.other_doors import PlaywrightDoor
from tests.client.fetching import domain_of
from tests.observe.browser import FLAGS, program, require
from tests.support.polling import until
from tests.support.site import Reply, Site, redirect

LONG = 3600

SHOP = "127.0.0.2"
OTHER = "127.0.0.3"
BUSY = "127.0.0.4"


class Visit(NamedTuple):
    site: Site
    found: dict[str, Any]


async def visit(site: Site) -> dict[str, Any]:
    """Look at pages with a browser."""
    from playwright.async_api import Error, async_playwright

    import curtsy.adapters.playwright as adapter

    found: dict[str, Any] = {}
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=program(), args=list(FLAGS))
        context = await browser.new_context()
        polite = await adapter.attach(context, **PLAIN)

        async def go(name: str, url: str) -> None:
            page = await context.new_page()
            try:
                answer = await page.goto(url)
                found[name] = (None if answer is None else answer.status, page.url)
            except Error as error:
                found[name] = error.message
            found[name + " refusal"] = adapter.refusal(page)

        await go("shop", site.url("/", host=SHOP))
        await until(lambda: site.count("/api", host=SHOP))
        await go("old", site.url("/old"))
        await go("private", site.url("/private"))
        await go("trap", site.url("/trap"))
        await go("busy", site.url("/busy", host=BUSY))
        await go("again", site.url("/", host=BUSY))
        page = await context.new_page()
        await page.goto(site.url("/plain"))
        async with page.expect_popup() as popup:
            await page.evaluate("window.open('/popup')")
        opened = await popup.value
        await opened.wait_for_load_state()
        found["popup"] = await opened.title()
        await page.goto(site.url("/sly"))
        found["sly"] = await page.title()
        found["worker"] = await page.evaluate("navigator.serviceWorker.register('/w.js').catch(() => 'off')")
        found["stats"] = polite.client.stats()
        await context.close()

        strict = await browser.new_context()
        second = await adapter.attach(strict, third_party="deny", **PLAIN)
        page = await strict.new_page()
        await page.goto(site.url("/strict"))
        await strict.close()
        await second.close()
        await polite.close()
        await browser.close()
    return found


@pytest.fixture(scope="module")
def visited() -> Iterator[Visit]:
    """What came of one visit."""
    require()
    with Site() as site:
        site.robots("User-agent: *\nDisallow: /private\nDisallow: /*.js")
        other = site.url("/pixel", host=OTHER)
        page = f"<title>shop</title><script src=/s.js></script><img src=/i.png><img src={other}>"
        site.page("/", page)
        site.page("/s.js", "fetch('/api')", content_type="text/javascript")
        site.page("/i.png", "")
        site.page("/pixel", "")
        site.page("/api", "1")
        site.page("/plain", "<title>plain</title>")
        site.page("/strict", f"<title>strict</title><img src={other}?strict>")
        site.page("/popup", "<title>popup</title>")
        rules = '{"prefetch": [{"source": "list", "urls": ["/private/%s"]}]}'
        sly = "<title>sly</title><script>new SharedWorker('/shared')</script>"
        sly += f"<script type=speculationrules>{rules}</script>"
        site.page("/sly", sly % "page", headers={"Speculation-Rules": '"/rules"'})
        site.page("/rules", rules % "rules", content_type="application/speculationrules+json")
        site.reply("/old", redirect("/mid"))
        site.reply("/mid", redirect("/plain"))
        site.reply("/trap", redirect("/private/x"))
        site.reply("/busy", Reply(503, "busy", {"Retry-After": str(LONG)}))
        yield Visit(site, asyncio.run(asyncio.wait_for(visit(site), 60)))


def test_a_page_and_its_parts_come(visited: Visit) -> None:
    """Playwright: robots.txt is for documents, not for their parts"""
    site, found = visited

    assert found["shop"] == (200, site.url("/", host=SHOP))
    assert found["shop refusal"] is None
    assert set(site.paths(SHOP)) >= {"/robots.txt", "/", "/s.js", "/i.png", "/api"}
    assert "/pixel" in site.paths(OTHER)


def test_redirects_are_followed_and_judged(visited: Visit) -> None:
    """Playwright: each hop passes the flow"""
    site, found = visited

    assert found["old"] == (200, site.url("/plain"))
    assert site.count("/old") == site.count("/mid") == 1
    assert "ERR_BLOCKED_BY_CLIENT" in found["trap"]
    assert found["trap refusal"].reason == "robots_disallowed"
    assert not [path for path in site.paths() if path.startswith("/private")]


def test_a_refusal_is_the_browsers_error_with_a_reason(visited: Visit) -> None:
    """Playwright: `refusal(page)` has reason and `retry_after`"""
    site, found = visited

    assert "ERR_BLOCKED_BY_CLIENT" in found["private"]
    assert isinstance(found["private refusal"], curtsy.Refused)
    assert found["private refusal"].reason == "robots_disallowed"
    assert found["busy"][0] == 503
    assert "ERR_BLOCKED_BY_CLIENT" in found["again"]
    assert found["again refusal"].reason == "circuit_open"
    assert found["again refusal"].retry_after == pytest.approx(LONG, abs=60)
    assert site.paths(BUSY) == ["/robots.txt", "/busy"]


def test_a_popup_is_intercepted_and_service_workers_are_off(visited: Visit) -> None:
    """Playwright: nothing goes round the route"""
    site, found = visited

    assert found["popup"] == "popup"
    assert site.count("/popup") == 1
    assert found["worker"] == "off"
    assert site.count("/w.js") == 0


def test_nothing_is_requested_behind_the_page(visited: Visit) -> None:
    """Playwright: no shared workers, and no speculation rules, in the page or beside it"""
    site, found = visited

    assert found["sly"] == "sly"
    assert site.count("/rules") == 1
    assert site.count("/shared") == 0
    assert not [path for path in site.paths() if path.startswith("/private")]


async def test_a_page_that_closes_takes_its_waiting_requests_along(site: Site) -> None:
    """Playwright: else the browser would send them as it closes"""
    door = PlaywrightDoor(respect_robots=False, delay=LONG)
    site.page("/first")
    beacon, kept, image = (site.url(path, host=OTHER) for path in ("/beacon", "/kept", "/i.png"))
    script = f"navigator.sendBeacon('{beacon}', 'x'); fetch('{kept}', {{keepalive: true, mode: 'no-cors'}})"
    site.page("/page", f"<script>{script}</script><img src={image}>", host=SHOP)
    for path in ("/beacon", "/kept", "/i.png"):
        site.page(path)
    key = "host:" + domain_of(site.url(host=OTHER))

    async def visit() -> None:
        page = await door.context.new_page()
        await page.goto(site.url("/first", host=OTHER))
        await page.goto(site.url("/page", host=SHOP), wait_until="commit")
        await until(lambda: door.session.gate.queues.waiting >= 3)
        await page.close()

    await LOOP.start(visit())
    await until(lambda: not door.session.gate.queues.is_queued(key))
    await door.get(site.url("/end", host="127.0.0.5"))
    await door.close()

    assert site.paths(OTHER) == ["/first"]


def test_the_browser_sends_our_user_agent(visited: Visit) -> None:
    """Playwright: for documents and parts"""
    assert {visit.header("User-Agent") for visit in visited.site.visits()} == {PLAIN["user_agent"]}


def test_requests_are_charged_to_their_hosts(visited: Visit) -> None:
    """Playwright: documents as pages"""
    hosts = visited.found["stats"].hosts
    site = visited.site

    assert hosts[f"{SHOP}:{site.port}"].pages == 1
    assert hosts[f"127.0.0.1:{site.port}"].pages == 4  # two times /plain, the popup, and /sly


def test_other_sites_can_be_denied(visited: Visit) -> None:
    """Playwright: `third_party="deny"`"""
    assert visited.site.count("/strict") == 1
    assert not [path for path in visited.site.paths(OTHER) if path.endswith("?strict")]
