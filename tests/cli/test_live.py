"""A crawl as it is shown while it runs."""

from __future__ import annotations

import re

import pytest

from curtsy.cli.report import line_of, whole
from curtsy.crawling.progress import CrawlSnapshot as Progress
from curtsy.crawling.progress import CrawlTotals, HostProgress
from tests.cli.crawling import line_with, linked, numbers
from tests.cli.shell import Shell
from tests.cli.terminal import uncoloured
from tests.support.site import Site, closed_port
from tests.support.snapshot import Snapshot

WAITS = "next host in 5 min"


def waiting(*hosts: HostProgress) -> Progress:
    """A crawl that waits for these hosts."""
    return Progress("waiting", CrawlTotals(), len(hosts), 0, len(hosts), 0.0, 20.0, 300.0, WAITS, hosts)


def test_who_waits_for_a_site_that_is_down_is_told_so() -> None:
    """U14: five minutes without a page need a reason"""
    progress = waiting(
        HostProgress("slow.example", "breaker open", next_in=400.0, why="circuit breaker open"),
        HostProgress("down.example", "resting", next_in=300.0, why="connection refused"),
    )  # fmt: skip

    line, view = line_of(progress), whole(progress)[1].plain

    why = "(down.example: connection refused)"
    assert line.endswith(f"5 min left, {WAITS} {why}")
    assert view == f"waiting: {WAITS} {why}"


def test_a_mere_pause_needs_no_reason() -> None:
    """U14"""
    assert line_of(waiting(HostProgress("a.example", "waiting", next_in=3.0))).endswith(WAITS)


def test_a_run_that_goes_on_counts_for_itself_and_says_what_there_is_in_all(snapshot: Snapshot) -> None:
    """U14: hosts count what this run has done, and so does the line below them"""
    before = CrawlTotals(fetched=10, cached=2, skipped={"robots_disallowed": 3}, failed={"http_404": 1})
    now = CrawlTotals(fetched=11, cached=5, skipped={"robots_disallowed": 4}, failed={"http_404": 1})
    hosts = (HostProgress("a.example", "waiting", pages=4),)
    progress = Progress("running", now, 7, 0, 1, 0.5, 20.0, None, None, hosts, before)

    run, all_runs, _ = (line.plain for line in whole(progress))

    assert re.findall(r"[\d.]+", run) == ["4", "0.5", "7", "1", "20"]
    assert numbers(all_runs) == [16, 4, 1]
    snapshot(f"{run}\n{all_runs}")
    assert line_of(progress) == f"{run.replace(' · ', ', ')}, {all_runs}"


def test_the_requisites_of_a_mirror_are_progress_too() -> None:
    """U14: a page with forty images takes minutes in which no other page arrives"""
    before, now = CrawlTotals(fetched=1, requisites=3), CrawlTotals(fetched=1, requisites=10)
    progress = Progress("running", now, 7, 0, 1, 0.0, 20.0, None, None, (), before)

    assert "7 requisites" in line_of(progress)


@pytest.mark.parametrize("columns", [60, 80, 120])
def test_the_view_agrees_with_itself_when_a_job_is_gone_on_with(shell: Shell, site: Site, columns: int) -> None:
    """U14: pages of the host, of the run and of the job; what is left in the queue; what is left of the day"""
    linked(site, 9)
    shell("crawl", site.url("/"), "--job", "mine", "--limit", "3")

    done = shell.on_terminal("crawl", site.url("/"), "--job", "mine", "--limit", "5", columns=columns)

    written = uncoloured(done.out)
    lines = written.rpartition(" host ")[2].splitlines()
    _, row, _, run, all_runs, *_ = lines
    figures = ["2", "5", "95"] if columns >= 70 else ["2", "95"]
    assert row.split()[:3] == ["◔", f"127.0.0.1:{site.port}", "waiting"]
    assert row.split()[-len(figures) :] == figures
    assert numbers(run)[0] == 2
    assert "5 queued" in run
    assert numbers(all_runs) == [5]
    assert all(len(line) <= columns for piece in written.split("\r") for line in piece.splitlines())


def test_a_connection_that_was_refused_costs_nothing_of_the_day(shell: Shell) -> None:
    """B5: what admission has charged is given back, and what is told is what is left then"""
    with closed_port() as port:
        url = f"http://127.0.0.1:{port}/"
        crawl = shell.on_terminal("crawl", url, CURTSY_MAX_RETRIES="0", CURTSY_RESPECT_ROBOTS="false")
        get = shell("get", "--json", url, CURTSY_MAX_RETRIES="0", CURTSY_RESPECT_ROBOTS="false")

    row = uncoloured(crawl.out).rpartition(" host ")[2].splitlines()[1]
    assert f" 127.0.0.1:{port} " in row
    assert row.split()[-2:] == ["100", "1"]
    assert (get.json["requests_left"], get.json["pages_left"]) == (200, 100)


def test_what_is_left_of_the_day_is_told_as_it_was_counted(shell: Shell, site: Site) -> None:
    """B5: a 404 is a request and no page, a 304 is neither"""
    shell("get", site.url("/"))

    unchanged, missing = (shell("get", "--json", site.url(path), CURTSY_CACHE_MODE="revalidate").json
                          for path in ("/", "/missing"))  # fmt: skip

    [host] = shell("budget", "--json").json
    assert (unchanged["status"], unchanged["requests_left"], unchanged["pages_left"]) == (200, 198, 99)
    assert (missing["requests_left"], missing["pages_left"]) == (197, 99)
    assert (host["requests_today"], host["pages_today"]) == (3, 1)


def test_a_crawl_delay_is_in_the_plan_and_is_said_when_it_becomes_known(shell: Shell, site: Site) -> None:
    """R8, Issue 18: the first plan said `without pauses`"""
    linked(site, 3)
    site.page("/robots.txt", "User-agent: *\nCrawl-delay: 1\n")

    first = shell("crawl", site.url("/"), "--max-pages", "2")
    planned = shell("crawl", site.url("/"), "--max-pages", "9", "--dry-run")

    assert "without pauses" in first.err
    assert " wants 1 s " in line_with(first.err, "Crawl-delay", site.url("").removeprefix("http://"))
    assert "every 1 s" in planned.out
