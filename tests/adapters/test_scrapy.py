"""Scrapy with curtsy's add-on, in one process for all of these tests. The site's journal is the judge."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import curtsy
from tests.adapters.doors import PLAIN
from tests.adapters.other_doors import IdleSpider, ScrapyDoor
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


@pytest.fixture
async def opened(site: Site) -> AsyncIterator[Callable[..., ScrapyDoor]]:
    """A function that starts a crawl in this process."""
    doors: list[ScrapyDoor] = []

    def opener(**settings: Any) -> ScrapyDoor:
        doors.append(ScrapyDoor(**settings))
        return doors[-1]

    yield opener
    for door in doors:
        await door.close()


def most_at_once(site: Site) -> int:
    """Return the most requests to all hosts that were under way at once."""
    changes = sorted((at, change) for v in site.visits() for at, change in ((v.at, 1), (v.answered_at or v.at, -1)))
    return max(accumulate(change for _, change in changes))


async def test_concurrent_requests_is_a_limit_of_all_hosts(opened: Callable[..., ScrapyDoor], site: Site) -> None:
    """Scrapy: requests that wait do not count, those on the wire do, and those for robots.txt"""
    door = opened(scrapy={"CONCURRENT_REQUESTS": 3})
    site.reply("/*", Reply(200, "x", wait=0.02))
    hosts = [f"127.0.1.{number}" for number in range(1, 13)]

    await asyncio.gather(*(door.scheduled(site.url(f"/{n}", host=host)) for n in range(2) for host in hosts))

    assert site.count() == 3 * len(hosts)
    assert most_at_once(site) == 3


async def test_a_resting_host_leaves_the_downloader_to_others(opened: Callable[..., ScrapyDoor], site: Site) -> None:
    """Scrapy: also if the requests of the others come later, and its own fill the scheduler"""
    door = opened(scrapy={"CONCURRENT_REQUESTS": 4}, respect_robots=False, obey_retry_after=LONG)
    site.reply("/later", Reply(429, "later", {"Retry-After": str(LONG // 2)}))
    site.reply("/*", Reply(200, "x", wait=0.01))
    await door.scheduled(site.url("/later", host=RESTING), meta={"handle_httpstatus_all": True})
    resting = [asyncio.ensure_future(door.scheduled(site.url(f"/{n}", host=RESTING))) for n in range(30)]
    await until(lambda: door.crawler.engine.downloader.active)

    async def chain(host: str) -> None:
        for number in range(10):
            await door.scheduled(site.url(f"/{number}", host=host))

    await asyncio.gather(*(chain(host) for host in OTHERS))
    in_downloader = len(door.crawler.engine.downloader.active)
    for each in resting:
        each.cancel()

    assert site.count(host=RESTING) == 1
    assert in_downloader == 1
    assert most_at_once(site) > 2


class HastelessSpider(IdleSpider):
    download_delay = LONG


@pytest.mark.filterwarnings("ignore:.*download_delay")
async def test_a_delay_of_the_spider_is_off(opened: Callable[..., ScrapyDoor], site: Site) -> None:
    """Scrapy: else both would wait; a page takes less than the delay"""
    door = opened(spider=HastelessSpider, respect_robots=False)
    site.page("/*", "here")

    pages = [await door.scheduled(site.url(f"/{number}")) for number in range(3)]

    assert [page.text for page in pages] == ["here"] * 3


async def test_a_request_may_be_exempt_from_robots_txt(opened: Callable[..., ScrapyDoor], site: Site) -> None:
    """Scrapy: its own `dont_obey_robotstxt` holds"""
    door = opened()
    site.robots("User-agent: *\nDisallow: /private")
    site.page("/private", "open to us")

    response = await door.scheduled(site.url("/private"), meta={"dont_obey_robotstxt": True})
    with pytest.raises(curtsy.Refused):
        await door.scheduled(site.url("/private"))

    assert response.text == "open to us"
    assert site.count("/private") == 1


async def test_scrapys_cache_answers_before_curtsy(
    opened: Callable[..., ScrapyDoor], site: Site, tmp_path: Path
) -> None:
    """Scrapy: a hit costs no turn and no budget"""
    door = opened(scrapy={"HTTPCACHE_ENABLED": True, "HTTPCACHE_DIR": str(tmp_path)}, max_requests_per_day=2)
    site.page("/page", "here")

    pages = [await door.scheduled(site.url("/page")) for _ in range(3)]

    assert [page.text for page in pages] == ["here"] * 3
    assert ["cached" in page.flags for page in pages] == [False, True, True]
    assert site.paths() == ["/robots.txt", "/page"]
