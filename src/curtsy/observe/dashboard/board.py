"""Board: in-memory copy of the store's data, refreshed at low cost.

A row has instants (epoch seconds) instead of durations, so that it stays valid while nothing changes. It is rebuilt
only if the host's record or the settings have changed, or one of its instants has passed. A refresh of ten thousand
unchanged hosts costs one query, and one comparison per host.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Iterable
from typing import Literal

import msgspec

from curtsy.core.crawl_record import CrawlRecord
from curtsy.core.errors import StoreError
from curtsy.core.host import Host
from curtsy.core.message import SECOND, Now
from curtsy.core.policy import Policies, Policy
from curtsy.core.statistics import ProcessStatistics, StatisticsSnapshot, summed
from curtsy.engine.alerts import Alert, alerts_of, budget_used
from curtsy.engine.counters import read_statistics
from curtsy.engine.host_view import HostView, read_crawls, view_of
from curtsy.settings import Settings
from curtsy.stores import Store, read_all

State = Literal["open", "trial", "spent", "paused", "denied", "resting", "waiting", "fetching", "free"]
STATES: tuple[State, ...] = ("open", "trial", "spent", "paused", "denied", "resting", "waiting", "fetching", "free")
"""States of a host, worst first; the last three are normal."""

SAMPLES = 600
"""Number of refreshes kept for the charts: ten minutes, at one per second."""

FADING = 60.0
"""Seconds after which recent statistics are summed again without new counts."""

HOSTS_REST = 60
COUNTS_REST = 120
"""Pauses after a read, as multiples of its duration: for all hosts, and for the counts of processes.

A large store is therefore read less often, and the dashboard uses at most 3 % of a core.
"""


class Row(msgspec.Struct, frozen=True, gc=False):
    """One host in the table."""

    domain: str
    state: State
    until: float | None
    """Epoch second of the state's expected end; None if it is permanent or unknown."""

    waiting_for: str | None
    breaker: str
    """`closed`, `open` or `half_open`."""

    requests_today: int
    max_requests_per_day: int
    pages_today: int
    max_pages_per_day: int
    requests: int
    """All requests so far."""

    pages: int
    in_flight: int
    failures: int
    trips: int
    last_status: int | None
    last_asked: float | None
    """Epoch second."""

    latency: float | None
    changed: bool
    """True if a user changed its limits."""

    @property
    def spent(self) -> float:
        """Used share of the daily budget: of requests or pages, the larger."""
        return budget_used(self)


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


class Sums(msgspec.Struct, frozen=True):
    """Totals over all hosts."""

    states: Counter[str] = msgspec.field(default_factory=Counter)
    """Number of hosts by state."""

    requests_today: int = 0
    pages_today: int = 0
    trips: int = 0


class _Known(msgspec.Struct, gc=False):
    """A row, its inputs, and the time until which it is valid."""

    host: Host
    policy: Policy
    row: Row
    stale_at: float


class Board:
    """Store data as of the last refresh. One thread refreshes at a time; any thread may read."""

    def __init__(self, store: Store, settings: Callable[[], Settings]) -> None:
        self.store = store
        self.settings = settings
        self.rows: dict[str, Row] = {}
        """Rows by domain. Never mutated, only replaced."""
        self.sums = Sums()
        self.samples: deque[Sample] = deque(maxlen=SAMPLES)
        self.alerts: tuple[Alert, ...] = ()
        self.crawls: list[CrawlRecord] = []
        self.processes: list[ProcessStatistics] = []
        self.statistics = StatisticsSnapshot()
        """Combined counts of all processes."""
        self.trouble: str | None = None
        """Error of the last refresh; None if the store was read."""
        self.at = 0.0
        """Epoch second of the last refresh, by the store's clock."""
        self._known: dict[str, _Known] = {}
        self._whole_at = self._counted_at = self._fades_at = 0.0

    def look(self, shown: Iterable[str] = ()) -> None:
        """Refresh the board: all hosts if their pause is over, else only the `shown` ones."""
        try:
            if (began := time.monotonic()) >= self._counted_at:
                self._count()
                self._counted_at = began + (time.monotonic() - began) * COUNTS_REST
            self.crawls = read_crawls(self.store)
            if (began := time.monotonic()) >= self._whole_at:
                self._look_at_all()
                self._whole_at = began + (time.monotonic() - began) * HOSTS_REST
            else:
                self._look_at(shown)
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

    def _look_at_all(self) -> None:
        policies = self.settings().policies
        found = read_all(self.store, "host:")
        now = self.store.now()
        known: dict[str, _Known] = {}
        for key, host in found:
            if isinstance(host, Host):
                domain = key[5:]
                known[domain] = _renewed(self._known.get(domain), domain, host, now, policies)
        self._known, self.at = known, now.epoch / SECOND
        self.rows = {domain: each.row for domain, each in known.items()}
        rows = self.rows.values()
        self.sums = Sums(
            Counter([row.state for row in rows]),
            sum([row.requests_today for row in rows]),
            sum([row.pages_today for row in rows]),
            sum([row.trips for row in rows]),
        )
        self.alerts = alerts_of(self.statistics, rows)
        self.samples.append(
            Sample(
                self.at,
                sum([row.requests for row in rows]),
                sum([row.pages for row in rows]),
                sum(self.statistics.refused.values()),
                self.statistics.cache_hits + self.statistics.revalidated,
                self.statistics.bytes,
                sum([row.in_flight for row in rows]),
            )
        )

    def _look_at(self, shown: Iterable[str]) -> None:
        policies = self.settings().policies
        read = [(domain, self.store.read(f"host:{domain}")) for domain in set(shown)]
        now = self.store.now()
        for domain, host in read:
            if isinstance(host, Host):
                self._known[domain] = _renewed(self._known.get(domain), domain, host, now, policies)
        self.rows = self.rows | {domain: self._known[domain].row for domain, _ in read if domain in self._known}
        self.at = now.epoch / SECOND


def _renewed(known: _Known | None, domain: str, host: Host, now: Now, policies: Policies) -> _Known:
    policy, second = policies.of(domain), now.epoch / SECOND
    if known is not None and known.policy is policy and known.stale_at > second and known.host == host:
        return known
    view = view_of(domain, host, now, policy)
    row = row_of(view, policy, second)
    # An unreturned lease expires by itself: check again after 5 s.
    ends = (row.until, second + view.budget_resets_in, second + 5 if row.in_flight else None)
    return _Known(host, policy, row, min(end for end in ends if end is not None))


def row_of(view: HostView, policy: Policy, second: float) -> Row:
    """Return the table row of a host, as of an epoch second."""
    state, left = state_of(view, policy)
    return Row(
        domain=view.domain,
        state=state,
        until=None if left is None else round(second + left, 2),
        waiting_for=view.waiting_for,
        breaker=view.breaker,
        requests_today=view.requests_today,
        max_requests_per_day=view.max_requests_per_day,
        pages_today=view.pages_today,
        max_pages_per_day=view.max_pages_per_day,
        requests=view.requests,
        pages=view.pages,
        in_flight=view.in_flight,
        failures=view.failures,
        trips=view.trips,
        last_status=view.last_status,
        last_asked=None if view.last_asked_ago is None else round(second - view.last_asked_ago, 2),
        latency=view.latency,
        changed=bool(view.changed_limits),
    )


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
    if view.waiting_for == "rest":
        return "resting", view.next_in
    if view.in_flight:
        return "fetching", None
    return ("waiting", view.next_in) if view.next_in else ("free", None)
