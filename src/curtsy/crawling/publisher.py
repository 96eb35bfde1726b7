"""Publication of a crawl's state in the store, every second, for `curtsy top` and the dashboard."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Sequence

from curtsy.core.crawl_record import MOST_HOSTS, MOST_SEEDS, CrawledHost, CrawlRecord, crawl_key
from curtsy.core.errors import CurtsyError
from curtsy.core.message import SECOND, Now
from curtsy.core.record import Record
from curtsy.core.secrets import mask_url
from curtsy.crawling.progress import CrawlSnapshot
from curtsy.engine.counters import process_name
from curtsy.engine.session import Session

EVERY = 1.0
"""Seconds between two updates."""

SHARE = 50
"""Divisor: at most 1/SHARE of the time is spent on snapshots, because one of very many hosts takes long."""

_UNDER_WAY = {"running": "running", "waiting": "waiting", "stopping": "running"}
"""State in the record for each snapshot state before the end."""


class CrawlPublisher:
    """Published record of one crawl. Informational only: its errors are ignored."""

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
        self._is_idle = session.gate.is_immediate  # a store in memory has no other readers
        self._is_job = bool(job)
        self._job = job or f"crawl-{os.getpid()}"
        self._key = crawl_key(self._job + who)
        self._seeds = seeds
        self._look = look
        self._started_at: float | None = None
        self._took = 0.0
        """Duration of the last snapshot in seconds."""

    async def run(self) -> None:
        """Publish repeatedly until cancelled."""
        while not self._is_idle:
            await self.tell()
            await asyncio.sleep(max(EVERY, SHARE * self._took))  # real time, because people watch the progress

    async def tell(self, is_over: bool = False) -> None:
        """Publish once. `is_over` marks the last update, however the crawl ended."""
        if self._is_idle or self._store.held:  # during an outage the store is bridged in memory
            return
        try:
            began = time.monotonic()
            snapshot = await self._look()
            self._took = time.monotonic() - began
            await self._store.update(self._key, lambda record, now: (self._record(snapshot, now, is_over), None))
        except CurtsyError:
            pass  # the crawl itself reports errors of the store

    def _record(self, snapshot: CrawlSnapshot, now: Now, is_over: bool) -> Record:
        at = now.epoch / SECOND
        if self._started_at is None:
            self._started_at = at - snapshot.elapsed
        totals = snapshot.totals
        ended = "" if snapshot.state in _UNDER_WAY else snapshot.state
        if is_over and not ended:
            state = "stopped"  # by an error
        elif ended:
            state = "stopped" if snapshot.queued or ended == "stopped" else "finished"
        else:
            state = _UNDER_WAY[snapshot.state]
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
            failed=sum(totals.failed.values()),
            skipped=sum(totals.skipped.values()),
            queued=snapshot.queued,
            in_flight=snapshot.in_flight,
            bytes=totals.bytes,
            rate=snapshot.rate,
            seconds_left=snapshot.time_left,
            waiting_for=snapshot.waiting_for,
            hosts=tuple(hosts),
            ended=ended,
            is_job=self._is_job,
            pages_before=None if snapshot.before is None else snapshot.before.pages,
        )
