"""`curtsy status` and `curtsy budget`: records of hosts."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict
from typing import TYPE_CHECKING

import click
from rich.text import Text

from curtsy.cli import console
from curtsy.cli.command import DOMAIN, JSON, command
from curtsy.cli.context import CommandContext, Exit
from curtsy.core.message import SECOND
from curtsy.core.messages import span
from curtsy.core.statistics import StatisticsSnapshot, summed
from curtsy.engine.alerts import alerts_of
from curtsy.engine.counters import read_statistics
from curtsy.engine.host_view import HostView, view_of, views
from curtsy.observe.policy_view import as_one, budget_origins

if TYPE_CHECKING:
    from rich.table import Table

MOST = 40
"""Number of hosts listed without --all."""


def none_known(domain: str | None) -> Exit:
    """Report that no host is known; for a named host this is an error."""
    if domain is None:
        console.say("no host is known: no request was sent, or the last one is long ago.")
        return Exit.FINE
    console.say(f"{domain} is unknown: no request was sent to it. curtsy status lists the known hosts.")
    return Exit.ERROR


@command(
    ("curtsy status", "All known hosts, the last requested first."),
    ("curtsy status example.org", "One host in full."),
    ("curtsy status --json | jq '.[] | select(.breaker != \"closed\")'", "Hosts whose breaker is not closed."),
    ("curtsy status --total", "Counts of all processes in the last day."),
    ("curtsy status --store redis://10.0.0.5", "The hosts of a shared store."),
)
@DOMAIN
@click.option("--all", "is_all", is_flag=True, help=f"List every host, not only the last {MOST}.")
@click.option("--total", "is_total", is_flag=True, help="Show the counts of all processes instead of hosts.")
@click.option("--json", "is_json", is_flag=True, help="Write JSON, with all values.")
@click.pass_obj
def status(given: CommandContext, domain: str | None, is_all: bool, is_total: bool, is_json: bool) -> Exit:
    """Show the known hosts: pace, budget, breaker.

    The column next has the time until the next page may be requested, today the requests charged to the daily budget by
    processes that have a limit, last the last status. A domain includes its subdomains. Alerts are shown too: an open
    breaker, more than a tenth of the last hour's requests blocked by breakers, more than five trips in the last hour, a
    budget nearly used.
    """
    with closing(given.open_store()) as store:
        found = views(store, given.settings().policies, domain)
        processes = read_statistics(store)
        statistics = summed(processes, store.now().epoch / SECOND)
    # Totals of all processes do not describe a single host.
    alerts = alerts_of(statistics if domain is None or is_total else StatisticsSnapshot(), found)
    if is_json and is_total:
        console.write_json({"processes": len(processes), "alerts": alerts, **statistics.as_dict()})
        return Exit.FINE
    if is_json:
        names = {view.domain: [alert.name for alert in alerts_of(StatisticsSnapshot(), [view])] for view in found}
        console.write_json([{**asdict(view), "alerts": names[view.domain]} for view in found])
        return Exit.FINE if found or domain is None else Exit.ERROR
    if is_total:
        _show_total(statistics, len(processes))
    elif found:
        _show_hosts(found, domain, is_all)
    else:
        return none_known(domain)
    for alert in alerts if domain is None or found else ():
        console.say(f"alert {alert.name}: {alert.message}")
    return Exit.FINE


def _show_total(statistics: StatisticsSnapshot, processes: int) -> None:
    """Print the combined counts of all processes, one per row."""
    waits, latency = statistics.waits, statistics.latency
    rows = [
        ("processes", f"{processes:,}"),
        ("fetches", f"{statistics.fetches:,}, of which {statistics.ok:,} succeeded"),
        ("requests", f"{statistics.requests:,}, and {statistics.robots_requests:,} for robots.txt"),
        ("pages", f"{statistics.pages:,}, {console.size(statistics.bytes)}"),
        ("from the cache", f"{statistics.cache_hits:,}, and {statistics.revalidated:,} revalidated"),
        ("retried", f"{statistics.retries:,}"),
        ("waited", f"{statistics.delayed:,}, median of all {console.brief(waits.quantile(0.5))}"),
        (
            "response time",
            f"{console.brief(latency.quantile(0.5))}, 95 % under {console.brief(latency.quantile(0.95))}",
        ),
        ("trips", f"{statistics.trips:,}"),
        *((f"refused: {reason}", f"{count:,}") for reason, count in sorted(statistics.refused.items())),
        *((f"failed: {reason}", f"{count:,}") for reason, count in sorted(statistics.failed.items())),
    ]
    console.show_rows(console.out(), rows)


def _show_hosts(found: list[HostView], domain: str | None, is_all: bool) -> None:
    """Print the hosts as a table, or a single host in full."""
    if domain is not None and len(found) == 1:
        _show_one(found[0])
        return
    shown = found if is_all else found[:MOST]
    more = {"last": lambda view: str(view.last_status or ""), "total": lambda view: f"{view.requests:,}"}
    console.show(console.out(), hosts_table(shown, more))
    if len(found) > len(shown):
        console.say(f"{len(found) - len(shown):,} more; --all lists them.")


def hosts_table(views: list[HostView], more: dict[str, Callable[[HostView], str]]) -> Table:
    """Create a table of hosts: next request, today's budget, breaker, and `more` columns by title."""
    table = console.table("host", "next", "today", "pages", "breaker", *more, right=("today", "pages", *more))
    for view in views:
        table.add_row(
            console.plain(view.domain), _next(view), *_spent(view), breaker_words(view),
            *(cell(view) for cell in more.values()),
        )  # fmt: skip
    return table


def _next(view: HostView) -> Text:
    """Return the time until the host may be requested next."""
    if view.paused:
        return Text("paused" if view.paused_left is None else f"paused {span(view.paused_left)}", style="magenta")
    if view.next_in is None:
        return Text("never", style="red")
    return Text(f"in {span(view.next_in)}", style="yellow") if view.next_in >= 0.05 else Text("now", style="green")


def _spent(view: HostView) -> tuple[Text, Text]:
    """Return the used parts of a host's daily limits: of requests and of pages."""
    return _used(view.requests_today, view.max_requests_per_day), _used(view.pages_today, view.max_pages_per_day)


def _used(count: int, limit: int) -> Text:
    if not limit:
        return Text(f"{count:,}")
    style = "red" if count >= limit else "yellow" if count >= 0.8 * limit else ""
    return Text(f"{count:,}/{limit:,}", style=style)


def breaker_words(view: HostView) -> Text:
    """Return the state of the breaker."""
    if view.breaker_left is not None:
        return Text(f"open {span(view.breaker_left)}", style="red")
    return Text("half open", style="yellow") if view.breaker == "half_open" else Text("closed", style="dim")


def _show_one(view: HostView) -> None:
    """Print one host, one figure per row."""
    terminal = console.out()
    terminal.print(Text(console.plain(view.domain), style="bold"))
    ago = "never" if view.last_asked_ago is None else f"{span(view.last_asked_ago)} ago"
    status = "" if view.last_status is None else f", status {view.last_status}"
    rows: list[tuple[str, Text | str]] = [
        ("next page", _next(view)),
        ("last request", ago + status),
        ("requests today", _spent(view)[0]),
        ("pages today", _spent(view)[1]),
        ("budget resets in", span(view.budget_resets_in)),
        ("breaker", breaker_words(view)),
        ("failures", f"{view.failures} in a row; {console.counted(view.trips, 'trip')}"),
        ("in flight", str(view.in_flight)),
        ("total", f"{console.counted(view.requests, 'request')}, {console.counted(view.pages, 'page')}"),
    ]
    if view.waiting_for is not None:
        rows.insert(1, ("waiting for", view.waiting_for))
    more = {"Crawl-delay": view.crawl_delay, "slowed to": view.adapted_delay, "response time": view.latency}
    rows += [(name, console.brief(value)) for name, value in more.items() if value is not None]
    rows += [("changed limit", f"{name} = {value}") for name, value in view.changed_limits.items()]
    console.show_rows(terminal, rows)


@command(
    ("curtsy budget", "Today's budgets of all known hosts."),
    ("curtsy budget example.org", "One host, and the origin of its limits."),
)
@DOMAIN
@JSON
@click.pass_obj
def budget(given: CommandContext, domain: str | None, is_json: bool) -> Exit:
    """Show the used part of each host's daily budget.

    The defaults are 200 requests and 100 pages per host and day; 0 means unlimited. Requests of processes without a
    limit are not counted. The day ends at midnight in the policy's time zone.
    """
    settings = given.settings()
    with closing(given.open_store()) as store:
        found = views(store, settings.policies, domain)
        if domain is not None and all(view.domain != domain for view in found):
            policy = settings.policies.of(domain)  # a host without a record of its own may share one
            found = [view_of(domain, store.read(policy.key_for(domain)), store.now(), policy), *found]
    origins = [budget_origins(settings, view.domain, view.changed_limits) for view in found]
    if is_json:
        names = ("domain", "requests_today", "max_requests_per_day", "pages_today", "max_pages_per_day")
        console.write_json(
            [
                {name: getattr(view, name) for name in (*names, "budget_resets_in")}
                | {"origin": origin["requests"], "pages_origin": origin["pages"]}
                for view, origin in zip(found, origins, strict=True)
            ]
        )
        return Exit.FINE
    if not found:
        return none_known(domain)
    table = console.table("host", "requests", "pages", "resets in", "limits from", right=("requests", "pages"))
    for view, origin in zip(found, origins, strict=True):
        requests, pages = _spent(view)
        limits = Text(console.plain(as_one(origin)), style="dim")
        table.add_row(console.plain(view.domain), requests, pages, span(view.budget_resets_in), limits)
    console.show(console.out(), table)
    return Exit.FINE
