"""The rows of the packed cache: what stands in its two tables, and how it is read, checked and removed.

`pages` says for the first 64 bits of a URL's SHA-256 at which place of `contents` its page is, and when it was used
last, in milliseconds since the epoch. Hashes lie anywhere, so that table is to be small; in the other one pages stand
in the order in which they came, so that those that are written together lie together: with the hash as the key of all,
each would go to an end of its own, and writing take three times as long. What a 304 has renewed stands in `pages`, and
the body need not be rewritten.

SQLite does not notice a flipped bit, so what is known of a page carries a checksum of its own, and in it are the full
hashes of the URL and of the body. The latter is of the body as it is kept: that says the same, and of a compressed one
there is less to hash.
"""

from __future__ import annotations

import sqlite3
import threading
import zlib

import msgspec
import zstandard

from curtsy.core.cache import Entry
from curtsy.stores.pages import Page, sha256_of

Row = tuple[int, Entry | None]
"""The number of a page, and all but its body if that is good."""

LEVEL = 1
"""Of zstd: the third takes a fifth more of the time, for a twentieth less of the room."""

BATCH = 64
"""Pages that are dropped, looked at or noted as used in one go, so that nobody waits long for the lock."""

TABLES = {"pages", "contents"}
FORMER_TABLES = {"pages", "bodies"}
"""Those of the layout before this one."""

# The place is in the index so that pages that make room lie together, too.
SCHEMA = """
CREATE TABLE IF NOT EXISTS pages
    (id INTEGER PRIMARY KEY, used INTEGER NOT NULL, place INTEGER NOT NULL, renewed BLOB);
CREATE TABLE IF NOT EXISTS contents (place INTEGER PRIMARY KEY, meta BLOB NOT NULL, body BLOB NOT NULL);
CREATE INDEX IF NOT EXISTS pages_by_use ON pages (used, place);
"""

_FROM = "FROM pages LEFT JOIN contents USING (place)"
_USED = "ifnull(CAST(used AS INTEGER), 0)"  # in a damaged file it may be anything
META = f"SELECT {_USED}, ifnull(renewed, meta) {_FROM} WHERE id = ?"
BOTH = f"SELECT {_USED}, ifnull(renewed, meta), body {_FROM} WHERE id = ?"
BY_USE = f"SELECT id, {_USED}, length(ifnull(renewed, meta)) + length(body) {_FROM} ORDER BY used LIMIT ?"


class _Zstd(threading.local):
    """What compresses: for each thread its own, for no two may use one."""

    def __init__(self) -> None:
        self.compressor = zstandard.ZstdCompressor(level=LEVEL)
        self.decompressor = zstandard.ZstdDecompressor()


_zstd = _Zstd()


def _meta_type() -> type[msgspec.Struct]:
    """All that is known of a page, as a list: whether its body is compressed, and the fields of its entry."""
    fields = [
        (each.name, each.type) if each.required else (each.name, each.type, each.default)
        for each in msgspec.structs.fields(Entry)
    ]
    return msgspec.defstruct("_Meta", [("is_packed", bool), *fields], array_like=True, gc=False)


_metas = msgspec.msgpack.Decoder(_meta_type())  # read into its type at once: a fifth of the time


def number_of(key: str) -> int:
    """The number under which the page with a URL's hash is kept."""
    return int(key[:16], 16) - 2**63


def digits_of(number: int) -> str:
    """The first 16 digits of the hash of the URL whose page is kept under a number."""
    return f"{number + 2**63:016x}"


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
        is_packed, *values = msgspec.structs.astuple(_metas.decode(meta[4:]))
    except msgspec.MsgspecError:  # of another version of curtsy
        return None
    return is_packed, Entry(*values)


def page_of(meta: object, body: object) -> Page | None:
    """The page that the two columns make, checked; None if they make none."""
    decoded = decode(meta)
    if decoded is None or not isinstance(body, bytes):
        return None
    return checked_page(decoded[1], body, decoded[0])


def checked_page(entry: Entry, body: bytes, is_packed: bool) -> Page | None:
    """The page with this body, which may be compressed; None if it is not the one that was kept."""
    if sha256_of(body) != entry.body_sha256:
        return None
    try:
        return Page(entry, _zstd.decompressor.decompress(body) if is_packed else body)
    except zstandard.ZstdError:
        return None


def entry_in(db: sqlite3.Connection, key: str) -> Entry | None:
    """All but the body of the page with a URL's hash."""
    row = db.execute(META, (number_of(key),)).fetchone()
    decoded = None if row is None else decode(row[1])
    return None if decoded is None or decoded[1].url_sha256 != key else decoded[1]


def known(db: sqlite3.Connection, last: int) -> list[Row]:
    """Some pages after the one with the number `last`, as far as they can be read."""
    query = f"SELECT id, ifnull(renewed, meta) {_FROM} WHERE id > ? ORDER BY id LIMIT ?"
    rows = [(number, decode(meta)) for number, meta in db.execute(query, (last, BATCH))]
    return [(number, None if decoded is None else decoded[1]) for number, decoded in rows]


def checked(db: sqlite3.Connection, last: int) -> list[Row]:
    """Some pages after the one with the number `last`, as far as they are good."""
    query = f"SELECT id, ifnull(renewed, meta), body {_FROM} WHERE id > ? ORDER BY id LIMIT ?"
    rows = [(number, page_of(meta, body)) for number, meta, body in db.execute(query, (last, BATCH))]
    return [
        (number, page.entry if page is not None and number_of(page.entry.url_sha256) == number else None)
        for number, page in rows
    ]


def places(db: sqlite3.Connection, numbers: list[int]) -> dict[int, int]:
    """The places of those pages that are there."""
    return dict(db.execute(f"SELECT id, place FROM pages WHERE id IN ({', '.join('?' * len(numbers))})", numbers))


def numbers(db: sqlite3.Connection, last: int) -> list[int]:
    """The numbers of some pages after the one with the number `last`."""
    return [each for (each,) in db.execute("SELECT id FROM pages WHERE id > ? ORDER BY id LIMIT ?", (last, BATCH))]


def last_place(db: sqlite3.Connection) -> int:
    """The place after which there is room."""
    (last,) = db.execute("SELECT max(place) FROM contents").fetchone()
    if (last or 0) >= 2**62:
        raise sqlite3.DatabaseError("its pages stand at places that were never given out")
    return int(last or 0)


def note_uses(db: sqlite3.Connection, uses: list[tuple[int, int]]) -> None:
    """Write when pages were used last: the times and the numbers."""
    db.execute("BEGIN IMMEDIATE")
    db.executemany("UPDATE pages SET used = ? WHERE id = ?", uses)
    db.execute("COMMIT")


def delete(db: sqlite3.Connection, numbers: list[int]) -> None:
    """Remove pages, as far as they are there."""
    given = [(number,) for number in numbers]
    db.execute("BEGIN IMMEDIATE")
    db.executemany("DELETE FROM contents WHERE place = (SELECT place FROM pages WHERE id = ?)", given)
    db.executemany("DELETE FROM pages WHERE id = ?", given)
    db.execute("COMMIT")


def disown(db: sqlite3.Connection, numbers: list[int]) -> None:
    """Remove pages, but not what stands at their places: in a damaged file that may be another's."""
    db.execute("BEGIN IMMEDIATE")
    db.executemany("DELETE FROM pages WHERE id = ?", [(number,) for number in numbers])
    db.execute("COMMIT")


def sweep(db: sqlite3.Connection) -> None:
    """Remove what stands at places that no page has. Only damage leaves any, and nothing else would ever find it."""
    lost = db.execute("SELECT place FROM contents WHERE place NOT IN (SELECT place FROM pages)").fetchall()
    if lost:
        db.execute("BEGIN IMMEDIATE")
        db.executemany("DELETE FROM contents WHERE place = ?", lost)
        db.execute("COMMIT")


def _pragma(db: sqlite3.Connection, name: str) -> int:
    return int(db.execute(f"PRAGMA {name}").fetchone()[0])


def version(db: sqlite3.Connection) -> int:
    """What changes when another connection has written anything; it says nothing to any other one."""
    return _pragma(db, "data_version")


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
