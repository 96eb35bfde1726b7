"""JsonLines: one JSON object per page and line."""

from __future__ import annotations

import os

from curtsy.crawling.outputs.append_file import STANDARD_OUTPUT
from curtsy.crawling.outputs.entry import BodyForm, encode, entry_of
from curtsy.crawling.outputs.line_file import LineFile
from curtsy.crawling.page import CrawledPage, Skipped
from curtsy.stores.url import check_path


class JsonLines(LineFile):
    """Pages as lines of JSON, each a `PageEntry`, in the order of arrival. `-` is standard output.

    `body` adds the bodies: decoded as `text`, or byte for byte as `base64`. With `mask_secrets`, values in URLs that
    look secret are written as `***`.
    """

    def __init__(self, path: str | os.PathLike[str], *, body: BodyForm = "none", mask_secrets: bool = True) -> None:
        check_path("path", path)
        path = os.fspath(path)
        super().__init__(path if path == STANDARD_OUTPUT else os.path.abspath(path))
        self._body: BodyForm = body
        self._mask_secrets = mask_secrets

    @property
    def name(self) -> str:
        """Return its kind and path."""
        return f"jsonl:{self.path}"

    def page(self, page: CrawledPage) -> None:
        """Write a line."""
        self._trail.write(encode(entry_of(page, body=self._body, mask_secrets=self._mask_secrets)), b"\n")

    def skipped(self, skipped: Skipped) -> None:
        """Ignore it."""
