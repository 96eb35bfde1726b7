"""Cache for very many pages: one SQLite file with zstd-compressed bodies. Tables: see `packed_file.py`."""

from __future__ import annotations

import itertools
import math
import os
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import msgspec

from curtsy.cache import packed_file
from curtsy.cache.cache_file import CacheFile
from curtsy.cache.keys import (
    GIB,
    HOUR,
    MIB,
    SETTLED,
    Checked,
    LastUses,
    Outage,
    Page,
    PageCache,
    Recent,
    host_key,
    host_key_of,
    identify,
    is_wanted,
    newest_first,
    without_secrets,
)
from curtsy.cache.write_buffer import Waiting, WriteBuffer
from curtsy.core.cache import Entry, url_sha256
from curtsy.core.request import Request
from curtsy.core.time import SECOND
from curtsy.core.url import Url
from curtsy.stores.sqlite_file import check
from curtsy.stores.url import check_path
from curtsy.system.clock import Clock, SystemClock
from curtsy.system.log import library_logger

_log = library_logger("cache")

_HOUR = HOUR * 1000

DELAY = 0.05
"""Seconds: recommended `delay`, long enough to batch a busy program's writes and short enough to lose little."""

EVICTED = 4
"""Batches of pages evicted after a write. More would delay the pages that wait meanwhile."""

CHECKPOINT = 4 * MIB
"""Bytes written between two checkpoints."""

LARGE = 256 * 1024
"""Bytes of body above which a page is written at once: batching saves time per page, not per byte."""


class _Seen(NamedTuple):
    """State of the file when a page in memory was last compared with it."""

    number: int
    meta: bytes
    """Encoded entry in the file. It includes the body's hash, so an equal value means an equal body."""

    log: tuple[int, int, int] | None
    """Time, inode and size of the WAL file; None if a later write might not change them. If they are unchanged, nothing
    was written."""

    used: int
    """Time of the last use in milliseconds, stored or about to be stored."""


class PackedCache(PageCache):
    """Cache of pages in one SQLite file.

    `max_size` limits the file in bytes, without its WAL of a few MiB. `memory` limits the recently read pages held in
    memory, in bytes; 0 disables it.

    With a `delay`, pages are compressed and written in batches, at most that many seconds later. `keep` and
    `refresh` then return True before the write, which may still fail. Caches of this process with the same path and
    delay see the pages at once, others once they are written. A killed program loses the waiting pages, never parts of
    pages: those of the last `delay` seconds, or at most 64 pages or 2 MiB if the disk is slower than the program.

    Reads, writes and upkeep have a connection each. So no reader waits for a write, and no write for a checkpoint or
    for more than a batch of an eviction.

    A damaged file is renamed and a new one started: see `packed_file.py`.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        max_size: int = 16 * GIB,
        memory: int = 8 * MIB,
        delay: float = 0.0,
        clock: Clock | None = None,
    ) -> None:
        check_path("path", path)
        self.path = os.path.abspath(os.path.expanduser(path))
        self.max_size = max_size
        self._clock = clock or SystemClock()
        self._recent: Recent[_Seen] = Recent(memory)
        self._outage = Outage(self._clock, _log)
        self._reads = CacheFile(self.path, packed_file.FORMAT, self._clock, self._outage, may_create=False)
        self._writes = CacheFile(self.path, packed_file.FORMAT, self._clock, self._outage)
        self._upkeep = CacheFile(self.path, packed_file.FORMAT, self._clock, self._outage, may_create=False)
        self._write_buffer = WriteBuffer.at(self.path, delay)
        self._log_path = self.path + "-wal"
        self._last_uses: LastUses[int] = LastUses()
        self._uses: dict[int, int] = {}
        """Times of last use in milliseconds that are still to be stored, by page number."""

        self._until_check = 0.0
        """Bytes to write before the next check of the size."""

        self._until_checkpoint = CHECKPOINT

    # --- The contract ----------------------------------------------------------------------------------------------

    def get(self, target: Request | Url | str) -> Page | None:
        """Return the page that answers a request, with its body checked; for a URL, its first variant.

        None if the page is absent or damaged.
        """
        found = identify(target)
        if found is None:
            return None
        text, key = found[0].text, found[1]
        known, log = self._recent.find(key), None
        if known is not None and not is_wanted(known[1].entry, key, target):
            known = None
        waiting = self._write_buffer.get(key)
        if waiting is not None and is_wanted(waiting.entry, key, target):
            if not waiting.is_renewal:
                page = self._page_of(key, waiting)
                return None if page is None else page.under(text)
            if known is not None and known[1].entry.body_sha256 == waiting.entry.body_sha256:
                return Page(waiting.entry, known[1].body).under(text)
            self.flush()
        if known is not None:
            log = _state_of(self._log_path)
            now = self._now()
            if log is not None and known[0].log == log and 0 <= now - known[0].used < _HOUR:
                self._last_uses.note(known[0].number, now)
                return known[1]
        return self._reads.read(None, self._get, text, key, target, known, log)

    def entry(self, target: Request | Url | str) -> Entry | None:
        """Return everything but the body of the page that answers a request. Does not read the body."""
        self.flush()
        found = identify(target)
        if found is None:
            return None
        for _, entry in self._reads.rows(packed_file.entries_in, found[1]):
            if is_wanted(entry, found[1], target):
                return msgspec.structs.replace(entry, url=found[0].text)
        return None

    def pages(self, url: Url | str) -> list[Page]:
        """Return every variant of a URL, newest first."""
        self.flush()
        found = identify(url)
        if found is None:
            return []
        return newest_first(page.under(found[0].text) for page in self._reads.rows(packed_file.pages_in, found[1]))

    def keep(self, entry: Entry, body: bytes) -> bool:
        """Store a page in place of the same variant.

        Return False if the page cannot be stored; then the old page is dropped, too.
        """
        if url_sha256(entry.url) != entry.url_sha256:
            return False
        written = without_secrets(entry)
        if written is None or len(body) > self.max_size // 2 or self._outage.is_on:
            self.drop(entry.url, entry.variant)
            return False
        written = msgspec.structs.replace(written, body_sha256="", body_size=len(body))
        page = Waiting(written, body, is_packed=False, is_renewal=False)
        if self._may_wait and len(body) <= LARGE:
            self._write_buffer.add(entry.url_sha256, page, self.flush)
            return True
        self._write_buffer.forget(entry.url_sha256, entry.variant)
        if not self._writes.call(False, self._write, [page]):
            self.drop(entry.url, entry.variant)
            return False
        self._tidy()
        return True

    def refresh(self, entry: Entry) -> bool:
        """Update everything but the body after a 304. Return False if that body is no longer stored."""
        written = without_secrets(entry)
        if written is None or self._outage.is_on:
            return False
        renewal = Waiting(written, b"", is_packed=False, is_renewal=True)
        if self._may_wait:
            before = self._write_buffer.get(entry.url_sha256)
            body = self._recent.body_of(entry.url_sha256) if before is None else before.entry.body_sha256
            if body == entry.body_sha256 and (before is None or before.entry.variant == entry.variant):
                page = renewal if before is None else before._replace(entry=written)
                if self._write_buffer.replace(entry.url_sha256, before, page, self.flush):
                    return True
            self.flush()
        return self._writes.call(False, self._write, [renewal])

    def drop(self, url: Url | str, variant: str | None = None) -> None:
        """Drop a variant of a URL; all variants if `variant` is None."""
        found = identify(url)
        if found is not None:
            self._write_buffer.forget(found[1], variant)
            self._recent.forget(found[1])
            self._reads.call(None, packed_file.remove, found[1], variant)

    def entries(self, domain: str | None = None) -> Iterator[Entry]:
        """Yield the stored entries, newest first; with a domain only those of its host and subdomains.

        Entries are read in batches, so memory is bounded. Secrets in URLs are masked. The port of a domain is ignored.
        """
        self.flush()
        for batch in self._batches(packed_file.known, b"" if domain is None else host_key(domain)):
            for _, entry in batch:
                if entry is not None:
                    yield entry

    def verify(self) -> Checked:
        """Check every page and drop damaged ones; drop all pages if the file itself is damaged."""
        self.flush()
        good = damaged = 0
        replaced = self._writes.replaced
        self._writes.call(None, check)
        for batch in self._batches(packed_file.checked):
            bad = [number for number, entry in batch if entry is None]
            good += len(batch) - len(bad)
            damaged += len(bad)
            if bad:
                _log.warning("Cached pages are damaged and were deleted; they will be fetched again.", pages=len(bad))
                self._writes.call(None, packed_file.delete_rows_only, bad)
        self._writes.call(None, packed_file.sweep)
        return Checked(good, damaged) if replaced == self._writes.replaced else Checked(0, max(1, good + damaged))

    def gc(self, max_size: int | None = None) -> int:
        """Evict least recently used pages down to `max_size` bytes; return the freed bytes.

        `max_size` defaults to the cache's limit. The last use by other processes is known to the hour.
        """
        before = self.size
        self._writes.call(None, self._shrink, self.max_size if max_size is None else max_size)
        self._writes.call(None, packed_file.shrink_file)
        return max(0, before - self.size)

    def clear(self, matches: Callable[[Entry], bool]) -> None:
        """Drop the pages whose entries satisfy `matches`. Secrets in their URLs are masked."""
        self.flush()
        for batch in self._batches(packed_file.known):
            if gone := [number for number, entry in batch if entry is not None and matches(entry)]:
                self._writes.call(None, packed_file.delete, gone)

    @property
    def size(self) -> int:
        """Return the bytes that the stored pages occupy."""
        self.flush()
        return self._reads.call(0, packed_file.stored_size)

    def flush(self) -> None:
        """Write all waiting pages. If that fails, drop them together with the pages that they replace."""
        if self._writes.is_closed:
            return
        if len(self._uses) >= packed_file.BATCH:
            self._writes.call(None, self._store_uses)
        waiting = self._write_buffer.waiting()
        if waiting and (pages := self._writes.call(waiting, self._catch_up)):
            self._write_buffer.done(pages)
            for key, page in pages.items():
                if not page.is_renewal:
                    self._recent.forget(key)
                    self._writes.call(None, packed_file.remove, key, page.entry.variant)
        if self._write_buffer.is_in_thread:
            self._tidy()
        elif self._may_wait and min(self._until_check, self._until_checkpoint) < 0:
            self._write_buffer.wake(self.flush)

    def close(self) -> None:
        """Release all open resources. Idempotent."""
        self.flush()
        self._write_buffer.leave()
        if self._uses:
            self._writes.call(None, self._store_uses)
        self._tidy()
        for file in (self._reads, self._upkeep, self._writes):
            file.close()

    @property
    def _may_wait(self) -> bool:
        return self._write_buffer.delay > 0 and not self._writes.is_closed

    # --- The work --------------------------------------------------------------------------------------------------

    def _batches(
        self, work: Callable[[sqlite3.Connection, Sequence[int]], list[packed_file.Row]], prefix: bytes = b""
    ) -> Iterator[list[packed_file.Row]]:
        numbers = self._reads.call(None, packed_file.listed, prefix) or ()
        for start in range(0, len(numbers), packed_file.BATCH):
            yield self._reads.rows(work, numbers[start : start + packed_file.BATCH])

    def _page_of(self, key: str, waiting: Waiting) -> Page | None:
        """Return a page that waits to be written, with the hash of its stored body."""
        if not waiting.entry.body_sha256:
            body, packed = waiting.body, _packed(waiting)
            self._write_buffer.replace(key, waiting, packed, self.flush)
            return Page(packed.entry, body)
        return packed_file.checked_page(waiting.entry, waiting.body, waiting.is_packed)

    def _get(
        self,
        db: sqlite3.Connection,
        text: str,
        key: str,
        target: Request | Url | str,
        known: tuple[_Seen, Page] | None,
        log: tuple[int, int, int] | None,
    ) -> Page | None:
        page = None
        if known is not None:
            number = known[0].number
            row = db.execute(packed_file.META, (number,)).fetchone()
            if row is not None and row[1] == known[0].meta:
                (used, meta), page = row, known[1]
        if page is None:
            found = self._read(db, text, key, target)
            if found is None:
                return None
            number, used, meta, page = found
        now = self._now()
        is_due = not 0 <= now - used < _HOUR
        if log is not None and time.time_ns() - log[0] < SETTLED:
            log = None
        self._recent.keep(key, _Seen(number, meta, log, now if is_due else used), page)
        self._last_uses.note(number, now)
        if is_due:
            self._uses[number] = now
            if len(self._uses) >= packed_file.BATCH:
                self._write_buffer.wake(self.flush) if self._may_wait else self.flush()
        return page

    def _read(
        self, db: sqlite3.Connection, text: str, key: str, target: Request | Url | str
    ) -> tuple[int, int, bytes, Page] | None:
        """Return number, last use, encoded entry and page of the first matching variant.

        Deletes damaged variants. None if no variant matches.
        """
        found, damaged = None, []
        for number, used, meta, body in db.execute(packed_file.BOTHS, (packed_file.first_number(key),)):
            decoded = packed_file.decode(meta)
            if decoded is not None and not is_wanted(decoded[1], key, target):
                continue
            page = None
            if decoded is not None and isinstance(body, bytes):
                page = packed_file.checked_page(decoded[1], body, decoded[0])
            if page is not None:
                found = number, used, meta, page.under(text)
                break
            damaged.append(number)
        if damaged:
            _log.warning("A cached page is damaged and was deleted; it will be fetched again.", url=text)
            self._writes.call(None, packed_file.delete, damaged)
        return found

    def _catch_up(self, db: sqlite3.Connection) -> dict[str, Waiting]:
        """Write the waiting pages and return an empty dict.

        The buffer is read here, under the file's lock, so that no other thread writes the same pages.
        """
        pages = self._write_buffer.waiting()
        if pages:
            self._write(db, list(pages.values()))
            self._write_buffer.done(pages)
        return {}

    def _write(self, db: sqlite3.Connection, pages: list[Waiting]) -> bool:
        """Write pages in one transaction. Return False if the body of a renewed page is no longer stored."""
        now, size, are_stored = self._now(), 0, True
        former: list[tuple[int]] = []
        contents: list[tuple[int, bytes, bytes]] = []
        places: list[tuple[int, int, int, int, bytes]] = []
        renewed: list[tuple[int, bytes, int, int]] = []
        pages = [page if page.is_renewal or page.entry.body_sha256 else _packed(page) for page in pages]
        db.execute("BEGIN IMMEDIATE")
        last = packed_file.last_place(db)
        firsts = [packed_file.first_number(page.entry.url_sha256) for page in pages]
        known = packed_file.stored_of(db, firsts)  # one query, because most pages are new
        for first, (entry, body, is_packed, is_renewal) in zip(firsts, pages, strict=True):
            number, place, kept, was_packed = (
                packed_file.slot_for(db, entry, self._last_uses.at) if first in known else (first, None, None, False)
            )
            fetched = round(entry.fetched_at * 1000)
            if is_renewal:
                if kept is None or kept.body_sha256 != entry.body_sha256:
                    are_stored = False
                    continue
                meta = packed_file.encode(entry, was_packed)
                renewed.append((now, meta, fetched, number))
            else:
                if place is not None:
                    former.append((place,))
                last += 1
                meta = packed_file.encode(entry, is_packed)
                contents.append((last, meta, body))
                places.append((number, now, last, fetched, host_key_of(entry)))
                size += len(body)
            size += len(meta)
        db.executemany("DELETE FROM contents WHERE place = ?", former)
        db.executemany("INSERT INTO contents VALUES (?, ?, ?)", contents)
        # Sorted by key, so that neighbouring rows are written together.
        db.executemany("REPLACE INTO pages VALUES (?, ?, ?, NULL, ?, ?)", sorted(places))
        db.executemany("UPDATE pages SET used = ?, renewed = ?, fetched = ? WHERE id = ?", renewed)
        db.execute("COMMIT")
        self._outage.end(self.path)
        self._until_check -= size
        self._until_checkpoint -= size
        return are_stored

    def _tidy(self) -> None:
        """Evict pages if the file may be too large, and move the WAL into the file, if that is due."""
        # A check that evicts as many pages as it may is repeated after the next write.
        if self._until_check < 0 and self._upkeep.call(False, self._shrink, self.max_size * 19 // 20, EVICTED):
            self._until_check = self.max_size / 40
        if self._until_checkpoint < 0:
            self._until_checkpoint = CHECKPOINT
            self._upkeep.call(None, packed_file.checkpoint)

    def _shrink(self, db: sqlite3.Connection, limit: int, most: int | None = None) -> bool:
        """Evict pages down to `limit` bytes, by up to `most` batches. Return whether that is done."""
        self._store_uses(db)
        taken = math.inf
        for _ in itertools.count() if most is None else range(most):
            if (surplus := (size := packed_file.size(db)) - limit) <= 0:
                return True
            if size >= taken:  # the deletion freed nothing: the index is damaged
                packed_file.sweep(db)
                return True
            oldest: list[int] = []
            later: list[tuple[int, int]] = []
            for number, used, size_of_page in db.execute(packed_file.BY_USE, (packed_file.BATCH,)):
                if (at := self._last_uses.take(number)) > used:
                    later.append((at, number))
                oldest.append(number)
                surplus -= size_of_page or 0
                if surplus <= 0:
                    break
            if later:  # stores later uses first, then queries again
                packed_file.store_uses(db, later)
            elif oldest:
                packed_file.delete(db, oldest)
                taken = size
            else:
                packed_file.sweep(db)
                return True
        return False

    def _store_uses(self, db: sqlite3.Connection) -> None:
        uses, self._uses = self._uses, {}
        if uses and not self._outage.is_on and not self._writes.is_read_only:
            # A list first: another thread may still add to the dict.
            packed_file.store_uses(db, [(at, number) for number, at in list(uses.items())])

    def _now(self) -> int:
        """Return the time in milliseconds since the epoch, as stored for a last use."""
        return self._clock.now().epoch // (SECOND // 1000)


def _packed(page: Waiting) -> Waiting:
    """Return a waiting page with its body compressed and hashed."""
    return Waiting(*packed_file.pack(page.entry, page.body), is_renewal=False)


def _state_of(path: str) -> tuple[int, int, int] | None:
    """Return time, inode and size of a file, which change with a write; None if it does not exist."""
    try:
        stat = os.stat(path)
    except OSError:
        return None
    return stat.st_mtime_ns, stat.st_ino, stat.st_size
