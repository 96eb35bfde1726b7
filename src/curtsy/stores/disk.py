"""The cache that one can look at: each page a body file and a `.meta.json` beside it (N6).

    <root>/<host>/<hash>.html                       the body as it was decoded, whatever its type
    <root>/<host>/<hash>.meta.json                  all else: url, status, headers, etag, fetchedAt …
    <root>/<collection>/<document>/<hash>.html      where the user names the two

`<hash>` is the first 16 hexadecimal digits of the URL's SHA-256, so no name is ever taken from a URL's path (F63). The
meta file has that hash in full, and the body's; its last line is a checksum of the lines before. Whatever does not fit
together is a miss. Nothing is synced to the disk: a write torn by a power cut is found by its checksum, too.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import random
import re
import time
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import NamedTuple, TypeVarTuple, Unpack

import msgspec

from curtsy.clock import Clock, SystemClock
from curtsy.core.cache import Entry
from curtsy.core.message import SECOND, Url
from curtsy.log import library_logger
from curtsy.place import check_path
from curtsy.stores import pair
from curtsy.stores.pages import (
    GIB,
    HOUR,
    MIB,
    SETTLED,
    Checked,
    Lately,
    Outage,
    Page,
    Recent,
    identify,
    may_write,
    sha256_of,
    without_secrets,
)
from curtsy.stores.pair import BODY, META, TRIES

_Given = TypeVarTuple("_Given")

_log = library_logger("cache")

_OURS = re.compile(r"[0-9a-f]{16}(?:\.html|\.meta\.json|\..*\.part)")

# What may be wrong with one folder or one file, while all others are well.
_OF_ONE_PLACE = frozenset(
    {
        errno.EACCES, errno.EPERM, errno.EBUSY, errno.EEXIST, errno.EFBIG, errno.EISDIR, errno.ELOOP,
        errno.ENAMETOOLONG, errno.ENOENT, errno.ENOTDIR, errno.ENOTEMPTY,
    }
)  # fmt: skip

# What Windows takes for a device, with any ending.
_DEVICES = re.compile(r"(?:con|prn|aux|nul|com\d|lpt\d)(?:\..*)?", re.I)


@lru_cache(maxsize=4096)
def folder_name(name: str) -> str:
    """A folder's name for any text: readable, safe on every system, and another one for another text."""
    plain = re.sub(r"[^A-Za-z0-9._-]", "_", name)[:100].rstrip(".")
    if plain == name and plain[:1] not in ("", ".") and not _DEVICES.fullmatch(plain):
        return plain
    return f"_{plain.lstrip('.')}-{hashlib.sha256(name.encode('utf-8', 'surrogatepass')).hexdigest()[:8]}"


class _Kept(NamedTuple):
    """One page as a scan sees it, without reading it; or what is left of one."""

    used: float
    size: int
    paths: tuple[str, ...]
    """The meta file first; a single one if the page is not whole."""


class DiskCache:
    """Pages in files. Keywords: `collection` and `document` name the folders instead of the host; `max_size` limits
    the files under `root` in bytes; `memory` bounds what is held of pages read lately (0: nothing).

    The limit is looked at now and then, not at each page, for that takes a scan (8 µs a page): for hundreds of
    thousands of pages there is `PackedCache`.
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
        names = [folder_name(name) for name in (collection, document) if name is not None]
        self._named = os.path.join(self.root, *names) if names else None
        # Of each host, with the separator at its end: made once, for it is looked for with each page.
        self._folder_of = lru_cache(maxsize=4096)(self._folder)
        self._clock = clock or SystemClock()
        self._recent: Recent[tuple[int, ...]] = Recent(memory)
        self._lately = Lately()
        self._outage = Outage(self._clock, _log, self.root)
        self._is_told = False
        """Whether it was told that a place cannot be written: of others it is not told again."""

        # Bytes to be written before the next scan. A program may end before it has written so many: drawn by lot, the
        # first scan comes after as many bytes as ever, over all of them.
        self._until_scan = random.random() * max_size / 20

    def _folder(self, domain: str) -> str:
        folder = self._named or os.path.join(self.root, folder_name(domain.replace(":", "_")))
        return folder + os.sep

    def _find(self, url: Url | str) -> tuple[str, str, str] | None:
        """The URL's text, its key, and the path of its files without their endings."""
        found = identify(url)
        if found is None:
            return None
        known, key = found
        return known.text, key, self._folder_of(known.domain) + key[:16]

    def get(self, url: Url | str) -> Page | None:
        """The page kept for a URL, its body checked; None if there is none, or it is damaged."""
        place = self._find(url)
        if place is None:
            return None
        text, key, stem = place
        known = self._recent.find(key)
        try:
            if known is not None and known[0] == pair.stamp_of(stat := os.stat(stem + META)):
                page = known[1]
            else:
                meta, stat = pair.open_meta(stem + META)
                found = self._checked(pair.page_at(stem, meta), text, key, stem)
                if found is None:
                    return None
                page = found
                if time.time_ns() - stat.st_mtime_ns >= SETTLED:  # the next write will show in the stamp
                    self._recent.keep(key, pair.stamp_of(stat), page)
        except FileNotFoundError:
            return None
        except OSError as error:
            _log.debug("A kept page cannot be read.", url=text, error=str(error))
            return None
        epoch = self._clock.now().epoch
        self._lately.note(key, epoch)
        now = epoch // SECOND
        if stat.st_atime + HOUR < now:
            try:
                # The last use, for eviction. Set by hand, for many systems are mounted so as not to note it.
                os.utime(stem + META, ns=(now * 1_000_000_000, stat.st_mtime_ns))
            except OSError:
                pass
        return page

    def _checked(self, page: Page | None, text: str, key: str, stem: str) -> Page | None:
        if page is None:
            _log.warning("A kept page is damaged and was dropped; it will be fetched anew.", url=text, path=stem + BODY)
            pair.remove(stem + META, stem + BODY)
            return None
        if page.entry.url_sha256 != key:
            return None  # another URL with the same 16 digits
        return page.under(text)

    def get_meta(self, url: Url | str) -> Entry | None:
        """All but the body of the page kept for a URL; whether the body is good is not looked at."""
        place = self._find(url)
        if place is None:
            return None
        text, key, stem = place
        try:
            entry = pair.decode(pair.open_meta(stem + META)[0])
        except OSError:
            return None
        return None if entry is None or entry.url_sha256 != key else msgspec.structs.replace(entry, url=text)

    def get_content(self, url: Url | str) -> bytes | None:
        """The checked body of the page kept for a URL."""
        page = self.get(url)
        return None if page is None else page.body

    def put(self, entry: Entry, body: bytes) -> bool:
        """Keep a page in place of the one kept for its URL. False if it could not be; then that one is dropped, too."""
        place = self._find(entry.url)
        if place is None or place[1] != entry.url_sha256:
            return False
        written = without_secrets(entry)
        if written is not None and len(body) <= self.max_size // 2:
            meta = pair.encode(msgspec.structs.replace(written, body_sha256=sha256_of(body), body_size=len(body)))
            size = len(meta) + len(body)
            is_kept = len(meta) <= pair.MOST_META and self._write(size, self._put, place[2], body, meta)
        else:
            is_kept = False
        if not is_kept:
            self.drop(entry.url)
            return False
        if self._until_scan < 0:
            self._evict(self.max_size, self.max_size * 9 // 10)
        return True

    def refresh(self, entry: Entry) -> bool:
        """Renew all but the body after a 304. False if that body is not kept (any more)."""
        place = self._find(entry.url)
        written = without_secrets(entry)
        if place is None or written is None:
            return False
        try:
            before = pair.open_meta(place[2] + META)[0]
        except OSError:
            return False
        kept = pair.decode(before)
        wanted = place[1], entry.body_sha256, entry.body_size
        if kept is None or (kept.url_sha256, kept.body_sha256, kept.body_size) != wanted:
            return False
        meta = pair.encode(written)
        return len(meta) <= pair.MOST_META and self._write(len(meta), pair.renew, place[2], before, meta)

    def _write(self, size: int, work: Callable[[Unpack[_Given]], bool], *given: *_Given) -> bool:
        if self._outage.is_on:
            return False
        try:
            is_done = work(*given)
        except OSError as error:
            if error.errno in _OF_ONE_PLACE and os.path.isdir(home := self._named or self.root) and may_write(home):
                self._tell(error)
            else:
                self._outage.begin(error)
            return False
        self._outage.end()
        self._until_scan -= size
        return is_done

    def _put(self, stem: str, body: bytes, meta: bytes) -> bool:
        """Write the two files, in a folder that is made if it is missing."""
        for _ in range(TRIES):
            try:
                return pair.put(stem, body, meta)
            except FileNotFoundError:  # another process may remove the folder again while it is empty
                self._make(os.path.dirname(stem))
        return pair.put(stem, body, meta)

    def _make(self, folder: str) -> None:
        """Make a folder under the root, and the root, for nobody but their owner: `makedirs()` sees to the last one."""
        os.makedirs(self.root, 0o700, exist_ok=True)
        made = self.root
        for name in os.path.relpath(folder, self.root).split(os.sep):
            made = os.path.join(made, name)
            with contextlib.suppress(FileExistsError):
                os.mkdir(made, 0o700)

    def _tell(self, error: OSError) -> None:
        """Tell of a page that cannot be kept where it belongs, the first time so that it is seen."""
        if self._is_told:
            _log.debug("A page cannot be kept.", error=str(error))
            return
        self._is_told = True
        _log.warning(
            f"A page cannot be kept in the cache {self.root}: {error}. It will be fetched anew each time; pages whose "
            "files are elsewhere are kept. See whose that place is and what lies there, or remove it."
        )

    def drop(self, url: Url | str) -> None:
        """Forget the page kept for a URL, if there is one."""
        place = self._find(url)
        if place is not None:
            self._recent.forget(place[1])
            pair.remove(place[2] + META, place[2] + BODY)

    def find(self, url: Url | str) -> Page | None:
        """The page kept for a URL under any collection and document, the newest of several. Takes a scan."""
        found = identify(url)
        if found is None:
            return None
        pages: list[Page] = []
        for kept in self._scan():
            stem = kept.paths[0].removesuffix(META)
            if len(kept.paths) == 2 and stem.endswith(found[1][:16]):
                with contextlib.suppress(OSError):
                    page = pair.page_at(stem, pair.open_meta(kept.paths[0])[0])
                    if (page := self._checked(page, found[0].text, found[1], stem)) is not None:
                        pages.append(page)
        return max(pages, key=lambda page: page.entry.fetched_at, default=None)

    def entries(self) -> Iterator[Entry]:
        """Everything kept, in no order; secrets in the URLs are masked."""
        for kept in self._scan():
            if len(kept.paths) == 2 and (entry := pair.entry_at(kept.paths[0])) is not None:
                yield entry

    def verify(self) -> Checked:
        """Look at every page, and drop those that are damaged."""
        good = damaged = 0
        for kept in self._scan():
            if len(kept.paths) != 2:
                continue
            stem = kept.paths[0].removesuffix(META)
            try:
                page = pair.page_at(stem, pair.open_meta(kept.paths[0])[0])
            except OSError:  # gone meanwhile
                continue
            if page is not None and stem.endswith(page.entry.url_sha256[:16]):
                good += 1
            else:
                damaged += 1
                _log.warning("A kept page is damaged and was dropped; it will be fetched anew.", path=stem + BODY)
                pair.remove(*kept.paths)
        return Checked(good, damaged)

    def gc(self, max_size: int | None = None) -> int:
        """Drop the least recently used pages until at most `max_size` bytes (default: the cache's limit) are taken.

        When others used a page is known by the hour. Also removes what writers that were killed left behind.
        Returns the bytes given back.
        """
        limit = self.max_size if max_size is None else max_size
        return self._evict(limit, limit)

    def clear(self, is_meant: Callable[[Entry], bool]) -> None:
        """Forget the pages of whose entries `is_meant` says so; secrets in their URLs are masked."""
        whole = [kept for kept in self._scan() if len(kept.paths) == 2]
        entries = [(kept, pair.entry_at(kept.paths[0])) for kept in whole]
        self._remove([kept for kept, entry in entries if entry is not None and is_meant(entry)])

    def _evict(self, limit: int, target: int) -> int:
        """If more than `limit` bytes are taken, go down to `target`."""
        abandoned = self._clock.now().epoch // SECOND - HOUR
        pages: list[_Kept] = []
        gone: list[_Kept] = []
        for kept in self._scan():
            if len(kept.paths) == 2:
                pages.append(kept)
            elif kept.used < abandoned:
                gone.append(kept)
        total = sum(kept.size for kept in pages)
        if total > limit:
            for kept in sorted(pages):
                if total <= target:
                    break
                gone.append(kept)
                total -= kept.size
        # A quarter of the room left, for others may be writing too.
        self._until_scan = max(self.max_size / 20, (self.max_size - total) / 4)
        self._remove(gone)
        return sum(kept.size for kept in gone)

    def _remove(self, gone: list[_Kept]) -> None:
        for kept in gone:
            pair.remove(*kept.paths)
        for folder in {os.path.dirname(kept.paths[0]) for kept in gone}:
            try:
                os.rmdir(folder)  # if it is empty
            except OSError:
                pass

    def _scan(self) -> Iterator[_Kept]:
        """What lies under the root, without reading it. Files that are not ours are not seen."""
        for folder, _, names in os.walk(self.root):
            ours = {name for name in names if _OURS.fullmatch(name)}
            for name in ours:
                path = f"{folder}{os.sep}{name}"
                try:
                    if name.endswith(META) and name.removesuffix(META) + BODY in ours:
                        body = path.removesuffix(META) + BODY
                        stat = os.stat(path)
                        if stat.st_size > 0:
                            used = max(stat.st_atime, self._lately.at(name[:16]) / SECOND)
                            yield _Kept(used, stat.st_size + os.stat(body).st_size, (path, body))
                        else:  # somebody is about to write it, or was
                            yield _Kept(stat.st_mtime, 0, (path,))
                    elif not name.endswith(BODY) or name.removesuffix(BODY) + META not in ours:
                        stat = os.stat(path)
                        yield _Kept(stat.st_mtime, stat.st_size, (path,))
                except OSError:  # gone meanwhile
                    continue

    @property
    def size(self) -> int:
        """Bytes taken by what is kept. Takes a scan."""
        return sum(kept.size for kept in self._scan())

    def close(self) -> None:
        """Do nothing: no file is held open."""
