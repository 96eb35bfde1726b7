"""`curtsy top`: live view of hosts and crawls."""

from __future__ import annotations

import select
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from curtsy.cli import console
from curtsy.cli.command import Command, Domain, Duration
from curtsy.cli.context import CommandContext, Exit

if TYPE_CHECKING:
    from rich.console import RenderableType

    from curtsy.core.crawl_record import CrawlRecord
    from curtsy.engine.host_view import HostView
    from curtsy.stores import Store

NARROW = 70
"""Width in columns below which some figures are omitted."""

SILENT = 15.0
"""Seconds without an update after which a running crawl counts as silent, perhaps killed."""


@click.command(
    cls=Command,
    examples=(
        ("curtsy top", "Crawls and hosts of this machine; q quits."),
        ("curtsy top --store redis://10.0.0.5", "All machines that share a store."),
        ("curtsy top --json | jq '.crawls[] | {job, pages, queued}'", "Print once, as JSON."),
    ),
)
@click.argument("domain", type=Domain(), required=False)
@click.option("--every", type=Duration(), default=1.0, metavar="TIME", help="Refresh interval (1s).")
@click.option("--json", "is_json", is_flag=True, help="Print once, as JSON.")
@click.pass_obj
def top(given: CommandContext, domain: str | None, every: float, is_json: bool) -> Exit:
    """Show hosts and crawls live.

    The upper table lists running crawls, with the pages of all runs and of this run. The lower table lists known hosts,
    the last requested first: the time until the next request, the requests and pages charged to today's budget by
    processes that have a limit, and the breaker. It reads the store and sends no requests. Warnings appear below the
    title, and again at the end. q or Ctrl-C quits. Without a terminal it prints once.
    """
    store = given.open_store()
    try:
        store.read("global")  # raises before the screen is taken
        if is_json:
            hosts, crawls = _look(given, store, domain)
            console.write_json({"crawls": [_fields(each) for each in crawls], "hosts": hosts})
        elif not sys.stdout.isatty():
            console.show(console.out(), _view(*_look(given, store, domain), console.ENDLESS, console.ENDLESS))
        else:
            _watch(given, store, domain, every)
    except KeyboardInterrupt:
        pass  # the normal way to end it
    finally:
        store.close()
    return Exit.FINE


def _look(given: CommandContext, store: Store, domain: str | None) -> tuple[list[HostView], list[CrawlRecord]]:
    from curtsy.engine.host_view import read_crawls, views

    return views(store, given.settings().policies, domain), read_crawls(store)


def _fields(crawl: CrawlRecord) -> dict[str, Any]:
    """Return a crawl as a dict; its JSON form is a list."""
    from msgspec.structs import asdict

    return {**asdict(crawl), "hosts": [asdict(host) for host in crawl.hosts]}


def _watch(given: CommandContext, store: Store, domain: str | None, every: float) -> None:
    """Redraw the view until q is pressed."""
    from rich.live import Live

    from curtsy.cli.logs import holding_back

    terminal = console.out()
    with holding_back() as held, _keys(), Live(
        console=terminal, screen=True, auto_refresh=False, redirect_stdout=False, redirect_stderr=False
    ) as live:  # fmt: skip
        while True:
            hosts, crawls = _look(given, store, domain)
            live.update(_view(hosts, crawls, terminal.width, terminal.height, held.latest), refresh=True)
            if _is_over(every):
                return


@contextmanager
def _keys() -> Iterator[None]:
    """Deliver keys without Enter."""
    if not sys.stdin.isatty():
        yield
        return
    try:
        import termios
        import tty
    except ImportError:  # Windows: Ctrl-C ends it
        yield
        return
    before = termios.tcgetattr(sys.stdin)
    try:
        tty.setcbreak(sys.stdin)
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


def _is_over(seconds: float) -> bool:
    """Wait for a key for some seconds; return whether it ends the view."""
    if not sys.stdin.isatty():
        time.sleep(seconds)
        return False
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        ready, _, _ = select.select([sys.stdin], [], [], left)
        if ready and sys.stdin.read(1) in ("q", "Q", ""):
            return True
    return False


def _view(
    hosts: list[HostView], crawls: list[CrawlRecord], width: int, height: int, told: str = ""
) -> RenderableType:  # fmt: skip
    """Create the whole view; `told` is the last warning, shown below the title."""
    from rich.console import Group
    from rich.text import Text

    running = sum(each.state in ("running", "waiting") for each in crawls)
    open_breakers = sum(view.breaker == "open" for view in hosts)
    words = [
        console.counted(running, "crawl") + " running",
        console.counted(len(hosts), "host"),
        f"{sum(view.requests_today for view in hosts):,} charged today",
        f"{console.counted(open_breakers, 'open breaker')}",
    ]
    title = Text("curtsy top", style="bold", no_wrap=True, overflow="ellipsis")
    title.append(f"  {' · '.join(words)}", style="default not bold")
    warning = Text(console.plain(" ".join(told.split())), style="yellow", no_wrap=True, overflow="ellipsis")
    parts: list[Any] = [title, warning]
    room = height - 4
    if crawls:
        shown = crawls[: max(1, room // 3)]
        parts.append(_crawls(shown, width))
        room -= len(shown) + 2
        if kept := [each.job for each in shown if each.state == "stopped" and each.is_job and each.queued]:
            hint = f"Can be resumed (curtsy jobs show NAME shows how): {', '.join(map(console.plain, kept))}"
            parts.append(Text(hint, style="dim", no_wrap=True, overflow="ellipsis"))
            room -= 1
        parts.append(Text())
    if hosts:
        parts.append(_hosts(hosts[: max(1, room)], width))
        if len(hosts) > room:
            parts.append(Text(f"and {len(hosts) - room:,} more", style="dim"))
    elif not crawls:
        parts.append(Text("No request was sent, or the last one is long ago.", style="dim"))
    return Group(*parts)


def _crawls(crawls: list[CrawlRecord], width: int) -> RenderableType:
    from rich.text import Text

    from curtsy.core.messages import LIMITS, span

    is_narrow = width < NARROW
    is_resumed = any(each.pages_before is not None for each in crawls)  # else all pages are of this run
    names = [
        "crawl", "state", "pages", *(["this run"] if is_resumed else []), "rate", "queue",
        *([] if is_narrow else ["failed", "left", "hosts"]),
    ]  # fmt: skip
    table = console.table(*names, right=("pages", "this run", "rate", "queue", "failed", "left", "hosts"))
    for each in crawls:
        silent = time.time() - each.updated_at
        is_running = each.state in ("running", "waiting")
        is_limited = each.state == "stopped" and each.ended in LIMITS
        words = f"stopped at {LIMITS[each.ended]}" if is_limited else each.state
        state = Text(words, style="green" if is_running else "dim")
        if is_running and silent > SILENT:
            state = Text(f"silent for {span(silent)}", style="red")
        pages = each.pages + each.cached
        cells: list[Text | str] = [
            console.plain(each.job), state, f"{pages:,}",
            *([f"{pages - (each.pages_before or 0):,}"] if is_resumed else []),
            f"{each.rate:.3g}/s" if is_running else "", f"{each.queued:,}",
        ]  # fmt: skip
        if not is_narrow:
            left = span(each.seconds_left) if is_running and each.seconds_left else ""
            cells += [f"{each.failed:,}", left, f"{len(each.hosts):,}"]
        table.add_row(*cells)
    return table


def _hosts(hosts: list[HostView], width: int) -> RenderableType:
    from curtsy.cli.status import hosts_table
    from curtsy.core.messages import span

    def ago(view: HostView) -> str:
        return "" if view.last_asked_ago is None else f"{span(view.last_asked_ago)} ago"

    if width < NARROW:
        return hosts_table(hosts, {})
    return hosts_table(hosts, {"last": lambda view: str(view.last_status or ""), "requested": ago})
