"""Validation of crawl arguments: an error is raised before any host is contacted."""

from __future__ import annotations

import os
from collections.abc import Iterable

from curtsy.crawling.outputs import Output, open_output
from curtsy.engine.arguments import wrong


def writers_of(outputs: str | os.PathLike[str] | Iterable[str | os.PathLike[str] | Output]) -> list[Output]:
    """Return the outputs to write to. A path becomes an output by its ending. Raises PolicyError."""
    if isinstance(outputs, str | os.PathLike):
        return [open_output(os.fspath(outputs))]
    if isinstance(outputs, bytes) or not isinstance(outputs, Iterable):
        raise wrong("outputs", outputs, "a path such as 'pages.jsonl', or a list of paths and outputs")
    return [_writer(f"outputs[{place}]", each) for place, each in enumerate(outputs)]


def _writer(name: str, given: str | os.PathLike[str] | Output) -> Output:
    if isinstance(given, str | os.PathLike):
        return open_output(os.fspath(given))
    methods = ("open", "page", "skipped", "flush", "close")
    if isinstance(given, type) or not all(callable(getattr(given, each, None)) for each in methods):
        raise wrong(name, given, "a path such as 'pages.jsonl', or an output such as JsonLines('pages.jsonl')")
    return given
