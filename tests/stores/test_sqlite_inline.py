"""Updates of a SQLite file in the caller's own thread: when they are made there, and when not."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import multiprocessing
import os
import sqlite3
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from curtsy.core.host import Host
from curtsy.core.outcome import Kind, Outcome
from curtsy.core.policy import UNLIMITED
from curtsy.core.time import Now
from curtsy.engine.gate import Gate, Ticket
from curtsy.engine.gate_steps import Request
from curtsy.stores import NOT_NOW, AsyncStore, Proposal, Step
from curtsy.stores.codec import unpack
from curtsy.stores.fallback import AsyncFallbackStore
from curtsy.stores.sqlite import AsyncSQLiteStore
from curtsy.stores.sqlite_inline import SLOW
from tests.stores.places import InFile
from tests.stores.steps import Refusal, count, keep, remove
from tests.stores.worker import Worker, run
from tests.support.polling import until

PATIENCE = 30.0
"""Seconds that only the writer thread may wait for another program."""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state.sqlite"


@pytest.fixture
async def store(path: Path) -> AsyncIterator[AsyncSQLiteStore]:
    """A store whose file is open, with a count of 1 under `a`."""
    store = AsyncSQLiteStore(path, patience=PATIENCE)
    await store.update("a", count)
    yield store
    await store.close()


async def inline(store: AsyncStore, key: str, step: Step[Any]) -> Any:
    """Try until it is done in this thread.

    On a busy machine, a thread that waited looks like a slow disk. Work that is due, such as a sweep, is the writer
    thread's: an update of another key lets it run.
    """
    answers: list[Any] = []

    async def try_once() -> bool:
        answers.append(store.update_now(key, step))
        if answers[-1] is NOT_NOW:
            await store.update("due", lambda record, now: (record, None))
        return answers[-1] is not NOT_NOW

    await until(try_once, every=0.001)
    return answers[-1]


def where(record: Host | None, now: Now) -> tuple[Host, int]:
    """Count, and answer the thread that does it."""
    return count(record, now)[0], threading.get_ident()


async def test_a_free_file_is_written_in_the_callers_thread(store: AsyncSQLiteStore, path: Path) -> None:
    """Q1: the way to the writer thread and back takes longer than the update. The file has it at once."""
    assert await inline(store, "a", where) == threading.get_ident()
    assert await inline(store, "new", count) == 1
    assert await inline(store, "a", keep) == 2
    assert await inline(store, "new", remove)

    other = sqlite3.connect(path)
    assert other.execute("SELECT count(*) FROM records WHERE key IN (?, ?)", (b"a", b"new")).fetchone() == (1,)
    other.close()


async def test_the_first_update_opens_the_file_in_the_writer_thread(path: Path) -> None:
    """Q1: that waits for the disk."""
    store = AsyncSQLiteStore(path)

    assert store.update_now("a", count) is NOT_NOW
    assert await store.update("a", where) != threading.get_ident()
    assert await inline(store, "a", count) == 2
    await store.close()
    assert store.update_now("a", count) is NOT_NOW


async def test_a_request_passes_the_gate_without_a_pause(store: AsyncSQLiteStore) -> None:
    """Q1: admission and settlement never give the event loop away, with the fallback neither."""
    wrapped = AsyncFallbackStore(store)
    gate = Gate(wrapped)

    def is_passed_at_once() -> bool:
        coroutine = enter_and_settle()
        try:
            coroutine.send(None)
        except StopIteration:
            return True
        coroutine.close()
        return False

    async def enter_and_settle() -> None:
        ticket = await gate.enter(Request("host:a", UNLIMITED))
        assert isinstance(ticket, Ticket)
        await gate.settle(ticket, Outcome(Kind.ANSWERED, 200))

    await until(is_passed_at_once, every=0.001)
    assert (await wrapped.read("host:a")).requests >= 1


async def test_a_lock_of_another_process_is_not_waited_for(store: AsyncSQLiteStore, path: Path) -> None:
    """Design 3: the event loop never waits for the lock."""
    with open(f"{path}.lock") as side_file:  # noqa: ASYNC230
        fcntl.flock(side_file, fcntl.LOCK_EX)
        assert store.update_now("a", count) is NOT_NOW
        waiting = asyncio.create_task(store.update("a", where))
        await asyncio.sleep(0)
        assert not waiting.done()

    assert await waiting != threading.get_ident()
    assert await inline(store, "a", count) == 3


async def test_a_lock_of_another_program_is_not_waited_for(store: AsyncSQLiteStore, path: Path) -> None:
    """Design 3: SQLite itself would wait for as long as the writer thread may."""
    await inline(store, "a", count)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")

    began = time.monotonic()
    assert store.update_now("a", count) is NOT_NOW
    assert store.update_now("new", count) is NOT_NOW
    assert time.monotonic() - began < PATIENCE / 2
    waiting = asyncio.create_task(store.update("a", count))
    await until(lambda: time.monotonic() - began > 0.1)
    other.execute("ROLLBACK")

    assert await waiting == 3, "the writer thread is still patient"
    other.close()


async def test_no_update_overtakes_one_that_waits(store: AsyncSQLiteStore) -> None:
    """B5: first come, first served among the callers of a process."""
    inside, go = threading.Event(), threading.Event()

    def slow(record: Host | None, now: Now) -> tuple[Host, int]:
        inside.set()
        go.wait(60)
        return count(record, now)

    first = asyncio.create_task(store.update("b", slow))
    await asyncio.to_thread(inside.wait, 10)
    second = asyncio.create_task(store.update("a", count))
    await asyncio.sleep(0)
    assert store.update_now("a", count) is NOT_NOW
    go.set()

    assert (await first, await second) == (1, 2)
    assert await inline(store, "a", count) == 3


async def test_after_a_slow_update_the_writer_thread_is_used(store: AsyncSQLiteStore) -> None:
    """Q1: a slow disk must not stop the event loop again and again. It is tried again after a while."""

    def slow(record: Host | None, now: Now) -> tuple[Host, float]:
        ends = time.monotonic() + 2 * SLOW
        while time.monotonic() < ends:
            pass
        return count(record, now)[0], ends

    while True:
        ended = await inline(store, "a", slow)
        answer = store.update_now("a", count)
        if time.monotonic() - ended < SLOW:  # else this process stood still in between
            break
    assert answer is NOT_NOW
    assert await store.update("a", where) != threading.get_ident()
    assert await inline(store, "a", where) == threading.get_ident()


async def test_checkpoints_are_left_to_the_writer_thread(store: AsyncSQLiteStore, path: Path) -> None:
    """Q1: they wait for the disk. Without them the log would grow without end."""

    def begun() -> bytes:
        with open(f"{path}-wal", "rb") as log:  # the number of its beginnings (fileformat2.html, 4.1)
            return log.read(16)[12:]

    async def is_begun_again() -> bool:
        await store.update("a", count)
        return begun() != before

    before = begun()
    for _ in range(900):
        await inline(store, "a", count)
    assert begun() == before

    await until(is_begun_again)
    assert (await store.read("a")).requests > 900


async def test_a_record_that_another_process_has_changed_is_read_again(store: AsyncSQLiteStore, path: Path) -> None:
    """F38: what is remembered of it is old then, whatever the step makes of it."""
    place = InFile(str(path))

    def at_least(least: int) -> Step[int]:
        def step(record: Host | None, now: Now) -> tuple[Host | None, int]:
            if record is None or record.requests < least:
                raise Refusal(str(record))
            return record, record.requests

        return step

    await inline(store, "host:one", count)
    run([Worker("one", 4, place)])
    assert await inline(store, "host:one", count) == 6
    run([Worker("one", 4, place)])
    assert await inline(store, "host:one", keep) == 10
    await inline(store, "host:one", count)
    run([Worker("one", 4, place)])
    assert await inline(store, "host:one", at_least(15)) == 15
    with pytest.raises(Refusal):
        await inline(store, "host:one", at_least(16))


async def test_what_was_written_in_the_callers_thread_is_put_into_a_fresh_file(path: Path) -> None:
    """B8: the fallback remembers it, as it does what the writer thread has written."""
    store = AsyncFallbackStore(AsyncSQLiteStore(path))
    await store.update("host:a", count)
    assert await inline(store, "host:a", count) == 2
    for suffix in ("-wal", "-shm", ""):
        os.unlink(f"{path}{suffix}")

    assert store.update_now("host:a", count) is NOT_NOW
    assert await store.update("host:a", count) == 3
    await store.close()


def requests_in(path: Path, key: str) -> int:
    """Return what another process finds in the file, without a look into the memory of this one."""
    with contextlib.closing(sqlite3.connect(path)) as other:
        [data] = other.execute("SELECT data FROM records WHERE key = ?", (key.encode(),)).fetchone()
    host = unpack(data)
    assert isinstance(host, Host)
    return host.requests


@pytest.mark.parametrize("by", ["update", "update_now", "read", "close", "nobody"])
async def test_a_change_that_may_be_written_soon_is(store: AsyncSQLiteStore, path: Path, by: str) -> None:
    """F38: this process knows it at once; the file has it with the next write, or after some milliseconds."""
    await store.update("b", count)
    before = await inline(store, "a", count)
    while (answer := store.update_soon("a", count)) is NOT_NOW:
        before = await store.update("a", count)

    assert answer == before + 1
    match by:
        case "update":
            await store.update("b", count)
        case "update_now":
            await inline(store, "b", count)
        case "read":
            assert (await store.read("a")).requests == before + 1
        case "close":
            await store.close()
        case _:
            await until(lambda: requests_in(path, "a") == before + 1)
    assert requests_in(path, "a") == before + 1


async def test_a_pending_change_is_made_on_the_record_of_another_process(store: AsyncSQLiteStore, path: Path) -> None:
    """F42: nothing of it is lost, and nothing that the other one wrote."""
    place = InFile(str(path))
    await inline(store, "host:one", count)
    while store.update_soon("host:one", count) is NOT_NOW:
        await store.update("host:one", count)
    before = (await store.read("host:one")).requests
    await inline(store, "host:one", keep)
    [proposed] = await proposals(store, "host:one")
    assert store.update_soon("host:one", count) is not NOT_NOW

    run([Worker("one", 4, place)])

    assert not store.confirm(proposed), "its caller saw the older record"
    assert (await store.read("host:one")).requests == before + 5


async def proposals(store: AsyncStore, *keys: str) -> list[Proposal]:
    """Propose to count, as soon as the records are known and no proposal was void shortly before."""
    found: list[Proposal] = []

    async def are_proposed() -> bool:
        found.clear()
        for key in keys:
            await inline(store, key, lambda host, now: (replace(host or Host(), sent_at=now.at), True))
        found.extend(each[1] for key in keys if (each := store.propose(key, count)) is not NOT_NOW)
        for proposal in found if len(found) < len(keys) else ():
            proposal.is_void = True
        return len(found) == len(keys)

    await until(are_proposed, every=0.001)
    return found


async def test_proposals_are_written_together_and_only_when_confirmed(store: AsyncSQLiteStore, path: Path) -> None:
    """F38: the charge of a request is in the file before it leaves. A proposal that is taken back never is."""
    keys = ("b", "c", "d")
    proposed = await proposals(store, *keys)
    proposed[2].is_void = True
    assert [requests_in(path, key) for key in keys] == [0, 0, 0]

    assert [store.confirm(each) for each in proposed] == [True, True, False]
    assert [requests_in(path, key) for key in keys] == [1, 1, 0]


async def test_a_proposal_is_void_if_the_lock_is_not_free(store: AsyncSQLiteStore, path: Path) -> None:
    """Design 3: the event loop does not wait for it. A settlement that is pending with it is still written."""
    before = await inline(store, "a", count)
    [proposed] = await proposals(store, "a")
    assert store.update_soon("a", count) == before + 2
    with open(f"{path}.lock") as side_file:  # noqa: ASYNC230
        fcntl.flock(side_file, fcntl.LOCK_EX)
        assert not store.confirm(proposed)

    assert store.propose("a", count) is NOT_NOW, "the next one is charged at once"
    assert (await store.read("a")).requests == before + 1


async def test_a_record_that_the_writer_thread_wrote_can_be_proposed_for_at_once(store: AsyncSQLiteStore) -> None:
    """Design 3: else each update that had to wait costs the next one a transaction of its own."""
    await store.update("a", count)

    assert store.propose("a", count) is not NOT_NOW


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
async def test_a_forked_child_leaves_pending_changes_to_its_parent(store: AsyncSQLiteStore, path: Path) -> None:
    """F42: written twice, a settlement would count twice."""
    before = await inline(store, "a", count)
    while store.update_soon("a", count) is NOT_NOW:
        before = await store.update("a", count)

    def child() -> None:
        asyncio.run(store.update("b", count))

    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    await asyncio.to_thread(process.join)

    assert process.exitcode == 0
    assert (await store.read("a")).requests == before + 1


def test_loops_and_threads_share_a_file(path: Path) -> None:
    """L9: each in its own thread, on the same key."""
    store = AsyncSQLiteStore(path)

    async def counted() -> None:
        for _ in range(200):
            if store.update_now("a", count) is NOT_NOW:
                await store.update("a", count)

    threads = [threading.Thread(target=lambda: asyncio.run(counted())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert asyncio.run(store.update("a", keep)) == 800
    asyncio.run(store.close())
