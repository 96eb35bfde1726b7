"""A store that has lost its records gets back what its users remember of them (issue 2, point 5; B8).

A server that is flushed in the middle; a file that is removed, replaced or damaged.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import sqlite3
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path
from typing import Any, Protocol

import pytest

from curtsy.core.amendment import Pause
from curtsy.core.decision import Decision, Go, No
from curtsy.core.errors import Reason, StoreError
from curtsy.core.policy import Policy
from curtsy.core.time import SECOND
from curtsy.engine.gate_steps import amended, charge
from curtsy.limits import CircuitBreaker
from curtsy.stores import AsyncStore, BlockingStore, Step, Store, open_async_store, open_store
from curtsy.stores.fallback import AsyncFallbackStore
from curtsy.stores.redis import AsyncRedisStore
from curtsy.stores.redis_server import Server
from curtsy.stores.sqlite import AsyncSQLiteStore
from curtsy.stores.sqlite_records import RecordFile
from curtsy.system.clock import Clock
from curtsy.testing import FakeClock
from tests.stores.places import Awaited
from tests.stores.worker import ROOT
from tests.strategies import FREE
from tests.support.ending import ends_with_test
from tests.support.polling import block_until, until
from tests.support.redis_server import RedisServer, redis_available
from tests.support.stores import fallback_store, redis_store, sqlite_store

A, B = "host:a.example", "host:b.example"
DAILY = FREE.replace(max_requests_per_day=5)
STEP = charge(FREE.replace(max_requests_per_day=5000), 0.0, page=True)
SLOW = 10.0


class Losing(Protocol):
    """A place that can lose its records."""

    def open(self, clock: Clock | None) -> Store: ...

    def open_async(self, clock: Clock | None) -> AsyncStore: ...

    def lose(self) -> None: ...


class Flushed:
    def __init__(self, server: RedisServer) -> None:
        self._server = server

    def open(self, clock: Clock | None = None) -> BlockingStore:
        return redis_store(self._server.url, clock=clock, timeout=SLOW)

    def open_async(self, clock: Clock | None = None) -> AsyncRedisStore:
        return AsyncRedisStore(self._server.url, clock=clock, timeout=SLOW)

    def lose(self) -> None:
        self._server.flush()


class Removed:
    def __init__(self, path: Path) -> None:
        self.path = path

    def open(self, clock: Clock | None = None) -> BlockingStore:
        return sqlite_store(self.path, clock=clock)

    def open_async(self, clock: Clock | None = None) -> AsyncSQLiteStore:
        return AsyncSQLiteStore(self.path, clock=clock)

    def lose(self) -> None:
        self.path.unlink()


class Damaged(Removed):
    def lose(self) -> None:
        garbage = self.path.with_suffix(".garbage")  # put in its place at once: SQLite has the old file in memory
        garbage.write_bytes(b"no database" * 400)
        os.replace(garbage, self.path)


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
        opened = Awaited(fallback_store(place.open(clock)))
    else:
        opened = AsyncFallbackStore(place.open_async(clock))
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
    pace = FREE.replace(qps=0.1)
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


def _redis(store: BlockingStore) -> Server:
    assert isinstance(store.inner, AsyncRedisStore)
    return store.inner._server


def a_second_passes(store: BlockingStore) -> None:
    """Have the mark looked at before anything else is asked, as it is every second."""
    _redis(store).swap.marks.doubt_all()


# Several who remember.


async def test_who_knows_more_catches_up_with_who_knew_less(server: RedisServer, clock: FakeClock) -> None:
    """B8: what both have counted counts once."""
    knows, knew, new = (Awaited(fallback_store(redis_store(server.url, clock=clock, timeout=SLOW))) for _ in range(3))
    wide = FREE.replace(max_requests_per_day=100)
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
from curtsy.engine.gate_steps import charge
from curtsy.stores import open_store
from tests.strategies import FREE
store = open_store("sqlite:///" + sys.argv[1])
for line in sys.stdin:
    for _ in range(int(line)):
        store.update("host:a.example", charge(FREE.replace(max_requests_per_day=100), 0.0, page=True))
    print(store.read("host:a.example").days[-1].requests, flush=True)
store.close()
"""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    processes = [
        ends_with_test(
            subprocess.Popen(
                [sys.executable, "-c", script, str(path)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env=environment,
            )
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
        process.communicate(timeout=60)
        assert process.returncode == 0


@pytest.mark.parametrize("is_in_snapshot", [True, False])
def test_a_server_that_comes_back_with_what_it_had_some_time_ago_is_brought_up_to_date(is_in_snapshot: bool) -> None:
    """B8, F55: a snapshot, or a replica that lagged behind"""
    if reason := redis_available():
        pytest.skip(reason)
    with RedisServer("--save", "3600 1", "--dbfilename", "old.rdb") as server:
        fallback, other = (
            fallback_store(redis_store(server.url, timeout=SLOW)),
            redis_store(server.url, timeout=SLOW + 1),
        )
        fallback.update(B, STEP)
        before = 3 if is_in_snapshot else 0
        for _ in range(before):
            fallback.update(A, STEP)
        server.command("SAVE")
        for _ in range(20):
            fallback.update(A, STEP)
        other.forget(B)
        fallback.update(B, STEP)  # which is why the mark is looked at, as it is every second
        server.restart()

        fallback.update(A, STEP)

        assert other.read(A).days[-1].requests == before + 21
        fallback.close()
        other.close()


# What is no loss.


def test_looks_that_the_server_may_have_forgotten_are_not_missed(server: RedisServer) -> None:
    """B8: a machine that has slept for days"""
    store = redis_store(server.url, timeout=SLOW)
    store.update(A, STEP)
    marks = _redis(store).swap.marks
    for key in server.command("KEYS", "curtsy:mark{0}:*"):
        server.command("DEL", key)  # as it runs out
    [(name, known)] = marks._known.items()
    marks._known[name] = known._replace(at=known.at - 2 * 86_400 * SECOND)
    a_second_passes(store)

    store.update(A, STEP)

    assert store.inner.losses == []
    store.close()


def test_threads_and_loops_that_share_a_store_find_nothing_lost(server: RedisServer) -> None:
    """B8: each may know more than another's reply"""
    store, tasks = redis_store(server.url, timeout=SLOW), AsyncRedisStore(server.url, timeout=SLOW)
    fallback = fallback_store(store)

    together = threading.Barrier(4)

    async def ask_often() -> None:
        await asyncio.gather(*(tasks.update(key, STEP) for key in (A, B) for _ in range(150)))
        await asyncio.get_running_loop().run_in_executor(None, together.wait)
        await tasks.close()

    def in_a_loop() -> None:
        asyncio.run(ask_often())

    def in_a_thread() -> None:
        for _ in range(150):
            fallback.update(A, STEP)
            fallback.update(B, STEP)

    threads = [threading.Thread(target=work) for work in (in_a_loop, in_a_thread) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert store.inner.losses == tasks.losses == []
    assert store.read(A).days[-1].requests == 8 * 150
    fallback.close()


async def test_an_outage_brings_nothing_back_that_was_removed_meanwhile(server: RedisServer) -> None:
    """B8: what others have begun since is all that there is"""
    now = 0.0
    fallback = fallback_store(redis_store(server.url, timeout=0.3), monotonic=lambda: now)
    other = redis_store(server.url, timeout=SLOW)
    for key in (A, B):
        for _ in range(5):
            fallback.update(key, STEP)
    server.pause()
    fallback.update("host:c.example", STEP)
    server.resume()
    other.forget(A)
    other.forget(B)
    other.update(B, STEP)

    now = 2.0
    fallback.update("host:c.example", STEP)
    await until(lambda: not fallback.inner.is_out and not fallback.inner.held)

    assert other.read(A) is None
    assert other.read(B).days[-1].requests == 1
    fallback.close()
    other.close()


def test_a_loss_that_one_store_of_a_process_has_mended_is_none_for_the_other(server: RedisServer) -> None:
    """B8"""
    one, two = (open_store(server.url) for _ in range(2))
    for store in (one, two):
        store.update(A, STEP)
        store.update(B, STEP)
    server.flush()
    one.update(A, STEP)
    one.close()
    other = redis_store(server.url, timeout=SLOW)
    other.forget(A)

    two.update(B, STEP)
    two.close()

    assert other.read(A) is None
    assert other.read(B).days[-1].requests == 3
    other.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
def test_a_forked_child_finds_nothing_lost_that_its_parent_has_mended(tmp_path: Path) -> None:
    """B8"""
    path = tmp_path / "state.sqlite"
    script = """
import os, sys
from curtsy.engine.gate_steps import charge
from curtsy.stores import open_store
from tests.strategies import FREE
step = charge(FREE.replace(max_requests_per_day=100), 0.0, page=True)
store = open_store("sqlite:///" + sys.argv[1])
for _ in range(3):
    store.update("host:a.example", step)
os.unlink(sys.argv[1])
store.update("host:a.example", step)
print(store.read("host:a.example").days[-1].requests, flush=True)
store.forget("host:a.example")
store.update("host:b.example", step)
if os.fork() == 0:
    store.update("host:b.example", step)
    print(store.read("host:a.example"), flush=True)
    store.update("host:a.example", step)
    print(store.read("host:a.example").days[-1].requests, flush=True)
    os._exit(0)
os.wait()
store.close()
"""
    done = subprocess.run(
        [sys.executable, "-c", script, str(path)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
    )

    assert done.stdout.split() == ["4", "None", "1"], done.stderr


# When and how it is given back.


async def test_who_knows_nothing_of_a_host_and_asks_first_takes_nothing_away(server: RedisServer) -> None:
    """B8: though it writes a record that is as good as any"""
    fallbacks = [fallback_store(redis_store(server.url, timeout=SLOW + number)) for number in range(2)]
    for _ in range(4):
        fallbacks[0].update(A, charge(DAILY, 0.0, page=True))
    fallbacks[1].update(B, STEP)
    server.flush()

    decisions = [
        fallback.update(A, charge(DAILY, 0.0, page=True))[0] for fallback in (*reversed(fallbacks), fallbacks[1])
    ]

    assert [type(decision) for decision in decisions] == [Go, Go, No]
    for fallback in fallbacks:
        fallback.close()


async def test_all_is_given_back_without_anybody_asking_again(place: Losing, store: AsyncStore) -> None:
    """B8"""
    idle = [f"host:{number}.example" for number in range(300)]
    for key in (A, *idle):
        await ask(store, key)
    place.lose()

    await ask(store, A)

    async def is_complete() -> bool:
        return len(await store.keys("host:")) >= 1 + len(idle)

    await until(is_complete)


def test_one_that_is_closed_in_another_loop_gives_back_what_was_lost(tmp_path: Path) -> None:
    """B8"""
    path = tmp_path / "state.sqlite"
    store = AsyncFallbackStore(AsyncSQLiteStore(path))
    idle = [f"host:{number}.example" for number in range(300)]

    async def lose() -> None:
        for key in (A, *idle):
            await store.update(key, STEP)
        path.unlink()
        await store.update(A, STEP)

    asyncio.run(lose())
    asyncio.run(store.close())

    other = sqlite_store(path)
    assert len(other.keys("host:")) == 1 + len(idle)
    other.close()


def test_a_host_that_is_forgotten_and_asked_for_in_one_breath_begins_anew(server: RedisServer) -> None:
    """B8"""
    fallback = fallback_store(redis_store(server.url, timeout=SLOW))
    for _ in range(5):
        fallback.update(A, STEP)
    server.flush()

    fallback.update_many([(A, lambda host, now: (None, None)), (A, STEP)])

    assert fallback.read(A).days[-1].requests == 1
    fallback.close()


def test_one_who_is_always_flushed_is_told_of_once_a_minute(
    server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    """B8"""
    now = 0.0
    fallback = fallback_store(redis_store(server.url, timeout=SLOW), monotonic=lambda: now)
    for number in range(12):
        now = 10.0 * number
        fallback.update(A, STEP)
        server.flush()

    fallback.update(A, STEP)

    assert fallback.read(A).days[-1].requests == 13
    assert len(warnings(caplog)) == 2
    fallback.close()


def test_a_file_from_before_a_reboot_is_brought_up_to_date(tmp_path: Path) -> None:
    """B8: its instants are of another clock"""
    path, backup = tmp_path / "state.sqlite", tmp_path / "backup.sqlite"
    pace = charge(FREE.replace(qps=0.01), 0.0, page=True)
    before = sqlite_store(path, clock=FakeClock(at=900_000.0, boot=1))
    before.update(A, pace)
    before.close()
    shutil.copy(path, backup)
    clock = FakeClock(at=100.0, boot=2)
    clock.advance(500)
    fallback = fallback_store(sqlite_store(path, clock=clock))
    assert isinstance(fallback.update(A, pace)[0], Go)
    clock.advance(5)

    os.replace(backup, path)

    wait, _ = fallback.update(A, pace)
    assert not isinstance(wait, Go | No)
    assert wait.seconds == pytest.approx(95)
    fallback.close()


def test_a_server_that_goes_back_again_and_again_is_mended_each_time() -> None:
    """B8: its mark has the same name after each restart"""
    if reason := redis_available():
        pytest.skip(reason)
    with RedisServer("--save", "3600 1", "--dbfilename", "old.rdb") as server:
        inner = redis_store(server.url, timeout=SLOW)
        fallback = fallback_store(inner)
        fallback.update(A, STEP)
        server.command("SAVE")
        server.command("CONFIG", "SET", "save", "")
        for times in range(2, 7):
            fallback.update(A, STEP)
            assert fallback.read(A).days[-1].requests == times
            a_second_passes(inner)
            fallback.update(B, STEP)
            server.restart()
        fallback.close()


def test_one_who_lagged_behind_is_seen_though_others_have_looked_meanwhile() -> None:
    """B8"""
    if reason := redis_available():
        pytest.skip(reason)
    with RedisServer("--save", "3600 1", "--dbfilename", "old.rdb") as server:
        stores = [redis_store(server.url, timeout=SLOW + number) for number in range(3)]
        knows, *others = map(fallback_store, stores)
        for each in (knows, *others):
            each.update(B, STEP)
        server.command("SAVE")
        server.command("CONFIG", "SET", "save", "")
        a_second_passes(stores[0])
        for _ in range(4):
            knows.update(A, charge(DAILY, 0.0, page=True))
        server.restart()
        for _ in range(5):
            for store, each in zip(stores[1:], others, strict=True):
                a_second_passes(store)
                each.update(B, STEP)

        decisions = [knows.update(A, charge(DAILY, 0.0, page=True))[0] for _ in range(2)]

        assert [type(decision) for decision in decisions] == [Go, No]
        for each in (knows, *others):
            each.close()


def test_what_could_not_be_given_back_at_once_is_given_back_later(server: RedisServer) -> None:
    """B8: a server that stands still for a moment"""

    class Hesitant(AsyncRedisStore):
        """Fails once in the middle of giving back: after its steps have run, and before anything is written."""

        is_hesitant = False

        async def update(self, key: str, step: Step[Any]) -> Any:
            if self.is_hesitant and key in idle:
                self.is_hesitant = False
                step(None, await self.now())
                raise StoreError("the server stands still. Wait.")
            return await super().update(key, step)

    inner = Hesitant(server.url, timeout=SLOW)
    fallback = fallback_store(inner)
    idle = [f"host:{number}.example" for number in range(20)]
    for key in (A, *idle):
        fallback.update(key, STEP)
    server.flush()
    inner.is_hesitant = True
    fallback.update(A, STEP)
    fallback.close()

    other = redis_store(server.url, timeout=SLOW)
    assert len(other.keys("host:")) == 1 + len(idle)
    assert not fallback.inner.is_out
    other.close()


@pytest.mark.parametrize("kind", ["sqlite", "redis"])
def test_one_record_that_is_damaged_is_replaced_by_what_is_remembered(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """B8: and no other is touched"""
    path = tmp_path / "state.sqlite"
    inner: BlockingStore | BlockingStore
    if kind == "sqlite":
        inner, other = sqlite_store(path), None
    else:
        server: RedisServer = request.getfixturevalue("server")
        inner, other = redis_store(server.url, timeout=SLOW), redis_store(server.url, timeout=SLOW + 1)
    fallback = fallback_store(inner)
    for key in (A, B):
        for _ in range(4):
            fallback.update(key, charge(DAILY, 0.0, page=True))
    if other is None:
        with closing(sqlite3.connect(path)) as damage:
            damage.execute("UPDATE records SET sum = sum + 1 WHERE key = ?", (A.encode(),))
            damage.execute("DELETE FROM records WHERE key = ?", (B.encode(),))
            damage.commit()
    else:
        server.command("SET", f"curtsy:{{{A}}}", "damaged")
        other.forget(B)
        other.close()

    decisions = [fallback.update(A, charge(DAILY, 0.0, page=True))[0] for _ in range(2)]

    assert [type(decision) for decision in decisions] == [Go, No]
    assert fallback.read(B) is None
    fallback.close()


def test_a_file_that_is_made_anew_while_we_have_let_go_of_it_is_seen(tmp_path: Path) -> None:
    """B8: though it has the number of the old one"""
    path = tmp_path / "state.sqlite"
    store = sqlite_store(path)
    store.update(A, STEP)
    for _ in range(5):
        assert isinstance(store.inner, AsyncSQLiteStore)
        file = store.inner._writer.file
        file.before_fork()
        path.unlink()
        other = RecordFile(str(path), patience=1.0)
        other.transact(lambda draft: None)
        other.close()
        file.after_fork(is_child=False)
        before = len(store.inner.losses)
        store.update(A, STEP)
        assert len(store.inner.losses) == before + 1
    store.close()


def test_a_loop_that_is_closed_in_the_middle_of_giving_back_holds_up_nobody(tmp_path: Path) -> None:
    """B8"""
    path = tmp_path / "state.sqlite"
    url = f"sqlite:///{path}"
    idle = [f"host:{number}.example" for number in range(300)]
    tasks, threads = open_async_store(url), open_store(url)

    async def lose() -> None:
        for key in (A, *idle):
            await tasks.update(key, STEP)
        path.unlink()
        await tasks.update(A, STEP)  # and no further: what is to be given back has just begun

    loop = asyncio.new_event_loop()
    loop.run_until_complete(lose())
    for task in asyncio.all_tasks(loop):
        task._log_destroy_pending = False  # type: ignore[attr-defined]
    loop.close()

    threads.update(A, STEP)
    block_until(lambda: len(threads.keys("host:")) >= 1 + len(idle))
    asyncio.run(asyncio.wait_for(tasks.close(), 60))
    threads.close()


def test_a_record_with_the_name_of_the_probe_is_nobodys(server: RedisServer) -> None:
    """B8: an outage does not remove what a part has named so"""
    clock = FakeClock()
    inner = redis_store(server.url, timeout=0.3)
    fallback = fallback_store(inner, monotonic=lambda: clock.now().at / SECOND)
    breaker = CircuitBreaker(3600, store=fallback, key="probe")
    breaker.trip()
    server.pause()
    fallback.update(A, STEP)
    server.resume()
    clock.advance(60)

    def is_back() -> bool:
        if fallback.inner.is_out or fallback.inner.held:
            fallback.update(A, STEP)
            return False
        return True

    block_until(is_back, every=0.005)

    assert breaker.is_open
    assert sorted(inner.keys()) == [A, "probe"]
    fallback.close()
