"""Host: everything that is known of one host, as one record of facts. Only `admission.py` changes it."""

from __future__ import annotations

from typing import Self

import msgspec

from curtsy.core import breaker
from curtsy.core.budget import Day, charged
from curtsy.core.message import SECOND, Now
from curtsy.core.policy import DAY
from curtsy.core.record import WEEK, Record


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

    closed_at: int = 0
    """When it last closed: answers to what left before count for nothing."""

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

    overrides: tuple[tuple[str, float | None], ...] = ()
    """Limits changed by hand, over those of the policy."""

    requests: int = 0
    """Requests sent, ever."""

    pages: int = 0
    """Pages received, ever."""

    trips: int = 0
    """Times that the breaker opened, ever."""

    status: int = 0
    """The last status seen; 0 for none."""

    def lasts(self, now: Now) -> int | None:
        """Microseconds after which this says no more than a fresh record would; None while a hand has changed it.

        A day is remembered for two more than it lasts, for clocks that are set back; what a host has taught us (a
        raised delay, a breaker's history) for a week.
        """
        if self.paused_until or self.overrides:
            return None
        pace = self.sent_at - now.at
        held = max((place.until - now.at for place in self.places), default=0)
        day = (self.days[-1].ends * SECOND - now.epoch) if self.days else 0
        until = max(pace, held, day, self.rest_until - now.at, 0) + 2 * DAY * SECOND
        if self.delay or self.tripped_at or self.crawl_delay:
            until = max(until, self.tripped_at + self.cooldown - now.at + WEEK, WEEK)
        return min(until, 5 * WEEK)

    def joined(self, ours: Self, base: Self | None) -> Self:
        """This record joined with `ours`, which counted on its own from `base` while the store could not be reached.

        What was spent is added, of everything else the more careful is kept.
        """
        known = base.places if base else ()
        gone = {place.number for place in known} - {place.number for place in ours.places}
        places = {place.number: place for place in self.places if place.number not in gone}
        places.update((place.number, place) for place in ours.places if place not in known)
        days = self.days
        for day in ours.days:
            before = next((each for each in base.days if each.starts == day.starts), None) if base else None
            requests = day.requests - (before.requests if before else 0)
            pages = day.pages - (before.pages if before else 0)
            same = next((each for each in days if each.starts <= day.starts < each.ends), Day(day.starts, day.ends))
            if requests > 0 or pages > 0:
                days = charged(days, same, max(0, requests), max(0, pages))
        later = ours if ours.sent_at > self.sent_at else self
        open_longer = max(self, ours, key=lambda each: each.tripped_at and each.tripped_at + each.cooldown)
        return msgspec.structs.replace(
            self,
            sent_at=later.sent_at,
            roll=later.roll,
            spent=max(self.spent, ours.spent),
            recent=tuple(sorted({*self.recent, *ours.recent})),
            serial=max(self.serial, ours.serial),
            places=tuple(places.values()),
            days=days,
            rest_until=max(self.rest_until, ours.rest_until),
            delay=max(self.delay, ours.delay),
            backed_off_at=max(self.backed_off_at, ours.backed_off_at),
            failures=max(self.failures, ours.failures),
            tripped_at=open_longer.tripped_at,
            cooldown=open_longer.cooldown,
            failed_trials=max(self.failed_trials, ours.failed_trials),
            requests=self.requests + ours.requests - (base.requests if base else 0),
            pages=self.pages + ours.pages - (base.pages if base else 0),
            trips=self.trips + ours.trips - (base.trips if base else 0),
        )

    def breaker_state(self, now: Now) -> breaker.State:
        """Where the breaker stands."""
        return breaker.state(self.tripped_at, self.cooldown, now.at)


def in_time(host: Host, now: Now) -> Host:
    """The record with its instants on the present run of the clock.

    After a reboot they are moved over by way of the epoch. One that lies ahead of now, where no rule puts it, comes
    from a clock that ran backwards: everything is moved back until the last departure is now.
    """
    at = now.at
    if host.boot == now.boot and host.sent_at <= at and host.tripped_at <= at and host.backed_off_at <= at:
        return host
    shift = 0 if host.boot == now.boot else host.offset - (now.epoch - at)
    ahead = max(host.sent_at, host.tripped_at, host.backed_off_at) + shift - at
    shift -= max(0, ahead)

    def moved(instant: int) -> int:
        return instant and (instant + shift or 1)  # 0 means never, and stays that

    return msgspec.structs.replace(
        host,
        boot=now.boot,
        offset=now.epoch - at,
        sent_at=moved(host.sent_at),
        recent=tuple(moved(each) for each in host.recent),
        places=tuple(Place(each.number, moved(each.left_at), moved(each.until)) for each in host.places),
        rest_until=moved(host.rest_until),
        backed_off_at=moved(host.backed_off_at),
        tripped_at=moved(host.tripped_at),
        closed_at=moved(host.closed_at),
        window_at=moved(host.window_at),
        paused_until=host.paused_until if host.paused_until < 0 else moved(host.paused_until),
    )
