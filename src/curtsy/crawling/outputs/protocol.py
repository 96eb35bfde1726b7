"""Interface of an output, and its contents in numbers."""

from __future__ import annotations

from typing import Any, Protocol

import msgspec

from curtsy.crawling.results import CrawledPage, SkippedUrl


class Output(Protocol):
    """Interface of an output.

    The order of calls is: open; then page, skipped and flush, any number of times; then close. One thread calls at a
    time, but not always the same one, because large pages are written in a thread.
    """

    @property
    def name(self) -> str:
        """Return its kind and path, unique among the crawl's outputs and equal at every start."""
        ...

    def open(self, state: Any | None) -> None:
        """Start an output, or resume it at `state`, the last recorded result of `flush`. None starts a new one.

        It writes nothing yet. If the caller records a first `flush` before the first page, it can always resume. A
        failed output may be opened again with the state recorded last.

        If a file is shorter than its state, writing resumes at its end, and a warning is logged. A file of other
        content is never overwritten: NotWritten is raised. With `state` None, that is any file that is not empty.
        """
        ...

    def page(self, page: CrawledPage) -> None:
        """Write a page. Raises NotWritten if that fails, as on a full disk.

        Then the output is as after the last `flush`, and accepts nothing more until it is opened again.
        """
        ...

    def skipped(self, skipped: SkippedUrl) -> None:
        """Write a URL without a page."""
        ...

    def flush(self) -> Any:
        """Pass all data to the system, so that it survives a kill; return a plain value for `open`.

        A power cut may lose the end of a file. Then `open` finds it shorter.
        """
        ...

    def close(self) -> None:
        """Close it. Idempotent."""
        ...


class Written(msgspec.Struct, frozen=True):
    """Actual contents of an output."""

    name: str
    """Kind and path of the output."""

    entries: int
    """Pages, or rows of a table."""

    missing: int
    """Entries that were written but are absent, because the output was cut or removed meanwhile."""
