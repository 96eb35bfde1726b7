"""What processes tell of themselves in the store, and what readers make of it."""

from __future__ import annotations

import asyncio
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import pytest

from curtsy.blocking import Client
from curtsy.core.errors import StoreError
from curtsy.core.host import fresh
from curtsy.core.record import Record
from curtsy.core.statistics import ProcessStatistics, summed
from curtsy.core.time import Now
from curtsy.engine.alerts import Periodic
from curtsy.engine.counters import Publisher, process_name, read_statistics
from curtsy.stores import Answer, AsyncStore, Step, open_async_store, open_store
from curtsy.stores.memory import AsyncMemoryStore
from curtsy.testing import FakeClock
from tests.client.fetching import AGENT, UNPACED, client, domain_of
from tests.observe.recording import fetched, tallied
from tests.support.polling import block_until, until
from tests.support.redis_server import RedisServer, redis_available
from tests.support.site import Site
from tests.support.stores import sqlite_store
from tests.support.warm import Process


async def published(store: AsyncStore) -> list[ProcessStatistics]:
    """The records of all processes in a store."""
    records = [await store.read(key) for key in await store.keys("stats:")]
    return [record for record in records if isinstance(record, ProcessStatistics)]


@contextmanager
def working(store: str, *urls: str) -> Iterator[Process[str]]:
    """A process that has fetched, and is still there."""
    worker: Process[str] = Process(
        "tests.observe.worker", store, *urls, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with worker:
        assert worker.stdout is not None
        assert worker.stdout.readline() == f"{len(urls)}\n"
        yield worker


@pytest.fixture(params=["sqlite", "redis"])
def shared(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Where a store is that processes share."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/state.sqlite"
        return
    if reason := redis_available():
        pytest.skip(reason)
    with RedisServer() as server:
        yield server.url


def test_processes_on_one_store_are_summed(site: Site, shared: str) -> None:
    """Issue 7: each has a record of its own, written at its end at the latest"""
    site.page("/*", "hello")
    with working(shared, site.url("/a"), site.url("/b")), working(shared, site.url("/c", host="127.0.0.2")):
        pass  # both end here, by themselves

    store = open_store(shared)
    processes = read_statistics(store)
    found = summed(processes)
    store.close()

    assert len(processes) == 2
    assert len({process.process for process in processes}) == 2
    assert found.requests == len(site.journal) - site.count("/robots.txt") == 3
    assert found.robots_requests == site.count("/robots.txt") == 2
    assert found.domains == {domain_of(site.url("/")): 2, domain_of(site.url("/", host="127.0.0.2")): 1}
    assert [fetch.url for fetch in found.hosts[domain_of(site.url("/"))].last] == [site.url("/a"), site.url("/b")]
    assert found.lately.requests == sum(found.history.day.counts(0, time.time())) == 3
    assert sum(found.hosts[domain_of(site.url("/"))].history.hour.counts(1, time.time())) == 2


def test_a_process_that_is_killed_has_told_what_it_did_and_is_forgotten_in_a_day(site: Site, tmp_path: Path) -> None:
    """Issue 7, F38: told within seconds, not only at the end; then it goes by itself"""
    site.page("/*", "hello")
    path = tmp_path / "state.sqlite"
    with working(f"sqlite:///{path}", site.url("/a")) as worker:
        store = sqlite_store(str(path))
        block_until(lambda: read_statistics(store))
        worker.kill()
    assert summed(read_statistics(store)).requests == 1
    store.close()

    clock = FakeClock(time.time() + 86_400 + 60)
    later = sqlite_store(str(path), clock=clock)

    assert read_statistics(later) == []
    clock.advance(86_400)  # files are swept by whole days
    later.update("host:example.org", lambda host, now: (fresh(now), None))
    assert later.keys("stats:") == []
    later.close()


async def test_the_clients_of_a_process_share_one_record(site: Site, tmp_path: Path) -> None:
    """Issue 7: fetch_url() in a loop makes a client each time, not a record"""
    site.page("/*", "hello")
    store = f"sqlite:///{tmp_path}/state.sqlite"
    for number in range(3):
        async with client(store=store, clock=None, **UNPACED) as web:
            await web.fetch(site.url(f"/{number}"))

    opened = open_async_store(store)
    [process] = await published(opened)
    await opened.close()

    assert process.process == process_name()
    assert summed([process]).requests == site.count() - site.count("/robots.txt") == 3


def test_the_blocking_client_tells_too(site: Site, tmp_path: Path) -> None:
    """Issue 7"""
    site.page("/*", "hello")
    url = f"sqlite:///{tmp_path}/state.sqlite"
    with Client(store=url, cache=False, allow_private=True, user_agent=AGENT, **UNPACED) as web:
        assert web.fetch(site.url("/")).ok

    store = open_store(url)
    found = summed(read_statistics(store))
    store.close()

    assert (found.requests, found.pages) == (1, 1)


async def test_nothing_is_told_where_nobody_could_read_it(site: Site) -> None:
    """Issue 7: the memory of one process"""
    site.page("/", "hello")
    store = AsyncMemoryStore()

    async with client(store=store, clock=None, **UNPACED) as web:
        await web.fetch(site.url("/"))

    assert await store.keys("stats:") == []
    assert await store.keys("host:") != []


async def test_nothing_is_written_while_nothing_happens() -> None:
    """Issue 7: it costs nothing then"""
    counters, store = tallied(), Counting()
    publisher = Publisher(counters, store)

    assert not await publisher.publish()
    counters.count(fetched())
    assert not await publisher.publish()
    assert not await publisher.publish()

    assert store.updates == 1


async def test_what_could_not_be_told_is_told_later() -> None:
    """F55: a store that fails stops nobody, and nothing is lost or told twice"""
    counters, store = tallied(fetched()), Counting()
    publisher = Publisher(counters, store)
    store.fails = True
    assert await publisher.publish()  # it wants to be called again

    store.fails = False
    counters.count(fetched())
    assert not await publisher.publish()
    counters.count(fetched())
    await publisher.publish()

    assert summed(await published(store)).fetches == 3


async def test_an_outage_that_is_bridged_in_memory_is_waited_out(tmp_path: Path) -> None:
    """F55, U16: what nobody can read need not be written; the shelter has told of the outage already"""
    (tmp_path / "file").write_text("no folder")
    store = open_async_store(f"sqlite:///{tmp_path}/file/state.sqlite")
    await store.update("host:example.org", lambda host, now: (fresh(now), None))
    publisher = Publisher(tallied(fetched()), store)

    assert await publisher.publish()

    assert await store.keys("stats:") == []
    await store.close()


class Counting(AsyncMemoryStore):
    """A store that counts its updates, and fails if told to."""

    def __init__(self) -> None:
        super().__init__(clock=FakeClock())
        self.updates = 0
        self.fails = False

    async def update(self, key: str, step: Step[Answer]) -> Answer:
        if self.fails:
            raise StoreError("it is out")
        self.updates += 1
        return await super().update(key, step)


async def test_a_record_that_is_something_else_is_replaced() -> None:
    """U16"""
    store = Counting()

    def another(record: Record | None, now: Now) -> tuple[Record, None]:
        return fresh(now), None

    await store.update(f"stats:{process_name()}", another)
    assert await published(store) == []

    await Publisher(tallied(fetched()), store).publish()

    assert summed(await published(store)).fetches == 1


async def test_a_rhythm_runs_while_there_is_more_to_do_and_starts_again_when_something_happens() -> None:
    """Issue 7: and costs nothing in between"""
    answers = iter([True, True, False, False])
    calls: list[float] = []

    async def work() -> bool:
        calls.append(time.monotonic())
        return next(answers)

    periodic = Periodic(work, 0.01)
    assert not periodic.is_running
    periodic.start()
    await until(lambda: len(calls) == 3 and not periodic.is_running)
    periodic.start()
    await until(lambda: len(calls) == 4 and not periodic.is_running)
    await periodic.stop()

    assert all(later - earlier >= 0.009 for earlier, later in pairwise(calls))


async def test_a_rhythm_that_is_stopped_sees_its_work_through_and_does_no_more() -> None:
    """Issue 7"""
    begun, may_end, ends = asyncio.Event(), asyncio.Event(), []

    async def work() -> bool:
        begun.set()
        await may_end.wait()
        ends.append(True)
        return True

    periodic = Periodic(work, 0.0)
    periodic.start()
    await begun.wait()
    stopping = asyncio.ensure_future(periodic.stop())
    await asyncio.sleep(0)
    assert not stopping.done()
    may_end.set()
    await stopping
    periodic.start()
    for _ in range(5):
        await asyncio.sleep(0)

    assert ends == [True]
