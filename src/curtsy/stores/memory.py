"""Store of one process: dicts of records, the idle ones packed."""

from __future__ import annotations

import itertools
import os
import threading
from itertools import chain
from typing import Any

from curtsy.core.errors import StoreError
from curtsy.core.record import Record
from curtsy.core.rules import Rules
from curtsy.core.time import Now
from curtsy.stores.blocking import BlockingStore
from curtsy.stores.codec import pack, unpack
from curtsy.stores.protocol import Answer, AsyncStore, Step
from curtsy.stores.survey import HOSTS, Survey, survey_of
from curtsy.system.clock import Clock, SystemClock

HOT = 1 << 17
"""Maximum number of unpacked records: a host takes about 490 bytes unpacked and about 270 packed, with its key."""

LARGE, MOST_LARGE = 16 << 10, 32 << 20
"""Bytes from which a robots.txt counts as large, and maximum bytes of all large ones. A dropped one is fetched again
when needed. Usual ones, of some kilobytes, stay until they expire."""

_numbers = itertools.count(1)

# One lock for all memory stores, held for one step at most. A fork takes it first, because in the child no other thread
# could release it.
_lock = threading.Lock()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release)


class AsyncMemoryStore(AsyncStore):
    """Records in the memory of this process.

    `young` and `old` hold unpacked records, `cold` packed ones. An update moves its record to `young`. If `young` and
    `old` exceed `hot` records, each record that enters packs one of `old`. So no single update pays for all. If `old`
    is empty, `young` replaces it. A record that is updated before its turn stays unpacked.
    """

    is_immediate = True

    def __init__(self, clock: Clock | None = None, *, hot: int = HOT) -> None:
        self._clock = clock or SystemClock()
        self._name = f"memory:{next(_numbers)}"
        self._hot = hot
        self._young: dict[str, Record] = {}
        self._old: dict[str, Record] = {}
        self._cold: dict[str, bytes] = {}
        self._large: dict[str, int] = {}
        """Bytes of the large robots.txt files, in the order of writing."""
        self._is_closed = False

    @property
    def identity(self) -> str:
        return self._name

    async def update(self, key: str, step: Step[Answer]) -> Answer:
        return self.update_now(key, step)

    def update_now(self, key: str, step: Step[Answer]) -> Answer:
        _lock.acquire()  # faster than `with`; each request does this twice
        try:
            if self._is_closed:
                raise self._closed()
            now = self._clock.now()
            young = self._young
            record = young.get(key)
            if record is not None:
                changed, answer = step(record, now)
                if changed is None:
                    del young[key]
                elif changed is not record:
                    young[key] = changed
                    if type(changed) is Rules:
                        self._weigh(key, changed)
                return answer
            changed, answer = step(self._find(key), now)
            self._put(key, changed, now)
            return answer
        finally:
            _lock.release()

    async def read(self, key: str) -> Any:
        with _lock:
            if self._is_closed:
                raise self._closed()
            return self._find(key)

    async def keys(self, prefix: str = "") -> list[str]:
        with _lock:
            if self._is_closed:
                raise self._closed()
            places = (self._young, self._old, self._cold)
            found = [key for place in places for key in place if key.startswith(prefix)]
        return sorted(found)

    async def survey(self, recent: int, troubled: int) -> Survey:
        """Return hosts used last and hosts in trouble; a packed record is unpacked only while it is examined."""
        with _lock:
            if self._is_closed:
                raise self._closed()
            hot = [each for place in (self._young, self._old) for each in place.items() if each[0].startswith(HOSTS)]
            cold = [each for each in self._cold.items() if each[0].startswith(HOSTS)]
        return survey_of(chain(hot, ((key, unpack(data)) for key, data in cold)), recent, troubled)

    async def now(self) -> Now:
        return self._clock.now()

    async def close(self) -> None:
        """Drop all records. Idempotent."""
        with _lock:
            self._is_closed = True
            self._young, self._old, self._cold, self._large = {}, {}, {}, {}

    def _find(self, key: str) -> Record | None:
        record = self._young.get(key) or self._old.get(key)
        if record is None and (data := self._cold.get(key)) is not None:
            record = unpack(data)
        return record

    def _put(self, key: str, record: Record | None, now: Now) -> None:
        """Move a record to `young`, changed or not; None removes it."""
        self._old.pop(key, None)
        self._cold.pop(key, None)
        if record is None:
            return
        self._young[key] = record
        if type(record) is Rules:
            self._weigh(key, record)
        if len(self._young) + len(self._old) > self._hot:
            self._pack_one(now)

    def _weigh(self, key: str, rules: Rules) -> None:
        """Drop the large files written longest ago while all large ones exceed MOST_LARGE."""
        large = self._large
        large.pop(key, None)
        if rules.weight < LARGE:
            return
        large[key] = rules.weight
        while sum(large.values()) > MOST_LARGE:
            dropped = next(iter(large))
            del large[dropped]
            for place in (self._young, self._old, self._cold):
                place.pop(dropped, None)

    def _pack_one(self, now: Now) -> None:
        """Pack one record that was not updated lately, or drop it if it has expired."""
        if not self._old:
            self._old, self._young = self._young, {}
        key, record = self._old.popitem()
        lasts = record.lasts(now)
        if lasts is None or lasts > 0:
            self._cold[key] = pack(record)

    def _closed(self) -> StoreError:
        return StoreError(f"{self._name} was used after close(). Open another store.")


class MemoryStore(BlockingStore):
    """Blocking form of `AsyncMemoryStore`."""

    def __init__(self, clock: Clock | None = None, *, hot: int = HOT) -> None:
        super().__init__(AsyncMemoryStore(clock, hot=hot))
