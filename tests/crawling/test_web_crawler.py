"""WebCrawler: the documents' crawler."""

from __future__ import annotations

import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from curtsy.core.errors import FetchError, PolicyError, RefusedByRobots
from curtsy.crawling.web_crawler import WebCrawler
from curtsy.limits import RobotsTxtChecker
from curtsy.testing import FakeClock
from tests.crawling.web import graph, html
from tests.support.site import Answer, Reply, Site, Visit, redirect
from tests.support.snapshot import Snapshot


def crawler(clock: FakeClock | None = None, **given: Any) -> WebCrawler:
    return WebCrawler(**{"allow_private": True, "cache": False, "clock": clock or FakeClock(time.time()), **given})


async def test_a_page_is_fetched_and_read(site: Site) -> None:
    """R11, U12"""
    site.page("/", "<title>Hello</title><nav>menu</nav><article>The text.</article><a href='/a'>a</a>")

    async with crawler() as web:
        page = await web.crawl_page(site.url("/"))

    assert page is not None
    assert (page.title, page.main_text, page.status, page.links) == ("Hello", "The text.", 200, (site.url("/a"),))
    assert (page.url, page.final_url) == (site.url("/"), site.url("/"))


async def test_where_a_redirect_leads_is_the_final_url(site: Site) -> None:
    """R11, U3"""
    site.reply("/old", redirect("/new"))
    site.page("/new", "here")

    async with crawler() as web:
        page = await web.crawl_page(site.url("/old"))

    assert page is not None
    assert (page.url, page.final_url) == (site.url("/old"), site.url("/new"))


async def test_what_is_disallowed_is_none(site: Site) -> None:
    """R11"""
    site.robots("User-agent: *\nDisallow: /private\n")
    site.page("/private", "x")

    async with crawler() as web:
        page = await web.crawl_page(site.url("/private"))

    assert page is None
    assert site.paths() == ["/robots.txt"]


async def test_an_explicit_none_asks_for_no_robots_txt(site: Site) -> None:
    """R11, C12"""
    site.robots("User-agent: *\nDisallow: /\n")
    site.page("/", "x")

    async with crawler(robots_checker=None) as web:
        page = await web.crawl_page(site.url("/"))

    assert page is not None
    assert site.paths() == ["/"]


async def test_a_checker_that_is_given_is_asked_about_every_hop(site: Site) -> None:
    """R11, U10, F23"""
    site.robots("User-agent: CarefulBot\nDisallow: /private\n")
    site.reply("/way", redirect("/private"))
    site.page("/private", "x")
    site.page("/open", "y")

    async with (
        RobotsTxtChecker("CarefulBot/2.0", allow_private=True) as checker,
        crawler(robots_checker=checker) as web,
    ):
        pages = [await web.crawl_page(site.url(path)) for path in ("/way", "/private", "/open")]

    assert [page is not None for page in pages] == [False, False, True]
    assert site.count("/private") == 0
    assert {dict(visit.headers)["User-Agent"] for visit in site.visits()} == {"CarefulBot/2.0"}


async def test_pages_of_a_host_are_a_second_apart(site: Site) -> None:
    """R11, C10, C11: the document's own delay, which is not that of the client"""
    clock = FakeClock(time.time())
    times: list[float] = []

    def answer(visit: Visit) -> Reply:
        times.append(clock.now().at / 1e6)
        return Reply(body="x")

    noted: Answer = answer
    site.on("/*", noted)

    async with crawler(clock) as web:
        pages = await web.crawl_pages([site.url(f"/{number}") for number in range(5)])

    assert len(pages) == 5
    assert all(0.99 <= after - before < 1.2 for before, after in pairwise(sorted(times)))
    assert site.max_concurrency() == 1


@pytest.mark.parametrize(
    ("text", "gap"),
    [
        ("default_policy:\n  qps: 0.25\n", 4),
        ("global_qps: 0.2\n", 5),
        ("default_policy:\n  delay: 3\n", 3),
        ("default_policy:\n  pause: [6, 6]\n", 6),
        ("default_policy:\n  pause_min: 5.5\n", 5.5),
        ("default_policy:\n  delay: 0.5\n", 1),
    ],
)
async def test_a_pace_that_the_user_has_set_holds_for_it_too(
    site: Site, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str, gap: float
) -> None:
    """C1, C10, Q1: only defaults give way to the document's"""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "curtsy.yaml").write_text(text)
    clock = FakeClock(time.time())
    times: list[float] = []

    def answer(visit: Visit) -> Reply:
        times.append(clock.now().at / 1e6)
        return Reply(body="x")

    noted: Answer = answer
    site.on("/*", noted)

    async with crawler(clock) as web:
        await web.crawl_pages([site.url(f"/{number}") for number in range(3)])

    assert len(times) == 4
    assert all(gap - 0.01 <= after - before < gap + 0.2 for before, after in pairwise(sorted(times)))


async def test_a_batch_says_what_came_of_each(site: Site) -> None:
    """N10, U14"""
    site.robots("User-agent: *\nDisallow: /private\n")
    graph(site, {"/a": [], "/b": [], "/private": []})
    urls = [site.url(path) for path in ("/b", "/gone", "/private", "/a", "/b")]

    async with crawler() as web:
        pages = await web.crawl_pages([*urls, "nonsense:"])

    assert [page.url for page in pages] == [site.url("/b"), site.url("/a")]
    assert web.summary == {"total": 5, "fetched": 2, "cached": 0, "skipped": 2, "failed": 1}
    assert web.reasons == {
        site.url("/gone"): "http_status 404",
        site.url("/private"): "robots_disallowed",
        "nonsense:": "invalid_url",
    }


async def test_a_batch_ends_at_max_pages(site: Site) -> None:
    """R11"""
    graph(site, {f"/{number}": [] for number in range(5)})

    async with crawler(max_pages=2) as web:
        pages = await web.crawl_pages([site.url(f"/{number}") for number in range(5)])

    assert len(pages) == 2
    assert site.count() == 3


async def test_a_batch_of_which_nothing_came_is_an_error(site: Site, snapshot: Snapshot) -> None:
    """U14: but not if it was by our own choice"""
    site.robots("User-agent: *\nDisallow: /private\n")

    async with crawler() as web:
        with pytest.raises(FetchError, match=r"\b2\b") as told:
            await web.crawl_pages([site.url("/gone"), site.url("/lost")])
        assert await web.crawl_pages([site.url("/private")]) == []

    snapshot(str(told.value))


async def test_an_index_page_gives_its_links_filtered_and_cut(site: Site) -> None:
    """U13: same host, each once, in order; by pattern, by robots.txt, then cut"""
    site.robots("User-agent: *\nDisallow: /item/3\n")
    items = [f"/item/{number}" for number in (5, 3, 1, 5, 4, 2)]
    site.page("/", html(*items, "/about", "http://other.example/item/9"))

    async with crawler(max_pages=3) as web:
        links = await web.crawl_index_page(site.url("/"), r"/item/\d")
        everything = await web.crawl_index_page(site.url("/"))

    assert links == [site.url(f"/item/{number}") for number in (5, 1, 4)]
    assert everything == [site.url(f"/item/{number}") for number in (5, 1, 4)]
    assert site.count("/item/5") == 0


async def test_an_index_page_that_cannot_be_had_is_an_error(site: Site) -> None:
    """U13, U14"""
    site.robots("User-agent: *\nDisallow: /private\n")

    async with crawler() as web:
        with pytest.raises(RefusedByRobots):
            await web.crawl_index_page(site.url("/private"))
        with pytest.raises(FetchError, match="404"):
            await web.crawl_index_page(site.url("/gone"))
        with pytest.raises(PolicyError, match=r"= '\('"):
            await web.crawl_index_page(site.url("/"), "(")


async def test_a_valid_url_comes_back_canonical() -> None:
    """R11, C23, U1"""
    async with crawler() as web:
        assert web.validate_url(" HTTP://Example.org:80/a/../b#c") == "http://example.org/b"


@pytest.mark.parametrize("url", ["ftp://example.org/", "nonsense", "https://user:s3cret@exa mple.org/", ""])
async def test_what_is_no_url_to_fetch_is_a_value_error(url: str, snapshot: Snapshot) -> None:
    """R11, C23, U1, F62"""
    async with crawler() as web:
        with pytest.raises(ValueError) as raised:
            web.validate_url(url)

    assert "s3cret" not in str(raised.value)
    snapshot(str(raised.value))


async def test_what_a_checker_refuses_is_logged(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    """R1, R11"""
    site.robots("User-agent: *\nDisallow: /private\n")
    site.reply("/way", redirect("/private"))

    with caplog.at_level("INFO", logger="curtsy.crawl"):
        async with RobotsTxtChecker(allow_private=True) as checker, crawler(robots_checker=checker) as web:
            assert [await web.crawl_page(site.url(path)) for path in ("/private", "/way")] == [None, None]

    told = [record.getMessage() for record in caplog.records if "Blocked" in record.getMessage()]
    assert told == [f"Blocked by robots.txt: {site.url('/private')}"] * 2
    assert site.count("/private") == 0
