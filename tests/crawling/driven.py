"""Frontiers for tests that do not await: each call runs until it is done."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from pathlib import Path
from time import monotonic
from typing import Any, TypeVar

from curtsy.crawling.frontier.local import LocalFrontier
from curtsy.crawling.frontier.protocol import (
    LEASE,
    AsyncFrontier,
    Claimed,
    Concurrency,
    Counts,
    Deferred,
    Done,
    Ending,
    Failed,
    Found,
    HostQueue,
    Lapsed,
    Room,
)
from curtsy.crawling.frontier.redis import RedisFrontier

Result = TypeVar("Result")


class Driven:
    """A frontier, with calls that block and one call for each end of a claim."""

    def __init__(self, inner: AsyncFrontier) -> None:
        self.inner = inner

    def _run(self, work: Coroutine[Any, Any, Result]) -> Result:
        """A frontier of one process never waits, so it needs no event loop."""
        try:
            work.send(None)
        except StopIteration as stopped:
            result: Result = stopped.value
            return result
        raise AssertionError("it waits")

    def add(
        self, urls: Iterable[str], *, depth: int = 0, priority: int = 0, parent: str | None = None, hops: int = 0
    ) -> int:
        return self._run(self.inner.add(Found(list(urls), depth, priority, parent, hops)))

    def claim(self, limit: int = 1, room: Room | None = None) -> list[Claimed]:
        return self._run(self.inner.claim(limit, room))

    def locate(self, host: str, address: str) -> None:
        self.inner.locate(host, address)

    def pass_over(self, url: str, other: str) -> bool:
        return self._run(self.inner.pass_over(url, other))

    def unreported(self, urls: Iterable[str]) -> list[str]:
        return self._run(self.inner.unreported(urls))

    def report(self, urls: Iterable[str]) -> None:
        self._run(self.inner.conclude([], reported=urls))

    def done(
        self,
        claimed: Claimed,
        *,
        after: float | None = None,
        notes: Mapping[str, Any] | None = None,
        is_page: bool = False,
    ) -> bool:
        return self._end(Ending(claimed, Done(after), is_page=is_page), notes)

    def fail(
        self, claimed: Claimed, reason: str, *, after: float | None = None, notes: Mapping[str, Any] | None = None
    ) -> bool:
        return self._end(Ending(claimed, Failed(reason, after)), notes)

    def defer(self, claimed: Claimed, seconds: float, *, last: bool = False) -> bool:
        return self._end(Ending(claimed, Deferred(seconds, last)))

    def _end(self, ending: Ending, notes: Mapping[str, Any] | None = None) -> bool:
        try:
            return self.conclude([ending], notes)[0]
        except Lapsed:
            return False

    def conclude(self, endings: Sequence[Ending], notes: Mapping[str, Any] | None = None) -> list[bool]:
        return self._run(self.inner.conclude(endings, notes))

    def renew(self, claimed: Claimed) -> Claimed | None:
        return self._run(self.inner.renew(claimed))

    def hasten(self, *hosts: str) -> None:
        self._run(self.inner.hasten(hosts))

    def due_in(self) -> float | None:
        return self._run(self.inner.due_in())

    def counts(self) -> Counts:
        return self._run(self.inner.counts())

    def busiest(self, limit: int) -> list[HostQueue]:
        return self._run(self.inner.busiest(limit))

    def failures(self) -> list[tuple[str, str]]:
        return self._run(self.inner.failures())

    def note(self, notes: Mapping[str, Any]) -> None:
        self._run(self.inner.note(notes))

    def notes(self) -> dict[str, Any]:
        return self._run(self.inner.notes())

    def close(self) -> None:
        self._run(self.inner.close())


class OnLoop(Driven):
    """A frontier on a server, with an event loop of its own."""

    inner: RedisFrontier

    def __init__(self, open: Callable[[], RedisFrontier]) -> None:
        self._loop = asyncio.new_event_loop()
        super().__init__(open())

    def _run(self, work: Coroutine[Any, Any, Result]) -> Result:
        return self._loop.run_until_complete(work)

    def close(self) -> None:
        if not self._loop.is_closed():
            super().close()
            self._loop.close()


def local(
    path: Path | str | None = None,
    *,
    restart: bool = False,
    concurrency: Concurrency = 1,
    lease: float = LEASE,
    clock: Callable[[], float] = monotonic,
) -> Driven:
    """A frontier of one process: in a file, or in memory."""
    return Driven(LocalFrontier(path, restart=restart, concurrency=concurrency, lease=lease, clock=clock))
