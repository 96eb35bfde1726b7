"""Tables of the URLs of a crawl: those queued, by host, and the set of all ever seen.

A frontier is a host schedule, which picks the next host, over a URL table. `MemoryUrlTable` is the table in memory;
`durable.py` has the one on disk.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from heapq import heappop, heappush
from typing import Any, Protocol

import msgspec

from curtsy.core.secrets import masked_repr

DEEPEST = 0xFFFF
"""Largest depth that is stored; greater depths count as this one."""

FARTHEST = 15
"""Largest number of consecutive redirects that is stored; greater numbers count as this one."""

PACK, LONG_PACK = 100, 16_384
"""Most URLs in one compressed pack in memory, and characters from which a pack is compressed.

A sitemap may list 50 MB of URLs. The links of most pages are too short to be worth compressing.
"""

_blake2b = hashlib.blake2b


class LentUrl(msgspec.Struct, frozen=True, gc=False):
    """URL that was lent to a worker and is to be taken back, finished or failed."""

    id: int
    url: str
    host: str
    rank: int
    parent: str | None
    tries: int
    """Number of earlier loans that ended by a killed process or an expired lease."""

    host_pages: int
    """Pages fetched from the host so far."""

    __repr__ = masked_repr


class Totals(msgspec.Struct, gc=False, array_like=True):
    """Numbers of URLs since the start of the crawl."""

    added: int = 0
    done: int = 0
    failed: int = 0


class UrlTable(Protocol):
    """Interface of the URL tables. Hosts are identified by small numbers, from 1."""

    totals: Totals

    def begin(self) -> None:
        """Begin a transaction."""
        ...

    def commit(self) -> None:
        """Commit the transaction."""
        ...

    def roll_back(self) -> bool:
        """Undo all changes since `begin`; return False if that is impossible and they remain."""
        ...

    def number(self, host: str) -> int:
        """Return the number of a host; assign one to a new host."""
        ...

    def find(self, host: str) -> int | None:
        """Return the number of a host; None if it has no number."""
        ...

    def name(self, number: int) -> str:
        """Return the host with a number."""
        ...

    def hosts(self) -> int:
        """Return the number of hosts."""
        ...

    def put(self, host: int, urls: Sequence[str], rank: int, parent: str | None) -> int:
        """Store the URLs of one host that were never seen; return how many were new."""
        ...

    def mark(self, host: int, urls: Sequence[str]) -> int:
        """Count URLs of one host as seen; return how many were new."""
        ...

    def has_seen(self, host: int, url: str) -> bool:
        """Return whether a URL of a host was ever stored or marked."""
        ...

    def lend(self, host: int, out: Container[int], count: int) -> LentUrl:
        """Lend the first URL of a host that is not in `out`.

        `out` holds the ids of lent URLs, and `count` is how many of them belong to the host. The host must have another
        URL.
        """
        ...

    def take_back(self, lent: LentUrl, *, heard: bool, last: bool = False) -> None:
        """Queue a lent URL again at its old position; with `last`, at a priority one lower.

        With `heard`, the loan does not count among the URL's tries.
        """
        ...

    def finish(self, lent: LentUrl, *, is_page: bool) -> None:
        """Remove a lent URL that is done; with `is_page`, count a page for its host."""
        ...

    def fail(self, lent: LentUrl, reason: str) -> None:
        """Remove a lent URL that failed, and store the reason."""
        ...

    def failures(self) -> Iterator[tuple[str, str]]:
        """Return the failed URLs, each with its reason, in order."""
        ...

    def note(self, notes: Mapping[str, Any]) -> None:
        """Store plain values by name."""
        ...

    def notes(self) -> dict[str, Any]:
        """Return all stored notes."""
        ...

    def waiting(self) -> Iterable[tuple[int, int, str]]:
        """Return each host that has queued or lent URLs: its number, their count, its name."""
        ...

    def close(self) -> None:
        """Release all resources."""
        ...


def rank_of(depth: int, priority: int, hops: int = 0) -> int:
    """Return the sort key of a URL among those of its host; the least goes first.

    The order is by priority, then breadth first, then by the number of redirects.
    """
    return (-priority << 20) + (min(max(depth, 0), DEEPEST) << 4) + min(max(hops, 0), FARTHEST)


def depth_of(rank: int) -> int:
    """Return the depth in a rank."""
    return rank >> 4 & DEEPEST


def hops_of(rank: int) -> int:
    """Return the number of redirects in a rank."""
    return rank & FARTHEST


def priority_of(rank: int) -> int:
    """Return the priority in a rank."""
    return -(rank >> 20)


def demoted(rank: int) -> int:
    """Return the rank with a priority one lower."""
    return rank + (1 << 20)


def fingerprint(url: str) -> int:
    """Return a 64-bit hash of a URL, the same in every process.

    Among a million URLs of one host, the chance of a collision is 1 in 37 million.
    """
    return int.from_bytes(_blake2b(url.encode(), digest_size=8).digest(), "little", signed=True)


def _packed(urls: Sequence[str]) -> bytes:
    return zlib.compress("\n".join(urls).encode(), 1)


def _unpacked(pack: bytes) -> list[str]:
    return zlib.decompress(pack).decode().split("\n")


def left_out(url: str) -> str:
    """Return the key that marks a page as skipped among the URLs seen.

    It is distinct from every URL because canonical URLs have no `#`.
    """
    return url + "#"


class MemoryUrlTable:
    """URL table in memory."""

    def __init__(self) -> None:
        self.totals = Totals()
        self._numbers: dict[str, int] = {}
        self._names: list[str] = [""]
        self._queues: list[list[tuple[int, int, str | bytes, str | None]]] = [[]]
        """Heaps of rank, id, URL and parent, by host.

        In place of a URL there may be a compressed pack of URLs with consecutive ids.
        """
        self._pages = [0]
        """Pages fetched from each host."""
        self._seen: set[int] = set()
        self._tries: dict[int, int] = {}
        self._failures: list[tuple[str, str]] = []
        self._notes: dict[str, Any] = {}
        self._last = 0

    def begin(self) -> None:
        """Do nothing: the table has no transactions."""

    def commit(self) -> None:
        """Do nothing."""

    def roll_back(self) -> bool:
        """Return False: changes cannot be undone."""
        return False

    def number(self, host: str) -> int:
        """Return the number of a host; assign one to a new host."""
        number = self._numbers.get(host)
        if number is None:
            number = self._numbers[host] = len(self._names)
            self._names.append(host)
            self._queues.append([])
            self._pages.append(0)
        return number

    def find(self, host: str) -> int | None:
        """Return the number of a host; None if it has no number."""
        return self._numbers.get(host)

    def name(self, number: int) -> str:
        """Return the host with a number."""
        return self._names[number]

    def hosts(self) -> int:
        """Return the number of hosts."""
        return len(self._numbers)

    def put(self, host: int, urls: Sequence[str], rank: int, parent: str | None) -> int:
        """Store the URLs of one host that were never seen; return how many were new."""
        queue = self._queues[host]
        new = self._unseen(urls)
        for start in range(0, len(new), PACK):
            part = new[start : start + PACK]
            size = sum(map(len, part))
            for item in part if size < LONG_PACK else (_packed(part),):
                heappush(queue, (rank, self._last + 1, item, parent))
                self._last += len(part) if isinstance(item, bytes) else 1
        self.totals.added += len(new)
        return len(new)

    def mark(self, host: int, urls: Sequence[str]) -> int:
        """Count URLs of one host as seen; return how many were new."""
        return len(self._unseen(urls))

    def has_seen(self, host: int, url: str) -> bool:
        """Return whether a URL of a host was ever stored or marked."""
        return fingerprint(url) in self._seen

    def _unseen(self, urls: Sequence[str]) -> list[str]:
        seen = self._seen
        new = []
        for url in urls:
            key = fingerprint(url)
            if key not in seen:
                seen.add(key)
                new.append(url)
        return new

    def lend(self, host: int, out: Container[int], count: int) -> LentUrl:
        """Lend the first URL of a host. Lent URLs are not in its queue."""
        queue = self._queues[host]
        rank, number, url, parent = heappop(queue)
        if isinstance(url, bytes):
            url, *rest = _unpacked(url)
            for place, other in enumerate(rest, number + 1):
                heappush(queue, (rank, place, other, parent))
        tries = self._tries.get(number, 0)
        self._tries[number] = tries + 1
        return LentUrl(number, url, self._names[host], rank, parent, tries, self._pages[host])

    def take_back(self, lent: LentUrl, *, heard: bool, last: bool = False) -> None:
        """Queue a lent URL again at its old position; with `last`, at a priority one lower."""
        rank = demoted(lent.rank) if last else lent.rank
        heappush(self._queues[self._numbers[lent.host]], (rank, lent.id, lent.url, lent.parent))
        if heard:
            self._tries[lent.id] = lent.tries
            if not lent.tries:
                del self._tries[lent.id]

    def finish(self, lent: LentUrl, *, is_page: bool) -> None:
        """Remove a lent URL that is done; with `is_page`, count a page for its host."""
        self.totals.done += 1
        self._pages[self._numbers[lent.host]] += is_page
        del self._tries[lent.id]

    def fail(self, lent: LentUrl, reason: str) -> None:
        """Remove a lent URL that failed, and store the reason."""
        self.totals.failed += 1
        del self._tries[lent.id]
        self._failures.append((lent.url, reason))

    def failures(self) -> Iterator[tuple[str, str]]:
        """Return the failed URLs, each with its reason, in order."""
        return iter(tuple(self._failures))

    def note(self, notes: Mapping[str, Any]) -> None:
        """Store plain values by name."""
        self._notes.update(notes)

    def notes(self) -> dict[str, Any]:
        """Return all stored notes."""
        return dict(self._notes)

    def waiting(self) -> Iterable[tuple[int, int, str]]:
        """Return nothing: a new table in memory is empty."""
        return ()

    def close(self) -> None:
        """Do nothing."""
