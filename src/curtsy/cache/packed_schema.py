"""The rows of the packed cache: what stands in its two tables, and how it is read, checked and removed.

`pages` says for the first 61 bits of a URL's SHA-256 and the number of a variant, three bits, at which place of
`contents` the page is, and when it was used last, in milliseconds since the epoch. Hashes lie anywhere, so that table
is to be small; in the other one pages stand in the order in which they came, so that those that are written together
lie together: with the hash as the key of all, each would go to an end of its own, and writing take three times as long.
What a 304 has renewed stands in `pages`, and the body need not be rewritten.

SQLite does not notice a flipped bit, so what is known of a page carries a checksum of its own, and in it are the full
hashes of the URL and of the body. The latter is of the body as it is kept: that says the same, and of a compressed one
there is less to hash.
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
_VARIANTS = f"{_FROM} WHERE id BETWEEN ?1 AND ?1 + {MOST_VARIANTS - 1} ORDER BY id"
METAS = f"SELECT id, ifnull(renewed, meta) {_VARIANTS}"
BOTHS = f"SELECT id, {_USED}, ifnull(renewed, meta), body {_VARIANTS}"
SLOTS = f"SELECT id, {_USED}, place, ifnull(renewed, meta) {_VARIANTS}"
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


def first_number(key: str) -> int:
    """The number of the first variant of the URL with this hash; those of the others follow."""
    return first_of(int(key[:16], 16) - 2**63)


def first_of(number: int) -> int:
    """The number of the first variant of the same URL."""
    return number & -MOST_VARIANTS


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


def entries_in(db: sqlite3.Connection, key: str) -> list[tuple[int, Entry]]:
    """All but the body of each variant of the URL with this hash, with its number."""
    rows = [(number, decode(meta)) for number, meta in db.execute(METAS, (first_number(key),))]
    return [(number, each[1]) for number, each in rows if each is not None and each[1].url_sha256 == key]


def pages_in(db: sqlite3.Connection, key: str) -> list[Page]:
    """Every variant of the URL with this hash that is good."""
    pages = [page_of(meta, body) for _, _, meta, body in db.execute(BOTHS, (first_number(key),))]
    return [page for page in pages if page is not None and page.entry.url_sha256 == key]


def remove(db: sqlite3.Connection, key: str, variant: str | None) -> None:
    """Remove a variant of the URL with this hash, or all of them."""
    gone = [number for number, entry in entries_in(db, key) if variant is None or entry.variant == variant]
    if gone:
        delete(db, gone)


def kept_of(db: sqlite3.Connection, firsts: list[int]) -> set[int]:
    """Those of some URLs, by the numbers of their first variants, of which any variant is there."""
    given = ", ".join(["(?)"] * len(firsts))
    query = (
        f"WITH given(first) AS (VALUES {given}) SELECT id FROM given CROSS JOIN pages ON id BETWEEN first AND first + ?"
    )
    return {first_of(number) for (number,) in db.execute(query, (*firsts, MOST_VARIANTS - 1))}


def slot_for(
    db: sqlite3.Connection, entry: Entry, used_at: Callable[[int], int]
) -> tuple[int, int | None, Entry | None, bool]:
    """The number that a page is kept under; and the place, the entry and the compression of what is there.

    That is its own variant, or a free number, or else what was least recently used; `used_at` may know of later uses.
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
    """Some pages after the one with the number `last`, as far as they can be read."""
    query = f"SELECT id, ifnull(renewed, meta) {_FROM} WHERE id > ? ORDER BY id LIMIT ?"
    rows = [(number, decode(meta)) for number, meta in db.execute(query, (last, BATCH))]
    return [(number, None if decoded is None else decoded[1]) for number, decoded in rows]


def checked(db: sqlite3.Connection, last: int) -> list[Row]:
    """Some pages after the one with the number `last`, as far as they are good."""
    query = f"SELECT id, ifnull(renewed, meta), body {_FROM} WHERE id > ? ORDER BY id LIMIT ?"
    rows = [(number, page_of(meta, body)) for number, meta, body in db.execute(query, (last, BATCH))]
    return [
        (number, page.entry if page and first_number(page.entry.url_sha256) == first_of(number) else None)
        for number, page in rows
    ]


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
