"""Store of one process: dicts of records, the idle ones packed."""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Sequence
from typing import Any

from curtsy.core.errors import StoreError
from curtsy.core.message import Now
from curtsy.core.record import Record
from curtsy.core.rules import Rules
from curtsy.stores import Answer, Step
from curtsy.stores.codec import pack, unpack
from curtsy.system.clock import Clock, SystemClock

HOT = 1 << 17
"""Maximum number of unpacked records: a host takes about 620 bytes unpacked and about 165 packed."""

LARGE, MOST_LARGE = 16 << 10, 32 << 20
"""Bytes from which a robots.txt counts as large, and maximum bytes of all large ones. A dropped one is fetched again
when needed. Usual ones, of some kilobytes, stay until they expire."""

_numbers = itertools.count(1)

# One lock for all memory stores, held for one step at most. A fork takes it first, because in the child no other thread
# could release it.
_lock = threading.Lock()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release)


class MemoryStore:
    """Records in the memory of this process.

    `young` and `old` hold unpacked records, `cold` packed ones. An update moves its record to `young`. If `young` and
    `old` exceed `hot` records, each record that enters packs one of `old`. So no single update pays for all. If `old`
    is empty, `young` replaces it. A record that is updated before its turn stays unpacked.
    """

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
        """Text that identifies the records; see `Store.identity`."""
        return self._name

    def update(self, key: str, step: Step[Answer]) -> Answer:
        """Change one record by `step`, and return its answer."""
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

    def update_many(self, steps: Sequence[tuple[str, Step[Any]]]) -> list[Any]:
        """Do several updates; see `Store.update_many`."""
        answers: list[Any] = []
        failure: BaseException | None = None
        for key, step in steps:
            try:
                answers.append(self.update(key, step))
            except Exception as error:
                failure = failure or error
        if failure is not None:
            raise failure
        return answers

    def read(self, key: str) -> Any:
        """Return the record under `key`, or None."""
        with _lock:
            if self._is_closed:
                raise self._closed()
            return self._find(key)

    def keys(self, prefix: str = "") -> list[str]:
        """Return all keys that begin with `prefix`, sorted."""
        with _lock:
            if self._is_closed:
                raise self._closed()
            places = (self._young, self._old, self._cold)
            found = [key for place in places for key in place if key.startswith(prefix)]
        return sorted(found)

    def forget(self, key: str) -> None:
        """Remove the record under `key`, if present."""
        self.update(key, _remove)

    def now(self) -> Now:
        """Return the store's current time."""
        return self._clock.now()

    def close(self) -> None:
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


class AsyncMemoryStore:
    """Async variant of `MemoryStore`; with `store`, it uses the records of that one."""

    is_immediate = True
    """Flag that no call here waits, so that no task can be cancelled in the middle of one."""

    def __init__(self, store: MemoryStore | None = None, *, clock: Clock | None = None) -> None:
        self._store = store or MemoryStore(clock)
        self.at_once = self._store
        """Blocking store with the same records, for calls without await; see `is_immediate`."""

    @property
    def identity(self) -> str:
        """Text that identifies the records; see `Store.identity`."""
        return self._store.identity

    async def update(self, key: str, step: Step[Answer]) -> Answer:
        """Change one record by `step`, and return its answer."""
        return self._store.update(key, step)

    async def update_many(self, steps: Sequence[tuple[str, Step[Any]]]) -> list[Any]:
        """Do several updates; see `Store.update_many`."""
        return self._store.update_many(steps)

    async def read(self, key: str) -> Any:
        """Return the record under `key`, or None."""
        return self._store.read(key)

    async def keys(self, prefix: str = "") -> list[str]:
        """Return all keys that begin with `prefix`, sorted."""
        return self._store.keys(prefix)

    async def forget(self, key: str) -> None:
        """Remove the record under `key`, if present."""
        self._store.forget(key)

    async def now(self) -> Now:
        """Return the store's current time."""
        return self._store.now()

    async def close(self) -> None:
        """Drop all records. Idempotent."""
        self._store.close()


def _remove(record: Record | None, now: Now) -> tuple[None, None]:
    return None, None
