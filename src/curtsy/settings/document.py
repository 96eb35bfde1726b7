"""Parsed settings files: values with their source lines, for error messages."""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from curtsy.core.errors import PolicyError

MAX_BYTES = 16 * 1024 * 1024
MAX_VALUES = 1_000_000
"""Maximum number of values in a file, counting an alias at each use: limits alias expansion."""
MAX_DEPTH = 20


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


def read(path: Path, shown: str) -> Value | None:
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
        raise PolicyError(
            f"{shown} has more than {MAX_BYTES:,} bytes. No settings are that long: is it the right file?"
        )
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise PolicyError(f"{shown}, line {line}: this is not UTF-8. Save the file in that encoding.") from None


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
            f"{shown}, line {error.lineno}: this is not JSON: {error.msg}. Look at the commas and quotes around there."
        ) from None
    except (RecursionError, ValueError) as error:
        if isinstance(error, PolicyError):
            raise
        raise PolicyError(f"{shown}: a value is too deep or too long. Give plain settings.") from None


def _yaml(text: str, shown: str) -> Value | None:
    import yaml  # lazy: most runs have no settings file

    loader = yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader
    try:
        return _Builder(yaml.parse(text, Loader=loader), shown).root()
    except yaml.MarkedYAMLError as error:
        line = "" if error.problem_mark is None else f", line {error.problem_mark.line + 1}"
        raise PolicyError(
            f"{shown}{line}: this is not YAML: {error.problem or error.context}. "
            "Look at the indentation, colons and quotes of that line and the one before."
        ) from None
    except yaml.YAMLError as error:  # control character
        raise PolicyError(f"{shown}: this is not YAML: {' '.join(str(error).split())}.") from None


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
                    raise self._wrong(event, "a second document begins here. Put each into a file of its own.")
                root = self._value(next(self._events))
        return None if root is None or root.data is None else root

    def _value(self, event: Any, line: int | None = None, depth: int = 1) -> Value:
        """Return the value that begins with `event`; its line is that of its key (`line`), if any."""
        from yaml import AliasEvent, MappingStartEvent, ScalarEvent

        if isinstance(event, AliasEvent):
            if event.anchor not in self._anchors:
                raise self._wrong(event, f"*{event.anchor} stands for nothing that is complete above it.")
            value = self._anchors[event.anchor]
            self._add(event, value.size)
            return value
        if event.tag is not None and event.tag != "!":
            raise self._wrong(event, f"the tag {event.tag} is not known here. Leave it out.")
        if depth > MAX_DEPTH:
            raise self._wrong(event, f"this is the level number {depth}. Settings have four at most.")
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
                raise self._wrong(key, "a key must be a word.")
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
            raise self._wrong(event, f"more than {MAX_VALUES:,} values, aliases followed. Give plain settings.")

    def _wrong(self, event: Any, what: str) -> PolicyError:
        return PolicyError(f"{self._shown}, line {_line(event)}: {what}")


def _line(event: Any) -> int:
    return int(event.start_mark.line) + 1
