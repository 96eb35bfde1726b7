"""Quota: how many pages a host may have in a crawl."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from curtsy.crawling.notes import PAGES


class Quota:
    """The pages of each host, counted only if they are limited."""

    def __init__(self, most: int | None) -> None:
        self.most = most
        """None for any number."""
        self._pages: Counter[str] = Counter()
        self._out: Counter[str] = Counter()

    def resume(self, notes: Mapping[str, Any]) -> None:
        """Go on from what earlier runs have noted."""
        self._pages.update({name[len(PAGES) :]: n for name, n in notes.items() if name.startswith(PAGES)})

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

    def end(self, host: str, *, is_page: bool) -> dict[str, int]:
        """Count what came of it; answers the note to be kept with that."""
        if self.most is None:
            return {}
        self._out[host] -= 1
        if not self._out[host]:
            del self._out[host]
        if not is_page:
            return {}
        self._pages[host] += 1
        return {PAGES + host: self._pages[host]}
