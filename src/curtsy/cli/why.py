"""`curtsy why` and `curtsy crawl --dry-run`: explain what may be fetched, without requesting pages."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import click
import msgspec

from curtsy.cli import console
from curtsy.cli.command import INPUT, command
from curtsy.cli.context import CommandContext, Exit, exit_for, run, worst
from curtsy.cli.get import named
from curtsy.cli.urls import ALLOW_HTTP, parsed_urls
from curtsy.core.crawl_messages import has_enough
from curtsy.core.time import span

if TYPE_CHECKING:
    from curtsy.client import AsyncClient
    from curtsy.core.url import Url
    from curtsy.crawling.estimate import CrawlPlan
    from curtsy.crawling.extract.scope import Scope
    from curtsy.crawling.jobs import Job
    from curtsy.crawling.outputs.protocol import Output
    from curtsy.observe.why import Explanation, State
    from curtsy.stores import AsyncStore

NARROW = 100
"""Width in columns below which the origin of a check appears under it."""

MOST_SITEMAPS = 10
"""Maximum number of sitemaps that a dry run reads: a sample of the site in an acceptable time."""

_VERDICTS: dict[str, tuple[State, str]] = {
    "allowed": ("yes", "green"),
    "cached": ("yes", "green"),
    "refused": ("no", "red"),
    "unknown": ("unknown", "magenta"),
}
"""State and colour of each verdict."""

_SHOWN = ("policy", "address", "robots.txt", "by hand", "breaker", "budget", "store")
"""Checks that a dry run shows for each URL."""


@command(
    ("curtsy why https://example.org/private/", "Whether this would be fetched now, and why."),
    ("curtsy why --ask https://example.org/", "The same, after a request for robots.txt."),
    ("curtsy why -i urls.txt", "Each URL of a list."),
    ("curtsy why --json https://example.org/ | jq .allowed_in", "The seconds until it would be allowed."),
    ("curtsy why https://example.org/ && curtsy get https://example.org/", "Fetch it only if nothing refuses it."),
)
@click.argument("urls", metavar="URL...", nargs=-1)
@INPUT
@click.option("--ask", is_flag=True, help="Request robots.txt first if it is unknown or expired.")
@ALLOW_HTTP
@click.option("--json", "is_json", is_flag=True, help="The same as JSON, of several URLs as JSON lines.")
@click.pass_obj
def why(
    given: CommandContext, urls: tuple[str, ...], source: str | None, ask: bool, allow_http: bool, is_json: bool
) -> Exit:
    """Explain whether pages may be fetched now.

    No request is sent, except for robots.txt with --ask. The settings and the stored records of the host decide, in
    the same way as for get. Each row is one check, with the file and line of its setting. The verdict is below, with
    the time until the page would be allowed.

    The exit code is that of get: 0, 1 (the host gave no answer lately), 3 (refused) or 75 (later). Of several URLs it
    is the most severe one.
    """
    if allow_http and not ask:
        raise click.UsageError("--allow-http tries a connection, and why sends nothing without --ask. Give --ask too.")
    parsed = parsed_urls(given, named(urls, source), allow_http)
    return run(lambda: _why(given, parsed, ask, is_json))


async def _why(given: CommandContext, urls: list[Url], ask: bool, is_json: bool) -> Exit:
    """Explain the URLs one after the other, and print each."""
    import asyncio

    from curtsy.cli.trace import Progress
    from curtsy.client import session_of
    from curtsy.stores import open_async_store

    settings, codes = given.settings(), list[Exit]()
    if ask:
        with Progress(settings.policies) as trace:
            async with given.open_client(trace, cache=False) as client:
                session, origins = session_of(client), {url.origin: url for url in urls}
                await asyncio.gather(*(session.rules_of(url, settings.user_agent) for url in origins.values()))
    store = open_async_store(settings.store, fallback=False)
    try:
        for number, url in enumerate(urls):
            found = await _explained(given, url, store)
            codes.append(_exit_of(found))
            if is_json:
                console.write_json(found.as_dict(), line=len(urls) > 1)
                continue
            if number:
                click.echo()
            _show(found)
    finally:
        await store.close()
    return worst(codes)


def _exit_of(found: Explanation) -> Exit:
    is_trouble = any(check.name == "store" or check.facts.get("failure") for check in found.checks)
    if found.verdict == "unknown" and is_trouble:
        return Exit.ERROR
    return exit_for(found.reason, found.allowed_in)


async def _explained(given: CommandContext, url: Url, store: AsyncStore) -> Explanation:
    """Explain a URL by the records of a store and the page cache."""
    from curtsy.observe.why import explain

    settings = given.settings()
    if settings.cache_mode == "off":
        return await explain(url, settings, store, None)
    with closing(given.open_cache()) as cache:
        return await explain(url, settings, store, cache)


def _show(found: Explanation) -> None:
    from rich.panel import Panel

    terminal = console.out()
    is_narrow = terminal.width < NARROW
    terminal.print(console.text((console.plain(found.url), "bold")), soft_wrap=True)
    terminal.print(console.text(f"as {console.plain(found.user_agent)}", style="dim"), overflow="fold")
    terminal.print()
    rows = console.table(*([""] * (3 if is_narrow else 4)), folded=(2,))
    for check in found.checks:
        is_asked = check.facts.get("known") is False and check.state == "unknown" and found.verdict == "unknown"
        hint = " (--ask fetches it)" if is_asked else ""
        says = console.text(console.plain(check.says) + hint, style="" if check.state != "off" else "dim")
        origin = console.text(console.plain(check.origin), style="dim")
        if is_narrow and check.origin not in ("", "built-in"):
            says = console.text(says, "\n", origin)
        more = [] if is_narrow else [origin]
        rows.add_row(console.mark(check.state), console.text((check.name, "bold")), says, *more)
    console.show(terminal, rows)
    style = "yellow" if found.verdict == "allowed" and found.allowed_in else _VERDICTS[found.verdict][1]
    message = console.plain(found.message)
    words = console.text(message if message.startswith("http") else message[:1].upper() + message[1:], style="bold")
    terminal.print()
    is_framed = terminal.is_terminal and terminal.width >= 30
    terminal.print(Panel.fit(words, border_style=style, padding=(0, 1)) if is_framed else words)


# --- Dry run of a crawl


@dataclass(frozen=True)
class Listed:
    """Contents of a sitemap."""

    url: str
    urls: int = 0
    in_scope: int = 0
    left_out: dict[str, int] = field(default_factory=dict)
    """Number of URLs outside the scope, by reason."""

    trouble: str = ""
    """Why the sitemap could not be fetched; empty if it was."""


@dataclass(frozen=True)
class _DryRun:
    """Result of a dry run."""

    seeds: list[Explanation]
    plan: CrawlPlan
    scope: Scope
    sitemaps: list[Listed]


def report_dry_run(
    given: CommandContext, seeds: Sequence[str], options: dict[str, Any], name: str | None,
    outputs: Sequence[Output], *, restart: bool, is_json: bool,
) -> Exit:  # fmt: skip
    """Report which seeds of a crawl would be fetched, the plan, and the sitemaps; `name` is its job.

    Raises PolicyError or NotWritten if the job or one of the outputs would be refused.
    """
    from curtsy.crawling.jobs import (
        FRONTIER,
        check_cache_mode,
        check_extract,
        check_seeds,
        extract_note,
        folder_of,
        is_finished,
        look,
    )
    from curtsy.crawling.start import verify_outputs

    folder = None if name is None else folder_of(name)
    job = look(folder) if folder is not None and (folder / FRONTIER).is_file() else None
    most, done = options.get("max_pages"), 0
    is_anew = restart or (job is not None and is_finished(job, seeds))
    if job is not None and not is_anew:
        done = job.totals.pages
        check_seeds(job.name, seeds, job.notes)
        check_extract(job.name, extract_note(options.get("extract")), job.notes)
        check_cache_mode(job.name, given.settings().cache_mode == "offline", job.notes)
    if job is None or not job.is_running:  # the ends of the outputs of a running job are not known
        verify_outputs(outputs, options.get("extract"), folder, {} if job is None else job.notes, restart=is_anew)
    if most is not None:
        options = options | {"max_pages": max(0, most - done)}
    found = run(lambda: _dry_run(given, seeds, options))
    plan, codes = found.plan, [_exit_of(each) for each in found.seeds]
    if job is None and all(code is Exit.REFUSED for code in codes):
        nothing = "nothing: none of the URLs may be fetched"
        plan = msgspec.structs.replace(plan, pages=0, seconds=0.0, allowed_today=0, message=nothing)
    elif most is not None and done >= most:
        plan = msgspec.structs.replace(plan, pages=0, seconds=0.0, message=has_enough(done))
    if is_json:
        counts = None if job is None or job.counts is None else msgspec.to_builtins(job.counts)
        console.write_json({
            "scope": found.scope.describe(), "plan": plan, "seeds": [each.as_dict() for each in found.seeds],
            "sitemaps": found.sitemaps,
            "job": None if job is None else {
                "name": job.name, "running": job.is_running, "pages": job.totals.pages, "counts": counts,
                "skipped": sum(job.totals.skipped.values()), "failed": sum(job.totals.failed.values()),
            },
        })  # fmt: skip
    else:
        _show_seeds(found.seeds)
        _show_plan(found, plan.message, job)
    return next((code for code in (Exit.FINE, Exit.LATER, Exit.ERROR) if code in codes), Exit.REFUSED)


async def _dry_run(given: CommandContext, seeds: Sequence[str], options: dict[str, Any]) -> _DryRun:
    import asyncio

    from curtsy.cli.trace import Progress
    from curtsy.client import session_of
    from curtsy.core.url import Url, parse_url
    from curtsy.crawling.start import acrawl

    settings = given.settings()
    urls = [url for seed in seeds if isinstance(url := parse_url(seed), Url)]
    with Progress(settings.policies) as trace:
        async with given.open_client(trace, cache=False) as client:
            session = session_of(client)
            first = {url: await _explained(given, url, session.store) for url in urls}
            # The hosts of refused URLs are not contacted, not even for robots.txt.
            asked = {url.origin: url for url, each in first.items() if each.verdict != "refused"}
            await asyncio.gather(*(session.rules_of(url, settings.user_agent) for url in asked.values()))
            async with acrawl(seeds, client=client, **options) as crawl:
                plan, scope = await crawl.plan(), crawl.scope
            found = [await _explained(given, url, session.store) for url in urls]
            sitemaps = await _sitemaps(client, list(asked.values()), scope) if options.get("sitemaps") else []
    return _DryRun(found, plan, scope, sitemaps)


async def _sitemaps(client: AsyncClient, origins: list[Url], scope: Scope) -> list[Listed]:
    """Read the sitemaps of some origins, and those that they link to."""
    import asyncio

    from curtsy.client import session_of
    from curtsy.crawling.extract.sitemap import parse_sitemap
    from curtsy.crawling.reader import SiteInfo

    sites = SiteInfo(session_of(client))
    waiting = [each for url in origins for each in sites.sitemaps(url.origin, MOST_SITEMAPS)]
    found: dict[str, Listed] = {}
    while waiting and len(found) < MOST_SITEMAPS:
        if (where := waiting.pop(0)) in found:
            continue
        result = await client.fetch(where)
        if not result.ok:
            found[where] = Listed(where, trouble=result.message)
            continue
        sitemap = await asyncio.to_thread(parse_sitemap, result.body, result.final_url)
        refusals = [scope.refuses(url, 0) for url in sitemap.pages]
        left_out = Counter[str](reason for reason in refusals if reason is not None)
        found[where] = Listed(where, len(refusals), len(refusals) - left_out.total(), dict(left_out))
        waiting += sitemap.sitemaps
    return list(found.values())


def _show_seeds(seeds: list[Explanation]) -> None:
    from rich.padding import Padding

    terminal = console.out()
    for each in seeds:
        is_later = each.reason is not None and each.allowed_in is not None
        mark = console.mark("wait" if is_later else _VERDICTS[each.verdict][0])
        terminal.print(console.text(mark, " ", (console.plain(each.url), "bold")), soft_wrap=True)
        terminal.print(Padding.indent(console.text(console.plain(each.message)), 2))
        table = console.table("", "", "", folded=(2,))
        for check in (check for check in each.checks if check.name in _SHOWN):
            sign = "  " + console.MARKS[check.state][0]
            table.add_row(sign, console.text(check.name, style="dim"), console.plain(check.says))
        console.show(terminal, table)
        terminal.print()


def _show_plan(found: _DryRun, plan: str, job: Job | None) -> None:
    rows = [("scope", found.scope.describe()), ("plan", plan)]
    for sitemap in found.sitemaps:
        says = sitemap.trouble or f"{console.counted(sitemap.urls, 'URL')}, {sitemap.in_scope:,} of them in scope"
        rows.append(("sitemap", f"{sitemap.url}: {says}"))
    if job is not None and (counts := job.counts) is None:
        rows.append(("job", f"{job.name} is running"))
    elif job is not None and counts is not None:
        done = f"{console.counted(job.totals.pages, 'page')} in {span(job.totals.seconds)}"
        left = f"{console.counted(counts.queued + counts.leased, 'URL')} queued"
        skipped, failed = (sum(each.values()) for each in (job.totals.skipped, job.totals.failed))
        missing = f"{skipped:,} skipped, {failed:,} failed, {console.counted(counts.hosts, 'host')}"
        rows.append(("job", f"{job.name}: {done}, {left}, {missing}"))
    console.show_rows(console.out(), rows)
