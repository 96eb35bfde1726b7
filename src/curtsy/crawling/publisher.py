"""What a crawl tells of itself in the store, every second, for whoever watches: `curtsy top`, the dashboard."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Sequence

from curtsy.client import AsyncClient
from curtsy.core.crawl_record import MOST_HOSTS, MOST_SEEDS, CrawledHost, CrawlRecord, crawl_key
from curtsy.core.errors import CurtsyError
from curtsy.core.message import SECOND, Now
from curtsy.core.record import Record
from curtsy.core.secrets import mask_url
from curtsy.crawling.progress import Snapshot
from curtsy.engine.stats_publisher import process_name

EVERY = 1.0
"""Seconds between two tellings."""

SHARE = 50
"""A look at very many hosts takes a while: at most one part in so many of the time goes to that."""

_UNDER_WAY = {"running": "running", "waiting": "waiting", "stopping": "running"}
"""The states of a snapshot before its end, each with the word that a record has for it."""


class CrawlPublisher:
    """The record of one crawl, kept current. It decides nothing, and what goes wrong with it is nobody's business."""

    def __init__(
        self,
        client: AsyncClient,
        job: str,
        who: str,
        seeds: Callable[[], Sequence[str]],
        look: Callable[[], Awaitable[Snapshot]],
    ) -> None:
        """`who` tells this worker from others that are at the same job; `look` says how far the crawl has come."""
        self._store = client.store
        self._is_idle = client.gate.is_immediate  # nobody else can read what is in memory
        self._is_job = bool(job)
        self._job = job or f"crawl-{os.getpid()}"
        self._key = crawl_key(self._job + who)
        self._seeds = seeds
        self._look = look
        self._started_at: float | None = None
        self._took = 0.0
        """Seconds that the last look took."""

    async def run(self) -> None:
        """Tell until cancelled."""
        while not self._is_idle:
            await self.tell()
            await asyncio.sleep(max(EVERY, SHARE * self._took))  # in real time, for it is people who look

    async def tell(self, is_over: bool = False) -> None:
        """Tell once. With `is_over` it is the last word, however the crawl has ended."""
        if self._is_idle or getattr(self._store, "held", False):  # an outage is bridged in memory
            return
        try:
            began = time.monotonic()
            snapshot = await self._look()
            self._took = time.monotonic() - began
            await self._store.update(self._key, lambda record, now: (self._record(snapshot, now, is_over), None))
        except CurtsyError:
            pass  # who crawls is told of it

    def _record(self, snapshot: Snapshot, now: Now, is_over: bool) -> Record:
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
