"""What tests of the gate ask of it, and the stores that they put before it."""

from __future__ import annotations

import asyncio
from typing import Any

from curtsy.core.outcome import Kind, Outcome
from curtsy.core.policy import UNLIMITED
from curtsy.engine.gate import Gate, Ticket
from curtsy.engine.gate_steps import Request
from curtsy.stores import AsyncStore, Step, WrappedStore
from curtsy.stores.memory import MemoryStore
from tests.support.leap import LeapAlarm

HOST = "host:example.org"
ONE_A_SECOND = UNLIMITED.replace(qps=1.0)
ONE_AT_A_TIME = UNLIMITED.replace(concurrency=1)
ANSWERED = Outcome(Kind.ANSWERED, 200)


class Slow(WrappedStore):
    """A store that stops at one question until it is let go on: before it does what it is asked, or once it has."""

    def __init__(self, inner: AsyncStore) -> None:
        super().__init__(inner)
        self.asked = 0
        self.stop_at: tuple[int, str] = (0, "")
        self.stopped, self.go_on = asyncio.Event(), asyncio.Event()

    async def update(self, key: str, step: Step[Any]) -> Any:
        self.asked += 1
        number = self.asked
        await self._stop(number, "before")
        answer = await super().update(key, step)
        await self._stop(number, "after")
        return answer

    async def _stop(self, number: int, when: str) -> None:
        if self.stop_at == (number, when):
            self.stopped.set()
            await self.go_on.wait()


class Elsewhere(WrappedStore):
    """The same records as another process would use them: with lines of its own."""

    def __init__(self, store: MemoryStore, process: int) -> None:
        super().__init__(store.inner)
        self._process = process

    is_immediate = True

    def update_now(self, key: str, step: Step[Any]) -> Any:
        return self.inner.update_now(key, step)

    @property
    def identity(self) -> str:
        return f"{super().identity} in process {self._process}"


async def queued(gate: Gate, waiters: int) -> None:
    """Wait until so many stand in line and sleep there, before time has a chance to leap."""
    assert isinstance(gate.timers, LeapAlarm)
    for _ in range(12):
        if gate.queues.waiting == waiters and gate.timers.asleep:
            return
        await asyncio.sleep(0)
    raise AssertionError(gate.queues.waiting)


async def departures(gate: Gate, request: Request, times: int) -> list[float]:
    """Enter so often, all at once; the seconds waited by each, in the order in which they came."""

    async def enter() -> float:
        ticket = await gate.enter(request)
        assert isinstance(ticket, Ticket)
        return round(ticket.waited, 6)

    return await asyncio.gather(*(enter() for _ in range(times)))


async def ticket_of(gate: Gate, request: Request) -> Ticket:
    ticket = await gate.enter(request)
    assert isinstance(ticket, Ticket)
    return ticket
