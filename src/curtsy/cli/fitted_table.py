"""Table that fits a narrow terminal: it omits whole columns instead of cutting all of them."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.table import Column, Table

LEAST_NAME = 32
"""Width in columns that a longer name gets before a column is omitted for it."""

GAP = 2
"""Blanks between two columns."""


class FittedTable(Table):
    """Table whose first column names the row.

    If the table is too wide, the columns of `least` are omitted, the first one first. A long name wraps, so that it can
    be read and copied; with `is_one_line`, its middle is cut. All other columns keep their widths.
    """

    def __init__(self, *columns: str, right: Sequence[str], least: Sequence[str], is_one_line: bool = False) -> None:
        super().__init__(box=None, pad_edge=False, header_style="bold")
        for name in columns:
            self.add_column(name, justify="right" if name in right else "left", no_wrap=True, overflow="ellipsis")
        self._least = least
        self._is_one_line = is_one_line

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Draw the columns that fit."""
        widths = [
            max(Measurement.get(console, options, cell).maximum for cell in (column.header, *column.cells))
            for column in self.columns
        ]
        kept = self._kept(widths, options.max_width)
        room = max(1, options.max_width - sum(widths[place] + GAP for place in kept[1:]))
        yield from self._of([self.columns[place] for place in kept], room).__rich_console__(console, options)

    def _kept(self, widths: list[int], most: int) -> list[int]:
        """Return the places of the columns that fit into `most` blanks."""
        kept, name = list(range(len(widths))), min(widths[0], LEAST_NAME)
        for title in self._least:
            if name + sum(widths[place] + GAP for place in kept[1:]) <= most:
                break
            kept = [place for place in kept if self.columns[place].header != title]
        return kept

    def _of(self, columns: list[Column], room: int) -> Table:
        """Return a table of these columns, with `room` for the names."""
        found = Table(box=None, pad_edge=False, header_style="bold")
        for place, column in enumerate(columns):
            is_folded = place == 0 and not self._is_one_line
            found.add_column(
                column.header, justify=column.justify, no_wrap=not is_folded,
                overflow="fold" if is_folded else "ellipsis",
            )  # fmt: skip
        for name, *cells in zip(*(column.cells for column in columns), strict=True):
            is_cut = self._is_one_line and isinstance(name, str)
            found.add_row(shortened(str(name), room) if is_cut else name, *cells)
        return found


def shortened(name: str, most: int) -> str:
    """Return a name without its middle if it is longer than `most`: its ends tell it from others."""
    if len(name) <= most:
        return name
    tail = max(0, most - 1) // 2
    return f"{name[: max(0, most - 1 - tail)]}…{name[len(name) - tail :]}"
