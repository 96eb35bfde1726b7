"""Reader of a project's `.env` file; the real environment takes precedence.

Each line is `NAME=value` or `export NAME=value`; `#` begins a comment. Single quotes keep a value literally. In double
quotes, `\\n`, `\\t`, `\\"` and `\\\\` are escapes. An unquoted value ends at a blank followed by `#`. Variables are not
expanded: `$HOME` stays `$HOME`. Only curtsy's variables are read.
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
"""Maximum size in bytes; a larger file is ignored."""

_ASSIGNMENT = re.compile(r"(?:export[ \t]+)?([A-Za-z_][A-Za-z0-9_]*)[ \t]*=[ \t]*(.*)", re.DOTALL)
_QUOTED = re.compile(r"""(?:'([^']*)'|"((?:[^"\\]|\\.)*)")[ \t]*(?:#.*)?""", re.DOTALL)
_COMMENT = re.compile(r"(?:^|[ \t]+)#.*", re.DOTALL)
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
_ESCAPED = {"n": "\n", "t": "\t", "r": "\r"}


def read_dotenv(directory: Path, complaints: Problems) -> dict[str, tuple[str, Spot]]:
    """Return curtsy's variables of a directory's `.env` file, with their lines; the last of a name wins.

    Warns about an unreadable file, and about a malformed value of a curtsy variable.
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
