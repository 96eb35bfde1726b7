"""Results of fetches until they are written: at once, or after the consumer has received the page."""

from __future__ import annotations

import asyncio
from collections import deque

from curtsy.crawling.committer import Finished
from curtsy.crawling.frontier.protocol import Deferred


class Results:
    """Finished fetches: unread, yielded, or ready to be written."""

    def __init__(self) -> None:
        self.finished: list[Finished] = []
        """Results to be written."""
        self.is_iterated = False
        """True if a consumer iterates over the pages; else they go to the outputs only."""
        self.news = asyncio.Event()
        """Set when a page is available, or when the crawl has ended."""
        self._unread: deque[Finished] = deque()
        self._handed: dict[int, Finished] = {}
        """Yielded results that the consumer has not finished yet, by ticket."""

    def put(self, finished: Finished) -> None:
        """Add the result of a fetch."""
        if finished.page is not None and self.is_iterated:
            self._unread.append(finished)
            self.news.set()
        else:
            self.finished.append(finished)

    def take(self) -> Finished | None:
        """Return the next page for the consumer, or None."""
        if not self._unread:
            return None
        finished = self._unread.popleft()
        self._handed[finished.claimed.ticket] = finished
        return finished

    def dealt_with(self, finished: Finished) -> None:
        """Mark a yielded page for writing, unless it was put back meanwhile."""
        if self._handed.pop(finished.claimed.ticket, None) is not None:
            self.finished.append(finished)

    def all_dealt_with(self) -> None:
        """Mark all yielded pages for writing."""
        self.finished += self._handed.values()
        self._handed.clear()

    def give_back(self) -> None:
        """Put back the URLs of pages that the consumer did not take or finish."""
        self.finished += [Finished(each.claimed, Deferred(0.0)) for each in self.held()]
        self._handed.clear()
        self._unread.clear()

    def held(self) -> list[Finished]:
        """Return the results that may not be written yet."""
        return [*self._handed.values(), *self._unread]

    def holds(self) -> int:
        """Return the number of results that may not be written yet."""
        return len(self._handed) + len(self._unread)
