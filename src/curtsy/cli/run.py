"""Conduct: run a crawl from the command line: its signals, what is shown while it runs, and its exit code."""

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
"""Seconds between two looks at a crawl, for a terminal."""

SHARE = 20
"""How much longer than a look the time to the next one is at least."""

LINES = 10.0
"""Seconds between two lines where there is no terminal."""

AT_ONCE = 3.0
"""Seconds that are left to write down what is finished, after a second signal."""


class Teller(Protocol):
    """Whoever tells people how a crawl is doing."""

    def show(self, snapshot: Snapshot) -> None:
        """Show how far it has come."""
        ...

    def say(self, message: str) -> None:
        """Say something besides."""
        ...


class Lines:
    """Tells by lines on standard error, one every few seconds."""

    def __init__(self, every: float = LINES) -> None:
        self._every = every
        self._told_at = time.monotonic()

    def show(self, snapshot: Snapshot) -> None:
        """Write a line, if the last is a while ago."""
        if time.monotonic() - self._told_at >= self._every:
            self._told_at = time.monotonic()
            console.say(line_of(snapshot))

    def say(self, message: str) -> None:
        """Write it."""
        console.say(message)


class Board:
    """Tells by a live view on a terminal; what is said besides goes above it."""

    def __init__(self, live: Live, view: CrawlView) -> None:
        self._live = live
        self._view = view

    def show(self, snapshot: Snapshot) -> None:
        """Have it drawn."""
        self._view.show(snapshot)

    def say(self, message: str) -> None:
        """Write it above the view."""
        self._live.console.print(f"curtsy: {console.plain(message)}", soft_wrap=True)


@contextmanager
def telling(is_terminal: bool, view: CrawlView | None = None) -> Iterator[Teller]:
    """Whoever tells, for as long as the crawl runs; nothing of a live view stays."""
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
    """What signals do to a crawl: the first has it end in good order, the second at once (U17, F46)."""

    def __init__(self, crawl: AsyncCrawl, teller: Teller) -> None:
        self._crawl = crawl
        self._teller = teller
        self.count = 0
        """Signals so far."""
        loop = asyncio.get_running_loop()
        try:
            for each in SIGNALS:
                loop.add_signal_handler(each, self)
        except NotImplementedError:  # Windows: asyncio cancels on Ctrl-C, and closing the crawl does the rest
            pass

    def __call__(self) -> None:
        """A signal has come."""
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
    """Run a crawl to its end, and show it meanwhile; what came of it, and whether a signal ended it."""
    stopping = Stopping(crawl, teller)
    running = asyncio.ensure_future(crawl.run())
    try:
        while not running.done():
            began = time.monotonic()
            try:
                teller.show(await crawl.snapshot())
            except CurtsyError:  # the crawl itself says what is wrong
                pass
            # Of very many hosts a look takes a while, and is worth only a small part of the time.
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
    assert crawl.summary is not None  # also of one that could not write what had come
    return crawl.summary, stopping.count > 0


def exit_of(summary: Summary, seeds: Sequence[str], is_interrupted: bool, is_shared: bool = False) -> Exit:
    """The exit code of a crawl: what failed here and there is no failure of the whole.

    In one that is shared, others may have had all the pages.
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
    return Exit.FINE if summary.ended == "done" else Exit.ERROR  # of a shared job, others have done it all


def is_watched() -> bool:
    """Whether there is somebody at a terminal."""
    return sys.stderr.isatty()
