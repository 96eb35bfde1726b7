"""Pages that wait to be written to a packed cache in one transaction: a tenth of the time of single writes."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable
from typing import NamedTuple

from curtsy.cache.keys import MIB
from curtsy.core.cache import Entry
from curtsy.system.shutdown import at_exit

MOST = 64
"""Number of waiting pages at which the caller writes them all."""

MOST_BYTES = MIB
"""Bytes of waiting bodies at which the caller writes them all."""


class Waiting(NamedTuple):
    """Page that waits to be written."""

    entry: Entry
    """Entry to write: secrets masked, with the hash of the body."""

    body: bytes
    is_packed: bool
    """True if the body is compressed."""

    is_renewal: bool
    """True if the body is already stored and only the entry is to be written. `body` is then empty."""


class WriteBuffer:
    """Waiting pages by URL key. Bounded; safe for threads.

    The caller that adds a page passes the callback that writes all waiting pages and reports them by `done()`. The
    callback runs when the buffer is full, in a thread at most `delay` seconds after a page was added, and at exit. A
    forked child starts with an empty buffer, because its parent writes the pages.
    """

    @classmethod
    def at(cls, place: str, delay: float) -> WriteBuffer:
        """Return the buffer of a path, shared by all caches of this process with the same path and delay."""
        return _all.setdefault((place, delay), cls(delay))

    def __init__(self, delay: float) -> None:
        self.delay = delay
        self.reset()

    def reset(self) -> None:
        """Reset the buffer in a forked child: no pages and no thread."""
        self._lock = threading.Lock()
        self._pages: dict[str, Waiting] = {}
        self._bytes = 0
        self._timer: threading.Timer | None = None
        self._write: Callable[[], None] | None = None

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
            write()

    def replace(self, key: str, before: Waiting | None, page: Waiting, write: Callable[[], None]) -> bool:
        """Add a page in place of `before`. Return False if another page waits under `key` by now."""
        with self._lock:
            if self._pages.get(key) is not before:
                return False
            is_full = self._add(key, page, write)
        if is_full:
            write()
        return True

    def _add(self, key: str, page: Waiting, write: Callable[[], None]) -> bool:
        """Add a page; return whether the buffer must be written now."""
        self._write = write
        self._remove(key)
        self._pages[key] = page
        self._bytes += len(page.body)
        if len(self._pages) >= MOST or self._bytes >= MOST_BYTES:
            return True
        if self._timer is None:
            timer = threading.Timer(self.delay, self._due)
            timer.name, timer.daemon = "curtsy-cache", True
            try:
                timer.start()
            except RuntimeError:  # the interpreter is shutting down, or the thread limit is reached
                return True
            self._timer = timer
        return False

    def _due(self) -> None:
        with self._lock:
            self._timer = None  # a page that is added from now on starts another
        self.flush()

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
            if not self._pages:
                self._write = None  # it may be the last reference to an unused cache

    def flush(self) -> None:
        """Write all waiting pages."""
        write = self._write
        if self._pages and write is not None:
            write()

    def leave(self) -> None:
        """End the thread if no page waits."""
        with self._lock:
            if not self._pages and self._timer is not None:
                self._timer.cancel()
                self._timer = None

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
