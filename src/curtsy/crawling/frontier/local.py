"""Frontier of one process: a host schedule, which picks the next host, over a table of URLs.

The table is in memory, or in a SQLite file that loses nothing if the process is killed at any moment. Leases are in
this process's memory only: when it ends, no URL is leased. Calls take microseconds, so they run on the event loop.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import msgspec

from curtsy.core.errors import StoreError
from curtsy.core.fair_share import GROUPS
from curtsy.core.time import SECOND
from curtsy.crawling.frontier.host_schedule import HostSchedule
from curtsy.crawling.frontier.protocol import (
    LEASE,
    MOST_FAILURES,
    Claimed,
    Concurrency,
    Counts,
    Deferred,
    Done,
    Ending,
    Failed,
    Found,
    HostQueue,
    Requeue,
    Room,
    host_of,
)
from curtsy.crawling.frontier.sqlite_table import SQLiteUrlTable
from curtsy.crawling.frontier.url_table import (
    MemoryUrlTable,
    UrlRow,
    rank_of,
    rank_parts,
    skip_mark,
)
from curtsy.http.registered_domain import group_of, site_of

CHUNK = 5000
"""URLs stored in one transaction when more are added at once."""

_LONGEST = 10 * 365 * 86_400.0
"""Maximum of seconds for which a host can be postponed; the schedule cannot represent infinity."""

_tickets = itertools.count(1)
"""Ticket numbers, unique in the process: a claim of a closed frontier must not match another's."""


class _Lease(msgspec.Struct, gc=False):
    claimed: Claimed
    row: UrlRow
    limit: int | None
    """Maximum number of leased URLs of the host, at the time of the claim."""
    until: int


class _UsedSlots:
    """Slots in use by each group during a claim, by the group's number in the schedule."""

    def __init__(self, room: Room) -> None:
        self._share = room.share
        self._groups = GROUPS if room.addresses is None else 2 * GROUPS
        self._used: Counter[int] = Counter()
        for site, count in room.sites.items():
            self._used[group_of(site)] += count
        for address, count in (room.addresses or {}).items():
            self._used[GROUPS + group_of(address)] += count

    def is_full(self, group: int) -> bool:
        return group < self._groups and self._used[group] >= self._share

    def count(self, site: int, address: int) -> None:
        self._used[site] += 1
        if address != site:
            self._used[address] += 1


class LocalFrontier:
    """Frontier of one process: in the SQLite file at `path`, or in memory if `path` is None.

    One process at a time may open a file; a second process gets FileInUse. `restart` discards the file's contents,
    except for the notes `kept`. A damaged file raises StoreError and is kept as it is: only `restart` replaces it.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        restart: bool = False,
        kept: Mapping[str, Any] | None = None,
        concurrency: Concurrency = 1,
        lease: float = LEASE,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._table = MemoryUrlTable() if path is None else SQLiteUrlTable(path, restart=restart, kept=kept)
        self._concurrency = concurrency
        self._lease = round(lease * SECOND)
        self._clock = clock
        # All leases last equally long, so insertion order is the order in which they expire.
        self._leases: dict[int, _Lease] = {}
        self._leased_rows: set[int] = set()
        """Ids in the table of the leased URLs."""
        self._schedule: HostSchedule | None = None
        """Schedule of the hosts; None if it must be rebuilt from the table."""
        self._granted: list[_Lease] = []
        self._ended: list[_Lease] = []
        """Leases that the current transaction granted and ended."""
        try:
            self._present()  # reports a damaged file at once
        except BaseException:
            self._table.close()
            raise

    async def add(self, found: Found) -> int:
        """Queue URLs; return how many were new."""
        added = 0
        for hosts in _by_host(found.urls):
            with self._transaction():
                added += self._add(hosts, found)
        return added

    def _add(self, hosts: dict[str, list[str]], found: Found) -> int:
        schedule, now = self._present()
        rank = rank_of(found.depth, found.priority, found.hops)
        added = 0
        for name, urls in hosts.items():
            host = self._table.number(name)
            new = self._table.put(host, urls, rank, found.parent)
            if new:
                if not schedule.knows(host):
                    schedule.assign(host, group_of(site_of(name)))
                schedule.arrive(host, new, self._limit(name), now)
            added += new
        return added

    async def pass_over(self, url: str, other: str) -> bool:
        """Skip a page unless `other` was skipped; return whether it was."""
        with self._transaction():
            host = self._table.find(host_of(other))
            if host is not None and self._table.has_seen(host, skip_mark(other)):
                return True
            self._table.mark(self._table.number(host_of(url)), skip_mark(url))
            return False

    async def claim(self, limit: int = 1, room: Room | None = None) -> list[Claimed]:
        """Claim URLs of due hosts, in turn by address, domain and host."""
        schedule, now = self._present()
        self._requeue_expired(schedule, now)
        schedule.reopen()
        used = None if room is None else _UsedSlots(room)
        is_full = None if used is None else used.is_full
        host = schedule.next(now, is_full) if limit > 0 else None
        if host is None:
            return []  # saves an empty transaction on disk
        claimed: list[Claimed] = []
        with self._transaction():
            while host is not None:
                claimed.append(self._grant(schedule, host, now))
                if used is not None:
                    used.count(*schedule.groups(host))
                host = schedule.next(now, is_full) if len(claimed) < limit else None
        return claimed

    def locate(self, host: str, address: str) -> None:
        """Record the address of a host."""
        schedule, _ = self._present()
        number = self._table.find(host)
        if number is not None and schedule.knows(number):
            schedule.locate(number, group_of(address))

    def _grant(self, schedule: HostSchedule, host: int, now: int) -> Claimed:
        row = self._table.take(host, self._leased_rows, schedule.out(host))
        limit = self._limit(row.host)
        schedule.leave(host, limit, now)
        until = now + self._lease
        depth, priority, hops = rank_parts(row.rank)
        claimed = Claimed(
            url=row.url,
            host=row.host,
            depth=depth,
            priority=priority,
            parent=row.parent,
            hops=hops,
            tries=row.tries,
            ticket=next(_tickets),
            leased_until=until / SECOND,
            host_pages=row.host_pages,
        )
        lease = _Lease(claimed, row, limit, until)
        self._leases[claimed.ticket] = lease
        self._leased_rows.add(row.id)
        self._granted.append(lease)
        return claimed

    def _requeue_expired(self, schedule: HostSchedule, now: int) -> None:
        """Queue the URLs of expired leases again."""
        while self._leases and (lease := next(iter(self._leases.values()))).until <= now:
            self._table.put_back(lease.row, is_answered=False)
            self._end(schedule, lease, now, is_queued=True)

    async def unreported(self, urls: Iterable[str]) -> list[str]:
        """Return the URLs that are not marked as reported, each once."""
        return self._table.unreported(urls)

    async def conclude(
        self, endings: Sequence[Ending], notes: Mapping[str, Any] | None = None, reported: Iterable[str] = ()
    ) -> list[bool]:
        """Add the URLs found, mark those reported, end the claims and store the notes in one transaction."""
        with self._transaction():
            self._table.mark_reported(reported)
            if notes:
                self._table.note(notes)
            return [self._conclude(ending) for ending in endings]

    def _conclude(self, ending: Ending) -> bool:
        for found in ending.found:
            for hosts in _by_host(found.urls):
                self._add(hosts, found)
        lease = self._leases.get(ending.claimed.ticket)
        if lease is None:
            return False
        match ending.end:
            case Done(after):
                self._table.finish(lease.row, is_page=ending.is_page, is_logged=ending.is_logged)
            case Failed(reason, after):
                self._table.fail(lease.row, reason)
            case Deferred(after, last):
                self._table.put_back(lease.row, is_answered=True, last=last)
        schedule, now = self._present()
        if after is not None:
            schedule.postpone(lease.row.number, now + microseconds(after), now)
        self._end(schedule, lease, now, is_queued=isinstance(ending.end, Deferred))
        return True

    def _end(self, schedule: HostSchedule, lease: _Lease, now: int, *, is_queued: bool) -> None:
        del self._leases[lease.claimed.ticket]
        self._leased_rows.remove(lease.row.id)
        schedule.come_back(lease.row.number, lease.limit, now, is_waiting=is_queued)
        self._ended.append(lease)

    async def renew(self, claimed: Claimed) -> Claimed | None:
        """Restart the lease; return None if the claim is invalid."""
        lease = self._leases.pop(claimed.ticket, None)
        if lease is None:
            return None
        lease.until = self._now() + self._lease
        lease.claimed = msgspec.structs.replace(lease.claimed, leased_until=lease.until / SECOND)
        self._leases[claimed.ticket] = lease  # to the end, because it expires last now
        return lease.claimed

    async def keep(self, claims: Sequence[Claimed]) -> list[bool]:
        """Return True for each claim: in one process, only `claim` takes back expired leases."""
        return [True] * len(claims)

    async def hasten(self, hosts: Collection[str]) -> None:
        """Make hosts due now that are due later, except for those with a leased URL."""
        schedule, now = self._present()
        for name in hosts:
            if (host := self._table.find(name)) is not None:
                schedule.hasten(host, now)

    async def due_in(self) -> float | None:
        """Return the seconds until `claim` may find a URL; None for never."""
        schedule, now = self._present()
        due_at = schedule.due_at(now)
        if self._leases:
            ends_at = next(iter(self._leases.values())).until
            due_at = ends_at if due_at is None else min(due_at, ends_at)
        return None if due_at is None else max(0, due_at - now) / SECOND

    async def counts(self) -> Counts:
        """Return the counts."""
        return self._table.totals.counts(leased=len(self._leases), hosts=self._table.hosts())

    async def busiest(self, limit: int) -> list[HostQueue]:
        """Return the hosts with the longest queues."""
        schedule, now = self._present()
        return [
            HostQueue(self._table.name(host), waiting, out, max(0, due_at - now) / SECOND)
            for host, waiting, out, due_at in schedule.busiest(limit)
        ]

    async def recent_counts(self) -> Counts:
        """Return the counts."""
        return await self.counts()

    @property
    def pages(self) -> int:
        """Return 0: the pages of this process are all there are."""
        return 0

    @property
    def workers(self) -> int:
        """Return 1."""
        return 1

    def outlook(self) -> None:
        """Return None."""

    @property
    def connections(self) -> int:
        """Return 0."""
        return 0

    async def failures(self, limit: int = MOST_FAILURES) -> list[tuple[str, str]]:
        """Return the first failed URLs with their reasons, in order."""
        return self._table.failures()[:limit]

    async def note(self, notes: Mapping[str, Any]) -> None:
        """Store plain values by name."""
        with self._transaction():
            self._table.note(notes)

    async def notes(self, worker: str = "") -> dict[str, Any]:
        """Return all stored notes."""
        return self._table.notes()

    def outlast(self, seconds: float, tell: Callable[[StoreError], None]) -> AbstractContextManager[None]:
        """Return a context that changes nothing: there is no server."""
        return contextlib.nullcontext()

    async def close(self) -> None:
        """Release all resources."""
        self._table.close()

    def _transaction(self) -> AbstractContextManager[None]:
        """Return a context manager for one transaction. If its block raises, a file takes all changes back."""
        self._granted.clear()
        self._ended.clear()
        self._present()  # a schedule is rebuilt from the state before the changes
        return self._table.transaction(undone=self._restore_leases)

    def _restore_leases(self) -> None:
        """Restore the leases from before the transaction, and drop the schedule so that it is rebuilt."""
        for lease in self._granted:
            del self._leases[lease.claimed.ticket]
        self._leases.update((lease.claimed.ticket, lease) for lease in self._ended)
        self._leases = dict(sorted(self._leases.items(), key=lambda item: item[1].until))
        self._leased_rows = {lease.row.id for lease in self._leases.values()}
        self._schedule = None

    def _present(self) -> tuple[HostSchedule, int]:
        """Return the schedule, rebuilt if necessary, and the current time."""
        now = self._now()
        if self._schedule is None:
            self._schedule = self._rebuilt(now)
        return self._schedule, now

    def _rebuilt(self, now: int) -> HostSchedule:
        """Return a new schedule of the hosts in the table."""
        schedule = HostSchedule()
        out = Counter(lease.row.number for lease in self._leases.values())
        limits = {lease.row.number: lease.limit for lease in self._leases.values()}
        for host, count, name in self._table.queues():
            schedule.assign(host, group_of(site_of(name)))
            schedule.resume(host, count - out[host], out[host], limits.get(host), now)
        return schedule

    def _now(self) -> int:
        return round(self._clock() * SECOND)

    def _limit(self, host: str) -> int | None:
        return self._concurrency(host) if callable(self._concurrency) else self._concurrency


def read_job(path: str | os.PathLike[str]) -> tuple[Counts, dict[str, Any]]:
    """Return the counts and notes of the frontier in a file. Raises FileInUse if a crawl uses it, or StoreError."""
    with contextlib.closing(SQLiteUrlTable(path, restart=False)) as table:
        return table.totals.counts(leased=0, hosts=table.hosts()), table.notes()


def requeue_in(
    path: str | os.PathLike[str],
    choice: Requeue,
    adapt: Callable[[Mapping[str, Any], Mapping[str, int]], Mapping[str, Any]],
) -> Counter[str]:
    """Queue finished URLs of the frontier in a file again; return their numbers, by reason of failure or `page`.

    `adapt` returns the notes that change with these numbers. Raises FileInUse if a crawl uses it, or StoreError.
    """
    with contextlib.closing(SQLiteUrlTable(path, restart=False)) as table:
        with table.transaction(undone=lambda: None):
            found = table.requeue(choice)
            table.note(adapt(table.notes(), found))
        return found


def _by_host(urls: Iterable[str]) -> Iterator[dict[str, list[str]]]:
    """Yield chunks of the URLs grouped by host, in order."""
    rest = iter(urls)
    while chunk := list(itertools.islice(rest, CHUNK)):
        hosts: dict[str, list[str]] = {}
        for url in chunk:
            hosts.setdefault(host_of(url), []).append(url)
        yield hosts


def microseconds(seconds: float) -> int:
    """Return a duration in microseconds, between 0 and ten years; NaN becomes 0."""
    return round(min(seconds, _LONGEST) * SECOND) if seconds > 0 else 0
