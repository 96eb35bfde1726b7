"""Compare and swap: updates of a Redis server by one short script. This module does no I/O.

Each key has the value `nonce (8 bytes) | last (double) | shift (double) | packed record`. The nonce identifies the
write, and `last` is the time that its step saw. The server's TIME plus `shift` is the key's own time line, which never
runs backwards. If the server's clock is set back, `shift` grows. If the clock is set ahead, or corrected later, `shift`
shrinks by the leap that the client machine has measured (`generation.py`). So the line counts only real time (C19).

An update runs its step on the value last seen, at a lower bound of the server's time, and sends the result. The script
accepts it if the value is unchanged and the bound holds. Otherwise it keeps the record and returns the present value,
and the step runs again on that. So every answer is as if the step ran on the server, and the usual update takes one
round trip. The script also checks an answer that changes nothing (a Wait, a No, an exception), because the cached
value may be outdated.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
from struct import Struct
from typing import Any, NamedTuple

from curtsy.core.bounded import Bounded
from curtsy.core.budget import ALIKE
from curtsy.core.errors import StoreError
from curtsy.core.host import Host
from curtsy.core.record import Record
from curtsy.core.rules import TEXTS
from curtsy.core.time import SECOND, Instant, Now
from curtsy.stores.codec import DamagedRecord, pack, pack_for, unpack
from curtsy.stores.generation import Generation, Look
from curtsy.stores.protocol import Loss, Step
from curtsy.stores.survey import KEPT, HostNotes
from curtsy.system.clock import BootClock, Clock

SCRIPT = """
local LOOK, KEEP, SET, REMOVE = 0, 1, 2, 3
local numbers, expected, nonce, body = unpack(ARGV)
local as_of, leap, now, floor, clock, lag, op, px = struct.unpack('>dddddddd', numbers)
local old = redis.call('GET', KEYS[1])
local found, last, shift, sound = old or '', 0, 0, false
if old and #old >= 24 then
  local nonce, at, by = struct.unpack('>c8dd', old)
  if at >= 0 and at < 2^53 and math.abs(by) < 2^53 then
    found, last, shift, sound = nonce, at, by, true
  end
end
if not old then
  shift = as_of -- who remembers the time line of a key that is gone goes on with it
end
local time = clock
if time < 0 then
  local parts = redis.call('TIME')
  time = parts[1] * 1000000 + parts[2]
end
if leap > 0 and (found ~= expected or shift ~= as_of) then
  return {time, old} -- somebody else may have taken it off already
end
last, shift = math.max(last, floor), shift - leap
local is_back = time + shift < last
if is_back or leap > 0 then
  -- The clock was set. What that makes of the time line is kept at once: else time would stand still, or leap, for
  -- everybody who may not write yet.
  if is_back then
    shift = last - time
  end
  last = time + shift
  if sound then
    old = struct.pack('>c8dd', found, last, shift) .. string.sub(old, 25)
    redis.call('SET', KEYS[1], old, 'KEEPTTL')
  end
end
if op == LOOK then
  return {time, old}
end
if op == SET and found == nonce then
  return time -- this very write was taken before, and only its reply was lost
end
local ahead = now - (time + shift)
if found ~= expected or ahead > 0 or -ahead > lag then
  return {time, old}
end
if op == SET then
  local value = struct.pack('>c8dd', nonce, now, shift) .. body
  if px == 0 then
    redis.call('SET', KEYS[1], value)
  else
    redis.call('SET', KEYS[1], value, 'PX', px)
  end
elseif op == REMOVE then
  redis.call('DEL', KEYS[1])
end
return time
"""
LOOK, KEEP, SET, REMOVE = range(4)
"""Operations of the script: return the present value; or check the value, and keep, write or remove it."""
SHA = hashlib.sha1(SCRIPT.encode(), usedforsecurity=False).hexdigest()

REMEMBERED = 8192
"""Maximum number of cached values, with TEXTS bytes of robots.txt in total. An update of a key that is not cached costs
a second round trip."""

TRUSTED = 10 * SECOND
"""Microseconds for which the local clock continues a reading of the server's clock."""

DRIFT = 10_000
"""Assumed error of the local clock: fast by one part in this many. With TRUSTED, the bound is at most 1 ms low."""

PROMPT = SECOND // 20
"""Maximum microseconds between a step and its script. After a longer delay, in the process or on the network, the step
runs again at a later time. The retry may take half the timeout."""

LEAST_EXPIRY = 1000
"""Minimum expiry of a key in milliseconds; `PX 0` is an error."""

_HEAD = Struct(">8sdd")
_NUMBERS = Struct(">8d")
"""Numbers of a call of the script, in one argument, because redis-py takes a microsecond for each."""

logger = logging.getLogger("curtsy")


class Seen(NamedTuple):
    """Cached value of a key. It may be outdated: the script decides."""

    nonce: bytes = b""
    """Nonce of the last write; empty if the key is absent."""

    last: int = 0
    shift: int = 0
    record: Record | None = None
    floor: int = 0
    """Latest time that a step of this process saw and the server accepted."""

    is_damaged: bool = False
    """True if there is a record that cannot be read."""


def _memory() -> Bounded[str, Seen]:
    """Return an empty cache of values, by key."""
    return Bounded(REMEMBERED, TEXTS, lambda seen: 0 if seen.record is None else seen.record.weight)


class Outcome(NamedTuple):
    """Answer or error of one step."""

    answer: Any = None
    error: Exception | None = None


class Attempt:
    """Steps for one key that go to the server together, in order, and their progress."""

    __slots__ = (
        "_bound", "_nonce", "_now", "_record", "_seen", "_shift", "at", "key", "outcomes", "server", "steps", "tries"
    )  # fmt: skip

    def __init__(self, key: str, steps: list[Step[Any]]) -> None:
        self.key = key
        self.steps = steps
        self.server = ""
        """Cluster server that holds the key; each has its own clock. Empty without a cluster."""
        self.at = 0
        """Server's time at its last reply, in microseconds."""
        self.outcomes: list[Outcome] = []
        self.tries = 0
        """Number of refusals, because another process was faster or the bound did not hold."""
        self._seen = Seen()
        self._shift = 0
        self._bound = 0
        self._now: Now | None = None
        self._record: Record | None = None
        self._nonce = b""

    def fail(self, error: Exception) -> None:
        """End every step with `error`."""
        self.outcomes = [Outcome(error=error)] * len(self.steps)


class CompareAndSwap:
    """Cache of one process: values last seen, and the servers' times. Thread-safe.

    Threads may overwrite each other's cached values. That costs a round trip, never an update.
    """

    def __init__(self, prefix: str, clock: Clock | None, lag: float) -> None:
        self._prefix = prefix.encode("utf-8", "surrogatepass") + b"{"
        self._clock = clock
        self._lag = round(lag * SECOND) if clock is None else 0
        self._seen = _memory()
        self._ticker = clock or BootClock()
        self.marks = Generation(self._ticker, clock is not None)
        self.notes = HostNotes()
        self._times: dict[str, tuple[int, int]] = {}  # per server: its time, and the local time of that reading, in µs

    def name(self, key: str) -> bytes:
        """Return the server's key. Its braces keep one record in one slot of a cluster."""
        return self._prefix + key.encode("utf-8", "surrogatepass") + b"}"

    def key(self, name: bytes) -> str:
        """Return the store's key of a server's key."""
        return name[len(self._prefix) : -1].decode("utf-8", "surrogatepass")

    def pattern(self, prefix: str, part: str = "") -> bytes:
        """Return the SCAN pattern for the keys that begin with `prefix` and have `part` after it."""
        literals = (self._prefix + prefix.encode("utf-8", "surrogatepass"), part.encode("utf-8", "surrogatepass"))
        before, within = (re.sub(rb"([\\*?\[\]])", rb"\\\1", each) for each in literals)
        return before + b"*" + (within + b"*" if within else b"") + b"}"

    def ask(self, attempt: Attempt) -> tuple[Any, ...]:
        """Run the steps on the cached value; return the server's key and the arguments of the script."""
        seen = attempt._seen = self._seen.get(attempt.key) or Seen()
        clock = -1 if self._clock is None else self._clock.now().epoch
        attempt._bound = self._bound(attempt.server)
        name = self.name(attempt.key)
        if not attempt._bound or not attempt.steps:  # only the time is needed, or it is needed first
            attempt._now = None
            return name, _NUMBERS.pack(0, 0, 0, seen.floor, clock, 0, LOOK, 0), b"", b"", b""
        leap = self.marks.leap_since(attempt.server, seen.last - seen.shift) if seen.last else 0
        attempt._shift = seen.shift - leap
        now = attempt._now = Now(Instant(max(attempt._bound + attempt._shift, seen.last, seen.floor)), attempt._bound)
        attempt._record = self._run(attempt, now)
        attempt._nonce, op, px, body = b"", KEEP, 0, b""
        if attempt._record is None:
            op = REMOVE if seen.nonce else KEEP
        elif attempt._record is not seen.record:
            try:
                body, lasts = self._packed(attempt), attempt._record.lasts(now)
            except Exception as error:  # not a record: an error of this caller alone
                attempt.fail(error)
                attempt._record = seen.record
            else:
                op, attempt._nonce = SET, os.urandom(8)
                if self._clock is None:  # the server's expiry does not follow a test clock
                    px = expiry(lasts)
        if attempt._record is not seen.record:  # a refused write only enters its host too early
            self.notes.add(attempt.key, seen.record, attempt._record)
        lag = self._lag if attempt.tries else min(self._lag, PROMPT)
        numbers = _NUMBERS.pack(seen.shift, leap, now.at, seen.floor, clock, lag, op, px)
        return name, numbers, seen.nonce, attempt._nonce, body

    def hear(self, attempt: Attempt, reply: Any) -> bool:
        """Take the script's reply; return True if it accepted the attempt, False if a retry is needed."""
        if isinstance(reply, int) and attempt._now is not None:
            self._learn(attempt, reply)
            at = attempt._now.at
            if attempt._nonce:
                seen = Seen(attempt._nonce, at, attempt._shift, attempt._record, at)
            elif attempt._record is None:
                seen = Seen(last=at, shift=attempt._shift, floor=at)
            else:
                seen = attempt._seen._replace(last=at, shift=attempt._shift, floor=at)
            self._seen.put(attempt.key, seen)
            return True
        at, value = reply
        self._learn(attempt, at)
        self._filters(attempt, self._found(attempt.key, value), at)
        attempt.tries += attempt._now is not None
        return not attempt.steps

    def record(self, key: str, value: bytes | None) -> Record | None:
        """Return the record in a value that was only read.

        The cache stays unchanged, so that the next update detects a loss.
        """
        return self._decoded(key, value).record

    def forget(self, key: str) -> None:
        """Note that this process removed the record under `key`."""
        self._found(key, None)

    def _found(self, key: str, value: bytes | None) -> Record | None:
        known = self._seen.get(key) or Seen()
        try:
            seen = self._decoded(key, value)._replace(floor=known.floor)
        except StoreError:
            self._seen.pop(key)
            raise
        if value is None:
            seen = known._replace(nonce=b"", record=None, is_damaged=False)
        if seen.is_damaged:
            self.marks.losses.append(Loss(object(), key=key))
        self._seen.put(key, seen)
        return seen.record

    def _decoded(self, key: str, value: bytes | None) -> Seen:
        if value is None:
            return Seen()
        head = _head(value)
        if head is None:
            self._damaged(key, "its head cannot be read.")
            return Seen(value, is_damaged=True)
        try:
            return Seen(*head, unpack(value[_HEAD.size :]))
        except DamagedRecord as error:
            self._damaged(key, str(error))
            return Seen(*head, is_damaged=True)

    def _packed(self, attempt: Attempt) -> bytes:
        record = attempt._record
        assert record is not None
        if isinstance(record, Host) and (readers := self.marks.readable(attempt.server)) < record.format:
            return pack_for(readers, record)
        return pack(record)

    def _run(self, attempt: Attempt, now: Now) -> Record | None:
        record = attempt._seen.record
        attempt.outcomes = outcomes = []
        for step in attempt.steps:
            try:
                record, answer = step(record, now)
                outcomes.append(Outcome(answer))
            except Exception as error:
                outcomes.append(Outcome(error=error))
        return record

    def _bound(self, server: str) -> int:
        """Return a lower bound of the server's time in microseconds; 0 if unknown."""
        known = self._times.get(server)
        if known is None:
            return 0
        passed = self._ticker.now().at - known[1]
        if passed > TRUSTED:
            return 0
        return known[0] + passed - (passed // DRIFT if self._clock is None else 0)

    def _learn(self, attempt: Attempt, at: int) -> None:
        """Keep the reading with the highest bound that holds; detect a clock that was set."""
        attempt.at = at
        ticks = self._ticker.now().at
        known = self._times.get(attempt.server)
        if known is not None and abs(at - known[0] - (ticks - known[1])) > ALIKE * SECOND:
            self.marks.doubt(attempt.server)
        if at < attempt._bound or at >= self._bound(attempt.server):
            self._times[attempt.server] = at, ticks

    def _filters(self, attempt: Attempt, found: Record | None, at: int) -> None:
        """Require a look at the mark if the record found cannot result from the cached one."""
        seen = attempt._seen
        if found is None and seen.record is not None:
            lasts = seen.record.lasts(Now(Instant(seen.last), at))
            if lasts is None or at + seen.shift - seen.last < lasts:
                self.marks.doubt(attempt.server)
        elif isinstance(found, Host) and isinstance(seen.record, Host) and found.is_behind(seen.record):
            self.marks.doubt(attempt.server)

    @property
    def indexes(self) -> tuple[bytes, bytes]:
        """Names of the sorted sets of hosts, by the epoch second of their last use: hosts used last, and in trouble."""
        return self._prefix[:-1] + b"hosts{recent}", self._prefix[:-1] + b"hosts{trouble}"

    def list_of(self, key: str) -> bytes:
        """Return the name of the set that lists the keys of a key's kind."""
        return self._prefix[:-1] + b"names{%b}" % key.partition(":")[0].encode()

    def entries(self, *, is_last: bool = False) -> list[tuple[Any, ...]]:
        """Return the commands that write the notes that are due into the sorted sets of hosts."""
        notes = {self.name(key): note for key, note in self.notes.take(is_last=is_last).items()}
        known = {name: note for name, note in notes.items() if note is not None}
        trouble = {name: note for name, note in known.items() if note.is_in_trouble}
        commands: list[tuple[Any, ...]] = []
        for index, entered in zip(self.indexes, (known, trouble), strict=True):
            if entered:
                commands.append(("ZADD", index, *(word for name in entered for word in (entered[name].used_at, name))))
            if left := notes.keys() - entered.keys():
                commands.append(("ZREM", index, *left))
        if commands:
            commands.append(("ZREMRANGEBYRANK", self.indexes[0], 0, -KEPT - 1))
        return commands

    def mark(self, place: int) -> bytes:
        """Return the key of a mark. In a cluster, the number `place` determines its server."""
        return self._prefix[:-1] + b"mark{%d}" % place

    def marked(self, look: Look, reply: list[Any]) -> None:
        """Take the reply to a look at a mark; after a loss, keep only the times in the cache."""
        if self.marks.hear(look, reply):
            floors = _memory()
            for key, seen in self._seen.items():
                floors.put(key, seen._replace(nonce=b"", record=None, is_damaged=False))
            self._seen = floors

    def _damaged(self, key: str, why: str) -> None:
        logger.warning(
            "the record under %r is damaged and counts as none: %s It is replaced at the next write.", key, why
        )


def expiry(lasts: int | None) -> int:
    """Return the expiry in milliseconds of a record that lasts `lasts` microseconds; 0 for never."""
    return 0 if lasts is None else max(LEAST_EXPIRY, -(-lasts // 1000))


def _head(value: bytes) -> tuple[bytes, int, int] | None:
    """Return nonce, last and shift; None if invalid: the script then takes the whole value as the nonce."""
    if len(value) < _HEAD.size:
        return None
    nonce, last, shift = _HEAD.unpack_from(value)
    return (nonce, int(last), int(shift)) if 0 <= last < 2**53 and abs(shift) < 2**53 else None
