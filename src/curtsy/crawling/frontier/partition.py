"""Partitions of a shared frontier: their owners, their last reports, and when to poll each.

Every registered domain belongs to one partition with all its hosts. Every partition belongs to one of the present
workers, by rendezvous hashing: when a worker joins or leaves, only its own partitions change owner. So a host mostly
returns to a worker that has its connections and robots rules. Ownership is only a preference: after a grace period, any
worker may serve a host.

A worker that gets as many URLs as it wants polls its own partitions every OWN_TURNS turns, the others every OTHER_TURNS
turns. A worker that could take more polls all of them at once: every LOOK seconds, and less often the longer that is in
vain, but at least every IDLE_LOOK seconds.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from curtsy.core.errors import PolicyError
from curtsy.core.time import SECOND
from curtsy.crawling.frontier.protocol import Counts, Outlook, Room
from curtsy.crawling.frontier.redis_codec import Report
from curtsy.crawling.frontier.redis_jobs import PRESENCE
from curtsy.http.registered_domain import site_of

GRACE = SECOND // 4
"""Microseconds for which other workers leave a due host to the owner of its partition."""

LOOK = 1.0
"""Seconds between two turns of polls for URLs that other workers added."""

IDLE_LOOK = 5.0
"""Maximum seconds between two polls of all partitions by a worker that could take more URLs."""

OWN_TURNS, OTHER_TURNS = 2, 16
"""Turns between two polls of a partition by a worker with enough URLs, of its own partitions and of the others."""

NEVER = 1 << 62

PARTITIONS, MOST_PARTITIONS = 1024, 4096
"""Partitions of a new job, enough for even shares of 64 nodes and some hundred workers, and their maximum number:
checking more would only cost time."""

WIDTHS = (4, 8, 16, 32, 64, 128, 256, 512)
"""Partitions queried at once in each round: few at first, so that one reply has many URLs."""

_NAMES = 10_000
_NONE = msgspec.Raw(b"\xc0")


def check_partitions(count: int) -> int:
    """Return a number of partitions. Raises PolicyError."""
    if not 1 <= count <= MOST_PARTITIONS:
        raise PolicyError(
            f"partitions = {count!r} must be from 1 to {MOST_PARTITIONS}. Leave it out to use {PARTITIONS}."
        )
    return count


class Partitions:
    """View of one worker on the partitions. All instants are microseconds of its own clock."""

    def __init__(self, worker: str, count: int) -> None:
        self._worker = worker
        self._due_at = [NEVER] * count
        self._is_own = [True] * count
        self._workers: frozenset[str] = frozenset({worker})
        self._numbers: dict[str, int] = {}
        self._reports: dict[int, Report] = {}
        self._lost_calls: dict[int, dict[int, int]] = {}
        """Calls for claims without a reply, by partition: their nonces, each with the instant to forget it."""
        self._unsettled: set[int] = set()
        """Partitions whose last call for claims had no reply. They are due, as the next call queues its URLs again."""
        self._full: set[str] = set()
        """Registered domains that reached their share of slots at the last claim."""
        self._turn = 0
        self._all_at = -NEVER
        """When all partitions are polled next."""
        self._elsewhere: int | None = 0
        """URLs leased to other present workers, by the last heartbeat; None if one of an earlier version is present."""
        self._lost_until: int | None = None
        """When the leases of a lost worker end at the latest; None if no worker was lost."""
        self._pause = LOOK
        """Seconds until all partitions are polled again, if that is in vain."""

    @property
    def is_alone(self) -> bool:
        """Return whether no other worker is present."""
        return len(self._workers) == 1

    @property
    def workers(self) -> int:
        """Return the number of present workers."""
        return len(self._workers)

    @property
    def leased(self) -> list[int]:
        """Return the partitions in which any worker has leased a URL, by the last reports."""
        return [number for number, report in self._reports.items() if report.leased]

    def reports(self) -> list[Report | None]:
        """Return the last report on each partition."""
        return [self._reports.get(number) for number in range(len(self._due_at))]

    def share(self, workers: Iterable[str]) -> None:
        """Set the present workers, and derive which partitions belong to this one. If they changed, poll all soon."""
        present = frozenset(workers) | {self._worker}
        if present != self._workers:
            self._workers, self._all_at = present, -NEVER
            owners = (max(present, key=lambda worker: _weight(worker, number)) for number in range(len(self._due_at)))
            self._is_own = [owner == self._worker for owner in owners]

    def hear(self, leased: Sequence[bytes | None], told: int, lost_until: int | None) -> None:
        """Record a heartbeat: the leased URLs of each present worker, `told` of them of this one.

        `lost_until` is the end of a lease that the last lost worker took at its last heartbeat; None if none was lost.
        """
        self._elsewhere = None if None in leased else sum(int(count or 0) for count in leased) - told
        self._lost_until = None if lost_until is None else lost_until + round(PRESENCE * SECOND)

    def of(self, site: str) -> int:
        """Return the partition of a registered domain."""
        number = self._numbers.get(site)
        if number is None:
            if len(self._numbers) >= _NAMES:
                self._numbers.clear()
            number = self._numbers[site] = _hash(site) % len(self._due_at)
        return number

    def of_hosts(self, hosts: Iterable[str]) -> dict[int, list[str]]:
        """Return hosts by their partition."""
        found: dict[int, list[str]] = {}
        for host in hosts:
            found.setdefault(self.of(site_of(host)), []).append(host)
        return found

    def grace(self, partition: int) -> int:
        """Return the microseconds for which hosts of a partition are left to another worker."""
        return 0 if self._is_own[partition] else GRACE

    def learn(self, partition: int, report: Report, now: int) -> None:
        """Record the report on a partition."""
        self._reports[partition] = msgspec.structs.replace(report, answer=_NONE)  # it would keep the whole reply
        self._due_at[partition] = NEVER if report.wait < 0 else now + report.wait
        if partition in self._unsettled:  # what seems to be leased may have been claimed by a lost call
            self.expect(partition, now)

    def expect(self, partition: int, now: int) -> None:
        """Record that a partition may have something due."""
        self._due_at[partition] = now

    def reopen(self, room: Room | None, held: Counter[str], now: int) -> None:
        """Mark partitions as due whose registered domains were full and have free slots again."""
        for site in self._full:
            if room is None or held[site] < room.share:
                self.expect(self.of(site), now)

    def fill(self, room: Room | None, held: Counter[str]) -> None:
        """Record which registered domains have reached their share of slots."""
        self._full = {site for site, count in held.items() if room is not None and count >= room.share}

    def slots(self, partition: int, room: Room | None, held: Counter[str], wanted: int) -> Iterator[int | str]:
        """Yield the script arguments for slots: the share, and the domains that may reach it."""
        if room is not None:
            yield room.share
            for site, count in held.items():
                if count + wanted > room.share and self.of(site) == partition:
                    yield from (site, count)

    @contextlib.contextmanager
    def unanswered(self, asked: Sequence[int], nonce: int, until: int) -> Iterator[set[int]]:
        """Yield the partitions of a call for claims. The caller removes those that reply.

        The call is remembered for the others until an instant: it may have claimed URLs, also if it arrives late.
        """
        without_reply = set(asked)
        try:
            yield without_reply
        finally:
            self._unsettled.difference_update(asked)
            self._unsettled |= without_reply
            for partition in without_reply:
                self._lost_calls.setdefault(partition, {})[nonce] = until

    def lost_calls(self, partition: int, now: int) -> str:
        """Return the nonces of calls for claims of a partition that had no reply, by spaces."""
        lost = {nonce: until for nonce, until in self._lost_calls.pop(partition, {}).items() if until > now}
        if lost:
            self._lost_calls[partition] = lost
        return " ".join(map(str, lost))

    def counts(self) -> Counts:
        """Return the counts by the last reports."""
        return total(self._reports.values())

    def to_poll(self, now: int, is_hungry: bool) -> Sequence[int]:
        """Return the partitions to poll in this turn. `is_hungry` is true if the worker could take more URLs."""
        self._turn += 1
        if self._all_at == -NEVER or (is_hungry and now >= self._all_at):
            return range(len(self._due_at))
        if is_hungry:  # others serve hosts of this worker: it takes them over as soon as they are free
            return [number for number in self.leased if self._is_own[number]]
        own = OTHER_TURNS if self.is_alone else OWN_TURNS
        return [
            number
            for number, is_own in enumerate(self._is_own)
            if (number + self._turn) % (own if is_own else OTHER_TURNS) == 0
        ]

    def polled_all(self, now: int, is_in_vain: bool) -> None:
        """Record a poll of all partitions, and whether it found nothing more that is due."""
        self._pause = min(2 * self._pause, IDLE_LOOK) if is_in_vain and self._all_at != -NEVER else LOOK
        self._all_at = now + round(self._pause * SECOND)

    def due(self, now: int) -> list[int]:
        """Return the partitions with something due: own ones first, then the longest overdue."""
        found = [number for number, due_at in enumerate(self._due_at) if due_at <= now]
        return sorted(found, key=lambda number: (not self._is_own[number], self._due_at[number]))

    def outlook(self, now: int, own: int) -> Outlook:
        """Return what this worker waits for. It has leased `own` URLs.

        Which worker has leased a URL is not known. So URLs count as lost only if a worker was lost, while no present
        worker has leased any by its last heartbeat. Leases that end later than those of the lost worker are of workers
        that leased them since their last heartbeat.
        """
        leased = set(self.leased)
        others = sum(self._reports[number].leased for number in leased) - own
        until = -NEVER if own or self._elsewhere != 0 or self._lost_until is None else self._lost_until
        expiring = [number for number in leased if self._due_at[number] <= until]
        lost = min(others, sum(self._reports[number].leased for number in expiring))
        free = min((at for number, at in enumerate(self._due_at) if number not in leased), default=NEVER)
        return Outlook(
            due_in=None if free == NEVER else max(0, free - now) / SECOND,
            elsewhere=max(0, others - lost),
            lost=lost,
            lost_for=max(0, min(self._due_at[number] for number in expiring) - now) / SECOND if lost else 0.0,
        )

    def due_at(self) -> int:
        """Return when the first partition has something due; NEVER if no due time is known."""
        return min(self._due_at)


def total(reports: Iterable[Report]) -> Counts:
    """Return the summed counts of partitions."""
    found = list(reports)
    return Counts(
        queued=sum(report.queued for report in found),
        leased=sum(report.leased for report in found),
        done=sum(report.done for report in found),
        failed=sum(report.failed for report in found),
        hosts=sum(report.hosts for report in found),
    )


def _weight(worker: str, partition: int) -> int:
    return _hash(f"{partition} {worker}")


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")
