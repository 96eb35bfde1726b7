"""`curtsy demo`: see it at work."""

from __future__ import annotations

import click

from curtsy.cli.command import Command
from curtsy.cli.exits import Exit


@click.command(cls=Command, examples=(("curtsy demo", "Some twenty seconds, and nothing leaves this machine."),))
def demo() -> Exit:
    """See a polite crawl of a small site on this machine.

    Five small hosts with manners of their own are started on loopback and crawled; at the end stands what was fetched,
    what was left alone and why, and what the site saw: proof that every rule was kept.
    """
    from curtsy.demo import main

    return Exit.FINE if main() == 0 else Exit.ERROR
