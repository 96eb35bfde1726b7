"""What the machine does to a file, and what the SQLite store does then. Real files, real disks, real locks."""

from __future__ import annotations

import fcntl
import logging
import os
import random
import re
import shutil
import sqlite3
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from curtsy.core.errors import PolicyError, StoreError
from curtsy.core.host import Host
from curtsy.stores.sqlite import AsyncSQLiteStore
from curtsy.system.threads import run_blocking
from tests.stores.places import InFile
from tests.stores.steps import count, keep, own_words
from tests.stores.worker import Worker, run
from tests.support.bounds import ends_within
from tests.support.small_disk import small_disk
from tests.support.snapshot import Snapshot
from tests.support.stores import sqlite_store

KEYS = [f"host:{number}.example.org" for number in range(300)]
PAGE = 4096


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state.sqlite"


def fill(path: Path) -> None:
    store = sqlite_store(path)
    store.update_many([(key, count) for key in KEYS])
    store.close()


def put_aside(path: Path) -> list[Path]:
    return sorted(path.parent.glob(path.name + ".damaged-*"))


def is_sound(path: Path) -> bool:
    other = sqlite3.connect(path)
    found = other.execute("PRAGMA integrity_check").fetchall()
    other.close()
    return found == [("ok",)]


def overwrite(path: Path, at: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(data)


DAMAGE: dict[str, Callable[[Path], object]] = {
    "garbage header": lambda path: overwrite(path, 0, b"this is no database at all"),
    "garbage all over": lambda path: path.write_bytes(random.Random(1).randbytes(10 * PAGE)),
    "text": lambda path: path.write_text("dear diary\n" * 1000),
    "zeroed first page": lambda path: overwrite(path, 0, bytes(PAGE)),
    "zeroed everything": lambda path: path.write_bytes(bytes(path.stat().st_size)),
    "zeroed root of the table": lambda path: overwrite(path, PAGE, bytes(PAGE)),
    "garbage root of the table": lambda path: overwrite(path, PAGE, random.Random(2).randbytes(PAGE)),
    "another program's number": lambda path: overwrite(path, 68, b"\0\0\0\7"),
    "unknown format of the schema": lambda path: overwrite(path, 44, b"\0\0\0\7"),
    "name of the table": lambda path: path.write_bytes(path.read_bytes().replace(b"records", b"recxxds")),
    "text that is none": lambda path: path.write_bytes(path.read_bytes().replace(b"CREATE", b"CRE\xc2\xc2E")),
    "schema scrambled": lambda path: overwrite(path, PAGE - 300, b"\xee" * 300),
    "cut in half": lambda path: os.truncate(path, path.stat().st_size // 2),
    "cut in a page": lambda path: os.truncate(path, PAGE + 100),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE.keys())
def test_a_damaged_file_is_put_aside_and_a_fresh_one_begun(
    path: Path, damage: Callable[[Path], object], caplog: pytest.LogCaptureFixture
) -> None:
    """U16"""
    fill(path)
    damage(path)
    ruin = path.read_bytes()
    store = sqlite_store(path)

    with caplog.at_level(logging.WARNING, logger="curtsy"):
        store.update_many([(key, count) for key in KEYS])
        assert store.keys() == sorted(KEYS)
        store.update_many([(key, count) for key in KEYS])

    [aside] = put_aside(path)
    assert aside.read_bytes() == ruin
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert str(aside) in caplog.text
    store.close()
    assert is_sound(path)


def leave_the_log(path: Path) -> None:
    """Remove the file itself under a log that was not emptied yet."""
    other = sqlite3.connect(path)
    other.execute("DELETE FROM records WHERE key = x'00'")
    other.execute("UPDATE records SET sum = sum")
    other.commit()
    log = Path(f"{path}-wal").read_bytes()
    other.close()
    path.unlink()
    Path(f"{path}-wal").write_bytes(log)


def test_a_log_without_its_file_is_told_as_damage(
    path: Path, caplog: pytest.LogCaptureFixture, snapshot: Snapshot
) -> None:
    """C20: SQLite would drop it without a word"""
    fill(path)
    leave_the_log(path)
    store = sqlite_store(path)

    assert store.update("a", count) == 1
    [record] = caplog.records
    [aside] = path.parent.glob("*.damaged-*-wal")
    assert str(aside).removesuffix("-wal") in record.getMessage()
    snapshot(record.getMessage())
    store.close()


@pytest.mark.parametrize("size", [0, 1, 99, 100, 511, *range(PAGE, 14 * PAGE, PAGE)])
def test_a_file_cut_anywhere_is_put_aside_and_told_once(
    path: Path, size: int, caplog: pytest.LogCaptureFixture
) -> None:
    """C20, U16: at nothing, in its header, and at the end of any page"""
    fill(path)
    if path.stat().st_size <= size:
        pytest.skip("the file has fewer pages")
    os.truncate(path, size)
    store = sqlite_store(path)

    store.update_many([(key, count) for key in KEYS])
    assert store.keys() == sorted(KEYS)

    [aside] = put_aside(path)
    assert aside.stat().st_size == size
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    store.close()
    assert is_sound(path)


IN_PLACE: dict[str, Callable[[Path], object]] = {
    "a FIFO": os.mkfifo,
    "a device": lambda path: path.symlink_to("/dev/zero"),
    "a directory": lambda path: path.mkdir(),
    "a link to itself": lambda path: path.symlink_to(path),
    "a link to nowhere": lambda path: path.symlink_to(path.parent / "none" / "file" / "state.sqlite"),
}


@pytest.mark.timeout(120)
@pytest.mark.parametrize("place", IN_PLACE.values(), ids=IN_PLACE.keys())
def test_what_is_no_file_is_an_error_and_not_a_hang(
    path: Path, place: Callable[[Path], object], snapshot: Snapshot
) -> None:
    """C18, C20"""
    if place is IN_PLACE["a link to nowhere"]:
        (path.parent / "none").write_text("not a folder")
    place(path)
    store = sqlite_store(path)

    for use in (lambda: store.update("a", count), lambda: store.read("a"), store.keys):
        with pytest.raises(StoreError, match=re.escape(os.path.realpath(path))) as caught:
            use()
        snapshot(own_words(caught.value))
    assert run_blocking(store.inner.peek("a")) is None
    store.close()
    assert os.listdir(path.parent) is not None
    assert not Path("/dev/zero-wal").exists()


@pytest.mark.parametrize("look", ["read", "keys"])
def test_damage_that_only_a_reader_meets_is_mended_as_well(path: Path, look: str) -> None:
    """U16"""
    fill(path)
    size = path.stat().st_size
    store = sqlite_store(path)
    overwrite(path, PAGE, bytes(size - PAGE))

    found = store.keys() if look == "keys" else store.read(KEYS[7])

    assert not found
    assert len(put_aside(path)) == 1
    assert store.update(KEYS[7], count) == 1
    store.close()


def spoil(victim: Path, dice: random.Random) -> None:
    """Some bytes, anywhere."""
    size = victim.stat().st_size if victim.exists() else 0
    for _ in range(dice.randint(1, 20) if size else 0):
        overwrite(victim, dice.randrange(size), dice.randbytes(dice.choice([1, 8, 500])))


@pytest.mark.parametrize("seed", range(12))
def test_no_damage_whatever_stops_us(path: Path, seed: int) -> None:
    """U16: in the file or in its log, while it is closed or while it is open."""
    dice = random.Random(seed)
    fill(path)
    store = sqlite_store(path)
    if dice.random() < 0.5:
        store.update(KEYS[0], count)
    spoil(path, dice)
    if dice.random() < 0.5:
        spoil(Path(f"{path}-wal"), dice)

    for _ in range(2):
        for key in KEYS:
            assert store.update(key, count) >= 1
            assert isinstance(store.read(key), Host | None)
        store.close()
        store = sqlite_store(path)
    store.close()


def test_a_byte_that_changes_anywhere_in_the_header_stops_nobody(
    path: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """C20, U16: told once at most. Only a number that says a later format is an error."""
    fill(path)
    whole = path.read_bytes()
    for at in range(100):
        folder = tmp_path / str(at)
        folder.mkdir()
        victim = folder / "state.sqlite"
        victim.write_bytes(whole[:at] + bytes([whole[at] ^ 0x81]) + whole[at + 1 :])
        caplog.clear()
        store = sqlite_store(victim)
        number = int.from_bytes(victim.read_bytes()[60:64], "big", signed=True)
        if 60 <= at < 64 and number > 3:
            with pytest.raises(PolicyError, match=f"format {number}"):
                store.update(KEYS[0], count)
        else:
            assert store.update(KEYS[0], count) in (1, 2), at
            assert len(caplog.records) == len(put_aside(victim)) <= 1, at
        store.close()


def test_a_damaged_log_of_a_killed_process_stops_nobody(path: Path) -> None:
    """U16, F37"""
    worker = Worker("many", 1_000_000, InFile(str(path)))
    worker.wait_until_ready()
    worker.go()
    worker.hear(100)
    worker.kill()
    spoil(Path(f"{path}-wal"), random.Random(3))

    store = sqlite_store(path)

    assert all(store.update(key, count) >= 1 for key in KEYS)
    store.close()
    assert is_sound(path)


def test_processes_that_meet_the_damage_at_once_put_one_file_aside_and_lose_nothing(path: Path) -> None:
    """U16, F42: nobody puts aside the fresh file of another."""
    fill(path)
    overwrite(path, 0, bytes(PAGE))

    said = run([Worker("one", 50, InFile(str(path))) for _ in range(4)])

    assert len(put_aside(path)) == 1
    assert sorted(int(number) for each in said for number in each) == list(range(1, 201))


@pytest.mark.parametrize("beside", ["left", "deleted"])
def test_a_file_deleted_under_us_is_begun_anew_and_that_is_told_once(
    path: Path, beside: str, caplog: pytest.LogCaptureFixture, snapshot: Snapshot
) -> None:
    """U16, B8"""
    store = sqlite_store(path)
    store.update("a", count)
    path.unlink()
    if beside == "deleted":
        for name in ("-wal", "-shm", ".lock"):
            Path(f"{path}{name}").unlink()

    assert store.read("a") is None
    assert [store.update("a", count) for _ in range(3)] == [1, 2, 3]
    store.close()
    assert is_sound(path)
    [told] = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    snapshot(told)
    assert len(store.inner.losses) == 1


def test_a_directory_deleted_under_us_is_made_again(tmp_path: Path) -> None:
    """U16"""
    path = tmp_path / "state" / "state.sqlite"
    store = sqlite_store(path)
    store.update("a", count)
    shutil.rmtree(path.parent)

    assert store.update("a", count) == 1
    store.close()
    assert is_sound(path)


def test_a_file_replaced_under_us_is_noticed(path: Path) -> None:
    """U16: and what the old one left beside it is not taken for part of the new one."""
    other = path.parent / "other.sqlite"
    for _ in range(4):
        fill(other)
    store = sqlite_store(path)
    store.update(KEYS[0], count)

    os.replace(other, path)

    assert store.read(KEYS[0]) == Host(requests=4)
    assert store.update(KEYS[0], count) == 5
    store.close()
    assert is_sound(path)


def test_a_file_that_another_program_keeps_locked_is_an_error_and_not_a_hang(path: Path, snapshot: Snapshot) -> None:
    """B8"""
    store = sqlite_store(path, patience=0.3)
    store.update("a", count)
    holder = sqlite3.connect(path, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")

    start = time.monotonic()
    with ends_within(3), pytest.raises(StoreError, match=r"0\.3 s") as caught:
        store.update("a", count)
    snapshot(str(caught.value))
    assert time.monotonic() - start > 0.25
    assert store.read("a") == Host(requests=1), "reading goes on"

    holder.execute("ROLLBACK")
    holder.close()
    assert store.update("a", count) == 2
    store.close()


async def test_a_process_that_stands_still_in_its_turn_is_an_error_and_not_a_hang(
    path: Path, snapshot: Snapshot
) -> None:
    """B8: stopped by a debugger, or by SIGSTOP. What was given up is not done later."""
    store, tasks = sqlite_store(path, patience=0.2), AsyncSQLiteStore(path)
    store.update("a", count)
    with open(f"{path}.lock") as side_file:  # noqa: ASYNC230
        fcntl.flock(side_file, fcntl.LOCK_EX)
        with pytest.raises(StoreError, match=r"0\.2 s") as waited:
            await tasks.update("a", count)
        with pytest.raises(StoreError, match=r"0\.2 s") as caught:
            store.update("a", count)
    assert str(waited.value) == str(caught.value)
    snapshot(str(caught.value))

    assert store.update("a", keep) == 1
    store.close()
    await tasks.close()


@pytest.mark.parametrize("what", ["a directory", "under a file"])
def test_a_path_that_cannot_be_a_file_is_an_error_that_says_so(tmp_path: Path, what: str, snapshot: Snapshot) -> None:
    """B8"""
    (tmp_path / "file").touch()
    store = sqlite_store(tmp_path if what == "a directory" else tmp_path / "file" / "state.sqlite")

    for use in (lambda: store.update("a", count), lambda: store.read("a"), store.keys):
        with pytest.raises(StoreError, match=re.escape(str(tmp_path))) as caught:
            use()
        snapshot(own_words(caught.value))
    store.close()


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 16 MiB."""
    with small_disk(tmp_path, 16) as place:
        yield place


def test_a_full_disk_is_an_error_and_room_on_it_the_end_of_that(disk: Path, snapshot: Snapshot) -> None:
    """F40: nothing that was acknowledged is lost."""
    path = disk / "state.sqlite"
    store = sqlite_store(path)
    done = dict.fromkeys(KEYS, 0)
    store.update_many([(key, count) for key in KEYS])
    ballast = disk / "ballast"
    with ballast.open("wb", buffering=0) as file:
        free = os.statvfs(disk).f_bavail * os.statvfs(disk).f_frsize
        file.write(bytes(free))

    failures = []
    for key in KEYS * 2:
        try:
            done[key] = store.update(key, count)
        except StoreError as error:
            failures.append(str(error))
    [failure] = set(failures)
    assert str(path) in failure
    snapshot(failure)
    ballast.unlink()

    for key, number in done.items():
        assert store.update(key, count) > number
    store.close()
    assert is_sound(path)
    assert put_aside(path) == []


def test_a_full_disk_at_the_start_is_an_error_and_room_on_it_the_end_of_that(disk: Path, snapshot: Snapshot) -> None:
    """F40"""
    ballast = disk / "ballast"
    ballast.write_bytes(bytes(16 << 20))
    store = sqlite_store(disk / "state.sqlite")

    with pytest.raises(StoreError, match=re.escape(str(disk))) as caught:
        store.update("a", count)
    snapshot(own_words(caught.value))
    ballast.unlink()
    assert store.update("a", count) == 1
    store.close()


def test_a_disk_that_may_only_be_read_is_an_error_that_says_so(disk: Path, snapshot: Snapshot) -> None:
    """B8"""
    path = disk / "state.sqlite"
    fill(path)
    remount = ["mount", "-o", "remount,{}", str(disk)]
    subprocess.run([word.format("ro") for word in remount], check=True)
    store = sqlite_store(path)

    with pytest.raises(StoreError, match=re.escape(str(path))) as caught:
        store.update(KEYS[0], count)
    snapshot(own_words(caught.value))
    subprocess.run([word.format("rw") for word in remount], check=True)
    assert store.update(KEYS[0], count) == 2
    store.close()
    assert put_aside(path) == []
