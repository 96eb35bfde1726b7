"""Tray: what has come of visits, until it is written: at once, or when whoever iterates has had the page."""

from __future__ import annotations

import asyncio
from collections import deque

from curtsy.crawling.committer import Finished
from curtsy.crawling.frontier.protocol import Deferred


class Results:
    """Finished visits on their way: unread, handed out, and then to be written."""

    def __init__(self) -> None:
        self.finished: list[Finished] = []
        """To be written."""
        self.is_iterated = False
        """Whether somebody takes the pages; else they go to the outputs alone."""
        self.news = asyncio.Event()
        """Set when there is a page to take, or none will come any more."""
        self._unread: deque[Finished] = deque()
        self._handed: dict[int, Finished] = {}
        """What was handed out and not dealt with yet, by ticket."""

    def put(self, finished: Finished) -> None:
        """Lay down what has come of a visit."""
        if finished.page is not None and self.is_iterated:
            self._unread.append(finished)
            self.news.set()
        else:
            self.finished.append(finished)

    def take(self) -> Finished | None:
        """Hand out the next page, if there is one."""
        if not self._unread:
            return None
        finished = self._unread.popleft()
        self._handed[finished.claimed.ticket] = finished
        return finished

    def dealt_with(self, finished: Finished) -> None:
        """A page that was handed out may be written, unless it has gone back meanwhile."""
        if self._handed.pop(finished.claimed.ticket, None) is not None:
            self.finished.append(finished)

    def all_dealt_with(self) -> None:
        """All pages that were handed out may be written."""
        self.finished += self._handed.values()
        self._handed.clear()

    def give_back(self) -> None:
        """Have the URLs of pages that nobody took, or dealt with, put back."""
        self.finished += [Finished(each.claimed, Deferred(0.0)) for each in self.held()]
        self._handed.clear()
        self._unread.clear()

    def held(self) -> list[Finished]:
        """What is not to be written yet."""
        return [*self._handed.values(), *self._unread]

    def holds(self) -> int:
        """How many these are."""
        return len(self._handed) + len(self._unread)
