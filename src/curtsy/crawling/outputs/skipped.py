"""SkippedCsv: a table of URLs that a crawl did not fetch. Examples: one such URL for each reason."""

from __future__ import annotations

import csv
import io
import os
import re
from collections.abc import Iterable
from typing import Any

import msgspec

from curtsy.core.secrets import mask_url
from curtsy.crawling.outputs.append_file import read_state
from curtsy.crawling.outputs.protocol import FileOutput
from curtsy.crawling.results import CrawledPage, SkippedUrl
from curtsy.stores.url import check_path

COLUMNS = ("url", "reason", "message", "status", "depth", "parent", "at")
"""Column names: the first line, and the order of the cells."""

# Prefixes of a formula in spreadsheets, including full-width forms (OWASP, CSV injection).
_FORMULA = re.compile(r"\s*[=+\-@＝＋－＠]")
_CONTROL = re.compile(r"[\x00-\x1f\x7f\x85\u2028\u2029]+")


class SkippedCsv(FileOutput):
    """Table of the URLs without a page: UTF-8, commas, quotes where needed (RFC 4180).

    Links are untrusted, and spreadsheets open the table. So a cell that would be a formula gets an apostrophe as
    prefix. Control characters become blanks, so that each row is one line. With `mask_secrets`, values in URLs that
    look secret are written as `***`.
    """

    def __init__(self, path: str | os.PathLike[str], *, mask_secrets: bool = True) -> None:
        check_path("path", path)
        super().__init__("csv", os.path.abspath(path))  # `-` is a file name here
        self._mask_secrets = mask_secrets

    def _whole(self, path: str) -> tuple[int, int]:
        size, lines = super()._whole(path)
        return size, max(0, lines - 1)  # minus the line of column names

    def skipped(self, skipped: SkippedUrl) -> None:
        """Write a row."""
        given = [getattr(skipped, name) for name in COLUMNS]
        cells = ["" if value is None else str(value) for value in given]
        shown = [_harmless(mask_url(cell) if self._mask_secrets else cell) for cell in cells]
        with self._restored():
            self._file.write(b"" if self._file.size else _row(COLUMNS), _row(shown))


def _harmless(cell: str) -> str:
    cell = _CONTROL.sub(" ", cell)
    return f"'{cell}" if _FORMULA.match(cell) else cell


def _row(cells: Iterable[str]) -> bytes:
    line = io.StringIO()
    csv.writer(line).writerow(cells)
    return line.getvalue().encode("utf-8", "replace")


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
