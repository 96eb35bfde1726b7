"""Statistics: what was counted, per host and over all, as values.

    client.stats().hosts["example.org"].refused       # {"robots_disallowed": 3}
    summed(read_statistics(store)).requests           # of all processes that share a store

`curtsy.engine.counters` counts. The counts of several processes can be added (`summed`), and the difference to an
earlier snapshot computed (`since`). Of many hosts the busiest are kept one by one, the others as one sum. A fetch
counts for the host where it ended.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from operator import attrgetter
from typing import Any, Self

import msgspec

from curtsy.core.histogram import Distribution, Latencies, Waits
from curtsy.core.message import SECOND, Now
from curtsy.core.record import Record, StatsFields

MOST_HOSTS = 1000
"""Hosts that are kept one by one; those beyond are summed."""

LAST = 20
"""Fetches of each host that are remembered."""

DAY = 86_400
"""Seconds for which what a process has counted stays in the store after it last counted something."""

PUBLISHED_HOSTS = 200
"""Hosts that a process tells of in the store, one by one."""

PUBLISHED_FETCHES = 1000
"""Fetches of theirs that it tells of, the latest."""


class Fetch(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One of the last fetches of a host, for a timeline."""

    at: float
    """Epoch second at which it ended."""

    url: str
    """Secrets masked."""

    status: int | None
    reason: str | None
    """Why it did not succeed; None if it did."""

    took: float
    """Seconds altogether, from asking to answering."""

    waited: float
    """Seconds of that in line."""

    bytes: int = 0
    cache: str | None = None
    """`hit`, `revalidated` or `stale`; None if the answer is the site's own."""


class Counts(StatsFields, frozen=True, kw_only=True, omit_defaults=True):
    """What was counted, of one host or of all."""

    fetches: int = 0
    """Asked for and ended, whether anything was sent or not."""

    ok: int = 0
    """Of them, those that succeeded."""

    requests: int = 0
    """Sent to sites, redirects and retries included, robots.txt not counted."""

    robots_requests: int = 0
    """Sent for robots.txt."""

    retries: int = 0
    pages: int = 0
    """Successful answers with a body, over the network."""

    bytes: int = 0
    """Of bodies that came over the network."""

    cache_hits: int = 0
    """Served from a kept copy, nothing asked."""

    revalidated: int = 0
    """Served from a kept copy after asking whether it still holds."""

    delayed: int = 0
    """Fetches that waited more than 10 ms (L5)."""

    waited: float = 0.0
    """Seconds in line, over all fetches."""

    trips: int = 0
    """Times that a reply opened a breaker."""

    reasons: dict[str, int] = msgspec.field(default_factory=dict)
    """How often each reason stood in the way: the next two together."""

    refused: dict[str, int] = msgspec.field(default_factory=dict)
    """Fetches that we chose not to make, by `Reason`."""

    failed: dict[str, int] = msgspec.field(default_factory=dict)
    """Fetches that were made and failed, by `Reason`."""

    waits: Waits = Waits()
    """How long fetches stood in line."""

    latency: Latencies = Latencies()
    """How long the last request of each fetch took, from being written to the end of its answer."""

    @property
    def blocked(self) -> int:
        """Fetches refused because a breaker was open (Q6)."""
        return self.refused.get("circuit_open", 0)

    def as_dict(self) -> dict[str, Any]:
        """All fields as plain values, as they stand in JSON, those inside them too."""
        return {name: _plain(getattr(self, name)) for name in self.__struct_fields__}


class HostStatistics(Counts, frozen=True, kw_only=True, omit_defaults=True):
    """What was counted of one host."""

    domain: str = ""
    """The host, with its port if that is not the default; empty for the sum of several, and for what is no URL."""

    requests_left: int | None = None
    """Of the host's budget of the day, after the last request; None if that is unlimited, or nothing was sent."""

    pages_left: int | None = None
    last_at: float = 0.0
    """Epoch second at which the last fetch ended; 0 if there was none."""

    last: tuple[Fetch, ...] = ()
    """The last fetches, the oldest first."""

    def plus(self, other: HostStatistics) -> HostStatistics:
        """Both together: what two processes have counted of one host."""
        newer = other if other.last_at > self.last_at else self
        return HostStatistics(
            **_added(self, other),
            domain=self.domain,
            requests_left=newer.requests_left,
            pages_left=newer.pages_left,
            last_at=newer.last_at,
            last=tuple(sorted(self.last + other.last, key=lambda fetch: fetch.at)[-LAST:]),
        )

    def since(self, earlier: HostStatistics | None) -> HostStatistics:
        """What was counted since an earlier snapshot of the same; all of it if counting began anew meanwhile."""
        if earlier is None or earlier.fetches > self.fetches or earlier.trips > self.trips:
            return self
        new = tuple([each for each in self.last if each not in earlier.last])
        return msgspec.structs.replace(self, **_added(self, earlier, -1), last=new)

    def summary(self) -> HostStatistics:
        """The counts alone, as part of the sum of several hosts."""
        return HostStatistics(**_fields(self))


class Lately(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What alerts look at: counts of the last hour."""

    requests: int = 0
    """Sent, robots.txt not counted."""

    blocked: int = 0
    """Refused because a breaker was open."""

    trips: int = 0


class StatisticsSnapshot(Counts, frozen=True, kw_only=True, omit_defaults=True):
    """All counts as of one moment, over all hosts and of each."""

    domains: dict[str, int] = msgspec.field(default_factory=dict)
    """Requests by domain."""

    hosts: dict[str, HostStatistics] = msgspec.field(default_factory=dict)
    """The busiest hosts, the busiest first."""

    other: HostStatistics = HostStatistics()
    """All hosts that are not in `hosts`, together."""

    lately: Lately = Lately()
    """Of the last hour."""

    started_at: float = 0.0
    """Epoch second from which this was counted."""

    at: float = 0.0
    """Epoch second as of which it was."""

    def since(self, earlier: StatisticsSnapshot) -> StatisticsSnapshot:
        """What was counted since an earlier snapshot; all of it if there was a reset meanwhile.

        Over all it is exact. A host that was summed under `other` in between may have some of it there.
        """
        if earlier.started_at != self.started_at or earlier.fetches > self.fetches:
            return self
        total = _added(self, earlier, -1)
        each = {name: host.since(earlier.hosts.get(name)) for name, host in self.hosts.items()}
        hosts = {name: host for name, host in each.items() if host.fetches or host.trips}
        others = Counts(**total)
        for host in hosts.values():
            others = Counts(**_added(others, host, -1))
        return _snapshot(hosts, HostStatistics(**_fields(others)), total, self.lately, earlier.at, self.at)


Spell = tuple[int, int, int, int]
"""Five minutes: their number since 1970, and what `Lately` counts in them."""

SPELL = 300
SPELLS = 12
"""An hour of them."""


def lived(spells: tuple[Spell, ...], at: float, counts: Lately) -> tuple[Spell, ...]:
    """The spells of the last hour with something counted at an epoch second."""
    number = int(at // SPELL)
    kept = {each[0]: each for each in spells if number - SPELLS < each[0] <= number}
    _, requests, blocked, trips = kept.get(number, (number, 0, 0, 0))
    kept[number] = number, requests + counts.requests, blocked + counts.blocked, trips + counts.trips
    return tuple(kept.values())


def lately(spells: Iterable[Spell], at: float) -> Lately:
    """What was counted in the hour before an epoch second."""
    number = int(at // SPELL)
    recent = [each for each in spells if each[0] > number - SPELLS]
    return Lately(*(sum(each[field] for each in recent) for field in (1, 2, 3)))


class ProcessStatistics(Record, frozen=True, tag="stats"):
    """What one process has counted so far, as it tells the others: the record `stats:<process>`."""

    process: str = ""
    """Its machine, its number there, and a few random letters."""

    program: str = ""
    """What runs there, as far as it can be told."""

    started_at: float = 0.0
    """Epoch second at which it first counted."""

    at: float = 0.0
    """Epoch second at which it last told of something new."""

    hosts: tuple[HostStatistics, ...] = ()
    """The busiest."""

    other: HostStatistics = HostStatistics()
    """All others together."""

    spells: tuple[Spell, ...] = ()
    """The last hour."""

    def lasts(self, now: Now) -> int | None:
        """Microseconds until a day after it was last heard of: ended or killed, it goes by itself."""
        return round((self.at + DAY) * SECOND) - now.epoch

    def plus(self, news: StatisticsSnapshot, at: float) -> Self:
        """With what was counted since this was written."""
        known = {host.domain: host for host in self.hosts}
        for name, host in news.hosts.items():
            known[name] = known[name].plus(host) if name in known else host
        busiest = sorted(known.values(), key=lambda host: host.fetches, reverse=True)
        other = self.other.plus(news.other)
        for host in busiest[PUBLISHED_HOSTS:]:
            other = other.plus(host.summary())
        counted = Lately(news.requests, news.blocked, news.trips)
        return msgspec.structs.replace(
            self,
            at=at,
            hosts=_trimmed(busiest[:PUBLISHED_HOSTS]),
            other=other,
            spells=lived(self.spells, at, counted),
        )

    def joined(self, ours: Self, base: Self | None) -> Self:
        """This with what `ours` has counted since `base`, while the store was out."""
        theirs = summed([ours])
        return self.plus(theirs if base is None else theirs.since(summed([base])), max(self.at, ours.at))


def stats_key(process: str) -> str:
    """The key of what a process has counted."""
    return "stats:" + process


def summed(processes: Iterable[ProcessStatistics], at: float | None = None) -> StatisticsSnapshot:
    """What several processes have counted together, as of an epoch second; None for when the last of them told."""
    processes = list(processes)
    hosts: dict[str, HostStatistics] = {}
    other = HostStatistics()
    for process in processes:
        for host in process.hosts:
            known = hosts.get(host.domain)
            hosts[host.domain] = host if known is None else known.plus(host)
        other = other.plus(process.other)
    busiest = sorted(hosts.values(), key=lambda host: host.fetches, reverse=True)
    for host in busiest[MOST_HOSTS:]:
        other = other.plus(host.summary())
    shown = {host.domain: host for host in busiest[:MOST_HOSTS]}
    total = Counts(**_fields(other))
    for host in shown.values():
        total = Counts(**_added(total, host))
    if at is None:
        at = max((process.at for process in processes), default=0.0)
    return _snapshot(
        shown,
        other,
        _fields(total),
        lately([spell for process in processes for spell in process.spells], at),
        min((process.started_at for process in processes), default=0.0),
        at,
    )


def _snapshot(
    hosts: dict[str, HostStatistics],
    other: HostStatistics,
    total: dict[str, Any],
    lately: Lately,
    started_at: float,
    at: float,
) -> StatisticsSnapshot:
    return StatisticsSnapshot(
        **total,
        domains={name: host.requests for name, host in hosts.items() if host.requests},
        hosts=hosts,
        other=other,
        lately=lately,
        started_at=started_at,
        at=at,
    )


def _fields(counts: Counts) -> dict[str, Any]:
    """What was counted, by name."""
    return {name: getattr(counts, name) for name in Counts.__struct_fields__}


def _trimmed(hosts: list[HostStatistics]) -> tuple[HostStatistics, ...]:
    """The hosts with no more fetches than may be told of, the latest of all."""
    moments = sorted(fetch.at for host in hosts for fetch in host.last)
    if len(moments) <= PUBLISHED_FETCHES:
        return tuple(hosts)
    least = moments[-PUBLISHED_FETCHES]
    return tuple(
        msgspec.structs.replace(host, last=tuple([fetch for fetch in host.last if fetch.at >= least])) for host in hosts
    )


_NUMBERS = tuple(field.name for field in msgspec.structs.fields(Counts) if field.type in (int, float))
_MAPPINGS = ("reasons", "refused", "failed")
_numbers = attrgetter(*_NUMBERS)


def _added(one: Counts, two: Counts, times: int = 1) -> dict[str, Any]:
    """The counts of both together; with `times=-1`, what one has more than the other, and nothing below 0."""
    both = zip(_NUMBERS, _numbers(one), _numbers(two), strict=True)
    fields: dict[str, Any] = {name: max(0, mine + times * theirs) for name, mine, theirs in both}
    for name in _MAPPINGS:
        mine, theirs = getattr(one, name), getattr(two, name)
        if theirs:
            counts = {key: mine.get(key, 0) + times * theirs.get(key, 0) for key in {**mine, **theirs}}
            mine = {key: count for key, count in counts.items() if count > 0}
        fields[name] = mine
    fields["waits"] = one.waits.plus(two.waits, times)
    fields["latency"] = one.latency.plus(two.latency, times)
    return fields


def _plain(value: Any) -> Any:
    """A value as it stands in JSON."""
    if isinstance(value, Distribution | Counts):
        return value.as_dict()
    if isinstance(value, msgspec.Struct):
        return msgspec.structs.asdict(value)
    if isinstance(value, Mapping):
        return {name: _plain(each) for name, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, tuple) else value
