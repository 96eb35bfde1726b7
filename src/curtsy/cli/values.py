"""Parameter types of the command line: durations, sizes, domains, headers."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

if TYPE_CHECKING:  # ParamType is generic only in later versions of click
    _Seconds = click.ParamType[float]
    _Bytes = click.ParamType[int]
    _Name = click.ParamType[str]
    _Field = click.ParamType[tuple[str, str]]
else:
    _Seconds = _Bytes = _Name = _Field = click.ParamType

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86_400.0}
_SIZES = {"": 1, "k": 1024, "m": 1024**2, "g": 1024**3, "t": 1024**4}
_PART = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|min|m|h|d)?\s*", re.ASCII)
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)i?b?", re.IGNORECASE | re.ASCII)


class Duration(_Seconds):
    """Seconds, or with units: `90`, `1.5s`, `10m`, `1h30m`, `2d`."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the seconds."""
        if isinstance(value, int | float):
            return float(value)
        place, seconds, text = 0, 0.0, value.strip().lower()
        while place < len(text) and (found := _PART.match(text, place)) is not None:
            seconds += float(found[1]) * _UNITS[found[2] or "s"]
            place = found.end()
        if place < len(text) or not 0 < seconds <= 366 * 86_400:
            self.fail(f"{value!r} must be a time above 0, such as 90, 1.5s, 10m, 1h30m or 2d.", param, ctx)
        return seconds


class Size(_Bytes):
    """Bytes, or with a unit of 1024: `500000`, `20M`, `1.5G`."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the bytes."""
        if isinstance(value, int):
            return value
        found = _SIZE.fullmatch(value.strip())
        if found is None or float(found[1]) > 2**40:
            self.fail(f"{value!r} must be a number of bytes, such as 500000, 20M or 1.5G.", param, ctx)
        return int(float(found[1]) * _SIZES[found[2].lower()])


class Domain(_Name):
    """Host, with its port unless that is the default."""

    name = "domain"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the normalized domain."""
        from curtsy.core.errors import InvalidDomain
        from curtsy.core.message import parse_domain

        try:
            return parse_domain(value)
        except InvalidDomain as error:
            self.fail(str(error), param, ctx)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Complete the hosts of the store."""
        from curtsy.cli.context import CommandContext
        from curtsy.core.errors import CurtsyError

        try:
            store = ctx.ensure_object(CommandContext).open_store()
            try:
                found = store.keys(f"host:{incomplete}")
            finally:
                store.close()
        except (CurtsyError, OSError):
            return []  # completion must not print errors
        return [CompletionItem(key.removeprefix("host:")) for key in found[:100]]


class Header(_Field):
    """Header field, `Name: value`."""

    name = "header"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, str]:
        """Return name and value."""
        if isinstance(value, tuple):
            return value
        name, colon, rest = value.partition(":")
        if not colon or not re.fullmatch(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+", name) or re.search(r"[\r\n\0]", rest):
            self.fail('a header is written "Name: value", on one line.', param, ctx)
        return name, rest.strip()
