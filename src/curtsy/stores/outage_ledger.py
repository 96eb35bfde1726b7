"""Ledger of an outage: a shared file in which processes count while their state file cannot be written.

An outage must not give each new process a whole budget (B8). So processes store changed records in an SQLite file in a
private directory of their user, in memory if possible: it works with a full or read-only disk. Each record is stored
with the state file's version when counting began, so that exactly the difference is merged. A process that cannot use
the ledger counts alone. A directory in memory is empty after a reboot.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import sqlite3
import stat
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from curtsy.core.errors import StoreError
from curtsy.core.record import Record
from curtsy.stores.codec import pack, unpack
from curtsy.stores.sqlite_file import TROUBLE, DamagedFile, Format, SQLiteFile

FORMAT = Format(
    application=0x4375726C,
    schema=("CREATE TABLE entries (key BLOB PRIMARY KEY, base BLOB, ours BLOB) WITHOUT ROWID",),
)

_PATIENCE = 0.1
"""Seconds to wait for another process. It holds the lock for microseconds, unless it is stopped."""

UNUSABLE = (StoreError, *TROUBLE)
"""Errors of a ledger that cannot be used."""


class Entry:
    """Record within a transaction: the state file's version (`base`), and the version counted since (`ours`)."""

    def __init__(self, connection: sqlite3.Connection, key: str) -> None:
        self._connection = connection
        self._name = key.encode("utf-8", "surrogatepass")
        row = connection.execute("SELECT base, ours FROM entries WHERE key = ?", (self._name,)).fetchone()
        self.exists = row is not None
        self.base, self.ours = (None if data is None else unpack(data) for data in row or (None, None))

    def write(self, base: Record | None, ours: Record | None) -> None:
        """Store a record, and end the transaction."""
        values = self._name, base and pack(base), ours and pack(ours)
        self._connection.execute("INSERT OR REPLACE INTO entries VALUES (?, ?, ?)", values)
        self._connection.execute("COMMIT")

    def delete(self) -> None:
        """Remove the record, and end the transaction."""
        self._connection.execute("DELETE FROM entries WHERE key = ?", (self._name,))
        self._connection.execute("COMMIT")


class OutageLedger:
    """Records that the processes of this user count for one state file while it cannot be written."""

    def __init__(self, path: str) -> None:
        self._name = hashlib.sha256(os.path.realpath(path).encode("utf-8", "surrogateescape")).hexdigest()[:24]
        self._file: SQLiteFile | None = None

    @contextlib.contextmanager
    def entry(self, key: str) -> Iterator[Entry]:
        """Provide the record under `key` in a transaction. Raises one of UNUSABLE if that fails."""
        file = self._opened(is_made=True)
        try:
            with file.use() as connection:
                connection.execute("BEGIN IMMEDIATE")
                try:
                    yield Entry(connection, key)
                finally:
                    file.roll_back()
        except DamagedFile:
            file.delete()
            raise

    def keys(self) -> list[str]:
        """Return all keys, including those of ended processes."""
        with contextlib.suppress(*UNUSABLE):
            file = self._opened(is_made=False)
            if os.path.exists(file.path):
                with file.use() as connection:
                    names = connection.execute("SELECT key FROM entries ORDER BY key").fetchall()
                    file.disconnect()  # most processes need it only once
                return [name.decode("utf-8", "surrogatepass") for [name] in names]
        return []

    def moved(self, key: str, ours: Record | None) -> bool:
        """Note that the state file has the record `ours`; return False if it has changed since."""
        with contextlib.suppress(*UNUSABLE), self.entry(key) as entry:
            if entry.exists and entry.ours != ours:
                entry.write(ours, entry.ours)
                return False
            entry.delete()
        return True

    def close(self) -> None:
        """Close the file; the next use opens it again."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _opened(self, *, is_made: bool) -> SQLiteFile:
        if self._file is None:
            self._file = SQLiteFile(str(_place(is_made) / f"{self._name}.sqlite"), FORMAT, patience=_PATIENCE)
        return self._file


def ledger_of(path: str) -> OutageLedger | None:
    """Return the ledger of a state file; None on Windows, which has no private directories of this kind."""
    return None if sys.platform == "win32" else OutageLedger(path)


def _place(is_made: bool) -> Path:
    """Return a directory that only this user can access; `is_made` creates it if missing. Raises OSError."""
    user = os.geteuid()
    # Places in memory come first, because the disk may be full or read-only.
    for parent in (os.environ.get("XDG_RUNTIME_DIR"), f"/run/user/{user}", "/dev/shm", tempfile.gettempdir()):
        with contextlib.suppress(OSError):
            path = Path(parent or "/nowhere", f"curtsy-{user}")
            if is_made:
                with contextlib.suppress(FileExistsError):
                    path.mkdir(mode=0o700)
            found = path.lstat()
            if stat.S_ISDIR(found.st_mode) and found.st_uid == user and not found.st_mode & 0o077:
                return path
    raise FileNotFoundError("there is no directory to count in")
