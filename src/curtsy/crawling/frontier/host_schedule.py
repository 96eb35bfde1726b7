"""Host schedule: which host of a crawl comes next, and when.

Hosts that are due take turns by address, then by registered domain, then first come, first served
(core/fair_share.py). Hosts that are due later wait in a heap, so the next host is found in O(log n), and no registered
domain delays another, however many hosts it has. A host with far more URLs than the others goes to the front when it is
due, once for each of its pauses and if its registered domain has no other host in the queue: the crawl ends when that
host does. A host is known by its number, and costs about 70 bytes.
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
"""Before any instant: a host of which nothing is known is due."""

LONG = 4
"""How many times the average a host's queue is that goes first."""

_SLACK = 1024
"""Outdated moments that the heap may hold besides twice as many as there are hosts."""


class HostSchedule:
    """The hosts that have something waiting. All instants are whole microseconds of one clock."""

    def __init__(self) -> None:
        self._waiting = array("I")
        self._out = array("I")
        self._due_at = array("q")
        self._place = bytearray()
        self._all_waiting = 0
        self._ready = FairQueue()
        self._is_shut = False
        """Whether all that is due was full when the last host was to be found."""
        # A moment and a host in one number: less than half of what a tuple takes, and quicker to compare.
        self._later: list[int] = []

    def knows(self, host: int) -> bool:
        """Whether the registered domain of a host was told."""
        return self._ready.site(host) > 0

    def assign(self, host: int, site: int) -> None:
        """Note the registered domain of a host, as a group of `FairQueue`. It must be told before anything arrives."""
        self._ready.assign(host, site)

    def locate(self, host: int, address: int) -> None:
        """Note the address at which the registered domain of a host is reached, as a group of `FairQueue`."""
        self._ready.locate(self._ready.site(host), address)

    def groups(self, host: int) -> tuple[int, int]:
        """The groups of a host, as `is_full` is asked for them: its site, and its address or the same again."""
        site = self._ready.site(host)
        return site, self._ready.address(site)

    def arrive(self, host: int, count: int, limit: int | None, now: int) -> None:
        """So many more URLs of a host wait. `limit` is how many of a host may be out at once; None for any number."""
        self._make_room(host)
        self._waiting[host] += count
        self._all_waiting += count
        self._put(host, limit, now)

    def resume(self, host: int, waiting: int, out: int, limit: int | None, now: int) -> None:
        """A host as it was before: so many URLs wait, so many more are out."""
        self._make_room(host)
        self._out[host] = out
        self.arrive(host, waiting, limit, now)

    def next(self, now: int, is_full: Callable[[int], bool] | None = None) -> int | None:
        """The host whose turn it is; None if none is due. It must be told what came of it: `leave` comes next.

        Groups of which `is_full` is true are passed over, as by `FairQueue.next`.
        """
        self._admit(now)
        host = self._ready.next(is_full)
        self._is_shut = not host
        if not host:
            return None
        self._place[host] = _IDLE
        return host

    def reopen(self) -> None:
        """Note that groups that were full may not be full any more."""
        self._is_shut = False

    def leave(self, host: int, limit: int | None, now: int) -> None:
        """One URL of a host goes out; if more may, the host stands at the end of the line again."""
        self._waiting[host] -= 1
        self._all_waiting -= 1
        self._out[host] += 1
        self._put(host, limit, now)

    def come_back(self, host: int, limit: int | None, now: int, *, is_waiting: bool) -> None:
        """One URL of a host is not out any more; it waits again, or it is over and done with."""
        self._out[host] -= 1
        self._waiting[host] += is_waiting
        self._all_waiting += is_waiting
        self._put(host, limit, now)

    def postpone(self, host: int, due_at: int, now: int) -> None:
        """A host is due at that moment, be it sooner or later than it was."""
        self._make_room(host)
        self._due_at[host] = due_at
        if self._place[host] == _READY and due_at > now:
            self._ready.remove(host)
            self._put_later(host)
        elif self._place[host] == _LATER:
            self._put_later(host)  # what the heap has of it is outdated now, and found to be when it comes up

    def out(self, host: int) -> int:
        """How many URLs of a host are out."""
        return self._out[host]

    def busiest(self, limit: int) -> list[tuple[int, int, int, int]]:
        """The hosts with the most URLs waiting: each with how many wait, how many are out, and when it is due."""
        waiting, out, due_at = self._waiting, self._out, self._due_at
        hosts = nlargest(limit, range(len(waiting)), key=waiting.__getitem__)
        return [(host, waiting[host], out[host], due_at[host]) for host in hosts if waiting[host]]

    def due_at(self, now: int) -> int | None:
        """When the next host is due; now or earlier if one is, None if nothing waits that may go out.

        Hosts that were all passed over as full when the last one was to be found do not count until `reopen`, or until
        another is due.
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
        """Give a host its place in line or heap, if it has none and may have one."""
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
        """Let those whose moment has come stand in line."""
        while self._later and self._later[0] >> _HOST_BITS <= now:
            key = heappop(self._later)
            if self._is_valid(key):
                host = key & _HOST
                is_long = self._waiting[host] * len(self._place) > LONG * self._all_waiting
                self._put_ready(host, front=is_long)

    def _is_valid(self, key: int) -> bool:
        host = key & _HOST
        return self._place[host] == _LATER and self._due_at[host] == key >> _HOST_BITS
