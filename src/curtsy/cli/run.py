"""Run of a crawl from the command line: signals, progress display and exit code."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from curtsy.cli import console
from curtsy.cli.exits import Exit
from curtsy.cli.live import CrawlView, line_of
from curtsy.cli.logs import logging_above
from curtsy.cli.running import PATIENCE, SIGNALS, leave
from curtsy.core.errors import CurtsyError, Reason

if TYPE_CHECKING:
    from rich.live import Live

    from curtsy.crawling.crawl import AsyncCrawl
    from curtsy.crawling.progress import Snapshot, Summary

LOOKS = 0.25
"""Seconds between two snapshots of a crawl on a terminal."""

SHARE = 20
"""Minimum ratio of the time between snapshots to the duration of one."""

LINES = 10.0
"""Seconds between two lines without a terminal."""

AT_ONCE = 3.0
"""Seconds to save finished work after a second signal."""


class Teller(Protocol):
    """Progress display of a crawl."""

    def show(self, snapshot: Snapshot) -> None:
        """Show a snapshot."""
        ...

    def say(self, message: str) -> None:
        """Show a message."""
        ...


class Lines:
    """Display by lines on standard error, one every few seconds."""

    def __init__(self, every: float = LINES) -> None:
        self._every = every
        self._told_at = time.monotonic()

    def show(self, snapshot: Snapshot) -> None:
        """Write a line if the last one is old enough."""
        if time.monotonic() - self._told_at >= self._every:
            self._told_at = time.monotonic()
            console.say(line_of(snapshot))

    def say(self, message: str) -> None:
        """Write a message."""
        console.say(message)


class Board:
    """Display by a live view on a terminal; messages appear above it."""

    def __init__(self, live: Live, view: CrawlView) -> None:
        self._live = live
        self._view = view

    def show(self, snapshot: Snapshot) -> None:
        """Pass a snapshot to the view."""
        self._view.show(snapshot)

    def say(self, message: str) -> None:
        """Write a message above the view."""
        self._live.console.print(f"curtsy: {console.plain(message)}", soft_wrap=True)


@contextmanager
def telling(is_terminal: bool, view: CrawlView | None = None) -> Iterator[Teller]:
    """Provide a display while the crawl runs; a live view is erased at the end."""
    if not is_terminal:
        yield Lines()
        return
    from rich.live import Live

    view = view or CrawlView()
    live = Live(
        view, console=console.err(), refresh_per_second=8, transient=True, redirect_stdout=False, redirect_stderr=False
    )  # fmt: skip
    with live, logging_above(live.console):
        yield Board(live, view)


class Stopping:
    """Signal handler of a crawl: the first signal stops it gracefully, the second at once (U17, F46)."""

    def __init__(self, crawl: AsyncCrawl, teller: Teller) -> None:
        self._crawl = crawl
        self._teller = teller
        self.count = 0
        """Number of signals so far."""
        loop = asyncio.get_running_loop()
        try:
            for each in SIGNALS:
                loop.add_signal_handler(each, self)
        except NotImplementedError:  # Windows: asyncio cancels on Ctrl-C; closing the crawl stops it
            pass

    def __call__(self) -> None:
        """Handle a signal."""
        self.count += 1
        loop = asyncio.get_running_loop()
        if self.count == 1:
            self._teller.say("stopping: what is under way may end. Once more ends it at once.")
            loop.call_later(PATIENCE, leave)
        elif self.count == 2:
            loop.call_later(AT_ONCE, leave)
        else:
            leave()
        self._crawl.stop()


async def conduct(crawl: AsyncCrawl, teller: Teller, every: float = LOOKS) -> tuple[Summary, bool]:
    """Run and display a crawl; return its summary, and whether a signal ended it."""
    stopping = Stopping(crawl, teller)
    running = asyncio.ensure_future(crawl.run())
    try:
        while not running.done():
            began = time.monotonic()
            try:
                teller.show(await crawl.snapshot())
            except CurtsyError:  # the crawl itself reports the error
                pass
            # A snapshot of very many hosts is slow; it may take only 1/SHARE of the time.
            await asyncio.wait([running], timeout=max(every, SHARE * (time.monotonic() - began)))
        teller.show(await crawl.snapshot())
    finally:
        if not running.done():
            crawl.stop()
            crawl.stop()
            await asyncio.wait([running])
    error = running.exception()
    if error is not None and (crawl.summary is None or not isinstance(error, CurtsyError)):
        raise error
    assert crawl.summary is not None  # also set if an output failed
    return crawl.summary, stopping.count > 0


def exit_of(summary: Summary, seeds: Sequence[str], is_interrupted: bool, is_shared: bool = False) -> Exit:
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
    return Exit.FINE if summary.ended == "done" else Exit.ERROR  # no URL was fetched, failed or skipped


def is_watched() -> bool:
    """Return whether standard error is a terminal."""
    return sys.stderr.isatty()
