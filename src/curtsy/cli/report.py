"""Display of a crawl: a live view or lines while it runs, and a report at its end.

A row of the view is one line: the middle of a long host is cut, and a narrow terminal omits the least important
columns. The lines below the rows wrap.
"""

from __future__ import annotations

import asyncio
import shlex
import textwrap
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rich.console import Group
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from curtsy.cli import console
from curtsy.cli.context import Exit
from curtsy.cli.fitted_table import shortened
from curtsy.core.crawl_messages import LIMITS, STORE_IS_OUT, describe, reached
from curtsy.core.errors import CurtsyError, Reason
from curtsy.core.masking import mask_url
from curtsy.core.plan_messages import slower_host
from curtsy.core.time import roughly, span
from curtsy.crawling.progress import Ended

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult
    from rich.live import Live

    from curtsy.crawling.crawl import AsyncCrawl
    from curtsy.crawling.outputs.skipped import Example
    from curtsy.crawling.progress import CrawlSnapshot, CrawlSummary, CrawlTotals, HostProgress

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

COLUMNS = {"": 1, "host": None, "state": 12, "next in": 7, "pages": 5, "queue": 6, "budget": 6, "errors": 6}
"""Columns of the view, with their widths; that of the host takes the rest."""

NARROW = {"queue": 70, "errors": 70, "budget": 60}
"""Width in columns below which a column of hosts is omitted."""

GAP = 1
"""Blanks between two columns."""

WIDE = 100
"""Maximum width in columns: figures far from their host are hard to read."""

FRAME = 3
"""Number of lines that are neither hosts nor the summary."""

LINES = 10.0
"""Seconds between two lines without a terminal."""

SHARE = 20
"""Minimum ratio of the time between snapshots to the duration of one."""

MOST_SLOW = 3
"""Maximum number of hosts whose Crawl-delay is reported."""

MOST = 12
"""Maximum number of reasons shown of each kind: those with the most URLs."""

LIMIT_OPTIONS = ("--max-pages", "--limit")


class LineDisplay:
    """Display by lines on standard error, one every few seconds."""

    def __init__(self) -> None:
        self._written_at = time.monotonic()
        self._slow: set[str] = set()
        """Hosts whose Crawl-delay was reported."""

    def show(self, snapshot: CrawlSnapshot) -> None:
        """Write a line if the last one is old enough."""
        self._report_delays(snapshot)
        if time.monotonic() - self._written_at >= LINES:
            self._written_at = time.monotonic()
            console.say(line_of(snapshot))

    def say(self, message: str) -> None:
        """Write a message."""
        console.say(message)

    def _report_delays(self, snapshot: CrawlSnapshot) -> None:
        """Report the Crawl-delay of a few hosts, once for each: the plan before the first request may not know it."""
        for each in snapshot.hosts:
            if each.crawl_delay and each.host not in self._slow and len(self._slow) < MOST_SLOW:
                self._slow.add(each.host)
                self.say(slower_host(each.host, each.crawl_delay))


class CrawlView(LineDisplay):
    """Live view: `show` passes snapshots, rich draws at its own rate. Messages appear above it."""

    def __init__(self, label: Callable[[str], str] = str) -> None:
        """Create the view; `label` returns the display name of a host."""
        super().__init__()
        self._label = label
        self._snapshot: CrawlSnapshot | None = None
        self._shown_at = 0.0
        self._rows: list[str] = []
        """Hosts in the order of their first appearance, so that rows keep their places."""
        self.live: Live | None = None
        """Live display that draws the view."""

    def show(self, snapshot: CrawlSnapshot) -> None:
        """Set the snapshot to draw."""
        if self.live is not None:
            self._report_delays(snapshot)
        self._snapshot, self._shown_at = snapshot, time.monotonic()

    def say(self, message: str) -> None:
        """Write a message above the view."""
        assert self.live is not None
        self.live.console.print(f"curtsy: {console.plain(message)}", soft_wrap=True)

    def __rich_console__(self, terminal: Console, options: ConsoleOptions) -> RenderResult:
        """Draw the view, with current countdowns."""
        if (snapshot := self._snapshot) is None:
            return
        since = 0.0 if snapshot.state in tuple(Ended) else time.monotonic() - self._shown_at
        width, lines = min(options.max_width, WIDE), whole(snapshot, since, self._label, options.max_width)
        room = max(1, terminal.height - FRAME - len(lines))
        hosts = self._placed(snapshot.hosts, room)
        parts: list[Text | Table] = [hosts_table(hosts, width, since, self._label)]
        hidden = snapshot.hosts_seen - len(hosts)
        if hidden > 0:
            parts.append(Text(f"  and {console.counted(hidden, 'more host')}", style="dim"))
        yield Group(*parts, Text(), *lines)

    def _placed(self, hosts: tuple[HostProgress, ...], room: int) -> list[HostProgress]:
        """Return as many hosts as fit, unfinished ones first, in stable positions."""
        by_name = {each.host: each for each in hosts}
        wanted = sorted(hosts, key=lambda each: each.state == "done")[:room]  # stable sort: the busiest stay first
        names = {each.host: None for each in wanted}
        self._rows = list(dict.fromkeys([*(name for name in self._rows if name in names), *names]))
        return [by_name[name] for name in self._rows]


@contextmanager
def open_display(is_live: bool) -> Iterator[LineDisplay]:
    """Provide a display while the crawl runs; a live view is erased at the end."""
    if not is_live:
        yield LineDisplay()
        return
    view = CrawlView()
    with console.live(view) as view.live, console.logging_above(view.live.console):
        yield view


async def watch(crawl: AsyncCrawl, display: LineDisplay, every: float) -> CrawlSummary:
    """Run a crawl and display it; return its summary, also if an output failed."""
    crawl.is_reported = True
    running = asyncio.ensure_future(crawl.run())
    try:
        while not running.done():
            began = time.monotonic()
            try:
                display.show(await crawl.snapshot())
            except CurtsyError:  # the crawl itself reports the error
                pass
            # A snapshot of very many hosts is slow; it may take only 1/SHARE of the time.
            await asyncio.wait([running], timeout=max(every, SHARE * (time.monotonic() - began)))
        display.show(await crawl.snapshot())
    finally:
        if not running.done():
            crawl.stop()
            crawl.stop()
            await asyncio.wait([running])
    error = running.exception()
    if error is not None and (crawl.summary is None or not isinstance(error, CurtsyError)):
        raise error
    assert crawl.summary is not None
    return crawl.summary


def hosts_table(hosts: list[HostProgress], width: int, since: float, label: Callable[[str], str]) -> Table:
    """Create a table with one row per host."""
    names = [name for name in COLUMNS if width >= NARROW.get(name, 0)]
    room = width - sum((COLUMNS[name] or 0) + GAP for name in names) + GAP
    table = Table(box=None, pad_edge=False, header_style="bold", width=width, collapse_padding=True)
    for name in names:
        is_text = name in ("", "host", "state")
        table.add_column(
            name, width=COLUMNS[name], ratio=1 if name == "host" else None, no_wrap=True, overflow="ellipsis",
            justify="left" if is_text else "right",
        )  # fmt: skip
    for each in hosts:
        mark, style = STATES.get(each.state, ("·", ""))
        left = 0.0 if each.next_in is None else each.next_in - since
        budget = min((count for count in (each.requests_left, each.pages_left) if count is not None), default=None)
        cells: dict[str, Text | str] = {
            "": Text(mark, style=style),
            "host": shortened(console.plain(label(each.host)), room),
            "state": Text(each.state, style=style),
            "next in": _soon(left) if left >= 0.05 else "",
            "pages": f"{each.pages:,}",
            "queue": "" if each.queued is None else _few(each.queued),
            "budget": "" if budget is None else _few(budget),
            "errors": Text(f"{each.errors:,}", style="red") if each.errors else "",
        }
        table.add_row(*(cells[name] for name in names))
    return table


def _soon(seconds: float) -> str:
    """Format a time briefly, with more precision for a near one."""
    if seconds < 60:
        return span(seconds)
    minutes = round(seconds / 60)
    hours = round(seconds / 3600)
    return f"{minutes} min" if minutes < 60 else f"{hours} h" if hours < 48 else f"{round(hours / 24)} days"


def _few(count: int) -> str:
    """Format a number briefly."""
    return f"{count:,}" if count < 100_000 else f"{count // 1000:,}k"


def whole(
    snapshot: CrawlSnapshot, since: float = 0.0, label: Callable[[str], str] = str, width: int = console.ENDLESS
) -> list[Text]:
    """Return the summary lines of a crawl, wrapped at `width`: totals, and current waits."""
    figures = _figures(snapshot, since)
    waits = ""
    if snapshot.state == "stopping":
        waits = "stopping after the current requests"
    elif snapshot.waiting_for is not None:
        waits = f"waiting: {console.plain(snapshot.waiting_for)}{_trouble(snapshot, label)}"
    lines = [Text(line) for line in console.packed(figures, width)]
    lines[0].stylize("bold", 0, len(figures[0]))
    more = ["" if snapshot.before is None else _in_all(snapshot.totals), waits]
    lines += [
        Text(line, style="dim") for text in more for line in textwrap.wrap(text, max(1, width), break_on_hyphens=False)
    ]
    return lines if waits else [*lines, Text()]  # so that the view keeps its height between two waits


def _trouble(snapshot: CrawlSnapshot, label: Callable[[str], str] = str) -> str:
    """Return the host that is delayed and due first, with the reason; empty without one."""
    resting = [each for each in snapshot.hosts if each.why and each.state not in ("done", "fetching")]
    if not resting:
        return ""
    first = min(resting, key=lambda each: each.next_in or 0.0)
    name = " ".join(console.plain(label(first.host)).split())
    return f" ({name}: {first.why})"


def _in_all(totals: CrawlTotals) -> str:
    """Return the totals of all runs of a job."""
    words = [console.counted(totals.pages, "page"), *_missing(totals)]
    return f"in all runs: {' · '.join(words)}"


def _missing(totals: CrawlTotals, before: CrawlTotals | None = None) -> list[str]:
    """Return the numbers of skipped and failed URLs that are not 0, without those of earlier runs."""
    found = []
    for name in ("skipped", "failed"):
        count = sum(getattr(totals, name).values()) - (sum(getattr(before, name).values()) if before else 0)
        found += [f"{count:,} {name}"] if count else []
    return found


def _figures(snapshot: CrawlSnapshot, since: float = 0.0) -> list[str]:
    """Return the figures of this run, its pages first, consistent with the host rows."""
    before = snapshot.before
    pages = console.counted(snapshot.totals.pages - (before.pages if before else 0), "page")
    found = [pages if before is None else f"{pages} in this run"]
    if requisites := snapshot.totals.requisites - (before.requisites if before else 0):
        found.append(console.counted(requisites, "requisite"))
    if snapshot.rate:
        found.append(f"{snapshot.rate:.3g}/s")
    found += [f"{snapshot.queued:,} queued", *_missing(snapshot.totals, before)]
    found.append(span(round(snapshot.elapsed + since)))
    if snapshot.time_left and snapshot.state not in tuple(Ended):
        found.append(left_words(snapshot.time_left - since, snapshot.time_left_in_all))
    elif snapshot.time_left_at_least and snapshot.state not in tuple(Ended):
        found.append(f"at least {roughly(max(1.0, snapshot.time_left_at_least - since))} left")
    return found


def left_words(seconds: float, in_all: float | None) -> str:
    """Return the time left in words; `in_all` if the budget of the day ends first, else None."""
    left = f"about {span(max(1.0, seconds))} left"
    return left if in_all is None else f"{left} today, {roughly(in_all)} in all"


def line_of(snapshot: CrawlSnapshot) -> str:
    """Return the summary as one line, for output without a terminal."""
    words = _figures(snapshot)
    if snapshot.before is not None:
        words.append(_in_all(snapshot.totals))
    if snapshot.waiting_for is not None:
        words.append(f"{snapshot.waiting_for}{_trouble(snapshot)}")
    return ", ".join(words)


def headline(totals: CrawlTotals) -> str:
    """Return the totals as one line."""
    what = console.counted(totals.pages, "page") + (f" ({totals.cached:,} from the cache)" if totals.cached else "")
    if totals.requisites:
        what += f", {console.counted(totals.requisites, 'requisite')}"
    return f"{what}, {console.size(totals.bytes)} in {span(totals.seconds)}"


def show_reasons(terminal: Console, totals: CrawlTotals, examples: Mapping[str, Example]) -> None:
    """Print each reason of missing pages, with its count, an example URL and advice."""
    kinds = {"Skipped": totals.skipped, "Failed": totals.failed, "Outside the scope": totals.left_out}
    for title, counts in kinds.items():
        if not counts:
            continue
        terminal.print(Text(f"\n{title}", style="bold"))
        ranked = sorted(counts.items(), key=lambda each: -each[1])
        for reason, count in ranked[:MOST]:
            _show_reason(terminal, reason, count, examples.get(reason), counts is totals.left_out)
        if len(ranked) > MOST:
            terminal.print(Text(f"        and {len(ranked) - MOST} more reasons", style="dim"))


def _show_reason(terminal: Console, reason: str, count: int, example: Example | None, is_link: bool) -> None:
    found = describe(reason)
    terminal.print(Text.assemble((f"{count:>6,}", "yellow"), "  ", found.what))
    details = found.advice
    if example is not None:
        terminal.print(Text(f"{'':8}{console.plain(example.url)}"), soft_wrap=True)  # unwrapped, because users copy it
        if not is_link and not reason.startswith(Reason.HTTP_STATUS):  # their message would repeat the first line
            details = console.plain(example.message)
    if details:
        terminal.print(Padding.indent(Text(details, style="dim"), 8))


def show_resting(terminal: Console, hosts: Sequence[HostProgress]) -> None:
    """Print the hosts that queued URLs wait for, with reasons and times."""
    resting = [each for each in hosts if each.why and each.state != "done"]
    if not resting:
        return
    terminal.print(Text("\nWaiting", style="bold"))
    for each in resting[:MOST]:
        when = f"; next request in {span(each.next_in)}" if each.next_in else ""
        terminal.print(Text(f"{'':8}{console.plain(each.host)}"), soft_wrap=True)
        terminal.print(Padding.indent(Text(f"{each.why}{when}.", style="dim"), 8))
    if len(resting) > MOST:
        terminal.print(Text(f"        and {console.counted(len(resting) - MOST, 'more host')}", style="dim"))


def end_message(summary: CrawlSummary, options: Mapping[str, Any]) -> str:
    """Return how a crawl ended, with the command line's name of a limit that was reached."""
    forms = {"max_pages": "{:,}".format, "max_time": span, "max_bytes": console.size}
    if (form := forms.get(summary.ended)) is None:
        return summary.message
    limit, pages = options[summary.ended], summary.totals.pages
    whole = reached(LIMITS[summary.ended], form(limit))
    if summary.ended == "max_pages" and pages > limit:  # a lower limit than that of an earlier run
        whole = f"{whole[:-1]}; the job has {console.counted(pages, 'page')} already."
    return f"{whole} {STORE_IS_OUT}" if summary.message.endswith(STORE_IS_OUT) else whole


def resume_hint(summary: CrawlSummary, job: str) -> str | None:
    """Return a sentence on how to resume; None if no URL is left. The command line belongs below it."""
    if not summary.queued:
        return None
    left = f"{console.counted(summary.queued, 'URL')} left"
    if not job:
        return f"{left}, not saved. A crawl without --no-job can be resumed."
    when = "" if summary.resume_in is None else f" in {span(summary.resume_in)}"
    return f"{left}, saved. Resume{' with a higher limit' if summary.ended == 'max_pages' else when}:"


def resuming(arguments: Sequence[str], *, higher: bool = False, pages: int = 0, variables: Sequence[str] = ()) -> str:
    """Return the command line that resumes a crawl: without --restart, and with a doubled limit if `higher`.

    If the job has more `pages` than the limit, twice as many become the limit. `variables` are set before it:
    `NAME=value`.
    """
    found: list[str] = []
    for each in arguments:
        if each == "--restart":
            continue
        name, _, value = each.partition("=")
        if higher and name in LIMIT_OPTIONS and value.isdecimal():
            each = f"{name}={2 * max(int(value), pages)}"
        elif higher and found and found[-1] in LIMIT_OPTIONS and each.isdecimal():
            each = str(2 * max(int(each), pages))
        found.append(each)
    return f"{' '.join([*variables, 'curtsy'])} {shlex.join(mask_url(each) for each in found)}"


def exit_of(summary: CrawlSummary, seeds: Sequence[str], is_interrupted: bool, is_shared: bool = False) -> Exit:
    """Return the exit code of a crawl; single failed pages do not count.

    A shared crawl without pages is fine: other workers may have fetched them all.
    """
    totals = summary.totals
    if is_interrupted:
        return Exit.INTERRUPTED
    if summary.ended == "later":
        return Exit.LATER
    if summary.ended == "not_written" or summary.missing:
        return Exit.OUTPUT
    if totals.pages or is_shared:
        return Exit.FINE
    if totals.failed:
        is_answered = all(reason.startswith(Reason.HTTP_STATUS) for reason in totals.failed)
        return Exit.BAD_STATUS if is_answered and len(seeds) == 1 else Exit.ERROR
    if totals.skipped:
        return Exit.REFUSED
    if summary.message.endswith(STORE_IS_OUT):
        return Exit.LATER
    return Exit.FINE if summary.ended == "done" else Exit.ERROR  # no URL was fetched, failed or skipped
