"""SkippedCsv: a table of URLs that a crawl did not fetch, with reasons."""

from __future__ import annotations

import csv
import io
import os
import re
from collections.abc import Iterable

from curtsy.core.secrets import mask_url
from curtsy.crawling.outputs.append_file import whole_lines
from curtsy.crawling.outputs.line_file import LineFile
from curtsy.crawling.page import CrawledPage, Skipped
from curtsy.stores.url import check_path

COLUMNS = ("url", "reason", "message", "status", "depth", "parent", "at")
"""Column names: the first line, and the order of the cells."""

# Prefixes of a formula in spreadsheets, including full-width forms (OWASP, CSV injection).
_FORMULA = re.compile(r"\s*[=+\-@＝＋－＠]")
_CONTROL = re.compile(r"[\x00-\x1f\x7f\x85\u2028\u2029]+")


class SkippedCsv(LineFile):
    """Table of the URLs without a page: UTF-8, commas, quotes where needed (RFC 4180).

    Links are untrusted, and spreadsheets open the table. So a cell that would be a formula gets an apostrophe as
    prefix. Control characters become blanks, so that each row is one line. With `mask_secrets`, values in URLs that
    look secret are written as `***`.
    """

    def __init__(self, path: str | os.PathLike[str], *, mask_secrets: bool = True) -> None:
        check_path("path", path)
        super().__init__(os.path.abspath(path))
        self._mask_secrets = mask_secrets

    @property
    def name(self) -> str:
        """Return its kind and path."""
        return f"csv:{self.path}"

    def _whole(self, path: str) -> tuple[int, int]:
        size, lines = whole_lines(path)
        return size, max(0, lines - 1)  # minus the line of column names

    def page(self, page: CrawledPage) -> None:
        """Ignore it."""

    def skipped(self, skipped: Skipped) -> None:
        """Write a row."""
        status = "" if skipped.status is None else str(skipped.status)
        given = (
            skipped.url,
            skipped.reason,
            skipped.message,
            status,
            str(skipped.depth),
            skipped.parent or "",
            skipped.at,
        )
        shown = [_harmless(mask_url(cell) if self._mask_secrets else cell) for cell in given]
        self._trail.write(b"" if self._trail.size else _row(COLUMNS), _row(shown))


def _harmless(cell: str) -> str:
    cell = _CONTROL.sub(" ", cell)
    return f"'{cell}" if _FORMULA.match(cell) else cell


def _row(cells: Iterable[str]) -> bytes:
    line = io.StringIO()
    csv.writer(line).writerow(cells)
    return line.getvalue().encode("utf-8", "replace")
