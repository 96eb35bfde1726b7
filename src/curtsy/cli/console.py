"""What people see: data on standard output, everything else on standard error; colours and bars on a terminal only.

Colours are the terminal's own sixteen, so that they fit a light and a dark background alike, and none of them says
anything that a mark or a word does not say too.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import textwrap
from typing import TYPE_CHECKING, Any, TextIO

from curtsy.core.escape import visible

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table
    from rich.text import Text

    from curtsy.observe.why_checks import State

MARKS: dict[State, tuple[str, str]] = {
    "yes": ("✓", "green"),
    "no": ("✗", "bold red"),
    "wait": ("◔", "yellow"),
    "unknown": ("?", "magenta"),
    "off": ("–", "dim"),
}
"""The mark of each state, and its style."""

ENDLESS = 1000
"""Columns where there is no terminal: a table that is piped is cut nowhere."""

_WHOLE_WORDS: Any = {"subsequent_indent": "  ", "break_long_words": False, "break_on_hyphens": False}


def plain(text: str) -> str:
    """Return the text as it may be shown: secrets are masked, and nothing in it can steer a terminal."""
    from curtsy.core.secrets import mask_url

    return visible(mask_url(text))


def out() -> Console:
    """The terminal for data."""
    return _console(sys.stdout)


def err() -> Console:
    """The terminal for everything else."""
    return _console(sys.stderr)


def _console(file: TextIO) -> Console:
    from rich.console import Console

    width = None
    if not file.isatty() and not os.environ.get("COLUMNS"):
        width = ENDLESS
    return Console(file=file, width=width, markup=False, emoji=False, highlight=False)


def show(terminal: Console, what: RenderableType) -> None:
    """Print a table; where there is no terminal, without the blanks that fill its last column."""
    if terminal.is_terminal:
        terminal.print(what)
        return
    with terminal.capture() as capture:
        terminal.print(what)
    terminal.file.write("".join(f"{line.rstrip()}\n" for line in capture.get().splitlines()))


def say(message: str, *, command: str | None = None) -> None:
    """Say something on standard error, as one line (or more, if the message has them), without its secrets.

    A `command` stands below it, to be copied: it is never broken, for a shell would run its first half.
    """
    from curtsy.core.secrets import mask_url

    first, *more = map(visible, f"curtsy: {mask_url(message)}".splitlines())
    lines = [part for line in (first, *(f"  {line}" for line in more)) for part in wrapped(line)]
    if command is not None:
        lines.append(f"  {visible(command)}")
    print("\n".join(lines), file=sys.stderr, flush=True)


def wrapped(line: str) -> list[str]:
    """A line for standard error as a terminal shows it: broken between words; elsewhere it stays whole."""
    if not sys.stderr.isatty():
        return [line]
    return textwrap.wrap(line, shutil.get_terminal_size().columns, **_WHOLE_WORDS)


def write_json(value: Any, *, line: bool = False) -> None:
    """Write a value as JSON, secrets masked: indented for one document, or on one line where more follow."""
    import msgspec

    # By way of msgspec, which knows our values and writes what is not finite as null; then in ASCII, which no
    # terminal and no pipe can spoil.
    known = _masked(msgspec.json.decode(msgspec.json.encode(value, enc_hook=str)))
    text = json.dumps(known) if line else json.dumps(known, indent=2)
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def _masked(value: Any) -> Any:
    """Return a value of JSON with the secrets of its URLs masked."""
    from curtsy.core.secrets import mask_url

    match value:
        case str():
            return mask_url(value)
        case dict():
            return {mask_url(name): _masked(each) for name, each in value.items()}
        case list():
            return [_masked(each) for each in value]
        case _:
            return value


def mark(state: State) -> Text:
    """The mark of a state, in its colour."""
    from rich.text import Text

    sign, style = MARKS[state]
    return Text(sign, style=style)


def table(*columns: str, right: tuple[str, ...] = (), folded: tuple[str, ...] = ()) -> Table:
    """A table without lines. Columns named in `right` are numbers; those in `folded` may take several lines."""
    from rich.table import Table

    found = Table(box=None, pad_edge=False, header_style="bold", show_header=any(columns))
    for name in columns:
        is_folded = name in folded
        found.add_column(
            name, justify="right" if name in right else "left", no_wrap=not is_folded,
            overflow="fold" if is_folded else "ellipsis",
        )  # fmt: skip
    return found


def brief(seconds: float) -> str:
    """A short time as people say it: `12 ms`, `3.4 s`."""
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"


def size(count: float) -> str:
    """A number of bytes as people say it: `512 B`, `3.4 KB`, `1.2 GB` (powers of 1024)."""
    for unit in ("B", "KB", "MB", "GB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" or count >= 100 else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TB"


def counted(count: int, noun: str) -> str:
    """A number with its noun: `1 page`, `2 pages`."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"
