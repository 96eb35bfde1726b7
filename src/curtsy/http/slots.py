"""Slots: the limit of concurrent requests or name lookups in an event loop, shared fairly among hosts."""

from __future__ import annotations

import asyncio

from curtsy.core.fair_share import GROUPS, SPELL, AddressShares, FairQueue, FairShares, share_of
from curtsy.http.registered_domain import group_of, site_of

SETTLED = 0.1
"""Seconds after a quarter of the slots is taken before a single group may exceed it. In a burst, the first requests
cannot know yet that other groups follow. If the event loop is late by as much, the seconds begin again."""

MOST_SETTLES = 10
"""How often they begin again at most: on a machine that is always late, one group must not wait for ever."""

REGROW = 1.0
"""Seconds between attempts to use one more slot after the machine had no room for a connection."""


class Slots:
    """Semaphore whose slots are shared by registered domain and by address (core/fair_share.py).

    While other groups want slots, a registered domain or an address gets at most a quarter of them. A released slot
    goes to the next waiter: round robin by address, then by registered domain, then first in, first out. With
    `is_strict`, the quarter is the limit even without other waiters. Below a quarter in use, nothing is shared, so
    registered domains are not looked up.
    """

    def __init__(self, most: int, *, is_strict: bool = False) -> None:
        self.most = self._free = most
        self._lost = 0
        """Slots that the machine has no room for at present; see `shrink()`."""
        self._is_strict = is_strict
        self._share = share_of(most)
        self._holders: dict[tuple[str, str], int] | None = {}
        """Taken slots by host and address; None once they are counted by group."""
        self._sites: FairShares[int] = FairShares(most)
        self._addresses: AddressShares[int] = AddressShares(most)
        self._turns: FairQueue | None = None
        """Queue of waiters, created for the first one because it takes 2 MB."""
        self._waiting: dict[int, tuple[asyncio.Future[None], str, str]] = {}
        self._numbers: list[int] = []
        """Numbers of former waiters, for reuse."""
        self._later: asyncio.TimerHandle | None = None
        self._settling: asyncio.TimerHandle | None = None
        """Timer of the moment from which a single group may exceed a quarter; None while less than that is taken."""
        self._is_settled = False

    def take_at_once(self, host: str, address: str = "") -> bool:
        """Take a slot if no request waits and less than a quarter is taken, where the group does not matter."""
        if self._waiting or self.most - self._free >= self._share:
            return False
        if self._settling is not None:
            self._settling.cancel()
            self._settling, self._is_settled = None, False
        if (holders := self._holders) is not None:
            self._free -= 1
            holders[host, address] = holders.get((host, address), 0) + 1
        else:
            self._grant(host, address)
        return True

    async def take(self, host: str, address: str = "", *, first: bool = False) -> None:
        """Wait for a slot, if none is free for this host. An empty address is unknown.

        With `first`, the request is the next of its registered domain: it had a slot, but no room for a connection.
        """
        if self._holders is not None:
            self._count_groups()
        loop = asyncio.get_running_loop()
        turn: asyncio.Future[None] = loop.create_future()
        if self._settling is None:
            self._settling = loop.call_later(SETTLED, self._settle, loop.time() + SETTLED, MOST_SETTLES)
        number = self._queue(turn, host, address, loop.time(), first)
        self._hand_on()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.give_back(host, address)  # the slot was granted at the same moment
            elif number in self._waiting and self._waiting[number][0] is turn:
                assert self._turns is not None
                self._turns.remove(number)
                self._forget(number)
            raise

    def give_back(self, host: str, address: str = "") -> None:
        """Release a slot to the next waiter."""
        self._free += 1
        if (holders := self._holders) is not None:
            left = holders.pop((host, address)) - 1
            if left:
                holders[host, address] = left
            return
        now, (site, place) = asyncio.get_running_loop().time(), _groups(host, address)
        self._sites.give_back(site, now)
        if place:
            self._addresses.give_back_for(site, place, now)
        self._hand_on()

    def _settle(self, due: float, left: int) -> None:
        loop = asyncio.get_running_loop()
        if left and loop.time() - due > SETTLED:
            self._settling = loop.call_later(SETTLED, self._settle, loop.time() + SETTLED, left - 1)
            return
        self._is_settled = True
        self._hand_on()

    def shrink(self) -> bool:
        """Reduce the slots because a request has no room for its connection.

        Return whether the request can wait for room. False means that it is the only request, so no other one frees
        room. One slot per second is added again, because the shortage may have ended.
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
        """Switch from counting by host to counting by group."""
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
        return self._is_strict or not self._is_settled or not shares.is_alone(group, now)

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
        """Grant free slots to the next waiters."""
        while self._free > 0 and self._turns is not None and (number := self._turns.next(self._is_full)):
            turn, host, address = self._forget(number)
            if not turn.done():  # otherwise its task was cancelled and will handle that
                self._grant(host, address)
                turn.set_result(None)
        if self._free > 0 and self._waiting and self._later is None:
            # All waiting groups are at their limit while others want slots. The limit ends after `SPELL` seconds
            # without a request by the others.
            self._later = asyncio.get_running_loop().call_later(SPELL, self._look_again)

    def _look_again(self) -> None:
        self._later = None
        self._hand_on()


def _groups(host: str, address: str) -> tuple[int, int]:
    """Return the groups of a host's registered domain and of its address; 0 for an unknown address."""
    return group_of(site_of(host)), GROUPS + group_of(address) if address else 0
