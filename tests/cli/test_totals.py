"""`curtsy status`: what is alarming, and what all processes have counted together."""

from __future__ import annotations

import pytest

from tests.cli.crawling import line_with, numbers
from tests.cli.shell import Shell
from tests.support.site import Reply, Site
from tests.support.snapshot import Snapshot


def test_what_processes_have_counted_is_shown_together(shell: Shell, site: Site) -> None:
    """Issue 7: each command is a process of its own"""
    site.page("/a", "hello")
    site.robots("User-agent: *\nDisallow: /private")
    shell("get", site.url("/a"), site.url("/missing"))
    shell("get", site.url("/private"))

    table, found = shell("status", "--total"), shell("status", "--total", "--json").json

    assert found["processes"] == 2
    assert found["requests"] == len(site.journal) - site.count("/robots.txt") == 2
    assert found["robots_requests"] == site.count("/robots.txt") == 1
    assert (found["refused"], found["failed"]) == ({"robots_disallowed": 1}, {"http_status": 1})
    [host] = found["hosts"].values()
    assert [fetch["url"] for fetch in host["last"]] == [site.url("/a"), site.url("/missing"), site.url("/private")]
    assert found["alerts"] == []
    assert numbers(line_with(table.out, "requests ", "robots.txt")) == [2, 1]
    assert numbers(line_with(table.out, "robots_disallowed ")) == [1]


@pytest.mark.parametrize("options", [(), ("--workers", "2")], ids=["alone", "workers"])
def test_requests_of_a_crawl_for_robots_txt_are_counted(shell: Shell, site: Site, options: tuple[str, ...]) -> None:
    """Q8: also if the page waits for its turn after the request for robots.txt, and is fetched later"""
    hosts = [f"127.0.0.{number}" for number in range(1, 4)]
    for host in hosts:
        site.robots("User-agent: *\nCrawl-delay: 0.4", host=host)
        site.page("/", "hello", host=host)
    shell("crawl", *(site.url("/", host=host) for host in hosts), *options)

    found = shell("status", "--total", "--json").json

    assert (found["requests"], found["robots_requests"]) == (site.count("/"), site.count("/robots.txt")) == (3, 3)
    assert [each["robots_requests"] for each in found["hosts"].values()] == [1, 1, 1]


def test_what_is_alarming_is_said(shell: Shell, site: Site, snapshot: Snapshot) -> None:
    """Q10: an open breaker, and more than a tenth blocked"""
    site.reply("/", Reply(403))
    domain = site.url("").removeprefix("http://")
    shell("get", site.url("/"))
    shell("get", site.url("/"))

    table, found = shell("status"), shell("status", "--total", "--json").json

    [host] = shell("status", "--json").json
    assert host["alerts"] == ["breaker_open"]
    assert [(alert["name"], alert["domains"]) for alert in found["alerts"]] == [
        ("breaker_open", [domain]),
        ("many_blocked", []),
    ]
    assert domain in line_with(table.err, "breaker_open")
    assert numbers(line_with(table.err, "many_blocked")) == [1, 2]
    for alert in found["alerts"]:
        assert alert["message"] in line_with(table.err, alert["name"])
        assert alert["name"] not in table.out
    snapshot(table.err)


def test_nothing_is_shown_as_nothing(shell: Shell, snapshot: Snapshot) -> None:
    """Issue 7"""
    done = shell("status", "--total")

    assert done.code == 0
    assert numbers(line_with(done.out, "fetches ")) == [0, 0]
    snapshot(done.out)
