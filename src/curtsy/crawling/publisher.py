"""Publish the progress of a crawl in the store, every second, for `curtsy top` and the dashboard."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Awaitable, Callable, Sequence

from curtsy.core.crawl_record import MOST_HOSTS, MOST_SEEDS, CrawledHost, CrawlRecord, crawl_key
from curtsy.core.errors import CurtsyError
from curtsy.core.masking import mask_url
from curtsy.core.time import SECOND, Now
from curtsy.crawling.progress import CrawlSnapshot
from curtsy.engine.counters import process_name
from curtsy.engine.crawl_view import SILENT
from curtsy.engine.session import Session

EVERY = 1.0
"""Seconds between two reports of the progress: real time, because people watch it."""

LATELY = 2.0
"""Seconds after a finished URL for which a crawl counts as running, even if no request is in flight at the moment."""

SHARE = 50
"""Divisor: at most 1/SHARE of the time is spent on snapshots, because one of very many hosts takes long."""


class CrawlPublisher:
    """Published record of one crawl, for `curtsy top` and the dashboard. Its errors are ignored."""

    def __init__(
        self,
        session: Session,
        job: str,
        who: str,
        seeds: Callable[[], Sequence[str]],
        look: Callable[[], Awaitable[CrawlSnapshot]],
    ) -> None:
        """Create a publisher. `who` distinguishes the workers of a job; `look` returns the progress."""
        self._store = session.store
        self._is_job = bool(job)
        self._job = job or f"crawl-{os.getpid()}"
        self._key = crawl_key(self._job + who)
        self._worker = who.removeprefix(":")
        self._session = session
        self._seeds = seeds
        self._look = look
        self._started_at: float | None = None
        self._progress = -1, 0.0
        """Number of finished URLs, and the epoch second at which it last changed."""
        self._moved_at = 0.0
        """Epoch second of the last such change since the start of this run."""
        self._took = 0.0
        """Duration of the last snapshot in seconds."""
        self.command = ""
        """Command line that resumes the job."""

    async def run(self) -> None:
        """Publish repeatedly until cancelled."""
        while True:
            await self.tell()
            await asyncio.sleep(max(EVERY, min(SHARE * self._took, SILENT / 3)))

    async def tell(self, is_over: bool = False) -> None:
        """Publish once. `is_over` marks the last update, however the crawl ended."""
        with contextlib.suppress(CurtsyError):  # the crawl itself reports errors of the store
            if self._store.held:  # during an outage the store is bridged in memory
                await self._store.now()  # a process whose workers send may not use its store otherwise
                return
            began = time.monotonic()
            snapshot = await self._look()
            self._took = time.monotonic() - began
            published = await self._store.update(
                self._key, lambda record, now: (found := self._record(snapshot, now, is_over), found)
            )
            self._session.note_crawl(self._key, None if is_over else published)

    def _record(self, snapshot: CrawlSnapshot, now: Now, is_over: bool) -> CrawlRecord:
        at = now.epoch / SECOND
        if self._started_at is None:
            self._started_at = at - snapshot.elapsed
        totals, state, ended = snapshot.totals, snapshot.state, ""
        failed, skipped = sum(totals.failed.values()), sum(totals.skipped.values())
        if self._progress[0] != (done := totals.pages + failed + skipped):
            self._moved_at = at if self._progress[0] >= 0 else self._moved_at
            self._progress = done, at
        if is_moving := state == "waiting" and at - self._moved_at < LATELY:
            state = "running"
        if state not in ("running", "waiting", "stopping"):
            ended, state = state, "stopped" if snapshot.queued or state == "stopped" else "finished"
        elif is_over:
            state = "stopped"  # by an error
        elif state == "stopping":
            state = "running"
        hosts = [
            CrawledHost(each.host, each.state, each.pages, each.queued or 0, each.next_in, each.errors)
            for each in snapshot.hosts[:MOST_HOSTS]
        ]
        return CrawlRecord(
            job=self._job,
            process=process_name(),
            started_at=self._started_at,
            updated_at=at,
            state=state,
            seeds=tuple(mask_url(seed) for seed in self._seeds()[:MOST_SEEDS]),
            pages=totals.fetched,
            cached=totals.cached,
            failed=failed,
            skipped=skipped,
            queued=snapshot.queued,
            in_flight=snapshot.in_flight,
            bytes=totals.bytes,
            rate=snapshot.rate,
            seconds_left=snapshot.time_left or None if snapshot.queued else snapshot.time_left,
            seconds_left_in_all=snapshot.time_left_in_all,
            seconds_left_at_least=snapshot.time_left_at_least,
            waiting_for=None if is_moving else snapshot.waiting_for,
            hosts=tuple(hosts),
            ended=ended,
            is_job=self._is_job,
            pages_before=None if snapshot.before is None else snapshot.before.pages,
            worker=self._worker,
            leased=snapshot.leased,
            oldest_lease_at=None if snapshot.oldest_lease is None else at - snapshot.oldest_lease,
            progress_at=self._progress[1],
            job_pages=snapshot.job_pages,
            command=self.command,
        )
