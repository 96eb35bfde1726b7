"""Marks: how a Redis server that has lost its records is told from a hand that has removed some of them.

On each server lies a mark: a name drawn by lot, and how often somebody has looked at it. Has it another name than
before, the server was flushed. Was it looked at less often, the server has gone back to what it had some time ago; then
it gets another name, so that all who look later see it, too.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from typing import Any

from curtsy.stores import Loss

SCRIPT = """
local known, looks, fresh = unpack(ARGV)
local name, count = fresh, 0
local found, number = string.match(redis.call('GET', KEYS[1]) or '', '^(%w+):(%d+)$')
if found and (found ~= known or tonumber(number) >= tonumber(looks)) then
  name, count = found, tonumber(number)
end
count = count + 1
redis.call('SET', KEYS[1], string.format('%s:%d', name, count))
return {name, count}
"""

EVERY = 1_000_000_000
"""Nanoseconds for which a look will do, unless there is a doubt: within them, hosts that are new to us tell nothing."""


class Marks:
    """The marks of all servers of a store, as this process last saw them. Safe to share among threads."""

    def __init__(self) -> None:
        self.losses: list[Loss] = []
        """What was found to be lost so far."""
        self._known: dict[bytes, tuple[bytes, int]] = {}  # by the mark's key: its name, and the looks
        self._looked_at: dict[str, int] = {}  # by server

    def doubt(self, server: str) -> None:
        """Have the mark looked at before anything else: a record is not what it should be."""
        self._looked_at.pop(server, None)

    def doubt_all(self) -> None:
        """Have all marks looked at: we have not heard of the servers for a while."""
        self._looked_at.clear()

    def doubted(self, servers: Iterable[str]) -> set[str]:
        """Those of the servers whose marks are to be looked at now."""
        late = time.monotonic_ns() - EVERY
        looked_at = self._looked_at
        return {server for server in servers if looked_at.get(server, late) <= late}

    def ask(self, key: bytes) -> tuple[Any, ...]:
        """The arguments of the script that looks at the mark under `key`."""
        name, looks = self._known.get(key, (b"", 0))
        return key, name, looks, os.urandom(8).hex()

    def hear(self, server: str, key: bytes, reply: list[Any]) -> bool:
        """Take its reply; True if the server has lost its records since the last one."""
        name, looks = reply
        known = self._known.get(key)
        is_lost = known is not None and known[0] != name
        if is_lost:
            self.losses.append(Loss(name, "it was flushed, or has gone back to what it had some time ago"))
        self._known[key] = name, looks if known is None or is_lost else max(looks, known[1])
        self._looked_at[server] = time.monotonic_ns()
        return is_lost
