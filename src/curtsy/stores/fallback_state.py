"""Refuge: what is remembered of a store in case it fails, what is counted meanwhile, and how that goes home.

The state behind both shelters. It asks the store nothing itself: `come_back()` says what to ask.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable, Generator, Iterable
from functools import partial
from typing import Any

from curtsy.core.bounded import Bounded
from curtsy.core.errors import CurtsyError, StoreError
from curtsy.core.host import Host, fresh, in_time
from curtsy.core.message import SECOND, Instant, Now
from curtsy.core.record import Record
from curtsy.core.rules import TEXTS
from curtsy.stores import Answer, Loss, Step
from curtsy.stores.loss import Sight, Watch, Watched
from curtsy.stores.memory import MemoryStore
from curtsy.stores.outage_spending import Entry, OutageSpending
from curtsy.system.clock import BootClock

REMEMBERED = 4096
"""Keys whose last record is remembered for an outage, with TEXTS bytes of robots.txt in them."""

PROBE = "\0probe"
"""A key that nobody else has, which is written to see whether a store takes it."""

SHARED = ("host:", "global")
"""Keys whose records go into the ledger: those that limits are counted in."""

AT_ONCE = 128
"""Records that are put back together."""

SILENCE = 60.0
"""Seconds between two warnings that records were lost."""

FIRST_PROBE, LAST_PROBE = 1.0, 30.0
"""Seconds between two looks whether the store is back: doubled from the one to the other."""

Work = Generator[Callable[[Any], Any], Any, None]
"""Yields what to ask the store, is sent its answers and thrown its errors: to be driven blocking or async."""

logger = logging.getLogger("curtsy")

# Held for no longer than a step takes, and only in an outage. A fork must find it free (see stores/memory.py).
_lock = threading.Lock()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release)


class Gone(Exception):
    """The key has gone home meanwhile: ask the store."""


class FallbackState:
    """What both shelters share: what is remembered, what is counted in memory, and whether the store is out.

    With a ledger, hosts are counted together with the other processes of this user, also with those that have ended.
    """

    def __init__(
        self,
        name: str,
        share: Callable[[], float] | None,
        monotonic: Callable[[], float],
        ledger: OutageSpending | None = None,
    ) -> None:
        self._name = name
        self._ledger = ledger
        self._synced: dict[str, Record | None] = {}  # what the ledger had when we last wrote or read it
        self._share = share
        self._monotonic = monotonic
        self._seen: Bounded[str, Sight] = Bounded(
            REMEMBERED, TEXTS, lambda sight: 0 if sight[0] is None else sight[0].weight
        )
        self._latest: Sight | None = None
        self._line: Sight | None = None  # whose clock the outage goes on with; None if the store was never there
        self._boot_clock = BootClock()
        self._memory = MemoryStore(self)
        self.bases: dict[str, Record | None] = {}
        """The keys that memory answers for, and what the store had under each when the outage began."""
        self.lost: dict[str, Sight] = {}
        """What the store has lost, and is to be put there again."""
        self._last_loss: object = None
        self._damaged: set[object] = set()
        self._told_at = -SILENCE
        self.is_out = False
        self.outages = 0
        self.users = 0
        """Shelters that share it; 0 also for one that is a single shelter's own."""
        self._is_closed = False
        self._began_at: float | None = None
        self._back_at = -LAST_PROBE
        self._interval = FIRST_PROBE
        self._probe_at = 0.0
        self._prober = 0  # the process that looks after the store just now: a fork leaves its thread behind
        self._is_looking: Callable[[], bool] = bool
        for key in [] if ledger is None else ledger.keys():  # left by processes that ended in an outage
            self.bases[key] = self._synced[key] = None
            self._taken_over(key)

    # While the store works.

    def note(self, done: Watched) -> None:
        """Remember what the store has after a step."""
        key, record = done.key, done.record
        self._remember(key, record, done.now)
        self._given_back(done)
        if self.is_out:
            self._note_late(key, record)

    def _remember(self, key: str, record: Record | None, now: Now) -> None:
        before = self._seen.get(key)
        sight = record, now, self._monotonic()
        if before is not None and before[1].at > now.at:
            sight = before  # another thread was quicker to say what it did later
        self._latest = sight
        self._seen.put(key, sight)

    def _given_back(self, done: Watched) -> None:
        if done.recalled is not None and self.lost.get(done.key) is done.recalled:  # and not lost once more meanwhile
            self.lost.pop(done.key, None)

    def note_all(self, steps: Iterable[Watched]) -> None:
        """Remember what the store has after these."""
        for step in steps:
            if step.raised is None:
                self.note(step)

    def lose(self, loss: Loss) -> None:
        """Take note that the store has lost its records: those that we remember are to go back. Once for each loss."""
        with _lock:
            if loss.key is not None:
                if loss.name not in self._damaged and (sight := self._seen.get(loss.key)) is not None:
                    self.lost[loss.key] = sight
                self._damaged.add(loss.name)
                return
            if loss.name == self._last_loss:
                return
            found = {key: sight for key, sight in self._seen.items() if sight[0] is not None}
            self.lost.update(found)
            self._last_loss = loss.name
        if loss.why and self._monotonic() >= self._told_at + SILENCE:
            self._told_at = self._monotonic()
            logger.warning(
                "the store %s has lost its records: %s. What this process remembers of them (%d) is put there again.",
                self._name,
                loss.why,
                len(found),
            )

    def failed(self, error: StoreError, since: int) -> None:
        """Begin an outage, unless one has begun since the call that failed: `since` is what `outages` was then."""
        if self._is_closed:
            raise error
        if since == self.outages:
            self._begin(error)

    def _begin(self, error: CurtsyError) -> None:
        if self.is_out:
            return
        for key, (record, _, _) in self._seen.items():
            with _lock:
                if key not in self.bases:
                    self._put(key, record)
        with _lock:
            if self.is_out:
                return
            self.is_out = True
            self.outages += 1
            passed = self._monotonic()
            is_new = self._began_at is None
            if is_new:
                self._began_at, self._line = passed, self._latest
            # A store that comes and goes is not tried every second for ever.
            self._interval = FIRST_PROBE if passed - self._back_at > LAST_PROBE else self._interval
            self._probe_at = passed + self._interval
        if is_new:
            logger.warning("%s Going on in memory: until the store is back, limits hold for this process alone.", error)

    # While it does not.

    def holds(self, key: str) -> bool:
        """Whether memory answers for `key`."""
        return self.is_out or key in self.bases

    def is_new(self, key: str) -> bool:
        """Whether nothing is known yet of a key that memory answers for."""
        return self.is_out and key not in self.bases

    def adopt(self, key: str, record: Record | None) -> None:
        """Go on from what a store that cannot be written has under a key that is new."""
        with _lock:
            if self.is_new(key):
                self._put(key, record)

    def update(self, key: str, step: Step[Answer]) -> Answer:
        """Change a record in memory."""

        def ours(record: Any, _: Now) -> tuple[Record | None, Answer]:
            changed, answer = step(record, self._present(key))
            self.bases.setdefault(key, None)
            return changed, answer

        with _lock:
            if not self.holds(key):
                raise Gone
            if self._ledger is None or not key.startswith(SHARED):
                return self._memory.update(key, ours)
            with contextlib.ExitStack() as stack:
                entry = None
                with contextlib.suppress(OSError):  # then this process counts by itself
                    entry = stack.enter_context(self._ledger.entry(key))
                    self._enter(key, entry)
                answer = self._memory.update(key, ours)
                if entry is not None:
                    self._write(key, entry)
            return answer

    def _enter(self, key: str, entry: Entry) -> None:
        """Take in what others have counted, and keep what we have counted while we could not use the entry."""
        if entry.exists:
            ours = _joined(entry.ours, self._memory.read(key), self._synced.get(key, self.bases.get(key)))
            self._put(key, ours)
            self.bases[key], self._synced[key] = entry.base, entry.ours
        elif key in self._synced:  # another process has brought it home as we last saw it
            self.bases[key] = self._synced.pop(key)

    def _taken_over(self, key: str) -> None:
        if self._ledger is not None and key in self._synced:
            with contextlib.suppress(OSError), self._ledger.entry(key) as entry:
                self._enter(key, entry)
                if entry.exists:
                    self._write(key, entry)

    def _write(self, key: str, entry: Entry) -> None:
        record = self._memory.read(key)
        with contextlib.suppress(OSError):  # then it is ours alone, until the next one can be written
            entry.write(self.bases[key], record)
            self._synced[key] = record

    def read(self, key: str) -> Any:
        """The record in memory, which answers for the key from then on: it may be this one that cannot be read."""
        with _lock:
            if self.is_out:
                self.bases.setdefault(key, None)
            return self._memory.read(key)

    def keys(self, prefix: str) -> list[str]:
        """The keys in memory."""
        return self._memory.keys(prefix)

    def now(self) -> Now:
        """The store's present, as far as it can be told without it."""
        return self._continued(self._latest)

    def share(self) -> float:
        """This process's share of a limit that all processes have together: 1 unless the store is out."""
        return self._share() if self.is_out and self._share else 1.0

    def _note_late(self, key: str, record: Record | None) -> None:
        """Count what a call brought that was under way when the outage began."""
        with _lock:
            if self.is_out and key in self.bases and self._is_as_it_was(key):
                self._put(key, record)

    def _put(self, key: str, record: Record | None) -> None:
        self.bases[key] = record
        self._memory.update(key, lambda _, now: (record, None))

    def _present(self, key: str) -> Now:
        return self._continued(self._seen.get(key) or self._line)

    def _continued(self, line: Sight | None) -> Now:
        if line is None:  # the store never told us the time
            return self._boot_clock.now()
        _, now, then = line
        passed = int((self._monotonic() - then) * SECOND)
        return Now(Instant(now.at + passed), now.epoch + passed, now.boot)

    # And back.

    def is_due(self, is_looking: Callable[[], bool]) -> bool:
        """Whether it is time to look after the store: True for one caller, who then must drive `come_back()`.

        `is_looking` says later whether he still can: the loop of a task may be closed under it.
        """
        is_well = not (self.is_out or self.bases)
        return (is_well or self._monotonic() >= self._probe_at) and self.claim(is_looking)

    def claim(self, is_looking: Callable[[], bool]) -> bool:
        """The same, due or not."""
        with _lock:
            is_taken = self._prober == os.getpid() and self._is_looking()
            if is_taken or not (self.is_out or self.bases or self.lost):
                return False
            self._prober, self._is_looking = os.getpid(), is_looking
            return True

    def come_back(self, watch: Watch) -> Work:
        """See whether the store is back, and if so, bring everything home; and give back what it has lost."""
        stuck: set[str] = set()
        moved = 0
        was_well = not (self.is_out or self.bases)
        try:
            if not was_well:
                yield from _probe()
                with _lock:
                    self.is_out = False  # what was not touched goes straight to the store from here on
            while keys := sorted(self.bases.keys() - stuck, key=self._is_as_it_was):
                for key in keys:
                    if self.is_out:
                        return  # others have found it out again
                    try:
                        while not (yield from self._move(key, watch)):
                            pass
                        moved += 1
                    except StoreError:
                        yield from _probe()  # if that works, it is this record that cannot be used
                        stuck.add(key)
            if not self.is_out:
                self._returned(moved)
            yield from self._give_back(watch)
        except CurtsyError as error:
            self._begin(error)
        finally:
            if not was_well:
                self._interval = min(2 * self._interval, LAST_PROBE)
                self._probe_at = self._monotonic() + self._interval
            self._prober = 0

    def _give_back(self, watch: Watch) -> Work:
        """Put what the store has lost there again: whoever else uses it may know less."""
        while not self.is_out and (batch := [Watched(watch, key, _keep) for key in list(self.lost)[:AT_ONCE]]):
            sights = {step.key: self.lost.get(step.key) for step in batch}
            try:
                yield partial(_update_all, batch)
            except StoreError:
                yield from _probe()  # if that works, it may be one of these records that cannot be used
                for step in batch:
                    try:
                        yield partial(_update, step)
                    except StoreError:
                        yield from _probe()
                        step.recalled = None
            for step in batch:
                sight = sights[step.key]
                if step.recalled is sight is not None and self._seen.get(step.key) is sight:
                    self.note(step)  # else somebody has changed it since
                if self.lost.get(step.key) is sight:
                    self.lost.pop(step.key, None)

    def left(self) -> FallbackState:
        """One user less: what he has instead forgets everything, and lets the store say that it is closed.

        What is counted here and could not be brought home is kept for whoever opens the store next.
        """
        fallback_state = self
        with _lock:
            if self.users:
                self.users -= 1
                if not (self.users or self.is_out or self.bases):
                    _refuges.pop(self._name, None)
                fallback_state = FallbackState(self._name, None, self._monotonic)
            fallback_state._is_closed = True
            fallback_state.is_out = False
            fallback_state.bases.clear()
        return fallback_state

    def _move(self, key: str, watch: Watch) -> Generator[Callable[[Any], Any], Any, bool]:
        """Bring one record home; False if it changed again meanwhile."""
        with _lock:
            self._taken_over(key)
            ours, base = self._memory.read(key), self.bases[key]
        then = self._present(key)
        step = Watched(watch, key, lambda record, now: (_joined(record, _in_time(ours, now, then), base), None))
        try:
            yield partial(_update, step)
            self._remember(key, step.record, step.now)
            self._given_back(step)
        except StoreError:
            raise
        except Exception:
            logger.exception("the record under %r cannot be joined with the store's, which is kept", key)
        with _lock:
            is_shared = self._ledger is not None and key in self._synced
            if self._memory.read(key) != ours or (is_shared and self._ledger and not self._ledger.moved(key, ours)):
                self.bases[key] = ours  # the store has this much of it
                return False
            self._synced.pop(key, None)
            del self.bases[key]
            self._memory.forget(key)
            return True

    def _is_as_it_was(self, key: str) -> bool:
        return bool(self._memory.read(key) == self.bases.get(key))

    def _returned(self, moved: int) -> None:
        began_at, self._began_at = self._began_at, None
        if began_at is None:
            return  # only records that cannot be used were tried again
        self._back_at = self._monotonic()
        logger.info(
            "the store %s is back after %.1f s, and has what was counted meanwhile: %d records looked at",
            self._name,
            self._back_at - began_at,
            moved,
        )


_refuges: dict[str, FallbackState] = {}
"""Those of the stores that this process has open, and of those that were out when it last closed them."""


def fallback_state_of(name: str, share: Callable[[], float], ledger: OutageSpending | None = None) -> FallbackState:
    """The one refuge of this process for a store: what its clients count in an outage, they count together (B8)."""
    with _lock:
        fallback_state = _refuges.get(name)
        if fallback_state is None:
            fallback_state = _refuges[name] = FallbackState(name, share, time.monotonic, ledger)
        fallback_state.users += 1
        fallback_state._share = share
        return fallback_state


def _update(step: Watched, store: Any) -> Any:
    return store.update(step.key, step)


def _update_all(steps: list[Watched], store: Any) -> Any:
    return store.update_many([(step.key, step) for step in steps])


def _keep(record: Any, now: Now) -> tuple[Record | None, None]:
    return record, None


def _probe() -> Work:
    """See whether the store takes writes: one that is full, or locked by somebody, can often be read all the same."""
    yield lambda store: store.update(PROBE, lambda record, now: (fresh(now), None))
    yield lambda store: store.forget(PROBE)


def _joined(record: Record | None, ours: Record | None, base: Record | None) -> Record | None:
    """What the store has and what we have, as one. What it has lost was given back to it before."""
    if ours is None:
        return None if record == base else record
    if record is None:
        return None if ours == base else ours
    return record if ours == base else record.joined(ours, base)


def _in_time(ours: Record | None, now: Now, then: Now) -> Record | None:
    """Ours on the store's clock, if it began before that told us the time; `then` is the same moment on our own.

    So no clock of ours is compared with the store's: only what has passed since counts.
    """
    if isinstance(ours, Host) and ours.boot != now.boot:
        return in_time(ours, Now(now.at, then.epoch, now.boot))
    return ours
