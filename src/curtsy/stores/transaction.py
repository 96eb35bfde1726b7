"""Transaction on an SQLite file of records: records read, and pending writes."""

from __future__ import annotations

import logging
import sqlite3
import zlib
from collections.abc import Callable
from typing import Any

from curtsy.core.errors import StoreError
from curtsy.core.message import SECOND, Now
from curtsy.core.record import Record
from curtsy.stores.codec import DamagedRecord, pack, unpack

_DAY = 86_400

_SWEEP_ROWS = 100
"""Maximum number of records that one sweep examines."""

SELECT = "SELECT data, sum, expires_epoch FROM records WHERE key = ?"
"""Query for a row, as `decoded` takes it."""

_INSERT = (
    "INSERT INTO records (key, data, sum, expires_epoch) VALUES (?, ?, ?, ?)"
    " ON CONFLICT (key) DO UPDATE SET data = excluded.data, sum = excluded.sum, expires_epoch = excluded.expires_epoch"
)
_UPDATE = "UPDATE records SET data = ?, sum = ? WHERE key = ?"
_DELETE = "DELETE FROM records WHERE key = ?"
_EXPIRED = "SELECT data, sum, key FROM records WHERE expires_epoch <= ? LIMIT ?"
_POSTPONE = "UPDATE records SET expires_epoch = ? WHERE key = ?"

_log = logging.getLogger("curtsy")


class Transaction:
    """Records that one transaction has read, and its pending writes."""

    def __init__(self, connection: sqlite3.Connection, path: str, met_damage: Callable[[str], None]) -> None:
        """Store the arguments; `met_damage` is called with the key of each damaged record."""
        self._connection = connection
        self._path = path
        self._met_damage = met_damage
        self._records: dict[str, Record | None] = {}
        self._expiries: dict[str, int | None] = {}
        self._writes: dict[str, tuple[str, tuple[Any, ...]]] = {}
        self.now: Now | None = None
        """Time of the last change; None if nothing changed."""

    def load(self, key: str) -> Record | None:
        """Return the record under `key`, with the pending changes; None if absent or damaged."""
        if key in self._records:
            return self._records[key]
        row = self._connection.execute(SELECT, (encode(key),)).fetchone()
        self._expiries[key] = 0 if row is None else row[2]
        try:
            record = decoded(key, row)
        except DamagedRecord as damage:
            _log.warning("%s: the record under %a is damaged and counts as absent: %s", self._path, key, damage)
            self._writes[key] = _DELETE, (encode(key),)
            self._expiries[key] = 0
            self._met_damage(key)
            record = None
        self._records[key] = record
        return record

    def put(self, key: str, record: Record | None, now: Now) -> None:
        """Set the pending record under `key`; None removes it. Requires `load(key)` before."""
        self._writes[key] = self._write(key, record, now)
        self._records[key] = record
        self.now = now

    def _write(self, key: str, record: Record | None, now: Now) -> tuple[str, tuple[Any, ...]]:
        name = encode(key)
        if record is None:
            return _DELETE, (name,)
        data = pack(record)
        expires = _expiry(record, now)
        # Most writes keep the day of expiry, and then the index needs no write.
        if expires == self._expiries[key]:
            return _UPDATE, (data, _sum(name, data), name)
        return _INSERT, (name, data, _sum(name, data), expires)

    def write(self) -> None:
        """Write the pending changes."""
        for statement, values in self._writes.values():
            self._connection.execute(statement, values)

    def sweep(self, now: Now) -> bool:
        """Drop some expired records; return True if more may have expired.

        The calendar selects candidates, and the record itself decides whether it has expired. A clock that is set
        ahead must not make the store forget spent budgets (C19).
        """
        rows = self._connection.execute(_EXPIRED, (now.epoch // SECOND, _SWEEP_ROWS)).fetchall()
        for row in rows:
            name = row[2]
            expires: int | None = 0
            try:
                record = decoded(name.decode("utf-8", "surrogatepass"), row)
                if record is not None and ((lasts := record.lasts(now)) is None or lasts > 0):
                    expires = _expiry(record, now)
            except (DamagedRecord, UnicodeDecodeError):
                pass
            except StoreError:  # a later version wrote it and knows its expiry
                expires = now.epoch // SECOND + _DAY
            if expires == 0:
                self._connection.execute(_DELETE, (name,))
            else:
                self._connection.execute(_POSTPONE, (expires, name))
        return len(rows) == _SWEEP_ROWS


def encode(key: str) -> bytes:
    """Return a key as stored in the file: any text, including lone surrogates and NUL."""
    return key.encode("utf-8", "surrogatepass")


def decoded(key: str, row: Any) -> Record | None:
    """Return the record of a row; None if `row` is None. Raises DamagedRecord or StoreError."""
    if row is None:
        return None
    data, total = row[0], row[1]
    if not isinstance(data, bytes) or total != _sum(encode(key), data):
        raise DamagedRecord("its check sum is wrong.")
    return unpack(data)


def _sum(name: bytes, data: bytes) -> int:
    """Return a checksum. SQLite has no checksums, and a flipped bit in a counter looks like a valid number."""
    return zlib.crc32(data, zlib.crc32(name))


def _expiry(record: Record, now: Now) -> int | None:
    """Return the epoch second of expiry, rounded up to the end of a day; None for never."""
    lasts = record.lasts(now)
    return None if lasts is None else -(-(now.epoch + lasts) // (_DAY * SECOND)) * _DAY
