"""`curtsy why`: explain whether a page may be fetched."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from curtsy.cli import console
from curtsy.cli.command import Command
from curtsy.cli.context import CommandContext, Exit, exit_for, run

if TYPE_CHECKING:
    from curtsy.core.message import Url
    from curtsy.observe.why import Explanation
    from curtsy.stores import AsyncStore

NARROW = 72
"""Width in columns below which the origin of a check appears under it."""


@click.command(
    cls=Command,
    examples=(
        ("curtsy why https://example.org/private/", "Whether this would be fetched now, and why."),
        ("curtsy why --ask https://example.org/", "The same, after a request for robots.txt."),
        ("curtsy why --json https://example.org/ | jq .allowed_in", "The seconds until it would be allowed."),
        ("curtsy why https://example.org/ && curtsy get https://example.org/", "Fetch it only if nothing refuses it."),
    ),
)
@click.argument("url", metavar="URL")
@click.option("--ask", is_flag=True, help="Request robots.txt first if it is unknown or expired.")
@click.option("--json", "is_json", is_flag=True, help="The same as JSON.")
@click.pass_obj
def why(given: CommandContext, url: str, ask: bool, is_json: bool) -> Exit:
    """Explain whether a page may be fetched now.

    No request is sent, except for robots.txt with --ask. The settings and the stored records of the host decide, in
    the same way as for get. Each row is one check, with the file and line of its setting. The verdict is below, with
    the time until the page would be allowed.

    The exit code is that of get: 0, 1 (the host gave no answer lately), 3 (refused) or 75 (later).
    """
    from curtsy.core import messages
    from curtsy.core.message import InvalidUrl, parse_url

    parsed = parse_url(url)
    if isinstance(parsed, InvalidUrl):
        raise click.UsageError(f"{messages.given(parsed)!r} cannot be requested: {parsed.why}.")
    found = run(lambda: _explain(given, parsed, ask))
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


async def _explain(given: CommandContext, url: Url, ask: bool) -> Explanation:
    from curtsy.cli.trace import Progress
    from curtsy.client import session_of
    from curtsy.stores import open_async_store

    settings = given.settings()
    if ask:
        with Progress(settings.policies) as teller:
            async with given.open_client(teller, cache=False) as client:
                await session_of(client).rules_of(url, settings.user_agent)
    store = open_async_store(settings.store, fallback=False)
    try:
        return await explained(given, url, store)
    finally:
        await store.close()


async def explained(given: CommandContext, url: Url, store: AsyncStore) -> Explanation:
    """Explain a URL by the records of a store and the page cache."""
    from curtsy.observe.why import explain

    settings = given.settings()
    if settings.cache_mode == "off":
        return await explain(url, settings, store, None)
    cache = given.open_cache()
    try:
        return await explain(url, settings, store, cache)
    finally:
        cache.close()


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
        is_asked = check.facts.get("known") is False and check.state == "unknown" and found.verdict == "unknown"
        hint = " (--ask fetches it)" if is_asked else ""
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
