"""Turns and places: how hosts share what is limited, so that no registered domain and no address starves another.

    Turns     says who is next: round robin over addresses, then registered domains, then first in, first out
    Shares    counts places: a registered domain or an address has a quarter of them at most while others want some

A wildcard DNS record makes any number of hosts under one domain, and a wildcard host any number of domains at one
address. Counted by host alone, they would have nearly all turns and all places.
"""

from __future__ import annotations

from array import array
from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from itertools import islice
from typing import Generic, TypeVar

GROUPS = 1 << 16
"""Group numbers of each kind, from 1. Two sites that have the same number share a turn; so memory is bounded."""

QUARTER = 4
"""A group has one place in so many, and at least one, while others want some."""

SPELL = 60.0
"""Seconds after its last place for which a group counts as one that wants some: a polite host pauses in between."""

Group = TypeVar("Group", int, str)
"""The number or the name of a registered domain or an address."""

_MOST_SEEN = 4096
"""Groups that `FairShares` remembers."""


def share_of(places: int) -> int:
    """How many places one group may have while others want some."""
    return max(1, places // QUARTER)


class _Queues:
    """First-in, first-out queues of numbers above 0, in arrays. A number is in one queue at most."""

    __slots__ = ("_after", "_before", "_first", "_last")

    def __init__(self, queues: int) -> None:
        self._first, self._last = array("I", bytes(4 * queues)), array("I", bytes(4 * queues))
        self._after, self._before = array("I", [0]), array("I", [0])

    def first(self, queue: int) -> int:
        """The first of a queue; 0 if it is empty."""
        return self._first[queue]

    def last(self, queue: int) -> int:
        """The last of a queue; 0 if it is empty."""
        return self._last[queue]

    def before(self, number: int) -> int:
        """The one before a number in its queue; 0 if it is the first."""
        return self._before[number]

    def push(self, queue: int, number: int, *, front: bool = False) -> None:
        """Add a number at the end, or in front."""
        missing = number + 1 - len(self._after)
        if missing > 0:
            self._after.extend([0] * missing)
            self._before.extend([0] * missing)
        before, after = (0, self._first[queue]) if front else (self._last[queue], 0)
        self._link(queue, before, number)
        self._link(queue, number, after)

    def remove(self, queue: int, number: int) -> None:
        """Take a number out of its queue."""
        self._link(queue, self._before[number], self._after[number])

    def _link(self, queue: int, before: int, after: int) -> None:
        """Let one number follow another; 0 is the end on both sides."""
        if before:
            self._after[before] = after
        else:
            self._first[queue] = after
        if after:
            self._before[after] = before
        else:
            self._last[queue] = before


class FairQueue:
    """Who is next, among numbers above 0: hosts, or requests that wait.

    Each number has a site, and each site may have an address. Addresses take turns; a site whose address is unknown
    counts as an address of its own. At one address its sites take turns, and in a site the first in is the first out.
    So no address has two turns while another waits for one, and no site while another site at its address does.
    """

    def __init__(self) -> None:
        self._numbers = _Queues(GROUPS)
        """The numbers of each site."""
        self._sites = _Queues(2 * GROUPS)
        """The sites of each address that have numbers; below `GROUPS`, a site stands for its unknown address."""
        self._ring: deque[int] = deque()
        """The addresses in the order of their turns. Some may have lost all their sites since."""
        self._is_in_ring = bytearray(2 * GROUPS)
        self._address = array("I", range(GROUPS))
        """Where a site queues next."""
        self._queued_at = array("I", bytes(4 * GROUPS))
        """Where a site is queued; 0 if it is not."""
        self._site = array("H", [0])
        """The site of each number."""
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def locate(self, site: int, address: int) -> None:
        """Note the address of a site. It counts from the site's next turn on."""
        self._address[site] = GROUPS + address

    def address(self, site: int) -> int:
        """The group of a site's address, as `is_full` is asked for it; the site itself if the address is unknown."""
        return self._address[site]

    def assign(self, number: int, site: int) -> None:
        """Note the site of a number that is not queued."""
        missing = number + 1 - len(self._site)
        if missing > 0:
            self._site.extend([0] * missing)
        self._site[number] = site

    def site(self, number: int) -> int:
        """The site of a number; 0 if it has none."""
        return self._site[number] if number < len(self._site) else 0

    def add(self, number: int, *, front: bool = False) -> None:
        """Queue a number. With `front`, it is the next of its site, and its site is next if it had none queued."""
        site = self._site[number]
        self._count += 1
        self._numbers.push(site, number, front=front)
        if not self._queued_at[site]:
            self._join(site, front=front)

    def remove(self, number: int) -> None:
        """Take out a number that is queued."""
        site = self._site[number]
        self._numbers.remove(site, number)
        self._count -= 1
        if not self._numbers.first(site):
            self._sites.remove(self._queued_at[site], site)
            self._queued_at[site] = 0

    def ahead(self, number: int) -> int:
        """How many have their turn before a number that is queued, at the least."""
        site, before = self._site[number], 0
        while number != self._numbers.first(site):
            number = self._numbers.before(number)
            before += 1
        if before:
            return before
        home = self._queued_at[site]
        return sum(1 for address in islice(self._ring, self._ring.index(home)) if self._sites.first(address))

    def next(self, is_full: Callable[[int], bool] | None = None) -> int:
        """Take out the number whose turn it is; 0 if there is none.

        Groups of which `is_full` is true are passed over: it is asked for a site, and for `GROUPS` + an address.
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
        """Take out the number whose turn it is at an address; 0 if all its sites are full."""
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
        """Queue a site at its address, and its address in the ring."""
        address = self._queued_at[site] = self._address[site]
        self._sites.push(address, site, front=front)
        if not self._is_in_ring[address]:
            self._is_in_ring[address] = True
            if front:
                self._ring.appendleft(address)
            else:
                self._ring.append(address)


class FairShares(Generic[Group]):
    """How many places each group holds, and which have their share: registered domains, or addresses.

    A group is full when it holds a quarter of the places, and at least one, unless it is alone: no other group holds a
    place, waits for one or did so in the last `SPELL` seconds. All instants are of one clock.
    """

    def __init__(self, places: int) -> None:
        self.share = share_of(places)
        self.held: Counter[Group] = Counter()
        self._total = 0
        self._seen: OrderedDict[Group, float] = OrderedDict()
        """When each group last wanted or held a place, the latest last."""

    def want(self, group: Group, now: float) -> None:
        """Note that a group wants a place."""
        self._seen[group] = now
        self._seen.move_to_end(group)
        if len(self._seen) > _MOST_SEEN:
            self._seen.popitem(last=False)

    def take(self, group: Group, now: float) -> None:
        """Count a place that is held from now on."""
        self.held[group] += 1
        self._total += 1
        self.want(group, now)

    def give_back(self, group: Group, now: float) -> None:
        """Count a place that was held until now."""
        self.held[group] -= 1
        self._total -= 1
        if not self.held[group]:
            del self.held[group]
        self.want(group, now)

    def counted(self, group: Group) -> int:
        """How many of the places that a group holds count against its share: here, all."""
        return self.held[group]

    def is_full(self, group: Group, now: float) -> bool:
        """Whether a group may have no more places now."""
        return self.counted(group) >= self.share and not self.is_alone(group, now)

    def is_alone(self, group: Group, now: float) -> bool:
        """Whether no other group wants places."""
        if self._total > self.held[group]:
            return False
        for each, seen_at in reversed(self._seen.items()):
            if each != group:
                return seen_at <= now - SPELL
        return True


class AddressShares(FairShares[Group]):
    """The shares of addresses. Where one registered domain holds all places of an address, there is one more.

    So a domain that never answers does not take the whole share of an address from the others there. It has no more
    places by that, for it has its own share.
    """

    def __init__(self, places: int) -> None:
        super().__init__(places)
        self._sites: dict[Group, Counter[Group]] = {}
        """The places that registered domains hold at each address."""

    def take_for(self, site: Group, group: Group, now: float) -> None:
        """Count a place at an address that a registered domain holds from now on."""
        self._sites.setdefault(group, Counter())[site] += 1
        self.take(group, now)

    def give_back_for(self, site: Group, group: Group, now: float) -> None:
        """Count a place at an address that a registered domain held until now."""
        sites = self._sites[group]
        sites[site] -= 1
        if not sites[site]:
            del sites[site]
        if not sites:
            del self._sites[group]
        self.give_back(group, now)

    def counted(self, group: Group) -> int:
        """How many of the places of an address count against its share."""
        return self.held[group] - (len(self._sites.get(group, ())) == 1)

    def all_counted(self) -> dict[Group, int]:
        """The same for all addresses that hold places."""
        return {group: self.counted(group) for group in self.held}
