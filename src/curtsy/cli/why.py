"""`curtsy why`: say whether a page may be fetched, and what decides."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from curtsy.cli import screen
from curtsy.cli.command import Command
from curtsy.cli.exits import Exit, exit_for
from curtsy.cli.given import Given
from curtsy.cli.running import run

if TYPE_CHECKING:
    from curtsy.core.message import Url
    from curtsy.watch.assessment import Assessment
    from curtsy.watch.checks import Known

NARROW = 72
"""Columns below which the origin of a check goes under it instead of beside it."""


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
def why(given: Given, url: str, ask: bool, is_json: bool) -> Exit:
    """Say whether a page may be fetched now, and what decides.

    The page itself is never asked for, and nothing else unless --ask is given: the answer comes from the settings and
    from what is remembered of the host. Each row is one thing that decides, with the file and line that it comes from;
    below stands the verdict, and the time until the page would be allowed.

    The exit code is what get would end with: 0, 1 (the host gave no answer lately), 3 (refused) or 75 (later).
    """
    from curtsy.core import explain
    from curtsy.core.message import InvalidUrl, parse_url

    parsed = parse_url(url)
    if isinstance(parsed, InvalidUrl):
        raise click.UsageError(f"{explain.given(parsed)!r} cannot be asked for: {parsed.why}.")
    if ask:
        run(lambda: _ask(given, parsed))
    found = _assess(given, parsed)
    if is_json:
        screen.write_json(found.as_dict())
    else:
        _show(found)
    return exit_of(found)


def exit_of(found: Assessment) -> Exit:
    """The exit code for a verdict."""
    is_trouble = any(check.name == "store" or check.facts.get("failure") for check in found.checks)
    if found.verdict == "unknown" and is_trouble:
        return Exit.ERROR
    return exit_for(found.reason, found.allowed_in)


async def _ask(given: Given, url: Url) -> None:
    """Have the rules of the URL's origin fetched, if they are not known."""
    from curtsy.cli.telling import Progress

    settings = given.settings()
    with Progress(settings.policies) as teller:
        async with given.open_client(teller, cache=False) as client:
            await client.rules_of(url, settings.user_agent)


def _assess(given: Given, url: Url) -> Assessment:
    from curtsy.watch.assessment import assess

    return assess(url, given.settings(), recall(given, url))


def recall(given: Given, url: Url) -> Known:
    """What is remembered that concerns a URL. A store that cannot be read is no error here, but told."""
    from curtsy.clock import SystemClock
    from curtsy.core.errors import StoreError
    from curtsy.watch.assessment import recall as remembered
    from curtsy.watch.checks import Known, plain_request

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


def _show(found: Assessment) -> None:
    from rich.panel import Panel
    from rich.text import Text

    console = screen.out()
    is_narrow = console.width < NARROW
    console.print(Text.assemble((screen.plain(found.url), "bold")), soft_wrap=True)
    console.print(Text(f"as {screen.plain(found.user_agent)}", style="dim"), overflow="fold")
    console.print()
    rows = screen.table("", "", "", *([] if is_narrow else [""]))
    rows.columns[2].no_wrap, rows.columns[2].overflow = False, "fold"
    for check in found.checks:
        hint = " (--ask fetches it)" if check.facts.get("known") is False and check.state == "unknown" else ""
        says = Text(screen.plain(check.says) + hint, style="" if check.state != "off" else "dim")
        origin = Text(screen.plain(check.origin), style="dim")
        name = Text(check.name, style="bold")
        if is_narrow and check.origin not in ("", "built-in"):
            rows.add_row(screen.mark(check.state), name, Text.assemble(says, "\n", origin))
        else:
            rows.add_row(screen.mark(check.state), name, says, *([] if is_narrow else [origin]))
    screen.show(console, rows)
    style = "yellow" if found.verdict == "allowed" and found.allowed_in else _STYLES[found.verdict]
    message = screen.plain(found.message)
    first = message if message.startswith("http") else message[:1].upper() + message[1:]
    words = Text(first, style="bold")
    console.print()
    if console.is_terminal and console.width >= 30:
        console.print(Panel.fit(words, border_style=style, padding=(0, 1)))
    else:
        console.print(words)
