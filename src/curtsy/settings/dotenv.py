"""The `.env` file of a project: variables for curtsy, below those of the real environment.

The grammar is small: `NAME=value` or `export NAME=value` on a line, `#` begins a comment. A value in single quotes is
taken as it is; in double quotes `\\n`, `\\t`, `\\"` and `\\\\` are escapes; a bare one ends at a blank and a `#`.
There is no interpolation: `$HOME` stays `$HOME`. Only variables of curtsy are read, and no others.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from curtsy.settings.document import Spot
from curtsy.settings.keys import ALIASES
from curtsy.settings.problems import Problems

NAME = ".env"
MOST = 1 << 20
"""Bytes beyond which a file is no `.env` file."""

_ASSIGNMENT = re.compile(r"(?:export[ \t]+)?([A-Za-z_][A-Za-z0-9_]*)[ \t]*=[ \t]*(.*)", re.DOTALL)
_QUOTED = re.compile(r"""(?:'([^']*)'|"((?:[^"\\]|\\.)*)")[ \t]*(?:#.*)?""", re.DOTALL)
_COMMENT = re.compile(r"(?:^|[ \t]+)#.*", re.DOTALL)
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
_ESCAPED = {"n": "\n", "t": "\t", "r": "\r"}


def read_dotenv(directory: Path, complaints: Problems) -> dict[str, tuple[str, Spot]]:
    """Return the variables of curtsy in a directory's `.env` file, each with its line; the last of a name wins.

    A file that cannot be read is warned about, and so is a line for curtsy that cannot.
    """
    path = directory / NAME
    try:
        if not path.is_file():
            return {}
        if path.stat().st_size > MOST:
            complaints.warn(Spot(NAME), "", f"it has more than {MOST:,} bytes, and is ignored.")
            return {}
        text = path.read_text(encoding="utf-8-sig", errors="replace")
    except OSError as error:
        complaints.warn(Spot(NAME), "", f"it cannot be read ({error.strerror}), and is ignored.")
        return {}
    return dict(_variables(text, complaints))


def merged(env: Mapping[str, str], found: Mapping[str, tuple[str, Spot]]) -> dict[str, str]:
    """Return the variables of both; the real environment wins, even with an empty value."""
    return {**{name: value for name, (value, _) in found.items()}, **env}


def _variables(text: str, complaints: Problems) -> Iterator[tuple[str, tuple[str, Spot]]]:
    for number, line in enumerate(text.split("\n"), 1):
        found = _ASSIGNMENT.fullmatch(line.strip(" \t\r"))
        if found is None or not (found[1].startswith("CURTSY_") or found[1] in ALIASES):
            continue
        value, spot = _value(found[2]), Spot(NAME, number)
        if value is None:
            complaints.warn(spot, "", f"the value of {found[1]} has an open quote, or text behind it; it is ignored.")
        else:
            yield found[1], (value, spot)


def _value(text: str) -> str | None:
    if text[:1] not in ("'", '"'):
        return _COMMENT.sub("", text)
    found = _QUOTED.fullmatch(text)
    if found is None:
        return None
    if found[1] is not None:
        return found[1]
    return _ESCAPE.sub(lambda each: _ESCAPED.get(each[1], each[1]), found[2])
