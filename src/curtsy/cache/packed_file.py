"""Tables of the packed cache, and the functions that read, check and remove their rows.

`pages` maps a page number to a place in `contents` and to the time of the last use, in milliseconds since the epoch. A
page number is the first 61 bits of the URL's SHA-256 and three bits for the variant. Because hashes are scattered, this
table is kept small. `contents` is in order of insertion, so pages of one batch are adjacent. With the hash as the key
of one table, writing takes three times as long. A 304 updates `pages.renewed`, so the body is not rewritten.
`pages.fetched` (milliseconds) and `pages.host` (`host_key()`) order and select the entries of a list.

SQLite does not detect a flipped bit. So each encoded entry has a checksum and holds the full hashes of the URL and of
the body. The body's hash covers the stored, possibly compressed bytes, because hashing fewer bytes is faster.
"""

from __future__ import annotations

import array
import sqlite3
import threading
import zlib
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from curtsy.cache.keys import Page, entry_struct, sha256_of
from curtsy.core.cache import Entry
from curtsy.core.variant import MOST_VARIANTS
from curtsy.stores.sqlite_file import Format, Unsound, pragma_number
from curtsy.system.zstd import zstd

Row = tuple[int, Entry | None]
"""Page number, and the entry; None if the page is damaged."""

LEVEL = 1
"""zstd level. Level 3 takes a fifth more time and saves a twentieth of the space."""

BATCH = 64
"""Pages per transaction or query, so that the lock is held only briefly."""

FORMAT = Format(
    application=0x63757274,
    schema=(
        "CREATE TABLE contents (place INTEGER PRIMARY KEY, meta BLOB NOT NULL, body BLOB NOT NULL)",
        "CREATE TABLE pages (id INTEGER PRIMARY KEY, used INTEGER NOT NULL, place INTEGER NOT NULL, renewed BLOB)",
        # `place` is in the index so that evicted pages are adjacent, too.
        "CREATE INDEX pages_by_use ON pages (used, place)",
        "ALTER TABLE pages ADD COLUMN fetched INTEGER NOT NULL DEFAULT 0",
        "ALTER TABLE pages ADD COLUMN host BLOB",
    ),
    # An event loop's thread may use the connection or wait for it, and a checkpoint may wait for the disk.
    pragmas=("wal_autocheckpoint = 0",),
)

_FROM = "FROM pages LEFT JOIN contents USING (place)"
_USED = "ifnull(CAST(used AS INTEGER), 0)"  # a damaged file may hold any type
META = f"SELECT {_USED}, ifnull(renewed, meta) {_FROM} WHERE id = ?"
_VARIANTS = f"{_FROM} WHERE id BETWEEN ?1 AND ?1 + {MOST_VARIANTS - 1} ORDER BY id"
VARIANTS = f"SELECT id, {_USED}, ifnull(renewed, meta), place {_VARIANTS}"
BOTHS = f"SELECT id, {_USED}, ifnull(renewed, meta), body {_VARIANTS}"
_DELETE = "DELETE FROM pages WHERE id = ?"
_CHECKED = f"SELECT ifnull(renewed, meta), body {_FROM} WHERE id = ?"
_LISTED = "SELECT id FROM pages WHERE host IS NULL OR substr(host, 1, ?) = ? ORDER BY fetched DESC"
BY_USE = f"SELECT id, {_USED}, length(ifnull(renewed, meta)) + length(body) {_FROM} ORDER BY used LIMIT ?"


class _Zstd(threading.local):
    """Compressor per thread. It is used for many pages: a new one takes longer than a page."""

    def __init__(self) -> None:
        self.compressor = zstd.ZstdCompressor(level=LEVEL)


_zstd = _Zstd()


# A typed decoder takes a fifth of the time.
_metas = msgspec.msgpack.Decoder(entry_struct({}, [("is_packed", bool)], array_like=True))


def first_number(key: str) -> int:
    """Return the page number of a URL's first variant. Those of the other variants follow it."""
    return first_of(int(key[:16], 16) - 2**63)


def first_of(number: int) -> int:
    """Return the number of the first variant of the same URL."""
    return number & -MOST_VARIANTS


def pack(entry: Entry, body: bytes) -> tuple[Entry, bytes, bool]:
    """Return the entry with its body's hash, the bytes to store, and whether they are compressed.

    Saving less than 5 % is not worth the time of decompression.
    """
    packed = _zstd.compressor.compress(body, zstd.ZstdCompressor.FLUSH_FRAME)
    is_packed = len(packed) < len(body) * 0.95
    stored = packed if is_packed else body
    return msgspec.structs.replace(entry, body_sha256=sha256_of(stored)), stored, is_packed


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


def entry_of(meta: object) -> Entry | None:
    """Return the entry; None if the data is damaged."""
    decoded = decode(meta)
    return None if decoded is None else decoded[1]


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
        return Page(entry, zstd.decompress(body) if is_packed else body)
    except zstd.ZstdError:
        return None


def entries_in(db: sqlite3.Connection, key: str) -> list[tuple[int, Entry]]:
    """Return number and entry of each variant of the URL with this SHA-256."""
    rows = [(number, entry_of(meta)) for number, _, meta, _ in db.execute(VARIANTS, (first_number(key),))]
    return [(number, entry) for number, entry in rows if entry is not None and entry.url_sha256 == key]


def pages_in(db: sqlite3.Connection, key: str) -> list[Page]:
    """Return the undamaged variants of the URL with this SHA-256."""
    pages = [page_of(meta, body) for _, _, meta, body in db.execute(BOTHS, (first_number(key),))]
    return [page for page in pages if page is not None and page.entry.url_sha256 == key]


def remove(db: sqlite3.Connection, key: str, variant: str | None) -> None:
    """Remove a variant of the URL with this SHA-256; all variants if `variant` is None."""
    gone = [number for number, entry in entries_in(db, key) if variant is None or entry.variant == variant]
    if gone:
        delete(db, gone)


def stored_of(db: sqlite3.Connection, firsts: list[int]) -> set[int]:
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
    slots = [(number, used, place, decode(meta)) for number, used, meta, place in db.execute(VARIANTS, (first,))]
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


def listed(db: sqlite3.Connection, prefix: bytes) -> array.array[int]:
    """Return the numbers of the pages whose host key begins with `prefix`, newest first: 8 bytes for each."""
    return array.array("q", (number for (number,) in db.execute(_LISTED, (len(prefix), prefix))))


def known(db: sqlite3.Connection, numbers: Sequence[int]) -> list[Row]:
    """Return the rows that are stored under these numbers. Bodies are not checked."""
    rows = [(number, db.execute(META, (number,)).fetchone()) for number in numbers]
    return [(number, entry_of(row[1])) for number, row in rows if row is not None]


def checked(db: sqlite3.Connection, numbers: Sequence[int]) -> list[Row]:
    """Return the rows that are stored under these numbers, with bodies checked."""
    rows = [(number, db.execute(_CHECKED, (number,)).fetchone()) for number in numbers]
    pages = [(number, page_of(*row)) for number, row in rows if row is not None]
    return [
        (number, page.entry if page and first_number(page.entry.url_sha256) == first_of(number) else None)
        for number, page in pages
    ]


def last_place(db: sqlite3.Connection) -> int:
    """Return the highest place in use, or 0. Raises DatabaseError if it is implausible."""
    (last,) = db.execute("SELECT max(place) FROM contents").fetchone()
    if (last or 0) >= 2**62:
        raise Unsound("its pages are at places that were never assigned")
    return int(last or 0)


def store_uses(db: sqlite3.Connection, uses: list[tuple[int, int]]) -> None:
    """Store the times of last use: pairs of milliseconds and page number."""
    _change(db, ("UPDATE pages SET used = ? WHERE id = ?", uses))


def delete(db: sqlite3.Connection, numbers: list[int]) -> None:
    """Remove the pages that exist."""
    given = [(number,) for number in numbers]
    contents = "DELETE FROM contents WHERE place = (SELECT place FROM pages WHERE id = ?)"
    _change(db, (contents, given), (_DELETE, given))


def delete_rows_only(db: sqlite3.Connection, numbers: list[int]) -> None:
    """Remove rows of `pages` but keep `contents`: in a damaged file, the place may be another page's."""
    _change(db, (_DELETE, [(number,) for number in numbers]))


def sweep(db: sqlite3.Connection) -> None:
    """Remove contents without a page. Only damage causes them, and no other code finds them."""
    lost = db.execute("SELECT place FROM contents WHERE place NOT IN (SELECT place FROM pages)").fetchall()
    if lost:
        _change(db, ("DELETE FROM contents WHERE place = ?", lost))


def checkpoint(db: sqlite3.Connection) -> None:
    """Move the WAL into the file, as far as no reader needs it."""
    db.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()


def _change(db: sqlite3.Connection, *statements: tuple[str, list[Any]]) -> None:
    """Execute statements, each for every given row, in one transaction."""
    db.execute("BEGIN IMMEDIATE")
    for statement, rows in statements:
        db.executemany(statement, rows)
    db.execute("COMMIT")


def size(db: sqlite3.Connection) -> int:
    """Return the bytes of the file that are in use."""
    return (pragma_number(db, "page_count") - pragma_number(db, "freelist_count")) * pragma_number(db, "page_size")


def stored_size(db: sqlite3.Connection) -> int:
    """Return the bytes of the file that are in use; 0 if no page is stored."""
    return size(db) if db.execute("SELECT 1 FROM pages LIMIT 1").fetchone() else 0


def shrink_file(db: sqlite3.Connection) -> None:
    """Shrink the file by its free pages, 1000 at a time, and truncate the WAL."""
    free, before = pragma_number(db, "freelist_count"), 0
    while free and free != before:
        db.execute("PRAGMA incremental_vacuum(1000)").fetchall()
        free, before = pragma_number(db, "freelist_count"), free
    db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
