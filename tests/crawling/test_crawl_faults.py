"""What the world does to a crawl: bad links, large hosts, full disks, clocks that jump. The site's journal judges."""

from __future__ import annotations

import errno
import json
import os
import socket
import subprocess
import sys
import textwrap
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from curtsy.core.errors import NotWritten
from curtsy.core.time import SECOND
from curtsy.crawling.results import CrawledPage, SkippedUrl
from curtsy.crawling.start import acrawl
from curtsy.http.address import TableResolver
from curtsy.http.sender import HttpSender
from curtsy.testing import FakeClock
from tests.crawling.web import QUICK, crawled, graph, html, polite
from tests.support.bounds import ends_within
from tests.support.polling import block_until, steady
from tests.support.site import Reply, Site, Visit, reset
from tests.support.warm import Process

# What pages do.

BAD_LINKS = [
    "http://", "http:///", "http://[", "http://[::1", "http://a b/", "http://\\evil", "//", "///", "////x", "http://.",
    "http://..", "http://a..b/", "http://-", "http://%00/", "http://%zz/", "http://host:99999/", "http://host:x/",
    "http://user:pass@/", "javascript:alert(1)", "data:text/html,x", "mailto:a@b", "tel:1", "ftp://x/", "file:///etc",
    "/a\r\nX-Injected: 1", "/b\x00c", "/with space", "/%", "/%zz", "/\ufffd",
    "?", "#", "", " ", "../" * 50 + "up", "/" + "x" * 9000, "http://" + "a" * 300 + ".example/", "/ok?i=last",
]  # fmt: skip


async def test_a_page_of_links_made_to_break_url_code_stops_nothing(site: Site) -> None:
    """F65: good ones are still found, and nothing raw goes on the wire"""
    site.page("/", html(*BAD_LINKS))
    site.on("/*", lambda visit: typed("fine"))

    _, done = await crawled(site)

    assert len(BAD_LINKS) == 38
    assert site.count("/ok?i=last") == 1
    for visit in site.visits():
        assert not set(visit.target) & set("\r\n\0 ")
        assert "x-injected" not in {name.lower() for name, _ in visit.headers}
    assert done.summary is not None
    assert "error" not in done.summary.totals.failed


def typed(body: bytes | str, kind: str = "text/html") -> Reply:
    return Reply(body=body, headers={"Content-Type": kind})


ODD_PAGES = {
    "/latin": typed("<title>Ärger</title>".encode("latin-1"), "text/html; charset=latin-1"),
    "/sjis": typed("<title>日本</title><a href='/end'>".encode("shift_jis"), "text/html; charset=Shift_JIS"),
    "/wrong": typed(b"<title>\xff\xfe\xfa</title>", "text/html; charset=no-such"),
    "/broken": typed("<html><a href='/from-broken'><table><tr><a href=/two><p></a></b></html"),
    "/nested": typed("<div>" * 20_000 + "<a href='/deep'>x"),
    "/nul": typed(b"\0<a href='/nul2'>\0</a>"),
    "/pdf": typed(b"%PDF-1.4 <a href='/no'>", "application/pdf"),
    "/empty": typed(b""),
}


async def test_broken_pages_and_odd_encodings_are_read_as_far_as_they_go(site: Site) -> None:
    """U12, Issue 5: never a crash, and files are saved, not parsed"""
    graph(site, {"/": list(ODD_PAGES)})
    for path, reply in ODD_PAGES.items():
        site.reply(path, reply)
    for path in ("/end", "/from-broken", "/two", "/deep", "/nul2"):
        site.page(path, html())

    paths, _ = await crawled(site, main_text="plain")

    assert sorted(paths) == sorted(["/", *ODD_PAGES, "/end", "/from-broken", "/two", "/deep", "/nul2"])
    assert site.count("/no") == 0


# What hosts do.


async def test_a_web_of_many_manners_is_crawled_by_every_rule(site: Site) -> None:
    """Issue 5: hosts that are slow to be asked, that forbid, that fail and recover; each page exactly once"""
    hosts = [f"127.0.1.{number}" for number in range(1, 13)]
    given = polite(scope="any", store=None, preset=None)
    clock: FakeClock = given["clock"]
    journal: list[tuple[float, str, str]] = []
    failing = Counter({hosts[3]: 2, hosts[7]: 2})
    fronts = [site.url("/page/0", host=host) for host in hosts]

    def answer(visit: Visit) -> Reply:
        number = hosts.index(visit.host)
        journal.append((clock.now().at / 1e6, visit.host, visit.path))
        if visit.path == "/robots.txt":
            delay = f"Crawl-delay: {number}\n" if number % 3 == 0 else ""
            return Reply(body=f"User-agent: *\nDisallow: /private/\n{delay}")
        if failing[visit.host]:
            failing[visit.host] -= 1
            return reset()
        page = int(visit.path.rpartition("/")[2])
        links = [f"/page/{each}" for each in (2 * page + 1, 2 * page + 2) if each < 7]
        return typed(html(*links, f"/private/{page}", fronts[(number + 1) % len(hosts)]))

    for host in hosts:
        site.on("/*", answer, host=host)
    async with acrawl(fronts[0], **given) as crawl:
        urls = [page.url async for page in crawl]

    assert sorted(urls) == sorted(site.url(f"/page/{page}", host=host) for host in hosts for page in range(7))
    assert not [path for _, _, path in journal if path.startswith("/private/")]
    for number, host in enumerate(hosts):
        times = [at for at, each, _ in journal if each == host]
        paths = Counter(path for _, each, path in journal if each == host)
        least = max(1.5, number if number % 3 == 0 else 0)
        assert all(after - before >= least - 0.001 for before, after in pairwise(times)), host
        repeats = 2 if number in (3, 7) else 0
        assert sum(paths.values()) == 7 + 1 + repeats, host
        assert site.max_concurrency(host) == 1


async def test_a_host_with_very_many_pages_holds_up_no_other(site: Site) -> None:
    """F61: the small ones are done when their own pauses allow, though the large one was listed first"""
    large, small = "127.0.2.1", [f"127.0.2.{number}" for number in range(2, 22)]
    given = polite(scope="host", store=None, preset=None, max_in_flight=4, max_pages_per_day=0, max_requests_per_day=0)
    clock: FakeClock = given["clock"]
    last: dict[str, float] = {}

    def answer(visit: Visit) -> Reply:
        last[visit.host] = clock.now().at / 1e6
        if visit.path == "/robots.txt":
            return Reply(404)
        count = 300 if visit.host == large else 5
        links = [f"/{number}" for number in range(count)] if visit.path == "/" else []
        return typed(html(*links))

    site.on("/*", answer)
    began = clock.now().at / 1e6
    seeds = [site.url("/", host=host) for host in (large, *small)]
    async with acrawl(seeds, **given) as crawl:
        summary = await crawl.run()

    assert summary.fetched == 301 + 6 * len(small)
    assert all(last[host] - began <= 7 * 5.5 + 1 for host in small)
    assert last[large] - began >= 300 * 1.5


async def test_pages_whose_robots_txt_fails_wait_until_it_is_asked_for_again(site: Site) -> None:
    """F27, F52: 0 URLs dropped"""
    graph(site, {"/": ["/a", "/b"], "/a": [], "/b": []})
    site.script("/robots.txt", [Reply(503), Reply(404)])
    manners = polite(robots_unreachable="disallow")
    began = manners["clock"].now().at

    paths, crawl = await crawled(site, **manners, store="memory:")

    assert (sorted(paths), crawl.totals.skipped, crawl.totals.failed) == (["/", "/a", "/b"], {}, {})
    assert site.paths()[:3] == ["/robots.txt", "/robots.txt", "/"]
    assert 300 <= (manners["clock"].now().at - began) / SECOND < 360


async def test_a_robots_txt_that_goes_on_failing_is_for_another_day(site: Site) -> None:
    """F27, F52: the crawl ends, and its URLs are kept"""
    site.robots(status=503)

    paths, crawl = await crawled(site, **polite(robots_unreachable="disallow", store="memory:"))

    assert (paths, crawl.totals.skipped, crawl.totals.failed) == ([], {}, {})
    assert crawl.summary is not None
    assert (crawl.summary.ended, crawl.summary.queued) == ("later", 1)
    assert set(site.paths()) == {"/robots.txt"}


async def test_a_kept_page_is_not_forbidden_by_a_robots_txt_that_cannot_be_had(site: Site, tmp_path: Path) -> None:
    """R6: to read it once more costs the site nothing"""
    site.page("/", html(), headers={"Cache-Control": "max-age=86400"})
    site.robots(status=503)
    manners = polite(store=f"sqlite:///{tmp_path / 'state.sqlite'}", cache=tmp_path / "cache")
    await crawled(site, **manners)
    manners["clock"].advance(4000)

    paths, crawl = await crawled(site, **manners, robots_unreachable="disallow")

    assert (crawl.totals.pages, crawl.totals.skipped) == (1, {})
    assert paths.count("/") == 1


# What clocks do.


async def test_a_wall_clock_that_jumps_a_day_changes_no_gap(site: Site) -> None:
    """F48: the pace goes by a clock that never jumps"""
    given = polite(store=None, preset=None)
    clock: FakeClock = given["clock"]
    times: list[float] = []

    def answer(visit: Visit) -> Reply:
        times.append(clock.now().at / 1e6)
        if len(times) == 5:
            clock.set_back(-86_400)
        links = [f"/{number}" for number in range(10)] if visit.path == "/" else []
        return Reply(404) if visit.path == "/robots.txt" else typed(html(*links))

    site.on("/*", answer)
    paths, _ = await crawled(site, **given)

    assert len(paths) == 11
    assert all(1.5 - 0.001 <= after - before <= 5.6 for before, after in pairwise(times))


# What is kept.


async def test_a_second_run_over_unchanged_pages_downloads_next_to_nothing(site: Site, tmp_path: Path) -> None:
    """N11: only 304s"""
    pages = [f"/{number}" for number in range(19)]
    site.page("/", html(*pages), etag='"front"')
    for path in pages:
        site.page(path, html(text="x" * 100_000), etag=f'"{path}"')
    first, before = await crawled(site, cache=tmp_path / "cache")
    site.clear()
    second, after = await crawled(site, cache=tmp_path / "cache")

    assert sorted(first) == sorted(second)
    assert before.totals.bytes > 1_900_000
    assert (after.totals.fetched, after.totals.cached, after.totals.bytes) == (0, 20, 0)
    assert len([visit for visit in site.visits() if visit.path != "/robots.txt"]) == 20


# What disks do.

PROGRAM = """
    import asyncio, json, resource, signal, sys, threading, time
    from pathlib import Path
    from curtsy.crawling.start import acrawl

    options, limit, room = json.loads(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))

    def make_room():
        while not room.exists():
            time.sleep(0.01)
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))

    threading.Thread(target=make_room, daemon=True).start()

    async def main():
        async with acrawl(options.pop("seeds"), **options) as crawl:
            return await crawl.run()

    print(json.dumps(asyncio.run(main()).as_dict()))
"""


def test_on_a_full_disk_it_pauses_and_goes_on_when_there_is_room(site: Site, tmp_path: Path) -> None:
    """F40: nothing is lost, nothing is written twice, and a clear word says what is wrong"""
    graph(site, {"/": [f"/{number}" for number in range(60)]})
    for number in range(60):
        site.page(f"/{number}", html(text="x" * 5000))
    output, room = tmp_path / "pages.jsonl", tmp_path / "room"
    options = {
        **QUICK,
        "seeds": site.url("/"),
        "outputs": [str(output)],
        "max_in_flight": 4,
        "job": str(tmp_path / "job"),
    }
    words, pipe = (textwrap.dedent(PROGRAM), json.dumps(options), "40000", room), subprocess.PIPE
    process: Process[str] = Process("tests.support.program", *words, text=True, stdout=pipe, stderr=pipe)
    assert process.stderr is not None
    block_until(lambda: output.exists() and output.stat().st_size >= 1000, process)
    block_until(steady(site.count), process, every=0.5)  # until it asks for nothing more
    asked = site.count()

    room.touch()
    said, errors = process.communicate(timeout=240)

    assert process.returncode == 0, errors
    summary = json.loads(said)
    lines = [json.loads(line)["url"] for line in output.read_text().splitlines()]
    assert asked < 61
    assert (summary["ended"], summary["fetched"]) == ("done", 61)
    assert sorted(lines) == sorted(site.url(path) for path in ["/", *(f"/{number}" for number in range(60))])
    assert Counter(visit.path for visit in site.visits() if visit.path != "/robots.txt").most_common(1)[0][1] == 1


class Balky:
    """An output that cannot be written at first, as on a disk that is full."""

    name = "balky"

    def __init__(self, failures: int) -> None:
        self.left = failures

    def open(self, state: Any | None) -> None:
        """Begin."""

    def page(self, page: CrawledPage) -> None:
        """Take it."""

    def skipped(self, skipped: SkippedUrl) -> None:
        """Pass it over."""

    def flush(self) -> None:
        """Fail, as often as was said, once there is something."""
        self.left -= 1
        if 0 <= self.left < 2:
            raise NotWritten("there is no room. Make some.")

    def close(self) -> None:
        """End."""


@pytest.mark.parametrize("order", [1, -1])
async def test_a_page_goes_once_to_a_pipe_though_another_output_fails(site: Site, order: int) -> None:
    """F40: what a pipe has taken cannot be taken back"""
    graph(site, {"/": ["/a", "/b", "/c"], "/a": [], "/b": [], "/c": []})
    end, start = os.pipe()

    outputs: list[str | Balky] = [f"jsonl:/dev/fd/{start}", Balky(4)]
    async with acrawl(site.url("/"), **QUICK, outputs=outputs[::order]) as crawl:
        summary = await crawl.run()
    os.close(start)
    seen = os.read(end, 65_536)
    os.close(end)

    assert summary.ended == "done"
    assert sorted(json.loads(line)["url"] for line in seen.splitlines()) == [
        site.url(path) for path in ("/", "/a", "/b", "/c")
    ]


async def test_a_program_is_told_that_not_all_could_be_written(site: Site) -> None:
    """F40: by an error, with the summary beside it; and its patience and its time hold while it pauses"""
    graph(site, {"/": ["/a"], "/a": []})

    limits: list[dict[str, Any]] = [{"patience": 0.3}, {"max_time": 0.3}]
    for limit in limits:
        with ends_within(10):
            async with acrawl(site.url("/"), **QUICK, **limit, outputs="jsonl:/dev/full") as crawl:
                with pytest.raises(NotWritten, match=os.strerror(errno.ENOSPC)):
                    await crawl.run()
        assert crawl.summary is not None
        assert (crawl.summary.ended, crawl.summary.fetched, crawl.summary.queued) == ("later", 0, 1)


# What a name may come to.


class Nowhere:
    """A resolver that has no answer, and says why; from the fifth question on it knows the name."""

    def __init__(self, site: Site, why: int) -> None:
        self._known, self._why, self._asked = TableResolver(site.names), why, 0

    async def resolve(self, host: str) -> Sequence[str]:
        self._asked += 1
        if self._asked < 5:
            raise socket.gaierror(self._why, "no address")
        return await self._known.resolve(host)


@pytest.mark.parametrize(
    ("why", "pages", "least", "most"),
    [(socket.EAI_NONAME, 0, 0, 60), (socket.EAI_AGAIN, 1, 300, 3600)],
)
async def test_a_name_that_does_not_exist_is_not_waited_for(
    site: Site, why: int, pages: int, least: float, most: float
) -> None:
    """N3, F12: but one that could not be looked up just now is"""
    site.page("/", html())
    manners = polite()
    clock = manners["clock"]
    began = clock.now().at

    sender = HttpSender(resolver=Nowhere(site, why))
    async with acrawl(site.url("/", host="shop.test"), **manners, sender=sender) as crawl:
        found = [page async for page in crawl]

    assert len(found) == pages
    assert least <= (clock.now().at - began) / SECOND <= most
    assert crawl.summary is not None
    assert crawl.summary.ended == "done"


def test_a_crawl_puts_no_host_off_where_few_files_may_be_open(site: Site, tmp_path: Path) -> None:
    """Q11: waiting for a connection is no failure of the host's, after which it rests for a minute"""
    program = """
        import asyncio, resource, sys
        from curtsy import acrawl

        async def main(folder, *urls):
            resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
            settings = dict(preset="own", allow_private=True, concurrency=None, max_depth=0)
            settings["cache"] = f"{folder}/pages.sqlite"
            settings |= dict(store=f"sqlite:///{folder}/state.sqlite", job=f"{folder}/job")
            async with acrawl(urls, **settings, user_agent="testbot/1.0 (+https://example.org)") as run:
                print(len([page async for page in run]), run.summary.ended)

        asyncio.run(main(*sys.argv[1:]))
    """
    site.reply("/*", Reply(body="x", wait=0.02))
    site.robots("")
    urls = [site.url(f"/{number}", host=f"127.0.1.{1 + number % 80}") for number in range(240)]
    command = [sys.executable, "-c", textwrap.dedent(program), str(tmp_path), *urls]

    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)

    assert done.stdout == "240 done\n", done.stderr
    assert len(set(site.paths())) == 241
