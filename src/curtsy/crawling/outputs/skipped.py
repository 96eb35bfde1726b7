"""SkippedCsv: what a crawl did not fetch, and why, as a table."""

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
"""The first line, and what the others have in order."""

# What a spreadsheet takes for a formula, the wide forms too (OWASP, CSV injection).
_FORMULA = re.compile(r"\s*[=+\-@＝＋－＠]")
_CONTROL = re.compile(r"[\x00-\x1f\x7f\x85\u2028\u2029]+")


class SkippedCsv(LineFile):
    """A table of the URLs from which no page came: UTF-8, commas, quotes where they are needed (RFC 4180).

    Links come from strangers, and tables are opened in spreadsheets: a cell that would be a formula there begins with
    an apostrophe instead, and control characters are blanks, so that a row is always one line. With `mask_secrets`,
    values in URLs that look secret are written as `***`.
    """

    def __init__(self, path: str | os.PathLike[str], *, mask_secrets: bool = True) -> None:
        check_path("path", path)
        super().__init__(os.path.abspath(path))
        self._mask_secrets = mask_secrets

    @property
    def name(self) -> str:
        """What tells it from the crawl's other outputs."""
        return f"csv:{self.path}"

    def _whole(self, path: str) -> tuple[int, int]:
        size, lines = whole_lines(path)
        return size, max(0, lines - 1)  # the first names the columns

    def page(self, page: CrawledPage) -> None:
        """Pass it over."""

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
