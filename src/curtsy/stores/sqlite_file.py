"""SQLite files of curtsy: opening, checks, locks, errors, damage and forks.

The state store, the packed page cache and the frontier on disk use this layer. Each `Format` has its own
`application_id`, so that a file of another program, or of another part of curtsy, is never changed. A file of a later
format is refused. All files use a write-ahead log with `synchronous = NORMAL`. A killed process loses no committed
transaction. A power cut may lose the last transactions, but does not damage the file.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import re
import sqlite3
import stat
import threading
import weakref
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

from curtsy.core.errors import StoreError
from curtsy.system.file_lock import FileLock, Inode, inode

TROUBLE = (sqlite3.Error, UnicodeError, OSError)
"""Exceptions of an access to a file. UnicodeError occurs if SQLite quotes from a damaged file in its message."""

BUSY = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED})

_DAMAGE = frozenset(
    {
        sqlite3.SQLITE_CORRUPT,
        sqlite3.SQLITE_NOTADB,
        sqlite3.SQLITE_FORMAT,
        # An intact file never causes these two.
        sqlite3.SQLITE_TOOBIG,
        sqlite3.SQLITE_CONSTRAINT,
    }
)
_DAMAGE_MESSAGE = re.compile(
    "no such |already exists|malformed|unsupported file format|Could not decode|has [0-9]+ columns"
)
"""Messages of SQLite's general error code, and of the sqlite3 module, that only a damaged file causes."""

_KEEP_CONNECTION = BUSY | {0, sqlite3.SQLITE_FULL}
"""Result codes after which a connection stays usable; 0 stands for errors that are not SQLite's."""

_FORBIDDEN = frozenset({sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM})


class DamagedFile(StoreError):
    """Error for a file that is not an intact database."""


class Unsound(sqlite3.DatabaseError):
    """Damage that curtsy found, not SQLite. `SQLiteFile.use()` raises it as DamagedFile."""


class ForeignFile(StoreError):
    """Error for a file of another program or of a later version of curtsy."""


class FileInUse(StoreError):
    """Error for a file that another process has locked."""

    owner = "another process"
    """The process, in words."""


class Format(NamedTuple):
    """Kind of file: how to recognize, create and upgrade it."""

    application: int
    """`application_id` of the files."""

    schema: Sequence[str]
    """Statements that bring a file from each `user_version` to the next. Append only."""

    pragmas: Sequence[str] = ()
    """Settings of each connection, and of a new file."""

    text: type[str] | type[bytes] = bytes
    """Type of text values; bytes if all columns are blobs or numbers, so that text is damage and may not decode."""


class SQLiteFile:
    """One connection to an SQLite file, used by one thread at a time.

    The file is opened at the first use, and again if the path leads to another file. `patience` is the number of
    seconds to wait for a lock of another process. An `exclusive` file belongs to one process until it is closed.
    """

    def __init__(self, path: str, format: Format, *, patience: float, exclusive: bool = False) -> None:
        self.path = path
        self.format = format
        self.patience = patience
        self.lock = threading.RLock()
        """Lock of `use()`, `transaction()` and `close()`. A fork waits for it."""
        self.file_lock = FileLock(path + ".lock")
        """Lock among processes. An exclusive file holds it while it is open; others take it if they need it."""
        self.uri_mode = "mode=rw"
        """How to open the file, as parameters of SQLite's URI. A file that SQLite creates would not be private."""
        self.is_suspect = False
        """True if damage was found: the file is reopened, and all its pages are checked."""
        self.is_closed = False
        self.opened: Inode | None = None
        """Identity of the file that was last opened, with or without success."""
        self._exclusive = exclusive
        self._process = os.getpid()
        self._connection: sqlite3.Connection | None = None
        self._was_opened = False
        self._side_files: dict[str, Inode | None] = {}
        self.number = next(_numbers)
        _files.add(self)

    # --- Use -------------------------------------------------------------------------------------------------------

    def use(self) -> AbstractContextManager[sqlite3.Connection]:
        """Return a context manager that provides the connection.

        It raises StoreError for errors of SQLite and the system within the block.
        """
        return _Use(self, is_transaction=False)

    def transaction(self) -> AbstractContextManager[sqlite3.Connection]:
        """Return a context manager like `use()` that begins a transaction, and rolls it back if the block raises."""
        return _Use(self, is_transaction=True)

    def connection(self) -> sqlite3.Connection:
        """Return the connection, which is open on the file that is now at the path. Requires `lock`."""
        if (current := self.current_connection()) is not None:
            return current
        if self.is_closed:
            raise StoreError(f"{self.path} is closed. Open it again.")
        if self._exclusive and self._process != os.getpid():
            raise StoreError(
                f"{self.path} was opened by process {self._process}, from which this one was forked. Open it in the "
                "process that uses it."
            )
        self._leave_replaced()
        self._connection = self.open()
        self._was_opened, self.is_suspect = True, False
        self._side_files = {name: inode(name) for name in (self.path + "-wal", self.path + "-shm")}
        return self._connection

    def current_connection(self) -> sqlite3.Connection | None:
        """Return the connection if it can be used further; None if the file must be opened. Requires `lock`."""
        return self._connection if self._connection is not None and self.is_current() else None

    @property
    def is_open(self) -> bool:
        """Return whether there is a connection."""
        return self._connection is not None

    def is_current(self) -> bool:
        """Return whether an open connection can be used further: the path leads to its file. Requires `lock`."""
        return not self.is_suspect and (self._exclusive or self.opened == inode(self.path))

    def roll_back(self) -> None:
        """Roll back an open transaction, which would block other processes. Requires `lock`."""
        try:
            if self._connection is not None and self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
        except sqlite3.Error:
            self.disconnect()  # the log has no uncommitted changes

    def disconnect(self) -> None:
        """Close the connection; the next use opens the file again. Requires `lock`."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(sqlite3.Error):
                connection.close()

    def close(self) -> None:
        """Close the file for good, and its lock; idempotent."""
        with self.lock:
            self.is_closed = True
            if self._process == os.getpid() or not self._exclusive:
                self.disconnect()
                self.file_lock.drop()

    # --- Opening ---------------------------------------------------------------------------------------------------

    def open(self) -> sqlite3.Connection:
        """Return a new connection to the file, which is created if missing. Requires `lock`."""
        self._take_ownership()
        self._create()
        self.opened = inode(self.path)
        connection = connect(self.path, self.uri_mode, self.patience, self.format.text)
        try:
            self.prepare(connection)
        except BaseException:
            connection.close()
            raise
        if self._exclusive:
            self.file_lock.content = b"%d\n" % os.getpid()
        return connection

    def _take_ownership(self) -> None:
        if self._exclusive and not self.file_lock.is_held:
            if not self.file_lock.take(wait=False):
                raise self.in_use()
            self.file_lock.content = b""

    def _create(self) -> None:
        """Create a missing file that only its owner can read. An exclusive file is created once."""
        if self._exclusive and self._was_opened:
            return
        os.makedirs(os.path.dirname(self.path), mode=0o700, exist_ok=True)
        try:
            # O_EXCL: closing an existing file would drop all locks that this process has on it.
            os.close(os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
        except FileExistsError:
            if not stat.S_ISREG(os.stat(self.path).st_mode):  # SQLite would wait for a pipe
                raise StoreError(f"{self.path} cannot be used: it is not a file. Use another path.") from None

    def prepare(self, connection: sqlite3.Connection) -> None:
        """Set the pragmas, check that the file is of this format, and upgrade its schema.

        Raises DamagedFile, and ForeignFile for a file of another program or a later version.
        """
        for pragma in self.format.pragmas:
            connection.execute(f"PRAGMA {pragma}").fetchall()
        version = self.version(connection)
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")
        if self._exclusive:
            connection.executescript("BEGIN EXCLUSIVE; COMMIT;")  # acquires SQLite's lock, which is then held
        if self.is_suspect:
            check(connection)
        if (version or 0) < len(self.format.schema):
            if self._exclusive and self._was_opened:
                raise Unsound("it is not the file that was opened")
            self._upgrade(connection)

    def version(self, connection: sqlite3.Connection) -> int | None:
        """Return the `user_version`; None for an empty file. Raises ForeignFile."""
        connection.execute("BEGIN")  # all facts of one moment: another process may be creating the tables
        try:
            application, version = (pragma_number(connection, name) for name in ("application_id", "user_version"))
            tables = "SELECT count(*), count(*) FILTER (WHERE sql = ?) FROM sqlite_master"
            made, made_by_us = connection.execute(tables, (self.format.schema[0],)).fetchone()
        finally:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
        if application != self.format.application:
            if not made:
                return None
            if made_by_us:
                raise Unsound("its table is ours, its application_id is not")
            raise ForeignFile(f"{self.path} is a database of another program. Give curtsy a file of its own.")
        if version > len(self.format.schema):
            raise ForeignFile(
                f"{self.path} has format {version}, but this curtsy knows formats up to {len(self.format.schema)}: a "
                "later version wrote it. Upgrade curtsy, or use another file."
            )
        return version

    def _upgrade(self, connection: sqlite3.Connection) -> None:
        connection.execute("BEGIN IMMEDIATE")
        version = pragma_number(connection, "user_version")  # another process may have upgraded it
        for statement in self.format.schema[version:]:
            connection.execute(statement)
        connection.execute(f"PRAGMA user_version = {len(self.format.schema)}")
        connection.execute(f"PRAGMA application_id = {self.format.application}")
        connection.execute("COMMIT")

    def _leave_replaced(self) -> None:
        """Close the connection; remove its side files if its file is gone from the path.

        SQLite leaves them there, and would treat them as part of the file that is now at the path.
        """
        left: list[str] = []
        if self._connection is not None and inode(self.path) != self.opened:
            left = [name for name, file in self._side_files.items() if file is not None and file == inode(name)]
        self.disconnect()
        for name in left:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name)

    # --- Trouble ---------------------------------------------------------------------------------------------------

    def translate(self, error: Exception) -> StoreError:
        """Return a StoreError with the cause and the remedy of an error of SQLite or the system."""
        code = error_code(error)
        if is_damage(error):
            return DamagedFile(f"{self.path} is damaged: {error}.")
        if code in BUSY:
            return self.in_use()
        if code == sqlite3.SQLITE_FULL or (isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)):
            why, remedy = "the disk is full", "Free some space; nothing that was committed is lost"
        elif code in _FORBIDDEN or isinstance(error, OSError):
            why = (isinstance(error, OSError) and error.strerror) or str(error)
            remedy = "Check the permissions of the file and its directory"
        else:
            why, remedy = str(error), "Check the disk"
        return StoreError(f"{self.path} cannot be used: {why}. {remedy}.")

    def in_use(self) -> FileInUse:
        """Return the error for a file that another process has locked."""
        if not self._exclusive:
            return FileInUse(
                f"{self.path} cannot be used: another program has locked it for {self.patience:g} s. Close that "
                "program, or use another file."
            )
        process = self.file_lock.content.strip().decode("ascii", "replace")
        owner = f"process {process}" if process else "another process"
        error = FileInUse(
            f"{self.path} is in use by {owner}. Only one process at a time can use it. Wait for that process or end "
            "it, or use another file."
        )
        error.owner = owner
        return error

    def set_aside(self, name: str) -> None:
        """Rename the file to `name`, with its side files, to make room for a fresh one. Requires `lock`."""
        self.disconnect()
        # The log goes first, because SQLite would apply it to a new file of the same name.
        for suffix in ("-wal", "-shm", ""):
            with contextlib.suppress(FileNotFoundError):
                os.replace(self.path + suffix, name + suffix)

    def delete(self) -> None:
        """Delete the file and its side files, to start over. Raises StoreError; FileInUse for an exclusive file."""
        with self.lock:
            try:
                self._take_ownership()
                self.disconnect()
                for suffix in ("-wal", "-shm", ""):
                    Path(self.path + suffix).unlink(missing_ok=True)
            except OSError as error:
                raise self.translate(error) from error

    # --- Forks -----------------------------------------------------------------------------------------------------

    def before_fork(self) -> None:
        """Wait for other threads, and close the connection.

        A child must not use a connection of its parent, nor open the file while its copy of SQLite believes that it
        holds the parent's locks (sqlite.org/howtocorrupt.html, 2.6). The connection of an exclusive file stays open,
        because the child cannot use that file.
        """
        self.lock.acquire()
        if not self._exclusive:
            self.disconnect()

    def after_fork(self, *, is_child: bool) -> None:
        """Allow uses again. A child does not keep its parent's file lock."""
        if is_child:
            self.file_lock.drop()
            if self._connection is not None:
                _of_parents.append(self._connection)
                self._connection = None
        self.lock.release()


class _Use:
    """Context manager of `use()` and `transaction()`. It is a class, because a generator takes four times as long."""

    __slots__ = ("_connection", "_file", "_is_transaction")

    def __init__(self, file: SQLiteFile, *, is_transaction: bool) -> None:
        self._file = file
        self._is_transaction = is_transaction

    def __enter__(self) -> sqlite3.Connection:
        self._file.lock.acquire()
        try:
            self._connection = self._file.connection()
            if self._is_transaction:
                self._connection.execute("BEGIN IMMEDIATE")
        except BaseException as error:
            self._end(error)
            raise
        return self._connection

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None and self._is_transaction:
            try:
                self._connection.execute("COMMIT")
            except BaseException as failure:
                self._end(failure)
                raise
        self._end(error)

    def _end(self, error: BaseException | None) -> None:
        file = self._file
        try:
            if error is not None and self._is_transaction:
                file.roll_back()
            if isinstance(error, TROUBLE):
                if error_code(error) not in _KEEP_CONNECTION:
                    file.disconnect()
                raise file.translate(error) from error
        finally:
            file.lock.release()


def connect(path: str, mode: str, patience: float, text: type[str] | type[bytes] = bytes) -> sqlite3.Connection:
    """Return a connection without implicit transactions; `mode` holds parameters of SQLite's URI."""
    connection = sqlite3.connect(
        f"{Path(path).as_uri()}?{mode}", uri=True, timeout=patience, isolation_level=None, check_same_thread=False
    )
    connection.text_factory = text
    return connection


def pragma_number(connection: sqlite3.Connection, pragma: str) -> int:
    """Return the value of a numeric pragma."""
    return int(connection.execute(f"PRAGMA {pragma}").fetchone()[0])


def check(connection: sqlite3.Connection) -> None:
    """Raise Unsound if the pages of the file are damaged, which SQLite otherwise detects only on access."""
    [found] = connection.execute("PRAGMA quick_check(1)").fetchone()
    text = found.decode("utf-8", "replace") if isinstance(found, bytes) else str(found)
    if text != "ok":
        raise Unsound(" ".join(text.split()))


def error_code(error: BaseException) -> int:
    """Return SQLite's primary result code; 0 for errors of other origin."""
    try:
        return error.sqlite_errorcode & 0xFF if isinstance(error, sqlite3.Error) else 0
    except AttributeError:  # raised by the sqlite3 module itself
        return 0


def is_damage(error: Exception) -> bool:
    """Return whether only a damaged file causes this error."""
    if isinstance(error, Unsound | UnicodeError):
        return True
    code = error_code(error)
    if code in (0, sqlite3.SQLITE_ERROR):
        return isinstance(error, sqlite3.Error) and _DAMAGE_MESSAGE.search(str(error)) is not None
    return code in _DAMAGE


_numbers = itertools.count()
_files: weakref.WeakSet[SQLiteFile] = weakref.WeakSet()
_of_parents: list[Any] = []
"""Connections that a forked child must neither use nor close."""

_forking: list[SQLiteFile] = []
_fork_lock = threading.Lock()


def _before_fork() -> None:
    _fork_lock.acquire()
    # In order of creation: a thread may hold the lock of one file while it waits for a later one's.
    _forking[:] = sorted(_files, key=lambda file: file.number)
    for file in _forking:
        file.before_fork()


def _after_fork(is_child: bool) -> None:
    while _forking:
        _forking.pop().after_fork(is_child=is_child)
    _fork_lock.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_before_fork, after_in_parent=lambda: _after_fork(False), after_in_child=lambda: _after_fork(True)
    )
