"""Outputs: the destinations of a crawl's pages. A crawl may have several.

    JsonLines    one JSON object per page
    Folder       one file per body, and one beside it for its metadata
    Warc         WARC 1.1: request, response and revisit records, including those of redirects
    SkippedCsv   URLs that were not fetched, with reasons

A crawl writes to its outputs just before it marks pages as done. The frontier records the end of each output (`flush`)
together with these marks. After a kill, `open` truncates everything later. So there are no torn lines or records, and
no duplicate pages.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import msgspec

from curtsy.core.errors import PolicyError
from curtsy.crawling.page import CrawledPage, Skipped
from curtsy.stores.url import check_path

if TYPE_CHECKING:
    from curtsy.crawling.outputs.entry import BodyForm


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

    def skipped(self, skipped: Skipped) -> None:
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


@runtime_checkable
class Archive(Output, Protocol):
    """Output that also stores redirects, without which links in an archive could not be followed."""

    def redirect(self, page: CrawledPage) -> None:
        """Write the response of a redirect."""
        ...


@runtime_checkable
class Stream(Output, Protocol):
    """Output that may be a pipe or a terminal, which cannot be truncated."""

    @property
    def is_stream(self) -> bool:
        """Return whether it is a stream. A stream gets each entry once, and keeps its unsent bytes."""
        ...

    def check(self) -> None:
        """Raise NotWritten if its reader has closed it."""
        ...


class Written(msgspec.Struct, frozen=True):
    """Actual contents of an output."""

    name: str
    """Kind and path of the output."""

    entries: int
    """Pages, or rows of a table."""

    missing: int
    """Entries that were written but are absent, because the output was cut or removed meanwhile."""


@runtime_checkable
class Counted(Output, Protocol):
    """Output that counts its contents."""

    def written(self) -> Written:
        """Return its contents over all runs."""
        ...


KINDS = ("jsonl", "warc", "folder", "csv")
"""Prefixes of a path, as in `folder:pages`."""

_ENDINGS = {".jsonl": "jsonl", ".ndjson": "jsonl", ".warc": "warc", ".warc.gz": "warc", ".csv": "csv", "/": "folder"}


def open_output(text: str, *, body: BodyForm = "none", mask_secrets: bool = True) -> Output:
    """Return the output for a text of the command line: a path with a known ending, or `kind:path`.

    Examples: `pages.jsonl`, `crawl.warc.gz`, `pages/`, `skipped.csv`, `folder:pages`; `-` is JSON lines on standard
    output. It is not opened yet. `body` applies to JSON lines, `mask_secrets` to all but WARC. Raises PolicyError.
    """
    kind, colon, path = text.partition(":")
    if not colon or kind not in KINDS:
        path = text
        kind = "jsonl" if text == "-" else next((_ENDINGS[end] for end in _ENDINGS if text.lower().endswith(end)), "")
        if not kind and os.path.isdir(text):
            kind = "folder"
    if not path or not kind:
        raise PolicyError(
            f"output = {text!r} must end in .jsonl, .warc.gz, .warc, .csv or /, or say its kind: "
            f"{', '.join(f'{each}:PATH' for each in KINDS)}."
        )
    check_path("output", text)
    # Imported on demand: JSON lines need neither zlib nor csv.
    if kind == "warc":
        from curtsy.crawling.outputs.warc import Warc

        return Warc(path)
    if kind == "folder":
        from curtsy.crawling.outputs.folder import Folder

        return Folder(path, mask_secrets=mask_secrets)
    if kind == "csv":
        from curtsy.crawling.outputs.skipped import SkippedCsv

        return SkippedCsv(path, mask_secrets=mask_secrets)
    from curtsy.crawling.outputs.jsonlines import JsonLines

    return JsonLines(path, body=body, mask_secrets=mask_secrets)
