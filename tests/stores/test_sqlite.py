"""What only the SQLite store does: one file, one writer a process, formats, retention."""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import re
import sqlite3
import stat
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pytest

from curtsy.core.errors import PolicyError, StoreError
from curtsy.core.host import Host, fresh
from curtsy.core.record import Record
from curtsy.core.time import SECOND, Now
from curtsy.stores.sqlite import AsyncSQLiteStore
from curtsy.stores.sqlite_file import Format
from curtsy.stores.sqlite_records import FORMAT, RecordFile
from curtsy.testing import FakeClock
from tests.stores.steps import Refusal, count, keep, refuse, stamp
from tests.stores.worker import ROOT
from tests.support.polling import until
from tests.support.snapshot import Snapshot
from tests.support.stores import sqlite_store


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state.sqlite"


def foreign(path: Path) -> sqlite3.Connection:
    """A connection as any other program has it."""
    return sqlite3.connect(path, isolation_level=None)


def later_format(statement: str) -> Format:
    return FORMAT._replace(schema=(*FORMAT.schema, statement))


def test_directory_and_file_are_made_and_are_the_users_own(tmp_path: Path) -> None:
    """B7: what we ask for is nobody else's business."""
    store = sqlite_store(tmp_path / "new" / "deep" / "state.sqlite")
    store.update("a", count)

    deep = tmp_path / "new" / "deep"
    assert stat.S_IMODE(deep.stat().st_mode) == 0o700
    assert {each.name: stat.S_IMODE(each.stat().st_mode) for each in deep.iterdir()} == {
        "state.sqlite": 0o600,
        "state.sqlite-wal": 0o600,
        "state.sqlite-shm": 0o600,
        "state.sqlite.lock": 0o600,
    }
    store.close()


def test_making_a_store_touches_nothing(path: Path) -> None:
    """B8: what cannot be opened shows at the first use, where it can be borne."""
    sqlite_store(path).close()

    assert list(path.parent.iterdir()) == []


async def test_all_stores_of_a_file_share_one_thread_and_one_identity(path: Path) -> None:
    """L9: however the file is named."""
    before = set(threading.enumerate())  # of other tests; they may end meanwhile
    link = path.parent / "link.sqlite"
    link.symlink_to(path)
    stores = [sqlite_store(path), sqlite_store(str(link)), sqlite_store(path.parent / "x" / ".." / path.name)]
    tasks = AsyncSQLiteStore(path)
    for store in stores:
        store.update("a", count)

    assert await tasks.update("a", count) == 4
    assert {store.identity for store in stores} == {tasks.identity}
    assert [thread.name for thread in set(threading.enumerate()) - before].count("curtsy-sqlite") == 1
    for store in stores:
        store.close()
    assert await tasks.update("a", count) == 5
    await tasks.close()
    assert "curtsy-sqlite" not in [thread.name for thread in set(threading.enumerate()) - before]


def test_a_step_that_changes_nothing_writes_nothing(path: Path) -> None:
    """B4: a refusal changes nothing, on the disk neither."""
    store = sqlite_store(path)
    store.update("a", count)
    watcher = foreign(path)
    before = watcher.execute("PRAGMA data_version").fetchone()

    store.update_many([("a", keep), ("b", keep), ("a", keep)])

    assert watcher.execute("PRAGMA data_version").fetchone() == before
    store.update("a", count)
    assert watcher.execute("PRAGMA data_version").fetchone() != before
    watcher.close()
    store.close()


def test_of_steps_in_one_transaction_those_that_fail_leave_the_others_alone(path: Path) -> None:
    """B4: whether they raise, or make what is no record."""
    store = sqlite_store(path)

    def spoil(record: Host | None, now: Now) -> tuple[Any, None]:
        return "no record", None

    def quit_(record: Host | None, now: Now) -> tuple[Host, None]:
        raise SystemExit(3)

    def once(step: Any) -> Any:
        try:
            return store.update("a", step)
        except BaseException as error:
            return type(error)

    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(once, [count, refuse, spoil, quit_] * 25))

    assert sorted(answers[::4]) == list(range(1, 26))
    assert answers[1::4] + answers[2::4] + answers[3::4] == [Refusal] * 25 + [TypeError] * 25 + [SystemExit] * 25
    store.close()


def test_what_was_answered_is_in_the_file_for_others_to_see(path: Path) -> None:
    """B7: at once, not at close()."""
    store = sqlite_store(path)
    for number in range(1, 4):
        store.update("a", count)
        other = foreign(path)
        [[data]] = other.execute("SELECT data FROM records")
        other.close()
        assert msgspec.msgpack.decode(data, type=Host).requests == number
    store.close()


def test_closing_leaves_one_whole_file(path: Path) -> None:
    """B7: which can be copied."""
    store = sqlite_store(path)
    store.update("a", count)
    store.close()

    assert sorted(each.name for each in path.parent.iterdir()) == ["state.sqlite", "state.sqlite.lock"]


def test_closing_waits_for_those_who_wait_already(path: Path) -> None:
    """B7"""
    store = sqlite_store(path)
    inside, go = threading.Event(), threading.Event()

    def slow(record: Host | None, now: Now) -> tuple[Host | None, int]:
        inside.set()
        go.wait(60)
        return record, 1

    with ThreadPoolExecutor(3) as pool:
        first = pool.submit(store.update, "a", slow)
        assert inside.wait(60)
        second = pool.submit(sqlite_store(path).update, "a", count)
        closing = pool.submit(store.close)
        go.set()
        assert (first.result(60), second.result(60), closing.result(60)) == (1, 1, None)


async def test_a_cancelled_task_has_done_its_step_or_never_will(path: Path) -> None:
    """B5, L2"""
    store = AsyncSQLiteStore(path)
    inside, go = threading.Event(), threading.Event()

    def slow(record: Host | None, now: Now) -> tuple[Host, int]:
        inside.set()
        go.wait(60)
        return count(record, now)

    under_way = asyncio.create_task(store.update("a", slow))
    await asyncio.to_thread(inside.wait, 10)
    in_line = asyncio.create_task(store.update("b", count))
    await asyncio.sleep(0)
    for task in (under_way, in_line):
        task.cancel()
    await asyncio.gather(under_way, in_line, return_exceptions=True)
    go.set()

    assert await store.update_many([("a", keep), ("b", keep)]) == [1, 0]
    await store.close()


async def test_the_event_loop_runs_on_while_the_file_is_busy(path: Path) -> None:
    """Design 3: the event loop never waits for the lock."""
    store = AsyncSQLiteStore(path)
    await store.update("a", count)
    holder = foreign(path)
    holder.execute("BEGIN IMMEDIATE")

    waiting = asyncio.create_task(store.update("a", count))
    turns = itertools.count()
    await until(lambda: next(turns) >= 100, every=0.001)
    assert not waiting.done()
    assert (await store.read("a")).requests == 1, "reading needs no lock"
    holder.execute("ROLLBACK")

    assert await waiting == 2
    holder.close()
    await store.close()


def test_one_file_in_several_event_loops(path: Path) -> None:
    """L9: a notebook runs one after the other."""

    async def once() -> int:
        return await store.update("a", count)

    store = AsyncSQLiteStore(path)
    assert [asyncio.run(once()) for _ in range(3)] == [1, 2, 3]
    asyncio.run(store.close())


@pytest.mark.parametrize("how", ["store.update('a', count)", "asyncio.run(tasks.update('a', count))", "submit()"])
def test_a_program_that_ends_without_closing_ends_at_once_and_loses_nothing(path: Path, how: str) -> None:
    """B7, U17"""
    script = f"""
import asyncio, sys, threading
from curtsy.stores.sqlite import AsyncSQLiteStore
from tests.support.stores import sqlite_store
from tests.stores.steps import count

store, tasks = sqlite_store({str(path)!r}), AsyncSQLiteStore({str(path)!r})

def submit():
    store.update("a", count)
    for _ in range(50):  # these still wait when the program ends
        threading.Thread(target=store.update, args=("b", count), daemon=True).start()

{how}
"""
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=60)

    assert (done.returncode, done.stderr) == (0, "")
    store = sqlite_store(path)
    assert store.update("a", count) == 2
    store.close()


def test_after_a_reboot_steps_see_the_new_run_of_the_clock_and_the_old_record(path: Path) -> None:
    """B7: pace is by a clock that starts anew; the record says which run it means."""
    clock = FakeClock(at=5_000.0)
    store = sqlite_store(path, clock=clock)
    before = store.update("a", stamp)
    store.close()

    clock.reboot(down=60.0)
    store = sqlite_store(path, clock=clock)
    seen, after = store.update("a", lambda record, now: (record, (record, now)))

    assert (seen.sent_at, seen.boot) == (before.at, before.boot) == (5_000 * SECOND, 1)
    assert (after.at, after.boot, after.epoch - before.epoch) == (SECOND, 2, 60 * SECOND)
    store.close()


def test_processes_share_the_machines_clock(path: Path) -> None:
    """B7: what one process wrote, another can reckon with."""
    script = """
import sys
from tests.support.stores import sqlite_store
from tests.stores.steps import stamp
now = sqlite_store(sys.argv[1]).update("a", stamp)
print(now.at, now.boot)
"""
    store = sqlite_store(path)
    before = store.update("a", stamp)
    done = subprocess.run([sys.executable, "-c", script, path], cwd=ROOT, capture_output=True, text=True, check=True)
    after = store.update("a", stamp)
    at, boot = map(int, done.stdout.split())

    assert before.at < at < after.at
    assert before.boot == boot == after.boot
    store.close()


def test_records_that_say_nothing_any_more_are_swept_away(path: Path) -> None:
    """L10: a broad crawl does not grow the file for ever."""
    clock = FakeClock()
    store = sqlite_store(path, clock=clock)
    store.update_many([(f"host:{number}", lambda record, now: (fresh(now), None)) for number in range(50)])
    store.update("paused", lambda record, now: (Host().replace(paused_until=-1), None))
    store.close()

    clock.advance(10 * 86_400)
    store = sqlite_store(path, clock=clock)
    store.update("host:new", count)
    store.update("host:new", count)

    assert store.keys() == ["host:new", "paused"]
    store.close()


def test_a_clock_that_is_set_ahead_makes_the_store_forget_nothing(path: Path) -> None:
    """B6, C19: what a sweep by the calendar would drop is spent still when the clock is put right"""
    clock = FakeClock()
    store = sqlite_store(path, clock=clock)
    store.update_many([(f"host:{number}", lambda record, now: (fresh(now), None)) for number in range(250)])
    store.close()

    clock.set_back(-400 * 86_400)
    for _ in range(3):  # each sweeps a part
        store = sqlite_store(path, clock=clock)
        store.update("host:new", count)
        store.close()
    clock.set_back(400 * 86_400)
    store = sqlite_store(path, clock=clock)

    assert len(store.keys()) == 251
    store.close()


def test_a_record_in_use_keeps_its_place_however_old_it_is(path: Path) -> None:
    """B6"""
    clock = FakeClock()
    for day in range(1, 12):
        store = sqlite_store(path, clock=clock)
        assert store.update("host:a", count) == day
        store.close()
        clock.advance(86_400)


def test_a_damaged_record_counts_as_absent_and_the_others_stand(
    path: Path, caplog: pytest.LogCaptureFixture, snapshot: Snapshot
) -> None:
    """U16: a flipped bit in a counter would look like any other number."""
    store = sqlite_store(path)
    store.update_many([("a", count), ("b", count), ("c", count)])
    other = foreign(path)
    other.execute("UPDATE records SET data = replace(data, x'01', x'02') WHERE key = CAST('b' AS BLOB)")
    other.execute("UPDATE records SET data = 'text' WHERE key = CAST('c' AS BLOB)")
    other.close()

    with caplog.at_level(logging.WARNING, logger="curtsy"):
        assert store.update_many([("a", count), ("b", count), ("c", count)]) == [2, 1, 1]
    assert [record.levelname for record in caplog.records] == ["WARNING", "WARNING"]
    told = [record.getMessage() for record in caplog.records]
    assert [(str(path) in line, f"'{key}'" in line) for key, line in zip("bc", told, strict=True)] == [(True, True)] * 2
    snapshot(told[0])
    assert store.read("b") == Host(requests=1)
    store.close()


def test_a_record_of_a_later_curtsy_is_refused_and_left_alone(path: Path) -> None:
    """U16"""
    store = sqlite_store(path)
    store.update("a", lambda record, now: (Host(format=99), None))
    store.close()
    store = sqlite_store(path)

    for use in (lambda: store.update("a", count), lambda: store.read("a")):
        with pytest.raises(StoreError, match="format 99"):
            use()
    assert store.update("b", count) == 1
    assert store.keys() == ["a", "b"]
    store.close()


def test_a_file_of_an_older_format_is_migrated(path: Path) -> None:
    """U16: nothing is forgotten by an upgrade."""
    store = sqlite_store(path)
    store.update("a", count)
    store.close()
    later = RecordFile(str(path), patience=1.0, format=later_format("ALTER TABLE records ADD COLUMN note TEXT"))
    seen: list[Record | None] = []

    later.transact(lambda draft: seen.append(draft.load("a")))

    assert seen == [Host(requests=1)]
    later.close()
    other = foreign(path)
    assert other.execute("PRAGMA user_version").fetchone() == (len(FORMAT.schema) + 1,)
    other.close()


def test_a_file_of_a_later_format_is_refused_and_left_alone(path: Path, snapshot: Snapshot) -> None:
    """U16"""
    later = RecordFile(str(path), patience=1.0, format=later_format("CREATE TABLE more (key BLOB)"))
    later.transact(lambda draft: None)
    later.close()
    before = path.read_bytes()
    store = sqlite_store(path)

    for use in (lambda: store.update("a", count), store.keys):
        with pytest.raises(PolicyError, match=rf"format {len(FORMAT.schema) + 1}.* {len(FORMAT.schema)}") as caught:
            use()
    snapshot(str(caught.value))
    store.close()
    assert path.read_bytes() == before


def test_a_database_of_another_program_is_refused_and_left_alone(path: Path, snapshot: Snapshot) -> None:
    """U16"""
    other = foreign(path)
    other.execute("CREATE TABLE letters (text)")
    other.close()
    before = path.read_bytes()
    store = sqlite_store(path)

    with pytest.raises(PolicyError, match=re.escape(str(path))) as caught:
        store.update("a", count)
    snapshot(str(caught.value))
    store.close()
    assert path.read_bytes() == before


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_fork_leaves_parent_and_child_a_working_store(path: Path) -> None:
    """F42: no connection, no lock and no waiting thread is carried over, and no update lost."""
    script = """
import os, sys, threading
from tests.support.stores import sqlite_store
from tests.stores.steps import count

store = sqlite_store(sys.argv[1])
done = 0

def hammer():
    global done
    while not end.is_set():
        store.update("a", count)
        done += 1

end = threading.Event()
thread = threading.Thread(target=hammer)
thread.start()
children = []
for _ in range(12):
    child = os.fork()
    if not child:
        for _ in range(20):
            store.update("a", count)
        store.read("a")
        store.close()
        os._exit(0)
    children.append(child)
    store.read("a")
for child in children:
    assert os.waitpid(child, 0)[1] == 0
end.set()
thread.join()
print(done + 12 * 20, store.read("a").requests)
"""
    command = [sys.executable, "-W", "ignore", "-c", script, str(path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)

    assert done.stderr == ""
    expected, found = map(int, done.stdout.split())
    assert expected == found
    other = foreign(path)
    assert other.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    other.close()
