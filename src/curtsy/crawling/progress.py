"""Progress of a crawl: snapshots while it runs, its summary, and their counters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from enum import StrEnum
from itertools import islice
from typing import Any

import msgspec

from curtsy.core.crawl_messages import BUDGET_SPENT, crawl_end, describe, nothing_new, reached, seeds_without_page
from curtsy.core.errors import REFUSALS, Reason
from curtsy.core.time import span
from curtsy.crawling.frontier.protocol import Claimed, Deferred, HostQueue
from curtsy.crawling.outputs.protocol import Written
from curtsy.crawling.requisites import is_requisite
from curtsy.crawling.results import Finished


class Ended(StrEnum):
    """Reason for the end of a crawl."""

    DONE = "done"
    MAX_PAGES = "max_pages"
    MAX_TIME = "max_time"
    MAX_BYTES = "max_bytes"
    LATER = "later"
    """The rest is due later, or could not be written within `patience`."""

    NOT_WRITTEN = "not_written"
    """An output is closed, or is not this crawl's file."""

    STOPPED = "stopped"


def end_message(
    ended: Ended, limits: Mapping[Ended, float | None], due: float | None, failure: Exception | None
) -> str:
    """Return how a crawl ended, in a sentence. `due` is the seconds until the next URL."""
    if failure is not None:
        return f"Stopped: {failure}"
    most = limits.get(ended)
    if most is None:
        return crawl_end(ended, due)
    return reached(ended, span(most) if ended is Ended.MAX_TIME else most)


def shortfall(summary: CrawlSummary, seeds: Collection[str], before: CrawlTotals, job: str) -> str | None:
    """Return why start URLs have no page, or why a run has none at all; None if neither is the case.

    `before` are the totals of earlier runs, and `job` is the name of the job, or empty.
    """
    known = set(seeds)
    lost = [(url, why) for url, why in summary.reasons.items() if url in known or why == Reason.INVALID_URL]
    if lost:
        return seeds_without_page(lost, len(known))
    if summary.totals.pages > before.pages:
        return None
    if summary.ended is Ended.DONE and job and before.pages:
        return nothing_new(job, before.pages)
    return f"no page was fetched. {summary.message}"


class CrawlTotals(msgspec.Struct):
    """Work of a job over all its runs, stored in the frontier together with the results."""

    fetched: int = 0
    """Pages fetched from their sites."""

    cached: int = 0
    """Pages from valid cache entries."""

    redirected: int = 0
    skipped: dict[str, int] = {}
    """URLs that were not requested or not kept, by reason."""

    failed: dict[str, int] = {}
    """URLs whose requests failed, by reason."""

    left_out: dict[str, int] = {}
    """Links outside the scope, by reason; each counts about once."""

    sitemaps: int = 0
    bytes: int = 0
    """Body bytes over the network."""

    seconds: float = 0.0
    """Duration of all runs in seconds; for a shared job, that of the worker that was at work the longest."""

    requisites: int = 0
    """Images, styles and other parts of pages."""

    extract_errors: int = 0
    """Pages whose fields could not be extracted, or not completely. They are kept."""

    @property
    def pages(self) -> int:
        """Return the number of pages."""
        return self.fetched + self.cached


def together(several: Iterable[CrawlTotals]) -> CrawlTotals:
    """Return the totals of a job: the sums over its workers, and the time of the one that was at work the longest.

    Workers run side by side, so the sum of their times is no duration.
    """
    whole: dict[str, Any] = {name: {} for name in ("skipped", "failed", "left_out")}
    totals = list(several)
    for name in CrawlTotals.__struct_fields__:
        values = [getattr(each, name) for each in totals]
        whole[name] = dict(sum(map(Counter, values), Counter())) if name in whole else sum(values)
    whole["seconds"] = max((each.seconds for each in totals), default=0.0)
    return CrawlTotals(**whole)


class HostProgress(msgspec.Struct, frozen=True):
    """Progress of one host."""

    host: str
    state: str
    """`fetching`, `waiting`, `breaker open`, `budget spent`, `paused`, `resting` or `done`."""

    pages: int = 0
    errors: int = 0
    queued: int | None = None
    """Queued URLs; None if unknown."""

    next_in: float | None = None
    """Seconds until it may be requested; None if it is fetching or done."""

    requests_left: int | None = None
    """Requests left of today's budget; None if it is unlimited or unknown."""

    pages_left: int | None = None
    crawl_delay: float | None = None
    """Seconds between two requests that its robots.txt wants, if the settings want fewer; else None."""

    why: str = ""
    """Short description of the reason why the host is not contacted for a while; else empty."""


class CrawlSnapshot(msgspec.Struct, frozen=True):
    """State of a crawl at one moment."""

    state: str
    """`running`, `waiting`, `stopping`, or the reason for the end."""

    totals: CrawlTotals
    queued: int
    in_flight: int
    """Requests on the wire."""

    hosts_seen: int
    rate: float
    """Pages per second over the last minute; in a shared crawl, those of this process."""

    elapsed: float
    """Duration of this run in seconds."""

    time_left: float | None
    """Estimated seconds until the queue, a limit or the budget of the day ends; None if unknown."""

    waiting_for: str | None
    """Reason why the whole crawl waits, in words; None if it does not."""

    hosts: tuple[HostProgress, ...] = ()
    """Hosts with the longest queues, then the latest ones, with their numbers in this run."""

    before: CrawlTotals | None = None
    """Part of `totals` from earlier runs; None if there are no earlier runs."""

    leased: int = 0
    """URLs that this crawl's workers hold."""

    oldest_lease: float | None = None
    """Seconds for which this process has held the oldest URL that it fetches; None if it fetches none."""

    job_pages: int = 0
    """Pages of all workers of a shared crawl; 0 in a crawl of one process."""

    time_left_in_all: float | None = None
    """Estimated seconds until the crawl is complete, if the budget of the day ends first; else None."""

    time_left_at_least: float | None = None
    """Estimated seconds that the queue takes, if `time_left` is unknown because the queue grows; else None."""


class CrawlSummary(msgspec.Struct, frozen=True):
    """Result of a crawl (U14)."""

    ended: Ended

    totals: CrawlTotals
    queued: int
    """URLs that are left."""

    resume_in: float | None
    """Seconds until the crawl can usefully be resumed. None: no URL is left, it can be resumed now, or when paused
    hosts are resumed."""

    reasons: Mapping[str, str] = {}
    """URLs without a page, each with its reason; at most some thousands."""

    message: str = ""
    outputs: tuple[Written, ...] = ()
    """Actual contents of the outputs over all runs, and their missing entries."""

    worker_deaths: int = 0
    """Number of worker processes that died in this run and were started again. Their URLs were fetched by others."""

    @property
    def missing(self) -> int:
        """Return the number of written entries that were cut or removed from the outputs."""
        return sum(each.missing for each in self.outputs)

    @property
    def total(self) -> int:
        """Return the number of processed URLs."""
        return self.totals.pages + self.skipped + self.failed

    @property
    def fetched(self) -> int:
        """Return the number of pages fetched from their sites."""
        return self.totals.fetched

    @property
    def cached(self) -> int:
        """Return the number of pages from valid cache entries."""
        return self.totals.cached

    @property
    def skipped(self) -> int:
        """Return the number of URLs that were not requested or not kept."""
        return sum(self.totals.skipped.values())

    @property
    def failed(self) -> int:
        """Return the number of URLs whose requests failed."""
        return sum(self.totals.failed.values())

    def as_dict(self) -> dict[str, object]:
        """Return it as plain values for JSON."""
        totals = self.totals
        return {
            "ended": str(self.ended),
            **{name: getattr(self, name) for name in ("total", "fetched", "cached", "skipped", "failed")},
            **{
                name: getattr(totals, name)
                for name in ("redirected", "requisites", "sitemaps", "bytes", "extract_errors")
            },
            "seconds": round(totals.seconds, 3),
            "queued": self.queued,
            "resume_in": self.resume_in,
            "worker_deaths": self.worker_deaths,
            **{f"{name}_by_reason": dict(getattr(totals, name)) for name in ("skipped", "failed", "left_out")},
        }


MOST_HOSTS = 100_000
"""Maximum number of remembered hosts. Beyond it, the oldest is dropped."""

_STATES = {
    Reason.CIRCUIT_OPEN: "breaker open",
    Reason.DOMAIN_BUDGET_EXCEEDED: BUDGET_SPENT,
    Reason.PAUSED: "paused",
}


SHORT = 5.0
"""Seconds: a host that is due later rests, and may be found to be available earlier."""

_CAN_CHANGE = {*_STATES, Reason.DEADLINE}
"""Refusals by the record of a host, which a user or another process may change."""


class _Host(msgspec.Struct, gc=False):
    pages: int = 0
    """Pages of this run."""
    job_pages: int = 0
    """Pages of all runs and workers, including unwritten ones."""
    errors: int = 0
    out: int = 0
    """Running fetches."""
    state: str = "waiting"
    why: str = ""
    ready_at: float = 0.0
    is_hastened: bool = False
    """True if it was found to be available earlier, and neither a page nor its record has shown more since."""
    requests_left: int | None = None
    pages_left: int | None = None
    crawl_delay: float = 0.0


class Hosts:
    """Statistics of all hosts of a crawl, and the quota of pages for each."""

    def __init__(self, most_pages: int | None = None) -> None:
        """Create the statistics. `most_pages` is the maximum number of pages of a host; None for no limit."""
        self.most_pages = most_pages
        self._hosts: dict[str, _Host] = {}
        self._resting: dict[str, None] = {}
        """Hosts that were due later than SHORT by the last result, the next one to look at first."""
        self.paused_at: float | None = None
        """Time since which the only result is that hosts are paused indefinitely; None after any other result."""

    def _of(self, host: str) -> _Host:
        known = self._hosts.get(host)
        if known is None:
            if len(self._hosts) >= MOST_HOSTS:
                oldest = next(name for name, each in self._hosts.items() if not each.out)
                del self._hosts[oldest]
                self._resting.pop(oldest, None)
            known = self._hosts[host] = _Host()
        return known

    def pages_to_go(self, claimed: Claimed) -> tuple[int, int] | None:
        """Return the pages left in a host's quota, and those left if every running fetch yields one.

        None if there is no quota, or if the claim is on a requisite. The frontier counts the pages of all workers, and
        gives the URLs of a host to one worker at a time.
        """
        if self.most_pages is None or is_requisite(claimed):
            return None
        known = self._of(claimed.host)
        known.job_pages = max(known.job_pages, claimed.host_pages)
        left = self.most_pages - known.job_pages
        return left, left - known.out

    def quotas(self, hosts: Iterable[str]) -> dict[str, int]:
        """Return the pages left in the quota of each host; empty if there is no quota."""
        if self.most_pages is None:
            return {}
        pages = {host: known.job_pages if (known := self._hosts.get(host)) else 0 for host in hosts}
        return {host: max(0, self.most_pages - count) for host, count in pages.items()}

    def began(self, host: str) -> None:
        """Count a started fetch."""
        self._of(host).out += 1

    def ended(self, finished: Finished, now: float) -> None:
        """Record the result of a fetch."""
        end, is_page, known = finished.end, finished.page is not None, self._of(finished.claimed.host)
        ended_at = now if finished.answered_at is None else finished.answered_at
        wait = end.seconds if isinstance(end, Deferred) else end.after
        known.out -= 1
        known.pages += is_page
        known.job_pages += is_page
        known.ready_at = ended_at + (wait or 0.0)
        known.state, known.why = "waiting", ""
        news = finished.news
        self._resting.pop(finished.claimed.host, None)
        if news is None:
            return
        reason = news.reason
        if (reason in _CAN_CHANGE or reason not in REFUSALS) and known.ready_at - now > SHORT:
            self._resting[finished.claimed.host] = None
        known.is_hastened &= reason is not None
        if reason is not Reason.PAUSED or news.retry_after is not None:
            self.paused_at = None
        elif self.paused_at is None:
            self.paused_at = ended_at
        if news.requests_left is not None or news.pages_left is not None:
            known.requests_left, known.pages_left = news.requests_left, news.pages_left
        known.crawl_delay = news.crawl_delay or known.crawl_delay
        if reason in _STATES:
            what = describe(reason).what
            known.state, known.why = _STATES[reason], f"{what}, because {news.cause}" if news.cause else what
        elif reason is Reason.DEADLINE and news.cause:
            known.state, known.why = "resting", news.cause
        elif reason is not None and reason not in REFUSALS and reason is not Reason.REDIRECTED:
            known.errors += 1
            if news.retry_after is not None:
                known.state, known.why = "resting", news.cause

    @property
    def has_resting(self) -> bool:
        """Return whether any host rests."""
        return bool(self._resting)

    def resting(self, now: float, most: int) -> dict[str, float]:
        """Return at most `most` hosts that rest, in turn, each with the seconds until it is due."""
        found: dict[str, float] = {}
        for host in list(islice(self._resting, most)):
            del self._resting[host]
            known = self._hosts[host]
            if known.ready_at > now:
                self._resting[host] = None
                if not known.out:
                    found[host] = known.ready_at - now
        return found

    def may_hasten(self, host: str, *, is_earlier: bool) -> bool:
        """Return whether a host is to be due now, because its record says that it is available earlier.

        If the host rests nevertheless, its record is not the reason. So the host is not hastened again before its
        record has agreed, or a page was fetched.
        """
        known = self._hosts[host]
        known.is_hastened &= is_earlier
        return is_earlier and not known.is_hastened

    def hasten(self, hosts: Iterable[str], now: float) -> None:
        """Record that hosts are due now."""
        for host in hosts:
            self._resting.pop(host, None)
            known = self._hosts[host]
            known.state, known.why, known.ready_at, known.is_hastened = "waiting", "", now, True

    def count(self) -> int:
        """Return the number of remembered hosts."""
        return len(self._hosts)

    def due_first(self, now: float) -> str:
        """Return the state of the host that is due first, if that is later; empty without one."""
        waiting = [each for each in self._hosts.values() if each.ready_at > now and not each.out]
        return min(waiting, key=lambda each: each.ready_at).state if waiting else ""

    def progress(self, queues: Iterable[HostQueue], now: float, most: int) -> tuple[HostProgress, ...]:
        """Return at most `most` hosts: those in `queues` first, then the latest ones."""
        queued = {queue.host: queue for queue in queues}
        names = islice(dict.fromkeys([*queued, *islice(reversed(self._hosts), most)]), most)
        return tuple(self._row(host, now, queued.get(host)) for host in names)

    def _row(self, host: str, now: float, queue: HostQueue | None) -> HostProgress:
        known = self._hosts.get(host) or _Host()
        state, next_in = known.state, max(0.0, known.ready_at - now)
        if known.out:
            state = "fetching"
        elif queue is not None and queue.due_in is not None:
            next_in = queue.due_in
        elif queue is None and state == "waiting":
            state = "done"
        queued, wait = None if queue is None else queue.queued, None if state in ("done", "fetching") else next_in
        numbers = known.pages, known.errors, queued, wait, known.requests_left, known.pages_left
        return HostProgress(host, state, *numbers, known.crawl_delay or None, known.why)
