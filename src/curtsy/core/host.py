"""Host: everything that is known of one host, as one record of facts. Only `admission.py` changes it."""

from __future__ import annotations

from collections import Counter
from functools import lru_cache
from typing import ClassVar, Self

import msgspec

from curtsy.core import breaker, budget
from curtsy.core.budget import ALIKE, UNKNOWN, Day, Spending
from curtsy.core.message import SECOND, Now
from curtsy.core.policy import DAY, TOKEN, Calendar, Policy
from curtsy.core.record import WEEK, Record

CLOSE = SECOND // 1000
"""How exactly the offset between the clocks is noted."""

MOST_DELAYS = 16
"""Origins of one record whose Crawl-delays are told apart."""


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

    format: int = 3
    current: ClassVar[int] = 3

    boot: int = 0
    """The run of the clock that the instants below belong to."""

    offset: int = 0
    """What to add to an instant to have the epoch, to the millisecond, as of the last write."""

    sent_at: int = 0
    """The last real departure."""

    roll: int = 0
    """The dice of the pause after it, one of `pace.ROLLS`."""

    spent: int = 0
    """Token bucket: millionths of a request that had not flowed back at `sent_at`."""

    recent: tuple[int, ...] = ()
    """Sliding window: the last departures."""

    serial: int = 0
    """The number of the last place given."""

    places: tuple[Place, ...] = ()
    """Requests on their way."""

    earlier: Day | None = None
    """What was spent before `day`; counts for 24 h if the clock jumps."""

    retry_after_until: int = 0
    """Cooldown: the site said when to come back."""

    delay: int = 0
    """The adapted delay; 0 when not raised."""

    calm: int = 0
    """Successes since the delay last changed."""

    backed_off_at: int = 0
    """When the delay was last raised: answers to what left before then belong to the same episode."""

    latency: int = 0
    """The response time, smoothed, in whole milliseconds."""

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

    written_at: int = 0
    """When this was last written; a present before that comes from a clock that ran backwards."""

    delays: tuple[tuple[str, int], ...] = ()
    """What each origin's robots.txt asks for, the largest last: several may share this record."""

    day: Day | None = None
    """What was spent on the latest day."""

    guests: int = 0
    """Requests to which a robots.txt of another registered domain has redirected, since a day before `guests_until`."""

    guests_until: int = 0

    jumped_at: int = 0
    """When a charge last found that the calendar had jumped (C19)."""

    told_at: int = 0
    """When the site asked for the rest that ends at `retry_after_until`; 0 if that rest is a backoff of our own."""

    def closed_until(self, policy: Policy) -> int:
        """Return the instant up to which every request is refused; 0 if none is.

        The breaker is one reason. The other is a rest that the site asked for and that is longer than
        `obey_retry_after`. It binds without the breaker too: a request is refused, and never waits that long.
        """
        until = self.tripped_at + self.cooldown if self.tripped_at and policy.breaker else 0
        is_long = self.told_at and self.retry_after_until - self.told_at > policy.obey_retry_after * SECOND
        return max(until, self.retry_after_until) if is_long else until

    @property
    def days(self) -> tuple[Day, ...]:
        """What was spent, per day, the latest last."""
        return tuple(day for day in (self.earlier, self.day) if day is not None)

    def spending(self, now: Now, calendar: Calendar) -> Spending:
        """What counts against the budget. The record is on the present clock already."""
        return budget.spending(self.day, self.earlier, self.jumped_at, now, calendar)

    def lasts(self, now: Now) -> int | None:
        """Microseconds after which this says no more than a fresh record would; None while a hand has changed it.

        No rate is slower than one request a day, so what is spent of it has flowed back after as many days. How long a
        sliding window is the record does not know: what is in one lasts for as long as any. All is remembered for two
        days more, for clocks that are set back; what a host has taught us (a raised delay, a breaker's history) for a
        week. Nothing lasts for more than five weeks.
        """
        host = in_time(self, now)
        if host.paused_until < 0 or host.paused_until > now.at or host.overrides:
            return None
        days = 5 * WEEK // (DAY * SECOND) if host.recent else max(1, host.spent / TOKEN)
        pace = host.sent_at and host.sent_at + days * DAY * SECOND
        held = max((place.until for place in host.places), default=0)
        day = (host.day.spent_at + 25 * 3600) * SECOND if host.day is not None else 0  # no day is longer
        written_at = host.written_at or now.at
        until = max(pace, held, day, host.retry_after_until, written_at) + 2 * DAY * SECOND
        if host.delay or host.tripped_at or host.crawl_delay:
            until = max(until, host.tripped_at + host.cooldown + WEEK, written_at + WEEK)
        return min(round(until) - now.at, 5 * WEEK)

    def joined(self, ours: Self, base: Self | None) -> Self:
        """This record joined with `ours`, which counted on its own from `base` while the store could not be reached.

        What was spent is added, of everything else the more careful is kept. Both are on the same clock.
        """
        was = Host() if base is None else base
        gone = {place.number for place in was.places} - {place.number for place in ours.places}
        new = (place for place in ours.places if place not in was.places and place not in self.places)
        is_later = ours.sent_at == _latest(self.sent_at, ours.sent_at)
        if self.sent_at == ours.sent_at:
            is_later = ours.serial > self.serial
        later, earlier = (ours, self) if is_later else (self, ours)
        both_sent = ours.serial != was.serial and self.serial != was.serial
        open_longer = max(self, ours, key=lambda each: (each.tripped_at != 0, each.tripped_at + each.cooldown))
        rests_longer = (
            ours if ours.retry_after_until == _latest(self.retry_after_until, ours.retry_after_until) else self
        )
        *before, day = (None, None, *budget.joined(self.days, ours.days, was.days))
        return msgspec.structs.replace(
            self,
            sent_at=later.sent_at,
            roll=later.roll if not both_sent else max(self.roll, ours.roll),
            spent=later.spent + (earlier.spent if both_sent else 0),
            recent=tuple(sorted((*self.recent, *(Counter(ours.recent) - Counter(was.recent)).elements()))),
            serial=max(self.serial, ours.serial),
            places=(*(place for place in self.places if place.number not in gone), *new),
            earlier=before[-1],
            day=day,
            jumped_at=_latest(self.jumped_at, ours.jumped_at),
            retry_after_until=rests_longer.retry_after_until,
            told_at=rests_longer.told_at,
            delay=max(self.delay, ours.delay),
            backed_off_at=_latest(self.backed_off_at, ours.backed_off_at),
            latency=max(self.latency, ours.latency),
            crawl_delay=max(self.crawl_delay, ours.crawl_delay),
            delays=with_delays(self.delays, ours.delays),
            failures=max(self.failures, ours.failures),
            tripped_at=open_longer.tripped_at,
            cooldown=open_longer.cooldown,
            failed_trials=max(self.failed_trials, ours.failed_trials),
            paused_until=min(self.paused_until, ours.paused_until, 0) or max(self.paused_until, ours.paused_until),
            overrides=self.overrides if ours.overrides == was.overrides else ours.overrides,
            requests=self.requests + ours.requests - was.requests,
            pages=self.pages + ours.pages - was.pages,
            trips=self.trips + ours.trips - was.trips,
            guests=self.guests + ours.guests - was.guests if ours.guests_until == was.guests_until else ours.guests,
            guests_until=_latest(self.guests_until, ours.guests_until),
            status=later.status,
            written_at=max(self.written_at, ours.written_at),
        )

    def is_behind(self, known: Self) -> bool:
        """Whether this cannot have come of `known`, but is from before, or was begun without knowing it."""
        is_earlier = _latest(self.sent_at, known.sent_at) != self.sent_at
        return is_earlier or known.requests > self.requests or budget.is_behind(self.days, known.days)

    def caught_up(self, known: Self) -> Self:
        """This record with what it lacks of `known`, should it be behind that. Both are on the same clock.

        What both have counted counts once.
        """
        if not self.is_behind(known):
            return self
        both = msgspec.structs.replace(
            self,
            places=(),
            overrides=known.overrides if self.overrides else (),
            requests=min(self.requests, known.requests),
            pages=min(self.pages, known.pages),
            trips=min(self.trips, known.trips),
        )
        joined = self.joined(known, both)
        return msgspec.structs.replace(joined, spent=max(self.spent, known.spent))

    def breaker_state(self, now: Now) -> breaker.State:
        """Where the breaker stands."""
        host = in_time(self, now)
        return breaker.state(host.tripped_at, host.cooldown, now.at)

    def breaker_left(self, now: Now) -> float:
        """Seconds until the breaker lets a trial through; 0 if it is not open."""
        host = in_time(self, now)
        return max(0, host.tripped_at + host.cooldown - now.at) / SECOND if host.tripped_at else 0.0


def _latest(one: int, other: int) -> int:
    """The later of two instants, of which 0 means never; what was before the present boot is below 0."""
    return max(one, other) if one and other else one or other


def offset_at(now: Now) -> int:
    """How far the calendar is ahead of the clock, to the millisecond: the same number for very many hosts.

    Rounded up: after a reboot a host was then asked later than it was, never sooner.
    """
    return shared(-((now.at - now.epoch) // CLOSE) * CLOSE)


@lru_cache(maxsize=4096)
def shared(number: int) -> int:
    """One object for equal numbers of many hosts. Each host's own would be one more to reach for in memory."""
    return number


def fresh(now: Now) -> Host:
    """The record of a host that nothing is known of."""
    return Host(boot=now.boot, offset=offset_at(now), written_at=now.at)


def in_time(host: Host, now: Now) -> Host:
    """The record with its instants on the present run of the clock.

    After a reboot they are moved over by way of the epoch. One that was written after now comes from a clock that ran
    backwards: everything is moved back until the last write is now.
    """
    at = now.at
    if host.boot == now.boot and host.written_at <= at:
        return host
    shift = 0 if host.boot == now.boot else host.offset - (now.epoch - at)
    ahead = max(0, host.written_at + shift - at)
    shift -= ahead

    def moved(instant: int) -> int:
        return instant and (instant + shift or 1)  # 0 means never, and stays that

    return msgspec.structs.replace(
        host,
        boot=now.boot,
        offset=offset_at(now),
        sent_at=moved(host.sent_at),
        recent=tuple(moved(each) for each in host.recent),
        places=tuple(Place(each.number, moved(each.left_at), moved(each.until)) for each in host.places),
        retry_after_until=moved(host.retry_after_until),
        told_at=moved(host.told_at),
        backed_off_at=moved(host.backed_off_at),
        tripped_at=moved(host.tripped_at),
        closed_at=moved(host.closed_at),
        window_at=moved(host.window_at),
        guests_until=moved(host.guests_until),
        # Below 0 it would mean until resumed; 1 is as long past.
        paused_until=host.paused_until if host.paused_until <= 0 else max(1, moved(host.paused_until)),
        written_at=at,
        earlier=_day_moved(host, host.earlier, shift, ahead, now),
        day=_day_moved(host, host.day, shift, ahead, now),
        jumped_at=moved(host.jumped_at),
    )


def _day_moved(host: Host, day: Day | None, shift: int, ahead: int, now: Now) -> Day | None:
    """The day on the present run of the clock. The calendar is believed if it has not gone back (C19).

    `ahead` is by how much the last write would lie in the future.
    """
    if day is None:
        return None
    has_jumped = ahead > ALIKE * SECOND or abs(host.offset // SECOND - day.offset) > ALIKE
    offset = UNKNOWN if has_jumped else now.epoch // SECOND - now.at // SECOND
    spent_at = min(day.spent_at - (-shift // SECOND), -(-now.at // SECOND))  # both rounded up
    return Day(day.ends, offset, spent_at, day.requests, day.pages)


def with_delays(delays: tuple[tuple[str, int], ...], more: tuple[tuple[str, int], ...]) -> tuple[tuple[str, int], ...]:
    """The delays of all origins, each once, with `more` in place of what was there; of very many, the largest."""
    merged = {**dict(delays), **dict(more)}
    return tuple(sorted(merged.items(), key=lambda each: each[1]))[-MOST_DELAYS:]
