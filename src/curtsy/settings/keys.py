"""The keys of the settings: their types, rules, units, defaults, and names in the environment.

Types and simple bounds are checked here, by pydantic, in the user's own words; what else must hold for a policy is
checked by `Policy` itself.
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
from typing_extensions import TypedDict  # before Python 3.12, pydantic takes only this one

from curtsy import __version__
from curtsy.core.policy import DAY, MOST_BURST, On429, Policy, Strategy
from curtsy.settings import CacheMode, Preset
from curtsy.stores.url import never_in_a_path
from curtsy.system.log import level_named


@dataclass(frozen=True, slots=True)
class Unit:
    """What a number is counted in, for the reference page."""

    words: str


def _flag(value: object) -> object:
    """`yes`, `on` and `1` are what people write for true in the environment."""
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
    except (OSError, ValueError, KeyError):  # a name that is none, a directory of names, or no data to look it up in
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
"""The largest whole number: beyond, not every number can be told from the next."""

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
    """What holds for the whole program: the top of a settings file."""

    preset: Preset
    """What everything else starts from."""

    global_qps: Rate | None
    """Requests per second over all hosts together; `none` for no limit."""

    global_burst: Burst
    """Requests over all hosts that may go at once after a rest."""

    user_agent: Annotated[Text, AfterValidator(_agent)]
    """What is sent, and what robots.txt is asked for. It should name a page or an address where you can be reached."""

    store: Text | None
    """Where pace, budgets and breakers are remembered: `memory:`, `sqlite:///path`, `redis://host`; `none` for a file
    in the platform's state directory."""

    outage_share: Annotated[float, Field(gt=0, le=1), Unit("share")]
    """While the store cannot be reached every process counts for itself: this process's share of `global_qps` then.
    With five processes on one store, 0.2."""

    cache_dir: Annotated[Text, AfterValidator(_path)] | None
    """Where pages are kept; `none` for the platform's cache directory."""

    cache_size: Bytes | None
    """How much may be kept; `none` for no limit."""

    cache_mode: CacheMode
    """`normal`: a fresh copy is served, a stale one asked about; `revalidate`: every copy is asked about; `refresh`:
    every page is fetched anew; `offline`: only copies are served, nothing is sent; `off`: nothing is kept."""

    log_level: Annotated[Literal["debug", "info", "warn", "error"], BeforeValidator(_level)]
    """The least level that is shown. While nobody sets it, commands show `warn` (`curtsy serve`: `info`), and the
    JSON lines of a program begin at `info`; these go by the environment alone, not by files."""

    log_format: Literal["auto", "text", "json"]
    """How the command line shows log lines: `json`, `text` for people, or `auto`: text on a terminal, else JSON."""

    stats_every: SomeSeconds | None
    """How often a line of statistics is logged; `none` for never."""


@with_config(_STRICT)
class PolicyKeys(TypedDict, total=False):
    """What holds for a host: `default_policy`, and the overrides of an entry.

    A key that is explained in `Policy` is not explained again here.
    """

    domain_category: Text
    qps: Rate | None
    burst: Burst
    """Requests that may go at once after a rest. More than a minute's worth is warned about."""

    strategy: Strategy
    pause: Annotated[list[Seconds], Field(min_length=2, max_length=2), Unit("seconds")]
    """Least and largest random pause between two requests: `pause_min` and `pause_max` in one."""

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
    """IANA name of the time zone in which the day changes, such as `Europe/Berlin`; `local` for the machine's own."""

    breaker: Flag
    breaker_failures: Annotated[Some, Unit("failures")]
    breaker_cooldown: SomeSeconds
    """How long it stays open before one trial request. Less than 300 is warned about."""

    breaker_max_cooldown: SomeSeconds
    breaker_error_rate: Annotated[Number, Field(gt=0, le=1)] | None
    breaker_window: SomeSeconds
    """The time that `breaker_error_rate` looks back."""

    breaker_min_replies: Annotated[Some, Unit("replies")]
    on_429: On429
    obey_retry_after: Seconds
    max_retry_after: Seconds
    respect_robots: Flag
    """Whether robots.txt is asked for and obeyed."""

    robots_ttl: Seconds
    """How long a robots.txt is remembered."""

    robots_timeout: SomeSeconds
    """The whole request for a robots.txt."""

    robots_unreachable: Literal["allow", "disallow"]
    """What a robots.txt that cannot be had means, where there is no earlier copy; RFC 9309 says `disallow`."""

    timeout: SomeSeconds
    connect_timeout: SomeSeconds
    """Until a connection stands, TLS included."""

    max_body: Bytes | None
    max_head: Annotated[int, Field(ge=1024, le=MOST), Unit("bytes")]
    """Status line and header fields of an answer."""

    max_redirects: Annotated[Count, Unit("hops")]
    """Redirects that are followed, each with all checks of its own host."""

    min_speed: Annotated[Number, Field(ge=0), Unit("bytes per second")]
    """Over 10 s; a body that comes more slowly is given up."""

    max_retries: Annotated[Count, Unit("retries")]
    """How often a failed request is sent again; each retry is admitted, paced and counted like any request."""

    retry_delay: Seconds
    deny_paths: Annotated[list[Annotated[Text, AfterValidator(_pattern)]], AfterValidator(tuple)]
    allow_private: Flag


@with_config(_STRICT)
class EntryKeys(PolicyKeys, total=False):
    """An entry of the allowlist: the overrides, and these."""

    domain: Required[str]
    """The host that the entry is for, and all hosts under it; with a port, only that port."""

    shared: Flag
    """Whether the host and all hosts under it have one pace, one budget and one breaker between them."""

    limited: Flag
    """`false` for a domain that is not limited: no rate, pause, budget, breaker or number in flight, and outside the
    global rate. robots.txt and its Crawl-delay still hold, and any other key of the entry."""


@with_config(_STRICT)
class DeniedKeys(TypedDict):
    """An entry of the denylist that is written as a mapping."""

    domain: str


@with_config(_STRICT)
class LimitKeys(TypedDict, total=False):
    """One configuration in the JSON file of the rate limiter (L7)."""

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
"""The defaults of the general keys; those of a policy are `Policy`'s own."""

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
"""What each preset changes (C8)."""

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
"""What `limited: false` in an entry stands for (Q12, C16)."""

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
"""The documents' own names in the environment (C7)."""

Scope = Literal["general", "policy", "entry"]
_FIELDS = {"timezone": "zone", "domain_category": "category"}


@dataclass(frozen=True, slots=True)
class Key:
    """One key and all that is to be said of it."""

    name: str
    scope: Scope
    kind: Any
    """Its bare type: float, int, bool, str, list, or a Literal."""

    optional: bool
    """Whether it can be `none`."""

    unit: str

    @property
    def field(self) -> str:
        """The field of `Policy` (or of `Settings`) that holds it."""
        return _FIELDS.get(self.name, self.name)

    @property
    def variable(self) -> str | None:
        """Its name in the environment; None for what only an entry can say."""
        return None if self.scope == "entry" else "CURTSY_" + self.name.upper()

    @property
    def default(self) -> Any:
        """The built-in default."""
        if self.scope == "general":
            return BUILT_IN[self.name]
        policy = Policy()
        return [policy.pause_min, policy.pause_max] if self.name == "pause" else getattr(policy, self.field, None)


@cache
def keys() -> dict[str, Key]:
    """All keys by name, in the order of the reference page."""
    found: dict[str, Key] = {}
    models: dict[Scope, Any] = {"general": General, "policy": PolicyKeys, "entry": EntryKeys}
    for scope, model in models.items():
        for name, hint in get_type_hints(model, include_extras=True).items():
            if name not in found:
                kind, optional, unit = _kind(hint)
                found[name] = Key(name, scope, kind, optional, unit)
    return found


def names(*scopes: Scope) -> tuple[str, ...]:
    """The names of all keys of some scopes."""
    return tuple(key.name for key in keys().values() if key.scope in scopes)


def _kind(hint: Any) -> tuple[Any, bool, str]:
    """The bare type of a hint, whether it can be None, and its unit."""
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
    """The rule that a value broke, in our words: `above 0`."""
    words = _RULES.get(error["type"])
    given = error["input"]
    if error["type"] == "int_type" and isinstance(given, float) and given.is_integer() and abs(given) <= MOST:
        return f"a whole number, written {given:.0f}"
    return error["msg"] if words is None else words.format_map(error.get("ctx", {}))
