"""The cache for very many pages: one SQLite file, bodies compressed with zstd.

Two tables share their key, the first 64 bits of the URL's SHA-256: `pages` has all but the body, so that a 304 and the
note of a page's last use rewrite little; `bodies` has the rest. SQLite does not notice a flipped bit, so what is known
of a page carries a checksum of its own, and in it are the full hashes of URL and body.
"""

from __future__ import annotations

import hashlib
import os
import sqlite3
import zlib
from collections.abc import Callable, Iterator

import msgspec
import zstandard

from curtsy.clock import Clock, SystemClock
from curtsy.core.cache import Entry
from curtsy.core.message import SECOND, Url
from curtsy.log import library_logger
from curtsy.stores.packfile import PackFile
from curtsy.stores.pages import GIB, HOUR, MIB, Checked, Page, Recent, identify, without_secrets

_log = library_logger("cache")
_Row = tuple[int, Entry | None]

LEVEL = 3
"""Of zstd: beyond it, the time grows much faster than the gain."""

BATCH = 64
"""Pages that are dropped, looked at or noted as used in one go, so that nobody waits long for the lock."""

_SCHEMA = """
CREATE TABLE IF NOT EXISTS pages (id INTEGER PRIMARY KEY, used INTEGER NOT NULL, meta BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS bodies (id INTEGER PRIMARY KEY, body BLOB NOT NULL);
CREATE INDEX IF NOT EXISTS pages_by_use ON pages (used);
"""

_BOTH = "SELECT meta, body FROM pages LEFT JOIN bodies USING (id) WHERE id = ?"
_BY_USE = "SELECT id, length(meta) + length(body) FROM pages LEFT JOIN bodies USING (id) ORDER BY used LIMIT ?"

# Used by one thread at a time, as `PackFile.do` has it. Frames do not say how large their content is, so that a
# damaged one cannot ask for memory; what is known of the page does.
_compressor = zstandard.ZstdCompressor(level=LEVEL, write_content_size=False)
_decompressor = zstandard.ZstdDecompressor()


class PackedCache:
    """Pages in one SQLite file. `max_size` limits it in bytes (its journal of a few MiB not counted); `memory` bounds
    what is held of pages read lately (0: nothing).

    A damaged file is put aside, and a new one begun: see `packfile.py`.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        max_size: int = 16 * GIB,
        memory: int = 8 * MIB,
        clock: Clock | None = None,
    ) -> None:
        self.path = os.path.abspath(os.path.expanduser(path))
        self.max_size = max_size
        self._clock = clock or SystemClock()
        self._recent = Recent(memory)
        self._file = PackFile(self.path, _SCHEMA, {"pages", "bodies"}, self._clock)
        self._uses: dict[int, int] = {}
        """The hours in which pages were last used, as far as they are not written yet."""

        self._until_check = 0.0
        """Bytes to be written before the size is looked at again."""

    # --- The contract ----------------------------------------------------------------------------------------------

    def get(self, url: Url | str) -> Page | None:
        """The page kept for a URL, its body checked; None if there is none, or it is damaged."""
        found = identify(url)
        return None if found is None else self._file.do(None, self._get, found[0].text, found[1])

    def get_meta(self, url: Url | str) -> Entry | None:
        """All but the body of the page kept for a URL; whether the body is good is not looked at."""
        found = identify(url)
        entry = None if found is None else self._file.do(None, _entry_in, found[1])
        return None if found is None or entry is None else msgspec.structs.replace(entry, url=found[0].text)

    def get_content(self, url: Url | str) -> bytes | None:
        """The checked body of the page kept for a URL."""
        page = self.get(url)
        return None if page is None else page.body

    def put(self, entry: Entry, body: bytes) -> bool:
        """Keep a page in place of the one kept for its URL. False if it could not be; then that one is dropped, too."""
        found = identify(entry.url)
        if found is None or found[1] != entry.url_sha256:
            return False
        written = without_secrets(entry)
        is_wanted = written is not None and len(body) <= self.max_size // 2 and not self._file.outage.is_on
        if written is None or not is_wanted or not self._file.do(False, self._put, written, body):
            self.drop(entry.url)
            return False
        return True

    def refresh(self, entry: Entry) -> bool:
        """Renew all but the body after a 304. False if that body is not kept (any more)."""
        written = without_secrets(entry)
        return written is not None and not self._file.outage.is_on and self._file.do(False, self._refresh, written)

    def drop(self, url: Url | str) -> None:
        """Forget the page kept for a URL, if there is one."""
        found = identify(url)
        if found is not None:
            self._recent.forget(found[1])
            if self._file.do(None, _entry_in, found[1]) is not None:
                self._file.do(None, _delete, [_id(found[1])])

    def entries(self) -> Iterator[Entry]:
        """Everything kept, in no order; secrets in the URLs are masked."""
        for batch in self._batches(_known):
            for _, entry in batch:
                if entry is not None:
                    yield entry

    def verify(self) -> Checked:
        """Look at every page, and drop those that are damaged: all of them, if it is the file that is."""
        good = damaged = 0
        asides = self._file.asides
        self._file.do(None, _check)
        for batch in self._batches(_checked):
            bad = [number for number, entry in batch if entry is None]
            good += len(batch) - len(bad)
            damaged += len(bad)
            if bad:
                _log.warning("Kept pages are damaged and were dropped; they will be fetched anew.", pages=len(bad))
                self._file.do(None, _delete, bad)
        return Checked(good, damaged) if asides == self._file.asides else Checked(0, max(1, good + damaged))

    def gc(self, max_size: int | None = None) -> int:
        """Drop the least recently used pages until at most `max_size` bytes (default: the cache's limit) are taken.

        Returns the bytes given back.
        """
        before = self.size
        self._file.do(None, self._shrink, self.max_size if max_size is None else max_size)
        self._file.do(None, _give_back)
        return max(0, before - self.size)

    @property
    def size(self) -> int:
        """Bytes taken by what is kept."""
        return self._file.do(0, _size)

    def close(self) -> None:
        """Give back what is held open. Idempotent."""
        self._file.do(None, self._note_uses)
        self._file.close()

    # --- The work --------------------------------------------------------------------------------------------------

    def _batches(self, work: Callable[[sqlite3.Connection, int], list[_Row]]) -> Iterator[list[_Row]]:
        nothing: list[_Row] = []
        last = -(2**63)
        while batch := self._file.do(nothing, work, last):
            yield batch
            last = batch[-1][0]

    def _get(self, db: sqlite3.Connection, text: str, key: str) -> Page | None:
        number = _id(key)
        row = db.execute("SELECT used, meta FROM pages WHERE id = ?", (number,)).fetchone()
        if row is None:
            return None
        used, meta = row
        page = self._recent.get(key, meta)  # what is known of a page says which body it has: the same, the same
        if page is None:
            row = db.execute(_BOTH, (number,)).fetchone()
            page = None if row is None else _page_of(*row)
            if page is None:
                _log.warning("A kept page is damaged and was dropped; it will be fetched anew.", url=text)
                _delete(db, [number])
                return None
            if page.entry.url_sha256 != key:
                return None  # another URL with the same 64 bits
            page = Page(msgspec.structs.replace(page.entry, url=text), page.body)
            self._recent.keep(key, row[0], page)
        hour = self._hour()
        if used != hour:
            self._uses[number] = hour
            if len(self._uses) >= BATCH:
                self._note_uses(db)
        return page

    def _put(self, db: sqlite3.Connection, entry: Entry, body: bytes) -> bool:
        packed = _compressor.compress(body)
        is_packed = len(packed) < len(body) * 0.95
        number = _id(entry.url_sha256)
        meta = _encode(entry, is_packed)
        db.execute("BEGIN IMMEDIATE")
        db.execute("REPLACE INTO bodies VALUES (?, ?)", (number, packed if is_packed else body))
        db.execute("REPLACE INTO pages VALUES (?, ?, ?)", (number, self._hour(), meta))
        db.execute("COMMIT")
        self._file.outage.end()
        self._until_check -= len(meta) + (len(packed) if is_packed else len(body))
        if self._until_check < 0:
            self._shrink(db, self.max_size * 19 // 20)
            self._until_check = self.max_size / 40
        return True

    def _refresh(self, db: sqlite3.Connection, entry: Entry) -> bool:
        number = _id(entry.url_sha256)
        db.execute("BEGIN IMMEDIATE")
        row = db.execute("SELECT meta FROM pages WHERE id = ?", (number,)).fetchone()
        kept = None if row is None else _decode(row[0])
        is_kept = (
            kept is not None and kept[1].url_sha256 == entry.url_sha256 and kept[1].body_sha256 == entry.body_sha256
        )
        if kept is not None and is_kept:
            meta = _encode(entry, kept[0])
            db.execute("UPDATE pages SET used = ?, meta = ? WHERE id = ?", (self._hour(), meta, number))
        db.execute("COMMIT")
        self._file.outage.end()
        return is_kept

    def _shrink(self, db: sqlite3.Connection, limit: int) -> None:
        self._note_uses(db)
        while (surplus := _size(db) - limit) > 0:
            oldest: list[int] = []
            for number, size in db.execute(_BY_USE, (BATCH,)):
                oldest.append(number)
                surplus -= size or 0
                if surplus <= 0:
                    break
            if not oldest:
                return
            _delete(db, oldest)

    def _note_uses(self, db: sqlite3.Connection) -> None:
        uses, self._uses = self._uses, {}
        if uses and not self._file.outage.is_on:
            db.execute("BEGIN IMMEDIATE")
            db.executemany("UPDATE pages SET used = ? WHERE id = ?", [(hour, number) for number, hour in uses.items()])
            db.execute("COMMIT")

    def _hour(self) -> int:
        return self._clock.now().epoch // SECOND // HOUR


# --- Rows ----------------------------------------------------------------------------------------------------------

_FIELDS = Entry.__struct_encode_fields__


def _id(key: str) -> int:
    return int.from_bytes(bytes.fromhex(key[:16]), "big", signed=True)


def _encode(entry: Entry, is_packed: bool) -> bytes:
    """All that is known of a page, with a checksum before it."""
    data = msgspec.msgpack.encode((is_packed, *msgspec.structs.astuple(entry)))
    return zlib.crc32(data).to_bytes(4, "big") + data


def _decode(meta: object) -> tuple[bool, Entry] | None:
    """Whether the body is compressed, and the entry; None if it is not as it was written."""
    if not isinstance(meta, bytes) or int.from_bytes(meta[:4], "big") != zlib.crc32(meta[4:]):
        return None
    try:
        is_packed, *values = msgspec.msgpack.decode(meta[4:])
        return bool(is_packed), msgspec.convert(dict(zip(_FIELDS, values, strict=False)), Entry)
    except (msgspec.MsgspecError, TypeError, ValueError):  # of another version of curtsy
        return None


def _page_of(meta: object, body: object) -> Page | None:
    """The page that the two columns make, checked; None if they make none."""
    decoded = _decode(meta)
    if decoded is None or not isinstance(body, bytes):
        return None
    is_packed, entry = decoded
    if is_packed:
        try:
            if zstandard.frame_content_size(body) >= 0:
                return None
            body = _decompressor.decompress(body, max_output_size=entry.body_size)
        except zstandard.ZstdError:
            return None
    return Page(entry, body) if hashlib.sha256(body).hexdigest() == entry.body_sha256 else None


def _entry_in(db: sqlite3.Connection, key: str) -> Entry | None:
    row = db.execute("SELECT meta FROM pages WHERE id = ?", (_id(key),)).fetchone()
    decoded = None if row is None else _decode(row[0])
    return None if decoded is None or decoded[1].url_sha256 != key else decoded[1]


def _known(db: sqlite3.Connection, last: int) -> list[_Row]:
    """Some pages after the one with the number `last`, as far as they can be read."""
    query = "SELECT id, meta FROM pages WHERE id > ? ORDER BY id LIMIT ?"
    rows = [(number, _decode(meta)) for number, meta in db.execute(query, (last, BATCH))]
    return [(number, None if decoded is None else decoded[1]) for number, decoded in rows]


def _check(db: sqlite3.Connection) -> None:
    """Raise DatabaseError if the tables are not in order, which SQLite else notices only when it comes across."""
    (found,) = db.execute("PRAGMA quick_check(1)").fetchone()
    if found != b"ok":
        raise sqlite3.DatabaseError(found.decode("utf-8", "replace"))


def _checked(db: sqlite3.Connection, last: int) -> list[_Row]:
    """Some pages after the one with the number `last`, as far as they are good."""
    query = "SELECT id, meta, body FROM pages LEFT JOIN bodies USING (id) WHERE id > ? ORDER BY id LIMIT ?"
    rows = [(number, _page_of(meta, body)) for number, meta, body in db.execute(query, (last, BATCH))]
    return [
        (number, page.entry if page is not None and _id(page.entry.url_sha256) == number else None)
        for number, page in rows
    ]


def _delete(db: sqlite3.Connection, numbers: list[int]) -> None:
    db.execute("BEGIN IMMEDIATE")
    db.executemany("DELETE FROM pages WHERE id = ?", [(number,) for number in numbers])
    db.executemany("DELETE FROM bodies WHERE id = ?", [(number,) for number in numbers])
    db.execute("COMMIT")


def _pragma(db: sqlite3.Connection, name: str) -> int:
    return int(db.execute(f"PRAGMA {name}").fetchone()[0])


def _size(db: sqlite3.Connection) -> int:
    return (_pragma(db, "page_count") - _pragma(db, "freelist_count")) * _pragma(db, "page_size")


def _give_back(db: sqlite3.Connection) -> None:
    """Shorten the file by the pages that nothing uses, some at a time."""
    free, before = _pragma(db, "freelist_count"), 0
    while free and free != before:
        db.execute("PRAGMA incremental_vacuum(1000)").fetchall()
        free, before = _pragma(db, "freelist_count"), free
    db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
