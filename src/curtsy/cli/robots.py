"""`curtsy robots`: show a robots.txt as curtsy parses it."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from curtsy.cli import console
from curtsy.cli.command import Command
from curtsy.cli.context import CommandContext
from curtsy.cli.exits import Exit, exit_for
from curtsy.cli.running import run

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from curtsy.core.fetch_state import Refusal
    from curtsy.core.message import Failure, Url
    from curtsy.core.robots import Robots, RuleGroup, Verdict
    from curtsy.core.rules import Rules


@dataclass(frozen=True, slots=True)
class Source:
    """A robots.txt and its source."""

    name: str
    body: bytes | None
    """None if the file could not be fetched."""

    note: str
    """Age of the copy, or why it is unavailable."""

    instead: Verdict | None = None
    """Verdict for every path while the file is unavailable; None if it is available."""

    left: float = 0.0
    """Seconds until the file is requested again."""

    part: bytes = b""
    """Received part of a later, truncated copy: its Disallow rules apply (C21)."""


@click.command(
    cls=Command,
    examples=(
        (
            "curtsy robots https://example.org/",
            "What a site tells us; asked for in its turn, and remembered for an hour.",
        ),
        ("curtsy robots https://example.org/ --test /private/ --test /blog", "Which paths are allowed, by which line."),
        ("curtsy robots robots.txt --agent Googlebot --all", "A file of your own, as another agent sees it, in full."),
        ("curtsy robots - --test / < robots.txt", "From standard input."),
    ),
)
@click.argument("source", metavar="URL|FILE")
@click.option("--agent", metavar="NAME", help="For this agent, a product token or a whole User-Agent, instead of us.")
@click.option(
    "--test", "tests", metavar="PATH", multiple=True, help="Say whether this path is allowed; may be repeated."
)
@click.option("--all", "is_all", is_flag=True, help="Show the rules of every group, not only of those for us.")
@click.option("--refresh", is_flag=True, help="Ask the site anew, though the file is remembered.")
@click.option("--json", "is_json", is_flag=True, help="The same as JSON, all groups included.")
@click.pass_obj
def robots(
    given: CommandContext,
    source: str,
    agent: str | None,
    tests: tuple[str, ...],
    is_all: bool,
    refresh: bool,
    is_json: bool,
) -> Exit:
    """Show a robots.txt as curtsy reads it.

    Its groups and which of them are for us, delays, sitemaps, signals, and whatever is odd about it: misspelt fields,
    rules that match nothing. The file is read by RFC 9309. A URL means the file of its site.

    The exit code is 3 if a path that is tested is not allowed, and else 1 if the file cannot be had.
    """
    from curtsy.core.robots import parse

    for path in tests:
        if not path.startswith("/") and "://" not in path:
            raise click.UsageError(f"--test {path!r} must begin with a slash, as every path does. Write /{path}.")

    found = _file(source) if _is_file(source) else _fetched(given, source, refresh)
    if isinstance(found, Exit):
        return found
    user_agent = agent or given.settings().user_agent
    parsed, part = parse(found.body or found.part), parse(found.part)
    verdicts = {}
    for path in tests:
        partly = part.verdict(user_agent, path)
        verdicts[path] = (found.instead or parsed.verdict(user_agent, path)) if partly.allowed else partly
    groups = parsed.groups(user_agent)
    if is_json:
        console.write_json(_fields(found, parsed, user_agent, groups, verdicts))
    else:
        _show(found, parsed, user_agent, groups, verdicts, is_all)
    if not all(verdict.allowed for verdict in verdicts.values()):
        return Exit.REFUSED
    return Exit.FINE if found.instead is None else Exit.ERROR


def _is_file(source: str) -> bool:
    return source == "-" or "://" not in source


def _file(source: str) -> Source:
    if source == "-":
        with click.open_file("-", "rb") as file:
            return Source("standard input", file.read(), "")
    try:
        return Source(source, Path(source).read_bytes(), "")
    except OSError as error:
        hint = " For a site, write https:// or http:// before it." if not source.startswith((".", "/")) else ""
        raise click.UsageError(f"{source} cannot be read: {error.strerror}.{hint}") from None


def _fetched(given: CommandContext, text: str, refresh: bool) -> Source | Exit:
    """Return the robots.txt of a site, cached or fetched."""
    from curtsy.core import messages
    from curtsy.core.message import Failure, InvalidUrl, parse_url
    from curtsy.core.messages import span
    from curtsy.core.rules import Rules, filters

    url = parse_url(text)
    if isinstance(url, InvalidUrl):
        raise click.UsageError(f"{messages.given(url)!r} cannot be asked for: {url.why}.")
    rules = run(lambda: _ask(given, url, refresh))
    name = f"{url.origin}/robots.txt"
    if isinstance(rules, Failure) and rules.ended_at_proxy:
        console.say(f"{name} could not be fetched: {rules.detail}. {rules.advice}")
        return Exit.ERROR
    if not isinstance(rules, Rules):
        return _refused(given, url)
    ago, left = time.time() - rules.body_at, max(0.0, rules.valid_until - time.time())
    if rules.body is None:
        settings = given.settings()
        instead = filters(Rules(), settings.policies.of(url.domain), settings.user_agent, url.text)
        source = Source(name, None, rules.why, instead, left, rules.part)
        if rules.part:
            note = f"{rules.why}. What came of it holds. Of what it does not forbid, {_instead(source)}"
            source = replace(source, note=note)
        return source
    note = f"asked for {span(max(0.0, ago))} ago, good for {span(left)}"
    if rules.why:
        note = f"a copy from {span(max(0.0, ago))} ago, for now it cannot be had: {rules.why}"
    return Source(name, rules.body, note, part=rules.part)


async def _ask(given: CommandContext, url: Url, refresh: bool) -> Rules | Refusal | Failure | None:
    from curtsy.cli.trace_output import Progress

    settings = given.settings()
    with Progress(settings.policies) as teller:
        async with given.open_client(teller, cache=False) as client:
            if refresh:
                client.forget_rules()
            return await client.rules_or_why(url, settings.user_agent)


def _refused(given: CommandContext, url: Url) -> Exit:
    """Report why robots.txt must not be requested; return the exit code."""
    from curtsy.cli.why import recall
    from curtsy.observe.why import assess

    found = assess(url, given.settings(), recall(given, url))
    if found.verdict == "refused":
        console.say(found.message)
        return exit_for(found.reason, found.allowed_in)
    console.say(f"{url.origin}/robots.txt may not be asked for. curtsy get -v {url.origin}/ shows what is in the way.")
    return Exit.REFUSED


def _fields(
    source: Source, parsed: Robots, user_agent: str, groups: tuple[RuleGroup, ...], verdicts: dict[str, Verdict]
) -> dict[str, Any]:
    from curtsy.core.robots import product_token

    return {
        "source": source.name,
        "note": source.note,
        "instead": _instead(source) if source.instead is not None else None,
        "found": bool(source.body or source.part),
        "agent": product_token(user_agent),
        "crawl_delay": parsed.crawl_delay(user_agent),
        "groups": [
            {
                "line": group.line,
                "agents": list(group.agents),
                "applies": group.applies,
                "rules": [{"line": line, "text": text} for line, text in group.rules],
            }
            for group in groups
        ],
        "sitemaps": list(parsed.sitemaps),
        "signals": [
            {"line": each.line, "field": each.field, "value": each.value} for each in parsed.content_signals(user_agent)
        ],
        "oddities": [{"line": each.line, "message": each.message} for each in parsed.warnings],
        "tests": [
            {"path": path, "allowed": each.allowed, "line": each.line, "rule": each.rule, "reason": each.reason}
            for path, each in verdicts.items()
        ],
    }


def _show(
    source: Source,
    parsed: Robots,
    user_agent: str,
    groups: tuple[RuleGroup, ...],
    verdicts: dict[str, Verdict],
    is_all: bool,
) -> None:
    from rich.text import Text

    from curtsy.core.robots import product_token

    terminal = console.out()
    terminal.print(Text(console.plain(source.name), style="bold"), soft_wrap=True)
    if source.note:
        terminal.print(Text(console.plain(source.note), style="dim"))
    agent = product_token(user_agent) or user_agent
    if not groups:
        terminal.print(Text(f"\n{_nothing(source)}"))
    for group in groups:
        _show_group(terminal, group, agent, is_all)
    _show_delays(terminal, parsed, user_agent, agent)
    _section(terminal, "Sitemaps", [(None, each) for each in parsed.sitemaps])
    signals = parsed.content_signals(user_agent)
    _section(terminal, "Signals", [(each.line, f"{each.field}: {each.value}") for each in signals])
    _section(terminal, "Oddities", [(each.line, each.message) for each in parsed.warnings], "yellow")
    if verdicts:
        terminal.print(Text(f"\nTested for {console.plain(agent)}", style="bold"))
        table = console.table("", "", "")
        for column in table.columns[1:]:
            column.no_wrap, column.overflow = False, "fold"
        for path, verdict in verdicts.items():
            mark = console.mark("yes" if verdict.allowed else "no")
            words = verdict.reason if verdict.line is None else f'line {verdict.line}, "{verdict.rule}"'
            table.add_row(mark, console.plain(path), Text(console.plain(words), style="dim"))
        console.show(terminal, table)


def _nothing(source: Source) -> str:
    if source.instead is not None:
        return f"It cannot be had. Until it can, {_instead(source)}"
    return "The site has none, or it says nothing: everything is allowed." if not source.body else "It has no groups."


def _instead(source: Source) -> str:
    from curtsy.core.messages import span

    is_allowed = source.instead is not None and source.instead.allowed
    words = ("everything is allowed", "allow") if is_allowed else ("nothing is asked for", "disallow")
    return f"{words[0]} (robots_unreachable: {words[1]}). It is not asked for again in the next {span(source.left)}."


def _show_group(terminal: Console, group: RuleGroup, agent: str, is_all: bool) -> None:
    from rich.text import Text

    names = ", ".join(group.agents)
    title = Text.assemble(
        ("\n▸ " if group.applies else "\n  ", "green"),
        (f"{'User-agent: ' + console.plain(names)}", "bold" if group.applies else ""),
        (f"  line {group.line}, {console.counted(len(group.rules), 'rule')}", "dim"),
        (f", for {console.plain(agent)}" if group.applies else "", "green"),
    )
    terminal.print(title)
    if group.applies or is_all:
        table = console.table("", "", right=("",))
        table.columns[1].justify, table.columns[1].no_wrap, table.columns[1].overflow = "left", False, "fold"
        for line, text in group.rules:
            table.add_row(Text(f"{line:>6}", style="dim"), _rule(text))
        console.show(terminal, table)


def _rule(text: str) -> Text:
    from rich.text import Text

    field, colon, value = console.plain(text).partition(":")
    style = "green" if field.strip().lower() == "allow" else "red"
    return Text.assemble((field + colon, style), value)


def _show_delays(terminal: Console, parsed: Robots, user_agent: str, agent: str) -> None:
    from rich.text import Text

    from curtsy.core.messages import span

    words = []
    if (delay := parsed.crawl_delay(user_agent)) is not None:
        words.append(f"Crawl-delay: {span(delay)} between two requests")
    if (rate := parsed.request_rate(user_agent)) is not None:
        words.append(f"Request-rate: {rate.requests} in {span(rate.seconds)}")
    if (visit := parsed.visit_time(user_agent)) is not None:
        words.append(f"Visit-time: {visit.start_time:%H:%M} to {visit.end_time:%H:%M} UTC")
    if words:
        terminal.print(Text(f"\nPace for {console.plain(agent)}", style="bold"))
        for each in words:
            terminal.print(Text(f"  {each}"))


def _section(terminal: Console, title: str, rows: list[tuple[int | None, str]], style: str = "") -> None:
    from rich.text import Text

    if not rows:
        return
    terminal.print(Text(f"\n{title}", style="bold"))
    table = console.table("", "")
    table.columns[1].no_wrap, table.columns[1].overflow = False, "fold"
    for line, text in rows:
        table.add_row(Text("" if line is None else f"{line:>6}", style="dim"), Text(console.plain(text), style=style))
    console.show(terminal, table)
