"""Checks of the parts' arguments; errors name the wrong argument."""

from __future__ import annotations

from curtsy.core.errors import InvalidDomain
from curtsy.core.message import parse_domain
from curtsy.core.policy import rule
from curtsy.engine.timers import Timers


def checked_alarm(timers: Timers | None) -> Timers | None:
    """Return the timers if they are valid; raise PolicyError otherwise."""
    if timers is not None and not hasattr(timers, "async_waiter"):
        raise rule("timers", timers, "a Timers, or left out for real time")
    return timers


def checked_key(key: str) -> str:
    """Return the name of a record if it is text; raise PolicyError otherwise."""
    if not isinstance(key, str):
        raise rule("key", key, "text, the name of a record in the store")
    return key


def named_domain(argument: str, domain: str) -> str:
    """Return the canonical domain. An InvalidDomain error names the argument."""
    try:
        return parse_domain(domain)
    except InvalidDomain as error:
        raise InvalidDomain(f"{argument}: {error}") from None
