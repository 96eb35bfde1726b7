"""Marks that distinguish a Redis server that lost its data from a user that deleted keys.

The mark of a server is a random name, with a count of each process's looks at it. If the name has changed, the server
was flushed. If the server's count is lower than the process's own, the server went back to an older state. The script
then sets a new name, so that later looks of all processes detect the loss.

Each look also compares the server's clock with the client machine's boot-time clock, which never jumps (C19). The
server stores the last comparison of each machine, so that it outlives processes.

The server also stores which formats of host records its processes can read, and when one of each last looked. While a
process of an earlier version is in use, all others write the format that it can read.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Iterable
from typing import Any, NamedTuple

from curtsy.core.budget import ALIKE
from curtsy.core.host import Host
from curtsy.core.time import SECOND
from curtsy.stores.protocol import Loss
from curtsy.system.clock import Clock

LASTS = 2 * 86_400
"""Seconds for which a server keeps the count of a process's looks."""

CLOCK_LASTS = 400 * 86_400
"""Seconds for which a server remembers a machine's clock: longer than a likely leap of the server's own clock."""

FORMAT_LASTS = 86_400
"""Seconds after its last look for which a process of an earlier version is taken to be in use."""

MOST_LEAPS = 16
"""Maximum number of stored leaps of a server's clock, per client machine."""

SCRIPT = f"""
local known, looks, fresh, ticks, clock, format = unpack(ARGV)
looks = tonumber(looks)
local name, seen = redis.call('GET', KEYS[1]), tonumber(redis.call('GET', KEYS[2]) or 0)
if not name or (name == known and seen < looks) then
  name = fresh
  redis.call('SET', KEYS[1], name)
end
redis.call('SET', KEYS[2], math.max(seen, looks) + 1, 'EX', {LASTS})
local time = tonumber(clock)
if not time then
  local parts = redis.call('TIME')
  time = parts[1] * 1000000 + parts[2]
end
ticks = tonumber(ticks)
local leaps = {{}}
local is_read, last = pcall(cmsgpack.unpack, redis.call('GET', KEYS[3]) or '')
if is_read and type(last) == 'table' and last[2] <= ticks then
  local leap = (time - last[1]) - (ticks - last[2])
  if leap >= -{ALIKE * SECOND} then  -- else the times of earlier leaps come again, and mean nothing any more
    leaps = last[3]
  end
  if leap > {ALIKE * SECOND} then
    leaps[#leaps + 1] = {{time - leap, leap}}
    if #leaps > {MOST_LEAPS} then
      table.remove(leaps, 1)
    end
  end
end
redis.call('SET', KEYS[3], cmsgpack.pack({{time, ticks, leaps}}), 'EX', {CLOCK_LASTS})
local formats, second, lasts = KEYS[4], math.floor(time / {SECOND}), {FORMAT_LASTS}
redis.call('ZADD', formats, second, format)
redis.call('ZREMRANGEBYSCORE', formats, '-inf', second - lasts)
redis.call('ZREMRANGEBYSCORE', formats, second + lasts, '+inf') -- the clock was set back since
for _, each in ipairs(redis.call('ZRANGE', formats, 0, -1)) do
  format = math.min(format, each)
end
return {{name, math.max(seen, looks) + 1, leaps, format}}
"""

EVERY = 1_000_000_000
"""Nanoseconds between two looks, unless there is a doubt. In between, a host new to this process reveals no loss."""


class Look(NamedTuple):
    """Request for the mark of a server."""

    server: str
    number: int
    words: tuple[Any, ...]
    """Keys and arguments of the script."""


class _Known(NamedTuple):
    name: bytes
    looks: int
    number: int
    """Number of the look that returned this."""

    at: int
    """Local time of the reply, in microseconds."""


class Generation:
    """Marks of all servers of a store, as this process last saw them. Thread-safe."""

    def __init__(self, clock: Clock, is_fake: bool) -> None:
        self.losses: list[Loss] = []
        """Losses detected so far."""
        self.host_format = Host.current
        """Format of host records that this process can read."""
        self._clock = clock  # runs while the machine sleeps, as the server's does
        self._is_fake = is_fake
        self._token = os.urandom(8).hex().encode()
        self._numbers = itertools.count(1)
        self._known: dict[bytes, _Known] = {}  # by the mark's key
        self._looked_at: dict[str, int] = {}  # by server
        self._leaps: dict[str, list[tuple[int, int]]] = {}  # by server
        self._formats: dict[str, int] = {}  # by server

    def doubt(self, server: str) -> None:
        """Require a look at the mark before the next update: a record is not as expected."""
        self._looked_at.pop(server, None)

    def doubt_all(self) -> None:
        """Require a look at all marks, because a request has failed."""
        self._looked_at.clear()

    def doubted(self, servers: Iterable[str]) -> set[str]:
        """Return the servers whose marks must be looked at now."""
        late = time.monotonic_ns() - EVERY
        looked_at = self._looked_at
        return {server for server in servers if looked_at.get(server, late) <= late}

    def ask(self, server: str, key: bytes) -> Look:
        """Return a look at the mark of a server, which is stored under `key`."""
        name, looks, _, at = self._known.get(key) or _Known(b"", 0, 0, 0)
        now = self._clock.now()
        if now.at - at > LASTS * SECOND // 2:  # the server's count may expire soon
            looks = 0
        keys = key, key + b":" + self._token, key + b":boot:%d" % now.boot, key + b":formats"
        clock = now.epoch if self._is_fake else ""
        words = name, looks, os.urandom(8).hex(), now.at, clock, self.host_format
        return Look(server, next(self._numbers), (*keys, *words))

    def readable(self, server: str) -> int:
        """Return the format of host records that all processes of a server can read."""
        return self._formats.get(server, self.host_format)

    def leap_since(self, server: str, written_at: int) -> int:
        """Return the microseconds by which the server's clock was set ahead since it showed `written_at`.

        Between two looks the clock may drift by another ALIKE seconds. An excess is safe: the key's time line only
        stands still.
        """
        return sum(leap for before, leap in self._leaps.get(server, ()) if written_at <= before + ALIKE * SECOND)

    def hear(self, look: Look, reply: list[Any]) -> bool:
        """Take the reply to a look; return True if the server has lost its records since the last one."""
        key, (name, looks, leaps, self._formats[look.server]) = look.words[0], reply
        known = self._known.get(key)
        if known is not None and known.number > look.number:
            return False  # the reply to another thread's later look came first
        is_lost = known is not None and known.name != name
        if is_lost:
            self.losses.append(Loss(name, "it was flushed, or has gone back to what it had some time ago"))
        self._known[key] = _Known(name, looks, look.number, self._clock.now().at)
        self._looked_at[look.server] = time.monotonic_ns()
        self._leaps[look.server] = leaps
        return is_lost
