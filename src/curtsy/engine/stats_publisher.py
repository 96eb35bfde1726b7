"""Publication of a process's counts in the store. Dashboard, `curtsy status` and other machines read them.

Each process adds its counts to its own record every few seconds, and readers sum the records:

    summed(read_statistics(store)).requests
"""

from __future__ import annotations

import contextlib
import os
import platform
import secrets
import sys
import time
from functools import lru_cache
from pathlib import Path
from weakref import WeakSet

from curtsy.core.errors import CurtsyError
from curtsy.core.message import SECOND, Now
from curtsy.core.record import Record
from curtsy.core.statistics import PUBLISHED_HOSTS, ProcessStatistics, StatisticsSnapshot, stats_key, summed
from curtsy.engine.counters import Counters
from curtsy.stores import AsyncStore, Step, Store, read_all

__all__ = [
    "EVERY", "Publisher", "aread_statistics", "process_name", "read_statistics", "summed", "whole_statistics",
]  # fmt: skip

EVERY = 5.0
"""Seconds between two publications."""


@lru_cache(maxsize=1)
def _name_of(number: int) -> str:
    return f"{platform.node() or 'machine'}-{number}-{secrets.token_hex(3)}"


def process_name() -> str:
    """Return this process's unique name in a store: machine, process id, random letters."""
    return _name_of(os.getpid())  # a forked child has another name


class Publisher:
    """Publisher of new counts to this process's record, which all its clients share."""

    def __init__(self, counters: Counters, store: AsyncStore) -> None:
        self._counters = counters
        self._store = store
        self._told = StatisticsSnapshot(started_at=-1.0)  # older than any count
        _PUBLISHERS.add(self)

    @property
    def identity(self) -> str:
        """Return the identity of the store that this publishes to."""
        return self._store.identity

    def pending(self) -> StatisticsSnapshot:
        """Return the counts that are not yet published."""
        return self._counters.snapshot(PUBLISHED_HOSTS).since(self._told)

    def publish_blocking(self, store: Store) -> None:
        """Publish from a blocking thread, through the blocking form of the same store."""
        counted = self._counters.snapshot(PUBLISHED_HOSTS)
        news = counted.since(self._told)
        if (news.fetches or news.trips) and not getattr(store, "held", 0):
            process = process_name()
            with contextlib.suppress(CurtsyError):
                store.update(stats_key(process), _told(process, news))
                self._told = counted

    async def publish(self) -> bool:
        """Publish new counts; return whether to retry without further activity.

        Store failures are ignored because the fetches report them. Unpublished counts are published later.
        """
        counted = self._counters.snapshot(PUBLISHED_HOSTS)
        news = counted.since(self._told)
        if not (news.fetches or news.trips):
            return False
        if getattr(self._store, "held", 0):  # in an outage the store writes to memory, invisible to other processes
            return True
        process = process_name()
        try:
            await self._store.update(stats_key(process), _told(process, news))
        except CurtsyError:
            return True
        self._told = counted
        return False


def _told(process: str, news: StatisticsSnapshot) -> Step[None]:
    """Return the step that adds new counts to a process's record."""

    def step(record: Record | None, now: Now) -> tuple[ProcessStatistics, None]:
        at = now.epoch / SECOND
        if not isinstance(record, ProcessStatistics):
            program = Path(sys.argv[0]).name if sys.argv else ""
            record = ProcessStatistics(process=process, program=program, started_at=at)
        return record.plus(news, at), None

    return step


_PUBLISHERS: WeakSet[Publisher] = WeakSet()


def whole_statistics(store: Store) -> list[ProcessStatistics]:
    """Return the counts of all processes, with this one's unpublished counts."""
    found = read_statistics(store)
    for publisher in list(_PUBLISHERS):
        if publisher.identity == store.identity:
            found.append(ProcessStatistics().plus(publisher.pending(), time.time()))
    return found


def read_statistics(store: Store) -> list[ProcessStatistics]:
    """Return the counts of the processes that share a store, the latest publication first."""
    return _current([record for _, record in read_all(store, stats_key(""))], store.now())


async def aread_statistics(store: AsyncStore) -> list[ProcessStatistics]:
    """Return the same for tasks."""
    keys = await store.keys(stats_key(""))
    return _current([await store.read(key) for key in keys], await store.now())


def _current(records: list[object], now: Now) -> list[ProcessStatistics]:
    """Return the unexpired records, the latest first. A store may keep records beyond their expiry."""
    found = [each for each in records if isinstance(each, ProcessStatistics) and (each.lasts(now) or 0) > 0]
    return sorted(found, key=lambda each: each.at, reverse=True)
