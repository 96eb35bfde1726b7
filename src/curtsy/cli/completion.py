"""`curtsy completion`: shell completion of commands, options and hosts."""

from __future__ import annotations

import os

import click

from curtsy.cli.command import Command
from curtsy.cli.exits import Exit

SHELLS = ("bash", "zsh", "fish")


@click.command(
    cls=Command,
    examples=(
        ('eval "$(curtsy completion bash)"', "For this shell; put the line into ~/.bashrc for all of them."),
        ('eval "$(curtsy completion zsh)"', "The same for ~/.zshrc."),
        ("curtsy completion fish > ~/.config/fish/completions/curtsy.fish", "For fish, once."),
    ),
)
@click.argument("shell", type=click.Choice(SHELLS), required=False, metavar=f"[{'|'.join(SHELLS)}]")
@click.pass_context
def completion(context: click.Context, shell: str | None) -> Exit:
    """Print what makes Tab complete commands in your shell.

    Hosts are completed from what the store knows. Without a name, it is the shell that you are in.
    """
    from click.shell_completion import get_completion_class

    from curtsy.cli import COMPLETING

    name = shell or os.path.basename(os.environ.get("SHELL", ""))
    if name not in SHELLS:
        raise click.UsageError(f"which shell? Name one of {', '.join(SHELLS)}.", context)
    kind = get_completion_class(name)
    assert kind is not None
    click.echo(kind(context.find_root().command, {}, "curtsy", COMPLETING).source())
    return Exit.FINE
