"""What only Redis does: one round trip, guesses that are checked, the server's time, and the ways in which it fails."""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import os
import re
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from curtsy.core.admission import admit
from curtsy.core.decision import Go
from curtsy.core.errors import PolicyError, StoreError
from curtsy.core.host import Host, fresh
from curtsy.core.policy import UNLIMITED, Policy
from curtsy.core.setting import DAY
from curtsy.core.time import SECOND, Now
from curtsy.engine.gate_steps import charge
from curtsy.stores import BlockingStore
from curtsy.stores.cas import Attempt, CompareAndSwap, expiry
from curtsy.stores.generation import FORMAT_LASTS, Generation
from curtsy.stores.redis import AsyncRedisStore
from curtsy.stores.redis_server import Server
from curtsy.testing import FakeClock
from tests.stores.steps import Refusal, count, keep, own_words, stamp
from tests.support.bounds import ends_within
from tests.support.ending import ends_with_test
from tests.support.listening import listening
from tests.support.polling import block_until
from tests.support.redis_server import RedisServer, lives, redis_available
from tests.support.snapshot import Snapshot
from tests.support.stores import redis_store

ROOT = Path(__file__).parents[2]
SLOW = 10.0
"""Seconds of patience with a busy machine, where the test is not about patience."""


FREE = UNLIMITED.replace(max_requests_per_day=100)


@pytest.fixture
def store(server: RedisServer) -> Iterator[BlockingStore]:
    opened = redis_store(server.url, timeout=SLOW)
    yield opened
    opened.close()


GAP = SECOND // 4


def keep_apart(record: Host | None, now: Now) -> tuple[Host | None, bool]:
    """A gap between two departures; answers whether one may leave."""
    if record is not None and now.at - record.sent_at < GAP:
        return record, False
    return msgspec.structs.replace(record or Host(), sent_at=now.at), True


# One round trip.


def test_the_usual_update_is_one_round_trip_whether_it_writes_or_not(server: RedisServer, store: BlockingStore) -> None:
    """Design, section 3"""
    store.update("host:a", count)
    server.command("CONFIG RESETSTAT")

    for _ in range(10):
        store.update("host:a", count)
    for _ in range(10):
        store.update("host:a", keep)

    calls = server.calls()
    assert calls["evalsha"] == 20
    assert calls["set"] == 10  # what a script calls is counted too
    assert "eval" not in calls


def test_a_key_that_was_never_seen_is_one_round_trip_if_nothing_is_there(
    server: RedisServer, store: BlockingStore
) -> None:
    """Design, section 3"""
    store.now()
    server.command("CONFIG RESETSTAT")

    store.update("host:new", count)

    assert server.calls()["evalsha"] == 1


def test_many_updates_are_one_pipeline(server: RedisServer, store: BlockingStore) -> None:
    """Design, section 3"""
    store.now()
    before = server.command("INFO", "stats")["total_reads_processed"]

    store.update_many([(f"host:{number}", count) for number in range(50)])

    # The server reads a pipeline in one or two goes, and our own question in a few.
    assert server.command("INFO", "stats")["total_reads_processed"] - before < 15


async def test_what_tasks_ask_in_one_tick_is_one_pipeline(server: RedisServer) -> None:
    """Design, section 3"""
    store = AsyncRedisStore(server.url, timeout=SLOW)
    await store.now()
    before = server.command("INFO", "stats")["total_reads_processed"]

    await asyncio.gather(*(store.update(f"host:{number}", count) for number in range(50)))

    assert server.command("INFO", "stats")["total_reads_processed"] - before < 15
    await store.close()


# Guesses are checked.


def test_an_answer_that_changes_nothing_is_given_on_the_present_record(
    server: RedisServer, store: BlockingStore
) -> None:
    """B4: a refusal on what another process has changed since would be wrong."""
    store.update("host:a", count)
    with_another = redis_store(server.url, timeout=SLOW)
    for _ in range(4):
        with_another.update("host:a", count)

    assert store.update("host:a", keep) == 5
    with_another.forget("host:a")
    assert store.update("host:a", keep) == 0
    with_another.close()


def test_a_step_raises_only_over_the_present_record(server: RedisServer, store: BlockingStore) -> None:
    """B4"""

    def only_once(record: Host | None, now: Now) -> tuple[Host, None]:
        if record is not None:
            raise Refusal("there is one already")
        return Host(), None

    store.update("host:a", only_once)
    with_another = redis_store(server.url, timeout=SLOW)
    with_another.forget("host:a")

    store.update("host:a", only_once)

    with pytest.raises(Refusal):
        store.update("host:a", only_once)
    with_another.close()


def test_a_key_that_was_removed_and_made_again_is_not_taken_for_the_old_one(
    server: RedisServer, store: BlockingStore
) -> None:
    """B4: not even by a clock that stands still."""
    clock = FakeClock()
    one, other = (redis_store(server.url, clock=clock, timeout=SLOW) for _ in range(2))
    one.update("host:a", count)
    other.forget("host:a")
    other.update_many([("host:a", count), ("host:a", count)])

    assert one.update("host:a", count) == 3
    one.close()
    other.close()


def test_a_write_whose_reply_was_lost_is_not_made_twice(server: RedisServer) -> None:
    """B4: the connection breaks between the server's write and its reply."""
    with Cutting(server.port) as way:
        store = redis_store(f"redis://127.0.0.1:{way.port}/0", timeout=SLOW)
        store.update("host:a", count)
        way.cut_after_next_request()

        assert store.update("host:a", count) == 2

        assert way.cuts == 1
        assert store.read("host:a").requests == 2
        store.close()


class Cutting:
    """A way to the server that can break between a request and its reply."""

    def __init__(self, port: int) -> None:
        self._server = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.cuts = 0
        self._is_to_cut = False

    def __enter__(self) -> Cutting:
        self._accepting = threading.Thread(target=self._accept, daemon=True)
        self._accepting.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)  # closing it alone would leave the thread in `accept`
        self._accepting.join(60)
        self._listener.close()

    def cut_after_next_request(self) -> None:
        self._is_to_cut = True

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            far = socket.create_connection(("127.0.0.1", self._server))
            threading.Thread(target=self._carry, args=(near, far), daemon=True).start()

    def _carry(self, near: socket.socket, far: socket.socket) -> None:
        """Requests and replies take turns here, as one connection of a blocking client does."""
        with near, far:
            while request := near.recv(65536):
                far.sendall(request)
                reply = far.recv(65536)
                if self._is_to_cut:
                    self._is_to_cut = False
                    self.cuts += 1
                    return
                near.sendall(reply)


# Time.


def test_now_is_the_servers_time_and_never_ahead_of_it(server: RedisServer, store: BlockingStore) -> None:
    """Design, section 3: a step runs on a lower bound of the server's time."""
    for _ in range(20):
        before = _server_time(server)
        now = store.update("host:a", stamp)
        after = _server_time(server)

        assert now.at == now.epoch
        assert now.boot == 0
        assert before - 100_000 < now.at <= after


def test_a_step_that_was_held_up_on_its_way_runs_again_at_a_fresher_time(
    server: RedisServer, store: BlockingStore
) -> None:
    """P1: else the moment that is written down would lie before the real one, and the next gap would be short."""
    store.update("host:a", stamp)
    presents: list[int] = []

    def be_held_up(record: Host | None, now: Now) -> tuple[Host, None]:
        presents.append(now.at)
        if len(presents) == 1:
            block_until(lambda: _server_time(server) >= now.at + SECOND // 10)
        return stamp(record, now)[0], None

    store.update("host:a", be_held_up)

    assert len(presents) >= 2
    assert store.read("host:a").sent_at == presents[-1] >= presents[0] + SECOND // 10


def test_a_clock_set_back_neither_stops_nor_turns_the_time_of_a_key(server: RedisServer) -> None:
    """Store contract; B6"""
    clock = FakeClock()
    store, other = (redis_store(server.url, clock=clock, timeout=SLOW) for _ in range(2))
    first = store.update("host:a", stamp)
    clock.advance(10)
    looked: Now = store.update("host:a", lambda record, now: (record, now))

    clock.set_back(3600)
    back = store.update("host:a", lambda record, now: (record, now))
    clock.advance(5)
    later = other.update("host:a", lambda record, now: (record, now))
    latest = store.update("host:a", stamp)

    assert looked.at == first.at + 10 * SECOND
    assert back.at == looked.at
    assert later.at == latest.at == looked.at + 5 * SECOND
    assert latest.epoch == first.epoch - 3585 * SECOND
    store.close()
    other.close()


def test_time_of_a_missing_key_does_not_run_backwards_either(server: RedisServer) -> None:
    """Store contract"""
    clock = FakeClock()
    store = redis_store(server.url, clock=clock, timeout=SLOW)
    first: Now = store.update("host:a", lambda record, now: (record, now))
    clock.set_back(3600)

    second: Now = store.update("host:a", lambda record, now: (record, now))
    written = store.update("host:a", stamp)
    clock.advance(1)
    last = store.update("host:a", stamp)

    assert second.at == written.at == first.at
    assert last.at == first.at + SECOND
    store.close()


DAYS: dict[str, list[float]] = {
    "back and home": [0, -1, 0, 0],
    "back in two steps and home in two": [0, -1, -2, -1, 0],
    "ahead and home": [0, 1, 0, 1],
    "ahead in steps": [0, 1, 2, 3],
    "ahead after it was slewed": [0, 59 / DAY, 2, 4],
    "ahead a year and home": [0, 365, 0, 365],
    "to and fro": [0, 1, -1, 2, -2, 40, -40, 3, 0],
}


@pytest.mark.parametrize("is_restarted", [False, True])
@pytest.mark.parametrize("state", DAYS.values(), ids=DAYS.keys())
def test_no_history_of_the_servers_clock_opens_a_second_budget(
    server: RedisServer, state: list[float], is_restarted: bool
) -> None:
    """C19, by one process or by a new one each time"""
    clock, policy = FakeClock(), UNLIMITED.replace(max_requests_per_day=5)
    store, sent, off = redis_store(server.url, clock=clock, timeout=SLOW), 0, 0.0

    def request(record: Any, now: Now) -> tuple[Any, Any]:
        return admit(record, now, policy)

    for day in state:
        clock.set_back((off - day) * DAY)
        off = day
        if is_restarted:
            store.close()
            store = redis_store(server.url, clock=clock, timeout=SLOW)
        for _ in range(3):
            clock.advance(1)
            sent += isinstance(store.update("host:a", request), Go)

    assert sent == 5
    clock.advance(DAY)
    assert isinstance(store.update("host:a", request), Go)
    store.close()


_SKEWED = """
import json, sys, time
url, offset, until = sys.argv[1], float(sys.argv[2]), int(sys.argv[3])
real_time, real_time_ns = time.time, time.time_ns
# What a wrong clock does: everything that asks this machine for the time of day hears it.
time.time = lambda: real_time() + offset
time.time_ns = lambda: real_time_ns() + int(offset * 1e9)
from tests.stores.test_redis import keep_apart, redis_store, stamp

store = redis_store(url, timeout=10.0)
gone = []
while len(gone) < 2 and store.now().at < until:
    def step(record, now):
        changed, went = keep_apart(record, now)
        return changed, (went, now.at)
    went, at = store.update("host:a", step)
    if went:
        gone.append(at)
print(json.dumps([gone, store.update(f"host:{offset}", stamp).epoch]))
"""


def test_processes_whose_clocks_are_90_seconds_off_agree_on_the_servers(server: RedisServer) -> None:
    """F53; the clock of the process itself is shifted, for the machine's cannot be."""
    start = _server_time(server)
    processes = [
        ends_with_test(
            subprocess.Popen(
                [sys.executable, "-c", _SKEWED, server.url, offset, str(start + 20 * SECOND)],
                cwd=ROOT,
                stdout=subprocess.PIPE,
                text=True,
            )
        )
        for offset in ("90", "-90")
    ]

    said = [json.loads(process.communicate(timeout=120)[0]) for process in processes]

    end = _server_time(server)
    departures = sorted(at for gone, _ in said for at in gone)
    assert len(departures) >= 3
    assert all(late - early >= GAP for early, late in itertools.pairwise(departures))
    assert all(start <= epoch <= end for _, epoch in said)


def _server_time(server: RedisServer) -> int:
    seconds, microseconds = server.command("TIME")
    return int(seconds) * SECOND + int(microseconds)


# Failures.


async def test_a_server_that_hangs_is_an_error_for_all_tasks_within_the_timeout(server: RedisServer) -> None:
    """F55: also for those who wait for an update of the same key."""
    store = AsyncRedisStore(server.url, timeout=1.5)
    await store.update("host:a", count)
    server.pause()

    with ends_within(2.9):
        asked = [asyncio.ensure_future(store.update(key, count)) for key in ("host:a", "host:b")]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        asked += [asyncio.ensure_future(store.update("host:a", count)) for _ in range(5)]
        answers = await asyncio.gather(*asked, return_exceptions=True)

    assert all(isinstance(answer, StoreError) for answer in answers)
    server.resume()
    assert await store.update("host:b", count) == 1
    await store.close()


def test_a_write_that_was_given_up_is_not_made_later(server: RedisServer) -> None:
    """F55: the server finds it among its input when it wakes up, and refuses it for its age."""
    store = redis_store(server.url, timeout=1.5)
    store.update("host:a", count)
    server.command("CONFIG RESETSTAT")
    server.pause()

    with pytest.raises(StoreError):
        store.update("host:a", count)
    server.resume()

    calls = server.calls()
    assert calls["evalsha"] == 1  # it came
    assert "set" not in calls  # and was refused
    assert store.update("host:a", count) == 2
    store.close()


def test_a_server_that_is_gone_is_an_error_and_the_next_call_finds_it_again(server: RedisServer) -> None:
    """B8"""
    store = redis_store(server.url, timeout=5)
    store.update("host:a", count)

    server.stop()
    with pytest.raises(StoreError, match=rf"redis://127\.0\.0\.1:{server.port}/0"):
        store.update("host:a", count)

    server.start()
    assert store.update("host:a", count) == 1  # it kept nothing
    store.close()


def test_a_flush_in_the_middle_is_seen_once(server: RedisServer, store: BlockingStore) -> None:
    """Issue 2, point 5, B8: the store itself begins anew; who remembers what is the shelter's (see test_loss.py)"""
    keys = [f"host:{name}" for name in "abc"]
    store.update_many([(key, charge(Policy(), 0.0, page=True)) for key in keys])

    server.flush()

    for _ in range(2):
        assert [decision for decision, _ in store.update_many([(key, charge(FREE, 0.0, page=True)) for key in keys])]
    assert [store.read(key).days[0].requests for key in keys] == [2, 2, 2]
    assert len(store.inner.losses) == 1


def test_what_was_never_there_or_forgotten_by_us_is_no_loss(store: BlockingStore) -> None:
    """B8"""
    store.read("host:a")
    store.update("host:a", charge(FREE, 0.0, page=True))
    store.forget("host:a")
    store.update("host:a", charge(FREE, 0.0, page=True))

    assert store.inner.losses == []


@pytest.mark.parametrize(("weeks", "is_missed"), [(0, True), (1, False)])
def test_what_has_run_out_is_not_missed(weeks: int, is_missed: bool) -> None:
    """B8: the server drops a record that says nothing any more"""
    clock = FakeClock()
    swap = CompareAndSwap("curtsy:", clock, 1.0)
    attempt = Attempt("host:a", [lambda host, now: (fresh(now), None)])
    swap.marked(swap.marks.ask("", b"curtsy:mark{0}"), [b"name", 1, [], Host.current])
    swap.hear(attempt, [clock.now().epoch, None])  # which says only what time it is
    swap.ask(attempt)
    assert swap.hear(attempt, clock.now().epoch)
    assert not swap.marks.doubted([""])
    swap.ask(attempt)
    clock.advance(weeks * 7 * DAY)

    swap.hear(attempt, [clock.now().epoch + 1, None])

    assert bool(swap.marks.doubted([""])) == is_missed


@pytest.mark.parametrize("many", [False, True])
def test_a_script_that_the_server_has_lost_is_sent_again(server: RedisServer, store: BlockingStore, many: bool) -> None:
    """F59"""
    steps = [(f"host:{number}", count) for number in range(3 if many else 1)]
    store.update_many(steps)

    server.command("SCRIPT FLUSH")

    assert store.update_many(steps) == [2] * len(steps)


async def test_a_cancelled_update_that_was_not_sent_is_not_made(server: RedisServer) -> None:
    """L2"""
    store = AsyncRedisStore(server.url, timeout=SLOW)
    first = asyncio.ensure_future(store.update("host:a", count))
    second = asyncio.ensure_future(store.update("host:a", count))
    await asyncio.sleep(0)

    first.cancel()

    assert await second == 1
    assert (await store.read("host:a")).requests == 1
    await store.close()


def test_a_damaged_value_counts_as_none_and_is_replaced(
    server: RedisServer, store: BlockingStore, caplog: pytest.LogCaptureFixture, snapshot: Snapshot
) -> None:
    """U16"""
    values = [b"?", b"x" * 24, b"\xff" * 60, struct.pack(">8sdd", b"12345678", 1.0, 0.0) + b"\xc1"]
    for number, value in enumerate(values):
        server.command("SET", f"curtsy:{{host:{number}}}", value)

    with caplog.at_level(logging.WARNING, logger="curtsy"):
        answers = [store.update(f"host:{number}", count) for number in range(len(values))]

    assert answers == [1] * len(values)
    told = [record.message for record in caplog.records]
    assert len(told) == len(values)
    assert all(f"'host:{number}'" in message for number, message in enumerate(told))
    snapshot(told[0])
    assert [store.read(f"host:{number}").requests for number in range(len(values))] == [1] * len(values)


def test_a_record_of_a_later_version_is_refused_alone(server: RedisServer, store: BlockingStore) -> None:
    """Issue 2, point 5: and left as it is."""
    value = struct.pack(">8sdd", b"12345678", 1.0, 0.0) + msgspec.msgpack.encode(["host", 99, "new"])
    server.command("SET", "curtsy:{host:a}", value)

    with pytest.raises(StoreError, match="format 99"):
        store.update_many([("host:b", count), ("host:a", count)])
    with pytest.raises(StoreError, match="format 99"):
        store.read("host:a")

    assert store.read("host:b").requests == 1
    assert server.command("GET", "curtsy:{host:a}") == value


@pytest.mark.parametrize("is_first", [True, False])
def test_hosts_are_written_for_the_earliest_version_in_use(
    server: RedisServer, clock: FakeClock, is_first: bool
) -> None:
    """Issue 17: an upgrade of a fleet, machine by machine, refuses no host"""
    today, before = Host.current, Host.current - 1
    earlier, later = (redis_store(server.url, clock=clock, timeout=SLOW) for _ in range(2))
    _marks(earlier).host_format = before
    if not is_first:
        later.update("host:a", stamp)
    assert _format(server) == (0 if is_first else today)

    earlier.update("host:a", stamp)
    clock.advance(1.0)
    _marks(later).doubt_all()  # as each second
    later.update("host:a", stamp)
    assert _format(server) == before
    spent = later.read("host:a")

    clock.advance(FORMAT_LASTS - 2.0)
    _marks(later).doubt_all()
    later.update("host:a", stamp)
    assert _format(server) == before
    clock.advance(2.0)
    _marks(later).doubt_all()
    later.update("host:a", stamp)
    assert _format(server) == today
    assert later.read("host:a").replace(sent_at=0) == spent.replace(sent_at=0)
    earlier.close()
    later.close()


def _marks(store: BlockingStore) -> Generation:
    assert isinstance(store.inner, AsyncRedisStore)
    return store.inner._swap.marks


def _format(server: RedisServer) -> int:
    """Return the format of the host's record on the server; 0 without one."""
    value = server.command("GET", "curtsy:{host:a}")
    return int(msgspec.msgpack.decode(value[24:])[1]) if value else 0


def test_a_key_of_another_program_is_an_error_for_that_key_alone(server: RedisServer, store: BlockingStore) -> None:
    """Issue 2, point 5"""
    server.command("LPUSH", "curtsy:{host:a}", "not", "ours")

    with pytest.raises(StoreError, match="WRONGTYPE"):
        store.update_many([("host:a", count), ("host:b", count)])

    assert store.read("host:b").requests == 1


# Keys and expiry.


def test_stores_with_different_prefixes_do_not_meet(server: RedisServer, store: BlockingStore) -> None:
    """Issue 2, point 5"""
    other = redis_store(server.url, prefix="other:", timeout=SLOW)
    store.update("host:a", count)

    assert other.keys() == []
    assert other.update("host:a", count) == 1
    assert other.identity != store.identity
    other.close()


def test_a_record_expires_when_it_says_nothing_any_more(server: RedisServer, store: BlockingStore) -> None:
    """Design, section 3"""

    def write(record: Host | None, now: Now) -> tuple[Host, int | None]:
        host = fresh(now)
        return host, host.lasts(now)

    def pause(record: Host | None, now: Now) -> tuple[Host, int | None]:
        host = Host().replace(paused_until=-1)
        return host, host.lasts(now)

    lasts = store.update("host:a", write)
    assert lasts is not None
    assert lasts / 1000 - 60_000 < server.command("PTTL", "curtsy:{host:a}") <= lasts / 1000

    assert store.update("host:b", pause) is None
    assert server.command("PTTL", "curtsy:{host:b}") == -1


@pytest.mark.parametrize(("lasts", "px"), [(None, 0), (-1, 1000), (0, 1000), (1, 1000), (2_000_001, 2001)])
def test_an_expiry_is_never_nothing(lasts: int | None, px: int) -> None:
    """Design, section 3: never `PX 0`."""
    assert expiry(lasts) == px


def test_an_update_that_changes_nothing_leaves_the_expiry(server: RedisServer, store: BlockingStore) -> None:
    """Design, section 3"""
    store.update("host:a", stamp)
    server.command("PEXPIRE", "curtsy:{host:a}", 50_000)

    store.update("host:a", keep)

    assert 0 < server.command("PTTL", "curtsy:{host:a}") <= 50_000


# Processes and loops.

_FORKED = """
import os, sys
from tests.support.stores import redis_store
from tests.stores.steps import count
store = redis_store(sys.argv[1], timeout=10.0)
store.update("host:a", count)
child = os.fork()
for _ in range(50):
    store.update("host:a", count)
if child:
    os.waitpid(child, 0)
    print(store.read("host:a").requests)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_store_works_on_both_sides_of_a_fork(server: RedisServer) -> None:
    """Design, section 5"""
    done = subprocess.run(
        [sys.executable, "-c", _FORKED, server.url], cwd=ROOT, capture_output=True, text=True, timeout=120, check=True
    )

    assert done.stdout == "101\n"


def test_one_async_store_serves_several_event_loops(server: RedisServer) -> None:
    """Design, section 5"""
    store = AsyncRedisStore(server.url, timeout=SLOW)
    together = threading.Barrier(3)

    async def loop() -> None:
        for _ in range(20):
            await store.update("host:a", count)
        await asyncio.get_running_loop().run_in_executor(None, together.wait)
        await store.close()

    threads = [threading.Thread(target=lambda: asyncio.run(loop())) for _ in range(3)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()

    with_another = redis_store(server.url, timeout=SLOW)
    assert with_another.read("host:a").requests == 60
    with_another.close()


# The server is judged.


@pytest.mark.parametrize("policy", ["allkeys-lru", "volatile-ttl"])
def test_a_server_that_may_forget_is_refused(policy: str, snapshot: Snapshot) -> None:
    """Design, section 3"""
    if reason := redis_available():
        pytest.skip(reason)
    with RedisServer("--maxmemory", "50mb", "--maxmemory-policy", policy) as server:
        store = redis_store(server.url, timeout=SLOW)

        with pytest.raises(PolicyError, match=f"maxmemory-policy {policy}.*noeviction") as caught:
            store.now()

    snapshot(str(caught.value))


@pytest.mark.parametrize(
    "options", [("--maxmemory-policy", "allkeys-lru"), ("--maxmemory", "50mb", "--maxmemory-policy", "noeviction")]
)
def test_a_server_that_forgets_nothing_is_taken(options: tuple[str, ...]) -> None:
    """Design, section 3: a policy without a limit never evicts."""
    if reason := redis_available():
        pytest.skip(reason)
    with RedisServer(*options) as server:
        store = redis_store(server.url, timeout=SLOW)

        store.now()

        assert store.update("host:a", count) == 1
        store.close()


def test_a_server_that_is_full_is_an_error_that_says_so(snapshot: Snapshot) -> None:
    """B8"""
    if reason := redis_available():
        pytest.skip(reason)
    with RedisServer("--maxmemory", "1", "--maxmemory-policy", "noeviction") as server:
        store = redis_store(server.url, timeout=SLOW)

        with pytest.raises(StoreError, match=re.escape(server.url)) as caught:
            store.update("host:a", count)
        store.close()

    assert "maxmemory" in own_words(caught.value)
    snapshot(own_words(caught.value))


@pytest.mark.parametrize(("version", "is_taken"), [("6.2.14", False), ("7.0.0", True), ("7.2.4", True), ("10.1", True)])
def test_a_server_older_than_7_is_refused(version: str, is_taken: bool, snapshot: Snapshot) -> None:
    """Design, section 3"""
    server = Server("redis://127.0.0.1", None, "curtsy:", 1)
    info = {"redis_version": version, "maxmemory": 0, "maxmemory_policy": "noeviction"}

    if is_taken:
        server.check(info)
    else:
        with pytest.raises(PolicyError, match=r"6\.2\.14.*7\.0") as caught:
            server.check({"127.0.0.1:7000": info})
        snapshot(str(caught.value))


def test_a_server_that_does_not_show_its_settings_is_taken(server: RedisServer) -> None:
    """Issue 2, point 5: managed servers forbid INFO and CONFIG."""
    server.command("ACL SETUSER", "alice", "on", ">open-sesame", "~*", "+@all", "-info", "-config")
    store = redis_store(f"redis://alice:open-sesame@127.0.0.1:{server.port}/0", timeout=SLOW)

    assert store.update("host:a", count) == 1
    store.close()


def test_a_user_that_may_use_only_our_keys_will_do_and_one_that_may_not_is_told(
    server: RedisServer, snapshot: Snapshot
) -> None:
    """Conventions: errors say what, why and what to do."""
    for name, keys in (("alice", "~curtsy:*"), ("bob", "~other:*")):
        server.command("ACL SETUSER", name, "on", ">open-sesame", keys, "+@all", "-@dangerous")
    alice, bob = (
        redis_store(f"redis://{name}:open-sesame@127.0.0.1:{server.port}/0", timeout=SLOW) for name in ("alice", "bob")
    )

    assert alice.update("host:a", count) == 1
    with pytest.raises(StoreError, match=r"~curtsy:\*") as caught:
        bob.update("host:a", count)
    snapshot(own_words(caught.value))

    alice.close()
    bob.close()


async def test_a_database_that_the_server_does_not_have_is_an_error_of_the_url(
    server: RedisServer, snapshot: Snapshot
) -> None:
    """F62: no outage, because another attempt would fail too"""
    url = f"redis://127.0.0.1:{server.port}/99"
    store, async_store = redis_store(url, timeout=SLOW), AsyncRedisStore(url, timeout=SLOW)

    with pytest.raises(PolicyError) as blocking:
        store.update("host:a", count)
    with pytest.raises(PolicyError) as waited:
        await async_store.update("host:a", count)

    assert own_words(waited.value) == own_words(blocking.value)
    snapshot(own_words(blocking.value))
    store.close()
    await async_store.close()


async def test_a_web_server_in_place_of_a_redis_server_is_an_error_of_the_url(snapshot: Snapshot) -> None:
    """F62"""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.read(1 << 16):
            writer.write(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")

    async with listening(talk) as port:
        store = AsyncRedisStore(f"redis://127.0.0.1:{port}/0", timeout=SLOW)
        with pytest.raises(PolicyError) as caught:
            await store.update("host:a", count)
        await store.close()

    snapshot(own_words(caught.value))


async def test_a_wrong_password_is_an_error_that_does_not_show_it(server: RedisServer, snapshot: Snapshot) -> None:
    """F62"""
    server.command("CONFIG SET", "requirepass", "open-sesame")
    url = f"redis://:wrong-sesame@127.0.0.1:{server.port}/0"
    store, async_store = redis_store(url, timeout=SLOW), AsyncRedisStore(url, timeout=SLOW)

    with pytest.raises(PolicyError) as blocking:
        store.update("host:a", count)
    with pytest.raises(PolicyError) as waited:
        await async_store.update("host:a", count)

    assert own_words(waited.value) == own_words(blocking.value)
    snapshot(own_words(blocking.value))

    shown = f"{blocking.value!r} {waited.value!r} {store.identity} {async_store.identity} {store!r}"
    assert "sesame" not in shown
    store.close()
    await async_store.close()


# The servers of these tests.

_LEFT_ALONE = """
import sys, time
from tests.support.redis_server import RedisServer
with RedisServer() as server:
    print(server.pid, flush=True)
    sys.stdin.readline()
"""


def test_a_server_goes_with_the_process_that_started_it() -> None:
    """Habits: a killed test leaves nothing running."""
    if reason := redis_available():
        pytest.skip(reason)
    process = ends_with_test(
        subprocess.Popen(
            [sys.executable, "-c", _LEFT_ALONE], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
    )
    assert process.stdout is not None
    pid = int(process.stdout.readline())
    os.kill(pid, 0)

    process.kill()
    process.communicate()

    block_until(lambda: not lives(pid))
