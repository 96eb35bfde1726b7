"""Who waits for which host, in order: one set of lines per process and store."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict, deque
from collections.abc import Callable
from weakref import WeakValueDictionary

from curtsy.core.fair_share import FairQueue
from curtsy.engine.timers import Waiter
from curtsy.http.registered_domain import group_of, site_of


class WaitQueue:
    """Who waits for one host, in order. The first is the one that asks."""

    __slots__ = ("__weakref__", "is_mixed", "more", "news", "out", "ranks", "waiters")

    def __init__(self) -> None:
        self.waiters: OrderedDict[Waiter, int] = OrderedDict()
        """Each with the tokens that it needs. Whoever gives up is out in no time, wherever it stands."""

        self.ranks: dict[Waiter, float] = {}
        """Of those who stand in front."""

        self.more = 0
        """Tokens that they need beyond one each."""

        self.out = 0
        """Places that this process holds: when one of them is given back, the first of the line is told."""

        self.news = 0
        """How often something has changed for those who wait."""

        self.is_mixed = False
        """Whether somebody waits behind one of another event loop, which may be closed with no word."""

    @property
    def first(self) -> Waiter | None:
        """Whose turn it is to ask."""
        return next(iter(self.waiters), None)

    def add(self, waiter: Waiter, count: int, rank: float | None) -> tuple[int, int]:
        """Add a waiter: at the end, or with a rank in front, behind lower ranks. Answer as `WaitQueues.ahead`."""
        beside = next(reversed(self.waiters), None) if rank is None else self.first
        if beside is not None and beside.loop is not waiter.loop:
            self.is_mixed = True
        self.waiters[waiter] = count
        self.more += count - 1
        if rank is None:
            return len(self.waiters) - 1, self.more
        before = [each for each, other in self.ranks.items() if other <= rank]
        before.sort(key=self.ranks.__getitem__)
        self.ranks[waiter] = rank
        for each in (waiter, *reversed(before)):
            self.waiters.move_to_end(each, last=False)
        return len(before), count - 1 + sum(self.waiters[each] - 1 for each in before)

    def drop(self, waiter: Waiter) -> None:
        """Have one less."""
        self.ranks.pop(waiter, None)
        self.more -= self.waiters.pop(waiter) - 1

    def ahead(self, waiter: Waiter) -> tuple[int, int]:
        """How many stand before a waiter, and how many tokens they and it need beyond one each."""
        more = 0
        for ahead, (each, count) in enumerate(self.waiters.items()):
            more += count - 1
            if each is waiter:
                return ahead, more
        raise AssertionError("it stands in no line")

    def clear(self) -> bool:
        """Let nobody be first who cannot ask any more; whether anybody was."""
        is_cleared = False
        while (first := self.first) is not None and first.is_gone:
            self.drop(first)
            is_cleared = True
        return is_cleared


class SharedWaitQueue(WaitQueue):
    """Queue for what all hosts share: registered domains take turns (core/fair_share.py), each FIFO.

    The first waiter stays first until it leaves.
    """

    __slots__ = ("_called", "_numbers", "_turns", "_unused", "_waiting")

    def __init__(self, turns: Callable[[], FairQueue]) -> None:
        super().__init__()
        self._turns = turns
        self._called: Waiter | None = None
        self._numbers: dict[Waiter, int] = {}
        """Of all but the first, by which the turns know them."""
        self._waiting: dict[int, Waiter] = {}
        self._unused: list[int] = []

    @property
    def first(self) -> Waiter | None:
        """Whose turn it is to ask."""
        return self._called

    def queue(self, waiter: Waiter, group: str) -> tuple[int, int]:
        """Have one more, of a host of this name; answers as `WaitQueues.ahead`."""
        _, more = super().add(waiter, 1, None)
        if self._called is None:
            self._called = waiter
            return 0, more
        turns = self._turns()
        number = self._unused.pop() if self._unused else len(self._numbers) + 1
        self._numbers[waiter], self._waiting[number] = number, waiter
        turns.assign(number, group_of(site_of(group)))
        turns.add(number)
        return self.ahead(waiter)

    def drop(self, waiter: Waiter) -> None:
        """Have one less."""
        super().drop(waiter)
        number = self._numbers.pop(waiter, 0)
        if number:
            self._turns().remove(number)
        elif number := self._turns().next() if self._numbers else 0:
            self._called = self._waiting[number]
            del self._numbers[self._called]
        else:
            self._called = None
        if number:
            del self._waiting[number]
            self._unused.append(number)

    def ahead(self, waiter: Waiter) -> tuple[int, int]:
        """How many go before a waiter at the least, and that nobody needs more than one token."""
        number = self._numbers.get(waiter)
        return (0 if number is None else 1 + self._turns().ahead(number)), 0


class WaitQueues:
    """All lines of one process before one store. Safe for threads; the lock is held for moments only."""

    def __init__(self) -> None:
        self.empty()

    def empty(self) -> None:
        """Start from nothing, as a forked child does: those who wait in its parent do not wait in it."""
        self._lock = threading.Lock()
        self._lines: dict[str, WaitQueue] = {}
        self._turns: FairQueue | None = None
        self.prepaid: deque[float] = deque()
        """Global tokens taken from the store in advance, as the moments at which each lapses."""

    def join(self, key: str, waiter: Waiter, count: int = 1, *, rank: float | None = None) -> tuple[int, int]:
        """Stand in line for so many tokens; answers the same as `ahead`.

        With a rank it goes in front: what the others wait for as well, and who had its turn and could not use it.
        """
        with self._lock:
            line = self._lines.get(key)
            if line is None:
                line = self._lines[key] = WaitQueue()
            following = line.first if line.clear() else None
            found = line.add(waiter, count, rank)
        if following is not None:
            following.wake()
        return found

    def join_shared(self, key: str, waiter: Waiter, host: str) -> tuple[int, int]:
        """Stand in a line that all hosts share, for one token; answers the same as `ahead`."""
        with self._lock:
            line = self._lines.get(key)
            if line is None:
                line = self._lines[key] = SharedWaitQueue(self._shared_turns)
            assert isinstance(line, SharedWaitQueue)
            following = line.first if line.clear() else None
            found = line.queue(waiter, host)
        if following is not None:
            following.wake()
        return found

    def _shared_turns(self) -> FairQueue:
        """The turns of the one line that all hosts share; made when a second one waits there."""
        if self._turns is None:
            self._turns = FairQueue()
        return self._turns

    def leave(self, key: str, waiter: Waiter, *, holding: bool) -> None:
        """Step out of the line; if it was the first, the next one is woken to ask."""
        # Of one whose loop was closed, it is the garbage collector that says so, perhaps while this very thread has the
        # lock. Then others put it out.
        if not self._lock.acquire(blocking=not waiter.is_gone):
            return
        try:
            line = self._lines.get(key)
            if line is None or waiter not in line.waiters:
                return  # a forked child clears up what its parent began, and nobody of that stands in its lines
            was_first = line.first is waiter
            line.drop(waiter)
            was_first = line.clear() or was_first
            line.out += holding
            following = line.first if was_first else None
            if not line.waiters and not line.out:
                del self._lines[key]
        finally:
            self._lock.release()
        if following is not None:
            following.wake()

    def hold(self, key: str) -> None:
        """Note a place that was had without standing in line."""
        with self._lock:
            line = self._lines.get(key)
            if line is None:
                line = self._lines[key] = WaitQueue()
            line.out += 1

    def returned(self, key: str) -> None:
        """A place was given back."""
        with self._lock:
            line = self._lines.get(key)
            if line is None:
                return
            line.out = max(0, line.out - 1)
            line.news += 1
            line.clear()
            first = line.first
            if first is None and not line.out:
                del self._lines[key]
        if first is not None:
            first.wake()

    def nudge(self, key: str) -> None:
        """Something changed: let the first of the line ask again."""
        with self._lock:
            line = self._lines.get(key)
            if line is None:
                return
            line.news += 1
            line.clear()
            first = line.first
        if first is not None:
            first.wake()

    def tidy(self, key: str) -> bool:
        """Put those out who cannot ask any more; whether more of them may come, and it is to be done again."""
        with self._lock:
            line = self._lines.get(key)
            if line is None or not line.is_mixed:
                return False
            first = line.first if line.clear() else None
        if first is not None:
            first.wake()
        return True

    def news(self, key: str) -> int:
        """A number that is another one when something has changed for those who wait."""
        line = self._lines.get(key)
        return 0 if line is None else line.news

    def held(self, key: str) -> int:
        """How many places of the host this process holds."""
        line = self._lines.get(key)
        return 0 if line is None else line.out

    def ahead(self, key: str, waiter: Waiter) -> tuple[int, int]:
        """How many stand before a waiter now, and how many tokens they and it need beyond one each."""
        with self._lock:
            return self._lines[key].ahead(waiter)

    def is_queued(self, key: str) -> bool:
        """Whether anybody waits for the host."""
        line = self._lines.get(key)
        if line is None or not line.waiters:
            return False
        with self._lock:
            return not all(each.is_gone for each in line.waiters)

    def is_first(self, key: str, waiter: Waiter) -> bool:
        """Whether it is this waiter's turn to ask."""
        line = self._lines.get(key)
        if line is None:
            return False
        with self._lock:
            return line.first is waiter

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


_all_lines: WeakValueDictionary[str, WaitQueues] = WeakValueDictionary()
_all_lines_lock = threading.Lock()


def lines_of(identity: str) -> WaitQueues:
    """The one set of lines of this process before a store."""
    with _all_lines_lock:
        lines = _all_lines.get(identity)
        if lines is None:
            lines = _all_lines[identity] = WaitQueues()
        return lines


def _after_fork() -> None:
    global _all_lines_lock
    _all_lines_lock = threading.Lock()
    for lines in list(_all_lines.values()):
        lines.empty()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
