"""Alerts for operators (Q10), and the periodic log of statistics. The alerts:

breaker_open          a breaker is open
many_blocked          open breakers refused more than a tenth of the last hour's requests
many_trips            breakers opened more than five times in the last hour
budget_nearly_used    a host has used at least nine tenths of its daily budget
no_progress           a crawl has not finished a URL for ten minutes, although it is at work
dead_workers          a worker of a crawl ended without signing off
store_out             the store does not answer
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import Any

import msgspec

from curtsy.core.breaker import State
from curtsy.core.errors import CurtsyError
from curtsy.core.policy import Policies, Policy
from curtsy.core.statistics import HostStatistics, StatisticsSnapshot, alarming
from curtsy.core.time import span
from curtsy.engine.counters import Counters
from curtsy.engine.crawl_view import SILENT, STALLED, CrawlView
from curtsy.engine.host_view import HostView, view_of
from curtsy.stores import AsyncStore
from curtsy.system.log import LibraryLogger, library_logger

_log: LibraryLogger = library_logger("alerts")
_stats_log: LibraryLogger = library_logger("statistics")

NEARLY = 0.9
"""Share of the daily budget at which a host counts as nearly used up."""

MOST_NAMED = 10
"""Maximum number of hosts named in an alert."""

ALERTS = ("breaker_open", "many_blocked", "many_trips", "budget_nearly_used", "no_progress", "dead_workers")
"""Names of the alerts about hosts and crawls, in the order of their output."""

OUTAGE = "store_out"
"""Name of the alert about the store, which only its own process can notice."""


class Alert(msgspec.Struct, frozen=True):
    """Condition that an operator should look at."""

    name: str
    """Name from `ALERTS`, or `OUTAGE`."""

    message: str
    """Sentence that describes the condition, with its values."""

    domains: tuple[str, ...] = ()
    """First `MOST_NAMED` affected hosts; empty if the alert concerns all hosts together, or crawls."""


def budget_used(host: HostView) -> float:
    """Return the used share of the daily budget: the larger of requests and pages."""
    spent = ((host.requests_today, host.max_requests_per_day), (host.pages_today, host.max_pages_per_day))
    return max((count / limit for count, limit in spent if limit), default=0.0)


def alerts_of(
    statistics: StatisticsSnapshot, hosts: Iterable[HostView] = (), crawls: Iterable[CrawlView] = ()
) -> tuple[Alert, ...]:
    """Return the alerts for the last hour's counts, and for the current state of hosts and crawls."""
    lately, hosts = statistics.lately, list(hosts)
    tripped = [host.domain for host in hosts if host.breaker == State.OPEN]
    spent = [host.domain for host in hosts if budget_used(host) >= NEARLY]
    asked = lately.requests + lately.blocked
    found = []
    for name in alarming(asked, lately.blocked, lately.trips, len(tripped)):
        if name == "breaker_open":
            found.append(
                Alert(name, f"The circuit breaker is open for {_named(tripped)}.", tuple(tripped[:MOST_NAMED]))
            )
        elif name == "many_blocked":
            share = f"{lately.blocked:,} of {asked:,} requests"
            found.append(Alert(name, f"In the last hour {share} were refused because a breaker was open."))
        else:
            found.append(Alert(name, f"In the last hour breakers opened {lately.trips:,} times."))
    if spent:
        words = f"Nine tenths of the day's budget, or more, are used for {_named(spent)}."
        found.append(Alert("budget_nearly_used", words, tuple(spent[:MOST_NAMED])))
    return (*found, *_alerts_of_crawls(list(crawls)))


def _alerts_of_crawls(crawls: list[CrawlView]) -> Iterator[Alert]:
    if stalled := [each.job for each in crawls if each.stalled > STALLED]:
        yield Alert("no_progress", f"No URL was finished for {span(STALLED)} by the crawl {_named(stalled)}.")
    if lost := [f"{each.job} ({worker.process})" for each in crawls for worker in each.lost]:
        yield Alert("dead_workers", f"Not heard of for {span(SILENT)}, perhaps killed: the worker of {_named(lost)}.")


def suspects(statistics: StatisticsSnapshot, policies: Policies) -> list[str]:
    """Return the hosts that may cause an alert by their counts, so that their records must be read."""
    return [host.domain for host in statistics.hosts.values() if _is_suspect(host, policies.of(host.domain))]


def _is_suspect(host: HostStatistics, policy: Policy) -> bool:
    left = ((host.requests_left, policy.max_requests_per_day), (host.pages_left, policy.max_pages_per_day))
    is_nearly_spent = any(count is not None and limit - count >= NEARLY * limit for count, limit in left)
    return bool(host.trips or host.blocked or is_nearly_spent)


def _named(domains: list[str]) -> str:
    shown, more = ", ".join(domains[:MOST_NAMED]), len(domains) - MOST_NAMED
    return f"{shown} and {more:,} more" if more > 0 else shown


class AlertWatch:
    """Log of alerts: one entry when an alert begins, one when it ends."""

    def __init__(self) -> None:
        self.active: tuple[Alert, ...] = ()
        """Alerts found by the last `look()`."""

    def look(self, alerts: tuple[Alert, ...]) -> None:
        """Replace the active alerts and log the differences."""
        before, self.active = {alert.name for alert in self.active}, alerts
        for alert in alerts:
            if alert.name not in before:
                _log.warning(f"Alert: {alert.message}", alert=alert.name, domains=alert.domains)
        now = {alert.name for alert in alerts}
        for name in (*ALERTS, OUTAGE):
            if name in before and name not in now:
                _log.info("Alert over", alert=name)


LOGGED = (
    "fetches", "ok", "requests", "robots_requests", "pages", "bytes", "cache_hits", "revalidated", "retries",
    "delayed", "trips", "refused", "failed",
)  # fmt: skip
"""Counters in the line, since the start."""


class StatsLog:
    """Log of the counters and their alerts."""

    def __init__(
        self,
        counters: Counters,
        store: AsyncStore,
        policies: Callable[[], Policies],
        crawls: Callable[[], list[CrawlView]] = list,
    ) -> None:
        """Create the log. `crawls` returns the client's own crawls."""
        self._counters = counters
        self._store = store
        self._policies = policies
        self._crawls = crawls
        self._logged = 0
        self.alerts = AlertWatch()

    async def report(self) -> bool:
        """Log the statistics if they changed; return whether to check again without further activity."""
        counted = self._counters.snapshot()
        if counted.fetches != self._logged:
            self._logged = counted.fetches
            _stats_log.info("Statistics", **line(counted))
        try:
            hosts = [await self._view(domain) for domain in suspects(counted, self._policies())]
        except CurtsyError:  # the store failed: the fetches report it
            return True
        self.alerts.look(alerts_of(counted, hosts, self._crawls()) + self._outage())
        return bool(self.alerts.active)  # so that the end of an alert is logged

    def _outage(self) -> tuple[Alert, ...]:
        if not self._store.is_out:
            return ()
        what = "no request is sent" if self._store.is_waiting else "limits hold for this process alone"
        return (Alert(OUTAGE, f"The store does not answer: {what} until it is back."),)

    async def _view(self, domain: str) -> HostView:
        policy = self._policies().of(domain)
        record = await self._store.read(policy.key_for(domain))
        return view_of(domain, record, await self._store.now(), policy)


def line(counted: StatisticsSnapshot) -> dict[str, Any]:
    """Return the fields of the statistics line."""
    return {
        **{name: getattr(counted, name) for name in LOGGED},
        "hosts": len(counted.domains),
        "waited": round(counted.waited, 3),
        "wait_p95": round(counted.waits.quantile(0.95), 3),
        "latency_p95": round(counted.latency.quantile(0.95), 3),
    }


class Periodic:
    """Work that runs `every` seconds after `start()`, and repeats while it returns True.

    Activity calls `start()` if the timer is not running. An idle program therefore has no timer, and the last activity
    is still handled. For the tasks of one event loop.
    """

    def __init__(self, work: Callable[[], Awaitable[bool]], every: float) -> None:
        self._work = work
        self._every = every
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None
        self._is_stopped = False
        self.is_running = False
        """True if a run is scheduled or active. Check it before `start()`: it is cheaper."""

    def start(self) -> None:
        """Schedule the next run, unless `stop()` was called."""
        self.is_running = True
        if not self._is_stopped:
            self._timer = asyncio.get_running_loop().call_later(self._every, self._due)

    def _due(self) -> None:
        self._task = asyncio.ensure_future(self._run())

    async def _run(self) -> None:
        is_more = True
        try:
            is_more = await self._work()
        finally:
            self.is_running = False
            if is_more:
                self.start()

    async def stop(self) -> None:
        """Stop permanently, after the current run has ended."""
        self._is_stopped = True
        if self._timer is not None:
            self._timer.cancel()
        if self._task is not None and not self._task.done():
            await asyncio.wait([self._task])
