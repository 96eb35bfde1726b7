"""Progress of a crawl: its plan before the start, snapshots while it runs, its summary, and their counters."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from itertools import islice
from typing import Any

import msgspec

from curtsy.core.crawl_messages import crawl_end, describe, reached
from curtsy.core.errors import REFUSALS, Reason
from curtsy.core.host import Host, fresh, in_time
from curtsy.core.policy import Policies, Policy
from curtsy.core.result import FetchResult
from curtsy.core.time import SECOND, Now, span
from curtsy.crawling.frontier.protocol import Claimed, Deferred, HostQueue
from curtsy.crawling.outputs.protocol import Written
from curtsy.crawling.requisites import is_requisite
from curtsy.crawling.results import Finished
from curtsy.engine.session import Session


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
    """Duration of all runs in seconds."""

    requisites: int = 0
    """Images, styles and other parts of pages."""

    extract_errors: int = 0
    """Pages whose fields could not be extracted, or not completely. They are kept."""

    @property
    def pages(self) -> int:
        """Return the number of pages."""
        return self.fetched + self.cached


def together(several: Iterable[CrawlTotals]) -> CrawlTotals:
    """Return the sum of several workers' totals, including their time."""
    whole: dict[str, Any] = {name: {} for name in ("skipped", "failed", "left_out")}
    totals = list(several)
    for name in CrawlTotals.__struct_fields__:
        values = [getattr(each, name) for each in totals]
        whole[name] = dict(sum(map(Counter, values), Counter())) if name in whole else sum(values)
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
    """Pages per second over the last minute."""

    elapsed: float
    """Duration of this run in seconds."""

    time_left: float | None
    """Estimated seconds until the queue is empty; None if unknown."""

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


class CrawlPlan(msgspec.Struct, frozen=True):
    """Estimate of a crawl before its start."""

    pages: int | None
    """Maximum pages; None if there is no limit."""

    gap: float
    """Average seconds between two requests to a host."""

    seconds: float | None
    """Duration for that many pages at that pace; None if there is no limit."""

    allowed_today: int | None
    """Pages left in today's budgets of the seeds' hosts; None if they are unlimited."""

    message: str


def gap_of(policy: Policy, crawl_delay: float = 0.0) -> float:
    """Return the average seconds between two requests to a host: the maximum of all its delays (C1)."""
    by_rate = 0.0 if policy.qps is None else 1 / policy.qps
    return max(by_rate, (policy.pause_min + policy.pause_max) / 2, policy.delay, crawl_delay)


def pages_left(policy: Policy, host: Host | None, now: Now) -> int | None:
    """Return the pages left in a host's budget today; None if unlimited. One request is reserved for robots.txt."""
    day = (fresh(now) if host is None else in_time(host, now)).spending(now, policy.calendar)
    lefts = []
    if policy.max_pages_per_day:
        lefts.append(policy.max_pages_per_day - day.pages)
    if policy.max_requests_per_day:
        lefts.append(policy.max_requests_per_day - day.requests - (policy.respect_robots and not day.requests))
    return max(0, min(lefts)) if lefts else None


async def plan(session: Session, hosts: Iterable[str], pages: int | None) -> CrawlPlan:
    """Estimate the duration of `pages` pages on these hosts by their policies and records, without any request."""
    policies, now = session.policies, await session.store.now()
    gaps, lefts, rates = [], [], []
    for host in hosts:
        policy = policies.of(host)
        record = await session.store.read(policy.key_for(host))
        gaps.append(gap_of(policy, 0.0 if record is None else record.crawl_delay / SECOND))
        lefts.append(pages_left(policy, record, now))
        if policy.global_rate and policies.overall.qps is not None:
            rates = [policies.overall.qps]
    if gaps and all(gaps):
        rates.append(sum(1 / each for each in gaps))
    gap, rate = max(gaps, default=0.0), min(rates, default=None)
    allowed = None if None in lefts else sum(left or 0 for left in lefts)
    pace = f"a page every {span(1 / rate)}" if rate is not None else "no pauses"
    seconds = None if pages is None else 0.0 if rate is None else pages / rate
    if pages is None:
        message = f"as many pages as there are, at this pace: {pace}"
    elif rate is None:
        message = f"up to {_pages(pages)}, without pauses"
    else:
        message = f"up to {_pages(pages)} at this pace ({pace}): about {span(pages / rate)}"
    if allowed is not None and (pages is None or allowed < pages):
        message += f"; the budget allows {allowed:,} today"
    return CrawlPlan(pages, gap, seconds, allowed, message)


def _pages(count: int) -> str:
    return f"{count:,} {'page' if count == 1 else 'pages'}"


MOST_HOSTS = 100_000
"""Maximum number of remembered hosts. Beyond it, the oldest is dropped."""

_STATES = {
    Reason.CIRCUIT_OPEN: "breaker open",
    Reason.DOMAIN_BUDGET_EXCEEDED: "budget spent",
    Reason.PAUSED: "paused",
}


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
    requests_left: int | None = None
    pages_left: int | None = None


def paused_since(before: float | None, result: FetchResult, now: float) -> float | None:
    """Return since when the only result is that hosts are paused indefinitely; None after any other result."""
    is_paused = result.reason is Reason.PAUSED and result.retry_after is None
    return (now if before is None else before) if is_paused else None


class Hosts:
    """Statistics of all hosts of a crawl, and the quota of pages for each."""

    def __init__(self, most_pages: int | None = None) -> None:
        """Create the statistics. `most_pages` is the maximum number of pages of a host; None for no limit."""
        self.most_pages = most_pages
        self._hosts: dict[str, _Host] = {}

    def _of(self, host: str) -> _Host:
        known = self._hosts.get(host)
        if known is None:
            if len(self._hosts) >= MOST_HOSTS:
                del self._hosts[next(name for name, each in self._hosts.items() if not each.out)]
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

    def began(self, host: str) -> None:
        """Count a started fetch."""
        self._of(host).out += 1

    def ended(self, finished: Finished, result: FetchResult | None, now: float) -> None:
        """Record the result of a fetch, with its response, if there was one."""
        end, is_page, known = finished.end, finished.page is not None, self._of(finished.claimed.host)
        wait = end.seconds if isinstance(end, Deferred) else end.after
        known.out -= 1
        known.pages += is_page
        known.job_pages += is_page
        known.ready_at = now + (wait or 0.0)
        known.state, known.why = "waiting", ""
        if result is None:
            return
        reason, record = result.reason, result.record
        if record.requests_left is not None:
            known.requests_left, known.pages_left = record.requests_left, record.pages_left
        if reason in _STATES:
            known.state, known.why = _STATES[reason], describe(reason).what
        elif reason is not None and reason not in REFUSALS and reason is not Reason.REDIRECTED:
            known.errors += 1
            if result.retry_after is not None:
                known.state, known.why = "resting", result.cause

    def count(self) -> int:
        """Return the number of remembered hosts."""
        return len(self._hosts)

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
        return HostProgress(host, state, *numbers, known.why)


MINUTE = 60.0

MOST_MARKS = 600
"""Maximum number of marks, because a fake clock may stand still while they are added."""


class RateMeter:
    """Page rate over the last minute."""

    def __init__(self) -> None:
        self._marks: deque[tuple[float, int]] = deque(maxlen=MOST_MARKS)
        """Times with the number of pages at each."""

    def mark(self, now: float, pages: int) -> None:
        """Record the current number of pages."""
        self._marks.append((now, pages))
        while len(self._marks) > 2 and self._marks[0][0] < now - MINUTE:
            self._marks.popleft()

    def rate(self, now: float, pages: int) -> float:
        """Return the pages per second over the last minute."""
        if not self._marks:
            return 0.0
        then, before = self._marks[0]
        return (pages - before) / (now - then) if now > then else 0.0


def time_left(
    queued: int, most: int | None, queues: Sequence[HostQueue], policies: Policies, rate: float, patience: float
) -> float | None:
    """Estimate the seconds until the queue, or `most` URLs of it, is done; None if unknown.

    The estimate is the time of the slowest host, or of all hosts under their shared rate, whichever is longer. Without
    pauses, it follows from the present rate. Hosts that are due after more than `patience` seconds are ignored.
    """
    soon = [each for each in queues if (each.due_in or 0.0) <= patience]
    left = queued - sum(each.queued for each in queues if each not in soon)
    left = left if most is None else min(left, most)
    if left <= 0:
        return 0.0

    def needs(each: HostQueue) -> float:
        gaps = min(each.queued, left) - (each.due_in is not None)  # the first request waits only until the host is due
        return (each.due_in or 0.0) + max(0, gaps) * gap_of(policies.of(each.host))

    by_host = max(map(needs, soon), default=0.0)
    by_all = left / policies.global_qps if policies.global_qps else 0.0
    return max(by_host, by_all) or (left / rate if rate > 0 else None)
