"""Tables of the URLs of a crawl: those queued, by host, and the set of all ever seen.

A frontier is a host schedule, which picks the next host, over a URL table. `MemoryUrlTable` is the table in memory.
A SQLite table in memory would take a third of its memory, but four to seven times its time. `sqlite_table.py` has the
table on disk.
"""

from __future__ import annotations

import contextlib
import hashlib
import zlib
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from heapq import heappop, heappush
from itertools import islice
from typing import Any, overload

import msgspec

from curtsy.core.masking import masked_repr
from curtsy.crawling.frontier.protocol import Counts

DEEPEST = 0xFFFF
"""Largest depth that is stored; greater depths count as this one."""

FARTHEST = 15
"""Largest number of consecutive redirects that is stored; greater numbers count as this one."""

PACK, LONG_PACK = 100, 16_384
"""Most URLs in one compressed pack in memory, and characters from which a pack is compressed.

A sitemap may list 50 MB of URLs. The links of most pages are too short to be worth compressing.
"""

BLOCK = 1000
"""URLs that `PackedUrls` compresses together."""

_NO_TRANSACTION = contextlib.nullcontext()
_blake2b = hashlib.blake2b


class UrlRow(msgspec.Struct, frozen=True, gc=False):
    """URL of a table that is leased to a worker, until it is put back, finished or failed."""

    id: int
    url: str
    number: int
    """Number of the host."""

    host: str
    rank: int
    parent: str | None
    tries: int
    """Number of earlier leases that ended by a killed process or an expiry."""

    host_pages: int
    """Pages fetched from the host so far."""

    __repr__ = masked_repr


class Totals(msgspec.Struct, gc=False, array_like=True):
    """Numbers of URLs since the start of the crawl."""

    added: int = 0
    done: int = 0
    failed: int = 0

    def counts(self, *, leased: int, hosts: int) -> Counts:
        """Return the counts, with the number of leased URLs and of hosts."""
        return Counts(self.added - self.done - self.failed - leased, leased, self.done, self.failed, hosts)


def rank_of(depth: int, priority: int, hops: int = 0) -> int:
    """Return the sort key of a URL among those of its host; the least goes first.

    The order is by priority, then breadth first, then by the number of redirects.
    """
    return (-priority << 20) + (min(max(depth, 0), DEEPEST) << 4) + min(max(hops, 0), FARTHEST)


def rank_parts(rank: int) -> tuple[int, int, int]:
    """Return the depth, the priority and the number of redirects in a rank."""
    return rank >> 4 & DEEPEST, -(rank >> 20), rank & FARTHEST


def demoted(rank: int) -> int:
    """Return the rank with a priority one lower."""
    return rank + (1 << 20)


def fingerprint(url: str) -> int:
    """Return a 64-bit hash of a URL, the same in every process.

    Among a million URLs of one host, the chance of a collision is 1 in 37 million.
    """
    return int.from_bytes(
        _blake2b(url.encode(errors="backslashreplace"), digest_size=8).digest(), "little", signed=True
    )


def report_mark(url: str) -> str:
    """Return the key that marks a URL without a page as reported to the outputs, among the URLs seen."""
    return url + "##"


def report_group(url: str) -> int:
    """Return a negative number in place of that of the host: a reported URL's host may be outside the crawl.

    It keeps the marks of one host close together in a table that is ordered by host. The URL may be an invalid seed.
    """
    return -1 - (fingerprint(url.partition("://")[2].partition("/")[0]) & 0x7FFFFFFF)


def skip_mark(url: str) -> str:
    """Return the key that marks a page as skipped among the URLs seen.

    It is distinct from every URL because canonical URLs have no `#`.
    """
    return url + "#"


class MemoryUrlTable:
    """URL table in memory. Hosts are identified by small numbers, from 1.

    `SQLiteUrlTable` has the same methods. There, calls that change the table require a transaction.
    """

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

    def transaction(self, undone: Callable[[], None]) -> AbstractContextManager[None]:
        """Return a context manager without effect: changes cannot be undone."""
        return _NO_TRANSACTION

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
        new = [url for url in urls if self.mark(host, url)]
        for start in range(0, len(new), PACK):
            part = new[start : start + PACK]
            size = sum(map(len, part))
            for item in part if size < LONG_PACK else (pack(part),):
                heappush(queue, (rank, self._last + 1, item, parent))
                self._last += len(part) if isinstance(item, bytes) else 1
        self.totals.added += len(new)
        return len(new)

    def mark(self, host: int, url: str) -> bool:
        """Count a URL as seen; return whether it is new."""
        count = len(self._seen)
        self._seen.add(fingerprint(url))
        return len(self._seen) > count

    def has_seen(self, host: int, url: str) -> bool:
        """Return whether a URL was ever stored or marked."""
        return fingerprint(url) in self._seen

    def unreported(self, urls: Iterable[str]) -> list[str]:
        """Return the URLs that are not marked as reported, each once."""
        return [url for url in dict.fromkeys(urls) if fingerprint(report_mark(url)) not in self._seen]

    def mark_reported(self, urls: Iterable[str]) -> None:
        """Mark URLs without a page as reported to the outputs."""
        self._seen.update(fingerprint(report_mark(url)) for url in urls)

    def take(self, host: int, leased: Container[int], count: int) -> UrlRow:
        """Return the first URL of a host that is not leased, and count a try. The host must have one.

        `leased` has the ids of leased URLs, and `count` is how many of them belong to the host. In memory, leased URLs
        are not in its queue.
        """
        queue = self._queues[host]
        rank, number, url, parent = heappop(queue)
        if isinstance(url, bytes):
            url, *rest = unpack(url)
            for place, other in enumerate(rest, number + 1):
                heappush(queue, (rank, place, other, parent))
        tries = self._tries.get(number, 0)
        self._tries[number] = tries + 1
        return UrlRow(number, url, host, self._names[host], rank, parent, tries, self._pages[host])

    def put_back(self, row: UrlRow, *, is_answered: bool, last: bool = False) -> None:
        """Queue a leased URL again at its old position; with `last`, at a priority one lower.

        With `is_answered`, the lease does not count among the URL's tries. Without both, no transaction is required.
        """
        rank = demoted(row.rank) if last else row.rank
        heappush(self._queues[row.number], (rank, row.id, row.url, row.parent))
        if is_answered:
            self._tries[row.id] = row.tries
            if not row.tries:
                del self._tries[row.id]

    def finish(self, row: UrlRow, *, is_page: bool, is_logged: bool = False) -> None:
        """Remove a leased URL that is done; with `is_page`, count a page for its host.

        With `is_logged`, a table on disk records it, so that it can be queued again.
        """
        self.totals.done += 1
        self._pages[row.number] += is_page
        del self._tries[row.id]

    def fail(self, row: UrlRow, reason: str) -> None:
        """Remove a leased URL that failed, and store the reason."""
        self.totals.failed += 1
        del self._tries[row.id]
        self._failures.append((row.url, reason))

    def failures(self) -> list[tuple[str, str]]:
        """Return the failed URLs, each with its reason, in order."""
        return list(self._failures)

    def note(self, notes: Mapping[str, Any]) -> None:
        """Store plain values by name."""
        self._notes.update(notes)

    def notes(self) -> dict[str, Any]:
        """Return all stored notes."""
        return dict(self._notes)

    def queues(self) -> Iterable[tuple[int, int, str]]:
        """Return nothing: a new table in memory is empty."""
        return ()

    def close(self) -> None:
        """Do nothing."""


def pack(urls: Sequence[str]) -> bytes:
    """Return URLs as compressed text."""
    return zlib.compress("\n".join(urls).encode(), 1)


def unpack(data: bytes) -> list[str]:
    """Return the URLs in compressed text."""
    return zlib.decompress(data).decode().split("\n")


class PackedUrls(Sequence[str]):
    """Append-only compressed sequence of canonical URLs, at a tenth of their size; a sitemap may list 50 MB of them.

    It is efficient to read from its beginning.
    """

    __slots__ = ("_blocks", "_last")

    def __init__(self, urls: Iterable[str] = ()) -> None:
        self._blocks: list[bytes] = []
        self._last: list[str] = []
        for url in urls:
            self.append(url)

    def append(self, url: str) -> None:
        """Append a URL."""
        self._last.append(url)
        if len(self._last) == BLOCK:
            self._blocks.append(pack(self._last))
            self._last = []

    def __len__(self) -> int:
        return BLOCK * len(self._blocks) + len(self._last)

    def __iter__(self) -> Iterator[str]:
        for block in self._blocks:
            yield from unpack(block)
        yield from self._last

    @overload
    def __getitem__(self, place: int) -> str: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[str]: ...

    def __getitem__(self, place: int | slice) -> str | Sequence[str]:
        if isinstance(place, int):
            return next(islice(self[place:], 1)) if place >= 0 else list(self)[place]
        start, stop, step = place.indices(len(self))
        rest = PackedUrls()
        rest._blocks, rest._last = self._blocks[start // BLOCK :], self._last
        if start % BLOCK:
            rest = PackedUrls(islice(rest, start % BLOCK, None))
        return rest if place.stop is None and step == 1 else list(islice(rest, 0, stop - start, step))
