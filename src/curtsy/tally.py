"""Tally: plain counters of what a client did, overall and per host."""

from __future__ import annotations

import threading
from collections import Counter

import msgspec

from curtsy.core.record import FetchRecord, StatsFields


class TallySnapshot(StatsFields, frozen=True):
    """All counts as of one moment."""

    fetches: int = 0
    ok: int = 0
    requests: int = 0
    """Sent to sites, robots.txt not counted."""

    retries: int = 0
    bytes: int = 0
    """Of bodies that came over the network."""

    cache_hits: int = 0
    revalidated: int = 0
    waited: float = 0.0
    """Seconds, over all fetches."""

    reasons: dict[str, int] = msgspec.field(default_factory=dict)
    """How often each reason stood in the way."""

    domains: dict[str, int] = msgspec.field(default_factory=dict)
    """Requests by domain."""


class Tally:
    """Counts fetches as their records come. Safe for threads; a count costs about a microsecond."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.reset()

    def reset(self) -> None:
        """Start again from nothing."""
        with self._lock:
            self._counts: Counter[str] = Counter()
            self._waited = 0.0
            self._reasons: Counter[str] = Counter()
            self._domains: Counter[str] = Counter()

    def count(self, record: FetchRecord) -> None:
        """Count one fetch."""
        with self._lock:
            counts = self._counts
            counts["fetches"] += 1
            counts["requests"] += record.attempts
            counts["retries"] += record.retries
            counts["bytes"] += record.bytes
            self._waited += record.waited
            if record.reason is None:
                counts["ok"] += 1
            else:
                self._reasons[record.reason] += 1
            if record.cache == "revalidated":
                counts["revalidated"] += 1
            elif record.cache is not None:
                counts["cache_hits"] += 1
            if record.attempts:
                self._domains[record.domain] += record.attempts

    def snapshot(self) -> TallySnapshot:
        """All counts as of one moment."""
        with self._lock:
            return TallySnapshot(
                **self._counts, waited=self._waited, reasons=dict(self._reasons), domains=dict(self._domains)
            )
