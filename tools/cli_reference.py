"""Write docs/reference/cli.md from the commands themselves; `--check` only says if it is current."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import click

from curtsy.cli import SECTIONS, cli
from curtsy.cli.command import Command, Group, OneName
from curtsy.cli.context import GLOBAL_OPTIONS

PAGE = Path(__file__).parent.parent / "docs" / "reference" / "cli.md"

INTRODUCTION = """\
# The command line

`curtsy`, also `python -m curtsy`. Data goes to standard output, everything else to standard error. `curtsy COMMAND
--help` shows the same as this page. Colours and progress are for terminals only; `NO_COLOR` switches colours off.
`eval "$(curtsy completion bash)"` enables completion of commands, options and known hosts.

[Exit codes](exit-codes.md) and [JSON output](json.md) have their own pages. Log lines (JSON, see [logs](logs.md)) are
shown from the level warn on, or from the level that `--log-level`, `LOG_LEVEL` or a settings file sets.

If an option with one value is given twice, the last one applies. Two values of an option that names a file or a job
are an error (exit code 2), because one of the files would stay empty. An option that can be repeated says so.
"""


def escaped(text: str) -> str:
    """Text for a cell of a table."""
    return " ".join(text.split()).replace("|", "\\|")


def options_table(options: list[click.Option]) -> str:
    """Options and what each does."""
    rows = ["| option | meaning |", "|---|---|"]
    for option in options:
        opts = option.opts[:1] if isinstance(option, OneName) else option.opts
        names = ", ".join(f"`{name}`" for name in (*opts, *option.secondary_opts))
        value = "" if option.is_flag else f" `{option.metavar or option.type.name.upper()}`".replace("|", "\\|")
        rows.append(f"| {names}{value} | {escaped(option.help or '')} |")
    return "\n".join(rows)


def walk(command: click.Command, names: tuple[str, ...], parent: click.Context) -> Iterator[tuple[str, str]]:
    """The name and the section of a command, and of those under it."""
    context = click.Context(command, info_name=names[-1], parent=parent)
    usage = " ".join([context.command_path, *command.collect_usage_pieces(context)])
    text = re.sub(r"\n\s*\n", "\n\n", "\n".join(line.strip() for line in (command.help or "").splitlines())).strip()
    parts = [text, f"```text\n{usage}\n```"]
    assert isinstance(command, Command | Group)
    for heading, options in command.option_groups(context).items():
        own = [each for each in options if each not in GLOBAL_OPTIONS and "--help" not in each.opts]
        if own and heading in command.headings.values():
            parts.append(f"**{heading}**")
        if own:
            parts.append(options_table(own))
    if command.examples:
        lines = [line for example, words in command.examples for line in (f"# {words}", example, "")]
        parts.append("```sh\n" + "\n".join(lines).strip() + "\n```")
    yield " ".join(names), "\n\n".join(parts)
    if isinstance(command, Group):
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            assert found is not None
            yield from walk(found, (*names, name), context)


def page() -> str:
    """The whole page."""
    root = click.Context(cli, info_name="curtsy")
    parts = [
        INTRODUCTION.strip(),
        "## Global options",
        "Every command accepts them, before or after its name. They override [the settings](settings.md).",
        options_table(list(GLOBAL_OPTIONS)),
    ]
    for title, names in SECTIONS.items():
        parts.append(f"## {title}")
        for name in names:
            command = cli.get_command(root, name)
            assert command is not None
            for full, text in walk(command, (name,), root):
                parts += [f"### `curtsy {full}`", text]
    return "\n\n".join(parts) + "\n"


def main() -> None:
    """Write the page, or check it."""
    new = page()
    if "--check" in sys.argv[1:]:
        if not PAGE.exists() or PAGE.read_text(encoding="utf-8") != new:
            raise SystemExit(f"{PAGE.name} is not current. Run python tools/cli_reference.py.")
    else:
        PAGE.write_text(new, encoding="utf-8")


if __name__ == "__main__":
    main()
