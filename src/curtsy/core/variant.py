"""Which of the copies that are kept of one URL a request selects."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable

from curtsy.core.bounded import remember_few
from curtsy.core.message import Request

MOST_VARIANTS = 8
"""Variants that are kept of one URL; the least recently used one makes room for the next."""

HARMLESS = frozenset(
    {
        "accept-encoding", "cache-control", "connection", "from", "pragma", "priority", "te", "traceparent",
        "tracestate", "user-agent",
    }
)  # fmt: skip
"""Header fields that select no other page, unless `Vary` names them.

Any other field may be a key, a login or a choice of content: it is part of the variant, whatever `Vary` says."""

_COMMA = re.compile(r"[ \t]*,[ \t]*")


def variant_of(vary: Iterable[str], request: Request) -> str:
    """A hash of the request headers that may select another page; empty if there are none.

    All that the caller has set counts, but for a few harmless fields, and these count if `vary` names them: one cache
    may serve several programs, and what one key or login was shown is not for another. The hash is short enough to say
    nothing of a good password.
    """
    fields, credentials = request.headers.by_name, request.url.credentials
    values = [] if HARMLESS.issuperset(fields) else [each for each in fields.items() if each[0] not in HARMLESS]
    if vary:
        values += [(name, fields[name]) for name in vary if name in fields and name in HARMLESS]
    if credentials is not None:
        values.append((":credentials", credentials))  # no field has such a name
    return _variant(tuple(values)) if values else ""


@remember_few(1024)
def _variant(values: tuple[tuple[str, str], ...]) -> str:
    # Blanks in a list do not matter (RFC 9111, 4.1); in a key or a cookie they may. An absent field is no empty one.
    plain = sorted(
        (name, _COMMA.sub(",", value) if name.startswith("accept") else value) for name, value in values
    )  # fmt: skip
    return hashlib.sha256(repr(plain).encode()).hexdigest()[:16]
