"""Commit of finished claims to the outputs and the frontier.

Outputs are written first. Then the frontier records the ended claims together with the end of each output. If either
step fails, the outputs are truncated to their recorded ends, and the batch is written again later. So no page is lost
or duplicated. A pipe cannot be truncated: it is written last, keeps its unsent bytes, and gets each page once. In a
shared frontier, claims that another worker took over meanwhile are skipped.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import Container, Coroutine, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import msgspec

from curtsy.core.errors import CurtsyError
from curtsy.crawling.frontier.protocol import PAGES, AsyncFrontier, Deferred, Done, Ending, Lapsed
from curtsy.crawling.jobs import TOTALS, WorkerId, spool_of, totals_of
from curtsy.crawling.output_notes import COMPLETE, OUTPUTS, Coverage, Fields, check_fields, coverage, read_notes
from curtsy.crawling.outputs.parts import Parts
from curtsy.crawling.outputs.protocol import FileOutput, Output, Written
from curtsy.crawling.outputs.skipped import Examples
from curtsy.crawling.progress import CrawlTotals
from curtsy.crawling.results import MOST_LINKS, Finished, SkippedUrl
from curtsy.system.log import LibraryLogger, library_logger
from curtsy.system.threads import in_thread

_log: LibraryLogger = library_logger("crawl")

T = TypeVar("T")

GATHER, GATHERED = 5.0, 64 << 20
"""Seconds since the last write, and bytes, after which gathered results are written."""

MOST_LEFT = 10_000
"""Maximum number of remembered URLs of seeds that are not fetched."""

TOO_MANY_LINKS = "too_many_links"
"""Reason code for dropped links: the page exceeds the link limit or takes too long to parse."""


def _is_counted(finished: Finished) -> bool:
    """Return whether a result without a page counts as what it is: it is neither skipped nor written before."""
    is_skipped = any(each.url == finished.claimed.url for each in finished.skipped)
    return isinstance(finished.end, Done) and not is_skipped and not finished.claimed.is_written


def counted(totals: CrawlTotals, batch: Sequence[Finished], seconds: float) -> CrawlTotals:
    """Return the totals after a batch is written."""
    new = msgspec.structs.replace(totals, seconds=seconds)
    new.skipped, new.failed, new.left_out = dict(totals.skipped), dict(totals.failed), dict(totals.left_out)
    for finished in batch:
        page, url = finished.page, finished.claimed.url
        new.bytes += finished.bytes
        if page is not None:
            new.cached += page.cache is not None
            new.fetched += page.cache is None
            new.extract_errors += page.extract_error is not None
        elif _is_counted(finished):
            new.redirected += finished.redirect is not None
            new.requisites += finished.requisite is not None
            new.sitemaps += finished.redirect is None and finished.requisite is None
        for each in finished.skipped:
            kind = new.left_out if each.url != url else new.skipped if each.is_refusal else new.failed
            kind[each.reason] = kind.get(each.reason, 0) + 1
        dropped = {TOO_MANY_LINKS: finished.links_cut} if finished.links_cut else {}
        for reason, count in (*finished.more_left_out.items(), *dropped.items()):
            new.left_out[reason] = new.left_out.get(reason, 0) + count
    return new


def without_links(batch: Sequence[Finished], known: Container[str]) -> Sequence[Finished]:
    """Return the batch without the links outside the crawl that are not `known` as new, each link once."""
    left, found = set[str](), []
    for each in batch:
        own = each.claimed.url
        rows = [row for row in each.skipped if row.url == own or (row.url in known and row.url not in left)]
        left.update(row.url for row in rows if row.url != own)
        found.append(each if len(rows) == len(each.skipped) else msgspec.structs.replace(each, skipped=rows))
    return found


class Attempt(NamedTuple):
    """Batch that is in the outputs, and that the frontier is to record."""

    endings: Sequence[Ending]
    states: Mapping[str, Any]
    """End of each output after the batch."""

    totals: CrawlTotals
    notes: Mapping[str, Any]
    """What the frontier stores with the endings, the states and totals included."""

    reported: Sequence[str]
    """Links outside the crawl and seeds that are in the outputs now."""


class Leftover(NamedTuple):
    """Spools of a process that was killed and does not run."""

    who: WorkerId
    outputs: Sequence[FileOutput]

    async def store(self, frontier: AsyncFrontier) -> None:
        """Store what the process has recorded, as its next run would, and release its name."""
        try:
            notes = await frontier.notes(self.who.name)
            for output in self.outputs:
                committer = Committer(frontier, [output], f":{self.who.name}")
                if committer.has_state(notes):
                    await committer.open(notes)
                    error, closing = await committer.finish(), committer.close()
                    if error or closing:
                        _log.warning(f"{error or closing} The pages of a worker that was killed wait on this machine.")
        finally:
            self.who.close()


def leftovers(outputs: Sequence[Output], who: WorkerId) -> list[Leftover]:
    """Return the spools in a job's folder of the processes that do not run, for outputs that are not open yet."""
    parts, found = [output for output in outputs if isinstance(output, Parts)], []
    for other in who.idle() if parts else ():
        folder, name = other.folder, other.name
        twins = [each.of_worker(spool_of(folder, each.name, name), folder.name, name) for each in parts]
        found.append(Leftover(other, [each for each in twins if each is not None]))
    return found


class Committer:
    """Writer of finished claims."""

    def __init__(self, frontier: AsyncFrontier, outputs: Sequence[Output], who: str = "") -> None:
        """Create a committer. `who` distinguishes this worker's notes from those of others on the same frontier."""
        self._frontier = frontier
        self._outputs = outputs
        self._files = [each for each in outputs if isinstance(each, FileOutput)]
        self._who = who
        is_kept = any(not isinstance(each, Examples) for each in outputs)
        self._is_logged = any(map(_may_be_lost, outputs)) or (not is_kept and not who)
        """True if a page may be lost after it is done, so that the frontier records it for `requeue`.

        Pages without an output are recorded too, except on a server, whose memory they would take.
        """
        self._totals_name = TOTALS + who
        self._entries: dict[str, int] = {}
        """Entries of each output at the start of the run."""
        self._coverage = Coverage()
        self._states: dict[str, Any] = {}
        """End of each output, as recorded in the frontier."""
        self._is_torn = False
        """True if the outputs may hold more than the frontier has recorded."""
        self._attempt: Attempt | None = None
        """Batch of which it is unknown whether the frontier has recorded it."""
        self._handed: set[tuple[str, int]] = set()
        """Entries written to a stream but not committed yet: output name and claim ticket."""
        self.totals = self.before = CrawlTotals()
        """Work of the job over all its runs, and before this run."""
        self.left: dict[str, str] = {}
        """Seeds that are invalid URLs or forbidden by the settings of this run, each with its reason. At most
        MOST_LEFT. They are not in the frontier."""
        self._left: Counter[str] = Counter()
        """Number of all such seeds, by reason."""
        self._left_rows: dict[str, None] = {}
        """Those that are in the outputs now but not yet marked as reported; at most MOST_LEFT."""
        self._late: set[str] = set()
        """Names of outputs that this run has added."""

    @property
    def pages(self) -> int:
        """Return the number of pages of the job, over all workers."""
        return max(self.totals.pages, self._frontier.pages)

    @property
    def bytes_now(self) -> int:
        """Return the body bytes of this run."""
        return self.totals.bytes - self.before.bytes

    def has_state(self, notes: Mapping[str, Any]) -> bool:
        """Return whether an earlier run has recorded the end of an output."""
        return any(self._key(output) in notes for output in self._outputs)

    async def begin(self, notes: Mapping[str, Any], extract: Fields) -> None:
        """Open all outputs for a run that extracts some fields, and report those that lack pages of earlier runs.

        Raises NotWritten for an output with other fields.
        """
        check_fields(self._outputs, extract, notes, self._who)
        for output in self._files:
            output.is_complete = bool(notes.get(COMPLETE + self._who))
        await self.open(notes)
        self._entries = {each.name: each.written().entries for each in self._files}
        names = [each.name for each in self._outputs if each.name != Examples.name]
        known = read_notes(notes, self._who)
        self._coverage = coverage(known, names, extract, self.totals)
        for message in self._coverage.told:
            _log.warning(message)
        own = {OUTPUTS: msgspec.to_builtins(self._coverage.notes), COMPLETE: False}
        if any(notes.get(name + self._who) != value for name, value in own.items()):
            await self._frontier.note({name + self._who: value for name, value in own.items()})

    async def open(self, notes: Mapping[str, Any]) -> None:
        """Resume all outputs at the ends in the frontier's notes. Raises StoreError if the notes are damaged."""
        self.totals = self.before = totals_of(notes, self._totals_name)
        for output in self._outputs:
            state = notes.get(key := self._key(output))
            if state is None:
                self._late.add(output.name)
            await _whole(in_thread(output.open, state)) if _is_rolled(output) else output.open(state)
            self._states[key] = output.flush()  # of a cut file, the end that it has now
        if self._states:  # noted before the first page, so that after a kill the files are recognized as ours
            await self._frontier.note(self._states)
            self._tell_recorded()
        if self._who:  # the pages of all workers, in case an earlier version left only their totals
            names = [name for name in notes if name.startswith(TOTALS)]
            await self._frontier.note(
                {PAGES + name.removeprefix(TOTALS): totals_of(notes, name).pages for name in names}
            )

    @property
    def is_watched(self) -> bool:
        """Return whether `check` must be called regularly: for a stream that may be closed, or an output in parts."""
        return any(each.is_stream or each.is_rolled for each in self._files)

    def is_due(self, finished: Sequence[Finished], waited: float, *, is_last: bool) -> bool:
        """Return whether a batch is to be written now, `waited` seconds after the last one.

        If each write stores a part, results gather meanwhile, unless no request is in flight (`is_last`).
        """
        if not finished:
            return any(each.is_behind for each in self._files)
        if is_last or not any(each.is_stored_at_once for each in self._files):
            return True
        return waited >= GATHER or sum(each.bytes for each in finished) >= GATHERED

    def check(self) -> None:
        """Raise NotWritten if the reader of a stream has closed it. Continue to store parts."""
        for output in self._files:
            output.check()

    def written(self) -> tuple[Written, ...]:
        """Return the actual contents of the outputs."""
        return tuple(
            msgspec.structs.replace(
                output.written(),
                before=self._entries.get(output.name, 0),
                earlier=self._coverage.earlier(output.name),
            )
            for output in self._files
        )

    async def finish(self, seconds: float | None = None) -> CurtsyError | None:
        """Complete all outputs, store and list their parts; return the error if that failed.

        Then the pages are recorded, and wait on this machine for the next run.
        """
        try:
            await self._finish([output for output in self._files if output.is_rolled])
            for output in self._files:
                await _whole(in_thread(output.finish, seconds))
        except CurtsyError as error:
            return error
        return None

    async def _finish(self, rolled: Sequence[FileOutput]) -> None:
        for output in rolled:
            output.seal()
        for _ in range(2 if rolled else 0):  # first the parts, then the manifest
            states = {self._key(output): await _whole(in_thread(output.flush)) for output in rolled}
            await self._frontier.note(states)
            self._states.update(states)
            for output in rolled:
                output.recorded()
                await _whole(in_thread(output.deliver))

    def _tell_recorded(self) -> None:
        for output in self._files:
            output.recorded()

    async def give_back(self, batch: Sequence[Finished]) -> None:
        """Put back URLs that will not be written in this run."""
        batch = await self._settle(batch)
        await self._frontier.conclude([Ending(each.claimed, Deferred(0.0)) for each in batch])

    async def leave(self, seeds: Sequence[SkippedUrl]) -> None:
        """Report seeds that are not requested in this run to the outputs that do not have them from an earlier run."""
        new = set(await self._frontier.unreported(seed.url for seed in seeds) if seeds else ())
        for seed in seeds:
            self._left[seed.reason] += 1
            if len(self.left) < MOST_LEFT:
                self.left[seed.url] = seed.reason
            if seed.url in self._left_rows:
                continue
            if len(self._left_rows) < MOST_LEFT:
                self._left_rows[seed.url] = None
            for output in self._outputs:
                if seed.url in new or output.name in self._late:
                    output.skipped(seed)

    def final(self, elapsed: float) -> CrawlTotals:
        """Return the totals at the end of a run, including skipped seeds. `elapsed` is in seconds."""
        skipped = dict(Counter(self.totals.skipped) + self._left)
        return msgspec.structs.replace(self.totals, skipped=skipped, seconds=self.before.seconds + elapsed)

    def final_note(self, elapsed: float) -> dict[str, Any]:
        """Return the notes at the end: totals with the time after the last commit and without skipped seeds."""
        totals = msgspec.structs.replace(self.totals, seconds=self.before.seconds + elapsed)
        is_complete = not self._is_torn and not self._left  # skipped seeds are written without a flush
        return {self._totals_name: msgspec.to_builtins(totals), COMPLETE + self._who: is_complete}

    async def is_ready(self, finished: Finished) -> bool:
        """Return whether a claim can be written. If its page has too many links, add some of them instead."""
        for place, found in enumerate(finished.found):
            if len(found.urls) > MOST_LINKS:
                await self._frontier.add(msgspec.structs.replace(found, urls=found.urls[:MOST_LINKS]))
                rest = msgspec.structs.replace(found, urls=found.urls[MOST_LINKS:])
                finished.found = (*finished.found[:place], rest, *finished.found[place + 1 :])
                return False
        return True

    async def write(self, batch: Sequence[Finished], now: float, elapsed: float) -> Sequence[Finished]:
        """Write a batch completely or not at all; return the claims that were written.

        `elapsed` is the duration of this run in seconds. Claims whose lease expired and that another worker took over
        are skipped.
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
                "This process was suspended, or disconnected from its server, for longer than its lease. Others took "
                f"over: {valid.count(False)} of {len(valid)} URLs are left to them."
            )
        return list(itertools.compress(batch, valid))

    async def _write(self, batch: Sequence[Finished], now: float, elapsed: float) -> None:
        batch, before = await self._settle(batch), batch
        if before and not batch:
            return
        links = [row.url for each in batch for row in each.skipped if row.url != each.claimed.url]
        reported = await self._frontier.unreported(links) if links else []
        batch = without_links(batch, frozenset(reported))
        if self._is_torn:
            await _whole(in_thread(self._mend))
        self._is_torn, self._attempt = True, None
        seconds = self.before.seconds + elapsed
        if any(finished.is_large for finished in batch) or any(output.is_durable for output in self._files):
            totals, states = await _whole(in_thread(self._put, batch, seconds))
        else:
            totals, states = self._put(batch, seconds)
        notes: dict[str, Any] = {**states, self._totals_name: msgspec.to_builtins(totals)}
        if self._who:
            notes[PAGES + self._who] = totals.pages
        for finished in batch:
            notes.update(finished.notes)
        endings = [each.ending(now, is_logged=self._is_logged) for each in batch]
        await self._record(Attempt(endings, states, totals, notes, [*reported, *self._left_rows]))

    async def _settle(self, batch: Sequence[Finished]) -> Sequence[Finished]:
        """Complete an attempt whose notes the frontier has stored, as if its reply was lost; return the other claims.

        Then the outputs must not be truncated, not even to be written again: other workers rely on their pages.
        """
        attempt = self._attempt
        if attempt is None or all(state == self._states[name] for name, state in attempt.states.items()):
            return batch
        notes = await self._frontier.notes()
        if any(
            msgspec.json.encode(notes.get(name)) != msgspec.json.encode(attempt.states[name]) for name in attempt.states
        ):
            return batch
        await self._record(attempt)
        recorded = {ending.claimed.ticket for ending in attempt.endings}
        return [finished for finished in batch if finished.claimed.ticket not in recorded]

    async def _record(self, attempt: Attempt) -> None:
        self._attempt = attempt
        await self._frontier.conclude(attempt.endings, attempt.notes, attempt.reported)
        self._states.update(attempt.states)
        self._tell_recorded()
        self._is_torn, self._attempt = False, None
        self._handed.clear()
        self.totals = attempt.totals

    def _put(self, batch: Sequence[Finished], seconds: float) -> tuple[CrawlTotals, dict[str, Any]]:
        """Write a batch to the outputs; return the new totals and the end of each output."""
        states = {}
        for output in sorted(self._outputs, key=_is_stream):
            for finished in batch:
                handed = output.name, finished.claimed.ticket
                if handed not in self._handed:
                    if _is_stream(output):
                        self._handed.add(handed)
                    _hand_to(output, finished)
            states[self._key(output)] = output.flush()
        return counted(self.totals, batch, seconds), states

    def _mend(self) -> None:
        """Truncate the outputs to the ends that the frontier records."""
        for output in self._outputs:
            if not _is_stream(output):
                output.close()
                output.open(self._states[self._key(output)])

    def close(self) -> CurtsyError | None:
        """Close all outputs; return the last error, or None."""
        wrong = None
        for output in self._outputs:
            try:
                output.close()
            except CurtsyError as error:
                wrong = error
        return wrong

    def _key(self, output: Output) -> str:
        return f"output{self._who}:{output.name}"


def _is_stream(output: Output) -> bool:
    return isinstance(output, FileOutput) and output.is_stream


def _may_be_lost(output: Output) -> bool:
    """Return whether an output has pages that the loss of this machine's disk may take with it."""
    if isinstance(output, FileOutput):
        return not output.is_stored_at_once
    return not isinstance(output, Examples)


def _is_rolled(output: Output) -> bool:
    return isinstance(output, FileOutput) and output.is_rolled


def _hand_to(output: Output, finished: Finished) -> None:
    if finished.page is not None:
        output.page(finished.page)
    elif isinstance(output, FileOutput):
        if finished.redirect is not None:
            output.redirect(finished.redirect)
        if finished.requisite is not None:
            output.requisite(finished.requisite)
    for skipped in finished.skipped:
        output.skipped(skipped)


async def _whole(work: Coroutine[Any, Any, T]) -> T:
    """Await work in a thread. If cancelled, wait for its end before raising."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    finally:
        await asyncio.wait([task])
