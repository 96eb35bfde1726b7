"""BodySlot: slot at a host that a response keeps while another library reads its body. Hop: result of a request."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import NamedTuple
from weakref import ref

from curtsy.core.amendment import Renew
from curtsy.core.fetch_state import Refusal
from curtsy.core.request import Reply, Request
from curtsy.core.result import FetchResult
from curtsy.engine.gate import Gate, Ticket

Send = Callable[[Request], Awaitable[Reply]]
"""Function by which a library sends an admitted request.

A reply that is not whole has a body that is read later.
"""


class BodySlot:
    """Slot at a host that a response keeps while its body is being read.

    `close()` or the deletion of this object returns the slot. Otherwise its lease expires. Construct it in the event
    loop of the request.
    """

    __slots__ = ("__weakref__", "_gate", "_loop", "_seen", "_tickets", "_timer", "progress")

    def __init__(self, gate: Gate, ticket: Ticket) -> None:
        self._gate = gate
        self._tickets = [ticket]
        """The ticket; empty after `close()`. Threads may close a slot at the same time, and `pop()` is atomic."""
        self.progress: Callable[[], object] | None = None
        """Function that returns another value after each part of the body; the lease is renewed while it does."""
        self._seen: object = None
        self._loop = asyncio.get_running_loop()
        self._timer = self._armed(ticket)

    def close(self) -> None:
        """Return the slot. Idempotent; any thread may call it, also the garbage collector in any function."""
        try:
            ticket = self._tickets.pop()
        except IndexError:
            return
        try:
            is_here = asyncio.get_running_loop() is self._loop
        except RuntimeError:
            is_here = False
        # Never at once: the garbage collector may interrupt a function that holds the lock of the store.
        schedule = self._loop.call_soon if is_here else self._loop.call_soon_threadsafe
        with contextlib.suppress(RuntimeError):  # the loop is closed
            schedule(_release, self._gate, ticket, self._timer)

    def __del__(self) -> None:
        self.close()

    def renew(self) -> None:
        """Renew the lease if the body has progressed since the last call."""
        seen = None if self.progress is None else self.progress()
        if self._tickets and seen != self._seen:
            ticket, self._seen = self._tickets[0], seen
            self._gate.driver.start(self._gate.amendment(ticket.key, ticket.policy, Renew(ticket.lease)))
            self._timer = self._armed(ticket)

    def _armed(self, ticket: Ticket) -> asyncio.TimerHandle:
        return self._loop.call_later(ticket.lease.lasts / 3, _renew, ref(self))


def _renew(slot: ref[BodySlot]) -> None:
    if (found := slot()) is not None:
        found.renew()


def _release(gate: Gate, ticket: Ticket, timer: asyncio.TimerHandle) -> None:
    timer.cancel()
    gate.driver.start(gate.releasing(ticket))


class Hop(NamedTuple):
    """Result of one hop."""

    end: Reply | Refusal
    """Reply that the library's function returned, a cached response, or the reason why nothing was sent."""

    result: FetchResult
    slot: BodySlot | None
    """Slot that the body keeps; None if nothing is left to read, or if the host has no limit of concurrency."""
