"""`curtsy status` and `curtsy budget`: records of hosts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import asdict
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

import click

from curtsy.cli import console
from curtsy.cli.command import DOMAIN, HOSTS, INPUT, JSON, command, host_name
from curtsy.cli.context import CommandContext, Exit, worst
from curtsy.cli.get import url_lines
from curtsy.core.time import SECOND, span

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

    from curtsy.core.statistics import StatisticsSnapshot
    from curtsy.engine.alerts import Alert
    from curtsy.engine.host_view import HostList, HostView
    from curtsy.settings import Settings

MOST = 40
"""Number of hosts listed without --all."""


def none_known(domain: str | None, others: str = "") -> Exit:
    """Report that no host is known; for a named host this is an error. `others` are known hosts with a similar name."""
    if domain is None:
        console.say("no host is known: no request was sent, or the last one is long ago.")
        return Exit.FINE
    hint = f"Known: {others}." if others else "curtsy status lists the known hosts."
    console.say(f"{domain} is unknown: no request was sent to it. {hint}")
    return Exit.ERROR


ALL = click.option(
    "--all", "is_all", is_flag=True, help=f"List every host, not only the last {MOST}; of many hosts, by name."
)


@command(
    ("curtsy status", "The known hosts, the last requested first."),
    ("curtsy status example.org", "One host in full."),
    ("curtsy status -i urls.txt", "The hosts of a list of URLs."),
    ("curtsy status --trouble", "Hosts that are paused, resting, blocked or out of budget."),
    ("curtsy status --json | jq '.[] | select(.breaker != \"closed\")'", "Hosts whose breaker is not closed."),
    ("curtsy status --total", "Counts of all processes in the last day."),
    ("curtsy status --store redis://10.0.0.5", "The hosts of a shared store."),
)
@HOSTS
@INPUT
@ALL
@click.option("--trouble", "is_trouble", is_flag=True, help="List only hosts in trouble.")
@click.option("--total", "is_total", is_flag=True, help="Show the counts of all processes instead of hosts.")
@click.option("--json", "is_json", is_flag=True, help="Write JSON, with all values.")
@click.pass_obj
def status(
    given: CommandContext, domains: tuple[str, ...], source: str | None, is_all: bool, is_trouble: bool,
    is_total: bool, is_json: bool,
) -> Exit:  # fmt: skip
    """Show the known hosts: pace, budget, breaker.

    The column next has the time until the next page may be requested, today the requests charged to the daily budget by
    processes that have a limit, last the last status. A domain includes its subdomains, and a URL means its host.
    Alerts are shown too: an open breaker, more than a tenth of the last hour's requests blocked by breakers, more than
    five trips in the last hour, a budget nearly used, a crawl without progress, a dead worker. With more than 1,000
    hosts, JSON has the 1,000 used last and those in trouble; --all adds the others.
    """
    from curtsy.core.statistics import StatisticsSnapshot, summed
    from curtsy.engine.alerts import alerts_of, suspects
    from curtsy.engine.counters import read_statistics
    from curtsy.engine.crawl_view import read_crawls
    from curtsy.engine.host_view import every_view, joined, list_hosts

    policies = given.settings().policies
    if source is not None:
        domains = tuple(dict.fromkeys([*domains, *map(host_name, url_lines(source))]))
    with closing(given.open_store()) as store:
        processes = read_statistics(store)
        statistics = summed(processes, store.now().epoch / SECOND)
        if domains:
            lists = {domain: list_hosts(store, policies, domain) for domain in domains}
            found = joined(lists.values())
        else:
            lists, found = {}, list_hosts(store, policies, None, suspects(statistics, policies))
        # Totals of all processes do not describe a single host.
        alerts = (
            alerts_of(statistics, found.views, read_crawls(store))
            if not domains or is_total
            else alerts_of(StatisticsSnapshot(), found.views)
        )
        if is_total:
            _show_total(statistics, len(processes), alerts, is_json)
            return Exit.FINE
        hosts: Iterable[HostView] = found.views
        if is_all and not found.is_complete:
            hosts = chain.from_iterable(every_view(store, policies, each) for each in domains or (None,))
        if is_trouble:
            hosts = [view for view in hosts if view.is_in_trouble]
        if is_json:
            console.write_json_list(_with_alerts(view) for view in hosts)
            if not is_all and not found.is_complete:
                _say_more(found, len(found.views))
        elif is_trouble and found.views:
            _show_trouble([*hosts], is_all)
        elif len(domains) == 1 and len(found.views) == 1:
            _show_one(found.views[0])
        elif found.views:
            _show_hosts(hosts, found, is_all)
        elif not domains:
            return none_known(None)
    unknown = [none_known(domain) for domain, listed in lists.items() if not (listed.views or (is_json and is_trouble))]
    for alert in () if is_json else alerts:
        console.say(f"alert {alert.name}: {alert.message}")
    return worst(unknown)


def _with_alerts(view: HostView) -> dict[str, Any]:
    from curtsy.core.statistics import StatisticsSnapshot
    from curtsy.engine.alerts import alerts_of

    return {**asdict(view), "alerts": [alert.name for alert in alerts_of(StatisticsSnapshot(), [view])]}


def _show_total(statistics: StatisticsSnapshot, processes: int, alerts: Sequence[Alert], is_json: bool) -> None:
    """Print the combined counts of all processes, one per row."""
    if is_json:
        console.write_json({"processes": processes, "alerts": alerts, **statistics.as_dict()})
        return
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
    for alert in alerts:
        console.say(f"alert {alert.name}: {alert.message}")


def _show_hosts(hosts: Iterable[HostView], found: HostList, is_all: bool) -> None:
    """Print the hosts as a table: all, or the first ones and how to see the others."""
    more = {"last": lambda view: str(view.last_status or ""), "total": lambda view: f"{view.requests:,}"}
    for views in batched(hosts, is_all):
        console.show(console.out(), hosts_table(views, more))
    if not is_all:
        _say_more(found, MOST)


def _show_trouble(hosts: list[HostView], is_all: bool) -> None:
    """Print the hosts in trouble, and what each waits for."""
    if not hosts:
        console.say("no host is in trouble.")
        return
    more = {"waiting for": lambda view: view.waiting_for or ""}
    for views in batched(hosts, is_all):
        console.show(console.out(), hosts_table(views, more, ("breaker", "pages", "today")))
    if not is_all and len(hosts) > MOST:
        console.say(f"{len(hosts) - MOST:,} more of {len(hosts):,} hosts in trouble; --all lists them.")


def batched(hosts: Iterable[HostView], is_all: bool) -> Iterator[list[HostView]]:
    """Yield the hosts in tables of a bounded size; only the first `MOST` unless `is_all`."""
    from curtsy.engine.host_view import RECENT

    left = iter(hosts)
    while views := list(islice(left, RECENT if is_all else MOST)):
        yield views
        if not is_all:
            return


def _say_more(found: HostList, shown: int) -> None:
    """Report how many hosts are not shown, and how to list them."""
    if found.total > shown:
        about = "" if found.is_exact else "about "
        words = f"{about}{found.total - shown:,} more of {about}{found.total:,} hosts; --all lists them."
        if found.in_trouble:
            words += " --trouble lists the hosts in trouble."
        console.say(words)


def hosts_table(
    views: list[HostView], more: dict[str, Callable[[HostView], str]],
    least: Sequence[str] = ("total", "last", "requested", "breaker"), *, is_one_line: bool = False,
) -> Table:  # fmt: skip
    """Create a table of hosts: next request, today's budget, breaker, and `more` columns by title.

    A narrow terminal omits the columns of `least`, the first one first.
    """
    table = console.fitted_table(
        "host", "next", "today", "pages", "breaker", *more, right=("today", "pages", *more), least=least,
        is_one_line=is_one_line,
    )  # fmt: skip
    for view in views:
        table.add_row(
            console.plain(view.domain), _next(view), *_spent(view), breaker_words(view),
            *(cell(view) for cell in more.values()),
        )  # fmt: skip
    return table


def _next(view: HostView) -> Text:
    """Return the time until the host may be requested next."""
    if view.paused:
        return console.text(("paused" if view.paused_left is None else f"paused {span(view.paused_left)}", "magenta"))
    if view.next_in is None:
        return console.text(("never", "red"))
    return console.text((f"in {span(view.next_in)}", "yellow") if view.next_in >= 0.05 else ("now", "green"))


def _spent(view: HostView) -> tuple[Text, Text]:
    """Return the used parts of a host's daily limits: of requests and of pages."""
    return _used(view.requests_today, view.max_requests_per_day), _used(view.pages_today, view.max_pages_per_day)


def _used(count: int, limit: int) -> Text:
    if not limit:
        return console.text(f"{count:,}")
    style = "red" if count >= limit else "yellow" if count >= 0.8 * limit else ""
    return console.text(f"{count:,}/{limit:,}", style=style)


def breaker_words(view: HostView) -> Text:
    """Return the state of the breaker."""
    if view.breaker_left is not None:
        return console.text((f"open {span(view.breaker_left)}", "red"))
    return console.text(("half open", "yellow") if view.breaker == "half_open" else ("closed", "dim"))


_OPENED_BY = {
    "block": "denied",
    "failures": "failures",
    "rest": "asked for a rest",
    "trial": "failed trial",
    "user": "by hand",
}


def opened_by(view: HostView) -> str:
    """Return what opened a breaker, with the last status or failure; empty if it is closed, or the cause is unknown."""
    from curtsy.core.crawl_messages import describe

    cause, _, detail = (view.opened_by or "").partition(":")
    if not detail and cause in ("failures", "trial"):
        detail = "no answer"
    elif not detail.isdecimal():
        detail = describe(detail).what
    return _OPENED_BY.get(cause, cause) + (f" ({detail})" if detail else "")


def _show_one(view: HostView) -> None:
    """Print one host, one figure per row."""
    terminal = console.out()
    terminal.print(console.text(console.plain(view.domain), style="bold"))
    ago = "never" if view.last_asked_ago is None else f"{span(view.last_asked_ago)} ago"
    status = "" if view.last_status is None else f", status {view.last_status}"
    rows: list[tuple[str, Text | str]] = [
        ("next page", _next(view)),
        ("last request", ago + status),
        ("requests today", _spent(view)[0]),
        ("pages today", _spent(view)[1]),
        ("budget resets in", span(view.budget_resets_in)),
        ("breaker", breaker_words(view)),
        *([("opened by", opened_by(view))] if view.opened_by else []),
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
@ALL
@JSON
@click.pass_obj
def budget(given: CommandContext, domain: str | None, is_all: bool, is_json: bool) -> Exit:
    """Show the used part of each host's daily budget.

    The defaults are 200 requests and 100 pages per host and day; 0 means unlimited. Requests of processes without a
    limit are not counted. The day ends at midnight in the policy's time zone. With more than 1,000 hosts, JSON has the
    1,000 used last and those in trouble; --all adds the others.
    """
    from curtsy.engine.host_view import every_view, list_hosts, view_of

    settings = given.settings()
    with closing(given.open_store()) as store:
        found = list_hosts(store, settings.policies, domain)
        hosts: Iterable[HostView] = found.views
        if is_all and not found.is_complete:
            hosts = every_view(store, settings.policies, domain)
        if domain is not None and all(view.domain != domain for view in found.views):  # its limits apply already
            hosts = chain([view_of(domain, None, store.now(), settings.policies.of(domain))], hosts)
        elif not found.views and not is_json:
            return none_known(domain)
        if is_json:
            console.write_json_list(_budget_fields(settings, view) for view in hosts)
        else:
            for views in batched(hosts, is_all):
                console.show(console.out(), _budget_table(settings, views))
        if not is_all:
            _say_more(found, len(found.views) if is_json else MOST)
    return Exit.FINE if found.views or domain is None else none_known(domain)


def _budget_fields(settings: Settings, view: HostView) -> dict[str, Any]:
    from curtsy.observe.policy_view import budget_origins

    origin = budget_origins(settings, view.domain, view.changed_limits)
    names = ("domain", "requests_today", "max_requests_per_day", "pages_today", "max_pages_per_day", "budget_resets_in")
    return {name: getattr(view, name) for name in names} | {
        "origin": origin["requests"], "pages_origin": origin["pages"],
    }  # fmt: skip


def _budget_table(settings: Settings, views: list[HostView]) -> Table:
    from curtsy.observe.policy_view import as_one, budget_origins

    table = console.fitted_table(
        "host", "requests", "pages", "resets in", "limits from", right=("requests", "pages"),
        least=("limits from", "resets in"),
    )  # fmt: skip
    for view in views:
        requests, pages = _spent(view)
        origin = as_one(budget_origins(settings, view.domain, view.changed_limits))
        limits = console.text(console.plain(origin), style="dim")
        table.add_row(console.plain(view.domain), requests, pages, span(view.budget_resets_in), limits)
    return table
