"""Record of one host, as plain facts. Only `admission.py` changes it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, ClassVar, Generic, Self, TypeVar

import msgspec

from curtsy.core import breaker, budget
from curtsy.core.budget import ALIKE, UNKNOWN, Day, Spending, shared
from curtsy.core.policy import TOKEN, Policy
from curtsy.core.record import WEEK, Record
from curtsy.core.setting import DAY
from curtsy.core.time import SECOND, Calendar, Now

T = TypeVar("T")

CLOSE = SECOND // 1000
"""Resolution of the stored clock offset, in microseconds."""

MOST_DELAYS = 16
"""Maximum number of origins per record with a Crawl-delay of their own."""


class Place(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Concurrency slot: a request in flight."""

    number: int
    """Number that is unique for the host; a release is compare-and-clear by it."""

    left_at: int
    until: int
    """Instant at which the slot expires if it was not released, because its holder died."""


class Extra(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Facts that most hosts do not have: failures, rests, a raised delay, changes by a user, a clock jump.

    They are a record of their own, because memory and decisions depend on the size of a host's record.
    """

    retry_after_until: int = 0
    """End of the rest that the site requested or that a backoff set."""

    delay: int = 0
    """Adapted delay; 0 if not raised."""

    calm: int = 0
    """Successes since the delay last changed."""

    backed_off_at: int = 0
    """Instant at which the delay was last raised. Replies to earlier departures belong to the same episode."""

    crawl_delay: int = 0
    """Longest Crawl-delay of the robots.txt files."""

    delays: tuple[tuple[str, int], ...] = ()
    """Crawl-delay of each origin that shares this record, the largest last."""

    failures: int = 0
    """Failures in a row."""

    errors: int = 0
    """Failures in the breaker's window."""

    tripped_at: int = 0
    """Instant at which the breaker opened; 0 while closed."""

    tripped_by: str = ""
    """What opened the breaker, one of `breaker.CAUSES`, with the status of the reply or the reason code of the failure:
    `failures:500`, `failures:dns_error`. Empty while closed, and in records of earlier versions."""

    closed_at: int = 0
    """Instant at which the breaker last closed. Replies to earlier departures are ignored."""

    cooldown: int = 0
    """Duration of the present opening."""

    failed_trials: int = 0
    """Failed trials since the breaker first opened."""

    trips: int = 0
    """Times that the breaker opened, in total."""

    paused_until: int = 0
    """End of the user's pause; -1 until resumed."""

    overrides: tuple[tuple[str, float | None], ...] = ()
    """Limits that a user has changed, over those of the policy."""

    guests: int = 0
    """Redirects of robots.txt from other registered domains, in the day that ends at `guests_until`."""

    guests_until: int = 0

    jumped_at: int = 0
    """Instant at which a charge last found a calendar jump (C19)."""

    told_at: int = 0
    """Instant at which the site requested the rest until `retry_after_until`; 0 if that rest is a backoff of curtsy's
    own."""


USUAL = Extra()
"""Facts of most hosts."""

FACTS = frozenset(Extra.__struct_fields__)


class _Fact(Generic[T]):
    """Attribute of a host that is one of its extra facts."""

    def __init__(self, read: Callable[[Extra], T]) -> None:
        self._read = read

    def __get__(self, host: Host, kind: type[Host]) -> T:
        return self._read(host.extra or USUAL)


class Host(Record, frozen=True, tag="host"):
    """Record of one host: the facts that each decision is computed from.

    Instants and durations are microseconds. An instant of 0 means never.
    """

    format: int = 4
    current: ClassVar[int] = 4

    boot: int = 0
    """Run of the store's clock that the instants belong to."""

    offset: int = 0
    """Epoch minus the store's clock at the last write, to the millisecond."""

    sent_at: int = 0
    """Last real departure."""

    roll: int = 0
    """Random number for the pause after the last departure, one of `pace.ROLLS`."""

    spent: int = 0
    """Token bucket: millionths of a request not yet refilled at `sent_at`."""

    recent: tuple[int, ...] = ()
    """Sliding window: the last departures."""

    serial: int = 0
    """Number of the last slot granted."""

    places: tuple[Place, ...] = ()
    """Requests in flight."""

    earlier: Day | None = None
    """Charges before `day`, which count for 24 h after a clock jump."""

    latency: int = 0
    """Smoothed response time, in microseconds rounded to whole milliseconds."""

    window_at: int = 0
    replies: int = 0
    """Replies in the breaker's window."""

    requests: int = 0
    """Requests sent, in total."""

    pages: int = 0
    """Pages received, in total."""

    status: int = 0
    """Last HTTP status; 0 if there was no reply."""

    written_at: int = 0
    """Instant of the last write. A present before it means that the clock ran backwards."""

    day: Day | None = None
    """Charges of the latest day."""

    extra: Extra | None = None
    """Facts that most hosts do not have; None if all are as usual."""

    retry_after_until = _Fact(lambda extra: extra.retry_after_until)
    delay = _Fact(lambda extra: extra.delay)
    calm = _Fact(lambda extra: extra.calm)
    backed_off_at = _Fact(lambda extra: extra.backed_off_at)
    crawl_delay = _Fact(lambda extra: extra.crawl_delay)
    delays = _Fact(lambda extra: extra.delays)
    failures = _Fact(lambda extra: extra.failures)
    errors = _Fact(lambda extra: extra.errors)
    tripped_at = _Fact(lambda extra: extra.tripped_at)
    tripped_by = _Fact(lambda extra: extra.tripped_by)
    closed_at = _Fact(lambda extra: extra.closed_at)
    cooldown = _Fact(lambda extra: extra.cooldown)
    failed_trials = _Fact(lambda extra: extra.failed_trials)
    trips = _Fact(lambda extra: extra.trips)
    paused_until = _Fact(lambda extra: extra.paused_until)
    overrides = _Fact(lambda extra: extra.overrides)
    guests = _Fact(lambda extra: extra.guests)
    guests_until = _Fact(lambda extra: extra.guests_until)
    jumped_at = _Fact(lambda extra: extra.jumped_at)
    told_at = _Fact(lambda extra: extra.told_at)

    def replace(self, **changes: Any) -> Self:
        """Return the record with other fields or extra facts."""
        if facts := {name: changes.pop(name) for name in FACTS.intersection(changes)}:
            extra = msgspec.structs.replace(self.extra or USUAL, **facts)
            changes["extra"] = None if extra == USUAL else extra
        return msgspec.structs.replace(self, **changes)

    def closed_until(self, policy: Policy) -> int:
        """Return the instant until which every request is refused; 0 if requests are accepted.

        Two causes exist: an open breaker, and a rest requested by the site that is longer than `obey_retry_after`. The
        rest applies without the breaker too: requests are refused instead of waiting that long.
        """
        if (extra := self.extra) is None:
            return 0
        until = extra.tripped_at + extra.cooldown if extra.tripped_at and policy.breaker else 0
        is_long = extra.told_at and extra.retry_after_until - extra.told_at > policy.obey_retry_after * SECOND
        return max(until, extra.retry_after_until) if is_long else until

    @property
    def used_at(self) -> int:
        """Return the epoch second of the last write."""
        return ((self.written_at or self.sent_at) + self.offset) // SECOND

    @property
    def is_in_trouble(self) -> bool:
        """Return whether the last write left a tripped breaker, a pause, or a rest that the site requested.

        The pause or the rest may have ended since.
        """
        if (extra := self.extra) is None:
            return False
        return bool(
            extra.tripped_at or extra.paused_until or (extra.told_at and extra.retry_after_until > self.written_at)
        )

    @property
    def days(self) -> tuple[Day, ...]:
        """Return the charges per day, the latest day last."""
        return tuple(day for day in (self.earlier, self.day) if day is not None)

    def spending(self, now: Now, calendar: Calendar) -> Spending:
        """Return the charges that count now. The record's instants must be on the present clock."""
        return budget.spending(self.day, self.earlier, self.jumped_at, now, calendar)

    def lasts(self, now: Now) -> int | None:
        """Return the microseconds until this record equals a fresh one; None while a user's change is in force.

        No rate is slower than one request a day, so spent tokens are refilled after as many days. The record does not
        know the length of a sliding window, so departures in one are kept for the maximum. Two days are added in case a
        clock is set back. A raised delay, a Crawl-delay and the breaker's history are kept for a week. The maximum is
        five weeks.
        """
        host = in_time(self, now)
        extra = host.extra or USUAL
        if extra.paused_until < 0 or extra.paused_until > now.at or extra.overrides:
            return None
        days = 5 * WEEK // (DAY * SECOND) if host.recent else max(1, host.spent / TOKEN)
        pace = host.sent_at and host.sent_at + days * DAY * SECOND
        held = max((place.until for place in host.places), default=0)
        day = (host.day.spent_at + 25 * 3600) * SECOND if host.day is not None else 0  # no day is longer than 25 h
        written_at = host.written_at or now.at
        until = max(pace, held, day, extra.retry_after_until, written_at) + 2 * DAY * SECOND
        if extra.delay or extra.tripped_at or extra.crawl_delay:
            until = max(until, extra.tripped_at + extra.cooldown + WEEK, written_at + WEEK)
        return min(round(until) - now.at, 5 * WEEK)

    def joined(self, ours: Self, base: Self | None) -> Self:
        """Return this record joined with `ours`, which diverged from `base` during a store outage.

        Charges are added; of all other values the more careful is kept. Both records are on the same clock.
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
        rest_until = _latest(self.retry_after_until, ours.retry_after_until)
        rests_longer = ours if ours.retry_after_until == rest_until else self
        *before, day = (None, None, *budget.joined(self.days, ours.days, was.days))
        return self.replace(
            **{name: _latest(getattr(self, name), getattr(ours, name)) for name in _LATEST},
            **{name: max(getattr(self, name), getattr(ours, name)) for name in _LARGEST},
            **{name: getattr(self, name) + getattr(ours, name) - getattr(was, name) for name in _ADDED},
            sent_at=later.sent_at,
            roll=later.roll if not both_sent else max(self.roll, ours.roll),
            spent=later.spent + (earlier.spent if both_sent else 0),
            recent=tuple(sorted((*self.recent, *(Counter(ours.recent) - Counter(was.recent)).elements()))),
            places=(*(place for place in self.places if place.number not in gone), *new),
            earlier=before[-1],
            day=day,
            retry_after_until=rests_longer.retry_after_until,
            told_at=rests_longer.told_at,
            delays=with_delays(self.delays, ours.delays),
            tripped_at=open_longer.tripped_at,
            cooldown=open_longer.cooldown,
            tripped_by=open_longer.tripped_by,
            paused_until=min(self.paused_until, ours.paused_until, 0) or max(self.paused_until, ours.paused_until),
            overrides=self.overrides if ours.overrides == was.overrides else ours.overrides,
            guests=self.guests + ours.guests - was.guests if ours.guests_until == was.guests_until else ours.guests,
            status=later.status,
        )

    def is_behind(self, known: Self) -> bool:
        """Return whether this record lacks something of `known`: it is older, or was created without it."""
        is_earlier = _latest(self.sent_at, known.sent_at) != self.sent_at
        return is_earlier or known.requests > self.requests or budget.is_behind(self.days, known.days)

    def caught_up(self, known: Self) -> Self:
        """Return this record with the facts of `known` that it lacks.

        Counts in both records count once. Both are on the same clock.
        """
        if not self.is_behind(known):
            return self
        both = self.replace(
            places=(),
            overrides=known.overrides if self.overrides else (),
            requests=min(self.requests, known.requests),
            pages=min(self.pages, known.pages),
            trips=min(self.trips, known.trips),
        )
        joined = self.joined(known, both)
        return joined.replace(spent=max(self.spent, known.spent))

    def breaker_state(self, now: Now) -> breaker.State:
        """Return the state of the breaker."""
        host = in_time(self, now)
        return breaker.state(host.tripped_at, host.cooldown, now.at)

    def breaker_left(self, now: Now) -> float:
        """Return the seconds until the breaker admits a trial; 0 if it is not open."""
        host = in_time(self, now)
        return max(0, host.tripped_at + host.cooldown - now.at) / SECOND if host.tripped_at else 0.0


_LATEST = ("jumped_at", "backed_off_at", "guests_until")
_LARGEST = ("serial", "delay", "latency", "crawl_delay", "failures", "failed_trials", "written_at")
_ADDED = ("requests", "pages", "trips")
"""Fields of two records that `joined()` joins: the later instant, the larger value, the sum of all changes."""

_INSTANTS = (
    "sent_at", "retry_after_until", "told_at", "backed_off_at", "tripped_at", "closed_at", "window_at", "guests_until",
    "jumped_at",
)  # fmt: skip
"""Fields that are instants of the store's clock; 0 means never."""


def _latest(one: int, other: int) -> int:
    """Return the later of two instants; 0 means never. Instants before the present boot are negative."""
    return max(one, other) if one and other else one or other


def offset_at(now: Now, known: int = 0) -> int:
    """Return how far the calendar is ahead of the clock, in microseconds, to the millisecond.

    The low resolution gives very many hosts the same number. It is rounded up: after a reboot the last departure then
    seems later than it was, never earlier. `known` is an earlier result, usually the same.
    """
    if 0 <= known + now.at - now.epoch < CLOSE:
        return known
    return shared(-((now.at - now.epoch) // CLOSE) * CLOSE)


def fresh(now: Now) -> Host:
    """Return the record of an unknown host."""
    return Host(boot=now.boot, offset=offset_at(now), written_at=now.at)


def in_time(host: Host, now: Now) -> Host:
    """Return the record with its instants on the present run of the clock.

    After a reboot the instants are converted by way of the epoch. A record written later than now comes from a clock
    that ran backwards; all its instants are shifted so that the last write is now.
    """
    at = now.at
    if host.boot == now.boot and host.written_at <= at:
        return host
    shift = 0 if host.boot == now.boot else host.offset - (now.epoch - at)
    ahead = max(0, host.written_at + shift - at)
    shift -= ahead

    def moved(instant: int) -> int:
        return instant and (instant + shift or 1)  # 0 means never and is kept

    return host.replace(
        **{name: moved(getattr(host, name)) for name in _INSTANTS},
        boot=now.boot,
        offset=offset_at(now),
        recent=tuple(moved(each) for each in host.recent),
        places=tuple(Place(each.number, moved(each.left_at), moved(each.until)) for each in host.places),
        # A negative value would mean "until resumed"; 1 is equally past.
        paused_until=host.paused_until if host.paused_until <= 0 else max(1, moved(host.paused_until)),
        written_at=at,
        earlier=_day_moved(host, host.earlier, shift, ahead, now),
        day=_day_moved(host, host.day, shift, ahead, now),
    )


def _day_moved(host: Host, day: Day | None, shift: int, ahead: int, now: Now) -> Day | None:
    """Return the day on the present run of the clock. The calendar decides unless it went back (C19).

    `ahead` is how far the last write would be in the future, in microseconds.
    """
    if day is None:
        return None
    has_jumped = ahead > ALIKE * SECOND or abs(host.offset // SECOND - day.offset) > ALIKE
    offset = UNKNOWN if has_jumped else now.epoch // SECOND - now.at // SECOND
    spent_at = min(day.spent_at - (-shift // SECOND), -(-now.at // SECOND))  # both rounded up
    return Day(day.ends, offset, spent_at, day.requests, day.pages)


def with_delays(delays: tuple[tuple[str, int], ...], more: tuple[tuple[str, int], ...]) -> tuple[tuple[str, int], ...]:
    """Return the delays of all origins; `more` replaces known ones. Only the `MOST_DELAYS` largest are kept."""
    merged = {**dict(delays), **dict(more)}
    return tuple(sorted(merged.items(), key=lambda each: each[1]))[-MOST_DELAYS:]
