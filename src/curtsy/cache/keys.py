"""Page cache protocol, and the parts shared by its implementations `disk.py` and `packed.py`.

A page cache never fails a fetch. A damaged, missing or unreadable page is a miss. A page that cannot be written is not
stored. Neither raises. A body is returned only if its SHA-256 matches the stored one.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import msgspec

from curtsy.core.cache import Entry, url_sha256
from curtsy.core.masking import mask_url
from curtsy.core.request import Request
from curtsy.core.time import SECOND
from curtsy.core.url import InvalidUrl, Url, parse_url
from curtsy.system.clock import Clock
from curtsy.system.log import LibraryLogger

Name = TypeVar("Name")
Stamp = TypeVar("Stamp")

GIB = 1024**3
MIB = 1024**2

HOUR = 3600
"""Seconds: precision of a page's stored last use, and age below which unfinished files are kept."""


SETTLED = 20_000_000
"""Nanoseconds after which a write is sure to change a file's time, because file system clocks are coarse."""


OVERHEAD = 2000
"""Bytes of memory per page besides its body."""


MOST_USES = 8192
"""Pages whose last use is known exactly. Each takes a fifth of a kilobyte."""


class Page(NamedTuple):
    """Cached page."""

    entry: Entry
    body: bytes

    def under(self, url: str) -> Page:
        """Return the page under the requested URL. Stored URLs have their secrets masked."""
        return self if self.entry.url == url else Page(msgspec.structs.replace(self.entry, url=url), self.body)


@dataclass(frozen=True, slots=True)
class Checked:
    """Result of a check of all pages."""

    good: int = 0
    damaged: int = 0
    """Damaged pages, already dropped."""


class PageCache(Protocol):
    """Blocking cache of pages with up to eight variants per URL. Safe for several threads and processes."""

    def get(self, target: Request | Url | str) -> Page | None:
        """Return the page that answers a request, with its body checked; for a URL, its first variant.

        None if the page is absent or damaged.
        """
        ...

    def entry(self, target: Request | Url | str) -> Entry | None:
        """Return everything but the body of that page. Does not read the body."""
        ...

    def body(self, target: Request | Url | str) -> bytes | None:
        """Return the checked body of that page."""
        page = self.get(target)
        return None if page is None else page.body

    def pages(self, url: Url | str) -> list[Page]:
        """Return every variant of a URL, newest first."""
        ...

    def keep(self, entry: Entry, body: bytes) -> bool:
        """Store a page in place of the same variant, with a hash of its body.

        Return False if the page cannot be stored; then the old page is dropped, too.
        """
        ...

    def refresh(self, entry: Entry) -> bool:
        """Update everything but the body after a 304. Return False if that body is no longer stored."""
        ...

    def drop(self, url: Url | str, variant: str | None = None) -> None:
        """Drop a variant of a URL; all variants if `variant` is None."""
        ...

    def entries(self, domain: str | None = None) -> Iterator[Entry]:
        """Yield the stored entries, newest first; with a domain only those of its host and subdomains.

        Entries are read in batches, so memory is bounded. Secrets in URLs are masked. The port of a domain is ignored.
        """
        ...

    def verify(self) -> Checked:
        """Check every page and drop damaged ones."""
        ...

    def gc(self, max_size: int | None = None) -> int:
        """Evict least recently used pages down to `max_size` bytes; return the freed bytes.

        `max_size` defaults to the cache's limit. The last use by other processes is known to the hour.
        """
        ...

    def clear(self, matches: Callable[[Entry], bool]) -> None:
        """Drop the pages whose entries satisfy `matches`. Secrets in their URLs are masked."""
        ...

    @property
    def size(self) -> int:
        """Return the bytes that the stored pages occupy."""
        ...

    def close(self) -> None:
        """Release all open resources. Idempotent."""
        ...


def identify(target: Request | Url | str) -> tuple[Url, str] | None:
    """Return the canonical URL and its SHA-256 key; None if the URL is invalid."""
    url = target.url if isinstance(target, Request) else target
    if isinstance(url, str):
        parsed = parse_url(url)
        if isinstance(parsed, InvalidUrl):
            return None
        url = parsed
    return url, url_sha256(url.text)


def is_wanted(entry: Entry, key: str, target: Request | Url | str) -> bool:
    """Return whether an entry has this URL key and, if `target` is a request, answers it."""
    return entry.url_sha256 == key and (not isinstance(target, Request) or entry.answers(target))


def host_key(domain: str) -> bytes:
    """Return a host's labels in reverse order, so that a prefix selects a host and its subdomains. Ignores the port."""
    host, _, port = domain.rpartition(":")
    labels = (host if port.isdigit() else domain).split(".")
    return ".".join(reversed(labels)).encode("utf-8", "surrogatepass") + b"."


_host_key_of = lru_cache(maxsize=4096)(host_key)


def host_key_of(entry: Entry) -> bytes:
    """Return the `host_key()` of an entry's URL, which is canonical and has no credentials."""
    return _host_key_of(entry.url.split("/", 3)[2])


def newest_first(pages: Iterable[Page]) -> list[Page]:
    """Return pages sorted by the time of their fetch, newest first."""
    return sorted(pages, key=lambda page: -page.entry.fetched_at)


def entry_struct(
    types: dict[str, type], first: Iterable[tuple[str, type]] = (), **options: Any
) -> type[msgspec.Struct]:
    """Return a struct with the fields of `Entry`, some of other `types`, after the fields `first`."""
    fields = [
        (each.name, types.get(each.name, each.type), *([] if each.required else [each.default]))
        for each in msgspec.structs.fields(Entry)
    ]
    return msgspec.defstruct("Meta", [*first, *fields], gc=False, **options)


def sha256_of(body: bytes) -> str:
    """Return the SHA-256 of a body in hexadecimal digits."""
    return hashlib.sha256(body).hexdigest()


def may_write(path: str) -> bool:
    """Return whether this process may write a file, or create files in a folder."""
    return os.access(path, os.W_OK, effective_ids=os.access in os.supports_effective_ids)


def without_secrets(entry: Entry) -> Entry | None:
    """Mask the secrets of an entry before it is written to disk (F62).

    Return None if masking changes the page's meaning.
    """
    headers, url = entry.headers, mask_url(entry.url)
    if [value for _, value in headers if _masked(value) != value]:
        if any(name.lower() == "location" and _masked(value) != value for name, value in headers):
            return None  # a redirect without its target is useless
        headers = tuple((name, _masked(value)) for name, value in headers)
    elif url == entry.url:
        return entry
    return msgspec.structs.replace(entry, url=url, headers=headers)


def _masked(value: str) -> str:
    return _memo(value) if len(value) < 200 else mask_url(value)


_memo = lru_cache(maxsize=1024)(mask_url)  # many pages of a site have the same headers


# One lock for all instances, held only briefly. Acquired before a fork, because a child cannot release a lock that
# another thread of its parent holds.
_lock = threading.Lock()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release)


class Recent(Generic[Stamp]):
    """In-memory LRU of pages read at least twice. A third hit skips the read and the check.

    Bounded in size and safe for threads. Each page has a stamp, by which the caller detects a changed file. Pages read
    once are not held, because in a crawl those are nearly all. They would evict useful pages and cost a tenth of the
    time of a fresh hit.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        self._pages: OrderedDict[str, tuple[Stamp, Page]] = OrderedDict()
        self._once: OrderedDict[str, str] = OrderedDict()
        """Body hashes of pages read once, by key. As many as pages of that size fit in memory."""

    def find(self, key: str) -> tuple[Stamp, Page] | None:
        """Return the page under `key` and its stamp for comparison."""
        with _lock:
            found = self._pages.get(key)
            if found is not None:
                self._pages.move_to_end(key)
            return found

    def body_of(self, key: str) -> str | None:
        """Return the body hash of a recently read page, even if it was read only once."""
        with _lock:
            found = self._pages.get(key)
            return self._once.get(key) if found is None else found[1].entry.body_sha256

    def keep(self, key: str, stamp: Stamp, page: Page) -> None:
        """Hold a page that was read and checked; evict the least recently used ones."""
        weight = len(page.body) + OVERHEAD
        if weight > self._max_bytes // 8:
            return
        with _lock:
            if key not in self._pages and key not in self._once:
                self._once[key] = page.entry.body_sha256
                if len(self._once) > self._max_bytes // weight:
                    self._once.popitem(last=False)
                return
            self._forget(key)
            self._pages[key] = stamp, page
            self._bytes += weight
            while self._bytes > self._max_bytes:
                self._bytes -= len(self._pages.popitem(last=False)[1][1].body) + OVERHEAD

    def forget(self, key: str) -> None:
        """Remove a page."""
        with _lock:
            self._forget(key)

    def _forget(self, key: str) -> None:
        self._once.pop(key, None)
        if (found := self._pages.pop(key, None)) is not None:
            self._bytes -= len(found[1].body) + OVERHEAD


class LastUses(Generic[Name]):
    """Times of the last use of pages in this process, for eviction. The stored times are updated hourly.

    Holds the `most` last used pages and up to as many older ones. Safe for threads. Keys are the pages' names on disk.
    """

    def __init__(self, most: int = MOST_USES) -> None:
        self._most = most
        # Two generations need no ordering and so no lock. A full one replaces the older one.
        self._uses: dict[Name, int] = {}
        self._before: dict[Name, int] = {}

    def note(self, name: Name, at: int) -> None:
        """Record that a page was used at this time."""
        uses = self._uses
        uses[name] = at
        if len(uses) >= self._most:
            self._before, self._uses = uses, {}

    def at(self, name: Name) -> int:
        """Return when a page was last used; 0 if that is unknown."""
        return self._uses.get(name) or self._before.get(name, 0)

    def take(self, name: Name) -> int:
        """Remove and return the time of a page's last use, which the caller writes to disk."""
        before = self._before.pop(name, 0)
        return self._uses.pop(name, before)


class Outage:
    """Pause after a failed write (full or read-only disk), so that not every fetch retries it.

    Logs once when the outage begins and once when it ends; nothing if `log` is None.
    """

    def __init__(self, clock: Clock, log: LibraryLogger | None, rest: float = 60.0) -> None:
        self._clock = clock
        self.log = log
        self._rest = round(rest * SECOND)
        self._until: int | None = None

    @property
    def is_on(self) -> bool:
        """Return whether writes are paused now."""
        return self._until is not None and self._clock.now().at < self._until

    def begin(self, why: str) -> None:
        """Pause writes. `why` is a sentence that names the place and the cause."""
        if self._until is None and self.log is not None:
            self.log.warning(
                f"{why} Pages are fetched without being cached. The next attempt to write is in "
                f"{self._rest // SECOND} s."
            )
        if not self.is_on:
            self._until = self._clock.now().at + self._rest

    def end(self, place: str) -> None:
        """Record that a write to `place` succeeded."""
        if self._until is not None:
            self._until = None
            if self.log is not None:
                self.log.info(f"The cache {place} can be written again.")
