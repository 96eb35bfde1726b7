"""Who waits for which host, in order: one set of lines per process and store."""

from __future__ import annotations

import os
import threading
from collections import deque
from weakref import WeakValueDictionary

from curtsy.alarm import Waiter


class Line:
    """Who waits for one host, in order. The first is the one that asks."""

    __slots__ = ("__weakref__", "out", "waiters")

    def __init__(self) -> None:
        self.waiters: deque[Waiter] = deque()
        self.out = 0
        """Places that this process holds: when one of them is given back, the first of the line is told."""

    def clear(self) -> None:
        """Let nobody be first who cannot ask any more."""
        while self.waiters and self.waiters[0].is_gone:
            self.waiters.popleft()


class Lines:
    """All lines of one process before one store. Safe for threads; the lock is held for moments only."""

    def __init__(self) -> None:
        self.empty()

    def empty(self) -> None:
        """Start from nothing, as a forked child does: those who wait in its parent do not wait in it."""
        self._lock = threading.Lock()
        self._lines: dict[str, Line] = {}
        self.prepaid: deque[float] = deque()
        """Global tokens taken from the store in advance, as the moments at which each lapses."""

    def join(self, key: str, waiter: Waiter) -> int:
        """Stand in line; answers how many are ahead."""
        with self._lock:
            line = self._lines.get(key)
            if line is None:
                line = self._lines[key] = Line()
            line.clear()
            line.waiters.append(waiter)
            return len(line.waiters) - 1

    def leave(self, key: str, waiter: Waiter, *, holding: bool) -> None:
        """Step out of the line; if it was the first, the next one is woken to ask."""
        with self._lock:
            line = self._lines.get(key)
            if line is None or waiter not in line.waiters:
                return  # a forked child clears up what its parent began, and nobody of that stands in its lines
            was_first = line.waiters[0] is waiter
            line.waiters.remove(waiter)
            line.clear()
            line.out += holding
            following = line.waiters[0] if was_first and line.waiters else None
            if not line.waiters and not line.out:
                del self._lines[key]
        if following is not None:
            following.wake()

    def hold(self, key: str) -> None:
        """Note a place that was had without standing in line."""
        with self._lock:
            line = self._lines.get(key)
            if line is None:
                line = self._lines[key] = Line()
            line.out += 1

    def returned(self, key: str) -> None:
        """A place was given back."""
        with self._lock:
            line = self._lines.get(key)
            if line is None:
                return
            line.out = max(0, line.out - 1)
            first = line.waiters[0] if line.waiters else None
            if first is None and not line.out:
                del self._lines[key]
        if first is not None:
            first.wake()

    def nudge(self, key: str) -> None:
        """Something changed: let the first of the line ask again."""
        with self._lock:
            line = self._lines.get(key)
            first = line.waiters[0] if line is not None and line.waiters else None
        if first is not None:
            first.wake()

    def held(self, key: str) -> int:
        """How many places of the host this process holds."""
        line = self._lines.get(key)
        return 0 if line is None else line.out

    def ahead(self, key: str, waiter: Waiter) -> int:
        """How many stand before a waiter now."""
        with self._lock:
            return self._lines[key].waiters.index(waiter)

    def is_queued(self, key: str) -> bool:
        """Whether anybody waits for the host."""
        line = self._lines.get(key)
        return line is not None and bool(line.waiters) and not all(each.is_gone for each in line.waiters)

    def is_first(self, key: str, waiter: Waiter) -> bool:
        """Whether it is this waiter's turn to ask."""
        line = self._lines.get(key)
        return line is not None and bool(line.waiters) and line.waiters[0] is waiter

    @property
    def out(self) -> int:
        """Places that this process holds, over all hosts."""
        with self._lock:
            return sum(line.out for line in self._lines.values())

    @property
    def waiting(self) -> int:
        """Waiters in all lines."""
        with self._lock:
            return sum(len(line.waiters) for line in self._lines.values())


_all_lines: WeakValueDictionary[str, Lines] = WeakValueDictionary()
_all_lines_lock = threading.Lock()


def lines_of(identity: str) -> Lines:
    """The one set of lines of this process before a store."""
    with _all_lines_lock:
        lines = _all_lines.get(identity)
        if lines is None:
            lines = _all_lines[identity] = Lines()
        return lines


def _after_fork() -> None:
    global _all_lines_lock
    _all_lines_lock = threading.Lock()
    for lines in list(_all_lines.values()):
        lines.empty()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
