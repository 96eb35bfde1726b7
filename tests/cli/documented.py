"""The fields of each command's `--json` output, as docs/reference/json.md lists them."""

from __future__ import annotations

import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "json.md"


def _fields() -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for section in PAGE.read_text(encoding="utf-8").split("\n### ")[1:]:
        title, _, body = section.partition("\n")
        names = set(re.findall(r"^\| `(\w+)` \|", body, re.MULTILINE))
        if "the fields of `curtsy status` without `alerts`" in body and not names:
            names = found["status"] - {"alerts"}
        found |= dict.fromkeys(re.findall(r"`curtsy ([^`]+)`", title), names)
    return found


FIELDS = _fields()
"""Field names by command."""
