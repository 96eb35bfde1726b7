"""Base class of stored records, and statistics of fetches and limiters."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, ClassVar, Self

import msgspec

from curtsy.core.message import SECOND, Now
from curtsy.core.secrets import masked_repr


class Record(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Value that a store keeps under a key. Subclasses set a `tag` and number their formats.

    New fields go to the end, with a default, so that older records remain readable. Any other change raises `current`
    and adds a migration to `stores/codec.py`.
    """

    format: int = 1
    """Format in which this record was written."""

    current: ClassVar[int] = 1
    """Format that this version of curtsy writes."""

    def lasts(self, now: Now) -> int | None:
        """Return the microseconds until the record has no effect and may be dropped; None for never."""
        return None

    @property
    def weight(self) -> int:
        """Return the bytes beyond the size of any record; large only for a robots.txt."""
        return 0

    def joined(self, ours: Self, base: Self | None) -> Self:
        """Return this stored record joined with `ours`, which diverged from `base` during a store outage."""
        return self


WEEK = 7 * 86_400 * SECOND
"""Microseconds for which facts about a host are kept without news."""


class StatsFields(msgspec.Struct, frozen=True):
    """Value with mapping access: `stats["total_requests"]`, `dict(stats)`."""

    def __getitem__(self, name: str) -> Any:
        if name not in self.__struct_fields__:
            raise KeyError(name)
        return getattr(self, name)

    def __iter__(self) -> Iterator[str]:
        return iter(self.__struct_fields__)

    def keys(self) -> tuple[str, ...]:
        """Return the names of the fields."""
        return self.__struct_fields__

    def as_dict(self) -> dict[str, Any]:
        """Return the fields as plain JSON values."""
        return {name: getattr(self, name) for name in self.__struct_fields__}


class Share(msgspec.Struct, frozen=True, gc=False):
    """Part of a fetch that concerned one of the hosts on its way."""

    domain: str
    attempts: int
    retries: int
    robots_requests: int
    bytes: int


class FetchRecord(StatsFields, frozen=True, gc=False):
    """One fetch as a flat record, the input of log, metrics and statistics. Durations are seconds."""

    url: str
    final_url: str
    """URL after redirects."""

    domain: str
    """Domain of the final URL."""

    method: str
    status: int | None
    reason: str | None
    """Reason of a failure; None on success."""

    attempts: int
    """Requests sent, including redirects and retries, without robots.txt."""

    retries: int
    waited: float
    """Time in the queue, over all attempts."""

    took: float
    """Total time, from call to result."""

    bytes: int
    """Bytes of bodies received over the network."""

    cache: str | None
    """`hit`, `revalidated` or `stale`; None if the answer is not from the cache."""

    robots_line: int | None
    """Line of robots.txt that decided; None if no line did."""

    requests_left: int | None
    """Requests left in the host's daily budget; None if unlimited, or if nothing was to be sent."""

    pages_left: int | None
    retry_after: float | None
    at: float
    """Epoch second at which the fetch ended."""

    latency: float | None = None
    """Duration of the last request, from its being written to the end of the answer; None if nothing was written."""

    robots_requests: int = 0
    """Requests sent for robots.txt for this fetch."""

    elsewhere: tuple[Share, ...] = ()
    """Parts of these counts that belong to hosts that redirected the fetch."""

    message: str = ""
    """Description of a failure; empty on success."""

    __repr__ = masked_repr

    def shares(self) -> tuple[Share, ...]:
        """Return the part of each host: first the final host, then the hosts that redirected."""
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
        """Return the fields as plain JSON values. `elsewhere` and `message` are omitted if empty."""
        fields = super().as_dict()
        shares = fields.pop("elsewhere")
        if shares:
            fields["elsewhere"] = [msgspec.structs.asdict(each) for each in shares]
        if not fields["message"]:
            del fields["message"]
        return fields


class LimiterStats(dict[str, Any]):
    """Statistics of a limiter: a dict, ready for `json.dumps`, with its items as attributes."""

    def __getattr__(self, name: str) -> Any:
        if name not in self:
            raise AttributeError(name)
        return self[name]

    def as_dict(self) -> dict[str, Any]:
        """Return a plain dict of JSON values."""
        return dict(self)


class StatsSnapshot(LimiterStats):
    """Snapshot of a limiter's statistics for one domain (L5)."""

    domain: str
    total_requests: int
    delayed_requests: int
    """Requests that waited more than 10 ms."""

    total_wait_time_ms: float
    average_wait_time_ms: float
    """Total wait / delayed requests; 0 if none was delayed."""

    last_request_time: str | None
    """ISO 8601 time in UTC; None before the first request."""

    delay_rate: float
    """Delayed / total requests; 0 without requests."""

    canceled_requests: int
    """Waits that were cancelled or timed out."""


DELAYED_MS = 10.0
"""Milliseconds of wait above which a request counts as delayed (L5)."""


class LimitStats:
    """Counts of one domain. A count takes well under a microsecond; a snapshot is consistent."""

    __slots__ = ("_canceled", "_delayed", "_last", "_lock", "_total", "_wait_ms", "domain")

    def __init__(self, domain: str) -> None:
        self.domain = domain
        self.renew_lock()
        self.reset()

    def renew_lock(self) -> None:
        """Replace the lock, as in a forked child, where its holder does not exist."""
        self._lock = threading.Lock()

    def reset(self) -> None:
        """Set all counts to zero."""
        with self._lock:
            self._total = self._delayed = self._canceled = 0
            self._wait_ms = 0.0
            self._last: int | None = None

    def count(self, epoch: int, waited: float = 0.0, requests: int = 1) -> None:
        """Count admitted requests at `epoch` microseconds, after a wait of `waited` seconds."""
        with self._lock:
            self._total += requests
            self._last = epoch
            self._wait_ms += waited * 1000
            if waited * 1000 > DELAYED_MS:
                self._delayed += requests

    def count_canceled(self) -> None:
        """Count a wait that was cancelled or timed out."""
        with self._lock:
            self._canceled += 1

    def last_and_canceled(self) -> tuple[int | None, int]:
        """Return the time of the last request in microseconds since 1970 (None if none), and the cancelled waits."""
        with self._lock:
            return self._last, self._canceled

    def snapshot(self) -> StatsSnapshot:
        """Return a consistent snapshot of all counts."""
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
    """Return the names of the active alerts (Q10).

    Alerts are an open breaker, more than a tenth of the requests blocked, and more than five trips. `requests` includes
    the blocked ones.
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
    """Statistics of a limiter over all domains (Q6). Omitted counts are 0."""

    total_requests: int
    """Requests to be sent, including refused ones."""

    blocked_requests: int
    """Requests refused because a breaker was open or the domain is denied."""

    circuit_breaker_trips: int
    circuit_breakers_open: int
    domains: int
    delayed_requests: int
    total_wait_time_ms: float

    def __init__(self, **counts: float) -> None:
        super().__init__({**dict.fromkeys(TotalStats.__annotations__, 0), **counts})

    @property
    def alerts(self) -> tuple[str, ...]:
        """Return the names of the active alerts (Q10)."""
        return alarming(
            self.total_requests, self.blocked_requests, self.circuit_breaker_trips, self.circuit_breakers_open
        )  # fmt: skip

    def as_dict(self) -> dict[str, Any]:
        """Return the fields and the alerts as plain JSON values."""
        return {**self, "alerts": list(self.alerts)}
