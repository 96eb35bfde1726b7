"""Limit of a crawl's pages: how many URLs may be claimed under it, and what is still fetched when it is reached."""

from __future__ import annotations

import math

from curtsy.crawling.committer import Committer
from curtsy.crawling.frontier.protocol import AsyncFrontier, Claimed, Deferred
from curtsy.crawling.options import CrawlOptions
from curtsy.crawling.reader import is_in_reserve
from curtsy.crawling.requisites import is_requisite
from curtsy.crawling.results import Finished, Results

RESERVED = 0.5
"""Seconds for which a URL that may not be needed is put back."""

MOST_HOSTS = 1000
"""Maximum number of hosts whose requisites are awaited at the limit."""


class PageLimit:
    """The limit `max_pages`. At the limit, the requisites of the pages are still fetched."""

    def __init__(self, options: CrawlOptions, committer: Committer, frontier: AsyncFrontier, results: Results) -> None:
        self._most = options.max_pages
        self._has_requisites = options.requisites != "none"
        self._committer = committer
        self._frontier = frontier
        self._results = results
        self._without: set[str] = set()
        """Hosts whose next URL was a page at the limit, when nothing was in flight that may need more: requisites come
        first, so none is left there."""

    @property
    def is_reached(self) -> bool:
        """Return whether there are enough pages."""
        return self._most is not None and self._committer.pages >= self._most

    def wanted(self, queued: int) -> int | None:
        """Return how many more pages are needed than URLs are queued; None if there is no limit."""
        return None if self._most is None else self._most - self._committer.pages - queued

    def room(self, under_way: int) -> float:
        """Return how many more URLs may be claimed."""
        if self._most is None or (self._has_requisites and self.is_reached):
            return math.inf
        return self._most - self._committer.pages - under_way

    def needed(self, claimed: list[Claimed], *, is_idle: bool) -> list[Claimed]:
        """Put back the claims that are not needed now, and return the others.

        Reserve sitemaps wait while other URLs may yield pages; one is kept if there are no others. At the limit, only
        requisites are needed.
        """
        if self._most is None:
            return claimed
        is_quiet = is_idle and not self._results.finished
        kept: list[Claimed] = []
        for each in sorted(claimed, key=is_in_reserve):
            if self.is_reached and not is_requisite(each):
                self._without.add(each.host)
                self._results.put(Finished(each, Deferred(RESERVED)))
            elif is_in_reserve(each) and (kept or not is_quiet):
                self._results.put(Finished(each, Deferred(RESERVED)))
            else:
                kept.append(each)
        if kept or not is_quiet:
            self._without.clear()
        return kept

    async def has_more(self, *, is_idle: bool) -> bool:
        """Return whether requisites may still be fetched at the limit."""
        if not self._has_requisites:
            return False
        if not is_idle or self._results.finished:
            return True
        return any(each.queued and each.host not in self._without for each in await self._frontier.busiest(MOST_HOSTS))
