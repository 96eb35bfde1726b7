"""Estimates of the time that a crawl takes: its plan before the start, and the time left while it runs.

Both use one model, `forecast()`. Each host answers one URL per gap, the longest of its delays, until its queue or its
budget of the day ends. While a crawl runs, the model is compared with the URLs that were really finished in the last
minute (`Meter`), and the time left is corrected by the ratio.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from curtsy.core.host import Host, fresh, in_time
from curtsy.core.plan_messages import REQUISITES_TAKE_MORE, offline_plan, plan_message
from curtsy.core.policy import Policies, Policy
from curtsy.core.rules import Rules, crawl_delay
from curtsy.core.setting import DAY
from curtsy.core.time import SECOND, Now
from curtsy.core.url import Url
from curtsy.crawling.frontier.protocol import Counts, HostQueue
from curtsy.engine.context import rules_key
from curtsy.engine.session import Session

MINUTE = 60.0
"""Seconds over which the rate of a running crawl is measured."""

RECENT, SEVERAL = 20.0, 5
"""Seconds over which the growth of the queue is measured, if that many URLs were finished in them."""

LONG = 300.0
"""Seconds over which the measured rate is compared with the delays, which vary by chance."""

APART = 0.5
"""Minimum seconds between two marks."""

MOST_MARKS = 1000
"""Maximum number of marks."""

LEAST = 3
"""URLs from which on a measured rate counts."""

PRIOR = 2
"""Pages that are added to those fetched, so that one early error does not seem to be a third of all URLs."""

GROWING = 0.3
"""URLs found per finished one from which on the end of the queue is unknown."""

MOSTLY = 0.5
"""Part of the pages without a cost from which on the budget says nothing about the end of a growing queue."""


class CrawlPlan(msgspec.Struct, frozen=True):
    """Estimate of a crawl before its start."""

    pages: int | None
    """Maximum pages; None if there is no limit."""

    gap: float
    """Average seconds between two requests to a host."""

    seconds: float | None
    """Duration for that many pages at that pace, whatever the budget; None if there is no limit."""

    allowed_today: int | None
    """Pages left in today's budgets of the seeds' hosts; None if they are unlimited."""

    message: str


class Outlook(NamedTuple):
    """Work left at one host, or at several that are alike."""

    queued: float
    """URLs that are queued."""

    gap: float
    """Average seconds between two requests."""

    wait: float = 0.0
    """Seconds until the first of them."""

    today: float = math.inf
    """URLs that today's budget still allows."""

    per_day: float = math.inf
    """URLs that the budget of a day allows."""

    resets_in: float = DAY
    """Seconds until the next day's budget."""

    hosts: int = 1
    """Number of hosts that are alike; the other values are those of one of them."""

    quota: float = math.inf
    """URLs that the crawl takes of the host at most."""


class TimeLeft(NamedTuple):
    """Estimated seconds until a crawl ends; None if unknown."""

    today: float | None
    """Seconds until the queue, a limit or the budget of the day ends."""

    in_all: float | None = None
    """Seconds until the crawl is complete, if the budget of the day ends first; else None."""

    least: float | None = None
    """Seconds that the queue takes, if `today` is unknown because it grows; else None."""


def gap_of(policy: Policy, crawl_delay: float = 0.0) -> float:
    """Return the average seconds between two requests to a host: the maximum of all its delays (C1)."""
    by_rate = 0.0 if policy.qps is None else 1 / policy.qps
    return max(by_rate, (policy.pause_min + policy.pause_max) / 2, policy.delay, crawl_delay)


def per_day(policy: Policy) -> int | None:
    """Return the pages that a host's budget of a day allows; None if unlimited. A request is kept for robots.txt."""
    requests = policy.max_requests_per_day and max(1, policy.max_requests_per_day - policy.respect_robots)
    return min(filter(None, (policy.max_pages_per_day, requests)), default=None)


def pages_left(policy: Policy, host: Host | None, now: Now) -> tuple[int | None, str, float]:
    """Return the pages left in a host's budget today, the setting that limits them, and the seconds until its reset."""
    day = (fresh(now) if host is None else in_time(host, now)).spending(now, policy.calendar)
    lefts = []
    if policy.max_pages_per_day:
        lefts.append((policy.max_pages_per_day - day.pages, "max_pages_per_day"))
    if policy.max_requests_per_day:
        robots = policy.respect_robots and not day.requests
        lefts.append((policy.max_requests_per_day - day.requests - robots, "max_requests_per_day"))
    resets_in = day.day.ends - now.epoch / SECOND
    if not lefts:
        return None, "", resets_in
    left, setting = min(lefts)
    return max(0, left), setting, resets_in


def forecast(hosts: Sequence[Outlook], most: float = math.inf, qps: float | None = None) -> tuple[float, TimeLeft]:
    """Return the number of URLs that can be finished today, and the time for them and for all.

    `most` is the number of URLs after which the crawl ends, and `qps` the rate over all hosts. The times are 0 if
    there are no delays.
    """
    queued = sum(each.queued * each.hosts for each in hosts)
    goal = min(most, sum(min(each.queued, each.today) * each.hosts for each in hosts))
    today = max(_time_for(hosts, goal), goal / qps if qps else 0.0)
    rest = min(most, queued) - goal
    if rest <= 0:
        return goal, TimeLeft(today)
    left = [each._replace(queued=each.queued - min(each.queued, each.today)) for each in hosts]
    few, many = 0, 1  # whole days after today
    while _in_days(left, many) < rest and many < 1 << 20:
        few, many = many, 2 * many
    while many - few > 1:
        middle = (few + many) // 2
        few, many = (middle, many) if _in_days(left, middle) < rest else (few, middle)
    last = rest - _in_days(left, few)
    waiting = [each for each in left if each.queued > 0]
    resets_in = min(each.resets_in for each in waiting)
    ends = _time_for([each._replace(wait=0.0, today=each.per_day) for each in waiting], last)
    return goal, TimeLeft(today, resets_in + few * DAY + max(ends, last / qps if qps else 0.0))


def _in_days(hosts: Sequence[Outlook], days: int) -> float:
    """Return the number of URLs that the budgets of whole days allow."""
    return sum(min(each.queued, days * each.per_day) * each.hosts for each in hosts) if days else 0.0


def _time_for(hosts: Sequence[Outlook], goal: float) -> float:
    """Return the seconds until `goal` URLs are finished today, by the delays of the hosts."""
    some = [(count, each) for each in hosts if (count := min(each.queued, each.today)) > 0]
    late: float = max((each.wait + max(0.0, count - 1) * each.gap for count, each in some), default=0.0)
    if goal >= sum(count * each.hosts for count, each in some):
        return late

    def done(after: float) -> float:
        counts = (
            min(count, 1 + (after - each.wait) / each.gap if each.gap else count) * each.hosts
            for count, each in some
            if each.wait <= after
        )
        return sum(counts)

    early = 0.0
    for _ in range(40):
        middle = (early + late) / 2
        early, late = (middle, late) if done(middle) < goal else (early, middle)
    return late


def _outlook(policy: Policy, record: Host | None, now: Now, pages: int, crawl_delay: float) -> Outlook:
    """Return the outlook of a host that has this many pages to fetch; `crawl_delay` is that of its robots.txt."""
    left, _, resets_in = pages_left(policy, record, now)
    recorded = 0.0 if record is None else record.crawl_delay / SECOND
    gap, daily = gap_of(policy, max(recorded, crawl_delay)), per_day(policy)
    return Outlook(pages, gap, 0.0, math.inf if left is None else left, math.inf if daily is None else daily, resets_in)


async def _crawl_delay(session: Session, policy: Policy, origins: Iterable[str]) -> float:
    """Return the Crawl-delay of a host's robots.txt, if that is known. Its record has it from the first page on."""
    delays = [0.0]
    for origin in origins if policy.respect_robots else ():
        rules: Rules | None = await session.store.read(rules_key(origin))
        delays.append((rules and crawl_delay(rules, session.policies.user_agent)) or 0.0)
    return max(delay for delay in delays if delay <= policy.max_crawl_delay)


async def plan(
    session: Session, seeds: Iterable[Url], pages: int | None, patience: float, *, has_requisites: bool = False
) -> CrawlPlan:
    """Estimate the duration of `pages` pages on the seeds' hosts by policies and records, without any request.

    `patience` is the time in seconds for which the crawl waits for the next day's budget. `has_requisites`: the crawl
    also fetches the files that its pages need. Without seeds, the message is empty.
    """
    policies, now = session.policies, await session.store.now()
    hosts: dict[str, dict[str, None]] = {}
    for seed in seeds:
        hosts.setdefault(seed.domain, {})[seed.origin] = None
    rules = [(host, policies.of(host)) for host in hosts]
    found = [(policy, await session.store.read(policy.key_for(host))) for host, policy in rules]
    if not found:
        return CrawlPlan(0, 0.0, 0.0, 0, "")
    if session.is_offline:
        return CrawlPlan(pages, 0.0, None if pages is None else 0.0, None, offline_plan(pages))
    delays = [await _crawl_delay(session, policy, hosts[host]) for host, policy in rules]
    outlooks = [_outlook(*each, now, pages or 0, delay) for each, delay in zip(found, delays, strict=True)]
    limits = [(host, pages_left(*each, now)[1]) for (host, _), each in zip(rules, found, strict=True)]
    origin = session.settings.current.entry_origin
    limited = {(setting, origin(host, setting)): None for host, setting in limits if setting}
    qps = policies.overall.qps if any(policy.global_rate for policy, _ in found) else None
    gaps, today = [each.gap for each in outlooks], sum(each.today for each in outlooks)
    allowed = None if math.isinf(today) else round(today)
    rate = min(sum(1 / each if each else math.inf for each in gaps), math.inf if qps is None else qps)
    stops = allowed if allowed is not None and (pages is None or allowed < pages) else None
    count = pages if stops is None else stops
    seconds = None if count is None else count / rate
    in_all = None if stops is None or pages is None else forecast(outlooks, pages, qps)[1].in_all
    resets_in = min(each.resets_in for each in outlooks)
    message = plan_message(
        pages, stops, 1 / rate, seconds or 0.0, in_all or 0.0, limited=list(limited), hosts=len(outlooks),
        resets_in=resets_in, is_paused=resets_in <= patience,
    )  # fmt: skip
    if has_requisites and rate < math.inf:
        message += f" {REQUISITES_TAKE_MORE}"
    return CrawlPlan(pages, max(gaps), None if pages is None else pages / rate, allowed, message)


async def slots_held(session: Session, hosts: Iterable[str]) -> dict[str, float]:
    """Return the hosts without a free slot, each with the seconds until one is free at the latest.

    While no request of this process is in flight, the slots are those of other processes, or of one that was killed:
    its request may still be in flight, so its slot expires like any other.
    """
    policies, now = session.policies, await session.store.now()
    held = {}
    for host in hosts:
        policy = policies.of(host)
        record: Host | None = await session.store.read(policy.key_for(host))
        places = [each.until for each in (in_time(record, now).places if record else ()) if each.until > now.at]
        if policy.concurrency is not None and len(places) >= policy.concurrency:
            held[host] = (sorted(places)[-policy.concurrency] - now.at) / SECOND
    return held


class _Mark(NamedTuple):
    at: float
    pages: float
    own: float
    """Pages of this process."""

    done: float
    """URLs that are finished."""

    seen: float
    """URLs that are finished, queued or leased."""

    expected: float
    """URLs that the delays of the hosts allowed since the start."""


class Meter:
    """Measured rates of a crawl: of the last minute, and compared with the delays over five minutes."""

    def __init__(self) -> None:
        self._marks: deque[_Mark] = deque(maxlen=MOST_MARKS)
        self._pace = 0.0
        """URLs a second that the delays of the hosts allowed at the last mark."""
        self._seen = 0.0
        """URLs that were finished, queued or leased at the last mark."""
        self._bursts: deque[tuple[float, float]] = deque(maxlen=2)
        """Last marks at which URLs had been found: the finished URLs, and how many were found."""

    def mark(self, at: float, pages: int, own: int, done: int, seen: int, pace: float) -> None:
        """Record the current numbers, `own` being the pages of this process.

        `pace` is the number of URLs a second that the delays of the hosts allow.
        """
        last = self._marks[-1] if self._marks else None
        expected = 0.0 if last is None else last.expected + self._pace * (at - last.at)
        self._pace = pace
        if last is not None and seen > self._seen:
            self._bursts.append((done, seen - self._seen))
        self._seen = seen
        if len(self._marks) > 1 and at - self._marks[-2].at < APART:
            self._marks.pop()
        self._marks.append(_Mark(at, pages, own, done, seen, expected))
        while len(self._marks) > 2 and self._marks[0].at < at - LONG:
            self._marks.popleft()

    def _change(self, seconds: float) -> _Mark:
        """Return the change over the last `seconds`, or since the start; all 0 without a mark."""
        if not self._marks:
            return _Mark(0.0, 0, 0, 0, 0, 0.0)
        last = self._marks[-1]
        first = next(each for each in self._marks if each.at >= last.at - seconds)
        return _Mark(*(now - before for now, before in zip(last, first, strict=True)))

    @property
    def rate(self) -> float:
        """Return the pages a second of this process over the last minute; 0 if unknown."""
        change = self._change(MINUTE)
        return change.own / change.at if change.at else 0.0

    @property
    def url_rate(self) -> float:
        """Return the finished URLs a second over the last minute; 0 if unknown."""
        change = self._change(MINUTE)
        return change.done / change.at if change.at else 0.0

    @property
    def share(self) -> float:
        """Return the ratio of finished URLs to those that the delays allowed; 1 if unknown."""
        change = self._change(LONG)
        is_known = change.expected >= LEAST and math.isfinite(change.expected)
        return min(max(change.done / change.expected, 0.1), 10.0) if is_known else 1.0

    @property
    def page_share(self) -> float:
        """Return the part of the finished URLs that are pages; 1 if unknown."""
        change = self._change(LONG)
        return max((change.pages + PRIOR) / (change.done + PRIOR), 0.1) if change.done >= LEAST else 1.0

    @property
    def growth(self) -> float:
        """Return the number of URLs found for each one finished lately; 0 if unknown."""
        return self.growth_in(RECENT if self._change(RECENT).done >= SEVERAL else MINUTE)

    @property
    def burst_growth(self) -> float:
        """Return the URLs that the last burst found, for each one finished since the burst before it; 0 if unknown.

        The lists of a shop come at long intervals, in which nothing is found. The links of the first page alone say
        nothing about other pages.
        """
        if len(self._bursts) < 2:
            return 0.0
        (before, _), (_, found) = self._bursts
        return found / max(1.0, self._marks[-1].done - before)

    def growth_in(self, seconds: float) -> float:
        """Return the same over the last `seconds`; a few pages in a row may have more links than the others."""
        change = self._change(seconds)
        return change.seen / change.done if change.done >= LEAST else 0.0


class Observed(NamedTuple):
    """Numbers of a running crawl, as the estimate needs them."""

    at: float
    epoch: float
    counts: Counts
    pages: int
    """Pages of the job."""

    own_pages: int
    """Pages of this process, over all its runs."""

    free: float
    """Part of the finished URLs of this run that cost no budget: pages from the cache."""

    queues: Sequence[HostQueue]
    """Hosts with the longest queues."""

    left: Mapping[str, int | None]
    """URLs that today's budget of a host still allows; None without a limit. Hosts without an answer are absent."""

    ends_in: float | None = None
    """Seconds until `max_time`; None without one."""

    crawl_delays: Mapping[str, float] = {}
    """Seconds between two requests that the robots.txt of a host wants, if the settings want fewer."""

    quotas: Mapping[str, int] = {}
    """Pages that `max_pages_per_host` still allows; empty without it."""


class Estimate:
    """Estimate of the time left of a running crawl."""

    def __init__(
        self, policies: Callable[[], Policies], patience: float, most: int | None, *, is_offline: bool = False
    ) -> None:
        """Create an estimate. `patience` and `most` are the `patience` and the `max_pages` of the crawl.

        `is_offline`: all pages come from the cache, so that delays and budgets do not apply.
        """
        self._policies = policies
        self._is_offline = is_offline
        self._patience = patience
        self._most = most
        self.meter = Meter()

    def time_left(self, now: Observed) -> TimeLeft:
        """Record the progress, and return the time left."""
        policies = self._policies()
        hosts = [self._outlook(policies, now, each) for each in now.queues]
        counts, listed = now.counts, sum(each.queued for each in now.queues)
        others = counts.hosts - len(now.queues)
        if counts.queued > listed and others > 0 and hosts:  # hosts with shorter queues, as the average of the others
            gap = sum(each.gap for each in hosts) / len(hosts)
            several = min(others, counts.queued - listed)
            hosts.append(Outlook((counts.queued - listed) / several, gap, 0.0, hosts=several))
        qps = None if self._is_offline else policies.global_qps
        done, pace = counts.done + counts.failed, _pace(hosts, qps)
        self.meter.mark(now.at, now.pages, now.own_pages, done, done + counts.queued + counts.leased, pace)
        return self._left(now, hosts, qps)

    def _left(self, now: Observed, hosts: Sequence[Outlook], qps: float | None) -> TimeLeft:
        meter = self.meter
        most = math.inf if self._most is None else max(0, self._most - now.pages) / meter.page_share
        # A queue that grows as fast as it is worked off does not end before a limit of pages or a budget does.
        # If most pages cost no budget, the crawl repeats an earlier one, so the end of its queue is near.
        is_repeat = now.free > MOSTLY
        is_endless = (
            meter.growth >= 1
            and meter.growth_in(MINUTE) >= 1
            and all(math.isfinite(min(most, each.quota, math.inf if is_repeat else each.today)) for each in hosts)
        )
        if is_endless:
            hosts = [each._replace(queued=max(each.queued, min(most, each.quota, each.today))) for each in hosts]
        share = meter.share  # of the pace only: the time until a host is due is known
        hosts = [each._replace(gap=each.gap / share) for each in hosts]
        goal, left = forecast(hosts, most, None if qps is None else qps * share)
        if left.today is None or not goal:
            return TimeLeft(0.0, left.in_all)
        counts = now.counts
        if counts.done + counts.failed + counts.queued + counts.leased < LEAST and left.today < MINUTE:
            return TimeLeft(now.ends_in)  # the pages of the site are not known yet, and no host rests
        is_open = goal < most and left.in_all is None and not is_endless  # else a limit ends it first
        growth = max(0.0, meter.growth) if is_open else 0.0
        if is_open and max(growth, meter.burst_growth) >= GROWING:
            return TimeLeft(now.ends_in, least=left.today if now.ends_in is None else None)
        # The growth may have just ended, or go on: between both, the error is at most GROWING / 2.
        today: float | None = left.today / (1 - growth / 2)
        if qps is None and any(each.queued and not each.gap and each.wait < MINUTE for each in hosts):
            rate = meter.url_rate  # only this says how fast hosts without delays are
            today = max(today or 0.0, goal / rate) if rate > 0 else today or None
        if today is not None and now.ends_in is not None and now.ends_in < today:
            return TimeLeft(max(0.0, now.ends_in))
        return TimeLeft(today, left.in_all)

    def _outlook(self, policies: Policies, now: Observed, queue: HostQueue) -> Outlook:
        if self._is_offline:
            return Outlook(queue.queued, 0.0)
        policy = policies.of(queue.host)
        gap, wait = gap_of(policy, now.crawl_delays.get(queue.host, 0.0)), queue.due_in
        daily = per_day(policy)
        today = now.left.get(queue.host, daily)
        cost = max(1 - now.free, 0.01)
        allowed = math.inf if today is None else today / cost
        each_day = math.inf if daily is None else daily / cost
        resets_in: float = DAY
        if wait is not None and wait > self._patience:  # the crawl ends before
            allowed, resets_in = 0.0, wait
        elif allowed < queue.queued:
            resets_in = policy.calendar.day_of(int(now.epoch))[1] - now.epoch
        quota = now.quotas.get(queue.host, math.inf)
        queued, wait = min(queue.queued, quota), gap if wait is None else wait
        return Outlook(queued, gap, wait, allowed, each_day, resets_in, quota=quota)


def _pace(hosts: Iterable[Outlook], qps: float | None) -> float:
    """Return the URLs a second that the hosts' delays allow now; infinite without delays."""
    active = [each for each in hosts if each.queued and each.today and each.wait <= 2 * each.gap]
    paces = [each.hosts / each.gap if each.gap else math.inf for each in active]
    return min(sum(paces), math.inf if qps is None else qps)
