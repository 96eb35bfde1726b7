"""Live view of a crawl: its hosts and a summary line; also as single lines without a terminal.

Lines do not wrap: long cells are cut, and a narrow terminal omits the least important columns.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from rich.console import Group
from rich.table import Table
from rich.text import Text

from curtsy.cli import console
from curtsy.cli.logs import logging_above
from curtsy.core.messages import span

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult
    from rich.live import Live

    from curtsy.crawling.progress import CrawlSnapshot, CrawlTotals, HostProgress

STATES = {
    "fetching": ("▸", "green"),
    "waiting": ("◔", "yellow"),
    "resting": ("◔", "yellow"),
    "breaker open": ("✗", "red"),
    "budget spent": ("■", "magenta"),
    "paused": ("‖", "magenta"),
    "done": ("✓", "green"),
}
"""Mark and colour of each state of a host."""

NARROW = 70
"""Width in columns below which the queue and the errors of hosts are omitted."""

WIDE = 100
"""Maximum width in columns: figures far from their host are hard to read."""

FRAME = 5
"""Number of lines that are not hosts."""


LINES = 10.0
"""Seconds between two lines without a terminal."""


class CrawlView:
    """Live view: `show` passes snapshots, rich draws at its own rate."""

    def __init__(self, label: Callable[[str], str] = str, title: str = "") -> None:
        """Create the view; `label` returns the display name of a host."""
        self._label = label
        self._title = title
        self._snapshot: CrawlSnapshot | None = None
        self._shown_at = 0.0
        self._rows: list[str] = []
        """Hosts in the order of their first appearance, so that rows keep their places."""

    def show(self, snapshot: CrawlSnapshot) -> None:
        """Set the snapshot to draw."""
        self._snapshot, self._shown_at = snapshot, time.monotonic()

    def __rich_console__(self, terminal: Console, options: ConsoleOptions) -> RenderResult:
        """Draw the view, with current countdowns."""
        if self._snapshot is None:
            return
        since = 0.0 if self._snapshot.state in ENDS else time.monotonic() - self._shown_at
        more = bool(self._title) + (self._snapshot.before is not None)
        width, room = min(options.max_width, WIDE), max(1, terminal.height - FRAME - more)
        hosts = self._placed(self._snapshot.hosts, room)
        parts: list[Text | Table] = []
        if self._title:
            parts += [Text(self._title, style="bold", no_wrap=True, overflow="ellipsis"), Text()]
        parts.append(hosts_table(hosts, width, since, self._label))
        hidden = self._snapshot.hosts_seen - len(hosts)
        if hidden > 0:
            parts.append(Text(f"  and {console.counted(hidden, 'more host')}", style="dim"))
        parts += [Text(), *whole(self._snapshot, since, self._label)]
        yield Group(*parts)

    def _placed(self, hosts: tuple[HostProgress, ...], room: int) -> list[HostProgress]:
        """Return as many hosts as fit, unfinished ones first, in stable positions."""
        by_name = {each.host: each for each in hosts}
        wanted = sorted(hosts, key=lambda each: each.state == "done")[:room]  # stable sort: the busiest stay first
        names = {each.host for each in wanted}
        kept = [name for name in self._rows if name in names]
        self._rows = kept + [each.host for each in wanted if each.host not in set(kept)]
        return [by_name[name] for name in self._rows]


ENDS = ("done", "max_pages", "max_time", "max_bytes", "later", "not_written", "stopped")
"""States of a finished crawl."""


def hosts_table(hosts: list[HostProgress], width: int, since: float, label: Callable[[str], str]) -> Table:
    """Create a table with one row per host."""
    is_narrow = width < NARROW
    table = Table(box=None, pad_edge=False, header_style="bold", width=width, collapse_padding=True)
    table.add_column("", width=1, no_wrap=True)
    table.add_column("host", no_wrap=True, overflow="ellipsis", ratio=1)
    table.add_column("state", no_wrap=True, width=12)
    table.add_column("next in", no_wrap=True, justify="right", width=7)
    table.add_column("pages", no_wrap=True, justify="right", width=5)
    if not is_narrow:
        table.add_column("queue", no_wrap=True, justify="right", width=6)
    table.add_column("budget", no_wrap=True, justify="right", width=6)
    if not is_narrow:
        table.add_column("errors", no_wrap=True, justify="right", width=6)
    for each in hosts:
        mark, style = STATES.get(each.state, ("·", ""))
        left = None if each.next_in is None else max(0.0, each.next_in - since)
        cells: list[Text | str] = [
            Text(mark, style=style),
            console.plain(label(each.host)),
            Text(each.state, style=style),
            "" if left is None or left < 0.05 else _soon(left),
            f"{each.pages:,}",
        ]
        if not is_narrow:
            cells.append(_few(each.queued))
        cells.append(_few(_left(each)))
        if not is_narrow:
            cells.append(Text(f"{each.errors:,}", style="red") if each.errors else "")
        table.add_row(*cells)
    return table


def _soon(seconds: float) -> str:
    """Format a time briefly, with more precision for a near one."""
    if seconds < 60:
        return span(seconds)
    minutes = round(seconds / 60)
    hours = round(seconds / 3600)
    return f"{minutes} min" if minutes < 60 else f"{hours} h" if hours < 48 else f"{round(hours / 24)} days"


def _few(count: int | None) -> str:
    """Format a number briefly; empty for None."""
    if count is None:
        return ""
    return f"{count:,}" if count < 100_000 else f"{count // 1000:,}k"


def _left(host: HostProgress) -> int | None:
    """Return the rest of a host's daily budget: requests or pages, the smaller; None for unlimited."""
    lefts = [each for each in (host.requests_left, host.pages_left) if each is not None]
    return min(lefts) if lefts else None


def whole(snapshot: CrawlSnapshot, since: float = 0.0, label: Callable[[str], str] = str) -> list[Text]:
    """Return the summary lines of a crawl: totals, and current waits."""
    line = Text(no_wrap=True, overflow="ellipsis")
    line.append(_pages(snapshot), style="bold")
    line.append(" · " + " · ".join(_figures(snapshot, since)))
    waits = Text(no_wrap=True, overflow="ellipsis", style="dim")
    if snapshot.state == "stopping":
        waits.append("stopping after the current requests")
    elif snapshot.waiting_for is not None:
        waits.append(f"waiting: {console.plain(snapshot.waiting_for)}{_trouble(snapshot, label)}")
    if snapshot.before is None:
        return [line, waits]
    return [line, Text(_in_all(snapshot.totals), no_wrap=True, overflow="ellipsis", style="dim"), waits]


def _trouble(snapshot: CrawlSnapshot, label: Callable[[str], str] = str) -> str:
    """Return the host that is delayed and due first, with the reason; empty without one."""
    resting = [each for each in snapshot.hosts if each.why and each.state not in ("done", "fetching")]
    if not resting:
        return ""
    first = min(resting, key=lambda each: each.next_in or 0.0)
    return f" ({console.plain(label(first.host)).strip()}: {first.why})"


def _pages(snapshot: CrawlSnapshot) -> str:
    """Return the pages of this run, consistent with the host rows."""
    if snapshot.before is None:
        return console.counted(snapshot.totals.pages, "page")
    return f"{console.counted(snapshot.totals.pages - snapshot.before.pages, 'page')} in this run"


def _in_all(totals: CrawlTotals) -> str:
    """Return the totals of all runs of a job."""
    words = [console.counted(totals.pages, "page")]
    for counts, what in ((totals.skipped, "skipped"), (totals.failed, "failed")):
        if counts:
            words.append(f"{sum(counts.values()):,} {what}")
    return f"in all runs: {' · '.join(words)}"


def _figures(snapshot: CrawlSnapshot, since: float) -> list[str]:
    found = []
    if snapshot.rate:
        found.append(f"{snapshot.rate:.3g}/s")
    failed = sum(snapshot.totals.failed.values())
    skipped = sum(snapshot.totals.skipped.values())
    if snapshot.before is not None:
        failed -= sum(snapshot.before.failed.values())
        skipped -= sum(snapshot.before.skipped.values())
    found.append(f"{snapshot.queued:,} queued")
    if skipped:
        found.append(f"{skipped:,} skipped")
    if failed:
        found.append(f"{failed:,} failed")
    found.append(span(round(snapshot.elapsed + since)))
    if snapshot.time_left and snapshot.state not in ENDS:
        found.append(f"about {span(max(1.0, snapshot.time_left - since))} left")
    return found


def line_of(snapshot: CrawlSnapshot) -> str:
    """Return the summary as one line, for output without a terminal."""
    words = [_pages(snapshot), *_figures(snapshot, 0.0)]
    if snapshot.before is not None:
        words.append(_in_all(snapshot.totals))
    if snapshot.waiting_for is not None:
        words.append(f"{snapshot.waiting_for}{_trouble(snapshot)}")
    return ", ".join(words)


class Display(Protocol):
    """Progress display of a crawl."""

    def show(self, snapshot: CrawlSnapshot) -> None:
        """Show a snapshot."""
        ...

    def say(self, message: str) -> None:
        """Show a message."""
        ...


class LineDisplay:
    """Display by lines on standard error, one every few seconds."""

    def __init__(self, every: float = LINES) -> None:
        self._every = every
        self._written_at = time.monotonic()

    def show(self, snapshot: CrawlSnapshot) -> None:
        """Write a line if the last one is old enough."""
        if time.monotonic() - self._written_at >= self._every:
            self._written_at = time.monotonic()
            console.say(line_of(snapshot))

    def say(self, message: str) -> None:
        """Write a message."""
        console.say(message)


class LiveDisplay:
    """Display by a live view on a terminal; messages appear above it."""

    def __init__(self, live: Live, view: CrawlView) -> None:
        self._live = live
        self._view = view

    def show(self, snapshot: CrawlSnapshot) -> None:
        """Pass a snapshot to the view."""
        self._view.show(snapshot)

    def say(self, message: str) -> None:
        """Write a message above the view."""
        self._live.console.print(f"curtsy: {console.plain(message)}", soft_wrap=True)


@contextmanager
def open_display(is_terminal: bool, view: CrawlView | None = None) -> Iterator[Display]:
    """Provide a display while the crawl runs; a live view is erased at the end."""
    if not is_terminal:
        yield LineDisplay()
        return
    from rich.live import Live

    view = view or CrawlView()
    live = Live(
        view, console=console.err(), refresh_per_second=8, transient=True, redirect_stdout=False, redirect_stderr=False
    )  # fmt: skip
    with live, logging_above(live.console):
        yield LiveDisplay(live, view)
