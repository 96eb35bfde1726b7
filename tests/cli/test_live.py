"""A crawl as it is shown while it runs."""

from __future__ import annotations

import re

import pytest

from curtsy.cli.live import line_of, whole
from curtsy.crawling.progress import HostProgress, Snapshot, Totals
from tests.cli.crawling import linked
from tests.cli.shell import Shell
from tests.cli.terminal import uncoloured
from tests.support.site import Site, closed_port

REFUSED = "http://down.example/ could not be fetched after 2 tries: connection refused. Try again later."


def waiting(*hosts: HostProgress) -> Snapshot:
    """A crawl that waits for these hosts."""
    words = "the next host may be asked in 5 min"
    return Snapshot("waiting", Totals(), len(hosts), 0, len(hosts), 0.0, 20.0, 300.0, words, hosts)


def test_who_waits_for_a_site_that_is_down_is_told_so() -> None:
    """U14: five minutes without a page need a reason"""
    snapshot = waiting(
        HostProgress("slow.example", "breaker open", next_in=400.0, why="not asking it: its breaker is open."),
        HostProgress("down.example", "resting", next_in=300.0, why=REFUSED),
    )  # fmt: skip

    line, view = line_of(snapshot), whole(snapshot)[1].plain

    assert line.endswith("about 5 min left, the next host may be asked in 5 min (down.example: connection refused)")
    assert view == "waiting: the next host may be asked in 5 min (down.example: connection refused)"


def test_what_a_message_does_not_say_the_state_says() -> None:
    """U14"""
    snapshot = waiting(HostProgress("a.example", "breaker open", next_in=9.0, why="not asking a.example: it is open."))

    assert line_of(snapshot).endswith("(a.example: breaker open)")


def test_a_mere_pause_needs_no_reason() -> None:
    """U14"""
    assert line_of(waiting(HostProgress("a.example", "waiting", next_in=3.0))).endswith("may be asked in 5 min")


def test_a_run_that_goes_on_counts_for_itself_and_says_what_there_is_in_all() -> None:
    """U14: hosts count what this run has done, and so does the line below them"""
    before = Totals(fetched=10, cached=2, skipped={"robots_disallowed": 3}, failed={"http_404": 1})
    now = Totals(fetched=11, cached=5, skipped={"robots_disallowed": 4}, failed={"http_404": 1})
    hosts = (HostProgress("a.example", "waiting", pages=4),)
    snapshot = Snapshot("running", now, 7, 0, 1, 0.5, 20.0, None, None, hosts, before)

    run, all_runs, _ = (line.plain for line in whole(snapshot))

    assert run == "4 pages in this run · 0.5/s · 7 queued · 1 left alone · 20 s"
    assert all_runs == "in all runs: 16 pages · 4 left alone · 1 failed"
    assert line_of(snapshot) == f"{run.replace(' · ', ', ')}, {all_runs}"


@pytest.mark.parametrize("columns", [60, 80, 120])
def test_the_view_agrees_with_itself_when_a_job_is_gone_on_with(shell: Shell, site: Site, columns: int) -> None:
    """U14: pages of the host, of the run and of the job; what is left in the queue; what is left of the day"""
    linked(site, 9)
    shell("crawl", site.url("/"), "--job", "mine", "--limit", "3")

    done = shell.on_terminal("crawl", site.url("/"), "--job", "mine", "--limit", "5", columns=columns)

    host, written = re.escape(f"127.0.0.1:{site.port}"), uncoloured(done.out)
    queue = r" +5" if columns >= 70 else ""
    last = written.rpartition(" host ")[2]
    assert re.search(rf"◔ +{host} +waiting( +\S+ m?s)? +2{queue} +95 *\n", last)
    assert "\n2 pages in this run · " in last
    assert "5 queued" in last
    assert "\nin all runs: 5 pages" in last
    assert all(len(line) <= columns for piece in written.split("\r") for line in piece.splitlines())


def test_a_connection_that_was_refused_costs_nothing_of_the_day(shell: Shell) -> None:
    """B5: what admission has charged is given back, and what is told is what is left then"""
    with closed_port() as port:
        url = f"http://127.0.0.1:{port}/"
        crawl = shell.on_terminal("crawl", url, CURTSY_MAX_RETRIES="0", CURTSY_RESPECT_ROBOTS="false")
        get = shell("get", "--json", url, CURTSY_MAX_RETRIES="0", CURTSY_RESPECT_ROBOTS="false")

    last = uncoloured(crawl.out).rpartition(" host ")[2]
    assert re.search(rf"127\.0\.0\.1:{port} .* 100 +1 *\n", last)
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
