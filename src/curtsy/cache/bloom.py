"""Census: what is surely not in a packed file, known without asking it.

Most pages of a crawl are looked for once, in vain, before they are fetched. To hear that from SQLite takes a fifth of
the time that the cache takes for such a page in all.
"""

from __future__ import annotations

import math
import sqlite3
import time
from collections.abc import Callable

from curtsy.cache import packed_schema

SIZE = 1024 * 1024
"""Bytes of the table: it has a bit for each page, by its number, and these lie anywhere. With a million pages, an
eighth of those that are not kept share theirs with one that is, and are looked for in the file."""

MOST = 4_000_000
"""Pages of a file beyond which too few bits are left unset to take the census of it."""

LOOK = 0.01
"""Seconds for which nobody else is taken to have written anything."""

REST = 10.0
"""Seconds before it is taken anew after somebody else has."""

_NEVER = -math.inf, bytearray()


class BloomFilter:
    """Tells which numbers no page of a file has; the others are to be looked for in the file.

    It is taken while pages are looked for, some rows each time, so that nobody waits for it. It is told what this
    process writes; as soon as anybody else has written to the file, it tells nothing. To see that takes as long as to
    look for a page, so it is done every `LOOK` seconds: that late another process's page may be found.
    """

    def __init__(self, most: int = MOST, now: Callable[[], float] = time.monotonic) -> None:
        self._most = most
        self._now = now
        self._sure = _NEVER
        """Until when which table holds: one value, for it is read without a lock."""

        self._table = bytearray()
        self._db: sqlite3.Connection | None = None
        """The connection that it is taken by: what that one writes is not seen as another's."""

        self._version = 0
        self._last = -(2**63)
        """The number up to which the file was read."""

        self._pages = 0
        self._is_whole = False
        self._retry_after_until = -math.inf

    def lacks(self, number: int) -> bool:
        """Whether it is known that no page has this number, nor any other variant of its URL."""
        until, table = self._sure
        return self._now() < until and not table[number >> 6 & (SIZE - 1)] >> (number >> 3 & 7) & 1

    def add(self, number: int) -> None:
        """Note a page that is about to be written."""
        if self._table:  # one bit for all variants of a URL, which differ in the last three
            self._table[number >> 6 & (SIZE - 1)] |= 1 << (number >> 3 & 7)

    def look(self, db: sqlite3.Connection) -> None:
        """Learn more of the file, or see that what is known still holds. Like `add()`, for one thread at a time."""
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
