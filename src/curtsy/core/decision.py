"""Decisions: the answers of admission, and the lease of a request that may leave."""

from __future__ import annotations

import msgspec

from curtsy.core.budget import Day
from curtsy.core.errors import Reason


class Lease(msgspec.Struct, frozen=True, gc=False):
    """Permission to send one request now, already charged. `settle()` ends it."""

    number: int
    left_at: int
    lasts: float
    """Seconds until the slot expires and another request may take it. The sender checks this before sending."""

    page: bool
    """True if a page was charged in addition to the request."""

    day: Day | None = None
    """The charged day, as it was before the charge; None if no budget was charged."""

    trial: bool = False
    """True if this is the single trial request of a half-open breaker."""

    sent_before: int = -1
    """Departure before this one, in microseconds. `Return` restores it and `spent_before` if this lease is unused. -1
    if the lease took several tokens, which may be returned in parts."""

    spent_before: int = 0


class Go(msgspec.Struct, frozen=True, gc=False):
    """Decision: send now."""

    lease: Lease
    requests_left: int | None = None
    """Requests left in today's budget after this one; None if unlimited."""

    pages_left: int | None = None


class Wait(msgspec.Struct, frozen=True, gc=False):
    """Decision: try again after `seconds`."""

    seconds: float
    because: str
    """Cause of the wait: rate, pause, delay, crawl_delay, adapted, slow_site, rest, in_flight or trial."""


class No(msgspec.Struct, frozen=True, gc=False):
    """Decision: refused; a short wait does not help."""

    reason: Reason
    retry_after: float | None
    """Seconds until a retry makes sense; None if unknown."""

    limit: str = ""
    """The exceeded budget limit: `requests` or `pages`; empty for other reasons."""

    day: int = 0
    """First epoch second of the exhausted day; 0 if the last 24 h count because the clock jumped."""

    opened_by: str = ""
    """What opened the breaker, as in the host's record; empty for other reasons."""


class Late(msgspec.Struct, frozen=True, gc=False):
    """Deadline that cannot be met. Nothing was charged."""

    needed: float
    """Minimum wait in seconds."""

    because: str = ""
    """Cause of the wait, as in `Wait`, or `outage`: the store did not answer. Empty if it is not a single one."""


Decision = Go | Wait | No


class Settled(msgspec.Struct, frozen=True, gc=False):
    """State of a host after a reply was recorded. Durations are seconds."""

    next_in: float
    """Seconds until pace and rest allow the next request."""

    open_for: float = 0.0
    """Seconds during which all requests are refused, by the breaker or a long rest; 0 if requests are accepted."""
