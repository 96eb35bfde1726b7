"""The cache in one file, when pages wait to be written together: who knows of them, and what becomes of them."""

from __future__ import annotations

import logging
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from curtsy.cache.keys import MIB, SETTLED, Checked
from curtsy.cache.packed import LARGE, PackedCache
from curtsy.cache.write_buffer import LIMIT, MOST, MOST_BYTES, SLOW, Waiting, WriteBuffer
from curtsy.testing import FakeClock
from tests.support.ending import ends_with_test
from tests.support.pages import ROOT, body_of, fill, is_body_of, page, url_of
from tests.support.polling import block_until

URL = "https://example.org/a"
LONG = 3600.0
"""A delay that no test lives to see the end of."""

Open = Callable[..., PackedCache]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "pages.db"


@pytest.fixture
def opened(path: Path) -> Iterator[Open]:
    caches: list[PackedCache] = []

    def open_one(delay: float = 0.0, clock: FakeClock | None = None) -> PackedCache:
        caches.append(PackedCache(path, delay=delay, clock=clock))
        return caches[-1]

    yield open_one
    for cache in caches:
        cache.close()


def writing_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "curtsy-cache"]


def run(program: str, path: Path) -> subprocess.Popen[str]:
    return ends_with_test(
        subprocess.Popen(
            [sys.executable, "-c", program, str(path)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
    )


def test_a_page_that_waits_is_known_to_its_cache_at_once_and_to_others_when_it_is_written(opened: Open) -> None:
    """N6, Issue 4"""
    ours, theirs = opened(LONG), opened()

    assert ours.keep(*page(URL, b"first"))
    assert ours.get(URL) == page(URL, b"first")
    assert theirs.get(URL) is None

    ours.flush()
    assert theirs.get(URL) == ours.get(URL) == page(URL, b"first")


def test_two_caches_of_one_process_know_what_waits_in_each_other_s_place(opened: Open) -> None:
    """N7"""
    one, two = opened(LONG), opened(LONG)
    one.keep(*page(URL, b"first"))
    assert two.body(URL) == b"first"

    two.keep(*page(URL, b"second"))
    assert one.body(URL) == b"second"
    two.drop(URL)
    assert one.get(URL) is None

    one.keep(*page(url_of(1), body_of(1)))
    two.keep(*page(url_of(2), body_of(2)))
    two.close()
    one.keep(*page(url_of(3), body_of(3)))
    two.close()
    one.close()
    there = opened()
    assert [there.body(url_of(number)) for number in (1, 2, 3)] == [body_of(number) for number in (1, 2, 3)]
    assert there.get(URL) is None


def test_everything_that_looks_at_the_whole_cache_has_what_waits(opened: Open) -> None:
    """N6"""
    looks: list[Callable[[PackedCache], object]] = [
        lambda cache: list(cache.entries()) == [page(URL)[0]],
        lambda cache: cache.verify() == Checked(1, 0),
        lambda cache: cache.entry(URL) == page(URL)[0],
        lambda cache: cache.gc(0) >= 0 and list(cache.entries()) == [],
    ]
    for look in looks:
        cache = opened(LONG)
        cache.keep(*page(URL))
        assert look(cache)
        cache.close()


def test_what_waits_is_written_after_the_delay_though_nothing_else_happens(opened: Open) -> None:
    """Issue 4: time and again, for the thread that does it ends in between"""
    ours, theirs = opened(0.01), opened()

    for number in range(3):
        ours.keep(*page(url_of(number), body_of(number)))
        block_until(lambda number=number: theirs.body(url_of(number)) == body_of(number))  # type: ignore[misc]
        block_until(lambda: not writing_threads())


def test_many_pages_do_not_wait_for_the_delay(opened: Open) -> None:
    """Issue 4"""
    ours, theirs = opened(LONG), opened()

    fill(ours, range(MOST - 1))
    assert not list(theirs.entries())
    fill(ours, [MOST - 1])
    block_until(lambda: len(list(theirs.entries())) == MOST)

    # A thread that tidies the file meanwhile may write some of these pages early, so each is looked at by itself.
    many = MOST_BYTES // LARGE
    for added in range(1, 2 * many + 1):
        ours.keep(*page(url_of(100 + added), random.Random(added).randbytes(LARGE)))
        block_until(lambda added=added: MOST + added - len(list(theirs.entries())) < many)  # type: ignore[misc]


def test_no_more_than_so_many_pages_and_bytes_wait_for_a_slow_disk() -> None:
    """Issue 16: what a killed program loses is bounded; the caller itself writes what is too much"""
    begun, may_end, by_caller = threading.Event(), threading.Event(), []

    def write() -> None:
        if threading.current_thread().name == "curtsy-cache":
            begun.set()
            may_end.wait(60)
        else:
            by_caller.append(len(write_buffer.waiting()))
            slow_until = time.monotonic() + SLOW
            block_until(lambda: time.monotonic() > slow_until)

    write_buffer = WriteBuffer(LONG, rest=LONG)
    for number in range(MOST * LIMIT):
        write_buffer.add(str(number), Waiting(*page(url_of(number)), False, False), write)
    assert begun.wait(60)
    assert by_caller == [MOST, MOST * LIMIT]
    may_end.set()

    by_caller.clear()
    large = WriteBuffer(LONG)
    large.add("key", Waiting(page(URL)[0], bytes(MOST_BYTES * LIMIT), False, False), lambda: by_caller.append(1))
    assert 1 in by_caller
    large.forget("key")
    large.leave()


def test_a_large_page_does_not_wait_and_is_not_replaced_by_an_older_one_that_does(opened: Open) -> None:
    """Issue 4"""
    ours, theirs = opened(LONG), opened()
    ours.keep(*page(URL, b"older"))

    ours.keep(*page(URL, bytes(LARGE + 1)))
    assert theirs.body(URL) == bytes(LARGE + 1)
    ours.flush()

    assert theirs.body(URL) == ours.body(URL) == bytes(LARGE + 1)


def test_of_two_answers_that_wait_the_newer_one_is_written(opened: Open) -> None:
    """N6"""
    ours = opened(LONG)
    ours.keep(*page(URL, b"older"))
    ours.keep(*page(URL, b"newer"))

    assert ours.body(URL) == b"newer"
    ours.close()
    assert opened().body(URL) == b"newer"


def test_a_page_that_is_dropped_while_it_waits_is_gone(opened: Open) -> None:
    """N6"""
    ours = opened(LONG)
    ours.keep(*page(URL))
    ours.drop(URL)

    assert ours.get(URL) is None
    ours.close()
    assert opened().get(URL) is None


@pytest.mark.parametrize("body", [b"hello", body_of(1)], ids=["as it is", "compressed"])
@pytest.mark.parametrize("is_written", [False, True])
def test_a_304_renews_a_page_that_waits_and_one_that_was_read(opened: Open, is_written: bool, body: bytes) -> None:
    """N6"""
    ours = opened(LONG)
    ours.keep(*page(URL, body))
    if is_written:
        ours.flush()
    kept = ours.get(URL)
    assert kept is not None

    for lifetime in (999.0, 9999.0):
        renewed = msgspec.structs.replace(kept.entry, lifetime=lifetime)
        assert ours.refresh(renewed)
        assert ours.get(URL) == (renewed, body)
    ours.close()
    assert opened().get(URL) == (renewed, body)


@pytest.mark.parametrize("reads", [1, 2])
def test_a_304_waits_be_the_page_held_in_memory_or_not(opened: Open, reads: int) -> None:
    """Issue 4"""
    ours, theirs = opened(LONG), opened()
    theirs.keep(*page(URL))
    for _ in range(reads):
        kept = ours.get(URL)
    assert kept is not None
    renewed = msgspec.structs.replace(kept.entry, lifetime=999.0)

    assert ours.refresh(renewed)
    assert theirs.get(URL) == kept

    ours.flush()
    assert theirs.get(URL) == ours.get(URL) == (renewed, kept.body)


def test_a_304_for_a_page_that_was_dropped_since_it_was_read_changes_nothing(opened: Open) -> None:
    """N6"""
    ours = opened(LONG)
    ours.keep(*page(URL))
    ours.flush()
    kept = ours.get(URL)
    assert kept is not None

    ours.drop(URL)

    assert not ours.refresh(kept.entry)
    assert ours.get(URL) is None


def test_a_304_does_not_replace_what_came_to_wait_meanwhile() -> None:
    """N6: another thread may put or drop the page while it is being renewed"""
    write_buffer = WriteBuffer(LONG)
    old, new, renewed = (Waiting(*page(URL, body), False, False) for body in (b"old", b"new", b"old"))
    write_buffer.add("key", old, lambda: None)

    write_buffer.add("key", new, lambda: None)
    assert not write_buffer.replace("key", old, renewed, lambda: None)
    assert write_buffer.get("key") is new

    write_buffer.forget("key")
    assert not write_buffer.replace("key", new, renewed, lambda: None)
    assert write_buffer.get("key") is None

    assert write_buffer.replace("key", None, renewed, lambda: None)
    assert write_buffer.get("key") is renewed
    write_buffer.forget("key")
    write_buffer.leave()


def test_a_304_for_a_page_that_was_replaced_or_is_gone_changes_nothing(opened: Open) -> None:
    """N6, N7"""
    ours, theirs = opened(LONG), opened()
    old, body = page(URL, b"old")
    assert not ours.refresh(old)
    ours.keep(old, body)
    ours.flush()
    ours.get(URL)

    assert ours.refresh(msgspec.structs.replace(old, lifetime=999.0))  # it waits, and meanwhile:
    theirs.keep(*page(URL, b"new"))
    ours.flush()
    assert ours.get(URL) == theirs.get(URL) == page(URL, b"new")

    ours.keep(*page(URL, b"newest"))
    assert not ours.refresh(old)
    assert ours.body(URL) == b"newest"


def test_what_cannot_be_written_is_forgotten_and_told_once(
    opened: Open, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """U16, F40"""
    clock = FakeClock()
    path.parent.write_text("a file where a folder should be")
    cache = opened(LONG, clock)
    fill(cache, range(5))

    cache.flush()

    assert [cache.get(url_of(number)) for number in range(5)] == [None] * 5
    assert not cache.keep(*page(URL))  # it rests
    [warning] = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert str(path) in warning
    path.parent.unlink()
    clock.advance(61)
    assert cache.keep(*page(URL))
    cache.flush()
    assert opened().body(URL) == b"hello"


def test_a_closed_cache_lets_nothing_wait(opened: Open) -> None:
    """U16"""
    cache = opened(LONG)
    cache.keep(*page(url_of(1)))
    assert writing_threads()

    cache.close()

    block_until(lambda: not writing_threads())
    assert not cache.keep(*page(URL))
    assert not cache.refresh(page(URL)[0])
    assert cache.get(URL) is None


def test_a_program_that_ends_without_closing_has_written_all(opened: Open, path: Path) -> None:
    """N6"""
    program = f"""
import sys
from curtsy.cache.packed import PackedCache
from tests.support.pages import fill
cache = PackedCache(sys.argv[1], delay={LONG})
fill(cache, range(10))
"""
    done = run(program, path)
    done.communicate(timeout=120)

    assert done.returncode == 0
    assert [opened().body(url_of(number)) for number in range(10)] == [body_of(number) for number in range(10)]


def test_a_program_that_is_killed_leaves_whole_pages_and_loses_only_those_that_wait(opened: Open, path: Path) -> None:
    """N7, F37"""
    program = """
import itertools, sys
from curtsy.cache.packed import PackedCache
from tests.support.pages import fill
cache = PackedCache(sys.argv[1], delay=0.005)
for number in itertools.count():
    fill(cache, [number])
    print(number, flush=True)
"""
    for said in (MOST * LIMIT + 50, MOST * LIMIT + 333):
        killed = run(program, path)
        assert killed.stdout is not None
        for _ in range(said):
            killed.stdout.readline()
        killed.kill()
        killed.communicate()

        cache = opened()
        kept = [(number, cache.body(url_of(number))) for number in range(said)]
        assert all(body is None or is_body_of(number, body) for number, body in kept)
        assert sum(body is not None for _, body in kept) >= said - MOST * LIMIT
        assert cache.verify().damaged == 0
        cache.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_fork_while_pages_wait_loses_none_of_either_side(opened: Open, path: Path) -> None:
    """N7"""
    program = f"""
import os, sys
from curtsy.cache.packed import PackedCache
from tests.support.pages import fill, url_of
cache = PackedCache(sys.argv[1], delay={LONG})
fill(cache, range(10))
child = os.fork()
if child == 0:
    is_empty = cache.get(url_of(0)) is None  # its parent's to write
    fill(cache, range(10, 20))
    cache.close()
    os._exit(0 if is_empty else 1)
fill(cache, range(20, 30))
code = os.waitpid(child, 0)[1]
cache.close()
print(code)
"""
    said, _ = run(program, path).communicate(timeout=120)

    assert said == "0\n"
    cache = opened()
    assert [cache.body(url_of(number)) for number in range(30)] == [body_of(number) for number in range(30)]


def test_threads_share_a_cache_in_which_pages_wait(opened: Open) -> None:
    """N7"""
    cache = opened(0.001)
    wrong: list[object] = []

    def work(first: int) -> None:
        try:
            for version in range(20):
                for number in range(first, first + 10):
                    cache.keep(*page(url_of(number), body_of(number, version)))
                    if cache.body(url_of(number)) != body_of(number, version):
                        wrong.append((number, version))
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=work, args=(first,)) for first in range(0, 40, 10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert wrong == []
    assert cache.verify() == Checked(40, 0)


@pytest.mark.parametrize("delay", [0.0, LONG])
def test_a_page_in_memory_is_read_anew_when_others_write_after_a_quiet_time(
    opened: Open, path: Path, delay: float
) -> None:
    """N6: while nobody writes, memory is trusted without a look at the page"""
    ours, theirs = opened(delay), opened()
    journal = path.with_name("pages.db-wal")
    for version in range(4):
        theirs.keep(*page(URL, body_of(1, version)))
        assert ours.body(URL) == body_of(1, version)
        block_until(lambda: time.time_ns() - journal.stat().st_mtime_ns > SETTLED)

        first, second = ours.get(URL), ours.get(URL)

        assert first is second is not None
    theirs.drop(URL)
    assert ours.get(URL) is None


def test_a_write_that_the_clock_of_the_file_system_cannot_tell_from_the_one_before_is_seen(
    opened: Open, path: Path
) -> None:
    """N6: many in a moment, into a journal that does not grow"""
    ours, theirs = opened(), opened()
    theirs.keep(*page(url_of(0), random.Random(1).randbytes(6 * MIB)))  # it is then written from its beginning again
    size = path.with_name("pages.db-wal").stat().st_size

    for version in range(100):
        theirs.keep(*page(URL, body_of(1, version)))
        for _ in range(3):
            assert ours.body(URL) == body_of(1, version)

    assert path.with_name("pages.db-wal").stat().st_size == size
