"""SQLite file of records: opening, transactions and repair.

Checkpoints happen within a commit, and so while the process holds the file lock. This avoids the race between a
checkpoint and a commit in SQLite before 3.51.3 (sqlite.org/wal.html, "the WAL-reset bug").
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import random
import sqlite3
import stat
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from curtsy.core.errors import PolicyError, StoreError
from curtsy.core.record import Record
from curtsy.stores.codec import DamagedRecord
from curtsy.stores.protocol import Loss
from curtsy.stores.transaction import SELECT, Transaction, decoded, encode
from curtsy.system.file_lock import FileLock, Inode, inode

SCHEMA = (
    "CREATE TABLE records (key BLOB PRIMARY KEY, data BLOB NOT NULL, sum INTEGER NOT NULL, expires_epoch INTEGER)"
    " WITHOUT ROWID",
    "CREATE INDEX records_by_expiry ON records (expires_epoch) WHERE expires_epoch IS NOT NULL",
    "CREATE TABLE names AS SELECT randomblob(16) AS name",
)
"""Statements that bring a file from each `user_version` to the next. Append only."""

APPLICATION = 0x43757274
"""`application_id` of curtsy's files, which distinguishes them from other programs' databases."""

_SWEEP_EVERY = 60.0
"""Seconds between two sweeps of expired records."""

_SELECT_KEYS = "SELECT key FROM records WHERE key >= ? AND key < ? ORDER BY key"
_SELECT_ALL = "SELECT data, sum, key FROM records WHERE key >= ? AND key < ? ORDER BY key"

_LEAST = 512
"""Bytes of the smallest database: SQLite treats some shorter files as empty databases."""

_PEEK = 0.2
"""Seconds to wait for a lock when reading a file that cannot be written."""

_TROUBLE = (sqlite3.Error, UnicodeDecodeError)
"""Exceptions of the sqlite3 module; the second occurs if a message quotes from a damaged file."""

_DAMAGE = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_TOOBIG, sqlite3.SQLITE_CONSTRAINT)
"""Result codes of a damaged file; an intact file never causes the last two here."""

_log = logging.getLogger("curtsy")


class DamagedFile(StoreError):
    """Error for a file that is no intact database."""


class Unready(StoreError):
    """Error for a file that the writer must open, create or repair before a read."""


class Database:
    """One file, with a connection for writing and one for reading. Thread-safe."""

    def __init__(self, path: str, *, patience: float, schema: tuple[str, ...] = SCHEMA) -> None:
        self._path = path
        self._patience = patience
        self._schema = schema
        self._turn = FileLock(path + ".lock")
        self._writing = threading.Lock()
        self._reading = threading.Lock()
        self._writer: sqlite3.Connection | None = None
        self._reader: sqlite3.Connection | None = None
        self._file: Inode | None = None
        """File that the writing connection is open on."""
        self._beside: dict[str, Inode | None] = {}
        """Files that SQLite has created beside it, by path."""
        self._read_file: Inode | None = None
        self._name: bytes | None = None
        """Random name stored in the file that was last open; it identifies the file, because inodes are reused."""
        self.losses: list[Loss] = []
        """Losses: the file was removed, replaced or damaged, or a record was damaged."""
        self._is_doubtful = False
        """True if damage was found: the whole file is checked before its next use."""
        self._sweep_at = 0.0

    def transact(self, work: Callable[[Transaction], None]) -> None:
        """Wait for the file lock, and let `work` change records in one transaction.

        A damaged file is renamed, and `work` runs again on a fresh one. Raises StoreError or PolicyError.
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
            raise _judged(error, self._path, self._patience) from error

    def _attempt(self, work: Callable[[Transaction], None]) -> None:
        try:
            connection = self._connected()
            self._begin(connection)
            try:
                draft = Transaction(connection, self._path, self._met_damage)
                work(draft)
                draft.write()
                if draft.now is not None and time.monotonic() >= self._sweep_at:
                    is_more = draft.sweep(draft.now)
                    self._sweep_at = time.monotonic() + (1.0 if is_more else _SWEEP_EVERY)
                connection.execute("COMMIT")
            except BaseException:
                with contextlib.suppress(*_TROUBLE):
                    connection.execute("ROLLBACK")
                raise
        except (*_TROUBLE, OSError) as error:
            if _primary(error) != sqlite3.SQLITE_BUSY:
                self._disconnect()
            if _primary(error) == sqlite3.SQLITE_READONLY and self._says_read_only():
                raise DamagedFile(f"{self._path} is damaged: it says that it cannot be written.") from error
            raise _judged(error, self._path, self._patience) from error

    def _connected(self) -> sqlite3.Connection:
        """Return the writing connection. Reconnect if the file at the path was renamed, replaced or deleted."""
        if self._writer is not None and not self._is_doubtful and inode(self._path) == self._file:
            return self._writer
        file, known = inode(self._path), self._name
        is_other = self._writer is not None and file != self._file  # even a copy with the same stored name
        self._abandon()
        os.makedirs(os.path.dirname(self._path), mode=0o700, exist_ok=True)
        self._look_at_file()
        with contextlib.suppress(FileExistsError):
            # Closing a file drops this process's locks on it. That is harmless only for a file that was just created.
            os.close(os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
        connection = _connect(self._path, self._patience)
        try:
            self._name = self._prepare(connection)
        except BaseException:
            connection.close()
            raise
        self._writer, self._file, self._is_doubtful = connection, inode(self._path), False
        if known is not None and (is_other or self._name != known):
            self.losses.append(Loss(object()))
            what = "removed under us. A fresh one is begun" if file is None else "replaced under us. That one is used"
            _log.warning("%s was %s, with what this process still knows.", self._path, what)
        self._beside = {name: inode(name) for name in (self._path + "-wal", self._path + "-shm")}
        return connection

    def _look_at_file(self) -> None:
        """Raise StoreError for a path that SQLite would treat as a fresh file, or block on.

        A process creates and fills the file while it holds the lock, so a shorter file is damaged (DamagedFile).
        """
        try:
            found = os.stat(self._path)
        except FileNotFoundError:
            if os.path.exists(self._path + "-wal"):
                raise DamagedFile(f"{self._path} is damaged: only its log is left.") from None
            return
        if not stat.S_ISREG(found.st_mode):
            raise StoreError(f"{self._path} cannot be used: it is not a file. Remove it, or use another store.")
        if found.st_size < _LEAST:
            raise DamagedFile(f"{self._path} is damaged: it has {found.st_size} bytes.")

    def _says_read_only(self) -> bool:
        """Return whether the file's header requires a nonexistent version of SQLite (fileformat2.html, 1.3.3)."""
        with self._reading:
            self._stop_reading()  # closing the file drops this process's locks on it
            try:
                with open(self._path, "rb") as file:
                    return file.read(19)[18:] > b"\x02"
            except OSError:
                return False

    def _abandon(self) -> None:
        """Close the writing connection; remove its side files if its file is gone from the path.

        SQLite leaves them there, and would treat them as part of the file that is now at the path.
        """
        left: list[str] = []
        if self._writer is not None and inode(self._path) != self._file:
            left = [name for name, file in self._beside.items() if file is not None and file == inode(name)]
        self._disconnect()
        for name in left:
            os.unlink(name)

    def _prepare(self, connection: sqlite3.Connection) -> bytes:
        """Check that the file is curtsy's, upgrade its schema, and return its stored name.

        Raises DamagedFile, and PolicyError for a file of another program or a later version.
        """
        [application], [version] = (_pragma(connection, name) for name in ("application_id", "user_version"))
        if application != APPLICATION:
            made_by = [sql for [sql] in connection.execute("SELECT sql FROM sqlite_master")]
            if self._schema[0].encode() in made_by:
                raise DamagedFile(f"{self._path} is damaged: its table is ours, its application_id is not.")
            if made_by:
                raise PolicyError(f"{self._path} is a database of another program. Give curtsy a file of its own.")
        if version > len(self._schema):
            raise PolicyError(
                f"{self._path} has format {version}, but this curtsy knows formats up to {len(self._schema)}: a later "
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
            raise DamagedFile(f"{self._path} is damaged.")
        names: list[tuple[bytes]] = connection.execute("SELECT name FROM names").fetchall()
        if len(names) != 1:
            raise DamagedFile(f"{self._path} is damaged: it has no name.")
        connection.execute("PRAGMA busy_timeout = 0")
        return names[0][0]

    def _met_damage(self, key: str) -> None:
        self._is_doubtful = True
        self.losses.append(Loss(object(), key=key))

    def _begin(self, connection: sqlite3.Connection) -> None:
        """Begin a transaction, which locks the file against writers that do not use the file lock."""
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
        """Rename a damaged file to make room for a fresh one.

        Requires the file lock, and damage that was just found in the file now at the path.
        """
        self._disconnect()
        if self._name is not None:
            self._name = None
            self.losses.append(Loss(object()))
        aside = f"{self._path}.damaged-{int(time.time())}"
        while os.path.exists(aside):
            aside += "-again"
        for suffix in ("-wal", "-shm", ""):
            with contextlib.suppress(FileNotFoundError):
                os.rename(self._path + suffix, aside + suffix)
        _log.warning(
            "%s It was put aside as %s, and a fresh one begun, with what this process still knows.", damage, aside
        )

    def read(self, key: str) -> Record | None:
        """Return the last committed record under `key`, or None. Raises Unready if the writer must open the file."""
        [row] = self._rows(SELECT, (encode(key),)) or [None]
        try:
            return decoded(key, row)
        except DamagedRecord as damage:
            self._is_doubtful = True
            raise Unready(f"{self._path} is damaged.") from damage

    def peek(self, key: str) -> Record | None:
        """Return the record under `key` of an unwritable file; None if it is unreadable.

        If SQLite cannot create its side files, only the file itself is readable. It is complete if its last writers
        have closed it.
        """
        for how in ("mode=ro", "mode=ro&immutable=1"):
            with contextlib.suppress(*_TROUBLE, StoreError, OSError, ValueError):
                if not stat.S_ISREG(os.stat(self._path).st_mode):
                    return None
                connection = sqlite3.connect(
                    f"{Path(self._path).as_uri()}?{how}", uri=True, timeout=_PEEK, isolation_level=None
                )
                connection.text_factory = bytes
                try:
                    [application], [version] = (
                        _pragma(connection, name) for name in ("application_id", "user_version")
                    )
                    if application != APPLICATION or version > len(self._schema):
                        return None
                    return decoded(key, connection.execute(SELECT, (encode(key),)).fetchone())
                finally:
                    connection.close()
        return None

    def keys(self, prefix: str) -> list[str]:
        """Return all keys that begin with `prefix`, sorted: UTF-8 bytes sort as the characters do."""
        found = []
        for [name] in self._rows(_SELECT_KEYS, _range(prefix)):
            with contextlib.suppress(UnicodeDecodeError):  # a damaged key
                found.append(name.decode("utf-8", "surrogatepass"))
        return found

    def records(self, prefix: str) -> list[tuple[str, Record]]:
        """Return all records whose keys begin with `prefix`, of one moment; skip unreadable ones."""
        found = []
        for row in self._rows(_SELECT_ALL, _range(prefix)):
            with contextlib.suppress(UnicodeDecodeError, StoreError):  # damaged, or of a later version
                key = row[2].decode("utf-8", "surrogatepass")
                if (record := decoded(key, row)) is not None:
                    found.append((key, record))
        return found

    def _rows(self, query: str, values: tuple[bytes, ...]) -> list[Any]:
        with self._reading:
            file = inode(self._path)
            if file is None or file != self._file:
                raise Unready(f"{self._path} is not open.")
            try:
                if self._reader is None or self._read_file != file:
                    self._stop_reading()
                    self._reader = _connect(self._path, self._patience)
                    self._read_file = file
                return self._reader.execute(query, values).fetchall()
            except _TROUBLE as error:
                self._stop_reading()
                judged = _judged(error, self._path, self._patience)
                if isinstance(judged, DamagedFile):
                    self._is_doubtful = True
                    raise Unready(str(judged)) from error
                raise judged from error

    def heir(self) -> Database:
        """Return a copy for a forked child: nothing is open, but the file's name and losses are known."""
        self._turn.drop()
        heir = Database(self._path, patience=self._patience, schema=self._schema)
        heir.losses, heir._name = [*self.losses], self._name
        return heir

    def pause(self) -> None:
        """Wait for running calls, close both connections, and block calls until `resume()`.

        A fork needs this: a connection must not be carried across it. Nor may the child open the file while its copy
        of SQLite believes that it holds the parent's locks (sqlite.org/howtocorrupt.html, 2.6).
        """
        self._writing.acquire()
        self._reading.acquire()
        self._stop_reading()
        self._disconnect()

    def resume(self) -> None:
        """Allow calls again after `pause()`; the next call opens the file."""
        self._reading.release()
        self._writing.release()

    def close(self) -> None:
        """Close all files; the next call opens them again."""
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


def _range(prefix: str) -> tuple[bytes, bytes]:
    """Return the first key that may begin with `prefix`, and the first key after all of them."""
    first = encode(prefix)
    return first, first[:-1] + bytes([first[-1] + 1]) if first else b"\xff"  # UTF-8 has no byte 255


def _connect(path: str, patience: float) -> sqlite3.Connection:
    # mode=rw creates no file: a file that SQLite creates would not be private.
    url = Path(path).as_uri() + "?mode=rw"
    connection = sqlite3.connect(url, uri=True, timeout=patience, isolation_level=None, check_same_thread=False)
    connection.text_factory = bytes  # a damaged file may contain text that is not UTF-8
    return connection


def _pragma(connection: sqlite3.Connection, name: str) -> Any:
    return connection.execute(f"PRAGMA {name}").fetchone()


def _primary(error: Exception) -> int:
    """Return SQLite's primary result code; 0 for other errors."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


def _is_damage(error: Exception) -> bool:
    """Return whether only a damaged file causes this error."""
    if _primary(error) == sqlite3.SQLITE_ERROR:
        return any(each in str(error) for each in ("no such ", "already exists", "unsupported file format"))
    return _primary(error) in _DAMAGE or isinstance(error, UnicodeDecodeError)


def _judged(error: Exception, path: str, patience: float) -> StoreError:
    """Return a StoreError with the cause and the remedy of an error of SQLite or the system."""
    if _is_damage(error):
        return DamagedFile(f"{path} is damaged: {error}.")
    code = _primary(error)
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        why, remedy = f"another program has locked it for {patience:g} s", "Close that program"
    elif code == sqlite3.SQLITE_FULL or getattr(error, "errno", 0) in (errno.ENOSPC, errno.EDQUOT):
        why, remedy = "the disk is full", "Free some space"
    elif code in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM) or isinstance(error, OSError):
        why, remedy = f"{getattr(error, 'strerror', error)}", "Check the permissions of the file and its directory"
    else:
        why, remedy = f"{error}", "Check the disk"
    return StoreError(f"{path} cannot be used: {why}. {remedy}, or use another store.")
