"""Places: how many requests, or lookups of names, are under way at once in an event loop, and whose they are."""

from __future__ import annotations

import asyncio
from collections import Counter

from curtsy.core.fair_share import GROUPS, SPELL, AddressShares, FairQueue, FairShares, share_of
from curtsy.http.registered_domain import group_of, site_of

SETTLED = 0.1
"""Seconds after which who is alone may have more than a quarter of the places, once that is taken. Of a crowd that
comes at once, the first do not know yet who comes with them."""

REGROW = 1.0
"""Seconds after which one more place is tried where there was no room for a connection."""


class Slots:
    """A semaphore whose places are shared by registered domain and by address (core/fair_share.py).

    While others want places, a registered domain or an address that has a quarter of them gets no more, and a place
    that is given back goes to the next in turn: by address, by registered domain, then first come, first served.
    With `is_strict` a quarter is the most even if nobody else wants any. Fewer places than a quarter need no sharing,
    so their registered domains are not even looked up.
    """

    def __init__(self, most: int, *, is_strict: bool = False) -> None:
        self.most = self._free = most
        self._lost = 0
        """Places that there is no room for at present; see `shrink()`."""
        self._is_strict = is_strict
        self._share = share_of(most)
        self._holders: Counter[tuple[str, str]] | None = Counter()
        """Who holds places, by host and address; None once they are counted by group."""
        self._sites: FairShares[int] = FairShares(most)
        self._addresses: AddressShares[int] = AddressShares(most)
        self._turns: FairQueue | None = None
        """Made when the first request has to wait: it takes two megabytes."""
        self._waiting: dict[int, tuple[asyncio.Future[None], str, str]] = {}
        self._numbers: list[int] = []
        """Numbers of requests that wait no more, to be used again."""
        self._later: asyncio.TimerHandle | None = None
        self._settled_at = 0.0
        """When who is alone may have more than a quarter, by the loop's time; 0 while fewer are taken."""

    @property
    def are_taken(self) -> bool:
        """Whether a request that comes now may have to wait."""
        return bool(self._waiting) or self.most - self._free >= self._share

    def take_at_once(self, host: str, address: str = "") -> bool:
        """Take a place if nobody waits and fewer than a quarter are taken: then it does not matter whose it is."""
        if self._waiting or self.most - self._free >= self._share:
            return False
        self._settled_at = 0.0
        if self._holders is not None:
            self._free -= 1
            self._holders[host, address] += 1
        else:
            self._grant(host, address)
        return True

    async def take(self, host: str, address: str = "", *, first: bool = False) -> None:
        """Wait for a place, if one is not free for this host. An empty address is one that is not known.

        With `first`, it is the next of its registered domain: a request that had a place, and no room for a connection.
        """
        if self._holders is not None:
            self._count_groups()
        loop = asyncio.get_running_loop()
        turn: asyncio.Future[None] = loop.create_future()
        if not self._settled_at:
            self._settled_at = loop.time() + SETTLED
            loop.call_at(self._settled_at + 0.01, self._hand_on)  # timers go off a little early
        number = self._queue(turn, host, address, loop.time(), first)
        self._hand_on()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.give_back(host, address)  # it came in the same moment
            elif number in self._waiting and self._waiting[number][0] is turn:
                assert self._turns is not None
                self._turns.remove(number)
                self._forget(number)
            raise

    def give_back(self, host: str, address: str = "") -> None:
        """Give back a place, for whoever is next."""
        self._free += 1
        if self._holders is not None:
            self._holders[host, address] -= 1
            if not self._holders[host, address]:
                del self._holders[host, address]
            return
        now, (site, place) = asyncio.get_running_loop().time(), _groups(host, address)
        self._sites.give_back(site, now)
        if place:
            self._addresses.give_back_for(site, place, now)
        self._hand_on()

    def shrink(self) -> bool:
        """Note that there is no room for the connection of one of those in flight. Return whether it can wait for one.

        False means that it is alone: no other gives room when it ends. One more place is tried each second: what took
        the room may be gone.
        """
        taken = self.most - self._lost - self._free
        if taken <= 1:
            return False
        is_regrowing, self._lost = self._lost > 0, self.most - taken + 1
        self._free = self.most - self._lost - taken
        if not is_regrowing:
            asyncio.get_running_loop().call_later(REGROW, self._regrow)
        return True

    def _regrow(self) -> None:
        self._lost -= 1
        self._free += 1
        self._hand_on()
        if self._lost > 0:
            asyncio.get_running_loop().call_later(REGROW, self._regrow)

    def _count_groups(self) -> None:
        """Count by group from now on."""
        assert self._holders is not None
        holders, self._holders = self._holders, None
        for (host, address), count in holders.items():
            for _ in range(count):
                self._free += 1
                self._grant(host, address)

    def _grant(self, host: str, address: str) -> None:
        now, (site, place) = asyncio.get_running_loop().time(), _groups(host, address)
        self._free -= 1
        self._sites.take(site, now)
        if place:
            self._addresses.take_for(site, place, now)

    def _is_full(self, group: int) -> bool:
        shares = self._sites if group < GROUPS else self._addresses
        if shares.counted(group) < self._share:
            return False
        now = asyncio.get_running_loop().time()
        return self._is_strict or now < self._settled_at or not shares.is_alone(group, now)

    def _queue(self, turn: asyncio.Future[None], host: str, address: str, now: float, first: bool) -> int:
        if self._turns is None:
            self._turns = FairQueue()
        number = self._numbers.pop() if self._numbers else len(self._waiting) + 1
        site, place = _groups(host, address)
        self._waiting[number] = turn, host, address
        self._sites.want(site, now)
        if place:
            self._addresses.want(place, now)
            self._turns.locate(site, place - GROUPS)
        self._turns.assign(number, site)
        self._turns.add(number, front=first)
        return number

    def _forget(self, number: int) -> tuple[asyncio.Future[None], str, str]:
        self._numbers.append(number)
        return self._waiting.pop(number)

    def _hand_on(self) -> None:
        """Give the free places to those whose turn it is."""
        while self._free > 0 and self._turns is not None and (number := self._turns.next(self._is_full)):
            turn, host, address = self._forget(number)
            if not turn.done():  # else it has given up, and is about to say so
                self._grant(host, address)
                turn.set_result(None)
        if self._free > 0 and self._waiting and self._later is None:
            # All are full while others want places; when those have not for a while, they may have the rest.
            self._later = asyncio.get_running_loop().call_later(SPELL, self._look_again)

    def _look_again(self) -> None:
        self._later = None
        self._hand_on()


def _groups(host: str, address: str) -> tuple[int, int]:
    """The groups of a host's registered domain and of its address; 0 if the address is not known."""
    return group_of(site_of(host)), GROUPS + group_of(address) if address else 0
