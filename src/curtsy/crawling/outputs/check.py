"""Check of an output of one's own: `check_output` plays crawls that are killed and resumed."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence

from curtsy.core.request import Headers
from curtsy.crawling.outputs.protocol import Output
from curtsy.crawling.results import CrawledPage, SkippedUrl

_AT = "2026-01-01T00:00:00.000Z"
_HEADERS = Headers([("Content-Type", "text/html; charset=utf-8")])


def check_output(make: Callable[[], Output], urls: Callable[[], Sequence[str]], *, steps: int = 300) -> None:
    """Raise AssertionError unless an output has each page exactly once, however often its crawl is killed.

    `make` returns the output, a new object at each call, always for the same place, which must be empty at first.
    `urls` returns the URLs of the pages that are there, in the order of their arrival. It is called after a flush.
    """
    run = _Run(make, urls, random.Random(steps))
    try:
        run.play(steps)
    finally:
        run.output.close()


class _Run:
    """Crawl that writes numbered pages, and is killed again and again."""

    def __init__(self, make: Callable[[], Output], urls: Callable[[], Sequence[str]], dice: random.Random) -> None:
        self._make, self._urls, self._dice = make, urls, dice
        self.output = make()
        self._name = self.output.name
        self._recorded: object = None
        self._done = self._written = 0
        """Number of pages at the last recorded flush, and now."""

    def play(self, steps: int) -> None:
        """Write, flush and kill at random."""
        self.output.open(None)
        self._recorded = _flush(self.output)
        for step in range(steps):
            for _ in range(self._dice.randrange(4)):
                self.output.page(_page(self._written))
                url = f"https://example.org/skipped/{self._written}"
                self.output.skipped(SkippedUrl(url, "robots_disallowed", at=_AT))
                self._written += 1
            flushed = _flush(self.output) if self._dice.random() < 0.8 else None
            if flushed is not None and self._dice.random() < 0.8:  # else killed between the flush and its record
                self._recorded, self._done = flushed, self._written
            if self._dice.random() < 0.3:
                self._resume(step)
        self.output.flush()
        self._compare(self._written, "at the end")
        self.output.close()
        self._compare(self._written, "after close()")

    def _resume(self, step: int) -> None:
        self.output.close()
        if self._dice.random() < 0.5:
            self.output = self._make()
        found = self.output.name
        assert found == self._name, f"name is {found!r}, and was {self._name!r}: it must be the same at every start."
        self.output.open(self._recorded)
        self._recorded, self._written = _flush(self.output), self._done
        self._compare(self._done, f"after open() at the end of page {self._done}, step {step}")

    def _compare(self, count: int, moment: str) -> None:
        wanted, found = [_page(number).url for number in range(count)], list(self._urls())
        assert found == wanted, (
            f"{moment}, {len(wanted)} pages must be there once each, and {len(found)} are. "
            f"Missing: {sorted(set(wanted) - set(found))[:3]}; surplus: {sorted(set(found) - set(wanted))[:3]}."
        )


def _flush(output: Output) -> object:
    """Return where the output ended, as a frontier keeps it."""
    state = output.flush()
    try:
        return json.loads(json.dumps(state))
    except (TypeError, ValueError) as error:
        raise AssertionError(f"flush() must return a plain value, and returned {state!r}: {error}.") from error


def _page(number: int) -> CrawledPage:
    url = f"https://example.org/page/{number}"
    return CrawledPage(
        url, url, 200, f"Page {number}", (), _AT, "text/html; charset=utf-8", "utf-8", b"<p>A page", _HEADERS
    )
