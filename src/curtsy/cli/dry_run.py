"""`curtsy crawl --dry-run`: report what a crawl would fetch, without requesting pages."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from curtsy.cli import console
from curtsy.cli.context import CommandContext, Exit, run
from curtsy.cli.crawl import CrawlArguments
from curtsy.cli.trace import Progress
from curtsy.cli.why import exit_of, explained
from curtsy.client import session_of
from curtsy.core.message import Url, parse_url
from curtsy.core.messages import span
from curtsy.crawling.extract.sitemap import parse_sitemap
from curtsy.crawling.jobs import FRONTIER, Job, check_seeds, folder_of, look
from curtsy.crawling.reader import SiteInfo
from curtsy.crawling.start import acrawl

if TYPE_CHECKING:
    from curtsy.client import AsyncClient
    from curtsy.crawling.extract.scope import Scope
    from curtsy.crawling.progress import CrawlPlan
    from curtsy.observe.why import Explanation, State

MOST_SITEMAPS = 10
"""Maximum number of sitemaps read: a sample of the site in an acceptable time."""


@dataclass(frozen=True)
class Listed:
    """Contents of a sitemap."""

    url: str
    urls: int
    in_scope: int
    left_out: dict[str, int]
    """Number of URLs outside the scope, by reason."""

    trouble: str = ""
    """Why the sitemap could not be fetched; empty if it was."""


def report(given: CommandContext, wanted: CrawlArguments) -> Exit:
    """Report which seeds would be fetched, the plan, and the sitemaps."""
    seeds = [url for seed in wanted.seeds.head if isinstance(url := parse_url(seed), Url)]
    folder = None if wanted.job is None else folder_of(wanted.job)
    job = look(folder) if folder is not None and (folder / FRONTIER).is_file() else None
    if job is not None and not wanted.is_fresh:
        check_seeds(job.name, wanted.seeds.head, job.notes)
    found, plan, scope, sitemaps = run(lambda: _look(given, wanted, seeds))
    codes = [exit_of(each) for each in found]
    if job is None and all(code is Exit.REFUSED for code in codes):
        plan = msgspec.structs.replace(
            plan, pages=0, seconds=0.0, allowed_today=0, message="nothing: none of the URLs may be fetched"
        )
    if wanted.is_json:
        seeds_found = [each.as_dict() for each in found]
        fields = {"scope": scope.describe(), "plan": plan, "seeds": seeds_found, "sitemaps": sitemaps}
        console.write_json({**fields, "job": None if job is None else _job_fields(job)})
    else:
        _show(found, plan, scope, sitemaps, job)
    return next((code for code in (Exit.FINE, Exit.LATER, Exit.ERROR) if code in codes), Exit.REFUSED)


def _job_fields(job: Job) -> dict[str, Any]:
    counts = None if job.counts is None else msgspec.to_builtins(job.counts)
    return {"name": job.name, "running": job.is_running, "pages": job.totals.pages, "counts": counts}


async def _look(
    given: CommandContext, wanted: CrawlArguments, seeds: list[Url]
) -> tuple[list[Explanation], CrawlPlan, Scope, list[Listed]]:
    settings = given.settings()
    with Progress(settings.policies) as teller:
        async with given.open_client(teller, cache=False) as client:
            first = {url: await explained(given, url, session_of(client).store) for url in seeds}
            # The hosts of refused URLs are not contacted, not even for robots.txt.
            asked = {url.origin: url for url, each in first.items() if each.verdict != "refused"}
            await asyncio.gather(*(session_of(client).rules_of(url, settings.user_agent) for url in asked.values()))
            crawl = acrawl(wanted.seeds.head, client=client, **wanted.options)
            async with crawl:
                plan, scope = await crawl.plan(), crawl.scope
            found = [await explained(given, url, session_of(client).store) for url in seeds]
            sitemaps = await _sitemaps(client, list(asked.values()), scope) if wanted.options.get("sitemaps") else []
    return found, plan, scope, sitemaps


async def _sitemaps(client: AsyncClient, origins: list[Url], scope: Scope) -> list[Listed]:
    """Read the sitemaps of some origins, and those that they link to."""
    sites = SiteInfo(session_of(client))
    waiting = [each for url in origins for each in sites.sitemaps(url.origin, MOST_SITEMAPS)]
    found: list[Listed] = []
    seen: set[str] = set()
    while waiting and len(found) < MOST_SITEMAPS:
        where = waiting.pop(0)
        if where in seen:
            continue
        seen.add(where)
        result = await client.fetch(where)
        if not result.ok:
            found.append(Listed(where, 0, 0, {}, result.message))
            continue
        sitemap = await asyncio.to_thread(parse_sitemap, result.body, result.final_url)
        refusals = [scope.refuses(url, 0) for url in sitemap.pages]
        left_out = Counter[str](reason for reason in refusals if reason is not None)
        found.append(Listed(where, len(refusals), len(refusals) - left_out.total(), dict(left_out)))
        waiting += sitemap.sitemaps
    return found


_STATES: dict[str, State] = {"allowed": "yes", "cached": "yes", "refused": "no", "unknown": "unknown"}
_SHOWN = ("policy", "address", "robots.txt", "by hand", "breaker", "budget", "store")
"""Checks shown for each URL."""


def _show(found: list[Explanation], plan: CrawlPlan, scope: Scope, sitemaps: list[Listed], job: Job | None) -> None:
    from rich.padding import Padding
    from rich.text import Text

    terminal = console.out()
    for each in found:
        is_later = each.reason is not None and each.allowed_in is not None
        mark = console.mark("wait" if is_later else _STATES[each.verdict])
        terminal.print(Text.assemble(mark, " ", (console.plain(each.url), "bold")), soft_wrap=True)
        terminal.print(Padding.indent(Text(console.plain(each.message)), 2))
        table = console.table("", "check", "says", folded=("says",))
        table.show_header = False
        for check in (check for check in each.checks if check.name in _SHOWN):
            sign = "  " + console.MARKS[check.state][0]
            table.add_row(sign, Text(check.name, style="dim"), console.plain(check.says))
        console.show(terminal, table)
        terminal.print()
    rows = [("scope", scope.describe()), ("plan", plan.message)]
    for sitemap in sitemaps:
        says = sitemap.trouble or f"{console.counted(sitemap.urls, 'URL')}, {sitemap.in_scope:,} of them in scope"
        rows.append(("sitemap", f"{sitemap.url}: {says}"))
    if job is not None and job.counts is None:
        rows.append(("job", f"{job.name} is running"))
    elif job is not None and (counts := job.counts) is not None:
        done = f"{console.counted(job.totals.pages, 'page')} in {span(job.totals.seconds)}"
        left = f"{counts.queued:,} URLs queued, {counts.failed:,} failed, {console.counted(counts.hosts, 'host')}"
        rows.append(("job", f"{job.name}: {done}, {left}"))
    console.show_rows(terminal, rows)
