"""Host, the one record of a host, and its only three changes: admit, settle and amend."""

from __future__ import annotations

import msgspec

from curtsy.core.budget import Day
from curtsy.core.record import Record


class Place(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A request on its way, as the host's record remembers it."""

    number: int
    """Unique for the host; a release is compare-and-clear by it."""

    left_at: int
    until: int
    """When the place is free again, though nobody gave it back: its holder must have died."""


class Host(Record, frozen=True, tag="host"):
    """Everything known of one host: facts, from which each decision is made anew. Instants are microseconds.

    An instant of 0 means never.
    """

    boot: int = 0
    """The run of the clock that the instants below belong to."""

    offset: int = 0
    """What to add to an instant to have the epoch, as of the last write."""

    sent_at: int = 0
    """The last real departure."""

    roll: int = 0
    """The dice of the pause after it, 0 to 65535."""

    spent: int = 0
    """Token bucket: millionths of a request that had not flowed back at `sent_at`."""

    recent: tuple[int, ...] = ()
    """Sliding window: the last departures."""

    serial: int = 0
    """The number of the last place given."""

    places: tuple[Place, ...] = ()
    """Requests on their way."""

    days: tuple[Day, ...] = ()
    """What was spent, per day, the latest last."""

    closed_before: int = 0
    """Epoch second before which a day that is not listed counts as spent (a clock set back, long ago)."""

    rest_until: int = 0
    """Cooldown: the site said when to come back."""

    delay: int = 0
    """The adapted delay; 0 when not raised."""

    calm: int = 0
    """Successes since the delay last changed."""

    backed_off_at: int = 0
    """When the delay was last raised: answers to what left before then belong to the same episode."""

    latency: int = 0
    """The response time, smoothed."""

    crawl_delay: int = 0
    """What the site's robots.txt asks for."""

    failures: int = 0
    """Failures in a row."""

    tripped_at: int = 0
    """When the breaker opened; 0 while it is closed."""

    cooldown: int = 0
    """How long this opening lasts."""

    failed_trials: int = 0
    """Trials that failed since it first opened."""

    window_at: int = 0
    replies: int = 0
    """Replies in the breaker's window."""

    errors: int = 0
    """Failures among them."""

    paused_until: int = 0
    """By hand; -1 until resumed."""

    overrides: tuple[tuple[str, float], ...] = ()
    """Limits changed by hand, over those of the policy."""

    requests: int = 0
    """Requests sent, ever."""

    pages: int = 0
    """Pages received, ever."""

    trips: int = 0
    """Times that the breaker opened, ever."""

    status: int = 0
    """The last status seen; 0 for none."""
