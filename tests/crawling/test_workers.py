"""Worker processes of a crawl: `workers=2`. The site's journal and the outputs are the judges."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from curtsy.client import AsyncClient
from curtsy.core.errors import PolicyError
from curtsy.core.record import FetchRecord
from curtsy.crawling.options import CrawlOptions
from curtsy.crawling.progress import CrawlSnapshot
from curtsy.crawling.running_fetches import GUILTY
from curtsy.crawling.seeds import HEAD
from curtsy.crawling.start import acrawl
from curtsy.crawling.worker_pool import WorkerPool
from tests.crawling.web import QUICK, html
from tests.support.polling import until
from tests.support.redis_server import RedisServer, redis_available
from tests.support.site import Reply, Site, Visit
from tests.support.snapshot import Snapshot

ONE_BY_ONE: dict[str, Any] = {**QUICK, "concurrency": 1, "timeout": 2.0, "robots_timeout": 2.0}
"""A request of a worker that was killed holds the slot of its host for as long as it may take."""

HOSTS = [f"127.0.0.{number}" for number in range(1, 9)]


def build(site: Site, pages: int, wait: Callable[[Visit], float] = lambda visit: 0.0) -> list[str]:
    """Hosts with so many pages each, in a tree; the front pages."""

    def answer(visit: Visit) -> Reply:
        number = int(visit.path.rpartition("/")[2])
        below = [f"/page/{each}" for each in range(3 * number + 1, 3 * number + 4) if each < pages]
        return Reply(body=html(*below, "/private/1"), headers={"Content-Type": "text/html"}, wait=wait(visit))

    site.on("/page/*", answer)
    site.on("/robots.txt", lambda _: Reply(body="User-agent: *\nDisallow: /private/\n"))
    return [site.url("/page/0", host=host) for host in HOSTS]


@contextmanager
def on_redis() -> Iterator[str]:
    with RedisServer() as server:
        yield server.url


@pytest.fixture(params=["sqlite", "redis"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'state.sqlite'}"
        return
    if reason := redis_available():
        pytest.skip(reason)
    with on_redis() as url:
        yield url


def workers(of: int | None = None) -> list[int]:
    """Process ids of the workers of a process, or of this one."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            words = (path / "cmdline").read_bytes().split(b"\0")
            parent = int((path / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
        if parent == (of or os.getpid()) and b"curtsy.crawling.worker" in words:
            found.append(int(path.name))
    return sorted(found)


def kill(process: int) -> None:
    """Kill a worker of this process, and wait for its end, so that the crawl sees it before its own."""
    os.kill(process, signal.SIGKILL)
    with suppress(ChildProcessError):  # the crawl was faster
        os.waitid(os.P_PID, process, os.WEXITED | os.WNOWAIT)


def urls_in(file: Path) -> list[str]:
    return [json.loads(line)["url"] for line in file.read_text().splitlines()]


def check(site: Site, file: Path, pages: int, repeated: int = 0) -> None:
    """Every page is written once, and no host was requested twice at the same time."""
    written = urls_in(file)
    asked = Counter((visit.host, visit.path) for visit in site.visits() if visit.path != "/robots.txt")
    assert len(written) == len(set(written)) == len(asked) == pages * len(HOSTS)
    assert sum(asked.values()) - len(asked) <= repeated
    assert all(site.max_concurrency(host) == 1 for host in HOSTS)
    assert not [visit for visit in site.visits() if visit.path.startswith("/private/")]


async def test_several_processes_are_one_crawl_with_one_output(site: Site, tmp_path: Path, store: str) -> None:
    """Issue 17"""
    seeds, file = build(site, 12), tmp_path / "pages.jsonl"
    given: dict[str, Any] = {**ONE_BY_ONE, "store": store, "outputs": [file], "job": tmp_path / "job"}
    processes: set[int] = set()
    told: list[CrawlSnapshot] = []

    async with acrawl(seeds, **given, workers=2, on_progress=told.append) as crawl:
        async for _ in crawl:
            processes.update(workers())
        summary = crawl.summary

    assert summary is not None
    assert (summary.ended, summary.totals.pages, summary.worker_deaths) == ("done", 12 * len(HOSTS), 0)
    assert summary.totals.skipped == {"robots_disallowed": len(HOSTS)}
    assert len(processes) == 2
    assert workers() == []
    assert sum(host.pages for host in told[-1].hosts) == 12 * len(HOSTS)
    check(site, file, 12)
    async with acrawl(seeds, **given, workers=2) as again:
        assert (await again.run()).totals.pages == 12 * len(HOSTS), "nothing is fetched again"
    check(site, file, 12)


async def test_a_worker_that_is_killed_is_started_again_and_nothing_is_lost(
    site: Site, tmp_path: Path, store: str
) -> None:
    """Issue 17: its URLs go back, and the new process learns the scope"""
    file = tmp_path / "pages.jsonl"
    victims: list[int] = []
    lock = threading.Lock()

    def wait(_: Visit) -> float:
        with lock:
            if len(victims) < 2 and len(site.journal) >= 30 * (len(victims) + 1) and (alive := workers()):
                victims.append(alive[0])
                kill(alive[0])
        return 0.0

    given: dict[str, Any] = {**ONE_BY_ONE, "store": store, "outputs": [file], "job": tmp_path / "job", "scope": "host"}
    first, *others = build(site, 12, wait)
    async with acrawl([first] * HEAD + others, **given, workers=2) as crawl:  # the others extend the scope later
        summary = await crawl.run()

    assert (summary.ended, summary.totals.pages) == ("done", 12 * len(HOSTS))
    assert summary.worker_deaths == len(victims) == 2
    check(site, file, 12, repeated=2 * len(HOSTS))


async def test_no_url_is_claimed_while_all_workers_are_started_again() -> None:
    """Else the loop of the crawl would claim URLs and put them back without a pause, and start no worker"""
    options = CrawlOptions(max_in_flight=8)
    async with AsyncClient(store="memory:", cache=False) as client:
        pool = WorkerPool(2, client, options, is_shared=False)

    assert pool.places_in_use == options.max_in_flight + pool.ahead == 16


@pytest.mark.soak
async def test_a_page_that_ends_every_worker_is_given_up_and_the_others_are_had(site: Site, tmp_path: Path) -> None:
    """Issue 17: as a page that ends every run"""
    site.page("/", html("/poison", *(f"/fine/{number}" for number in range(20))))
    site.page("/fine/*", html())

    def answer(_: Visit) -> Reply:
        for process in workers():
            kill(process)
        return Reply(500)

    site.on("/poison", answer)
    given: dict[str, Any] = {**ONE_BY_ONE, "store": f"sqlite:///{tmp_path / 'state.sqlite'}"}
    async with acrawl(site.url("/"), **given, workers=2) as crawl:
        summary = await crawl.run()

    assert (summary.ended, summary.totals.pages) == ("done", 21)
    assert summary.totals.failed == {"reader_crashed": 1}
    assert 1 < site.count("/poison") <= GUILTY, "a worker may die again before it has requested it"
    assert summary.worker_deaths >= GUILTY


async def test_a_stop_ends_the_requests_in_flight_and_keeps_the_rest(site: Site, tmp_path: Path) -> None:
    """Issue 17: one stop for all processes; the job resumes with any number of them"""
    file, is_held = tmp_path / "pages.jsonl", threading.Event()
    seeds = build(site, 12, lambda visit: 0.0 if is_held.is_set() else 0.2)
    given: dict[str, Any] = {
        **ONE_BY_ONE, "store": f"sqlite:///{tmp_path / 'state.sqlite'}", "outputs": [file], "job": tmp_path / "job",
    }  # fmt: skip
    async with acrawl(seeds, **given, workers=2) as crawl:
        running = crawl.run()

        async def is_under_way() -> bool:
            return site.count() > 2 * len(HOSTS)

        task = asyncio.ensure_future(running)
        await until(is_under_way)
        crawl.stop()
        summary = await task
    is_held.set()

    assert (summary.ended, summary.totals.failed) == ("stopped", {})
    assert summary.queued > 0
    assert summary.totals.pages == len(urls_in(file)) > 0
    assert workers() == []
    async with acrawl(seeds, **given) as crawl:
        await crawl.run()
    check(site, file, 12)


def hear(record: FetchRecord) -> None:
    """Hear of a fetch."""


@pytest.mark.parametrize(
    "given",
    [{"workers": 0}, {"workers": True}, {"workers": "many"}, {"store": "memory:"}, {"on_record": hear},
     {"client": {"store": "memory:"}}],
    ids=["none", "bool", "text", "store", "on_record", "client"],
)  # fmt: skip
async def test_what_several_processes_cannot_do_is_refused(
    given: dict[str, Any], tmp_path: Path, snapshot: Snapshot
) -> None:
    """Issue 17: clearly"""
    settings = {"workers": 2, "store": f"sqlite:///{tmp_path / 'state.sqlite'}", **given}
    if "client" in settings:
        settings["client"] = AsyncClient(**settings["client"])
        del settings["store"]

    with pytest.raises(PolicyError) as caught:
        acrawl("https://example.org/", **settings)

    snapshot(str(caught.value))
    if isinstance(client := settings.get("client"), AsyncClient):
        await client.close()
