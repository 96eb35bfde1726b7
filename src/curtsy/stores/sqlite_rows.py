"""Rows of the table of records: their keys, checksums and expiry, and the transaction that reads and writes them."""

from __future__ import annotations

import contextlib
import sqlite3
import zlib
from collections.abc import Callable
from typing import Any

import msgspec

from curtsy.core.errors import StoreError
from curtsy.core.record import Record
from curtsy.core.time import SECOND, Now
from curtsy.stores.codec import DamagedRecord, pack, unpack

_DAY = 86_400

_SWEEP_ROWS = 100
"""Maximum number of records that one sweep examines."""

SELECT = "SELECT data, sum, expires_epoch FROM records WHERE key = ?"
_SELECT_EXPIRED = "SELECT data, sum, key FROM records WHERE expires_epoch <= ? LIMIT ?"
_INSERT = "INSERT OR REPLACE INTO records (data, sum, expires_epoch, key) VALUES (?, ?, ?, ?)"
_UPDATE = "UPDATE records SET data = ?, sum = ? WHERE key = ?"
_POSTPONE = "UPDATE records SET expires_epoch = ? WHERE key = ?"
_DELETE = "DELETE FROM records WHERE key = ?"
DELETE_HOST = "DELETE FROM hosts WHERE key = ?"


class Row(msgspec.Struct, frozen=True, gc=False):
    """Row of the file as last seen, with its record; `data` is None for an absent one."""

    name: bytes
    data: bytes | None
    expires: int | None
    record: Record | None


class Transaction:
    """Records that one transaction has read, and its pending writes."""

    def __init__(self, connection: sqlite3.Connection, met_damage: Callable[[str, DamagedRecord], None]) -> None:
        """Store the arguments; `met_damage` is called for each damaged record."""
        self._connection = connection
        self._met_damage = met_damage
        self.rows: dict[str, Row] = {}
        """Rows that were read, with the pending writes, by key."""
        self._expiries: dict[str, int | None] = {}
        """Expiry of each row as it is in the file; 0 for an absent one."""
        self._writes: dict[str, tuple[str, tuple[Any, ...]]] = {}
        self.changes: list[tuple[str, Record | None, Record | None]] = []
        """Key, old record and new record of each change, for the index of hosts."""
        self.now: Now | None = None
        """Time of the last change; None if nothing changed."""

    def load(self, key: str) -> Record | None:
        """Return the record under `key`, with the pending changes; None if absent or damaged."""
        if (known := self.rows.get(key)) is not None:
            return known.record
        name = encode_key(key)
        row = self._connection.execute(SELECT, (name,)).fetchone()
        try:
            record = decode_row(key, row)
            data, _, expires = row or (None, None, 0)
        except DamagedRecord as damage:
            self._met_damage(key, damage)
            self._writes[key] = _DELETE, (name,)
            record, data, expires = None, None, 0
        self._expiries[key] = expires
        self.rows[key] = Row(name, data, expires, record)
        return record

    def put(self, key: str, record: Record | None, now: Now) -> None:
        """Set the pending record under `key`; None removes it. Requires `load(key)` before."""
        name, before, data, expires = self.rows[key].name, self.rows[key].record, None, self._expiries[key]
        self.changes.append((key, before, record))
        if record is None:
            self._writes[key] = _DELETE, (name,)
        else:
            data, expires = pack(record), renewed_expiry(expires, record, now)
            # Most writes keep the day of expiry, and then the index needs no write.
            if expires == self._expiries[key]:
                self._writes[key] = _UPDATE, (data, checksum(name, data), name)
            else:
                self._writes[key] = _INSERT, (data, checksum(name, data), expires, name)
        self.rows[key] = Row(name, data, expires, record)
        self.now = now

    def write(self) -> int:
        """Write the pending changes, and return their number."""
        for statement, values in self._writes.values():
            self._connection.execute(statement, values)
        return len(self._writes)

    def sweep(self, now: Now) -> bool:
        """Drop some expired records; return True if more may have expired.

        The calendar selects candidates, and the record itself decides whether it has expired. A clock that is set
        ahead must not make the store forget spent budgets (C19).
        """
        rows = self._connection.execute(_SELECT_EXPIRED, (now.epoch // SECOND, _SWEEP_ROWS)).fetchall()
        for row in rows:
            name = row[2]
            expires: int | None = 0
            try:
                record = decode_row(name.decode("utf-8", "surrogatepass"), row)
                if record is not None and ((lasts := record.lasts(now)) is None or lasts > 0):
                    expires = _expiry(record, now)
            except (DamagedRecord, UnicodeDecodeError):
                pass
            except StoreError:  # a later version wrote it and knows its expiry
                expires = now.epoch // SECOND + _DAY
            if expires == 0:
                self._connection.execute(_DELETE, (name,))
                self._connection.execute(DELETE_HOST, (name,))
            else:
                self._connection.execute(_POSTPONE, (expires, name))
        return len(rows) == _SWEEP_ROWS


def encode_key(key: str) -> bytes:
    """Return a key as stored in the file: any text, including lone surrogates and NUL."""
    return key.encode("utf-8", "surrogatepass")


def decode_row(key: str, row: Any) -> Record | None:
    """Return the record of a row; None if `row` is None. Raises DamagedRecord or StoreError."""
    if row is None:
        return None
    data, total = row[0], row[1]
    if not isinstance(data, bytes) or total != checksum(encode_key(key), data):
        raise DamagedRecord("its check sum is wrong.")
    return unpack(data)


def readable(rows: list[Any]) -> list[tuple[str, Record]]:
    """Return the keys and records of rows, without those that are damaged or of a later version."""
    found = []
    for row in rows:
        with contextlib.suppress(UnicodeDecodeError, StoreError):
            key = row[2].decode("utf-8", "surrogatepass")
            if (record := decode_row(key, row)) is not None:
                found.append((key, record))
    return found


def checksum(name: bytes, data: bytes) -> int:
    """Return a checksum. SQLite has no checksums, and a flipped bit in a counter looks like a valid number."""
    return zlib.crc32(data, zlib.crc32(name))


def _expiry(record: Record, now: Now) -> int | None:
    """Return the epoch second of expiry, rounded up to the end of a day; None for never."""
    lasts = record.lasts(now)
    return None if lasts is None else -(-(now.epoch + lasts) // (_DAY * SECOND)) * _DAY


def renewed_expiry(expires: int | None, record: Record, now: Now) -> int | None:
    """Return the epoch second of expiry to store, when `expires` is stored.

    A stored one stays while it is more than a day ahead, because the computation takes 2 µs. It only says when a sweep
    examines the record, which then decides itself whether it has expired.
    """
    if expires is not None and expires > now.epoch // SECOND + _DAY:
        return expires
    return _expiry(record, now)


def key_range(prefix: str) -> tuple[bytes, bytes]:
    """Return the first key that may begin with `prefix`, and the first key after all of them."""
    first = encode_key(prefix)
    return first, first[:-1] + bytes([first[-1] + 1]) if first else b"\xff"  # UTF-8 has no byte 255
