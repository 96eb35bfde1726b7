"""Partitions of a shared frontier: their owners, and when each has something due.

Every registered domain belongs to one partition with all its hosts. Every partition belongs to one of the present
workers, by rendezvous hashing: when a worker joins or leaves, only its own partitions change owner. So a host mostly
returns to a worker that has its connections and robots rules. Ownership is only a preference: after a grace period, any
worker may serve a host.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from curtsy.core.message import SECOND

GRACE = SECOND // 4
"""Microseconds for which other workers leave a due host to the owner of its partition."""

NEVER = 1 << 62

_NAMES = 10_000


class Partitions:
    """View of one worker on the partitions. All instants are microseconds of its own clock."""

    def __init__(self, worker: str, count: int) -> None:
        self._worker = worker
        self._due_at = [NEVER] * count
        self._is_own = [True] * count
        self._workers: frozenset[str] = frozenset({worker})
        self._numbers: dict[str, int] = {}

    @property
    def is_alone(self) -> bool:
        """Return whether no other worker is present."""
        return len(self._workers) == 1

    def share(self, workers: Iterable[str]) -> None:
        """Set the present workers, and derive which partitions belong to this one."""
        present = frozenset(workers) | {self._worker}
        if present != self._workers:
            self._workers = present
            owners = (max(present, key=lambda worker: _weight(worker, number)) for number in range(len(self._due_at)))
            self._is_own = [owner == self._worker for owner in owners]

    def of(self, site: str) -> int:
        """Return the partition of a registered domain."""
        number = self._numbers.get(site)
        if number is None:
            if len(self._numbers) >= _NAMES:
                self._numbers.clear()
            number = self._numbers[site] = _hash(site) % len(self._due_at)
        return number

    def grace(self, partition: int) -> int:
        """Return the microseconds for which hosts of a partition are left to another worker."""
        return 0 if self._is_own[partition] else GRACE

    def learn(self, partition: int, wait: int, now: int) -> None:
        """Record that a partition has something due in `wait` microseconds; -1 means never."""
        self._due_at[partition] = NEVER if wait < 0 else now + wait

    def due(self, now: int) -> list[int]:
        """Return the partitions with something due: own ones first, then the longest overdue."""
        found = [number for number, due_at in enumerate(self._due_at) if due_at <= now]
        return sorted(found, key=lambda number: (not self._is_own[number], self._due_at[number]))

    def due_at(self) -> int:
        """Return when the first partition has something due; NEVER if no due time is known."""
        return min(self._due_at)


def _weight(worker: str, partition: int) -> int:
    return _hash(f"{partition} {worker}")


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")
