"""One SQLite file that may be lost at any time: opened when it is needed, put aside when it is damaged."""

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
"""The mark of our files (`curt`), by which a damaged one is known from another program's."""

PATIENCE = 2.0
"""Seconds to wait while another process writes; what would have to wait longer is not written."""

GLANCE = 0.02
"""Seconds for which a file that is only read is taken to be the one that it was."""

ROOM = 16 * MIB
"""A disk with so much room is not full."""

TRIES = 5
"""How often something is read that another process may be writing just now."""

LOOK = 1.0
"""Seconds to look for damage while others wait; what would take longer is left to `verify()`."""

_PRAGMAS = """
PRAGMA auto_vacuum = INCREMENTAL;
PRAGMA journal_mode = WAL;
PRAGMA synchronous = NORMAL;
"""

# What says that the file is not (any more) what we wrote; SQLITE_ERROR is what a missing table comes to.
_DAMAGE = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_FORMAT, sqlite3.SQLITE_ERROR})
_NO_ROOM = frozenset({sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_READONLY})
_TRIES_LEFT = range(TRIES)[::-1]
_BUSY = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED})

# How a file is opened: what is added to its address. Without being told that it does not change, SQLite could not read
# one in a place where it cannot make a journal; but being told so, it does not look at the journal that is there.
_TO_WRITE, _WITH_JOURNAL, _ALONE = "", "?mode=ro", "?immutable=1"

# One lock for all files, for a fork must find it free: in the child nobody would be left to release it, and a
# connection is not to be carried over in the middle of something.
_lock = threading.Lock()
_parents: list[sqlite3.Connection] = []  # a forked child neither uses nor closes them
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release)


class _Former(sqlite3.DatabaseError):
    """The file is of an earlier version."""


class PackedFile:
    """A SQLite file with a `schema` of some `tables`, for one piece of work at a time, by any thread or process.

    It never raises. A damaged file is put aside as `<name>.damaged-<epoch>`, in place of the one put aside before, and
    a new one begun; likewise one with the tables of an earlier version, as `<name>.former-<epoch>`. One that cannot be
    written is read as long as it can be, and left alone for a while otherwise. Work that begins a transaction need not
    see that it ends: whatever comes, it is rolled back.
    """

    def __init__(self, path: str, schema: str, tables: set[str], former_tables: set[str], clock: Clock) -> None:
        self.path = path
        self._schema = schema
        self._tables = tables
        self._former_tables = former_tables
        self._clock = clock
        self.outage = Outage(clock, _log, path)
        self.asides = 0
        """How often it was found damaged."""

        self._connection: sqlite3.Connection | None = None
        self._process = os.getpid()
        self._opened: tuple[int, int] | None = None
        """Which file it was that was opened under the path."""

        self._seen_at = -math.inf
        """When it was last seen to be that file still."""

        self._mode = _TO_WRITE
        self.is_closed = False

    @property
    def is_read_only(self) -> bool:
        """Whether it was opened only to be read."""
        return self._mode != _TO_WRITE

    def do(
        self, otherwise: _Answer, work: Callable[[sqlite3.Connection, Unpack[_Given]], _Answer], *given: *_Given
    ) -> _Answer:
        """Do some work with the file, alone among the threads; answer `otherwise` if it cannot be done."""
        self._seen_at = -math.inf
        return self.glance(otherwise, work, *given)

    def glance(
        self, otherwise: _Answer, work: Callable[[sqlite3.Connection, Unpack[_Given]], _Answer], *given: *_Given
    ) -> _Answer:
        """Do some work that only reads. Whether another file lies under the path by now is looked at now and then."""
        with _lock:
            if self.is_closed or (self._connection is None and self.outage.is_on):
                return otherwise
            for tries_left in _TRIES_LEFT:
                try:
                    return work(self._connect(), *given)
                except (sqlite3.Error, UnicodeError) as error:  # the latter if what SQLite complains of is not UTF-8
                    if not (tries_left and _is_in_the_making(error)):
                        self._recover(error)
                        break
                except OSError as error:
                    self._disconnect()
                    self.outage.begin(error)
                    break
                finally:
                    if self._connection is not None and self._connection.in_transaction:  # a Ctrl-C, say, came between
                        self._roll_back()
            return otherwise

    def close(self) -> None:
        """Give back what is held open. Idempotent; later work is not done."""
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
            self._disconnect()  # somebody has put it aside or removed it, or it can be read better by now
        if not os.path.exists(self.path):
            os.makedirs(os.path.dirname(self.path), 0o700, exist_ok=True)
            # Only its owner may read it: a page may have been behind a login. One that exists is not to be opened
            # here: closing it again would end the locks of every other connection of this process.
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
            # The journal's index is missing or half written, and cannot be made here; until somebody else does.
            self._mode = _ALONE
            self._connection = self._open(_ALONE)
        return self._connection

    def _mode_now(self) -> str:
        """How it is best opened."""
        if _is_writable(self.path):
            return _TO_WRITE
        return _WITH_JOURNAL if os.path.exists(self.path + "-wal") else _ALONE

    def _open(self, mode: str) -> sqlite3.Connection:
        address = f"file:{quote(self.path)}{mode}"
        db = sqlite3.connect(address, timeout=PATIENCE, isolation_level=None, check_same_thread=False, uri=True)
        try:
            if mode == _TO_WRITE:
                db.executescript(_PRAGMAS)
            # Those with such names are SQLite's own: `ANALYZE` by any tool leaves one.
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
        db.text_factory = bytes  # we keep no text: what looks like it is damaged, and not to be decoded
        return db

    def _disconnect(self) -> None:
        db, self._connection = self._connection, None
        if db is not None:
            try:
                db.close()
            except sqlite3.Error:
                pass

    def _roll_back(self) -> None:
        """Give up what was begun, so that nobody waits for it."""
        db = self._connection
        try:
            if db is not None and db.in_transaction:
                db.execute("ROLLBACK")
        except sqlite3.Error:
            self._disconnect()

    def _recover(self, error: Exception) -> None:
        """After an error: give up what was begun, and see what it means."""
        self._roll_back()
        code = _code_of(error)
        if code in _BUSY:
            return
        if not self.is_read_only and (code in _DAMAGE or (code in _NO_ROOM and self._is_damaged(code))):
            self._put_aside(error)
            return
        if self.is_read_only and _is_in_the_making(error):  # for good: its writer was killed
            self._disconnect()
            return
        if code in _DAMAGE:  # somebody may be changing it while it is read: it is not ours to put aside
            self._disconnect()
        self.outage.begin(error)

    def _is_damaged(self, code: int) -> bool:
        """Whether what looks like a full disk or a read-only one is damage: it still does after a rest, though there is
        room and we may write, and it is not only that we may not have more room."""
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
            return  # another process was quicker
        is_former = isinstance(error, _Former)
        name = f"{self.path}.{'former' if is_former else 'damaged'}-"
        aside = f"{name}{self._clock.now().epoch // SECOND}"
        try:
            for before in glob.glob(glob.escape(name) + "*"):
                os.unlink(before)
            # The journal goes first: beside a new file it would be taken for that one's.
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
    """Raise DatabaseError if the tables are not in order, which SQLite else notices only when it comes across."""
    (found,) = db.execute("PRAGMA quick_check(1)").fetchone()
    if found != b"ok":
        raise sqlite3.DatabaseError(found.decode("utf-8", "replace"))


def _is_in_the_making(error: Exception) -> bool:
    """Whether the journal's index was found half written, where it can only be read."""
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
    """Whether the file can be written, and a journal beside it."""
    return may_write(path) and may_write(os.path.dirname(path))


def _room_at(path: str) -> int:
    try:
        return shutil.disk_usage(os.path.dirname(path)).free
    except OSError:
        return 0
