"""What is remembered and what is told: the base of stored records, and statistics."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, ClassVar, Self

import msgspec

from curtsy.core.message import SECOND, Now
from curtsy.core.secrets import masked_repr


class Record(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A value that a store keeps under a key. Subclasses set a `tag`, and count their formats.

    New fields go to the end, with a default: an older record then reads as it is. Any other change raises
    `current` and adds a migration to `stores/codec.py`.
    """

    format: int = 1
    """The format that this record was written in."""

    current: ClassVar[int] = 1
    """The format that this version of curtsy writes."""

    def lasts(self, now: Now) -> int | None:
        """Microseconds after which the record says nothing any more and may be dropped; None for never."""
        return None

    @property
    def weight(self) -> int:
        """Bytes that it holds beside what any record takes: many only for a robots.txt."""
        return 0

    def joined(self, ours: Self, base: Self | None) -> Self:
        """This record, as the store has it, joined with `ours`, which went its own way from `base` in an outage."""
        return self


WEEK = 7 * 86_400 * SECOND
"""How long what was learned of a host is worth keeping when nothing new comes."""


class StatsFields(msgspec.Struct, frozen=True):
    """Lets a value be read like a mapping too: `stats["total_requests"]`, `dict(stats)`."""

    def __getitem__(self, name: str) -> Any:
        if name not in self.__struct_fields__:
            raise KeyError(name)
        return getattr(self, name)

    def __iter__(self) -> Iterator[str]:
        return iter(self.__struct_fields__)

    def keys(self) -> tuple[str, ...]:
        """The names of the fields."""
        return self.__struct_fields__

    def as_dict(self) -> dict[str, Any]:
        """The fields as plain values, as they stand in JSON."""
        return {name: getattr(self, name) for name in self.__struct_fields__}


class Share(msgspec.Struct, frozen=True, gc=False):
    """What of a fetch went to one of the hosts on its way."""

    domain: str
    attempts: int
    retries: int
    robots_requests: int
    bytes: int


class FetchRecord(StatsFields, frozen=True, gc=False):
    """One fetch, flat: what log, metrics and statistics are told. Durations are seconds."""

    url: str
    final_url: str
    """After redirects."""

    domain: str
    """Of the final URL."""

    method: str
    status: int | None
    reason: str | None
    """Why it did not succeed; None if it did."""

    attempts: int
    """Requests sent for it, redirects and retries included, robots.txt not."""

    retries: int
    waited: float
    """In line, over all attempts."""

    took: float
    """Altogether, from asking to answering."""

    bytes: int
    """Of bodies that came over the network."""

    cache: str | None
    """`hit`, `revalidated` or `stale`; None if the answer is the site's own."""

    robots_line: int | None
    """The line of robots.txt that decided; None if none did."""

    requests_left: int | None
    """Of the host's budget of the day; None if that is unlimited or nothing was to be sent."""

    pages_left: int | None
    retry_after: float | None
    at: float
    """Epoch second at which it ended."""

    latency: float | None = None
    """Of the last request, from its being written to the end of its answer; None if nothing was written."""

    robots_requests: int = 0
    """Requests sent for robots.txt on its behalf."""

    elsewhere: tuple[Share, ...] = ()
    """What of all this went to hosts that redirected it to another one."""

    message: str = ""
    """Why it did not succeed, in words; empty if it did."""

    __repr__ = masked_repr

    def shares(self) -> tuple[Share, ...]:
        """What of it went to each host: to the one that it ended at, then to those that redirected it."""
        others = self.elsewhere
        own = Share(
            self.domain,
            self.attempts - sum(each.attempts for each in others),
            self.retries - sum(each.retries for each in others),
            self.robots_requests - sum(each.robots_requests for each in others),
            self.bytes - sum(each.bytes for each in others),
        )
        return own, *others

    def as_dict(self) -> dict[str, Any]:
        """The fields as plain values, as they stand in JSON; the last two only if there is something in them."""
        fields = super().as_dict()
        shares = fields.pop("elsewhere")
        if shares:
            fields["elsewhere"] = [msgspec.structs.asdict(each) for each in shares]
        if not fields["message"]:
            del fields["message"]
        return fields


class LimiterStats(dict[str, Any]):
    """Statistics of a limiter: a dict, ready for `json.dumps`, whose items are attributes too."""

    def __getattr__(self, name: str) -> Any:
        if name not in self:
            raise AttributeError(name)
        return self[name]

    def as_dict(self) -> dict[str, Any]:
        """Return a plain dict, as it stands in JSON."""
        return dict(self)


class StatsSnapshot(LimiterStats):
    """What a limiter did for one domain, as of one moment (L5)."""

    domain: str
    total_requests: int
    delayed_requests: int
    """Requests that waited more than 10 ms."""

    total_wait_time_ms: float
    average_wait_time_ms: float
    """Total wait / delayed requests; 0 if none was delayed."""

    last_request_time: str | None
    """ISO 8601, UTC; None before the first."""

    delay_rate: float
    """Delayed / total; 0 without requests."""

    canceled_requests: int
    """Waits that were cancelled or timed out."""


DELAYED_MS = 10.0
"""A request that waited longer than this was delayed (L5)."""


class LimitStats:
    """Counts of one domain. A count costs well under a microsecond; a snapshot is consistent."""

    __slots__ = ("_canceled", "_delayed", "_last", "_lock", "_total", "_wait_ms", "domain")

    def __init__(self, domain: str) -> None:
        self.domain = domain
        self.renew_lock()
        self.reset()

    def renew_lock(self) -> None:
        """Start with a free lock, as a forked child does: who held it is not there."""
        self._lock = threading.Lock()

    def reset(self) -> None:
        """Start again from nothing."""
        with self._lock:
            self._total = self._delayed = self._canceled = 0
            self._wait_ms = 0.0
            self._last: int | None = None

    def count(self, epoch: int, waited: float = 0.0, requests: int = 1) -> None:
        """Count requests that may go, at `epoch` microseconds, after waiting so many seconds."""
        with self._lock:
            self._total += requests
            self._last = epoch
            self._wait_ms += waited * 1000
            if waited * 1000 > DELAYED_MS:
                self._delayed += requests

    def count_canceled(self) -> None:
        """Count a wait that was given up."""
        with self._lock:
            self._canceled += 1

    def last_and_canceled(self) -> tuple[int | None, int]:
        """Return when the last request left, in microseconds since 1970, and how many waits were given up."""
        with self._lock:
            return self._last, self._canceled

    def snapshot(self) -> StatsSnapshot:
        """All figures as of one moment."""
        with self._lock:
            total, delayed, wait_ms = self._total, self._delayed, self._wait_ms
            last, canceled = self._last, self._canceled
        return snapshot_of(self.domain, total, delayed, wait_ms, last, canceled)


def snapshot_of(
    domain: str, total: int, delayed: int, wait_ms: float, last: int | None, canceled: int
) -> StatsSnapshot:  # fmt: skip
    """Return the statistics of a domain from its counts; `last` is in microseconds since 1970."""
    return StatsSnapshot(
        domain=domain,
        total_requests=total,
        delayed_requests=delayed,
        total_wait_time_ms=wait_ms,
        average_wait_time_ms=wait_ms / delayed if delayed else 0.0,
        last_request_time=None if last is None else utc_text(last),
        delay_rate=delayed / total if total else 0.0,
        canceled_requests=canceled,
    )


def utc_text(epoch: int) -> str:
    """Return microseconds since 1970 as ISO 8601 in UTC, to the millisecond, with a final `Z`."""
    return datetime.fromtimestamp(epoch / SECOND, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def alarming(requests: int, blocked: int, trips: int, breakers_open: int) -> tuple[str, ...]:
    """What somebody should look at (Q10), by name: an open breaker, more than a tenth blocked, more than five trips.

    `requests` are those that were asked for, the blocked ones among them.
    """
    found = []
    if breakers_open:
        found.append("breaker_open")
    if blocked > 0.1 * requests:
        found.append("many_blocked")
    if trips > 5:
        found.append("many_trips")
    return tuple(found)


class TotalStats(LimiterStats):
    """What a limiter did over all domains (Q6). Counts that are left out are 0."""

    total_requests: int
    """Requests to be sent, refused ones included."""

    blocked_requests: int
    """Refused because a breaker was open, or the domain denied."""

    circuit_breaker_trips: int
    circuit_breakers_open: int
    domains: int
    delayed_requests: int
    total_wait_time_ms: float

    def __init__(self, **counts: float) -> None:
        super().__init__({**dict.fromkeys(TotalStats.__annotations__, 0), **counts})

    @property
    def alerts(self) -> tuple[str, ...]:
        """What somebody should look at (Q10), by name."""
        return alarming(
            self.total_requests, self.blocked_requests, self.circuit_breaker_trips, self.circuit_breakers_open
        )  # fmt: skip

    def as_dict(self) -> dict[str, Any]:
        """The fields and the alerts as plain values, as they stand in JSON."""
        return {**self, "alerts": list(self.alerts)}
