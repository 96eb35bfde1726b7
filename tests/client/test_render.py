"""Rendered pages: one real Chromium for all of these tests. The site's journal is the judge."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from curtsy import AsyncClient, CrawledPage, FetchRecord, FetchResult, acrawl
from curtsy.crawling.outputs.jsonlines import entry_of
from curtsy.crawling.outputs.warc import response_head
from tests.adapters.doors import PLAIN
from tests.cli.shell import Shell, stop
from tests.observe.browser import require
from tests.support.polling import until
from tests.support.site import Site, redirect

OTHER = "127.0.0.2"
MIB = 1 << 20


class Looked(NamedTuple):
    site: Site
    pages: dict[str, CrawledPage]
    skipped: dict[str, int]
    records: list[FetchRecord]
    results: dict[str, FetchResult]


async def look(site: Site, cache: Path) -> Looked:
    """Crawl a site of scripts, and fetch some pages."""
    from curtsy.rendering.chromium import Chromium

    records: list[FetchRecord] = []
    chromium = Chromium(seconds=2, memory=200 * MIB, third_party="deny")
    async with AsyncClient(**PLAIN, render=chromium, cache=cache, on_record=records.append) as client:
        async with acrawl([site.url("/")], client=client, scope="host") as crawl:
            pages = {page.url.removeprefix(site.url("")): page async for page in crawl}
            skipped = crawl.totals.skipped | crawl.totals.failed
        paths = ("/leads", "/astray", "/text", "/moved")
        done = await asyncio.gather(*(client.fetch(site.url(path)) for path in paths))
    return Looked(site, pages, skipped, records, dict(zip(paths, done, strict=True)))


@pytest.fixture(scope="module")
def looked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Looked]:
    """What came of one look at a site whose links exist only after its scripts have run."""
    require()
    with Site() as site:
        site.robots("User-agent: *\nDisallow: /private\n")
        links = ["/two", "/private/page", "/endless", "/hog"]
        legacy = "text/html; charset=windows-1251"
        site.page(
            "/", f"<meta charset=windows-1251><script src=/app.js></script><img src=/i.png><iframe src=/frame></iframe>"
            f"<link rel=stylesheet href=/s.css><script src={site.url('/far.js', host=OTHER)}></script>",
            content_type=legacy,
        )  # fmt: skip
        app = (
            "fetch('/api', {method: 'POST', body: 'all'}).then(found => found.json()).then(links => {"
            "for (const link of links) document.body.innerHTML += `<a href=${link}>\u0436</a>`});"
            "new WebSocket('ws://' + location.host + '/socket'); navigator.sendBeacon('/beacon', 'x'); open('/popup');"
        )
        site.page(
            "/app.js", app, content_type="text/javascript; charset=utf-8", headers={"Cache-Control": "max-age=60"}
        )
        site.page("/api", str(links).replace("'", '"'), content_type="application/json")
        site.page("/two", "<title>two</title><script src=/app.js></script>")
        site.page("/endless", "<title>endless</title><script>setInterval(() => fetch('/ping'), 200)</script>")
        site.page("/ping", "1")
        site.page("/hog", "<script>for (const all = [];;) all.push(new Uint8Array(16 << 20).fill(1))</script>")
        site.page("/leads", "<script>location.replace('/old')</script>")
        site.reply("/old", redirect("/three"))
        site.page("/three", "<title>three</title>")
        site.page("/astray", "<script>location.href = '/private/page'</script>")
        site.page("/text", "plain", content_type="text/plain")
        site.reply("/moved", redirect("/three"))
        yield asyncio.run(asyncio.wait_for(look(site, tmp_path_factory.mktemp("cache") / "pages.sqlite"), 100))


def test_links_that_only_scripts_make_are_crawled(looked: Looked) -> None:
    """Render: the DOM after network idle"""
    home = looked.pages["/"]

    assert set(looked.pages) == {"/", "/two", "/endless"}
    assert "\u0436".encode() in home.body
    assert home.content_type == "text/html; charset=utf-8"
    assert b'charset="utf-8"' in home.body
    assert home.record is not None
    assert home.record.bytes < len(home.body)


def test_a_page_forbidden_by_robots_is_not_requested(looked: Looked) -> None:
    """Render: neither by a link nor by a script that leads there"""
    assert looked.skipped["robots_disallowed"] == 1
    assert looked.results["/astray"].reason == "robots_disallowed"
    assert not [path for path in looked.site.paths() if path.startswith("/private")]


def test_a_page_that_is_never_idle_is_bounded_in_time(looked: Looked) -> None:
    """Render: its present DOM counts"""
    record = looked.pages["/endless"].record

    assert looked.pages["/endless"].title == "endless"
    assert record is not None
    assert record.took >= 2
    assert looked.site.count("/ping") > 1


def test_a_page_that_takes_all_memory_is_given_up_alone(looked: Looked) -> None:
    """Render: a failure, and the crawl goes on"""
    assert looked.skipped["not_rendered"] == 1
    assert looked.site.count("/hog") == 1


def test_the_browser_sends_nothing_by_itself(looked: Looked) -> None:
    """Render: each request is charged once, and the parts are cached"""
    site = looked.site
    requests = sum(record.attempts + record.robots_requests for record in looked.records)

    assert requests == site.count()
    assert site.count("/app.js") == 1
    assert site.count("/api") == 2
    assert site.visits("/api")[0].body == b"all"
    assert not site.paths(OTHER)
    assert {visit.header("User-Agent") for visit in site.visits()} == {PLAIN["user_agent"]}
    assert not {"/i.png", "/s.css", "/frame", "/socket", "/beacon", "/popup"} & set(site.paths())


def test_a_script_that_leads_to_another_page_is_a_redirect(looked: Looked) -> None:
    """Render: each page on the way is judged and charged by itself"""
    found = looked.results["/leads"]

    assert found.final_url == looked.site.url("/three")
    assert found.rendered
    assert looked.results["/moved"].rendered
    assert not looked.results["/text"].rendered


def test_outputs_say_that_a_page_is_rendered(looked: Looked) -> None:
    """Render: JSON lines and WARC"""
    page = looked.pages["/"]

    assert entry_of(page).rendered
    assert b"X-Crawler-Rendered: true" in response_head(page)


def test_curtsy_get_renders_until_it_is_interrupted(tmp_path: Path, looked: Looked) -> None:
    """Render: on the command line"""
    shell, site = Shell(tmp_path), looked.site
    before = site.count("/ping")

    process = shell.start("get", "--render", "--allow-private", site.url("/endless"))
    asyncio.run(until(lambda: site.count("/ping") > before))

    assert stop(process).code == 130


def test_a_missing_library_is_named_with_its_extra(tmp_path: Path) -> None:
    """Render: and what to type"""
    program = "import sys; sys.modules['playwright'] = None; from curtsy.cli import main; sys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-c", program, "get", "--render", "https://example.org/"]

    done = subprocess.run(command, cwd=tmp_path, env=Shell(tmp_path).env, capture_output=True, text=True, check=False)

    assert done.returncode == 78
    assert 'pip install "curtsy[render]"' in done.stderr
