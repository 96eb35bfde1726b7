"""`curtsy config`: settings, their origins, and a settings file template."""

from __future__ import annotations

from pathlib import Path

import click

from curtsy.cli import console
from curtsy.cli.command import DOMAIN, command, group
from curtsy.cli.context import CommandContext


@group(
    ("curtsy config init", "Write a curtsy.yaml with every setting explained."),
    ("curtsy config show --origin example.org", "Settings of a host, and the file and line of each."),
)
def config() -> None:
    """Show or check the settings, or create a settings file.

    Sources, lowest precedence first: built-in defaults, a preset, the user's file, the project's files
    (config/domains.yaml, curtsy.yaml), the environment (CURTSY_...), the command line.
    """


@command(
    ("curtsy config show", "All settings, in the syntax of a file."),
    ("curtsy config show --origin", "The origin of each value."),
    ("curtsy config show example.org --json", "Settings of a host."),
    of=config,
)
@DOMAIN
@click.option("--origin", "is_origin", is_flag=True, help="Show the origin of each value: file and line.")
@click.option("--json", "is_json", is_flag=True, help="Values and origins as JSON.")
@click.pass_obj
def show(given: CommandContext, domain: str | None, is_origin: bool, is_json: bool) -> None:
    """Show the settings in effect, for all hosts or for one."""
    from curtsy.observe.policy_view import origin as where
    from curtsy.observe.policy_view import values_of
    from curtsy.settings.template import yaml_value

    settings = given.settings()
    general, policy = values_of(settings, domain)
    origins = {name: where(settings, domain, name) for name in general | policy}
    for warning in settings.warnings:
        console.say(warning)
    if is_json:
        both = (general | policy).items()
        console.write_json({name: {"value": value, "origin": origins[name]} for name, value in both})
    elif is_origin:
        table = console.table("setting", "value", "from", folded=(1,))
        for name, value in (general | policy).items():
            origin = console.text(console.plain(origins[name]), style="dim" if origins[name] == "built-in" else "")
            table.add_row(name, console.plain(yaml_value(value)), origin)
        console.show(console.out(), table)
    else:
        lines = [f"{name}: {yaml_value(value)}" for name, value in general.items()]
        lines.append("default_policy:" if domain is None else f"# settings of {domain}\ndefault_policy:")
        click.echo("\n".join([*lines, *(f"  {name}: {yaml_value(value)}" for name, value in policy.items())]))


@command(
    ("curtsy config check", "Exit code 0 if the settings are valid, 78 if not, with file, line and rule."),
    ("curtsy config check config/domains.yaml", "Check one file before you use it."),
    of=config,
)
@click.argument("file", metavar="[FILE]", required=False)
@click.option("--json", "is_json", is_flag=True, help="Files and warnings as JSON.")
@click.pass_obj
def check(given: CommandContext, file: str | None, is_json: bool) -> None:
    """Check the settings; report each error with its place, rule and value."""
    if file is not None:
        given.arguments["config"] = file
    settings = given.settings()
    files = [str(each) for each in settings.files]
    if is_json:
        console.write_json({"ok": True, "files": files, "warnings": [*settings.warnings, *settings.notices]})
        return
    for warning in settings.warnings:
        console.say(warning)
    for each in files:
        click.echo(each)
    domains = console.counted(len(settings.policies.entries), "domain")
    console.say(f"The settings are valid: {console.counted(len(files), 'file')}, entries for {domains}.")


@command(
    ("curtsy config init", "Write curtsy.yaml here."),
    ("curtsy config init - | less", "Show it without writing a file."),
    of=config,
)
@click.argument("file", metavar="[FILE]", default="curtsy.yaml")
@click.option("--force", is_flag=True, help="Replace an existing file.")
def init(file: str, force: bool) -> None:
    """Create a settings file with every setting explained and at its default."""
    from curtsy.settings.template import template

    if file == "-":
        click.echo(template(), nl=False)
        return
    try:
        with Path(file).open("w" if force else "x", encoding="utf-8") as target:
            target.write(template())
    except FileExistsError:
        raise click.ClickException(f"{file} exists. Use --force to replace it.") from None
    console.say(f"Wrote {file}. Edit it, then run: curtsy config check")
