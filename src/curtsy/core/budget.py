"""Daily budget of a host: requests and pages per calendar day, safe against clock jumps (B6, C19).

A day starts at zero at midnight. The calendar alone is not sufficient, because a clock that is set back or ahead would
open a second budget. Each day therefore stores the offset between the calendar and the store's clock, which never
jumps. While that offset is constant (±60 s), the calendar decides. After a change, everything spent within the last 24
h by the store's clock counts during the next 24 h. No real 24 h that include a jump exceed the limit. A change of the
time zone that would make two days overlap counts as a jump.
"""

from __future__ import annotations

from functools import lru_cache

import msgspec

from curtsy.core.setting import DAY
from curtsy.core.time import SECOND, Calendar, Instant, Now

ALIKE = 60
"""Seconds by which the calendar and the store's clock may drift apart within a day."""

UNKNOWN = -(1 << 40)
"""Impossible offset in seconds, stored after a calendar jump."""


@lru_cache(maxsize=4096)
def shared(number: int) -> int:
    """Return one shared object for equal numbers, to save memory accesses."""
    return number


class Day(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Charges to a host within one calendar day. All instants are whole seconds."""

    ends: int
    """Epoch second at which the day ends. A change of the time zone does not move it."""

    offset: int
    """Epoch minus the store's clock when the day was opened, or at its first charge after a jump."""

    spent_at: int = 0
    """Last charge by the store's clock, rounded up."""

    requests: int = 0
    pages: int = 0
    """Pages received, plus requests in flight that may return a page."""


class Spending(msgspec.Struct, frozen=True, gc=False):
    """Charges that count against the limits of a host at one instant."""

    day: Day
    """Day that the next request is charged to; a new day has no charges."""

    earlier: Day | None
    """Charges before that day, if some may be within the last 24 h; None otherwise."""

    jumped_at: int
    """Microsecond at which a charge first found a clock jump; 0 if that is over 24 h ago."""

    requests: int
    pages: int

    stored: tuple[Day | None, Day | None, int]
    """The arguments `day`, `earlier` and `jumped_at` of `spending()`: the fields of the host's record."""

    calendar: Calendar

    def charged(self, requests: int, pages: int, at: int) -> Day:
        """Return the day with `requests` and `pages` added at `at`, in microseconds."""
        day, spent_at = self.day, shared(-(-at // SECOND))
        return Day(day.ends, day.offset, spent_at, day.requests + requests, day.pages + pages)

    def opens_in(self, limit: int, of: str, now: Now) -> float:
        """Return the seconds until fewer than `limit` `requests` or `pages` count, without further charges."""
        # The stored days end one by one, though a jump merges them here. So only `spending()` knows what counts then.
        days = {day for day in (*self.stored[:2], self.day, self.earlier) if day is not None}
        changes = {day.ends * SECOND - now.epoch for day in days}
        changes |= {(day.spent_at + DAY) * SECOND - now.at for day in days}
        changes |= {each + DAY * SECOND - now.at for each in (self.stored[2], self.jumped_at)}
        for moment in sorted(change for change in changes if change > 0):
            later = Now(Instant(now.at + moment), now.epoch + moment, now.boot)
            then = spending(*self.stored, later, self.calendar)
            if (then.requests if of == "requests" else then.pages) < limit:
                return moment / SECOND
        return max(changes) / SECOND


def spending(day: Day | None, earlier: Day | None, jumped_at: int, now: Now, calendar: Calendar) -> Spending:
    """Return the charges that count now, from the fields of a host's record."""
    second, tick = now.epoch // SECOND, now.at // SECOND
    stored = day, earlier, jumped_at
    if jumped_at and now.at - jumped_at >= DAY * SECOND:
        jumped_at = 0
    if day is None:
        return Spending(Day(calendar.day_of(second)[1], second - tick), None, 0, 0, 0, stored, calendar)
    is_alike = -ALIKE <= second - tick - day.offset <= ALIKE
    if not is_alike or second >= day.ends:
        starts, ends = calendar.day_of(second)
        if not is_alike or starts < day.ends:
            jumped_at = now.at
        if ends != day.ends or _is_past(day, tick):
            earlier, day = _merged(earlier, day, tick), Day(ends, second - tick)
        else:
            day = Day(day.ends, second - tick, day.spent_at, day.requests, day.pages)
    if earlier is not None and _is_past(earlier, tick):
        earlier = None
    requests, pages = day.requests, day.pages
    if jumped_at and earlier is not None:
        requests, pages = requests + earlier.requests, pages + earlier.pages
    return Spending(day, earlier, jumped_at, requests, pages, stored, calendar)


def _is_past(day: Day, tick: int) -> bool:
    """Return whether the day has no charge within the last 24 h."""
    return day.spent_at + DAY <= tick


def _merged(earlier: Day | None, day: Day, tick: int) -> Day | None:
    """Return the days before a new one as one sum; None if all are over 24 h old.

    The sum is safe, because each part counts for at least 24 h.
    """
    if _is_past(day, tick):
        return None
    if earlier is None or _is_past(earlier, tick):
        return day
    return _sum(day, earlier.spent_at, earlier.requests, earlier.pages)


def _sum(day: Day, spent_at: int, requests: int, pages: int) -> Day:
    return Day(day.ends, day.offset, max(day.spent_at, spent_at), day.requests + requests, day.pages + pages)


def joined(days: tuple[Day, ...], ours: tuple[Day, ...], base: tuple[Day, ...]) -> tuple[Day, ...]:
    """Return the days of a record plus the charges that `ours` added since `base`.

    The latest day is last; all others are merged into one before it. Overcounting is safe, undercounting is not.
    """
    found = {day.ends: day for day in days}
    for day in ours:
        before = next((each for each in base if each.ends == day.ends), Day(0, 0))
        requests, pages = max(0, day.requests - before.requests), max(0, day.pages - before.pages)
        if requests or pages:
            there = found.get(day.ends, Day(day.ends, day.offset))
            found[day.ends] = _sum(there, day.spent_at, requests, pages)
    if list(found.values()) == [*days]:
        return days
    *others, latest = sorted(found.values(), key=lambda each: (each.spent_at, each.ends))
    while len(others) > 1:
        first, second = others[:2]
        others[:2] = [_sum(second, first.spent_at, first.requests, first.pages)]
    return (*others, latest)


def is_behind(days: tuple[Day, ...], known: tuple[Day, ...]) -> bool:
    """Return whether `days` lacks a charge of `known`. Charges 24 h before its last one are ignored."""
    latest = days[-1].spent_at if days else 0
    lately = tuple(day for day in known if not days or day.spent_at + DAY > latest)
    return joined(days, lately, days) is not days


def refunded(day: Day | None, paid_on: Day, requests: int, pages: int) -> Day | None:
    """Return the day with a charge to `paid_on` refunded; any other day is returned unchanged."""
    if day is None or day.ends != paid_on.ends:
        return day
    return Day(day.ends, day.offset, day.spent_at, max(0, day.requests - requests), max(0, day.pages - pages))
