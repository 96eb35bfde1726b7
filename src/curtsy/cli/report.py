"""Report of a crawl as text: totals, reasons of failures, and how to resume."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.padding import Padding
from rich.text import Text

from curtsy.cli import console
from curtsy.core.errors import Reason
from curtsy.core.messages import describe, reached, span
from curtsy.core.secrets import mask_url

if TYPE_CHECKING:
    from rich.console import Console

    from curtsy.crawling.outputs.skipped import Example
    from curtsy.crawling.progress import CrawlSummary, CrawlTotals, HostProgress

MOST = 12
"""Maximum number of reasons shown of each kind: those with the most URLs."""


def headline(totals: CrawlTotals) -> str:
    """Return the totals as one line."""
    words = console.counted(totals.pages, "page")
    if totals.cached:
        words += f" ({totals.cached:,} from the cache)"
    return f"{words}, {console.size(totals.bytes)} in {span(totals.seconds)}"


def show_reasons(terminal: Console, totals: CrawlTotals, examples: Mapping[str, Example]) -> None:
    """Print each reason of missing pages, with its count, an example URL and advice."""
    for title, counts in (
        ("Skipped", totals.skipped),
        ("Failed", totals.failed),
        ("Outside the scope", totals.left_out),
    ):
        if not counts:
            continue
        terminal.print()
        terminal.print(Text(title, style="bold"))
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
    terminal.print()
    terminal.print(Text("Waiting", style="bold"))
    for each in resting[:MOST]:
        when = f"; next request in {span(each.next_in)}" if each.next_in else ""
        terminal.print(Text(f"{'':8}{console.plain(each.host)}"), soft_wrap=True)
        terminal.print(Padding.indent(Text(f"{each.why}{when}.", style="dim"), 8))
    if len(resting) > MOST:
        terminal.print(Text(f"        and {console.counted(len(resting) - MOST, 'more host')}", style="dim"))


def end_message(summary: CrawlSummary, options: Mapping[str, Any]) -> str:
    """Return how a crawl ended, with the command line's name of a limit that was reached."""
    match summary.ended:
        case "max_pages":
            return reached("--max-pages", f"{options['max_pages']:,}")
        case "max_time":
            return reached("--max-time", span(options["max_time"]))
        case "max_bytes":
            return reached("--max-bytes", console.size(options["max_bytes"]))
        case _:
            return summary.message


def resume_hint(summary: CrawlSummary, job: str | None) -> str | None:
    """Return a sentence on how to resume; None if no URL is left. The command line belongs below it."""
    if not summary.queued:
        return None
    left = f"{console.counted(summary.queued, 'URL')} left"
    if job is None:
        return f"{left}, not saved. A crawl with --job NAME can be resumed."
    when = "" if summary.resume_in is None else f" in {span(summary.resume_in)}"
    if summary.ended == "max_pages":
        when = " with a higher limit"
    return f"{left}, saved. Resume{when}:"


LIMIT_OPTIONS = ("--max-pages", "--limit")


def command(arguments: Sequence[str], *, higher: bool = False) -> str:
    """Return the command line that resumes a crawl: without --restart, and with a doubled limit if `higher`."""
    found: list[str] = []
    for each in arguments:
        if each in ("--restart", "--fresh"):
            continue
        name, _, value = each.partition("=")
        if higher and name in LIMIT_OPTIONS and value.isdecimal():
            each = f"{name}={2 * int(value)}"
        elif higher and found and found[-1] in LIMIT_OPTIONS and each.isdecimal():
            each = str(2 * int(each))
        found.append(each)
    return f"curtsy {shlex.join(mask_url(each) for each in found)}"
