"""Declaration of commands: examples in the help, lazily imported groups, types of parameters and their completion."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from copy import copy
from functools import partial
from importlib import import_module
from typing import Any, Literal

import click
from click.shell_completion import CompletionItem

from curtsy.cli.context import GLOBAL_OPTIONS, CommandContext
from curtsy.core.escape import visible
from curtsy.system.startup import raise_on_interrupt


class OneName(click.Option):
    """Option whose help and errors show its first name only. The others are accepted."""

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        """Return the line of the help."""
        return click.Option.get_help_record(self._with_one_name(), ctx)

    def get_error_hint(self, ctx: click.Context | None) -> str:
        """Return the name for errors."""
        return click.Option.get_error_hint(self._with_one_name(), ctx)

    def _with_one_name(self) -> click.Option:
        only = copy(self)
        only.opts = self.opts[:1]
        return only


class Once(click.Option):
    """Option with one value, such as an output file. Two values are a usage error, because one of them would be lost.

    Of other options with one value, the last one applies, so that an alias can be overridden.
    """

    def __init__(self, *arguments: Any, **attributes: Any) -> None:
        super().__init__(*arguments, **{**attributes, "multiple": True})

    def process_value(self, ctx: click.Context, value: Any) -> Any:
        """Return the value; None without one. Raises UsageError for several."""
        given = tuple(dict.fromkeys(super().process_value(ctx, value)))
        if len(given) > 1:
            values = " and ".join(map(visible, map(str, given)))
            raise click.UsageError(
                f"{self.opts[-1]} takes one value, and was given {values}. Leave one of them out.", ctx
            )
        return given[0] if given else None


def once(*names: str, **attributes: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Declare an option of the class Once."""
    return click.option(*names, cls=Once, **attributes)


Examples = Sequence[tuple[str, str]]
"""Pairs of a command line and its description."""


class Command(click.Command):
    """Command with examples and the global options.

    `headings` maps a heading of the help to the names of its parameters. The other options stand under Options.
    """

    def __init__(
        self, *arguments: Any, examples: Examples = (), headings: Mapping[str, str] | None = None, **attributes: Any
    ) -> None:
        super().__init__(*arguments, **attributes)
        self.examples = tuple(examples)
        self.headings = {name: heading for heading, names in (headings or {}).items() for name in names.split()}
        self.params = [*self.params, *GLOBAL_OPTIONS]

    def option_groups(self, ctx: click.Context) -> dict[str, list[click.Option]]:
        """Return the options by their headings, in the order of the headings."""
        headings = [*self.headings.values(), "Options", "Global options"]
        groups: dict[str, list[click.Option]] = {heading: [] for heading in headings}
        for option in self.get_params(ctx):
            if isinstance(option, click.Option):
                is_global = option in GLOBAL_OPTIONS
                heading = "Global options" if is_global else self.headings.get(option.name or "", "Options")
                groups[heading].append(option)
        return groups

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the examples, the command's own options, and the global options."""
        with formatter.section("Examples"):
            for place, (line, words) in enumerate(self.examples):
                if place:
                    formatter.write("\n")
                formatter.write_text(words)
                formatter.write(f"{'':>{formatter.current_indent}}  $ {line}\n")  # never wrapped: users copy it
        for heading, options in self.option_groups(ctx).items():
            records = [option.get_help_record(ctx) for option in options]
            if rows := [record for record in records if record is not None]:
                with formatter.section(heading):
                    formatter.write_dl(rows)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command. From here on Ctrl-C raises, so that resources are closed."""
        raise_on_interrupt()
        return super().invoke(ctx)


_OTHER_NAMES = {"dashboard": "serve", "web": "serve", "fetch": "get", "stats": "status", "mirror": "crawl"}
"""Names of commands by other words for them."""


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
            other = _OTHER_NAMES.get(name)
            near = [other] if other in self.list_commands(ctx) else []
            near = near or difflib.get_close_matches(name, self.list_commands(ctx), 1)
            hint = f"Did you mean {near[0]}?" if near else f"{ctx.command_path} --help lists all commands."
            if name == "help" and args[1:2] and args[1] in self.list_commands(ctx):
                hint = f"{ctx.command_path} {args[1]} --help shows the help of {args[1]}."
            raise click.UsageError(f"there is no command {name!r}. {hint}", ctx)
        return super().resolve_command(ctx, args)

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


def command(
    *examples: tuple[str, str], of: Group | None = None, headings: Mapping[str, str] | None = None
) -> Callable[[Callable[..., Any]], Command]:
    """Declare a command with its examples, in the group `of` if given. It has the name of the function."""

    def declare(function: Callable[..., Any]) -> Command:
        made = click.command(cls=Command, examples=examples, headings=headings)(function)
        if of is not None:
            of.add_command(made)
        return made

    return declare


def group(*examples: tuple[str, str], **attributes: Any) -> Callable[[Callable[..., Any]], Group]:
    """Declare a group of commands with its examples; `attributes` are those of a click group."""
    return click.group(cls=Group, examples=examples, **attributes)


def duration(text: str) -> float:
    """Parse a time in seconds, or with units: `90`, `1.5s`, `10m`, `1h30m`, `2d`. Raises BadParameter."""
    from curtsy.core.units import TIMES, seconds_of

    seconds = seconds_of(text)
    if seconds is None or not 0 < seconds <= 366 * 86_400:
        raise click.BadParameter(f"{text!r} must be a time above 0, {TIMES}.")
    return seconds


def byte_count(text: str) -> int:
    """Parse a number of bytes, or with a unit of 1024: `500000`, `20M`, `1.5G`. Raises BadParameter."""
    from curtsy.core.units import SIZES, bytes_of

    size = bytes_of(text)
    if size is None:
        raise click.BadParameter(f"{text!r} must be a number of bytes, {SIZES}.")
    return size


def path_name(text: str) -> str:
    """Parse the path of an output that cannot be standard output. Raises BadParameter."""
    if text == "-":
        raise click.BadParameter("only --jsonl writes to standard output. Give a path; ./- is a file of that name.")
    return text


OUTPUT = partial(once, type=path_name, metavar="FILE")
"""Declaration of an output that is a file, or a folder with another `metavar`."""


def check_places(files: Mapping[str, str], *, has_seeds: bool) -> None:
    """Raise UsageError for an output, by its kind, at a URL that is a seed or would be lost with the process."""
    for kind, path in files.items():
        option = "--out" if kind == "folder" else f"--{kind}"
        if path.lower().startswith("memory://"):
            raise click.UsageError(
                f"{option} {path} would be in the memory of this process, and lost at its end. Give a path, or the "
                "URL of an object store."
            )
        if not has_seeds and path.lower().startswith(("http://", "https://")):
            from curtsy.core.masking import mask_url

            raise click.UsageError(f"{option} took {mask_url(path)} as its value. Give it a path, and then the URL.")


_ENTRIES = ("jsonl", "csv", "parquet", "folder"), "outputs with data of each page. Give --jsonl, --csv or --out too."
_PARTS = ("parquet",), "outputs in parts. Give --parquet, or a URL as the output."
_USES = {
    "body": (("jsonl", "parquet"), "JSON lines and Parquet. Give --jsonl or --parquet too."),
    "extract": _ENTRIES, "main_text": _ENTRIES, "part_size": _PARTS, "part_time": _PARTS,
}  # fmt: skip
"""Kinds of outputs that an option of `curtsy crawl` is for, and the error without one."""


def check_uses(words: Mapping[str, Any], files: Mapping[str, str]) -> None:
    """Raise UsageError for an option that no output uses. `words` are all options, `files` the outputs by kind."""
    from curtsy.crawling.outputs.part_storage import is_url

    for name, (kinds, what) in _USES.items():
        used = set(files) & set(kinds)
        if name == "main_text" and used == {"csv"} and words["extract"]:
            what, used = "JSON lines, because --extract defines the columns of --csv. Give --jsonl too.", set()
        if name.startswith("part_"):
            used |= {kind for kind, path in files.items() if is_url(path)}
        if words[name] and not used:
            raise click.UsageError(f"--{name.replace('_', '-')} is for {what}")
    if words["is_durable"] and not files:
        raise click.UsageError("--durable is for outputs. Give one too.")
    if words["max_sitemaps"] is not None and not words["sitemaps"]:
        raise click.UsageError("--max-sitemaps is for --sitemaps. Give that too.")


def worker_count(text: str | int) -> int | Literal["auto"]:
    """Parse a number of worker processes, or `auto`. Raises BadParameter."""
    if text == "auto":
        return "auto"
    if not str(text).isdecimal() or not 1 <= int(text) <= 256:
        raise click.BadParameter(f"{text!r} must be a number of processes from 1 to 256, or auto.")
    return int(text)


def header(text: str) -> tuple[str, str]:
    """Parse a header field, `Name: value`. Raises BadParameter."""
    name, colon, value = text.partition(":")
    if not colon or not re.fullmatch(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+", name) or re.search(r"[\r\n\0]", value):
        raise click.BadParameter('a header has the form "Name: value", on one line.')
    return name, value.strip()


def selectors(given: Sequence[str]) -> dict[str, str] | None:
    """Parse fields to extract, `NAME=SELECTOR`; None without any. Raises UsageError."""
    found: dict[str, str] = {}
    for text in given:
        name, equals, selector = text.partition("=")
        if not equals or name in found:
            why = "is given twice" if equals else "has no selector"
            raise click.UsageError(f"--extract {text!r} {why}. Give each field once: --extract 'title=h1'.")
        found[name] = selector
    if found:
        from curtsy.core.errors import PolicyError
        from curtsy.crawling.extract.fields import fields_of

        try:
            fields_of(found)
        except PolicyError as error:
            raise click.UsageError(f"--{error}") from None
    return found or None


def host_name(text: str) -> str:
    """Parse a host or a URL; return the host, with its port unless that is the default. Raises BadParameter."""
    from curtsy.core.errors import InvalidDomain
    from curtsy.core.url import Url, parse_domain, parse_url

    url = parse_url(text) if "://" in text else None
    try:
        return url.domain if isinstance(url, Url) else parse_domain(text)
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
HOSTS = click.argument("domains", metavar="[HOST|URL]...", type=host_name, shell_complete=known_hosts, nargs=-1)
DOMAINS = click.argument(
    "domains", metavar="HOST|URL...", type=host_name, shell_complete=known_hosts, nargs=-1, required=True
)
JSON = click.option("--json", "is_json", is_flag=True, help="Write JSON.")
INPUT = once("-i", "--input", "source", metavar="FILE", help="Read URLs from a file, one per line; - for stdin.")
EXTRACT = click.option(
    "--extract", multiple=True, metavar="NAME=CSS",
    help="Extract a field: 'title=h1', 'links[]=a::url(href)'; repeatable.",
)  # fmt: skip
COOKIES = click.option("--cookies", is_flag=True, help="Keep cookies during this run, each for the host that set it.")
NO_CACHE = click.option("--no-cache", is_flag=True, help="Neither use nor store cached copies.")
TIMEOUT = click.option(
    "--timeout", type=duration, metavar="TIME", help="Time for each request, to the last byte of its reply (30s)."
)
VERBOSE = click.option("-v", "--verbose", "is_verbose", is_flag=True, help="Log each step to stderr.")
RENDER = click.option(
    "--render", is_flag=True, help="Run the scripts of pages in a browser, and take the DOM (extra render)."
)
YES = click.option("--yes", "is_sure", is_flag=True, help="Do not ask for confirmation.")
"""Parameters of several commands."""
