"""What is surely not in a packed file: never a page that is there, whoever has written it."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from curtsy.cache import packed_file
from curtsy.cache.packed import PackedCache
from curtsy.cache.write_buffer import MOST_FILTERED, REBUILD_AFTER, RECHECK, SIZE, BloomFilter
from tests.support.pages import ROOT, body_of, fill, page, url_of
from tests.support.polling import PATIENCE

LONG = 3600.0
"""A delay that no test lives to see the end of."""

numbers = st.integers(-(2**63) + 1, 2**63 - 1)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "pages.db"


@pytest.fixture
def opened(path: Path) -> Iterator[Callable[[], PackedCache]]:
    caches: list[PackedCache] = []

    def open_one() -> PackedCache:
        caches.append(PackedCache(path, delay=LONG))
        return caches[-1]

    yield open_one
    for cache in caches:
        cache.close()


def connect(path: Path | str, kept: list[int]) -> sqlite3.Connection:
    db = sqlite3.connect(path, isolation_level=None)
    db.execute("PRAGMA journal_mode = WAL")
    if not db.execute("SELECT 1 FROM sqlite_master").fetchone():
        db.executescript(";".join(packed_file.FORMAT.schema))
    db.executemany("INSERT INTO pages VALUES (?, 0, 0, NULL)", [(number,) for number in set(kept)])
    return db


class Time:
    """A clock that stands still until it is moved."""

    def __init__(self) -> None:
        self.seconds = 1000.0

    def __call__(self) -> float:
        return self.seconds


def take(
    db: sqlite3.Connection, now: Callable[[], float] = time.monotonic, most: int = MOST_FILTERED, looks: int = 100
) -> BloomFilter:
    bloom = BloomFilter(most, now)
    for _ in range(looks):
        bloom.update(db)
    return bloom


@given(st.lists(numbers, max_size=200), numbers)
def test_what_is_in_the_file_is_never_lacking_and_what_is_not_mostly_is(kept: list[int], other: int) -> None:
    """N6"""
    db = connect(":memory:", kept)

    bloom = take(db, Time())

    assert not any(bloom.lacks(number) for number in kept)
    assert bloom.lacks(other) == all((number >> 3 ^ other >> 3) & (8 * SIZE - 1) for number in kept)
    db.close()


def test_it_is_taken_some_rows_at_a_time_and_tells_nothing_before_it_is_whole(path: Path) -> None:
    """N6: nobody waits for a million of them"""
    db = connect(path, list(range(10 * packed_file.BATCH)))
    now = Time()

    assert not take(db, now, looks=10).lacks(-1)
    assert take(db, now, looks=11).lacks(-1)
    db.close()


def test_what_is_added_is_not_lacking_be_it_before_its_turn_to_be_read_or_after(path: Path) -> None:
    """N6"""
    db = connect(path, list(range(0, 1000 * packed_file.BATCH, 100)))
    bloom = take(db, Time(), looks=1)

    for number in (-50, 52, 10**6):
        bloom.add(number)
        db.execute("INSERT INTO pages VALUES (?, 0, 0, NULL)", (number,))
    for _ in range(100):
        bloom.update(db)

    assert bloom.lacks(-60)
    assert not any(bloom.lacks(number) for number in (-50, 52, 10**6))
    db.close()


@pytest.mark.parametrize("looks", [1, 100])
def test_it_tells_nothing_after_another_has_written_while_it_was_taken_or_later(path: Path, looks: int) -> None:
    """N6"""
    ours, theirs = connect(path, list(range(2 * packed_file.BATCH))), connect(path, [])
    now = Time()
    bloom = take(ours, now, looks=looks)

    theirs.execute("INSERT INTO pages VALUES (-1, 0, 0, NULL)")
    now.seconds += RECHECK
    for _ in range(100):
        bloom.update(ours)
    assert not bloom.lacks(-1)
    assert not bloom.lacks(-20)

    now.seconds += REBUILD_AFTER
    for _ in range(100):
        bloom.update(ours)
    assert not bloom.lacks(-1)
    assert bloom.lacks(-20)
    ours.close()
    theirs.close()


def test_it_is_not_gone_on_with_by_another_connection(path: Path) -> None:
    """N6: to that one, what the first one writes is another's"""
    ours, theirs = connect(path, []), connect(path, [])
    bloom = take(ours, Time())
    assert bloom.lacks(1)

    bloom.update(theirs)

    assert not bloom.lacks(1)
    ours.close()
    theirs.close()


def test_what_it_tells_holds_for_a_moment_only(path: Path) -> None:
    """N6: another process may have written meanwhile"""
    db = connect(path, [])
    now = Time()
    bloom = take(db, now)
    assert bloom.lacks(1)

    now.seconds += RECHECK
    assert not bloom.lacks(1)

    bloom.update(db)
    assert bloom.lacks(1)
    db.close()


def test_of_a_file_with_too_many_pages_it_is_not_taken(path: Path) -> None:
    """N6"""
    db = connect(path, list(range(100)))

    assert not take(db, Time(), most=99).lacks(-1)
    assert take(db, Time(), most=100).lacks(-1)
    db.close()


def test_a_cache_asks_its_file_seldom_for_pages_that_are_not_kept(opened: Callable[[], PackedCache]) -> None:
    """Issue 4"""
    cache = opened()
    fill(cache, range(100))
    cache.flush()
    asked: list[str] = []
    cache._file.call(None, lambda db: db.set_trace_callback(asked.append))

    began = time.monotonic()
    assert not any(cache.get(url_of(number)) for number in range(100, 1100))
    took = time.monotonic() - began

    assert sum("FROM pages" in statement for statement in asked) < 10 + 2 * took / RECHECK
    assert [cache.body(url_of(number)) for number in range(100)] == [body_of(number) for number in range(100)]


def test_a_page_that_another_cache_of_the_process_has_written_is_found_at_once(
    opened: Callable[[], PackedCache],
) -> None:
    """N6"""
    one, two = opened(), opened()
    for number in range(100):
        assert one.get(url_of(number)) is None

        fill(two, [number])
        two.flush()

        assert one.body(url_of(number)) == body_of(number)


def test_a_page_that_another_process_has_written_is_found_soon(opened: Callable[[], PackedCache], path: Path) -> None:
    """N6"""
    program = """
import sys
from curtsy.cache.packed import PackedCache
from tests.support.pages import fill
cache = PackedCache(sys.argv[1])
for number in sys.stdin:
    fill(cache, [int(number)])
    print(number, end="", flush=True)
"""
    cache = opened()
    with subprocess.Popen(
        [sys.executable, "-c", program, str(path)], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdin is not None
        assert other.stdout is not None
        for number in range(20):
            assert cache.get(url_of(number)) is None
            assert cache.keep(*page(url_of(1000 + number)))
            other.stdin.write(f"{number}\n")
            other.stdin.flush()
            other.stdout.readline()
            said = time.monotonic()
            while (content := cache.body(url_of(number))) is None and time.monotonic() < said + PATIENCE:
                pass

            assert content == body_of(number)
        other.stdin.close()
