"""How far a crawl has come: Snapshot while it runs, Summary at its end, Plan before it starts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from curtsy.core.host import Host, fresh, in_time
from curtsy.core.message import Now
from curtsy.core.messages import span
from curtsy.core.policy import Policy
from curtsy.crawling.outputs import Written


class Totals(msgspec.Struct):
    """What a job has done so far, over all its runs: kept in the frontier with what it is true of."""

    fetched: int = 0
    """Pages that came from their sites."""

    cached: int = 0
    """Pages whose kept copy still held."""

    redirected: int = 0
    skipped: dict[str, int] = {}
    """URLs that we chose not to ask for, or not to keep, by reason."""

    failed: dict[str, int] = {}
    """URLs that were asked for in vain, by reason."""

    left_out: dict[str, int] = {}
    """Links that lead out of the scope, by reason, each about once."""

    sitemaps: int = 0
    bytes: int = 0
    """Of bodies, over the network."""

    seconds: float = 0.0
    """Spent crawling."""

    @property
    def pages(self) -> int:
        """Pages in all."""
        return self.fetched + self.cached


def together(several: Iterable[Totals]) -> Totals:
    """What several workers have done: their time, too, is added up."""
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
    """How one host is doing."""

    host: str
    state: str
    """`fetching`, `waiting`, `breaker open`, `budget spent`, `paused`, `resting` or `done`."""

    pages: int = 0
    errors: int = 0
    queued: int | None = None
    """URLs that wait; None if nobody knows."""

    next_in: float | None = None
    """Seconds until it may be asked; None if nothing waits for that."""

    requests_left: int | None = None
    """Of today's budget; None if it is unlimited or not known."""

    pages_left: int | None = None
    why: str = ""
    """Why it is left alone for a while, in a sentence; empty if it is not."""


class Snapshot(msgspec.Struct, frozen=True):
    """A crawl at one moment."""

    state: str
    """`running`, `waiting`, `stopping`, or how it ended."""

    totals: Totals
    queued: int
    in_flight: int
    """Requests on the wire."""

    hosts_seen: int
    rate: float
    """Pages a second, over the last minute."""

    elapsed: float
    """Seconds of this run."""

    time_left: float | None
    """Seconds until what is queued will be done at this pace; None if nobody knows."""

    waiting_for: str | None
    """What the whole crawl waits for, in words."""

    hosts: tuple[HostProgress, ...] = ()
    """The hosts on which something happened last or is still to happen, the busiest first, with what this run did."""

    before: Totals | None = None
    """What earlier runs had done, which is part of `totals`; None for nothing."""


class Summary(msgspec.Struct, frozen=True):
    """What came of a crawl (U14)."""

    ended: str
    """`done`, `max_pages`, `max_time`, `max_bytes`, `later` (what is left is due later, or could not be written for
    as long as its patience), `not_written` (an output is closed, or not ours any more) or `stopped`."""

    totals: Totals
    queued: int
    """URLs that are left."""

    resume_in: float | None
    """Seconds after which going on makes sense; None if nothing is left, at once, or when paused hosts are resumed."""

    reasons: Mapping[str, str] = {}
    """The URLs that no page came from, each with why; the first thousands of them."""

    message: str = ""
    outputs: tuple[Written, ...] = ()
    """What the outputs really hold, over all runs, and what is missing in them."""

    @property
    def missing(self) -> int:
        """Entries that were written and are in the outputs no more, because these were cut or removed."""
        return sum(each.missing for each in self.outputs)

    @property
    def total(self) -> int:
        """URLs that were dealt with."""
        return self.totals.pages + self.skipped + self.failed

    @property
    def fetched(self) -> int:
        """Pages that came from their sites."""
        return self.totals.fetched

    @property
    def cached(self) -> int:
        """Pages whose kept copy still held."""
        return self.totals.cached

    @property
    def skipped(self) -> int:
        """URLs that we chose not to ask for, or not to keep."""
        return sum(self.totals.skipped.values())

    @property
    def failed(self) -> int:
        """URLs that were asked for in vain."""
        return sum(self.totals.failed.values())

    def as_dict(self) -> dict[str, object]:
        """Plain values, as they stand in JSON."""
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
    """What a crawl may take, as far as it can be told before it starts."""

    pages: int | None
    """At most; None if there is no limit."""

    gap: float
    """Seconds between two requests to a host, on average."""

    seconds: float | None
    """For that many pages at that pace; None without a limit."""

    allowed_today: int | None
    """Pages that the budgets of the seeds' hosts still allow today; None if they are unlimited."""

    message: str


def gap_of(policy: Policy, crawl_delay: float = 0.0) -> float:
    """Seconds between two requests to a host on average: the latest of all that paces it (C1)."""
    by_rate = 0.0 if policy.qps is None else 1 / policy.qps
    return max(by_rate, (policy.pause_min + policy.pause_max) / 2, policy.delay, crawl_delay)


def pages_left(policy: Policy, host: Host | None, now: Now) -> int | None:
    """Pages that a host's budget still allows today; None if it is unlimited. One request is robots.txt's."""
    day = (fresh(now) if host is None else in_time(host, now)).spending(now, policy.calendar)
    lefts = []
    if policy.max_pages_per_day:
        lefts.append(policy.max_pages_per_day - day.pages)
    if policy.max_requests_per_day:
        lefts.append(policy.max_requests_per_day - day.requests - (policy.respect_robots and not day.requests))
    return max(0, min(lefts)) if lefts else None


def plan(pages: int | None, gaps: Sequence[float], overall: Policy | None, allowed: int | None) -> Plan:
    """Say what so many pages take, spread over hosts with these gaps, under the rate of all hosts together."""
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
