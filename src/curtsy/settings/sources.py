"""Sources of settings: YAML and JSON files, the environment with `.env`, arguments and presets.

Values are parsed but not validated. Each keeps its file and line for error messages.
"""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from curtsy.core.errors import PolicyError
from curtsy.core.setting import suggested
from curtsy.settings.general import ALIASES, PRESETS, Key, Spot, keys, names
from curtsy.settings.problems import Problems, kind_of, shown
from curtsy.system.log import level_named

SECTIONS = frozenset(("default_policy", "allowlist", "denylist"))
LIMIT_SECTIONS = frozenset(("version", "default_config", "domains"))

MAX_BYTES = 16 * 1024 * 1024
MAX_VALUES = 1_000_000
"""Maximum number of values in a file, counting an alias at each use: limits alias expansion."""
MAX_DEPTH = 20


@dataclass(frozen=True, slots=True)
class Value:
    """A value and its source."""

    data: bool | int | float | str | list[Value] | dict[str, Value] | None
    spot: Spot
    size: int = 1
    """Number of values with all aliases expanded."""

    text: str | None = None
    """A number as written; None if unknown."""

    def plain(self) -> Any:
        """Return the value as plain Python data."""
        if isinstance(self.data, dict):
            return {name: each.plain() for name, each in self.data.items()}
        if isinstance(self.data, list):
            return [each.plain() for each in self.data]
        return self.data


def valued(data: Any, spot: Spot) -> Value:
    """Wrap plain Python data in `Value`; convert mappings, lists and tuples recursively."""
    if isinstance(data, Value):
        return data
    if isinstance(data, Mapping):
        return Value({str(name): valued(each, spot) for name, each in data.items()}, spot)
    if isinstance(data, list | tuple):
        return Value([valued(each, spot) for each in data], spot)
    return Value(data, spot)


ARGUMENT = Spot("argument")
"""Source of a program's arguments."""

_WORDS = {"": None, "~": None, "null": None, "none": None, "true": True, "false": False}
_WHOLE = re.compile(r"[-+]?[0-9]{1,100}")
_NUMBER = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]{1,4})?|[-+]?\.?inf|\.?nan", re.IGNORECASE)


def scalar(text: str) -> bool | int | float | str | None:
    """Convert an unquoted word of a file or of the environment.

    Follows YAML 1.2, and accepts `none` for null: `no`, `12:30` and dates stay text.
    """
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    if _WHOLE.fullmatch(text):
        return int(text)
    if _NUMBER.fullmatch(text):
        return float(text.lower().replace(".inf", "inf").replace(".nan", "nan"))
    return text


def word(text: str, spot: Spot) -> Value:
    """Convert an unquoted word to a `Value`; a number keeps its text."""
    data = scalar(text)
    is_number = isinstance(data, int | float) and not isinstance(data, bool)
    return Value(data, spot, text=text if is_number else None)


@dataclass(slots=True)
class Source:
    """Values of one source."""

    spot: Spot
    general: dict[str, Value] = field(default_factory=dict)
    policy: dict[str, Value] = field(default_factory=dict)
    """Keys of the default policy."""

    section: str = ""
    """Name of the source's section that `policy` comes from."""

    sections: dict[str, Value] = field(default_factory=dict)
    """Sections by name: `default_policy`, `allowlist` and `denylist`, or those of the rate limiter's JSON file (L7)."""

    def put(self, name: str, value: Value) -> None:
        """Store a key's value among the general keys or the policy keys."""
        (self.general if keys()[name].scope == "general" else self.policy)[name] = value


def from_file(root: Value | None, spot: Spot, problems: Problems, *, is_limits: bool = False) -> Source:
    """Split a file into its sections. The rate limiter's JSON file is recognized by its sections, or by `is_limits`."""
    source = Source(spot, section="default_policy")
    if root is None:
        return source
    if not isinstance(root.data, dict):
        what = f'the file must contain settings such as "default_policy:", not {kind_of(root.data)}'
        problems.add(spot, "", f"{what}. Check the path.")
        return source
    is_limits = is_limits or (not LIMIT_SECTIONS.isdisjoint(root.data) and SECTIONS.isdisjoint(root.data))
    sections, general = (LIMIT_SECTIONS, ()) if is_limits else (SECTIONS, names("general"))
    for name, value in root.data.items():
        if name in general:
            source.general[name] = value
        elif name in sections:
            source.sections[name] = value
        else:
            problems.unknown(value.spot, "", name, (*general, *sorted(sections)), elsewhere=not is_limits)
    if is_limits and (version := root.data.get("version", Value(None, spot)).data) != "1.0":
        text = "version is missing" if version is None else f"version = {shown(version)} is not supported"
        problems.add(spot, "", f'{text}. Write "version": "1.0".')
    return source


def variable(env: Mapping[str, str], name: str) -> str:
    """Return a variable's value, stripped of white space; empty if unset."""
    return env.get(name, "").strip(" \t\r\n")


def from_environment(env: Mapping[str, str], problems: Problems, spots: Mapping[str, Spot] | None = None) -> Source:
    """Read the environment variables. An empty variable counts as unset; commas separate list items.

    `spots` has the source of a variable that does not come from the environment itself.
    """
    spots = {} if spots is None else spots
    source = Source(Spot("environment"))
    for key in keys().values():
        variables = [key.variable, *(alias for alias, meant in ALIASES.items() if meant == key.name)]
        name = next((each for each in variables if each and variable(env, each)), None)
        if name is not None:
            spot, text = spots.get(name, Spot(f"environment variable {name}")), variable(env, name)
            if name == "LOG_LEVEL" and level_named(text) is None:
                # Other programs share LOG_LEVEL and allow other names.
                problems.warn(spot, "", f"{shown(text)} is not a log level of curtsy, so it is ignored.")
            else:
                source.put(key.name, _variable_value(key, text, spot))
    known = ["CURTSY_CONFIG", "CURTSY_DASHBOARD_TOKEN", *(key.variable for key in keys().values() if key.variable)]
    for name in env:
        if name.startswith("CURTSY_") and name not in known:
            word_of = {each.removeprefix("CURTSY_").lower(): each for each in known}
            near = suggested(name.removeprefix("CURTSY_").lower(), word_of)
            hint = f" Did you mean {word_of[near]}?" if near else ""
            spot, named = (spots[name], f"{name} is ") if name in spots else (Spot(f"environment variable {name}"), "")
            problems.warn(spot, "", f"{named}not a setting, so it is ignored.{hint}")
    return source


def _variable_value(key: Key, text: str, spot: Spot) -> Value:
    """Convert the text of a variable as the kind of its key requires."""
    if key.kind in (list, tuple):
        return Value([word(part.strip(), spot) for part in text.split(",")], spot)
    value = word(text, spot)
    is_word = key.kind in (float, int, bool) or (key.optional and value.data is None)
    return value if is_word else Value(text, spot)


def from_arguments(arguments: Mapping[str, Any], problems: Problems, other_arguments: Iterable[str] = ()) -> Source:
    """Read the program's arguments: general keys, default policy keys, and the two lists.

    A path as `store` names an SQLite file. `other_arguments` names those of the caller that are not settings.
    """
    source = Source(ARGUMENT)
    known = (*names("general", "policy"), "allowlist", "denylist")
    for name, data in arguments.items():
        if isinstance(data, os.PathLike):
            data = f"sqlite:///{os.fspath(data)}" if name == "store" else os.fspath(data)
        value = valued(data, source.spot)
        if name in ("allowlist", "denylist"):
            source.sections[name] = value
        elif name in known:
            source.put(name, value)
        elif name == "default_policy":
            problems.add(source.spot, "", "default_policy is a section of files. Give its keys as arguments.")
        else:
            problems.unknown(source.spot, "", name, known, other_arguments=other_arguments)
    return source


def preset_of(sources: Iterable[Source]) -> Source:
    """Return the preset that the highest source requests, as a source."""
    requested = [each.general["preset"].data for each in sources if "preset" in each.general]
    name = requested[-1] if requested else "gentle"
    values = PRESETS.get(name, {}) if isinstance(name, str) else {}  # validation reports an unknown preset
    source = Source(Spot(f"preset {name}"))
    for key, data in values.items():
        source.put(key, Value(data, source.spot))
    return source


# --- The file `.env` ---------------------------------------------------------------------------------------------
#
# Each line is `NAME=value` or `export NAME=value`; `#` begins a comment. Single quotes keep a value literally. In
# double quotes, `\n`, `\t`, `\"` and `\\` are escapes. An unquoted value ends at a blank followed by `#`. Variables are
# not expanded: `$HOME` stays `$HOME`. Only curtsy's variables are read.

DOTENV = ".env"
MAX_DOTENV = 1 << 20
"""Maximum size of a `.env` file in bytes; a larger file is ignored."""

_ASSIGNMENT = re.compile(r"(?:export[ \t]+)?([A-Za-z_][A-Za-z0-9_]*)[ \t]*=[ \t]*(.*)", re.DOTALL)
_QUOTED = re.compile(r"""(?:'([^']*)'|"((?:[^"\\]|\\.)*)")[ \t]*(?:#.*)?""", re.DOTALL)
_COMMENT = re.compile(r"(?:^|[ \t]+)#.*", re.DOTALL)
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
_ESCAPED = {"n": "\n", "t": "\t", "r": "\r"}


def read_dotenv(directory: Path, problems: Problems) -> dict[str, tuple[str, Spot]]:
    """Return curtsy's variables of a directory's `.env` file, with their lines; the last of a name wins.

    Warns about an unreadable file, and about a malformed value of a curtsy variable.
    """
    path = directory / DOTENV
    try:
        if not path.is_file():
            return {}
        if path.stat().st_size > MAX_DOTENV:
            problems.warn(Spot(DOTENV), "", f"it has more than {MAX_DOTENV:,} bytes, so it is ignored.")
            return {}
        text = path.read_text(encoding="utf-8-sig", errors="replace")
    except OSError as error:
        problems.warn(Spot(DOTENV), "", f"it cannot be read ({error.strerror}), so it is ignored.")
        return {}
    return dict(_variables(text, problems))


def merged(env: Mapping[str, str], found: Mapping[str, tuple[str, Spot]]) -> dict[str, str]:
    """Return the variables of both; the real environment wins, even with an empty value."""
    return {**{name: value for name, (value, _) in found.items()}, **env}


def _variables(text: str, problems: Problems) -> Iterator[tuple[str, tuple[str, Spot]]]:
    for number, line in enumerate(text.split("\n"), 1):
        found = _ASSIGNMENT.fullmatch(line.strip(" \t\r"))
        if found is None or not (found[1].startswith("CURTSY_") or found[1] in ALIASES):
            continue
        value, spot = _value(found[2]), Spot(DOTENV, number)
        if value is None:
            problems.warn(
                spot, "", f"the value of {found[1]} has an unclosed quote, or text after the quote, so it is ignored."
            )
        else:
            yield found[1], (value, spot)


def _value(text: str) -> str | None:
    if text[:1] not in ("'", '"'):
        return _COMMENT.sub("", text)
    found = _QUOTED.fullmatch(text)
    if found is None:
        return None
    if found[1] is not None:
        return found[1]
    return _ESCAPE.sub(lambda each: _ESCAPED.get(each[1], each[1]), found[2])


# --- YAML and JSON files ------------------------------------------------------------------------------------------


def read_file(path: Path, shown: str) -> Value | None:
    """Read a YAML file, or a JSON file by its suffix; return None if it is empty.

    Raises PolicyError, which names the file as `shown`.
    """
    text = _text(path, shown)
    return _json(text, shown) if path.suffix.lower() == ".json" else _yaml(text, shown)


def _text(path: Path, shown: str) -> str:
    try:
        # O_NONBLOCK: opening a FIFO without a writer blocks forever otherwise.
        number = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
        try:
            mode = os.fstat(number).st_mode
            raw = b""
            if stat.S_ISREG(mode):
                with open(number, "rb", closefd=False) as file:
                    raw = file.read(MAX_BYTES + 1)
        finally:
            os.close(number)
    except FileNotFoundError:
        raise PolicyError(f"{shown} does not exist. Create it, or give another path.") from None
    except (OSError, ValueError) as error:  # ValueError: NUL in the path
        why = error.strerror if isinstance(error, OSError) else error
        raise PolicyError(f"{shown} cannot be read: {why}. Make it readable, or give another path.") from None
    if stat.S_ISDIR(mode):
        raise PolicyError(f"{shown} is a directory. Give the path of a file in it.")
    if not stat.S_ISREG(mode):
        raise PolicyError(f"{shown} is not a plain file. Give the path of a YAML or JSON file.")
    if len(raw) > MAX_BYTES:
        raise PolicyError(f"{shown} has more than {MAX_BYTES:,} bytes. Settings files are smaller: check the path.")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise PolicyError(f"{shown}, line {line}: this is not UTF-8. Save the file as UTF-8.") from None


def _json(text: str, shown: str) -> Value | None:
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        members = dict(pairs)
        if len(members) < len(pairs):
            names = [name for name, _ in pairs]
            twice = next(name for name in names if names.count(name) > 1)
            raise PolicyError(f'{shown}: "{twice}" is given twice. Remove one of them.')
        return members

    if not text.strip():
        return None
    spot = Spot(shown)
    try:
        return valued(json.loads(text, object_pairs_hook=unique, parse_float=lambda each: word(each, spot)), spot)
    except json.JSONDecodeError as error:
        raise PolicyError(
            f"{shown}, line {error.lineno}: invalid JSON: {error.msg}. Check the commas and quotes nearby."
        ) from None
    except (RecursionError, ValueError) as error:
        if isinstance(error, PolicyError):
            raise
        raise PolicyError(f"{shown}: a value is too long or nested too deeply. Use plain settings.") from None


def _yaml(text: str, shown: str) -> Value | None:
    import yaml  # lazy: most runs have no settings file

    loader = yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader
    try:
        return _Builder(yaml.parse(text, Loader=loader), shown).root()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        line = "" if mark is None else f", line {mark.line + 1}"
        before = text.split("\n")[: mark.line + 1][-1][: mark.column + 1] if mark is not None else ""
        if "\t" in before:
            raise PolicyError(f"{shown}{line}: invalid YAML: a tab. Use spaces.") from None
        raise PolicyError(
            f"{shown}{line}: invalid YAML: {error.problem or error.context}. "
            "Check the indentation, colons and quotes of this line and the one before."
        ) from None
    except yaml.YAMLError as error:  # control character
        raise PolicyError(f"{shown}: invalid YAML: {' '.join(str(error).split())}.") from None


class _Builder:
    """Builder of values from YAML parser events, which carry line numbers and construct no objects."""

    def __init__(self, events: Iterator[Any], shown: str) -> None:
        self._events = events
        self._shown = shown
        self._anchors: dict[str, Value] = {}
        self._count = 0

    def root(self) -> Value | None:
        from yaml import DocumentStartEvent, StreamEndEvent

        root = None
        while not isinstance(event := next(self._events), StreamEndEvent):
            if isinstance(event, DocumentStartEvent):
                if root is not None:
                    raise self._wrong(event, "a second document starts here. Use one file for each.")
                root = self._value(next(self._events))
        return None if root is None or root.data is None else root

    def _value(self, event: Any, line: int | None = None, depth: int = 1) -> Value:
        """Return the value that begins with `event`; its line is that of its key (`line`), if any."""
        from yaml import AliasEvent, MappingStartEvent, ScalarEvent

        if isinstance(event, AliasEvent):
            if event.anchor not in self._anchors:
                raise self._wrong(event, f"the alias *{event.anchor} has no complete anchor above it.")
            value = self._anchors[event.anchor]
            self._add(event, value.size)
            return value
        if event.tag is not None and event.tag != "!":
            raise self._wrong(event, f"the tag {event.tag} is not supported. Remove it.")
        if depth > MAX_DEPTH:
            raise self._wrong(event, f"nesting level {depth} is too deep. Settings have at most four levels.")
        self._add(event, 1)
        spot = Spot(self._shown, line or _line(event))
        if isinstance(event, ScalarEvent):
            value = word(event.value, spot) if event.implicit[0] else Value(event.value, spot)
        elif isinstance(event, MappingStartEvent):
            members = self._members(depth)
            value = Value(members, spot, 1 + sum(each.size for each in members.values()))
        else:
            items = self._items(depth)
            value = Value(items, spot, 1 + sum(each.size for each in items))
        if event.anchor is not None:
            self._anchors[event.anchor] = value
        return value

    def _members(self, depth: int) -> dict[str, Value]:
        from yaml import MappingEndEvent, ScalarEvent

        members: dict[str, Value] = {}
        while not isinstance(key := next(self._events), MappingEndEvent):
            if not isinstance(key, ScalarEvent):
                raise self._wrong(key, "a key must be text.")
            if key.value in members:
                first = members[key.value].spot.line
                raise self._wrong(key, f"{key.value} is given twice, first in line {first}. Remove one of them.")
            members[key.value] = self._value(next(self._events), _line(key), depth + 1)
        return members

    def _items(self, depth: int) -> list[Value]:
        from yaml import SequenceEndEvent

        items: list[Value] = []
        while not isinstance(event := next(self._events), SequenceEndEvent):
            items.append(self._value(event, depth=depth + 1))
        return items

    def _add(self, event: Any, size: int) -> None:
        self._count += size
        if self._count > MAX_VALUES:
            raise self._wrong(event, f"more than {MAX_VALUES:,} values after alias expansion. Use plain settings.")

    def _wrong(self, event: Any, what: str) -> PolicyError:
        return PolicyError(f"{self._shown}, line {_line(event)}: {what}")


def _line(event: Any) -> int:
    return int(event.start_mark.line) + 1
