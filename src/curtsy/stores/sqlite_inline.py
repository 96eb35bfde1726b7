"""Updates of a SQLite file in the caller's own thread, which is mostly that of an event loop.

Handing an update to the writer thread and back takes longer than the update itself. So a caller tries it first in its
own thread. It never waits for a lock. Each write is one statement, a compare and swap: it takes effect if the record is
still the one that the step saw. So a record that this process has seen last need not be read again, even if other
processes write it. Whatever is not the usual case is left to the writer thread: opening the file, damage, errors, other
processes at the lock, checkpoints and sweeps.
"""

from __future__ import annotations

import sqlite3
import time
from typing import NamedTuple

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


class _Stored(NamedTuple):
    """Row of the file as last seen, with its record; `data` is None for an absent one."""

    name: bytes
    data: bytes | None
    expires: int | None
    record: Record | None


class InlineUpdates:
    """Updates of one file in the threads of the callers."""

    def __init__(self, file: RecordFile) -> None:
        self._file = file
        self._seen: dict[str, _Stored] = {}
        self._began_at = self._ended_at = 0.0
        """Monotonic seconds of the first update of the present series, and of the end of the last update."""
        self._resume_at = 0.0
        self._rest = _FIRST_REST
        self._updates = 0
        """Updates since the last rest."""

    def update(self, key: str, step: Step[Answer], clock: Clock) -> Answer | NotNow:
        """Change a record, or return NOT_NOW if that may take time. Raises only what the step raises."""
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
            return self._locked(key, step, clock)
        finally:
            self._ended_at = time.monotonic()
            self._updates += 1
            if self._ended_at - now > SLOW:
                self._pause()
            file.turn.release()

    def forget(self, key: str) -> None:
        """Forget a record that the writer thread changes."""
        self._seen.pop(key, None)

    def _pause(self) -> None:
        """Leave the updates to the writer thread for a while."""
        self._rest = min(2 * self._rest, _LAST_REST) if self._updates <= _TRIAL else _FIRST_REST
        self._resume_at = self._ended_at + self._rest
        self._updates = 0

    def _locked(self, key: str, step: Step[Answer], clock: Clock) -> Answer | NotNow:
        """Take the file lock and the connection, if both are free, and change the record."""
        file = self._file
        try:
            if not file.file_lock.take(wait=False):
                return NOT_NOW
        except OSError:
            return NOT_NOW
        try:
            if not file.lock.acquire(blocking=False):
                return NOT_NOW
            try:
                connection = file.current_connection()
                if connection is None or (file.is_patient and not file.set_patience(connection, False)):
                    return NOT_NOW
                return self._update(connection, key, step, clock)
            finally:
                file.lock.release()
        finally:
            file.file_lock.give()

    def _update(self, connection: sqlite3.Connection, key: str, step: Step[Answer], clock: Clock) -> Answer | NotNow:
        stored = self._seen.get(key)
        if stored is not None:
            now = clock.now()
            try:
                changed, answer = step(stored.record, now)
            except Exception:  # the record may be outdated: the step decides on the present one
                changed = None
            is_changed = changed is not None and changed is not stored.record  # else an old record must not decide
            if is_changed and self._swap(connection, key, stored, changed, now):
                return answer
        try:
            name = encode_key(key)
            row = connection.execute(SELECT, (name,)).fetchone()
            data, _, expires = row or (None, None, 0)
            stored = _Stored(name, data, expires, decode_row(key, row))
        except (*TROUBLE, StoreError):  # the writer thread meets the same, and can act on it
            return NOT_NOW
        now = clock.now()
        changed, answer = step(stored.record, now)
        if changed is stored.record or self._swap(connection, key, stored, changed, now):
            return answer
        return NOT_NOW

    def _swap(
        self, connection: sqlite3.Connection, key: str, stored: _Stored, changed: Record | None, now: Now
    ) -> bool:
        """Replace a row by a changed record; return False if it is not the present row, or cannot be written."""
        name, before, expires, _ = stored
        self._seen.pop(key, None)
        data = None if changed is None else pack(changed)
        try:
            if changed is None or data is None:
                done = connection.execute(_DELETE, (name, before))
            else:
                total, until = checksum(name, data), renewed_expiry(expires, changed, now)
                if before is None:
                    done = connection.execute(_INSERT, (data, total, until, name))
                elif until == expires:
                    done = connection.execute(_UPDATE, (data, total, name, before))
                else:
                    done = connection.execute(_UPDATE_ALL, (data, total, until, name, before))
        except TROUBLE:
            return False
        if done.rowcount != 1:
            return False
        self._file.writes += 1
        self._file.notes.add(key, stored.record, changed)
        if changed is not None and not changed.weight:
            if len(self._seen) >= _REMEMBERED:
                self._seen.clear()
            self._seen[key] = _Stored(name, data, until, changed)
        return True
