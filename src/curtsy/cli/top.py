"""`curtsy top`: live view of hosts and crawls."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from typing import TYPE_CHECKING

import click
from msgspec.structs import asdict

from curtsy.cli import console
from curtsy.cli.command import DOMAIN, command, duration
from curtsy.cli.context import CommandContext
from curtsy.cli.status import hosts_table
from curtsy.core.crawl_messages import limit_of
from curtsy.core.time import roughly, span

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

    from curtsy.core.crawl_record import CrawlRecord
    from curtsy.engine.crawl_view import CrawlView
    from curtsy.engine.host_view import HostList, HostView
    from curtsy.stores import Store


@command(
    ("curtsy top", "Crawls and hosts of this machine; q quits."),
    ("curtsy top --store redis://10.0.0.5", "All machines that share a store."),
    ("curtsy top --json | jq '.crawls[] | {job, pages, queued}'", "Print once, as JSON."),
)
@DOMAIN
@click.option("--every", type=duration, default="1s", metavar="TIME", help="Refresh interval (1s).")
@click.option("--json", "is_json", is_flag=True, help="Print once, as JSON.")
@click.pass_obj
def top(given: CommandContext, domain: str | None, every: float, is_json: bool) -> None:
    """Show hosts and crawls live.

    The upper table lists running crawls, with the pages of all runs and of this run. The lower table lists known hosts,
    the last requested first: the time until the next request, the requests and pages charged to today's budget by
    processes that have a limit, and the breaker. With more than 1,000 hosts, these are the 1,000 used last and those in
    trouble; curtsy status --all lists every host. It reads the store and sends no requests. Warnings appear below the
    title, and again at the end. q or Ctrl-C quits. Without a terminal it prints once.
    """
    with closing(given.open_store()) as store, suppress(KeyboardInterrupt):  # the normal way to end it
        store.read("global")  # raises before the screen is taken
        if is_json:
            found, crawls = _look(given, store, domain)
            fields = [
                {**asdict(each.whole), "hosts": [asdict(host) for host in each.whole.hosts], "workers": each.workers}
                for each in crawls
            ]
            console.write_json({"crawls": fields, "known_hosts": found.total, "hosts": found.views})
        elif not sys.stdout.isatty():
            console.show(console.out(), _view(*_look(given, store, domain), console.ENDLESS, console.ENDLESS))
        else:
            _watch(given, store, domain, every)


def _look(given: CommandContext, store: Store, domain: str | None) -> tuple[HostList, list[CrawlView]]:
    from curtsy.engine.crawl_view import read_crawls
    from curtsy.engine.host_view import list_hosts

    return list_hosts(store, given.settings().policies, domain), read_crawls(store)


def _watch(given: CommandContext, store: Store, domain: str | None, every: float) -> None:
    """Redraw the view until q is pressed."""
    from rich.live import Live

    terminal = console.out()
    screen = Live(console=terminal, screen=True, auto_refresh=False, redirect_stdout=False, redirect_stderr=False)
    with console.holding_back() as held, _keys(), screen as live:
        while True:
            found, crawls = _look(given, store, domain)
            live.update(_view(found, crawls, terminal.width, terminal.height, held.latest), refresh=True)
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
    import select

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
    found: HostList, crawls: list[CrawlView], width: int, height: int, told: str = ""
) -> RenderableType:  # fmt: skip
    """Create the whole view; `told` is the last warning, shown below the title."""
    from rich.console import Group

    hosts = found.views
    words = [
        console.counted(sum(each.whole.is_running for each in crawls), "crawl") + " running",
        ("" if found.is_exact else "about ") + console.counted(found.total, "host"),
        console.counted(sum(view.breaker == "open" for view in hosts), "open breaker"),
    ]
    if found.is_complete:  # the sum of a part would mislead
        words.insert(2, f"{sum(view.requests_today for view in hosts):,} charged today")
    title, *more = console.packed([f"curtsy top  {words[0]}", *words[1:]], width)
    heading = console.text(("curtsy top", "bold"), title.removeprefix("curtsy top"))
    warning = console.text((console.plain(" ".join(told.split())), "yellow"))
    parts: list[RenderableType] = [_line(heading), *(_line(console.text(line)) for line in more), _line(warning)]
    room = height - 4 - len(more)
    if crawls:
        first = crawls[: max(1, room // 3)]
        parts.append(_crawls(first))
        room -= len(first) + 2
        wholes = [each.whole for each in first]
        if kept := [each.job for each in wholes if each.state == "stopped" and each.is_job and each.queued]:
            hint = f"Can be resumed (curtsy jobs show NAME shows how): {', '.join(map(console.plain, kept))}"
            parts.append(_line(console.text(hint, style="dim")))
            room -= 1
        parts.append(console.text())
    if hosts:
        shown = hosts[: max(1, room)]
        parts.append(_hosts(shown))
        if found.total > len(shown):
            hint = f"and {found.total - len(shown):,} more: curtsy status --all, or curtsy top NAME for one"
            parts.append(_line(console.text(hint, style="dim")))
    elif not crawls:
        parts.append(console.text("No request was sent, or the last one is long ago.", style="dim"))
    return Group(*parts)


def _line(text: Text) -> Text:
    """Return a text that is cut instead of wrapped."""
    text.no_wrap, text.overflow = True, "ellipsis"
    return text


def _crawls(crawls: list[CrawlView]) -> RenderableType:
    hidden: set[str] = set()
    if all(each.whole.pages_before is None for each in crawls):  # then all pages are of this run
        hidden.add("this run")
    if all(len(each.workers) == 1 for each in crawls):
        hidden.add("workers")
    names = ("crawl", "state", "workers", "pages", "this run", "rate", "queue", "failed", "left", "hosts")
    shown = [name for name in names if name not in hidden]
    least = ("hosts", "failed", "rate", "this run", "workers", "state", "left")
    table = console.fitted_table(*shown, right=names[2:], least=least, is_one_line=True)
    for crawl in crawls:
        each = crawl.whole
        is_running, pages = each.is_running, each.pages + each.cached
        cells: dict[str, Text | str] = {
            "crawl": console.plain(each.job),
            "state": _state(each),
            "workers": f"{crawl.present:,}",
            "pages": f"{pages:,}",
            "this run": f"{pages - (each.pages_before or 0):,}",
            "rate": f"{each.rate:.3g}/s" if is_running else "",
            "queue": f"{each.queued:,}",
            "failed": f"{each.failed:,}",
            "left": _left(each) if is_running else "",
            "hosts": f"{len(each.hosts):,}",
        }
        table.add_row(*(cells[name] for name in shown))
    return table


def _left(crawl: CrawlRecord) -> str:
    if crawl.seconds_left:
        return span(crawl.seconds_left)
    return f"at least {roughly(crawl.seconds_left_at_least)}" if crawl.seconds_left_at_least else ""


def _state(crawl: CrawlRecord) -> Text:
    from curtsy.engine.crawl_view import SILENT

    if not crawl.is_running:
        waiting = [each for each in crawl.hosts if each.next_in]
        waited_for = min(waiting, key=lambda each: each.next_in or 0.0).state if waiting else ""
        limit = limit_of(crawl.ended, waited_for) if crawl.state == "stopped" else None
        return console.text(crawl.state if limit is None else f"stopped at {limit}", style="dim")
    silent = time.time() - crawl.updated_at
    return console.text((f"silent for {span(silent)}", "red") if silent > SILENT else (crawl.state, "green"))


def _hosts(hosts: list[HostView]) -> RenderableType:
    def ago(view: HostView) -> str:
        return "" if view.last_asked_ago is None else f"{span(view.last_asked_ago)} ago"

    more: dict[str, Callable[[HostView], str]] = {"last": lambda view: str(view.last_status or ""), "requested": ago}
    return hosts_table(hosts, more, is_one_line=True)
