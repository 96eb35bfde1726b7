"""Pages that wait to be written together: in one transaction, a page takes a tenth of the time that it takes alone."""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Callable
from typing import NamedTuple

from curtsy.cache.bloom import BloomFilter
from curtsy.cache.keys import MIB
from curtsy.core.cache import Entry
from curtsy.system.shutdown import at_exit

MOST = 64
"""Pages that wait; the next one's caller writes them all."""

MOST_BYTES = MIB
"""Bytes of bodies that wait; likewise."""


class Waiting(NamedTuple):
    """A page that is not written yet."""

    entry: Entry
    """As it is to be written: without secrets, and with the body's hash."""

    body: bytes
    is_packed: bool
    """Whether the body is compressed."""

    is_renewal: bool
    """Whether the body is kept already, and only the rest is to be written: then it is not here."""


class WriteBuffer:
    """The pages that wait, by their keys. Bounded; safe for threads.

    Who adds a page says what writes all that waits, and tells by `done()` what need not wait any more. It is called
    for one page too many, by a thread `delay` seconds after the first was added, and when the program ends. A forked
    child has nothing that waits, for its parent writes it.
    """

    @classmethod
    def at(cls, place: str, delay: float) -> WriteBuffer:
        """What waits to be written to a place: one for all in this process, so that each knows of the others' pages."""
        return _all.setdefault((place, delay), cls(delay))

    def __init__(self, delay: float) -> None:
        self._write: Callable[[], None] | None = None
        self._delay = delay
        self.bloom = BloomFilter()
        """Of the file that they are written to: here, for so every cache that shares it knows what others write."""

        self._pages: dict[str, Waiting] = {}
        self._bytes = 0
        self._since = 0.0
        """When the first of them was added. A program that is busy writes them itself before the thread has to."""

        self._thread: threading.Thread | None = None
        self._hurry = threading.Event()
        self._lock = threading.Lock()

    def get(self, key: str) -> Waiting | None:
        """The page that waits under `key`."""
        return self._pages.get(key)

    def add(self, key: str, page: Waiting, write: Callable[[], None]) -> None:
        """Have a page wait, in place of any that does under `key`; another variant is written first."""
        before = self._pages.get(key)
        if before is not None and before.entry.variant != page.entry.variant:
            write()
        with self._lock:
            is_full = self._add(key, page, write)
        if is_full:
            self.flush()

    def replace(self, key: str, before: Waiting | None, page: Waiting, write: Callable[[], None]) -> bool:
        """Have a page wait in place of `before`; False if something else waits under `key` by now."""
        with self._lock:
            if self._pages.get(key) is not before:
                return False
            is_full = self._add(key, page, write)
        if is_full:
            self.flush()
        return True

    def _add(self, key: str, page: Waiting, write: Callable[[], None]) -> bool:
        """Answers whether all is to be written now."""
        self._write = write
        self._remove(key)
        if not self._pages:
            self._since = time.monotonic()
        self._pages[key] = page
        self._bytes += len(page.body)
        if len(self._pages) >= MOST or self._bytes >= MOST_BYTES:
            return True
        if self._thread is None:
            thread = threading.Thread(target=self._wait, name="curtsy-cache", daemon=True)
            try:
                thread.start()
                self._thread = thread
            except RuntimeError:  # the program ends, or has too many
                return True
        return False

    def forget(self, key: str, variant: str | None = None) -> None:
        """Do not write what waits under `key`, if it is this variant, or None is named."""
        with self._lock:
            page = self._pages.get(key)
            if page is not None and variant in (None, page.entry.variant):
                self._remove(key)

    def waiting(self) -> dict[str, Waiting]:
        """All that waits now. It goes on waiting, so that it can be read until it is written."""
        with self._lock:
            return dict(self._pages)

    def done(self, pages: dict[str, Waiting]) -> None:
        """Forget these, unless something newer waits in their place."""
        with self._lock:
            for key, page in pages.items():
                if self._pages.get(key) is page:
                    self._remove(key)

    def flush(self) -> None:
        """Have all written that waits now."""
        write = self._write
        if self._pages and write is not None:
            write()

    def leave(self) -> None:
        """Let the thread end if nothing waits."""
        self._hurry.set()

    def start_anew(self) -> None:
        """In a forked child: nothing waits, and there is no thread."""
        self._lock, self._hurry = threading.Lock(), threading.Event()
        self._pages, self._bytes, self._thread = {}, 0, None
        self.bloom = BloomFilter()

    def _remove(self, key: str) -> None:
        if (page := self._pages.pop(key, None)) is not None:
            self._bytes -= len(page.body)

    def _wait(self) -> None:
        """The thread: it ends when there was nothing to do, so that none is left of a cache that is not used."""
        left = self._delay
        while True:
            self._hurry.wait(left)
            with self._lock:
                self._hurry.clear()
                if not self._pages:
                    # What writes is let go, too: it may be all that holds a cache that nobody uses any more.
                    self._thread = self._write = None
                    return
                left = self._since + self._delay - time.monotonic()
            if left <= 0:
                self.flush()
                left = self._delay


_all: weakref.WeakValueDictionary[tuple[str, float], WriteBuffer] = weakref.WeakValueDictionary()


def _flush_all() -> None:
    for each in list(_all.values()):
        each.flush()


at_exit(_flush_all)


def _start_anew() -> None:
    for each in list(_all.values()):
        each.start_anew()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_start_anew)
