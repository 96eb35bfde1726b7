"""Command lines that are written down somewhere (a page, a unit, a container): would `curtsy` understand them?"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence

import click

from curtsy.cli import cli
from curtsy.cli.context import CommandContext

_ENDS = frozenset({"|", "||", "&&", ";", ">", ">>", "<", "2>", "&", ")"})
_VARIABLE = re.compile(r"\w+=")


def misread(arguments: Sequence[str]) -> str | None:
    """What the parser complains about, without running anything; None if it understands."""
    command: click.Command = cli
    rest, context = list(arguments), click.Context(cli, info_name="curtsy", obj=CommandContext())
    while isinstance(command, click.Group) and rest and not rest[0].startswith("-"):
        name = rest.pop(0)
        found = command.get_command(context, name)
        if found is None:
            return f"there is no command {name}"
        command = found
    if rest in (["--help"], ["--version"]):
        return None
    try:
        command.make_context(command.name, rest, parent=context)
    except click.exceptions.NoArgsIsHelpError:
        return None
    except click.UsageError as error:
        return error.format_message()
    return None


def commands_in(block: str, prompt: str = "$ ") -> Iterator[list[str]]:
    """The arguments of each `curtsy …` in a block of a shell session; what is after a pipe belongs to another."""
    joined = block.replace("\\\n", " ")
    for line in joined.splitlines():
        if not line.startswith(prompt):
            continue
        words = _words(line.removeprefix(prompt))
        while words and _VARIABLE.match(words[0]):
            words.pop(0)
        if words and words[0] == "curtsy":
            yield words[1:]


def _words(line: str) -> list[str]:
    """The words of the first command of a line."""
    words: list[str] = []
    for word in shlex.split(line, comments=True):
        if word in _ENDS or word.startswith((">", "2>")):
            break
        words.append(word)
    return words
