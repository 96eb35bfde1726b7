"""Cache-Control, read (RFC 9111, 5.2; RFC 5861; RFC 8246): one value for requests and responses alike."""

from __future__ import annotations

import re

import msgspec

from curtsy.core.bounded import remember_short
from curtsy.core.message import whole_number

FOREVER = 2**31
"""Seconds: what a number that is too large to count means (RFC 9111, 1.2.2)."""

# A name, and perhaps a value, quoted or not. What a quoted value holds is not a directive.
_DIRECTIVE = re.compile(
    r"""([A-Za-z0-9!#$%&'*+.^_`|~-]+)(?:[ \t]*=[ \t]*(?:"((?:[^"\\]|\\.)*)"|([^\s,]*)))?""", re.DOTALL
)


class Directives(msgspec.Struct, frozen=True, gc=False):
    """What a Cache-Control field says. `s-maxage`, `public` and what else concerns shared caches only is not read.

    A number that cannot be read means what asks more of us: an age of 0, no permission to be stale.
    """

    no_store: bool = False
    no_cache: bool = False
    """Also for the form that names fields: not to use them unchecked is not to use the response unchecked."""

    max_age: int | None = None
    must_revalidate: bool = False
    immutable: bool = False
    stale_if_error: int = 0
    stale_while_revalidate: int = 0
    max_stale: int = 0
    """Requests only; without a number, any staleness will do: `FOREVER`."""

    min_fresh: int = 0
    only_if_cached: bool = False


NOTHING_SAID = Directives()


@remember_short(1024)
def directives(text: str | None) -> Directives:
    """Read a Cache-Control field, its lines joined by commas. Of directives that are repeated the first counts."""
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
    """A number of seconds as headers write it, at most `FOREVER`; None if it is none."""
    number = whole_number(text)
    return None if number is None else min(number, FOREVER)
