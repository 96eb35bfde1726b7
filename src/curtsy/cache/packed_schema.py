"""Tables of the packed cache, and the functions that read, check and remove their rows.

`pages` maps a page number to a place in `contents` and to the time of the last use, in milliseconds since the epoch. A
page number is the first 61 bits of the URL's SHA-256 and three bits for the variant. Because hashes are scattered, this
table is kept small. `contents` is in order of insertion, so pages of one batch are adjacent. With the hash as the key
of one table, writing takes three times as long. A 304 updates `pages.renewed`, so the body is not rewritten.

SQLite does not detect a flipped bit. So each encoded entry has a checksum and holds the full hashes of the URL and of
the body. The body's hash covers the stored, possibly compressed bytes, because hashing fewer bytes is faster.
"""

from __future__ import annotations

import sqlite3
import threading
import zlib
from collections.abc import Callable

import msgspec
import zstandard

from curtsy.cache.keys import Page, sha256_of
from curtsy.core.cache import Entry
from curtsy.core.variant import MOST_VARIANTS

Row = tuple[int, Entry | None]
"""Page number, and the entry; None if the page is damaged."""

LEVEL = 1
"""zstd level. Level 3 takes a fifth more time and saves a twentieth of the space."""

BATCH = 64
"""Pages per transaction or query, so that the lock is held only briefly."""

TABLES = {"pages", "contents"}
FORMER_TABLES = {"pages", "bodies"}
"""Tables of the previous layout."""

# `place` is in the index so that evicted pages are adjacent, too.
SCHEMA = """
CREATE TABLE IF NOT EXISTS pages
    (id INTEGER PRIMARY KEY, used INTEGER NOT NULL, place INTEGER NOT NULL, renewed BLOB);
CREATE TABLE IF NOT EXISTS contents (place INTEGER PRIMARY KEY, meta BLOB NOT NULL, body BLOB NOT NULL);
CREATE INDEX IF NOT EXISTS pages_by_use ON pages (used, place);
"""

_FROM = "FROM pages LEFT JOIN contents USING (place)"
_USED = "ifnull(CAST(used AS INTEGER), 0)"  # a damaged file may hold any type
META = f"SELECT {_USED}, ifnull(renewed, meta) {_FROM} WHERE id = ?"
_VARIANTS = f"{_FROM} WHERE id BETWEEN ?1 AND ?1 + {MOST_VARIANTS - 1} ORDER BY id"
METAS = f"SELECT id, ifnull(renewed, meta) {_VARIANTS}"
BOTHS = f"SELECT id, {_USED}, ifnull(renewed, meta), body {_VARIANTS}"
SLOTS = f"SELECT id, {_USED}, place, ifnull(renewed, meta) {_VARIANTS}"
BY_USE = f"SELECT id, {_USED}, length(ifnull(renewed, meta)) + length(body) {_FROM} ORDER BY used LIMIT ?"


class _Zstd(threading.local):
    """Compressor and decompressor per thread, because neither is safe for threads."""

    def __init__(self) -> None:
        self.compressor = zstandard.ZstdCompressor(level=LEVEL)
        self.decompressor = zstandard.ZstdDecompressor()


_zstd = _Zstd()


def _meta_type() -> type[msgspec.Struct]:
    """Return the struct of an encoded entry: `is_packed` and the fields of `Entry`, as an array."""
    fields = [
        (each.name, each.type) if each.required else (each.name, each.type, each.default)
        for each in msgspec.structs.fields(Entry)
    ]
    return msgspec.defstruct("_Meta", [("is_packed", bool), *fields], array_like=True, gc=False)


_metas = msgspec.msgpack.Decoder(_meta_type())  # a typed decoder takes a fifth of the time


def first_number(key: str) -> int:
    """Return the page number of a URL's first variant. Those of the other variants follow it."""
    return first_of(int(key[:16], 16) - 2**63)


def first_of(number: int) -> int:
    """Return the number of the first variant of the same URL."""
    return number & -MOST_VARIANTS


def pack(body: bytes) -> tuple[bool, bytes]:
    """Return whether the body is compressed, and the bytes to store. Saving less than 5 % is not worth it."""
    packed = _zstd.compressor.compress(body)
    return (True, packed) if len(packed) < len(body) * 0.95 else (False, body)


def encode(entry: Entry, is_packed: bool) -> bytes:
    """Encode an entry, after a CRC-32 of the data."""
    data = msgspec.msgpack.encode((is_packed, *msgspec.structs.astuple(entry)))
    return zlib.crc32(data).to_bytes(4, "big") + data


def decode(meta: object) -> tuple[bool, Entry] | None:
    """Return whether the body is compressed, and the entry; None if the data is damaged."""
    if not isinstance(meta, bytes) or int.from_bytes(meta[:4], "big") != zlib.crc32(meta[4:]):
        return None
    try:
        is_packed, *values = msgspec.structs.astuple(_metas.decode(meta[4:]))
    except msgspec.MsgspecError:  # written by another version of curtsy
        return None
    return is_packed, Entry(*values)


def page_of(meta: object, body: object) -> Page | None:
    """Return the page in two columns after checking it; None if it is damaged."""
    decoded = decode(meta)
    if decoded is None or not isinstance(body, bytes):
        return None
    return checked_page(decoded[1], body, decoded[0])


def checked_page(entry: Entry, body: bytes, is_packed: bool) -> Page | None:
    """Return the page with its body decompressed; None if the body does not match its hash."""
    if sha256_of(body) != entry.body_sha256:
        return None
    try:
        return Page(entry, _zstd.decompressor.decompress(body) if is_packed else body)
    except zstandard.ZstdError:
        return None


def entries_in(db: sqlite3.Connection, key: str) -> list[tuple[int, Entry]]:
    """Return number and entry of each variant of the URL with this SHA-256."""
    rows = [(number, decode(meta)) for number, meta in db.execute(METAS, (first_number(key),))]
    return [(number, each[1]) for number, each in rows if each is not None and each[1].url_sha256 == key]


def pages_in(db: sqlite3.Connection, key: str) -> list[Page]:
    """Return the undamaged variants of the URL with this SHA-256."""
    pages = [page_of(meta, body) for _, _, meta, body in db.execute(BOTHS, (first_number(key),))]
    return [page for page in pages if page is not None and page.entry.url_sha256 == key]


def remove(db: sqlite3.Connection, key: str, variant: str | None) -> None:
    """Remove a variant of the URL with this SHA-256; all variants if `variant` is None."""
    gone = [number for number, entry in entries_in(db, key) if variant is None or entry.variant == variant]
    if gone:
        delete(db, gone)


def kept_of(db: sqlite3.Connection, firsts: list[int]) -> set[int]:
    """Return those first-variant numbers of whose URLs any variant is stored."""
    given = ", ".join(["(?)"] * len(firsts))
    query = (
        f"WITH given(first) AS (VALUES {given}) SELECT id FROM given CROSS JOIN pages ON id BETWEEN first AND first + ?"
    )
    return {first_of(number) for (number,) in db.execute(query, (*firsts, MOST_VARIANTS - 1))}


def slot_for(
    db: sqlite3.Connection, entry: Entry, used_at: Callable[[int], int]
) -> tuple[int, int | None, Entry | None, bool]:
    """Return the number for a page; and place, entry and compression of the row stored there.

    The number is that of the same variant, else of a damaged row, else a free one, else the least recently used. The
    place is None for a free number. The entry is None unless it is the same variant. `used_at` returns the last
    use known in memory, or 0; the later of it and the stored one counts.
    """
    first = first_number(entry.url_sha256)
    slots = [(number, used, place, decode(meta)) for number, used, place, meta in db.execute(SLOTS, (first,))]
    for number, _, place, kept in slots:
        if kept is not None and (kept[1].url_sha256, kept[1].variant) == (entry.url_sha256, entry.variant):
            return number, place, kept[1], kept[0]
    for number, _, place, kept in slots:
        if kept is None:  # damaged
            return number, place, None, False
    taken = {number for number, *_ in slots}
    free = [number for number in range(first, first + MOST_VARIANTS) if number not in taken]
    if free:
        return free[0], None, None, False
    number, _, place, _ = min(slots, key=lambda slot: max(slot[1], used_at(slot[0])))
    return number, place, None, False


def known(db: sqlite3.Connection, last: int) -> list[Row]:
    """Return the next `BATCH` rows after the number `last`. Bodies are not checked."""
    query = f"SELECT id, ifnull(renewed, meta) {_FROM} WHERE id > ? ORDER BY id LIMIT ?"
    rows = [(number, decode(meta)) for number, meta in db.execute(query, (last, BATCH))]
    return [(number, None if decoded is None else decoded[1]) for number, decoded in rows]


def checked(db: sqlite3.Connection, last: int) -> list[Row]:
    """Return the next `BATCH` rows after the number `last`, with bodies checked."""
    query = f"SELECT id, ifnull(renewed, meta), body {_FROM} WHERE id > ? ORDER BY id LIMIT ?"
    rows = [(number, page_of(meta, body)) for number, meta, body in db.execute(query, (last, BATCH))]
    return [
        (number, page.entry if page and first_number(page.entry.url_sha256) == first_of(number) else None)
        for number, page in rows
    ]


def numbers(db: sqlite3.Connection, last: int) -> list[int]:
    """Return the next `BATCH` page numbers after `last`."""
    return [each for (each,) in db.execute("SELECT id FROM pages WHERE id > ? ORDER BY id LIMIT ?", (last, BATCH))]


def last_place(db: sqlite3.Connection) -> int:
    """Return the highest place in use, or 0. Raises DatabaseError if it is implausible."""
    (last,) = db.execute("SELECT max(place) FROM contents").fetchone()
    if (last or 0) >= 2**62:
        raise sqlite3.DatabaseError("its pages stand at places that were never given out")
    return int(last or 0)


def note_uses(db: sqlite3.Connection, uses: list[tuple[int, int]]) -> None:
    """Store the times of last use: pairs of milliseconds and page number."""
    db.execute("BEGIN IMMEDIATE")
    db.executemany("UPDATE pages SET used = ? WHERE id = ?", uses)
    db.execute("COMMIT")


def delete(db: sqlite3.Connection, numbers: list[int]) -> None:
    """Remove the pages that exist."""
    given = [(number,) for number in numbers]
    db.execute("BEGIN IMMEDIATE")
    db.executemany("DELETE FROM contents WHERE place = (SELECT place FROM pages WHERE id = ?)", given)
    db.executemany("DELETE FROM pages WHERE id = ?", given)
    db.execute("COMMIT")


def disown(db: sqlite3.Connection, numbers: list[int]) -> None:
    """Remove rows of `pages` but keep `contents`: in a damaged file, the place may be another page's."""
    db.execute("BEGIN IMMEDIATE")
    db.executemany("DELETE FROM pages WHERE id = ?", [(number,) for number in numbers])
    db.execute("COMMIT")


def sweep(db: sqlite3.Connection) -> None:
    """Remove contents without a page. Only damage causes them, and no other code finds them."""
    lost = db.execute("SELECT place FROM contents WHERE place NOT IN (SELECT place FROM pages)").fetchall()
    if lost:
        db.execute("BEGIN IMMEDIATE")
        db.executemany("DELETE FROM contents WHERE place = ?", lost)
        db.execute("COMMIT")


def _pragma(db: sqlite3.Connection, name: str) -> int:
    return int(db.execute(f"PRAGMA {name}").fetchone()[0])


def version(db: sqlite3.Connection) -> int:
    """Return a number that changes when another connection writes. Comparable only within one connection."""
    return _pragma(db, "data_version")


def size(db: sqlite3.Connection) -> int:
    """Return the bytes of the file that are in use."""
    return (_pragma(db, "page_count") - _pragma(db, "freelist_count")) * _pragma(db, "page_size")


def give_back(db: sqlite3.Connection) -> None:
    """Shrink the file by its free pages, 1000 at a time, and truncate the WAL."""
    free, before = _pragma(db, "freelist_count"), 0
    while free and free != before:
        db.execute("PRAGMA incremental_vacuum(1000)").fetchall()
        free, before = _pragma(db, "freelist_count"), free
    db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
