"""Terminal output: data on standard output, messages and the library's log on standard error.

Colours appear only on a terminal. They are the terminal's own sixteen, to fit light and dark backgrounds. A mark or a
word repeats the meaning of each colour.
"""

from __future__ import annotations

import io
import json
import logging
import os
import shutil
import sys
import textwrap
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr
from typing import TYPE_CHECKING, Any, TextIO

import click
import msgspec

from curtsy.core.escape import visible
from curtsy.core.masking import mask_url
from curtsy.system.log import JsonHandler, install

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.live import Live
    from rich.table import Table
    from rich.text import Text

    from curtsy.cli.fitted_table import FittedTable
    from curtsy.observe.why import State

MARKS: dict[State, tuple[str, str]] = {
    "yes": ("✓", "green"),
    "no": ("✗", "bold red"),
    "wait": ("◔", "yellow"),
    "unknown": ("?", "magenta"),
    "off": ("–", "dim"),
}
"""Mark and style of each state."""

ENDLESS = 1000
"""Width in columns without a terminal, so that piped tables are not cut."""

LEVELS = {"warn": "warning"}
"""Words for levels that differ from their names."""

NOT_FIELDS = ("ts", "level", "component", "msg")

MOST_FIELDS = 6
"""Maximum number of fields in a text line: the first informative ones. JSON lines have all."""

LONGEST = 120
"""Maximum length of a displayed value in characters."""

MOST_HELD = 1000
"""Maximum number of held lines: the latest."""

_WHOLE_WORDS: Any = {"subsequent_indent": "  ", "break_long_words": False, "break_on_hyphens": False}


def plain(text: str) -> str:
    """Return the text with secrets masked and control characters escaped."""
    return visible(mask_url(text))


def out() -> Console:
    """Return the console for data."""
    return _console(sys.stdout)


def err() -> Console:
    """Return the console for everything else."""
    return _console(sys.stderr)


def _console(file: TextIO) -> Console:
    from rich.console import Console

    width = None
    if not file.isatty() and not os.environ.get("COLUMNS"):
        width = ENDLESS
    return Console(file=file, width=width, markup=False, emoji=False, highlight=False)


def live(view: RenderableType | None = None, **options: Any) -> Live:
    """Create a live view on standard error, which is erased at its end."""
    from rich.live import Live

    return Live(
        view,
        console=err(),
        refresh_per_second=8,
        transient=True,
        redirect_stdout=False,
        redirect_stderr=False,
        **options,
    )


def show(terminal: Console, what: RenderableType) -> None:
    """Print a table; without a terminal, strip trailing blanks."""
    if terminal.is_terminal:
        terminal.print(what)
        return
    with terminal.capture() as capture:
        terminal.print(what)
    terminal.file.write("".join(f"{line.rstrip()}\n" for line in capture.get().splitlines()))


def say(message: str, *, command: str | None = None) -> None:
    """Print a message with masked secrets on standard error, prefixed with `curtsy:`.

    A `command` is printed below it, unwrapped: a shell would run the first half of a wrapped one.
    """
    first, *more = map(visible, f"curtsy: {mask_url(message)}".splitlines())
    lines = [part for line in (first, *(f"  {line}" for line in more)) for part in wrapped(line)]
    if command is not None:
        lines.append(f"  {visible(command)}")
    print("\n".join(lines), file=sys.stderr, flush=True)


def wrapped(line: str) -> list[str]:
    """Wrap a line for standard error at the terminal's width; without a terminal, keep it whole."""
    if not sys.stderr.isatty():
        return [line]
    return textwrap.wrap(line, shutil.get_terminal_size().columns, **_WHOLE_WORDS)


def write_json(value: Any, *, line: bool = False) -> None:
    """Write a value as JSON with masked secrets: indented, or on one `line` in a sequence."""
    sys.stdout.write(_as_json(value, None if line else 2) + "\n")
    sys.stdout.flush()


def write_json_list(values: Iterable[Any]) -> bool:
    """Write values as one JSON list, each as soon as it is known; return whether there was one."""
    before = "["
    for value in values:
        sys.stdout.write(f"{before}\n{textwrap.indent(_as_json(value, 2), '  ')}")
        before = ","
    sys.stdout.write("[]\n" if before == "[" else "\n]\n")
    sys.stdout.flush()
    return before == ","


def _as_json(value: Any, indentation: int | None) -> str:
    # msgspec encodes curtsy's types and writes non-finite numbers as null; json.dumps makes it ASCII, safe for any
    # terminal.
    return json.dumps(_masked(msgspec.json.decode(msgspec.json.encode(value, enc_hook=str))), indent=indentation)


def _masked(value: Any) -> Any:
    """Return a JSON value with the secrets of its URLs masked."""
    match value:
        case str():
            return mask_url(value)
        case dict():
            return {mask_url(name): _masked(each) for name, each in value.items()}
        case list():
            return [_masked(each) for each in value]
        case _:
            return value


def text(*parts: str | tuple[str, str] | Text, style: str = "") -> Text:
    """Create a text in a style; a part that is a tuple has a style of its own."""
    from rich.text import Text

    return Text.assemble(*parts, style=style)


def mark(state: State) -> Text:
    """Return the mark of a state, in its colour."""
    return text(MARKS[state])


def table(*columns: str, right: Collection[str] = (), folded: Collection[int] = ()) -> Table:
    """Create a table without borders. `right` names right-aligned columns, `folded` numbers those that may wrap."""
    from rich.table import Table

    found = Table(box=None, pad_edge=False, header_style="bold", show_header=any(columns))
    for place, name in enumerate(columns):
        is_folded = place in folded
        found.add_column(
            name, justify="right" if name in right else "left", no_wrap=not is_folded,
            overflow="fold" if is_folded else "ellipsis",
        )  # fmt: skip
    return found


def fitted_table(
    *columns: str, right: Sequence[str] = (), least: Sequence[str] = (), is_one_line: bool = False
) -> FittedTable:
    """Create a table whose first column names the row. If it is too wide, the columns of `least` are omitted first."""
    from curtsy.cli.fitted_table import FittedTable

    return FittedTable(*columns, right=right, least=least, is_one_line=is_one_line)


def show_rows(terminal: Console, rows: Iterable[tuple[str, Text | str]]) -> None:
    """Print names and values in two columns; long values wrap."""
    found = table("", "", folded=(1,))
    for name, value in rows:
        found.add_row(text(plain(name), style="dim"), plain(value) if isinstance(value, str) else value)
    show(terminal, found)


def confirm(what: str, question: str) -> None:
    """Ask for confirmation. Raises Abort for a no, and UsageError without a terminal."""
    if not sys.stdin.isatty():
        raise click.UsageError(f"{what}. Confirm with --yes.")
    click.confirm(question, err=True, abort=True)


def brief(seconds: float) -> str:
    """Format a duration of seconds: `12 ms`, `3.4 s`."""
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"


def size(count: float) -> str:
    """Format a number of bytes: `512 B`, `3.4 KB`, `1.2 GB` (powers of 1024)."""
    for unit in ("B", "KB", "MB", "GB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" or count >= 100 else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TB"


def counted(count: int, noun: str) -> str:
    """Format a number with its noun: `1 page`, `2 pages`."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def packed(figures: Sequence[str], width: int) -> list[str]:
    """Return the figures as lines of at most `width` columns; a figure is not broken."""
    lines = [figures[0]]
    for figure in figures[1:]:
        longer = f"{lines[-1]} · {figure}"
        if len(longer) <= width:
            lines[-1] = longer
        else:
            lines.append(figure)
    return lines


# --- The library's log (N1)


class TextHandler(JsonHandler):
    """Handler that writes `curtsy: warning: sentence key=value …` instead of JSON."""

    def shown(self, line: str) -> str:
        """Return the line as text: level, sentence, and fields that add information."""
        entry: dict[str, Any] = msgspec.json.decode(line)
        level, sentence = entry["level"], entry["msg"]
        words = f"curtsy: {LEVELS.get(level, level)}: {sentence}  {' '.join(_fields(entry))}"
        return "\n".join(wrapped(plain(words).rstrip()))


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
            say(f"{counted(self._lost, 'line')} were dropped; these are the latest.")
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
