"""Watch on the hosts that rest: a crawl requests them again when a user or another process has ended their rest.

A URL that is not due is put back with the time that admission returned. Its host may be available earlier: the breaker
was reset, a pause was ended, a limit was changed, or another process has released a slot. So the records of some hosts
are read every few seconds. The watch sends no request and changes no record, and admission still decides.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Collection

from curtsy.core.errors import CurtsyError
from curtsy.core.host import Host
from curtsy.core.time import Now
from curtsy.crawling.frontier.protocol import AsyncFrontier
from curtsy.crawling.progress import Hosts
from curtsy.engine.host_view import view_of
from curtsy.engine.session import Session

LOOK = 2.0
"""Seconds between two looks."""

MOST = 50
"""Maximum number of records read in one look; of more hosts, each has its turn."""

EARLIER = 2.0
"""Seconds by which a host must be available earlier than it is due. Smaller differences are inaccuracies."""


class RestWatch:
    """Watch of one crawl."""

    def __init__(self, session: Session, frontier: AsyncFrontier, hosts: Hosts) -> None:
        """Create a watch on the hosts that rest by the statistics `hosts`."""
        self._session = session
        self._frontier = frontier
        self._hosts = hosts
        self._looked_at = session.timers.now()

    def look_in(self) -> float | None:
        """Return the seconds until the next look; None while no host rests."""
        if not self._hosts.has_resting:
            return None
        return max(0.0, self._looked_at + LOOK - self._session.timers.now())

    async def look(self) -> None:
        """Make hosts due now that rest and are available earlier, if it is time to look. Raises CurtsyError."""
        if self.look_in() != 0.0:
            return
        self._looked_at = now = self._session.timers.now()
        resting = self._hosts.resting(now, MOST)
        ready = await self._ready(resting)
        is_earlier = {host: ready_in < resting[host] - EARLIER for host, ready_in in ready.items()}
        sooner = [host for host, earlier in is_earlier.items() if self._hosts.may_hasten(host, is_earlier=earlier)]
        if sooner:
            await self._frontier.hasten(sooner)
            self._hosts.hasten(sooner, self._session.timers.now())

    async def _ready(self, hosts: Collection[str]) -> dict[str, float]:
        """Return the seconds until hosts are available by their records, as far as these can be read."""
        store = self._session.store
        if not hosts or store.is_waiting or store.is_out:
            return {}
        with contextlib.suppress(CurtsyError):  # a fetch reports it
            now = await store.now()
            ready = await asyncio.gather(*(self._ready_in(host, now) for host in hosts))
            return {host: seconds for host, seconds in zip(hosts, ready, strict=True) if seconds is not None}
        return {}

    async def _ready_in(self, host: str, now: Now) -> float | None:
        """Return the seconds until a host is available; None if its record cannot be read."""
        policy = self._session.policies.of(host)
        try:
            record = await self._session.store.read(policy.key_for(host))
        except CurtsyError:
            return None
        if record is not None and not isinstance(record, Host):  # of a later version
            return None
        ready_in = view_of(host, record, now, policy).next_in
        return math.inf if ready_in is None else ready_in
