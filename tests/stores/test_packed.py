"""The cache in one file: what happens when that file is damaged, replaced, or somebody else's."""

from __future__ import annotations

import os
import random
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from curtsy.clock import FakeClock
from curtsy.stores.packed import PackedCache
from curtsy.stores.packfile import OURS
from curtsy.stores.pages import Checked
from curtsy.stores.rows import BATCH, number_of
from tests.support.pages import body_of, fill, page, url_of, writer

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
    return sorted(path.parent.glob("pages.db.damaged-*"))


def test_a_damaged_file_is_put_aside_and_a_new_one_begun(
    cache: PackedCache, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """U16"""
    cache.put(*page(URL))
    cache.close()
    path.write_bytes(b"no database at all " * 1000)
    again = PackedCache(path, clock=FakeClock(epoch=1_800_000_000))

    assert again.get(URL) is None
    assert again.put(*page(URL))
    assert again.get_content(URL) == b"hello"
    again.close()

    assert [aside.name for aside in asides(path)] == ["pages.db.damaged-1800000000"]
    assert asides(path)[0].read_bytes().startswith(b"no database")
    assert "put aside" in caplog.text


def test_only_the_last_damaged_file_is_held(cache: PackedCache, path: Path) -> None:
    """U16"""
    clock = FakeClock()
    for number in range(3):
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"damage %d " % number * 1000)
        clock.advance(10)
        again = PackedCache(path, clock=clock)
        assert again.get(URL) is None
        again.put(*page(URL))
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
        assert ours.get_content(url_of(number)) == body_of(number)
        assert other.get_content(url_of(number)) == body_of(number)
    assert len([aside for aside in asides(path) if aside.name[-1].isdigit()]) == 1
    ours.close()
    other.close()


def test_a_file_that_is_removed_while_open_is_begun_anew(cache: PackedCache, path: Path) -> None:
    """U16"""
    cache.put(*page(URL))
    for each in path.parent.iterdir():
        each.unlink()

    assert cache.get(URL) is None
    assert cache.put(*page(URL))
    assert cache.get_content(URL) == b"hello"
    assert path.exists()


def test_the_database_of_another_program_is_left_alone(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """U16"""
    path.parent.mkdir()
    with closing(sqlite3.connect(path)) as db:
        db.execute("CREATE TABLE pages (precious TEXT)")
        db.commit()
    before = path.read_bytes()
    cache = PackedCache(path)

    assert not cache.put(*page(URL))
    assert cache.get(URL) is None
    cache.close()

    assert path.read_bytes()[100:] == before[100:]
    assert asides(path) == []
    assert "another program" in caplog.text


@pytest.mark.parametrize("name", ["qages", "cont\udce9nts"])
def test_a_table_whose_name_is_damaged_is_damage(
    cache: PackedCache, path: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """U16"""
    cache.put(*page(URL))
    cache.close()
    old = b"pages" if name == "qages" else b"contents"
    path.write_bytes(
        path.read_bytes().replace(b"table" + old + old, b"table" + name.encode("utf-8", "surrogateescape") + old)
    )
    again = PackedCache(path)

    assert again.get(URL) is None
    assert again.put(*page(URL))
    again.close()
    assert len(asides(path)) == 1


def test_what_looks_like_a_full_disk_after_a_rest_though_there_is_room_is_damage(
    cache: PackedCache, path: Path
) -> None:
    """U16"""
    noise = random.Random(1).randbytes(20_000)
    cache.put(*page(URL, noise))
    cache.close()
    data = bytearray(path.read_bytes())
    start = data.index(noise[:100])
    here = next(size for size in range(100, 4096) if data[start : start + size] != noise[:size]) - 1
    data[start + here : start + here + 4] = b"\x4d\x6a\x6a\xbb"  # where the body goes on: far beyond the end
    path.write_bytes(data)
    clock = FakeClock()
    again = PackedCache(path, clock=clock)

    while again.put(*page(url_of(len(list(again.entries()))), noise)):  # until its place in the tree is needed
        pass
    if not asides(path):  # else this version of SQLite has seen at once what it is
        clock.advance(61)
        assert not again.put(*page(url_of(100), noise))
    assert len(asides(path)) == 1
    assert again.put(*page(url_of(100), noise))
    assert again.get_content(url_of(100)) == noise
    again.close()


def test_what_looks_read_only_after_a_rest_though_it_is_not_is_damage(cache: PackedCache, path: Path) -> None:
    """U16"""
    cache.put(*page(URL))
    cache.close()
    data = bytearray(path.read_bytes())
    data[18] ^= 0x40  # the version of the format for writing: SQLite reads such a file and does not write it
    path.write_bytes(data)
    clock = FakeClock()
    again = PackedCache(path, clock=clock)

    assert not again.put(*page(URL))
    clock.advance(61)
    assert not again.put(*page(URL))
    assert again.put(*page(URL))
    again.close()
    assert len(asides(path)) == 1


def test_a_file_whose_tree_is_out_of_order_is_found_by_verify(cache: PackedCache, path: Path) -> None:
    """U16"""
    fill(cache, range(20))
    cache.close()
    data = bytearray(path.read_bytes())
    rest, last = divmod(number_of(page(url_of(1))[0].url_sha256) % 2**64, 256)
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
    cache.put(*page("https://example.org/b", b"of b"))
    number = number_of(page(URL)[0].url_sha256)
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("UPDATE pages SET id = ?", (number,))

    assert cache.get(URL) is None
    assert cache.get_meta(URL) is None
    assert cache.put(*page(URL, b"of a"))
    assert cache.get_content(URL) == b"of a"


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
    cache.put(*page(URL, body_of(1)))
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute(change)

    assert cache.get_content(URL) in (None, body_of(1))
    assert cache.put(*page(URL, body_of(1)))
    assert cache.get_content(URL) == body_of(1)
    assert cache.verify() == Checked(1, 0)
    assert asides(path) == []


def test_two_pages_at_one_place_are_never_mistaken_and_verify_keeps_the_one_that_is_good(
    cache: PackedCache, path: Path
) -> None:
    """N7, U16"""
    fill(cache, range(10))
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("UPDATE pages SET place = 1")

    assert cache.verify() == Checked(1, 9)
    assert [cache.get_content(url_of(number)) for number in range(10)] == [body_of(0)] + [None] * 9
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
        assert db.execute("SELECT count(*) FROM contents").fetchone() == (0,)


def test_a_file_of_an_earlier_version_is_put_aside_as_such(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """U16"""
    path.parent.mkdir()
    with closing(sqlite3.connect(path)) as db:
        db.executescript(
            f"PRAGMA application_id = {OURS}; CREATE TABLE pages (id INTEGER PRIMARY KEY, used INTEGER, meta BLOB);"
            "CREATE TABLE bodies (id INTEGER PRIMARY KEY, body BLOB);"
        )
    cache = PackedCache(path, clock=FakeClock(epoch=1_800_000_000))

    assert cache.get(URL) is None
    assert cache.put(*page(URL))
    assert cache.get_content(URL) == b"hello"
    cache.close()

    assert sorted(each.name for each in path.parent.iterdir()) == ["pages.db", "pages.db.former-1800000000"]
    (record,) = caplog.records
    assert "is of an earlier version of curtsy. It was put aside as" in record.getMessage()
    assert "damaged" not in record.getMessage()


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write anywhere")
def test_a_file_in_a_folder_that_cannot_be_written_can_be_read(cache: PackedCache, path: Path) -> None:
    """U16"""
    cache.put(*page(URL))
    cache.close()
    path.parent.chmod(0o500)
    try:
        again = PackedCache(path)

        assert again.get_content(URL) == b"hello"
        assert not again.put(*page(URL, b"new"))
        assert again.get_content(URL) == b"hello"
        again.close()
    finally:
        path.parent.chmod(0o700)


def test_bodies_are_compressed_unless_that_is_no_gain(cache: PackedCache, path: Path) -> None:
    """N6"""
    noise = random.Random(1).randbytes(5000)
    cache.put(*page(url_of(0), b"the same again, and " * 5000))
    cache.put(*page(url_of(1), noise))
    cache.put(*page(url_of(2), b""))

    with closing(sqlite3.connect(path)) as db:
        sizes = sorted(size for (size,) in db.execute("SELECT length(body) FROM contents"))

    assert sizes[0] == 0
    assert sizes[1] < 200
    assert sizes[2] == 5000
    assert [cache.get_content(url_of(number)) for number in range(3)] == [b"the same again, and " * 5000, noise, b""]


def test_a_304_does_not_rewrite_the_body_and_a_new_page_ends_it(cache: PackedCache, path: Path) -> None:
    """N6"""

    def there() -> tuple[bytes, bytes, bytes | None]:
        with closing(sqlite3.connect(path)) as db:
            ((meta, body, renewed),) = db.execute("SELECT meta, body, renewed FROM pages JOIN contents USING (place)")
        return meta, body, renewed

    cache.put(*page(URL, body_of(1)))
    before = there()
    kept = cache.get_meta(URL)
    assert kept is not None

    assert cache.refresh(msgspec.structs.replace(kept, lifetime=999.0))
    renewed = there()
    assert (before[2], renewed[:2], renewed[2] is None) == (None, before[:2], False)
    again = PackedCache(path).get(URL)
    assert again is not None
    assert (again.entry.lifetime, again.body) == (999.0, body_of(1))
    assert cache.verify() == Checked(1, 0)

    cache.put(*page(URL, body_of(2)))
    assert there()[2] is None
    assert cache.get_content(URL) == body_of(2)


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
    cache.put(*page(URL))
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("UPDATE contents SET place = 9223372036854775807")

    cache.put(*page(url_of(1)))
    assert cache.put(*page(url_of(1)))
    assert cache.get_content(url_of(1)) == page(url_of(1))[1]
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
        each.communicate(timeout=30)

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

    assert [cache.get_content(url_of(number)) for number in range(40)] == [body_of(number) for number in range(40)]
    cache.close()
