"""A deadline that cannot be met is refused at once, with the time it would have taken (U5)."""

from __future__ import annotations

import asyncio

import pytest

from curtsy.core.decision import Late
from curtsy.core.policy import UNLIMITED, Strategy
from curtsy.core.time import SECOND
from curtsy.engine.gate import Answer, Gate, Ticket
from curtsy.engine.gate_steps import Request
from curtsy.stores.memory import MemoryStore
from curtsy.testing import FakeClock
from tests.gate.asking import (
    ANSWERED,
    HOST,
    ONE_A_SECOND,
    ONE_AT_A_TIME,
    Elsewhere,
    departures,
    queued,
    ticket_of,
)
from tests.support.leap import LeapAlarm

# Deadlines


async def test_a_deadline_that_cannot_be_met_is_late_at_once_with_the_time_needed(gate: Gate, clock: FakeClock) -> None:
    """L2, U5: for the first in line, exactly."""
    await ticket_of(gate, Request(HOST, UNLIMITED.replace(qps=0.1)))
    before = clock.now().at

    answer = await gate.enter(Request(HOST, UNLIMITED.replace(qps=0.1), deadline=9.999))

    assert answer == Late(10.0, "rate")
    assert clock.now().at == before
    assert isinstance(await gate.enter(Request(HOST, UNLIMITED.replace(qps=0.1), deadline=10.0)), Ticket)


async def test_a_deadline_far_back_in_the_line_is_late_at_once_too(gate: Gate, clock: FakeClock) -> None:
    """U5: nobody stands in a line for a minute to be told what was known when he came."""
    waiting = [asyncio.ensure_future(departures(gate, Request(HOST, ONE_A_SECOND), 1)) for _ in range(61)]
    await queued(gate, 60)
    before = clock.now().at

    late = await gate.enter(Request(HOST, ONE_A_SECOND, deadline=60.9))

    assert late == Late(61.0)
    assert clock.now().at == before
    assert await asyncio.gather(*waiting) == [[float(turn)] for turn in range(61)]


async def test_a_deadline_that_the_forecast_allows_is_met(gate: Gate) -> None:
    """U5: nor is anybody sent away whose turn would have come in time."""
    waiting = asyncio.ensure_future(departures(gate, Request(HOST, ONE_A_SECOND), 61))
    await queued(gate, 60)

    ticket = await ticket_of(gate, Request(HOST, ONE_A_SECOND, deadline=61.0))

    assert ticket.waited == 61.0
    await waiting


async def test_a_place_that_is_held_may_come_free_before_its_lease_ends(gate: Gate) -> None:
    """U5: a deadline shorter than the lease of who is on his way is no reason to refuse at once."""
    holder = await ticket_of(gate, Request(HOST, ONE_AT_A_TIME))
    assert holder.lease.lasts > 30
    waiting = asyncio.ensure_future(gate.enter(Request(HOST, ONE_AT_A_TIME, deadline=5.0)))
    behind = asyncio.ensure_future(gate.enter(Request(HOST, ONE_AT_A_TIME, deadline=6.0)))
    await queued(gate, 2)

    await gate.settle(holder, ANSWERED)

    ticket = await waiting
    assert isinstance(ticket, Ticket)
    await gate.settle(ticket, ANSWERED)
    assert isinstance(await behind, Ticket)


async def test_a_deadline_that_passes_while_a_place_is_held_is_late_on_time(gate: Gate, clock: FakeClock) -> None:
    """U5: first and second in line are told at their own deadlines, not before and not after."""
    await ticket_of(gate, Request(HOST, ONE_AT_A_TIME))
    began = clock.now().at
    told: list[tuple[float, int]] = []

    async def enter(deadline: float) -> None:
        answer = await gate.enter(Request(HOST, ONE_AT_A_TIME, deadline=deadline))
        assert isinstance(answer, Late)
        told.append((deadline, clock.now().at - began))

    await asyncio.gather(enter(5.0), enter(2.5), enter(7.0))

    assert told == [(2.5, 2_500_000), (5.0, 5_000_000), (7.0, 7_000_000)]
    assert gate.queues.waiting == 0


async def test_a_wait_besides_the_place_is_known_at_once(gate: Gate, clock: FakeClock) -> None:
    """U5: one on his way, and a pause of 10 s after him: 9 s cannot be met, whenever he comes back."""
    policy = UNLIMITED.replace(concurrency=1, delay=10.0)
    await ticket_of(gate, Request(HOST, policy))
    before = clock.now().at

    assert await gate.enter(Request(HOST, policy, deadline=9.0)) == Late(10.0, "in_flight")
    assert clock.now().at == before


async def test_no_deadline_at_all_is_met_only_by_what_is_there(gate: Gate) -> None:
    """L2: a timeout of 0 takes a token that is there, and never waits."""
    request = Request(HOST, ONE_A_SECOND, deadline=0.0)

    assert isinstance(await gate.enter(request), Ticket)
    assert await gate.enter(request) == Late(1.0, "rate")


async def test_a_deadline_in_the_global_line_is_late_at_once(gate: Gate, clock: FakeClock) -> None:
    """U5: the global rate is a wait like any other, however many hosts stand before it."""
    overall = UNLIMITED.replace(qps=1.0)
    waiting = [
        asyncio.ensure_future(ticket_of(gate, Request(f"host:{number}", UNLIMITED, overall))) for number in range(10)
    ]
    await queued(gate, 18)
    before = clock.now().at

    late = await gate.enter(Request(HOST, UNLIMITED, overall, deadline=8.5))

    assert late == Late(10.0, "global")
    assert clock.now().at == before
    assert [each.waited for each in await asyncio.gather(*waiting)] == list(range(10))


async def test_a_deadline_that_passes_in_the_global_line_is_late_on_time(
    store: MemoryStore, gate: Gate, clock: FakeClock
) -> None:
    """U5: another process takes the tokens meanwhile; whoever waits for one is told at his deadline, not later."""
    overall = UNLIMITED.replace(qps=1.0)
    theirs = Gate(Elsewhere(store, 2), timers=LeapAlarm(clock))
    await ticket_of(theirs, Request("host:theirs", UNLIMITED, overall))
    began = clock.now().at
    greedy = asyncio.ensure_future(departures(theirs, Request("host:theirs", UNLIMITED, overall), 30))
    await queued(theirs, 31)

    async def enter(number: int) -> tuple[Answer, float]:
        answer = await gate.enter(Request(f"host:{number}", UNLIMITED, overall, deadline=5.0))
        return answer, (clock.now().at - began) / SECOND

    answers = await asyncio.gather(*(enter(number) for number in range(4)))

    assert all(isinstance(answer, Ticket | Late) for answer, _ in answers)
    assert all(told_after <= 5.0 for _, told_after in answers)
    greedy.cancel()
    await asyncio.gather(greedy, return_exceptions=True)


@pytest.mark.parametrize("strategy", ["token_bucket", "sliding_window"])
async def test_a_deadline_is_judged_by_all_tokens_that_are_asked_for_before_it(
    gate: Gate, clock: FakeClock, strategy: Strategy
) -> None:
    """L2, U8: those ahead may take several, and so may it; late at once, and exactly"""
    policy = UNLIMITED.replace(qps=1.0, burst=5, strategy=strategy)
    await ticket_of(gate, Request(HOST, policy, count=5))
    began = clock.now().at
    waiting = [asyncio.ensure_future(ticket_of(gate, Request(HOST, policy, count=count))) for count in (1, 4)]
    await queued(gate, 2)
    needed = {"token_bucket": (6.0, 10.0), "sliding_window": (10.0, 10.0)}[strategy]

    answers = [await gate.enter(Request(HOST, policy, count=count, deadline=5.9)) for count in (1, 5)]

    assert answers == [Late(each) for each in needed]
    assert clock.now().at == began
    await asyncio.gather(*waiting)


async def test_a_deadline_in_the_middle_of_a_window_is_judged_by_its_departures(gate: Gate, clock: FakeClock) -> None:
    """L2: sliding_window"""
    policy = UNLIMITED.replace(qps=1.0, burst=2, strategy="sliding_window")
    for _ in range(2):
        await ticket_of(gate, Request(HOST, policy))
        clock.advance(1.5)
    waiting = asyncio.ensure_future(ticket_of(gate, Request(HOST, policy)))
    await asyncio.sleep(0)

    answer = await gate.enter(Request(HOST, policy, deadline=0.4))

    assert answer == Late(0.5, "rate")
    await waiting


async def test_a_leaky_bucket_lets_several_go_when_it_is_full_and_the_deadline_knows(
    gate: Gate, clock: FakeClock
) -> None:
    """L2: one that can be met does not fail"""
    policy = UNLIMITED.replace(qps=1.0, burst=5, strategy="leaky_bucket")
    await ticket_of(gate, Request(HOST, policy))
    first = asyncio.ensure_future(ticket_of(gate, Request(HOST, policy)))
    await queued(gate, 1)

    late = await gate.enter(Request(HOST, policy, count=3, deadline=1.9))
    ticket = await ticket_of(gate, Request(HOST, policy, count=3, deadline=2.1))

    assert late == Late(2.0)
    assert ticket.waited == 2.0
    await first
