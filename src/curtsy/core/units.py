"""Units of times and sizes, as users write them in options and settings: `90`, `1h30m`, `20M`."""

from __future__ import annotations

import re

_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86_400.0}
_BYTES = {"": 1, "k": 1024, "m": 1024**2, "g": 1024**3, "t": 1024**4}
_PART = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|min|m|h|d)?\s*", re.ASCII)
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)i?b?", re.IGNORECASE | re.ASCII)
_MOST_BYTES = 2**40
"""Largest number before a unit of a size."""

TIMES = "such as 90, 1.5s, 10m, 1h30m or 2d"
SIZES = "such as 500000, 20M or 1.5G"
"""Examples for messages."""


def seconds_of(text: str) -> float | None:
    """Return the seconds that a text means: `90`, `1.5s`, `10m`, `1h30m`, `2d`. None for another text."""
    rest, seconds = text.strip().lower(), 0.0
    if not rest:
        return None
    while (found := _PART.match(rest)) is not None:
        seconds += float(found[1]) * _SECONDS[found[2] or "s"]
        rest = rest[found.end() :]
    return None if rest else seconds


def bytes_of(text: str) -> int | None:
    """Return the bytes that a text means, with units of 1024: `500000`, `20M`, `1.5G`. None for another text."""
    found = _SIZE.fullmatch(text.strip())
    if found is None or float(found[1]) > _MOST_BYTES:
        return None
    return int(float(found[1]) * _BYTES[found[2].lower()])
