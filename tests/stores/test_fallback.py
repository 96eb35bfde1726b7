"""A store that fails does not stop the program, nor let it forget its manners (B8, F55)."""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import sqlite3
import struct
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
import redis

from curtsy.core.admission import admit
from curtsy.core.decision import Decision, Go, Lease
from curtsy.core.errors import PolicyError, RecordTooNew, StoreError
from curtsy.core.host import Host
from curtsy.core.outcome import Kind, Outcome
from curtsy.core.policy import Policy
from curtsy.core.settlement import settle
from curtsy.core.time import SECOND, Now
from curtsy.stores import Answer, AsyncStore, BlockingStore, Step, open_async_store, open_store
from curtsy.stores.fallback import AsyncFallbackStore
from curtsy.stores.fallback_state import FallbackState
from curtsy.stores.memory import AsyncMemoryStore, MemoryStore
from curtsy.stores.outage_ledger import OutageLedger
from curtsy.stores.redis import AsyncRedisStore
from curtsy.system.clock import Clock
from curtsy.testing import FakeClock
from tests.stores.places import Awaited
from tests.stores.steps import Refusal, count, keep, refuse, stamp
from tests.support.bounds import ends_within
from tests.support.polling import block_until, until
from tests.support.redis_server import RedisServer, redis_available
from tests.support.snapshot import Snapshot
from tests.support.stores import fallback_store, redis_store, sqlite_store

SLOW = 10.0


class Unsteady:
    """A blocking store that fails on demand: before anything is done, or after everything is."""

    def __init__(self, clock: Clock) -> None:
        self._store = MemoryStore(clock)
        self._clock = clock
        self.identity = "unsteady:"
        self.is_out = False
        self.is_silent = False
        """Does what it is asked, but the answer is lost."""
        self.unusable = ""
        """A key whose record it cannot use."""
        self.asked_at: list[float] = []
        self.before: Callable[[], None] = lambda: None

    def size(self) -> int:
        return len(self._store.keys())

    def _check(self) -> None:
        self.asked_at.append(self._clock.now().at / SECOND)
        self.before()
        if self.is_out:
            raise StoreError("unsteady: is out. Wait.")

    def update(self, key: str, step: Step[Answer]) -> Answer:
        self._check()
        if key == self.unusable:
            raise StoreError("unsteady: a record cannot be used.")
        answer = self._store.update(key, step)
        if self.is_silent:
            raise StoreError("unsteady: is silent. Wait.")
        return answer

    def update_many(self, steps: Sequence[tuple[str, Step[Any]]]) -> list[Any]:
        self._check()
        return self._store.update_many(steps)

    def read(self, key: str) -> Any:
        self._check()
        return self._store.read(key)

    def keys(self, prefix: str = "") -> list[str]:
        self._check()
        return self._store.keys(prefix)

    def forget(self, key: str) -> None:
        self._check()
        self._store.forget(key)

    def now(self) -> Now:
        self._check()
        return self._store.now()

    def close(self) -> None:
        pass


class Sheltered:
    """A shelter of either colour over a real server, told what to do by `await`."""

    def __init__(
        self, server: RedisServer, clock: FakeClock, colour: str, timeout: float = SLOW, *, is_real: bool = False
    ) -> None:
        """With `is_real` the server's own time counts, and only the shelter's is the clock's."""
        self._clock = clock

        def monotonic() -> float:
            return clock.now().at / SECOND

        inner = AsyncRedisStore(server.url, clock=None if is_real else clock, timeout=timeout)
        self.fallback = AsyncFallbackStore(inner, monotonic=monotonic)
        self.store: AsyncStore = Awaited(BlockingStore(self.fallback)) if colour == "blocking" else self.fallback

    async def until_back(self) -> None:
        """Wait until the store is no longer taken to be out."""
        await until(lambda: not self.fallback.is_out)

    async def until_home(self) -> None:
        """Wait for what goes on beside the calls; a look may have come too early, so let time pass."""
        checks = itertools.count(1)

        async def is_home() -> bool:
            if not self.fallback.is_out and not self.fallback.held:
                return True
            if not next(checks) % 100:
                self._clock.advance(1)
                await self.store.update("host:poke", keep)
            return False

        await until(is_home)
        _wait_for_prober()  # which has still to say so


@pytest.fixture(params=["blocking", "async"])
async def sheltered(request: pytest.FixtureRequest, server: RedisServer, clock: FakeClock) -> AsyncIterator[Sheltered]:
    made = Sheltered(server, clock, request.param)
    yield made
    await made.store.close()


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> Iterator[Callable[[int], list[str]]]:
    """What was logged at a level."""

    def lines(level: int) -> list[str]:
        return [record.getMessage() for record in caplog.records if record.levelno == level]

    with caplog.at_level(logging.INFO, logger="curtsy"):
        yield lines


# Through.


async def test_while_the_store_works_everything_goes_through(sheltered: Sheltered, server: RedisServer) -> None:
    """B8"""
    store = sheltered.store

    assert await store.update("host:a", count) == 1
    assert await store.update_many([("host:a", count), ("host:b", count)]) == [2, 1]
    assert (await store.read("host:a")).requests == 2
    assert await store.keys("host:") == ["host:a", "host:b"]
    await store.forget("host:b")
    assert await store.keys() == ["host:a"]
    assert not sheltered.fallback.is_out
    assert sheltered.fallback.share == 1.0
    assert server.command("KEYS", "curtsy:{*") == [b"curtsy:{host:a}"]


async def test_exceptions_of_steps_are_no_outage(sheltered: Sheltered, log: Callable[[int], list[str]]) -> None:
    """B8: not even a StoreError, if it is the step's own."""

    def fail(record: Host | None, now: Now) -> tuple[Host, None]:
        raise StoreError("from the step")

    for step, kind in ((refuse, Refusal), (fail, StoreError)):
        with pytest.raises(kind):
            await sheltered.store.update("host:a", step)
        with pytest.raises(kind):
            await sheltered.store.update_many([("host:a", step), ("host:b", count)])

    assert not sheltered.fallback.is_out
    assert log(logging.WARNING) == []
    assert (await sheltered.store.read("host:b")).requests == 2


# Out.


async def test_a_program_goes_on_when_its_store_is_gone_and_says_so_once(
    sheltered: Sheltered, server: RedisServer, clock: FakeClock, log: Callable[[int], list[str]]
) -> None:
    """B8"""
    store = sheltered.store
    await store.update("host:a", count)
    await store.update("host:b", count)
    server.stop()

    assert await store.update("host:a", count) == 2
    assert await store.update_many([("host:a", count), ("host:b", keep), ("host:new", count)]) == [3, 1, 1]
    assert (await store.read("host:a")).requests == 3
    assert await store.keys("host:") == ["host:a", "host:b", "host:new"]
    await store.forget("host:b")
    assert await store.read("host:b") is None
    with pytest.raises(Refusal):
        await store.update("host:a", refuse)
    with pytest.raises(Refusal):
        await store.update_many([("host:a", refuse), ("host:a", count)])
    assert await store.update("host:a", keep) == 4

    assert sheltered.fallback.is_out
    assert len(log(logging.WARNING)) == 1
    assert f"redis://127.0.0.1:{server.port}/0" in log(logging.WARNING)[0]


async def test_a_store_that_was_never_there_is_an_outage_too(
    sheltered: Sheltered, server: RedisServer, clock: FakeClock
) -> None:
    """B8"""
    server.stop()

    assert await sheltered.store.update("host:a", count) == 1
    assert await sheltered.store.update("host:a", count) == 2
    assert (await sheltered.store.now()).at > 0

    server.start()
    clock.advance(2)
    await sheltered.store.update("host:a", keep)
    await sheltered.until_home()
    assert (await sheltered.store.read("host:a")).requests == 2


async def test_time_goes_on_where_the_stores_clock_left_off(
    sheltered: Sheltered, server: RedisServer, clock: FakeClock
) -> None:
    """Design, section 2: instants stay on one time line."""
    store = sheltered.store
    before = await store.update("host:a", stamp)
    clock.advance(3)
    server.stop()

    during = await store.update("host:a", stamp)
    clock.advance(0.5)
    unknown = await store.update("host:new", stamp)

    assert (during.at, during.epoch, during.boot) == (before.at + 3 * SECOND, before.epoch + 3 * SECOND, before.boot)
    assert unknown.at == before.at + 3 * SECOND + SECOND // 2
    assert (await store.now()).at == unknown.at


async def test_a_server_that_hangs_holds_up_one_call_and_no_other(server: RedisServer, clock: FakeClock) -> None:
    """F55"""
    for colour in ("blocking", "async"):
        sheltered = Sheltered(server, clock, colour, 0.5, is_real=True)
        await sheltered.store.update("host:a", count_for_days)
        server.pause()

        for turn in range(10):
            with ends_within(0.3 if turn else 2.0):
                await sheltered.store.update("host:a", count_for_days)
            clock.advance(5)  # so that the store is tried again meanwhile
            await asyncio.sleep(0)

        server.resume()
        clock.advance(60)
        await sheltered.store.update("host:a", keep)
        await sheltered.until_home()
        assert await sheltered.store.update("host:a", keep) == 11
        await sheltered.store.forget("host:a")
        await sheltered.store.close()


@contextmanager
def _full_server() -> Iterator[tuple[BlockingStore, Callable[[bool], object]]]:
    with RedisServer() as server:
        store = redis_store(server.url, timeout=SLOW)
        yield store, lambda is_out: server.command("CONFIG", "SET", "maxmemory", 1 if is_out else 0)


@contextmanager
def _locked_file(path: Path) -> Iterator[tuple[BlockingStore, Callable[[bool], object]]]:
    store = sqlite_store(path, patience=0.05)
    store.update("host:a", count)
    program = sqlite3.connect(path, isolation_level=None)
    yield store, lambda is_out: program.execute("BEGIN IMMEDIATE" if is_out else "ROLLBACK")
    program.close()


@pytest.mark.parametrize("which", ["full server", "locked file"])
def test_a_store_that_can_be_read_but_not_written_is_out(
    which: str, tmp_path: Path, log: Callable[[int], list[str]], snapshot: Snapshot
) -> None:
    """B8: told once, never said to be back, and this process takes no more than its share"""
    if which == "full server" and (reason := redis_available()):
        pytest.skip(reason)
    clock = FakeClock()
    with _full_server() if which == "full server" else _locked_file(tmp_path / "state.sqlite") as (inner, fail):
        fallback = fallback_store(inner, share=0.1, monotonic=lambda: clock.now().at / SECOND)
        fallback.update("host:a", count)
        before = fallback.update("host:a", keep)
        fail(True)

        for number in range(8):
            fallback.update("host:a", count)
            fallback.update(f"host:new-{number}", count)
            assert (fallback.inner.is_out, fallback.inner.share) == (True, 0.1)
            clock.advance(40)
            fallback.update("host:a", keep)
            _wait_for_prober()

        [warning] = log(logging.WARNING)
        if which == "locked file":  # the library for Redis has other words in each version
            snapshot(warning, "out")
        assert log(logging.INFO) == []
        fail(False)
        clock.advance(40)
        fallback.update("host:a", keep)
        _wait_for_prober()
        assert not fallback.inner.is_out
        assert inner.read("host:a").requests == before + 8
        assert sorted(inner.keys()) == ["host:a", *(f"host:new-{number}" for number in range(8))]
        [news] = log(logging.INFO)
        assert inner.identity in news
        snapshot(news, "back")
        fallback.close()


def test_a_dead_store_is_tried_at_growing_intervals() -> None:
    """F55: after 1, 2, 4 … 30 seconds, however often it is needed."""
    clock = FakeClock(at=0)
    inner = Unsteady(clock)
    fallback = fallback_store(inner, monotonic=lambda: clock.now().at / SECOND)
    inner.is_out = True
    fallback.update("host:a", count)
    tried = threading.Event()
    inner.before = tried.set

    for _ in range(1300):
        clock.advance(0.1)
        asked = len(inner.asked_at)
        is_due = clock.now().at / SECOND >= _next_probe(inner.asked_at)
        fallback.update("host:a", count)
        if is_due:
            assert tried.wait(60)
            tried.clear()
            _wait_for_prober()
        else:
            assert len(inner.asked_at) == asked

    gaps = [late - early for early, late in itertools.pairwise(inner.asked_at)]
    assert [round(gap, 3) for gap in gaps] == [1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0, 30.0]


def _next_probe(asked_at: list[float]) -> float:
    return asked_at[-1] + min(2.0 ** (len(asked_at) - 1), 30.0) - 1e-6


def _wait_for_prober() -> None:
    for thread in threading.enumerate():
        if thread.name == "curtsy-fallback":
            thread.join(60)


def test_a_process_has_its_share_of_what_all_have_together_while_the_store_is_out(clock: FakeClock) -> None:
    """Design, section 3"""
    inner = Unsteady(clock)
    fallback = fallback_store(inner, share=0.25)

    assert fallback.inner.share == 1.0
    inner.is_out = True
    fallback.update("host:a", count)
    assert fallback.inner.share == 0.25


async def test_a_server_that_may_forget_is_refused_and_not_replaced() -> None:
    """Design, section 3: a wrong setting is no outage."""
    if reason := redis_available():
        pytest.skip(reason)
    with RedisServer("--maxmemory", "50mb", "--maxmemory-policy", "allkeys-lru") as server:
        fallback, async_shelter = (
            fallback_store(redis_store(server.url)),
            AsyncFallbackStore(AsyncRedisStore(server.url)),
        )

        with pytest.raises(PolicyError, match="maxmemory-policy"):
            fallback.update("host:a", count)
        with pytest.raises(PolicyError, match="maxmemory-policy"):
            await async_shelter.update("host:a", count)
        fallback.close()
        await async_shelter.close()


# And back.


async def test_what_was_counted_in_memory_comes_home(
    sheltered: Sheltered, server: RedisServer, clock: FakeClock, log: Callable[[int], list[str]]
) -> None:
    """B8: joined with what others have counted meanwhile, and one line says so."""
    store = sheltered.store
    for _ in range(5):
        await store.update("host:a", count)
    port, pid = server.port, server.pid
    other = redis_store(server.url, clock=clock, timeout=SLOW)
    with _cut_off(server):
        for _ in range(3):
            await store.update("host:a", count)
        await store.update("host:new", count)
        assert sheltered.fallback.is_out
    for _ in range(2):
        other.update("host:a", count)

    clock.advance(2)
    await store.update("host:other", count)
    await sheltered.until_home()

    assert (server.port, server.pid) == (port, pid)
    assert other.read("host:a").requests == 10
    assert other.read("host:new").requests == 1
    assert other.read("host:other").requests == 1
    assert await store.update("host:a", count) == 11
    assert len(log(logging.WARNING)) == 1
    assert len([line for line in log(logging.INFO) if "2.0 s" in line]) == 1
    other.close()


@contextmanager
def _cut_off(server: RedisServer) -> Iterator[None]:
    """Every connection is refused meanwhile; the server and its records stay."""
    server.command("CONFIG SET", "requirepass", "nobody-knows")
    with redis.Redis(host="127.0.0.1", port=server.port, password="nobody-knows") as client:
        client.execute_command("CLIENT KILL", "TYPE", "normal", "SKIPME", "yes")
        try:
            yield
        finally:
            client.execute_command("CONFIG SET", "requirepass", "")


async def test_each_outage_is_warned_about_once(
    sheltered: Sheltered, server: RedisServer, clock: FakeClock, log: Callable[[int], list[str]]
) -> None:
    """B8"""
    for outage in range(1, 4):
        await sheltered.store.update("host:a", count)
        server.stop()
        for _ in range(5):
            await sheltered.store.update("host:a", count)
            clock.advance(7)
            await asyncio.sleep(0)
        server.start()
        clock.advance(60)
        await sheltered.store.update("host:a", count)
        await sheltered.until_home()
        await until(lambda: log(logging.INFO)[outage - 1 :])  # noqa: B023 -- logged when the last record is written

        is_loss = ["#curtsy:" in line for line in log(logging.WARNING)]  # the server comes back empty
        assert is_loss.count(False) == outage
        assert len(log(logging.INFO)) == outage
    assert await sheltered.store.update("host:a", keep) == 21


async def test_the_gap_is_kept_before_during_and_after_an_outage(
    sheltered: Sheltered, server: RedisServer, clock: FakeClock
) -> None:
    """F55: and there is no burst when the store is back, nor more in a day than the budget."""
    policy = Policy(qps=1.0, pause_min=0.0, pause_max=0.0, max_requests_per_day=40, max_pages_per_day=0)
    departures: list[float] = []

    def ask(host: Host | None, now: Now) -> tuple[Host | None, Decision]:
        return admit(host, now, policy)

    for tick in range(600):
        if tick == 100:
            server.stop()
        if tick == 300:
            server.start()
        decision = await sheltered.store.update("host:a", ask)
        if isinstance(decision, Go):
            departures.append(clock.now().at / SECOND)
            await sheltered.store.update("host:a", _settled(policy, decision.lease))
        clock.advance(0.1)
        if tick >= 300 and not tick % 20:
            await asyncio.sleep(0.01)  # let what goes on beside the calls have its turn

    await sheltered.until_home()
    assert all(late - early > 0.999 for early, late in itertools.pairwise(departures))
    assert len(departures) == 40
    assert departures[-1] - departures[0] < 41


def _settled(policy: Policy, lease: Lease) -> Step[None]:
    def step(host: Host | None, now: Now) -> tuple[Host, None]:
        return settle(host, now, policy, lease, Outcome(Kind.ANSWERED, 200)), None

    return step


def test_an_update_whose_outcome_is_unknown_is_answered_once_and_never_counted_for_less(clock: FakeClock) -> None:
    """F38, F55: the store wrote it, the answer was lost, and it is made again in memory."""
    inner = Unsteady(clock)
    fallback = fallback_store(inner, monotonic=lambda: clock.now().at / SECOND)
    assert fallback.update("host:a", count) == 1
    inner.is_silent = True

    assert fallback.update("host:a", count) == 2
    assert fallback.update("host:a", count) == 3

    inner.is_silent = False
    clock.advance(2)
    fallback.update("host:a", keep)
    _wait_for_prober()
    assert fallback.update("host:a", keep) == 4  # one too many: a budget may be used less, never more


def test_an_answer_that_comes_after_the_outage_has_begun_counts(clock: FakeClock) -> None:
    """F55: two calls are under way, one fails, the other gets through."""
    inner = Unsteady(clock)
    fallback = fallback_store(inner, monotonic=lambda: clock.now().at / SECOND)
    fallback.update("host:a", count)

    def meanwhile() -> None:
        inner.before = lambda: None
        inner.is_out = True
        fallback.update("host:b", count)
        assert fallback.inner.is_out
        inner.is_out = False

    inner.before = meanwhile

    assert fallback.update("host:a", count) == 2
    assert fallback.update("host:a", keep) == 2
    clock.advance(2)
    fallback.update("host:a", keep)
    _wait_for_prober()
    assert fallback.update("host:a", keep) == 2


def test_a_store_that_fails_again_while_records_go_home_loses_none_and_is_one_outage(
    clock: FakeClock, log: Callable[[int], list[str]]
) -> None:
    """F55"""
    inner = Unsteady(clock)
    fallback = fallback_store(inner, monotonic=lambda: clock.now().at / SECOND)
    inner.is_out = True
    keys = [f"host:{number}" for number in range(20)]
    for key in keys:
        fallback.update(key, count)
    answers = iter(range(12))

    def fail_in_the_middle() -> None:
        inner.is_out = next(answers, None) is None

    inner.is_out = False
    inner.before = fail_in_the_middle
    clock.advance(2)
    fallback.update("host:0", count)
    _wait_for_prober()
    assert fallback.inner.is_out
    assert 0 < inner.size() < 20
    inner.before = lambda: None
    inner.is_out = False
    clock.advance(60)
    fallback.update("host:0", count)
    _wait_for_prober()

    assert not fallback.inner.is_out
    assert [fallback.update(key, keep) for key in keys] == [3] + [1] * 19
    assert len(log(logging.WARNING)) == 1
    assert len(log(logging.INFO)) == 1


class Meeting(AsyncMemoryStore):
    """A store that is out on demand, and then answers only when it is asked for some hosts at once."""

    is_out = False
    barrier: asyncio.Barrier | None = None

    async def update(self, key: str, step: Step[Answer]) -> Answer:
        if self.is_out:
            raise StoreError("meeting: is out. Wait.")
        if self.barrier is not None and key.startswith("host:"):
            await self.barrier.wait()
        return await super().update(key, step)


async def test_records_go_home_together(clock: FakeClock) -> None:
    """Issue 17: one after another, requests to hundreds of hosts wait for hundreds of round trips to a server"""
    inner, hosts = Meeting(clock), 20
    store = AsyncFallbackStore(inner, waits=True, monotonic=lambda: clock.now().at / SECOND)
    inner.is_out = True
    for number in range(hosts):
        await store.update(f"host:{number}", count)
    inner.is_out, inner.barrier = False, asyncio.Barrier(hosts)
    clock.advance(2)

    await store.update("host:0", keep)
    await until(lambda: not store.held)

    inner.barrier = None
    assert [await store.update(f"host:{number}", keep) for number in range(hosts)] == [1] * hosts
    await store.close()


def test_what_is_counted_while_records_go_home_is_not_lost(clock: FakeClock) -> None:
    """B4: a key changes again just as its record arrives."""
    inner = Unsteady(clock)
    fallback = fallback_store(inner, monotonic=lambda: clock.now().at / SECOND)
    inner.is_out = True
    fallback.update("host:a", count)
    inner.is_out = False
    again = itertools.count()

    def count_meanwhile() -> None:
        if 0 < next(again) < 4:  # the first question is only whether the store is there
            fallback.update("host:a", count)

    inner.before = count_meanwhile
    clock.advance(2)
    fallback.update("host:a", count)
    _wait_for_prober()
    inner.before = lambda: None

    assert fallback.inner.held == 0
    assert fallback.update("host:a", keep) == 5


@pytest.mark.parametrize("waits", [False, True])
def test_after_an_outage_only_records_that_changed_in_it_are_looked_at(clock: FakeClock, waits: bool) -> None:
    """Issue 17: a call for each that is remembered kept all requests waiting, for seconds on a busy machine"""
    inner = Unsteady(clock)
    fallback = fallback_store(inner, waits=waits, monotonic=lambda: clock.now().at / SECOND)
    keys = [f"host:{number}" for number in range(1000)]
    for key in keys:
        fallback.update(key, count)
    inner.is_out = True
    for key in keys[:3]:
        fallback.update(key, count)
    assert fallback.inner.held == 1000
    inner.is_out = False
    inner.asked_at.clear()

    clock.advance(2)
    fallback.update(keys[0], keep)
    _wait_for_prober()

    assert len(inner.asked_at) <= 2 + 3 + 1, "the probe, the three, and perhaps this update"
    assert (fallback.inner.is_out, fallback.inner.held) == (False, 0)
    assert [fallback.update(key, keep) for key in keys] == [2] * 3 + [1] * 997


def count_for_days(record: Host | None, now: Now) -> tuple[Host, int]:
    """As `count`, but written so that it does not expire while the test runs."""
    changed, answer = count(record, now)
    return msgspec.structs.replace(changed, written_at=now.at), answer


def test_threads_that_count_through_outages_lose_nothing(server: RedisServer) -> None:
    """B4, F55"""
    fallback = fallback_store(redis_store(server.url, timeout=1.5))
    totals = [0] * 4
    end = threading.Event()

    def work(place: int) -> None:
        while not end.is_set():
            fallback.update(f"host:{totals[place] % 3}", count_for_days)
            totals[place] += 1

    threads = [threading.Thread(target=work, args=(place,)) for place in range(4)]
    for each in threads:
        each.start()
    block_until(lambda: sum(totals) > 200)
    server.pause()
    block_until(lambda: fallback.inner.is_out)
    block_until(lambda: sum(totals) > 1000)
    server.resume()
    block_until(lambda: not fallback.inner.is_out and not fallback.inner.held)
    seen = sum(totals)
    block_until(lambda: sum(totals) > seen + 200)
    end.set()
    for each in threads:
        each.join()

    counted = sum(fallback.read(f"host:{number}").requests for number in range(3))
    assert sum(totals) <= counted <= sum(totals) + 4  # what was under way when it hung may count twice
    fallback.close()


async def test_a_record_that_a_later_version_wrote_is_an_error_of_its_key_and_no_outage(
    sheltered: Sheltered, server: RedisServer, log: Callable[[int], list[str]]
) -> None:
    """Issue 17, 1: it is never touched, and all other keys go on in the store."""
    value = struct.pack(">8sdd", b"12345678", 1.0, 0.0) + msgspec.msgpack.encode(["host", 99, "new"])
    server.command("SET", "curtsy:{host:a}", value)
    store = sheltered.store

    for _ in range(2):
        with pytest.raises(RecordTooNew, match="format 99"):
            await store.update("host:a", count)
        await store.update("host:b", count)
    with pytest.raises(RecordTooNew):
        await store.update_many([("host:b", count), ("host:a", count)])
    with pytest.raises(RecordTooNew):
        await store.read("host:a")

    assert (sheltered.fallback.held, sheltered.fallback.outages.times, log(logging.WARNING)) == (0, 0, [])
    assert server.command("GET", "curtsy:{host:a}") == value
    server.command("DEL", "curtsy:{host:a}")
    assert await store.update("host:a", count) == 1


def test_an_outage_that_is_found_while_looking_after_one_record_is_warned_about(
    clock: FakeClock, log: Callable[[int], list[str]]
) -> None:
    """B8"""
    inner = Unsteady(clock)
    fallback = fallback_store(inner, monotonic=lambda: clock.now().at / SECOND)
    inner.unusable = "host:a"
    fallback.update("host:a", count)
    clock.advance(2)
    fallback.update("host:b", count)
    _wait_for_prober()
    assert not fallback.inner.is_out
    inner.is_out = True
    clock.advance(60)

    fallback.update("host:a", count)
    _wait_for_prober()

    assert fallback.inner.is_out
    assert len(log(logging.WARNING)) == 2
    inner.is_out, inner.unusable = False, ""
    clock.advance(60)
    fallback.update("host:a", count)
    _wait_for_prober()
    assert [fallback.update(key, keep) for key in ("host:a", "host:b")] == [3, 1]


async def test_a_removed_record_is_removed_at_home_too_unless_others_use_it(
    sheltered: Sheltered, server: RedisServer, clock: FakeClock
) -> None:
    """B8"""
    store = sheltered.store
    await store.update_many([("host:a", count), ("host:b", count)])
    other = redis_store(server.url, clock=clock, timeout=SLOW)
    with _cut_off(server):
        await store.forget("host:a")
        await store.forget("host:b")
    other.update("host:b", count)

    clock.advance(2)
    await store.update("host:c", count)
    await sheltered.until_home()

    assert other.read("host:a") is None
    assert other.read("host:b").requests == 2
    other.close()


async def test_closing_brings_home_what_is_in_memory(
    sheltered: Sheltered, server: RedisServer, clock: FakeClock
) -> None:
    """B7: a program that ends just after an outage."""
    await sheltered.store.update("host:a", count)
    with _cut_off(server):
        await sheltered.store.update("host:a", count)

    await sheltered.store.close()

    other = redis_store(server.url, clock=clock, timeout=SLOW)
    assert other.read("host:a").requests == 2
    other.close()


@pytest.mark.parametrize("is_out", [False, True])
async def test_a_closed_shelter_says_so(sheltered: Sheltered, server: RedisServer, is_out: bool) -> None:
    """Store contract: that is no outage."""
    await sheltered.store.update("host:a", count)
    if is_out:
        server.stop()
        await sheltered.store.update("host:a", count)
    await sheltered.store.close()

    with pytest.raises(StoreError, match=r"close\(\)"):
        await sheltered.store.update("host:a", count)
    with pytest.raises(StoreError, match=r"close\(\)"):
        await sheltered.store.read("host:a")


async def test_all_who_open_a_store_that_is_out_count_together(log: Callable[[int], list[str]], tmp_path: Path) -> None:
    """B8: threads and tasks, at once and one after the other: an outage is no licence, and is told once."""
    nowhere = tmp_path / "file"
    nowhere.touch()
    place = f"sqlite:///{nowhere}/hosts.sqlite"
    blocking, first = open_store(place), open_async_store(place)

    blocking.update("host:a", count)
    await first.update("host:a", count)
    blocking.close()
    await first.close()
    second = open_async_store(place)
    await second.update("host:a", count)
    host = await second.read("host:a")

    assert host.requests == 3
    assert len(log(logging.WARNING)) == 1
    with pytest.raises(StoreError, match=r"close\(\)"):
        await first.update("host:a", count)
    assert (await second.read("host:a")).requests == 3

    nowhere.unlink()
    await second.close()

    third = open_store(place, fallback=False)
    assert third.read("host:a").requests == 3
    third.close()


def test_what_a_process_has_seen_of_a_store_goes_when_it_is_closed(tmp_path: Path) -> None:
    """U16: the file of another day is another file"""
    place = tmp_path / "hosts.sqlite"
    for _ in range(2):
        store = open_store(f"sqlite:///{place}")
        store.update("host:a", count)
        store.close()
        place.unlink()

    place.mkdir()
    store = open_store(f"sqlite:///{place}")

    assert store.read("host:a") is None
    store.close()


def test_a_clock_that_differs_from_the_servers_does_no_harm_if_the_server_was_never_there(clock: FakeClock) -> None:
    """Design, section 2: no two machines' clocks are ever compared."""
    inner = Unsteady(clock)  # its calendar is years ahead of this machine's
    fallback = fallback_store(inner, monotonic=lambda: clock.now().at / SECOND)
    inner.is_out = True
    start = time.monotonic()
    fallback.update("host:a", lambda host, now: (admit(host, now, Policy())[0], None))
    inner.is_out = False

    clock.advance(2)
    fallback.update("host:b", keep)
    _wait_for_prober()

    host = fallback.read("host:a")
    passed = (time.monotonic() - start) * SECOND
    assert host.boot == clock.now().boot
    assert 0 <= clock.now().at - host.sent_at <= passed


def test_what_is_counted_while_another_process_holds_the_ledger_is_kept(clock: FakeClock, tmp_path: Path) -> None:
    """B8: a process that is stopped within its turn holds nobody up, and makes nobody forget"""
    inner, ledger = Unsteady(clock), OutageLedger(str(tmp_path / "state.sqlite"))
    fallback = fallback_store(inner, state=FallbackState("unsteady:", ledger=ledger))
    inner.is_out = True

    answers = [fallback.update("host:a", count)]
    with ledger.entry("host:a"):
        answers += [fallback.update("host:a", count)]
    answers += [fallback.update("host:a", count)]
    inner.is_out = False
    fallback.close()

    assert answers == [1, 2, 3]
    assert inner.read("host:a").requests == 3
    assert ledger.keys() == []


SPOILED: dict[str, Callable[[Path], object]] = {
    "a pipe": os.mkfifo,
    "a link": lambda path: path.symlink_to("/dev/zero"),
    "garbage": lambda path: path.write_bytes(b"no database" * 1000),
}


@pytest.mark.parametrize("spoil", SPOILED.values(), ids=SPOILED.keys())
def test_what_is_no_ledger_holds_nobody_up(
    clock: FakeClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spoil: Callable[[Path], object]
) -> None:
    """B8"""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    name = str(tmp_path / "state.sqlite")
    with OutageLedger(name).entry("host:a") as entry:
        entry.write(None, Host(requests=2))
    assert OutageLedger(name).keys() == ["host:a"]
    [place] = tmp_path.glob("curtsy-*/*.sqlite")
    for file in place.parent.iterdir():
        file.unlink()
    spoil(place)

    inner = Unsteady(clock)
    inner.is_out = True
    fallback = fallback_store(inner, state=FallbackState("unsteady:", ledger=OutageLedger(name)))

    assert [fallback.update("host:a", count) for _ in range(3)] == [1, 2, 3]
