"""State of the fallback stores: remembered records, counts of an outage, and their merge into the store. No I/O."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable
from typing import Any

import msgspec

from curtsy.core.bounded import Bounded
from curtsy.core.errors import CurtsyError, StoreError
from curtsy.core.host import Host, in_time
from curtsy.core.record import Record
from curtsy.core.rules import TEXTS
from curtsy.core.time import SECOND, Instant, Now
from curtsy.stores.memory import MemoryStore
from curtsy.stores.outage_ledger import UNUSABLE, Entry, OutageLedger
from curtsy.stores.protocol import Answer, Loss, Outages, Step
from curtsy.system.clock import BootClock
from curtsy.system.log import COMMON

REMEMBERED = 4096
"""Maximum number of keys whose last record is remembered, with TEXTS bytes of robots.txt in total."""

SHARED = ("host:", "global")
"""Prefixes of the keys whose records count limits; these records go into the ledger."""

SILENCE = 60.0
"""Minimum seconds between two warnings about lost records."""

FIRST_PROBE, LAST_PROBE = 1.0, 30.0
"""Shortest and longest seconds between two probes of the store; each interval doubles the last."""

_ALONE = "Continuing in memory: until the store is back, limits hold for this process alone."
_WAITING = "No request is sent until the store is back. Set outage to alone to continue with limits of this process."

logger = logging.getLogger("curtsy")

# Updates hold it only in an outage, each during one step. A fork takes it first (see stores/memory.py).
_lock = threading.Lock()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release)


class Gone(Exception):
    """Signal that the key is back in the store, which the caller must use."""


class Sight(msgspec.Struct, frozen=True, gc=False):
    """Record as last seen."""

    record: Record | None
    now: Now
    """Time of the store."""

    at: float
    """Local monotonic time in seconds."""


class WatchedStep:
    """Step that keeps the time and the result of its last run. It restores a lost record before it runs.

    `lost` returns the records to restore, by key.
    """

    __slots__ = ("_lost", "_step", "key", "now", "raised", "record", "restored")

    record: Record | None
    now: Now

    def __init__(self, lost: Callable[[], dict[str, Sight]], key: str, step: Step[Any]) -> None:
        self._lost = lost
        self._step = step
        self.key = key
        self.raised: Exception | None = None
        self.restored: Sight | None = None

    def __call__(self, record: Any, now: Now) -> tuple[Record | None, Any]:
        """Run the step."""
        self.now, self.raised = now, None
        lost = self._lost()
        sight = self.restored = lost.get(self.key) if lost else None
        try:
            if sight is not None:
                record = _restored(record, sight, now)
            self.record, answer = self._step(record, now)
            if sight is not None and self.record is None:
                lost.pop(self.key, None)  # before the next step, which must find it removed
        except Exception as error:
            self.raised = error
            raise
        return self.record, answer


class FallbackState:
    """State of a fallback store: remembered records, records counted in memory, and the outage.

    With a ledger, all processes of this user count hosts together, including ended ones.
    """

    def __init__(
        self,
        name: str,
        share: float | None = None,
        waits: bool = False,
        monotonic: Callable[[], float] = time.monotonic,
        ledger: OutageLedger | None = None,
    ) -> None:
        self._name = name
        self._ledger = ledger
        self._synced: dict[str, Record | None] = {}  # the ledger's records as last written or read
        self._share = share
        self._among = 1
        """Number of processes that divide the common limits if no share is given."""
        self.waits = waits
        """True if no common limit is spent in an outage (C18)."""
        self._monotonic = monotonic
        self._seen: Bounded[str, Sight] = Bounded(
            REMEMBERED, TEXTS, lambda sight: 0 if sight.record is None else sight.record.weight
        )
        self._latest: Sight | None = None  # None if the store never worked
        self._boot_clock = BootClock()
        self.memory = MemoryStore(self)
        """Records of the keys in `bases`."""
        self.bases: dict[str, Record | None] = {}
        """Keys that memory answers for, with the store's records at the start of the outage."""
        self.lost: dict[str, Sight] = {}
        """Records that the store has lost, to be restored."""
        self._losses: set[object] = set()  # names of the last loss of all records, and of single losses since
        self._warned_at = -SILENCE
        self.is_out = False
        self.error: CurtsyError | None = None
        """Error of the last failed call of an outage."""
        self.outages = 0
        self._users = 0  # fallback stores that share this state; 0 if it belongs to a single one
        self._is_closed = False
        self._began_at: float | None = None
        self._past = Outages()
        self._back_at = -LAST_PROBE
        self._interval = FIRST_PROBE
        self._probe_at = 0.0
        # Process and event loop (None for a thread) of the running recovery. A fork does not copy its thread, and a
        # closed loop does not continue its task.
        self._recovering: tuple[int, asyncio.AbstractEventLoop | None] | None = None
        for key in [] if ledger is None else ledger.keys():  # left by processes that ended in an outage
            self.bases[key] = self._synced[key] = None
            self._merge_ledger(key)

    # Normal operation.

    def note(self, *steps: WatchedStep) -> None:
        """Remember the store's records after these steps; skip steps that raised."""
        for step in steps:
            if step.raised is None:
                self.remember(step)
                if self.is_out:
                    self._note_late(step.key, step.record)

    def remember(self, step: WatchedStep) -> None:
        """Remember the store's record after a step, and that it restored a lost record."""
        key, sight = step.key, Sight(step.record, step.now, self._monotonic())
        before = self._seen.get(key)
        if before is not None and before.now.at > step.now.at:
            sight = before  # another thread has noted a later step already
        self._latest = sight
        self._seen.put(key, sight)
        if step.restored is not None and self.lost.get(key) is step.restored:  # and not lost again since
            self.lost.pop(key, None)

    def lose(self, loss: Loss) -> None:
        """Add the remembered records of a loss to `lost`, once per loss."""
        with _lock:
            if loss.name in self._losses:
                return
            if loss.key is None:  # a server can go back to the same snapshot, and so to the same name, several times
                self._losses.clear()
            self._losses.add(loss.name)
            concerned = [(key, sight) for key, sight in self._seen.items() if loss.key in (None, key)]
            found = {key: sight for key, sight in concerned if sight.record is not None}
            self.lost.update(found)
        if loss.why and self._monotonic() >= self._warned_at + SILENCE:
            self._warned_at = self._monotonic()
            logger.warning(
                "the store %s has lost its records: %s. What this process remembers of them (%d) is put there again.",
                self._name,
                loss.why,
                len(found),
            )

    def restored(self, step: WatchedStep, sight: Sight | None) -> None:
        """Note the end of an attempt to restore a lost record, which was `sight`."""
        if step.restored is sight is not None and self._seen.get(step.key) is sight:
            self.note(step)  # otherwise it has changed since
        if self.lost.get(step.key) is sight:
            self.lost.pop(step.key, None)

    def failed(self, error: StoreError, since: int) -> None:
        """Begin an outage, unless one has begun since the failed call; raise `error` after `left()`.

        `since` is the value of `outages` when that call began.
        """
        if self._is_closed:
            raise error
        if since == self.outages:
            self.begin(error)

    def begin(self, error: CurtsyError) -> None:
        """Begin an outage, unless there is one."""
        self.error = error
        if self.is_out:
            return
        for key, sight in self._seen.items():
            with _lock:
                if key not in self.bases:
                    self._put(key, sight.record)
        with _lock:
            if self.is_out:
                return
            self.is_out = True
            self.outages += 1
            passed = self._monotonic()
            is_new = self._began_at is None
            if is_new:
                self._began_at = passed
            # A store that fails again within LAST_PROBE seconds keeps its longer interval.
            self._interval = FIRST_PROBE if passed - self._back_at > LAST_PROBE else self._interval
            self._probe_at = passed + self._interval
        if is_new:
            logger.warning("%s %s", error, _WAITING if self.waits else _ALONE, extra=COMMON)

    # Outage.

    def seen_outages(self) -> Outages:
        """Return the outages so far, with the one that lasts."""
        (times, seconds), began_at = self._past, self._began_at
        return (
            Outages(times, seconds) if began_at is None else Outages(times + 1, seconds + self._monotonic() - began_at)
        )

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
                return self.memory.update(key, ours)
            with contextlib.ExitStack() as stack:
                entry = None
                with contextlib.suppress(*UNUSABLE):  # then this process counts alone
                    entry = stack.enter_context(self._ledger.entry(key))
                    self._enter(key, entry)
                answer = self.memory.update(key, ours)
                if entry is not None:
                    self._write(key, entry)
            return answer

    def _enter(self, key: str, entry: Entry) -> None:
        """Take in the counts of other processes, and keep those made here while the entry was unavailable."""
        if entry.exists:
            ours = _joined(entry.ours, self.memory.read(key), self._synced.get(key, self.bases.get(key)))
            self._put(key, ours)
            self.bases[key], self._synced[key] = entry.base, entry.ours
        elif key in self._synced:  # another process has written the record last seen here to the store
            self.bases[key] = self._synced.pop(key)

    def _merge_ledger(self, key: str) -> None:
        if self._ledger is not None and key in self._synced:
            with contextlib.suppress(*UNUSABLE), self._ledger.entry(key) as entry:
                self._enter(key, entry)
                if entry.exists:
                    self._write(key, entry)

    def _write(self, key: str, entry: Entry) -> None:
        record = self.memory.read(key)
        with contextlib.suppress(*UNUSABLE):  # then the counts are local until the next write succeeds
            entry.write(self.bases[key], record)
            self._synced[key] = record

    def read(self, key: str) -> Any:
        """Return the record in memory, or None.

        In an outage, memory answers for the key from then on, because its record may be the unreadable one.
        """
        with _lock:
            if self.is_out:
                self.bases.setdefault(key, None)
            return self.memory.read(key)

    def now(self) -> Now:
        """Return an estimate of the store's current time."""
        return self._continued(self._latest)

    def _note_late(self, key: str, record: Record | None) -> None:
        """Take in the result of a call that was under way when the outage began."""
        with _lock:
            if self.is_out and key in self.bases and self._is_unchanged(key):
                self._put(key, record)

    def _put(self, key: str, record: Record | None) -> None:
        self.bases[key] = record
        self.memory.update(key, lambda _, now: (record, None))

    def _present(self, key: str) -> Now:
        return self._continued(self._seen.get(key) or self._latest)

    def _continued(self, line: Sight | None) -> Now:
        if line is None:  # the store's time is unknown
            return self._boot_clock.now()
        passed = int((self._monotonic() - line.at) * SECOND)
        return Now(Instant(line.now.at + passed), line.now.epoch + passed, line.now.boot)

    def _is_unchanged(self, key: str) -> bool:
        return bool(self.memory.read(key) == self.bases.get(key))

    # Return to the store.

    def is_due(self, loop: asyncio.AbstractEventLoop | None) -> bool:
        """Return whether the caller must run the recovery now; True for one caller at a time.

        `loop` is the event loop that will run it; None for a thread.
        """
        is_well = not (self.is_out or self.bases)
        return (is_well or self._monotonic() >= self._probe_at) and self.claim(loop)

    def claim(self, loop: asyncio.AbstractEventLoop | None) -> bool:
        """Return whether the caller must run the recovery, due or not; see `is_due`."""
        with _lock:
            if self._recovering is not None:
                process, other = self._recovering
                if process == os.getpid() and (other is None or not other.is_closed()):
                    return False
            if not (self.is_out or self.bases or self.lost):
                return False
            self._recovering = os.getpid(), loop
            return True

    def end(self) -> None:
        """End the outage: keys that are not in `bases` use the store from here on.

        Records that did not change leave `bases` at once, because the store needs nothing of them. With thousands of
        them, one call each would keep all requests waiting for seconds.
        """
        with _lock:
            self.is_out = False
            for key in [key for key in self.bases if key not in self._synced and self._is_unchanged(key)]:
                del self.bases[key]
                self.memory.forget(key)

    def to_move(self, stuck: set[str]) -> list[str]:
        """Return the keys to write to the store, changed ones first, without `stuck` ones."""
        return sorted(self.bases.keys() - stuck, key=self._is_unchanged)

    def merging(self, key: str) -> tuple[Record | None, Step[None]]:
        """Return the record in memory, and the step that merges it into the store's record."""
        with _lock:
            self._merge_ledger(key)
            ours, base = self.memory.read(key), self.bases[key]
        then = self._present(key)
        return ours, lambda record, now: (_joined(record, _in_time(ours, now, then), base), None)

    def moved(self, key: str, ours: Record | None) -> bool:
        """Note that the store has the record `ours`; return False if it has changed since."""
        with _lock:
            is_shared = self._ledger is not None and key in self._synced
            if self.memory.read(key) != ours or (is_shared and self._ledger and not self._ledger.moved(key, ours)):
                self.bases[key] = ours  # the store has this version
                return False
            self._synced.pop(key, None)
            del self.bases[key]
            self.memory.forget(key)
            return True

    def returned(self, moved: int) -> None:
        """Log the end of an outage, unless a new one has begun or only unusable records were retried."""
        if self.is_out or self._began_at is None:
            return
        began_at, self._began_at = self._began_at, None
        self._back_at = self._monotonic()
        self._past = Outages(self._past.times + 1, self._past.seconds + self._back_at - began_at)
        logger.info(
            "the store %s is back after %.1f s, and has what was counted meanwhile: %d records looked at",
            self._name,
            self._back_at - began_at,
            moved,
            extra=COMMON,
        )

    def recovered(self, was_well: bool) -> None:
        """End a recovery, and set the time of the next one."""
        if not was_well:
            self._interval = FIRST_PROBE if self.waits else min(2 * self._interval, LAST_PROBE)
            self._probe_at = self._monotonic() + self._interval
        self._recovering = None

    # Stores that share the state.

    @property
    def share(self) -> float:
        """Return this process's share, in an outage, of a limit common to all processes."""
        return 1.0 / self._among if self._share is None else self._share

    def divide(self, among: int) -> None:
        """Divide common limits among so many processes, unless these count together in a ledger."""
        if self._ledger is None:
            self._among = among

    def joined(self, share: float | None, waits: bool) -> FallbackState:
        """Count one more user, whose settings apply from now on."""
        self._users += 1
        self._share, self.waits = share, waits
        return self

    def left(self) -> FallbackState:
        """Count one user less, and return an empty state that lets the closed store raise its errors.

        Counts that could not be written to the store stay here until the store is opened again.
        """
        closed = FallbackState(self._name)
        closed._is_closed = True
        with _lock:
            if self._users:
                self._users -= 1
                if not (self._users or self.is_out or self.bases):
                    _states.pop(self._name, None)
                    if self._ledger is not None:
                        self._ledger.close()
        return closed


_states: dict[str, FallbackState] = {}
"""States by store identity: of open stores, and of stores that were out when last closed."""


def fallback_state_of(name: str, share: float | None, waits: bool, ledger: OutageLedger | None = None) -> FallbackState:
    """Return the one state of this process for a store, so that its clients count together in an outage (B8)."""
    with _lock:
        state = _states.get(name)
        if state is None:
            state = _states[name] = FallbackState(name, ledger=ledger)
        return state.joined(share, waits)


def _restored(record: Record | None, sight: Sight, now: Now) -> Record | None:
    """Return the store's record, merged with the lost one."""
    lost = sight.record
    if isinstance(record, Host) and isinstance(lost, Host):
        return in_time(record, now).caught_up(in_time(lost, now))
    if record is not None or lost is None:
        return record
    lasts = lost.lasts(sight.now)
    return lost if lasts is None or now.at - sight.now.at < lasts else None


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
