"""Outputs: where the pages of a crawl go, any number of them at once.

    JsonLines    one JSON object a page
    Folder       one file a body, and one beside it for what is known of it
    Warc         WARC 1.1: request, response and revisit records, those of redirects included
    SkippedCsv   what was not fetched, and why

A crawl writes to its outputs just before it notes that pages are done, and the frontier keeps in the same piece where
each output ended (`flush`). Killed at any moment and resumed, `open` cuts what was written after that; so there is no
torn line or record, and no page twice.
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
    """The contract. The calls come in this order: open, any number of the next three, close; from one thread at a time,
    but not always the same one: what is large is written beside the event loop.
    """

    @property
    def name(self) -> str:
        """What tells it from the crawl's other outputs, the same at every start: its kind and its path."""
        ...

    def open(self, state: Any | None) -> None:
        """Begin, or go on where `state`, what `flush` last answered, says. None begins anew.

        Nothing is written yet: whoever notes the answer of a first `flush` before the first page can always go on. An
        output that has failed may be opened again with the state that was noted last.

        A file that has become shorter than that is gone on with at its end, and a warning says so. What lies at its
        place and is not ours is never overwritten: an error (`NotWritten`) says so. That is any file that is not empty
        if `state` is None, and else one with other content than was written.
        """
        ...

    def page(self, page: CrawledPage) -> None:
        """Write a page. `NotWritten` if it cannot be, as on a full disk.

        Then the output is as it was after the last `flush`, and takes nothing more until it is opened again.
        """
        ...

    def skipped(self, skipped: Skipped) -> None:
        """Write a URL from which no page came."""
        ...

    def flush(self) -> Any:
        """Hand everything to the system, so that a kill does not take it back; answers a plain value for `open`.

        A power cut may take the last moments of a file; `open` then finds it shorter.
        """
        ...

    def close(self) -> None:
        """End it. Idempotent."""
        ...


@runtime_checkable
class Archive(Output, Protocol):
    """An output that keeps what was said on the way, too: no link could be followed in it otherwise."""

    def redirect(self, page: CrawledPage) -> None:
        """Write an answer that led elsewhere."""
        ...


@runtime_checkable
class Stream(Output, Protocol):
    """An output that may be a pipe or a terminal, from which nothing can be taken back."""

    @property
    def is_stream(self) -> bool:
        """Whether it is one. What was handed to it is not handed to it again: it keeps what it could not send."""
        ...

    def check(self) -> None:
        """Raise NotWritten if its reader has closed it."""
        ...


class Written(msgspec.Struct, frozen=True):
    """What an output really holds."""

    name: str
    """Its kind and its path."""

    entries: int
    """Pages, or rows of a table."""

    missing: int
    """Entries that were written too and are not there: the output was cut or removed meanwhile."""


@runtime_checkable
class Counted(Output, Protocol):
    """An output that can tell what it holds."""

    def written(self) -> Written:
        """Say what it holds, over all runs."""
        ...


KINDS = ("jsonl", "warc", "folder", "csv")
"""What may stand before a path, as in `folder:pages`."""

_ENDINGS = {".jsonl": "jsonl", ".ndjson": "jsonl", ".warc": "warc", ".warc.gz": "warc", ".csv": "csv", "/": "folder"}


def open_output(text: str, *, body: BodyForm = "none", mask_secrets: bool = True) -> Output:
    """The output that a text names, as on the command line: by its ending, or as `kind:path`. It is not opened yet.

    `pages.jsonl`, `crawl.warc.gz`, `pages/`, `skipped.csv`, `folder:pages`; `-` is JSON lines on standard output.
    `body` is for JSON lines, `mask_secrets` for all but WARC.
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
    # Each is imported when it is wanted: a program that writes lines needs neither zlib nor csv.
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
