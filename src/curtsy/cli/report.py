"""Report of a crawl as text: totals, reasons of failures, and how to resume."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from rich.padding import Padding
from rich.text import Text

from curtsy.cli import console
from curtsy.cli.messages import words_for
from curtsy.core.errors import Reason
from curtsy.core.messages import span
from curtsy.core.secrets import mask_url

if TYPE_CHECKING:
    from rich.console import Console

    from curtsy.crawling.outputs.examples import Example
    from curtsy.crawling.progress import HostProgress, Summary, Totals

MOST = 12
"""Maximum number of reasons shown of each kind: those with the most URLs."""

_WHY = re.compile(
    r"(?:not (?:fetching|keeping) \S+: |\S+ could not be (?:fetched|read)(?: after \d+ tries)?: |"
    r"\S+ (?=answered with |is not for us))(.+?)(?:\. [A-Z].*|\.?$)",
    re.DOTALL,
)


def why_of(message: str) -> str:
    """Return the cause in a message, without URL and advice; empty if the message has another form."""
    found = _WHY.match(message)
    return "" if found is None else console.plain(found[1])


def headline(totals: Totals) -> str:
    """Return the totals as one line."""
    words = console.counted(totals.pages, "page")
    if totals.cached:
        words += f" ({totals.cached:,} of them from the cache)"
    return f"{words}, {console.size(totals.bytes)} in {span(totals.seconds)}"


def show_reasons(terminal: Console, totals: Totals, examples: Mapping[str, Example]) -> None:
    """Print each reason of missing pages, with count, an example URL and advice."""
    for title, counts in (
        ("Left alone", totals.skipped),
        ("Failed", totals.failed),
        ("Not part of the crawl", totals.left_out),
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
    words = words_for(reason)
    terminal.print(Text.assemble((f"{count:>6,}", "yellow"), "  ", words.what))
    more = [words.advice] if words.advice else []
    if example is not None:
        terminal.print(Text(f"{'':8}{console.plain(example.url)}"), soft_wrap=True)  # unwrapped, because users copy it
        is_told = is_link or reason.startswith(Reason.HTTP_STATUS)  # the first line says all
        if not is_told and (why := why_of(example.message)):
            more.insert(0, f"{why}.")
    if more:
        terminal.print(Padding.indent(Text(" ".join(more), style="dim"), 8))


def show_resting(terminal: Console, hosts: Sequence[HostProgress]) -> None:
    """Print the hosts that queued URLs wait for, with reasons and times."""
    resting = [each for each in hosts if each.why and each.state != "done"]
    if not resting:
        return
    terminal.print()
    terminal.print(Text("Waiting", style="bold"))
    for each in resting[:MOST]:
        when = f"; it may be asked again in {span(each.next_in)}" if each.next_in else ""
        terminal.print(Text(f"{'':8}{console.plain(each.host)}"), soft_wrap=True)
        terminal.print(Padding.indent(Text(f"{why_of(each.why) or each.state}{when}.", style="dim"), 8))
    if len(resting) > MOST:
        terminal.print(Text(f"        and {console.counted(len(resting) - MOST, 'more host')}", style="dim"))


def going_on(summary: Summary, job: str | None) -> str | None:
    """Return a sentence on how to resume; None if nothing is left. The command line belongs below it."""
    if not summary.queued:
        return None
    left = f"{console.counted(summary.queued, 'URL')} {'is' if summary.queued == 1 else 'are'} left"
    if job is None:
        return f"{left}, and not kept: it was a crawl without a name. With --job NAME it could be gone on with."
    when = "" if summary.resume_in is None else f" in {span(summary.resume_in)} at the earliest"
    if summary.ended == "max_pages":
        when = " with a higher limit"
    return f"{left}, and kept. Go on{when}:"


def command(arguments: Sequence[str], *, higher: bool = False) -> str:
    """Return the command line that resumes a crawl: without --fresh, and with a doubled limit if `higher`."""
    found: list[str] = []
    is_limit = False
    for each in arguments:
        if each == "--fresh":
            continue
        if is_limit and higher and each.isdecimal():
            each = str(2 * int(each))
        is_limit = each == "--limit"
        if higher and each.startswith("--limit=") and each[8:].isdecimal():
            each = f"--limit={2 * int(each[8:])}"
        found.append(each)
    return f"curtsy {shlex.join(mask_url(each) for each in found)}"
