"""The cache in files: how it looks on the disk, and what it makes of what it finds there."""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import subprocess
import sys
import time
import zlib
from collections.abc import Callable
from datetime import datetime
from email.utils import formatdate
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import curtsy
from curtsy.cache import entry_files
from curtsy.cache.disk import DiskCache
from curtsy.cache.entry_files import folder_name
from curtsy.cache.file_index import ABANDONED
from curtsy.cache.keys import MIB, Checked
from curtsy.core.time import SECOND
from curtsy.testing import FakeClock
from tests.support.pages import NOW, ROOT, fill, hold, page, url_of

URL = "https://example.org/a"
HASH = hashlib.sha256(URL.encode()).hexdigest()


def names(root: Path) -> list[str]:
    """The files of a cache, without its index."""
    files = (path for path in root.rglob("*") if path.is_file() and not path.name.startswith(".index"))
    return sorted(str(path.relative_to(root)) for path in files)


def test_a_page_is_two_files_in_a_folder_of_its_host(tmp_path: Path) -> None:
    """N6"""
    DiskCache(tmp_path).keep(*page(URL, b"<p>hello"))

    assert names(tmp_path) == [f"example.org/{HASH[:16]}.html", f"example.org/{HASH[:16]}.meta.json"]
    assert (tmp_path / "example.org" / f"{HASH[:16]}.html").read_bytes() == b"<p>hello"


def test_the_user_can_name_collection_and_document(tmp_path: Path) -> None:
    """N6"""
    cache = DiskCache(tmp_path, collection="handbook", document="chapter 1")

    cache.keep(*page(URL))

    folder = tmp_path / "handbook" / folder_name("chapter 1")
    assert names(folder) == [f"{HASH[:16]}.html", f"{HASH[:16]}.meta.json"]
    assert cache.get(URL) is not None
    assert DiskCache(tmp_path, collection="handbook").get(URL) is None
    assert len(list(DiskCache(tmp_path).entries())) == 1


def test_a_page_is_found_whatever_its_folders_are_called(tmp_path: Path) -> None:
    """N6: the newest, if it is kept twice"""
    old, new = page(URL, b"old", now=NOW), page(URL, b"new", now=NOW + 1)
    DiskCache(tmp_path, collection="handbook").keep(*new)
    DiskCache(tmp_path, collection="handbook", document="a").keep(*old)
    cache = DiskCache(tmp_path)
    cache.keep(*page("https://example.org/b"))

    found = cache.pages(URL)

    assert cache.get(URL) is None
    assert [(each.entry.url, each.body) for each in found] == [(URL, b"new"), (URL, b"old")]
    assert cache.pages("https://example.org/c") == []
    assert cache.pages("not a URL") == []


def test_the_meta_file_can_be_read_by_people_and_programs(tmp_path: Path) -> None:
    """N6"""
    modified = formatdate(784_111_777, usegmt=True)
    headers = [("ETag", '"1"'), ("Content-Type", "text/html"), ("Last-Modified", modified)]
    DiskCache(tmp_path).keep(*page(URL, b"hello", headers=headers))

    text = (tmp_path / "example.org" / f"{HASH[:16]}.meta.json").read_text()
    meta = json.loads(text)

    assert meta["url"] == URL
    assert meta["urlSha256"] == HASH
    assert meta["bodySha256"] == hashlib.sha256(b"hello").hexdigest()
    assert meta["etag"] == '"1"'
    assert meta["lastModified"] == modified
    assert meta["fetchedAt"] == "2027-01-15T08:00:00.000Z"
    assert meta["status"] == 200
    assert "Content-Type: text/html" in meta["headers"]
    assert text.count("\n") > 15


@pytest.mark.parametrize(
    "name",
    ["..", ".", "", "../../etc", "a/b", "a\\b", "C:", "con", "NUL.txt", "a.", " a", "\0", "ü", "x" * 5000, ".git"],
)
def test_no_name_that_a_user_gives_leads_elsewhere(tmp_path: Path, name: str) -> None:
    """F63"""
    cache = DiskCache(tmp_path / "cache", collection=name, document=name)

    assert cache.keep(*page(URL))

    (body,) = tmp_path.rglob("*.html")
    assert body.relative_to(tmp_path).parts[0] == "cache"
    assert len(body.relative_to(tmp_path).parts) == 4
    assert cache.get(URL) is not None


def test_names_that_differ_give_folders_that_differ() -> None:
    """F63"""
    given = ["a", "a.", "a b", "a_b", "a/b", "", ".", "..", "_", "x" * 200, "x" * 201, "con", "_con", "é", "e"]

    assert len({folder_name(name).lower() for name in given}) == len(given)


def test_another_page_under_the_same_sixteen_digits_is_a_miss_and_is_replaced(tmp_path: Path) -> None:
    """N6, F63: as if the two hashes began alike"""
    cache = DiskCache(tmp_path)
    cache.keep(*page("https://example.org/b", b"of b"))
    other = hashlib.sha256(b"https://example.org/b").hexdigest()[:16]
    for ending in (".html", ".meta.json"):
        (tmp_path / "example.org" / (other + ending)).rename(tmp_path / "example.org" / (HASH[:16] + ending))

    assert cache.get(URL) is None
    assert cache.entry(URL) is None
    assert cache.keep(*page(URL, b"of a"))
    assert cache.body(URL) == b"of a"


@pytest.mark.parametrize("missing", [".html", ".meta.json"])
def test_half_a_page_is_a_miss_and_heals(tmp_path: Path, missing: str) -> None:
    """N7: what a writer that is killed between its two files leaves"""
    cache = DiskCache(tmp_path)
    cache.keep(*page(URL))
    (tmp_path / "example.org" / (HASH[:16] + missing)).unlink()

    assert cache.get(URL) is None
    assert list(cache.entries()) == []
    assert cache.verify() == Checked(0, 0)
    assert cache.keep(*page(URL))
    assert cache.body(URL) == b"hello"


def test_an_old_meta_file_beside_a_new_body_is_damage(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """N7"""
    cache = DiskCache(tmp_path)
    cache.keep(*page(URL))
    (tmp_path / "example.org" / f"{HASH[:16]}.html").write_bytes(b"something else")
    os.utime(tmp_path / "example.org" / f"{HASH[:16]}.meta.json", (1, 1))

    assert cache.get(URL) is None
    assert names(tmp_path) == []
    assert "damaged" in caplog.text


def test_a_page_in_memory_is_read_anew_when_its_meta_file_changes(tmp_path: Path) -> None:
    """N7"""
    cache = DiskCache(tmp_path)
    cache.keep(*page(URL))
    os.utime(tmp_path / "example.org" / f"{HASH[:16]}.meta.json", (1, 1))
    hold(cache, URL)
    meta = tmp_path / "example.org" / f"{HASH[:16]}.meta.json"
    meta.write_bytes(meta.read_bytes().replace(b'"status": 200', b'"status": 404'))

    assert cache.get(URL) is None


def test_a_page_whose_meta_file_is_new_is_not_remembered(tmp_path: Path) -> None:
    """N6: another of the same size, written in the same tick of a coarse clock, may get the number of the old file"""
    cache = DiskCache(tmp_path)
    cache.keep(*page(URL))
    meta, body = (tmp_path / "example.org" / (HASH[:16] + ending) for ending in (".meta.json", ".html"))

    for age, content in ((-3600, None), (3600, b"hello")):
        cache.keep(*page(URL))
        os.utime(meta, (time.time() - age, time.time() - age))
        hold(cache, URL)
        assert cache.body(URL) == b"hello"
        body.write_bytes(b"other")
        assert cache.body(URL) == content


def test_a_page_that_another_replaced_while_a_use_was_noted_is_read_anew(tmp_path: Path) -> None:
    """N6: then the new file may have the number, the size and the time of the old one"""
    cache = DiskCache(tmp_path)
    meta, body = (tmp_path / "example.org" / (HASH[:16] + ending) for ending in (".meta.json", ".html"))
    cache.keep(*page(URL, b"other"))
    written = meta.read_bytes()
    cache.keep(*page(URL))
    os.utime(meta, (1, 1))
    hold(cache, URL)
    assert cache.body(URL) == b"hello"
    os.utime(meta, (time.time(), 1))
    assert cache.body(URL) == b"hello"
    before = meta.stat()

    meta.write_bytes(written)
    body.write_bytes(b"other")
    while meta.stat().st_ctime_ns == before.st_ctime_ns:  # at the next tick
        os.utime(meta, (time.time(), 1))
    os.utime(meta, (time.time(), 1))

    assert (meta.stat().st_mtime_ns, meta.stat().st_ino) == (before.st_mtime_ns, before.st_ino)
    assert cache.body(URL) == b"other"


def test_a_meta_file_that_is_about_to_be_written_is_a_miss_and_no_damage(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """N7"""
    clock = FakeClock(epoch=time.time())
    cache = DiskCache(tmp_path, clock=clock)
    cache.keep(*page(URL))
    (tmp_path / "example.org" / f"{HASH[:16]}.meta.json").write_bytes(b"")

    assert cache.get(URL) is None
    assert cache.entry(URL) is None
    assert list(cache.entries()) == []
    assert cache.verify() == Checked(0, 0)
    assert not cache.refresh(page(URL)[0])
    assert caplog.text == ""

    clock.advance(4000)
    cache.gc()  # its writer was killed
    cache.gc()
    assert names(tmp_path) == []


def test_a_meta_file_may_say_of_its_body_what_it_likes(tmp_path: Path) -> None:
    """N7: so much memory is not asked for"""
    cache = DiskCache(tmp_path)
    entry, body = page(URL)

    for size in (10**18, 10**30):
        cache.keep(entry, body)
        meta = entry_files.encode(msgspec.structs.replace(entry, body_size=size))
        (tmp_path / "example.org" / f"{HASH[:16]}.meta.json").write_bytes(meta)
        assert cache.body(URL) in (None, body)


def test_a_meta_file_that_says_more_than_we_know_of_is_read() -> None:
    """N6: other versions of curtsy have other fields"""
    entry, _ = page(URL)
    text = entry_files.encode(entry).rpartition(b',\n  "check"')[0] + b',\n  "encoding": null'

    assert entry_files.decode(b'%b,\n  "check": "%08x"\n}\n' % (text, zlib.crc32(text))) == entry


def test_a_page_with_more_headers_than_a_meta_file_may_have_is_not_kept(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """N6"""
    cache = DiskCache(tmp_path)
    cache.keep(*page(URL))
    kept = cache.get(URL)
    assert kept is not None
    large = [("X-Large", "x" * MIB)]

    assert not cache.refresh(msgspec.structs.replace(kept.entry, headers=tuple(large)))
    assert cache.get(URL) == kept
    assert not cache.keep(*page(URL, headers=large))
    assert cache.get(URL) is None
    assert caplog.text == ""


def test_what_killed_writers_left_is_removed_after_an_hour(tmp_path: Path) -> None:
    """N7"""
    clock = FakeClock(epoch=time.time())
    cache = DiskCache(tmp_path, clock=clock)
    cache.keep(*page(URL))
    folder = tmp_path / "example.org"
    left = [f"{HASH[:16]}.99-ab-1.html.part", "0123456789abcdef.html", "fedcba9876543210.meta.json"]
    for name in left:
        (folder / name).write_bytes(b"half")
    (folder / "notes.txt").write_text("not ours")
    (tmp_path / "0123456789abcdef.txt").write_text("not ours")

    cache.gc()
    assert set(left) <= {path.name for path in folder.iterdir()}

    clock.advance(4000)
    cache.gc()
    assert len(names(tmp_path)) == 4
    assert (folder / "notes.txt").exists()
    assert cache.get(URL) is not None


def test_pages_of_a_killed_writer_come_into_the_index_a_minute_later(tmp_path: Path) -> None:
    """N7: pages are added to the index in batches, and the files are authoritative"""
    with contextlib.closing(DiskCache(tmp_path)) as cache:
        fill(cache, [0])
        assert len(list(cache.entries())) == 1  # the folder has been scanned
    program = """
import os, signal, sys
from curtsy.cache.disk import DiskCache
from tests.support.pages import fill
cache = DiskCache(sys.argv[1])
fill(cache, range(1, 4))
os.kill(os.getpid(), signal.SIGKILL)
"""
    killed = subprocess.run([sys.executable, "-c", program, str(tmp_path)], cwd=ROOT, check=False)
    assert killed.returncode != 0

    with contextlib.closing(DiskCache(tmp_path, clock=FakeClock(epoch=time.time() + ABANDONED + 1))) as cache:
        assert {entry.url for entry in cache.entries()} == {url_of(number) for number in range(4)}
        assert cache.size == sum((tmp_path / name).stat().st_size for name in names(tmp_path))


def open_files() -> list[str]:
    """What this process has open; only Linux can tell."""
    found = []
    with contextlib.suppress(FileNotFoundError):  # no /proc
        for number in os.listdir("/proc/self/fd"):
            with contextlib.suppress(FileNotFoundError):  # another thread's, closed meanwhile
                found.append(os.readlink(f"/proc/self/fd/{number}"))
    return found


def test_no_file_is_left_open_or_half_written(tmp_path: Path) -> None:
    """N7"""
    cache = DiskCache(tmp_path)
    fill(cache, range(20))
    for number in range(20):
        cache.get(url_of(number))

    assert not [name for name in names(tmp_path) if name.endswith(".part")]
    assert len(names(tmp_path)) == 40
    assert [path for path in open_files() if path.startswith(str(tmp_path)) and ".index" not in path] == []
    cache.close()
    assert [path for path in open_files() if path.startswith(str(tmp_path))] == []


def test_the_last_use_is_noted_once_an_hour(tmp_path: Path) -> None:
    """N6"""
    clock = FakeClock(epoch=time.time())
    cache = DiskCache(tmp_path, clock=clock)
    cache.keep(*page(URL))
    meta = tmp_path / "example.org" / f"{HASH[:16]}.meta.json"
    written = meta.stat().st_mtime_ns

    cache.get(URL)
    early = meta.stat().st_atime
    clock.advance(7200)
    cache.get(URL)

    assert early < clock.now().epoch / SECOND - 3600
    assert abs(meta.stat().st_atime - clock.now().epoch / SECOND) < 2
    assert meta.stat().st_mtime_ns == written


def test_many_short_lived_programs_keep_the_limit_between_them(tmp_path: Path) -> None:
    """N6: none of them writes enough to look at the size for that alone"""
    for number in range(200):
        DiskCache(tmp_path, max_size=400_000).keep(*page(url_of(number), bytes(4000)))

    assert DiskCache(tmp_path).size < 600_000


def a_file(place: Path) -> None:
    place.write_text("in the place of a folder")


def a_circle(place: Path) -> None:
    place.symlink_to(place)


def nowhere(place: Path) -> None:
    place.symlink_to("nowhere")


def somebody_else_s(place: Path) -> None:
    if not hasattr(os, "geteuid") or os.geteuid() == 0:
        pytest.skip("root may write anywhere")
    place.mkdir(0o500)


@pytest.mark.parametrize("put_there", [a_file, a_circle, nowhere, somebody_else_s])
def test_a_folder_that_cannot_be_written_stops_nothing_but_its_own_pages(
    tmp_path: Path, put_there: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    """U16"""
    cache = DiskCache(tmp_path)
    put_there(tmp_path / "example.org")

    for number in range(10):
        assert not cache.keep(*page(f"https://example.org/{number}"))
        assert cache.get(f"https://example.org/{number}") is None
        assert cache.keep(*page(url_of(number)))
        assert cache.get(url_of(number)) is not None

    (warning,) = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert str(tmp_path / "example.org") in warning


def test_a_collection_that_cannot_be_written_is_left_alone_for_a_while(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """F40, U16: there is no other place for its pages"""
    clock = FakeClock()
    cache = DiskCache(tmp_path, collection="handbook", clock=clock)
    (tmp_path / "handbook").write_text("in the place of a folder")
    assert not cache.keep(*page(URL))
    assert str(tmp_path / "handbook") in caplog.text
    (tmp_path / "handbook").unlink()

    assert not cache.keep(*page(URL))
    clock.advance(61)
    assert cache.keep(*page(URL))


@pytest.mark.parametrize("ending", [".html", ".meta.json"])
@pytest.mark.parametrize("is_half", [False, True])
def test_an_empty_folder_in_the_place_of_a_file_is_removed(tmp_path: Path, ending: str, is_half: bool) -> None:
    """U16"""
    cache = DiskCache(tmp_path)
    cache.keep(*page(URL))
    for each in (".html", ".meta.json"):
        if each == ending or is_half:
            (tmp_path / "example.org" / (HASH[:16] + each)).unlink()
    (tmp_path / "example.org" / (HASH[:16] + ending)).mkdir()

    assert cache.get(URL) is None
    cache.keep(*page(URL, b"new"))
    assert cache.keep(*page(URL, b"new"))
    assert cache.body(URL) == b"new"


@pytest.mark.parametrize("ending", [".html", ".meta.json"])
def test_a_folder_with_something_in_it_is_left_alone_and_so_are_other_pages(tmp_path: Path, ending: str) -> None:
    """U16"""
    cache = DiskCache(tmp_path)
    cache.keep(*page(URL))
    place = tmp_path / "example.org" / (HASH[:16] + ending)
    place.unlink()
    place.mkdir()
    (place / "precious").write_text("not ours")

    assert not cache.keep(*page(URL, b"new"))
    assert cache.get(URL) is None
    assert cache.keep(*page("https://example.org/b"))
    assert cache.body("https://example.org/b") == b"hello"
    assert (place / "precious").read_text() == "not ours"
    assert [name for name in names(tmp_path) if HASH[:16] in name] == [f"example.org/{HASH[:16]}{ending}/precious"]


# --- By collection and document ------------------------------------------------------------------------------------


def test_a_page_is_put_and_read_with_nothing_but_text_and_bytes(tmp_path: Path) -> None:
    """N6: `put`, `get_meta`, `get_content`, as a program uses them that knows no other type"""
    cache = curtsy.DiskCache(tmp_path)

    assert cache.get_meta("handbook", "chapter 1", URL) is None
    assert cache.get_content("handbook", "chapter 1", URL) is None
    assert cache.put("handbook", "chapter 1", URL, b"hello", '"1"')

    assert cache.get_content("handbook", "chapter 1", URL) == b"hello"
    assert cache.get_content("handbook", "chapter 2", URL) is None
    meta = cache.get_meta("handbook", "chapter 1", URL)
    assert meta is not None
    assert (meta["url"], meta["etag"], meta["status"]) == (URL, '"1"', 200)
    assert meta["bodySha256"] == hashlib.sha256(b"hello").hexdigest()
    [path] = (tmp_path / "handbook").rglob("*.meta.json")
    assert json.loads(path.read_text()) | {"check": ""} == meta | {"check": ""}
    assert path.with_name(path.name.replace(".meta.json", ".html")).read_bytes() == b"hello"
    assert datetime.fromisoformat(meta["fetchedAt"]).timestamp() == pytest.approx(time.time(), abs=60)


@given(collection=st.text(max_size=30), document=st.text(max_size=30), body=st.binary(max_size=100))
@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_names_have_folders_of_their_own_under_the_root(
    collection: str, document: str, body: bytes, tmp_path: Path
) -> None:
    """N6, F63"""
    root = tmp_path / "pages"
    cache = curtsy.DiskCache(root)

    assert cache.put(collection, document, URL, body)

    assert cache.get_content(collection, document, URL) == body
    assert cache.get_content(collection + "x", document, URL) is None
    assert {path.parent.parent.parent for path in tmp_path.rglob("*.html")} == {root}
    cache.gc(0)


@pytest.mark.parametrize("url", ["", "no URL", "ftp://example.org/", "https://"])
def test_what_is_no_url_is_not_kept_and_what_is_no_text_is_an_error(url: str, tmp_path: Path) -> None:
    """N6, N7"""
    cache: Any = curtsy.DiskCache(tmp_path)

    assert not cache.put("a", "b", url, b"hello")
    assert cache.get_meta("a", "b", url) is None
    assert cache.get_content("a", "b", url) is None
    for wrong, shown in (
        ((None, "b", URL, b""), "collection = None"),
        (("a", 1, URL, b""), "document = 1"),
        (("a", "b", URL, "text"), "body.*str"),
    ):
        with pytest.raises(curtsy.PolicyError, match=f"^{shown}"):
            cache.put(*wrong)
    assert list(tmp_path.iterdir()) == []


def test_an_etag_that_cannot_be_sent_is_not_kept_as_one(tmp_path: Path) -> None:
    """F15"""
    cache = curtsy.DiskCache(tmp_path)

    assert cache.put("a", "b", URL, b"hello", '"x"\r\nX-Injected: 1')

    meta = cache.get_meta("a", "b", URL)
    assert meta is not None
    assert meta["etag"] is None
