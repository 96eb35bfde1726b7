"""Sources of settings: one file, the environment, the arguments or a preset; parsed, not validated."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from curtsy.settings import variable
from curtsy.settings.document import Spot, Value, valued, word
from curtsy.settings.keys import ALIASES, BUILT_IN, PRESETS, keys, names
from curtsy.settings.problems import Problems, kind_of, shown
from curtsy.system.log import level_named

SECTIONS = frozenset(("default_policy", "allowlist", "denylist"))
LIMIT_SECTIONS = frozenset(("version", "default_config", "domains"))


@dataclass(slots=True)
class Source:
    """Values of one source."""

    spot: Spot
    general: dict[str, Value] = field(default_factory=dict)
    policy: dict[str, Value] = field(default_factory=dict)
    """Keys of the default policy."""

    section: str = ""
    """Name of the source's section that `policy` comes from."""

    allowlist: Value | None = None
    denylist: Value | None = None
    limits: dict[str, Value] | None = None
    """The whole file, if it is the rate limiter's JSON file (L7); else None."""

    def put(self, name: str, value: Value) -> None:
        """Store a key's value among the general keys or the policy keys."""
        (self.general if name in BUILT_IN else self.policy)[name] = value


def from_file(root: Value | None, spot: Spot, complaints: Problems) -> Source:
    """Split a file into its sections. The rate limiter's JSON file is recognized by its sections."""
    source = Source(spot, section="default_policy")
    if root is None:
        return source
    if not isinstance(root.data, dict):
        what = f'the file must hold settings such as "default_policy:", not {kind_of(root.data)}'
        complaints.add(spot, "", f"{what}. Is it the right file?")
        return source
    if not LIMIT_SECTIONS.isdisjoint(root.data) and SECTIONS.isdisjoint(root.data):
        source.limits = root.data
        return source
    for name, value in root.data.items():
        if name in BUILT_IN:
            source.general[name] = value
        elif name == "allowlist":
            source.allowlist = value
        elif name == "denylist":
            source.denylist = value
        elif name != "default_policy":
            complaints.unknown(value.spot, "", name, (*BUILT_IN, *sorted(SECTIONS)))
        elif isinstance(value.data, dict):
            source.policy = value.data
        elif value.data is not None:
            what = f"default_policy must be settings, one in a line, not {kind_of(value.data)}"
            complaints.add(value.spot, "", f"{what}. Indent them under it.")
    return source


def from_environment(env: Mapping[str, str], complaints: Problems, spots: Mapping[str, Spot] | None = None) -> Source:
    """Read the environment variables. An empty variable counts as unset; commas separate list items.

    `spots` has the source of a variable that does not come from the environment itself.
    """
    spots = {} if spots is None else spots
    source = Source(Spot("environment"))
    for key in keys().values():
        variables = [key.variable, *(alias for alias, meant in ALIASES.items() if meant == key.name)]
        name = next((each for each in variables if each and variable(env, each)), None)
        if name is None:
            continue
        spot = spots.get(name, Spot(f"environment variable {name}"))
        text = variable(env, name)
        if name == "LOG_LEVEL" and level_named(text) is None:
            # Other programs share LOG_LEVEL and allow other names.
            complaints.warn(spot, "", f"{shown(text)} is no level that curtsy knows, and is ignored.")
            continue
        value = word(text, spot)
        if key.kind is list:
            value = Value([word(part.strip(), spot) for part in text.split(",")], spot)
        elif key.kind not in (float, int, bool) and not (key.optional and value.data is None):
            value = Value(text, spot)
        source.put(key.name, value)
    known = ["CURTSY_CONFIG", "CURTSY_DASHBOARD_TOKEN", *(key.variable for key in keys().values() if key.variable)]
    for name in env:
        if name.startswith("CURTSY_") and name not in known:
            near = difflib.get_close_matches(name, known, 1)
            hint = f" Did you mean {near[0]}?" if near else ""
            spot = spots.get(name, Spot(f"environment variable {name}"))
            named = f"{name} is " if name in spots else ""
            complaints.warn(spot, "", f"{named}not a setting, and ignored.{hint}")
    return source


def from_arguments(arguments: Mapping[str, Any], complaints: Problems, beside: Iterable[str] = ()) -> Source:
    """Read the program's arguments: general keys, default policy keys, and the two lists.

    A path as `store` names an SQLite file. `beside` names other arguments of the program.
    """
    source = Source(Spot("argument"))
    known = (*names("general", "policy"), "allowlist", "denylist")
    for name, data in arguments.items():
        if isinstance(data, os.PathLike):
            data = f"sqlite:///{os.fspath(data)}" if name == "store" else os.fspath(data)
        value = valued(data, source.spot)
        if name == "allowlist":
            source.allowlist = value
        elif name == "denylist":
            source.denylist = value
        elif name in known:
            source.put(name, value)
        elif name == "default_policy":
            complaints.add(source.spot, "", "default_policy is a section of files. Give its keys as arguments.")
        else:
            complaints.unknown(source.spot, "", name, known, beside=beside)
    return source


def preset_of(sources: Iterable[Source]) -> Source:
    """Return the preset that the highest source requests, as a source."""
    asked = [each.general["preset"].data for each in sources if "preset" in each.general]
    name = asked[-1] if asked else BUILT_IN["preset"]
    values = PRESETS.get(name, {}) if isinstance(name, str) else {}  # validation reports an unknown preset
    source = Source(Spot(f"preset {name}"))
    for key, data in values.items():
        source.put(key, Value(data, source.spot))
    return source
