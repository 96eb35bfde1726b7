"""Queues of waiters by host: one set per process and store."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable
from weakref import WeakValueDictionary

from curtsy.core.fair_share import FairQueue
from curtsy.engine.timers import Waiter
from curtsy.http.registered_domain import group_of, site_of


class WaitQueue:
    """Queue of waiters for one host. Only the first one asks the store."""

    __slots__ = ("__weakref__", "changes", "is_mixed", "more", "ranks", "waiters")

    def __init__(self) -> None:
        self.waiters: OrderedDict[Waiter, int] = OrderedDict()
        """Waiters in order, with the tokens that each needs. Removal takes constant time at any position."""

        self.ranks: dict[Waiter, float] = {}
        """Ranks of the waiters at the front."""

        self.more = 0
        """Tokens that the waiters need beyond one each."""

        self.changes = 0
        """Number of changes that affect the waiters."""

        self.is_mixed = False
        """True if a waiter is behind one of another event loop, which may be closed without notice."""

    @property
    def first(self) -> Waiter | None:
        """Return the waiter whose turn it is; None if the queue is empty."""
        return next(iter(self.waiters), None)

    def add(self, waiter: Waiter, count: int, rank: float | None, host: str | None = None) -> tuple[int, int]:
        """Add a waiter: at the end, or with a rank at the front, behind lower ranks. Return as `WaitQueues.ahead`."""
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
        """Remove a waiter."""
        self.ranks.pop(waiter, None)
        self.more -= self.waiters.pop(waiter) - 1

    def ahead(self, waiter: Waiter) -> tuple[int, int]:
        """Return the number of waiters ahead, and the tokens that they and this one need beyond one each."""
        more = 0
        for ahead, (each, count) in enumerate(self.waiters.items()):
            more += count - 1
            if each is waiter:
                return ahead, more
        raise AssertionError("the waiter is not in this queue")

    def clear(self) -> bool:
        """Remove first waiters whose event loop is closed; return whether there were any."""
        is_cleared = False
        while (first := self.first) is not None and first.is_gone:
            self.drop(first)
            is_cleared = True
        return is_cleared


class SharedWaitQueue(WaitQueue):
    """Queue for a resource of all hosts: registered domains take turns (core/fair_share.py), each FIFO.

    The first waiter stays first until it leaves.
    """

    __slots__ = ("_called", "_numbers", "_turns", "_unused", "_waiting")

    def __init__(self, turns: Callable[[], FairQueue]) -> None:
        super().__init__()
        self._turns = turns
        self._called: Waiter | None = None
        self._numbers: dict[Waiter, int] = {}
        """Numbers of all waiters but the first, as the fair queue knows them."""
        self._waiting: dict[int, Waiter] = {}
        self._unused: list[int] = []

    @property
    def first(self) -> Waiter | None:
        """Return the waiter whose turn it is; None if the queue is empty."""
        return self._called

    def add(self, waiter: Waiter, count: int, rank: float | None, host: str | None = None) -> tuple[int, int]:
        """Add a waiter for one token and a host. Return as `WaitQueues.ahead`."""
        assert host is not None
        _, more = super().add(waiter, count, rank)
        if self._called is None:
            self._called = waiter
            return 0, more
        turns = self._turns()
        number = self._unused.pop() if self._unused else len(self._numbers) + 1
        self._numbers[waiter], self._waiting[number] = number, waiter
        turns.assign(number, group_of(site_of(host)))
        turns.add(number)
        return self.ahead(waiter)

    def drop(self, waiter: Waiter) -> None:
        """Remove a waiter."""
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
        """Return the minimum number of waiters ahead, and 0 because each needs one token."""
        number = self._numbers.get(waiter)
        return (0 if number is None else 1 + self._turns().ahead(number)), 0


class WaitQueues:
    """All queues of one process for one store. Thread-safe; the lock is held only briefly."""

    def __init__(self) -> None:
        self.empty()

    def empty(self) -> None:
        """Start with empty queues. A forked child calls this because its parent's waiters do not exist in it."""
        self._lock = threading.Lock()
        self._queues: dict[str, WaitQueue] = {}
        """Queues with waiters, by key."""
        self._out: dict[str, int] = {}
        """Slots that this process holds, by key. The release of a slot wakes the first waiter."""
        self._turns: FairQueue | None = None
        self._prepaid = 0
        self._prepaid_until = 0.0

    def join(
        self, key: str, waiter: Waiter, count: int = 1, *, rank: float | None = None, host: str | None = None
    ) -> tuple[int, int]:
        """Join a queue for `count` tokens; with a host, a queue of all hosts for one token. Return as `ahead`.

        A rank puts the waiter at the front: for a request that the others also wait for, and for one that had its turn
        but could not use it.
        """
        with self._lock:
            queue = self._queues.get(key)
            if queue is None:
                queue = WaitQueue() if host is None else SharedWaitQueue(self._shared_turns)
                self._queues[key] = queue
            following = queue.first if queue.clear() else None
            found = queue.add(waiter, count, rank, host)
        if following is not None:
            following.wake()
        return found

    def _shared_turns(self) -> FairQueue:
        """Return the fair queue of the shared queue; it is created when a second waiter joins."""
        if self._turns is None:
            self._turns = FairQueue()
        return self._turns

    def leave(self, key: str, waiter: Waiter, *, holding: bool) -> None:
        """Leave a queue; if the waiter was first, wake the next one."""
        # If the waiter's loop is closed, the garbage collector makes this call, perhaps while this thread holds the
        # lock. Other calls then remove the waiter.
        if not self._lock.acquire(blocking=not waiter.is_gone):
            return
        try:
            queue = self._queues.get(key)
            if queue is None or waiter not in queue.waiters:
                return  # a forked child cleans up its parent's work, whose waiters are not in its queues
            was_first = queue.first is waiter
            queue.drop(waiter)
            was_first = queue.clear() or was_first
            if holding:
                self._out[key] = self._out.get(key, 0) + 1
            following = queue.first if was_first else None
            if not queue.waiters:
                del self._queues[key]
        finally:
            self._lock.release()
        if following is not None:
            following.wake()

    def hold(self, key: str) -> None:
        """Count a slot that was taken without queueing."""
        with self._lock:
            self._out[key] = self._out.get(key, 0) + 1

    def returned(self, key: str) -> None:
        """Count the release of a slot and wake the first waiter."""
        with self._lock:
            left = self._out.pop(key, 0) - 1
            if left > 0:
                self._out[key] = left
            if key not in self._queues:
                return
        self.nudge(key)

    def nudge(self, key: str) -> None:
        """Wake the first waiter because something has changed."""
        if key not in self._queues:
            return
        with self._lock:
            queue = self._queues.get(key)
            if queue is None:
                return
            queue.changes += 1
            queue.clear()
            first = queue.first
            if first is None:
                del self._queues[key]
        if first is not None:
            first.wake()

    def tidy(self, key: str) -> bool:
        """Remove first waiters of closed loops; return whether more may follow, so that this must be repeated."""
        with self._lock:
            queue = self._queues.get(key)
            if queue is None or not queue.is_mixed:
                return False
            first = queue.first if queue.clear() else None
        if first is not None:
            first.wake()
        return True

    def changes(self, key: str) -> int:
        """Return a number that changes with every change that affects the waiters."""
        queue = self._queues.get(key)
        return 0 if queue is None else queue.changes

    def prepay(self, tokens: int, until: float) -> None:
        """Keep global tokens that were taken from the store in advance; they expire at `until`."""
        self._prepaid, self._prepaid_until = tokens, until

    def take_prepaid(self, now: float) -> bool:
        """Take one of these tokens; return False if none is left."""
        with self._lock:
            if not self._prepaid or self._prepaid_until <= now:
                return False
            self._prepaid -= 1
            return True

    def return_prepaid(self) -> None:
        """Return one of these tokens that was not used."""
        with self._lock:
            self._prepaid += 1

    def held(self, key: str) -> int:
        """Return how many slots of the host this process holds."""
        return self._out.get(key, 0)

    def ahead(self, key: str, waiter: Waiter) -> tuple[int, int]:
        """Return the number of waiters ahead, and the tokens that they and this one need beyond one each."""
        with self._lock:
            return self._queues[key].ahead(waiter)

    def is_queued(self, key: str) -> bool:
        """Return whether a waiter is queued for the host. Waiters of closed event loops do not count."""
        queue = self._queues.get(key)
        if queue is None or not queue.waiters:
            return False
        with self._lock:
            return not all(each.is_gone for each in queue.waiters)

    def is_first(self, key: str, waiter: Waiter) -> bool:
        """Return whether it is this waiter's turn."""
        queue = self._queues.get(key)
        if queue is None:
            return False
        with self._lock:
            return queue.first is waiter

    @property
    def out(self) -> int:
        """Return the number of slots that this process holds over all hosts."""
        with self._lock:
            return sum(self._out.values())

    @property
    def waiting(self) -> int:
        """Return the number of waiters in all queues."""
        with self._lock:
            return sum(len(queue.waiters) for queue in self._queues.values())


_all_queues: WeakValueDictionary[str, WaitQueues] = WeakValueDictionary()
_all_queues_lock = threading.Lock()


def queues_of(identity: str) -> WaitQueues:
    """Return this process's queues for a store."""
    with _all_queues_lock:
        queues = _all_queues.get(identity)
        if queues is None:
            queues = _all_queues[identity] = WaitQueues()
        return queues


def _after_fork() -> None:
    global _all_queues_lock
    _all_queues_lock = threading.Lock()
    for queues in list(_all_queues.values()):
        queues.empty()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
