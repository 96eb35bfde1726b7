"""Errors and warnings about settings: place, value, rule and remedy."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import tzinfo
from typing import Any

from curtsy.core.errors import PolicyError
from curtsy.core.masking import mask_url
from curtsy.core.setting import HINTS, OTHER_NAMES, suggested
from curtsy.settings.general import Spot, keys

MOST_SHOWN = 20


class Verbatim(str):
    """Text that `shown` prints unquoted."""

    __slots__ = ()


class Problems:
    """Collector of errors and warnings, so that the user sees all at once."""

    def __init__(self) -> None:
        self.errors: list[str] = []
        self.warnings: list[str] = []

    def raise_errors(self) -> None:
        """Raise the collected errors, if any, as one PolicyError."""
        if self.errors:
            more = len(self.errors) - MOST_SHOWN
            lines = self.errors[:MOST_SHOWN] + ([f"And {more} more errors."] if more > 0 else [])
            raise PolicyError("\n".join(lines))

    def add(self, spot: Spot, section: str, text: str) -> None:
        """Add an error as free text."""
        self.errors.append(mask_url(f"{spot.place(section)}: {text}"))

    def warn(self, spot: Spot, section: str, text: str) -> None:
        """Add a warning about a valid but unusual value."""
        self.warnings.append(mask_url(f"{spot.place(section)}: {text}"))

    def broken(self, spot: Spot, section: str, name: str, written: object, rule: str, default: Any = ...) -> None:
        """Add an error about a value that breaks a rule: `qps = -1 must be above 0. Leave the line out to use …`."""
        leave = "Leave the line out" if spot.line is not None else "Leave it out"
        if spot.source.startswith("environment"):
            leave = "Unset it"
        hint = "" if default is ... else f" {leave} to use the default, {shown(default, bare=True)}."
        quotes = ", in quotes" if rule.startswith("text") and spot.line is not None else ""
        self.add(spot, section, f"{name} = {shown(written)} must be {rule}{quotes}.{hint}")

    def unknown(
        self,
        spot: Spot,
        section: str,
        name: str,
        known: Iterable[str],
        *,
        elsewhere: bool = True,
        other_arguments: Iterable[str] = (),
    ) -> None:
        """Add an error about an unknown key, with a suggestion.

        `elsewhere` allows suggesting a key of another section; False for the rate limiter's file, which has its own
        keys. `other_arguments` names the client's arguments that are not settings.
        """
        known, others = list(known), list(other_arguments)
        meant = name if name in keys() else OTHER_NAMES.get(name, name)
        key = keys().get(meant) if elsewhere and meant not in known else None
        did_you_mean = f"Did you mean {meant}? " if meant != name else ""
        near = suggested(name, [*known, *others])
        if section == "" and key is not None and key.scope != "general":
            place = "default_policy" if key.scope == "policy" else "an entry of allowlist"
            hint = f"{did_you_mean}It belongs under {place}."
        elif section != "" and key is not None and key.scope == "general":
            hint = f"{did_you_mean}It belongs at the top of the file."
        elif elsewhere and key is None and meant in {*OTHER_NAMES.values()} - {*known, *others}:
            hint = f"{did_you_mean}It is an argument of a crawl or a fetch, and an option of commands."
        elif others and not near and name in HINTS:
            hint = HINTS[name]
        elif near:
            hint = f"Did you mean {near}?"
        elif len(known) <= 15:
            hint = f"Known here: {', '.join(known)}."
        elif others:
            hint = "`curtsy config show` lists the settings, help(curtsy.AsyncClient) the other arguments."
        else:
            hint = "`curtsy config show` lists all settings."
        self.add(spot, section, f"{shown(name, bare=True)} is not a setting here. {hint}")


def kind_of(data: object) -> str:
    """Return the kind of a file's value, in words."""
    kinds: dict[type, str] = {dict: "a mapping", list: "a list", str: "text", bool: "true or false"}
    return kinds.get(type(data), "nothing" if data is None else "a number")


def shown(value: object, *, bare: bool = False) -> str:
    """Return a value as a user writes it: one line, at most 100 characters, secrets masked; `bare` omits quotes."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:.0f}" if value.is_integer() and abs(value) < 1e15 else repr(value)
    if isinstance(value, tzinfo):
        return str(value)
    if isinstance(value, list | tuple):
        text = "[" + ", ".join(shown(each, bare=bare) for each in value[:10]) + (", …]" if len(value) > 10 else "]")
    elif isinstance(value, Verbatim):
        text = str(value)
    elif isinstance(value, str):
        text = mask_url(value) if bare and value.isprintable() else repr(mask_url(value))
    else:
        text = mask_url(repr(value))
    return text if len(text) <= 100 else text[:99] + "…"
