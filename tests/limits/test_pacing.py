"""What the documents take for granted: one at a time, a pause, a cooldown (P), and what adapts (Q12)."""

from __future__ import annotations

import asyncio
import random

from curtsy.core.errors import FetchError
from curtsy.core.outcome import Kind, Outcome
from curtsy.core.policy import Policy
from curtsy.core.time import SECOND
from curtsy.engine.gate import Gate, Ticket
from curtsy.engine.gate_steps import Request
from curtsy.limits import adapt_delay
from curtsy.stores.memory import AsyncMemoryStore
from curtsy.testing import FakeClock
from tests.support.leap import LeapAlarm

HOST = "host:example.org"
ANSWERED = Outcome(Kind.ANSWERED, 200)


async def visits(
    clock: FakeClock, policy: Policy, times: int, *, takes: float = 0.0, overall: Policy | None = None
) -> tuple[list[float], int]:
    """Visit a host so often, all at once; when each left in fake seconds, and how many were inside at the most."""
    timers = LeapAlarm(clock)
    gate = Gate(AsyncMemoryStore(clock=clock), timers=timers, roll=random.Random(7).random)
    began, inside, most = clock.now().at, 0, 0
    left = []

    async def visit() -> None:
        nonlocal inside, most
        ticket = await gate.enter(Request(HOST, policy, overall))
        assert isinstance(ticket, Ticket)
        left.append((clock.now().at - began) / SECOND)
        inside += 1
        most = max(most, inside)
        await timers.sleep(timers.waiter(), takes)
        inside -= 1
        await gate.settle(ticket, ANSWERED)

    await asyncio.gather(*(visit() for _ in range(times)))
    return left, most


def test_the_delay_doubles_on_429_up_to_a_bound_and_takes_what_the_server_says() -> None:
    """N8, U7, C10: never shorter than it was; other errors leave it."""
    blocked, told = FetchError("slow down", status=429), FetchError("slow down", status=429, retry_after=30.0)

    delays = [0.2]
    for _ in range(7):
        delays.append(adapt_delay(delays[-1], blocked))

    assert delays == [0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10.0, 10.0]
    assert adapt_delay(0.2, told) == 30.0
    assert adapt_delay(60.0, told) == 60.0
    assert adapt_delay(60.0, blocked) == 60.0
    assert adapt_delay(5.0, FetchError("soon", status=429, retry_after=0.0)) == 5.0
    assert adapt_delay(0.2, FetchError("broken", status=500)) == 0.2
    assert [adapt_delay(0.2, error) for error in (TimeoutError(), ValueError("429"), None)] == [0.2] * 3
    assert adapt_delay(8.0, blocked, max_delay=12.0) == 12.0
