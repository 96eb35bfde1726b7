"""Kept pages: the contract of a page cache, and what its two kinds, `disk.py` and `packed.py`, have in common.

A page cache never fails a fetch. What is damaged, missing or cannot be read is a miss; what cannot be written is not
kept; neither raises. No body is ever given out whose SHA-256 is not the one it was kept with.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Generic, NamedTuple, Protocol, TypeVar

import msgspec

from curtsy.core.cache import Entry, url_sha256
from curtsy.core.message import SECOND, InvalidUrl, Request, Url, parse_url
from curtsy.core.secrets import mask_url
from curtsy.system.clock import Clock
from curtsy.system.log import LibraryLogger

Name = TypeVar("Name")
Stamp = TypeVar("Stamp")

GIB = 1024**3
MIB = 1024**2

HOUR = 3600
"""Seconds: how exactly the last use of a page is written down, and how long what looks unfinished is left alone."""


SETTLED = 20_000_000
"""Nanoseconds after which a write gives a file another time than the one before: file systems' clocks are coarse."""


OVERHEAD = 2000
"""Bytes of memory that a page takes besides its body."""


MOST_USES = 8192
"""Pages whose last use is known exactly. A fifth of a kilobyte each."""


class Page(NamedTuple):
    """A page as it was kept."""

    entry: Entry
    body: bytes

    def under(self, url: str) -> Page:
        """The page with its URL as it was asked for: where it is kept, secrets are masked."""
        return self if self.entry.url == url else Page(msgspec.structs.replace(self.entry, url=url), self.body)


@dataclass(frozen=True, slots=True)
class Checked:
    """What a look at every page found."""

    good: int = 0
    damaged: int = 0
    """These are gone now."""


class PageCache(Protocol):
    """A blocking cache of pages, up to eight variants of each URL. Safe to share among threads and processes."""

    def get(self, asked: Request | Url | str) -> Page | None:
        """Return the page that answers a request, its body checked; for a URL, the first of its variants.

        None if there is none, or it is damaged.
        """
        ...

    def entry(self, asked: Request | Url | str) -> Entry | None:
        """Return all but the body of that page, without a look at the body."""
        ...

    def body(self, asked: Request | Url | str) -> bytes | None:
        """Return the checked body of that page."""
        ...

    def pages(self, url: Url | str) -> list[Page]:
        """Return every variant of a URL, the newest first."""
        ...

    def keep(self, entry: Entry, body: bytes) -> bool:
        """Keep a page in place of the same variant, with a hash of its body.

        False if it could not be; then that one is dropped, too.
        """
        ...

    def refresh(self, entry: Entry) -> bool:
        """Renew all but the body after a 304. False if that body is not kept (any more)."""
        ...

    def drop(self, url: Url | str, variant: str | None = None) -> None:
        """Forget a variant of a URL, or all of them."""
        ...

    def entries(self) -> Iterator[Entry]:
        """Everything kept, in no order; secrets in the URLs are masked."""
        ...

    def verify(self) -> Checked:
        """Look at every page, and drop those that are damaged."""
        ...

    def gc(self, max_size: int | None = None) -> int:
        """Drop the least recently used pages until at most `max_size` bytes (default: the cache's limit) are taken.

        When others used a page is known by the hour. Returns the bytes given back.
        """
        ...

    def clear(self, is_meant: Callable[[Entry], bool]) -> None:
        """Forget the pages of whose entries `is_meant` says so; secrets in their URLs are masked."""
        ...

    @property
    def size(self) -> int:
        """Bytes taken by what is kept."""
        ...

    def close(self) -> None:
        """Give back what is held open. Idempotent."""
        ...


def identify(asked: Request | Url | str) -> tuple[Url, str] | None:
    """The canonical URL and the SHA-256 that identifies it; None if it is no URL that can be requested."""
    if isinstance(asked, Request):
        url = asked.url
    elif isinstance(asked, Url):
        url = asked
    else:
        parsed = parse_url(asked)
        if isinstance(parsed, InvalidUrl):
            return None
        url = parsed
    return url, url_sha256(url.text)


def is_wanted(entry: Entry, key: str, asked: Request | Url | str) -> bool:
    """Return whether an entry is of the URL with this SHA-256, and answers the request if there is one."""
    return entry.url_sha256 == key and (not isinstance(asked, Request) or entry.answers(asked))


def newest_first(pages: Iterable[Page]) -> list[Page]:
    """Return pages in the order in which they came, the last first."""
    return sorted(pages, key=lambda page: -page.entry.fetched_at)


def sha256_of(body: bytes) -> str:
    """What vouches for a body."""
    return hashlib.sha256(body).hexdigest()


def may_write(path: str) -> bool:
    """Whether a file can be written, or something be put into a folder."""
    return os.access(path, os.W_OK, effective_ids=os.access in os.supports_effective_ids)


def without_secrets(entry: Entry) -> Entry | None:
    """The entry as it may stand on a disk (F62); None if it would not be the same page any more."""
    headers, url = entry.headers, mask_url(entry.url)
    if [value for _, value in headers if _masked(value) != value]:
        if any(name.lower() == "location" and _masked(value) != value for name, value in headers):
            return None  # a redirect that cannot say where
        headers = tuple((name, _masked(value)) for name, value in headers)
    elif url == entry.url:
        return entry
    return msgspec.structs.replace(entry, url=url, headers=headers)


def _masked(value: str) -> str:
    return _memo(value) if len(value) < 200 else mask_url(value)


_memo = lru_cache(maxsize=1024)(mask_url)  # many pages of a site have the same headers


# One lock for all, held for moments only. A fork must find it free: in the child nobody would be left to release it.
_lock = threading.Lock()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release)


class Recent(Generic[Stamp]):
    """Pages read twice lately, so that a third hit need not read and check them again. Bounded; safe for threads.

    Each has a stamp, by which its owner sees whether what it was read from is still the same.

    What is read once is not held: in a crawl that is nearly all, so it would only push out what is wanted again, and
    take a tenth of the time of a page that is still good.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        self._pages: OrderedDict[str, tuple[Stamp, Page]] = OrderedDict()
        self._once: OrderedDict[str, str] = OrderedDict()
        """The hashes of the bodies of pages read once, of as many as could be held."""

    def find(self, key: str) -> tuple[Stamp, Page] | None:
        """The page under `key` and its stamp, which its owner compares."""
        with _lock:
            found = self._pages.get(key)
            if found is not None:
                self._pages.move_to_end(key)
            return found

    def body_of(self, key: str) -> str | None:
        """The hash of the body that the page under `key` had when it was read lately, be it the first time."""
        with _lock:
            found = self._pages.get(key)
            return self._once.get(key) if found is None else found[1].entry.body_sha256

    def keep(self, key: str, stamp: Stamp, page: Page) -> None:
        """Remember a page that was read and checked; the least recently used ones make room for it."""
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
        """Forget one page."""
        with _lock:
            self._forget(key)

    def _forget(self, key: str) -> None:
        self._once.pop(key, None)
        if (found := self._pages.pop(key, None)) is not None:
            self._bytes -= len(found[1].body) + OVERHEAD


class Lately(Generic[Name]):
    """When a page was last used here, for eviction: where it is kept, that is written down once an hour.

    Of the `most` pages used last, and up to as many before them; safe for threads. A page goes by its name on the disk.
    """

    def __init__(self, most: int = MOST_USES) -> None:
        self._most = most
        # Two, so that nothing is to be kept in order, for which threads would have to wait: when the one is full, it
        # takes the other's place.
        self._uses: dict[Name, int] = {}
        self._before: dict[Name, int] = {}

    def note(self, name: Name, at: int) -> None:
        """Remember that a page is used."""
        uses = self._uses
        uses[name] = at
        if len(uses) >= self._most:
            self._before, self._uses = uses, {}

    def at(self, name: Name) -> int:
        """When a page was used; 0 if it was not, or long ago."""
        return self._uses.get(name) or self._before.get(name, 0)

    def take(self, name: Name) -> int:
        """The same, and forget it: it is about to be written down."""
        before = self._before.pop(name, 0)
        return self._uses.pop(name, before)


class Outage:
    """Rests after a write that failed (a full disk, a read-only one), so that not every fetch tries in vain.

    Told once when it begins, and once when it is over.
    """

    def __init__(self, clock: Clock, log: LibraryLogger, place: str, rest: float = 60.0) -> None:
        self._clock = clock
        self._log = log
        self._place = place
        self._rest = round(rest * SECOND)
        self._until: int | None = None

    @property
    def is_on(self) -> bool:
        """Whether nothing is to be written now."""
        return self._until is not None and self._clock.now().at < self._until

    @property
    def has_begun(self) -> bool:
        """Whether no write has worked since one failed, be it time to try again or not."""
        return self._until is not None

    def begin(self, error: Exception) -> None:
        """Stop writing for a while, because of this."""
        if self._until is None:
            self._log.warning(
                f"The cache {self._place} cannot be written: {error}. Pages are fetched without being kept, and it is "
                f"tried again every {self._rest // SECOND} s. Make room, or give the cache another place."
            )
        if not self.is_on:
            self._until = self._clock.now().at + self._rest

    def end(self) -> None:
        """Note that a write has worked."""
        if self._until is not None:
            self._until = None
            self._log.info(f"The cache {self._place} can be written again.")
