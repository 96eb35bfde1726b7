"""Interface and records of the frontier, the queue of URLs that a crawl fetches.

    AsyncFrontier     interface that a crawl uses
    LocalFrontier     frontier of one process, in memory or in a file (local.py)
    RedisFrontier     frontier on a Redis server (redis.py), shared by many machines

Every host has its own queue, ordered by priority, then breadth first. A canonical URL is added once and leased to one
worker at a time. Its claim ends as done, failed or deferred. Admission control decides when a host may be requested.
The frontier receives these decisions as hints (`after`, `seconds`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import msgspec

from curtsy.core.errors import StoreError
from curtsy.core.masking import masked_repr
from curtsy.core.url import DEFAULT_PORTS

LEASE = 600.0
"""Seconds for which a claim leases a URL: longer than a fetch with its waits takes."""

MOST_FAILURES = 10_000
"""Default limit of the failed URLs that are read."""

PAGES = "pages:"
"""Prefix of the note with the pages of a worker. A shared frontier adds them up as `pages`."""

Concurrency = int | None | Callable[[str], int | None]
"""Maximum number of leased URLs per host: a number, or a function of the host. None means no limit."""


class Claimed(msgspec.Struct, frozen=True, gc=False):
    """Claim of a worker on a URL."""

    url: str
    """Canonical URL."""

    host: str
    """Host of the queue, with its port unless that is the scheme's default."""

    depth: int
    priority: int
    parent: str | None
    """URL of the page that first linked or redirected here; None if there is no such page."""

    hops: int
    """Number of consecutive redirects that led here."""

    tries: int
    """Number of earlier claims that ended by a killed process or an expired lease.

    A page that crashes its reader collects many.
    """

    ticket: int
    """Number of this claim, which distinguishes it from later claims on the same URL."""

    leased_until: float
    """End of the lease, in seconds by the frontier's clock. Other workers may claim the URL afterwards."""

    host_pages: int = 0
    """Pages fetched from the host before this claim, by all workers of the frontier."""

    is_written: bool = False
    """True if a worker wrote the page and was killed before it ended its claim. Only the links count now."""

    __repr__ = masked_repr


class Counts(msgspec.Struct, frozen=True, gc=False):
    """Numbers of URLs by state, and of hosts."""

    queued: int
    """URLs that are queued and not leased."""

    leased: int
    done: int
    failed: int
    hosts: int
    """Hosts ever seen."""


class HostQueue(msgspec.Struct, frozen=True, gc=False):
    """Queue of one host, in numbers."""

    host: str
    queued: int
    out: int
    due_in: float | None
    """Seconds until the host is due; None if unknown."""


class Outlook(msgspec.Struct, frozen=True, gc=False):
    """What a worker without a due URL waits for in a shared frontier, by its last look."""

    due_in: float | None
    """Seconds until a host is due; None if no due time is known."""

    elsewhere: int = 0
    """URLs that other workers fetch."""

    lost: int = 0
    """URLs that workers had leased which are not present any more. They are queued again when their leases end."""

    lost_for: float = 0.0
    """Seconds until the first of these leases ends."""


class Room(msgspec.Struct, frozen=True, gc=False):
    """Slots for concurrent fetches: those in use, and the share of one group.

    A group is a registered domain or an address. `share` is the most slots that one group may hold.
    """

    share: int
    sites: Mapping[str, int]
    """Slots in use, by registered domain (`site_of`)."""

    addresses: Mapping[str, int] | None = None
    """Slots in use, by address where it is known; None if addresses have no share."""


class Found(msgspec.Struct, frozen=True, gc=False):
    """URLs to add with the same rank: the links of a page, or the target of its redirect."""

    urls: Sequence[str]
    depth: int = 0
    priority: int = 0
    parent: str | None = None
    hops: int = 0

    __repr__ = masked_repr


class Done(msgspec.Struct, frozen=True, gc=False):
    """End of a claim on a URL that is finished."""

    after: float | None = None
    """Seconds until the host is due again; None keeps its due time."""


class Failed(msgspec.Struct, frozen=True, gc=False):
    """End of a claim on a URL that failed permanently."""

    reason: str
    after: float | None = None


class Deferred(msgspec.Struct, frozen=True, gc=False):
    """End of a claim on a URL that is queued again; its host is due in `seconds`.

    With `last`, the URL's priority drops by one.
    """

    seconds: float
    last: bool = False


class Ending(msgspec.Struct, frozen=True, gc=False):
    """Result of a claim, with the URLs that were found."""

    claimed: Claimed
    end: Done | Failed | Deferred
    found: Sequence[Found] = ()
    is_page: bool = False
    """True if the claim is done and yielded a page, which counts for its host."""

    is_logged: bool = False
    """True to record the page with its worker and the time, so that `requeue` can queue it again."""

    @property
    def is_written_now(self) -> bool:
        """Return whether it yielded a page that no earlier worker has written."""
        return self.is_page and not self.claimed.is_written


class Requeue(msgspec.Struct, frozen=True, kw_only=True):
    """Choice of finished URLs to queue again: failed ones, or logged pages."""

    reasons: frozenset[str] | None = None
    """Reasons of the failed URLs; None for pages instead."""

    worker: str | None = None
    """Worker that fetched the pages; None for all."""

    since: float = 0.0
    """Time from which on the pages were finished, in epoch seconds."""

    pattern: re.Pattern[str] | None = None
    """Pattern that is searched in the URL; None for all."""

    def chooses(self, url: str) -> bool:
        """Return whether a URL matches the pattern."""
        return self.pattern is None or self.pattern.search(url) is not None


class Lapsed(StoreError):
    """Error: some claims belong to another worker now, so no claim of the call was ended."""


class AsyncFrontier(Protocol):
    """Interface of a frontier, in one process or over many machines.

    Only one task at a time may make calls that change it.
    """

    async def add(self, found: Found) -> int:
        """Queue URLs that were never added before; return how many were new.

        The URLs are stored when the call returns.
        """
        ...

    async def claim(self, limit: int = 1, room: Room | None = None) -> list[Claimed]:
        """Claim up to `limit` of the next URLs of hosts that are due.

        Registered domains take turns, then the hosts of each. With `room`, no registered domain gets more slots than
        its share. `due_in` then skips the domains at their share until something changes. No worker can claim these
        URLs again before they are put back or their leases expire.
        """
        ...

    def locate(self, host: str, address: str) -> None:
        """Record the address of a host, so that domains at one address share turns and slots.

        The address is kept in memory only. A frontier of many machines may share by registered domain alone.
        """
        ...

    async def unreported(self, urls: Iterable[str]) -> list[str]:
        """Return those of the URLs without a page that no output has yet, each once.

        Workers of a shared frontier that find a URL at the same moment may each get it.
        """
        ...

    async def conclude(
        self, endings: Sequence[Ending], notes: Mapping[str, Any] | None = None, reported: Iterable[str] = ()
    ) -> list[bool]:
        """Add the URLs found, end the claims and store the notes; return which claims were valid.

        `reported` are URLs without a page that the outputs have now; `unreported` leaves them out from now on.

        On one machine this is atomic: after a kill, all or nothing is stored. On many machines, the URLs found are
        stored before their page is done. The notes are stored by the time the claims have ended. URLs found by a claim
        that is no longer valid are added nevertheless. A frontier of many machines raises Lapsed and ends no claim if
        leases expired during the call and some claims belong to another worker.
        """
        ...

    async def pass_over(self, url: str, other: str) -> bool:
        """Skip a page in favour of another, unless the other was skipped; return whether it was.

        So at least one of several pages that name one another is kept, in any order of calls. Any task may call it.
        """
        ...

    async def renew(self, claimed: Claimed) -> Claimed | None:
        """Restart the lease, as for a long download; return None if the claim is no longer valid."""
        ...

    async def keep(self, claims: Sequence[Claimed]) -> list[bool]:
        """Renew claims whose leases may have expired by the local clock; return which are valid.

        It contacts no server unless a lease may have expired, so it is cheap enough to call before every write.
        """
        ...

    async def hasten(self, hosts: Collection[str]) -> None:
        """Make hosts due now that are due later, except for those with a leased URL. Unknown hosts are ignored."""
        ...

    async def due_in(self) -> float | None:
        """Return the seconds until `claim` may find a URL; None if no URL is left.

        If every claimable URL is leased, that is when the first lease expires. If workers share the frontier, None
        means that no worker has any URL left.
        """
        ...

    async def counts(self) -> Counts:
        """Return the counts over all workers."""
        ...

    async def recent_counts(self) -> Counts:
        """Return the counts over all workers as far as they are known; those of others may be some seconds old."""
        ...

    @property
    def pages(self) -> int:
        """Return the pages of all workers by their PAGES notes, at the last call; 0 in a frontier of one process."""
        ...

    @property
    def workers(self) -> int:
        """Return the number of present workers, as of the last call; 1 in a frontier of one process."""
        ...

    def outlook(self) -> Outlook | None:
        """Return what this worker waits for, besides its own URLs; None in a frontier of one process."""
        ...

    @property
    def connections(self) -> int:
        """Return the number of connections to a server so far; 0 in a frontier of one process.

        After a new one, the frontier may lack the last URLs: another server has replaced the one before.
        """
        ...

    async def busiest(self, limit: int) -> list[HostQueue]:
        """Return the hosts with the longest queues; fewer or none if they are expensive to find."""
        ...

    async def failures(self, limit: int = MOST_FAILURES) -> list[tuple[str, str]]:
        """Return at most `limit` of the failed URLs, each with its reason."""
        ...

    async def note(self, notes: Mapping[str, Any]) -> None:
        """Store plain values by name, in place of earlier ones."""
        ...

    async def notes(self, worker: str = "") -> dict[str, Any]:
        """Return all stored notes. `worker` names a process that was killed, and whose outputs this one opens.

        Earlier calls to store notes have no effect after this one: neither those of this process nor those of earlier
        processes with its name or the name `worker`. So the outputs can be opened at the ends in the notes.
        """
        ...

    def outlast(self, seconds: float, tell: Callable[[StoreError], None]) -> AbstractContextManager[None]:
        """Return a context in which calls wait up to `seconds` for a server that does not answer.

        `tell` is called with the first error.
        """
        ...

    async def close(self) -> None:
        """Release all resources; idempotent.

        Leased URLs are queued again when the frontier is next opened.
        """
        ...


def host_of(url: str) -> str:
    """Return the host of a canonical URL (`Url.domain`); raise ValueError for other text.

    The port is part of it unless it is the scheme's default.
    """
    scheme, _, rest = url.partition("://")
    host, slash, _ = rest.partition("/")
    if scheme not in DEFAULT_PORTS or not slash:
        raise ValueError(f"{url[:100]!r} is not a canonical URL. Give the text that parse_url() makes of it.")
    return host
