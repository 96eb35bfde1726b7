"""A crawl as its users see it: AsyncCrawl, to be iterated over, run, watched, stopped and closed."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from types import TracebackType
from typing import Any, Self

from curtsy.client import AsyncClient
from curtsy.core.errors import CurtsyError, PolicyError
from curtsy.core.message import SECOND
from curtsy.core.messages import span
from curtsy.core.policy import UNLIMITED
from curtsy.crawling.committer import Committer
from curtsy.crawling.crawler import Crawler
from curtsy.crawling.extract.scope import Scope
from curtsy.crawling.frontier.protocol import AsyncFrontier, HostQueue, host_of
from curtsy.crawling.frontier.worker_id import WorkerId
from curtsy.crawling.job_values import check_seeds, pages_in
from curtsy.crawling.options import CrawlOptions
from curtsy.crawling.outputs import Output
from curtsy.crawling.page import CrawledPage
from curtsy.crawling.progress import Plan, Snapshot, Summary, Totals, gap_of, pages_left, plan
from curtsy.crawling.publisher import CrawlPublisher
from curtsy.crawling.rate_meter import RateMeter, time_left
from curtsy.crawling.seeds import Given, Seeds
from curtsy.system.log import LibraryLogger, library_logger
from curtsy.system.threads import Once

_log: LibraryLogger = library_logger("crawl")


class AsyncCrawl:
    """A crawl, for tasks: iterate over it for its pages, or `run()` it for its outputs' sake. `acrawl()` makes one.

    A page that was handed out counts as done when the next one is asked for: killed before, it comes again.
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
        lease: float | None = None,
        who: WorkerId | None = None,
        owns_client: bool = False,
        on_progress: Callable[[Snapshot], None] | None = None,
    ) -> None:
        """`lease` says for how long a URL is ours if others work on the same frontier, and `who` we are among them."""
        self._on_progress = on_progress
        self.options = options
        self.client = client
        self.frontier = frontier
        self._seeds = seeds if isinstance(seeds, Seeds) else Seeds(seeds)
        self.summary: Summary | None = None
        """What came of it; None before its end."""
        self._job = job
        self._lease = lease
        self._identity = who
        self._owns_client = owns_client
        name = "" if who is None else f":{who.name}"
        self._committer = Committer(frontier, outputs, name)
        self._crawler = Crawler(self._seeds, options, client, frontier, self._committer, lease, job)
        self._meter = RateMeter()
        self._bulletin = CrawlPublisher(client, job, name, lambda: self.seeds, self.snapshot)
        self._queues: list[HostQueue] = []
        """What waited when it was last looked at: at its end, what is left."""
        self._main: asyncio.Task[None] | None = None
        self._opening = asyncio.Lock()
        self._is_closed = False
        self._shutting = Once(self._give_back)

    @property
    def seeds(self) -> tuple[str, ...]:
        """The first URLs that it begins with, canonical: a thousand at most, and as far as they are known."""
        return self._seeds.head

    @property
    def totals(self) -> Totals:
        """What the job has done, over all its runs."""
        return self._committer.totals

    @property
    def scope(self) -> Scope:
        """Which URLs belong to it; where a seed redirects to may widen it."""
        return self._crawler.filters.scope

    @property
    def is_shared(self) -> bool:
        """Whether others may be at it too."""
        return self._lease is not None

    async def run(self) -> Summary:
        """Crawl to the end, pages going to the outputs alone.

        Raises NotWritten or StoreError if it had to end because an output or its own state could not be written for
        as long as its patience. `summary` says what came of it all the same, and nothing is done that is not written.
        """
        main = await self._started()
        try:
            await asyncio.shield(main)
        except asyncio.CancelledError:
            if not main.done():  # whoever is called off wants an end, and what is in flight goes back
                self._stop_at_once()
                await asyncio.wait([main])
            raise
        assert self.summary is not None
        return self.summary

    def __aiter__(self) -> AsyncIterator[CrawledPage]:
        """The pages, as they come."""
        return self._pages()

    async def _pages(self) -> AsyncGenerator[CrawledPage, None]:
        results = self._crawler.results
        results.is_iterated = True
        main = await self._started()
        try:
            while True:
                while (finished := results.take()) is None and not main.done():
                    results.news.clear()
                    await results.news.wait()
                if finished is None:
                    break
                assert finished.page is not None
                try:
                    yield finished.page
                finally:  # whoever breaks off has had it
                    results.dealt_with(finished)
                    self._crawler.wake()
        finally:
            if not main.done():  # what nobody asks for any more goes back at once
                self._stop_at_once()
            await asyncio.shield(main)

    async def plan(self) -> Plan:
        """Say what it may take, before it starts. Asks nothing of any site.

        Raises PolicyError if it cannot start, because its job began elsewhere.
        """
        self._check_open()
        notes = await self._checked_notes()
        policies = self.client.policies
        now = await self.client.store.now()
        allowed: int | None = 0
        gaps, overall = [], UNLIMITED
        for host in dict.fromkeys(host_of(seed) for seed in self.seeds):
            policy = policies.of(host)
            if policy.global_rate:
                overall = policies.overall
            record = await self.client.store.read(policy.key_for(host))
            gaps.append(gap_of(policy, 0.0 if record is None else record.crawl_delay / SECOND))
            left = pages_left(policy, record, now)
            allowed = None if left is None or allowed is None else allowed + left
        pages = self.options.max_pages
        if pages is not None:  # of which a job may have some already
            pages = max(0, pages - pages_in(notes))
        return plan(pages, gaps, overall, allowed)

    async def snapshot(self, hosts: int = 50) -> Snapshot:
        """How far it has come, with the state of so many hosts."""
        if not self._is_closed:
            self._queues = await self.frontier.busiest(hosts)
        return self._as_seen(hosts)

    def _as_seen(self, hosts: int = 50) -> Snapshot:
        """The same, with the queues as they were when they were last looked at."""
        crawler, counts = self._crawler, self._crawler.counts
        now, is_over = self.client.timers.now(), self.summary is not None
        queues = self._queues
        most, patience = self.options.max_pages, self.options.patience
        if most is not None:
            most = max(0, most - self._committer.pages)
        rate = self._meter.rate(now, self.totals.pages)
        left = time_left(counts.queued, most, queues, self.client.policies, rate, patience)
        return Snapshot(
            state=self._state(),
            totals=self.totals,
            queued=counts.queued,
            in_flight=crawler.visits.on_wire,
            hosts_seen=max(counts.hosts, crawler.visits.hosts.count()),
            rate=rate,
            elapsed=now - crawler.began_at,
            time_left=None if is_over else left,
            waiting_for=self._waiting_for(),
            hosts=crawler.visits.hosts.progress(queues, now, hosts),
            before=self._committer.before if self._committer.before.seconds else None,
        )

    def _state(self) -> str:
        if self.summary is not None:
            return self.summary.ended
        if self._crawler.stopping is not None:
            return "stopping"
        return "waiting" if self._crawler.is_idle else "running"

    def _waiting_for(self) -> str | None:
        if self._crawler.trouble is not None:
            return self._crawler.trouble
        visits, queued = self._crawler.visits, self._crawler.counts.queued
        if not queued and not visits.on_wire and (again := visits.to_be_repeated()):
            return f"{again} {'URL is' if again == 1 else 'URLs are'} to be asked for again when the site allows"
        wait = self._crawler.waits_for() if self._state() == "waiting" else None
        return None if wait is None else f"the next host may be asked in {span(wait)}"

    async def snapshots(self, every: float = 1.0) -> AsyncGenerator[Snapshot, None]:
        """How far it has come, again and again until it has ended."""
        while self.summary is None and not self._is_closed:
            yield await self.snapshot()
            if self._main is None:
                await asyncio.sleep(every)
            else:
                await asyncio.wait([self._main], timeout=every)
        yield await self.snapshot()

    def stop(self, why: str = "stopped") -> None:
        """Ask for nothing more, let what is in flight end, and keep everything else for another time.

        Called again, it ends what is in flight at once.
        """
        self._crawler.stop(why)

    def _stop_at_once(self) -> None:
        self.stop()
        self.stop()

    async def close(self) -> None:
        """End it, wherever it is, and give back what is held open. Idempotent."""
        if self._main is not None:
            if not self._main.done():
                self._crawler.abandon("stopped")
            await asyncio.wait([self._main])
            error = None if self._main.cancelled() else self._main.exception()
            if error is not None and not isinstance(error, CurtsyError):
                raise error
        await self._shut()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _started(self) -> asyncio.Task[None]:
        async with self._opening:  # two may begin to iterate at once
            if self._main is None:
                self._check_open()
                try:
                    await self._checked_notes()
                    await self._crawler.open()
                except BaseException:
                    await self._shut()
                    raise
                self._main = asyncio.ensure_future(self._crawl())
                self._main.add_done_callback(lambda _: self._crawler.results.news.set())
            return self._main

    async def _checked_notes(self) -> dict[str, Any]:
        """What the job has noted, which is to be one of these seeds."""
        notes = await self.frontier.notes()
        if self.seeds:
            check_seeds(self._job, self.seeds, notes)
        return notes

    def _check_open(self) -> None:
        if self._is_closed:
            raise PolicyError("This crawl is closed. Make another one; with the same job it goes on.")

    async def _crawl(self) -> None:
        """Crawl, and tell of it meanwhile."""
        tasks = [asyncio.ensure_future(each) for each in (self._measure(), self._bulletin.run())]
        try:
            self.summary = await self._crawler.run()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self._bulletin.tell(is_over=True)
            await self._shut()
            await self._report()
        if self._crawler.failure is not None:
            raise self._crawler.failure

    async def _measure(self) -> None:
        while True:
            self._meter.mark(self.client.timers.now(), self.totals.pages)
            await self._report()
            await asyncio.sleep(1.0)  # in real time, for it is people who look

    async def _report(self) -> None:
        """Tell whoever asked to be told how far it has come."""
        if self._on_progress is None:
            return
        try:
            self._on_progress(await self.snapshot())
        except Exception as error:  # the crawl goes on all the same
            _log.warning("on_progress raised an error, which was not expected of it", error=repr(error))

    async def _shut(self) -> None:
        """Give back what is held open, once, though who waits for it is cancelled."""
        self._is_closed = True
        await self._shutting.wait()

    async def _give_back(self) -> None:
        async with contextlib.AsyncExitStack() as stack:  # the last comes first, and each whatever another raises
            if self._owns_client:
                stack.push_async_callback(self.client.close)
            if self._identity is not None:
                stack.callback(self._identity.close)
            stack.push_async_callback(self.frontier.close)
            stack.push_async_callback(self._seeds.close)
            wrong = self._committer.close()
            if wrong is not None:
                raise wrong
