"""A terminal for the tests, as far as live views need one: what stands on it after all that was written."""

from __future__ import annotations

import re

_PIECE = re.compile(r"\x1b\[(?P<number>[\d;?]*)(?P<move>[A-Za-z])|(?P<back>\r)|(?P<down>\n)|(?P<letter>[^\x1b])")


def shown(written: str, columns: int = 80) -> str:
    """The lines of a terminal that is high enough; colours are left out."""
    lines: list[list[str]] = [[]]
    row = column = 0
    for piece in _PIECE.finditer(written):
        if piece["move"] == "A":
            row = max(0, row - int(piece["number"] or 1))
        elif piece["move"] == "K" and piece["number"] == "2":
            lines[row] = []
        elif piece["back"]:
            column = 0
        elif piece["down"]:
            row, column = row + 1, 0  # as a terminal does after the line discipline
        elif piece["letter"]:
            if column == columns:
                row, column = row + 1, 0
            lines += [[] for _ in range(row - len(lines) + 1)]
            line = lines[row]
            line += [" "] * (column - len(line) + 1)
            line[column] = piece["letter"]
            column += 1
        lines += [[] for _ in range(row - len(lines) + 1)]
    return "\n".join("".join(line).rstrip() for line in lines)


def uncoloured(written: str) -> str:
    """All that was ever written, without what steers the terminal."""
    return re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", written)
