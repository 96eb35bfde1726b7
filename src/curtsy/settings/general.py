"""Model of the settings: the program's own, and keys that derive names, variables and checks from the declarations.

`General` declares the settings of the program, `core.policy.Policy` those of a host, `Entry` those of an entry alone.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import tzinfo
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal
from zoneinfo import ZoneInfo

from curtsy import __version__
from curtsy.core.errors import PolicyError
from curtsy.core.policy import MOST_BURST, UNLIMITED, Policies, Policy
from curtsy.core.setting import Mark, Range, Rate, Setting, settings_of, suggested
from curtsy.core.units import SIZES, TIMES, bytes_of, seconds_of
from curtsy.core.url import parse_domain
from curtsy.stores.url import never_in_a_path
from curtsy.system.log import level_named

CacheMode = Literal["normal", "revalidate", "refresh", "offline", "off"]
Preset = Literal["gentle", "broad", "own"]
Scope = Literal["general", "policy", "entry"]

USER_AGENT = f"curtsy/{__version__} (+https://curtsy.example/)"
_START: Mark = "at start"
_CONTACT = re.compile(r"https?://[^\s()<>]+|[^\s@()<>:;,]+@[^\s@()<>:;,]+\.[^\s@()<>:;,]+", re.IGNORECASE)


def names_contact(user_agent: str) -> bool:
    """Return whether a user agent contains a web page or a mail address (U10)."""
    return _CONTACT.search(user_agent) is not None


def _is_user_agent(text: str) -> str | None:
    if not (text.isascii() and text.isprintable()):
        return "printable ASCII on one line, because it is sent as a header"
    if not re.match(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+(?:[/ ]|$)", text):
        return 'a product token first, as in "examplebot/1.0 (+https://example.org/bot)"'
    return None


def _is_path(path: Path) -> str | None:
    letter = never_in_a_path(path)
    return f"a path without {letter!r}, which no file name can contain" if letter else None


@dataclass(frozen=True, slots=True, kw_only=True)
class General:
    """Settings of the whole program: the top level of a settings file."""

    preset: Preset = "gentle"
    """Set of defaults; all other keys override it."""

    global_qps: Rate | None = 0.8
    """Requests per second over all hosts together; None for no limit."""

    global_burst: Annotated[float, Range(1, MOST_BURST, whole=True, unit="requests")] = 1
    """Requests over all hosts that may be sent at once after an idle period."""

    user_agent: Annotated[str, _is_user_agent] = USER_AGENT
    """User agent of all requests, also matched against robots.txt groups.

    It should name a web page or mail address where you can be reached.
    """

    store: Annotated[str | None, _START] = field(default=None, repr=False)  # may contain a password
    """URL of the store of pace, budgets and breakers; None for a file in the platform's state directory.

    Forms: `memory:`, `sqlite:///path`, `redis://host`.
    """

    outage: Annotated[Literal["wait", "alone"] | None, _START] = None
    """Behaviour while the store is unreachable; None for `wait` on a server, `alone` for a file.

    `wait`: send no request until the store answers. `alone`: continue in memory with limits of this process.
    """

    outage_share: Annotated[float | None, Range(most=1, above=True, unit="share"), _START] = None
    """This process's share of all limits while the store is unreachable, with `outage: alone`.

    Example: 0.2 for five processes on one store. None for an equal share of each worker of a crawl on a server, and
    for 1 outside such a crawl.
    """

    max_outage: Annotated[float | None, Range(above=True, unit="seconds"), _START] = None
    """Longest wait of a request for a store that does not answer, with `outage: wait`; None for no limit.

    `curtsy get` and `curtsy download` wait 60 seconds if it is unset.
    """

    cache_dir: Annotated[Path | None, _is_path, _START] = None
    """Directory of the page cache, or a file that ends in `.sqlite`.

    None for `pages.sqlite` in the platform's cache directory."""

    cache_size: Annotated[int | None, Range(1, unit="bytes"), _START] = 1024**3
    """Maximum size of the page cache; None for no limit."""

    cache_mode: Annotated[CacheMode, _START] = "normal"
    """Use of cached pages.

    `normal`: serve fresh copies, revalidate stale ones; `revalidate`: revalidate every copy; `refresh`: fetch every
    page again; `offline`: serve only copies, send nothing; `off`: no cache.
    """

    log_level: Annotated[Literal["debug", "info", "warn", "error"], _START] = "info"
    """Lowest level that is shown.

    If unset, commands show `warn` (`curtsy serve`: `info`). A program's JSON lines begin at `info` and obey only the
    environment, not files.
    """

    log_format: Annotated[Literal["auto", "text", "json"], _START] = "auto"
    """Format of log lines on the command line: `json`, `text` for people, or `auto`: text on a terminal, else JSON."""

    stats_every: Annotated[float | None, Range(above=True, unit="seconds"), _START] = 60.0
    """Interval between statistics log lines; None for never."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """Keys of an allowlist entry besides those of a policy."""

    domain: str
    """Host of the entry, including all hosts under it; with a port, only that port."""

    shared: bool = False
    """True to share one pace, one budget and one breaker among the host and all hosts under it."""

    limited: bool = True
    """False removes rate, pause, budget, breaker and concurrency limit, and exempts the host from the global rate.

    The rules of robots.txt, its Crawl-delay and the entry's other keys still apply.
    """


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


_UNITS: dict[str, Callable[[str], float | None]] = {
    "seconds": seconds_of,
    "bytes": bytes_of,
    "bytes per second": bytes_of,
}
"""Parsers of texts, by the unit of their setting."""


# --- Keys ----------------------------------------------------------------------------------------------------------


class BrokenRule(ValueError):
    """A value breaks the rule of its key; `item` is the index of the wrong item of a list."""

    def __init__(self, rule: str, item: int | None = None) -> None:
        super().__init__(rule)
        self.item = item


@dataclass(frozen=True, slots=True, kw_only=True)
class Key(Setting):
    """A setting as users give it: in a file, in a variable or as an argument."""

    scope: Scope

    @classmethod
    def of(cls, setting: Setting, scope: Scope, **changes: Any) -> Key:
        """Return the key of a declared setting."""
        return cls(**{each.name: getattr(setting, each.name) for each in fields(setting)} | changes, scope=scope)

    @property
    def variable(self) -> str | None:
        """Name of the environment variable; None for keys of entries only."""
        return None if self.scope == "entry" else "CURTSY_" + self.name.upper()

    def read(self, given: Any) -> Any:
        """Convert a value as users give it. Raises BrokenRule."""
        if given is None and self.optional:
            return None
        if self.name == "pause":
            return _pause(given, self.range)
        if self.kind is tuple:
            return _paths(given)
        value = self._converted(given)
        if (broken := self.broken_rule(value)) is not None:
            raise BrokenRule(broken + _examples(value, self.range))
        return float(value) if self.kind is float else value

    def _converted(self, given: Any) -> Any:
        """Return the value that a text, or 0 and 1, stand for."""
        if self.kind is bool and not isinstance(given, bool):
            words = {"yes": True, "on": True, "1": True, "no": False, "off": False, "0": False}
            return words.get(str(given).lower(), given)
        if not isinstance(given, str):
            return given
        if self.kind in (int, float):
            return _amount(given, self.range)
        if self.name == "log_level":
            return level_named(given) or given
        if self.kind is tzinfo:
            return _zone(given)
        if self.kind is Path and given:
            return Path(os.path.expanduser(given))  # Path.expanduser raises for an unknown user
        if self.kind is str and not _is_encodable(given):
            raise BrokenRule("text without lone surrogates")
        return given


def _amount(given: Any, bounds: Range) -> Any:
    """Return the number that a text with a unit of time or size means; anything else as it is."""
    parse = _UNITS.get(bounds.unit)
    if parse is None or not isinstance(given, str) or not given[-1:].isalpha():
        return given  # a number in quotes stays text, as for settings without a unit
    amount = parse(given)
    return given if amount is None else amount


def _examples(value: Any, bounds: Range) -> str:
    """Return examples of a time or a size for the rule that a text breaks; empty for others."""
    examples = {"seconds": TIMES, "bytes": SIZES, "bytes per second": SIZES}.get(bounds.unit)
    return f", {examples}" if isinstance(value, str) and examples else ""


def _is_encodable(text: str) -> bool:
    try:
        return bool(text.encode()) or not text
    except UnicodeEncodeError:
        return False


def _zone(name: str) -> tzinfo | None:
    if name == "local":
        return None
    try:
        return ZoneInfo(name)
    except (OSError, ValueError, KeyError):  # unknown name, directory of names, or no time zone data
        raise BrokenRule("the IANA name of a time zone, such as Europe/Berlin, or local") from None


def _pause(given: Any, bounds: Range) -> list[float]:
    if not isinstance(given, list) or len(given) != 2:
        raise BrokenRule("a list of 2 numbers")
    amounts = [_amount(each, bounds) for each in given]
    for index, each in enumerate(amounts):
        if (broken := bounds.broken_by(each)) is not None:
            raise BrokenRule(broken + _examples(each, bounds), index)
    return [float(each) for each in amounts]


def _paths(given: Any) -> tuple[str, ...]:
    if not isinstance(given, list):
        raise BrokenRule("a list")
    for index, each in enumerate(given):
        if not isinstance(each, str) or not _is_encodable(each) or not each.startswith(("/", "*")):
            shown = f", such as /{each}" if isinstance(each, str) and each.isprintable() else ""
            raise BrokenRule(f"a path that begins with / or *{shown}", index)
    return tuple(given)


@cache
def keys() -> dict[str, Key]:
    """Return all keys by name, in the order of the reference page."""
    found: dict[str, Key] = {}
    models: dict[Scope, type] = {"general": General, "policy": Policy, "entry": Entry}
    for scope, model in models.items():
        for name, each in settings_of(model).items():
            if name == "pause_min":
                default = [each.default, settings_of(model)["pause_max"].default]
                found["pause"] = Key.of(each, scope, name="pause", kind=list, default=default)
            if name not in ("key", "denied"):  # the lists of a file set these
                found[name] = Key.of(each, scope, kind=int if each.range.whole else each.kind)
    return found


def keys_of(*scopes: Scope) -> dict[str, Key]:
    """Return the keys of the given scopes by name."""
    return {name: key for name, key in keys().items() if key.scope in scopes}


def names(*scopes: Scope) -> tuple[str, ...]:
    """Return the names of all keys of the given scopes."""
    return tuple(keys_of(*scopes))


AT_START = tuple(name for name, each in settings_of(General).items() if _START in each.marks)
"""Keys that take effect only at program start; a reload applies all other keys."""


def changes(policy: Policy) -> dict[str, Any]:
    """Return the settings of a policy that differ from the defaults."""
    found = {name: getattr(policy, name) for name in names("policy") if name != "pause"}
    return {name: value for name, value in found.items() if value != keys()[name].default}


PRESETS: dict[str, dict[str, Any]] = {
    "gentle": {},
    "broad": {"global_qps": None},
    "own": {
        "global_qps": None,
        **changes(
            Policy(qps=None, pause_min=0, pause_max=0, concurrency=16, max_requests_per_day=0, max_pages_per_day=0)
        ),
    },
}
"""Changes of each preset (C8)."""

NOT_LIMITED = {**changes(UNLIMITED.replace(global_rate=False, timezone=None)), "delay": 0.0}
"""Values that `limited: false` in an entry sets (Q12, C16)."""


# --- Values --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Spot:
    """Source of a value: a file and possibly its line, an environment variable, a preset, an argument."""

    source: str
    line: int | None = None

    @property
    def origin(self) -> str:
        """Short form: `config/domains.yaml:12`."""
        return self.source if self.line is None else f"{self.source}:{self.line}"

    def place(self, section: str = "") -> str:
        """Return the form for messages: `config/domains.yaml, line 12, allowlist[2] "example.org"`."""
        line = "" if self.line is None else f"line {self.line}"
        return ", ".join(part for part in (self.source, line, section) if part)


@dataclass(frozen=True, slots=True)
class Given:
    """A validated value and its source."""

    value: Any
    spot: Spot
    section: str = ""
    """Part of the file, for messages: `allowlist[2] "example.org"`."""

    written: Any = None
    """The value as written."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Settings(General):
    """Validated settings. Immutable: a reload creates a new instance."""

    policies: Policies
    """Policy of every host, global limit and user agent."""

    files: tuple[Path, ...] = ()
    """Files read, lowest precedence first."""

    warnings: tuple[str, ...] = ()
    """Warnings about valid but unusual settings; the program reports them at start."""

    notices: tuple[str, ...] = ()
    """Notices about files of the working directory that relax settings, one per file; see `new_notices`."""

    given: Mapping[str, Given] = field(default_factory=dict, repr=False)
    """Values for all hosts that a source gave, by key."""

    entries: Mapping[str, Mapping[str, Given]] = field(default_factory=dict, repr=False)
    """Values of each entry, by domain and key."""

    denied: Mapping[str, Given] = field(default_factory=dict, repr=False)
    """Denied domains."""

    def outages(self) -> dict[str, Any]:
        """Return the arguments of `open_store` for outages of the store."""
        return {"outage": self.outage, "share": self.outage_share}

    def value(self, domain: str | None, key: str) -> Any:
        """Return the value of a key for a domain; None: for hosts without an entry.

        Raises PolicyError for an unknown key.
        """
        _check_name(key)
        if key == "pause":
            return [self.value(domain, "pause_min"), self.value(domain, "pause_max")]
        if key in keys_of("general"):
            return getattr(self, key)
        policy = self.policies.default if domain is None else self.policies.of(parse_domain(domain))
        return policy.key is not None if key == "shared" else getattr(policy, key)

    def origin(self, domain: str | None, key: str) -> str:
        """Return the origin of a key's value for a domain; None: for hosts without an entry.

        The origin is a file and line (`config/domains.yaml:12`), an environment variable, a preset, `argument` or
        `built-in`. Raises PolicyError for an unknown key.
        """
        _check_name(key)
        name = "pause_min" if key == "pause" else key
        found = (None if domain is None else self._of_entry(domain, name)) or self.given.get(name)
        return "built-in" if found is None else found.spot.origin

    def entry_origin(self, domain: str, key: str) -> str | None:
        """Return the file and line in which the entry for a domain has a key; None if it has no entry, or not this key.

        Arguments and options do not change the value of such a key.
        """
        found = self._of_entry(domain, key)
        return None if found is None else found.spot.origin

    def _of_entry(self, domain: str, name: str) -> Given | None:
        entry = self.policies.entry(parse_domain(domain))
        if entry is None:
            return None
        return self.denied.get(entry) if name == "denied" else self.entries.get(entry, {}).get(name)

    def with_start_of(self, before: Settings) -> Settings:
        """Return these settings with the values and origins of `AT_START` keys from before."""
        given = {name: each for name, each in self.given.items() if name not in AT_START}
        given |= {name: each for name, each in before.given.items() if name in AT_START}
        kept: dict[str, Any] = {name: getattr(before, name) for name in AT_START}
        return replace(self, given=given, **kept)


def _check_name(name: str) -> None:
    known = [*names("general", "policy"), "shared", "denied"]
    if name not in known:
        near = suggested(name, known)
        raise PolicyError(f"{name} is not a setting." + (f" Did you mean {near}?" if near else ""))
