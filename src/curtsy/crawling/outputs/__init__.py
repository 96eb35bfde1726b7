"""Outputs: the destinations of a crawl's pages. A crawl may have several.

    JsonLines    one JSON object per page
    Mirror       a site as files that a browser shows offline
    Folder       one file per body, and one beside it for its metadata
    Warc         WARC 1.1: request, response and revisit records, including those of redirects
    PagesCsv     a table of the pages
    SkippedCsv   URLs that were not fetched, with reasons
    Parts        JSON lines, WARC, Parquet or CSV in numbered files, here or in an object store

A crawl writes to its outputs just before it marks pages as done. The frontier records the end of each output (`flush`)
together with these marks. After a kill, `open` truncates everything later. So there are no torn lines or records, and
no duplicate pages.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TYPE_CHECKING

from curtsy.core.errors import PolicyError
from curtsy.core.masking import mask_url
from curtsy.crawling.outputs.part_storage import is_url
from curtsy.crawling.outputs.protocol import FileOutput, Output
from curtsy.engine.arguments import wrong
from curtsy.stores.url import check_path

if TYPE_CHECKING:
    from curtsy.crawling.outputs.jsonlines import BodyForm


KINDS = ("jsonl", "warc", "parquet", "csv", "folder", "mirror", "skipped")
"""Prefixes of a path, as in `folder:pages`."""

_ENDINGS = {
    ".jsonl": "jsonl", ".ndjson": "jsonl", ".warc": "warc", ".warc.gz": "warc", ".parquet": "parquet", ".csv": "csv",
    "/": "folder",
}  # fmt: skip


def open_output(
    text: str,
    *,
    body: BodyForm = "none",
    mask_secrets: bool = True,
    part_size: int | None = None,
    part_time: float | None = None,
) -> Output:
    """Return the output for a text of the command line: a path or URL with a known ending, or `kind:path`.

    Examples: `pages.jsonl`, `crawl.warc.gz`, `pages/`, `pages.csv`, `s3://bucket/pages.parquet`, `folder:pages`,
    `skipped:skipped.csv`; `-` is JSON lines on standard output. It is not opened yet. `body` applies to JSON lines and
    Parquet, `mask_secrets` to all but WARC, `part_size` and `part_time` to Parquet and URLs (`Parts`). Raises
    PolicyError, also if a library is missing.
    """
    kind, colon, path = text.partition(":")
    if not colon or kind not in KINDS:
        path = text
        kind = "jsonl" if text == "-" else next((_ENDINGS[end] for end in _ENDINGS if text.lower().endswith(end)), "")
        if not kind and os.path.isdir(text):
            kind = "folder"
    if not path or not kind:
        raise PolicyError(
            f"output = {mask_url(text)!r} must end in .jsonl, .warc.gz, .warc, .parquet, .csv or /, or say its kind: "
            f"{', '.join(f'{each}:PATH' for each in KINDS)}."
        )
    check_path("output", text)
    # Imported on demand: a program that makes its own outputs needs none of them.
    if kind == "parquet" or (is_url(path) and kind not in ("folder", "mirror")):
        from curtsy.crawling.outputs.parts import PART_SIZE, PART_TIME, Parts

        return Parts(
            path, kind, body=body, mask_secrets=mask_secrets, part_size=part_size or PART_SIZE,
            part_time=part_time or PART_TIME,
        )  # fmt: skip
    from curtsy.crawling.outputs.folder import Folder
    from curtsy.crawling.outputs.jsonlines import JsonLines
    from curtsy.crawling.outputs.skipped import SkippedCsv
    from curtsy.crawling.outputs.tables import PagesCsv
    from curtsy.crawling.outputs.warc import Warc

    match kind:
        case "warc":
            return Warc(path)
        case "mirror":
            from curtsy.crawling.outputs.mirror import Mirror

            return Mirror(path)
        case "folder":
            if is_url(path):
                shown = mask_url(text)
                raise PolicyError(f"output = {shown!r} is a folder of single files, which a URL cannot be. Use .jsonl.")
            return Folder(path, mask_secrets=mask_secrets)
        case "csv":
            return PagesCsv(path, mask_secrets=mask_secrets)
        case "skipped":
            return SkippedCsv(path, mask_secrets=mask_secrets)
        case _:
            return JsonLines(path, body=body, mask_secrets=mask_secrets)


def open_outputs(outputs: str | os.PathLike[str] | Iterable[str | os.PathLike[str] | Output]) -> list[Output]:
    """Return the outputs to write to. A path becomes an output by its ending. Raises PolicyError.

    Two outputs to one path are refused, because each would truncate what the other has written.
    """
    if isinstance(outputs, str | os.PathLike):
        return [open_output(os.fspath(outputs))]
    if isinstance(outputs, bytes) or not isinstance(outputs, Iterable):
        raise wrong("outputs", outputs, "a path such as 'pages.jsonl', or a list of paths and outputs")
    found = [_opened(f"outputs[{index}]", each) for index, each in enumerate(outputs)]
    known: set[str] = set()
    for each in found:
        if isinstance(each, FileOutput):
            if each.shown in known:
                raise PolicyError(f"two outputs write to {each.shown}. Give each a path of its own.")
            known.add(each.shown)
    return found


def _opened(name: str, given: str | os.PathLike[str] | Output) -> Output:
    if isinstance(given, str | os.PathLike):
        return open_output(os.fspath(given))
    methods = ("open", "page", "skipped", "flush", "close")
    if isinstance(given, type) or not all(callable(getattr(given, each, None)) for each in methods):
        raise wrong(name, given, "a path such as 'pages.jsonl', or an output such as JsonLines('pages.jsonl')")
    return given
