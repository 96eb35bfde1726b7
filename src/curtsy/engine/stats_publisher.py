"""What a process has counted, told in the store to whoever watches: the dashboard, `curtsy status`, other machines.

Each process adds what it has counted to a record of its own every few seconds, and readers sum them:

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
"""Seconds between two tellings."""


@lru_cache(maxsize=1)
def _name_of(number: int) -> str:
    return f"{platform.node() or 'machine'}-{number}-{secrets.token_hex(3)}"


def process_name() -> str:
    """The name of this process among all that share a store: machine, process number, a few random letters."""
    return _name_of(os.getpid())  # another one in a forked child


class Publisher:
    """Adds what a tally has counted to this process's record. The clients of one process have one record."""

    def __init__(self, counters: Counters, store: AsyncStore) -> None:
        self._counters = counters
        self._store = store
        self._told = StatisticsSnapshot(started_at=-1.0)  # as of before anything
        _PUBLISHERS.add(self)

    @property
    def identity(self) -> str:
        """The identity of the store that this publishes to."""
        return self._store.identity

    def pending(self) -> StatisticsSnapshot:
        """Return what is counted and not published yet."""
        return self._counters.snapshot(PUBLISHED_HOSTS).since(self._told)

    def publish_blocking(self, store: Store) -> None:
        """Publish from a thread that may block, by the blocking store of the same records."""
        counted = self._counters.snapshot(PUBLISHED_HOSTS)
        news = counted.since(self._told)
        if (news.fetches or news.trips) and not getattr(store, "held", 0):
            process = process_name()
            with contextlib.suppress(CurtsyError):
                store.update(stats_key(process), _told(process, news))
                self._told = counted

    async def publish(self) -> bool:
        """Tell what is new, if anything is; answers whether to look again though nothing more happens.

        A store that fails is not our business: who fetches is told of it. What could not be told now is told later.
        """
        counted = self._counters.snapshot(PUBLISHED_HOSTS)
        news = counted.since(self._told)
        if not (news.fetches or news.trips):
            return False
        if getattr(self._store, "held", 0):  # an outage is bridged in memory, where nobody else can read it
            return True
        process = process_name()
        try:
            await self._store.update(stats_key(process), _told(process, news))
        except CurtsyError:
            return True
        self._told = counted
        return False


def _told(process: str, news: StatisticsSnapshot) -> Step[None]:
    """The step that adds what is new to a process's record."""

    def step(record: Record | None, now: Now) -> tuple[ProcessStatistics, None]:
        at = now.epoch / SECOND
        if not isinstance(record, ProcessStatistics):
            program = Path(sys.argv[0]).name if sys.argv else ""
            record = ProcessStatistics(process=process, program=program, started_at=at)
        return record.plus(news, at), None

    return step


_PUBLISHERS: WeakSet[Publisher] = WeakSet()


def whole_statistics(store: Store) -> list[ProcessStatistics]:
    """Return what all processes have counted, with what this one has not published yet."""
    found = read_statistics(store)
    for publisher in list(_PUBLISHERS):
        if publisher.identity == store.identity:
            found.append(ProcessStatistics().plus(publisher.pending(), time.time()))
    return found


def read_statistics(store: Store) -> list[ProcessStatistics]:
    """What the processes that share a store have counted, the one that told last first."""
    return _current([record for _, record in read_all(store, stats_key(""))], store.now())


async def aread_statistics(store: AsyncStore) -> list[ProcessStatistics]:
    """The same for tasks."""
    keys = await store.keys(stats_key(""))
    return _current([await store.read(key) for key in keys], await store.now())


def _current(records: list[object], now: Now) -> list[ProcessStatistics]:
    """Those that say something still: a store may keep one for a while after that."""
    found = [each for each in records if isinstance(each, ProcessStatistics) and (each.lasts(now) or 0) > 0]
    return sorted(found, key=lambda each: each.at, reverse=True)
