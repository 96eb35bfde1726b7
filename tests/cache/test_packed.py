"""The cache in one file: what happens when that file is damaged, replaced, or somebody else's."""

from __future__ import annotations

import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from subprocess import PIPE

import msgspec
import pytest

from curtsy.cache import packed_file
from curtsy.cache.cache_file import CacheFile
from curtsy.cache.keys import Checked, Outage
from curtsy.cache.packed import PackedCache
from curtsy.cache.packed_file import BATCH, FORMAT, first_number
from curtsy.system.log import library_logger
from curtsy.testing import FakeClock
from tests.support.pages import ROOT, body_of, fill, hold, page, url_of, writer
from tests.support.snapshot import Snapshot
from tests.support.warm import Process

URL = "https://example.org/a"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "pages.db"


@pytest.fixture
def cache(path: Path) -> Iterator[PackedCache]:
    cache = PackedCache(path)
    yield cache
    cache.close()


def asides(path: Path) -> list[Path]:
    """The damaged files that were put aside, without their journals."""
    found = path.parent.glob("pages.db.damaged-*")
    return sorted(each for each in found if not each.name.endswith(("-wal", "-shm")))


def test_a_damaged_file_is_put_aside_and_a_new_one_begun(
    cache: PackedCache, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """U16"""
    cache.keep(*page(URL))
    cache.close()
    path.write_bytes(b"no database at all " * 1000)
    again = PackedCache(path, clock=FakeClock(epoch=1_800_000_000))

    assert again.get(URL) is None
    assert again.keep(*page(URL))
    assert again.body(URL) == b"hello"
    again.close()

    assert [aside.name for aside in asides(path)] == ["pages.db.damaged-1800000000"]
    assert asides(path)[0].read_bytes().startswith(b"no database")
    assert str(asides(path)[0]) in caplog.text


def test_only_the_last_damaged_file_is_held(cache: PackedCache, path: Path) -> None:
    """U16"""
    clock = FakeClock()
    for number in range(3):
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"damage %d " % number * 1000)
        clock.advance(10)
        again = PackedCache(path, clock=clock)
        assert again.get(URL) is None
        again.keep(*page(URL))
        again.close()

    assert len(asides(path)) == 1
    assert asides(path)[0].read_bytes().startswith(b"damage 2")


def test_a_file_that_is_damaged_while_two_have_it_open_is_put_aside_once(cache: PackedCache, path: Path) -> None:
    """U16, F42"""
    other = PackedCache(path, memory=0)
    fill(cache, range(50))
    cache.close()
    ours = PackedCache(path, memory=0)
    assert ours.get(url_of(1)) is not None
    assert other.get(url_of(1)) is not None
    with path.open("r+b") as file:
        size = path.stat().st_size
        file.seek(4096)
        file.write(random.Random(1).randbytes(size - 4096))
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("PRAGMA user_version = 7")  # so that what they hold of the file in memory is read anew

    assert ours.get(url_of(0)) is None
    fill(ours, range(50))

    for number in range(50):
        assert ours.body(url_of(number)) == body_of(number)
        assert other.body(url_of(number)) == body_of(number)
    assert len([aside for aside in asides(path) if aside.name[-1].isdigit()]) == 1
    ours.close()
    other.close()


def test_a_file_that_is_removed_while_open_is_begun_anew(cache: PackedCache, path: Path) -> None:
    """U16"""
    cache.keep(*page(URL))
    for each in path.parent.iterdir():
        each.unlink()

    assert cache.get(URL) is None
    assert cache.keep(*page(URL))
    assert cache.body(URL) == b"hello"
    assert path.exists()


def test_the_database_of_another_program_is_left_alone(
    path: Path, caplog: pytest.LogCaptureFixture, snapshot: Snapshot
) -> None:
    """U16"""
    path.parent.mkdir()
    with closing(sqlite3.connect(path)) as db:
        db.execute("CREATE TABLE pages (precious TEXT)")
        db.commit()
    before = path.read_bytes()
    cache = PackedCache(path)

    assert not cache.keep(*page(URL))
    assert cache.get(URL) is None
    cache.close()

    assert path.read_bytes()[100:] == before[100:]
    assert asides(path) == []
    (record,) = caplog.records
    assert str(path) in record.getMessage()
    snapshot(record.getMessage())


@pytest.mark.parametrize("name", ["qages", "cont\udce9nts"])
def test_a_table_whose_name_is_damaged_is_damage(
    cache: PackedCache, path: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """U16"""
    cache.keep(*page(URL))
    cache.close()
    old = b"pages" if name == "qages" else b"contents"
    path.write_bytes(
        path.read_bytes().replace(b"table" + old + old, b"table" + name.encode("utf-8", "surrogateescape") + old)
    )
    again = PackedCache(path)

    assert again.get(URL) is None
    assert again.keep(*page(URL))
    again.close()
    assert len(asides(path)) == 1


def test_what_looks_like_a_full_disk_though_there_is_room_is_damage(cache: PackedCache, path: Path) -> None:
    """U16"""
    noise = random.Random(1).randbytes(20_000)
    cache.keep(*page(URL, noise))
    cache.close()
    data = bytearray(path.read_bytes())
    start = data.index(noise[:100])
    here = next(size for size in range(100, 4096) if data[start : start + size] != noise[:size]) - 1
    data[start + here : start + here + 4] = b"\x4d\x6a\x6a\xbb"  # where the body goes on: far beyond the end
    path.write_bytes(data)
    again = PackedCache(path)

    while again.keep(*page(url_of(len(list(again.entries()))), noise)):  # until its place in the tree is needed
        pass
    assert len(asides(path)) == 1
    assert again.keep(*page(url_of(100), noise))
    assert again.body(url_of(100)) == noise
    again.close()


def test_what_looks_read_only_though_it_is_not_is_damage(cache: PackedCache, path: Path) -> None:
    """U16"""
    cache.keep(*page(URL))
    cache.close()
    data = bytearray(path.read_bytes())
    data[18] ^= 0x40  # the version of the format for writing: SQLite reads such a file and does not write it
    path.write_bytes(data)
    again = PackedCache(path)

    assert not again.keep(*page(URL))
    assert again.keep(*page(URL))
    again.close()
    assert len(asides(path)) == 1


QUOTA = """
import random, resource, sys
from curtsy.system.log import library_logger
from curtsy.testing import FakeClock
from curtsy.cache.packed import PackedCache
from tests.support.pages import fill, page, url_of
clock = FakeClock()
cache = PackedCache(sys.argv[1], clock=clock)
fill(cache, range(20))
if sys.argv[2] == "later":
    cache.close()
    cache = PackedCache(sys.argv[1], clock=clock)
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[3]), resource.RLIM_INFINITY))
noise = random.Random(1).randbytes(500_000)
for _ in range(4):
    kept = cache.keep(*page("https://example.org/a", noise))
    print(kept, sum(cache.get(url_of(number)) is not None for number in range(20)))
    clock.advance(61)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
print(cache.keep(*page("https://example.org/a", noise)), len(list(cache.entries())))
cache.close()
"""


@pytest.mark.parametrize(
    ("opened", "limit", "there"),
    [("before", 400_000, 20), ("later", 400_000, 20), ("later", 0, 0)],  # SQLite has no room to open it
)
def test_a_limit_of_the_user_s_is_no_damage_and_what_is_kept_is_read(
    path: Path, opened: str, limit: int, there: int
) -> None:
    """U16, F40: the disk itself has room"""
    pytest.importorskip("resource")
    command = [sys.executable, "-c", QUOTA, str(path), opened, str(limit)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)

    assert done.stdout.splitlines() == [f"False {there}"] * 4 + ["True 21"], done.stderr
    assert asides(path) == []


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, MemoryError])
def test_whatever_comes_in_the_middle_of_a_transaction_it_is_rolled_back(
    path: Path, error: type[BaseException]
) -> None:
    """U16, F42: else all others would wait, and the next work find one begun"""
    file = CacheFile(str(path), FORMAT, clock := FakeClock(), Outage(clock, library_logger("cache")))

    def broken(db: sqlite3.Connection) -> None:
        db.execute("BEGIN IMMEDIATE")
        db.execute("INSERT INTO contents VALUES (1, x'', x'')")
        if error is KeyboardInterrupt:
            signal.raise_signal(signal.SIGINT)
        raise error

    def whole(db: sqlite3.Connection) -> int:
        db.execute("BEGIN IMMEDIATE")
        db.execute("COMMIT")
        return int(db.execute("SELECT count(*) FROM contents").fetchone()[0])

    with pytest.raises(error):
        file.call(None, broken)

    with closing(sqlite3.connect(path, timeout=0, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
    assert file.call(-1, whole) == 0
    file.close()
    assert asides(path) == []


def test_what_a_tool_has_learnt_of_the_tables_is_no_damage(cache: PackedCache, path: Path) -> None:
    """U16"""
    cache.keep(*page(URL))
    cache.close()
    with closing(sqlite3.connect(path)) as db:
        db.execute("ANALYZE")
    again = PackedCache(path)

    assert again.body(URL) == b"hello"
    assert again.keep(*page(URL, b"new"))
    again.close()
    assert asides(path) == []


def test_a_file_whose_tree_is_out_of_order_is_found_by_verify(cache: PackedCache, path: Path) -> None:
    """U16"""
    fill(cache, range(20))
    cache.close()
    data = bytearray(path.read_bytes())
    rest, last = divmod(first_number(page(url_of(1))[0].url_sha256) % 2**64, 256)
    written = bytes(rest >> 7 * place & 0x7F | 0x80 for place in range(7, -1, -1)) + bytes([last])  # SQLite's varint
    data[data.index(written)] ^= 0x40
    path.write_bytes(data)
    again = PackedCache(path)

    assert again.verify().damaged > 0
    fill(again, range(20))
    assert again.verify() == Checked(20, 0)
    again.close()


def test_another_page_under_the_same_number_is_a_miss_and_is_replaced(cache: PackedCache, path: Path) -> None:
    """F63: as if the two hashes began alike"""
    cache.keep(*page("https://example.org/b", b"of b"))
    number = first_number(page(URL)[0].url_sha256)
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("UPDATE pages SET id = ?", (number,))

    assert cache.get(URL) is None
    assert cache.entry(URL) is None
    assert cache.keep(*page(URL, b"of a"))
    assert cache.body(URL) == b"of a"


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE contents SET body = zeroblob(100)",
        "UPDATE contents SET body = 'text'",
        "UPDATE contents SET body = x'28b52ffda0ffffff7f010000'",  # a frame that says it holds 2 GiB
        "DELETE FROM contents",
        "UPDATE contents SET meta = zeroblob(20)",
        "UPDATE contents SET meta = 5",
        "UPDATE contents SET meta = 'text'",
        "UPDATE contents SET meta = x''",
        "UPDATE contents SET body = x''",
        "UPDATE contents SET place = -place",
        "UPDATE contents SET place = place + 1",
        "UPDATE pages SET renewed = zeroblob(20)",
        "UPDATE pages SET renewed = x''",
        "UPDATE pages SET renewed = 9223372036854775807",
        "UPDATE pages SET renewed = 'text'",
        "UPDATE pages SET place = 9223372036854775807",
        "UPDATE pages SET place = 1e300",
        "UPDATE pages SET used = -9223372036854775808",
        "UPDATE pages SET used = 1e300",
        "UPDATE pages SET place = place + 1",
        "UPDATE pages SET place = 'text'",
        "UPDATE pages SET used = 'text'",
    ],
)
def test_a_damaged_row_is_a_miss_and_nothing_worse(cache: PackedCache, path: Path, change: str) -> None:
    """N7, U16"""
    cache.keep(*page(URL, body_of(1)))
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute(change)

    assert cache.body(URL) in (None, body_of(1))
    assert cache.keep(*page(URL, body_of(1)))
    assert cache.body(URL) == body_of(1)
    assert cache.verify() == Checked(1, 0)
    assert asides(path) == []


def test_a_use_that_is_not_there_is_long_ago(cache: PackedCache, path: Path) -> None:
    """N7, U16"""
    fill(cache, range(3))
    cache.close()
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("PRAGMA writable_schema = 1")
        db.execute("UPDATE sqlite_master SET sql = replace(sql, 'used INTEGER NOT NULL', 'used INTEGER')")
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("UPDATE pages SET used = NULL")
    again = PackedCache(path)

    assert again.body(url_of(1)) == body_of(1)
    again.gc(0)
    assert list(again.entries()) == []
    again.close()
    assert asides(path) == []


def test_two_pages_at_one_place_are_never_mistaken_and_verify_keeps_the_one_that_is_good(
    cache: PackedCache, path: Path
) -> None:
    """N7, U16"""
    fill(cache, range(10))
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("UPDATE pages SET place = 1")

    assert cache.verify() == Checked(1, 9)
    assert [cache.body(url_of(number)) for number in range(10)] == [body_of(0)] + [None] * 9
    fill(cache, range(10))
    assert cache.verify() == Checked(10, 0)
    assert asides(path) == []


@pytest.mark.parametrize("clean", [PackedCache.verify, lambda cache: cache.gc(0)])
def test_what_no_page_points_at_any_more_is_removed(
    cache: PackedCache, path: Path, clean: Callable[[PackedCache], object]
) -> None:
    """U16: it would take room for ever"""
    fill(cache, range(10))
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("DELETE FROM pages")

    clean(cache)

    with closing(sqlite3.connect(path)) as db:
        (left,) = db.execute("SELECT count(*) FROM contents").fetchone()
    assert left == 0


def test_a_file_with_the_tables_of_an_earlier_version_is_put_aside(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """U16"""
    path.parent.mkdir()
    with closing(sqlite3.connect(path)) as db:
        db.executescript(
            f"PRAGMA application_id = {FORMAT.application};"
            "CREATE TABLE pages (id INTEGER PRIMARY KEY, used INTEGER, meta BLOB);"
            "CREATE TABLE bodies (id INTEGER PRIMARY KEY, body BLOB);"
        )
    cache = PackedCache(path, clock=FakeClock(epoch=1_800_000_000))

    assert cache.get(URL) is None
    assert cache.keep(*page(URL))
    assert cache.body(URL) == b"hello"
    cache.close()

    assert sorted(each.name for each in path.parent.iterdir()) == ["pages.db", "pages.db.damaged-1800000000"]
    (record,) = caplog.records
    assert "pages.db.damaged-1800000000" in record.getMessage()


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write anywhere")
def test_a_file_in_a_folder_that_cannot_be_written_can_be_read(cache: PackedCache, path: Path) -> None:
    """U16"""
    cache.keep(*page(URL))
    cache.close()
    path.parent.chmod(0o500)
    try:
        again = PackedCache(path)

        assert again.body(URL) == b"hello"
        assert not again.keep(*page(URL, b"new"))
        assert again.body(URL) == b"hello"
        again.close()
    finally:
        path.parent.chmod(0o700)


@pytest.fixture
def view(path: Path) -> Iterator[Path]:
    """The file of the cache, where its folder cannot be written."""
    path.parent.mkdir()
    place = path.parent.with_name("view")
    place.mkdir()
    for options in (["--bind", str(path.parent)], ["-o", "remount,bind,ro"]):
        if subprocess.run(["mount", *options, str(place)], capture_output=True, check=False).returncode != 0:
            subprocess.run(["umount", "--lazy", place], capture_output=True, check=False)
            pytest.skip("no read-only view: a folder cannot be mounted here")
    yield place / path.name
    subprocess.run(["umount", "--lazy", place], check=False)


def at_work(path: Path) -> Process[bytes]:
    """A process that has written forty pages, and goes on."""
    running = writer("packed", path.parent, 0, 40, 1000)
    assert running.stdout is not None
    running.stdout.read(40)
    return running


def there(cache: PackedCache) -> int:
    return sum(cache.get(url_of(number)) is not None for number in range(40))


def test_the_journal_of_another_is_read_where_it_cannot_be_written(
    path: Path, view: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """U16, F42: of a writer that runs, and of one that was killed"""
    running = at_work(path)

    with closing(PackedCache(view)) as cache:
        assert there(cache) == 40
        running.kill()
        running.communicate()
        assert there(cache) == 40
    with closing(PackedCache(view, clock=FakeClock(epoch=4_000_000_000))) as cache:  # uses are to be written down
        assert there(cache) == 40
    assert caplog.text == ""


def test_a_journal_in_the_making_is_no_harm_where_it_cannot_be_written(
    path: Path, view: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """U16, F42: a writer was killed while it wrote the index; another one puts it in order"""
    running = at_work(path)
    with closing(PackedCache(view)) as cache:
        assert there(cache) == 40
        running.kill()
        running.communicate()

        with open(f"{path}-shm", "r+b") as index:  # the number of changes, in the first of its two heads
            index.seek(8)
            index.write(b"\xff" * 4)
        assert there(cache) < 40
        with subprocess.Popen([sys.executable, "-c", DROPPING, path], stdin=PIPE, stdout=PIPE, cwd=ROOT) as other:
            assert other.stdout is not None
            other.stdout.readline()
            cache.entry(url_of(0))  # looks at the file anew, at once

            assert there(cache) == 39
            other.communicate(timeout=120)
    assert caplog.text == ""


DROPPING = """
import sys
from curtsy.cache.packed import PackedCache
from tests.support.pages import url_of
cache = PackedCache(sys.argv[1])
cache.drop(url_of(0))
print(flush=True)
sys.stdin.read()
cache.close()
"""


def test_who_begins_to_write_is_noticed_where_that_cannot_be_done(path: Path, view: Path) -> None:
    """U16, F42: until then there is no journal"""
    with closing(PackedCache(path)) as before:
        fill(before, range(40))
    with closing(PackedCache(view)) as cache:
        assert there(cache) == 40

        with subprocess.Popen([sys.executable, "-c", DROPPING, path], stdin=PIPE, stdout=PIPE, cwd=ROOT) as other:
            assert other.stdout is not None
            other.stdout.readline()
            cache.entry(url_of(0))  # looks at the file anew, at once
            assert there(cache) == 39
            other.communicate(timeout=120)

        assert there(cache) == 39


def test_a_journal_that_cannot_be_read_is_done_without(cache: PackedCache, path: Path, view: Path) -> None:
    """U16: a copy of the two files, where SQLite cannot make the third"""
    source = path.with_name("source.db")
    with closing(PackedCache(source)) as before:
        before.keep(*page(URL))
    with closing(PackedCache(source)) as writing:
        writing.keep(*page(url_of(1)))
        for ending in ("", "-wal"):
            shutil.copy(f"{source}{ending}", f"{path}{ending}")
    again = PackedCache(view)

    for _ in range(2):
        assert again.body(URL) == b"hello"
        assert not again.keep(*page(URL, b"new"))
    again.close()


def test_bodies_are_compressed_unless_that_is_no_gain(cache: PackedCache, path: Path) -> None:
    """N6"""
    noise = random.Random(1).randbytes(5000)
    cache.keep(*page(url_of(0), b"the same again, and " * 5000))
    cache.keep(*page(url_of(1), noise))
    cache.keep(*page(url_of(2), b""))

    with closing(sqlite3.connect(path)) as db:
        sizes = sorted(size for (size,) in db.execute("SELECT length(body) FROM contents"))

    assert sizes[0] == 0
    assert sizes[1] < 200
    assert sizes[2] == 5000
    assert [cache.body(url_of(number)) for number in range(3)] == [b"the same again, and " * 5000, noise, b""]


def test_a_304_does_not_rewrite_the_body_and_a_new_page_ends_it(cache: PackedCache, path: Path) -> None:
    """N6"""

    def there() -> tuple[bytes, bytes, bytes | None]:
        with closing(sqlite3.connect(path)) as db:
            ((meta, body, renewed),) = db.execute("SELECT meta, body, renewed FROM pages JOIN contents USING (place)")
        return meta, body, renewed

    cache.keep(*page(URL, body_of(1)))
    before = there()
    kept = cache.entry(URL)
    assert kept is not None

    assert cache.refresh(msgspec.structs.replace(kept, lifetime=999.0))
    renewed = there()
    assert (before[2], renewed[:2], renewed[2] is None) == (None, before[:2], False)
    with closing(PackedCache(path)) as other:
        again = other.get(URL)
    assert again is not None
    assert (again.entry.lifetime, again.body) == (999.0, body_of(1))
    assert cache.verify() == Checked(1, 0)

    cache.keep(*page(URL, body_of(2)))
    assert there()[2] is None
    assert cache.body(URL) == body_of(2)


def test_what_is_replaced_or_dropped_leaves_nothing_behind(cache: PackedCache, path: Path) -> None:
    """N6"""
    for version in range(3):
        fill(cache, range(10), version)
    cache.drop(url_of(3))

    with closing(sqlite3.connect(path)) as db:
        places = [db.execute(f"SELECT place FROM {table} ORDER BY place").fetchall() for table in ("pages", "contents")]

    assert len(places[0]) == 9
    assert places[0] == places[1]


def test_places_that_were_never_given_out_are_damage(cache: PackedCache, path: Path) -> None:
    """U16"""
    cache.keep(*page(URL))
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("UPDATE contents SET place = 9223372036854775807")

    cache.keep(*page(url_of(1)))
    assert cache.keep(*page(url_of(1)))
    assert cache.body(url_of(1)) == page(url_of(1))[1]
    assert len(asides(path)) == 1


def test_the_last_use_is_written_in_batches_and_in_the_end(path: Path) -> None:
    """N6"""
    clock = FakeClock()
    cache = PackedCache(path, clock=clock)
    fill(cache, range(BATCH + 5))
    clock.advance(7200)

    def noted() -> int:
        with closing(sqlite3.connect(path)) as db:
            return int(
                db.execute("SELECT count(*) FROM pages WHERE used > (SELECT min(used) FROM pages)").fetchone()[0]
            )

    for number in range(BATCH - 1):
        cache.get(url_of(number))
    assert noted() == 0
    cache.get(url_of(BATCH - 1))
    assert noted() == BATCH
    cache.get(url_of(BATCH))
    cache.close()
    assert noted() == BATCH + 1


def test_no_writer_waits_long_for_another(path: Path) -> None:
    """N7: every page of four busy writers is kept"""
    writers = [writer("packed", path.parent, 1000 * number, 60, 1) for number in range(4)]
    for each in writers:
        each.communicate(timeout=120)

    cache = PackedCache(path)
    there = sum(cache.get(url_of(1000 * number + each)) is not None for number in range(4) for each in range(60))
    cache.close()
    assert there == 240


def test_a_journal_left_by_a_killed_writer_is_used(path: Path) -> None:
    """N7, F37"""
    killed = writer("packed", path.parent, 0, 1000, 1)
    assert killed.stdout is not None
    killed.stdout.read(40)
    killed.kill()
    killed.communicate()
    assert path.with_name("pages.db-wal").exists()

    cache = PackedCache(path)

    assert [cache.body(url_of(number)) for number in range(40)] == [body_of(number) for number in range(40)]
    cache.close()


def test_a_use_is_known_though_the_file_need_not_be_asked(path: Path) -> None:
    """N6: nobody has written since the page was read into memory"""
    clock = FakeClock()
    cache = PackedCache(path, clock=clock)
    for number in range(2):
        cache.keep(*page(url_of(number), random.Random(number).randbytes(100_000)))
    os.utime(path.with_name("pages.db-wal"), (1, 1))
    for number in (0, 0, 1, 1, 0):
        clock.advance(1)
        hold(cache, url_of(number))

    cache.gc(150_000)

    assert [cache.get(url_of(number)) is not None for number in range(2)] == [True, False]
    cache.close()


def test_a_row_that_says_more_than_we_know_of_is_read() -> None:
    """N6: other versions of curtsy have other fields"""
    entry, _ = page(URL)
    data = msgspec.msgpack.encode([*msgspec.msgpack.decode(packed_file.encode(entry, is_packed=True)[4:]), None])

    assert packed_file.decode(zlib.crc32(data).to_bytes(4, "big") + data) == (True, entry)


def test_a_page_that_another_cache_or_process_has_written_is_found_at_once(path: Path) -> None:
    """N6: also by a cache that has just looked for it in vain, and writes with a delay"""
    program = """
import sys
from curtsy.cache.packed import PackedCache
from tests.support.pages import fill
cache = PackedCache(sys.argv[1])
for number in sys.stdin:
    fill(cache, [int(number)])
    print(number, end="", flush=True)
"""
    one, two = PackedCache(path, delay=0.05), PackedCache(path, delay=0.05)
    with subprocess.Popen(
        [sys.executable, "-c", program, str(path)], cwd=ROOT, stdin=PIPE, stdout=PIPE, text=True
    ) as other:
        assert other.stdin is not None
        assert other.stdout is not None
        for number in range(20):
            assert one.get(url_of(number)) is None
            assert one.get(url_of(1000 + number)) is None

            fill(two, [number])
            two.flush()
            other.stdin.write(f"{1000 + number}\n")
            other.stdin.flush()
            other.stdout.readline()

            assert one.body(url_of(number)) == body_of(number)
            assert one.body(url_of(1000 + number)) == body_of(1000 + number)
        other.stdin.close()
    one.close()
    two.close()
