"""Index of the pages in a folder of files, and eviction by it: neither eviction nor a list scans the folder.

The page files alone are authoritative: a hit does not read the index, and a missing or damaged index is built again.
Pages are added in batches. Before the first page of a batch is written, its writer is noted in the index. If the writer
is killed, the note stays, and the folder is scanned again. A row without files is removed when eviction or a list meets
it.
"""

from __future__ import annotations

import array
import contextlib
import hashlib
import os
import random
import sqlite3
import threading
import weakref
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from curtsy.cache.cache_file import CacheFile
from curtsy.cache.entry_files import BODY, META, entry_at, remove, scan
from curtsy.cache.keys import HOUR, LastUses, Outage, host_key_of
from curtsy.core.cache import Entry
from curtsy.core.time import SECOND
from curtsy.stores.sqlite_file import Format
from curtsy.system.clock import Clock

NAME = ".index.sqlite"

BATCH = 64
"""Pages per transaction, so that the lock is held only briefly."""

CHECKPOINT = 1000
"""Pages added between two checkpoints of the index, which limit its log to some 5 MB."""

PATIENCE = 0.02
"""Seconds to wait for another process's lock when pages are added. Then the next page tries again."""

MOST_WAITING = 1000
"""Pages held in memory while the index cannot be written."""

DELAY = 5
"""Seconds after which a page is added, if another one comes."""

ABANDONED = 60
"""Seconds after which a writer that is still noted counts as killed. If it lives, a scan has been in vain."""

FORMAT = Format(
    application=0x63757269,
    schema=(
        "CREATE TABLE files (id INTEGER PRIMARY KEY, stem BLOB NOT NULL, used INTEGER NOT NULL, "
        "fetched INTEGER NOT NULL, host BLOB NOT NULL, size INTEGER NOT NULL)",
        "CREATE INDEX files_by_use ON files (used, size)",
        # A row says that all files of the folder are in the index.
        "CREATE TABLE scans (at INTEGER NOT NULL)",
        "CREATE TABLE writers (id INTEGER PRIMARY KEY, at INTEGER NOT NULL)",
    ),
    pragmas=("page_size = 1024",),
)

# The connection that adds pages belongs to an event loop's thread, and a checkpoint may wait for the disk.
_ADD_FORMAT = FORMAT._replace(pragmas=(*FORMAT.pragmas, "wal_autocheckpoint = 0"))
_INTO = "INTO files VALUES (?, ?, ?, ?, ?, ?)"
_SELECT = "SELECT id, stem, used, size FROM files"
_LISTED = "SELECT id FROM files WHERE substr(host, 1, ?) = ? ORDER BY fetched DESC"


class Indexed(NamedTuple):
    """Page in the index."""

    id: int
    stem: str
    """Path of the page's files without extension, relative to the folder."""
    used: int
    """Last use in microseconds since the epoch, as far as the index knows it."""
    size: int


class FileIndex:
    """Index of a folder. Its calls never raise; an index that cannot be used is empty.

    Pages are added by one connection and everything else uses another, so that adding a page never waits for an
    eviction in another thread.
    """

    def __init__(self, root: str, clock: Clock) -> None:
        self._root = root
        outage = Outage(clock, None)  # silent: pages are cached without an index, and the next use tries again
        path = os.path.join(root, NAME)
        self._adds = CacheFile(path, _ADD_FORMAT, clock, outage)
        self._adds.patience = PATIENCE
        self._file = CacheFile(path, FORMAT, clock, outage)
        self._clock = clock
        self._writer = random.getrandbits(62)
        self._noted_at = 0
        """Microseconds since the epoch when this writer was noted in the index."""
        self._waiting: dict[int, tuple[Any, ...]] = {}
        """Rows of pages that are still to be added, by id."""
        weakref.finalize(self, _put, self._adds, self._writer, self._waiting)  # when it is dropped, and at exit

    def add(self, stem: str, entry: Entry, size: int) -> None:
        """Add or replace a page that was used now, before its files are written."""
        now = self._clock.now().epoch
        if not self._waiting:
            self._noted_at = now
            self._adds.call(None, _change, "REPLACE INTO writers VALUES (?, ?)", [(self._writer, now)])
        row = self._row(stem, entry, size, now)
        self._waiting[row[0]] = row
        if len(self._waiting) >= BATCH or now - self._noted_at > DELAY * SECOND:
            self.flush()

    def flush(self) -> None:
        """Add the pages that wait."""
        _put(self._adds, self._writer, self._waiting)
        for number in list(self._waiting)[:-MOST_WAITING]:
            self._waiting.pop(number, None)

    def learn(self, stem: str, entry: Entry, size: int, used: int) -> None:
        """Add a page that a scan found, unless it was added meanwhile."""
        self._file.call(None, _change, f"INSERT OR IGNORE {_INTO}", [self._row(stem, entry, size, used)])

    def remove(self, *stems: str) -> None:
        """Remove pages."""
        numbers = [self.number(stem) for stem in stems]
        for number in numbers:
            self._waiting.pop(number, None)
        if os.path.exists(self._adds.path):
            self._adds.call(None, _delete, numbers)

    def forget(self, ids: Iterable[int]) -> None:
        """Remove pages by their ids."""
        self._file.call(None, _delete, list(ids))

    def touch(self, uses: Sequence[tuple[int, int]]) -> None:
        """Store later uses: pairs of microseconds since the epoch and id."""
        self._file.call(None, _change, "UPDATE files SET used = ? WHERE id = ?", uses)

    def number(self, stem: str) -> int:
        """Return the id of a page, whether or not it is in the index."""
        return _number(self._relative(stem))

    def oldest(self) -> list[Indexed]:
        """Return the least recently used pages: up to `BATCH` of them."""
        return [_indexed(*row) for row in self._file.rows(_select, f"{_SELECT} ORDER BY used LIMIT ?", BATCH)]

    def page(self, number: int) -> Indexed | None:
        """Return the page with this id; None if it is not in the index."""
        rows = self._file.rows(_select, f"{_SELECT} WHERE id = ?", number)
        return _indexed(*rows[0]) if rows else None

    def listed(self, prefix: bytes = b"") -> Sequence[int]:
        """Return the ids of the pages whose host key begins with `prefix`, newest first: 8 bytes for each."""
        return self._file.call(array.array("q"), _ids, prefix)

    def stem_of(self, number: int) -> str | None:
        """Return the path of a page without file extension; None if it is not in the index."""
        page = self.page(number)
        return None if page is None else os.path.join(self._root, page.stem)

    @property
    def size(self) -> int:
        """Return the bytes of all pages. Reads an index of 25 bytes per page, without the GIL."""
        rows = self._file.rows(_select, "SELECT sum(size) FROM files")
        return int(rows[0][0] or 0) if rows else 0

    @property
    def is_complete(self) -> bool:
        """Return whether a scan has added all files of the folder, and no writer was killed since."""
        query = "SELECT 1 FROM scans WHERE NOT EXISTS (SELECT 1 FROM writers WHERE at < ?)"
        return bool(self._file.rows(_select, query, self._clock.now().epoch - ABANDONED * SECOND))

    def complete(self, at: int) -> None:
        """Record that all files of the folder from before this time are in the index."""
        self._file.call(None, _change, "INSERT INTO scans VALUES (?)", [(at,)])
        self._file.call(None, _change, "DELETE FROM writers WHERE at < ?", [(at - ABANDONED * SECOND,)])

    def checkpoint(self, mode: str = "PASSIVE") -> None:
        """Move the log into the file."""
        self._file.rows(_select, f"PRAGMA wal_checkpoint({mode})")

    def close(self) -> None:
        """Add the pages that wait, and close the connections. The next use opens them again."""
        self.flush()
        for file in (self._adds, self._file):
            with file.lock:
                file.disconnect()

    def _relative(self, stem: str) -> str:
        return stem.removeprefix(self._root).lstrip(os.sep)

    def _row(self, stem: str, entry: Entry, size: int, used: int) -> tuple[int, bytes, int, int, bytes, int]:
        name = self._relative(stem)
        return _number(name), os.fsencode(name), used, round(entry.fetched_at * 1000), host_key_of(entry), size


class Upkeep:
    """Upkeep of a folder: adds pages to its index, and evicts the least recently used ones in a thread."""

    def __init__(self, root: str, max_size: int, clock: Clock, last_uses: LastUses[str]) -> None:
        self.index = FileIndex(root, clock)
        self._root = root
        self._max_size = max_size
        self._clock = clock
        self._last_uses = last_uses
        self._thread: threading.Thread | None = None
        self._until_checkpoint = CHECKPOINT
        """Pages to add before the next checkpoint of the index."""

        # Bytes to write before the next check of the size. A short program may end before it writes so many. With a
        # random start, many short programs together still check as often.
        self._until_check = random.random() * max_size / 20

    def add(self, stem: str, entry: Entry, size: int) -> None:
        """Add a page to the index, and start the thread when a check or a checkpoint is due."""
        self.index.add(stem, entry, size)
        self._until_check -= size
        self._until_checkpoint -= 1
        if min(self._until_check, self._until_checkpoint) >= 0 or (self._thread and self._thread.is_alive()):
            return
        self._until_checkpoint = CHECKPOINT
        # Not a daemon: a short program ends when its eviction is done, so that the limit holds.
        thread = threading.Thread(target=self._keep_limit, name="curtsy-cache-upkeep")
        with contextlib.suppress(RuntimeError):  # the interpreter is shutting down, or the thread limit is reached
            thread.start()
            self._thread = thread

    def ready(self) -> FileIndex:
        """Return the index when the thread has ended and all pages are in it."""
        self._wait()
        self.index.flush()
        if os.path.isdir(self._root) and not self.index.is_complete:
            self._scan()
        return self.index

    def collect(self, limit: int) -> int:
        """Scan the folder, and evict pages down to `limit` bytes. Return the freed bytes."""
        if not os.path.isdir(self._root):
            return 0
        self._wait()
        self.index.flush()
        self._scan()
        before = self.index.size
        self._evict(limit)
        self.index.checkpoint("TRUNCATE")
        return max(0, before - self.index.size)

    def close(self) -> None:
        """Wait for the thread, and close the index."""
        self._wait()
        self.index.close()

    def _wait(self) -> None:
        if self._thread is not None:
            self._thread.join()

    def _keep_limit(self) -> None:
        self.index.flush()
        if not self.index.is_complete:
            self._scan()
        self.index.checkpoint()
        is_due = True
        while is_due:
            self._until_check = self._max_size / 40
            self.index.flush()
            self._evict(self._max_size * 19 // 20)
            is_due = self._until_check < 0  # as many bytes were added meanwhile

    def _scan(self) -> None:
        """Add all pages to the index, remove leftover files, and forget pages without files."""
        began = self._clock.now().epoch
        abandoned = self._clock.now().epoch // SECOND - HOUR  # a younger file or row may be of a page in the making
        unseen = set(self.index.listed())
        left: list[str] = []
        for files in scan(self._root, self._last_uses):
            if len(files.paths) == 2:
                stem = files.paths[0].removesuffix(META)
                if (number := self.index.number(stem)) in unseen:
                    unseen.remove(number)
                elif (entry := entry_at(stem + META)) is not None:
                    self.index.learn(stem, entry, files.size, round(files.used * SECOND))
            elif files.used < abandoned:
                left.append(files.paths[0])
        remove_files(left)
        self.index.forget(number for number in unseen if self._is_gone(number, abandoned * SECOND))
        self.index.complete(began)

    def _is_gone(self, number: int, abandoned: int) -> bool:
        page = self.index.page(number)
        return page is not None and page.used < abandoned and self._used_at(page) is None

    def _evict(self, limit: int) -> None:
        """Evict the least recently used pages down to `limit` bytes, in batches."""
        surplus = self.index.size - limit
        while surplus > 0 and (oldest := self.index.oldest()):
            gone: list[Indexed] = []
            later: list[tuple[int, int]] = []
            for page in oldest:
                used = self._used_at(page)
                if used is not None and used > page.used:
                    later.append((used, page.id))
                elif surplus > 0:
                    gone.append(page)
                    surplus -= page.size
            stems = [os.path.join(self._root, page.stem) for page in gone]
            remove_files([stem + ending for stem in stems for ending in (META, BODY)])
            self.index.forget(page.id for page in gone)
            self.index.touch(later)

    def _used_at(self, page: Indexed) -> int | None:
        """Return the last use of a page in microseconds since the epoch; None if its files are gone."""
        try:
            at = os.stat(os.path.join(self._root, page.stem) + META).st_atime_ns // 1000
        except OSError:
            return None
        return max(at, self._last_uses.at(os.path.basename(page.stem)))


def remove_files(paths: list[str]) -> None:
    """Remove files and the folders that are empty then."""
    remove(*paths)
    for folder in {os.path.dirname(path) for path in paths}:
        with contextlib.suppress(OSError):
            os.rmdir(folder)  # fails unless it is empty


def _number(stem: str) -> int:
    """Return the id of a page: a hash of its path."""
    return int.from_bytes(hashlib.blake2b(os.fsencode(stem), digest_size=8).digest(), "big", signed=True)


def _put(file: CacheFile, writer: int, waiting: dict[int, tuple[Any, ...]]) -> None:
    """Add the rows of a writer that wait, and remove them from there."""
    rows = dict(waiting)
    is_done: bool = bool(rows) and file.call(False, _put_rows, writer, tuple(rows.values()))
    if is_done:
        for number, row in rows.items():
            if waiting.get(number) is row:
                waiting.pop(number, None)


def _put_rows(db: sqlite3.Connection, writer: int, rows: Sequence[tuple[Any, ...]]) -> bool:
    db.execute("BEGIN IMMEDIATE")
    db.executemany(f"REPLACE {_INTO}", rows)
    db.execute("DELETE FROM writers WHERE id = ?", (writer,))
    db.execute("COMMIT")
    return True


def _delete(db: sqlite3.Connection, ids: list[int]) -> None:
    _change(db, "DELETE FROM files WHERE id = ?", [(number,) for number in ids])


def _change(db: sqlite3.Connection, statement: str, rows: Sequence[tuple[object, ...]]) -> None:
    if len(rows) == 1:
        db.execute(statement, rows[0])  # its own transaction
        return
    db.execute("BEGIN IMMEDIATE")
    db.executemany(statement, rows)
    db.execute("COMMIT")


def _indexed(number: int, stem: bytes, used: int, size: int) -> Indexed:
    return Indexed(number, os.fsdecode(stem), used, size)


def _select(db: sqlite3.Connection, query: str, *given: object) -> list[tuple[Any, ...]]:
    return db.execute(query, given).fetchall()


def _ids(db: sqlite3.Connection, prefix: bytes) -> array.array[int]:
    return array.array("q", (number for (number,) in db.execute(_LISTED, (len(prefix), prefix))))
