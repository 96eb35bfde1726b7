"""Awaited: a frontier of one process, for those who await one. Its calls take microseconds, so they are simply made."""

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
    """A frontier of this process for those who await one."""

    def __init__(self, frontier: Frontier) -> None:
        self._frontier = frontier

    async def add(self, found: Found) -> int:
        """Queue URLs, each only once ever; how many were new."""
        return self._add(found)

    def _add(self, found: Found) -> int:
        return self._frontier.add(
            found.urls, depth=found.depth, priority=found.priority, parent=found.parent, hops=found.hops
        )  # fmt: skip

    async def claim(self, limit: int = 1, room: Room | None = None) -> list[Claimed]:
        """Take the next URLs of hosts that are due, in turn by address, registered domain and host."""
        return self._frontier.claim(limit, room)

    def locate(self, host: str, address: str) -> None:
        """Note the address of a host."""
        self._frontier.locate(host, address)

    async def conclude(self, endings: Sequence[Ending], notes: Mapping[str, Any] | None = None) -> list[bool]:
        """Add what was found, end the claims and keep the notes, in one piece."""
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
        """Leave a page out in favour of another, unless that was left out itself."""
        return self._frontier.pass_over(url, other)

    async def renew(self, claimed: Claimed) -> Claimed | None:
        """Have the lease begin anew."""
        return self._frontier.renew(claimed)

    async def keep(self, claims: Sequence[Claimed]) -> list[bool]:
        """All of them: what this process has is taken back by `claim` alone, and by nobody else."""
        return [True] * len(claims)

    async def due_in(self) -> float | None:
        """Seconds until `claim` may find something, if nothing else happens; None if nothing is left at all."""
        return self._frontier.due_in()

    async def counts(self) -> Counts:
        """How much there is."""
        return self._frontier.counts()

    async def busiest(self, limit: int) -> list[HostQueue]:
        """The hosts with the most URLs waiting."""
        return self._frontier.busiest(limit)

    async def failures(self) -> list[tuple[str, str]]:
        """The URLs that failed, each with its reason, in order."""
        return list(self._frontier.failures())

    async def note(self, notes: Mapping[str, Any]) -> None:
        """Keep plain values, each under its name."""
        self._frontier.note(notes)

    async def notes(self) -> dict[str, Any]:
        """All that was noted."""
        return self._frontier.notes()

    async def close(self) -> None:
        """Give back what is held open."""
        self._frontier.close()
