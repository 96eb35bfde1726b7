"""Crawls as an operator sees them: one job with all its workers, in views, metrics and alerts."""

from __future__ import annotations

import asyncio
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from curtsy.core.crawl_record import CrawledHost, CrawlRecord
from curtsy.core.statistics import StatisticsSnapshot
from curtsy.crawling.start import acrawl
from curtsy.engine.alerts import alerts_of
from curtsy.engine.crawl_view import SILENT, STALLED, CrawlView, crawls_of, read_crawls
from curtsy.observe.metrics import Collector, metrics_text
from curtsy.stores import open_store
from tests.crawling.web import html
from tests.observe.recording import NOON, tallied
from tests.support.polling import until
from tests.support.redis_server import RedisServer, redis_available
from tests.support.site import Reply, Site, hang


def record(worker: str = "", **fields: Any) -> CrawlRecord:
    """What a worker published a moment ago."""
    known = {"job": "news", "process": f"machine-{worker}", "updated_at": NOON, "progress_at": NOON, "queued": 50}
    return CrawlRecord(worker=worker, **{**known, **fields})


def view(*records: CrawlRecord) -> CrawlView:
    [found] = crawls_of(records, NOON)
    return found


def test_the_workers_of_a_job_are_one_crawl() -> None:
    """Issue 17, 5: sums, and the queue as the last one saw it"""
    gone = NOON - SILENT - 1
    found = view(
        record("a", pages=10, cached=2, rate=1.0, in_flight=3, seconds_left=60.0, job_pages=40, queued=48, leased=5,
               hosts=(CrawledHost("x.example", "waiting", 7, 9, None, 1),), updated_at=NOON - 1),
        record("b", pages=5, rate=0.5, in_flight=4, seconds_left=30.0, oldest_lease_at=NOON - 9,
               hosts=(CrawledHost("x.example", "fetching", 1, 8),), leased=7),
        record("c", pages=1, rate=9.0, in_flight=8, oldest_lease_at=gone, updated_at=gone),
        record("d", pages=3, state="stopped", updated_at=gone, queued=99),
    )  # fmt: skip
    whole = found.whole

    assert [(each.worker, each.state, each.pages, each.rate) for each in found.workers] == [
        ("c", "silent", 1, 0.0), ("a", "running", 12, 1.0), ("b", "running", 5, 0.5), ("d", "stopped", 3, 0.0),
    ]  # fmt: skip
    assert (whole.pages, whole.cached, whole.in_flight, whole.rate) == (38, 2, 7, 1.5)  # with workers that are gone
    assert (whole.queued, whole.leased, whole.state, round(whole.seconds_left or 0, 6)) == (50, 7, "running", 20.0)
    assert whole.hosts == (CrawledHost("x.example", "fetching", 8, 8, None, 1),)
    assert found.oldest_lease == 9.0
    assert [each.worker for each in found.lost] == ["c"]


def test_the_least_time_of_several_workers_is_told_while_none_knows_the_time_left() -> None:
    """Issue 18: each estimates as if it were alone with the queue"""
    unknown = [record("a", seconds_left_at_least=60.0), record("b", seconds_left_at_least=30.0)]
    known = record("c", seconds_left=40.0)

    whole, with_known = view(*unknown).whole, view(*unknown, known).whole

    assert whole.seconds_left is None
    assert whole.seconds_left_at_least == pytest.approx(20.0)
    assert with_known.seconds_left == pytest.approx(40.0)
    assert with_known.seconds_left_at_least is None


def test_an_unknown_time_left_is_none_and_not_zero() -> None:
    """Issue 17: with URLs in the queue"""
    assert view(record("a", seconds_left=0.0), record("b")).whole.seconds_left is None


async def test_a_crawl_that_fetches_now_and_then_is_running(site: Site, tmp_path: Path) -> None:
    """Issue 17: although no request is in flight between two pages"""
    site.page("/", html(*(f"/{number}" for number in range(12))))
    site.page("/*", html())
    url = f"sqlite:///{tmp_path}/state.sqlite"
    manners: dict[str, Any] = {"preset": "own", "allow_private": True, "cache": False, "delay": 0.3, "concurrency": 1}
    seen: list[tuple[str, str | None]] = []

    with closing(open_store(url)) as store:
        async with acrawl(site.url("/"), store=url, **manners) as crawl:
            running = asyncio.ensure_future(crawl.run())
            await until(lambda: site.count() > 3)
            while not running.done():
                seen += [(each.whole.state, each.whole.waiting_for) for each in read_crawls(store) if each.whole.pages]
                await asyncio.wait([running], timeout=0.2)
            await running

    assert ("running", None) in seen
    assert set(seen) <= {("running", None), ("finished", None)}


async def test_the_least_time_is_published_while_the_queue_grows(site: Site, tmp_path: Path) -> None:
    """Issue 18: as the crawl's own progress shows it"""
    site.on("/*", lambda visit: Reply(body="".join(f'<a href="{visit.path}{name}/">' for name in "abcdefgh")))
    url = f"sqlite:///{tmp_path}/state.sqlite"
    manners: dict[str, Any] = {"preset": "own", "allow_private": True, "cache": False, "delay": 0.2, "concurrency": 1}

    with closing(open_store(url)) as store:
        async with acrawl(site.url("/"), store=url, **manners) as crawl:
            running = asyncio.ensure_future(crawl.run())
            await until(lambda: any(each.whole.seconds_left_at_least for each in read_crawls(store)), every=0.1)
            [seen] = read_crawls(store)
            crawl.stop()
            await running
        [after] = read_crawls(store)

    assert seen.whole.seconds_left is None
    assert 1 < (seen.whole.seconds_left_at_least or 0.0) < 59
    assert after.whole.seconds_left_at_least is None


def test_crawls_of_one_process_each_stay_apart() -> None:
    """Issue 7"""
    found = crawls_of([record(process="one", pages=1), record(process="two", pages=2)], NOON)

    assert [each.whole.pages for each in found] == [1, 2]


LATE = NOON - STALLED - 1
DEAD = NOON - SILENT - 1


@pytest.mark.parametrize(
    ("records", "found"),
    [
        ([record("a"), record("b")], []),
        ([record("a", progress_at=LATE)], ["no_progress"]),
        ([record("a", progress_at=LATE), record("b")], []),
        ([record("a", progress_at=LATE, state="waiting")], []),
        ([record("a", progress_at=LATE, state="finished", queued=0)], []),
        ([record("a", progress_at=0.0)], []),
        ([record("a"), record("b", updated_at=DEAD)], ["dead_workers"]),
        ([record("a", state="finished"), record("b", updated_at=DEAD)], []),
        ([record("a", updated_at=DEAD, progress_at=LATE)], ["dead_workers"]),
    ],
)
def test_a_crawl_is_alarming_without_progress_and_with_dead_workers(
    records: list[CrawlRecord], found: list[str]
) -> None:
    """Issue 17, 5"""
    assert [alert.name for alert in alerts_of(StatisticsSnapshot(), (), [view(*records)])] == found


def figures(*crawls: CrawlView, labelled: int = 50) -> dict[str, dict[tuple[str, ...], float]]:
    """The samples of the crawls, by metric and the values of their labels."""
    text = metrics_text(Collector(tallied().snapshot, crawls=lambda: crawls, labelled=labelled)).decode()
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    return {
        sample.name: {tuple(each.labels.values()): each.value for each in samples if each.name == sample.name}
        for sample in samples
    }


def test_the_number_of_workers_and_crawls_with_labels_is_bounded() -> None:
    """Issue 17, 5: a bounded number of series, and no page is lost"""
    crawls = [view(*(record(str(worker), job=str(job), pages=1) for worker in range(9))) for job in range(4)]

    found = figures(*crawls, labelled=3)

    assert len(found["curtsy_frontier_queued"]) == 3
    assert len(found["curtsy_worker_pages"]) == 3 * 4
    assert sum(found["curtsy_worker_pages"].values()) == 3 * 9


async def test_what_is_seen_of_two_workers_is_what_they_do(site: Site, tmp_path: Path) -> None:
    """Issue 17, 5: real workers of a real job, while the site does not answer"""
    if reason := redis_available():
        pytest.skip(reason)
    hosts = [f"127.0.0.{number}" for number in range(2, 10)]
    site.reply("/", Reply(body=html("/held", "/later"), headers={"Content-Type": "text/html"}))
    site.reply("/*", hang())
    site.robots("User-agent: *\nDisallow: /private/\n")
    settings: dict[str, Any] = {
        "qps": None,
        "global_qps": None,
        "pause_min": 0,
        "pause_max": 0,
        "allow_private": True,
        "timeout": 600,
    }

    with RedisServer() as server:
        store = open_store(server.url, fallback=False)

        def now() -> dict[str, dict[tuple[str, ...], float]]:
            return figures(*read_crawls(store))

        seeds = [site.url("/", host=host) for host in hosts]
        crawls = [
            acrawl(seeds, store=server.url, job=tmp_path / name / "news", scope="host", cache=False, **settings)
            for name in ("one", "two")
        ]
        tasks = [asyncio.ensure_future(each.run()) for each in crawls]
        held = {"curtsy_frontier_queued": len(hosts), "curtsy_frontier_leased": len(hosts)}
        try:
            await until(lambda: {name: now().get(name, {}).get(("news",)) for name in held} == held)
            await until(lambda: read_crawls(store)[0].present == len(crawls))
            await until(lambda: site.count("/held") == len(hosts))  # a leased URL may not have been requested yet
            [at_work] = read_crawls(store)
        finally:
            for crawl in crawls:
                crawl.stop()
                crawl.stop()
        await asyncio.gather(*tasks)
        [ended] = read_crawls(store)
        store.close()

    assert at_work.whole.pages == len(hosts) == site.count("/held")
    assert at_work.oldest_lease > 0
    assert {each.state for each in ended.workers} == {"stopped"}
    assert sum(each.pages for each in ended.workers) == len(hosts)
    assert (ended.whole.queued, ended.oldest_lease) == (2 * len(hosts), 0.0)
