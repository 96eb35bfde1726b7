"""Quota: how many pages a host may have in a crawl.

The frontier counts them for all who work on it, and says with every URL how many its host has had. It hands out the
URLs of a host to one worker at a time, so what comes besides is under way here, and nowhere else.
"""

from __future__ import annotations

from collections import Counter


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
