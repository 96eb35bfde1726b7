"""SkippedCsv: a table of URLs that a crawl did not fetch. Examples: one such URL for each reason."""

from __future__ import annotations

from typing import Any

import msgspec

from curtsy.core.masking import mask_url
from curtsy.crawling.outputs.append_file import read_state
from curtsy.crawling.outputs.tables import CsvTable
from curtsy.crawling.results import CrawledPage, SkippedUrl


class SkippedCsv(CsvTable):
    """Table of the URLs without a page."""

    kind = "skipped"
    columns = ("url", "reason", "message", "status", "depth", "parent", "at")

    def skipped(self, skipped: SkippedUrl) -> None:
        """Write a row."""
        cells = [getattr(skipped, name) for name in self.columns]
        self._write(mask_url(cell) if self._mask_secrets and isinstance(cell, str) else cell for cell in cells)


MOST_EXAMPLES = 100
"""Maximum number of reasons: there are a few dozen, and one for each status."""


class Example(msgspec.Struct, frozen=True):
    """URL that represents all with the same reason, secrets masked."""

    url: str
    message: str
    parent: str | None = None


class Examples:
    """Output without a file: it stores one URL for each reason in the frontier."""

    name = "examples"

    def __init__(self) -> None:
        self.by_reason: dict[str, Example] = {}
        self._state: dict[str, Any] = {}

    def open(self, state: Any | None) -> None:
        """Resume with `state`, the last result of `flush`."""
        self.by_reason = read_examples(state)
        self._state = msgspec.to_builtins(self.by_reason)

    def page(self, page: CrawledPage) -> None:
        """Ignore a page."""

    def skipped(self, skipped: SkippedUrl) -> None:
        """Store it, if it is the first with its reason."""
        if skipped.reason in self.by_reason or len(self.by_reason) >= MOST_EXAMPLES:
            return
        parent = None if skipped.parent is None else mask_url(skipped.parent)
        example = Example(mask_url(skipped.url), mask_url(skipped.message), parent)
        self.by_reason[skipped.reason] = example
        self._state[skipped.reason] = msgspec.to_builtins(example)

    def flush(self) -> dict[str, Any]:
        """Return the examples as plain values."""
        return self._state

    def close(self) -> None:
        """Do nothing."""


def read_examples(state: Any | None) -> dict[str, Example]:
    """Return the examples in a job's notes. Raises StoreError if they are invalid."""
    return read_state(Examples.name, state, dict[str, Example]) or {}
