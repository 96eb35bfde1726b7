"""Cache-Control directives of requests and responses (RFC 9111, 5.2; RFC 5861; RFC 8246)."""

from __future__ import annotations

import re

import msgspec

from curtsy.core.bounded import remember_short
from curtsy.core.request import whole_number

FOREVER = 2**31
"""Seconds for a number that is too large to represent (RFC 9111, 1.2.2)."""

# A name and an optional value, quoted or not. The content of a quoted value is not a directive.
_DIRECTIVE = re.compile(
    r"""([A-Za-z0-9!#$%&'*+.^_`|~-]+)(?:[ \t]*=[ \t]*(?:"((?:[^"\\]|\\.)*)"|([^\s,]*)))?""", re.DOTALL
)


class Directives(msgspec.Struct, frozen=True, gc=False):
    """Directives of a Cache-Control field, without those for shared caches only (`s-maxage`, `public`).

    An unreadable number has the strictest meaning: an age of 0, no permission to be stale. Numbers are seconds.
    """

    no_store: bool = False
    no_cache: bool = False
    """True also for the form that names fields: the whole response is then revalidated."""

    max_age: int | None = None
    must_revalidate: bool = False
    immutable: bool = False
    stale_if_error: int = 0
    stale_while_revalidate: int = 0
    max_stale: int = 0
    """Permitted staleness, in requests only; `FOREVER` without a number."""

    min_fresh: int = 0
    only_if_cached: bool = False


NOTHING_SAID = Directives()


@remember_short(1024)
def directives(text: str | None) -> Directives:
    """Parse a Cache-Control field, its lines joined by commas. The first of repeated directives counts."""
    if not text:
        return NOTHING_SAID
    said: dict[str, str | None] = {}
    for found in _DIRECTIVE.finditer(text):
        name, quoted, plain = found.groups()
        said.setdefault(name.lower(), quoted if quoted is not None else plain)
    return Directives(
        no_store="no-store" in said,
        no_cache="no-cache" in said,
        max_age=_number(said["max-age"], 0) if "max-age" in said else None,
        must_revalidate="must-revalidate" in said,
        immutable="immutable" in said,
        stale_if_error=_number(said.get("stale-if-error"), 0),
        stale_while_revalidate=_number(said.get("stale-while-revalidate"), 0),
        max_stale=_number(said["max-stale"], 0) if said.get("max-stale") else FOREVER * ("max-stale" in said),
        min_fresh=_number(said["min-fresh"], FOREVER) if "min-fresh" in said else 0,
        only_if_cached="only-if-cached" in said,
    )


def _number(text: str | None, otherwise: int) -> int:
    seconds = delta_seconds(text)
    return otherwise if seconds is None else seconds


def delta_seconds(text: str | None) -> int | None:
    """Parse a header's number of seconds, limited to `FOREVER`; None if it is not a number."""
    number = whole_number(text)
    return None if number is None else min(number, FOREVER)
