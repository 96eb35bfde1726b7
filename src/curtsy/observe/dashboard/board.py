"""Board: in-memory copy of the store's data, refreshed at low cost.

A row has instants (epoch seconds) instead of durations, so that it stays valid while nothing changes. It is rebuilt
only if the host's record or the settings have changed, or one of its instants has passed. A refresh of ten thousand
unchanged hosts costs one query, and one comparison per host. Of more hosts, the board has those used last, those in
trouble, and those that a viewer searched for. So its cost is bounded.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from typing import Any, Literal

import msgspec

from curtsy.core.errors import StoreError
from curtsy.core.host import Host
from curtsy.core.policy import Policies, Policy
from curtsy.core.statistics import ProcessStatistics, StatisticsSnapshot, summed
from curtsy.core.time import SECOND, Now
from curtsy.engine.alerts import Alert, alerts_of, suspects
from curtsy.engine.counters import read_statistics
from curtsy.engine.crawl_view import CrawlView, read_crawls
from curtsy.engine.host_view import TROUBLED, HostView, is_used, view_of
from curtsy.settings import Settings
from curtsy.stores import Store, for_threads
from curtsy.stores.survey import HOSTS

State = Literal["open", "trial", "spent", "paused", "denied", "resting", "waiting", "fetching", "free"]
STATES: tuple[State, ...] = ("open", "trial", "spent", "paused", "denied", "resting", "waiting", "fetching", "free")
"""States of a host, worst first; the last three are normal."""

SAMPLES = 600
"""Number of refreshes kept for the charts: ten minutes, at one per second."""

FADING = 60.0
"""Seconds after which recent statistics are summed again without new counts."""

HOSTS_REST = 60
COUNTS_REST = 120
CRAWLS_REST = 60
"""Pauses after a read, as multiples of its duration: for all hosts, for the counts of processes, and for crawls.

A large store is therefore read less often, and the dashboard uses at most 5 % of a core.
"""


LISTED = 10_000
"""Number of hosts used last that the board has."""

MOST_FOUND = 200
"""Maximum number of hosts that one search adds to the board."""

LABELLED = 50
"""Number of busiest hosts that the board always has, because metrics name them."""

SEARCH_KEPT = 60.0
"""Seconds for which the hosts of a search stay on the board after its last use."""

SHOWN = (
    "domain", "waiting_for", "breaker", "requests_today", "max_requests_per_day", "pages_today", "max_pages_per_day",
    "requests", "pages", "in_flight", "failures", "trips", "last_status", "latency",
)  # fmt: skip
"""Fields of a host's view in the table."""


class Row(msgspec.Struct, frozen=True, gc=False):
    """One host in the table: its view, with instants instead of durations."""

    view: HostView
    state: State
    until: float | None
    """Epoch second of the state's expected end; None if it is permanent or unknown."""

    last_asked: float | None
    """Epoch second of the last request."""

    def fields(self) -> dict[str, Any]:
        """Return the fields for JSON."""
        found = {name: getattr(self.view, name) for name in SHOWN}
        found |= {"state": self.state, "until": self.until, "last_asked": self.last_asked}
        return found | {"changed": bool(self.view.changed_limits)}


class Sample(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Totals at one refresh, shown in the charts.

    All but `in_flight` only grow, so that the difference of two is a rate.
    """

    at: float
    requests: int
    pages: int
    refused: int
    cached: int
    bytes: int
    in_flight: int


class _Known(msgspec.Struct, gc=False):
    """A row, its inputs, and the time until which it is valid."""

    host: Host
    policy: Policy
    row: Row
    stale_at: float


class _Search(msgspec.Struct, gc=False):
    """Hosts that a search has found."""

    names: tuple[str, ...]
    due_at: float
    """Monotonic time at which the store is searched again."""

    used_at: float


class Board:
    """Store data as of the last refresh. Any thread may read."""

    def __init__(self, store: Store, settings: Callable[[], Settings]) -> None:
        self.store = store
        self.settings = settings
        self.rows: dict[str, Row] = {}
        """Rows by domain, in their order. Never mutated, only replaced."""
        self.totals = _totals([], 0)
        self.is_complete = True
        """False if the store has more hosts than `rows`."""
        self.samples: deque[Sample] = deque(maxlen=SAMPLES)
        self.alerts: tuple[Alert, ...] = ()
        self.crawls: list[CrawlView] = []
        self.processes: list[ProcessStatistics] = []
        self.statistics = StatisticsSnapshot()
        """Combined counts of all processes."""
        self.trouble: str | None = None
        """Error of the last refresh; None if the store was read."""
        self.at = 0.0
        """Epoch second of the last refresh, by the store's clock."""
        self._known: dict[str, _Known] = {}
        self._whole_at = self._counted_at = self._crawls_at = self._fades_at = 0.0
        self._searches: dict[str, _Search] = {}
        self._sums: tuple[bool, int, int] | None = None
        self._lock = threading.Lock()
        """Lock of the changes of the rows."""

    def look(self, shown: Iterable[str] = ()) -> None:
        """Refresh the board: all hosts if their pause is over, else only the `shown` ones."""
        try:
            if (began := time.monotonic()) >= self._counted_at:
                self._count()
                self._counted_at = began + (time.monotonic() - began) * COUNTS_REST
            if (began := time.monotonic()) >= self._crawls_at:
                self.crawls = read_crawls(self.store)
                self._crawls_at = began + (time.monotonic() - began) * CRAWLS_REST
            with self._lock:
                if (began := time.monotonic()) >= self._whole_at:
                    self._look_at_all({*shown})
                    self._whole_at = began + (time.monotonic() - began) * HOSTS_REST
                else:
                    self._look_at({*shown})
            self.trouble = None
        except StoreError as error:
            self.trouble = str(error)

    def hurry(self) -> None:
        """Make the next refresh read all hosts, after a change by a user."""
        self._whole_at = 0.0

    def _count(self) -> None:
        found = read_statistics(self.store)
        now = time.time()
        if found != self.processes or now >= self._fades_at:  # recent counts fade without new ones
            self.processes, self.statistics = found, summed(found, now)
            self._fades_at = now + FADING

    def find(self, text: str) -> None:
        """Add the first hosts whose names contain `text`, if the board does not have all hosts."""
        now = time.monotonic()
        if not text or self.is_complete:
            return
        with self._lock:
            if (known := self._searches.get(text)) is not None and now < known.due_at:
                known.used_at = now
                return
            try:
                found = for_threads(self.store).page(HOSTS, part=text, most=MOST_FOUND)
                names = tuple(key.removeprefix(HOSTS) for key, _ in found)
                self._renew(dict(zip(names, (host for _, host in found), strict=True)), self.store.now())
                self._searches = {
                    other: each for other, each in self._searches.items() if now - each.used_at < SEARCH_KEPT
                }
                self._searches[text] = _Search(names, now + (time.monotonic() - now) * HOSTS_REST, now)
            except StoreError as error:
                self.trouble = str(error)

    def _look_at_all(self, shown: set[str]) -> None:
        policies = self.settings().policies
        survey = for_threads(self.store).survey(LISTED, TROUBLED).only(lambda key: is_used(key, policies))
        hosts: dict[str, Any] = {key.removeprefix(HOSTS): host for key, host in survey.hosts.items()}
        if len(hosts) < survey.total:
            hosts |= self._read((shown | self._wanted()) - hosts.keys())
        now = self.store.now()
        known, self._known = self._known, {}
        self._renew(hosts, now, known)
        self.is_complete = survey.is_exact and len(self.rows) >= survey.total
        self.totals = _totals([*self.rows.values()], survey.total)
        views, counts = self.views, self.statistics
        self.alerts = alerts_of(counts, views, self.crawls)
        requests, pages = self._grown(views)
        self.samples.append(
            Sample(
                self.at,
                requests,
                pages,
                sum(counts.refused.values()),
                counts.cache_hits + counts.revalidated,
                counts.bytes,
                sum([view.in_flight for view in views]),
            )
        )

    def _wanted(self) -> set[str]:
        """Return further hosts to read: those of searches, and those that alerts and metrics concern."""
        now, counts = time.monotonic(), self.statistics
        searched = {name for each in self._searches.values() if now - each.used_at < SEARCH_KEPT for name in each.names}
        return searched.union(suspects(counts, self.settings().policies), islice(counts.hosts, LABELLED))

    def _grown(self, views: list[HostView]) -> tuple[int, int]:
        """Return requests and pages of all hosts, as numbers that only grow.

        If the board does not have all hosts, the counts that processes publish every few seconds take their place.
        """
        if self.is_complete:
            found = sum([view.requests for view in views]), sum([view.pages for view in views])
        else:
            found = self.statistics.requests + self.statistics.robots_requests, self.statistics.pages
        before, self._sums = self._sums, (self.is_complete, *found)
        if before is None:
            return found
        grown = (0, 0) if before[0] != self.is_complete else (found[0] - before[1], found[1] - before[2])
        last = self.samples[-1]
        return last.requests + max(0, grown[0]), last.pages + max(0, grown[1])

    @property
    def views(self) -> list[HostView]:
        """Views of the hosts on the board."""
        return [row.view for row in self.rows.values()]

    def _look_at(self, shown: set[str]) -> None:
        read = self._read(shown)
        self._renew(read, self.store.now())

    def _read(self, names: Iterable[str]) -> dict[str, Any]:
        return {name: self.store.read(f"{HOSTS}{name}") for name in names}

    def _renew(self, hosts: Mapping[str, Any], now: Now, known: Mapping[str, _Known] | None = None) -> None:
        """Put hosts on the board; `known` are their earlier rows, if these are not on the board any more."""
        policies, earlier = self.settings().policies, self._known if known is None else known
        renewed = {
            domain: _renewed(earlier.get(domain), domain, host, now, policies)
            for domain, host in hosts.items()
            if isinstance(host, Host)
        }
        is_new = not renewed.keys() <= self._known.keys()
        self._known = self._known | renewed
        if is_new:
            self._known = dict(sorted(self._known.items()))
        self.rows = {domain: each.row for domain, each in self._known.items()}
        self.at = now.epoch / SECOND


def _totals(rows: list[Row], hosts: int) -> dict[str, Any]:
    """Return the number of all hosts, the number of rows by state, and sums over the rows."""
    states = Counter([row.state for row in rows])
    sums = {name: sum([getattr(row.view, name) for row in rows]) for name in ("requests_today", "pages_today", "trips")}
    counts = {state: states[state] for state in STATES if states[state]}
    return {"hosts": max(hosts, len(rows)), "listed": len(rows), "states": counts, **sums}


def _renewed(known: _Known | None, domain: str, host: Host, now: Now, policies: Policies) -> _Known:
    policy, second = policies.of(domain), now.epoch / SECOND
    if known is not None and known.policy is policy and known.stale_at > second and known.host == host:
        return known
    view = view_of(domain, host, now, policy)
    row = row_of(view, policy, second)
    # An unreturned lease expires by itself: check again after 5 s.
    ends = (row.until, second + view.budget_resets_in, second + 5 if view.in_flight else None)
    return _Known(host, policy, row, min(end for end in ends if end is not None))


def row_of(view: HostView, policy: Policy, second: float) -> Row:
    """Return the table row of a host, as of an epoch second."""
    state, left = state_of(view, policy)
    asked = None if view.last_asked_ago is None else round(second - view.last_asked_ago, 2)
    return Row(view, state, None if left is None else round(second + left, 2), asked)


def state_of(view: HostView, policy: Policy) -> tuple[State, float | None]:
    """Return a host's state and the seconds to its expected end; None if it is permanent or unknown."""
    if policy.denied:
        return "denied", None
    if view.paused:
        return "paused", view.paused_left
    if view.breaker_left is not None:
        return "open", view.breaker_left
    if view.waiting_for == "domain_budget_exceeded":
        return "spent", view.budget_resets_in
    if view.waiting_for == "crawl_delay_too_long":
        return "denied", None
    if view.breaker == "half_open":
        return "trial", None
    if view.waiting_for in ("rest", "circuit_open"):  # a rest that is too long to wait for refuses requests
        return "resting", view.next_in
    if view.in_flight:
        return "fetching", None
    return ("waiting", view.next_in) if view.next_in else ("free", None)
