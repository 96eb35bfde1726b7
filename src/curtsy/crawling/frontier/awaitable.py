"""Adapter from `Frontier` to `AsyncFrontier`. Its calls take microseconds, so they run on the event loop."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from curtsy.crawling.frontier.protocol import (
    Claimed,
    Counts,
    Deferred,
    Done,
    Ending,
    Failed,
    Found,
    Frontier,
    HostQueue,
    Room,
)


class AwaitableFrontier:
    """Frontier of one process with the asynchronous interface."""

    def __init__(self, frontier: Frontier) -> None:
        self._frontier = frontier

    async def add(self, found: Found) -> int:
        """Queue URLs; return how many were new."""
        return self._add(found)

    def _add(self, found: Found) -> int:
        return self._frontier.add(
            found.urls, depth=found.depth, priority=found.priority, parent=found.parent, hops=found.hops
        )  # fmt: skip

    async def claim(self, limit: int = 1, room: Room | None = None) -> list[Claimed]:
        """Claim URLs of due hosts, in turn by address, domain and host."""
        return self._frontier.claim(limit, room)

    def locate(self, host: str, address: str) -> None:
        """Record the address of a host."""
        self._frontier.locate(host, address)

    async def conclude(self, endings: Sequence[Ending], notes: Mapping[str, Any] | None = None) -> list[bool]:
        """Add the URLs found, end the claims and store the notes in one transaction."""
        with self._frontier.together():
            if notes:
                self._frontier.note(notes)
            return [self._end(ending) for ending in endings]

    def _end(self, ending: Ending) -> bool:
        for found in ending.found:
            self._add(found)
        match ending.end:
            case Done(after):
                return self._frontier.done(ending.claimed, after=after, is_page=ending.is_page)
            case Failed(reason, after):
                return self._frontier.fail(ending.claimed, reason, after=after)
            case Deferred(seconds, last):
                return self._frontier.defer(ending.claimed, seconds, last=last)

    async def pass_over(self, url: str, other: str) -> bool:
        """Skip a page unless `other` was skipped; return whether it was."""
        return self._frontier.pass_over(url, other)

    async def renew(self, claimed: Claimed) -> Claimed | None:
        """Restart the lease; return None if the claim is invalid."""
        return self._frontier.renew(claimed)

    async def keep(self, claims: Sequence[Claimed]) -> list[bool]:
        """Return True for each claim: in one process, only `claim` takes back expired leases."""
        return [True] * len(claims)

    async def due_in(self) -> float | None:
        """Return the seconds until `claim` may find a URL; None for never."""
        return self._frontier.due_in()

    async def counts(self) -> Counts:
        """Return the counts."""
        return self._frontier.counts()

    async def busiest(self, limit: int) -> list[HostQueue]:
        """Return the hosts with the longest queues."""
        return self._frontier.busiest(limit)

    async def failures(self) -> list[tuple[str, str]]:
        """Return the failed URLs with their reasons."""
        return list(self._frontier.failures())

    async def note(self, notes: Mapping[str, Any]) -> None:
        """Store plain values by name."""
        self._frontier.note(notes)

    async def notes(self) -> dict[str, Any]:
        """Return all stored notes."""
        return self._frontier.notes()

    async def close(self) -> None:
        """Release all resources."""
        self._frontier.close()
