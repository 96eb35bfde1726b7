"""Board: what the store knows, as of the last look, kept so that the next look costs little.

A row has instants (epoch seconds) instead of durations, so that it stays true while nothing changes: it is made anew
only when its host's record or the settings have changed, or when one of its instants has passed. What is left of a look
at ten thousand hosts is one query, and a comparison for each.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Iterable
from typing import Literal

import msgspec

from curtsy.core.errors import StoreError
from curtsy.core.host import Host
from curtsy.core.message import SECOND, Now
from curtsy.core.policy import Policies, Policy
from curtsy.core.statistics import ProcessStatistics, StatisticsSnapshot, summed
from curtsy.engine.alerts import Alert, alerts_of, budget_used
from curtsy.engine.host_view import HostView, view_of
from curtsy.engine.stats_publisher import read_statistics
from curtsy.observe.crawls import CrawlRecord, read_crawls
from curtsy.settings import Settings
from curtsy.stores import Store, read_all

State = Literal["open", "trial", "spent", "paused", "denied", "resting", "waiting", "fetching", "free"]
STATES: tuple[State, ...] = ("open", "trial", "spent", "paused", "denied", "resting", "waiting", "fetching", "free")
"""How a host stands, the worst first; the last three are everyday life."""

SAMPLES = 600
"""Looks that are remembered for the charts: ten minutes, at one a second."""

FADING = 60.0
"""Seconds after which what happened lately is summed again, though nothing has happened since."""

HOSTS_REST = 60
COUNTS_REST = 120
"""How many times as long as it took nothing is read then: of all hosts, and of what processes have counted. So a store
that is large is read less often, and watching costs at most 3 % of a core."""


class Row(msgspec.Struct, frozen=True, gc=False):
    """One host, as the table shows it."""

    domain: str
    state: State
    until: float | None
    """When that state is expected to end; None if it lasts, or nobody knows."""

    waiting_for: str | None
    breaker: str
    """`closed`, `open` or `half_open`."""

    requests_today: int
    max_requests_per_day: int
    pages_today: int
    max_pages_per_day: int
    requests: int
    """Ever."""

    pages: int
    in_flight: int
    failures: int
    trips: int
    last_status: int | None
    last_asked: float | None
    """Epoch second."""

    latency: float | None
    changed: bool
    """Whether a hand has changed its limits."""

    @property
    def spent(self) -> float:
        """The share of the day's budget that is used: of requests or pages, the larger."""
        return budget_used(self)


class Sample(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The sums at one look, for the charts. All but the last only grow, so that the difference of two is a rate."""

    at: float
    requests: int
    pages: int
    refused: int
    cached: int
    bytes: int
    in_flight: int


class Sums(msgspec.Struct, frozen=True):
    """What comes to something over all hosts."""

    states: Counter[str] = msgspec.field(default_factory=Counter)
    """Hosts by state."""

    requests_today: int = 0
    pages_today: int = 0
    trips: int = 0


class _Known(msgspec.Struct, gc=False):
    """A row, what it was made from, and for how long it holds."""

    host: Host
    policy: Policy
    row: Row
    stale_at: float


class Board:
    """What is known, as of the last look. Looks are made by one thread at a time; anybody may read in between."""

    def __init__(self, store: Store, settings: Callable[[], Settings]) -> None:
        self.store = store
        self.settings = settings
        self.rows: dict[str, Row] = {}
        """By domain. Never changed, but replaced by another."""
        self.sums = Sums()
        self.samples: deque[Sample] = deque(maxlen=SAMPLES)
        self.alerts: tuple[Alert, ...] = ()
        self.crawls: list[CrawlRecord] = []
        self.processes: list[ProcessStatistics] = []
        self.statistics = StatisticsSnapshot()
        """What all processes have counted together."""
        self.trouble: str | None = None
        """Why the store could not be read at the last look; None if it could."""
        self.at = 0.0
        """The epoch second of the last look, by the store's clock."""
        self._known: dict[str, _Known] = {}
        self._whole_at = self._counted_at = self._fades_at = 0.0

    def look(self, shown: Iterable[str] = ()) -> None:
        """Read what there is; if all hosts would be too much this time, only those that are shown."""
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
        """Let the next look be at all hosts: something was changed by hand."""
        self._whole_at = 0.0

    def _count(self) -> None:
        found = read_statistics(self.store)
        now = time.time()
        if found != self.processes or now >= self._fades_at:  # what was lately fades, though nobody does anything
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
    # A place that nobody gives back comes free by itself: look again in a while.
    ends = (row.until, second + view.budget_resets_in, second + 5 if row.in_flight else None)
    return _Known(host, policy, row, min(end for end in ends if end is not None))


def row_of(view: HostView, policy: Policy, second: float) -> Row:
    """What the table shows of a host, as of an epoch second."""
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
    """How a host stands, and the seconds until that is expected to end; None if it lasts, or nobody knows."""
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
