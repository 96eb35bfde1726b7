"""The library's log on the command line: JSON lines, or on a terminal lines that people can read (N1)."""

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
"""The word for a level, where it is not its name."""

NOT_FIELDS = ("ts", "level", "component", "msg")

MOST_FIELDS = 6
"""Fields that a readable line has: the first that say something. JSON lines have all of them."""

LONGEST = 120
"""Letters of a value that are shown."""

MOST_HELD = 1000
"""Lines that are kept back at once: the latest."""


class TextHandler(JsonHandler):
    """Writes `curtsy: warning: sentence  key=value …` instead of JSON, for a terminal."""

    def shown(self, line: str) -> str:
        """The line for people: the level, the sentence, and the fields that say more than it does."""
        entry: dict[str, Any] = msgspec.json.decode(line)
        level, sentence = entry["level"], entry["msg"]
        words = f"curtsy: {LEVELS.get(level, level)}: {sentence}  {' '.join(_fields(entry))}"
        return "\n".join(console.wrapped(console.plain(words).rstrip()))


def _fields(entry: dict[str, Any]) -> list[str]:
    """Those with something in them that neither the sentence nor another one says."""
    found = {name: value for name, value in entry.items() if name not in NOT_FIELDS and not isinstance(value, dict)}
    if "traceback" in found:  # of which the last line says what it was
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
    """A value that is one word to the eye."""
    if len(text) > LONGEST:
        text = f"{text[:LONGEST]}…"
    return f'"{text}"' if " " in text else text


def listen(level: str, form: str) -> None:
    """Show what the library tells from `level` on: as `json`, `text`, or `auto`: text if somebody is at a terminal."""
    is_text = form == "text" or (form == "auto" and sys.stderr.isatty())
    install(TextHandler() if is_text else JsonHandler(), level)


class _Above:
    """Lines above whatever is drawn live on a terminal."""

    def __init__(self, terminal: Console) -> None:
        self._console = terminal

    def write(self, text: str) -> None:
        """Write a line."""
        self._console.print(text.rstrip("\n"), soft_wrap=True)

    def flush(self) -> None:
        """Nothing is held back."""


@contextmanager
def logging_above(terminal: Console) -> Iterator[None]:
    """Have the log written above what is drawn live on a terminal, where it does not tear it."""
    handlers = [each for each in logging.getLogger("curtsy").handlers if isinstance(each, JsonHandler)]
    for each in handlers:
        each.stream = _Above(terminal)
    try:
        yield
    finally:
        for each in handlers:
            each.stream = None


class Held(io.TextIOBase):
    """Standard error while the whole screen is drawn on: what was written to it, each line with how often it came."""

    def __init__(self) -> None:
        self.latest = ""
        """What was written last."""
        self._lines: dict[str, int] = {}
        self._lost = 0
        self._begun = ""
        """What waits for the end of its line."""

    def write(self, text: str, /) -> int:
        """Keep it; what ends with a line is one thing, however many lines it has."""
        self._begun += text
        if self._begun.endswith("\n"):
            self.latest, self._begun = self._begun.rstrip("\n"), ""
            self._lines[self.latest] = self._lines.pop(self.latest, 0) + 1
            if len(self._lines) > MOST_HELD:
                self._lost += self._lines.pop(next(iter(self._lines)))
        return len(text)

    def isatty(self) -> bool:
        """As what it stands for."""
        return True

    def say(self) -> None:
        """Write all of it to standard error."""
        if self._lost:
            console.say(f"{console.counted(self._lost, 'line')} could not be kept; these are the latest.")
        for line, count in self._lines.items():
            print(line if count == 1 else f"{line}  ({count:,} times)", file=sys.stderr)
        print(self._begun, end="", file=sys.stderr, flush=True)


@contextmanager
def holding_back() -> Iterator[Held]:
    """Keep back what is written to a terminal as standard error, until the screen is free; elsewhere it is written."""
    held = Held()
    if not sys.stderr.isatty():
        yield held
        return
    try:
        with redirect_stderr(held):
            yield held
    finally:
        held.say()
