"""Agenda: which host comes next, and when.

Hosts that are due stand in one line, first come, first served; those that are due later lie in a heap by their moment.
So the next host is found in O(log n), however many there are, and none of them holds up another. Only a host that has
far more to do than the others goes to the head of the line when its moment has come, once for each of its pauses: the
crawl ends when it does. A host is known here by its number, and costs about 60 bytes.
"""

from __future__ import annotations

from array import array
from collections import deque
from heapq import heapify, heappop, heappush, nlargest

_IDLE, _READY, _LATER = range(3)
_HOST_BITS = 32
_HOST = (1 << _HOST_BITS) - 1
_EVER = -(1 << 62)
"""Before any instant: a host of which nothing is known is due."""

LONG = 4
"""How many times the average a host's queue is that goes first."""

_SLACK = 1024
"""Outdated moments that the heap may hold besides twice as many as there are hosts."""


class Agenda:
    """The hosts that have something waiting. All instants are whole microseconds of one clock."""

    def __init__(self) -> None:
        self._waiting = array("I")
        self._out = array("I")
        self._due_at = array("q")
        self._place = bytearray()
        self._all_waiting = 0
        self._ready: deque[int] = deque()
        # A moment and a host in one number: less than half of what a tuple takes, and quicker to compare.
        self._later: list[int] = []

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

    def next(self, now: int) -> int | None:
        """The host whose turn it is; None if none is due. It must be told what came of it: `leave` comes next."""
        self._admit(now)
        while self._ready:
            host = self._ready.popleft()
            self._place[host] = _IDLE
            if not self._waiting[host]:
                continue
            if self._due_at[host] <= now:
                return host
            self._put_later(host)
        return None

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

    def postpone(self, host: int, due_at: int) -> None:
        """A host is due at that moment, be it sooner or later than it was."""
        self._make_room(host)
        self._due_at[host] = due_at
        if self._place[host] == _LATER:
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
        """When the next host is due; now or earlier if one is, None if nothing waits that may go out."""
        self._admit(now)
        while self._ready:
            host = self._ready[0]
            if self._waiting[host] and self._due_at[host] <= now:
                return now
            self._ready.popleft()
            self._place[host] = _IDLE
            if self._waiting[host]:
                self._put_later(host)
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
            self._place[host] = _READY
            self._ready.append(host)
        else:
            self._put_later(host)

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
                self._place[host] = _READY
                if self._waiting[host] * len(self._place) > LONG * self._all_waiting:
                    self._ready.appendleft(host)
                else:
                    self._ready.append(host)

    def _is_valid(self, key: int) -> bool:
        host = key & _HOST
        return self._place[host] == _LATER and self._due_at[host] == key >> _HOST_BITS
