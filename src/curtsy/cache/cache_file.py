"""SQLite file of a cache: a file whose calls never raise. It recovers from damage and from an unwritable disk."""

from __future__ import annotations

import glob
import math
import os
import shutil
import sqlite3
import time
from collections.abc import Callable
from typing import TypeVar, TypeVarTuple, Unpack

from curtsy.cache.keys import MIB, Outage, may_write
from curtsy.core.errors import StoreError
from curtsy.core.time import SECOND
from curtsy.stores.sqlite_file import BUSY, TROUBLE, Format, SQLiteFile, check, error_code, is_damage, pragma_number
from curtsy.system.clock import Clock
from curtsy.system.file_lock import inode

_Answer = TypeVar("_Answer")
_Given = TypeVarTuple("_Given")

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

# In a folder where it cannot create a log, SQLite reads a file only with `immutable`. With `immutable`, it ignores an
# existing log.
_WRITABLE, _WITH_LOG, _IMMUTABLE = "mode=rw", "mode=ro", "immutable=1"


class CacheFile(SQLiteFile):
    """SQLite file of a cache. Any thread or process may use it; its calls never raise.

    A damaged file is renamed to `<name>.damaged-<epoch>`, replacing the one renamed before, and a new file is started.
    A file that cannot be written is still read. If it cannot be read either, it is skipped for a while. Any transaction
    still open after a call is rolled back. Unless it `may_create`, a missing file is an empty one.
    """

    def __init__(
        self, path: str, format: Format, clock: Clock, outage: Outage, *, may_create: bool = True
    ) -> None:  # fmt: skip
        super().__init__(path, format, patience=PATIENCE)
        self.outage = outage
        self._may_create = may_create
        self.replaced = 0
        """Number of times that the file was found damaged and replaced."""
        self._clock = clock
        self._is_failing = False
        """True after an error of this file. Others with the same outage may work: a full disk can be read."""
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
            if self.is_closed or (self._is_failing and not self.is_open and self.outage.is_on):
                return otherwise
            if not (self._may_create or self.is_open or os.path.exists(self.path)):
                return otherwise
            for tries_left in reversed(range(TRIES)):
                try:
                    answer = work(self.connection(), *given)
                    self._is_failing = False
                    return answer
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
            return
        if pragma_number(connection, "page_count") == 0:  # of an existing file, it would write the header
            connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
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
        self._is_failing = True
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
        if self.outage.log is not None:
            self.outage.log.warning(
                f"The cache {self.path} is damaged ({error}). It was renamed to {aside}, and a new cache is started. "
                "Its pages will be fetched again. Delete the old file if you do not need it."
            )


def _is_log_incomplete(error: Exception) -> bool:
    """Return whether a read-only connection found an incomplete WAL index."""
    return (
        isinstance(error, sqlite3.OperationalError)
        and error_code(error) == sqlite3.SQLITE_READONLY
        and error.sqlite_errorcode == sqlite3.SQLITE_READONLY_RECOVERY
    )
