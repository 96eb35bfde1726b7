"""In-memory filter of the pages that a packed file lacks.

Most pages of a crawl are looked up once, without a hit, before they are fetched. The SQLite query for such a miss takes
a fifth of the cache's total time for the page.
"""

from __future__ import annotations

import math
import sqlite3
import time
from collections.abc import Callable

from curtsy.cache import packed_schema

SIZE = 1024 * 1024
"""Bytes of the bit table. Each page sets one bit, chosen by its number, which is part of a hash. With a million pages,
an eighth of the absent pages share a set bit and are looked up in the file."""

MOST = 4_000_000
"""Pages in a file above which the filter is disabled, because too few bits remain unset."""

LOOK = 0.01
"""Seconds between checks for writes by other connections."""

REST = 10.0
"""Seconds before the filter is rebuilt after another connection has written."""

_NEVER = -math.inf, bytearray()


class BloomFilter:
    """Filter of page numbers that are absent from a file. Other numbers must be looked up in the file.

    The filter is built during lookups, `packed_schema.BATCH` rows at a time, so that no lookup waits for a full scan.
    `add()` records the writes of this process. A write by any other connection invalidates the filter. The check for
    such a write costs as much as a lookup, so it runs every `LOOK` seconds. A page written by another process may be
    missed for that long.
    """

    def __init__(self, most: int = MOST, now: Callable[[], float] = time.monotonic) -> None:
        self._most = most
        self._now = now
        self._sure = _NEVER
        """Time until which the table is valid, and the table. One tuple, because it is read without a lock."""

        self._table = bytearray()
        self._db: sqlite3.Connection | None = None
        """Connection that builds the filter. SQLite's `data_version` ignores this connection's own writes."""

        self._version = 0
        self._last = -(2**63)
        """Highest page number read from the file so far."""

        self._pages = 0
        self._is_whole = False
        self._retry_after_until = -math.inf

    def lacks(self, number: int) -> bool:
        """Return whether the page with this number and all other variants of its URL are known to be absent."""
        until, table = self._sure
        return self._now() < until and not table[number >> 6 & (SIZE - 1)] >> (number >> 3 & 7) & 1

    def add(self, number: int) -> None:
        """Record a page that is about to be written."""
        if self._table:  # the variants of a URL differ in the last three bits and share one bit
            self._table[number >> 6 & (SIZE - 1)] |= 1 << (number >> 3 & 7)

    def look(self, db: sqlite3.Connection) -> None:
        """Read the next batch of rows, or check that the filter is still valid.

        Like `add()`, it must run in one thread at a time.
        """
        now = self._now()
        if now < self._retry_after_until:
            return
        version = packed_schema.version(db)
        if self._db is None:
            self._db, self._version, self._table = db, version, bytearray(SIZE)
            self._last, self._pages, self._is_whole = -(2**63), 0, False
        elif db is not self._db or version != self._version:
            self._end(now + REST)
            return
        if not self._is_whole:
            self._read_on(db)
        if self._is_whole:
            self._sure = now + LOOK, self._table

    def _read_on(self, db: sqlite3.Connection) -> None:
        numbers = packed_schema.numbers(db, self._last)
        for number in numbers:
            self.add(number)
        self._pages += len(numbers)
        if self._pages > self._most:
            self._end(math.inf)
        elif len(numbers) < packed_schema.BATCH:
            self._is_whole = True
        else:
            self._last = numbers[-1]

    def _end(self, retry_after_until: float) -> None:
        self._sure, self._table, self._db, self._retry_after_until = _NEVER, bytearray(), None, retry_after_until
