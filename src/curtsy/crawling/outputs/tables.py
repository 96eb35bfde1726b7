"""CsvTable: base of tables as CSV. PagesCsv: a table of pages."""

from __future__ import annotations

import csv
import io
import os
import re
from collections.abc import Iterable

from curtsy.crawling.outputs.jsonlines import entry_of
from curtsy.crawling.outputs.protocol import FileOutput
from curtsy.crawling.results import CrawledPage

# Prefixes of a formula in spreadsheets, including full-width forms (OWASP, CSV injection).
_FORMULA = re.compile(r"\s*[=+\-@＝＋－＠]")
_CONTROL = re.compile(r"[\x00-\x1f\x7f\x85\u2028\u2029]+")


class CsvTable(FileOutput):
    """Base of tables: UTF-8, commas, quotes where needed (RFC 4180), and a line of column names.

    Cells are untrusted, and spreadsheets open the table. So a cell that would be a formula gets an apostrophe as
    prefix. Control characters become blanks, so that each row is one line. With `mask_secrets`, values in URLs that
    look secret are written as `***`.
    """

    kind: str
    columns: tuple[str, ...]

    def __init__(self, path: str | os.PathLike[str], *, mask_secrets: bool = True) -> None:
        super().__init__(self.kind, os.path.join(os.curdir, path) if path == "-" else path)  # a file name here
        self._mask_secrets = mask_secrets

    def _whole(self, path: str) -> tuple[int, int]:
        size, lines = super()._whole(path)
        return size, max(0, lines - 1)  # minus the line of column names

    def _write(self, cells: Iterable[object]) -> None:
        """Write a row."""
        row = _row(_harmless("" if cell is None else str(cell)) for cell in cells)
        with self._restored():
            self._file.write(b"" if self._file.size else _row(self.columns), row)


class PagesCsv(CsvTable):
    """Table of pages, one row each. The columns are fields of `PageEntry`; texts of a list are joined by blanks."""

    kind = "csv"
    columns = (
        *("url", "status", "title", "content_type", "size", "depth", "parent", "fetched_at", "final_url", "canonical"),
        *("directives", "cache", "sha256", "main_text"),
    )

    def page(self, page: CrawledPage) -> None:
        """Write a row."""
        entry = entry_of(page, mask_secrets=self._mask_secrets)
        given = (getattr(entry, name) for name in self.columns)
        self._write(" ".join(value) if isinstance(value, tuple) else value for value in given)


def _harmless(cell: str) -> str:
    cell = _CONTROL.sub(" ", cell)
    return f"'{cell}" if _FORMULA.match(cell) else cell


def _row(cells: Iterable[str]) -> bytes:
    line = io.StringIO()
    csv.writer(line).writerow(cells)
    return line.getvalue().encode("utf-8", "replace")
