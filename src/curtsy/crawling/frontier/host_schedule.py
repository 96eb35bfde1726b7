"""Host schedule: the order in which a crawl serves its hosts.

Due hosts take turns by address, then by registered domain, then first come, first served (core/fair_share.py). Hosts
due later wait in a heap. So the next host is found in O(log n), and no registered domain delays another, however many
hosts it has. A host with far more URLs than the others goes to the front when it becomes due, because the crawl ends
when that host does. It does so once per pause, and only if its registered domain has no other host queued. A host is
identified by a number and costs about 70 bytes.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from heapq import heapify, heappop, heappush, nlargest

from curtsy.core.fair_share import FairQueue

_IDLE, _READY, _LATER = range(3)
_HOST_BITS = 32
_HOST = (1 << _HOST_BITS) - 1
_EVER = -(1 << 62)
"""Instant before all others: a new host is due at once."""

LONG = 4
"""Multiple of the average queue length above which a host goes to the front."""

_SLACK = 1024
"""Outdated heap entries that are kept besides twice the number of hosts."""


class HostSchedule:
    """Schedule of the hosts with queued URLs. All instants are microseconds of one clock."""

    def __init__(self) -> None:
        self._waiting = array("I")
        self._out = array("I")
        self._due_at = array("q")
        self._place = bytearray()
        self._all_waiting = 0
        self._ready = FairQueue()
        self._is_shut = False
        """True if every due host was in a full group at the last call of `next`."""
        # Heap of an instant and a host in one integer: less than half the size of a tuple, and faster to compare.
        self._later: list[int] = []

    def knows(self, host: int) -> bool:
        """Return whether the registered domain of a host is known."""
        return self._ready.site(host) > 0

    def assign(self, host: int, site: int) -> None:
        """Set the registered domain of a host, as a group of `FairQueue`.

        Call it before the first `arrive`.
        """
        self._ready.assign(host, site)

    def locate(self, host: int, address: int) -> None:
        """Set the address of a host's registered domain, as a group of `FairQueue`."""
        self._ready.locate(self._ready.site(host), address)

    def groups(self, host: int) -> tuple[int, int]:
        """Return the groups of a host that `is_full` checks: its site and its address.

        If the address is unknown, the second is the site again.
        """
        site = self._ready.site(host)
        return site, self._ready.address(site)

    def arrive(self, host: int, count: int, limit: int | None, now: int) -> None:
        """Add `count` queued URLs to a host.

        `limit` is the most leased URLs of a host; None means no limit.
        """
        self._make_room(host)
        self._waiting[host] += count
        self._all_waiting += count
        self._put(host, limit, now)

    def resume(self, host: int, waiting: int, out: int, limit: int | None, now: int) -> None:
        """Restore a host with so many queued and leased URLs."""
        self._make_room(host)
        self._out[host] = out
        self.arrive(host, waiting, limit, now)

    def next(self, now: int, is_full: Callable[[int], bool] | None = None) -> int | None:
        """Take out the host whose turn it is; None if no host is available. Call `leave` next.

        Groups for which `is_full` is true are skipped, as by `FairQueue.next`.
        """
        self._admit(now)
        host = self._ready.next(is_full)
        self._is_shut = not host
        if not host:
            return None
        self._place[host] = _IDLE
        return host

    def reopen(self) -> None:
        """Consider groups again that were full."""
        self._is_shut = False

    def leave(self, host: int, limit: int | None, now: int) -> None:
        """Lease one URL of a host, and queue the host again if more may be leased."""
        self._waiting[host] -= 1
        self._all_waiting -= 1
        self._out[host] += 1
        self._put(host, limit, now)

    def come_back(self, host: int, limit: int | None, now: int, *, is_waiting: bool) -> None:
        """End one lease of a host; with `is_waiting`, its URL is queued again."""
        self._out[host] -= 1
        self._waiting[host] += is_waiting
        self._all_waiting += is_waiting
        self._put(host, limit, now)

    def postpone(self, host: int, due_at: int, now: int) -> None:
        """Set when a host is due, sooner or later than before."""
        self._make_room(host)
        self._due_at[host] = due_at
        if self._place[host] == _READY and due_at > now:
            self._ready.remove(host)
            self._put_later(host)
        elif self._place[host] == _LATER:
            self._put_later(host)  # the old heap entry is skipped when it comes up

    def hasten(self, host: int, now: int) -> None:
        """Make a host due now that is due later, unless it has a leased URL."""
        if host < len(self._place) and not self._out[host] and self._due_at[host] > now:
            self.postpone(host, now, now)

    def out(self, host: int) -> int:
        """Return the number of leased URLs of a host."""
        return self._out[host]

    def busiest(self, limit: int) -> list[tuple[int, int, int, int]]:
        """Return the hosts with the longest queues: number, queued, leased and due instant."""
        waiting, out, due_at = self._waiting, self._out, self._due_at
        hosts = nlargest(limit, range(len(waiting)), key=waiting.__getitem__)
        return [(host, waiting[host], out[host], due_at[host]) for host in hosts if waiting[host]]

    def due_at(self, now: int) -> int | None:
        """Return when the next host is due, at most `now` if one is; None if no URL may be leased.

        If all due hosts were skipped as full by the last `next`, they do not count until `reopen` or until another is
        due.
        """
        self._admit(now)
        if len(self._ready) and not self._is_shut:
            return now
        while self._later and not self._is_valid(self._later[0]):
            heappop(self._later)
        return self._later[0] >> _HOST_BITS if self._later else None

    def _make_room(self, host: int) -> None:
        missing = host + 1 - len(self._place)
        if missing > 0:
            self._waiting.extend([0] * missing)
            self._out.extend([0] * missing)
            self._due_at.extend([_EVER] * missing)
            self._place.extend(bytes(missing))

    def _put(self, host: int, limit: int | None, now: int) -> None:
        """Put a host into the queue or the heap, if it is in neither and may be served."""
        if self._place[host] != _IDLE or not self._waiting[host] or (limit is not None and self._out[host] >= limit):
            return
        if self._due_at[host] <= now:
            self._put_ready(host)
        else:
            self._put_later(host)

    def _put_ready(self, host: int, *, front: bool = False) -> None:
        self._place[host] = _READY
        self._ready.add(host, front=front)
        self._is_shut = False

    def _put_later(self, host: int) -> None:
        self._place[host] = _LATER
        heappush(self._later, self._due_at[host] << _HOST_BITS | host)
        if len(self._later) > 2 * len(self._place) + _SLACK:
            self._later = [key for key in set(self._later) if self._is_valid(key)]
            heapify(self._later)

    def _admit(self, now: int) -> None:
        """Move hosts that are due now from the heap to the queue."""
        while self._later and self._later[0] >> _HOST_BITS <= now:
            key = heappop(self._later)
            if self._is_valid(key):
                host = key & _HOST
                is_long = self._waiting[host] * len(self._place) > LONG * self._all_waiting
                self._put_ready(host, front=is_long)

    def _is_valid(self, key: int) -> bool:
        host = key & _HOST
        return self._place[host] == _LATER and self._due_at[host] == key >> _HOST_BITS
