"""Quotas: how many pages a host may have in a crawl, and how many sitemaps a site.

The frontier counts them for all who work on it, and says with every URL how many its host has had. It hands out the
URLs of a host to one worker at a time, so what comes besides is under way here, and nowhere else.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from heapq import nlargest
from typing import Any

from curtsy.crawling.frontier.url_table import fingerprint
from curtsy.system.log import LibraryLogger, library_logger

_log: LibraryLogger = library_logger("crawl")

MOST_SITEMAP_BYTES = 1 << 30
"""Bytes of sitemaps that are read of a site: those of a few million URLs, packed."""

MOST_KNOWN = 100_000
"""Sitemaps that are not counted twice if they are named twice."""

MANY, MOST_NOTED = 20, 1000
"""Sitemaps from which on a site's number of them is noted in the job, and sites of which that is done."""


class Quota:
    """The pages of each host, counted only if they are limited."""

    def __init__(self, most: int | None) -> None:
        self.most = most
        """None for any number."""
        self._pages: Counter[str] = Counter()
        """With those that are not written yet."""
        self._out: Counter[str] = Counter()

    def learn(self, host: str, pages: int) -> None:
        """A host has had so many pages already, here or elsewhere."""
        if self.most is not None and pages > self._pages[host]:
            self._pages[host] = pages

    def is_used_up(self, host: str) -> bool:
        """Whether a host has had its pages."""
        return self.most is not None and self._pages[host] >= self.most

    def is_taken(self, host: str) -> bool:
        """Whether it will have had them if a page comes of all that is under way; one may turn out to be none."""
        return self.most is not None and self._pages[host] + self._out[host] >= self.most

    def begin(self, host: str) -> None:
        """Count a URL that is being fetched."""
        if self.most is not None:
            self._out[host] += 1

    def end(self, host: str, *, is_page: bool) -> None:
        """Count what came of it."""
        if self.most is None:
            return
        self._out[host] -= 1
        if not self._out[host]:
            del self._out[host]
        self._pages[host] += is_page


class SitemapQuota:
    """The sitemaps of each site, from the moment in which they are queued; redirects count as well."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._counts: Counter[str] = Counter()
        self._known: set[int] = set()
        """Numbers that stand for the URLs of those that were queued last."""
        self._many: set[str] = set()
        """Sites with many."""
        self._bytes: Counter[str] = Counter()
        self._told: set[str] = set()

    def resume(self, noted: Any) -> None:
        """Go on with what `noted` has answered in an earlier run."""
        if isinstance(noted, dict):
            self._counts.update({site: count for site, count in noted.items() if isinstance(count, int)})
            self._many.update(self._counts)

    def noted(self) -> dict[str, int]:
        """How many each site has, of those that have many."""
        return {site: self._counts[site] for site in nlargest(MOST_NOTED, self._many, key=self._counts.__getitem__)}

    def take(self, site: str, urls: Iterable[str]) -> list[str]:
        """Those of the sitemaps that may be queued: as many as the site has left, each once."""
        taken = []
        for url in urls:
            key = fingerprint(url)
            if key in self._known:
                continue
            if self._counts[site] >= self._most or self._bytes[site] >= MOST_SITEMAP_BYTES:
                self._tell(site)
                break
            if len(self._known) >= MOST_KNOWN:
                self._known.clear()
            self._known.add(key)
            self._counts[site] += 1
            taken.append(url)
        if self._counts[site] >= MANY:
            self._many.add(site)
        return taken

    def spend(self, site: str, size: int) -> None:
        """A sitemap of so many bytes was read."""
        self._bytes[site] += size

    def _tell(self, site: str) -> None:
        if site not in self._told:
            self._told.add(site)
            _log.warning(
                f"{site} has more sitemaps than are read: {self._counts[site]:,} so far, {self._bytes[site]:,} bytes. "
                f"The others are left out. Raise max_sitemaps (--max-sitemaps), which is {self._most:,}, if the site "
                "is that large."
            )
