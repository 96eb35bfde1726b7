"""The rows of the packed cache: what stands in its two tables, and how it is read, checked and removed.

The tables share their key, the first 64 bits of the URL's SHA-256: `pages` has all but the body, so that a 304 and the
note of a page's last use rewrite little; `bodies` has the rest. SQLite does not notice a flipped bit, so what is known
of a page carries a checksum of its own, and in it are the full hashes of URL and body.
"""

from __future__ import annotations

import hashlib
import sqlite3
import threading
import zlib

import msgspec
import zstandard

from curtsy.core.cache import Entry
from curtsy.stores.pages import Page

Row = tuple[int, Entry | None]
"""The number of a page, and all but its body if that is good."""

LEVEL = 3
"""Of zstd: beyond it, the time grows much faster than the gain."""

BATCH = 64
"""Pages that are dropped, looked at or noted as used in one go, so that nobody waits long for the lock."""

TABLES = {"pages", "bodies"}
SCHEMA = """
CREATE TABLE IF NOT EXISTS pages (id INTEGER PRIMARY KEY, used INTEGER NOT NULL, meta BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS bodies (id INTEGER PRIMARY KEY, body BLOB NOT NULL);
CREATE INDEX IF NOT EXISTS pages_by_use ON pages (used);
"""

BOTH = "SELECT used, meta, body FROM pages LEFT JOIN bodies USING (id) WHERE id = ?"
BY_USE = "SELECT id, length(meta) + length(body) FROM pages LEFT JOIN bodies USING (id) ORDER BY used LIMIT ?"


class _Zstd(threading.local):
    """What compresses: for each thread its own, for no two may use one."""

    def __init__(self) -> None:
        # Frames do not say how large their content is, so that a damaged one cannot ask for memory; what is known of
        # the page does.
        self.compressor = zstandard.ZstdCompressor(level=LEVEL, write_content_size=False)
        self.decompressor = zstandard.ZstdDecompressor()


_zstd = _Zstd()

_FIELDS = Entry.__struct_encode_fields__


def number_of(key: str) -> int:
    """The number under which the page with a URL's hash is kept."""
    return int.from_bytes(bytes.fromhex(key[:16]), "big", signed=True)


def pack(body: bytes) -> tuple[bool, bytes]:
    """Whether a body is compressed, and what to keep of it then: some are no smaller for it."""
    packed = _zstd.compressor.compress(body)
    return (True, packed) if len(packed) < len(body) * 0.95 else (False, body)


def encode(entry: Entry, is_packed: bool) -> bytes:
    """All that is known of a page, with a checksum before it."""
    data = msgspec.msgpack.encode((is_packed, *msgspec.structs.astuple(entry)))
    return zlib.crc32(data).to_bytes(4, "big") + data


def decode(meta: object) -> tuple[bool, Entry] | None:
    """Whether the body is compressed, and the entry; None if it is not as it was written."""
    if not isinstance(meta, bytes) or int.from_bytes(meta[:4], "big") != zlib.crc32(meta[4:]):
        return None
    try:
        is_packed, *values = msgspec.msgpack.decode(meta[4:])
        return bool(is_packed), msgspec.convert(dict(zip(_FIELDS, values, strict=False)), Entry)
    except (msgspec.MsgspecError, TypeError, ValueError):  # of another version of curtsy
        return None


def page_of(meta: object, body: object) -> Page | None:
    """The page that the two columns make, checked; None if they make none."""
    decoded = decode(meta)
    if decoded is None or not isinstance(body, bytes):
        return None
    return checked_page(decoded[1], body, decoded[0])


def checked_page(entry: Entry, body: bytes, is_packed: bool) -> Page | None:
    """The page with this body, which may be compressed; None if it is not the one that the entry tells of."""
    if is_packed:
        try:
            if zstandard.frame_content_size(body) >= 0:
                return None
            body = _zstd.decompressor.decompress(body, max_output_size=entry.body_size)
        except zstandard.ZstdError:
            return None
    return Page(entry, body) if hashlib.sha256(body).hexdigest() == entry.body_sha256 else None


def entry_in(db: sqlite3.Connection, key: str) -> Entry | None:
    """All but the body of the page with a URL's hash."""
    row = db.execute("SELECT meta FROM pages WHERE id = ?", (number_of(key),)).fetchone()
    decoded = None if row is None else decode(row[0])
    return None if decoded is None or decoded[1].url_sha256 != key else decoded[1]


def known(db: sqlite3.Connection, last: int) -> list[Row]:
    """Some pages after the one with the number `last`, as far as they can be read."""
    query = "SELECT id, meta FROM pages WHERE id > ? ORDER BY id LIMIT ?"
    rows = [(number, decode(meta)) for number, meta in db.execute(query, (last, BATCH))]
    return [(number, None if decoded is None else decoded[1]) for number, decoded in rows]


def check(db: sqlite3.Connection) -> None:
    """Raise DatabaseError if the tables are not in order, which SQLite else notices only when it comes across."""
    (found,) = db.execute("PRAGMA quick_check(1)").fetchone()
    if found != b"ok":
        raise sqlite3.DatabaseError(found.decode("utf-8", "replace"))


def checked(db: sqlite3.Connection, last: int) -> list[Row]:
    """Some pages after the one with the number `last`, as far as they are good."""
    query = "SELECT id, meta, body FROM pages LEFT JOIN bodies USING (id) WHERE id > ? ORDER BY id LIMIT ?"
    rows = [(number, page_of(meta, body)) for number, meta, body in db.execute(query, (last, BATCH))]
    return [
        (number, page.entry if page is not None and number_of(page.entry.url_sha256) == number else None)
        for number, page in rows
    ]


def delete(db: sqlite3.Connection, numbers: list[int]) -> None:
    """Remove pages, as far as they are there."""
    db.execute("BEGIN IMMEDIATE")
    db.executemany("DELETE FROM pages WHERE id = ?", [(number,) for number in numbers])
    db.executemany("DELETE FROM bodies WHERE id = ?", [(number,) for number in numbers])
    db.execute("COMMIT")


def _pragma(db: sqlite3.Connection, name: str) -> int:
    return int(db.execute(f"PRAGMA {name}").fetchone()[0])


def size(db: sqlite3.Connection) -> int:
    """Bytes of the file that something uses."""
    return (_pragma(db, "page_count") - _pragma(db, "freelist_count")) * _pragma(db, "page_size")


def give_back(db: sqlite3.Connection) -> None:
    """Shorten the file by the pages that nothing uses, some at a time."""
    free, before = _pragma(db, "freelist_count"), 0
    while free and free != before:
        db.execute("PRAGMA incremental_vacuum(1000)").fetchall()
        free, before = _pragma(db, "freelist_count"), free
    db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
