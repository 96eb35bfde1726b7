"""Write the tables of docs/reference/settings.md from the settings themselves; `--check` only says if they are current.

The text around the tables is written by hand. A key is explained by the docstring under its field.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from curtsy import __version__
from curtsy.settings import AT_START
from curtsy.settings.general import ALIASES, NOT_LIMITED, PRESETS, Key, keys
from curtsy.settings.problems import shown
from curtsy.settings.template import help_texts

PAGE = Path(__file__).parent.parent / "docs" / "reference" / "settings.md"


def type_of(key: Key) -> str:
    """The type of a key, in words."""
    if get_origin(key.kind) is Literal:
        words = ", ".join(f"`{each}`" for each in get_args(key.kind))
    elif key.name == "pause":
        words = "list of two numbers"
    else:
        words = {float: "number", int: "whole number", bool: "true or false", tuple: "list of text"}.get(
            key.kind, "text"
        )
    return f"{words} or `none`" if key.optional else words


def default_of(key: Key) -> str:
    """The built-in default of a key, as a user would write it."""
    if key.scope == "entry":
        return {"domain": "must be given", "shared": "`false`", "limited": "`true`"}[key.name]
    if key.name == "timezone":
        return "`local`"
    if key.name == "user_agent":
        return f"`{shown(key.default, bare=True)}`".replace(__version__, "<version>")
    return f"`{shown(key.default, bare=True)}`"


def keys_table(scope: str) -> str:
    """All keys of a scope."""
    explained = help_texts()
    rows = ["| key | type | unit | default | environment | meaning |", "|---|---|---|---|---|---|"]
    for key in keys().values():
        if key.scope == scope:
            names = [key.variable, *(alias for alias, name in ALIASES.items() if name == key.name)]
            variables = ", ".join(f"`{name}`" for name in names if name)
            cells = (
                f"`{key.name}`",
                type_of(key),
                key.range.unit,
                default_of(key),
                variables,
                explained[key.name],
            )
            rows.append("| " + " | ".join(cells) + " |")
    return "\n".join(rows)


def changes(values: dict[str, Any]) -> str:
    """Values that are set, in a line."""
    return ", ".join(f"`{name}: {shown(value, bare=True)}`" for name, value in values.items()) or "nothing"


def presets_table() -> str:
    """All presets."""
    rows = [f"| `{name}` | {changes(values)} |" for name, values in PRESETS.items()]
    return "\n".join(["| preset | changes |", "|---|---|", *rows])


def page(text: str) -> str:
    """The page with its tables as they should be."""
    tables = {
        "general": keys_table("general"),
        "policy": keys_table("policy"),
        "entry": keys_table("entry"),
        "presets": presets_table(),
        "not-limited": changes(NOT_LIMITED) + ".",
        "at-start": ", ".join(f"`{name}`" for name in AT_START) + ".",
    }
    for name, table in tables.items():
        before, mark, rest = text.partition(f"<!-- {name} -->\n")
        _, end, after = rest.partition("\n<!-- end -->")
        if not (mark and end):
            raise SystemExit(f"{PAGE.name} has no place for {name}: put <!-- {name} --> and <!-- end --> into it.")
        text = before + mark + table + end + after
    return text


def main() -> None:
    """Write the page, or check it."""
    old = PAGE.read_text(encoding="utf-8")
    new = page(old)
    if "--check" in sys.argv[1:]:
        if new != old:
            raise SystemExit(f"{PAGE.name} is not current. Run python tools/settings_reference.py.")
    else:
        PAGE.write_text(new, encoding="utf-8")


if __name__ == "__main__":
    main()
