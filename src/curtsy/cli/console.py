"""Terminal output: data on standard output, messages on standard error; colours only on a terminal.

Colours are the terminal's own sixteen, to fit light and dark backgrounds. A mark or a word repeats the meaning of each
colour.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import textwrap
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, Any, TextIO

import click

from curtsy.core.escape import visible
from curtsy.core.secrets import mask_url

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.live import Live
    from rich.table import Table
    from rich.text import Text

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
    import msgspec

    # msgspec encodes curtsy's types and writes non-finite numbers as null; json.dumps makes it ASCII, safe for any
    # terminal.
    known = _masked(msgspec.json.decode(msgspec.json.encode(value, enc_hook=str)))
    text = json.dumps(known) if line else json.dumps(known, indent=2)
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


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


def mark(state: State) -> Text:
    """Return the mark of a state, in its colour."""
    from rich.text import Text

    sign, style = MARKS[state]
    return Text(sign, style=style)


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


def show_rows(terminal: Console, rows: Iterable[tuple[str, Text | str]]) -> None:
    """Print names and values in two columns; long values wrap."""
    from rich.text import Text

    found = table("", "", folded=(1,))
    for name, value in rows:
        found.add_row(Text(plain(name), style="dim"), plain(value) if isinstance(value, str) else value)
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
