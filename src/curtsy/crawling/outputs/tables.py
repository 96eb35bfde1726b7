"""CsvTable: base of tables as CSV. PagesCsv: a table of pages."""

from __future__ import annotations

import csv
import io
import os
import re
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from curtsy.core.crawl_messages import column_missing
from curtsy.core.masking import mask_url
from curtsy.crawling.outputs.jsonlines import entry_of
from curtsy.crawling.outputs.protocol import FileOutput
from curtsy.crawling.results import CrawledPage
from curtsy.system.log import library_logger

_log = library_logger("outputs")

# Prefixes of a formula in spreadsheets, including full-width forms (OWASP, CSV injection).
_FORMULA = re.compile(r"\s*[=+\-@＝＋－＠]")
_NUMBER = re.compile(r"\s*[+-]?[\d.,]+\s*")
_CONTROL = re.compile(r"[\x00-\x1f\x7f\x85\u2028\u2029]+")


class CsvTable(FileOutput):
    """Base of tables: UTF-8, commas, quotes where needed (RFC 4180), and a line of column names.

    Cells are untrusted, and spreadsheets open the table. So a cell that would be a formula gets an apostrophe as
    prefix; a plain number is none. Control characters become blanks, so that each row is one line. With
    `mask_secrets`, values in URLs that look secret are written as `***`.
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
        row = _row("" if cell is None or cell is msgspec.UNSET else _harmless(str(cell)) for cell in cells)
        with self._restored():
            self._file.write(b"" if self._file.size else _row(self.columns), row)


class PagesCsv(CsvTable):
    """Table of pages, one row each. The columns are fields of `PageEntry`; texts of a list are joined by blanks.

    If the crawl extracts fields, the columns are `url`, these fields, as on the first page with any, and `fetched_at`
    instead. Lists and dicts are JSON. A page without any value has no row.
    """

    kind = "csv"
    columns: tuple[str, ...] = (
        *("url", "status", "title", "content_type", "size", "depth", "parent", "fetched_at", "final_url", "canonical"),
        *("directives", "cache", "sha256", "main_text"),
    )

    def __init__(self, path: str | os.PathLike[str], *, mask_secrets: bool = True) -> None:
        super().__init__(path, mask_secrets=mask_secrets)
        self._missing: set[str] = set()
        """Fields without a column that were reported."""

    def page(self, page: CrawledPage) -> None:
        """Write a row."""
        if page.extracted is not None:
            self._fields(page, page.extracted)
            return
        entry = entry_of(page, mask_secrets=self._mask_secrets)
        given = (getattr(entry, name) for name in self.columns)
        self._write(" ".join(value) if isinstance(value, tuple) else value for value in given)

    def _fields(self, page: CrawledPage, extracted: Mapping[str, Any]) -> None:
        """Write the extracted fields of a page."""
        extracted = {_harmless(name): value for name, value in extracted.items()}
        if all(value is None or value == [] for value in extracted.values()):
            return
        if not self._file.size:
            self.columns = tuple(dict.fromkeys(("url", *extracted, "fetched_at")))
        for name in extracted.keys() - self.columns - self._missing:
            self._missing.add(name)
            _log.warning(column_missing(self.path, name))
        url = mask_url(page.url) if self._mask_secrets else page.url
        row = {"url": url, "fetched_at": page.fetched_at, **extracted}
        self._write(_cell(row.get(name)) for name in self.columns)

    def _open(self, state: Any | None) -> None:
        super()._open(state)
        if self._file.size and not self.is_stream:  # the columns that it began with
            with open(self._file.path, encoding="utf-8", newline="") as lines:
                self.columns = tuple(next(csv.reader(lines)))


def _cell(value: object) -> object:
    return msgspec.json.encode(value).decode() if isinstance(value, list | dict) else value


def _harmless(cell: str) -> str:
    cell = _CONTROL.sub(" ", cell)
    return f"'{cell}" if _FORMULA.match(cell) and not _NUMBER.fullmatch(cell) else cell


def _row(cells: Iterable[str]) -> bytes:
    line = io.StringIO()
    csv.writer(line).writerow(cells)
    return line.getvalue().encode("utf-8", "replace")
