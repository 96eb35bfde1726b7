"""Time: instants, dates of HTTP (RFC 9110, 5.6.7) and of cookies (RFC 6265, 5.1.1), days of a time zone, durations."""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime, tzinfo
from functools import lru_cache
from typing import NewType

import msgspec

Instant = NewType("Instant", int)
"""Time by a store's clock, in whole microseconds. Instants of different stores are not comparable."""

SECOND = 1_000_000
"""Microseconds in a second. Durations are float seconds in interfaces and integer microseconds in records."""


class Now(msgspec.Struct, frozen=True, gc=False):
    """Present time, as the store of the record sees it."""

    at: Instant
    """Time by a clock that never jumps: monotonic, boot-time, or the server's."""

    epoch: int
    """Microseconds since 1970, for days and for times that outlive a reboot."""

    boot: int = 0
    """Identity of the run of the clock behind `at`. Instants of another run are converted by `epoch`."""


_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_TIME = r"(?P<hour>\d\d):(?P<minute>\d\d):(?P<second>\d\d)"
_ZONE = r"(?:GMT|UTC|[+-]0000)"
_FORMS = tuple(
    re.compile(form, re.ASCII | re.IGNORECASE)  # RFC 9111, 4.2
    for form in (
        # Sun, 06 Nov 1994 08:49:37 GMT: the only form still sent
        rf"[A-Z][a-z]{{2}}, (?P<day>\d\d?) (?P<month>[A-Z][a-z]{{2}}) (?P<year>\d{{4}}) {_TIME} {_ZONE}",
        # Sunday, 06-Nov-94 08:49:37 GMT: RFC 850, with either length of the year
        rf"[A-Z][a-z]{{2,8}}, (?P<day>\d\d)-(?P<month>[A-Z][a-z]{{2}})-(?P<year>\d\d|\d{{4}}) {_TIME} {_ZONE}",
        # Sun Nov  6 08:49:37 1994: C's asctime()
        rf"[A-Z][a-z]{{2}} (?P<month>[A-Z][a-z]{{2}}) (?P<day>[\d ]\d) {_TIME} (?P<year>\d{{4}})",
    )
)


def http_date(text: str | None) -> int | None:
    """Parse a date in one of HTTP's three forms to epoch seconds; None if invalid. The weekday is not checked."""
    return None if text is None or len(text) > 100 else _date(text)


@lru_cache(maxsize=256)  # responses within a second have the same date
def _date(text: str) -> int | None:
    text = text.strip()
    for form in _FORMS:
        if found := form.fullmatch(text):
            break
    else:
        return None
    return _moment(found["year"], found["month"], found["day"], found["hour"], found["minute"], found["second"])


def _moment(year: str, month: str, day: str, hour: str, minute: str, second: str) -> int | None:
    """Return the epoch second; None if the date does not exist."""
    full = int(year)
    if len(year) == 2:  # RFC 850: two digits mean 1970 to 2069
        full += 1900 if full >= 70 else 2000
    try:
        moment = datetime(
            full,
            _MONTHS.index(month.capitalize()) + 1,
            int(day),
            int(hour),
            int(minute),
            min(int(second), 59),  # a leap second is written as :60
            tzinfo=UTC,
        )
    except ValueError:
        return None
    return int(moment.timestamp())


_TOKEN = re.compile(r"[^\t -/;-@\[-`{-~]+")
_PARTS = {
    "time": re.compile(r"(\d\d?):(\d\d?):(\d\d?)(?!\d)", re.ASCII),
    "day": re.compile(r"(\d\d?)(?!\d)", re.ASCII),
    "month": re.compile(f"({'|'.join(_MONTHS)})", re.IGNORECASE),
    "year": re.compile(r"(\d{2,4})(?!\d)", re.ASCII),
}


def cookie_date(text: str) -> int | None:
    """Parse a cookie's date to epoch seconds; None if invalid (RFC 6265, 5.1.1).

    The parts may have any order. The time zone is ignored.
    """
    found: dict[str, tuple[str, ...]] = {}
    for token in _TOKEN.findall(text[:100]):
        for name, pattern in _PARTS.items():
            if name not in found and (match := pattern.match(token)):
                found[name] = match.groups()
                break
    if len(found) < len(_PARTS):
        return None
    return _moment(*found["year"], *found["month"], *found["day"], *found["time"])


class Calendar:
    """Days of one time zone as ranges of epoch seconds. The last range is cached."""

    __slots__ = ("_last", "_zone")

    def __init__(self, zone: tzinfo | None) -> None:
        self._zone = zone
        self._last = 0, 0  # one tuple, so that no thread reads a mixture of two days

    def day_of(self, second: int) -> tuple[int, int]:
        """Return the start and end of the local day of `second`, in epoch seconds (23 to 25 hours apart).

        A day lasts from the first moment with its date to the first moment with the next date. Days therefore never
        overlap, even if clocks are set back over midnight and an hour of the old date repeats.
        """
        last = self._last
        if not last[0] <= second < last[1]:
            day = datetime.fromtimestamp(second, self._zone).date().toordinal()
            starts, ends = self._midnight(day), self._midnight(day + 1)
            if ends <= second:
                starts, ends = ends, self._midnight(day + 2)
            self._last = last = min(starts, second), ends
        return last

    def _midnight(self, ordinal: int) -> int:
        return math.floor(datetime.fromordinal(ordinal).replace(tzinfo=self._zone).timestamp())

    def date_of(self, second: int) -> str:
        """Return the local date of `second`, as `YYYY-MM-DD`."""
        return datetime.fromtimestamp(second, self._zone).date().isoformat()


@lru_cache(maxsize=64)
def calendar(zone: tzinfo | None) -> Calendar:
    """Return the shared calendar of a zone."""
    return Calendar(zone)


def span(seconds: float) -> str:
    """Format a duration for people: `12 s`, `4 min 30 s`, `3 h 12 min`, `2 days 3 h`."""
    if seconds < 10:
        return f"{seconds:.1f} s".replace(".0 s", " s")
    total = round(seconds)
    if total < 60:
        return f"{total} s"
    minutes, rest = divmod(total, 60)
    if minutes < 60:
        return f"{minutes} min" + (f" {rest} s" if rest else "")
    hours, minutes = divmod(round(total / 60), 60)
    if hours < 24:
        return f"{hours} h" + (f" {minutes} min" if minutes else "")
    days, hours = divmod(hours, 24)
    return f"{days} day{'s' if days > 1 else ''}" + (f" {hours} h" if hours else "")


def roughly(seconds: float) -> str:
    """Format an estimate: in whole minutes from two minutes on, in whole days from two days on."""
    for unit in (86_400, 3600, 60):
        if seconds >= 2 * unit:
            return span(round(seconds / unit) * unit)
    return span(seconds)
