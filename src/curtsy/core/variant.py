"""Selection among the cached copies of one URL."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable

from curtsy.core.bounded import remember_few
from curtsy.core.request import Request

MOST_VARIANTS = 8
"""Variants cached for one URL; the least recently used one is replaced."""

HARMLESS = frozenset(
    {
        "accept-encoding", "cache-control", "connection", "from", "pragma", "priority", "te", "traceparent",
        "tracestate", "user-agent",
    }
)  # fmt: skip
"""Header fields that select a variant only if `Vary` names them.

Any other field may be a key, a login or a choice of content, so it always selects a variant."""

_COMMA = re.compile(r"[ \t]*,[ \t]*")


def variant_of(vary: Iterable[str], request: Request) -> str:
    """Return a hash of the request headers that select a variant; empty without such headers.

    All headers of the caller count, because programs with different keys or logins may share a cache. Those in
    `HARMLESS` count only if `vary` names them. The hash is too short to reveal a good password.
    """
    fields, credentials = request.headers.by_name, request.url.credentials
    values = [] if HARMLESS.issuperset(fields) else [each for each in fields.items() if each[0] not in HARMLESS]
    if vary:
        values += [(name, fields[name]) for name in vary if name in fields and name in HARMLESS]
    if credentials is not None:
        values.append((":credentials", credentials))  # a name that no field can have
    return _variant(tuple(values)) if values else ""


@remember_few(1024)
def _variant(values: tuple[tuple[str, str], ...]) -> str:
    # RFC 9111, 4.1: blanks in a list are insignificant; in a key or a cookie they may matter. Absent is not empty.
    plain = sorted(
        (name, _COMMA.sub(",", value) if name.startswith("accept") else value) for name, value in values
    )  # fmt: skip
    return hashlib.sha256(repr(plain).encode()).hexdigest()[:16]
