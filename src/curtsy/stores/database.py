"""One SQLite file of records: opened, written by turns, mended.

Checkpoints happen within a commit, hence within a turn, which also keeps clear of the race between a checkpoint and a
commit in SQLite before 3.51.3 (sqlite.org/wal.html, "the WAL-reset bug").
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import random
import sqlite3
import threading
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from curtsy.core.errors import StoreError
from curtsy.core.message import SECOND, Now
from curtsy.core.record import Record
from curtsy.stores.codec import DamagedRecord, pack, unpack
from curtsy.stores.turn import Inode, Turn, inode

SCHEMA = (
    "CREATE TABLE records (key BLOB PRIMARY KEY, data BLOB NOT NULL, sum INTEGER NOT NULL, expires_epoch INTEGER)"
    " WITHOUT ROWID",
    "CREATE INDEX records_by_expiry ON records (expires_epoch) WHERE expires_epoch IS NOT NULL",
)
"""What brings a file from each `user_version` to the next. Only ever added to."""

APPLICATION = 0x43757274
"""The `application_id` of our files, so that another program's database is not taken for ours."""

_DAY = 86_400
_SWEEP_EVERY = 60.0
_SWEEP_ROWS = 100

_SELECT = "SELECT data, sum, expires_epoch FROM records WHERE key = ?"
_INSERT = (
    "INSERT INTO records (key, data, sum, expires_epoch) VALUES (?1, ?2, ?3, ?4)"
    " ON CONFLICT (key) DO UPDATE SET data = ?2, sum = ?3, expires_epoch = ?4"
)
_UPDATE = "UPDATE records SET data = ?2, sum = ?3 WHERE key = ?1"
_DELETE = "DELETE FROM records WHERE key = ?"
_SELECT_KEYS = "SELECT key FROM records WHERE key >= ? AND key < ? ORDER BY key"
_SWEEP = "DELETE FROM records WHERE key IN (SELECT key FROM records WHERE expires_epoch <= ? LIMIT ?)"

_log = logging.getLogger("curtsy")


class DamagedFile(StoreError):
    """The file is no sound database any more."""


class Unready(StoreError):
    """The file cannot be read before the writer has opened, made or mended it."""


class Draft:
    """What one transaction has read, and what it will write."""

    def __init__(self, connection: sqlite3.Connection, path: str) -> None:
        self._connection = connection
        self._path = path
        self._records: dict[str, Record | None] = {}
        self._expiries: dict[str, int | None] = {}
        self._writes: dict[str, tuple[str, tuple[Any, ...]]] = {}
        self.now: Now | None = None
        """When the last change was made; None if nothing changed."""
        self.met_damage = False

    def load(self, key: str) -> Record | None:
        """The record under `key`, as this transaction sees it."""
        if key in self._records:
            return self._records[key]
        row = self._connection.execute(_SELECT, (encode(key),)).fetchone()
        self._expiries[key] = 0 if row is None else row[2]
        try:
            record = _decoded(key, row)
        except DamagedRecord as damage:
            _log.warning("%s: the record under %a is damaged and counts as absent: %s", self._path, key, damage)
            self._writes[key] = _DELETE, (encode(key),)
            self._expiries[key] = 0
            self.met_damage = True
            record = None
        self._records[key] = record
        return record

    def put(self, key: str, record: Record | None, now: Now) -> None:
        """Note what is to be under `key`, which was loaded before. Nothing is written yet."""
        self._writes[key] = self._write(key, record, now)
        self._records[key] = record
        self.now = now

    def _write(self, key: str, record: Record | None, now: Now) -> tuple[str, tuple[Any, ...]]:
        name = encode(key)
        if record is None:
            return _DELETE, (name,)
        data = pack(record)
        expires = _expiry(record, now)
        # Most writes leave the day of expiry alone, and then the index too.
        if expires == self._expiries[key]:
            return _UPDATE, (name, data, _sum(name, data))
        return _INSERT, (name, data, _sum(name, data), expires)

    def write(self) -> None:
        """Write what has changed."""
        for statement, values in self._writes.values():
            self._connection.execute(statement, values)

    def sweep(self, now: Now) -> bool:
        """Drop some records that say nothing any more. True if there may be more of them."""
        found = self._connection.execute(_SWEEP, (now.epoch // SECOND, _SWEEP_ROWS))
        return found.rowcount == _SWEEP_ROWS


class Database:
    """One file, with a connection to write and one to read. Threads may share it."""

    def __init__(self, path: str, *, patience: float, schema: tuple[str, ...] = SCHEMA) -> None:
        self.path = path
        self._patience = patience
        self._schema = schema
        self._turn = Turn(path)
        self._writing = threading.Lock()
        self._reading = threading.Lock()
        self._writer: sqlite3.Connection | None = None
        self._reader: sqlite3.Connection | None = None
        self._file: Inode | None = None
        """The file that the writer's connection is open on."""
        self._beside: dict[str, Inode | None] = {}
        """And those that SQLite has made beside it."""
        self._read_file: Inode | None = None
        self._is_doubtful = False
        """Somebody met damage in it: to be looked through before it is used again."""
        self._sweep_at = 0.0

    def transact(self, work: Callable[[Draft], None]) -> None:
        """Wait for our turn, and let `work` change records in one transaction. It may be run again.

        A damaged file is put aside, and `work` done in a fresh one.
        """
        try:
            self._turn.take()
            try:
                with self._writing:
                    try:
                        self._attempt(work)
                    except DamagedFile as damage:
                        self._put_aside(damage)
                        self._attempt(work)
            finally:
                self._turn.give()
        except OSError as error:
            raise _judged(error, self.path, self._patience) from error

    def _attempt(self, work: Callable[[Draft], None]) -> None:
        try:
            connection = self._connected()
            self._begin(connection)
            try:
                draft = Draft(connection, self.path)
                work(draft)
                draft.write()
                if draft.now is not None and time.monotonic() >= self._sweep_at:
                    is_more = draft.sweep(draft.now)
                    self._sweep_at = time.monotonic() + (1.0 if is_more else _SWEEP_EVERY)
                connection.execute("COMMIT")
                self._is_doubtful |= draft.met_damage
            except BaseException:
                with contextlib.suppress(sqlite3.Error):
                    connection.execute("ROLLBACK")
                raise
        except (sqlite3.Error, OSError) as error:
            if _primary(error) != sqlite3.SQLITE_BUSY:
                self._disconnect()
            raise _judged(error, self.path, self._patience) from error

    def _connected(self) -> sqlite3.Connection:
        """The connection to write by, on the file that is there now: it may have been put aside, replaced, deleted."""
        if self._writer is not None and not self._is_doubtful and inode(self.path) == self._file:
            return self._writer
        self._abandon()
        os.makedirs(os.path.dirname(self.path), mode=0o700, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            # Only a file that nobody can have open yet may be closed like this: closing it drops this process's locks.
            os.close(os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
        connection = _connect(self.path, self._patience)
        try:
            self._prepare(connection)
        except BaseException:
            connection.close()
            raise
        self._writer, self._file, self._is_doubtful = connection, inode(self.path), False
        self._beside = {name: inode(name) for name in (self.path + "-wal", self.path + "-shm")}
        return connection

    def _abandon(self) -> None:
        """Close the connection, if any. Should its file be gone from here, what it left beside it must go too.

        SQLite leaves it lying, and would take it for part of the file that lies here now.
        """
        is_gone = self._writer is not None and inode(self.path) != self._file
        self._disconnect()
        for name, left in self._beside.items():
            if is_gone and left is not None and inode(name) == left:
                os.unlink(name)

    def _prepare(self, connection: sqlite3.Connection) -> None:
        """Check that the file is ours, and bring it up to date."""
        [application], [version] = (_pragma(connection, name) for name in ("application_id", "user_version"))
        if application != APPLICATION and connection.execute("SELECT 1 FROM sqlite_master").fetchone() is not None:
            raise StoreError(f"{self.path} is a database of another program. Give curtsy a file of its own.")
        if version > len(self._schema):
            raise StoreError(
                f"{self.path} has format {version}, but this curtsy knows formats up to {len(self._schema)}: a later "
                "version wrote it. Upgrade curtsy, or use another store."
            )
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")
        if version < len(self._schema):
            connection.execute("BEGIN IMMEDIATE")
            [version] = _pragma(connection, "user_version")
            for statement in self._schema[version:]:
                connection.execute(statement)
            connection.execute(f"PRAGMA user_version = {len(self._schema)}")
            connection.execute(f"PRAGMA application_id = {APPLICATION}")
            connection.execute("COMMIT")
        if self._is_doubtful and _pragma(connection, "quick_check(1)") != (b"ok",):
            raise DamagedFile(f"{self.path} is damaged.")
        connection.execute("PRAGMA busy_timeout = 0")

    def _begin(self, connection: sqlite3.Connection) -> None:
        """Lock the file against writers that take no turns."""
        give_up_at = time.monotonic() + self._patience
        while True:
            try:
                connection.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError as error:
                if _primary(error) != sqlite3.SQLITE_BUSY or time.monotonic() > give_up_at:
                    raise
                time.sleep(random.uniform(0.0005, 0.003))
            else:
                return

    def _put_aside(self, damage: DamagedFile) -> None:
        """Make room for a fresh file. Only done in our turn, right after the damage was seen in the file there now."""
        self._disconnect()
        aside = f"{self.path}.damaged-{int(time.time())}"
        while os.path.exists(aside):
            aside += "-again"
        for suffix in ("-wal", "-shm", ""):
            with contextlib.suppress(FileNotFoundError):
                os.rename(self.path + suffix, aside + suffix)
        _log.warning(
            "%s It was put aside as %s, and a fresh one begun: what was spent today starts at nothing.", damage, aside
        )

    def read(self, key: str) -> Record | None:
        """The record under `key`, as last committed."""
        [row] = self._rows(_SELECT, (encode(key),)) or [None]
        try:
            return _decoded(key, row)
        except DamagedRecord as damage:
            self._is_doubtful = True
            raise Unready(f"{self.path} is damaged.") from damage

    def keys(self, prefix: str) -> list[str]:
        """All keys that begin with `prefix`, in order: that of UTF-8's bytes, which is that of the characters."""
        first = encode(prefix)
        last = first[:-1] + bytes([first[-1] + 1]) if first else b"\xff"  # UTF-8 does not use 255
        found = []
        for [name] in self._rows(_SELECT_KEYS, (first, last)):
            with contextlib.suppress(UnicodeDecodeError):  # a damaged key
                found.append(name.decode("utf-8", "surrogatepass"))
        return found

    def _rows(self, query: str, values: tuple[bytes, ...]) -> list[Any]:
        with self._reading:
            file = inode(self.path)
            if file is None or file != self._file:
                raise Unready(f"{self.path} is not open.")
            try:
                if self._reader is None or self._read_file != file:
                    self._stop_reading()
                    self._reader = _connect(self.path, self._patience)
                    self._read_file = file
                return self._reader.execute(query, values).fetchall()
            except sqlite3.Error as error:
                self._stop_reading()
                judged = _judged(error, self.path, self._patience)
                if isinstance(judged, DamagedFile):
                    self._is_doubtful = True
                    raise Unready(str(judged)) from error
                raise judged from error

    def pause(self) -> None:
        """Wait for what is under way, close both connections and let nobody in until `resume()`: for a fork.

        A connection must not be carried over a fork, nor may the child open the file while its copy of SQLite
        believes to hold the parent's locks (sqlite.org/howtocorrupt.html, 2.6).
        """
        self._writing.acquire()
        self._reading.acquire()
        self._stop_reading()
        self._disconnect()

    def resume(self) -> None:
        """Go on after `pause()`; the next use opens the file again."""
        self._reading.release()
        self._writing.release()

    def drop_turn(self) -> None:
        """Close the side file: in a forked child, which must not keep its parent's turn alive."""
        self._turn.drop()

    def close(self) -> None:
        """Close everything; the next use opens it again."""
        self.pause()
        self._turn.drop()
        self.resume()

    def _disconnect(self) -> None:
        if self._writer is not None:
            self._writer.close()
        self._writer = self._file = None

    def _stop_reading(self) -> None:
        if self._reader is not None:
            self._reader.close()
        self._reader = self._read_file = None


def encode(key: str) -> bytes:
    """A key as it stands in the file: any text, lone surrogates and NUL too."""
    return key.encode("utf-8", "surrogatepass")


def _decoded(key: str, row: Any) -> Record | None:
    """The record of a row."""
    if row is None:
        return None
    data, total = row[0], row[1]
    if not isinstance(data, bytes) or total != _sum(encode(key), data):
        raise DamagedRecord("its check sum is wrong.")
    return unpack(data)


def _sum(name: bytes, data: bytes) -> int:
    """A check sum, for SQLite has none: a flipped bit in a counter would look like any other number."""
    return zlib.crc32(data, zlib.crc32(name))


def _expiry(record: Record, now: Now) -> int | None:
    """The epoch second, at the end of some day, when the record may be dropped."""
    lasts = record.lasts(now)
    return None if lasts is None else -(-(now.epoch + lasts) // (_DAY * SECOND)) * _DAY


def _connect(path: str, patience: float) -> sqlite3.Connection:
    # rw: never make a file here, for it would not be private.
    url = Path(path).as_uri() + "?mode=rw"
    connection = sqlite3.connect(url, uri=True, timeout=patience, isolation_level=None, check_same_thread=False)
    connection.text_factory = bytes  # we keep no text; what a damaged file holds need not be UTF-8
    return connection


def _pragma(connection: sqlite3.Connection, name: str) -> Any:
    return connection.execute(f"PRAGMA {name}").fetchone()


def _primary(error: Exception) -> int:
    """SQLite's primary result code; 0 if there is none."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


def _judged(error: Exception, path: str, patience: float) -> StoreError:
    """What an error of SQLite or the system means, and what to do about it."""
    code = _primary(error)
    if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        return DamagedFile(f"{path} is damaged: {error}.")
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        why, remedy = f"another program has locked it for {patience:g} s", "Close that program"
    elif code == sqlite3.SQLITE_FULL or getattr(error, "errno", 0) in (errno.ENOSPC, errno.EDQUOT):
        why, remedy = "the disk is full", "Free some space"
    elif code in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM) or isinstance(error, OSError):
        why, remedy = f"{getattr(error, 'strerror', error)}", "Check the permissions of the file and its directory"
    else:
        why, remedy = f"{error}", "Check the disk"
    return StoreError(f"{path} cannot be used: {why}. {remedy}, or use another store.")
