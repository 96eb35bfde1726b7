"""`curtsy config`: settings, their origins, and a settings file template."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import click

from curtsy.cli import console
from curtsy.cli.command import Command, Group
from curtsy.cli.context import CommandContext
from curtsy.cli.exits import Exit
from curtsy.cli.values import Domain


@click.group(
    cls=Group,
    examples=(
        ("curtsy config init", "Begin a curtsy.yaml, every line of it explained."),
        ("curtsy config show --origin example.org", "What holds for a host, and which file and line says so."),
    ),
)
def config() -> None:
    """Show, check or begin the settings.

    They come from, each winning over those before it: what is built in, a preset, the user's file, the project's file
    (config/domains.yaml, curtsy.yaml), the environment (CURTSY_...), the command line.
    """


@config.command(
    "show",
    cls=Command,
    examples=(
        ("curtsy config show", "All settings, written as a file has them."),
        ("curtsy config show --origin", "Where each value comes from."),
        ("curtsy config show example.org --json", "What holds for a host."),
    ),
)
@click.argument("domain", type=Domain(), required=False)
@click.option("--origin", "is_origin", is_flag=True, help="Say where each value comes from: file and line.")
@click.option("--json", "is_json", is_flag=True, help="Values and origins as JSON.")
@click.pass_obj
def show(given: CommandContext, domain: str | None, is_origin: bool, is_json: bool) -> Exit:
    """Show the settings that hold, for all hosts or for one."""
    from rich.text import Text

    from curtsy.observe.messages import origin as where
    from curtsy.observe.policy_view import values_of

    settings = given.settings()
    general, policy = values_of(settings, domain)
    for warning in settings.warnings:
        console.say(warning)
    if is_json:
        both = general | policy
        console.write_json(
            {name: {"value": value, "origin": where(settings, domain, name)} for name, value in both.items()}
        )
        return Exit.FINE
    if not is_origin:
        lines = [f"{name}: {_written(value)}" for name, value in general.items()]
        lines.append("default_policy:" if domain is None else f"# what holds for {domain}\ndefault_policy:")
        click.echo("\n".join([*lines, *(f"  {name}: {_written(value)}" for name, value in policy.items())]))
        return Exit.FINE
    table = console.table("setting", "value", "from", folded=("value",))
    for name, value in (general | policy).items():
        origin = where(settings, domain, name)
        table.add_row(
            name,
            console.plain(_written(value)),
            Text(console.plain(origin), style="dim" if origin == "built-in" else ""),
        )
    console.show(console.out(), table)
    return Exit.FINE


def _written(value: Any) -> str:
    """Return a value in the syntax of a settings file."""
    from curtsy.settings.problems import shown

    if isinstance(value, str) and not re.fullmatch(r"[A-Za-z][A-Za-z0-9_./-]*", value):
        return json.dumps(value)
    if isinstance(value, list):
        return json.dumps(value)
    return shown(value, bare=True)


@config.command(
    "check",
    cls=Command,
    examples=(
        ("curtsy config check", "Are the settings in order? 0 if so, 78 if not, with file, line and rule."),
        ("curtsy config check config/domains.yaml", "The same for one file, before it is put in place."),
    ),
)
@click.argument("file", metavar="[FILE]", required=False)
@click.option("--json", "is_json", is_flag=True, help="Files and warnings as JSON.")
@click.pass_obj
def check(given: CommandContext, file: str | None, is_json: bool) -> Exit:
    """Check the settings: every fault is told, with its place, the rule and the value."""
    if file is not None:
        given.config = file
    settings = given.settings()
    files = [str(each) for each in settings.files]
    if is_json:
        console.write_json({"ok": True, "files": files, "warnings": [*settings.warnings, *settings.notices]})
        return Exit.FINE
    for warning in settings.warnings:
        console.say(warning)
    for each in files:
        click.echo(each)
    domains = console.counted(len(settings.policies.entries), "domain")
    console.say(f"the settings are in order: {console.counted(len(files), 'file')}, entries for {domains}.")
    return Exit.FINE


@config.command(
    "init",
    cls=Command,
    examples=(
        ("curtsy config init", "Write curtsy.yaml here."),
        ("curtsy config init - | less", "Only look at it."),
    ),
)
@click.argument("file", metavar="[FILE]", default="curtsy.yaml")
@click.option("--force", is_flag=True, help="Even if there is one already.")
def init(file: str, force: bool) -> Exit:
    """Begin a settings file: the settings that matter most, each explained, all at their defaults."""
    from curtsy.cli.template import TEMPLATE

    if file == "-":
        click.echo(TEMPLATE, nl=False)
        return Exit.FINE
    try:
        with Path(file).open("w" if force else "x", encoding="utf-8") as target:
            target.write(TEMPLATE)
    except FileExistsError:
        raise click.ClickException(f"{file} is there already. Say --force to replace it.") from None
    console.say(f"{file} is written. Edit it, then: curtsy config check")
    return Exit.FINE
