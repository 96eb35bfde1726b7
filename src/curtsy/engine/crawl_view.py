"""Views of the crawls in a store, one for each job with all its workers, for display, metrics and alerts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby

import msgspec

from curtsy.core.crawl_record import MOST_HOSTS, MOST_SEEDS, CrawledHost, CrawlRecord, crawl_key
from curtsy.core.time import SECOND
from curtsy.stores import Store, read_all

SILENT = 30.0
"""Seconds without a record after which a worker that did not end counts as silent, perhaps killed."""

STALLED = 600.0
"""Seconds without a finished URL after which a crawl counts as stalled, unless it waits for a known time."""

WORKER_STATES = ("running", "waiting", "silent", "stopped", "finished")
"""States of a worker. A silent one has not published for `SILENT` seconds, although it did not end."""


class WorkerView(msgspec.Struct, frozen=True, gc=False):
    """One process of a crawl. Instants are epoch seconds."""

    worker: str
    """Name in a shared job; empty for a crawl of one process."""

    process: str
    """Machine and process."""

    state: str
    """State from `WORKER_STATES`."""

    pages: int
    """Pages, from sites and from the cache, over all its runs."""

    failed: int
    rate: float
    """Pages per second over the last minute; 0 unless it is running."""

    in_flight: int
    oldest_lease_at: float | None
    """Time at which it received the oldest of the URLs that it holds; None if it holds none, or is silent."""

    updated_at: float
    """Time of its last record."""


class CrawlView(msgspec.Struct, frozen=True):
    """One crawl at one moment."""

    whole: CrawlRecord
    """Sums over the workers. Of a job with records of earlier workers that are gone, `pages` includes theirs."""

    workers: tuple[WorkerView, ...]
    """Its processes: silent ones first, then those at work, then those that ended; each group by name."""

    stalled: float = 0.0
    """Seconds since a URL was last finished although workers are at work; 0 if the crawl waits for a known time."""

    oldest_lease: float = 0.0
    """Seconds for which a worker at work has held the oldest of its URLs; 0 if none holds any."""

    @property
    def job(self) -> str:
        """Return the name of the job."""
        return self.whole.job

    def count(self, *states: str) -> int:
        """Return the number of workers in these states."""
        return sum(each.state in states for each in self.workers)

    @property
    def present(self) -> int:
        """Return the number of workers at work."""
        return self.count(*_AT_WORK)

    @property
    def lost(self) -> tuple[WorkerView, ...]:
        """Return the silent workers, unless the job has ended without them."""
        is_over = self.whole.state == "finished"
        return () if is_over else tuple(each for each in self.workers if each.state == "silent")


def read_crawls(store: Store) -> list[CrawlView]:
    """Return the crawls of a store: running ones first, then the latest."""
    records = [each for _, each in read_all(store, crawl_key("")) if isinstance(each, CrawlRecord)]
    return crawls_of(records, store.now().epoch / SECOND)


def crawls_of(records: Iterable[CrawlRecord], now: float) -> list[CrawlView]:
    """Return the views of crawl records as of an epoch second: running crawls first, then the latest."""
    by_crawl = sorted(records, key=_identity)
    found = [_view(list(each), now) for _, each in groupby(by_crawl, _identity)]
    return sorted(found, key=lambda each: (not each.whole.is_running, -each.whole.started_at, each.job))


def _identity(record: CrawlRecord) -> tuple[str, str]:
    """Return what the records of one crawl have in common: the job, and without a shared one the process."""
    return record.job, "" if record.worker else record.process


_AT_WORK = ("running", "waiting")
_ORDER = {"silent": 0, "running": 1, "waiting": 1}


def _view(records: Sequence[CrawlRecord], now: float) -> CrawlView:
    workers = [_worker(each, now) for each in records]
    present = [record for record, worker in zip(records, workers, strict=True) if worker.state in _AT_WORK]
    whole = (
        records[0]
        if len(records) == 1 and not records[0].worker
        else _sum(records, present, {each.state for each in workers})
    )
    workers.sort(key=lambda each: (_ORDER.get(each.state, 2), each.worker))
    is_waiting = all(each.state == "waiting" for each in present)
    progress_at = max(each.progress_at or now for each in records)
    stalled = 0.0 if is_waiting or not whole.queued + whole.leased else max(0.0, now - progress_at)
    leases = [each.oldest_lease_at for each in workers if each.oldest_lease_at is not None]
    return CrawlView(whole, tuple(workers), stalled, max(0.0, now - min(leases, default=now)))


def _worker(record: CrawlRecord, now: float) -> WorkerView:
    is_silent = record.is_running and now - record.updated_at > SILENT
    return WorkerView(
        worker=record.worker,
        process=record.process,
        state="silent" if is_silent else record.state,
        pages=record.pages + record.cached,
        failed=record.failed,
        rate=record.rate if record.is_running and not is_silent else 0.0,
        in_flight=0 if is_silent else record.in_flight,
        oldest_lease_at=None if is_silent else record.oldest_lease_at,
        updated_at=record.updated_at,
    )


def _sum(records: Sequence[CrawlRecord], present: Sequence[CrawlRecord], states: set[str]) -> CrawlRecord:
    """Return one record for all workers of a job; `present` are those at work, `states` those of the workers."""
    latest = max(present or records, key=lambda each: each.updated_at)
    cached = sum(each.cached for each in records)
    leases = [each.oldest_lease_at for each in present if each.oldest_lease_at is not None]
    left = _shared_time(each.seconds_left for each in present)
    seeds = dict.fromkeys(seed for each in records for seed in each.seeds)
    return msgspec.structs.replace(
        latest,
        worker="",
        state=next((each for each in (*_AT_WORK, "finished", "stopped") if each in states), latest.state),
        started_at=min(each.started_at for each in records),
        pages=max(sum(each.pages for each in records), max(each.job_pages for each in records) - cached),
        cached=cached,
        failed=sum(each.failed for each in records),
        skipped=sum(each.skipped for each in records),
        bytes=sum(each.bytes for each in records),
        in_flight=sum(each.in_flight for each in present),
        rate=sum(each.rate for each in present),
        seconds_left=left or latest.seconds_left or None,
        seconds_left_in_all=max(
            (each.seconds_left_in_all for each in present if each.seconds_left_in_all), default=None
        ),
        seconds_left_at_least=None if left else _shared_time(each.seconds_left_at_least for each in present),
        waiting_for=latest.waiting_for if all(each.waiting_for for each in present) else None,
        seeds=tuple(seeds)[:MOST_SEEDS],
        hosts=_hosts(records),
        pages_before=None,
        oldest_lease_at=min(leases, default=None),
        progress_at=max(each.progress_at for each in records),
    )


def _shared_time(lefts: Iterable[float | None]) -> float | None:
    """Return the seconds that workers need together. Each estimates them as if it were alone with the queue."""
    rates = [1 / each for each in lefts if each]
    return 1 / sum(rates) if rates else None


def _hosts(records: Sequence[CrawlRecord]) -> tuple[CrawledHost, ...]:
    """Return the busiest hosts of all workers, with the state by the worker that published last."""
    found: dict[str, CrawledHost] = {}
    for record in sorted(records, key=lambda each: each.updated_at):
        for host in record.hosts:
            if (known := found.get(host.host)) is not None:
                pages, errors = known.pages + host.pages, known.errors + host.errors
                host = msgspec.structs.replace(host, pages=pages, errors=errors)
            found[host.host] = host
    return tuple(sorted(found.values(), key=lambda each: (-each.pages, each.host))[:MOST_HOSTS])
