"""Keys of the settings: types, rules, units, defaults and environment variables.

pydantic checks types and simple bounds here, with own error texts. `Policy` checks all other rules of a policy.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import tzinfo
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Required, Union, get_args, get_origin, get_type_hints
from zoneinfo import ZoneInfo

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, TypeAdapter, with_config
from pydantic_core import ErrorDetails
from typing_extensions import TypedDict  # pydantic requires it before Python 3.12

from curtsy import __version__
from curtsy.core.policy import DAY, MOST_BURST, On429, Policy, Strategy
from curtsy.settings import CacheMode, Preset
from curtsy.stores.url import never_in_a_path
from curtsy.system.log import level_named


@dataclass(frozen=True, slots=True)
class Unit:
    """Unit of a number on the reference page."""

    words: str


def _flag(value: object) -> object:
    """Convert the words for true and false used in the environment: `yes`, `on`, `1`, `no`, `off`, `0`."""
    words = {"yes": True, "on": True, "1": True, "no": False, "off": False, "0": False}
    return value if isinstance(value, bool) else words.get(str(value).lower(), value)


def _at_least_one_a_day(qps: float) -> float:
    if qps * DAY < 1:
        raise ValueError("at least one request a day, 1/86400. To ask never, put the domain on the denylist")
    return qps


def _pattern(path: str) -> str:
    if not path.startswith(("/", "*")):
        raise ValueError(f"a path that begins with / or *, such as /{path}")
    return path


def _path(text: str) -> str:
    if letter := never_in_a_path(text):
        raise ValueError(f"a path without {letter!r}, which no file's name can have")
    return text


def _zone(name: str | None) -> tzinfo | None:
    if name is None or name == "local":
        return None
    try:
        return ZoneInfo(name)
    except (OSError, ValueError, KeyError):  # unknown name, directory of names, or no time zone data
        raise ValueError("the IANA name of a time zone, such as Europe/Berlin, or local") from None


def _level(value: object) -> object:
    return (isinstance(value, str) and level_named(value)) or value


def _agent(text: str) -> str:
    if not (text.isascii() and text.isprintable()):
        raise ValueError("printable ASCII on one line, for it is sent as a header")
    if not re.match(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+(?:[/ ]|$)", text):
        raise ValueError('a product token first, as in "examplebot/1.0 (+https://example.org/bot)"')
    return text


MOST = 10**15
"""Largest whole number: floats represent all integers up to it exactly."""

Flag = Annotated[bool, BeforeValidator(_flag)]
Text = Annotated[str, Field(min_length=1)]
Number = Annotated[float, Field(allow_inf_nan=False)]
Rate = Annotated[Number, Field(gt=0), AfterValidator(_at_least_one_a_day), Unit("requests per second")]
Seconds = Annotated[Number, Field(ge=0), Unit("seconds")]
SomeSeconds = Annotated[Number, Field(gt=0), Unit("seconds")]
Count = Annotated[int, Field(ge=0, le=MOST)]
Some = Annotated[int, Field(ge=1, le=MOST)]
Burst = Annotated[int, Field(ge=1, le=MOST_BURST), Unit("requests")]
Bytes = Annotated[int, Field(ge=1, le=MOST), Unit("bytes")]

_STRICT = ConfigDict(strict=True, extra="forbid")


@with_config(_STRICT)
class General(TypedDict, total=False):
    """Keys of the whole program: the top level of a settings file."""

    preset: Preset
    """Set of defaults; all other keys override it."""

    global_qps: Rate | None
    """Requests per second over all hosts together; `none` for no limit."""

    global_burst: Burst
    """Requests over all hosts that may be sent at once after an idle period."""

    user_agent: Annotated[Text, AfterValidator(_agent)]
    """User agent of all requests, also matched against robots.txt groups.

    It should name a web page or mail address where you can be reached.
    """

    store: Text | None
    """URL of the store of pace, budgets and breakers; `none` for a file in the platform's state directory.

    Forms: `memory:`, `sqlite:///path`, `redis://host`.
    """

    outage_share: Annotated[float, Field(gt=0, le=1), Unit("share")]
    """This process's share of `global_qps` while the store is unreachable: each process then counts alone.

    Example: 0.2 for five processes on one store.
    """

    cache_dir: Annotated[Text, AfterValidator(_path)] | None
    """Directory of the page cache; `none` for the platform's cache directory."""

    cache_size: Bytes | None
    """Maximum size of the page cache; `none` for no limit."""

    cache_mode: CacheMode
    """Use of cached pages.

    `normal`: serve fresh copies, revalidate stale ones; `revalidate`: revalidate every copy; `refresh`: fetch every
    page again; `offline`: serve only copies, send nothing; `off`: no cache.
    """

    log_level: Annotated[Literal["debug", "info", "warn", "error"], BeforeValidator(_level)]
    """Lowest level that is shown.

    If unset, commands show `warn` (`curtsy serve`: `info`). A program's JSON lines begin at `info` and obey only the
    environment, not files.
    """

    log_format: Literal["auto", "text", "json"]
    """Format of log lines on the command line: `json`, `text` for people, or `auto`: text on a terminal, else JSON."""

    stats_every: SomeSeconds | None
    """Interval between statistics log lines; `none` for never."""


@with_config(_STRICT)
class PolicyKeys(TypedDict, total=False):
    """Keys of a host: `default_policy`, and the overrides of an entry.

    Keys without a docstring are documented in `Policy`.
    """

    domain_category: Text
    qps: Rate | None
    burst: Burst
    """Requests that may be sent at once after an idle period. A burst above one minute's worth causes a warning."""

    strategy: Strategy
    pause: Annotated[list[Seconds], Field(min_length=2, max_length=2), Unit("seconds")]
    """Minimum and maximum of the random pause between two requests: `pause_min` and `pause_max` in one."""

    pause_min: Seconds
    pause_max: Seconds
    delay: Seconds
    concurrency: Annotated[Some, Unit("requests")] | None
    max_crawl_delay: Seconds
    global_rate: Flag
    adapt: Flag
    max_delay: Seconds
    target_latency: SomeSeconds
    latency_factor: Annotated[Number, Field(ge=0)]
    max_requests_per_day: Annotated[Count, Unit("requests")]
    max_pages_per_day: Annotated[Count, Unit("pages")]
    timezone: Annotated[Text | None, AfterValidator(_zone)]
    """IANA name of the time zone that defines the day, such as `Europe/Berlin`; `local` for the machine's zone."""

    breaker: Flag
    breaker_failures: Annotated[Some, Unit("failures")]
    breaker_cooldown: SomeSeconds
    """Time that the breaker stays open before one trial request. A value below 300 causes a warning."""

    breaker_max_cooldown: SomeSeconds
    breaker_error_rate: Annotated[Number, Field(gt=0, le=1)] | None
    breaker_window: SomeSeconds
    """Period over which `breaker_error_rate` is measured."""

    breaker_min_replies: Annotated[Some, Unit("replies")]
    on_429: On429
    obey_retry_after: Seconds
    max_retry_after: Seconds
    respect_robots: Flag
    """`true` to fetch and obey robots.txt."""

    robots_ttl: Seconds
    """Time that a robots.txt is cached."""

    robots_timeout: SomeSeconds
    """Limit for the whole request for a robots.txt."""

    robots_unreachable: Literal["allow", "disallow"]
    """Meaning of an unreachable robots.txt without an earlier copy; RFC 9309 says `disallow`."""

    timeout: SomeSeconds
    connect_timeout: SomeSeconds
    """Limit for establishing a connection, TLS included."""

    max_body: Bytes | None
    max_head: Annotated[int, Field(ge=1024, le=MOST), Unit("bytes")]
    """Maximum size of a response's status line and header fields."""

    max_redirects: Annotated[Count, Unit("hops")]
    """Maximum number of redirects followed; each hop passes all checks of its own host."""

    min_speed: Annotated[Number, Field(ge=0), Unit("bytes per second")]
    """Minimum speed over 10 s; a slower body is aborted."""

    max_retries: Annotated[Count, Unit("retries")]
    """Maximum number of retries; each retry is admitted, paced and counted like any request."""

    retry_delay: Seconds
    deny_paths: Annotated[list[Annotated[Text, AfterValidator(_pattern)]], AfterValidator(tuple)]
    allow_private: Flag


@with_config(_STRICT)
class EntryKeys(PolicyKeys, total=False):
    """Keys of an allowlist entry: the overrides, and those below."""

    domain: Required[str]
    """Host of the entry, including all hosts under it; with a port, only that port."""

    shared: Flag
    """`true` to share one pace, one budget and one breaker among the host and all hosts under it."""

    limited: Flag
    """`false` removes rate, pause, budget, breaker and concurrency limit, and exempts the host from the global rate.

    The rules of robots.txt, its Crawl-delay and the entry's other keys still apply.
    """


@with_config(_STRICT)
class DeniedKeys(TypedDict):
    """Keys of a denylist entry that is a mapping."""

    domain: str


@with_config(_STRICT)
class LimitKeys(TypedDict, total=False):
    """Keys of one configuration in the rate limiter's JSON file (L7)."""

    requests_per_second: Rate
    burst_capacity: Burst


GENERAL = TypeAdapter(General)
POLICY = TypeAdapter(PolicyKeys)
ENTRY = TypeAdapter(EntryKeys)
DENIED = TypeAdapter(DeniedKeys)
LIMITS = TypeAdapter(LimitKeys)

USER_AGENT = f"curtsy/{__version__} (+https://curtsy.example/)"

BUILT_IN: dict[str, Any] = {
    "preset": "gentle",
    "global_qps": 0.8,
    "global_burst": 1,
    "user_agent": USER_AGENT,
    "store": None,
    "cache_dir": None,
    "cache_size": 1024**3,
    "outage_share": 1.0,
    "cache_mode": "normal",
    "log_level": "info",
    "log_format": "auto",
    "stats_every": 60.0,
}
"""Defaults of the general keys; `Policy` holds those of a policy."""

PRESETS: dict[str, dict[str, Any]] = {
    "gentle": {},
    "broad": {"global_qps": None},
    "own": {
        "global_qps": None,
        "qps": None,
        "pause_min": 0.0,
        "pause_max": 0.0,
        "concurrency": 16,
        "max_requests_per_day": 0,
        "max_pages_per_day": 0,
    },
}
"""Changes of each preset (C8)."""

NOT_LIMITED: dict[str, Any] = {
    "qps": None,
    "pause_min": 0.0,
    "pause_max": 0.0,
    "delay": 0.0,
    "concurrency": None,
    "global_rate": False,
    "adapt": False,
    "max_requests_per_day": 0,
    "max_pages_per_day": 0,
    "breaker": False,
}
"""Values that `limited: false` in an entry sets (Q12, C16)."""

ALIASES = {
    "CRAWLER_GLOBAL_QPS": "global_qps",
    "CRAWLER_PER_DOMAIN_QPS": "qps",
    "RAG_USER_AGENT": "user_agent",
    "RAG_RESPECT_ROBOTS_TXT": "respect_robots",
    "RAG_ROBOTS_TXT_CACHE_TTL": "robots_ttl",
    "CIRCUIT_BREAKER_ENABLED": "breaker",
    "CIRCUIT_BREAKER_COOLDOWN": "breaker_cooldown",
    "LOG_LEVEL": "log_level",
}
"""Environment variables by the names of the specification documents (C7)."""

Scope = Literal["general", "policy", "entry"]
_FIELDS = {"timezone": "zone", "domain_category": "category"}


@dataclass(frozen=True, slots=True)
class Key:
    """One key and its properties."""

    name: str
    scope: Scope
    kind: Any
    """Bare type: float, int, bool, str, list, or a Literal."""

    optional: bool
    """True if the value may be `none`."""

    unit: str

    @property
    def field(self) -> str:
        """Field of `Policy` or `Settings` that holds the value."""
        return _FIELDS.get(self.name, self.name)

    @property
    def variable(self) -> str | None:
        """Name of the environment variable; None for keys of entries only."""
        return None if self.scope == "entry" else "CURTSY_" + self.name.upper()

    @property
    def default(self) -> Any:
        """Built-in default."""
        if self.scope == "general":
            return BUILT_IN[self.name]
        policy = Policy()
        return [policy.pause_min, policy.pause_max] if self.name == "pause" else getattr(policy, self.field, None)


@cache
def keys() -> dict[str, Key]:
    """Return all keys by name, in the order of the reference page."""
    found: dict[str, Key] = {}
    models: dict[Scope, Any] = {"general": General, "policy": PolicyKeys, "entry": EntryKeys}
    for scope, model in models.items():
        for name, hint in get_type_hints(model, include_extras=True).items():
            if name not in found:
                kind, optional, unit = _kind(hint)
                found[name] = Key(name, scope, kind, optional, unit)
    return found


def names(*scopes: Scope) -> tuple[str, ...]:
    """Return the names of all keys of the given scopes."""
    return tuple(key.name for key in keys().values() if key.scope in scopes)


def _kind(hint: Any) -> tuple[Any, bool, str]:
    """Return the bare type of a hint, whether it allows None, and its unit."""
    origin = get_origin(hint)
    if origin is Required:
        return _kind(get_args(hint)[0])
    if origin is Annotated:
        inner, *extras = get_args(hint)
        kind, optional, unit = _kind(inner)
        return kind, optional, next((each.words for each in extras if isinstance(each, Unit)), unit)
    if origin in (Union, UnionType):
        kind, _, unit = _kind(next(each for each in get_args(hint) if each is not NoneType))
        return kind, True, unit
    return (list if origin is list else hint), False, ""


_RULES = {
    "greater_than": "above {gt:g}",
    "greater_than_equal": "at least {ge:g}",
    "less_than_equal": "at most {le:.16g}",
    "finite_number": "a finite number",
    "float_type": "a number",
    "int_type": "a whole number",
    "bool_type": "true or false",
    "string_type": "text",
    "string_unicode": "text without half of a pair of surrogates",
    "string_too_short": "more than nothing",
    "list_type": "a list",
    "too_short": "a list of {min_length}",
    "too_long": "a list of {max_length}",
    "literal_error": "{expected}",
    "value_error": "{error}",
}


def rule_of(error: ErrorDetails) -> str:
    """Return the rule that a value broke, in curtsy's wording: `above 0`."""
    words = _RULES.get(error["type"])
    given = error["input"]
    if error["type"] == "int_type" and isinstance(given, float) and given.is_integer() and abs(given) <= MOST:
        return f"a whole number, written {given:.0f}"
    return error["msg"] if words is None else words.format_map(error.get("ctx", {}))
