"""Counters of a client's fetches, per host and in total, and their publication in the store.

Each process adds its counts to its own record every few seconds. Dashboard, `curtsy status` and other machines read
and sum the records:

    summed(read_statistics(store)).requests
"""

from __future__ import annotations

import contextlib
import os
import platform
import secrets
import sys
import threading
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable
from functools import lru_cache
from heapq import nlargest
from operator import attrgetter
from pathlib import Path
from typing import Any
from weakref import WeakSet

from curtsy.core.errors import CurtsyError
from curtsy.core.history import TotalHistory
from curtsy.core.masking import mask_url
from curtsy.core.record import FetchRecord, Record, Share
from curtsy.core.statistics import (
    LAST,
    MOST_HOSTS,
    NUMBERS,
    PUBLISHED_HOSTS,
    Counts,
    Fetch,
    HostStatistics,
    Lately,
    Latencies,
    ProcessStatistics,
    StatisticsSnapshot,
    Waits,
    dateable,
    stats_key,
)
from curtsy.core.time import SECOND, Now
from curtsy.stores import AsyncStore, Outages, Step, Store, read_all
from curtsy.stores.blocking import for_tasks

_WAITS, _LATENCIES = Waits.bounds, Latencies.bounds
_SHORT = _WAITS[0]
"""Seconds: shorter waits are not delays. The first bucket of the waits is derived from the others."""
_busyness = attrgetter("fetches")


class _Host:
    """Counters of one host, or of several hosts together: the numbers of `Counts`, and the buckets of its histograms.

    A wait that is no delay is counted only as a fetch.
    """

    __slots__ = (*NUMBERS, "domain", "last", "latencies", "latency", "reasons", "waited", "waits")

    def __init__(self, domain: str) -> None:
        self.domain = domain
        self.fetches = self.requests = self.robots_requests = self.retries = self.pages = self.bytes = 0
        self.cache_hits = self.revalidated = self.trips = 0
        self.waited = self.latency = 0.0
        self.reasons: dict[str, int] = {}
        self.waits = [0] * (len(_WAITS) + 1)
        self.latencies = [0] * (len(_LATENCIES) + 1)
        self.last: deque[FetchRecord] = deque(maxlen=LAST)

    def take(self, other: _Host) -> None:
        """Add another host's counts; its last fetches are excluded."""
        for name in (*NUMBERS, "waited", "latency"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for reason, count in other.reasons.items():
            self.reasons[reason] = self.reasons.get(reason, 0) + count
        self.waits = [one + two for one, two in zip(self.waits, other.waits, strict=True)]
        self.latencies = [one + two for one, two in zip(self.latencies, other.latencies, strict=True)]

    def counts(self) -> dict[str, Any]:
        """Return the fields of `Counts`."""
        waits = (self.fetches - sum(self.waits), *self.waits[1:])
        return {
            **{name: getattr(self, name) for name in NUMBERS},
            "reasons": dict(self.reasons),
            "waits": Waits(waits, self.waited) if self.fetches else Waits(),
            "latency": Latencies(tuple(self.latencies), self.latency) if any(self.latencies) else Latencies(),
        }

    def snapshot(self) -> HostStatistics:
        """Return all counters as an immutable value."""
        sent = next((each for each in reversed(self.last) if each.attempts), None)
        return HostStatistics(
            **self.counts(),
            domain=self.domain,
            requests_left=None if sent is None else sent.requests_left,
            pages_left=None if sent is None else sent.pages_left,
            last_at=self.last[-1].at if self.last else 0.0,
            last=tuple([_fetch(each) for each in self.last]),
        )


class Counters:
    """Thread-safe counters of fetches. One count takes well under a microsecond.

    About `hosts` hosts, the busiest, have their own counters. If there are a quarter more, the least busy are summed.
    `epoch` returns the calendar time in seconds; tests replace it. `outages` returns the outages of the store so far.
    """

    def __init__(
        self,
        *,
        hosts: int = MOST_HOSTS,
        epoch: Callable[[], float] = time.time,
        outages: Callable[[], Outages] = Outages,
    ) -> None:
        self._most = hosts
        self._epoch = epoch
        self._outages = outages
        self._lock = threading.Lock()
        self.reset()

    def reset(self) -> None:
        """Reset all counters."""
        with self._lock:
            self._started_at = self._epoch()
            self._past_outages = self._outages()
            self._hosts: dict[str, _Host] = {}
            self._other = _Host("")
            self._further: dict[str, int] = {}
            """Requests counted in `_other`, by domain."""
            self._bar = 0
            self._history = TotalHistory()
            self._dated: tuple[int, ...] = dateable(Counts())
            """Totals at the last snapshot, which `_history` already has."""

    def count(self, record: FetchRecord) -> None:
        """Count one fetch."""
        with self._lock:
            own = record if not record.elsewhere else self._share_out(record)
            host = self._hosts.get(record.domain) or self._met(record.domain, own.attempts)
            host.fetches += 1
            host.last.append(record)
            if waited := record.waited:
                host.waited += waited
                if waited > _SHORT:
                    host.waits[bisect_left(_WAITS, waited)] += 1
            if attempts := own.attempts:
                host.requests += attempts
                host.bytes += own.bytes
                if own.retries:
                    host.retries += own.retries
                if (latency := record.latency) is not None:
                    host.latencies[bisect_left(_LATENCIES, latency)] += 1
                    host.latency += latency
            if own.robots_requests:
                host.robots_requests += own.robots_requests
            if (reason := record.reason) is not None:
                host.reasons[reason] = host.reasons.get(reason, 0) + 1
            if (cache := record.cache) is None:
                if reason is None and record.bytes and not record.is_part:
                    host.pages += 1
            elif cache == "revalidated":
                host.revalidated += 1
            else:
                host.cache_hits += 1

    def count_turn(self, domain: str, *, requests: int = 0, waited: float = 0.0, reason: str | None = None) -> None:
        """Count a passage through the gate for another HTTP library: granted requests, or the refusal's reason."""
        with self._lock:
            host = self._hosts.get(domain) or self._met(domain, requests)
            host.fetches += 1
            host.requests += requests
            host.waited += waited
            if waited > _SHORT:
                host.waits[bisect_left(_WAITS, waited)] += 1
            if reason is not None:
                host.reasons[reason] = host.reasons.get(reason, 0) + 1

    def _share_out(self, record: FetchRecord) -> Share:
        """Count the requests to other hosts for those hosts; return the share of the final host."""
        own, *others = record.shares()
        self._add_requests(others)
        return own

    def count_requests(self, record: FetchRecord) -> None:
        """Count the requests of a fetch that is repeated later and then counted as a fetch."""
        with self._lock:
            self._add_requests(record.shares())

    def _add_requests(self, shares: Iterable[Share]) -> None:
        for share in shares:
            host = self._hosts.get(share.domain) or self._met(share.domain, share.attempts)
            host.requests += share.attempts
            host.retries += share.retries
            host.robots_requests += share.robots_requests
            host.bytes += share.bytes

    def count_trip(self, domain: str) -> None:
        """Count an opening of a host's breaker."""
        with self._lock:
            (self._hosts.get(domain) or self._met(domain, 0)).trips += 1

    def _met(self, domain: str, requests: int) -> _Host:
        """Return counters for a host without its own: new ones, or `_other`."""
        if len(self._hosts) >= self._most + self._most // 4:
            requests += self._further.get(domain, 0)
            if requests <= self._bar:
                self._further[domain] = requests
                return self._other
            self._make_room()
        host = self._hosts[domain] = _Host(domain)
        return host

    def _make_room(self) -> None:
        """Merge the least busy hosts into `_other`.

        A merged host needs more than twice the requests of the least busy remaining host, plus 10, to return. Otherwise
        a crawl of many equally busy hosts would create and merge counters all the time.
        """
        busiest = nlargest(self._most, self._hosts.values(), key=_busyness)
        kept = {host.domain: host for host in busiest}
        for name, host in self._hosts.items():
            if name not in kept:
                self._other.take(host)
                self._further[name] = self._further.get(name, 0) + host.requests
        self._hosts = kept
        self._bar = 2 * busiest[-1].fetches + 10

    def snapshot(self, hosts: int | None = None) -> StatisticsSnapshot:
        """Return all counts, with separate rows for the `hosts` busiest hosts; None for all rows."""
        with self._lock:
            at = self._epoch()
            known = [host for name, host in self._hosts.items() if name]  # invalid URLs have no host
            busiest = nlargest(len(known) if hosts is None else hosts, known, key=_busyness)
            other = _sum({*self._hosts.values()}.difference(busiest), self._other)
            total = _sum(busiest, other)
            domains = {name: requests for name, requests in self._further.items() if requests}
            for host in known:
                if host.requests:
                    domains[host.domain] = domains.get(host.domain, 0) + host.requests
            counts = total.counts()
            was, self._dated = self._dated, dateable(Counts(**counts))
            news = (now - then for now, then in zip(self._dated, was, strict=True))
            self._history = self._history.kept(at).plus(TotalHistory.of(at, *news))
            outages, past = self._outages(), self._past_outages
            return StatisticsSnapshot(
                **counts,
                domains=domains,
                hosts={host.domain: host.snapshot() for host in busiest},
                other=other.snapshot(),
                lately=Lately.of(self._history, at),
                outages=max(0, outages.times - past.times),
                outage_seconds=max(0.0, outages.seconds - past.seconds),
                started_at=self._started_at,
                at=at,
                history=self._history,
            )


def _sum(hosts: Iterable[_Host], other: _Host) -> _Host:
    total = _Host("")
    total.take(other)
    for host in hosts:
        total.take(host)
    return total


def _fetch(record: FetchRecord) -> Fetch:
    return Fetch(
        record.at, mask_url(record.final_url), record.status, record.reason, record.took, record.waited, record.bytes,
        record.cache,
    )  # fmt: skip


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
        self._published = StatisticsSnapshot(started_at=-1.0)  # older than any count
        _PUBLISHERS.add(self)

    @property
    def identity(self) -> str:
        """Return the identity of the store that this publishes to."""
        return self._store.identity

    def pending(self) -> StatisticsSnapshot:
        """Return the counts that are not yet published."""
        return self._counters.snapshot(PUBLISHED_HOSTS).since(self._published)

    def publish_blocking(self, store: Store) -> None:
        """Publish from a blocking thread, through the blocking form of the same store."""
        counted, step = self._news()
        if step is not None and not for_tasks(store).held:
            with contextlib.suppress(CurtsyError):
                store.update(stats_key(process_name()), step)
                self._published = counted

    async def publish(self) -> bool:
        """Publish new counts; return whether to retry without further activity.

        Store failures are ignored because the fetches report them. Unpublished counts are published later.
        """
        counted, step = self._news()
        if step is None:
            return False
        if self._store.held:  # in an outage the store writes to memory, invisible to other processes
            return True
        try:
            await self._store.update(stats_key(process_name()), step)
        except CurtsyError:
            return True
        self._published = counted
        return False

    def _news(self) -> tuple[StatisticsSnapshot, Step[None] | None]:
        """Return all counts, and the step that publishes the new ones; None without new ones."""
        counted = self._counters.snapshot(PUBLISHED_HOSTS)
        news = counted.since(self._published)
        is_any = news.fetches or news.requests or news.robots_requests or news.trips or news.outage_seconds
        return counted, _added(process_name(), news) if is_any else None


def _added(process: str, news: StatisticsSnapshot) -> Step[None]:
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
    now, records = store.now(), [record for _, record in read_all(store, stats_key(""))]
    # A store may keep records beyond their expiry.
    found = [each for each in records if isinstance(each, ProcessStatistics) and (each.lasts(now) or 0) > 0]
    return sorted(found, key=lambda each: each.at, reverse=True)
