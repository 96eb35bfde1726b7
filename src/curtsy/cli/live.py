"""A crawl as it is shown while it runs: its hosts, and one line for the whole of it. Also in lines, without a terminal.

Nothing wraps: what does not fit is cut, and where the terminal is narrow the columns that say least are left out.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from rich.console import Group
from rich.table import Table
from rich.text import Text

from curtsy.cli import console
from curtsy.cli.report import why_of
from curtsy.core.messages import span

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult

    from curtsy.crawling.progress import HostProgress, Snapshot, Totals

STATES = {
    "fetching": ("▸", "green"),
    "waiting": ("◔", "yellow"),
    "resting": ("◔", "yellow"),
    "breaker open": ("✗", "red"),
    "budget spent": ("■", "magenta"),
    "paused": ("‖", "magenta"),
    "done": ("✓", "green"),
}
"""The mark of each state of a host, and its colour."""

NARROW = 70
"""Columns below which the queue and the errors of hosts are left out."""

WIDE = 100
"""Columns beyond which the view does not grow: figures far from their host are hard to read."""

FRAME = 5
"""Lines of the view that are no hosts."""


class CrawlView:
    """The live view: give it snapshots by `show`, and rich draws it as often as it likes."""

    def __init__(self, label: Callable[[str], str] = str, title: str = "") -> None:
        """`label` names a host for people."""
        self._label = label
        self._title = title
        self._snapshot: Snapshot | None = None
        self._shown_at = 0.0
        self._rows: list[str] = []
        """Hosts in the order in which they were first seen: rows that change places cannot be read."""

    def show(self, snapshot: Snapshot) -> None:
        """Show how far the crawl has come."""
        self._snapshot, self._shown_at = snapshot, time.monotonic()

    def __rich_console__(self, terminal: Console, options: ConsoleOptions) -> RenderResult:
        """Draw it, with the countdowns as of now."""
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
        """As many hosts as there is room for, each where it was before: those at work, then those last heard of."""
        by_name = {each.host: each for each in hosts}
        wanted = sorted(hosts, key=lambda each: each.state == "done")[:room]  # stable: the busiest stay first
        names = {each.host for each in wanted}
        kept = [name for name in self._rows if name in names]
        self._rows = kept + [each.host for each in wanted if each.host not in set(kept)]
        return [by_name[name] for name in self._rows]


ENDS = ("done", "max_pages", "max_time", "max_bytes", "later", "not_written", "stopped")
"""The states of a crawl that is over."""


def hosts_table(hosts: list[HostProgress], width: int, since: float, label: Callable[[str], str]) -> Table:
    """One row a host."""
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
    """A time in few letters: as exact as it is near."""
    if seconds < 60:
        return span(seconds)
    minutes = round(seconds / 60)
    hours = round(seconds / 3600)
    return f"{minutes} min" if minutes < 60 else f"{hours} h" if hours < 48 else f"{round(hours / 24)} days"


def _few(count: int | None) -> str:
    """A number in few letters; nothing for what is not known."""
    if count is None:
        return ""
    return f"{count:,}" if count < 100_000 else f"{count // 1000:,}k"


def _left(host: HostProgress) -> int | None:
    """What is left of a host's day: requests or pages, whichever is less."""
    lefts = [each for each in (host.requests_left, host.pages_left) if each is not None]
    return min(lefts) if lefts else None


def whole(snapshot: Snapshot, since: float = 0.0, label: Callable[[str], str] = str) -> list[Text]:
    """The crawl as a whole: what it has done, and what it waits for."""
    line = Text(no_wrap=True, overflow="ellipsis")
    line.append(_pages(snapshot), style="bold")
    line.append(" · " + " · ".join(_figures(snapshot, since)))
    waits = Text(no_wrap=True, overflow="ellipsis", style="dim")
    if snapshot.state == "stopping":
        waits.append("stopping: what is under way may end, nothing more is asked for")
    elif snapshot.waiting_for is not None:
        waits.append(f"waiting: {console.plain(snapshot.waiting_for)}{_trouble(snapshot, label)}")
    if snapshot.before is None:
        return [line, waits]
    return [line, Text(_in_all(snapshot.totals), no_wrap=True, overflow="ellipsis", style="dim"), waits]


def _trouble(snapshot: Snapshot, label: Callable[[str], str] = str) -> str:
    """Which host is left alone for a while, and why: of several, the one that is due first."""
    resting = [each for each in snapshot.hosts if each.why and each.state not in ("done", "fetching")]
    if not resting:
        return ""
    first = min(resting, key=lambda each: each.next_in or 0.0)
    return f" ({console.plain(label(first.host)).strip()}: {why_of(first.why) or first.state})"


def _pages(snapshot: Snapshot) -> str:
    """The pages of this run, as the hosts above count them too."""
    if snapshot.before is None:
        return console.counted(snapshot.totals.pages, "page")
    return f"{console.counted(snapshot.totals.pages - snapshot.before.pages, 'page')} in this run"


def _in_all(totals: Totals) -> str:
    """What all runs of a job have done together."""
    words = [console.counted(totals.pages, "page")]
    for counts, what in ((totals.skipped, "left alone"), (totals.failed, "failed")):
        if counts:
            words.append(f"{sum(counts.values()):,} {what}")
    return f"in all runs: {' · '.join(words)}"


def _figures(snapshot: Snapshot, since: float) -> list[str]:
    found = []
    if snapshot.rate:
        found.append(f"{snapshot.rate:.3g}/s")
    failed = sum(snapshot.totals.failed.values())
    left_alone = sum(snapshot.totals.skipped.values())
    if snapshot.before is not None:
        failed -= sum(snapshot.before.failed.values())
        left_alone -= sum(snapshot.before.skipped.values())
    found.append(f"{snapshot.queued:,} queued")
    if left_alone:
        found.append(f"{left_alone:,} left alone")
    if failed:
        found.append(f"{failed:,} failed")
    found.append(span(round(snapshot.elapsed + since)))
    if snapshot.time_left and snapshot.state not in ENDS:
        found.append(f"about {span(max(1.0, snapshot.time_left - since))} left")
    return found


def line_of(snapshot: Snapshot) -> str:
    """The same as one line, for where there is no terminal."""
    words = [_pages(snapshot), *_figures(snapshot, 0.0)]
    if snapshot.before is not None:
        words.append(_in_all(snapshot.totals))
    if snapshot.waiting_for is not None:
        words.append(f"{snapshot.waiting_for}{_trouble(snapshot)}")
    return ", ".join(words)
