"""Check of the links of one page: those that belong to the crawl, those that do not, and its CPU time."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from curtsy.crawling.frontier.protocol import Claimed, host_of
from curtsy.crawling.frontier.url_table import PackedUrls
from curtsy.crawling.results import SkippedUrl
from curtsy.http.registered_domain import are_apart

TURN = 0.01
"""CPU seconds of checking links before other tasks run."""


@dataclass(slots=True)
class LinkCheck:
    """Checked links of one page or sitemap."""

    claimed: Claimed
    depth: int
    own: list[str] | PackedUrls
    """Links to the registered domain of the page."""
    foreign: list[str] | PackedUrls
    """Links to other registered domains."""
    left_out: list[SkippedUrl] = field(default_factory=list)
    more: dict[str, int] = field(default_factory=dict)
    """Number of excluded links beyond those in `left_out`, by reason."""
    unlearned: set[str] = field(default_factory=set)
    """Links that another page may still lead to: too deep here, or not checked."""
    cut: int = 0
    """Number of links dropped because the checks took too long."""
    at: str = ""
    """Time of the first exclusion: ISO 8601, UTC; empty before it."""
    are_apart: dict[str, bool] = field(default_factory=dict)
    """Hosts of the links, each with whether it is of another registered domain."""

    def add(self, url: str) -> None:
        """Add a link that belongs to the crawl."""
        host = host_of(url)
        is_apart = self.are_apart.get(host)
        if is_apart is None:
            is_apart = self.are_apart[host] = are_apart(host, self.claimed.host)
        (self.foreign if is_apart else self.own).append(url)

    def __len__(self) -> int:
        return len(self.own) + len(self.foreign)


class Slices:
    """CPU time of event-loop work that yields to other tasks periodically."""

    def __init__(self) -> None:
        self.spent = 0.0
        """CPU seconds of all slices up to the end of the last one."""
        self.begin()

    def begin(self) -> None:
        """Start a slice."""
        self._began_at = time.thread_time()

    def is_over(self) -> bool:
        """Return whether the slice has used its time."""
        seconds = time.thread_time() - self._began_at
        if seconds < TURN:
            return False
        self.spent += seconds
        return True
