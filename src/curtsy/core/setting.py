"""Settings as annotated fields of dataclasses: one declaration holds type, bounds, unit, default and help.

    @dataclass(frozen=True)
    class Example:
        timeout: Annotated[float, Range(above=True, unit="seconds")] = 30.0
        '''Time limit of a request.'''

        def __post_init__(self) -> None:
            check_fields(self)

`settings_of` returns the declarations; files, environment, keyword arguments and the reference page derive from them.
"""

from __future__ import annotations

import difflib
import math
import sys
from collections.abc import Callable, Iterable
from dataclasses import MISSING, dataclass, fields
from datetime import tzinfo
from functools import lru_cache
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from curtsy.core.errors import PolicyError

DAY = 86_400
"""Seconds in a day. No rate is slower than one request a day; the denylist blocks a host entirely."""

MOST_WHOLE = 10**15
"""Largest whole number of a setting: floats represent all integers up to it exactly."""

MOST_SHOWN = 200
"""Maximum number of characters of an invalid value in an error message."""

OTHER_NAMES = {
    **dict.fromkeys(("limit", "page_limit", "max_urls", "max_items"), "max_pages"),
    **dict.fromkeys(("limit_per_host", "max_pages_per_domain"), "max_pages_per_host"),
    **dict.fromkeys(("depth", "depth_limit", "max_level", "level"), "max_depth"),
    **dict.fromkeys(("rate", "rate_limit", "rps", "requests_per_second"), "qps"),
    **dict.fromkeys(
        ("concurrency", "max_concurrent", "max_concurrency", "concurrent_requests", "connections", "max_connections"),
        "max_in_flight",
    ),
    **dict.fromkeys(("download_delay", "sleep"), "delay"),
    **dict.fromkeys(("robots", "obey_robots", "ignore_robots", "no_robots", "robotstxt_obey"), "respect_robots"),
    **dict.fromkeys(("follow_redirects", "allow_redirects", "redirects"), "max_redirects"),
    **dict.fromkeys(("ua", "agent"), "user_agent"),
    **dict.fromkeys(("allowed_domains", "domain"), "domains"),
    **dict.fromkeys(("include", "allow"), "match"),
    **dict.fromkeys(("exclude", "deny"), "skip"),
    **dict.fromkeys(("output", "out", "jsonl"), "outputs"),
    **dict.fromkeys(("processes", "threads"), "workers"),
    **dict.fromkeys(("data", "content"), "body"),
    **{name: name for name in ("headers", "params", "json")},  # of a fetch, where other libraries have them of a client
    "text": "main_text",
    "fresh": "restart",
    "retries": "max_retries",
    "proxies": "proxy",
}
"""Names of arguments by those that other libraries, and version 0.1, use for them."""

HINTS = {
    "auth": 'Give headers={"Authorization": …} to the fetch.',
    "cert": "Give verify= to the client: an ssl.SSLContext with the certificate.",
    "cookies": 'cookies=True keeps those of sites; your own are headers={"Cookie": …} of a fetch.',
    "data": "It takes bytes: encode a form with urllib.parse.urlencode, and give its Content-Type in headers.",
    "files": "Encode the form, and give it as body= of the fetch with its Content-Type in headers.",
    "proxies": "It takes one URL.",
    "allow_redirects": "0 follows none.",
    "follow_redirects": "0 follows none.",
    "stream": "A body is read completely, up to max_body; download() saves one of any size as a file.",
}
"""Ways to reach what an argument of requests or httpx does, which this library has not, or in another form."""

Mark = Literal["at start", "per host at run time"]
"""Property of a setting that is neither type nor bound, for `Annotated`.

`at start`: a reload does not change it. `per host at run time`: a user can override it for a host.
"""


@dataclass(frozen=True, slots=True)
class Range:
    """Bounds and unit of a number, for `Annotated`."""

    least: float = 0
    most: float = math.inf
    above: bool = False
    """True to refuse `least` itself."""

    whole: bool = False
    """True if users give a whole number although the program also uses fractions."""

    unit: str = ""

    def broken_by(self, value: object, *, whole: bool = False) -> str | None:
        """Return the rule that a value breaks, as in `above 0`; None if it is a number within the bounds."""
        noun = "a whole number" if whole else "a number"
        if isinstance(value, bool) or not isinstance(value, int if whole else int | float):
            if whole and isinstance(value, float) and value.is_integer() and abs(value) <= MOST_WHOLE:
                return f"a whole number, written {value:.0f}"
            return self._with_noun(noun)
        if not (whole or abs(value) <= sys.float_info.max):  # also NaN
            return self._with_noun("a finite number")
        is_below = value < self.least or (self.above and value == self.least)
        return self._bounds() if is_below or value > self.most else None

    def _with_noun(self, noun: str) -> str:
        return f"{noun} {'' if self.above else 'of '}{self._bounds()}"

    def _bounds(self) -> str:
        bounds = f"{'above' if self.above else 'at least'} {self.least:g}"
        return bounds if self.most == math.inf else f"{bounds} and at most {self.most:.16g}"


Check = Callable[[Any], str | None]
"""Further check of a value, for `Annotated`: returns the rule that the value breaks; None if it is valid."""


def at_least_daily(qps: float) -> str | None:
    """Check that a rate is at least one request a day."""
    return "at least one request a day, 1/86400" if qps * DAY < 1 else None


Rate = Annotated[float, Range(above=True, unit="requests per second"), at_least_daily]


@dataclass(frozen=True, slots=True)
class Setting:
    """One declared setting."""

    name: str
    kind: Any
    """Bare type: a Literal, tuple, or a class such as float."""

    optional: bool
    """True if the value may be None."""

    default: Any
    """Built-in default; `...` if a value must be given."""

    range: Range = Range()
    checks: tuple[Check, ...] = ()
    marks: tuple[str, ...] = ()

    def broken_rule(self, value: object) -> str | None:
        """Return the rule that a value breaks, in words that follow "must be"; None if the value is valid."""
        if value is None and self.optional:
            return None
        broken = self._broken_type(value)
        return broken or next((rule for check in self.checks if (rule := check(value)) is not None), None)

    def _broken_type(self, value: object) -> str | None:
        kind = self.kind
        if kind is float:
            return self.range.broken_by(value)
        if kind is int:
            is_huge = isinstance(value, int) and value > MOST_WHOLE == min(MOST_WHOLE, self.range.most)
            return f"at most {MOST_WHOLE}" if is_huge else self.range.broken_by(value, whole=True)
        if get_origin(kind) is Literal:
            choices = get_args(kind)
            return None if isinstance(value, str) and value in choices else "one of " + ", ".join(choices)
        if kind is tuple:
            is_right = isinstance(value, tuple) and all(isinstance(each, str) for each in value)
            return None if is_right else "a tuple of texts"
        return None if isinstance(value, kind) else _NOUNS.get(kind, f"a {kind.__name__.lower()}")


_NOUNS = {bool: "true or false", str: "text", tzinfo: "a time zone, such as ZoneInfo('Europe/Berlin')"}


@lru_cache(maxsize=16)
def settings_of(model: type) -> dict[str, Setting]:
    """Return the settings that a dataclass declares: its fields that can be set, by name."""
    hints = get_type_hints(model, include_extras=True)
    return {
        each.name: _setting(each.name, hints[each.name], ... if each.default is MISSING else each.default)
        for each in fields(model)
        if each.init
    }


def _setting(name: str, hint: Any, default: Any) -> Setting:
    extras: list[Any] = []
    optional = False
    while get_origin(hint) in (Annotated, Union, UnionType):
        if get_origin(hint) is Annotated:
            hint, *more = get_args(hint)
            extras += more
        else:
            several = [each for each in get_args(hint) if each is not NoneType]
            optional = optional or len(several) < len(get_args(hint))
            if len(several) > 1:
                return Setting(name, object, optional, default)
            hint = several[0]
    return Setting(
        name,
        tuple if get_origin(hint) is tuple else hint,
        optional,
        default,
        next((each for each in extras if isinstance(each, Range)), Range()),
        tuple(each for each in extras if callable(each)),
        tuple(each for each in extras if isinstance(each, str)),
    )


def check_fields(value: Any) -> None:
    """Check the fields of a dataclass instance by their declarations. Raises PolicyError for the first wrong one."""
    for name, setting in settings_of(value.__class__).items():
        given = getattr(value, name)
        if given is not setting.default and (broken := setting.broken_rule(given)) is not None:
            raise rule(name, given, broken, setting.default)


def suggested(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that a wrong one stands for: another word for it, or a misspelling; None without one."""
    names = list(known)
    other = OTHER_NAMES.get(name)
    if other in names:
        return other
    if other == name or name in HINTS:
        return None
    return next(iter(difflib.get_close_matches(name, names, 1)), None)


def rule(name: str, value: object, must: str, default: object = None) -> PolicyError:
    """Return the error for an invalid value: field, rule, value and remedy."""
    hint = "" if default in (None, ...) else f" Leave it out to use the default, {default}."
    return PolicyError(f"{name} = {_shown(value)} must be {must}.{hint}")


def _shown(value: object) -> str:
    """Return the value as text, cut to `MOST_SHOWN` characters."""
    try:
        text = repr(value)
    except ValueError:  # an integer of thousands of digits
        return f"a {type(value).__name__} that is too large to be shown"
    return text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]}…"


def number(
    name: str, value: object, *, least: float = 0.0, most: float = math.inf, above: bool = False, default: object = None
) -> float:
    """Return `value` as a float; raise PolicyError unless it is a finite number within bounds."""
    broken = Range(least, most, above).broken_by(value)
    if broken is not None or not isinstance(value, int | float):
        raise rule(name, value, broken or "a number", default)
    return float(value)


def rate(name: str, value: object, default: float | None = None) -> float:
    """Return `value` as a float; raise PolicyError unless it is a rate of at least one request a day."""
    qps = number(name, value, above=True, default=default)
    if broken := at_least_daily(qps):
        raise rule(name, value, broken, default)
    return qps


def whole(name: str, value: object, least: int) -> int:
    """Return `value`; raise PolicyError unless it is a whole number of at least `least`."""
    broken = Range(least).broken_by(value, whole=True)
    if broken is not None or not isinstance(value, int):
        raise rule(name, value, broken or "a whole number")
    return value


def flag(name: str, value: object) -> None:
    """Raise PolicyError unless `value` is a bool. Non-empty text would count as True."""
    if not isinstance(value, bool):
        raise rule(name, value, "True or False")
