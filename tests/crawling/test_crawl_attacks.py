"""What users and sites do to a crawl that nobody thought of: each of these broke it once."""

from __future__ import annotations

import asyncio
import gzip
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

from curtsy.client import AsyncClient, session_of
from curtsy.core.amendment import Pause, Resume
from curtsy.core.errors import PolicyError, StoreError
from curtsy.crawling import jobs
from curtsy.crawling.frontier.protocol import host_of
from curtsy.crawling.jobs import WorkerId
from curtsy.crawling.results import CrawledPage
from curtsy.crawling.start import acrawl, crawl
from curtsy.crawling.web_crawler import WebCrawler
from curtsy.engine.gate_steps import amended
from curtsy.stores import Answer, Step, WrappedStore
from curtsy.stores.memory import AsyncMemoryStore
from curtsy.testing import FakeClock
from tests.crawling.driven import local
from tests.crawling.web import QUICK, crawled, graph, html, polite
from tests.support.bounds import cpu_within, ends_within
from tests.support.polling import steady, until
from tests.support.site import Reply, Site, Visit, hang, later, redirect
from tests.support.snapshot import Snapshot


def fan(site: Site, pages: int = 20) -> None:
    """A front page that links to all others."""
    paths = [f"/{number}" for number in range(pages)]
    graph(site, {"/": paths} | {path: [] for path in paths})


def typed(body: bytes | str, kind: str = "text/html", wait: float = 0.0) -> Reply:
    return Reply(body=body, headers={"Content-Type": kind}, wait=wait)


# Whoever iterates.


async def test_a_slow_consumer_gets_each_page_once(site: Site) -> None:
    """Issue 5, F37: pages that wait to be taken are not handed out again, however long that takes"""
    fan(site, 5)
    given = polite(preset=None, store=None)
    urls = []

    async with acrawl(site.url("/"), **given) as crawl:
        async for page in crawl:
            urls.append(page.url)
            for _ in range(10):
                given["clock"].advance(100.0)
                await until(steady(site.count))
            assert len(urls) <= 6

    assert len(set(urls)) == len(urls) == 6
    assert max(Counter(path for path in site.paths() if path != "/robots.txt").values()) == 1


@pytest.mark.parametrize("is_raising", [False, True])
def test_breaking_off_a_blocking_crawl_does_not_take_the_seconds_of_a_stop(site: Site, is_raising: bool) -> None:
    """Issue 5: what nobody asks for any more goes back at once"""
    fan(site)
    pages = crawl(site.url("/"), **QUICK)

    with ends_within(6):
        with suppress(KeyError):
            for _ in pages:
                if is_raising:
                    raise KeyError
                break
        pages.close()

    assert pages.summary is not None
    assert pages.summary.ended == "stopped"
    assert pages.summary.fetched == 1


async def test_closing_does_not_wait_for_a_consumer_that_is_gone(site: Site) -> None:
    """Issue 5: whoever holds an iterator and never asks again keeps nobody waiting"""
    fan(site)

    with ends_within(6):
        async with acrawl(site.url("/"), **QUICK) as crawl:
            pages = aiter(crawl)
            await anext(pages)

    assert crawl.summary is not None
    assert crawl.summary.ended == "stopped"
    assert [page async for page in pages] == []


async def test_two_who_iterate_share_the_pages(site: Site) -> None:
    """Issue 5: each page goes to one of them"""
    fan(site)
    urls: list[str] = []

    async def take(pages: AsyncIterator[CrawledPage]) -> None:
        async for page in pages:
            urls.append(page.url)
            await asyncio.sleep(0)

    async with acrawl(site.url("/"), **QUICK) as crawl:
        await asyncio.gather(take(aiter(crawl)), take(aiter(crawl)))

    assert len(urls) == len(set(urls)) == 21


async def test_a_run_that_is_cancelled_ends_cleanly(site: Site, tmp_path: Path) -> None:
    """Issue 5: as by asyncio.timeout. What is finished is kept, and closing is no second cancellation"""
    fan(site, 5)
    site.reply("/3", hang())
    job = tmp_path / "job"

    async with acrawl(site.url("/"), job=job, **QUICK) as crawl:
        running = asyncio.ensure_future(crawl.run())
        await until(lambda: crawl.totals.pages == 5)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
    site.page("/3", html())
    rest, _ = await crawled(site, job=job)

    assert crawl.summary is not None
    assert (crawl.summary.ended, crawl.summary.fetched, crawl.summary.queued) == ("stopped", 5, 1)
    assert rest == ["/3"]


def test_a_blocking_crawl_that_is_over_still_answers(site: Site) -> None:
    """Issue 5: and says what to do where there is no answer"""
    fan(site, 3)
    pages = crawl(site.url("/"), **QUICK)

    first, second = list(pages), list(pages)

    assert (len(first), len(second)) == (4, 0)
    assert pages.run() == pages.summary
    assert pages.snapshot().totals.pages == 4
    with pytest.raises(PolicyError, match="closed"):
        pages.plan()
    pages.stop()


async def test_a_closed_crawl_says_so_when_it_is_asked_for_a_plan(site: Site) -> None:
    """Conventions: what, why and what to do"""
    async with acrawl(site.url("/"), **QUICK) as crawl:
        pass

    assert (await crawl.snapshot()).totals.pages == 0
    with pytest.raises(PolicyError, match="closed"):
        await crawl.plan()


# Whoever owns the client, and starts it.


async def test_a_client_that_is_closed_under_a_crawl_takes_no_url_with_it(site: Site, tmp_path: Path) -> None:
    """Issue 5, point 4: what could not be asked for is left, not failed"""
    fan(site)
    job = tmp_path / "job"
    client = AsyncClient(**QUICK)

    async with acrawl(site.url("/"), client=client, job=job) as crawl:
        pages = aiter(crawl)
        await anext(pages)
        await client.close()
        with pytest.raises(PolicyError, match="closed"):
            await anext(pages)
    rest, done = await crawled(site, job=job)

    assert done.summary is not None
    assert (done.summary.failed, done.summary.fetched) == (0, 21)
    assert set(rest) >= {f"/{number}" for number in range(20)}


async def test_a_mistake_in_the_options_does_not_cost_an_earlier_job(site: Site, tmp_path: Path) -> None:
    """Issue 5, point 4: `restart` begins anew only when there is something to begin"""
    fan(site, 3)
    job = tmp_path / "job"
    await crawled(site, job=job, max_pages=2)

    with pytest.raises(PolicyError, match=r"match\[0\] = '\('"):
        acrawl(site.url("/"), job=job, restart=True, match="(", **QUICK)
    with pytest.raises(PolicyError, match="ftp"):
        acrawl("ftp://example.org/", job=job, restart=True, **QUICK)
    await asyncio.sleep(0)

    assert jobs.look(job).totals.pages == 2


async def test_a_missing_text_reader_is_said_before_anything_is_asked(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """U12: rather than for every page"""
    fan(site, 3)
    monkeypatch.setitem(sys.modules, "trafilatura", None)

    with pytest.raises(PolicyError, match="trafilatura"):
        acrawl(site.url("/"), main_text="trafilatura", **QUICK)

    assert site.count() == 0


async def test_an_output_may_be_one_and_a_path(site: Site, tmp_path: Path) -> None:
    """Issue 5, point 7"""
    fan(site, 3)

    await crawled(site, outputs=str(tmp_path / "one.jsonl"))
    await crawled(site, outputs=[tmp_path / "other.jsonl"])

    for name in ("one", "other"):
        assert len((tmp_path / f"{name}.jsonl").read_text().splitlines()) == 4


# What is left out, and what is not.


async def test_a_link_that_was_too_deep_is_followed_from_a_page_further_up(site: Site) -> None:
    """Issue 5: every page in scope is fetched, in whichever order the others come"""
    graph(site, {"/": ["/a", "/b"], "/b": ["/c"], "/c": ["/x", "/y"], "/x": []})
    site.reply("/a", typed(html("/x"), wait=0.3))

    paths, done = await crawled(site, max_depth=2)

    assert sorted(paths) == ["/", "/a", "/b", "/c", "/x"]
    assert done.totals.left_out == {"too_deep": 2}


async def test_a_page_that_links_to_itself_is_not_left_out_by_that(site: Site) -> None:
    """U14: the numbers of a summary add up"""
    graph(site, {"/": ["/", "/a"]})

    paths, done = await crawled(site, max_depth=0)

    assert paths == ["/"]
    assert done.summary is not None
    assert (done.summary.total, done.summary.fetched, done.summary.skipped) == (1, 1, 0)


@pytest.mark.parametrize("concurrency", [1, 16])
async def test_a_host_has_no_more_pages_than_it_may_however_many_at_once(site: Site, concurrency: int) -> None:
    """Issue 5: nor fewer, for a sitemap is no page"""
    fan(site, 30)
    site.reply("/sitemap.xml", Reply(body=f"<urlset><url><loc>{site.url('/0')}</loc></url></urlset>"))

    paths, done = await crawled(site, max_pages_per_host=3, concurrency=concurrency, sitemaps=True)

    assert len(paths) == 3
    assert len([path for path in site.paths() if path not in ("/robots.txt", "/sitemap.xml")]) == 3
    assert done.totals.skipped == {"host_limit": 28}


async def test_all_that_is_downloaded_counts_against_the_bytes(site: Site) -> None:
    """Issue 5: also what is not kept"""
    graph(site, {"/": [f"/{number}" for number in range(30)]})
    for number in range(30):
        site.page(f"/{number}", html(head='<meta name="robots" content="noindex">', text="x" * 100_000))

    _, done = await crawled(site, max_bytes=500_000, max_in_flight=1)

    assert done.summary is not None
    assert done.summary.ended == "max_bytes"
    assert site.count() <= 10


async def test_two_pages_that_name_each_other_are_not_both_lost_by_a_stop_in_between(
    site: Site, tmp_path: Path
) -> None:
    """Issue 5, point 4"""
    job = tmp_path / "job"
    site.page("/", html("/one", "/two"))
    site.page("/one", html(head='<link rel="canonical" href="/two">', title="1"))
    site.reply("/two", hang())
    async with acrawl(site.url("/"), job=job, **QUICK) as crawl:
        running = asyncio.ensure_future(crawl.run())
        await until(lambda: crawl.totals.skipped and site.count("/two"))
        crawl.stop()
        crawl.stop()
        await running
    site.page("/two", html(head='<link rel="canonical" href="/one">', title="2"))

    rest, _ = await crawled(site, job=job)

    assert rest == ["/two"]


# Redirects.


async def test_a_seed_that_had_to_wait_is_still_a_seed(site: Site) -> None:
    """Issue 5: where it leads, the crawl was meant to go"""
    there = site.url("/home", host="127.0.0.2")
    site.script("/", [later(300), redirect(there)], host="127.0.0.1")
    site.page("/home", html("/a"), host="127.0.0.2")
    site.page("/a", html(), host="127.0.0.2")

    paths, _ = await crawled(site, **polite(), preset=None, store=None)

    assert paths == [there, site.url("/a", host="127.0.0.2")]


async def test_a_redirect_in_a_circle_is_told_as_a_failure(site: Site) -> None:
    """N10, F17: a page that never comes is not passed over in silence"""
    graph(site, {"/": ["/self", "/one"]})
    site.reply("/self", redirect("/self"))
    site.reply("/one", redirect("/two"))
    site.reply("/two", redirect("/one"))

    _, done = await crawled(site)

    assert done.summary is not None
    assert done.summary.reasons == dict.fromkeys([site.url("/self"), site.url("/two")], "too_many_redirects")
    assert max(Counter(site.paths()).values()) == 1


async def test_a_maze_of_redirects_ends_however_many_are_allowed(site: Site) -> None:
    """F17: more than a queue can count"""
    graph(site, {"/": ["/maze/0"]})
    site.on("/maze/*", lambda visit: redirect(f"/maze/{int(visit.path.rpartition('/')[2]) + 1}"))

    _, done = await crawled(site, max_redirects=20, max_time=10.0)

    assert done.totals.failed == {"too_many_redirects": 1}
    assert site.count() <= 24


# Sitemaps.


@pytest.mark.parametrize(
    ("there", "options"),
    [("/maps/map.xml.gz", {}), ("/maps/map", {}), ("/maps/map.xml", {"match": ("/item/",)})],
)
async def test_a_sitemap_that_has_moved_is_still_one(site: Site, there: str, options: dict[str, Any]) -> None:
    """Issue 5: whatever its name and type, and whatever pages are wanted"""
    graph(site, {"/": [], "/item/1": []})
    site.reply("/sitemap.xml", redirect(there))
    listed = f"<urlset><url><loc>{site.url('/item/1')}</loc></url></urlset>".encode()
    is_plain = there == "/maps/map"
    body = gzip.compress(listed) if there.endswith(".gz") else site.url("/item/1").encode() if is_plain else listed
    site.reply(there, typed(body, "text/plain"))

    paths, done = await crawled(site, sitemaps=True, **options)

    assert sorted(paths) == ["/", "/item/1"]
    assert done.totals.sitemaps == 1


async def test_a_gzipped_sitemap_may_be_a_seed(site: Site) -> None:
    """Issue 5"""
    graph(site, {"/item/1": []})
    listed = f"<urlset><url><loc>{site.url('/item/1')}</loc></url></urlset>"
    site.reply("/map.xml.gz", typed(gzip.compress(listed.encode())))

    paths, _ = await crawled(site, "/map.xml.gz", sitemaps=True)

    assert paths == ["/item/1"]


async def test_a_sitemap_that_had_to_wait_is_still_one(site: Site) -> None:
    """U14: that there is none is no failure, whenever it is said"""
    graph(site, {"/": []})
    site.script("/sitemap.xml", [later(30), Reply(404)])

    _, done = await crawled(site, **polite(), preset=None, store=None, sitemaps=True)

    assert (done.totals.skipped, done.totals.failed) == ({"no_sitemap": 1}, {})
    assert site.count("/sitemap.xml") == 2


async def test_what_a_page_called_robots_txt_links_to_is_no_sitemap(site: Site) -> None:
    """Issue 5"""
    graph(site, {"/": ["/wiki/robots.txt"], "/a": []})
    site.page("/wiki/robots.txt", html("/a"))

    paths, _ = await crawled(site, sitemaps=True)

    assert sorted(paths) == ["/", "/a", "/wiki/robots.txt"]


# Waiting.

FEW: dict[str, Any] = {
    "allow_private": True, "cache": False, "store": "memory:", "global_qps": 0.4, "global_burst": 40, "qps": None,
    "pause_min": 0, "pause_max": 0, "scope": "host",
}  # fmt: skip
"""A rate for all hosts, under which few may stand in line; its burst is not spent here."""


def reluctant(site: Site, hosts: list[str]) -> list[str]:
    """Hosts that want to be asked every ten minutes, and one that does not mind; their front pages."""
    for host in hosts:
        site.robots("User-agent: *\nCrawl-delay: 280\n", host=host)
        site.page("/", html(), host=host)
    graph(site, {"/": ["/a", "/b"], "/a": [], "/b": []}, "127.0.0.1")
    return [site.url("/", host=host) for host in (*hosts, "127.0.0.1")]


async def test_hosts_that_want_to_wait_hold_up_no_other_under_a_rate_for_all(site: Site) -> None:
    """Issue 5, point 3, F61: with the default settings too"""
    seeds = reluctant(site, [f"127.0.0.{number}" for number in range(10, 22)])

    async with acrawl(seeds, **FEW) as crawl:
        running = asyncio.ensure_future(crawl.run())
        await until(lambda: site.count(host="127.0.0.1") == 4)
        crawl.stop()
        summary = await running

    assert summary.fetched == 3


@pytest.mark.parametrize("failing", [1, 12])
async def test_pages_that_wait_to_be_asked_for_again_hold_up_no_other_under_a_rate_for_all(
    site: Site, failing: int
) -> None:
    """Issue 5, point 3, F61: however many hosts fail, though few may stand in line"""
    hosts = [f"127.0.0.{number}" for number in range(10, 10 + failing)]
    for host in hosts:
        site.reply("/", Reply(503), host=host)
    graph(site, {"/": ["/a", "/b"], "/a": [], "/b": []}, "127.0.0.1")
    seeds = [site.url("/", host=host) for host in (*hosts, "127.0.0.1")]

    async with acrawl(seeds, max_in_flight=2, retry_delay=300.0, **FEW) as crawl:
        running = asyncio.ensure_future(crawl.run())
        await until(lambda: site.count(host="127.0.0.1") == 4)
        crawl.stop()
        summary = await running

    assert summary.fetched == 3
    assert site.count("/") == failing + 1, "and nothing was asked for again too early"


async def test_when_its_time_is_up_it_does_not_wait_for_those_in_line(site: Site) -> None:
    """Issue 5, U17: what is not on the wire goes back, and nothing more is asked for"""
    site.robots("User-agent: *\nCrawl-delay: 20\n")
    fan(site, 3)

    with ends_within(10):
        async with acrawl(site.url("/"), max_time=1.5, **FEW) as crawl:
            summary = await crawl.run()

    assert (summary.ended, summary.queued, site.count()) == ("max_time", 1, 1)


class SlowStore(WrappedStore):
    """A store that takes its time with hosts for as long as it is told to."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__(AsyncMemoryStore(clock))
        self.is_free = asyncio.Event()
        self.is_free.set()
        self.waiting = 0

    async def update(self, key: str, step: Step[Answer]) -> Answer:
        if key.startswith("host:") and not self.is_free.is_set():
            self.waiting += 1
            await self.is_free.wait()
        return await super().update(key, step)


async def test_a_page_that_has_come_is_not_thrown_away_by_a_stop(site: Site) -> None:
    """U17, F46: nothing is fetched twice, though its host's record was not written yet"""
    given, events = polite(), asyncio.get_running_loop()
    store = SlowStore(given["clock"])
    graph(site, {"/": ["/a", "/b"], "/b": []})

    def answer(_: Visit) -> Reply:
        events.call_soon_threadsafe(store.is_free.clear)
        return typed(html())

    site.on("/a", answer)
    async with acrawl(site.url("/"), **given, store=store) as crawl:
        running = asyncio.ensure_future(crawl.run())
        await until(lambda: store.waiting)
        crawl.stop()
        for _ in range(20):  # turns of the event loop, in which it is called off if it can be
            await asyncio.sleep(0)
        store.is_free.set()
        summary = await running

    assert (summary.ended, summary.fetched, summary.queued) == ("stopped", 2, 1)


async def paused(client: AsyncClient, *hosts: str) -> None:
    """Pause hosts by hand, without an end."""
    for host in hosts:
        policy = client.policies.of(host)
        await session_of(client).store.update(policy.key_for(host), amended(policy, Pause()))


async def test_a_host_that_is_paused_without_end_does_not_keep_a_crawl_alive_for_ever(site: Site) -> None:
    """Issue 5: patience ends for it too; what is left waits, and the crawl says what for"""
    sleeping, well = "127.0.0.2", "127.0.0.1"
    graph(site, {"/": [site.url("/x", host=sleeping), "/a"], "/a": []}, well)
    client = AsyncClient(**polite())
    await paused(client, host_of(site.url("/", host=sleeping)))
    began = session_of(client).timers.now()

    async with client, acrawl(site.url("/", host=well), client=client, scope="any", patience=600.0) as crawl:
        summary = await crawl.run()

    assert (summary.ended, summary.fetched, summary.queued, summary.resume_in) == ("later", 2, 1, None)
    assert "paused. Resume" in summary.message
    assert 600 <= session_of(client).timers.now() - began <= 800
    assert site.count(host=sleeping) == 0


async def test_a_paused_host_that_is_resumed_in_time_is_gone_on_with(site: Site) -> None:
    """Issue 5: whoever pauses a host for a moment does not want to begin the crawl again"""
    graph(site, {"/": ["/a"], "/a": []})
    client = AsyncClient(**polite())
    host = host_of(site.url("/"))
    await paused(client, host)
    began = session_of(client).timers.now()

    async with client, acrawl(site.url("/"), client=client, patience=30 * 86_400.0) as crawl:
        running = asyncio.ensure_future(crawl.run())
        await until(lambda: session_of(client).timers.now() - began > 300)
        policy = client.policies.of(host)
        await session_of(client).store.update(policy.key_for(host), amended(policy, Resume()))
        summary = await running

    assert (summary.ended, summary.fetched) == ("done", 2)


async def test_totals_that_make_no_sense_are_told_and_nothing_is_touched(
    site: Site, tmp_path: Path, snapshot: Snapshot
) -> None:
    """Conventions: what, why and what to do; such a job can still be listed, removed and begun anew"""
    fan(site, 3)
    job = tmp_path / "job"
    output = tmp_path / "pages.jsonl"
    await crawled(site, job=job, max_pages=2, outputs=output)
    before = output.read_bytes()
    with closing(local(job / jobs.FRONTIER)) as frontier:
        frontier.note({"totals": {"fetched": "many"}})

    with pytest.raises(StoreError, match="totals") as told:
        await crawled(site, job=job, outputs=output)

    [listed] = jobs.jobs(tmp_path)
    assert listed.trouble == str(told.value)
    snapshot(listed.trouble)
    assert output.read_bytes() == before
    jobs.remove(job)
    assert not job.exists()


def test_a_job_is_removed_with_all_who_worked_on_it_from_its_folder(tmp_path: Path) -> None:
    """Issue 5: and nothing else"""
    job = tmp_path / "job"
    local(job / jobs.FRONTIER).close()
    first, second = WorkerId(job), WorkerId(job)
    names = {first.name, second.name}
    first.close()
    second.close()
    (job / "workers.txt").write_text("somebody's")

    jobs.remove(job)

    assert len(names) == 2
    assert [path.name for path in job.iterdir()] == ["workers.txt"]


# The documents' crawler.


class Yes:
    """A checker that knows no rules, and fails on some URLs."""

    user_agent = "testbot/1.0 (+https://example.org/bot)"

    async def is_allowed(self, url: str) -> bool:
        if "odd" in url:
            raise ValueError(url)
        return True

    def get_crawl_delay(self, url: str) -> float | None:
        return None


OPEN: dict[str, Any] = {"crawl_delay": 0, "allow_private": True, "cache": False, "store": "memory:"}


@pytest.mark.parametrize("checker", [{}, {"robots_checker": Yes()}], ids=["shared", "own"])
async def test_a_crawled_page_is_named_as_it_was_asked_for(site: Site, checker: dict[str, Any]) -> None:
    """R11: whoever checks robots.txt"""
    site.reply("/old", redirect("/new"))
    site.page("/new", html())

    async with WebCrawler(**OPEN, **checker) as crawler:
        page = await crawler.crawl_page(site.url("/old"))

    assert page is not None
    assert (page.url, page.final_url) == (site.url("/old"), site.url("/new"))


async def test_a_checker_that_fails_on_one_page_does_not_stop_the_others(site: Site) -> None:
    """N10: and what nobody knows to be allowed is not asked for"""
    graph(site, {"/a": [], "/odd": []})

    async with WebCrawler(**OPEN, robots_checker=Yes()) as crawler:
        pages = await crawler.crawl_pages([site.url("/a"), site.url("/odd")])

    assert [page.url for page in pages] == [site.url("/a")]
    assert crawler.reasons == {site.url("/odd"): "error"}
    assert site.count("/odd") == 0


SHAPES = ["@://a:" + "://a:" * 380, "?u=" + "%3A%2F%2Fa%3Ab%40" * 90, "x@:a//" * 300]


@pytest.mark.parametrize("shape", SHAPES, ids=["logins", "encoded", "signs"])
async def test_links_that_are_made_to_be_masked_hold_up_no_crawl(site: Site, shape: str) -> None:
    """F62: masking cost 6 s of CPU for a megabyte of such links, whatever the time limit said"""
    links = "".join(f'<a href="/{number}/{shape}">' for number in range(600))
    site.reply("/", typed(links))

    with cpu_within(1.5):
        pages, _ = await crawled(site, max_pages=3, match=["^never"])

    assert len(links) > 900_000
    assert pages == ["/"]


async def test_a_canonical_that_names_a_forbidden_page_of_another_site_does_not_stop_that_site(site: Site) -> None:
    """C22: like a redirect. It would open the other site's breaker for 300 s"""
    forbidden = site.url("/forbidden", host="127.0.0.2")
    site.page("/", html(head=f'<link rel="canonical" href="{forbidden}">'))
    site.reply("/forbidden", Reply(403), host="127.0.0.2")
    graph(site, {f"/{number}": [f"/{number + 1}"] for number in range(10)}, host="127.0.0.2")
    seeds = [site.url("/"), site.url("/0", host="127.0.0.2")]
    given = polite()
    clock: FakeClock = given["clock"]
    began = clock.now().epoch

    async with acrawl(seeds, **given, store="memory:", max_pages=10) as crawl:
        await crawl.run()

    assert site.count("/forbidden") == 1
    assert site.count("/9", host="127.0.0.2") == 1
    assert clock.now().epoch - began < 200_000_000
