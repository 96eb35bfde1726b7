"""A crawl: where it goes, what it leaves alone, when it ends. The site's journal is the judge."""

from __future__ import annotations

import asyncio
import re
import time
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest

import curtsy
from curtsy.client import AsyncClient, session_of
from curtsy.core.errors import PolicyError
from curtsy.core.plan_messages import REQUISITES_TAKE_MORE
from curtsy.core.url import Url, parse_url
from curtsy.crawling.progress import CrawlSnapshot
from curtsy.crawling.start import acrawl, crawl
from curtsy.testing import FakeClock
from tests.crawling.web import QUICK, crawled, graph, html, polite
from tests.support.polling import until
from tests.support.site import Answer, Reply, Site, Visit, hang, later, redirect, reset
from tests.support.snapshot import Snapshot


def asked(site: Site) -> list[str]:
    """The pages that were asked for, in order; robots.txt is another matter."""
    return [path for path in site.paths() if path != "/robots.txt"]


# Where it goes.


async def test_every_page_that_can_be_reached_is_fetched_exactly_once(site: Site) -> None:
    """Issue 5, N10"""
    graph(site, {"/": ["/a", "/b"], "/a": ["/b", "/c", "/"], "/b": ["/a", "/d#part"], "/c": [], "/d": ["/"]})

    paths, done = await crawled(site)

    assert sorted(paths) == ["/", "/a", "/b", "/c", "/d"]
    assert Counter(asked(site)) == Counter(paths)
    assert site.count("/robots.txt") == 1
    assert done.summary is not None
    assert (done.summary.ended, done.summary.fetched, done.summary.queued) == ("done", 5, 0)


async def test_a_page_says_all_that_is_known_of_it(site: Site) -> None:
    """R11, Issue 5"""
    site.robots("User-agent: *\nContent-Signal: ai-train=no\nAllow: /\n")
    head = '<meta name="robots" content="noai">'
    site.page("/", html("/next", head=head, title="Front  page"), headers={"Content-Usage": "train-ai=n"})
    site.page("/next", html())

    async with acrawl(site.url("/"), main_text="plain", **QUICK) as crawl:
        pages = [page async for page in crawl]

    first, second = pages
    assert (first.title, first.status, first.depth, first.parent) == ("Front page", 200, 0, None)
    assert first.links == (site.url("/next"),)
    assert first.signals == ("content-signal: ai-train=no", "content-usage: train-ai=n", "noai")
    assert "/next" in first.text
    assert first.fetched_at.endswith("Z")
    assert (second.depth, second.parent) == (1, site.url("/"))
    assert repr(second) == f"<CrawledPage {second.url} 200 {len(second.body)} bytes>"


async def test_what_robots_txt_forbids_is_never_asked_for_and_told_with_its_reason(site: Site) -> None:
    """R1, U14"""
    site.robots("User-agent: *\nDisallow: /private\n")
    graph(site, {"/": ["/private/a", "/b"], "/b": ["/private/b"]})

    paths, done = await crawled(site)

    assert sorted(paths) == ["/", "/b"]
    assert not [path for path in asked(site) if path.startswith("/private")]
    assert done.summary is not None
    assert done.summary.reasons == dict.fromkeys(
        [site.url("/private/a"), site.url("/private/b")], "robots_disallowed"
    )  # fmt: skip
    assert (done.summary.skipped, done.summary.failed, done.summary.total) == (2, 0, 4)


async def test_one_page_that_fails_does_not_stop_the_others(site: Site) -> None:
    """N10, U14"""
    graph(site, {"/": ["/gone", "/odd", "/b"], "/b": []})
    site.reply("/odd", Reply(418))

    paths, done = await crawled(site)

    assert sorted(paths) == ["/", "/b"]
    assert done.summary is not None
    assert done.summary.reasons == {site.url("/gone"): "http_status 404", site.url("/odd"): "http_status 418"}


async def test_it_stays_on_its_site_unless_told_otherwise(site: Site) -> None:
    """Issue 5"""
    other = site.url("/x", host="127.0.0.2")
    graph(site, {"/": ["/a", other], "/a": []}, "127.0.0.1")
    graph(site, {"/x": []}, "127.0.0.2")

    inside, done = await crawled(site)
    everywhere, _ = await crawled(site, scope="any")

    assert sorted(inside) == ["/", "/a"]
    assert done.totals.left_out == {"other_site": 1}
    assert sorted(everywhere) == ["/", "/a", other]


async def test_depth_patterns_and_a_number_of_pages_bound_it(site: Site) -> None:
    """Issue 5, Q9"""
    graph(site, {"/": ["/a/1", "/b/1"], "/a/1": ["/a/2"], "/a/2": ["/a/3"], "/a/3": [], "/b/1": []})

    shallow, _ = await crawled(site, max_depth=1)
    matching, _ = await crawled(site, match="/a/")
    without, _ = await crawled(site, skip=["/a/2", "/b/"])
    site.clear()
    few, done = await crawled(site, max_pages=2)

    assert sorted(shallow) == ["/", "/a/1", "/b/1"]
    assert sorted(matching) == ["/", "/a/1", "/a/2", "/a/3"]
    assert sorted(without) == ["/", "/a/1"]
    assert len(few) == len(asked(site)) == 2
    assert done.summary is not None
    assert done.summary.ended == "max_pages"
    assert done.summary.queued > 0


async def test_a_host_has_no_more_pages_than_it_may(site: Site) -> None:
    """Issue 5"""
    graph(site, {"/": [f"/{number}" for number in range(10)]} | {f"/{number}": [] for number in range(10)})

    paths, done = await crawled(site, max_pages_per_host=3, concurrency=1)

    assert len(paths) == 3
    assert done.totals.skipped == {"host_limit": 8}


# What pages ask for.


@pytest.mark.parametrize(
    ("links", "found", "requests"),
    [
        (["/a/"], ["/", "/a"], ["/", "/a/", "/a", "/a", "/a/"]),  # left out for one that leads back to it
        (["/a"], ["/", "/a/"], ["/", "/a", "/a/"]),
        (["/a", "/a/"], ["/", "/a/"], ["/", "/a", "/a/"]),
        (["/a/", "/a"], ["/", "/a"], ["/", "/a/", "/a", "/a", "/a/"]),
    ],
)
async def test_a_page_whose_canonical_url_redirects_to_it_is_not_lost(
    site: Site, links: list[str], found: list[str], requests: list[str]
) -> None:
    """Issue 5: no URL is lost, though a site contradicts itself"""
    site.page("/", html(*links))
    site.page("/a/", html(head='<link rel="canonical" href="/a">'))
    site.reply("/a", Reply(301, headers=(("Location", "/a/"),)))

    paths, _ = await crawled(site)

    assert paths == found
    assert asked(site) == requests


async def test_nofollow_noindex_and_canonical_are_obeyed(site: Site) -> None:
    """Issue 5"""
    site.page("/", html("/hidden", "/last", "/copy") + '<a rel="nofollow" href="/ad">ad</a>')
    site.page("/hidden", html("/behind", head='<meta name="robots" content="noindex">'))
    site.page("/last", html("/never", head='<meta name="robots" content="nofollow">'))
    site.page("/copy", html(head='<link rel="canonical" href="/original">'))
    for path in ("/ad", "/behind", "/never", "/original"):
        site.page(path, html())

    paths, done = await crawled(site)
    free, _ = await crawled(site, obey_nofollow=False, obey_noindex=False, obey_canonical=False)

    assert sorted(paths) == ["/", "/behind", "/last", "/original"]
    assert done.totals.skipped == {"noindex": 1, "not_canonical": 1}
    assert sorted(free) == ["/", "/ad", "/behind", "/copy", "/hidden", "/last", "/never"]


async def test_two_pages_that_name_each_other_are_not_both_lost(site: Site) -> None:
    """Issue 5"""
    site.page("/", html("/one", "/two"))
    site.page("/one", html(head='<link rel="canonical" href="/two">', title="1"))
    site.page("/two", html(head='<link rel="canonical" href="/one">', title="2"))

    paths, _ = await crawled(site)

    assert sorted(paths) == ["/", "/two"]


async def test_x_robots_tag_is_obeyed_too(site: Site) -> None:
    """Issue 5"""
    site.page("/", html("/a"), headers={"X-Robots-Tag": "nofollow"})

    paths, _ = await crawled(site)

    assert paths == ["/"]
    assert site.count("/a") == 0


async def test_the_same_body_twice_is_one_page_if_that_is_wanted(site: Site) -> None:
    """Issue 5"""
    site.page("/", html("/one", "/two"))
    site.page("/one", html())
    site.page("/two", html())

    both, _ = await crawled(site)
    single, done = await crawled(site, drop_duplicates=True)

    assert len(both) == 3
    assert len(single) == 2
    assert done.totals.skipped == {"duplicate": 1}


# Redirects.


async def test_a_redirect_is_a_url_of_its_own_and_nothing_is_fetched_twice(site: Site) -> None:
    """U3, F17: whoever links to both ends of a redirect gets one page"""
    graph(site, {"/": ["/old", "/new"], "/new": []})
    site.reply("/old", redirect("/new"))

    paths, done = await crawled(site)

    assert sorted(paths) == ["/", "/new"]
    assert Counter(asked(site)) == {"/": 1, "/old": 1, "/new": 1}
    assert done.totals.redirected == 1


async def test_where_a_seed_redirects_to_belongs_to_the_crawl(site: Site) -> None:
    """Issue 5"""
    there = site.url("/home", host="127.0.0.2")
    site.reply("/", redirect(there), host="127.0.0.1")
    site.page("/home", html("/a"), host="127.0.0.2")
    site.page("/a", html(), host="127.0.0.2")

    paths, _ = await crawled(site, scope="host")

    assert paths == [there, site.url("/a", host="127.0.0.2")]


async def test_a_maze_of_redirects_ends(site: Site) -> None:
    """F17: at most five in a row"""
    graph(site, {"/": ["/maze/0"]})
    site.on("/maze/*", lambda visit: redirect(f"/maze/{int(visit.path.rpartition('/')[2]) + 1}"))

    _, done = await crawled(site)

    assert len([path for path in asked(site) if path.startswith("/maze")]) == 6
    assert done.totals.failed == {"too_many_redirects": 1}


# Manners.


async def test_pages_of_a_host_come_one_at_a_time_with_pauses(site: Site) -> None:
    """P1, C1: by the clock that the crawl has, and by the site's own"""
    given = polite()
    times: list[float] = []

    site.on("/robots.txt", _noted(times, given["clock"], Reply(404)))
    site.on("/", _noted(times, given["clock"], _page(html(*(f"/{number}" for number in range(8))))))
    for number in range(8):
        site.on(f"/{number}", _noted(times, given["clock"], _page(html())))

    paths, _ = await crawled(site, **given, preset=None, store=None)

    assert len(paths) == 9
    assert site.max_concurrency() == 1
    assert all(1.5 <= after - before <= 5.6 for before, after in pairwise(sorted(times)))


def _noted(times: list[float], clock: FakeClock, reply: Reply) -> Answer:
    """That reply; when it was asked for goes into `times`, in seconds of the clock's calendar."""

    def answer(visit: Visit) -> Reply:
        times.append(clock.now().epoch / 1e6)
        return reply

    return answer


def _page(body: str) -> Reply:
    return Reply(body=body, headers={"Content-Type": "text/html"})


async def test_the_budget_of_the_day_ends_it_and_it_says_when_to_go_on(site: Site) -> None:
    """B2, Issue 5: nothing is lost, and nothing is asked in vain"""
    graph(site, {"/": [f"/{number}" for number in range(8)]} | {f"/{number}": [] for number in range(8)})

    paths, done = await crawled(site, **polite(max_pages_per_day=4), preset=None, store=None)

    assert len(paths) == 4
    assert len(asked(site)) == 4
    assert done.summary is not None
    assert (done.summary.ended, done.summary.queued) == ("later", 5)
    assert done.summary.resume_in is not None
    assert 3600 < done.summary.resume_in <= 25 * 3600


async def test_a_day_that_ends_soon_is_waited_for(site: Site) -> None:
    """B2, Issue 5: within the crawl's patience; a budget is of its own day all the same"""
    midnight = 86_400 * (time.time() // 86_400 + 1)
    clock = FakeClock(midnight - 300)
    times: list[float] = []
    site.on("/robots.txt", lambda visit: Reply(404))
    site.on("/", _noted(times, clock, _page(html(*(f"/{number}" for number in range(6))))))
    for number in range(6):
        site.on(f"/{number}", _noted(times, clock, _page(html())))

    given = polite(max_pages_per_day=4, clock=clock, timezone="UTC")
    paths, done = await crawled(site, **given, preset=None, store=None)

    assert len(paths) == 7
    assert [sum(at < midnight for at in times), sum(at >= midnight for at in times)] == [4, 3]
    assert done.summary is not None
    assert (done.summary.ended, done.summary.queued) == ("done", 0)


async def test_a_429_is_obeyed_and_the_page_is_fetched_in_the_end(site: Site) -> None:
    """C2, F50"""
    graph(site, {"/": ["/a", "/b"], "/b": []})
    site.script("/a", [later(30), Reply(body=html(), headers={"Content-Type": "text/html"})])

    paths, done = await crawled(site, **polite(), preset=None, store=None)

    assert sorted(paths) == ["/", "/a", "/b"]
    assert done.totals.seconds >= 30
    assert site.count("/a") == 2


async def test_a_dead_host_keeps_its_urls_and_holds_up_nobody(site: Site) -> None:
    """F52: the breaker opens after three failures; the URLs wait, and the crawl says until when"""
    dead, well = "127.0.0.2", "127.0.0.1"
    pages = [site.url(f"/{number}", host="127.0.0.2") for number in range(100)]
    graph(site, {"/": [*pages, "/a"], "/a": []}, well)
    site.robots("", host=dead)
    site.on("/*", lambda visit: reset(), host=dead)

    paths, done = await crawled(site, **polite(patience=60.0), scope="any", preset=None, store=None)

    assert sorted(paths) == ["/", "/a"]
    assert len([visit for visit in site.visits(host=dead) if visit.path != "/robots.txt"]) <= 4
    assert done.summary is not None
    assert (done.summary.ended, done.summary.queued, done.summary.failed) == ("later", 100, 0)


async def test_a_host_that_recovers_is_gone_on_with(site: Site) -> None:
    """Q4, F52"""
    graph(site, {"/": [f"/{number}" for number in range(6)]})
    broken = [reset()] * 4
    for number in range(6):
        site.on(f"/{number}", lambda visit: broken.pop() if broken else _page(html()))

    paths, done = await crawled(site, **polite(), preset=None, store=None)

    assert len(paths) == 7
    assert done.summary is not None
    assert (done.summary.ended, done.summary.failed) == ("done", 0)
    assert done.totals.seconds >= 300


# Sitemaps.


async def test_sitemaps_of_robots_txt_are_read_and_scope_still_holds(site: Site) -> None:
    """R12, Issue 5"""
    site.robots(f"Sitemap: {site.url('/maps.xml')}\n")
    site.reply(
        "/maps.xml", Reply(body=f"<sitemapindex><sitemap><loc>{site.url('/map.xml')}</loc></sitemap></sitemapindex>")
    )
    entries = "".join(f"<url><loc>{url}</loc></url>" for url in (site.url("/far"), "http://other.example/"))
    site.reply("/map.xml", Reply(body=f'<?xml version="1.0"?><urlset>{entries}</urlset>'))
    graph(site, {"/": [], "/far": ["/beyond"], "/beyond": []})

    paths, done = await crawled(site, sitemaps=True)

    assert sorted(paths) == ["/", "/beyond", "/far"]
    assert done.totals.sitemaps == 2


async def test_without_a_word_of_robots_txt_the_usual_place_is_tried(site: Site) -> None:
    """Issue 5"""
    graph(site, {"/": [], "/far": []})
    site.reply("/sitemap.xml", Reply(body=f"<urlset><url><loc>{site.url('/far')}</loc></url></urlset>"))

    paths, _ = await crawled(site, sitemaps=True)
    plain, _ = await crawled(site)
    site.reply("/sitemap.xml", Reply(404))
    without, done = await crawled(site, sitemaps=True)

    assert sorted(paths) == ["/", "/far"]
    assert plain == without == ["/"]
    assert (done.totals.skipped, done.totals.failed) == ({"no_sitemap": 1}, {})


# Traps.


async def test_session_ids_and_endless_paths_do_not_catch_it(site: Site) -> None:
    """Issue 5"""
    served = 0

    def page(visit: object) -> Reply:
        nonlocal served
        served += 1
        return _page(html(f"/shop?PHPSESSID={served:032x}", "/a/b/a/b/a/b/a/b/", "deeper/deeper/"))

    site.on("/*", page)

    paths, done = await crawled(site, max_pages=500)

    assert len(paths) < 30
    assert site.count("/shop") == 1
    assert done.totals.left_out["trap"] > 0


async def test_the_rules_of_a_host_that_a_listing_links_to_are_read_once_and_are_no_page(site: Site) -> None:
    """R1: other files that begin with a dot may be pages"""
    site.robots("User-agent: *\nAllow: /\n")
    graph(site, {"/": ["/robots.txt", "/.well-known/about", "/a"], "/.well-known/about": [], "/a": []})

    paths, done = await crawled(site)

    assert sorted(paths) == ["/", "/.well-known/about", "/a"]
    assert site.count("/robots.txt") == 1
    assert done.totals.left_out == {"robots_file": 1}


# Its end.


async def test_it_can_be_stopped_and_what_is_in_flight_ends(site: Site) -> None:
    """U17, F46"""
    graph(site, {"/": [f"/{number}" for number in range(50)]} | {f"/{number}": [] for number in range(50)})

    async with acrawl(site.url("/"), **QUICK) as crawl:
        count = 0
        async for _ in crawl:
            count += 1
            if count == 5:
                crawl.stop()

    assert crawl.summary is not None
    assert crawl.summary.ended == "stopped"
    assert crawl.summary.fetched == len(asked(site)) >= 5
    assert crawl.summary.fetched + crawl.summary.queued == 51


async def test_told_twice_it_does_not_wait_for_what_is_in_flight(site: Site) -> None:
    """F46"""
    graph(site, {"/": ["/slow"]})
    site.reply("/slow", hang())

    async with acrawl(site.url("/"), **QUICK) as crawl:
        running = asyncio.ensure_future(crawl.run())
        await until(lambda: site.count("/slow"))
        crawl.stop()
        crawl.stop()
        async with asyncio.timeout(5):
            summary = await running

    assert (summary.ended, summary.queued) == ("stopped", 1)


async def test_its_time_can_be_limited(site: Site) -> None:
    """Issue 5"""
    graph(site, {"/": [f"/{number}" for number in range(50)]} | {f"/{number}": [] for number in range(50)})

    _, done = await crawled(site, **polite(max_time=20.0), preset=None, store=None)

    assert done.summary is not None
    assert done.summary.ended == "max_time"
    assert 2 <= done.summary.fetched <= 13


async def test_whoever_breaks_off_leaves_nothing_behind(site: Site) -> None:
    """Issue 5"""
    graph(site, {"/": [f"/{number}" for number in range(20)]} | {f"/{number}": [] for number in range(20)})

    async with acrawl(site.url("/"), **QUICK) as crawl:
        async for page in crawl:
            assert page.url == site.url("/")
            break

    assert crawl.summary is not None
    assert crawl.summary.ended == "stopped"
    await until(lambda: not [task for task in asyncio.all_tasks() if task is not asyncio.current_task()])


# Before and beside it.


async def test_it_says_before_it_starts_what_it_may_take(site: Site, snapshot: Snapshot) -> None:
    """Issue 5: `up to 500 pages at this pace: about 29 min; the budget allows 100 today`"""
    async with acrawl(site.url("/"), max_pages=500, **polite()) as crawl:
        plan = await crawl.plan()

    assert (plan.pages, plan.gap, plan.seconds, plan.allowed_today) == (500, 3.5, 1750.0, 100)
    assert re.findall(r"\d+", plan.message)[:3] == ["100", "6", "500"]
    assert re.search(r"take about [34] days\.", plan.message), "half a day and three, as the progress rounds it"
    snapshot(plan.message)
    assert site.count() == 0


async def test_the_plan_uses_the_crawl_delay_of_a_known_robots_txt(site: Site) -> None:
    """R8, Issue 18: one that was fetched by another command, before the first page"""
    site.page("/robots.txt", "User-agent: *\nCrawl-delay: 10\n")
    async with AsyncClient(**polite()) as client:
        async with acrawl(site.url("/"), client=client, max_pages=8) as crawl:
            before = await crawl.plan()
        page = parse_url(site.url("/"))
        assert isinstance(page, Url)
        await session_of(client).rules_of(page, "curtsy")
        async with acrawl(site.url("/"), client=client, max_pages=8) as crawl:
            after = await crawl.plan()

    assert (before.gap, before.seconds) == (3.5, 28.0)
    assert (after.gap, after.seconds) == (10.0, 80.0)


async def test_the_plan_of_a_crawl_with_requisites_says_that_they_are_left_out(site: Site) -> None:
    """Issue 5: a style costs a request and a pause, as a page does"""
    async with acrawl(site.url("/"), max_pages=5, requisites="site", **polite()) as crawl:
        plan = await crawl.plan()

    assert plan.seconds == 17.5
    assert plan.message.endswith(REQUISITES_TAKE_MORE)


@pytest.mark.parametrize("pages", [None, 500])
async def test_the_plan_of_an_offline_crawl_has_no_pace_and_no_budget(
    site: Site, snapshot: Snapshot, pages: int | None
) -> None:
    """Issue 18: a replay requests nothing from sites"""
    async with acrawl(site.url("/"), max_pages=pages, cache_mode="offline", **polite()) as crawl:
        plan = await crawl.plan()

    assert (plan.pages, plan.gap, plan.seconds or 0.0, plan.allowed_today) == (pages, 0.0, 0.0, None)
    snapshot(plan.message)


async def test_snapshots_tell_how_far_it_is(site: Site) -> None:
    """Issue 5, point 8"""
    graph(site, {"/": [f"/{number}" for number in range(20)]} | {f"/{number}": [] for number in range(20)})

    async with acrawl(site.url("/"), **polite(), max_pages=10) as crawl:
        async for page in crawl:
            snapshot = await crawl.snapshot()
            assert snapshot.hosts[0].host == f"127.0.0.1:{site.port}"
            if page.url != site.url("/"):
                assert snapshot.queued + snapshot.totals.pages >= 9
                assert snapshot.time_left is not None
    [last] = [each async for each in crawl.snapshots()]

    assert last.state == "max_pages"
    assert last.totals.pages == 10
    assert last.hosts[0].requests_left is not None


async def test_the_time_until_the_next_host_runs_down_while_it_waits(site: Site) -> None:
    """Issue 5, point 8: and it is told why the host is left alone"""
    site.reply("/", Reply(503, headers={"Retry-After": "500"}))
    async with acrawl(site.url("/"), **{**QUICK, "max_retries": 0}) as crawl:
        running = asyncio.ensure_future(crawl.run())
        told: list[str] = []
        async for snapshot in crawl.snapshots(0.05):
            if snapshot.waiting_for is not None and snapshot.waiting_for not in told:
                told.append(snapshot.waiting_for)
            if len(told) > 1:
                break
        crawl.stop()
        await running

    [host] = snapshot.hosts
    assert (host.state, snapshot.state) == ("resting", "waiting")
    assert "503" in host.why
    assert snapshot.time_left is not None
    assert snapshot.time_left > 400


async def test_whoever_asks_is_told_of_the_progress(site: Site) -> None:
    """Issue 5, point 8: at the beginning and at the end at least, and a fault of theirs stops nothing"""
    graph(site, {"/": ["/a"], "/a": []})
    told: list[CrawlSnapshot] = []

    def on_progress(snapshot: CrawlSnapshot) -> None:
        told.append(snapshot)
        raise ValueError("of the listener's own")

    paths, _ = await crawled(site, on_progress=on_progress)

    assert len(paths) == 2
    assert (told[-1].state, told[-1].totals.pages) == ("done", 2)


def test_a_blocking_crawl_is_a_plain_iterator(site: Site) -> None:
    """Issue 5"""
    graph(site, {"/": ["/a", "/b"], "/a": [], "/b": []})

    with crawl(site.url("/"), **QUICK) as pages:
        urls = sorted(page.url for page in pages)

    assert urls == [site.url("/"), site.url("/a"), site.url("/b")]
    assert pages.summary is not None
    assert pages.summary.fetched == 3


def test_a_blocking_crawl_can_be_run_for_its_outputs(site: Site, tmp_path: Path) -> None:
    """Issue 5, point 7"""
    graph(site, {"/": ["/a", "/gone"], "/a": []})

    summary = curtsy.crawl(
        site.url("/"), outputs=[f"{tmp_path}/pages.jsonl", f"skipped:{tmp_path}/skipped.csv"], **QUICK
    ).run()

    assert summary.fetched == 2
    assert len((tmp_path / "pages.jsonl").read_text().splitlines()) == 2
    assert "http_status 404" in (tmp_path / "skipped.csv").read_text()


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"max_depth": -1}, "max_depth"),
        ({"max_in_flight": 0}, "max_in_flight"),
        ({"scope": "galaxy"}, "scope"),
        ({"scope": "domains"}, "domains"),
        ({"match": "("}, r"\("),
        ({"patience": -1}, "patience"),
        ({"max_page": 3}, "max_pages"),
        ({"limit": 3}, r"max_pages\?"),
        ({"depth": 3}, r"max_depth\?"),
        ({"text": "plain"}, r"main_text\?"),
        ({"max_concurrent": 3}, r"max_in_flight\?"),
        ({"main_text": "none"}, "main_text = 'none'"),
        ({"max_request_per_day": 3}, "max_requests_per_day"),
        ({"job": "no/../such name?", "store": None} | {"job": "a b"}, "a b"),
    ],
)
async def test_what_cannot_be_is_refused_before_anything_is_asked(
    site: Site, given: dict[str, object], says: str
) -> None:
    """Conventions: what, why and what to do"""
    with pytest.raises(PolicyError, match=says):
        acrawl(site.url("/"), **{**QUICK, **given})

    assert site.count() == 0


@pytest.mark.parametrize(
    ("seeds", "says"),
    [([], "URL"), ("ftp://example.org/", "ftp"), ("/a", "https://")],
    ids=["none", "scheme", "no scheme"],
)
async def test_seeds_that_cannot_be_are_refused_before_anything_is_asked(
    site: Site, snapshot: Snapshot, seeds: str | list[str], says: str
) -> None:
    """Conventions: what, why and what to do"""
    given = seeds.format(port=site.port) if isinstance(seeds, str) else seeds

    with pytest.raises(PolicyError, match=says) as told:
        acrawl(given, **QUICK)

    snapshot(str(told.value))
    assert site.count() == 0
