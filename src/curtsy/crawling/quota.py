"""Quotas: pages of a host and sitemaps of a site in a crawl.

The frontier counts pages over all workers and returns the count with every claim. One worker at a
time gets the URLs of a host. So all further pages of that host are in progress in this process.
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
"""Maximum sitemap bytes read of a site: those of a few million URLs, compressed."""

MOST_KNOWN = 100_000
"""Maximum number of remembered sitemaps, which count once even if they are named twice."""

MANY, MOST_NOTED = 20, 1000
"""Number of sitemaps from which a site's count is noted in the job, and maximum number of noted sites."""


class Quota:
    """Quota of pages for each host. Pages are counted only if they are limited."""

    def __init__(self, most: int | None) -> None:
        self.most = most
        """Maximum number of pages of a host; None for no limit."""
        self._pages: Counter[str] = Counter()
        """Pages by host, including unwritten ones."""
        self._out: Counter[str] = Counter()

    def learn(self, host: str, pages: int) -> None:
        """Record that a host has had at least `pages` pages, over all workers."""
        if self.most is not None and pages > self._pages[host]:
            self._pages[host] = pages

    def is_used_up(self, host: str) -> bool:
        """Return whether a host has reached its limit."""
        return self.most is not None and self._pages[host] >= self.most

    def is_taken(self, host: str) -> bool:
        """Return whether a host reaches its limit if every running fetch yields a page."""
        return self.most is not None and self._pages[host] + self._out[host] >= self.most

    def begin(self, host: str) -> None:
        """Count a started fetch."""
        if self.most is not None:
            self._out[host] += 1

    def end(self, host: str, *, is_page: bool) -> None:
        """Count an ended fetch."""
        if self.most is None:
            return
        self._out[host] -= 1
        if not self._out[host]:
            del self._out[host]
        self._pages[host] += is_page


class SitemapQuota:
    """Quota of sitemaps for each site. A sitemap counts when it is queued; redirects count too."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._counts: Counter[str] = Counter()
        self._known: set[int] = set()
        """Fingerprints of the URLs of recently queued sitemaps."""
        self._many: set[str] = set()
        """Sites with many sitemaps."""
        self._bytes: Counter[str] = Counter()
        self._told: set[str] = set()

    def resume(self, noted: Any) -> None:
        """Resume with the result of `noted` from an earlier run."""
        if isinstance(noted, dict):
            self._counts.update({site: count for site, count in noted.items() if isinstance(count, int)})
            self._many.update(self._counts)

    def noted(self) -> dict[str, int]:
        """Return the number of sitemaps of each site that has many."""
        return {site: self._counts[site] for site in nlargest(MOST_NOTED, self._many, key=self._counts.__getitem__)}

    def take(self, site: str, urls: Iterable[str]) -> list[str]:
        """Return the sitemaps that may be queued: within the site's quota, each once."""
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
        """Count `size` bytes of a sitemap that was read."""
        self._bytes[site] += size

    def _tell(self, site: str) -> None:
        if site not in self._told:
            self._told.add(site)
            _log.warning(
                f"{site} has more sitemaps than are read: {self._counts[site]:,} so far, {self._bytes[site]:,} bytes. "
                f"The others are left out. Raise max_sitemaps (--max-sitemaps), which is {self._most:,}, if the site "
                "is that large."
            )
