"""Main loop of a crawl: claim due URLs, fetch them, read the responses and write the results.

    Crawler          the loop (here): decides what to claim, when to write and when to end
    RunningFetches   the claimed URLs, each in a task (running_fetches.py); or a WorkerPool (worker_pool.py)
    Filters          decides on a URL and its links by its response (filters.py), read by a Reader (reader.py)
    Results          the results until they may be written (results.py)
    Committer        writes outputs and frontier together (committer.py)
    Seeds            the start URLs, read while the crawl runs (seeds.py)

Results are written before more URLs are claimed, so a kill repeats only the requests in flight. Admission alone decides
when a host may be requested. A URL that is not due is put back with the time that admission returned, and occupies no
slot meanwhile. Only requests on the wire count as in flight, not those that wait.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Sequence
from typing import Any

from curtsy.core.crawl_messages import STORE_IS_OUT, other_scope
from curtsy.core.errors import CurtsyError, NotWritten, PolicyError, Reason
from curtsy.core.time import span
from curtsy.crawling.channel import Forget
from curtsy.crawling.committer import Committer
from curtsy.crawling.filters import Filters
from curtsy.crawling.frontier.protocol import LEASE, AsyncFrontier, Counts, Deferred
from curtsy.crawling.jobs import ENDED, SCOPE, SEEDS, SITEMAPS, WAITED_FOR, check_seeds, extract_note, seeds_of, widen
from curtsy.crawling.options import CrawlOptions
from curtsy.crawling.page_limit import PageLimit
from curtsy.crawling.progress import CrawlSummary, Ended, Hosts, end_message
from curtsy.crawling.reader import moment
from curtsy.crawling.rest_watch import RestWatch
from curtsy.crawling.results import Finished, Results, SkippedUrl
from curtsy.crawling.running_fetches import MAX_WAIT, SETTLING, SUSPECT, RunningFetch, RunningFetches, longest_queue
from curtsy.crawling.seeds import HEAD, Feeder, Seeds, no_seeds
from curtsy.crawling.store_watch import LONGEST_OUTAGE, STORE_RETRY, StoreOut, StoreWatch, warn_of_outage
from curtsy.crawling.worker_pool import SentClaim, WorkerPool, WorkersDied
from curtsy.engine.session import Session
from curtsy.engine.timers import BatchWaiter
from curtsy.system.log import LibraryLogger, library_logger

_log: LibraryLogger = library_logger("crawl")

GRACE = 8.0
"""Seconds for requests in flight to finish after a stop. Then they go back to the frontier (F46)."""

OVERTIME = 2.0
"""Seconds for requests in flight to finish after `max_time`."""

CHUNK, SHARED_CHUNK = 250, 2000
"""Seeds queued in one turn. In a shared frontier, each goes to another partition: one call of many is little more."""

QUEUED_IN_MEMORY, QUEUED_ON_DISK = 50_000, 200_000
"""Numbers of queued URLs at which no more seeds are queued: without a job, and with one."""

SHARED_LOOK = 1.0
"""Seconds between two checks of a shared frontier, and of a pipe that its reader may close."""

FIRST_RETRY, LONGEST_RETRY = 1.0, 30.0
"""First and longest delay in seconds before a retry after a full disk."""


class Crawler:
    """Main loop of a crawl. It runs in one task; `stop` may be called from any thread."""

    def __init__(
        self, seeds: Seeds, options: CrawlOptions, session: Session, frontier: AsyncFrontier, committer: Committer,
        lease: float | None, job: str = "", pool: WorkerPool | None = None,
    ) -> None:  # fmt: skip
        """Create a crawler. `lease` is None without other crawls on the frontier; `job` is empty in memory."""
        self._seeds = seeds
        self._options = options
        self._session = session
        self._frontier = frontier
        self._committer = committer
        self._lease = lease
        self._job = job
        self.results = Results(drop_duplicates=options.drop_duplicates)
        self._page_limit = PageLimit(options, committer, frontier, self.results)
        self._limits: dict[Ended, float | None] = {
            Ended.MAX_PAGES: options.max_pages,
            Ended.MAX_TIME: options.max_time,
            Ended.MAX_BYTES: options.max_bytes,
        }
        self._notes: dict[str, Any] = {}
        self._left: list[SkippedUrl] = []
        """Seeds that are not requested, until they are reported."""
        self._warnings: list[str] = []
        """Warnings that the summary repeats."""
        self._is_begun = False
        """True once the first seeds have defined the scope."""
        self._timers = session.timers
        self._store_watch = StoreWatch(session.store, options.patience)
        self.filters = Filters(options, session, frontier, self._wanted_pages)
        if seeds.head:
            self.filters.begin(seeds.head)
        self._pool = pool
        self._ahead = 0 if pool is None else pool.ahead
        if pool is not None:
            pool.bind(self.filters, self.results, self.wake, frontier, self._wanted_pages)
        self.fetches = pool if pool is not None else RunningFetches(
            session, self.filters, self.results, self.wake, frontier.locate, places=options.max_in_flight,
            hosts=Hosts(options.max_pages_per_host), is_shared=lease is not None,
        )  # fmt: skip
        self._rest_watch = RestWatch(session, frontier, self.fetches.hosts)
        self._feeder = Feeder(seeds, session, self.filters, frontier, self._leave, pool)
        self._waiter: BatchWaiter | None = None
        """Waiter of the task that runs the loop; None before and after."""
        session.timers.stop_while(lambda: self.fetches.places_in_use > 0)
        self.counts = Counts(0, 0, 0, 0, 0)
        self.stopping: Ended | None = None
        """Reason for the stop; None if it was not stopped."""
        self.trouble: str | None = None
        """Message of the error that prevents writing; None if there is no error."""
        self.failure: CurtsyError | None = None
        """Error that ended the crawl before all results were written. Unwritten URLs are not done."""
        self.began_at = self._looked_at = self._renewed_at = self._written_at = self._timers.now()
        self._stop_by = self._failing_since = self._due_at = 0.0
        self._failed_turns = 0
        """Number of consecutive turns that failed since `_failing_since`."""
        self._is_abandoned = False
        """True if the pages have no consumer any more."""
        self._connections = 0
        """Connections of the frontier when known hrefs were last forgotten."""
        self._due: float | None = 0.0

    @property
    def is_idle(self) -> bool:
        """Return whether there are neither running fetches nor pages that wait for their consumer."""
        return not self.fetches and not self.results.holds()

    def waits_for(self) -> float | None:
        """Return the seconds until the next host is due; None if one is due now or no URL is left."""
        return max(0.0, self._due_at - self._timers.now()) if self._due and not self.results.finished else None

    def wake(self) -> None:
        """Wake the loop, from any thread. If it is awake, its next sleep ends at once."""
        if self._waiter is not None:
            self._waiter.wake()

    async def _sleep(self, seconds: float | None) -> None:
        """Sleep until the loop is woken, or for `seconds`; None for no limit."""
        assert self._waiter is not None
        await self._waiter.sleep(seconds)

    def stop(self) -> None:
        """Send no more requests and finish those in flight. A second call cancels these."""
        self._stop_by = self._timers.now() + GRACE if self.stopping is None else 0.0
        self.stopping = Ended.STOPPED
        self.wake()

    def abandon(self) -> None:
        """Stop without waiting for a consumer. Pages that were yielded count as consumed."""
        self._is_abandoned = True
        self.results.accept_all()
        self.stop()

    async def open(self) -> None:
        """Resume outputs and frontier, or begin with the seeds."""
        self._notes = await self._frontier.notes()
        check_seeds(self._job, self._seeds.head, self._notes)
        await self._committer.begin(self._notes, extract_note(self._options.extract))
        self.filters.sitemaps.resume(self._notes.get(SITEMAPS))
        await self._frontier.note({ENDED: ""})
        if self._seeds.head:
            await self._begin(self._seeds.head)
        self._seeds.start(self.wake)
        await self._feed()
        self.counts = await self._frontier.counts()
        self.began_at = self._looked_at = self._renewed_at = self._timers.now()

    async def _begin(self, head: Sequence[str]) -> None:
        """Define the scope by the first seeds. Raises PolicyError."""
        self.filters.begin(head)
        if (old := self._notes.get(SCOPE)) is not None:
            for change in self.filters.scope.changes(old):
                self._warnings.append(other_scope(change))
                _log.warning(self._warnings[-1])
            widen(self.filters.scope, self._notes)
        seeds = list(dict.fromkeys([*seeds_of(self._notes), *head]))[:HEAD]
        await self._frontier.note({SCOPE: self.filters.scope.as_plain(), SEEDS: seeds})
        if self._pool is not None:
            self._pool.enter(self._notes)
        self._is_begun = True

    async def _feed(self) -> None:
        """Queue some seeds, unless very many URLs are queued."""
        if not self._may_feed():
            return
        try:
            await self._feed_some()
        finally:
            left, self._left = self._left, []
            await self._committer.leave(left)

    async def _feed_some(self) -> None:
        is_large = self._lease is not None and self.fetches.places_in_use > 0  # else the first page comes first
        urls = await self._feeder.take(SHARED_CHUNK if is_large else CHUNK)
        if urls and not self._is_begun:
            self._seeds.head = tuple(dict.fromkeys(urls[:HEAD]))
            check_seeds(self._job, self._seeds.head, self._notes)
            await self._begin(self._seeds.head)
        await self._feeder.put()
        if self._lease is None:
            self.counts = await self._frontier.counts()

    def _may_feed(self) -> bool:
        """Return whether there are seeds to queue and room for them."""
        return self._feeder.is_ready and self.counts.queued < (QUEUED_ON_DISK if self._job else QUEUED_IN_MEMORY)

    def _leave(self, url: str, reason: Reason, message: str) -> None:
        self._left.append(SkippedUrl(url, str(reason), message, at=moment(self._session.epoch())))

    def _wanted_pages(self) -> int | None:
        """Return how many more pages are needed than URLs are queued; None if there is no limit."""
        return self._page_limit.wanted(self.counts.queued)

    async def run(self) -> CrawlSummary:
        """Crawl to the end."""
        self._waiter = BatchWaiter(self._timers)
        try:
            while True:
                try:
                    ended = await self._turn()
                except PolicyError:
                    raise
                except WorkersDied as error:
                    return await self._break_off(error, Ended.LATER)
                except CurtsyError as error:  # full disk or lost server: finished results are kept
                    if (broken_off := await self._wait_out(error)) is not None:
                        return await self._break_off(error, broken_off)
                    continue
                self._failed_turns, self.trouble = 0, None
                if ended is not None:
                    return await self._summary(ended)
        finally:
            self._waiter = None
            await self.fetches.cancel_all()

    async def _wait_out(self, error: CurtsyError) -> Ended | None:
        """Wait before the retry of a turn that failed; return the reason for the end if it is not retried."""
        now = self._timers.now()
        if not self._failed_turns:
            self._failing_since = now
        self._failed_turns += 1
        patience, first = self._options.patience, FIRST_RETRY * 2 ** min(self._failed_turns - 1, 10)
        if isinstance(error, StoreOut):
            patience, first = error.patience, STORE_RETRY
        left = patience - (now - self._failing_since)
        if self._options.max_time is not None:
            left = min(left, self._options.max_time - self._elapsed())
        is_lasting = isinstance(error, NotWritten) and error.is_lasting
        if left <= 0 or is_lasting or self.stopping is not None:
            return Ended.NOT_WRITTEN if is_lasting else Ended.LATER
        if self._failed_turns == 2:  # a slow reader recovers often: the first failure is not logged
            _log.warning(f"{error} The crawl pauses for {span(left)} at most, and resumes when it can.")
        self.trouble = str(error)
        with contextlib.suppress(CurtsyError):
            await self._renew()
        longest = LONGEST_RETRY if self._lease is None else SHARED_LOOK  # a server's hiccup is over soon
        retry_at = now + min(first, longest, left)
        while self.stopping is None and (wait := retry_at - self._timers.now()) > 0:
            await self._sleep(wait)  # a fetch that ends meanwhile must not count as another failed turn
        return None

    async def _break_off(self, error: CurtsyError, ended: Ended) -> CrawlSummary:
        """End with unwritten results. Their URLs are put back."""
        self.failure = error
        await self.fetches.cancel_all()
        self.results.give_back()
        with contextlib.suppress(CurtsyError):  # then each URL waits until its lease expires
            await self._committer.give_back(self.results.finished)
        self.results.finished.clear()
        return await self._summary(self.stopping or ended)

    async def _turn(self) -> Ended | None:
        """Write results, start due URLs, then wait. Return the reason for the end, or None."""
        if self._has_batch():
            await self._write()
        else:
            self._committer.check()
        if self.fetches.broken is not None:
            raise self.fetches.broken
        await self._renew()
        if self._lease is not None:  # a busy worker, too, learns the pages of the others
            await self._look()
        over = self._over()
        if over is Ended.MAX_PAGES and await self._page_limit.has_more(is_idle=self.is_idle):
            over = None
        return await (self._proceed() if over is None else self._wind_down(over))

    async def _proceed(self) -> Ended | None:
        """Queue seeds, start due URLs and wait for an event. Return DONE or LATER if none can follow."""
        await self._feed()
        if self.counts.queued:
            await self._store_watch.check()
        await self._rest_watch.look()
        await self._start()
        if self._has_batch():
            return None
        is_idle = self.is_idle
        due = self._due = await self._frontier.due_in()
        self._due_at = self._timers.now() + (due or 0.0)
        await self._look()
        if self._may_feed():
            await asyncio.sleep(0)  # lets requests in flight run between two chunks of seeds
            return None
        if is_idle and (self._seeds.is_over or self._seeds.is_ready):
            if due is None:
                if not self._is_begun and not self._committer.left:
                    raise no_seeds()
                return Ended.DONE
            if self._is_too_long(due):
                return Ended.LATER
        await self._sleep(self._pause(due))
        return None

    async def _wind_down(self, over: Ended) -> Ended | None:
        """Wait for the requests in flight; return `over` when the crawl can end."""
        is_alone = self._is_abandoned and not self.fetches
        if self.stopping is not None and (is_alone or self._timers.now() >= self._stop_by):
            await self.fetches.cancel_all()
            self.results.give_back()
            await self._write()
            while self.results.finished:
                await self._write()
            return over
        overtime = math.inf
        if over is Ended.MAX_TIME:
            overtime = (self._options.max_time or 0.0) + OVERTIME - self._elapsed()
            if overtime <= 0:
                await self.fetches.cancel_all()
        self.fetches.withdraw()
        if self._has_batch():
            return None
        if self.is_idle:
            return over
        wait = self._renew_in() if self.stopping is None else self._stop_by - self._timers.now()
        await self._sleep(min(wait, SETTLING, max(0.01, overtime)))
        return None

    def _over(self) -> Ended | None:
        """Return the reason to claim nothing more; None if there is no reason."""
        used = {
            Ended.MAX_PAGES: self._committer.pages,
            Ended.MAX_TIME: self._elapsed(),
            Ended.MAX_BYTES: self._committer.bytes_now,
        }
        over = (end for end, most in self._limits.items() if most is not None and used[end] >= most)
        return self.stopping or next(over, None)

    def _is_too_long(self, due: float) -> bool:
        """Return whether all remaining URLs are due later than `patience` allows."""
        patience, paused_at = self._options.patience, self.fetches.hosts.paused_at
        if paused_at is not None and self._timers.now() - paused_at >= patience:
            self._due = None  # a paused host has no due time, so it is checked repeatedly
            return True
        return due > patience

    def _pause(self, due: float | None) -> float | None:
        """Return the seconds to wait without an event; None if there is no limit."""
        waits = [] if self.is_idle else [self._renew_in()]
        if due is not None and self._room() > 0:
            waits.append(due)
        if (look_in := self._rest_watch.look_in()) is not None:
            waits.append(look_in)
        if self._lease is not None or self._committer.is_watched:
            waits.append(SHARED_LOOK)
        if self._options.max_time is not None:
            waits.append(self._options.max_time - self._elapsed())
        return max(0.0, min(waits)) if waits else None

    def _room(self) -> int:
        """Return how many more URLs may be claimed."""
        options, fetches, held = self._options, self.fetches, self.results.holds()
        if held >= options.max_in_flight or fetches.is_suspect_running:
            return 0
        most, qps = options.max_in_flight + self._ahead, self._session.policies.global_qps
        if qps is not None:
            most = min(most, longest_queue(qps) - fetches.queued_for_rate())
        room = most - fetches.places_in_use
        under_way = len(fetches) - fetches.looked_up + len(self.results.finished) + held
        return int(min(room, self._page_limit.room(under_way)))

    async def _start(self) -> None:
        """Claim due URLs and start to fetch them."""
        room, fetches = self._room(), self.fetches
        if room <= 0:
            return
        claimed = await self._frontier.claim(room, fetches.room())
        may_crowd = False
        # While seeds are still read, more sites may follow, so a single site gets only its share.
        if len(claimed) < room and self._seeds.is_over and (wider := fetches.wider_room(claimed)) is not None:
            may_crowd = True  # all of these claims: they are of one site, or at one address
            with contextlib.suppress(CurtsyError):  # the URLs claimed above must be started; the next turn fails again
                claimed += await self._frontier.claim(room - len(claimed), wider)
        self._doubt()
        if self._pool is not None:
            claimed = self._pool.suspected(claimed)
        claimed = self._page_limit.needed(claimed, is_idle=self.is_idle)
        suspects = [each for each in claimed if each.tries >= SUSPECT]
        # A suspect is read alone, so that a crash cannot be caused by another page. The others wait briefly.
        alone = [] if fetches else suspects[:1]
        for each in claimed:
            if suspects and each not in alone:
                self.results.put(Finished(each, Deferred(MAX_WAIT)))
            else:
                fetches.start(each, may_crowd=may_crowd)

    def _doubt(self) -> None:
        """Forget which hrefs the frontier knows, if it may lack some of their URLs since the last claims.

        Pages whose URLs a replica lacks come again, as their ends came later. All of their links are then added again.
        """
        if self._connections != (connections := self._frontier.connections):
            self._connections = connections
            self.filters.known.clear()
            if self._pool is not None:
                self._pool.broadcast(Forget())

    def _has_batch(self) -> bool:
        """Return whether the committer has something to write now."""
        waited = self._timers.now() - self._written_at
        return self._committer.is_due(self.results.finished, waited, is_last=not self.fetches)

    async def _write(self) -> None:
        """Write the results. Pages with very many links take several turns."""
        self._written_at, self._due = self._timers.now(), None
        batch: list[Finished] = []
        later: list[Finished] = []
        for each in list(self.results.finished):
            (batch if await self._committer.is_ready(each) else later).append(each)
        written: Sequence[Finished] = ()
        if batch or not later:
            written = await self._committer.write(batch, self._timers.now(), self._elapsed())
        self.results.finished[: len(batch) + len(later)] = later
        for finished in written:
            self.filters.known.learn(*finished.learned)
        if self._pool is not None:
            self._pool.written(written)
        if later:
            await asyncio.sleep(0)  # a frontier in this process never awaits, so other tasks run here

    async def _look(self) -> None:
        """Update the counts: always for a frontier of this process, every SHARED_LOOK seconds for a shared one."""
        now = self._timers.now()
        if self._lease is None or now - self._looked_at >= SHARED_LOOK:
            self._looked_at = now
            self.counts = await self._frontier.recent_counts()
            self.fetches.divide(self._frontier.workers)

    async def _renew(self) -> None:
        """Renew the leases of running fetches and of pages that wait for their consumer."""
        if self._renew_in() > 0:
            return
        self._renewed_at = self._timers.now()
        held: list[RunningFetch | SentClaim | Finished] = [*self.fetches.unanswered(), *self.results.held()]
        for each in held:
            each.claimed = await self._frontier.renew(each.claimed) or each.claimed

    def _renew_in(self) -> float:
        return self._renewed_at + (self._lease or LEASE) / 4 - self._timers.now()

    def _elapsed(self) -> float:
        return self._timers.now() - self.began_at

    async def _summary(self, ended: Ended) -> CrawlSummary:
        seconds = None if self.stopping is None else GRACE / 2
        if self.failure is None and (error := await self._committer.finish(seconds)) is not None:
            self.failure, ended = error, self.stopping or Ended.LATER
        reasons, elapsed = self._committer.left, self._elapsed()
        is_hurried = self.failure is not None or self.stopping is not None
        longest = 0.0 if is_hurried else min(LONGEST_OUTAGE, self._options.patience)
        with self._frontier.outlast(longest, warn_of_outage):
            with contextlib.suppress(CurtsyError):  # the note is informational: a full disk is ignored
                waited_for = self.fetches.hosts.due_first(self._timers.now())
                notes = {ENDED: str(ended), WAITED_FOR: waited_for, **self._committer.final_note(elapsed)}
                await self._frontier.note(notes)
            try:
                self.counts = await self._frontier.counts()
                reasons = reasons | dict(await self._frontier.failures())
            except CurtsyError:
                if self.failure is None:
                    raise
        left = self.counts.queued + self.counts.leased
        resume_in = self._due if ended is Ended.LATER and self.failure is None else None
        deaths = 0 if self._pool is None else self._pool.deaths
        message = " ".join([end_message(ended, self._limits, self._due, self.failure), *self._warnings])
        if self._session.store.is_waiting and self.failure is None:
            message += f" {STORE_IS_OUT}"
        totals, outputs = self._committer.final(elapsed), self._committer.written()
        summary = CrawlSummary(ended, totals, left, resume_in, reasons, message, outputs, deaths)
        _log.info(message, **summary.as_dict())
        return summary
