"""AsyncCrawl: the public interface of a crawl, which is iterated over, run, observed, stopped and closed."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from curtsy.client import AsyncClient, session_of
from curtsy.core.crawl_messages import retries, waits
from curtsy.core.errors import CurtsyError, PolicyError
from curtsy.core.messages import slot_held
from curtsy.core.url import Url, parse_url
from curtsy.crawling.committer import Committer, leftovers
from curtsy.crawling.crawler import Crawler
from curtsy.crawling.estimate import CrawlPlan, Estimate, Observed, TimeLeft, plan, slots_held
from curtsy.crawling.extract.scope import Scope
from curtsy.crawling.frontier.protocol import AsyncFrontier, HostQueue
from curtsy.crawling.job_scope import check_shared_scope
from curtsy.crawling.jobs import (
    COMMAND,
    OFFLINE,
    WorkerId,
    check_cache_mode,
    check_extract,
    check_seeds,
    extract_note,
    pages_in,
    remove_unstarted,
)
from curtsy.crawling.options import CrawlOptions
from curtsy.crawling.output_notes import EXTRACT
from curtsy.crawling.outputs.protocol import Output
from curtsy.crawling.progress import CrawlSnapshot, CrawlSummary, CrawlTotals, Ended, HostProgress, shortfall
from curtsy.crawling.publisher import EVERY, CrawlPublisher
from curtsy.crawling.results import CrawledPage
from curtsy.crawling.seeds import Given, Seeds
from curtsy.crawling.store_watch import LONGEST_OUTAGE
from curtsy.crawling.worker_pool import CLOSING, HASTY, WorkerPool
from curtsy.system.log import LibraryLogger, library_logger
from curtsy.system.threads import Once

_log: LibraryLogger = library_logger("crawl")

LONG_WAIT = 1.0
"""Seconds without a request after which a snapshot checks whether others hold the slots of the hosts."""

MOST_HELD = 100
"""Maximum number of hosts whose slots it checks."""


class AsyncCrawl:
    """Crawl for asyncio. Iterate over it for its pages, or `run()` it to fill its outputs. Created by `acrawl()`.

    A yielded page counts as done when the next page is requested. After a kill before that, it is yielded again.
    """

    def __init__(
        self,
        seeds: Given | Seeds,
        options: CrawlOptions,
        client: AsyncClient,
        frontier: AsyncFrontier,
        *,
        outputs: Sequence[Output] = (),
        job: str = "",
        folder: Path | None = None,
        lease: float | None = None,
        who: WorkerId | None = None,
        owns_client: bool = False,
        workers: int = 1,
        on_progress: Callable[[CrawlSnapshot], None] | None = None,
    ) -> None:
        """Create a crawl. `folder` is that of a job of this machine alone; a job whose crawl never starts is deleted.

        With a shared frontier, `lease` is the lease of a URL in seconds and `who` identifies this worker. With more
        than one of `workers`, that many processes fetch the pages.
        """
        self._on_progress = on_progress
        self._leftovers = [] if who is None else leftovers(outputs, who)
        self.options = options
        self.client = client
        self._session = session_of(client)
        self.frontier = frontier
        self._seeds = seeds if isinstance(seeds, Seeds) else Seeds(seeds)
        self.summary: CrawlSummary | None = None
        """Result of the crawl; None before its end."""
        self._job, self._folder = job, folder
        self._lease = lease
        self._identity = who
        self._owns_client = owns_client
        name = "" if who is None else f":{who.name}"
        self._committer = Committer(frontier, outputs, name)
        is_shared = lease is not None
        self._pool = WorkerPool(workers, client, options, is_shared=is_shared) if workers > 1 else None
        self._crawler = Crawler(self._seeds, options, self._session, frontier, self._committer, lease, job, self._pool)
        self._estimate = Estimate(
            lambda: self._session.policies, options.patience, options.max_pages, is_offline=self._session.is_offline
        )
        self._publisher = CrawlPublisher(self._session, job, name, lambda: self.seeds, self.snapshot)
        self._held: dict[str, float] = {}
        """Hosts whose slots others held at the last snapshot, with the seconds until one is free at the latest."""
        self._queues: list[HostQueue] = []
        """Host queues at the last snapshot. After the end: the remaining queues."""
        self.is_reported = False
        """True if the caller shows the summary, so that no warning is logged about missing pages."""
        self._main: asyncio.Task[None] | None = None
        self._opening = asyncio.Lock()
        self._is_opened = self._is_closed = False
        self._shutting = Once(self._give_back)

    @property
    def seeds(self) -> tuple[str, ...]:
        """Return the first seeds, canonical, as far as they are known: at most 1000."""
        return self._seeds.head

    @property
    def totals(self) -> CrawlTotals:
        """Return the work of the job over all its runs."""
        return self._committer.totals

    @property
    def scope(self) -> Scope:
        """Return the scope of the crawl. A redirect of a seed may widen it."""
        return self._crawler.filters.scope

    @property
    def is_shared(self) -> bool:
        """Return whether other workers may work on the same job."""
        return self._lease is not None

    async def run(self) -> CrawlSummary:
        """Crawl to the end. Pages go to the outputs only.

        Raises NotWritten or StoreError if an output or the crawl's state could not be written for `patience` seconds.
        `summary` is set nevertheless, and an unwritten page is not marked as done.
        """
        main = await self._started()
        try:
            await asyncio.shield(main)
        except asyncio.CancelledError:
            if not main.done():  # a cancelled caller expects an end: requests in flight go back to the frontier
                self._stop_at_once()
                await asyncio.wait([main])
            raise
        assert self.summary is not None
        return self.summary

    def __aiter__(self) -> AsyncIterator[CrawledPage]:
        """Iterate over the pages as they arrive."""
        return self._pages()

    async def _pages(self) -> AsyncGenerator[CrawledPage, None]:
        results = self._crawler.results
        results.is_iterated = True
        main = await self._started()
        try:
            while True:
                while (finished := results.take()) is None and not main.done():
                    results.changed.clear()
                    await results.changed.wait()
                if finished is None:
                    break
                assert finished.page is not None
                try:
                    yield finished.page
                finally:  # a consumer that breaks off has received the page
                    results.accept(finished)
                    self._crawler.wake()
        finally:
            if not main.done():  # pages without a consumer go back to the frontier at once
                self._stop_at_once()
            await asyncio.shield(main)

    async def plan(self) -> CrawlPlan:
        """Estimate pages and time before the start, without any request. Seeds that the settings refuse do not count.

        Raises PolicyError if the job began with other seeds or fields, or in another cache mode.
        """
        self._check_open()
        with self._outlasting():
            notes = await self.frontier.notes()
        check_seeds(self._job, self.seeds, notes)
        check_extract(self._job, extract_note(self.options.extract), notes)
        check_cache_mode(self._job, self._session.is_offline, notes)
        pages = self.options.max_pages
        if pages is not None:  # minus the pages that the job has already
            pages = max(0, pages - pages_in(notes))
        parsed = (url for url in map(parse_url, self.seeds) if isinstance(url, Url))
        allowed = [url for url in parsed if self._session.refusal(url) is None]
        has_requisites = self.options.requisites != "none"
        return await plan(self._session, allowed, pages, self.options.patience, has_requisites=has_requisites)

    async def snapshot(self, hosts: int = 50) -> CrawlSnapshot:
        """Return the progress, with the state of at most `hosts` hosts."""
        if not self._is_closed:
            self._queues = await self.frontier.busiest(hosts)
            self._held = await self._held_slots()
        return self.last_snapshot(hosts)

    def last_snapshot(self, hosts: int = 50) -> CrawlSnapshot:
        """Return the progress without awaiting, with the host queues of the last snapshot."""
        crawler, counts = self._crawler, self._crawler.counts
        now, queues = self._session.timers.now(), self._queues
        rows = crawler.fetches.hosts.progress(queues, now, hosts)
        left = self._time_left(now, rows)
        return CrawlSnapshot(
            state=self._state(),
            totals=self.totals,
            queued=counts.queued,
            in_flight=crawler.fetches.on_wire,
            hosts_seen=max(counts.hosts, crawler.fetches.hosts.count()),
            rate=self._estimate.meter.rate,
            elapsed=now - crawler.began_at,
            time_left=left.today if self.summary is None else None,
            time_left_in_all=left.in_all if self.summary is None else None,
            time_left_at_least=left.least if self.summary is None else None,
            waiting_for=self._waiting_for(),
            hosts=rows,
            before=self._committer.before if self._committer.before.seconds else None,
            leased=counts.leased,
            oldest_lease=None if (oldest := crawler.fetches.oldest_at) is None else max(0.0, now - oldest),
            job_pages=self.frontier.pages,
        )

    async def _held_slots(self) -> dict[str, float]:
        """Return the hosts that running fetches wait for because others hold their slots: other or killed processes."""
        fetches, store = self._crawler.fetches, self._session.store
        oldest_at = fetches.oldest_at
        if fetches.on_wire or oldest_at is None or store.held or self._session.timers.now() - oldest_at < LONG_WAIT:
            return {}
        hosts = dict.fromkeys(each.claimed.host for each in fetches.unanswered())
        try:
            return await slots_held(self._session, list(hosts)[:MOST_HELD])
        except CurtsyError:  # the crawl itself reports errors of the store
            return {}

    def _time_left(self, now: float, rows: Sequence[HostProgress]) -> TimeLeft:
        """Measure the progress, and return the time left. `rows` are the hosts with the longest queues."""
        limits = {each.host: (each.requests_left, each.pages_left) for each in rows}
        lefts = {host: [each for each in both if each is not None] for host, both in limits.items()}
        totals, before, most = self.totals, self._committer.before, self.options.max_time
        done, cached = totals.pages - before.pages, totals.cached - before.cached
        observed = Observed(
            at=now,
            epoch=self._session.epoch(),
            counts=self._crawler.counts,
            pages=self._committer.pages,
            own_pages=totals.pages,
            free=cached / done if done else 0.0,
            queues=self._queues,
            left={host: min(each) for host, each in lefts.items() if each},
            ends_in=None if most is None else most - (now - self._crawler.began_at),
            crawl_delays={each.host: each.crawl_delay for each in rows if each.crawl_delay},
            quotas=self._crawler.fetches.hosts.quotas(each.host for each in self._queues),
        )
        return self._estimate.time_left(observed)

    def _state(self) -> str:
        if self.summary is not None:
            return self.summary.ended
        if self._crawler.stopping is not None:
            return "stopping"
        return "waiting" if self._crawler.is_idle else "running"

    def _waiting_for(self) -> str | None:
        if self._crawler.trouble is not None:
            return self._crawler.trouble
        fetches = self._crawler.fetches
        if not fetches.on_wire and (again := retries(fetches.waiting_to_retry())) is not None:
            return again
        if self._held and not fetches.on_wire:
            host = min(self._held, key=self._held.__getitem__)
            return f"{host}: {slot_held(self._held[host])}"
        if self._state() != "waiting":
            return None
        if (outlook := self.frontier.outlook()) is not None:
            return waits(outlook.due_in, outlook.elsewhere, outlook.lost, outlook.lost_for)
        return waits(self._crawler.waits_for())

    async def snapshots(self, every: float = 1.0) -> AsyncGenerator[CrawlSnapshot, None]:
        """Yield the progress every `every` seconds until the crawl has ended."""
        while self.summary is None and not self._is_closed:
            yield await self.snapshot()
            if self._main is None:
                await asyncio.sleep(every)
            else:
                await asyncio.wait([self._main], timeout=every)
        yield await self.snapshot()

    def stop(self) -> None:
        """Send no more requests, finish those in flight, and keep all other URLs for a later run.

        A second call also cancels the requests in flight.
        """
        self._crawler.stop()

    def _stop_at_once(self) -> None:
        self.stop()
        self.stop()

    async def close(self) -> None:
        """End the crawl in any state and release its resources. Idempotent."""
        if self._main is not None:
            if not self._main.done():
                self._crawler.abandon()
            await asyncio.wait([self._main])
            error = None if self._main.cancelled() else self._main.exception()
            if error is not None and not isinstance(error, CurtsyError):
                raise error
        await self._shut()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    async def open(self, notes: Mapping[str, Any] | None = None) -> None:
        """Open the outputs and queue the first seeds, without any request; `run` otherwise does it. Idempotent.

        `notes` are stored with the job. Raises NotWritten for an output that cannot be written.
        """
        async with self._opening:  # two tasks may start to iterate at once
            if self._is_opened:
                return
            self._check_open()
            try:
                with self._outlasting():
                    await self._open(notes or {})
            except BaseException:
                await self._shut()
                raise
            self._is_opened = True

    async def _open(self, more: Mapping[str, Any]) -> None:
        notes, extract = await self.frontier.notes(), extract_note(self.options.extract)
        check_extract(self._job, extract, notes)
        check_cache_mode(self._job, self._session.is_offline, notes)
        if self.is_shared:
            await check_shared_scope(self._job, self.seeds, self.options, notes, self.frontier)
        new = {**more, EXTRACT: extract, OFFLINE: self._session.is_offline}
        if any(notes.get(name) != value for name, value in new.items()):
            await self.frontier.note(new)
        if self._pool is not None:
            await self._pool.open()
        await self._crawler.open()
        while self._leftovers:
            await self._leftovers.pop().store(self.frontier)

    async def _started(self) -> asyncio.Task[None]:
        await self.open()
        async with self._opening:
            if self._main is None:
                self._check_open()
                with self._outlasting():
                    self._publisher.command = str((await self.frontier.notes()).get(COMMAND, ""))
                self._main = asyncio.ensure_future(self._crawl())
                self._main.add_done_callback(lambda _: self._crawler.results.changed.set())
            return self._main

    def _outlasting(self) -> contextlib.AbstractContextManager[None]:
        """Return a context that waits for the server of a shared job, so that a worker can start during an outage."""
        return self.frontier.outlast(
            min(LONGEST_OUTAGE, self.options.patience, self.options.max_time or LONGEST_OUTAGE),
            lambda error: _log.warning(f"{error} The crawl starts when the server answers."),
        )

    def _check_open(self) -> None:
        if self._is_closed:
            raise PolicyError("This crawl is closed. Create another one; with the same job it resumes.")

    async def _crawl(self) -> None:
        """Crawl, and publish the progress meanwhile."""
        tasks = [asyncio.ensure_future(each) for each in (self._measure(), self._publisher.run())]
        try:
            self.summary = await self._crawler.run()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self._publisher.tell(is_over=True)
            await self._shut()
            await self._report()
        if self._crawler.failure is not None:
            raise self._crawler.failure
        self._warn(self.summary)

    def _warn(self, summary: CrawlSummary) -> None:
        """Log once why start URLs have no page, or why there is none at all: a loop over the pages is silent then."""
        if self.is_reported or self._crawler.stopping is not None:
            return
        message = shortfall(summary, self.seeds, self._committer.before, self._job)
        if message is not None and not (self.is_shared and summary.ended is Ended.DONE):  # others may have fetched all
            _log.notice(message)

    async def _measure(self) -> None:
        while True:
            await self._report()
            await asyncio.sleep(EVERY)

    async def _report(self) -> None:
        """Call `on_progress` with the progress."""
        if self._on_progress is None:
            return
        try:
            self._on_progress(await self.snapshot())
        except Exception as error:  # a failing callback does not end the crawl
            _log.warning("on_progress raised an error, which was not expected of it", error=repr(error))

    async def _shut(self) -> None:
        """Release the resources, once, even if the caller is cancelled."""
        self._is_closed = True
        await self._shutting.wait()

    async def _give_back(self) -> None:
        async with contextlib.AsyncExitStack() as stack:  # callbacks run in reverse order, each even if another raises
            if self._owns_client:
                stack.push_async_callback(self.client.close)
            for who in [self._identity, *(each.who for each in self._leftovers)]:
                if who is not None:
                    stack.callback(who.close)
            if self._folder is not None and not self._is_opened:
                stack.callback(remove_unstarted, self._folder)
            stack.push_async_callback(self.frontier.close)
            stack.push_async_callback(self._seeds.close)
            if self._pool is not None:
                stack.push_async_callback(self._pool.close, CLOSING if self._crawler.stopping is None else HASTY)
            wrong = self._committer.close()
            if wrong is not None:
                raise wrong
