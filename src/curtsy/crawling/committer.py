"""Harvest: what has come of claims, written to the outputs and to the frontier in one piece.

Outputs first, then the frontier, which keeps where each output ended together with what is done. If either fails, the
outputs are cut back to where they were, and all of it is written again when that works: nothing is lost, nothing twice.
A pipe cannot be cut back: it comes last, keeps what it could not send, and is not handed the same page again.
Where others work on the same frontier, what has become theirs meanwhile is left to them.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from curtsy.core.errors import CurtsyError
from curtsy.crawling.frontier.protocol import AsyncFrontier, Claimed, Deferred, Done, Ending, Failed, Found, Lapsed
from curtsy.crawling.job_values import TOTALS, pages_in, totals_of
from curtsy.crawling.outputs import Archive, Counted, Output, Stream, Written
from curtsy.crawling.page import CrawledPage, Skipped
from curtsy.crawling.progress import Totals
from curtsy.system.log import LibraryLogger, library_logger
from curtsy.system.threads import in_thread

_log: LibraryLogger = library_logger("crawl")

T = TypeVar("T")

MOST_LINKS = 1000
"""Links that are added in one piece. Of a page with more of them, they are added before it is written, some at a time,
so that others have their turn in between; killed meanwhile, it is fetched again, and they are known."""

MOST_LEFT = 10_000
"""Seeds that are not fetched of which the URLs are remembered."""

TOO_MANY_LINKS = "too_many_links"
"""Why links of a page were not taken: there were more than a page may have, or it takes too long to read them."""

LARGE = 1_000_000
"""Bytes of a body above which it is written in a thread, so that nothing else waits for that."""


class Finished(msgspec.Struct):
    """What has come of one claim."""

    claimed: Claimed
    end: Done | Failed | Deferred
    found: Sequence[Found] = ()
    page: CrawledPage | None = None
    skipped: Sequence[Skipped] = ()
    """URLs that no page came from: this one, and links that lead out of the scope."""

    learned: tuple[str, Mapping[str, str]] = ("", {})
    """An origin, and hrefs on its pages that need no second look once this is written, each with its link."""

    notes: Mapping[str, Any] = {}
    is_redirect: bool = False
    """Whether nothing but another URL came of it."""

    links_cut: int = 0
    """How many links of its page were not taken, at least."""

    redirect: CrawledPage | None = None
    """The answer that led elsewhere, or tried to: archives keep it, though it is no page."""

    more_left_out: Mapping[str, int] = {}
    """How many more links lead out of the scope than `skipped` names, by reason."""

    bytes: int = 0
    """Of bodies, over the network: also of those that are not kept."""

    heard_at: float | None = None
    """When admission said, in `end`, after how many seconds its host is due; None if that counts from the writing."""

    @property
    def is_large(self) -> bool:
        """Whether it takes long to write."""
        page = self.page
        size = len(self.skipped) if page is None else len(self.skipped) + len(page.links)
        return size > MOST_LINKS or (page is not None and len(page.body) > LARGE)

    def ending(self, now: float) -> Ending:
        """The same for the frontier, with seconds that count from `now`."""
        end = self.end
        if self.heard_at is not None:
            age = now - self.heard_at
            match end:
                case Done(after) if after:
                    end = Done(max(0.0, after - age))
                case Failed(reason, after) if after:
                    end = Failed(reason, max(0.0, after - age))
                case Deferred(seconds, last) if seconds:
                    end = Deferred(max(0.0, seconds - age), last)
        return Ending(self.claimed, end, self.found, self.page is not None)


def counted(totals: Totals, batch: Sequence[Finished], seconds: float) -> Totals:
    """The totals as they are when a batch has been written."""
    skipped, failed, left_out = dict(totals.skipped), dict(totals.failed), dict(totals.left_out)
    new = msgspec.structs.replace(totals, skipped=skipped, failed=failed, left_out=left_out, seconds=seconds)
    for finished in batch:
        page, url = finished.page, finished.claimed.url
        new.bytes += finished.bytes
        if finished.links_cut:
            left_out[TOO_MANY_LINKS] = left_out.get(TOO_MANY_LINKS, 0) + finished.links_cut
        if page is not None:
            is_kept = page.cache is not None
            new.cached += is_kept
            new.fetched += not is_kept
        elif isinstance(finished.end, Done) and not any(each.url == url for each in finished.skipped):
            new.redirected += finished.is_redirect
            new.sitemaps += not finished.is_redirect
        for each in finished.skipped:
            kind = left_out if each.url != url else skipped if each.is_refusal else failed
            kind[each.reason] = kind.get(each.reason, 0) + 1
        for reason, count in finished.more_left_out.items():
            left_out[reason] = left_out.get(reason, 0) + count
    return new


class Committer:
    """Where finished claims go."""

    def __init__(self, frontier: AsyncFrontier, outputs: Sequence[Output], who: str = "") -> None:
        """`who` tells this worker's notes from those of others on the same frontier."""
        self._frontier = frontier
        self._outputs = outputs
        self._archives = [each for each in outputs if isinstance(each, Archive)]
        self._may_stream = [each for each in outputs if isinstance(each, Stream)]
        self._who = who
        self._totals_name = TOTALS + who
        self._states: dict[str, Any] = {}
        """Where each output ends, as far as the frontier knows."""
        self._is_torn = False
        """Whether the outputs may hold more than the frontier knows of."""
        self._handed: set[tuple[str, int]] = set()
        """What was handed to a stream and is not done yet: its name, and the claim's ticket."""
        self.totals = self.before = Totals()
        """What the job has done, over all its runs; and had before this one."""
        self.left: dict[str, str] = {}
        """Seeds that are no URLs, or that the settings forbid in this run, each with why: the first thousands of them.
        They are not in the frontier."""
        self._left: Counter[str] = Counter()
        """How many these are, by reason."""
        self._others = 0
        """Pages of other workers on the same frontier."""

    @property
    def pages(self) -> int:
        """Pages of the job, over all who work on it."""
        return self.totals.pages + self._others

    @property
    def bytes_now(self) -> int:
        """Bytes of this run."""
        return self.totals.bytes - self.before.bytes

    async def open(self) -> dict[str, Any]:
        """Have all outputs go on where the frontier says; answers its notes. Raises StoreError if they are damaged."""
        notes = await self._frontier.notes()
        self.totals = self.before = totals_of(notes, self._totals_name)
        self._others = pages_in(notes, but=self._totals_name)
        for output in self._outputs:
            key = self._key(output)
            state = notes.get(key)
            output.open(state)
            self._states[key] = output.flush() if state is None else state
        if self._states:  # before the first page: what is there after a kill is known as our own then
            await self._frontier.note(self._states)
        return notes

    @property
    def has_stream(self) -> bool:
        """Whether an output is a pipe or a terminal, which may be closed at any moment."""
        return any(output.is_stream for output in self._may_stream)

    def check(self) -> None:
        """Raise NotWritten if the reader of a stream has closed it."""
        for output in self._may_stream:
            output.check()

    def written(self) -> tuple[Written, ...]:
        """Say what the outputs really hold."""
        return tuple(output.written() for output in self._outputs if isinstance(output, Counted))

    async def give_back(self, batch: Sequence[Finished]) -> None:
        """Have the URLs put back that are not written, and will not be in this run."""
        await self._frontier.conclude([Ending(each.claimed, Deferred(0.0)) for each in batch])

    def leave(self, seed: Skipped) -> None:
        """Tell the outputs of a seed that is not asked for in this run."""
        self._left[seed.reason] += 1
        if len(self.left) < MOST_LEFT:
            self.left[seed.url] = seed.reason
        for output in self._outputs:
            output.skipped(seed)

    def final(self, elapsed: float) -> Totals:
        """The totals at the end of a run of so many seconds, the seeds included that were left."""
        skipped = dict(self.totals.skipped)
        for reason, count in self._left.items():
            skipped[reason] = skipped.get(reason, 0) + count
        return msgspec.structs.replace(self.totals, skipped=skipped, seconds=self.before.seconds + elapsed)

    async def look_at_others(self) -> None:
        """See how many pages the other workers have by now."""
        self._others = pages_in(await self._frontier.notes(), but=self._totals_name)

    async def is_ready(self, finished: Finished) -> bool:
        """Whether a claim may be written; if too many links were found on its page, some of them are added instead."""
        for place, found in enumerate(finished.found):
            if len(found.urls) > MOST_LINKS:
                await self._frontier.add(msgspec.structs.replace(found, urls=found.urls[:MOST_LINKS]))
                rest = msgspec.structs.replace(found, urls=found.urls[MOST_LINKS:])
                finished.found = (*finished.found[:place], rest, *finished.found[place + 1 :])
                return False
        return True

    async def write(self, batch: Sequence[Finished], now: float, elapsed: float) -> Sequence[Finished]:
        """Write what is finished by now, `elapsed` seconds into this run, all or nothing.

        Answers what of it was written: all but what has become another's, because we stood still for too long.
        """
        while True:
            batch = await self._ours(batch)
            try:
                await self._write(batch, now, elapsed)
            except Lapsed:
                continue
            return batch

    async def _ours(self, batch: Sequence[Finished]) -> Sequence[Finished]:
        valid = await self._frontier.keep([finished.claimed for finished in batch])
        if not all(valid):
            _log.warning(
                "This process stood still, or was cut off from its server, for longer than its lease, and others took "
                f"over: {valid.count(False)} of {len(valid)} URLs are left to them."
            )
        return list(itertools.compress(batch, valid))

    async def _write(self, batch: Sequence[Finished], now: float, elapsed: float) -> None:
        if self._is_torn:
            self._mend()
        self._is_torn = True
        seconds = self.before.seconds + elapsed
        if any(finished.is_large for finished in batch):
            totals, states = await _whole(in_thread(self._put, batch, seconds))
        else:
            totals, states = self._put(batch, seconds)
        notes: dict[str, Any] = {**states, self._totals_name: msgspec.to_builtins(totals)}
        for finished in batch:
            notes.update(finished.notes)
        endings = [each.ending(now) for each in batch]
        await self._frontier.conclude(endings, notes)
        self._states.update(states)
        self._is_torn = False
        self._handed.clear()
        self.totals = totals

    def _put(self, batch: Sequence[Finished], seconds: float) -> tuple[Totals, dict[str, Any]]:
        """Hand a batch to the outputs; answers what the totals are then, and where each output ends."""
        totals = counted(self.totals, batch, seconds)
        states = {}
        streams: list[Output] = [each for each in self._may_stream if each.is_stream]
        for output in [each for each in self._outputs if each not in streams] + streams:
            for finished in batch:
                handed = output.name, finished.claimed.ticket
                if handed in self._handed:
                    continue
                if output in streams:
                    self._handed.add(handed)
                self._hand_to(output, finished)
            states[self._key(output)] = output.flush()
        return totals, states

    def _hand_to(self, output: Output, finished: Finished) -> None:
        if finished.page is not None:
            output.page(finished.page)
        elif finished.redirect is not None:
            for archive in self._archives:
                if archive is output:
                    archive.redirect(finished.redirect)
        for skipped in finished.skipped:
            output.skipped(skipped)

    def _mend(self) -> None:
        """Cut the outputs back to what the frontier knows of."""
        streams: list[Output] = [each for each in self._may_stream if each.is_stream]
        for output in [each for each in self._outputs if each not in streams]:
            output.close()
            output.open(self._states[self._key(output)])

    def close(self) -> CurtsyError | None:
        """End all outputs; answers what went wrong, if anything did."""
        wrong = None
        for output in self._outputs:
            try:
                output.close()
            except CurtsyError as error:
                wrong = error
        return wrong

    def _key(self, output: Output) -> str:
        return f"output{self._who}:{output.name}"


async def _whole(work: Coroutine[Any, Any, T]) -> T:
    """What comes of work in a thread; whoever is called off meanwhile waits for its end."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    finally:
        await asyncio.wait([task])
