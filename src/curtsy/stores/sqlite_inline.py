"""Updates of a SQLite file in the caller's own thread, which is mostly that of an event loop.

Handing an update to the writer thread and back takes longer than the update itself. So a caller tries it first in its
own thread. It never waits for a lock. Each write is one statement, a compare and swap: it takes effect if the record is
still the one that the step saw. So a record that this process has seen last need not be read again, even if other
processes write it. Whatever is not the usual case is left to the writer thread: opening the file, damage, errors, other
processes at the lock, checkpoints and sweeps.

A change that may be written a little later (`update_soon`) is pending for at most `SOON` seconds. It is written with
the next update of this process, in one transaction, and mostly as one row. If another process has changed the record
meanwhile, the steps of the pending change run again on the present one.
"""

from __future__ import annotations

import contextlib
import math
import sqlite3
import time
from typing import Any, NamedTuple

from curtsy.core.errors import StoreError
from curtsy.core.record import Record
from curtsy.core.time import Now
from curtsy.stores.codec import pack
from curtsy.stores.protocol import NOT_NOW, Answer, NotNow, Step
from curtsy.stores.sqlite_file import TROUBLE
from curtsy.stores.sqlite_records import RecordFile
from curtsy.stores.sqlite_rows import SELECT, checksum, decode_row, encode_key, renewed_expiry
from curtsy.system.clock import Clock

SLOW = 0.005
"""Seconds of one update after which the writer thread is used for a while, because the disk is slow."""

SOON = 0.005
"""Seconds after which the writer thread writes pending changes."""

_FIRST_REST, _LAST_REST = 0.01, 30.0
"""Shortest and longest seconds for which the writer thread is used then. They double if the disk is still slow."""

_TRIAL = 5
"""Updates after such a rest of which a slow one means that the disk is still slow. Later ones do not: the thread may
have waited for a processor."""

_STREAK = 0.002
"""Seconds of updates without a pause after which one update goes to the writer thread. Meanwhile other processes get
the lock, and other tasks of the event loop run."""

_PAUSE = 0.000_05
"""Seconds without an update that end such a series."""

_REMEMBERED = 4096
"""Maximum number of remembered records."""

_INSERT = "INSERT OR IGNORE INTO records (data, sum, expires_epoch, key) VALUES (?, ?, ?, ?)"
_UPDATE = "UPDATE records SET data = ?, sum = ? WHERE key = ? AND data = ?"
_UPDATE_ALL = "UPDATE records SET data = ?, sum = ?, expires_epoch = ? WHERE key = ? AND data = ?"
_DELETE = "DELETE FROM records WHERE key = ? AND data = ?"


class _Row(NamedTuple):
    """Row of the file as last seen, with its record; `data` is None for an absent one."""

    name: bytes
    data: bytes | None
    expires: int | None
    record: Record | None


class _Change:
    """Change of one record by some steps, which is not yet written."""

    __slots__ = ("answer", "clock", "is_tried", "now", "record", "row", "steps")

    row: _Row
    """Row on which the steps were run."""
    record: Record | None
    """Record after the steps."""
    now: Now

    def __init__(self, steps: tuple[Step[Any], ...], clock: Clock) -> None:
        self.steps = steps
        self.clock = clock
        self.is_tried = False
        """True if the steps have changed the record as last seen."""
        self.answer: Any = None

    def attempt(self, row: _Row, record: Record | None) -> None:
        """Run the last step on `record`, which the steps before it made of a row that may be outdated."""
        now = self.clock.now()
        try:
            changed, answer = self.steps[-1](record, now)
        except Exception:  # the step decides on the present record
            return
        if changed is not None and changed is not record:  # else an outdated record must not decide
            self.row, self.record, self.now, self.answer, self.is_tried = row, changed, now, answer, True

    def run(self, row: _Row) -> None:
        """Run all steps on the present row. The exception of the last one propagates; the others have no caller."""
        self.row, self.record, self.now = row, row.record, self.clock.now()
        for step in self.steps[:-1]:
            with contextlib.suppress(Exception):
                self.record, _ = step(self.record, self.now)
        self.record, self.answer = self.steps[-1](self.record, self.now)


class InlineUpdates:
    """Updates of one file in the threads of the callers."""

    def __init__(self, file: RecordFile) -> None:
        self._file = file
        self._seen: dict[str, _Row] = {}
        self._pending: dict[str, _Change] = {}
        """Changes to be written soon. Only the holder of `turn` adds some; any thread may take them."""
        self._pending_since = 0.0
        """Monotonic second of the first of them."""
        self._began_at = self._ended_at = 0.0
        """Monotonic seconds of the first update of the present series, and of the end of the last update."""
        self._resume_at = 0.0
        self._rest = _FIRST_REST
        self._updates = 0
        """Updates since the last rest."""

    @property
    def is_pending(self) -> bool:
        """True if there are changes to be written soon."""
        return bool(self._pending)

    def update(self, key: str, step: Step[Answer], clock: Clock) -> Answer | NotNow:
        """Change a record, or return NOT_NOW if that may take time. Raises only what the step raises.

        Pending changes are written with it.
        """
        file, now = self._file, time.monotonic()
        if now < self._resume_at or file.needs_thread(now):
            return NOT_NOW
        if now - self._ended_at > _PAUSE:
            self._began_at = now
        elif now - self._began_at > _STREAK:
            return NOT_NOW
        if not file.turn.acquire(blocking=False):
            return NOT_NOW
        try:
            pending = self.take_pending()
            change = self._planned(key, step, clock, pending.get(key))
            return change.answer if self._write({**pending, key: change}, pending) else NOT_NOW
        finally:
            self._ended_at = time.monotonic()
            self._updates += 1
            if self._ended_at - now > SLOW:
                self._pause()
            file.turn.release()

    def update_soon(self, key: str, step: Step[Answer], clock: Clock) -> Answer | NotNow:
        """Do `update`, but leave the writing to the next one if the record is known."""
        if key not in self._seen or time.monotonic() < self._resume_at or not self._file.turn.acquire(blocking=False):
            return self.update(key, step, clock)
        try:
            before = self._pending.pop(key, None)
            change = self._planned(key, step, clock, before)
            if change.is_tried:
                if not self._pending and before is None:
                    self._pending_since = time.monotonic()
                self._pending[key] = change
                answer: Answer = change.answer
                return answer
            if before is not None:
                self._pending[key] = before
        finally:
            self._file.turn.release()
        return self.update(key, step, clock)

    def flush(self) -> bool:
        """Write the pending changes; return False if that may take time."""
        if not self._pending:
            return True
        if not self._file.turn.acquire(blocking=False):
            return False
        try:
            pending = self.take_pending()
            return not pending or self._write(pending, pending)
        finally:
            self._file.turn.release()

    def take_pending(self, since: float = math.inf) -> dict[str, _Change]:
        """Remove and return the pending changes, if the first of them was made before the monotonic second `since`."""
        taken: dict[str, _Change] = {}
        if self._pending_since < since:
            with contextlib.suppress(KeyError):  # another thread has taken the last one
                while self._pending:
                    key, change = self._pending.popitem()
                    taken[key] = change
        return taken

    def forget(self, key: str) -> None:
        """Forget a record that the writer thread changes."""
        self._seen.pop(key, None)

    def _pause(self) -> None:
        """Leave the updates to the writer thread for a while."""
        self._rest = min(2 * self._rest, _LAST_REST) if self._updates <= _TRIAL else _FIRST_REST
        self._resume_at = self._ended_at + self._rest
        self._updates = 0

    def _planned(self, key: str, step: Step[Any], clock: Clock, before: _Change | None) -> _Change:
        """Return the change of a record by a step, after those of a pending change; it is tried if possible."""
        if before is not None:
            change = _Change((*before.steps, step), clock)
            change.attempt(before.row, before.record)
        else:
            change = _Change((step,), clock)
            if (row := self._seen.get(key)) is not None:
                change.attempt(row, row.record)
        return change

    def _write(self, changes: dict[str, _Change], pending: dict[str, _Change]) -> bool:
        """Write changes if the file lock and the connection are free; else keep the pending ones of them."""
        file, is_written = self._file, False
        try:
            if not file.file_lock.take(wait=False):
                return False
            try:
                if file.lock.acquire(blocking=False):
                    try:
                        is_written = self._commit(changes)
                    finally:
                        file.lock.release()
            finally:
                file.file_lock.give()
        except (*TROUBLE, StoreError):  # the writer thread meets the same, and can act on it
            pass
        finally:
            if not is_written:
                self._pending.update(pending)
                for key in changes:
                    self._seen.pop(key, None)
        return is_written

    def _commit(self, changes: dict[str, _Change]) -> bool:
        """Write changes in one transaction; return False without a usable connection."""
        file, connection = self._file, self._file.current_connection()
        if connection is None or (file.is_patient and not file.set_patience(connection, False)):
            return False
        if len(changes) == 1:
            rows = [_written(connection, key, change) for key, change in changes.items()]
        else:
            connection.execute("BEGIN IMMEDIATE")
            try:
                rows = [_written(connection, key, change) for key, change in changes.items()]
                connection.execute("COMMIT")
            finally:
                file.roll_back()
        for (key, change), row in zip(changes.items(), rows, strict=True):
            if change.record is not change.row.record:
                file.writes += 1
                file.notes.add(key, change.row.record, change.record)
            if row.record is None or row.record.weight:
                self._seen.pop(key, None)
            else:
                if len(self._seen) >= _REMEMBERED:
                    self._seen.clear()
                self._seen[key] = row
        return True


class _Unwritten(sqlite3.Error):
    """Error for a row that is not the one just read."""


def _written(connection: sqlite3.Connection, key: str, change: _Change) -> _Row:
    """Write a change and return the new row. If the present row is another, the steps run again on that one."""
    written = _swapped(connection, change) if change.is_tried else None
    if written is None:
        name = encode_key(key)
        found = connection.execute(SELECT, (name,)).fetchone()
        data, _, expires = found or (None, None, 0)
        change.run(_Row(name, data, expires, decode_row(key, found)))
        written = change.row if change.record is change.row.record else _swapped(connection, change)
    if written is None:
        raise _Unwritten
    return written


def _swapped(connection: sqlite3.Connection, change: _Change) -> _Row | None:
    """Replace a row by a changed record and return the new row; None if it is not the present row."""
    name, before, expires, _ = change.row
    record, data, until = change.record, None, expires
    if record is None:
        done = connection.execute(_DELETE, (name, before))
    else:
        data = pack(record)
        total, until = checksum(name, data), renewed_expiry(expires, record, change.now)
        if before is None:
            done = connection.execute(_INSERT, (data, total, until, name))
        elif until == expires:
            done = connection.execute(_UPDATE, (data, total, name, before))
        else:
            done = connection.execute(_UPDATE_ALL, (data, total, until, name, before))
    return _Row(name, data, until, record) if done.rowcount == 1 else None
