"""Shelf: where URLs lie while they wait, host by host, and what was ever put there.

A frontier is an agenda, which says whose turn it is, over a shelf, which has the URLs. There is one shelf in memory,
here, and one on the disk, in `durable.py`.
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
"""Depths beyond it count as it."""

FARTHEST = 15
"""More redirects in a row count as so many."""

PACK, LONG_PACK = 100, 16_384
"""URLs that wait in memory as one piece, and characters from which on such a piece is packed.

A sitemap may list 50 MB of URLs. Those of most pages are so short that packing them is not worth the time."""

_blake2b = hashlib.blake2b


class LentUrl(msgspec.Struct, frozen=True, gc=False):
    """A URL that was taken from the shelf and is to be given back, or finished."""

    id: int
    url: str
    host: str
    rank: int
    parent: str | None
    tries: int
    """How often it was lent before and nothing was heard of it again."""

    host_pages: int
    """Pages that had come from its host."""

    __repr__ = masked_repr


class Totals(msgspec.Struct, gc=False, array_like=True):
    """What was ever done, in numbers."""

    added: int = 0
    done: int = 0
    failed: int = 0


class UrlTable(Protocol):
    """What an agenda stands on. Hosts are known by small numbers, from 1."""

    totals: Totals

    def begin(self) -> None:
        """From here to `commit`, all changes are one."""
        ...

    def commit(self) -> None:
        """Let all changes since `begin` hold, whatever happens."""
        ...

    def roll_back(self) -> bool:
        """Take back all changes since `begin`. False if that cannot be done here: then they hold."""
        ...

    def number(self, host: str) -> int:
        """The number of a host, a new one if it has none."""
        ...

    def find(self, host: str) -> int | None:
        """The number of a host; None if it has none."""
        ...

    def name(self, number: int) -> str:
        """The host that has a number."""
        ...

    def hosts(self) -> int:
        """How many hosts have a number."""
        ...

    def put(self, host: int, urls: Sequence[str], rank: int, parent: str | None) -> int:
        """Put URLs of one host there, but for those ever seen; how many were new."""
        ...

    def mark(self, host: int, urls: Sequence[str]) -> int:
        """Count URLs of one host as seen; how many were new."""
        ...

    def has_seen(self, host: int, url: str) -> bool:
        """Whether a URL of a host was ever put or marked."""
        ...

    def lend(self, host: int, out: Container[int], count: int) -> LentUrl:
        """The first URL of a host that is not `out`, of which that host has `count`. There must be one."""
        ...

    def take_back(self, lent: LentUrl, *, heard: bool, last: bool = False) -> None:
        """A loan waits again, at its old place or, as `last`, with a lower priority.

        If it was `heard` of, it does not count among its tries.
        """
        ...

    def finish(self, lent: LentUrl, *, is_page: bool) -> None:
        """A loan is done: it will not be lent again. A page counts as one of its host's."""
        ...

    def fail(self, lent: LentUrl, reason: str) -> None:
        """A loan will not be lent again, for this reason."""
        ...

    def failures(self) -> Iterator[tuple[str, str]]:
        """The URLs that failed, each with its reason, in order."""
        ...

    def note(self, notes: Mapping[str, Any]) -> None:
        """Keep some values, each under its name."""
        ...

    def notes(self) -> dict[str, Any]:
        """All values that were kept."""
        ...

    def waiting(self) -> Iterable[tuple[int, int, str]]:
        """Every host that has URLs, lent ones included, how many, and its name."""
        ...

    def close(self) -> None:
        """Give back what is held open."""
        ...


def rank_of(depth: int, priority: int, hops: int = 0) -> int:
    """The place among a host's URLs, least first: by priority, then breadth first; a redirect's target comes last."""
    return (-priority << 20) + (min(max(depth, 0), DEEPEST) << 4) + min(max(hops, 0), FARTHEST)


def depth_of(rank: int) -> int:
    """The depth that a rank was made of."""
    return rank >> 4 & DEEPEST


def hops_of(rank: int) -> int:
    """The redirects that a rank was made of."""
    return rank & FARTHEST


def priority_of(rank: int) -> int:
    """The priority that a rank was made of."""
    return -(rank >> 20)


def demoted(rank: int) -> int:
    """The rank with a priority one lower."""
    return rank + (1 << 20)


def fingerprint(url: str) -> int:
    """64 bits that stand for a URL, the same in every process.

    Among a million URLs of one host, two are taken for one with a chance of 1 in 37 million.
    """
    return int.from_bytes(_blake2b(url.encode(), digest_size=8).digest(), "little", signed=True)


def _packed(urls: Sequence[str]) -> bytes:
    return zlib.compress("\n".join(urls).encode(), 1)


def _unpacked(pack: bytes) -> list[str]:
    return zlib.decompress(pack).decode().split("\n")


def left_out(url: str) -> str:
    """What stands among the URLs ever seen for a page that was left out: no URL, for canonical ones have no `#`."""
    return url + "#"


class MemoryUrlTable:
    """A shelf that is gone with its process."""

    def __init__(self) -> None:
        self.totals = Totals()
        self._numbers: dict[str, int] = {}
        self._names: list[str] = [""]
        self._queues: list[list[tuple[int, int, str | bytes, str | None]]] = [[]]
        """Heaps of rank, number, URL and parent. In place of a URL there may be a pack of them, numbered onwards."""
        self._pages = [0]
        """How many came from each host."""
        self._seen: set[int] = set()
        self._tries: dict[int, int] = {}
        self._failures: list[tuple[str, str]] = []
        self._notes: dict[str, Any] = {}
        self._last = 0

    def begin(self) -> None:
        """Nothing to do: nothing here outlives the process."""

    def commit(self) -> None:
        """Nothing to do."""

    def roll_back(self) -> bool:
        """Say that it cannot be done."""
        return False

    def number(self, host: str) -> int:
        """The number of a host, a new one if it has none."""
        number = self._numbers.get(host)
        if number is None:
            number = self._numbers[host] = len(self._names)
            self._names.append(host)
            self._queues.append([])
            self._pages.append(0)
        return number

    def find(self, host: str) -> int | None:
        """The number of a host; None if it has none."""
        return self._numbers.get(host)

    def name(self, number: int) -> str:
        """The host that has a number."""
        return self._names[number]

    def hosts(self) -> int:
        """How many hosts have a number."""
        return len(self._numbers)

    def put(self, host: int, urls: Sequence[str], rank: int, parent: str | None) -> int:
        """Put URLs of one host there, but for those ever seen; how many were new."""
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
        """Count URLs of one host as seen; how many were new."""
        return len(self._unseen(urls))

    def has_seen(self, host: int, url: str) -> bool:
        """Whether a URL of a host was ever put or marked."""
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
        """The first URL of a host. What is out is not in its queue."""
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
        """A loan waits again, at its old place or, as `last`, with a lower priority."""
        rank = demoted(lent.rank) if last else lent.rank
        heappush(self._queues[self._numbers[lent.host]], (rank, lent.id, lent.url, lent.parent))
        if heard:
            self._tries[lent.id] = lent.tries
            if not lent.tries:
                del self._tries[lent.id]

    def finish(self, lent: LentUrl, *, is_page: bool) -> None:
        """A loan is done: it will not be lent again. A page counts as one of its host's."""
        self.totals.done += 1
        self._pages[self._numbers[lent.host]] += is_page
        del self._tries[lent.id]

    def fail(self, lent: LentUrl, reason: str) -> None:
        """A loan will not be lent again, for this reason."""
        self.totals.failed += 1
        del self._tries[lent.id]
        self._failures.append((lent.url, reason))

    def failures(self) -> Iterator[tuple[str, str]]:
        """The URLs that failed, each with its reason, in order."""
        return iter(tuple(self._failures))

    def note(self, notes: Mapping[str, Any]) -> None:
        """Keep some values, each under its name."""
        self._notes.update(notes)

    def notes(self) -> dict[str, Any]:
        """All values that were kept."""
        return dict(self._notes)

    def waiting(self) -> Iterable[tuple[int, int, str]]:
        """Nothing: what is in memory was never there before its agenda."""
        return ()

    def close(self) -> None:
        """Nothing to do."""
