"""A store that has lost its records gets back what its users remember of them (issue 2, point 5; B8).

A server that is flushed in the middle; a file that is removed, replaced or damaged.
"""

from __future__ import annotations

import asyncio
import logging
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Protocol

import pytest

from curtsy.clock import Clock, FakeClock
from curtsy.core.admission import Decision, Go, No, Pause
from curtsy.core.errors import Reason
from curtsy.core.policy import Policy
from curtsy.steps import amended, charge
from curtsy.stores import AsyncStore, Store
from curtsy.stores.redis import AsyncRedisStore, RedisStore
from curtsy.stores.shelter import AsyncShelter, Shelter
from curtsy.stores.sqlite import AsyncSQLiteStore, SQLiteStore
from tests.stores.places import Awaited
from tests.stores.worker import ROOT
from tests.strategies import FREE
from tests.support.redis_server import RedisCluster, RedisServer, redis_available

A, B = "host:a.example", "host:b.example"
DAILY = FREE.but(max_requests_per_day=5)
SLOW = 10.0


class Losing(Protocol):
    """A place that can lose its records."""

    def open(self, clock: Clock | None) -> Store: ...

    def open_async(self, clock: Clock | None) -> AsyncStore: ...

    def lose(self) -> None: ...


class Flushed:
    def __init__(self, server: RedisServer) -> None:
        self._server = server

    def open(self, clock: Clock | None = None) -> RedisStore:
        return RedisStore(self._server.url, clock=clock, timeout=SLOW)

    def open_async(self, clock: Clock | None = None) -> AsyncRedisStore:
        return AsyncRedisStore(self._server.url, clock=clock, timeout=SLOW)

    def lose(self) -> None:
        self._server.flush()


class Removed:
    def __init__(self, path: Path) -> None:
        self.path = path

    def open(self, clock: Clock | None = None) -> SQLiteStore:
        return SQLiteStore(self.path, clock=clock)

    def open_async(self, clock: Clock | None = None) -> AsyncSQLiteStore:
        return AsyncSQLiteStore(self.path, clock=clock)

    def lose(self) -> None:
        self.path.unlink()


class Damaged(Removed):
    def lose(self) -> None:
        garbage = self.path.with_suffix(".garbage")  # put in its place at once: SQLite has the old file in memory
        garbage.write_bytes(b"no database" * 400)
        os.replace(garbage, self.path)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def server() -> Iterator[RedisServer]:
    if reason := redis_available():
        pytest.skip(reason)
    with RedisServer() as started:
        yield started


@pytest.fixture(params=[Flushed, Removed, Damaged])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Losing:
    if request.param is Flushed:
        return Flushed(request.getfixturevalue("server"))
    kind: type[Removed] = request.param
    return kind(tmp_path / "state.sqlite")


@pytest.fixture(params=["blocking", "async"])
async def store(request: pytest.FixtureRequest, place: Losing, clock: FakeClock) -> AsyncIterator[AsyncStore]:
    """Sheltered, as all stores are that a program opens."""
    opened: AsyncStore
    if request.param == "blocking":
        opened = Awaited(Shelter(place.open(clock)))
    else:
        opened = AsyncShelter(place.open_async(clock))
    yield opened
    await opened.close()


async def ask(store: AsyncStore, key: str, policy: Policy = DAILY) -> Decision:
    decision, _ = await store.update(key, charge(policy, 0.0, page=True))
    return decision


async def spent(store: AsyncStore, key: str) -> int:
    """What is spent of the day, 0 for a host that is not known."""
    host = await store.read(key)
    return host.days[-1].requests if host else 0


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


async def test_the_days_budget_goes_on_and_that_is_told_once(
    place: Losing, store: AsyncStore, caplog: pytest.LogCaptureFixture
) -> None:
    """B8, B1"""
    for key in (A, B):
        for _ in range(4):
            assert isinstance(await ask(store, key), Go)

    place.lose()

    for key in (A, B):
        assert isinstance(await ask(store, key), Go)
        refused = await ask(store, key)
        assert isinstance(refused, No)
        assert refused.reason is Reason.DOMAIN_BUDGET_EXCEEDED
    assert len(warnings(caplog)) == 1


async def test_nobody_goes_early_after_a_loss(place: Losing, store: AsyncStore, clock: FakeClock) -> None:
    """B8, P1"""
    pace = FREE.but(qps=0.1)
    assert isinstance(await ask(store, A, pace), Go)
    clock.advance(4)

    place.lose()

    wait = await ask(store, A, pace)
    assert not isinstance(wait, Go | No)
    assert wait.seconds == pytest.approx(6)
    clock.advance(6)
    assert isinstance(await ask(store, A, pace), Go)


async def test_a_pause_by_hand_outlasts_a_loss(place: Losing, store: AsyncStore, clock: FakeClock) -> None:
    """B8"""
    await store.update(A, amended(FREE, Pause()))
    place.lose()
    clock.advance(30 * 86_400)  # it has no end

    refused = await ask(store, A)

    assert isinstance(refused, No)
    assert refused.reason is Reason.PAUSED


async def test_hosts_that_nobody_asks_for_are_given_back_too(place: Losing, store: AsyncStore) -> None:
    """B8: another process may be the next to ask for them, and know nothing."""
    idle = [f"host:{number}.example" for number in range(150)]
    for key in (A, *idle):
        await ask(store, key)
    place.lose()
    await ask(store, A)

    deadline = time.monotonic() + 20
    while len(await store.keys("host:")) < 1 + len(idle):
        assert time.monotonic() < deadline
        await ask(store, A, FREE)
        await asyncio.sleep(0.005)

    assert [await spent(store, key) for key in idle] == [1] * len(idle)


async def test_what_was_forgotten_by_hand_stays_forgotten(
    place: Losing, store: AsyncStore, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    """B8: be it by another process, in whose memory it is not."""
    for _ in range(5):
        await ask(store, A)
    other = place.open(clock)
    other.forget(A)
    other.close()

    decision = await ask(store, A)

    assert isinstance(decision, Go)
    assert decision.requests_left == 4
    assert warnings(caplog) == []


async def test_what_a_step_of_ours_removes_after_a_loss_is_gone(place: Losing, store: AsyncStore) -> None:
    """B8"""
    await ask(store, A)
    place.lose()

    await store.forget(A)

    assert await spent(store, A) == 0
    assert await spent(store, A) == 0
    decision = await ask(store, A)
    assert isinstance(decision, Go)
    assert decision.requests_left == 4


async def test_what_had_run_out_is_not_given_back(place: Losing, store: AsyncStore, clock: FakeClock) -> None:
    """B8"""
    await ask(store, A)
    clock.advance(8 * 86_400)
    place.lose()
    await ask(store, B)

    assert await store.update(A, lambda host, now: (host, host)) is None


async def test_a_second_loss_is_mended_as_the_first(place: Losing, store: AsyncStore) -> None:
    """B8"""
    for times in range(1, 4):
        await ask(store, A)
        place.lose()
        await ask(store, B, FREE)
        assert await spent(store, A) <= times  # given back beside the calls, or when it is asked for
    await ask(store, A)
    assert await spent(store, A) == 4


# Several who remember.


async def test_who_knows_more_catches_up_with_who_knew_less(server: RedisServer, clock: FakeClock) -> None:
    """B8: what both have counted counts once."""
    knows, knew, new = (Awaited(Shelter(RedisStore(server.url, clock=clock, timeout=SLOW))) for _ in range(3))
    wide = FREE.but(max_requests_per_day=100)
    for _ in range(10):
        await ask(knew, A, wide)
    for _ in range(30):
        await ask(knows, A, wide)
    server.flush()

    await ask(new, A, wide)
    assert await spent(new, A) == 1  # it never heard of the others
    await ask(knew, A, wide)
    assert await spent(new, A) == 11
    await ask(knows, A, wide)
    assert await spent(new, A) == 41
    await ask(knew, A, wide)
    assert await spent(new, A) == 42
    for each in (knows, knew, new):
        await each.close()


def test_a_file_that_is_removed_under_several_processes_is_mended_by_who_knows_most(tmp_path: Path) -> None:
    """B8"""
    path = tmp_path / "state.sqlite"
    script = """
import sys
from curtsy.steps import charge
from curtsy.stores import open_store
from tests.strategies import FREE
store = open_store("sqlite:///" + sys.argv[1])
for line in sys.stdin:
    for _ in range(int(line)):
        store.update("host:a.example", charge(FREE.but(max_requests_per_day=100), 0.0, page=True))
    print(store.read("host:a.example").days[-1].requests, flush=True)
store.close()
"""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", script, str(path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        for _ in range(2)
    ]

    def go(number: int, times: int) -> int:
        process = processes[number]
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(f"{times}\n")
        process.stdin.flush()
        return int(process.stdout.readline())

    assert go(0, 10) == 10
    assert go(1, 10) == 20
    path.unlink()
    assert go(0, 1) == 11  # that is what it knows
    assert go(1, 1) == 21
    assert go(0, 1) == 22
    for process in processes:
        process.communicate(timeout=20)
        assert process.returncode == 0


async def test_a_cluster_of_which_one_server_is_flushed_is_mended(clock: FakeClock) -> None:
    """B8, F59"""
    if reason := redis_available():
        pytest.skip(reason)
    keys = [f"host:{number}.example" for number in range(30)]
    with RedisCluster(3) as cluster:
        blocking = Awaited(Shelter(RedisStore(cluster.url, clock=clock, timeout=SLOW)))
        tasks = AsyncShelter(AsyncRedisStore(cluster.url, clock=clock, timeout=SLOW))
        stores: tuple[AsyncStore, ...] = blocking, tasks
        for times, store in enumerate(stores):
            for key in keys:
                await ask(store, key)
            cluster.masters[times].flush()
            for key in keys:
                await ask(store, key)
            assert [await spent(store, key) for key in keys] == [2 * times + 2] * len(keys)
        await blocking.close()
        await tasks.close()


def test_a_server_that_comes_back_with_what_it_had_some_time_ago_is_brought_up_to_date(tmp_path: Path) -> None:
    """B8, F55: a snapshot, or a replica that lagged behind"""
    if reason := redis_available():
        pytest.skip(reason)
    with RedisServer("--save", "3600 1", "--dbfilename", "old.rdb") as server:
        shelter = Shelter(RedisStore(server.url, timeout=SLOW))
        wide = FREE.but(max_requests_per_day=100)
        step = charge(wide, 0.0, page=True)
        for _ in range(3):
            shelter.update(A, step)
        server.command("SAVE")
        for _ in range(20):
            shelter.update(A, step)
        server.restart()

        shelter.update(A, step)
        deadline = time.monotonic() + 20
        while shelter.sheltered or shelter.held:
            assert time.monotonic() < deadline
            shelter.update(B, step)
            time.sleep(0.01)

        assert RedisStore(server.url).read(A).days[-1].requests == 24
        shelter.close()
