"""`curtsy robots`: show a robots.txt as curtsy parses it."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from curtsy.cli import console
from curtsy.cli.command import INPUT, command
from curtsy.cli.context import CommandContext, Exit, exit_for, run, worst
from curtsy.cli.get import url_lines
from curtsy.cli.urls import ALLOW_HTTP, parsed_urls
from curtsy.core import messages
from curtsy.core.time import span
from curtsy.core.url import is_bare

if TYPE_CHECKING:
    from rich.text import Text

    from curtsy.core.fetch_state import Refusal
    from curtsy.core.request import Failure
    from curtsy.core.robots import Robots, RuleGroup, Verdict
    from curtsy.core.rules import Rules
    from curtsy.core.url import Url

    Answer = Rules | Refusal | Failure | None


@dataclass(frozen=True, slots=True)
class Source:
    """A robots.txt and its source."""

    name: str
    body: bytes | None
    """None if the file could not be fetched."""

    note: str = ""
    """Age of the copy, or why it is unavailable."""

    instead: Verdict | None = None
    """Verdict for every path while the file is unavailable; None if it is available."""

    fallback: str = ""
    """The same in words, with the time until the next request."""

    part: bytes = b""
    """Received part of a later, truncated copy: its Disallow rules apply (C21)."""


@dataclass(frozen=True, slots=True)
class View:
    """A robots.txt as one agent sees it."""

    source: Source
    agent: str
    """User agent."""

    token: str
    """Its product token, by which the file names it."""

    parsed: Robots
    verdicts: dict[str, Verdict]
    """Verdicts on the tested paths."""

    @property
    def groups(self) -> tuple[RuleGroup, ...]:
        """All groups, marked if they apply to the agent."""
        return self.parsed.groups(self.agent)


@command(
    ("curtsy robots https://example.org/", "The rules of a site; requested once, and stored for an hour."),
    ("curtsy robots https://example.org/ --test /private/ --test /blog", "Which paths are allowed, by which line."),
    ("curtsy robots robots.txt --agent Googlebot --all", "A local file, as another agent sees it, in full."),
    ("curtsy robots - --test / < robots.txt", "From standard input."),
    ("curtsy robots -i sites.txt --json", "The rules of several sites, as JSON lines."),
)
@click.argument("sources", metavar="URL|FILE...", nargs=-1)
@INPUT
@click.option("--agent", metavar="NAME", help="Use this agent, a product token or a whole User-Agent, instead of ours.")
@click.option("--test", "tests", metavar="PATH", multiple=True, help="Check whether this path is allowed; repeatable.")
@click.option("--all", "is_all", is_flag=True, help="Show the rules of every group, not only of those for the agent.")
@click.option("--refresh", is_flag=True, help="Request the file again, even if a stored copy is valid.")
@ALLOW_HTTP
@click.option(
    "--json", "is_json", is_flag=True, help="The same as JSON, all groups included; of several sites as JSON lines."
)
@click.pass_obj
def robots(
    given: CommandContext, sources: tuple[str, ...], source: str | None, agent: str | None, tests: tuple[str, ...],
    is_all: bool, refresh: bool, allow_http: bool, is_json: bool,
) -> Exit:  # fmt: skip
    """Show a robots.txt as curtsy parses it.

    The output lists its groups and which of them apply, delays, sitemaps, signals, and warnings: misspelt fields,
    rules that match nothing. The file is read by RFC 9309. A URL means the file of its site.

    The exit code is 3 if a tested path is not allowed, else 1 if the file cannot be fetched. Of several files it is the
    most severe one.
    """

    for path in tests:
        if not path.startswith("/") and "://" not in path:
            raise click.UsageError(f"--test {path!r} must begin with a slash, as every path does. Write /{path}.")
    wanted = [*sources, *(url_lines(source) if source is not None else ())]
    if not wanted:
        raise click.UsageError("no URL was given. Give one, the path of a robots.txt, or a file of URLs with -i.")
    sites = [each for each in wanted if not _is_file(each)]
    urls = dict(zip(sites, parsed_urls(given, sites, allow_http), strict=True))
    answers = run(lambda: _request(given, [*urls.values()], refresh)) if urls else {}
    codes = []
    for number, each in enumerate(wanted):
        found = _fetched(given, urls[each], answers) if each in urls else _file(each)
        if isinstance(found, Exit):
            codes.append(found)
            continue
        if number and not is_json:
            click.echo()
        codes.append(_report(given, found, agent, tests, is_all=is_all, is_json=is_json, is_line=len(wanted) > 1))
    return worst(codes)


def _report(
    given: CommandContext, found: Source, agent: str | None, tests: tuple[str, ...], *, is_all: bool, is_json: bool,
    is_line: bool,
) -> Exit:  # fmt: skip
    """Print one robots.txt and the verdicts on the tested paths; return its exit code."""
    from curtsy.core.robots import parse, product_token

    user_agent = agent or given.settings().user_agent
    parsed, part = parse(found.body or found.part), parse(found.part)
    verdicts = {}
    for path in tests:
        partly = part.verdict(user_agent, path)
        verdicts[path] = (found.instead or parsed.verdict(user_agent, path)) if partly.allowed else partly
    view = View(found, user_agent, product_token(user_agent), parsed, verdicts)
    if is_json:
        console.write_json(_fields(view), line=is_line)
    else:
        _show(view, is_all)
    if not all(verdict.allowed for verdict in verdicts.values()):
        return Exit.REFUSED
    return Exit.FINE if found.instead is None else Exit.ERROR


def _is_file(source: str) -> bool:
    """Return whether a file is meant, not a URL: one that exists, a path, or the name of a text file."""
    if "://" in source:
        return False
    is_named = "/" not in source and source.endswith(".txt")
    return source == "-" or is_named or not is_bare(source) or os.path.exists(source)


def _file(source: str) -> Source:
    if source == "-":
        with click.open_file("-", "rb") as file:
            return Source("standard input", file.read())
    try:
        return Source(source, Path(source).read_bytes())
    except OSError as error:
        raise click.UsageError(f"{source} cannot be read: {error.strerror}.") from None


def _fetched(given: CommandContext, url: Url, answers: Mapping[str, Answer]) -> Source | Exit:
    """Return the robots.txt of a site, stored or fetched; `answers` are by origin."""
    from curtsy.core.rules import Rules, filters

    rules = answers[url.origin]
    if not isinstance(rules, Rules):
        return _refused(url, rules)
    name, ago = f"{url.origin}/robots.txt", span(max(0.0, time.time() - rules.body_at))
    left = span(max(0.0, rules.valid_until - time.time()))
    if rules.body is not None:
        note = f"requested {ago} ago, valid for {left}"
        if rules.why:
            note = f"a copy from {ago} ago, because the file cannot be fetched now: {rules.why}"
        return Source(name, rules.body, note, part=rules.part)
    settings = given.settings()
    instead = filters(Rules(), settings.policies.of(url.domain), settings.user_agent, url.text)
    what, setting = ("everything", "allow") if instead.allowed else ("nothing", "disallow")
    fallback = f"{what} is allowed (robots_unreachable: {setting}). The next request is in {left}."
    note = f"{rules.why}. The received part applies. Otherwise {fallback}" if rules.part else rules.why
    return Source(name, None, note, instead, fallback, rules.part)


async def _request(given: CommandContext, urls: Sequence[Url], refresh: bool) -> dict[str, Answer]:
    """Return the rules of each origin, or why there are none."""
    import asyncio

    from curtsy.cli.trace import Progress
    from curtsy.client import session_of

    settings = given.settings()
    with Progress(settings.policies) as trace:
        async with given.open_client(trace, cache=False) as client:
            session, origins = session_of(client), {url.origin: url for url in urls}
            if refresh:
                session.forget_rules()
            answers = await asyncio.gather(*(session.rules_of(url, settings.user_agent) for url in origins.values()))
            return dict(zip(origins, answers, strict=True))


def _refused(url: Url, answer: Refusal | Failure | None) -> Exit:
    """Report why robots.txt must not be requested; return the exit code."""
    from curtsy.core.request import Failure

    if answer is None:
        return Exit.INTERRUPTED
    if not isinstance(answer, Failure):
        console.say(answer.message)
        return exit_for(answer.reason, answer.retry_after)
    if answer.ended_at_proxy:
        console.say(f"{url.origin}/robots.txt could not be fetched: {answer.detail}. {answer.advice}")
        return Exit.ERROR
    console.say(messages.failed(url, answer, 1))
    return exit_for(answer.reason, None)


def _fields(view: View) -> dict[str, Any]:
    source, parsed = view.source, view.parsed
    return {
        "source": source.name,
        "note": source.note,
        "instead": source.fallback or None,
        "found": bool(source.body or source.part),
        "agent": view.token,
        "crawl_delay": parsed.crawl_delay(view.agent),
        "groups": [
            _some(group, "line", "agents", "applies")
            | {"rules": [{"line": line, "text": text} for line, text in group.rules]}
            for group in view.groups
        ],
        "sitemaps": list(parsed.sitemaps),
        "signals": [_some(each, "line", "field", "value") for each in parsed.content_signals(view.agent)],
        "oddities": [_some(each, "line", "message") for each in parsed.warnings],
        "tests": [
            {"path": path} | _some(each, "allowed", "line", "rule", "reason") for path, each in view.verdicts.items()
        ],
    }


def _some(source: object, *names: str) -> dict[str, Any]:
    return {name: getattr(source, name) for name in names}


def _show(view: View, is_all: bool) -> None:
    source, parsed = view.source, view.parsed
    agent, plain = console.plain(view.token or view.agent), console.plain
    terminal = console.out()
    terminal.print(console.text(plain(source.name), style="bold"), soft_wrap=True)
    if source.note:
        terminal.print(console.text(plain(source.note), style="dim"))
    if not view.groups:
        terminal.print(console.text(f"\n{_nothing(source)}"))
    for group in view.groups:
        rules = [(line, _rule(text)) for line, text in group.rules] if group.applies or is_all else []
        _section(_title(group, agent), rules)
    sections: dict[str, list[tuple[int | None, Text]]] = {
        f"Pace for {agent}": [(None, console.text(each)) for each in _pace(view)],
        "Sitemaps": [(None, console.text(plain(each))) for each in parsed.sitemaps],
        "Signals": [
            (each.line, console.text(plain(f"{each.field}: {each.value}")))
            for each in parsed.content_signals(view.agent)
        ],
        "Oddities": [(each.line, console.text((plain(each.message), "yellow"))) for each in parsed.warnings],
    }
    for name, rows in sections.items():
        if rows:
            _section(console.text((name, "bold")), rows)
    if view.verdicts:
        terminal.print(console.text(f"\nTested for {agent}", style="bold"))
        table = console.table("", "", "", folded=(1, 2))
        for path, verdict in view.verdicts.items():
            words = verdict.reason if verdict.line is None else f'line {verdict.line}, "{verdict.rule}"'
            table.add_row(
                console.mark("yes" if verdict.allowed else "no"), plain(path), console.text(plain(words), style="dim")
            )
        console.show(terminal, table)


def _nothing(source: Source) -> str:
    if source.instead is not None:
        return f"The file cannot be fetched. Meanwhile {source.fallback}"
    return "The file is absent or empty: everything is allowed." if not source.body else "The file has no groups."


def _title(group: RuleGroup, agent: str) -> Text:
    return console.text(
        ("▸ " if group.applies else "  ", "green"),
        (f"User-agent: {console.plain(', '.join(group.agents))}", "bold" if group.applies else ""),
        (f"  line {group.line}, {console.counted(len(group.rules), 'rule')}", "dim"),
        (f", for {agent}" if group.applies else "", "green"),
    )


def _rule(text: str) -> Text:
    field, colon, value = console.plain(text).partition(":")
    style = "green" if field.strip().lower() == "allow" else "red"
    return console.text((field + colon, style), value)


def _pace(view: View) -> list[str]:
    words = []
    if (delay := view.parsed.crawl_delay(view.agent)) is not None:
        words.append(f"Crawl-delay: {span(delay)} between two requests")
    if (rate := view.parsed.request_rate(view.agent)) is not None:
        words.append(f"Request-rate: {rate.requests} in {span(rate.seconds)}")
    if (visit := view.parsed.visit_time(view.agent)) is not None:
        words.append(f"Visit-time: {visit.start_time:%H:%M} to {visit.end_time:%H:%M} UTC")
    return words


def _section(title: Text, rows: list[tuple[int, Text]] | list[tuple[int | None, Text]]) -> None:
    """Print a title, and rows of line number and text."""
    terminal = console.out()
    terminal.print()
    terminal.print(title)
    if rows:
        console.show_rows(terminal, [("" if line is None else f"{line:>6}", text) for line, text in rows])
