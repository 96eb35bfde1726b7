"""SQLite file of records: transactions, reads, losses and repair.

A process writes, and moves the log into the file (a checkpoint), only while it holds the file lock. This avoids the
race between a checkpoint and a commit in SQLite before 3.51.3 (sqlite.org/wal.html, "the WAL-reset bug"). Checkpoints
wait for the disk, so only the writer thread runs them, after it has answered its callers.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sqlite3
import stat
import threading
import time
from collections.abc import Callable
from typing import Any

from curtsy.core.errors import PolicyError, StoreError
from curtsy.core.host import Host
from curtsy.core.record import Record
from curtsy.stores.codec import DamagedRecord, unpack
from curtsy.stores.protocol import Loss
from curtsy.stores.sqlite_file import (
    TROUBLE,
    DamagedFile,
    ForeignFile,
    Format,
    SQLiteFile,
    Unsound,
    connect,
    error_code,
    pragma_number,
)
from curtsy.stores.sqlite_rows import DELETE_HOST, SELECT, Transaction, decode_row, encode_key, key_range, readable
from curtsy.stores.survey import HOSTS, KEPT, HostNotes, Survey, survey_of
from curtsy.system.file_lock import inode

_IS_HOST = "key >= x'686f73743a' AND key < x'686f73743b'"
"""Condition of the records of hosts: their keys begin with `host:`."""

FORMAT = Format(
    application=0x43757274,
    schema=(
        "CREATE TABLE records (key BLOB PRIMARY KEY, data BLOB NOT NULL, sum INTEGER NOT NULL, expires_epoch INTEGER)"
        " WITHOUT ROWID",
        "CREATE INDEX records_by_expiry ON records (expires_epoch) WHERE expires_epoch IS NOT NULL",
        # A random name identifies the file, because inode numbers are reused.
        "CREATE TABLE names AS SELECT randomblob(16) AS name",
        # Index of hosts for `survey()`. A file of an earlier format has no entries yet.
        "CREATE TABLE hosts (key BLOB PRIMARY KEY, used_epoch INTEGER NOT NULL, trouble INTEGER NOT NULL)"
        " WITHOUT ROWID",
        "CREATE INDEX hosts_by_use ON hosts (used_epoch)",
        "CREATE INDEX hosts_in_trouble ON hosts (used_epoch) WHERE trouble",
        f"INSERT INTO hosts SELECT key, host_used(data), 1 FROM records WHERE {_IS_HOST} AND host_in_trouble(data)",
        "INSERT OR IGNORE INTO hosts SELECT key, host_used(data), 0 FROM records"
        f" WHERE {_IS_HOST} ORDER BY host_used(data) DESC LIMIT {KEPT}",
    ),
)

_SWEEP_EVERY = 60.0
"""Seconds between two sweeps of expired records."""

_CHECKPOINT_EVERY = 1000
"""Writes of this process after which the log is moved into the file. Most writes take one page."""

_PAGE = 4096
"""Bytes of a page."""

_COUNT_LONG, _COUNT_REST = 0.01, 100
"""Seconds from which a count of hosts is kept, and for how many times its duration."""

_SELECT_KEYS = "SELECT key FROM records WHERE key >= ? AND key < ? ORDER BY key"
_SELECT_ALL = "SELECT data, sum, key FROM records WHERE key >= ? AND key < ? ORDER BY key"
_SELECT_PAGE = (
    "SELECT data, sum, key FROM records WHERE key >= ? AND key < ? AND key <> ? AND instr(substr(key, ?), ?)"
    " ORDER BY key LIMIT ?"
)
_COUNT_HOSTS = f"SELECT count(*) FROM records WHERE {_IS_HOST}"
_COUNT_TROUBLE = "SELECT count(*) FROM hosts WHERE trouble"
# CROSS JOIN keeps the order of the tables, so that the index ends the query after the last row.
SELECT_SURVEYED = (
    "SELECT data, sum, key FROM hosts CROSS JOIN records USING (key) ORDER BY used_epoch DESC LIMIT ?",
    "SELECT data, sum, key FROM hosts CROSS JOIN records USING (key) WHERE trouble ORDER BY used_epoch DESC LIMIT ?",
)
_ENTER_HOST = "INSERT OR REPLACE INTO hosts (key, used_epoch, trouble) VALUES (?, ?, ?)"
_TRIM_HOSTS = (
    "DELETE FROM hosts WHERE NOT trouble AND used_epoch <"
    f" (SELECT used_epoch FROM hosts ORDER BY used_epoch DESC LIMIT 1 OFFSET {KEPT})"
)

_LEAST = 512
"""Bytes of the smallest database: SQLite treats some shorter files as empty databases."""

_PEEK = 0.2
"""Seconds to wait for a lock when reading a file that cannot be written."""

_log = logging.getLogger("curtsy")


class Unready(StoreError):
    """Error for a file that a transaction must open, create or repair before a read."""


class _Reader(SQLiteFile):
    """Connection for reads, which need not wait for a writer. It neither creates nor repairs the file."""

    def open(self) -> sqlite3.Connection:
        self.opened = inode(self.path)
        return connect(self.path, self.uri_mode, self.patience)


class RecordFile(SQLiteFile):
    """File of records, with a connection for writing and one for reading. Thread-safe."""

    def __init__(self, path: str, *, patience: float, format: Format = FORMAT) -> None:
        super().__init__(path, format, patience=patience)
        self.losses: list[Loss] = []
        """Losses: the file was removed, replaced or damaged, or a record was damaged."""
        self._reader = _Reader(path, format, patience=patience)
        self._name: bytes | None = None
        """Random name stored in the file that was last open; None if it was not yet open, or was renamed."""
        self.turn = threading.Lock()
        """Lock of the thread that holds the file lock or waits for it. It comes before `file_lock` and `lock`."""
        self.is_patient = True
        """True if the connection waits for locks of other programs, which only the writer thread may do."""
        self.writes = 0
        """Writes since the last checkpoint."""
        self.sweep_at = 0.0
        """Monotonic second at which the writer thread is to drop expired records."""
        self.notes = HostNotes()
        """Changes of the index of hosts that are not yet written."""
        self._total = 0
        self._recount_at = 0.0

    # --- Transactions ----------------------------------------------------------------------------------------------

    def transact(self, work: Callable[[Transaction], None]) -> Transaction:
        """Wait for the file lock, and let `work` change records in one transaction, which is returned.

        A damaged file is renamed, and `work` runs again on a fresh one. Raises StoreError or PolicyError.
        """
        try:
            with self.turn:
                self.file_lock.take()
                try:
                    with self.lock:
                        try:
                            return self._run(work)
                        except DamagedFile as damage:
                            self._put_aside(damage)
                            return self._run(work)
                finally:
                    self.file_lock.give()
        except OSError as error:
            raise self.translate(error) from error

    def _run(self, work: Callable[[Transaction], None]) -> Transaction:
        if not self.is_patient:
            with self.use() as connection:
                self.set_patience(connection, True)
        with self.transaction() as connection:
            draft = Transaction(connection, self._met_damage)
            work(draft)
            self.writes += draft.write()
            for change in draft.changes:
                self.notes.add(*change)
            self._enter_hosts(connection)
            if draft.now is not None and time.monotonic() >= self.sweep_at:
                is_more = draft.sweep(draft.now)
                self.sweep_at = time.monotonic() + (1.0 if is_more else _SWEEP_EVERY)
        return draft

    def set_patience(self, connection: sqlite3.Connection, is_patient: bool) -> bool:
        """Set whether the connection waits for locks of other programs; return False if that fails."""
        with contextlib.suppress(sqlite3.Error):
            connection.execute(f"PRAGMA busy_timeout = {self.patience * 1000 * is_patient:.0f}")
            self.is_patient = is_patient
        return self.is_patient == is_patient

    def needs_thread(self, now: float) -> bool:
        """Return whether the next update must be the writer thread's, for a sweep or a checkpoint after it."""
        return self.writes >= _CHECKPOINT_EVERY or now >= self.sweep_at or self.notes.is_due(now)

    def checkpoint_if_due(self) -> None:
        """Move the log into the file if it has grown, and begin it again. The next transaction reports errors."""
        if self.writes < _CHECKPOINT_EVERY:
            return
        self.writes = 0
        with contextlib.suppress(*TROUBLE, StoreError), self.turn:
            self.file_lock.take()
            try:
                with self.use() as connection:
                    _, pages, moved = connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
                    if pages == moved:
                        # The first write after a complete checkpoint begins the log again, and waits for the disk.
                        # SQLite skips an UPDATE that changes nothing, but writes this.
                        version = pragma_number(connection, "user_version")
                        connection.execute(f"PRAGMA user_version = {version}")
            finally:
                self.file_lock.give()

    def _enter_hosts(self, connection: sqlite3.Connection, *, is_last: bool = False) -> None:
        """Write the notes that are due into the index of hosts, within a transaction."""
        if not (notes := self.notes.take(is_last=is_last)):
            return
        for key, note in notes.items():
            if note is None:
                connection.execute(DELETE_HOST, (encode_key(key),))
            else:
                connection.execute(_ENTER_HOST, (encode_key(key), *note))
        connection.execute(_TRIM_HOSTS)

    def _met_damage(self, key: str, damage: DamagedRecord) -> None:
        _log.warning("%s: the record under %a is damaged and counts as absent: %s", self.path, key, damage)
        self.is_suspect = True
        self.losses.append(Loss(object(), key=key))

    def _put_aside(self, damage: DamagedFile) -> None:
        """Rename a damaged file to make room for a fresh one.

        Requires the file lock, and damage that was just found in the file now at the path.
        """
        if self._name is not None:
            self._name = None
            self.losses.append(Loss(object()))
        aside = f"{self.path}.damaged-{int(time.time())}"
        while os.path.exists(aside):
            aside += "-again"
        self.set_aside(aside)
        _log.warning(
            "%s It was put aside as %s, and a fresh one begun, with what this process still knows.", damage, aside
        )

    # --- Opening ---------------------------------------------------------------------------------------------------

    def open(self) -> sqlite3.Connection:
        """Return a new connection to the file; note a loss if it is not the file that was open before."""
        with self._reader.lock:
            self._reader.disconnect()  # before side files of a replaced file are removed
        before, known, found = self.opened, self._name, inode(self.path)
        self._look_at_file()
        connection = super().open()
        self.is_patient = True
        with contextlib.suppress(OSError):  # processes that were killed may have left a log
            self.writes = os.path.getsize(self.path + "-wal") // _PAGE
        if known is not None and (self._name != known or found != before):  # a copy has the same name
            self.losses.append(Loss(object()))
            what = "removed under us. A fresh one is begun" if found is None else "replaced under us. That one is used"
            _log.warning("%s was %s, with what this process still knows.", self.path, what)
        return connection

    def _look_at_file(self) -> None:
        """Raise Unsound for a file that SQLite would treat as a fresh one.

        A process creates and fills the file while it holds the lock, so a shorter file is damaged.
        """
        try:
            found = os.stat(self.path)
        except FileNotFoundError:
            if os.path.exists(self.path + "-wal"):
                raise Unsound("only its log is left") from None
            return
        if stat.S_ISREG(found.st_mode) and found.st_size < _LEAST:
            raise Unsound(f"it has {found.st_size} bytes")

    def prepare(self, connection: sqlite3.Connection) -> None:
        """Check the format of the file, create its tables, and read its name. Raises PolicyError for a foreign file."""
        connection.create_function("host_used", 1, lambda data: _host(data).used_at, deterministic=True)
        connection.create_function("host_in_trouble", 1, lambda data: _host(data).is_in_trouble, deterministic=True)
        try:
            super().prepare(connection)
        except ForeignFile as error:
            raise PolicyError(str(error)) from None
        connection.execute("PRAGMA wal_autocheckpoint = 0")
        names: list[tuple[bytes]] = connection.execute("SELECT name FROM names").fetchall()
        if len(names) != 1:
            raise Unsound("it has no name")
        self._name = names[0][0]

    def translate(self, error: Exception) -> StoreError:
        """Return the StoreError for an error; DamagedFile if only the file's header forbids writing."""
        if error_code(error) == sqlite3.SQLITE_READONLY and self._says_read_only():
            error = Unsound("it says that it cannot be written")
        return super().translate(error)

    def _says_read_only(self) -> bool:
        """Return whether the file's header requires a nonexistent version of SQLite (fileformat2.html, 1.3.3)."""
        self.disconnect()
        with self._reader.lock:
            self._reader.disconnect()  # closing the file drops this process's locks on it
            try:
                with open(self.path, "rb") as file:
                    return file.read(19)[18:] > b"\x02"
            except OSError:
                return False

    def close(self) -> None:
        """Close the file. A thread that still runs at the end of the program opens it again."""
        if not self.turn.acquire(timeout=self.patience):
            return  # a step in another thread does not end
        try:
            with contextlib.suppress(StoreError, OSError):
                self._enter_last_hosts()
            for file in (self, self._reader):
                with file.lock:
                    file.disconnect()
            self.file_lock.drop()
        finally:
            self.turn.release()

    def after_fork(self, *, is_child: bool) -> None:
        if is_child:
            self.turn = threading.Lock()  # a thread of the parent may hold it
        super().after_fork(is_child=is_child)

    def _enter_last_hosts(self) -> None:
        """Write the remaining notes, if the file is still open and its lock is free: they are worth no wait."""
        with self.lock:
            if self.notes and self.is_open and self.is_current() and self.file_lock.take(wait=False):
                try:
                    with self.transaction() as connection:
                        self._enter_hosts(connection, is_last=True)
                finally:
                    self.file_lock.give()

    # --- Reads -----------------------------------------------------------------------------------------------------

    def read(self, key: str) -> Record | None:
        """Return the last committed record under `key`, or None. Raises Unready if a transaction must come first."""
        [row] = self._rows(SELECT, (encode_key(key),)) or [None]
        try:
            return decode_row(key, row)
        except DamagedRecord as damage:
            self.is_suspect = True
            raise Unready(f"{self.path} is damaged.") from damage

    def keys(self, prefix: str) -> list[str]:
        """Return all keys that begin with `prefix`, sorted: UTF-8 bytes sort as the characters do."""
        found = []
        for [name] in self._rows(_SELECT_KEYS, key_range(prefix)):
            with contextlib.suppress(UnicodeDecodeError):  # a damaged key
                found.append(name.decode("utf-8", "surrogatepass"))
        return found

    def records(self, prefix: str) -> list[tuple[str, Record]]:
        """Return all records whose keys begin with `prefix`, of one moment; skip unreadable ones."""
        return readable(self._rows(_SELECT_ALL, key_range(prefix)))

    def page(self, prefix: str, part: str, after: str, most: int) -> list[tuple[str, Record]]:
        """Return the first `most` records; see `AsyncStore.page`. Skip unreadable ones."""
        first, end = key_range(prefix)
        last, skipped = encode_key(after), len(first) + 1
        values = (max(first, last), end, last or b"\xff", skipped, encode_key(part), most)
        return readable(self._rows(_SELECT_PAGE, values))

    def survey(self, recent: int, troubled: int) -> Survey:
        """Return hosts used last and hosts in trouble; see `AsyncStore.survey`."""
        total = self._count_hosts()
        if total <= recent:  # includes hosts whose notes are not written yet
            return survey_of(self.records(HOSTS), recent, troubled)
        [[in_trouble]] = self._rows(_COUNT_TROUBLE)
        by_use, by_trouble = SELECT_SURVEYED
        rows = [*self._rows(by_use, (recent,)), *self._rows(by_trouble, (troubled,))]
        return Survey({key: host for key, host in readable(rows) if isinstance(host, Host)}, total, in_trouble)

    def _count_hosts(self) -> int:
        """Return the number of hosts. That of a large file, which takes 0.1 s per million, is kept for a while."""
        began = time.monotonic()
        if began >= self._recount_at:
            [[self._total]] = self._rows(_COUNT_HOSTS)
            took = time.monotonic() - began
            self._recount_at = began + took * _COUNT_REST if took > _COUNT_LONG else 0.0
        return self._total

    def _rows(self, query: str, values: tuple[bytes | int, ...] = ()) -> list[Any]:
        file = inode(self.path)
        if file is None or file != self.opened or not self.is_open:
            raise Unready(f"{self.path} is not open.")
        try:
            with self._reader.use() as connection:
                return connection.execute(query, values).fetchall()
        except DamagedFile as damage:
            self.is_suspect = True
            raise Unready(str(damage)) from damage

    def peek(self, key: str) -> Record | None:
        """Return the record under `key` of an unwritable file; None if it is unreadable.

        If SQLite cannot create its side files, only the file itself is readable. It is complete if its last writers
        have closed it.
        """
        for mode in ("mode=ro", "mode=ro&immutable=1"):
            with contextlib.suppress(*TROUBLE, StoreError, ValueError):
                if not stat.S_ISREG(os.stat(self.path).st_mode):
                    return None
                with contextlib.closing(connect(self.path, mode, _PEEK)) as connection:
                    self.version(connection)  # raises for a foreign file
                    return decode_row(key, connection.execute(SELECT, (encode_key(key),)).fetchone())
        return None


def _host(data: object) -> Host:
    """Return the host in the data of a row; an empty record if it is unreadable, or of another kind."""
    with contextlib.suppress(StoreError):
        if isinstance(data, bytes) and isinstance(record := unpack(data), Host):
            return record
    return Host()
