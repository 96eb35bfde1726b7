"""History: counts of the last hour and the last day, in intervals of fixed length.

    TotalHistory.of(at, 1).plus(earlier).hour.counts(0, at)       # requests in each of the last 60 minutes

All histories divide time since 1970 alike, so those of several processes and machines can be added. Only intervals from
the first count on are kept, as one column of whole numbers for each kind of count, without zeros at its end.
"""

from __future__ import annotations

from operator import add
from typing import Any, ClassVar, Self

import msgspec

KINDS = ("requests", "pages", "errors", "waited", "blocked", "trips")
"""Kinds of counts, in the order of the columns. `waited` is in milliseconds."""


class Series(msgspec.Struct, frozen=True, array_like=True):
    """Counts of consecutive intervals. Subclasses define their length and number."""

    first: int = 0
    """Number of the first interval since 1970."""

    columns: tuple[tuple[int, ...], ...] = ()
    """Counts from the first interval on, for each of `KINDS`; empty without any counts."""

    seconds: ClassVar[int] = 60
    most: ClassVar[int] = 60

    @property
    def end(self) -> int:
        """Return the number of the interval after the last one with counts."""
        return self.first + max(map(len, self.columns), default=0)

    def plus(self, other: Self) -> Self:
        """Return the sum of both, of the latest `most` intervals."""
        if not other.columns or not self.columns:
            return self if self.columns else other
        one, two = (self, other) if self.first <= other.first else (other, self)
        place = two.first - one.first
        if place >= 2 * self.most:
            return two
        cut = max(0, max(one.end, two.end) - one.first - self.most)
        columns = zip(one.columns, two.columns, strict=True)
        return type(self)(one.first + cut, tuple([_sum(a, b, place)[cut:] for a, b in columns]))

    def of(self, at: float, counts: tuple[int, ...]) -> Self:
        """Return a series of the same kind, with counts at epoch second `at` only."""
        return type(self)(int(at // self.seconds), tuple([(each,) if each else () for each in counts]))

    def kept(self, at: float) -> Self:
        """Return this; without counts if all are too old at epoch second `at`, or the last is of a later time.

        A clock that was set back would otherwise hide all counts until it is there again.
        """
        present, last = int(at // self.seconds), self.end - 1
        is_valid = present - self.most < last <= present + 1
        return self if not self.columns or is_valid else type(self)()

    def counts(self, kind: int, at: float) -> list[int]:
        """Return the counts of one of `KINDS`, by its place, in the `most` intervals up to epoch second `at`."""
        if not self.columns:
            return [0] * self.most
        skipped = int(at // self.seconds) - self.most + 1 - self.first
        column = [*[0] * -skipped, *self.columns[kind][max(0, skipped) :]][: self.most]
        return column + [0] * (self.most - len(column))

    def as_dict(self) -> dict[str, Any]:
        """Return the intervals with counts as JSON values: `from`, `seconds` of each, and lists by kind of count.

        `waited` is in seconds.
        """
        length = self.end - self.first
        columns: dict[str, list[Any]] = {
            kind: [*column, *[0] * (length - len(column))]
            for kind, column in zip(KINDS, self.columns or [()] * len(KINDS), strict=True)
        }
        columns["waited"] = [each / 1000 for each in columns["waited"]]
        return {"from": self.first * self.seconds, "seconds": self.seconds, **columns}


def _sum(one: tuple[int, ...], two: tuple[int, ...], place: int) -> tuple[int, ...]:
    """Return a column to which another is added from `place` on."""
    if not two:
        return one
    if (gap := place - len(one)) >= 0:
        return (*one, *(0,) * gap, *two)
    both = one[place : place + len(two)]
    return (*one[:place], *map(add, both, two), *two[len(both) :], *one[place + len(two) :])


class Minutes(Series, frozen=True, array_like=True):
    """An hour in minutes."""


class Quarters(Series, frozen=True, array_like=True):
    """A day in quarters of an hour."""

    seconds: ClassVar[int] = 900
    most: ClassVar[int] = 96


class FiveMinutes(Series, frozen=True, array_like=True):
    """An hour in intervals of five minutes."""

    seconds: ClassVar[int] = 300
    most: ClassVar[int] = 12


class Hours(Series, frozen=True, array_like=True):
    """A day in hours."""

    seconds: ClassVar[int] = 3600
    most: ClassVar[int] = 24


class History(msgspec.Struct, frozen=True, array_like=True):
    """Counts of the last hour and the last day. Subclasses define the intervals."""

    hour: Series = Series()
    day: Series = Series()

    @classmethod
    def of(cls, at: float, *counts: int) -> Self:
        """Return the history of counts at epoch second `at`, in the order of `KINDS`; further ones are 0."""
        none = cls()
        counts = (*counts, *[0] * (len(KINDS) - len(counts)))
        return cls(none.hour.of(at, counts), none.day.of(at, counts)) if any(counts) else none

    def plus(self, other: Self) -> Self:
        """Return the sum of both."""
        return type(self)(self.hour.plus(other.hour), self.day.plus(other.day))

    def kept(self, at: float) -> Self:
        """Return this without series whose counts are all too old at epoch second `at`."""
        hour, day = self.hour.kept(at), self.day.kept(at)
        return self if hour is self.hour and day is self.day else type(self)(hour, day)

    def as_dict(self) -> dict[str, Any]:
        """Return both as JSON values."""
        return {"hour": self.hour.as_dict(), "day": self.day.as_dict()}


class TotalHistory(History, frozen=True, array_like=True):
    """History of all hosts."""

    hour: Minutes = Minutes()
    day: Quarters = Quarters()


class HostHistory(History, frozen=True, array_like=True):
    """History of one host, in fewer intervals, because a process publishes that of many hosts: at most 500 bytes."""

    hour: FiveMinutes = FiveMinutes()
    day: Hours = Hours()
