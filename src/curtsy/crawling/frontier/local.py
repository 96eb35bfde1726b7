"""Frontiers of one process: a host schedule, which picks the next host, over a table of URLs.

Leases are kept in this process's memory only: when it ends, no URL is leased.
"""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any

import msgspec

from curtsy.core.fair_share import GROUPS
from curtsy.core.message import SECOND
from curtsy.crawling.frontier.host_schedule import HostSchedule
from curtsy.crawling.frontier.protocol import (
    LEASE,
    Claimed,
    Concurrency,
    Counts,
    HostQueue,
    Room,
    host_of,
)
from curtsy.crawling.frontier.url_table import (
    LentUrl,
    MemoryUrlTable,
    UrlTable,
    depth_of,
    hops_of,
    left_out,
    priority_of,
    rank_of,
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
    lent: LentUrl
    host: int
    until: int


class _Taken:
    """Slots in use by each group during a claim, by the group's number in the schedule."""

    def __init__(self, room: Room) -> None:
        self._share = room.share
        self._groups = GROUPS if room.addresses is None else 2 * GROUPS
        self._held: Counter[int] = Counter()
        for site, count in room.sites.items():
            self._held[group_of(site)] += count
        for address, count in (room.addresses or {}).items():
            self._held[GROUPS + group_of(address)] += count

    def is_full(self, group: int) -> bool:
        return group < self._groups and self._held[group] >= self._share

    def count(self, site: int, address: int) -> None:
        self._held[site] += 1
        if address != site:
            self._held[address] += 1


class _Block:
    """Context manager of `together`; of nested blocks, the outermost is the transaction.

    It is a class because a generator would be slower, and every page enters several blocks.
    """

    __slots__ = ("_frontier", "depth")

    def __init__(self, frontier: LocalFrontier) -> None:
        self._frontier = frontier
        self.depth = 0

    def __enter__(self) -> None:
        if not self.depth:
            self._frontier.begin_block()
        self.depth += 1

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.depth -= 1
        if not self.depth:
            self._frontier.end_block(is_whole=kind is None)


class LocalFrontier:
    """Frontier of one process: a host schedule over a table of URLs."""

    def __init__(
        self,
        url_table: UrlTable,
        *,
        concurrency: Concurrency = 1,
        lease: float = LEASE,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._url_table = url_table
        self._concurrency = concurrency
        self._lease = round(lease * SECOND)
        self._clock = clock
        # All leases last equally long, so insertion order is the order in which they expire.
        self._leases: dict[int, _Lease] = {}
        self._out: set[int] = set()
        """Ids in the table of the leased URLs."""
        self._schedule: HostSchedule | None = None
        """Schedule of the hosts; None if it must be rebuilt from the table."""
        self._block = _Block(self)
        self._granted: list[_Lease] = []
        self._ended: list[_Lease] = []
        """Leases that the current block granted and ended."""

    def add(
        self, urls: Iterable[str], *, depth: int = 0, priority: int = 0, parent: str | None = None, hops: int = 0
    ) -> int:
        """Queue URLs; return how many were new."""
        rank = rank_of(depth, priority, hops)
        added = 0
        for hosts in _by_host(urls):
            with self.together():
                schedule, now = self._present()
                for name, group in hosts.items():
                    host = self._url_table.number(name)
                    new = self._url_table.put(host, group, rank, parent)
                    if new:
                        if not schedule.knows(host):
                            schedule.assign(host, group_of(site_of(name)))
                        schedule.arrive(host, new, self._limit(name), now)
                    added += new
        return added

    def mark_seen(self, urls: Iterable[str]) -> int:
        """Mark URLs as added; return how many were new."""
        new = 0
        for hosts in _by_host(urls):
            with self.together():
                new += sum(self._url_table.mark(self._url_table.number(name), group) for name, group in hosts.items())
        return new

    def pass_over(self, url: str, other: str) -> bool:
        """Skip a page unless `other` was skipped; return whether it was."""
        host = self._url_table.find(host_of(other))
        if host is not None and self._url_table.has_seen(host, left_out(other)):
            return True
        self.mark_seen([left_out(url)])
        return False

    def claim(self, limit: int = 1, room: Room | None = None) -> list[Claimed]:
        """Claim URLs of due hosts, in turn by address, domain and host."""
        schedule, now = self._present()
        self._reclaim(schedule, now)
        schedule.reopen()
        due_at = schedule.due_at(now)
        if due_at is None or due_at > now:
            return []  # saves an empty transaction on disk
        claimed: list[Claimed] = []
        taken = None if room is None else _Taken(room)
        is_full = None if taken is None else taken.is_full
        with self.together():
            while len(claimed) < limit and (host := schedule.next(now, is_full)) is not None:
                claimed.append(self._grant(schedule, host, now))
                if taken is not None:
                    taken.count(*schedule.groups(host))
        return claimed

    def locate(self, host: str, address: str) -> None:
        """Record the address of a host."""
        schedule, _ = self._present()
        number = self._url_table.find(host)
        if number is not None and schedule.knows(number):
            schedule.locate(number, group_of(address))

    def _grant(self, schedule: HostSchedule, host: int, now: int) -> Claimed:
        lent = self._url_table.lend(host, self._out, schedule.out(host))
        schedule.leave(host, self._limit(lent.host), now)
        until = now + self._lease
        claimed = Claimed(
            url=lent.url,
            host=lent.host,
            depth=depth_of(lent.rank),
            priority=priority_of(lent.rank),
            parent=lent.parent,
            hops=hops_of(lent.rank),
            tries=lent.tries,
            ticket=next(_tickets),
            leased_until=until / SECOND,
            host_pages=lent.host_pages,
        )
        lease = _Lease(claimed, lent, host, until)
        self._leases[claimed.ticket] = lease
        self._out.add(lent.id)
        self._granted.append(lease)
        return claimed

    def _reclaim(self, schedule: HostSchedule, now: int) -> None:
        """Queue the URLs of expired leases again."""
        while self._leases and (lease := next(iter(self._leases.values()))).until <= now:
            self._url_table.take_back(lease.lent, heard=False)
            self._end(schedule, lease, now, is_waiting=True)

    def done(
        self,
        claimed: Claimed,
        *,
        after: float | None = None,
        notes: Mapping[str, Any] | None = None,
        is_page: bool = False,
    ) -> bool:
        """End a claim for good; return False if it is invalid."""
        return self._finish(claimed, None, after, notes, is_page)

    def fail(
        self, claimed: Claimed, reason: str, *, after: float | None = None, notes: Mapping[str, Any] | None = None
    ) -> bool:
        """End a claim for good and store the reason; return False if it is invalid."""
        return self._finish(claimed, reason, after, notes, False)

    def _finish(
        self, claimed: Claimed, reason: str | None, after: float | None, notes: Mapping[str, Any] | None, is_page: bool
    ) -> bool:
        with self.together():
            if notes:
                self._url_table.note(notes)
            lease = self._leases.get(claimed.ticket)
            if lease is None:
                return False
            if reason is None:
                self._url_table.finish(lease.lent, is_page=is_page)
            else:
                self._url_table.fail(lease.lent, reason)
            self._conclude(lease, after, is_waiting=False)
            return True

    def defer(self, claimed: Claimed, seconds: float, *, last: bool = False) -> bool:
        """Queue a URL again; its host is due in `seconds`."""
        with self.together():
            lease = self._leases.get(claimed.ticket)
            if lease is None:
                return False
            self._url_table.take_back(lease.lent, heard=True, last=last)
            self._conclude(lease, seconds, is_waiting=True)
            return True

    def _conclude(self, lease: _Lease, after: float | None, *, is_waiting: bool) -> None:
        schedule, now = self._present()
        if after is not None:
            schedule.postpone(lease.host, now + microseconds(after), now)
        self._end(schedule, lease, now, is_waiting=is_waiting)

    def _end(self, schedule: HostSchedule, lease: _Lease, now: int, *, is_waiting: bool) -> None:
        del self._leases[lease.claimed.ticket]
        self._out.remove(lease.lent.id)
        schedule.come_back(lease.host, self._limit(lease.claimed.host), now, is_waiting=is_waiting)
        if self._block.depth:
            self._ended.append(lease)

    def renew(self, claimed: Claimed) -> Claimed | None:
        """Restart the lease; return None if the claim is invalid."""
        lease = self._leases.pop(claimed.ticket, None)
        if lease is None:
            return None
        lease.until = self._now() + self._lease
        lease.claimed = msgspec.structs.replace(lease.claimed, leased_until=lease.until / SECOND)
        self._leases[claimed.ticket] = lease  # to the end, because it expires last now
        return lease.claimed

    def host_due(self, host: str, seconds: float) -> None:
        """Make a known host due in `seconds`."""
        schedule, now = self._present()
        number = self._url_table.find(host)
        if number is not None:
            schedule.postpone(number, now + microseconds(seconds), now)

    def due_in(self) -> float | None:
        """Return the seconds until `claim` may find a URL; None for never."""
        schedule, now = self._present()
        due_at = schedule.due_at(now)
        if self._leases:
            ends_at = next(iter(self._leases.values())).until
            due_at = ends_at if due_at is None else min(due_at, ends_at)
        return None if due_at is None else max(0, due_at - now) / SECOND

    def counts(self) -> Counts:
        """Return the counts; any thread may call it."""
        totals, leased = self._url_table.totals, len(self._leases)
        queued = max(0, totals.added - totals.done - totals.failed - leased)  # another thread may be updating them
        return Counts(queued, leased, totals.done, totals.failed, self._url_table.hosts())

    def busiest(self, limit: int) -> list[HostQueue]:
        """Return the hosts with the longest queues."""
        schedule, now = self._present()
        return [
            HostQueue(self._url_table.name(host), waiting, out, max(0, due_at - now) / SECOND)
            for host, waiting, out, due_at in schedule.busiest(limit)
        ]

    def failures(self) -> Iterator[tuple[str, str]]:
        """Return the failed URLs with their reasons."""
        return self._url_table.failures()

    def note(self, notes: Mapping[str, Any]) -> None:
        """Store plain values by name."""
        with self.together():
            self._url_table.note(notes)

    def notes(self) -> dict[str, Any]:
        """Return all stored notes."""
        return self._url_table.notes()

    def together(self) -> AbstractContextManager[None]:
        """Return a context manager for a transaction."""
        return self._block

    def begin_block(self) -> None:
        """Begin the transaction of a block; called by `_Block` only."""
        self._present()
        try:
            self._url_table.begin()
        except BaseException:
            self.end_block(is_whole=False)
            raise

    def end_block(self, *, is_whole: bool) -> None:
        """Commit the transaction of a block, or roll it back unless `is_whole`; called by `_Block` only."""
        try:
            if is_whole:
                self._url_table.commit()
        except BaseException:
            is_whole = False
            raise
        finally:
            if not is_whole and self._url_table.roll_back():
                self._take_back_block()
            self._granted.clear()
            self._ended.clear()

    def _take_back_block(self) -> None:
        """Restore the leases from before the block, and drop the schedule so that it is rebuilt."""
        for lease in self._granted:
            self._leases.pop(lease.claimed.ticket, None)
        granted = {lease.claimed.ticket for lease in self._granted}
        for lease in self._ended:
            if lease.claimed.ticket not in granted:
                self._leases[lease.claimed.ticket] = lease
        self._leases = dict(sorted(self._leases.items(), key=lambda item: item[1].until))
        self._out = {lease.lent.id for lease in self._leases.values()}
        self._schedule = None

    def close(self) -> None:
        """Release all resources."""
        self._url_table.close()

    def _present(self) -> tuple[HostSchedule, int]:
        """Return the schedule, rebuilt if necessary, and the current time."""
        now = self._now()
        if self._schedule is None:
            self._schedule = self._resumed(now)
        return self._schedule, now

    def _resumed(self, now: int) -> HostSchedule:
        """Return a new schedule of the hosts in the table."""
        schedule = HostSchedule()
        out = Counter(lease.host for lease in self._leases.values())
        limits = {lease.host: self._limit(lease.claimed.host) for lease in self._leases.values()}
        for host, count, name in self._url_table.waiting():
            schedule.assign(host, group_of(site_of(name)))
            schedule.resume(host, count - out[host], out[host], limits.get(host), now)
        return schedule

    def _now(self) -> int:
        return round(self._clock() * SECOND)

    def _limit(self, host: str) -> int | None:
        return self._concurrency(host) if callable(self._concurrency) else self._concurrency


class MemoryFrontier(LocalFrontier):
    """Frontier in memory, for small crawls and tests."""

    def __init__(
        self,
        *,
        concurrency: Concurrency = 1,
        lease: float = LEASE,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(MemoryUrlTable(), concurrency=concurrency, lease=lease, clock=clock)


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
