"""Notes on the outputs of a job: their extracted fields, and the pages of runs in which they were not named.

The notes of a process are one value in the frontier. Of a job that starts over, only the fields are kept, because its
output files are continued.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from curtsy.core.crawl_messages import output_lacks, output_not_named
from curtsy.crawling.outputs.append_file import STANDARD_OUTPUT, other_fields_in, read_state
from curtsy.crawling.outputs.protocol import FileOutput, Output
from curtsy.crawling.outputs.skipped import Examples, SkippedCsv
from curtsy.crawling.progress import CrawlTotals

OUTPUTS = "outputs"
"""Note with an OutputNote by name. In a shared job, each worker has its own note with this prefix."""

COMPLETE = "complete"
"""Note: true if the last run recorded all that it wrote. In a shared job, each worker has its own with this prefix."""

EXTRACT = "extract"
"""Fields that the job extracts: its selectors by name, or `function`; None without."""

Fields = dict[str, str] | str | None
"""Value of the note EXTRACT."""

_WITHOUT_FIELDS = ("warc", "mirror", SkippedCsv.kind)
"""Kinds of outputs that do not contain extracted fields."""


class OutputNote(msgspec.Struct, frozen=True):
    """Facts about an output that its file does not show."""

    extract: Fields = None
    """Fields of its pages, as in the note EXTRACT."""

    earlier: int = 0
    """Pages of the job from runs without this output; URLs of a table of skipped ones."""

    left_at: int | None = None
    """Number of these in the job when a run began without the output; None while runs have it."""


def read_notes(notes: Mapping[str, Any], who: str = "") -> dict[str, OutputNote]:
    """Return the notes on all outputs of a process, also those of a version that did not write any."""
    found = read_state(OUTPUTS, notes.get(OUTPUTS + who), dict[str, OutputNote]) or {}
    prefix = f"output{who}:"
    names = [name.removeprefix(prefix) for name in notes if name.startswith(prefix)]
    known = OutputNote(notes.get(EXTRACT))
    return {name: found.get(name, known) for name in names if name != Examples.name}


def kept(notes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the notes for a job that starts over and continues its output files."""
    fields = {name: msgspec.to_builtins(OutputNote(each.extract)) for name, each in read_notes(notes).items()}
    return {OUTPUTS: fields, COMPLETE: bool(notes.get(COMPLETE))}


def check_fields(outputs: Sequence[Output], extract: Fields, notes: Mapping[str, Any], who: str = "") -> None:
    """Refuse to continue an output that has other fields. Raises NotWritten."""
    known = read_notes(notes, who)
    for output in outputs:
        note = known.get(output.name)
        if note is None or not isinstance(output, FileOutput) or output.name.split(":")[0] in _WITHOUT_FIELDS:
            continue
        is_there = output.is_rolled or os.path.isfile(output.file)
        if is_there and note.extract != extract:
            raise other_fields_in(output.shown)


def counted_in(name: str, totals: CrawlTotals) -> int:
    """Return the number of entries that a job has for an output: pages, or URLs without a page."""
    if not name.startswith(f"{SkippedCsv.kind}:"):
        return totals.pages
    return sum(sum(each.values()) for each in (totals.skipped, totals.failed, totals.left_out))


class Coverage(msgspec.Struct, frozen=True):
    """Part of the job's pages that each output has."""

    notes: dict[str, OutputNote] = {}
    told: tuple[str, ...] = ()
    """A message for each output that lacks pages from this run on."""

    def earlier(self, name: str) -> int:
        """Return the number of entries from runs without an output."""
        return self.notes[name].earlier if name in self.notes else 0


def coverage(known: Mapping[str, OutputNote], names: Sequence[str], extract: Fields, totals: CrawlTotals) -> Coverage:
    """Compare the outputs of a run, `names`, with those of earlier runs. `totals` are those before the run."""
    notes, told = dict(known), list[str]()
    for name, note in known.items():
        if name not in names and note.left_at is None:
            notes[name] = msgspec.structs.replace(note, left_at=counted_in(name, totals))
            if totals.pages:
                told.append(output_not_named(path_in(name)))
    for name in names:
        note, before = known.get(name, OutputNote(left_at=0)), counted_in(name, totals)
        new = 0 if note.left_at is None else max(0, before - note.left_at)
        notes[name] = OutputNote(extract, note.earlier + new)
        if new:
            told.append(output_lacks(path_in(name), notes[name].earlier, before))
    return Coverage(notes, tuple(told))


def path_in(name: str) -> str:
    """Return the path in the name of an output, for messages."""
    path = name.partition(":")[2] or name
    return "standard output" if path == STANDARD_OUTPUT else path
