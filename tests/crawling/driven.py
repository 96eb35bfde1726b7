"""A shared frontier for those who do not await: each call runs on an event loop of its own until it is done."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any, TypeVar

from curtsy.crawling.frontier.protocol import (
    Claimed,
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
    """A `RedisFrontier` as a `Frontier`, but for what only one process can have."""

    def __init__(self, open: Callable[[], RedisFrontier]) -> None:
        self._loop = asyncio.new_event_loop()
        self.inner = open()

    def _run(self, work: Coroutine[Any, Any, Result]) -> Result:
        return self._loop.run_until_complete(work)

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
            return self._run(self.inner.conclude([ending], notes))[0]
        except Lapsed:
            return False

    def renew(self, claimed: Claimed) -> Claimed | None:
        return self._run(self.inner.renew(claimed))

    def due_in(self) -> float | None:
        return self._run(self.inner.due_in())

    def counts(self) -> Counts:
        return self._run(self.inner.counts())

    def busiest(self, limit: int) -> list[HostQueue]:
        return self._run(self.inner.busiest(limit))

    def failures(self) -> Iterator[tuple[str, str]]:
        return iter(self._run(self.inner.failures()))

    def note(self, notes: Mapping[str, Any]) -> None:
        self._run(self.inner.note(notes))

    def notes(self) -> dict[str, Any]:
        return self._run(self.inner.notes())

    def close(self) -> None:
        if not self._loop.is_closed():
            self._run(self.inner.close())
            self._loop.close()

    def mark_seen(self, urls: Iterable[str]) -> int:
        raise NotImplementedError("a crawl of many machines does not need it")

    def host_due(self, host: str, seconds: float) -> None:
        raise NotImplementedError("a crawl of many machines does not need it")

    def together(self) -> AbstractContextManager[None]:
        raise NotImplementedError("many machines have no piece in common")
