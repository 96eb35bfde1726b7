"""Ledger: what became of every URL."""

from __future__ import annotations

from collections import Counter

from tests.crawling.driven import Driven
from tests.simulation.timeline import Timeline
from tests.simulation.world import World

UNKNOWN, QUEUED, DONE, FAILED = range(4)

AGES = 20 * 365 * 86_400 * 1_000_000
"""Later than anything can be due."""


class Ledger:
    """The state of every URL of a world, as those who ended claims say; at the end the frontier must say the same."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._states = bytearray(world.urls)
        self.errors: list[str] = []

    def add(self, urls: list[str]) -> None:
        """URLs were given to the frontier, some of them not for the first time."""
        for url in urls:
            number = self._world.number(url)
            if self._states[number] == UNKNOWN:
                self._states[number] = QUEUED

    def end(self, url: str, state: int) -> None:
        """A URL is done with, by a claim that the frontier took for valid."""
        number = self._world.number(url)
        if self._states[number] != QUEUED:
            self.errors.append(f"{url} was ended twice, or never added")
        self._states[number] = state

    def counts(self) -> Counter[int]:
        """How many URLs are in which state."""
        return Counter(self._states)

    def close(self, frontier: Driven, timeline: Timeline) -> None:
        """Hold the ledger against the frontier, and empty that to see what is in it."""
        counts, counted = self.counts(), frontier.counts()
        if (counted.queued + counted.leased, counted.done, counted.failed) != tuple(
            counts[each] for each in (QUEUED, DONE, FAILED)
        ):
            self.errors.append(f"the frontier counts {counted}, the ledger {dict(counts)}")
        for url, reason in frontier.failures():
            if self._states[self._world.number(url)] != FAILED or not reason:
                self.errors.append(f"{url} failed by the frontier, {reason}, but not by the ledger")
        self._check_links()
        timeline.move(timeline.at + AGES)
        waiting = set()
        while claims := frontier.claim(1000):
            for claimed in claims:
                number = self._world.number(claimed.url)
                if self._states[number] != QUEUED or number in waiting:
                    self.errors.append(f"{claimed.url} waits by the frontier, but not by the ledger")
                waiting.add(number)
                frontier.done(claimed)
        if len(waiting) != counts[QUEUED]:
            self.errors.append(f"{counts[QUEUED] - len(waiting)} URLs are lost")

    def _check_links(self) -> None:
        """Every link of a page that is done is known."""
        world = self._world
        for site in world.sites:
            for page in range(site.size):
                if self._states[site.first + page] == DONE:
                    target = world.target(site, page)
                    for link in world.links(site, page) if target is None else [target]:
                        if self._states[world.number(link)] == UNKNOWN:
                            self.errors.append(f"{link} was found on {world.url(site, page)}, and is lost")
