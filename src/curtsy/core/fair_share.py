"""Fair sharing of turns and slots, so that no registered domain or address starves another.

    FairQueue   order of turns: round robin over addresses, then registered domains, then first in, first out
    FairShares  slot counts: a registered domain or address gets at most a quarter while others want slots

A wildcard DNS record creates any number of hosts under one domain, and a wildcard host any number of domains at one
address. Shared by host alone, they would get nearly all turns and slots.
"""

from __future__ import annotations

from array import array
from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from itertools import islice
from typing import Generic, TypeVar

GROUPS = 1 << 16
"""Group numbers of each kind, from 1. Two sites with the same number share a turn, so memory is bounded."""

QUARTER = 4
"""Divisor of a group's share: one slot in four, and at least one, while others want slots."""

SPELL = 60.0
"""Seconds after its last slot during which a group still wants slots, because curtsy pauses between requests."""

Group = TypeVar("Group", int, str)
"""Number or name of a registered domain or an address."""

_MOST_SEEN = 4096
"""Maximum number of groups that `FairShares` remembers."""


def share_of(places: int) -> int:
    """Return how many slots a group may hold while others want slots."""
    return max(1, places // QUARTER)


class _Queues:
    """First-in, first-out queues of positive numbers, in arrays. A number is in at most one queue."""

    __slots__ = ("_after", "_before", "_first", "_last")

    def __init__(self, queues: int) -> None:
        self._first, self._last = array("I", bytes(4 * queues)), array("I", bytes(4 * queues))
        self._after, self._before = array("I", [0]), array("I", [0])

    def first(self, queue: int) -> int:
        """Return the first number of a queue; 0 if empty."""
        return self._first[queue]

    def last(self, queue: int) -> int:
        """Return the last number of a queue; 0 if empty."""
        return self._last[queue]

    def before(self, number: int) -> int:
        """Return the number before `number` in its queue; 0 if it is the first."""
        return self._before[number]

    def push(self, queue: int, number: int, *, front: bool = False) -> None:
        """Add a number at the end, or at the front."""
        missing = number + 1 - len(self._after)
        if missing > 0:
            self._after.extend([0] * missing)
            self._before.extend([0] * missing)
        before, after = (0, self._first[queue]) if front else (self._last[queue], 0)
        self._link(queue, before, number)
        self._link(queue, number, after)

    def remove(self, queue: int, number: int) -> None:
        """Remove a number from its queue."""
        self._link(queue, self._before[number], self._after[number])

    def _link(self, queue: int, before: int, after: int) -> None:
        """Link two numbers; 0 is the end on both sides."""
        if before:
            self._after[before] = after
        else:
            self._first[queue] = after
        if after:
            self._before[after] = before
        else:
            self._last[queue] = before


class FairQueue:
    """Fair queue of positive numbers: hosts, or waiting requests.

    Each number has a site, and each site may have an address. Addresses take turns; a site with an unknown address
    counts as its own address. The sites of an address take turns, and each site is first in, first out. No address gets
    two turns while another waits, and no site gets two while another site at its address waits.
    """

    def __init__(self) -> None:
        self._numbers = _Queues(GROUPS)
        """Queued numbers of each site."""
        self._sites = _Queues(2 * GROUPS)
        """Sites of each address that have queued numbers. An index below `GROUPS` is a site with an unknown address."""
        self._ring: deque[int] = deque()
        """Addresses in the order of their turns. Some may have no queued sites any more."""
        self._is_in_ring = bytearray(2 * GROUPS)
        self._address = array("I", range(GROUPS))
        """Address at which each site queues next."""
        self._queued_at = array("I", bytes(4 * GROUPS))
        """Address at which each site is queued; 0 if it is not."""
        self._site = array("H", [0])
        """Site of each number."""
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def locate(self, site: int, address: int) -> None:
        """Set the address of a site, from its next turn on."""
        self._address[site] = GROUPS + address

    def address(self, site: int) -> int:
        """Return the group of a site's address, as passed to `is_full`; the site itself if the address is unknown."""
        return self._address[site]

    def assign(self, number: int, site: int) -> None:
        """Set the site of a number that is not queued."""
        missing = number + 1 - len(self._site)
        if missing > 0:
            self._site.extend([0] * missing)
        self._site[number] = site

    def site(self, number: int) -> int:
        """Return the site of a number; 0 if it has none."""
        return self._site[number] if number < len(self._site) else 0

    def add(self, number: int, *, front: bool = False) -> None:
        """Queue a number. With `front`, it is the next of its site; a newly queued site is the next of its address."""
        site = self._site[number]
        self._count += 1
        self._numbers.push(site, number, front=front)
        if not self._queued_at[site]:
            self._join(site, front=front)

    def remove(self, number: int) -> None:
        """Remove a queued number."""
        site = self._site[number]
        self._numbers.remove(site, number)
        self._count -= 1
        if not self._numbers.first(site):
            self._sites.remove(self._queued_at[site], site)
            self._queued_at[site] = 0

    def ahead(self, number: int) -> int:
        """Return the minimum number of turns before that of a queued number."""
        site, before = self._site[number], 0
        while number != self._numbers.first(site):
            number = self._numbers.before(number)
            before += 1
        if before:
            return before
        home = self._queued_at[site]
        return sum(1 for address in islice(self._ring, self._ring.index(home)) if self._sites.first(address))

    def next(self, is_full: Callable[[int], bool] | None = None) -> int:
        """Remove and return the number whose turn it is; 0 if no number may go.

        Groups for which `is_full` returns true are skipped. Its argument is a site, or `GROUPS` + an address.
        """
        ring = self._ring
        for _ in range(len(ring)):
            address = ring.popleft()
            number = 0
            if is_full is None or not is_full(address):
                number = self._of(address, is_full)
            if self._sites.first(address):
                ring.append(address)
            else:
                self._is_in_ring[address] = False
            if number:
                self._count -= 1
                return number
        return 0

    def _of(self, address: int, is_full: Callable[[int], bool] | None) -> int:
        """Remove and return the number whose turn it is at an address; 0 if all its sites are full."""
        last = self._sites.last(address)
        while site := self._sites.first(address):
            self._sites.remove(address, site)
            self._queued_at[site] = 0
            number = 0
            if site == address or is_full is None or not is_full(site):
                number = self._numbers.first(site)
                self._numbers.remove(site, number)
            if self._numbers.first(site):
                self._join(site)
            if number or site == last:
                return number
        return 0

    def _join(self, site: int, *, front: bool = False) -> None:
        """Queue a site at its address, and the address in the ring."""
        address = self._queued_at[site] = self._address[site]
        self._sites.push(address, site, front=front)
        if not self._is_in_ring[address]:
            self._is_in_ring[address] = True
            if front:
                self._ring.appendleft(address)
            else:
                self._ring.append(address)


class FairShares(Generic[Group]):
    """Slots held by each group (registered domain or address), and whether a group has its full share.

    A group is full when it holds a quarter of the slots, and at least one, unless it is alone. It is alone if no other
    group holds a slot, waits for one or did so in the last `SPELL` seconds. All instants are seconds of one clock.
    """

    def __init__(self, places: int) -> None:
        self.share = share_of(places)
        self.held: Counter[Group] = Counter()
        self._total = 0
        self._seen: OrderedDict[Group, float] = OrderedDict()
        """Instant at which each group last wanted or held a slot, the latest last."""

    def want(self, group: Group, now: float) -> None:
        """Record that a group wants a slot."""
        self._seen[group] = now
        self._seen.move_to_end(group)
        if len(self._seen) > _MOST_SEEN:
            self._seen.popitem(last=False)

    def take(self, group: Group, now: float) -> None:
        """Count a slot that is held from now on."""
        self.held[group] += 1
        self._total += 1
        self.want(group, now)

    def give_back(self, group: Group, now: float) -> None:
        """Count a slot that is released now."""
        self.held[group] -= 1
        self._total -= 1
        if not self.held[group]:
            del self.held[group]
        self.want(group, now)

    def counted(self, group: Group) -> int:
        """Return how many slots of a group count against its share: here, all."""
        return self.held[group]

    def is_full(self, group: Group, now: float) -> bool:
        """Return whether a group may take no more slots now."""
        return self.counted(group) >= self.share and not self.is_alone(group, now)

    def is_alone(self, group: Group, now: float) -> bool:
        """Return whether no other group wants slots."""
        if self._total > self.held[group]:
            return False
        for each, seen_at in reversed(self._seen.items()):
            if each != group:
                return seen_at <= now - SPELL
        return True


class AddressShares(FairShares[Group]):
    """Shares of addresses. An address whose slots all belong to one registered domain has one slot more.

    A domain that never answers therefore cannot take the whole share of an address from other domains there. The domain
    itself gains no slot, because its own share limits it.
    """

    def __init__(self, places: int) -> None:
        super().__init__(places)
        self._sites: dict[Group, Counter[Group]] = {}
        """Slots that each registered domain holds at each address."""

    def take_for(self, site: Group, group: Group, now: float) -> None:
        """Count a slot that a registered domain holds at an address from now on."""
        self._sites.setdefault(group, Counter())[site] += 1
        self.take(group, now)

    def give_back_for(self, site: Group, group: Group, now: float) -> None:
        """Count a slot that a registered domain releases at an address now."""
        sites = self._sites[group]
        sites[site] -= 1
        if not sites[site]:
            del sites[site]
        if not sites:
            del self._sites[group]
        self.give_back(group, now)

    def counted(self, group: Group) -> int:
        """Return how many slots of an address count against its share."""
        return self.held[group] - (len(self._sites.get(group, ())) == 1)

    def all_counted(self) -> dict[Group, int]:
        """Return the counted slots of all addresses that hold some."""
        return {group: self.counted(group) for group in self.held}
