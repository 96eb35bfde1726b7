"""Declaration of commands: examples in the help, lazily imported groups, types of parameters and their completion."""

from __future__ import annotations

import builtins
import difflib
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from importlib import import_module
from typing import Any, NoReturn

import click
from click.shell_completion import CompletionItem

from curtsy.cli.context import GLOBAL_OPTIONS, CommandContext
from curtsy.system.startup import raise_on_interrupt

Examples = Sequence[tuple[str, str]]
"""Pairs of a command line and its description."""


class Command(click.Command):
    """Command with examples and the global options."""

    def __init__(self, *arguments: Any, examples: Examples = (), **attributes: Any) -> None:
        super().__init__(*arguments, **attributes)
        self.examples = tuple(examples)
        self.params = [*self.params, *GLOBAL_OPTIONS]
        self.is_declaration = False
        """True if only the help of the command can be shown: what its work needs is not imported."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the examples, the command's own options, and the global options."""
        with formatter.section("Examples"):
            for place, (line, words) in enumerate(self.examples):
                if place:
                    formatter.write("\n")
                formatter.write_text(words)
                formatter.write(f"{'':>{formatter.current_indent}}  $ {line}\n")  # never wrapped: users copy it
        options = [each for each in self.get_params(ctx) if isinstance(each, click.Option)]
        records = [(each in GLOBAL_OPTIONS, each.get_help_record(ctx)) for each in options]
        for title, is_global in (("Options", False), ("Global options", True)):
            if rows := [record for kind, record in records if kind is is_global and record is not None]:
                with formatter.section(title):
                    formatter.write_dl(rows)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command. From here on Ctrl-C raises, so that resources are closed."""
        if self.is_declaration:
            raise NotHelpError
        raise_on_interrupt()
        return super().invoke(ctx)


class Group(Command, click.Group):
    """Group whose commands are imported on first use, so that its help appears at once.

    `sections` maps a heading to the names of its commands, each with its module and its short help. A group without
    sections contains the commands that are declared for it.
    """

    def __init__(
        self, *arguments: Any, sections: dict[str, dict[str, tuple[str, str]]] | None = None, **attributes: Any
    ) -> None:
        super().__init__(*arguments, **attributes)
        self.sections = sections or {}
        self.lazy = {name: home for homes in self.sections.values() for name, home in homes.items()}

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return all names, in the order of their sections."""
        return list(self.lazy or self.commands)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return the command of that name, imported if necessary."""
        if cmd_name in self.lazy and cmd_name not in self.commands:
            self.add_command(getattr(import_module(self.lazy[cmd_name][0]), cmd_name))
        return super().get_command(ctx, cmd_name)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command. Until then Ctrl-C ends the process at once, also while the command is imported."""
        return click.Group.invoke(self, ctx)

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
        if name in self.lazy and self.lazy[name][0] not in sys.modules and not HELP.isdisjoint(args):
            self._show_help(ctx, name, args[1:])
        return super().resolve_command(ctx, args)

    def _show_help(self, ctx: click.Context, name: str, args: list[str]) -> None:
        """Show the help of a command and exit; return if the arguments do not request it."""
        try:
            found = declaration(self.lazy[name][0], name)
        except Exception:  # the declaration itself uses a deferred import
            return
        try:
            with found.make_context(name, args, parent=ctx) as context:
                found.invoke(context)
        except NotHelpError:
            pass  # the word was the value of an option

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands, the examples, and the options."""
        self.format_commands(ctx, formatter)
        Command.format_options(self, ctx, formatter)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the names and short helps of the commands without importing lazy ones."""
        names = self.list_commands(ctx)
        widest = max(map(len, names))
        sections: dict[str, Iterable[str]] = {**self.sections} or {"Commands": names}
        for title, some in sections.items():
            with formatter.section(title):
                formatter.write_dl([(name.ljust(widest), self._short_help(ctx, name)) for name in some])

    def _short_help(self, ctx: click.Context, name: str) -> str:
        if name in self.lazy:
            return self.lazy[name][1]
        return self.commands[name].get_short_help_str(200)


HELP = frozenset({"-h", "--help"})

DEFERRED = re.compile(r"(?:curtsy\.(?!cli\b)|(?:asyncio|http|msgspec|rich)\b)")
"""Modules that the commands' work needs, and their help does not."""


class NotHelpError(Exception):
    """Command that was imported for its help must run."""


class _Deferred:
    """Placeholder of a name whose import is deferred. It can be named, called and subclassed, but has no value."""

    def __init__(self, *arguments: Any, **attributes: Any) -> None: ...

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name != "__path__":
            raise AttributeError(name)
        return _Deferred()

    def __call__(self, *arguments: Any, **attributes: Any) -> Any:
        return _Deferred()

    def __mro_entries__(self, bases: Any) -> tuple[type, ...]:
        return (_Deferred,)

    def __or__(self, other: Any) -> Any:
        return self

    __ror__ = __or__

    def _no_value(self, *arguments: Any) -> NoReturn:
        raise TypeError("the value of a deferred import is not available")

    __bool__ = __iter__ = __len__ = __str__ = __repr__ = __format__ = __eq__ = __hash__ = _no_value


def declaration(module: str, name: str) -> Command:
    """Return a command that can only show its help, imported without the packages that its work needs.

    That saves most of the time until the help appears. The module must not be imported yet. Raises any exception if the
    declaration needs one of those packages.
    """
    real, before = builtins.__import__, set(sys.modules)
    package = sys.modules[__package__]

    def light(name: str, globals: Any = None, locals: Any = None, fromlist: Any = (), level: int = 0) -> Any:
        importer = (globals or {}).get("__name__", "")
        is_own = importer.startswith(f"{__package__}.") and importer not in before
        return _Deferred() if is_own and DEFERRED.match(name) else real(name, globals, locals, fromlist, level)

    builtins.__import__ = light
    try:
        found = getattr(import_module(module), name)
    finally:
        builtins.__import__ = real
        for each in set(sys.modules) - before:
            if each.startswith(f"{__package__}."):
                del sys.modules[each]
                vars(package).pop(each.rpartition(".")[2], None)
    assert isinstance(found, Command)
    for each in (found, *(found.commands.values() if isinstance(found, Group) else ())):
        each.is_declaration = True
    return found


def command(*examples: tuple[str, str], of: Group | None = None) -> Callable[[Callable[..., Any]], Command]:
    """Declare a command with its examples, in the group `of` if given. It has the name of the function."""

    def declare(function: Callable[..., Any]) -> Command:
        made = click.command(cls=Command, examples=examples)(function)
        if of is not None:
            of.add_command(made)
        return made

    return declare


def group(*examples: tuple[str, str], **attributes: Any) -> Callable[[Callable[..., Any]], Group]:
    """Declare a group of commands with its examples; `attributes` are those of a click group."""
    return click.group(cls=Group, examples=examples, **attributes)


_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86_400.0}
_SIZES = {"": 1, "k": 1024, "m": 1024**2, "g": 1024**3, "t": 1024**4}
_PART = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|min|m|h|d)?\s*", re.ASCII)
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)i?b?", re.IGNORECASE | re.ASCII)


def duration(text: str) -> float:
    """Parse a time in seconds, or with units: `90`, `1.5s`, `10m`, `1h30m`, `2d`. Raises BadParameter."""
    rest, seconds = text.strip().lower(), 0.0
    while (found := _PART.match(rest)) is not None:
        seconds += float(found[1]) * _UNITS[found[2] or "s"]
        rest = rest[found.end() :]
    if rest or not 0 < seconds <= 366 * 86_400:
        raise click.BadParameter(f"{text!r} must be a time above 0, such as 90, 1.5s, 10m, 1h30m or 2d.")
    return seconds


def byte_count(text: str) -> int:
    """Parse a number of bytes, or with a unit of 1024: `500000`, `20M`, `1.5G`. Raises BadParameter."""
    found = _SIZE.fullmatch(text.strip())
    if found is None or float(found[1]) > 2**40:
        raise click.BadParameter(f"{text!r} must be a number of bytes, such as 500000, 20M or 1.5G.")
    return int(float(found[1]) * _SIZES[found[2].lower()])


def header(text: str) -> tuple[str, str]:
    """Parse a header field, `Name: value`. Raises BadParameter."""
    name, colon, value = text.partition(":")
    if not colon or not re.fullmatch(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+", name) or re.search(r"[\r\n\0]", value):
        raise click.BadParameter('a header has the form "Name: value", on one line.')
    return name, value.strip()


def host_name(text: str) -> str:
    """Parse a host, with its port unless that is the default. Raises BadParameter."""
    from curtsy.core.errors import InvalidDomain
    from curtsy.core.message import parse_domain

    try:
        return parse_domain(text)
    except InvalidDomain as error:
        raise click.BadParameter(str(error)) from None


def job_name(text: str) -> str:
    """Parse the name of a job, or the path of its folder. Raises BadParameter."""
    from curtsy.core.errors import PolicyError
    from curtsy.crawling.jobs import folder_of

    try:
        folder_of(text)
    except PolicyError as error:
        raise click.BadParameter(str(error)) from None
    return text


def known_hosts(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Complete the hosts of the store."""
    from curtsy.core.errors import CurtsyError
    from curtsy.stores import for_threads

    try:
        with closing(context.ensure_object(CommandContext).open_store()) as store:
            return [key.removeprefix("host:") for key, _ in for_threads(store).page(f"host:{incomplete}", most=100)]
    except (CurtsyError, OSError):
        return []  # completion must not print errors


def known_jobs(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Complete the names of this machine's jobs."""
    from curtsy.crawling.jobs import FRONTIER, jobs_folder

    names = sorted(path.parent.name for path in jobs_folder().glob(f"*/{FRONTIER}"))
    return [name for name in names if name.startswith(incomplete)]


DOMAIN = click.argument("domain", type=host_name, shell_complete=known_hosts, required=False)
DOMAINS = click.argument(
    "domains", metavar="DOMAIN...", type=host_name, shell_complete=known_hosts, nargs=-1, required=True
)
JSON = click.option("--json", "is_json", is_flag=True, help="Write JSON.")
"""Parameters of several commands: a host or none, hosts, and the form of the output."""
