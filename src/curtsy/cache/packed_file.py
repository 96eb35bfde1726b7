"""SQLite file of the packed cache: its recovery, its tables, and the functions that read, check and remove rows.

`pages` maps a page number to a place in `contents` and to the time of the last use, in milliseconds since the epoch. A
page number is the first 61 bits of the URL's SHA-256 and three bits for the variant. Because hashes are scattered, this
table is kept small. `contents` is in order of insertion, so pages of one batch are adjacent. With the hash as the key
of one table, writing takes three times as long. A 304 updates `pages.renewed`, so the body is not rewritten.

SQLite does not detect a flipped bit. So each encoded entry has a checksum and holds the full hashes of the URL and of
the body. The body's hash covers the stored, possibly compressed bytes, because hashing fewer bytes is faster.
"""

from __future__ import annotations

import glob
import math
import os
import shutil
import sqlite3
import threading
import time
import zlib
from collections.abc import Callable
from typing import Any, TypeVar, TypeVarTuple, Unpack

import msgspec
import zstandard

from curtsy.cache.keys import MIB, Outage, Page, entry_struct, may_write, sha256_of
from curtsy.core.cache import Entry
from curtsy.core.errors import StoreError
from curtsy.core.message import SECOND
from curtsy.core.variant import MOST_VARIANTS
from curtsy.stores.sqlite_file import (
    BUSY,
    TROUBLE,
    Format,
    SQLiteFile,
    Unsound,
    check,
    error_code,
    is_damage,
    pragma_number,
)
from curtsy.system.clock import Clock
from curtsy.system.file_lock import inode
from curtsy.system.log import library_logger

_log = library_logger("cache")
_Answer = TypeVar("_Answer")
_Given = TypeVarTuple("_Given")

Row = tuple[int, Entry | None]
"""Page number, and the entry; None if the page is damaged."""

LEVEL = 1
"""zstd level. Level 3 takes a fifth more time and saves a twentieth of the space."""

BATCH = 64
"""Pages per transaction or query, so that the lock is held only briefly."""

PATIENCE = 2.0
"""Seconds to wait for another process's lock. A write that would wait longer is skipped."""

RECHECK = 0.02
"""Seconds between checks that the path still leads to the opened file, for reads."""

FREE_SPACE = 16 * MIB
"""Free bytes above which a disk is not considered full."""

TRIES = 5
"""Attempts to read a file that another process may be writing."""

CHECK_TIME = 1.0
"""Seconds for an integrity check while other threads wait. A longer check needs `verify()`."""

FORMAT = Format(
    application=0x63757274,
    schema=(
        "CREATE TABLE pages (id INTEGER PRIMARY KEY, used INTEGER NOT NULL, place INTEGER NOT NULL, renewed BLOB)",
        "CREATE TABLE contents (place INTEGER PRIMARY KEY, meta BLOB NOT NULL, body BLOB NOT NULL)",
        # `place` is in the index so that evicted pages are adjacent, too.
        "CREATE INDEX pages_by_use ON pages (used, place)",
    ),
    pragmas=("auto_vacuum = INCREMENTAL",),
)

_FROM = "FROM pages LEFT JOIN contents USING (place)"
_USED = "ifnull(CAST(used AS INTEGER), 0)"  # a damaged file may hold any type
META = f"SELECT {_USED}, ifnull(renewed, meta) {_FROM} WHERE id = ?"
_VARIANTS = f"{_FROM} WHERE id BETWEEN ?1 AND ?1 + {MOST_VARIANTS - 1} ORDER BY id"
VARIANTS = f"SELECT id, {_USED}, ifnull(renewed, meta), place {_VARIANTS}"
BOTHS = f"SELECT id, {_USED}, ifnull(renewed, meta), body {_VARIANTS}"
_DELETE = "DELETE FROM pages WHERE id = ?"
BY_USE = f"SELECT id, {_USED}, length(ifnull(renewed, meta)) + length(body) {_FROM} ORDER BY used LIMIT ?"

# In a folder where it cannot create a log, SQLite reads a file only with `immutable`. With `immutable`, it ignores an
# existing log.
_WRITABLE, _WITH_LOG, _IMMUTABLE = "mode=rw", "mode=ro", "immutable=1"


class PackedFile(SQLiteFile):
    """SQLite file of a cache. Any thread or process may use it; its calls never raise.

    A damaged file is renamed to `<name>.damaged-<epoch>`, replacing the one renamed before, and a new file is started.
    A file that cannot be written is still read. If it cannot be read either, it is skipped for a while. Any transaction
    still open after a call is rolled back.
    """

    def __init__(self, path: str, clock: Clock) -> None:
        super().__init__(path, FORMAT, patience=PATIENCE)
        self.outage = Outage(clock, _log)
        self.replaced = 0
        """Number of times that the file was found damaged and replaced."""
        self._clock = clock
        self._checked_at = -math.inf
        """Monotonic time of the last check that the path still leads to the opened file."""

    @property
    def is_read_only(self) -> bool:
        """Return whether the file is open for reading only."""
        return self.uri_mode != _WRITABLE

    def call(
        self, otherwise: _Answer, work: Callable[[sqlite3.Connection, Unpack[_Given]], _Answer], *given: *_Given
    ) -> _Answer:
        """Run `work` on the file, one thread at a time; return `otherwise` if that fails."""
        self._checked_at = -math.inf
        return self.read(otherwise, work, *given)

    def read(
        self, otherwise: _Answer, work: Callable[[sqlite3.Connection, Unpack[_Given]], _Answer], *given: *_Given
    ) -> _Answer:
        """Run `work` that only reads. The check for a replaced file is skipped for `RECHECK` seconds."""
        with self.lock:
            if self.is_closed or (not self.is_open and self.outage.is_on):
                return otherwise
            for tries_left in reversed(range(TRIES)):
                try:
                    return work(self.connection(), *given)
                except (*TROUBLE, StoreError) as error:
                    if not (tries_left and _is_log_incomplete(error)):
                        self._recover(error)
                        break
                finally:
                    self.roll_back()  # for example after Ctrl-C
            return otherwise

    def rows(
        self, work: Callable[[sqlite3.Connection, Unpack[_Given]], list[_Answer]], *given: *_Given
    ) -> list[_Answer]:
        """Run `work` that returns rows; return no rows if that fails."""
        return self.call([], work, *given)

    def is_current(self) -> bool:
        """Return whether the connection can be used further. Also reopen the file if it has become writable."""
        now = time.monotonic()
        if now < self._checked_at + RECHECK:
            return True
        if not super().is_current() or (self.is_read_only and self.uri_mode != self._best_mode()):
            return False
        self._checked_at = now
        return True

    def open(self) -> sqlite3.Connection:
        """Return a new connection, for reading only if the file cannot be written."""
        self.uri_mode = _WRITABLE if not os.path.exists(self.path) else self._best_mode()
        try:
            return super().open()
        except sqlite3.OperationalError as error:
            if self.uri_mode != _WITH_LOG or error_code(error) in BUSY:
                raise
            # The WAL index is missing or incomplete, and only a process with write access can create it.
            self.uri_mode = _IMMUTABLE
            return super().open()

    def prepare(self, connection: sqlite3.Connection) -> None:
        """Check the format of the file, and create its tables."""
        if self.is_read_only:
            self.version(connection)
        else:
            super().prepare(connection)

    def _best_mode(self) -> str:
        """Return the best mode in which the file can be opened now."""
        if self._is_writable():
            return _WRITABLE
        return _WITH_LOG if os.path.exists(self.path + "-wal") else _IMMUTABLE

    def _is_writable(self) -> bool:
        """Return whether the file is writable and its folder allows a log."""
        return may_write(self.path) and may_write(os.path.dirname(self.path))

    def _recover(self, error: Exception) -> None:
        """Handle an error: ignore a lock, replace a damaged file or begin an outage."""
        self.roll_back()
        if error_code(error) in BUSY:
            return
        if self.is_read_only:
            # It may be changing while it is read, and a reader must not rename it.
            if is_damage(error) or _is_log_incomplete(error):
                self.disconnect()
            if not _is_log_incomplete(error):  # else its writer was killed
                self._begin_outage(error)
        elif is_damage(error) or self._hides_damage(error):
            self._replace(error)
        else:
            if isinstance(error, OSError):
                self.disconnect()
            self._begin_outage(error)

    def _begin_outage(self, error: Exception) -> None:
        self.outage.begin(str(error if isinstance(error, StoreError) else self.translate(error)))

    def _hides_damage(self, error: Exception) -> bool:
        """Return whether an error that looks like a full or read-only disk is due to damage."""
        code = error_code(error)
        if code == sqlite3.SQLITE_READONLY:  # a damaged header can require a later version of SQLite for writing
            return self._is_writable()
        if code not in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR) or not self.is_open or not self._has_space():
            return False
        db, end = self.connection(), time.monotonic() + CHECK_TIME
        db.set_progress_handler(lambda: time.monotonic() > end, 10_000)
        try:
            check(db)
        except sqlite3.Error as found:
            return is_damage(found) or error_code(found) not in (sqlite3.SQLITE_INTERRUPT, *BUSY)
        finally:
            db.set_progress_handler(None, 0)
        return False

    def _has_space(self) -> bool:
        try:
            return shutil.disk_usage(os.path.dirname(self.path)).free > FREE_SPACE
        except OSError:
            return False

    def _replace(self, error: Exception) -> None:
        self.replaced += 1
        self.disconnect()
        if self.opened != inode(self.path):
            return  # another process has already renamed it
        name = f"{self.path}.damaged-"
        aside = f"{name}{self._clock.now().epoch // SECOND}"
        try:
            for before in glob.glob(glob.escape(name) + "*"):
                os.unlink(before)
            self.set_aside(aside)
        except OSError as failure:
            self._begin_outage(failure)
            return
        _log.warning(
            f"The cache {self.path} is damaged ({error}). It was renamed to {aside}, and a new cache is started. Its "
            "pages will be fetched again. Delete the old file if you do not need it."
        )


class _Zstd(threading.local):
    """Compressor and decompressor per thread, because neither is safe for threads."""

    def __init__(self) -> None:
        self.compressor = zstandard.ZstdCompressor(level=LEVEL)
        self.decompressor = zstandard.ZstdDecompressor()


_zstd = _Zstd()


# A typed decoder takes a fifth of the time.
_metas = msgspec.msgpack.Decoder(entry_struct({}, [("is_packed", bool)], array_like=True))


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
        return Page(entry, _zstd.decompressor.decompress(body) if is_packed else body)
    except zstandard.ZstdError:
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


def known(db: sqlite3.Connection, last: int) -> list[Row]:
    """Return the next `BATCH` rows after the number `last`. Bodies are not checked."""
    query = f"SELECT id, ifnull(renewed, meta) {_FROM} WHERE id > ? ORDER BY id LIMIT ?"
    return [(number, entry_of(meta)) for number, meta in db.execute(query, (last, BATCH))]


def checked(db: sqlite3.Connection, last: int) -> list[Row]:
    """Return the next `BATCH` rows after the number `last`, with bodies checked."""
    query = f"SELECT id, ifnull(renewed, meta), body {_FROM} WHERE id > ? ORDER BY id LIMIT ?"
    rows = [(number, page_of(meta, body)) for number, meta, body in db.execute(query, (last, BATCH))]
    return [
        (number, page.entry if page and first_number(page.entry.url_sha256) == first_of(number) else None)
        for number, page in rows
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


def _change(db: sqlite3.Connection, *statements: tuple[str, list[Any]]) -> None:
    """Execute statements, each for every given row, in one transaction."""
    db.execute("BEGIN IMMEDIATE")
    for statement, rows in statements:
        db.executemany(statement, rows)
    db.execute("COMMIT")


def size(db: sqlite3.Connection) -> int:
    """Return the bytes of the file that are in use."""
    return (pragma_number(db, "page_count") - pragma_number(db, "freelist_count")) * pragma_number(db, "page_size")


def shrink_file(db: sqlite3.Connection) -> None:
    """Shrink the file by its free pages, 1000 at a time, and truncate the WAL."""
    free, before = pragma_number(db, "freelist_count"), 0
    while free and free != before:
        db.execute("PRAGMA incremental_vacuum(1000)").fetchall()
        free, before = pragma_number(db, "freelist_count"), free
    db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()


def _is_log_incomplete(error: Exception) -> bool:
    """Return whether a read-only connection found an incomplete WAL index."""
    return (
        isinstance(error, sqlite3.OperationalError)
        and error_code(error) == sqlite3.SQLITE_READONLY
        and error.sqlite_errorcode == sqlite3.SQLITE_READONLY_RECOVERY
    )
