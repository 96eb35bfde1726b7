"""Partitions: the parts of a shared frontier, whose each of them is, and when there is something to be had.

Every registered domain belongs to one partition with all its hosts, and every partition to one of the workers that are
there, by rendezvous hashing: when one comes or goes, only its own change hands. So a host mostly comes back to a worker
that knows it, with its connections and its rules. That is a preference and nothing more: what its owner leaves lying is
for anybody.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from curtsy.core.message import SECOND

GRACE = SECOND // 4
"""Microseconds that others leave a host to the owner of its partition, after the moment when it was due."""

NEVER = 1 << 62

_NAMES = 10_000


class Partitions:
    """What one worker knows of them. All instants are whole microseconds of its own clock."""

    def __init__(self, worker: str, count: int) -> None:
        self._worker = worker
        self._due_at = [NEVER] * count
        self._is_own = [True] * count
        self._workers: frozenset[str] = frozenset({worker})
        self._numbers: dict[str, int] = {}

    @property
    def is_alone(self) -> bool:
        """Whether no other worker is there."""
        return len(self._workers) == 1

    def share(self, workers: Iterable[str]) -> None:
        """Know who else is there."""
        present = frozenset(workers) | {self._worker}
        if present != self._workers:
            self._workers = present
            owners = (max(present, key=lambda worker: _weight(worker, number)) for number in range(len(self._due_at)))
            self._is_own = [owner == self._worker for owner in owners]

    def of(self, site: str) -> int:
        """The partition of a registered domain."""
        number = self._numbers.get(site)
        if number is None:
            if len(self._numbers) >= _NAMES:
                self._numbers.clear()
            number = self._numbers[site] = _hash(site) % len(self._due_at)
        return number

    def grace(self, partition: int) -> int:
        """Microseconds that hosts there are left to somebody else."""
        return 0 if self._is_own[partition] else GRACE

    def learn(self, partition: int, wait: int, now: int) -> None:
        """There is something to be had in so many microseconds; -1 for never."""
        self._due_at[partition] = NEVER if wait < 0 else now + wait

    def due(self, now: int) -> list[int]:
        """Those where something is to be had: our own first, and first those where it has waited longest."""
        found = [number for number, due_at in enumerate(self._due_at) if due_at <= now]
        return sorted(found, key=lambda number: (not self._is_own[number], self._due_at[number]))

    def due_at(self) -> int:
        """When there is something to be had anywhere; NEVER if nobody knows of anything."""
        return min(self._due_at)


def _weight(worker: str, partition: int) -> int:
    return _hash(f"{partition} {worker}")


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")
