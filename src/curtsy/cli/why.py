"""`curtsy why`: explain whether a page may be fetched."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from curtsy.cli import console
from curtsy.cli.command import Command
from curtsy.cli.context import CommandContext
from curtsy.cli.exits import Exit, exit_for
from curtsy.cli.running import run

if TYPE_CHECKING:
    from curtsy.core.message import Url
    from curtsy.observe.why import Explanation
    from curtsy.observe.why_checks import Known

NARROW = 72
"""Width in columns below which the origin of a check appears under it."""


@click.command(
    cls=Command,
    examples=(
        ("curtsy why https://example.org/private/", "What would happen if this were fetched now, and why."),
        ("curtsy why --ask https://example.org/", "The same; its robots.txt is fetched first, in its turn."),
        ("curtsy why --json https://example.org/ | jq .allowed_in", "The seconds until it would be allowed."),
        ("curtsy why https://example.org/ && curtsy get https://example.org/", "Only if nothing is in the way."),
    ),
)
@click.argument("url", metavar="URL")
@click.option("--ask", is_flag=True, help="Let robots.txt be fetched, politely, if it is not known.")
@click.option("--json", "is_json", is_flag=True, help="The same as JSON.")
@click.pass_obj
def why(given: CommandContext, url: str, ask: bool, is_json: bool) -> Exit:
    """Say whether a page may be fetched now, and what decides.

    The page itself is never asked for, and nothing else unless --ask is given: the answer comes from the settings and
    from what is remembered of the host. Each row is one thing that decides, with the file and line that it comes from;
    below stands the verdict, and the time until the page would be allowed.

    The exit code is what get would end with: 0, 1 (the host gave no answer lately), 3 (refused) or 75 (later).
    """
    from curtsy.core import messages
    from curtsy.core.message import InvalidUrl, parse_url

    parsed = parse_url(url)
    if isinstance(parsed, InvalidUrl):
        raise click.UsageError(f"{messages.given(parsed)!r} cannot be asked for: {parsed.why}.")
    if ask:
        run(lambda: _ask(given, parsed))
    found = _assess(given, parsed)
    if is_json:
        console.write_json(found.as_dict())
    else:
        _show(found)
    return exit_of(found)


def exit_of(found: Explanation) -> Exit:
    """Return the exit code for a verdict."""
    is_trouble = any(check.name == "store" or check.facts.get("failure") for check in found.checks)
    if found.verdict == "unknown" and is_trouble:
        return Exit.ERROR
    return exit_for(found.reason, found.allowed_in)


async def _ask(given: CommandContext, url: Url) -> None:
    """Fetch the rules of the URL's origin, if unknown."""
    from curtsy.cli.trace_output import Progress

    settings = given.settings()
    with Progress(settings.policies) as teller:
        async with given.open_client(teller, cache=False) as client:
            await client.rules_of(url, settings.user_agent)


def _assess(given: CommandContext, url: Url) -> Explanation:
    from curtsy.observe.why import assess

    return assess(url, given.settings(), recall(given, url))


def recall(given: CommandContext, url: Url) -> Known:
    """Read the stored records that concern a URL; an unreadable store is reported in the result."""
    from curtsy.core.errors import StoreError
    from curtsy.observe.why import recall as remembered
    from curtsy.observe.why_checks import Known, plain_request
    from curtsy.system.clock import SystemClock

    settings = given.settings()
    kept = None
    if settings.cache_mode != "off":
        cache = given.open_cache()
        kept = cache.entry(plain_request(url, settings))
        cache.close()
    try:
        store = given.open_store()
        try:
            return remembered(url, settings, store, kept)
        finally:
            store.close()
    except StoreError as error:
        return Known(SystemClock().now(), kept=kept, trouble=str(error))


_STYLES = {"allowed": "green", "cached": "green", "refused": "red", "unknown": "magenta"}


def _show(found: Explanation) -> None:
    from rich.panel import Panel
    from rich.text import Text

    terminal = console.out()
    is_narrow = terminal.width < NARROW
    terminal.print(Text.assemble((console.plain(found.url), "bold")), soft_wrap=True)
    terminal.print(Text(f"as {console.plain(found.user_agent)}", style="dim"), overflow="fold")
    terminal.print()
    rows = console.table("", "", "", *([] if is_narrow else [""]))
    rows.columns[2].no_wrap, rows.columns[2].overflow = False, "fold"
    for check in found.checks:
        hint = " (--ask fetches it)" if check.facts.get("known") is False and check.state == "unknown" else ""
        says = Text(console.plain(check.says) + hint, style="" if check.state != "off" else "dim")
        origin = Text(console.plain(check.origin), style="dim")
        name = Text(check.name, style="bold")
        if is_narrow and check.origin not in ("", "built-in"):
            rows.add_row(console.mark(check.state), name, Text.assemble(says, "\n", origin))
        else:
            rows.add_row(console.mark(check.state), name, says, *([] if is_narrow else [origin]))
    console.show(terminal, rows)
    style = "yellow" if found.verdict == "allowed" and found.allowed_in else _STYLES[found.verdict]
    message = console.plain(found.message)
    first = message if message.startswith("http") else message[:1].upper() + message[1:]
    words = Text(first, style="bold")
    terminal.print()
    if terminal.is_terminal and terminal.width >= 30:
        terminal.print(Panel.fit(words, border_style=style, padding=(0, 1)))
    else:
        terminal.print(words)
