"""Library log on the command line: JSON lines, or readable text on a terminal (N1)."""

from __future__ import annotations

import io
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from typing import TYPE_CHECKING, Any

import msgspec

from curtsy.cli import console
from curtsy.system.log import JsonHandler, install

if TYPE_CHECKING:
    from rich.console import Console

LEVELS = {"warn": "warning"}
"""Words for levels that differ from their names."""

NOT_FIELDS = ("ts", "level", "component", "msg")

MOST_FIELDS = 6
"""Maximum number of fields in a text line: the first informative ones. JSON lines have all."""

LONGEST = 120
"""Maximum length of a displayed value in characters."""

MOST_HELD = 1000
"""Maximum number of held lines: the latest."""


class TextHandler(JsonHandler):
    """Handler that writes `curtsy: warning: sentence key=value …` instead of JSON."""

    def shown(self, line: str) -> str:
        """Return the line as text: level, sentence, and fields that add information."""
        entry: dict[str, Any] = msgspec.json.decode(line)
        level, sentence = entry["level"], entry["msg"]
        words = f"curtsy: {LEVELS.get(level, level)}: {sentence}  {' '.join(_fields(entry))}"
        return "\n".join(console.wrapped(console.plain(words).rstrip()))


def _fields(entry: dict[str, Any]) -> list[str]:
    """Return the fields that are not empty and not part of the sentence or of another field."""
    found = {name: value for name, value in entry.items() if name not in NOT_FIELDS and not isinstance(value, dict)}
    if "traceback" in found:  # its last line names the error
        found["error"] = str(found.pop("traceback")).strip().rpartition("\n")[2]
    told: list[str] = []
    for name, value in found.items():
        values = value if isinstance(value, list) else [value]
        said = [entry["msg"], *told]
        is_said = all(isinstance(each, str) and any(each in text for text in said) for each in values)
        if value and not is_said:
            told.append(f"{name}={_quoted(','.join(map(_word, values)))}")
    return told[:MOST_FIELDS]


def _word(value: object) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _quoted(text: str) -> str:
    """Return a value cut to LONGEST, quoted if it contains blanks."""
    if len(text) > LONGEST:
        text = f"{text[:LONGEST]}…"
    return f'"{text}"' if " " in text else text


def listen(level: str, form: str) -> None:
    """Show library logs from `level` on: as `json`, `text`, or `auto`: text if standard error is a terminal."""
    is_text = form == "text" or (form == "auto" and sys.stderr.isatty())
    install(TextHandler() if is_text else JsonHandler(), level)


class _Above:
    """Stream that writes lines above a live view."""

    def __init__(self, terminal: Console) -> None:
        self._console = terminal

    def write(self, text: str) -> None:
        """Write a line."""
        self._console.print(text.rstrip("\n"), soft_wrap=True)

    def flush(self) -> None:
        """Do nothing, because lines are not buffered."""


@contextmanager
def logging_above(terminal: Console) -> Iterator[None]:
    """Redirect log lines above a live view, so that they do not garble it."""
    handlers = [each for each in logging.getLogger("curtsy").handlers if isinstance(each, JsonHandler)]
    for each in handlers:
        each.stream = _Above(terminal)
    try:
        yield
    finally:
        for each in handlers:
            each.stream = None


class Held(io.TextIOBase):
    """Replacement of standard error during a full-screen view: holds each line with its count."""

    def __init__(self) -> None:
        self.latest = ""
        """Last complete text."""
        self._lines: dict[str, int] = {}
        self._lost = 0
        self._begun = ""
        """Text of an unfinished line."""

    def write(self, text: str, /) -> int:
        """Hold the text; one that ends with a newline counts as one entry, even with several lines."""
        self._begun += text
        if self._begun.endswith("\n"):
            self.latest, self._begun = self._begun.rstrip("\n"), ""
            self._lines[self.latest] = self._lines.pop(self.latest, 0) + 1
            if len(self._lines) > MOST_HELD:
                self._lost += self._lines.pop(next(iter(self._lines)))
        return len(text)

    def isatty(self) -> bool:
        """Return True, as for the terminal that it replaces."""
        return True

    def say(self) -> None:
        """Write all held lines to standard error."""
        if self._lost:
            console.say(f"{console.counted(self._lost, 'line')} were dropped; these are the latest.")
        for line, count in self._lines.items():
            print(line if count == 1 else f"{line}  ({count:,} times)", file=sys.stderr)
        print(self._begun, end="", file=sys.stderr, flush=True)


@contextmanager
def holding_back() -> Iterator[Held]:
    """Hold back standard error on a terminal until the screen is free; without a terminal, do nothing."""
    held = Held()
    if not sys.stderr.isatty():
        yield held
        return
    try:
        with redirect_stderr(held):
            yield held
    finally:
        held.say()
