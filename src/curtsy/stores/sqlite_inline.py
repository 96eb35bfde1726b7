"""Updates of a SQLite file in the caller's own thread, which is mostly that of an event loop.

Handing an update to the writer thread and back takes longer than the update itself. So a caller tries it first in its
own thread, and waits for another process no longer than its update takes. Each write is one statement, a compare and
swap: it takes effect if the record is still the one that the step saw. So a record that this process has seen last need
not be read again, even if other processes write it. Whatever is not the usual case is left to the writer thread:
opening the file, damage, errors, a lock that is not free soon, checkpoints and sweeps.

A change that may be written a little later (`update_soon`) is pending for at most `SOON` seconds. It is written with
the next update of this process, in one transaction, and mostly as one row. If another process has changed the record
meanwhile, the steps of the pending change run again on the present one.

A proposal is a change that is void in that case, instead. Its caller does not act on it before `confirm` has written
it. So the requests that become ready in one turn of an event loop are charged in one transaction.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Mapping
from threading import get_ident
from typing import Any

from curtsy.core.errors import StoreError
from curtsy.core.record import Record
from curtsy.core.time import Now
from curtsy.stores.codec import pack
from curtsy.stores.protocol import NOT_NOW, Answer, NotNow, Proposal, Step
from curtsy.stores.sqlite_file import TROUBLE
from curtsy.stores.sqlite_records import RecordFile
from curtsy.stores.sqlite_rows import SELECT, Row, checksum, decode_row, encode_key, renewed_expiry
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

_BRIEFLY, _LOOKS = 0.000_05, 3
"""Seconds between two looks at a lock that another process holds, and their number. Its update mostly takes less; to
hand one over to the writer thread takes more."""

_CROWDED, _WEIGHT = 0.5, 1 / 16
"""Share of updates that find the lock held, above which an update is handed over without another look, and the weight
of one update in that share. Among many processes, the lock would be free while all of them sleep."""

_TURN, _TURN_REST = 0.002, 0.05
"""Seconds to wait for the transaction of another thread of this process, which mostly takes less, and seconds without
such a wait after one in vain."""

_PROPOSAL_REST = 0.1
"""Seconds without proposals after another process has changed a record under one."""

_REMEMBERED = 4096
"""Maximum number of remembered records."""

_INSERT = "INSERT OR IGNORE INTO records (data, sum, expires_epoch, key) VALUES (?, ?, ?, ?)"
_UPDATE = "UPDATE records SET data = ?, sum = ? WHERE key = ? AND data = ?"
_UPDATE_ALL = "UPDATE records SET data = ?, sum = ?, expires_epoch = ? WHERE key = ? AND data = ?"
_DELETE = "DELETE FROM records WHERE key = ? AND data = ?"


class _Change:
    """Change of one record that is not yet written."""

    __slots__ = (
        "answer", "clock", "is_awaited", "is_outdated", "is_tried", "key", "now", "proposals", "record", "row", "steps",
        "thread",
    )  # fmt: skip

    row: Row
    """Row on which the steps were run."""
    record: Record | None
    """Record after the steps."""
    now: Now

    def __init__(self, key: str, clock: Clock, what: Step[Any] | Proposal, before: _Change | None = None) -> None:
        self.key = key
        self.clock = clock
        self.thread = get_ident()
        """Thread in which the proposals are confirmed. No other writes them, so that it knows when they are void."""
        self.steps: tuple[Step[Any], ...] = () if before is None else before.steps
        """Steps to run on the present row if `row` is outdated."""
        self.proposals: tuple[Proposal, ...] = () if before is None else before.proposals
        """Proposals by whose steps `record` was made, too. They are void if `row` is outdated."""
        if isinstance(what, Proposal):
            self.proposals = (*self.proposals, what)
        else:
            self.steps = (*self.steps, what)
        self.is_awaited = False
        """True if the last step has a caller, to which its exception propagates."""
        self.is_tried = False
        """True if the steps and proposals have changed the record of `row`."""
        self.is_outdated = False
        """True if another process has changed the record under the proposals."""
        self.answer: Any = None

    @property
    def is_usable(self) -> bool:
        """True if `record` can be written when the file still has `row`."""
        return self.is_tried and not (self.proposals and any(each.is_void for each in self.proposals))

    @property
    def is_proposed(self) -> bool:
        """True if a task is to confirm it."""
        return not all(each.is_void for each in self.proposals)

    @property
    def is_free(self) -> bool:
        """True if this thread may write it."""
        return not self.is_proposed or self.thread == get_ident()

    def attempt(self, step: Step[Any], row: Row, record: Record | None) -> None:
        """Run a step on `record`, which earlier changes made of a row that may be outdated."""
        now = self.clock.now()
        try:
            changed, answer = step(record, now)
        except Exception:  # the step decides on the present record
            return
        if changed is not None and changed is not record:  # else an outdated record must not decide
            self.row, self.record, self.now, self.answer, self.is_tried = row, changed, now, answer, True

    def cancel(self) -> None:
        """Cancel the proposals."""
        for proposal in self.proposals:
            proposal.is_void = True

    def run(self, row: Row) -> None:
        """Run the steps on the present row, and cancel the proposals."""
        self.is_outdated = self.is_usable and bool(self.proposals)
        self.cancel()
        self.row, self.record, self.now = row, row.record, self.clock.now()
        for step in self.steps:
            try:
                self.record, self.answer = step(self.record, self.now)
            except Exception:
                if self.is_awaited and step is self.steps[-1]:
                    raise


class InlineUpdates:
    """Updates of one file in the threads of the callers."""

    def __init__(self, file: RecordFile) -> None:
        self._file = file
        self._seen: dict[str, Row] = {}
        self._pending: dict[str, _Change] = {}
        """Changes to be written soon. Only the holder of `turn` adds some; any thread may take them."""
        self._pending_since = 0.0
        """Monotonic second of the first of them."""
        self._began_at = self._ended_at = 0.0
        """Monotonic seconds of the first update of the present series, and of the end of the last update."""
        self._resume_at = self._propose_at = self._wait_at = 0.0
        """Monotonic seconds from which updates, proposals, and waits for other threads are possible."""
        self._rest = _FIRST_REST
        self._updates = 0
        """Updates since the last rest."""
        self._held_share = 0.0
        """Share of the latest updates that found the file lock held by another process."""

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
        if not self._take_turn(now):
            return NOT_NOW
        now = time.monotonic()
        try:
            pending = self._take_free()
            changes = dict(pending)
            change = self._planned(key, clock, step, step, pending.get(key))
            if change.is_tried:
                changes.pop(key, None)
            else:  # the step decides on the present record, after pending changes are written
                change = _Change(key, clock, step)
            change.is_awaited = True
            return change.answer if self._write([*changes.values(), change], pending) else NOT_NOW
        finally:
            self._end(now)

    def update_soon(self, key: str, step: Step[Answer], clock: Clock) -> Answer | NotNow:
        """Do `update`, but leave the writing to the next one if the record is known."""
        change = self._added(key, clock, step, step)
        if change is None:
            return self.update(key, step, clock)
        answer: Answer = change.answer
        return answer

    def propose(self, key: str, step: Step[Answer], clock: Clock) -> tuple[Answer, Proposal] | NotNow:
        """Run a step on the record as last seen; return NOT_NOW if it must be run on the present one."""
        proposal = Proposal()
        if time.monotonic() < self._propose_at or (change := self._added(key, clock, step, proposal)) is None:
            return NOT_NOW
        return change.answer, proposal

    def confirm(self, proposal: Proposal) -> bool:
        """Write a proposal with all pending changes; return False if it is void or cannot be written at once."""
        if not proposal.is_written and not proposal.is_void:
            self.flush()
        if not proposal.is_written:
            proposal.is_void = True
        return proposal.is_written

    def flush(self) -> bool:
        """Write the pending changes; return False if that may take time."""
        if not self._pending:
            return True
        now = time.monotonic()
        if now < self._resume_at or not self._take_turn(now):
            return False
        now = time.monotonic()
        try:
            pending = self._take_free()
            return not pending or self._write(list(pending.values()), pending)
        finally:
            self._end(now)

    def take(self, *, are_overdue: bool = False) -> list[_Change]:
        """Remove pending changes for the writer thread, and cancel their proposals.

        `are_overdue`: only those that are pending for SOON seconds, except proposals, which a task confirms soon.
        """
        if not self._pending or (are_overdue and time.monotonic() < self._pending_since + SOON):
            return []
        found = [key for key, change in list(self._pending.items()) if not (are_overdue and change.is_proposed)]
        taken = [change for key in found if (change := self._pending.pop(key, None)) is not None]
        for change in taken:
            change.cancel()
        return [change for change in taken if change.steps]

    def forget(self, key: str) -> None:
        """Forget a record that the writer thread was to change."""
        self._seen.pop(key, None)

    def remember(self, rows: Mapping[str, Row]) -> None:
        """Remember rows that this process has just written."""
        if len(self._seen) >= _REMEMBERED:
            self._seen.clear()
        for key, row in rows.items():
            if row.record is None or row.record.weight:
                self._seen.pop(key, None)
            else:
                self._seen[key] = row

    def _take_turn(self, now: float) -> bool:
        """Take the turn of this process, and wait for the transaction of another thread if that is short.

        That thread then has the interpreter lock for itself. Without a wait, it would take turns with an event loop
        that sends it further updates meanwhile.
        """
        turn = self._file.turn
        if turn.acquire(blocking=False):
            return True
        if now < self._wait_at:
            return False
        if turn.acquire(timeout=_TURN):
            return True
        self._wait_at = time.monotonic() + _TURN_REST
        return False

    def _end(self, began: float) -> None:
        """End the work that needed `turn`, and note its duration."""
        self._ended_at = time.monotonic()
        self._updates += 1
        if self._ended_at - began > SLOW:
            self._rest = min(2 * self._rest, _LAST_REST) if self._updates <= _TRIAL else _FIRST_REST
            self._resume_at = self._ended_at + self._rest
            self._updates = 0
        self._file.turn.release()

    def _take_free(self) -> dict[str, _Change]:
        """Remove and return the pending changes that this thread may write."""
        found = [key for key, change in list(self._pending.items()) if change.is_free]
        return {key: change for key in found if (change := self._pending.pop(key, None)) is not None}

    def _added(self, key: str, clock: Clock, step: Step[Any], what: Step[Any] | Proposal) -> _Change | None:
        """Add a change by a step to the pending ones; return None if it needs the present record.

        `what` is a proposal, or the step itself, which runs again if another process has changed the record.
        """
        is_known = key in self._seen or key in self._pending
        now = time.monotonic()
        if not is_known or now < self._resume_at or not self._take_turn(now):
            return None
        try:
            before = self._pending.get(key)
            if before is not None and not before.is_free:
                return None
            before = self._pending.pop(key, None)  # another thread may have taken it
            change = self._planned(key, clock, step, what, before)
            if not self._pending and before is None:
                self._pending_since = now
            if change.is_tried:
                self._pending[key] = change
            elif before is not None:
                self._pending[key] = before
            return change if change.is_tried else None
        finally:
            self._file.turn.release()

    def _planned(
        self, key: str, clock: Clock, step: Step[Any], what: Step[Any] | Proposal, before: _Change | None
    ) -> _Change:
        """Return the change of a record by a step, after a pending change. It is tried if the record is known."""
        change = _Change(key, clock, what, before)
        if before is not None:
            if before.is_usable:
                change.attempt(step, before.row, before.record)
        elif (row := self._seen.get(key)) is not None:
            change.attempt(step, row, row.record)
        return change

    def _write(self, changes: list[_Change], pending: dict[str, _Change]) -> bool:
        """Write changes if the file lock and the connection are free; else keep the pending ones."""
        file, is_written = self._file, False
        try:
            if not self._lock_briefly():
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
            for change in changes:
                self.forget(change.key)
        finally:
            if not is_written:
                self._pending.update(pending)
        return is_written

    def _lock_briefly(self) -> bool:
        """Take the file lock. If another process has it, wait for its update; return False if that takes longer."""
        lock = self._file.file_lock
        is_taken = lock.take(wait=False)
        self._held_share += ((not is_taken) - self._held_share) * _WEIGHT
        looks = 0 if self._held_share > _CROWDED else _LOOKS
        while not is_taken and looks:
            looks -= 1
            time.sleep(_BRIEFLY)
            is_taken = lock.take(wait=False)
        return is_taken

    def _commit(self, changes: list[_Change]) -> bool:
        """Write changes in one transaction; return False without a usable connection."""
        file, connection = self._file, self._file.current_connection()
        if connection is None or (file.is_patient and not file.set_patience(connection, False)):
            return False
        rows: dict[str, Row] = {}
        if len(changes) == 1:
            rows[changes[0].key] = _written(connection, changes[0], None)
        else:
            connection.execute("BEGIN IMMEDIATE")
            try:
                for change in changes:
                    rows[change.key] = _written(connection, change, rows.get(change.key))
                connection.execute("COMMIT")
            finally:
                file.roll_back()
        for change in changes:
            for proposal in change.proposals:
                proposal.is_written = not proposal.is_void
            if change.record is not change.row.record:
                file.notes.add(change.key, change.row.record, change.record)
            if change.is_outdated:
                self._propose_at = time.monotonic() + _PROPOSAL_REST
        file.writes += len(rows)
        self.remember(rows)
        return True


class _Unwritten(sqlite3.Error):
    """Error for a row that is not the one just read."""


def _written(connection: sqlite3.Connection, change: _Change, row: Row | None) -> Row:
    """Write a change and return the new row. If the present row is another, the steps run again on that one.

    `row` is the present row, if it is known for certain.
    """
    written = _swapped(connection, change) if change.is_usable else None
    if written is None:
        if row is None:
            name = encode_key(change.key)
            found = connection.execute(SELECT, (name,)).fetchone()
            data, _, expires = found or (None, None, 0)
            row = Row(name, data, expires, decode_row(change.key, found))
        change.run(row)
        written = row if change.record is row.record else _swapped(connection, change)
    if written is None:
        raise _Unwritten
    return written


def _swapped(connection: sqlite3.Connection, change: _Change) -> Row | None:
    """Replace a row by a changed record and return the new row; None if it is not the present row."""
    row = change.row
    name, before, expires = row.name, row.data, row.expires
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
    return Row(name, data, until, record) if done.rowcount == 1 else None
