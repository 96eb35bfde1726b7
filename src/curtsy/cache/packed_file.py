"""Disposable SQLite file: opened on first use, renamed and replaced if it is damaged."""

from __future__ import annotations

import glob
import math
import os
import shutil
import sqlite3
import threading
import time
from collections.abc import Callable
from typing import TypeVar, TypeVarTuple, Unpack
from urllib.parse import quote

from curtsy.cache.keys import MIB, Outage, may_write
from curtsy.core.message import SECOND
from curtsy.system.clock import Clock
from curtsy.system.log import library_logger

_log = library_logger("cache")
_Answer = TypeVar("_Answer")
_Given = TypeVarTuple("_Given")

OURS = 0x63757274
"""SQLite `application_id` of curtsy's files (`curt`). It distinguishes a damaged file from another program's."""

PATIENCE = 2.0
"""Seconds to wait for another process's lock. A write that would wait longer is skipped."""

GLANCE = 0.02
"""Seconds between checks that the path still leads to the opened file, for reads."""

ROOM = 16 * MIB
"""Free bytes above which a disk is not considered full."""

TRIES = 5
"""Attempts to read a file that another process may be writing."""

LOOK = 1.0
"""Seconds for an integrity check while other threads wait. A longer check needs `verify()`."""

_PRAGMAS = """
PRAGMA auto_vacuum = INCREMENTAL;
PRAGMA journal_mode = WAL;
PRAGMA synchronous = NORMAL;
"""

# Result codes of a damaged file. A missing table yields SQLITE_ERROR.
_DAMAGE = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_FORMAT, sqlite3.SQLITE_ERROR})
_NO_ROOM = frozenset({sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_READONLY})
_TRIES_LEFT = range(TRIES)[::-1]
_BUSY = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED})

# URI suffixes that select how a file is opened. In a folder where it cannot create a journal, SQLite reads a file only
# with `immutable`. With `immutable`, it ignores an existing journal.
_TO_WRITE, _WITH_JOURNAL, _ALONE = "", "?mode=ro", "?immutable=1"

# One lock for all files. It is acquired before a fork, because a child cannot release a lock that another thread of its
# parent holds. It also keeps a child from inheriting a connection in the middle of an operation.
_lock = threading.Lock()
_parents: list[sqlite3.Connection] = []  # a forked child neither uses nor closes them
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release)


class _Former(sqlite3.DatabaseError):
    """File with the tables of an earlier version."""


class PackedFile:
    """SQLite file with the `tables` of a `schema`. Any thread or process may use it; threads take turns.

    It never raises. A damaged file is renamed to `<name>.damaged-<epoch>`, replacing the one renamed before, and a new
    file is started. A file with the tables of an earlier version becomes `<name>.former-<epoch>`. A file that cannot be
    written is still read. If it cannot be read either, it is skipped for a while. Any transaction still open after the
    work is rolled back.
    """

    def __init__(self, path: str, schema: str, tables: set[str], former_tables: set[str], clock: Clock) -> None:
        self.path = path
        self._schema = schema
        self._tables = tables
        self._former_tables = former_tables
        self._clock = clock
        self.outage = Outage(clock, _log, path)
        self.asides = 0
        """Number of times that the file was found damaged."""

        self._connection: sqlite3.Connection | None = None
        self._process = os.getpid()
        self._opened: tuple[int, int] | None = None
        """Device and inode of the opened file."""

        self._seen_at = -math.inf
        """Monotonic time of the last check that the path still leads to that file."""

        self._mode = _TO_WRITE
        self.is_closed = False

    @property
    def is_read_only(self) -> bool:
        """Return whether the file is open for reading only."""
        return self._mode != _TO_WRITE

    def do(
        self, otherwise: _Answer, work: Callable[[sqlite3.Connection, Unpack[_Given]], _Answer], *given: *_Given
    ) -> _Answer:
        """Run `work` on the file, one thread at a time; return `otherwise` if that fails."""
        self._seen_at = -math.inf
        return self.glance(otherwise, work, *given)

    def glance(
        self, otherwise: _Answer, work: Callable[[sqlite3.Connection, Unpack[_Given]], _Answer], *given: *_Given
    ) -> _Answer:
        """Run `work` that only reads. The check for a replaced file is skipped for `GLANCE` seconds."""
        with _lock:
            if self.is_closed or (self._connection is None and self.outage.is_on):
                return otherwise
            for tries_left in _TRIES_LEFT:
                try:
                    return work(self._connect(), *given)
                except (sqlite3.Error, UnicodeError) as error:  # UnicodeError: SQLite's message is not UTF-8
                    if not (tries_left and _is_in_the_making(error)):
                        self._recover(error)
                        break
                except OSError as error:
                    self._disconnect()
                    self.outage.begin(error)
                    break
                finally:
                    if self._connection is not None and self._connection.in_transaction:  # for example after Ctrl-C
                        self._roll_back()
            return otherwise

    def close(self) -> None:
        """Close the file. Idempotent; later calls of `do()` return `otherwise`."""
        with _lock:
            self.is_closed = True
            self._disconnect()

    def _connect(self) -> sqlite3.Connection:
        if self._process != os.getpid():
            if self._connection is not None:
                _parents.append(self._connection)
            self._connection = None
            self._process = os.getpid()
        if self._connection is not None:
            now = time.monotonic()
            if now < self._seen_at + GLANCE:
                return self._connection
            if self._opened == _file_at(self.path) and not (self.is_read_only and self._mode != self._mode_now()):
                self._seen_at = now
                return self._connection
            self._disconnect()  # the file was renamed or removed, or a better mode is possible now
        if not os.path.exists(self.path):
            os.makedirs(os.path.dirname(self.path), 0o700, exist_ok=True)
            # Only the owner may read it, because a page may come from behind a login. An existing file must not be
            # opened here: closing it would release the POSIX locks of all other connections of this process.
            try:
                os.close(os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
            except FileExistsError:
                pass
        self._opened, self._mode = _file_at(self.path), self._mode_now()
        try:
            self._connection = self._open(self._mode)
        except sqlite3.OperationalError as error:
            if self._mode != _WITH_JOURNAL or _code_of(error) in _BUSY:
                raise
            # The WAL index is missing or incomplete, and only a process with write access can create it.
            self._mode = _ALONE
            self._connection = self._open(_ALONE)
        return self._connection

    def _mode_now(self) -> str:
        """Return the best mode in which the file can be opened now."""
        if _is_writable(self.path):
            return _TO_WRITE
        return _WITH_JOURNAL if os.path.exists(self.path + "-wal") else _ALONE

    def _open(self, mode: str) -> sqlite3.Connection:
        address = f"file:{quote(self.path)}{mode}"
        db = sqlite3.connect(address, timeout=PATIENCE, isolation_level=None, check_same_thread=False, uri=True)
        try:
            if mode == _TO_WRITE:
                db.executescript(_PRAGMAS)
            # SQLite's own tables; `ANALYZE` by any tool creates one.
            names = "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT GLOB 'sqlite_*'"
            tables = {name for (name,) in db.execute(names)}
            if not tables:
                db.executescript(f"BEGIN IMMEDIATE; PRAGMA application_id = {OURS}; {self._schema} COMMIT;")
            elif tables != self._tables:
                if db.execute("PRAGMA application_id").fetchone() != (OURS,):
                    raise OSError("it is the database of another program")
                if tables == self._former_tables:
                    raise _Former
                raise sqlite3.DatabaseError("its tables are not those that were made")
        except BaseException:
            db.close()
            raise
        db.text_factory = bytes  # no column has text: a text value is damaged and may not decode
        return db

    def _disconnect(self) -> None:
        db, self._connection = self._connection, None
        if db is not None:
            try:
                db.close()
            except sqlite3.Error:
                pass

    def _roll_back(self) -> None:
        """Roll back an open transaction, which would block other processes."""
        db = self._connection
        try:
            if db is not None and db.in_transaction:
                db.execute("ROLLBACK")
        except sqlite3.Error:
            self._disconnect()

    def _recover(self, error: Exception) -> None:
        """Roll back and handle an error: ignore a lock, replace a damaged file or begin an outage."""
        self._roll_back()
        code = _code_of(error)
        if code in _BUSY:
            return
        if not self.is_read_only and (code in _DAMAGE or (code in _NO_ROOM and self._is_damaged(code))):
            self._put_aside(error)
            return
        if self.is_read_only and _is_in_the_making(error):  # still unreadable after all tries: the writer was killed
            self._disconnect()
            return
        if code in _DAMAGE:  # may be changing while it is read; a reader must not rename it
            self._disconnect()
        self.outage.begin(error)

    def _is_damaged(self, code: int) -> bool:
        """Return whether an error that looks like a full or read-only disk is due to damage.

        That is so if it persists after a pause, the disk has free space, the file is writable and the check finds
        damage. SQLITE_READONLY needs no check.
        """
        if not self.outage.has_begun or not _is_writable(self.path) or _room_at(self.path) <= ROOM:
            return False
        db = self._connection
        if code == sqlite3.SQLITE_READONLY or db is None:
            return code == sqlite3.SQLITE_READONLY
        hurry = threading.Timer(LOOK, db.interrupt)
        hurry.start()
        try:
            check(db)
        except sqlite3.Error as error:
            return _code_of(error) not in (sqlite3.SQLITE_INTERRUPT, *_BUSY)
        finally:
            hurry.cancel()
            hurry.join()
        return False

    def _put_aside(self, error: Exception) -> None:
        self._disconnect()
        self.asides += 1
        if self._opened != _file_at(self.path):
            return  # another process has already renamed it
        is_former = isinstance(error, _Former)
        name = f"{self.path}.{'former' if is_former else 'damaged'}-"
        aside = f"{name}{self._clock.now().epoch // SECOND}"
        try:
            for before in glob.glob(glob.escape(name) + "*"):
                os.unlink(before)
            # The journal goes first, because SQLite would apply it to a new file of the same name.
            for ending in ("-wal", "-shm", ""):
                if os.path.exists(self.path + ending):
                    os.replace(self.path + ending, aside + ending)
        except OSError as problem:
            self.outage.begin(problem)
            return
        _log.warning(
            f"The cache {self.path} is {'of an earlier version of curtsy' if is_former else f'damaged ({error})'}. It "
            f"was put aside as {aside}, and a new one is begun; its pages will be fetched anew. Remove the old file "
            "when nobody wants to look at it."
        )


def check(db: sqlite3.Connection) -> None:
    """Raise DatabaseError if the tables are damaged, which SQLite otherwise detects only on access."""
    (found,) = db.execute("PRAGMA quick_check(1)").fetchone()
    if found != b"ok":
        raise sqlite3.DatabaseError(found.decode("utf-8", "replace"))


def _is_in_the_making(error: Exception) -> bool:
    """Return whether a read-only connection found an incomplete WAL index."""
    return getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_READONLY_RECOVERY


def _code_of(error: Exception) -> int:
    return int(getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR)) & 0xFF


def _file_at(path: str) -> tuple[int, int] | None:
    try:
        stat = os.stat(path)
    except OSError:
        return None
    return stat.st_dev, stat.st_ino


def _is_writable(path: str) -> bool:
    """Return whether the file is writable and its folder allows a journal."""
    return may_write(path) and may_write(os.path.dirname(path))


def _room_at(path: str) -> int:
    try:
        return shutil.disk_usage(os.path.dirname(path)).free
    except OSError:
        return 0
