"""DailyBudget: requests and pages a day.

The days of a host are stretches of the calendar that never overlap, each with what was spent in it. Whatever the clock
does, a moment belongs to one stretch, and no stretch is spent twice (B6). Old ones are merged into one that counts as
much as the largest of them: a clock set back by years still finds its day used.
"""

from __future__ import annotations

import msgspec

from curtsy.core.policy import Calendar

KEPT = 2
"""Days listed in a record: the present one, and all earlier ones in one; a clock set back may need a third."""


class Day(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What was spent on a host within one local day. Its ends are absolute: no change of zone moves them."""

    starts: int
    """Epoch second."""

    ends: int
    """Epoch second."""

    requests: int = 0
    pages: int = 0
    """Pages received, and requests on their way that may become one."""


def today(days: tuple[Day, ...], second: int, calendar: Calendar) -> Day:
    """The day that holds `second`: the one listed, or a new one that overlaps none of those."""
    if days and days[-1].starts <= second < days[-1].ends:
        return days[-1]
    for day in days:
        if day.starts <= second < day.ends:
            return day
    starts, ends = calendar.day_of(second)
    for day in days:
        if day.ends <= second:
            starts = max(starts, day.ends)
        else:
            ends = min(ends, day.starts)
    return Day(starts, ends)


def charged(days: tuple[Day, ...], day: Day, requests: int, pages: int) -> tuple[Day, ...]:
    """The days after something more was spent on `day`, which `today()` gave."""
    present = Day(day.starts, day.ends, day.requests + requests, day.pages + pages)
    if days and days[-1] is day:
        return (*days[:-1], present)
    listed = sorted((*(each for each in days if each.starts != day.starts), present), key=lambda each: each.starts)
    while len(listed) > KEPT:
        # Merge two neighbours, neither of them the present day: first of those behind us, then of those ahead.
        place = listed.index(present)
        if place >= 2:
            listed[0:2] = [_merged(listed[0], listed[1])]
        elif len(listed) - place > 2:
            listed[-2:] = [_merged(listed[-2], listed[-1])]
        else:
            break
    return tuple(listed)


def _merged(*days: Day) -> Day:
    # The largest count is safe for each of them: no single day had more.
    return Day(
        min(day.starts for day in days),
        max(day.ends for day in days),
        max(day.requests for day in days),
        max(day.pages for day in days),
    )


def joined(days: tuple[Day, ...], ours: tuple[Day, ...], base: tuple[Day, ...]) -> tuple[Day, ...]:
    """The days of a record together with what was spent in `ours`, which went its own way from `base`.

    Days of the two that overlap without being the same become one, which counts as much as any of them and all that
    was added: too much is safe, too little is not.
    """
    for day in ours:
        before = next((each for each in base if (each.starts, each.ends) == (day.starts, day.ends)), Day(0, 0))
        requests, pages = max(0, day.requests - before.requests), max(0, day.pages - before.pages)
        if requests or pages:
            met = [each for each in days if each.starts < day.ends and day.starts < each.ends]
            apart = tuple(each for each in days if each not in met)
            days = charged(apart, _merged(Day(day.starts, day.ends), *met), requests, pages)
    return days


def is_behind(days: tuple[Day, ...], known: tuple[Day, ...]) -> bool:
    """Whether something that was spent in `known` is missing in `days`."""
    return joined(days, known, days) is not days


def refunded(days: tuple[Day, ...], paid_on: Day, requests: int, pages: int) -> tuple[Day, ...]:
    """The days after something that was charged to one of them is given back.

    A day that has been merged meanwhile keeps its charge: too much is safe, too little is not.
    """
    for place, day in enumerate(days):
        if (day.starts, day.ends) == (paid_on.starts, paid_on.ends):
            less = Day(day.starts, day.ends, max(0, day.requests - requests), max(0, day.pages - pages))
            return (*days[:place], less, *days[place + 1 :])
    return days
