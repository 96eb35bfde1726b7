"""The frontier: what waits to be fetched, and whose turn it is.

    AsyncFrontier     the contract; a crawl uses nothing else
    Frontier          the same of one process, not awaited; `Awaited` (awaited.py) makes the one of the other
    LocalFrontier     an agenda of hosts over a shelf of URLs (local.py): the rules, once for both of
    MemoryFrontier    in memory (local.py), and
    SQLiteFrontier    on the disk (durable.py): killed at any moment, it loses nothing

Every host has a queue of its own, in order of priority, then breadth first. A URL is added once, by its canonical text,
handed out to one worker at a time, and done, failed or put back. The frontier knows nothing of pace: admission decides
when a host may be asked, and its answers come here as hints (`after`, `seconds`, `host_due`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import msgspec

from curtsy.core.errors import StoreError
from curtsy.core.message import DEFAULT_PORTS
from curtsy.core.secrets import masked_repr

LEASE = 600.0
"""Seconds for which a URL is handed out: longer than a fetch with its waits takes, unless whoever has it is gone."""

Concurrency = int | None | Callable[[str], int | None]
"""How many URLs of a host may be out at once, for all hosts or for each; None for any number."""


class Claimed(msgspec.Struct, frozen=True, gc=False):
    """A URL that was handed out to whoever has this."""

    url: str
    """Canonical."""

    host: str
    """What the queue is for: host and, if it is not the scheme's own, port."""

    depth: int
    priority: int
    parent: str | None
    """The page on which it was found first, or which redirected here."""

    hops: int
    """How many redirects in a row led here."""

    tries: int
    """How often it was handed out before and nothing was heard again: the process was killed, or the lease ran out.

    A page that kills its reader comes back with more and more of them.
    """

    ticket: int
    """Which claim this is: by it, one who is too late is told from the one who has the URL now."""

    leased_until: float
    """When it may be handed out to somebody else, in seconds by the frontier's clock."""

    host_pages: int = 0
    """How many pages had come from its host when it was handed out, over all who work on the frontier."""

    __repr__ = masked_repr


class Counts(msgspec.Struct, frozen=True, gc=False):
    """A frontier in numbers."""

    queued: int
    """Waiting, and not out."""

    leased: int
    done: int
    failed: int
    hosts: int
    """How many were ever seen."""


class HostQueue(msgspec.Struct, frozen=True, gc=False):
    """What waits of one host."""

    host: str
    queued: int
    out: int
    due_in: float | None
    """Seconds until it is due; None if nobody knows."""


class Room(msgspec.Struct, frozen=True, gc=False):
    """How places are shared: who has how many, and how many a registered domain or an address may have at most."""

    share: int
    sites: Mapping[str, int]
    """The places that are held, by registered domain (`site_of`)."""

    addresses: Mapping[str, int] | None = None
    """The same by address, where that is known; None if addresses have no share."""


class Found(msgspec.Struct, frozen=True, gc=False):
    """URLs to be added, all with the same rank: the links of a page, or where it redirects to."""

    urls: Sequence[str]
    depth: int = 0
    priority: int = 0
    parent: str | None = None
    hops: int = 0

    __repr__ = masked_repr


class Done(msgspec.Struct, frozen=True, gc=False):
    """A URL is done with for good."""

    after: float | None = None
    """Seconds until its host is due again; None leaves that as it is."""


class Failed(msgspec.Struct, frozen=True, gc=False):
    """A URL is done with for good, and this is why nothing came of it."""

    reason: str
    after: float | None = None


class Deferred(msgspec.Struct, frozen=True, gc=False):
    """A URL goes back to its place, or a lower one; its host is due in so many seconds."""

    seconds: float
    last: bool = False


class Ending(msgspec.Struct, frozen=True, gc=False):
    """What came of a claim, and what was found on the way."""

    claimed: Claimed
    end: Done | Failed | Deferred
    found: Sequence[Found] = ()
    is_page: bool = False
    """Whether it is done and a page came of it, which counts as one of its host's."""


class Lapsed(StoreError):
    """Some of the claims that were to be ended had become another's, so none of them was ended."""


class AsyncFrontier(Protocol):
    """What a crawl stands on, over one process or many machines. One task at a time may make calls that change it."""

    async def add(self, found: Found) -> int:
        """Queue URLs, each only once ever; how many were new. When this returns, they are safe."""
        ...

    async def claim(self, limit: int = 1, room: Room | None = None) -> list[Claimed]:
        """Take the next URLs of hosts that are due; fewer than `limit` if no more are.

        Registered domains take turns, then the hosts of each. With `room`, no registered domain gets more places than
        its share; `due_in` then passes over those that had it, until something changes. None of the URLs is handed out
        again, to anybody, before it is put back or its lease has run out.
        """
        ...

    def locate(self, host: str, address: str) -> None:
        """Note the address of a host, so that registered domains at one address share their turns and places.

        It is kept in memory only. A frontier of many machines may share by registered domain alone.
        """
        ...

    async def conclude(self, endings: Sequence[Ending], notes: Mapping[str, Any] | None = None) -> list[bool]:
        """End claims: add what was found, then end each, then keep the notes; which of the claims were still valid.

        On one machine all of it is one piece: after a kill all or none is there. On many, what was found is safe
        before its page is done, and the notes are safe when the claims have ended. What was found on a claim that was
        no longer valid is added nevertheless. There it raises Lapsed, and ends none, if it was so long under way that
        leases ran out, and some of the claims are another's now.
        """
        ...

    async def pass_over(self, url: str, other: str) -> bool:
        """Leave a page out in favour of another, unless that was left out itself: whether it was.

        So of pages that name one another, not all are left out, whoever comes upon them and when. Any task may call it.
        """
        ...

    async def renew(self, claimed: Claimed) -> Claimed | None:
        """Have the lease begin anew, as for a long download. None if the claim is no longer valid."""
        ...

    async def keep(self, claims: Sequence[Claimed]) -> list[bool]:
        """Renew the claims whose leases may have run out, by one's own clock; which of all are still valid.

        Whoever was not stopped for longer than a lease asks nobody by it, so it is to be called before every writing.
        """
        ...

    async def due_in(self) -> float | None:
        """Seconds until `claim` may find something, if nothing else happens; None if nothing is left at all.

        With everything handed out that may be, it is until the first lease runs out. Where others work on the same
        frontier, None means that none of them has anything left either.
        """
        ...

    async def counts(self) -> Counts:
        """How much there is, over all who work on it."""
        ...

    async def busiest(self, limit: int) -> list[HostQueue]:
        """The hosts with the most URLs waiting; fewer or none where that is not cheap to tell."""
        ...

    async def failures(self) -> list[tuple[str, str]]:
        """The URLs that failed, each with its reason."""
        ...

    async def note(self, notes: Mapping[str, Any]) -> None:
        """Keep plain values, each under its name, in place of what was there."""
        ...

    async def notes(self) -> dict[str, Any]:
        """All that was noted."""
        ...

    async def close(self) -> None:
        """Give back what is held open. Idempotent; what was out waits again when the frontier is next opened."""
        ...


class Frontier(Protocol):
    """The contract. Calls block, but for microseconds only; one thread at a time may make them."""

    def add(
        self, urls: Iterable[str], *, depth: int = 0, priority: int = 0, parent: str | None = None, hops: int = 0
    ) -> int:
        """Queue URLs, canonical ones as `parse_url` makes them, each only once ever; how many were new.

        Higher priorities go first, then lower depths, then what was added first. When this returns, they are safe.
        """
        ...

    def mark_seen(self, urls: Iterable[str]) -> int:
        """Count URLs as added without queueing them, as where a redirect led; how many were new."""
        ...

    def pass_over(self, url: str, other: str) -> bool:
        """Leave a page out in favour of another, unless that was left out itself: whether it was."""
        ...

    def claim(self, limit: int = 1, room: Room | None = None) -> list[Claimed]:
        """Take the next URLs of hosts that are due; fewer than `limit` if no more are.

        Registered domains take turns, then the hosts of each. With `room`, no registered domain and no address gets
        more places than its share; `due_in` then passes over those that had it, until something changes. None of the
        URLs is handed out again before it is put back or its lease has run out.
        """
        ...

    def locate(self, host: str, address: str) -> None:
        """Note the address of a host, so that registered domains at one address share their turns and places."""
        ...

    def done(
        self,
        claimed: Claimed,
        *,
        after: float | None = None,
        notes: Mapping[str, Any] | None = None,
        is_page: bool = False,
    ) -> bool:
        """End a claim for good. False if it was no longer valid, and then the URL is not touched.

        `after` are seconds until the host is due again; None leaves that as it is. `notes` are kept in the same piece
        as the end of the claim, whether it was valid or not: where the outputs end, for example. With `is_page`, a page
        came of it, which counts as one of its host's.
        """
        ...

    def fail(
        self, claimed: Claimed, reason: str, *, after: float | None = None, notes: Mapping[str, Any] | None = None
    ) -> bool:
        """End a claim for good, and keep the reason. Otherwise as `done`."""
        ...

    def defer(self, claimed: Claimed, seconds: float, *, last: bool = False) -> bool:
        """Put a URL back to its old place; its host is due in so many seconds. False if the claim was not valid.

        As `last` it is put back with a priority one lower, so that its host's other URLs have their turn first.
        """
        ...

    def renew(self, claimed: Claimed) -> Claimed | None:
        """Have the lease begin anew, as for a long download. None if the claim is no longer valid."""
        ...

    def host_due(self, host: str, seconds: float) -> None:
        """A host is due in so many seconds, be it sooner or later than it was. Unknown hosts are passed over."""
        ...

    def due_in(self) -> float | None:
        """Seconds until `claim` may find something, if nothing else happens; None if nothing is left at all.

        With everything handed out that may be, it is until the first lease runs out.
        """
        ...

    def counts(self) -> Counts:
        """How much there is. Any thread may ask."""
        ...

    def busiest(self, limit: int) -> list[HostQueue]:
        """The hosts with the most URLs waiting."""
        ...

    def failures(self) -> Iterator[tuple[str, str]]:
        """The URLs that failed, each with its reason, in order."""
        ...

    def note(self, notes: Mapping[str, Any]) -> None:
        """Keep plain values, each under its name, in place of what was there."""
        ...

    def notes(self) -> dict[str, Any]:
        """All that was noted, by `note`, `done` and `fail`, in this process or an earlier one."""
        ...

    def together(self) -> AbstractContextManager[None]:
        """Have all calls within the block go to the disk in one piece: quicker, and after a kill all or none is there.

        If the block raises, a frontier on the disk takes all of it back; one in memory keeps what was done.
        """
        ...

    def close(self) -> None:
        """Give back what is held open. Idempotent; what was out waits again when the frontier is next opened."""
        ...


def host_of(url: str) -> str:
    """The host, with its port if that is not the scheme's own, of a canonical URL: its `Url.domain`."""
    scheme, _, rest = url.partition("://")
    host, slash, _ = rest.partition("/")
    if scheme not in DEFAULT_PORTS or not slash:
        raise ValueError(f"{url[:100]!r} is not a canonical URL. Give the text that parse_url() makes of it.")
    return host
