"""SQLite file that belongs to one process at a time.

The process locks a side file, `<path>.lock`, which contains its process id. The system releases the lock when the
process ends in any way. SQLite's own lock is held as well (`locking_mode = EXCLUSIVE`). It excludes programs that
ignore the side file, and saves locking in every transaction. A damaged file is never replaced here, because its queued
URLs would be lost silently.
"""

from __future__ import annotations

import errno
import os
import re
import sqlite3
import sys
import weakref
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from curtsy.core.errors import StoreError
from curtsy.system.own_file import open_own

if sys.platform != "win32":
    import fcntl

APPLICATION = 0x43757266
"""`application_id` of our files, which distinguishes them from other programs' databases."""

_PAGE = 1024
_LOG = 16 << 20

_PRAGMAS = (
    # Rows are small and changes are scattered: larger pages would mean four times as many bytes written.
    f"page_size = {_PAGE}",
    "locking_mode = EXCLUSIVE",
    "journal_mode = WAL",
    # A killed process loses nothing. A power cut may lose the last transactions, and never the file.
    "synchronous = NORMAL",
    # At this size, the log is copied into the file: the only time that a commit waits for the disk.
    f"wal_autocheckpoint = {_LOG // _PAGE}",
    f"journal_size_limit = {_LOG}",
)

# An intact file never causes the last two.
_DAMAGE = (
    sqlite3.SQLITE_CORRUPT,
    sqlite3.SQLITE_NOTADB,
    sqlite3.SQLITE_FORMAT,
    sqlite3.SQLITE_CONSTRAINT,
    sqlite3.SQLITE_TOOBIG,
)
_COMPLAINT = re.compile("no such |Could not decode|malformed|unsupported file format")
_LOCKED = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
_FORBIDDEN = (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM)

_TROUBLE = (sqlite3.Error, UnicodeError, OSError)
"""Errors of an access. UnicodeError results from SQLite quoting a damaged file in its message."""


class Taken(StoreError):
    """Error: the file is in use by another process."""


class Unsound(sqlite3.DatabaseError):
    """Error: the contents of the file are not those that we wrote."""


_opened: weakref.WeakSet[SQLiteFile] = weakref.WeakSet()
_parents: list[object] = []  # connections that a forked child must neither use nor close


class SQLiteFile:
    """Open SQLite file with transactions; its errors advise the user."""

    def __init__(self, path: str | os.PathLike[str], schema: Sequence[str], *, fresh: bool, cache: int) -> None:
        self.path = os.path.abspath(os.path.expanduser(path))
        self._schema = schema
        self._cache = cache
        self._lock: int | None = None
        self._process = os.getpid()
        self._connection: sqlite3.Connection | None = None
        self._is_closed = False
        self._is_made = False
        """True once the file was opened: from then on, a missing file or table is an error."""
        try:
            self._take()
            if fresh:
                for suffix in ("-wal", "-shm", ""):
                    Path(self.path + suffix).unlink(missing_ok=True)
            self._connect()
            self._sign()
        except BaseException as error:
            self.close()
            if isinstance(error, _TROUBLE):
                raise self.filters(error) from error
            raise
        _opened.add(self)

    def begin(self) -> None:
        """Begin a transaction."""
        self.execute("BEGIN IMMEDIATE")

    def commit(self) -> None:
        """Commit the transaction."""
        self.execute("COMMIT")

    def roll_back(self) -> None:
        """Roll back the transaction, in any state of the connection."""
        connection = self._connection
        if connection is None or self._process != os.getpid():
            return
        try:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
        except sqlite3.Error:
            connection.close()
            self._connection = None  # the next use reconnects; the log has no uncommitted changes

    def execute(self, statement: str, values: Sequence[Any] = ()) -> sqlite3.Cursor:
        """Run one statement that changes the file. Raise StoreError."""
        try:
            return (self._connection or self._connect()).execute(statement, values)
        except _TROUBLE as error:
            raise self.filters(error) from error

    def execute_many(self, statement: str, rows: Sequence[Sequence[Any]]) -> None:
        """Run one statement for each row. Raise StoreError."""
        try:
            (self._connection or self._connect()).executemany(statement, rows)
        except _TROUBLE as error:
            raise self.filters(error) from error

    def rows(self, query: str, values: Sequence[Any] = ()) -> Iterator[Any]:
        """Yield the rows of a query. Raise StoreError."""
        try:
            yield from (self._connection or self._connect()).execute(query, values)
        except _TROUBLE as error:
            raise self.filters(error) from error

    def close(self) -> None:
        """Close the file and release its lock; idempotent."""
        self._is_closed = True
        if self._process != os.getpid():
            return
        if self._connection is not None:
            self._connection.close()
        self._connection = None
        if self._lock is not None:
            os.close(self._lock)
        self._lock = None

    def disown(self) -> None:
        """Detach a forked child from the connection and lock of its parent."""
        _parents.append(self._connection)
        self._connection = None
        if self._lock is not None:
            os.close(self._lock)  # otherwise our copy would keep the file locked after the parent's end
        self._lock = None

    def _take(self) -> None:
        """Lock the file; raise Taken if another process has it."""
        os.makedirs(os.path.dirname(self.path), mode=0o700, exist_ok=True)
        self._lock = open_own(self.path + ".lock", os.O_RDWR | os.O_CREAT, 0o600)
        if sys.platform != "win32":  # Windows has SQLite's lock only
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
                    raise self._taken() from error
                if error.errno not in (errno.ENOLCK, errno.ENOTSUP):
                    raise
        os.ftruncate(self._lock, 0)

    def _sign(self) -> None:
        if self._lock is not None:
            os.write(self._lock, f"{os.getpid()}\n".encode())

    def _taken(self) -> Taken:
        owner = "another process"
        if self._lock is not None and (number := os.read(self._lock, 20).strip()):
            owner = f"process {number.decode('ascii', 'replace')}"
        return Taken(
            f"{self.path} is in use by {owner} (see {self.path}.lock), and a frontier on the disk is for one process "
            "at a time. Wait for that one or end it, or give this crawl another name; for many processes and machines, "
            "use a Redis store."
        )

    def _connect(self) -> sqlite3.Connection:
        if self._process != os.getpid():
            raise StoreError(
                f"{self.path} was opened by process {self._process}, from which this one was forked. Open it in the "
                "process that uses it."
            )
        if self._is_closed:
            raise StoreError(f"{self.path} is closed. Open the frontier again.")
        if not self._is_made and not os.path.exists(self.path):
            os.close(os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600))  # SQLite would make it readable by all
        address = Path(self.path).as_uri() + "?mode=rw"
        connection = sqlite3.connect(address, uri=True, timeout=0.5, isolation_level=None, check_same_thread=False)
        try:
            self._prepare(connection)
        except BaseException:
            connection.close()
            raise
        self._connection, self._is_made = connection, True
        return connection

    def _prepare(self, connection: sqlite3.Connection) -> None:
        """Check that the file is ours and intact, and upgrade its schema."""
        for pragma in (*_PRAGMAS, f"cache_size = -{self._cache // 1024}"):
            connection.execute(f"PRAGMA {pragma}").fetchall()
        connection.execute("BEGIN EXCLUSIVE")  # acquires SQLite's lock, which is then kept
        [[application], [version], [found]] = (
            connection.execute(f"PRAGMA {name}").fetchone()
            for name in ("application_id", "user_version", "quick_check(1)")
        )
        if found != "ok":
            raise Unsound(" ".join(found.split()))
        if application != APPLICATION and connection.execute("SELECT 1 FROM sqlite_master").fetchone():
            raise StoreError(f"{self.path} is a database of another program. Give the crawl a file of its own.")
        if version > len(self._schema):
            raise StoreError(
                f"{self.path} has format {version}, but this curtsy knows formats up to {len(self._schema)}: a later "
                "version wrote it. Upgrade curtsy, or give the crawl another name."
            )
        if version < len(self._schema):
            if self._is_made:
                raise Unsound("it is not the file that was opened")
            for statement in self._schema[version:]:
                connection.execute(statement)
            connection.execute(f"PRAGMA user_version = {len(self._schema)}")
            connection.execute(f"PRAGMA application_id = {APPLICATION}")
        connection.execute("COMMIT")

    def filters(self, error: Exception) -> StoreError:
        """Return the StoreError for an error of SQLite or the system, with advice."""
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        number = getattr(error, "errno", 0)
        if code in _DAMAGE or isinstance(error, UnicodeError | Unsound) or _COMPLAINT.search(str(error)):
            return StoreError(
                f"{self.path} is damaged ({error}), and was left as it is: what waits in it cannot be told. Put a copy "
                "of it in its place if there is one; to give up what is in it, start the crawl afresh."
            )
        if code in _LOCKED:
            return self._taken()
        if code == sqlite3.SQLITE_FULL or number in (errno.ENOSPC, errno.EDQUOT):
            why, remedy = "the disk is full", "Free some space and go on: nothing that was committed is lost"
        elif code in _FORBIDDEN or isinstance(error, OSError):
            why = getattr(error, "strerror", None) or str(error)
            remedy = "Check the permissions of the file and its directory"
        else:
            why, remedy = str(error), "Check the disk"
        return StoreError(f"{self.path} cannot be used: {why}. {remedy}.")


def _after_fork_in_child() -> None:
    for ledger in list(_opened):
        ledger.disown()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
