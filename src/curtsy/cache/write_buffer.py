"""Pages that wait to be written to a packed cache in one transaction: a tenth of the time of single writes."""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Callable
from typing import NamedTuple

from curtsy.cache.keys import MIB
from curtsy.core.cache import Entry
from curtsy.system.shutdown import at_exit

MOST = 32
"""Number of waiting pages at which they are written without further delay."""

MOST_BYTES = MIB
"""Bytes of waiting bodies at which the pages are written without further delay."""

LIMIT = 2
"""Multiple of `MOST` and `MOST_BYTES` at which the caller writes the pages, even if the disk is slow."""

SLOW = 0.02
"""Seconds of a write by the caller after which the thread writes for a while, because the disk is slow."""

REST = 1.0
"""Seconds for which the thread writes after that."""


class Waiting(NamedTuple):
    """Page that waits to be written."""

    entry: Entry
    """Entry to write, with secrets masked. Its `body_sha256` is empty until the body is compressed and hashed."""

    body: bytes
    is_packed: bool
    """True if the body is compressed."""

    is_renewal: bool
    """True if the body is already stored and only the entry is to be written. `body` is then empty."""


class WriteBuffer:
    """Waiting pages by URL key. Bounded; safe for threads.

    The caller that adds a page passes the callback that writes all waiting pages and reports them by `done()`. A caller
    that fills the buffer runs it: a thread would take turns with an event loop at each call into SQLite, and a crawl
    would wait for these turns half of its time. A thread runs it if the disk is slow, at most `delay` seconds after a
    page was added, and at exit. The thread ends when no page waits. A forked child starts with an empty buffer, because
    its parent writes the pages.
    """

    @classmethod
    def at(cls, place: str, delay: float) -> WriteBuffer:
        """Return the buffer of a path, shared by all caches of this process with the same path and delay."""
        return _all.setdefault((place, delay), cls(delay))

    def __init__(self, delay: float, rest: float = REST) -> None:
        """Create a buffer. `rest` is how many seconds the thread writes after the disk was slow."""
        self.delay = delay
        self._rest = rest
        self.reset()

    def reset(self) -> None:
        """Reset the buffer in a forked child: no pages and no thread."""
        self._lock = threading.Lock()
        self._pages: dict[str, Waiting] = {}
        self._bytes = 0
        self._thread: threading.Thread | None = None
        self._is_due = threading.Event()
        self._write: Callable[[], None] | None = None
        self._batches = 0
        """Number of times that pages were written."""
        self._slow_until = 0.0
        self._is_writing = False
        """True while the thread writes: a caller would wait for it."""

    def get(self, key: str) -> Waiting | None:
        """Return the page that waits under `key`, or None."""
        return self._pages.get(key)

    def add(self, key: str, page: Waiting, write: Callable[[], None]) -> None:
        """Add a page, replacing the same variant under `key`. A different variant is written first."""
        before = self._pages.get(key)
        if before is not None and before.entry.variant != page.entry.variant:
            write()
        with self._lock:
            is_full = self._add(key, page, write)
        if is_full:
            self._write_here(write)

    def replace(self, key: str, before: Waiting | None, page: Waiting, write: Callable[[], None]) -> bool:
        """Add a page in place of `before`. Return False if another page waits under `key` by now."""
        with self._lock:
            if self._pages.get(key) is not before:
                return False
            is_full = self._add(key, page, write)
        if is_full:
            self._write_here(write)
        return True

    def _add(self, key: str, page: Waiting, write: Callable[[], None]) -> bool:
        """Add a page; return whether the caller must write the buffer."""
        self._remove(key)
        self._pages[key] = page
        self._bytes += len(page.body)
        fill = max(len(self._pages) / MOST, self._bytes / MOST_BYTES)
        is_thread_busy = self._is_writing or time.monotonic() < self._slow_until
        is_full = fill >= (LIMIT if is_thread_busy else 1)
        return not self._start(write, is_due=fill >= 1 and not is_full) or is_full

    def _write_here(self, write: Callable[[], None]) -> None:
        began = time.monotonic()
        write()
        if (ended := time.monotonic()) - began > SLOW:
            self._slow_until = ended + self._rest

    @property
    def is_in_thread(self) -> bool:
        """Return whether the thread that writes the pages is the current one."""
        return threading.current_thread() is self._thread

    def wake(self, write: Callable[[], None]) -> None:
        """Let the thread call `write` now, though the buffer is not full."""
        with self._lock:
            self._start(write, is_due=True)

    def _start(self, write: Callable[[], None], *, is_due: bool) -> bool:
        """Start the thread if there is none. Return False if that is impossible."""
        self._write = write
        if is_due:
            self._is_due.set()
        if self._thread is None:
            thread = threading.Thread(target=self._run, name="curtsy-cache", daemon=True)
            try:
                thread.start()
            except RuntimeError:  # the interpreter is shutting down, or the thread limit is reached
                return False
            self._thread = thread
        return True

    def _run(self) -> None:
        while True:
            batches = self._batches
            if not self._is_due.wait(self.delay / 2) and self._batches > batches:
                continue  # all pages that wait are younger than half of the delay
            self._is_due.clear()
            before = self.waiting()
            self._is_writing = True
            self.flush()
            self._is_writing = False
            with self._lock:
                are_left = any(self._pages.get(key) is page for key, page in before.items())
                # Not at once when the buffer is empty: starting a thread waits for a core.
                if not (self._pages or before) or are_left:  # left by a cache that is closed
                    self._thread = None
                    return

    def forget(self, key: str, variant: str | None = None) -> None:
        """Discard the page under `key` if it is this variant, or if `variant` is None."""
        with self._lock:
            page = self._pages.get(key)
            if page is not None and variant in (None, page.entry.variant):
                self._remove(key)

    def waiting(self) -> dict[str, Waiting]:
        """Return a copy of all waiting pages. They stay readable until `done()`."""
        with self._lock:
            return dict(self._pages)

    def done(self, pages: dict[str, Waiting]) -> None:
        """Remove these pages, except those that were replaced meanwhile."""
        with self._lock:
            for key, page in pages.items():
                if self._pages.get(key) is page:
                    self._remove(key)
            self._batches += 1
            if not self._pages:
                self._write = None  # it may be the last reference to an unused cache

    def flush(self) -> None:
        """Write all waiting pages."""
        write = self._write
        if write is not None:
            write()

    def leave(self) -> None:
        """End the thread if no page waits."""
        with self._lock:
            if not self._pages:
                self._is_due.set()

    def _remove(self, key: str) -> None:
        if (page := self._pages.pop(key, None)) is not None:
            self._bytes -= len(page.body)


_all: weakref.WeakValueDictionary[tuple[str, float], WriteBuffer] = weakref.WeakValueDictionary()


def _flush_all() -> None:
    for each in list(_all.values()):
        each.flush()


at_exit(_flush_all)


def _reset_all() -> None:
    for each in list(_all.values()):
        each.reset()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_all)
