"""State of the fallback stores: remembered records, counts of an outage, and their merge into the store.

It sends no requests itself: `come_back()` yields the calls to make.
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
"""Maximum number of keys whose last record is remembered, with TEXTS bytes of robots.txt in total."""

PROBE = "\0probe"
"""Reserved key, written to test whether a store accepts writes."""

SHARED = ("host:", "global")
"""Prefixes of the keys whose records count limits; these records go into the ledger."""

AT_ONCE = 128
"""Maximum number of lost records that are restored in one batch."""

SILENCE = 60.0
"""Minimum seconds between two warnings about lost records."""

FIRST_PROBE, LAST_PROBE = 1.0, 30.0
"""Shortest and longest seconds between two probes of the store; each interval doubles the last."""

Work = Generator[Callable[[Any], Any], Any, None]
"""Generator that yields calls on the store and receives answers or errors; blocking and async callers drive it."""

logger = logging.getLogger("curtsy")

# Updates hold it only in an outage, each during one step. A fork takes it first (see stores/memory.py).
_lock = threading.Lock()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release)


class Gone(Exception):
    """Signal that the key is back in the store, which the caller must use."""


class FallbackState:
    """State of a fallback store: remembered records, records counted in memory, and the outage.

    With a ledger, all processes of this user count hosts together, including ended ones.
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
        self._synced: dict[str, Record | None] = {}  # the ledger's records as last written or read
        self._share = share
        self._monotonic = monotonic
        self._seen: Bounded[str, Sight] = Bounded(
            REMEMBERED, TEXTS, lambda sight: 0 if sight[0] is None else sight[0].weight
        )
        self._latest: Sight | None = None
        self._line: Sight | None = None  # start of the outage's clock; None if the store never worked
        self._boot_clock = BootClock()
        self._memory = MemoryStore(self)
        self.bases: dict[str, Record | None] = {}
        """Keys that memory answers for, with the store's records at the start of the outage."""
        self.lost: dict[str, Sight] = {}
        """Records that the store has lost, to be restored."""
        self._last_loss: object = None
        self._damaged: set[object] = set()
        self._told_at = -SILENCE
        self.is_out = False
        self.outages = 0
        self.users = 0
        """Number of fallback stores that share this state; 0 if it belongs to a single one."""
        self._is_closed = False
        self._began_at: float | None = None
        self._back_at = -LAST_PROBE
        self._interval = FIRST_PROBE
        self._probe_at = 0.0
        self._prober = 0  # process that probes the store now: a fork does not copy its thread
        self._is_looking: Callable[[], bool] = bool
        for key in [] if ledger is None else ledger.keys():  # left by processes that ended in an outage
            self.bases[key] = self._synced[key] = None
            self._taken_over(key)

    # Normal operation.

    def note(self, done: Watched) -> None:
        """Remember the store's record after a step."""
        key, record = done.key, done.record
        self._remember(key, record, done.now)
        self._given_back(done)
        if self.is_out:
            self._note_late(key, record)

    def _remember(self, key: str, record: Record | None, now: Now) -> None:
        before = self._seen.get(key)
        sight = record, now, self._monotonic()
        if before is not None and before[1].at > now.at:
            sight = before  # another thread has noted a later step already
        self._latest = sight
        self._seen.put(key, sight)

    def _given_back(self, done: Watched) -> None:
        if done.recalled is not None and self.lost.get(done.key) is done.recalled:  # and not lost again since
            self.lost.pop(done.key, None)

    def note_all(self, steps: Iterable[Watched]) -> None:
        """Remember the store's records after these steps; skip steps that raised."""
        for step in steps:
            if step.raised is None:
                self.note(step)

    def lose(self, loss: Loss) -> None:
        """Add the remembered records of a loss to `lost`, once per loss."""
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
        """Begin an outage, unless one has begun since the failed call; raise `error` after `left()`.

        `since` is the value of `outages` when that call began.
        """
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
            # A store that fails again within LAST_PROBE seconds keeps its longer interval.
            self._interval = FIRST_PROBE if passed - self._back_at > LAST_PROBE else self._interval
            self._probe_at = passed + self._interval
        if is_new:
            logger.warning("%s Going on in memory: until the store is back, limits hold for this process alone.", error)

    # Outage.

    def holds(self, key: str) -> bool:
        """Return whether memory answers for `key`."""
        return self.is_out or key in self.bases

    def is_new(self, key: str) -> bool:
        """Return whether memory answers for `key` but does not know its record yet."""
        return self.is_out and key not in self.bases

    def adopt(self, key: str, record: Record | None) -> None:
        """Start a new key from the record of a store that cannot be written."""
        with _lock:
            if self.is_new(key):
                self._put(key, record)

    def update(self, key: str, step: Step[Answer]) -> Answer:
        """Change a record in memory. Raises Gone if the key is back in the store."""

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
                with contextlib.suppress(OSError):  # then this process counts alone
                    entry = stack.enter_context(self._ledger.entry(key))
                    self._enter(key, entry)
                answer = self._memory.update(key, ours)
                if entry is not None:
                    self._write(key, entry)
            return answer

    def _enter(self, key: str, entry: Entry) -> None:
        """Take in the counts of other processes, and keep those made here while the entry was unavailable."""
        if entry.exists:
            ours = _joined(entry.ours, self._memory.read(key), self._synced.get(key, self.bases.get(key)))
            self._put(key, ours)
            self.bases[key], self._synced[key] = entry.base, entry.ours
        elif key in self._synced:  # another process has written the record last seen here to the store
            self.bases[key] = self._synced.pop(key)

    def _taken_over(self, key: str) -> None:
        if self._ledger is not None and key in self._synced:
            with contextlib.suppress(OSError), self._ledger.entry(key) as entry:
                self._enter(key, entry)
                if entry.exists:
                    self._write(key, entry)

    def _write(self, key: str, entry: Entry) -> None:
        record = self._memory.read(key)
        with contextlib.suppress(OSError):  # then the counts are local until the next write succeeds
            entry.write(self.bases[key], record)
            self._synced[key] = record

    def read(self, key: str) -> Any:
        """Return the record in memory, or None.

        In an outage, memory answers for the key from then on, because its record may be the unreadable one.
        """
        with _lock:
            if self.is_out:
                self.bases.setdefault(key, None)
            return self._memory.read(key)

    def keys(self, prefix: str) -> list[str]:
        """Return the keys in memory that begin with `prefix`."""
        return self._memory.keys(prefix)

    def now(self) -> Now:
        """Return an estimate of the store's current time."""
        return self._continued(self._latest)

    def share(self) -> float:
        """Return this process's share of a limit common to all processes: 1 unless the store is out."""
        return self._share() if self.is_out and self._share else 1.0

    def _note_late(self, key: str, record: Record | None) -> None:
        """Take in the result of a call that was under way when the outage began."""
        with _lock:
            if self.is_out and key in self.bases and self._is_as_it_was(key):
                self._put(key, record)

    def _put(self, key: str, record: Record | None) -> None:
        self.bases[key] = record
        self._memory.update(key, lambda _, now: (record, None))

    def _present(self, key: str) -> Now:
        return self._continued(self._seen.get(key) or self._line)

    def _continued(self, line: Sight | None) -> Now:
        if line is None:  # the store's time is unknown
            return self._boot_clock.now()
        _, now, then = line
        passed = int((self._monotonic() - then) * SECOND)
        return Now(Instant(now.at + passed), now.epoch + passed, now.boot)

    # Return to the store.

    def is_due(self, is_looking: Callable[[], bool]) -> bool:
        """Return whether the caller must drive `come_back()` now; True for one caller at a time.

        `is_looking` returns later whether that caller is still able to: the event loop of a task may be closed.
        """
        is_well = not (self.is_out or self.bases)
        return (is_well or self._monotonic() >= self._probe_at) and self.claim(is_looking)

    def claim(self, is_looking: Callable[[], bool]) -> bool:
        """Return whether the caller must drive `come_back()`, due or not; see `is_due`."""
        with _lock:
            is_taken = self._prober == os.getpid() and self._is_looking()
            if is_taken or not (self.is_out or self.bases or self.lost):
                return False
            self._prober, self._is_looking = os.getpid(), is_looking
            return True

    def come_back(self, watch: Watch) -> Work:
        """Probe the store; if it works, write the records in memory to it, and restore those it has lost."""
        stuck: set[str] = set()
        moved = 0
        was_well = not (self.is_out or self.bases)
        try:
            if not was_well:
                yield from _probe()
                with _lock:
                    self.is_out = False  # keys that are not in `bases` use the store from here on
            while keys := sorted(self.bases.keys() - stuck, key=self._is_as_it_was):
                for key in keys:
                    if self.is_out:
                        return  # another call has begun a new outage
                    try:
                        while not (yield from self._move(key, watch)):
                            pass
                        moved += 1
                    except StoreError:
                        yield from _probe()  # if that works, only this record is unusable
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
        """Restore the records that the store has lost; other processes may not remember them."""
        while not self.is_out and (batch := [Watched(watch, key, _keep) for key in list(self.lost)[:AT_ONCE]]):
            sights = {step.key: self.lost.get(step.key) for step in batch}
            try:
                yield partial(_update_all, batch)
            except StoreError:
                yield from _probe()  # if that works, one of these records may be unusable
                for step in batch:
                    try:
                        yield partial(_update, step)
                    except StoreError:
                        yield from _probe()
                        step.recalled = None
            for step in batch:
                sight = sights[step.key]
                if step.recalled is sight is not None and self._seen.get(step.key) is sight:
                    self.note(step)  # otherwise it has changed since
                if self.lost.get(step.key) is sight:
                    self.lost.pop(step.key, None)

    def left(self) -> FallbackState:
        """Count one user less, and return an empty state that lets the closed store raise its errors.

        Counts that could not be written to the store stay here until the store is opened again.
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
        """Write one record to the store; return False if it changed meanwhile."""
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
                self.bases[key] = ours  # the store has this version
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
            return  # only unusable records were retried
        self._back_at = self._monotonic()
        logger.info(
            "the store %s is back after %.1f s, and has what was counted meanwhile: %d records looked at",
            self._name,
            self._back_at - began_at,
            moved,
        )


_refuges: dict[str, FallbackState] = {}
"""States by store identity: of open stores, and of stores that were out when last closed."""


def fallback_state_of(name: str, share: Callable[[], float], ledger: OutageSpending | None = None) -> FallbackState:
    """Return the one state of this process for a store, so that its clients count together in an outage (B8)."""
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
    """Test whether the store accepts writes: a full or locked store can often still be read."""
    yield lambda store: store.update(PROBE, lambda record, now: (fresh(now), None))
    yield lambda store: store.forget(PROBE)


def _joined(record: Record | None, ours: Record | None, base: Record | None) -> Record | None:
    """Return the store's record merged with the local one. A lost record is restored before."""
    if ours is None:
        return None if record == base else record
    if record is None:
        return None if ours == base else ours
    return record if ours == base else record.joined(ours, base)


def _in_time(ours: Record | None, now: Now, then: Now) -> Record | None:
    """Return the local record on the store's clock, if it began while that was unknown.

    `then` is the same moment as `now` on the local clock. So the two clocks are not compared: only elapsed time counts.
    """
    if isinstance(ours, Host) and ours.boot != now.boot:
        return in_time(ours, Now(now.at, then.epoch, now.boot))
    return ours
