"""What a crawl says of URLs that no page came of, and of those that it is going to ask for again."""

from __future__ import annotations

import asyncio
import csv
from pathlib import Path

import pytest

from curtsy.client import AsyncClient
from curtsy.core import crawl_messages, plan_messages
from curtsy.crawling.outputs.skipped import SkippedCsv
from curtsy.crawling.start import acrawl
from tests.crawling.web import QUICK, crawled, html
from tests.support.polling import until
from tests.support.site import Reply, Site, dripping, hang, redirect
from tests.support.snapshot import Snapshot

SECRET = "https://example.org/a?token=hush"


def test_the_waits_of_a_crawl_are_told_together(snapshot: Snapshot) -> None:
    """Issue 17: those of a shared crawl name the other workers"""
    assert crawl_messages.waits(None) is None
    waits = {
        "own": crawl_messages.waits(3.0),
        "others": crawl_messages.waits(3.0, 5),
        "lost": crawl_messages.waits(40.0, 0, 2, 54.0),
        "only lost": crawl_messages.waits(None, 0, 1, 54.0),
    }
    for name, wait in waits.items():
        snapshot(wait or "", name)


async def test_every_url_without_a_page_is_told_with_why_and_what_to_do(site: Site, tmp_path: Path) -> None:
    """U14: in whole sentences, whatever it was"""
    said = {
        "/hidden": ("noindex", "says noindex"),
        "/copy": ("not_canonical", f"its canonical URL is {site.url('/original')}"),
        "/twin": ("duplicate", f"it equals {site.url('/original')}"),
        "/to-itself": ("too_many_redirects", "it redirects in a circle"),
        "/far/6": ("too_many_redirects", "it was redirected more than 5 times"),
        "/nowhere": ("bad_redirect", "it redirects to an invalid URL"),
        "/away": ("other_site", "it redirects to http://elsewhere.example/, which is outside the scope"),
        "/late": ("host_limit", "its host has reached max_pages_per_host, 2"),
    }
    site.page("/", html("/original", *[path for path in said if not path.startswith("/far")], "/far/1"))
    site.page("/original", html())
    site.page("/twin", html())
    site.page("/late", html(title="Late"))
    site.page("/hidden", html(head='<meta name="robots" content="noindex">'))
    site.page("/copy", html(head='<link rel="canonical" href="/original">'))
    site.reply("/to-itself", redirect("/to-itself"))
    site.reply("/nowhere", redirect("javascript:alert(1)"))
    site.reply("/away", redirect("http://elsewhere.example/"))
    for number in range(1, 8):
        site.reply(f"/far/{number}", redirect(f"/far/{number + 1}"))
    output = tmp_path / "skipped.csv"
    given = {
        **QUICK,
        "concurrency": 1,
        "drop_duplicates": True,
        "outputs": [SkippedCsv(output)],
        "job": tmp_path / "job",
    }
    await crawled(site, skip=["/late"], **given)

    await crawled(site, "/late", max_pages_per_host=2, **given)

    found = {row["url"].removeprefix(site.url("")): row for row in csv.DictReader(output.read_text().splitlines())}
    for path, (reason, why) in said.items():
        message = found[path]["message"]
        assert (path, found[path]["reason"]) == (path, reason)
        assert site.url(path) in message
        assert why in message
        assert message.count(". ") >= 1
        assert message.endswith(".")


def test_no_excuse_tells_a_secret() -> None:
    """F62"""
    told = [
        crawl_messages.noindex(SECRET),
        crawl_messages.not_canonical(SECRET, SECRET),
        crawl_messages.duplicate(SECRET, SECRET),
        crawl_messages.no_sitemap(SECRET),
        crawl_messages.bad_redirect(SECRET, "it has no host"),
        crawl_messages.redirected_in_circle(SECRET),
        crawl_messages.redirected_too_often(SECRET, 5),
        crawl_messages.redirected_outside(SECRET, SECRET),
        crawl_messages.host_limit(SECRET, 3),
        crawl_messages.reader_crashed(SECRET),
    ]

    assert not any("hush" in message for message in told)


async def test_a_crawl_says_that_it_is_going_to_ask_again(site: Site, snapshot: Snapshot) -> None:
    """U14, N4: else nobody would know what it waits for, with nothing queued and nothing on the wire"""
    site.reply("/", Reply(429, "slower", {"Retry-After": "50"}))

    async with acrawl(site.url("/"), **QUICK) as crawl:
        running = asyncio.ensure_future(crawl.run())
        async for seen in crawl.snapshots(0.01):
            if seen.waiting_for is not None:
                break
        crawl.stop()
        crawl.stop()
        await running

    assert seen.waiting_for is not None
    assert "1" in seen.waiting_for.split()
    snapshot(seen.waiting_for)


@pytest.mark.parametrize("workers", [1, 2])
async def test_a_crawl_says_why_a_url_waits_for_its_retry_while_others_are_queued(
    site: Site, tmp_path: Path, workers: int
) -> None:
    """N3: the breaker is still closed, and the site has sent bytes at a good rate until the time was over"""
    site.page("/", html("/slow", "/other"))
    site.reply("/slow", dripping(b"x" * 100_000, 0.01, 100))
    site.page("/other", "fast")
    settings = {"retry_delay": 30.0, "timeout": 0.3, "concurrency": 1, "store": f"sqlite:///{tmp_path}/state.sqlite"}

    async with acrawl(site.url("/"), **{**QUICK, **settings}, workers=workers) as crawl:
        running = asyncio.ensure_future(crawl.run())
        async for seen in crawl.snapshots(0.01):
            if seen.waiting_for is not None and crawl_messages.describe("timeout").what in seen.waiting_for:
                break
        crawl.stop()
        crawl.stop()
        await running

    assert crawl_messages.retries({"timeout": 1}) == seen.waiting_for
    assert site.count("/slow") == 1


@pytest.mark.parametrize("workers", [1, 2])
async def test_a_crawl_says_that_others_hold_the_slot_that_its_requests_wait_for(
    site: Site, tmp_path: Path, snapshot: Snapshot, workers: int
) -> None:
    """P1, Issue 18: from its first seconds, and as after a kill; nothing is requested meanwhile"""
    site.on("/slow", lambda visit: hang())
    manners = {**QUICK, "concurrency": 1, "global_qps": 100.0, "store": f"sqlite:///{tmp_path}/state.sqlite"}

    async with AsyncClient(**manners) as other, acrawl(site.url("/"), **manners, workers=workers) as crawl:
        holding = asyncio.ensure_future(other.fetch(site.url("/slow")))
        await until(lambda: site.count("/slow"))
        running = asyncio.ensure_future(crawl.run())
        async for seen in crawl.snapshots(0.05):
            if seen.waiting_for is not None and seen.elapsed > 0.5:
                break
        crawl.stop()
        crawl.stop()
        await running
        holding.cancel()

    assert seen.waiting_for is not None
    assert seen.elapsed < 5.0
    snapshot(seen.waiting_for)
    assert site.paths() == ["/robots.txt", "/slow"]


async def test_a_page_that_takes_longer_than_the_timeout_names_the_setting(
    site: Site, tmp_path: Path, snapshot: Snapshot
) -> None:
    """N9, Conventions: errors say what, why, what to do."""
    site.page("/", html("/slow", "/silent"))
    site.reply("/slow", dripping(b"x" * 100_000, 0.01, 100))
    site.on("/silent", lambda visit: hang())
    table = tmp_path / "skipped.csv"

    await crawled(site, outputs=[SkippedCsv(str(table))], max_retries=0, timeout=0.3, breaker=False)

    rows = csv.DictReader(table.read_text().splitlines())
    messages = {row["url"].removeprefix(site.url("")): row["message"] for row in rows}
    assert set(messages) == {"/slow", "/silent"}
    for path, message in messages.items():
        assert "timeout" in message
        snapshot(message, path)


@pytest.mark.parametrize(
    ("gap", "pace"), [(3.5, "every 3.5 s"), (1.0, "every 1 s"), (0.5, "2 pages"), (0.0375, "26.7")]
)
def test_a_plan_says_its_pace_as_a_rate_if_that_is_above_one_a_second(gap: float, pace: str) -> None:
    said = plan_messages.plan_message(1100, None, gap, 41.0, 41.0, limited=[], hosts=4, resets_in=0.0, is_paused=False)

    assert pace in said
    assert "every 0" not in said
