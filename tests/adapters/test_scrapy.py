"""Scrapy with curtsy's add-on, in one process for all of these tests. The site's journal is the judge."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.adapters.doors import PLAIN
from tests.support.polling import until
from tests.support.site import Reply, Site, redirect

LONG = 3600

PAUSE = 0.05
"""Seconds between two requests to a host."""

RESTING = "127.0.0.3"
OTHERS = [f"127.0.0.{number}" for number in range(10, 14)]


class Crawl(NamedTuple):
    site: Site
    done: list[dict[str, Any]]
    stats: dict[str, int]
    log: str

    def of(self, path: str) -> list[dict[str, Any]]:
        return [each for each in self.done if each["url"].endswith(path)]


@pytest.fixture(scope="module")
def crawl(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Crawl]:
    """One crawl with everything in it."""
    folder = tmp_path_factory.mktemp("scrapy")
    with Site() as site:
        site.robots("User-agent: *\nDisallow: /private")
        site.page("/page*", "here", headers={"Cache-Control": "max-age=600"})
        site.reply("/old", redirect("/private/x"))
        site.script("/flaky", [Reply(500, "sorry"), Reply(200, "fine")])
        site.reply("/busy", Reply(503, "busy", {"Retry-After": str(LONG)}), host="127.0.0.2")
        urls = [site.url(path) for path in ("/page", "/page", "/private", "/old", "/flaky")]
        urls += [site.url(path, host="127.0.0.2") for path in ("/busy", "/page")]
        urls += [site.url(f"/page?{number}", host=RESTING) for number in range(20)]
        urls += [site.url("/page", host=host) for host in OTHERS]
        own = {key: PLAIN[key] for key in ("allow_private", "timezone", "global_qps", "qps", "pause_max")}
        own |= {"pause_min": PAUSE, "pause_max": PAUSE, "store": f"sqlite:///{folder}/state.sqlite"}
        settings = {
            "CURTSY": own | {"cache": str(folder / "pages")}, "ROBOTSTXT_OBEY": True, "DOWNLOAD_DELAY": 30,
            "CONCURRENT_REQUESTS": 2, "RETRY_HTTP_CODES": [500], "USER_AGENT": "spider/1.0 (+https://example.org/bot)",
        }  # fmt: skip
        yield run(site, urls, settings)


def started(urls: list[str], settings: dict[str, Any]) -> subprocess.Popen[str]:
    """Start a crawl in a process of its own."""
    command = [sys.executable, "-m", "tests.adapters.spider", json.dumps({"settings": settings, "urls": urls})]
    pipe, root = subprocess.PIPE, Path(__file__).parents[2]
    return subprocess.Popen(command, cwd=root, stdout=pipe, stderr=pipe, text=True)


def run(site: Site, urls: list[str], settings: dict[str, Any]) -> Crawl:
    """Crawl to the end."""
    with started(urls, settings) as process:
        out, log = process.communicate(timeout=120)
    assert process.returncode == 0, log
    told = json.loads(out.splitlines()[-1])
    return Crawl(site, told["done"], told["stats"], log)


@pytest.mark.soak
def test_a_crawl_with_a_jobdir_keeps_its_limits_over_a_restart(tmp_path: Path) -> None:
    """Scrapy: they are in the store"""
    own = {"store": f"sqlite:///{tmp_path}/state.sqlite", "max_requests_per_day": 3, "respect_robots": False}
    settings = {"CURTSY": PLAIN | own, "JOBDIR": str(tmp_path / "job")}
    with Site() as site:
        site.page("/*", "here")

        first = run(site, [site.url(f"/{number}") for number in range(2)], settings)
        second = run(site, [site.url(f"/{number}") for number in range(2, 5)], settings)

        assert [each.get("reason") for each in first.done] == [None] * 2
        assert sorted(each.get("reason", "") for each in second.done) == ["", *["domain_budget_exceeded"] * 2]
        assert site.count() == 3


def test_a_stop_ends_waits_at_once_and_keeps_the_queue(tmp_path: Path) -> None:
    """Scrapy: waiting requests go back to the JOBDIR"""
    settings = {"CURTSY": PLAIN | {"delay": LONG, "respect_robots": False}, "JOBDIR": str(tmp_path / "job")}
    with Site() as site:
        site.page("/*", "here")
        paths = [f"/{number}" for number in range(4)]

        with started([site.url(path) for path in paths], settings) as process:
            asyncio.run(until(lambda: site.count() == 1))
            process.send_signal(signal.SIGINT)
            assert process.wait(60) == 0
        second = run(site, [], settings | {"CURTSY": PLAIN | {"respect_robots": False}})

        assert not [each for each in second.done if "error" in each]
        assert sorted(site.paths()) == paths


def test_pages_come_as_scrapys_responses(crawl: Crawl) -> None:
    """Scrapy: every URL ends in a callback or an errback"""
    assert len(crawl.done) == 7 + 20 + len(OTHERS)
    assert [each["status"] for each in crawl.done if "text" in each and each["text"] == "here"]


def test_the_cache_answers_as_scrapy_does(crawl: Crawl) -> None:
    """Scrapy: flagged `cached`"""
    first, second = [each for each in crawl.done if each["url"] == crawl.site.url("/page")]

    assert first["text"] == second["text"] == "here"
    assert [first["flags"], second["flags"]] == [[], ["cached", "curtsy: hit"]]


def test_a_refusal_reaches_the_errback_and_the_statistics(crawl: Crawl) -> None:
    """Scrapy: `curtsy/refused/<reason>`; a redirect is judged as well"""
    refused = [each for each in crawl.done if each.get("reason") == "robots_disallowed"]

    assert len(refused) == crawl.stats["curtsy/refused/robots_disallowed"] == 2
    assert {each["error"] for each in refused} == {"Refused"}
    assert crawl.site.count("/old") == 1
    assert [path for path in crawl.site.paths() if path.startswith("/private")] == []


def test_a_retry_after_closes_the_host(crawl: Crawl) -> None:
    """Scrapy: nothing is requested inside it"""
    (refused,) = [each for each in crawl.done if each.get("reason") == "circuit_open"]

    assert refused["retry_after"] == pytest.approx(LONG, abs=60)
    assert crawl.site.paths("127.0.0.2") == ["/robots.txt", "/busy"]


def test_scrapys_own_retries_pass_the_gate(crawl: Crawl) -> None:
    """Scrapy: its retry middleware is left alone"""
    (fine,) = crawl.of("/flaky")

    assert fine["text"] == "fine"
    assert crawl.site.count("/flaky") == 2


def test_the_pace_is_curtsys(crawl: Crawl) -> None:
    """Scrapy: one robots.txt, one request at a time, its own delay of 30 s off"""
    for host in ("127.0.0.1", RESTING, *OTHERS):
        assert crawl.site.count("/robots.txt", host=host) == 1
        assert crawl.site.max_concurrency(host) == 1
    assert crawl.log.count("switched off") <= 1
    visits = crawl.site.visits(host=RESTING)
    assert visits[-1].at - visits[0].at >= 19 * PAUSE  # the first arrival may be late, so not 20


def test_a_slow_host_does_not_fill_the_downloader(crawl: Crawl) -> None:
    """Scrapy: 20 requests wait for one host, and only two may be in the downloader"""
    visits = crawl.site.visits()
    last_of_slow = max(visit.at for visit in visits if visit.host == RESTING)

    for host in OTHERS:
        (page,) = crawl.site.visits("/page", host=host)
        assert page.at < last_of_slow


def test_the_user_agent_is_scrapys(crawl: Crawl) -> None:
    """Scrapy: for robots.txt and pages"""
    agents = {visit.header("User-Agent") for visit in crawl.site.visits()}

    assert agents == {"spider/1.0 (+https://example.org/bot)"}
