"""HTTP dates, read (RFC 9110, 5.6.7)."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from functools import lru_cache

_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_TIME = r"(?P<hour>\d\d):(?P<minute>\d\d):(?P<second>\d\d)"
_ZONE = r"(?:GMT|UTC|[+-]0000)"
_FORMS = tuple(
    re.compile(form, re.ASCII | re.IGNORECASE)  # RFC 9111, 4.2
    for form in (
        # Sun, 06 Nov 1994 08:49:37 GMT: the one form that is still sent
        rf"[A-Z][a-z]{{2}}, (?P<day>\d\d?) (?P<month>[A-Z][a-z]{{2}}) (?P<year>\d{{4}}) {_TIME} {_ZONE}",
        # Sunday, 06-Nov-94 08:49:37 GMT: RFC 850, with either length of the year
        rf"[A-Z][a-z]{{2,8}}, (?P<day>\d\d)-(?P<month>[A-Z][a-z]{{2}})-(?P<year>\d\d|\d{{4}}) {_TIME} {_ZONE}",
        # Sun Nov  6 08:49:37 1994: C's asctime()
        rf"[A-Z][a-z]{{2}} (?P<month>[A-Z][a-z]{{2}}) (?P<day>[\d ]\d) {_TIME} (?P<year>\d{{4}})",
    )
)


def http_date(text: str | None) -> int | None:
    """Epoch seconds of a date in any of HTTP's three forms; None if it is none. The weekday is not checked."""
    return None if text is None or len(text) > 100 else _date(text)


@lru_cache(maxsize=256)  # all that comes within a second has the same one
def _date(text: str) -> int | None:
    text = text.strip()
    for form in _FORMS:
        if found := form.fullmatch(text):
            break
    else:
        return None
    year = int(found["year"])
    if len(found["year"]) == 2:  # RFC 850; its two digits stand for the years around the web's own
        year += 1900 if year >= 70 else 2000
    second = min(int(found["second"]), 59)  # a leap second is written as :60
    try:
        month = _MONTHS.index(found["month"].capitalize()) + 1
        moment = datetime(year, month, int(found["day"]), int(found["hour"]), int(found["minute"]), second, 0, UTC)
    except ValueError:
        return None
    return int(moment.timestamp())
