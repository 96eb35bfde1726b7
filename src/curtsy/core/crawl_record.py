"""CrawlRecord: progress of a crawl, published to the store about every second, for display only.

A killed crawl keeps its last state until its record expires; `updated_at` shows the age of that state.
"""

from __future__ import annotations

import msgspec

from curtsy.core.record import Record
from curtsy.core.time import SECOND, Now

HOUR = 3600
"""Seconds for which a crawl is shown after its last update."""

MOST_HOSTS = 50
"""Maximum number of hosts in a record, the busiest."""

MOST_SEEDS = 5
"""Maximum number of seeds in a record."""


class CrawledHost(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One host of a crawl."""

    host: str
    state: str = ""
    """State in a word or two: `fetching`, `waiting`, `breaker open` …"""

    pages: int = 0
    queued: int = 0
    next_in: float | None = None
    """Seconds until the host may be contacted, as of `updated_at`; None if unknown."""

    errors: int = 0


class CrawlRecord(Record, frozen=True, tag="crawl"):
    """Progress of one crawl. Times are epoch seconds."""

    job: str = ""
    process: str = ""
    """Machine and process of the crawl, as a display name."""

    started_at: float = 0.0
    updated_at: float = 0.0
    state: str = "running"
    """`running`, `waiting`, `stopped` (URLs are left) or `finished`."""

    seeds: tuple[str, ...] = ()
    """First seeds, secrets masked."""

    pages: int = 0
    """Pages fetched from sites. All counts include the earlier runs of the job."""

    cached: int = 0
    """Pages served from the cache."""

    failed: int = 0
    skipped: int = 0
    """URLs refused by a policy, or not wanted."""

    queued: int = 0
    in_flight: int = 0
    bytes: int = 0
    rate: float = 0.0
    """Pages per second, over the last minute."""

    seconds_left: float | None = None
    """Seconds until the present queue is done, or the budget of the day ends; None if unknown."""

    waiting_for: str | None = None
    """Description of the event that the whole crawl waits for; None if it does not wait."""

    hosts: tuple[CrawledHost, ...] = ()
    """Busiest hosts, at most `MOST_HOSTS`, with the counts of this run."""

    ended: str = ""
    """Reason of the end, as in the summary: `done`, `max_pages`, `later` …; empty while running, or after an error."""

    is_job: bool = False
    """True if the crawl has a name, so that its queue is kept and can be resumed."""

    pages_before: int | None = None
    """Number of `pages` and `cached` from earlier runs of the job; None in its first run."""

    worker: str = ""
    """Name of this worker in a shared job; empty for a crawl of one process. `pages`, `cached`, `failed`, `skipped`,
    `in_flight`, `bytes`, `rate` and `hosts` are this worker's, `queued` and `leased` are of all workers."""

    leased: int = 0
    """URLs that workers hold and fetch."""

    oldest_lease_at: float | None = None
    """Time at which this worker received the oldest of the URLs that it holds; None if it holds none."""

    progress_at: float = 0.0
    """Time at which this worker last finished a URL, or started; 0 in records of earlier versions."""

    job_pages: int = 0
    """Pages of all workers of the job; 0 if unknown, as in a crawl of one process."""

    command: str = ""
    """Command line that resumes the job, secrets masked; empty if it was started by a Python program."""

    seconds_left_in_all: float | None = None
    """Seconds until all is done, if the budget of the day ends first; else None."""

    seconds_left_at_least: float | None = None
    """Seconds that the queue takes, if `seconds_left` is unknown because the queue grows; else None."""

    @property
    def is_running(self) -> bool:
        """Return whether the crawl has not ended, by its last record."""
        return self.state in ("running", "waiting")

    def lasts(self, now: Now) -> int | None:
        """Return the microseconds until an hour after the last update."""
        return max(0, round((self.updated_at + HOUR) * SECOND) - now.epoch)


def crawl_key(job: str) -> str:
    """Return the key of a crawl's record."""
    return f"crawl:{job}"
