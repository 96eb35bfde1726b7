"""CrawlRecord: how far a crawl has come, as it tells the store every second or so, for whoever watches.

It decides nothing. A crawl that was killed goes on standing as it last was, until its record has run out; `updated_at`
says how old that word is.
"""

from __future__ import annotations

import msgspec

from curtsy.core.message import SECOND, Now
from curtsy.core.record import Record

HOUR = 3600
"""Seconds for which a crawl is shown after its last word."""

MOST_HOSTS = 50
"""Hosts that a record lists: the busiest."""

MOST_SEEDS = 5
"""Seeds that a record names."""


class CrawledHost(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One host of a crawl."""

    host: str
    state: str = ""
    """In a word or two: `fetching`, `waiting`, `breaker open` …"""

    pages: int = 0
    queued: int = 0
    next_in: float | None = None
    """Seconds until it may be asked, as of `updated_at`; None if nobody knows."""

    errors: int = 0


class CrawlRecord(Record, frozen=True, tag="crawl"):
    """How far one crawl has come. Times are epoch seconds."""

    job: str = ""
    process: str = ""
    """Who crawls: machine and process, as a name to be shown."""

    started_at: float = 0.0
    updated_at: float = 0.0
    state: str = "running"
    """`running`, `waiting`, `stopped` (something is left) or `finished`."""

    seeds: tuple[str, ...] = ()
    """The first few, secrets masked."""

    pages: int = 0
    """Fetched from sites; this and the other counts are of all runs of the job."""

    cached: int = 0
    """Answered by the cache."""

    failed: int = 0
    skipped: int = 0
    """Refused by manners, or not wanted."""

    queued: int = 0
    in_flight: int = 0
    bytes: int = 0
    rate: float = 0.0
    """Pages a second, over the last minute."""

    seconds_left: float | None = None
    """Until all that is queued now will be done; None if nobody knows."""

    waiting_for: str | None = None
    """What the whole crawl waits for, in words; None if for nothing."""

    hosts: tuple[CrawledHost, ...] = ()
    """The busiest, at most `MOST_HOSTS`, with what this run did."""

    ended: str = ""
    """Why it is over, as its summary says: `done`, `max_pages`, `later` …; empty while it runs, or after an error."""

    is_job: bool = False
    """Whether it has a name, so that what is left is kept and can be gone on with."""

    pages_before: int | None = None
    """Those among `pages` and `cached` that earlier runs of the job have brought; None in its first run."""

    def lasts(self, now: Now) -> int | None:
        """An hour after the last word."""
        return max(0, round((self.updated_at + HOUR) * SECOND) - now.epoch)


def crawl_key(job: str) -> str:
    """The key that a crawl's record is kept under."""
    return f"crawl:{job}"
