"""What the parts check of their arguments, so that an error names the one that is wrong."""

from __future__ import annotations

from curtsy.core.errors import InvalidDomain
from curtsy.core.message import parse_domain
from curtsy.core.policy import rule
from curtsy.engine.timers import Timers


def checked_alarm(timers: Timers | None) -> Timers | None:
    """Check what is waited on."""
    if timers is not None and not hasattr(timers, "async_waiter"):
        raise rule("timers", timers, "a Timers, or left out for real time")
    return timers


def checked_key(key: str) -> str:
    """Check the name of a record."""
    if not isinstance(key, str):
        raise rule("key", key, "text, the name of a record in the store")
    return key


def named_domain(argument: str, domain: str) -> str:
    """The canonical domain; an error says in which argument it stands."""
    try:
        return parse_domain(domain)
    except InvalidDomain as error:
        raise InvalidDomain(f"{argument}: {error}") from None
