"""Click commands and groups with examples in the help, parameter types, and suggestions for typos."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from curtsy.cli.context import GLOBAL_OPTIONS, CommandContext, ContextOption
from curtsy.system.startup import raise_on_interrupt

if TYPE_CHECKING:  # ParamType is generic only in later versions of click
    _Seconds = click.ParamType[float]
    _Bytes = click.ParamType[int]
    _Name = click.ParamType[str]
    _Field = click.ParamType[tuple[str, str]]
else:
    _Seconds = _Bytes = _Name = _Field = click.ParamType

Examples = Sequence[tuple[str, str]]
"""Pairs of a command line and its description."""


class Command(click.Command):
    """Command with examples and the global options."""

    def __init__(self, *arguments: Any, examples: Examples = (), **attributes: Any) -> None:
        super().__init__(*arguments, **attributes)
        self.examples = tuple(examples)
        self.params = [*self.params, *GLOBAL_OPTIONS]

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the examples, the command's own options, and the global options."""
        _write_examples(self.examples, formatter)
        _write_options(self, ctx, formatter)

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        """Parse the arguments; suggest a similar option for an unknown one."""
        try:
            return super().make_context(info_name, args, parent, **extra)
        except click.NoSuchOption as error:
            raise _suggesting(error, self) from None

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command. From here on Ctrl-C raises, so that resources are closed."""
        raise_on_interrupt()
        return super().invoke(ctx)


class Group(click.Group):
    """Group whose commands are imported on first use, so that its help appears at once.

    `lazy` maps each name to `module:attribute` and the short help. `sections` lists the names under headings.
    """

    def __init__(
        self,
        *arguments: Any,
        examples: Examples = (),
        lazy: dict[str, tuple[str, str]] | None = None,
        sections: dict[str, tuple[str, ...]] | None = None,
        **attributes: Any,
    ) -> None:
        super().__init__(*arguments, **attributes)
        self.examples = tuple(examples)
        self.lazy = lazy or {}
        self.sections = sections or {}
        self.params = [*self.params, *GLOBAL_OPTIONS]

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return all names, in the order of their sections."""
        return list(self.lazy) if self.lazy else list(self.commands)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return the command of that name, imported if necessary."""
        if cmd_name in self.lazy and cmd_name not in self.commands:
            module, _, attribute = self.lazy[cmd_name][0].partition(":")
            found = getattr(import_module(module), attribute)
            assert isinstance(found, click.Command)
            self.commands[cmd_name] = found
        return super().get_command(ctx, cmd_name)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments; without any, show the help."""
        if not args and not ctx.resilient_parsing:
            click.echo(ctx.get_help())
            ctx.exit()
        return super().parse_args(ctx, args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete a command's name without importing commands."""
        names = [name for name in self.list_commands(ctx) if name.startswith(incomplete)]
        items = [CompletionItem(name, help=self._short_help(ctx, name)) for name in names]
        return [*items, *click.Command.shell_complete(self, ctx, incomplete)]

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command; suggest a similar name for an unknown one."""
        name = args[0]
        if name not in self.list_commands(ctx) and not name.startswith("-") and not ctx.resilient_parsing:
            near = difflib.get_close_matches(name, self.list_commands(ctx), 1)
            hint = f"Did you mean {near[0]}?" if near else f"{ctx.command_path} --help lists all commands."
            raise click.UsageError(f"there is no command {name!r}. {hint}", ctx)
        return super().resolve_command(ctx, args)

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        """Parse the arguments; suggest a similar option for an unknown one."""
        try:
            return super().make_context(info_name, args, parent, **extra)
        except click.NoSuchOption as error:
            raise _suggesting(error, self) from None

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands, the examples, and the options."""
        self.format_commands(ctx, formatter)
        _write_examples(self.examples, formatter)
        _write_options(self, ctx, formatter)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the names and short helps of the commands without importing lazy ones."""
        names = self.list_commands(ctx)
        widest = max(map(len, names))
        for title, some in (self.sections or {"Commands": tuple(names)}).items():
            with formatter.section(title):
                rows = [(name.ljust(widest), self._short_help(ctx, name)) for name in some]
                formatter.write_dl(rows)

    def _short_help(self, ctx: click.Context, name: str) -> str:
        if name in self.lazy:
            return self.lazy[name][1]
        found = self.get_command(ctx, name)
        return "" if found is None else found.get_short_help_str(200)


def _suggesting(error: click.NoSuchOption, command: click.Command) -> click.UsageError:
    """Return the error for an unknown option, with the most similar known one."""
    known = [name for parameter in command.params for name in parameter.opts] + ["--help"]
    near = difflib.get_close_matches(error.option_name, known, 1)
    hint = f" Did you mean {near[0]}?" if near else ""
    return click.UsageError(f"there is no option {error.option_name}.{hint}", error.ctx)


def _write_options(command: click.Command, ctx: click.Context, formatter: click.HelpFormatter) -> None:
    own: list[tuple[str, str]] = []
    given: list[tuple[str, str]] = []
    for parameter in command.get_params(ctx):
        record = parameter.get_help_record(ctx)
        if record is not None and isinstance(parameter, click.Option):
            (given if isinstance(parameter, ContextOption) else own).append(record)
    if own:
        with formatter.section("Options"):
            formatter.write_dl(own)
    if given:
        with formatter.section("Global options"):
            formatter.write_dl(given)


def _write_examples(examples: Examples, formatter: click.HelpFormatter) -> None:
    if not examples:
        return
    with formatter.section("Examples"):
        for place, (line, words) in enumerate(examples):
            if place:
                formatter.write("\n")
            formatter.write_text(words)
            formatter.write(f"{'':>{formatter.current_indent}}  $ {line}\n")  # never wrapped: users copy it


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
            self.fail('a header has the form "Name: value", on one line.', param, ctx)
        return name, rest.strip()
