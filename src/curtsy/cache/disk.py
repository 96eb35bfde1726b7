"""Disk cache with human-readable files: each page is a body file and a `.meta.json` (N6).

    <root>/<host>/<hash>.html                       the decoded body, of any content type
    <root>/<host>/<hash>.meta.json                  everything else: url, status, headers, etag, fetchedAt …
    <root>/<collection>/<document>/<hash>.html      if the user names a collection and a document
    <root>/<host>/<hash>.<variant>.html             another variant of the same URL, with its own meta file

`<hash>` is the first 16 hexadecimal digits of the URL's SHA-256, so no file name comes from a URL's path (F63). The
meta file holds the full hash and the body's SHA-256. Its last line is a checksum of the lines before. `<variant>` is a
hash of the request's headers (see `core/variant.py`). The first variant cached for a URL has the plain name. Files that
do not match are a miss. Nothing is synced to the disk, because the checksums detect a write torn by a power cut.
"""

from __future__ import annotations

import contextlib
import errno
import os
import time
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any, NamedTuple, TypeVarTuple, Unpack

import msgspec

from curtsy.cache import entry_files
from curtsy.cache.entry_files import BODY, META, remove_pair, scan, stem_of
from curtsy.cache.file_index import Upkeep, remove_files
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
    identify,
    is_wanted,
    may_write,
    newest_first,
    sha256_of,
    without_secrets,
)
from curtsy.core.cache import Entry, entry_of
from curtsy.core.errors import PolicyError
from curtsy.core.request import Headers, Request, Response
from curtsy.core.time import SECOND
from curtsy.core.url import Url
from curtsy.core.variant import MOST_VARIANTS, variant_of
from curtsy.stores.url import check_path
from curtsy.system.clock import Clock, SystemClock
from curtsy.system.log import library_logger

_Given = TypeVarTuple("_Given")

_log = library_logger("cache")

# Errors of a single folder or file; the rest of the cache still works.
_OF_ONE_PLACE = frozenset(
    {
        errno.EACCES, errno.EPERM, errno.EBUSY, errno.EEXIST, errno.EFBIG, errno.EISDIR, errno.ELOOP,
        errno.ENAMETOOLONG, errno.ENOENT, errno.ENOTDIR, errno.ENOTEMPTY,
    }
)  # fmt: skip


class _Found(NamedTuple):
    """Page read from its files."""

    page: Page
    stem: str
    stat: os.stat_result
    """Stat of the meta file."""


def _stems(first: str, target: Request | Url | str) -> Iterator[str]:
    """Yield the stems that a page may have: the first variant's, then those that a request selects by its `vary`."""
    yield first
    if isinstance(target, Request):
        kept = entry_files.entry_at(first + META)
        for vary in dict.fromkeys((() if kept is None else kept.vary, ())):
            yield stem_of(first, variant_of(vary, target))


class DiskCache(PageCache):
    """Cache of pages in files.

    `collection` and `document` name the folders instead of the host. `max_size` limits the files under `root`, in
    bytes. `memory` limits the recently read pages held in memory, in bytes; 0 disables it.

    `get_meta()`, `get_content()` and `put()` take a collection, a document and a URL as text. A client uses the other
    methods.

    An index in the folder, `.index.sqlite`, has the last use and the size of each page. A thread evicts pages by it,
    from time to time. Pages are added to it in batches: the last 64 of another process may be missing from a list. A
    folder without an index is scanned once. Later, `gc()` finds pages that were copied into it. `PackedCache` takes
    half the time to store a page.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        *,
        collection: str | None = None,
        document: str | None = None,
        max_size: int = GIB,
        memory: int = 8 * MIB,
        clock: Clock | None = None,
    ) -> None:
        check_path("root", root)
        self.root = os.path.abspath(os.path.expanduser(root))
        self.max_size = max_size
        names = [entry_files.folder_name(name) for name in (collection, document) if name is not None]
        self._named = os.path.join(self.root, *names) if names else None
        # Folder of each host with a trailing separator, memoized because every lookup needs it.
        self._folder_of = lru_cache(maxsize=4096)(self._folder)
        self._in = lru_cache(maxsize=64)(self._within)
        self._clock = clock or SystemClock()
        self._recent: Recent[tuple[str, tuple[int, ...]]] = Recent(memory)
        self._last_uses: LastUses[str] = LastUses()
        self._outage = Outage(self._clock, _log)
        self._has_warned = False
        """True once a warning about an unwritable path is logged. Later ones are logged at debug level."""

        self._upkeep = Upkeep(self.root, max_size, self._clock, self._last_uses)

    def _folder(self, domain: str) -> str:
        folder = self._named or os.path.join(self.root, entry_files.folder_name(domain.replace(":", "_")))
        return folder + os.sep

    def _within(self, collection: str, document: str) -> DiskCache:
        """Return the cache of a collection and a document under the same root.

        Raises PolicyError if a name is not a string.
        """
        for name, value in (("collection", collection), ("document", document)):
            if not isinstance(value, str):
                raise PolicyError(f"{name} = {value!r} must be text. Give the name of a folder.")
        found = DiskCache(
            self.root, collection=collection, document=document, max_size=self.max_size, memory=0, clock=self._clock
        )
        found._upkeep = self._upkeep
        return found

    def get_meta(self, collection: str, document: str, url: str) -> dict[str, Any] | None:
        """Return the content of a page's `.meta.json`: `url`, `etag`, `fetchedAt` and so on.

        None if the page is not cached. Of several variants, the first one cached is returned.
        """
        entry = self._in(collection, document).entry(url)
        return None if entry is None else entry_files.as_dict(entry)

    def get_content(self, collection: str, document: str, url: str) -> bytes | None:
        """Return the body of a page; None if it is absent or damaged."""
        return self._in(collection, document).body(url)

    def put(self, collection: str, document: str, url: str, body: bytes, etag: str | None = None) -> bool:
        """Store a page, so that a client with this `collection` and `document` revalidates it.

        Return False if the page cannot be stored: `url` is invalid, or the disk is full or read-only. Raises
        PolicyError if `body` is not bytes.
        """
        if not isinstance(body, bytes):
            raise PolicyError(f"body must be bytes, not {type(body).__name__}. Encode text: body.encode().")
        place = self._in(collection, document)
        found = identify(url)
        headers = Headers([] if etag is None else [("ETag", etag)])
        entry = found and entry_of(Request(found[0]), Response(200, headers, body), self._clock.now().epoch / SECOND)
        return entry is not None and place.keep(entry, body)

    def _find(self, target: Request | Url | str) -> tuple[str, str, str] | None:
        """Return the URL, its key and the stem of its first variant; None if the URL is invalid."""
        found = identify(target)
        if found is None:
            return None
        known, key = found
        return known.text, key, self._folder_of(known.domain) + key[:16]

    def get(self, target: Request | Url | str) -> Page | None:
        """Return the page that answers a request, with its body checked; for a URL, its first variant.

        None if the page is absent or damaged.
        """
        place = self._find(target)
        if place is None:
            return None
        text, key, stem = place
        try:
            found = self._in_memory(key, target) or self._read(text, key, stem, target)
        except OSError as error:
            _log.debug("A cached page cannot be read.", url=text, error=str(error))
            return None
        if found is None:
            return None
        epoch = self._clock.now().epoch
        self._last_uses.note(os.path.basename(found.stem), epoch)
        now = epoch // SECOND
        if found.stat.st_atime + HOUR < now:
            try:
                # Eviction needs the last use, and many file systems are mounted so as not to record it.
                os.utime(found.stem + META, ns=(now * 1_000_000_000, found.stat.st_mtime_ns))
            except OSError:
                pass
        return found.page

    def _in_memory(self, key: str, target: Request | Url | str) -> _Found | None:
        """Return the page from memory, if it answers the request and its file is unchanged."""
        known = self._recent.find(key)
        if known is None or not is_wanted(known[1].entry, key, target):
            return None
        stem, stamp = known[0]
        if not isinstance(target, Request) and len(os.path.basename(stem)) != 16:
            return None
        try:
            stat = os.stat(stem + META)
        except FileNotFoundError:
            return None
        return _Found(known[1], stem, stat) if stamp == entry_files.stamp_of(stat) else None

    def _read(self, text: str, key: str, first: str, target: Request | Url | str) -> _Found | None:
        """Read the first variant, or else the variant that the request selects."""
        for stem in _stems(first, target):
            found = self._read_at(stem, text, key)
            if found is not None and is_wanted(found.page.entry, key, target):
                return found
        return None

    def _read_at(self, stem: str, text: str, key: str) -> _Found | None:
        """Read and check one variant; return None if it is absent or of another URL."""
        try:
            meta, stat = entry_files.open_meta(stem + META)
            page = self._checked(entry_files.page_at(stem, meta), text, key, stem)
        except FileNotFoundError:
            return None
        if page is None:
            return None
        if time.time_ns() - stat.st_mtime_ns >= SETTLED:  # later writes change the stamp
            self._recent.keep(key, (stem, entry_files.stamp_of(stat)), page)
        return _Found(page, stem, stat)

    def _checked(self, page: Page | None, text: str, key: str, stem: str) -> Page | None:
        if page is None:
            _log.warning(
                "A cached page is damaged and was deleted; it will be fetched again.", url=text, path=stem + BODY
            )
            self._remove(stem)
            return None
        if page.entry.url_sha256 != key:
            return None  # another URL with the same first 16 digits
        return page.under(text)

    def entry(self, target: Request | Url | str) -> Entry | None:
        """Return everything but the body of the page that answers a request. Does not read the body."""
        place = self._find(target)
        if place is None:
            return None
        text, key, first = place
        for stem in _stems(first, target):
            entry = entry_files.entry_at(stem + META)
            if entry is not None and is_wanted(entry, key, target):
                return msgspec.structs.replace(entry, url=text)
        return None

    def keep(self, entry: Entry, body: bytes) -> bool:
        """Store a page in place of the same variant.

        Return False if the page cannot be stored; then the old page is dropped, too.
        """
        place = self._find(entry.url)
        if place is None or place[1] != entry.url_sha256:
            return False
        written = without_secrets(entry)
        (stem, is_new), is_stored = self._stem_for(place[2], entry), False
        if written is not None and len(body) <= self.max_size // 2:
            meta = entry_files.encode(
                msgspec.structs.replace(written, body_sha256=sha256_of(body), body_size=len(body))
            )
            if len(meta) <= entry_files.MOST_META:
                is_stored = self._write(self._put, stem, written, body, meta, is_new)
        if not is_stored:
            self.drop(entry.url, entry.variant)
            return False
        if stem != place[2]:
            self._limit_variants(place[2], stem)
        elif entry.variant:  # remove the variant's former files, written while another variant was first
            self._remove(stem_of(stem, entry.variant))
        return True

    def _stem_for(self, first: str, entry: Entry) -> tuple[str, bool]:
        """Return the stem for a variant, and whether it is free.

        It is the first stem if that is free or the variant's own, else a named one.
        """
        try:
            kept = entry_files.decode(entry_files.open_meta(first + META)[0])
        except FileNotFoundError:
            return first, True
        except OSError:
            kept = None
        if kept is None or kept.url_sha256 != entry.url_sha256 or kept.variant == entry.variant:
            return first, False
        return stem_of(first, entry.variant), False

    def _remove(self, *stems: str) -> None:
        """Remove pages and their rows in the index."""
        for stem in stems:
            remove_pair(stem)
        self._upkeep.index.remove(*stems)

    def _limit_variants(self, first: str, newest: str) -> None:
        """Drop the least recently used variants of a URL above `MOST_VARIANTS`, but keep the newest.

        The first variant's files always count, because filling them requires no folder listing.
        """
        uses: list[tuple[float, str]] = []
        for stem in entry_files.others(first):
            try:
                used = os.stat(stem + META).st_atime
            except OSError:
                continue
            if stem != newest:
                uses.append((max(used, self._last_uses.at(os.path.basename(stem)) / SECOND), stem))
        self._remove(*[stem for _, stem in sorted(uses)[: max(0, len(uses) + 2 - MOST_VARIANTS)]])

    def refresh(self, entry: Entry) -> bool:
        """Update everything but the body after a 304. Return False if that body is no longer stored."""
        place = self._find(entry.url)
        written = without_secrets(entry)
        if place is None or written is None:
            return False
        wanted = place[1], entry.variant, entry.body_sha256, entry.body_size
        for stem in (place[2], stem_of(place[2], entry.variant)):
            try:
                before = entry_files.open_meta(stem + META)[0]
            except OSError:
                continue
            kept = entry_files.decode(before)
            if kept is not None and (kept.url_sha256, kept.variant, kept.body_sha256, kept.body_size) == wanted:
                meta = entry_files.encode(written)
                if len(meta) > entry_files.MOST_META or not self._write(entry_files.renew, stem, before, meta):
                    return False
                self._upkeep.add(stem, written, len(meta) + entry.body_size)
                return True
        return False

    def _write(self, work: Callable[[Unpack[_Given]], bool], *given: *_Given) -> bool:
        if self._outage.is_on:
            return False
        try:
            is_done = work(*given)
        except OSError as error:
            if error.errno in _OF_ONE_PLACE and os.path.isdir(home := self._named or self.root) and may_write(home):
                log = _log.debug if self._has_warned else _log.warning
                self._has_warned = True
                log(
                    f"A page cannot be cached in {self.root}: {error}. It will be fetched again each time; pages whose "
                    "files are elsewhere are cached. Check the owner and the content of that path, or remove it."
                )
            else:
                self._outage.begin(
                    f"The cache {self.root} cannot be written: {error}. Free some space, or use another folder."
                )
            return False
        self._outage.end(self.root)
        return is_done

    def _put(self, stem: str, entry: Entry, body: bytes, meta: bytes, is_new: bool) -> bool:
        """Add a page to the index, and write its two files. Creates a missing folder."""
        self._upkeep.add(stem, entry, len(meta) + len(body))
        for _ in range(entry_files.TRIES):
            try:
                return entry_files.put(stem, body, meta, is_new=is_new)
            except FileNotFoundError:  # another process may remove the folder while it is empty
                self._make(os.path.dirname(stem))
        return entry_files.put(stem, body, meta, is_new=is_new)

    def _make(self, folder: str) -> None:
        """Create a folder under the root, and the root, with mode 0o700 at every level.

        `makedirs()` applies the mode to the last level only.
        """
        os.makedirs(self.root, 0o700, exist_ok=True)
        made = self.root
        for name in os.path.relpath(folder, self.root).split(os.sep):
            made = os.path.join(made, name)
            with contextlib.suppress(FileExistsError):
                os.mkdir(made, 0o700)

    def drop(self, url: Url | str, variant: str | None = None) -> None:
        """Drop a variant of a URL; all variants if `variant` is None."""
        place = self._find(url)
        if place is None:
            return
        _, key, first = place
        self._recent.forget(key)
        kept = None if variant is None else entry_files.entry_at(first + META)
        stems = entry_files.others(first) if variant is None else [stem_of(first, variant)]
        if kept is None or kept.url_sha256 != key or kept.variant == variant:
            stems.append(first)
        self._remove(*stems)

    def pages(self, url: Url | str) -> list[Page]:
        """Return every variant of a URL under any collection and document, newest first. Scans all files."""
        found = identify(url)
        if found is None:
            return []
        pages: list[Page | None] = []
        for stem in self._pairs():
            if os.path.basename(stem).startswith(found[1][:16]):
                with contextlib.suppress(OSError):
                    page = entry_files.page_at(stem, entry_files.open_meta(stem + META)[0])
                    pages.append(self._checked(page, found[0].text, found[1], stem))
        return newest_first(page for page in pages if page is not None)

    def _pairs(self) -> Iterator[str]:
        """Yield the stems of all pages."""
        for files in scan(self.root, self._last_uses):
            if len(files.paths) == 2:
                yield files.paths[0].removesuffix(META)

    def entries(self, domain: str | None = None) -> Iterator[Entry]:
        """Yield the stored entries, newest first; with a domain only those of its host and subdomains.

        Entries are read one by one, so memory is bounded. Secrets in URLs are masked. The port of a domain is ignored.
        """
        index = self._upkeep.ready()
        for number in index.listed(b"" if domain is None else host_key(domain)):
            stem = index.stem_of(number)
            entry = None if stem is None else entry_files.entry_at(stem + META)
            if entry is not None and os.path.exists(f"{stem}{BODY}"):
                yield entry

    def verify(self) -> Checked:
        """Check every page and drop damaged ones."""
        good = damaged = 0
        for stem in self._pairs():
            try:
                page = entry_files.page_at(stem, entry_files.open_meta(stem + META)[0])
            except OSError:  # removed by another process
                continue
            if page is not None and os.path.basename(stem) in entry_files.names_of(page.entry):
                good += 1
            else:
                damaged += 1
                _log.warning("A cached page is damaged and was deleted; it will be fetched again.", path=stem + BODY)
                self._remove(stem)
        return Checked(good, damaged)

    def gc(self, max_size: int | None = None) -> int:
        """Evict least recently used pages down to `max_size` bytes; return the freed bytes.

        `max_size` defaults to the cache's limit. The last use by other processes is known to the hour. Also removes
        files that killed writers left behind.
        """
        return self._upkeep.collect(self.max_size if max_size is None else max_size)

    def clear(self, matches: Callable[[Entry], bool]) -> None:
        """Drop the pages whose entries satisfy `matches`. Secrets in their URLs are masked."""
        entries = [(stem, entry_files.entry_at(stem + META)) for stem in self._pairs()]
        gone = [stem for stem, entry in entries if entry is not None and matches(entry)]
        remove_files([path for stem in gone for path in (stem + META, stem + BODY)])
        self._upkeep.index.remove(*gone)

    @property
    def size(self) -> int:
        """Return the bytes of all stored pages."""
        return self._upkeep.ready().size

    def close(self) -> None:
        """Close the index. The next use opens it again."""
        self._upkeep.close()
