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
from curtsy.cli.command import Command
from curtsy.cli.context import CommandContext
from curtsy.cli.exits import Exit
from curtsy.cli.values import Domain, Duration

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
        ("curtsy top", "What this machine is asking, and whom; q ends it."),
        ("curtsy top --store redis://10.0.0.5", "The same of all machines that share a store."),
        ("curtsy top --json | jq '.crawls[] | {job, pages, queued}'", "Once, as JSON."),
    ),
)
@click.argument("domain", type=Domain(), required=False)
@click.option("--every", type=Duration(), default=1.0, metavar="TIME", help="Look again after so long (1s).")
@click.option("--json", "is_json", is_flag=True, help="Once, as JSON.")
@click.pass_obj
def top(given: CommandContext, domain: str | None, every: float, is_json: bool) -> Exit:
    """Watch hosts and crawls, live.

    Above stand the crawls that run, with the pages of all runs of a job and those of this run, below the hosts that
    are known, the last asked first: when each may be asked next, the requests and pages that were charged to its
    budget today (by processes that have a limit), its breaker. It reads the store and asks no site for anything.
    Warnings stand below the title, and are said again at the end. q or Ctrl-C ends it. Without a terminal it prints
    once.
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
    from curtsy.engine.host_view import views
    from curtsy.observe.crawls import read_crawls

    hosts = list(views(store, given.settings().policies, domain))
    hosts.sort(key=lambda view: (view.last_asked_ago is None, view.last_asked_ago, view.domain))
    return hosts, read_crawls(store)


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
            hint = f"Can be gone on with (curtsy jobs show NAME says how): {', '.join(map(console.plain, kept))}"
            parts.append(Text(hint, style="dim", no_wrap=True, overflow="ellipsis"))
            room -= 1
        parts.append(Text())
    if hosts:
        parts.append(_hosts(hosts[: max(1, room)], width))
        if len(hosts) > room:
            parts.append(Text(f"and {len(hosts) - room:,} more", style="dim"))
    elif not crawls:
        parts.append(Text("Nothing was asked so far, or it was long ago.", style="dim"))
    return Group(*parts)


def _crawls(crawls: list[CrawlRecord], width: int) -> RenderableType:
    from rich.text import Text

    from curtsy.core.messages import span
    from curtsy.observe.messages import LIMITS

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
    from curtsy.cli.status import breaker_words, next_words, spent
    from curtsy.core.messages import span

    is_narrow = width < NARROW
    names = ["host", "next", "today", "pages", "breaker", *([] if is_narrow else ["last", "asked"])]
    table = console.table(*names, right=("today", "pages", "last", "asked"))
    for view in hosts:
        cells: list[RenderableType] = [
            console.plain(view.domain), next_words(view), spent(view.requests_today, view.max_requests_per_day),
            spent(view.pages_today, view.max_pages_per_day), breaker_words(view),
        ]  # fmt: skip
        if not is_narrow:
            ago = "" if view.last_asked_ago is None else f"{span(view.last_asked_ago)} ago"
            cells += [str(view.last_status or ""), ago]
        table.add_row(*cells)
    return table
