"""JsonLines: one JSON object per page and line. LineFile: base of outputs that write lines."""

from __future__ import annotations

import os
from typing import Any

import msgspec

from curtsy.crawling.outputs.append_file import STANDARD_OUTPUT, AppendFile, End, read_state, whole_lines
from curtsy.crawling.outputs.entry import BodyForm, encode, entry_of
from curtsy.crawling.outputs.protocol import Written
from curtsy.crawling.results import CrawledPage, SkippedUrl
from curtsy.stores.url import check_path


class LineFile:
    """Output of lines. Subclasses define `name` and the content of a line."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._trail = AppendFile(path)

    @property
    def name(self) -> str:
        """Return its kind and path."""
        raise NotImplementedError

    @property
    def is_stream(self) -> bool:
        """Return whether it is a pipe or a terminal, which cannot be truncated."""
        return self._trail.is_stream

    def open(self, state: Any | None) -> None:
        """Start it, or resume at `state`. A stream continues at its present position."""
        self._trail.open(read_state(self.name, state, End), self._whole)

    def _whole(self, path: str) -> tuple[int, int]:
        return whole_lines(path)

    def flush(self) -> dict[str, Any]:
        """Pass all data to the system; return the end of the file."""
        return msgspec.structs.asdict(self._trail.flush())

    def check(self) -> None:
        """Raise NotWritten if it is a stream and its reader has closed it."""
        self._trail.check()

    def written(self) -> Written:
        """Return its contents."""
        missing = self._trail.missing()
        return Written(self.name, self._trail.flushed_entries + self._trail.lost - missing, missing)

    def close(self) -> None:
        """Close it. Idempotent."""
        self._trail.close()


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

    def skipped(self, skipped: SkippedUrl) -> None:
        """Ignore it."""
