"""Write the table of docs/reference/environment.md from the settings; `--check` only says if it is current."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from settings_reference import default_of

from curtsy.settings.general import ALIASES, keys
from curtsy.settings.template import help_texts

PAGE = Path(__file__).parent.parent / "docs" / "reference" / "environment.md"
PLACE = re.compile(r"(<!-- variables -->\n).*?(<!-- end -->)", re.DOTALL)


def table() -> str:
    """Every variable that is a setting."""
    explained = help_texts()
    rows = ["| variable | also | default | meaning |", "|---|---|---|---|"]
    for key in sorted(keys().values(), key=lambda each: each.name):
        if key.variable is not None:
            also = ", ".join(f"`{alias}`" for alias, name in ALIASES.items() if name == key.name)
            rows.append(f"| `{key.variable}` | {also} | {default_of(key)} | {explained[key.name]} |")
    return "\n".join(rows) + "\n"


def main() -> None:
    """Write the page, or check it."""
    old = PAGE.read_text(encoding="utf-8")
    new, count = PLACE.subn(lambda found: found[1] + table() + found[2], old)
    if not count:
        raise SystemExit(f"{PAGE.name} has no place for the table: put <!-- variables --> and <!-- end --> into it.")
    if "--check" in sys.argv[1:]:
        if new != old:
            raise SystemExit(f"{PAGE.name} is not current. Run python tools/environment_reference.py.")
    else:
        PAGE.write_text(new, encoding="utf-8")


if __name__ == "__main__":
    main()
