"""Steps as callers write them, on records as the core has them."""

from __future__ import annotations

import msgspec

from curtsy.core.errors import CurtsyError
from curtsy.core.host import Host
from curtsy.core.time import Now


class Refusal(Exception):
    """Raised by a step that does not like what it sees."""


def count(record: Host | None, now: Now) -> tuple[Host, int]:
    """One request more; answers how many that makes."""
    host = record or Host()
    changed = msgspec.structs.replace(host, requests=host.requests + 1)
    return changed, changed.requests


def keep(record: Host | None, now: Now) -> tuple[Host | None, int]:
    """Only look."""
    return record, record.requests if record else 0


def remove(record: Host | None, now: Now) -> tuple[None, bool]:
    """Remove it; answers whether there was one."""
    return None, record is not None


def refuse(record: Host | None, now: Now) -> tuple[Host, None]:
    """Raise, when everything else is done."""
    count(record, now)
    raise Refusal("not like this")


def stamp(record: Host | None, now: Now) -> tuple[Host, Now]:
    """Write down the moment; answers it."""
    return msgspec.structs.replace(record or Host(), sent_at=now.at, boot=now.boot), now


def own_words(error: BaseException) -> str:
    """The message of an error, with `<cause>` for what the library or the system said: that differs by version."""
    cause: BaseException | None = error
    while isinstance(cause, CurtsyError):  # an error of another thread is raised again, with itself as the cause
        cause = cause.__cause__ or cause.__context__
    said = str(getattr(cause, "strerror", None) or cause or "").strip().rstrip(".")
    return str(error).replace(said, "<cause>") if said else str(error)
