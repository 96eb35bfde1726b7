"""Progress of a crawl: Plan before the start, Snapshot while it runs, Summary at its end."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from curtsy.core.host import Host, fresh, in_time
from curtsy.core.message import Now
from curtsy.core.messages import span
from curtsy.core.policy import Policy
from curtsy.crawling.outputs import Written


class Totals(msgspec.Struct):
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

    @property
    def pages(self) -> int:
        """Return the number of pages."""
        return self.fetched + self.cached


def together(several: Iterable[Totals]) -> Totals:
    """Return the sum of several workers' totals, including their time."""
    whole = Totals()
    for each in several:
        for name in ("fetched", "cached", "redirected", "sitemaps", "bytes", "seconds"):
            setattr(whole, name, getattr(whole, name) + getattr(each, name))
        for name in ("skipped", "failed", "left_out"):
            counts: dict[str, int] = getattr(whole, name)
            for reason, count in getattr(each, name).items():
                counts[reason] = counts.get(reason, 0) + count
    return whole


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
    """Reason why the host is not contacted for a while, in a sentence; else empty."""


class Snapshot(msgspec.Struct, frozen=True):
    """State of a crawl at one moment."""

    state: str
    """`running`, `waiting`, `stopping`, or the reason for the end."""

    totals: Totals
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

    before: Totals | None = None
    """Part of `totals` from earlier runs; None if there are no earlier runs."""


class Summary(msgspec.Struct, frozen=True):
    """Result of a crawl (U14)."""

    ended: str
    """`done`, `max_pages`, `max_time`, `max_bytes`, `later` (the rest is due later, or could not be written within
    `patience`), `not_written` (an output is closed, or is not this crawl's file) or `stopped`."""

    totals: Totals
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
            "ended": self.ended,
            "total": self.total,
            "fetched": self.fetched,
            "cached": self.cached,
            "skipped": self.skipped,
            "failed": self.failed,
            "redirected": totals.redirected,
            "sitemaps": totals.sitemaps,
            "bytes": totals.bytes,
            "seconds": round(totals.seconds, 3),
            "queued": self.queued,
            "resume_in": self.resume_in,
            "skipped_by_reason": dict(totals.skipped),
            "failed_by_reason": dict(totals.failed),
            "left_out_by_reason": dict(totals.left_out),
        }


class Plan(msgspec.Struct, frozen=True):
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


def plan(pages: int | None, gaps: Sequence[float], overall: Policy | None, allowed: int | None) -> Plan:
    """Estimate the duration of `pages` pages on hosts with these gaps, under the shared rate of all hosts."""
    gap = max(gaps, default=0.0)
    rate = sum(1 / each for each in gaps) if gaps and all(gaps) else None
    if overall is not None and overall.qps is not None:
        rate = overall.qps if rate is None else min(rate, overall.qps)
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
    return Plan(pages, gap, seconds, allowed, message)


def _pages(count: int) -> str:
    return f"{count:,} {'page' if count == 1 else 'pages'}"
