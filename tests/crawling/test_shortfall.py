"""Crawls without some page or any: a loop over their pages shows nothing, so a warning says why, once."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from curtsy.core.crawl_messages import STORE_IS_OUT, describe, waits
from curtsy.crawling.start import acrawl
from tests.cli.shell import Shell
from tests.crawling.web import QUICK, graph, polite
from tests.support.polling import until
from tests.support.redis_server import RedisServer, redis_available
from tests.support.site import Site, hang
from tests.support.snapshot import Snapshot


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    return Shell(tmp_path)


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.getMessage() for each in caplog.records if each.levelno >= logging.WARNING]


LOST: dict[str, tuple[str, str, dict[str, Any]]] = {
    "robots.txt": ("/private", "robots_disallowed", {}),
    "address": ("/", "address_refused", {"allow_private": False}),
    "error": ("/gone", "http_status 404", {}),
    "one of two": ("/private /", "robots_disallowed", {}),
}
"""Start URLs, the reason of the first one, and arguments."""


@pytest.mark.parametrize("kind", LOST)
async def test_a_start_url_without_a_page_is_one_warning_with_its_reason(
    site: Site, caplog: pytest.LogCaptureFixture, snapshot: Snapshot, kind: str
) -> None:
    """Issue 18"""
    site.robots("User-agent: *\nDisallow: /private\n")
    graph(site, {"/": ["/a", "/b"], "/a": []})
    paths, reason, given = LOST[kind]
    seeds = [site.url(path) for path in paths.split()]

    async with acrawl(seeds, **{**QUICK, **given}) as crawl:
        async for _ in crawl:
            pass

    [warning] = told(caplog)
    found = describe(reason)
    assert [text in warning for text in (seeds[0], found.what, found.advice)] == [True] * 3
    snapshot(warning)


async def test_a_crawl_whose_pages_are_all_due_later_says_when(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    """Issue 18: its start URL has no reason, because it is still queued"""
    graph(site, {"/": []})

    async with acrawl(site.url("/"), **polite(store="memory:"), patience=1.0) as crawl:
        summary = await crawl.run()

    assert (summary.ended, summary.fetched) == ("later", 0)
    [warning] = told(caplog)
    assert summary.message in warning


async def test_a_finished_job_that_runs_again_says_how_to_restart_it(
    site: Site, tmp_path: Path, caplog: pytest.LogCaptureFixture, snapshot: Snapshot
) -> None:
    """Issue 18: nothing is left, so no page comes"""
    graph(site, {"/": []})
    for _ in range(2):
        assert told(caplog) == []
        async with acrawl(site.url("/"), **QUICK, job=tmp_path / "job") as crawl:
            await crawl.run()

    [warning] = told(caplog)
    assert "restart=True" in warning
    snapshot(warning)


async def test_a_crawl_that_was_stopped_has_no_warning(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    graph(site, {"/": []})

    async with acrawl(site.url("/"), **QUICK) as crawl:
        crawl.stop()
        await crawl.run()

    assert told(caplog) == []


async def test_a_worker_that_waits_for_the_urls_of_others_says_so(site: Site, tmp_path: Path) -> None:
    """Issue 18: one of them may have been killed, and then its lease must expire"""
    if reason := redis_available():
        pytest.skip(reason)
    site.reply("/", hang())
    with RedisServer() as server:
        given = {**QUICK, "store": server.url, "job": tmp_path / "job", "lease": 300.0}
        async with acrawl(site.url("/"), **given) as busy, acrawl(site.url("/"), **given) as idle:
            runs = [asyncio.ensure_future(each.run()) for each in (busy, idle)]

            async def is_told() -> bool:
                told = [(await each.snapshot()).waiting_for for each in (busy, idle)]
                return str(waits(None, elsewhere=1)) in str(told)

            await until(is_told)
            for each in (busy, idle):
                each.stop()
                each.stop()
            await asyncio.gather(*runs)


PROGRAM = """
import logging, sys
import curtsy

{before}
for page in curtsy.crawl(sys.argv[1], store="memory:", cache=False):
    print(page.title)
"""


@pytest.mark.parametrize(
    ("before", "lines"),
    [("", 1), ("logging.basicConfig()", 1), ("logging.getLogger('curtsy').setLevel('ERROR')", 0)],
    ids=["no logging", "logging", "silenced"],
)
def test_a_program_shows_the_warning_unless_it_silences_the_log(site: Site, before: str, lines: int) -> None:
    """Issue 18: also if it has configured no log"""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(before=before), site.url("/")], capture_output=True, text=True,
        timeout=120, check=False,
    )  # fmt: skip

    assert (done.returncode, done.stdout) == (0, "")
    assert len(done.stderr.splitlines()) == lines
    assert (describe("address_refused").what in done.stderr) == bool(lines)


def test_the_command_line_reports_it_in_its_summary_only(shell: Shell, site: Site) -> None:
    """Issue 18: not twice"""
    done = shell("crawl", site.url("/gone"), "--no-job")

    assert done.code == 22
    assert done.err.count(site.url("/gone")) == 1


def test_a_crawl_without_its_store_names_the_store_in_its_last_line(shell: Shell, site: Site) -> None:
    """Issue 18: --max-time ended it, but a longer time would not have helped"""
    if reason := redis_available():
        pytest.skip(reason)
    with RedisServer() as server:
        server.pause()
        done = shell("crawl", site.url("/"), "--no-job", "--max-time", "1s", CURTSY_STORE=f"{server.url}?timeout=0.3")

    assert (done.code, site.journal) == (75, [])
    assert STORE_IS_OUT in done.err
