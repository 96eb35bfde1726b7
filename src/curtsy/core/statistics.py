"""Statistics: counts per host and in total, as values.

    client.stats().hosts["example.org"].refused       # {"robots_disallowed": 3}
    summed(read_statistics(store)).requests           # of all processes that share a store

`curtsy.engine.counters` counts. The counts of several processes can be added (`summed`), and the difference to an
earlier snapshot computed (`since`). Of many hosts the busiest are listed, the others are one sum. A fetch counts for
the host where it ended.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Self

import msgspec

from curtsy.core.errors import REFUSALS
from curtsy.core.history import KINDS, History, HostHistory, TotalHistory
from curtsy.core.record import Record, StatsFields
from curtsy.core.time import SECOND, Now

DELAYED_MS = 10.0
"""Milliseconds of wait above which a request counts as delayed (L5)."""

MOST_HOSTS = 1000
"""Maximum number of hosts that are listed; all others are summed."""

LAST = 20
"""Maximum number of fetches that are kept per host."""

DAY = 86_400
"""Seconds for which a process's statistics stay in the store after its last count."""

PUBLISHED_HOSTS = 200
"""Maximum number of hosts that a process lists in the store."""

PUBLISHED_FETCHES = 1000
"""Maximum number of fetches of these hosts that a process stores, the latest."""


class Distribution(msgspec.Struct, frozen=True, array_like=True):
    """Histogram of durations in seconds. Subclasses define the bounds."""

    counts: tuple[int, ...] = ()
    """Number of durations up to each bound and above the previous one, then of those above the last bound. Empty
    without any durations."""

    total: float = 0.0
    """Sum of all durations in seconds."""

    bounds: ClassVar[tuple[float, ...]] = ()

    @property
    def count(self) -> int:
        """Return the number of durations."""
        return sum(self.counts)

    @property
    def mean(self) -> float:
        """Return the average in seconds; 0 without durations."""
        return self.total / self.count if self.counts else 0.0

    def quantile(self, share: float) -> float:
        """Return the approximate duration that the given share stays under, such as `quantile(0.95)`.

        Interpolates linearly between two bounds. Returns 0 without durations.
        """
        wanted, below = share * self.count, 0
        for index, count in enumerate(self.counts):
            if count and below + count >= wanted:
                least = self.bounds[index - 1] if index else 0.0
                most = self.bounds[min(index, len(self.bounds) - 1)]
                return least + (most - least) * max(0.0, wanted - below) / count
            below += count
        return 0.0

    def plus(self, other: Self, times: int = 1) -> Self:
        """Return the sum of both; with `times=-1`, the difference to an earlier histogram."""
        if not other.counts:
            return self
        mine = self.counts or (0,) * len(other.counts)
        counts = tuple([max(0, one + times * two) for one, two in zip(mine, other.counts, strict=True)])
        return type(self)(counts, max(0.0, self.total + times * other.total)) if any(counts) else type(self)()

    def as_dict(self) -> dict[str, Any]:
        """Return the histogram as plain JSON values."""
        return {"bounds": self.bounds, "counts": self.counts, "count": self.count, "sum": self.total}


class Waits(Distribution, frozen=True, array_like=True):
    """Histogram of the time that fetches spend in the queue. The first bound is the least delay that counts (L5)."""

    bounds: ClassVar[tuple[float, ...]] = (
        DELAYED_MS / 1000, 0.1, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0, 3600.0,
    )  # fmt: skip


class Latencies(Distribution, frozen=True, array_like=True):
    """Histogram of response times, with the bounds that OpenTelemetry's conventions recommend."""

    bounds: ClassVar[tuple[float, ...]] = (
        0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
    )  # fmt: skip


class Fetch(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One of the last fetches of a host: an entry of a timeline."""

    at: float
    """Epoch second at which the fetch ended."""

    url: str
    """URL after redirects, secrets masked."""

    status: int | None
    reason: str | None
    """Reason of a failure; None on success."""

    took: float
    """Seconds in total, from call to result."""

    waited: float
    """Seconds of `took` spent in the queue."""

    bytes: int = 0
    cache: str | None = None
    """`hit`, `revalidated` or `stale`; None if the answer is not from the cache."""


class Counts(StatsFields, frozen=True, kw_only=True, omit_defaults=True):
    """Counts of one host or of all hosts. The properties follow from the fields, and are also items."""

    fetches: int = 0
    """Fetches that ended, with or without a request."""

    requests: int = 0
    """Requests sent to sites, including redirects and retries, without robots.txt."""

    robots_requests: int = 0
    """Requests sent for robots.txt."""

    retries: int = 0
    pages: int = 0
    """Successful answers with a body, over the network."""

    bytes: int = 0
    """Bytes of bodies received over the network."""

    cache_hits: int = 0
    """Fetches served from the cache without a request."""

    revalidated: int = 0
    """Fetches served from the cache after revalidation."""

    trips: int = 0
    """Times that a reply opened a breaker."""

    reasons: dict[str, int] = msgspec.field(default_factory=dict)
    """Fetches without success by `Reason`: `refused` and `failed` together."""

    waits: Waits = Waits()
    """Distribution of the time in the queue, one value for each fetch."""

    latency: Latencies = Latencies()
    """Distribution of the duration of each fetch's last request, from its being written to the end of the answer."""

    @property
    def ok(self) -> int:
        """Return the number of fetches that succeeded."""
        return self.fetches - sum(self.reasons.values())

    @property
    def delayed(self) -> int:
        """Return the number of fetches that waited more than 10 ms (L5)."""
        return sum(self.waits.counts[1:])

    @property
    def waited(self) -> float:
        """Return the seconds in the queue, over all fetches."""
        return self.waits.total

    @property
    def refused(self) -> dict[str, int]:
        """Return the fetches that curtsy refused to make, by `Reason`."""
        return {reason: count for reason, count in self.reasons.items() if reason in _REFUSALS}

    @property
    def failed(self) -> dict[str, int]:
        """Return the fetches that were made and failed, by `Reason`."""
        return {reason: count for reason, count in self.reasons.items() if reason not in _REFUSALS}

    @property
    def blocked(self) -> int:
        """Return the number of fetches refused because a breaker was open (Q6)."""
        return self.reasons.get("circuit_open", 0)

    def keys(self) -> tuple[str, ...]:
        """Return the names of the items."""
        return *self.__struct_fields__, "ok", "delayed", "waited", "refused", "failed"

    def as_dict(self) -> dict[str, Any]:
        """Return all items as plain JSON values, nested ones included."""
        return {name: _plain(getattr(self, name)) for name in self.keys()}


class HostStatistics(Counts, frozen=True, kw_only=True, omit_defaults=True):
    """Counts of one host."""

    domain: str = ""
    """Host, with its port if that is not the default; empty for the sum of several hosts, and for invalid URLs."""

    requests_left: int | None = None
    """Requests left in the host's daily budget after the last request; None if unlimited, or if nothing was sent."""

    pages_left: int | None = None
    last_at: float = 0.0
    """Epoch second at which the last fetch ended; 0 before the first."""

    last: tuple[Fetch, ...] = ()
    """Last fetches, the oldest first."""

    history: HostHistory = HostHistory()
    """Counts of the last hour and day, as published in the store; empty in the counts of a client."""

    def plus(self, other: HostStatistics) -> HostStatistics:
        """Return the sum of two processes' counts of one host."""
        newer = other if other.last_at > self.last_at else self
        return HostStatistics(
            **_added(self, other),
            domain=self.domain,
            requests_left=newer.requests_left,
            pages_left=newer.pages_left,
            last_at=newer.last_at,
            last=tuple(sorted(self.last + other.last, key=lambda fetch: fetch.at)[-LAST:]),
            history=self.history.plus(other.history),
        )

    def dated(self, at: float) -> HostStatistics:
        """Return new counts with their history: all at epoch second `at`."""
        return msgspec.structs.replace(self, history=HostHistory.of(at, *dateable(self)))

    def since(self, earlier: HostStatistics | None) -> HostStatistics:
        """Return the counts since an earlier snapshot of the host; all counts if they were reset meanwhile."""
        if earlier is None or earlier.fetches > self.fetches or earlier.trips > self.trips:
            return self
        new = tuple([each for each in self.last if each not in earlier.last])
        return msgspec.structs.replace(self, **_added(self, earlier, -1), last=new, history=HostHistory())

    @property
    def has_any(self) -> bool:
        """Return whether anything was counted: a fetch, a request of a fetch that is postponed, or a trip."""
        return bool(self.fetches or self.requests or self.robots_requests or self.trips)

    def summary(self) -> HostStatistics:
        """Return only the counts, as part of the sum of several hosts."""
        return HostStatistics(**_fields(self))


def dateable(counts: Counts) -> tuple[int, ...]:
    """Return the counts of a history, in the order of its `KINDS`."""
    errors = sum(counts.failed.values())
    waited = round(counts.waited * 1000)
    return counts.requests, counts.pages, errors, waited, counts.blocked, counts.trips


class Lately(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Counts of the last hour, used for alerts."""

    requests: int = 0
    """Requests sent, without robots.txt."""

    blocked: int = 0
    """Fetches refused because a breaker was open."""

    trips: int = 0

    @classmethod
    def of(cls, history: History, at: float) -> Self:
        """Return the sums of a history's hour up to epoch second `at`."""
        return cls(*(sum(history.hour.counts(KINDS.index(name), at)) for name in cls.__struct_fields__))


class StatisticsSnapshot(Counts, frozen=True, kw_only=True, omit_defaults=True):
    """Snapshot of all counts, in total and per host."""

    domains: dict[str, int] = msgspec.field(default_factory=dict)
    """Requests by domain."""

    hosts: dict[str, HostStatistics] = msgspec.field(default_factory=dict)
    """Busiest hosts, the busiest first."""

    other: HostStatistics = HostStatistics()
    """Sum of all hosts that are not in `hosts`."""

    lately: Lately = Lately()
    """Counts of the last hour."""

    outages: int = 0
    """Outages of the store, counted by each client that saw them."""

    outage_seconds: float = 0.0
    """Duration of these outages, including the time so far of one that lasts."""

    started_at: float = 0.0
    """Epoch second at which counting started."""

    at: float = 0.0
    """Epoch second of the snapshot."""

    history: TotalHistory = TotalHistory()
    """Counts of the last hour and day, dated when they were published, or when the client made a snapshot of them."""

    def since(self, earlier: StatisticsSnapshot) -> StatisticsSnapshot:
        """Return the counts since an earlier snapshot; all counts if they were reset meanwhile.

        The totals are exact. If a host was part of `other` in between, some of its counts may be there.
        """
        if earlier.started_at != self.started_at or earlier.fetches > self.fetches:
            return self
        total = _added(self, earlier, -1)
        each = {name: host.since(earlier.hosts.get(name)) for name, host in self.hosts.items()}
        hosts = {name: host for name, host in each.items() if host.has_any}
        others = Counts(**total)
        for host in hosts.values():
            others = Counts(**_added(others, host, -1))
        found = _snapshot(hosts, HostStatistics(**_fields(others)), total, self.lately, earlier.at, self.at)
        count, seconds = self.outages - earlier.outages, self.outage_seconds - earlier.outage_seconds
        return msgspec.structs.replace(found, outages=max(0, count), outage_seconds=max(0.0, seconds))


class ProcessStatistics(Record, frozen=True, tag="stats"):
    """Counts of one process, published in the store as the record `stats:<process>`."""

    format: int = 2
    current: ClassVar[int] = 2

    process: str = ""
    """Machine name, process number and a few random letters."""

    program: str = ""
    """Name of the program, as far as it is known."""

    started_at: float = 0.0
    """Epoch second of the first count."""

    at: float = 0.0
    """Epoch second at which the process last published new counts."""

    hosts: tuple[HostStatistics, ...] = ()
    """Busiest hosts."""

    other: HostStatistics = HostStatistics()
    """Sum of all other hosts."""

    history: TotalHistory = TotalHistory()
    """Counts of the last hour and day, dated when they were published."""

    outages: int = 0
    outage_seconds: float = 0.0

    def lasts(self, now: Now) -> int | None:
        """Return the microseconds until a day after the last publication, so that records of dead processes expire."""
        return round((self.at + DAY) * SECOND) - now.epoch

    def plus(self, news: StatisticsSnapshot, at: float) -> Self:
        """Return the record with the counts of `news` added, as of epoch second `at`."""
        new = [host.dated(at) for host in news.hosts.values()]
        hosts, other = _busiest((*self.hosts, *new), self.other.plus(news.other), PUBLISHED_HOSTS)
        history = self.history.kept(at).plus(TotalHistory.of(at, *dateable(news)))
        return msgspec.structs.replace(
            self, at=at, hosts=_trimmed(hosts, at), other=other, history=history,
            outages=self.outages + news.outages, outage_seconds=self.outage_seconds + news.outage_seconds,
        )  # fmt: skip

    def joined(self, ours: Self, base: Self | None) -> Self:
        """Return this record plus the counts that `ours` added since `base` during a store outage."""
        theirs = summed([ours])
        return self.plus(theirs if base is None else theirs.since(summed([base])), max(self.at, ours.at))


def stats_key(process: str) -> str:
    """Return the key of a process's statistics."""
    return "stats:" + process


def summed(processes: Iterable[ProcessStatistics], at: float | None = None) -> StatisticsSnapshot:
    """Return the sum of several processes' counts as of epoch second `at`; None for the last publication."""
    processes = list(processes)
    other = HostStatistics()
    for process in processes:
        other = other.plus(process.other)
    hosts, other = _busiest([host for process in processes for host in process.hosts], other, MOST_HOSTS)
    total = Counts(**_fields(other))
    for host in hosts:
        total = Counts(**_added(total, host))
    if at is None:
        at = max((process.at for process in processes), default=0.0)
    history = TotalHistory()
    for process in processes:
        history = history.plus(process.history.kept(at))
    started_at = min((process.started_at for process in processes), default=0.0)
    recent = Lately.of(history, at)
    found = _snapshot({host.domain: host for host in hosts}, other, _fields(total), recent, started_at, at)
    return msgspec.structs.replace(
        found,
        history=history,
        outages=sum(process.outages for process in processes),
        outage_seconds=sum(process.outage_seconds for process in processes),
    )


def _busiest(
    hosts: Iterable[HostStatistics], other: HostStatistics, most: int
) -> tuple[list[HostStatistics], HostStatistics]:
    """Return the busiest hosts, counts of one host added, and the sum of all others and `other`."""
    known: dict[str, HostStatistics] = {}
    for host in hosts:
        known[host.domain] = known[host.domain].plus(host) if host.domain in known else host
    busiest = sorted(known.values(), key=lambda host: host.fetches, reverse=True)
    for host in busiest[most:]:
        other = other.plus(host.summary())
    return busiest[:most], other


def _snapshot(
    hosts: dict[str, HostStatistics],
    other: HostStatistics,
    total: dict[str, Any],
    recent: Lately,
    since: float,
    at: float,
) -> StatisticsSnapshot:
    domains = {name: host.requests for name, host in hosts.items() if host.requests}
    return StatisticsSnapshot(
        **total, domains=domains, hosts=hosts, other=other, lately=recent, started_at=since, at=at
    )  # fmt: skip


def _fields(counts: Counts) -> dict[str, Any]:
    """Return the counts by name."""
    return {name: getattr(counts, name) for name in Counts.__struct_fields__}


def _trimmed(hosts: list[HostStatistics], at: float) -> tuple[HostStatistics, ...]:
    """Return the hosts without old histories, and with only the latest `PUBLISHED_FETCHES` fetches of all."""
    for place, host in enumerate(hosts):
        if (history := host.history.kept(at)) is not host.history:
            hosts[place] = msgspec.structs.replace(host, history=history)
    moments = sorted(fetch.at for host in hosts for fetch in host.last)
    if len(moments) <= PUBLISHED_FETCHES:
        return tuple(hosts)
    least = moments[-PUBLISHED_FETCHES]
    return tuple(
        msgspec.structs.replace(host, last=tuple([fetch for fetch in host.last if fetch.at >= least])) for host in hosts
    )


NUMBERS = tuple(field.name for field in msgspec.structs.fields(Counts) if field.type is int)
"""Fields of `Counts` that are numbers."""

_REFUSALS = frozenset(reason.value for reason in REFUSALS)


def _added(one: Counts, two: Counts, times: int = 1) -> dict[str, Any]:
    """Return the sum of two counts; with `times=-1`, their difference, at least 0."""
    reasons = one.reasons
    if two.reasons:
        counts = {each: reasons.get(each, 0) + times * two.reasons.get(each, 0) for each in {**reasons, **two.reasons}}
        reasons = {each: count for each, count in counts.items() if count > 0}
    return {
        **{name: max(0, getattr(one, name) + times * getattr(two, name)) for name in NUMBERS},
        "reasons": reasons,
        "waits": one.waits.plus(two.waits, times),
        "latency": one.latency.plus(two.latency, times),
    }


def _plain(value: Any) -> Any:
    """Return a value as plain JSON."""
    if isinstance(value, Distribution | Counts | History):
        return value.as_dict()
    if isinstance(value, msgspec.Struct):
        return msgspec.structs.asdict(value)
    if isinstance(value, Mapping):
        return {name: _plain(each) for name, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, tuple) else value


def alarming(requests: int, blocked: int, trips: int, breakers_open: int) -> tuple[str, ...]:
    """Return the names of the active alerts (Q10).

    Alerts are an open breaker, more than a tenth of the requests blocked, and more than five trips. `requests` includes
    the blocked ones.
    """
    alerts = {"breaker_open": breakers_open > 0, "many_blocked": blocked > 0.1 * requests, "many_trips": trips > 5}
    return tuple(name for name, is_active in alerts.items() if is_active)
