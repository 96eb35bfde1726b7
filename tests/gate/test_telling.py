"""Who waits is told when something changes, by us or by others."""

from __future__ import annotations

import asyncio

import pytest

from curtsy.core.amendment import Override, Reset, Trip
from curtsy.core.decision import No
from curtsy.core.errors import Reason
from curtsy.core.outcome import Kind, Outcome
from curtsy.core.policy import UNLIMITED
from curtsy.core.time import SECOND
from curtsy.engine.gate import POLL, Gate, Ticket
from curtsy.engine.gate_steps import Request, charge
from curtsy.stores.memory import MemoryStore
from curtsy.testing import FakeClock
from tests.gate.asking import (
    ANSWERED,
    HOST,
    ONE_A_SECOND,
    ONE_AT_A_TIME,
    Elsewhere,
    queued,
    ticket_of,
)
from tests.support.leap import LeapAlarm

# Being told


async def test_a_place_given_back_goes_to_the_next_in_the_same_instant(gate: Gate, clock: FakeClock) -> None:
    """P1: one at a time, and no time in between."""
    began = clock.now().at
    left: list[int] = []

    async def visit(number: int) -> None:
        ticket = await ticket_of(gate, Request(HOST, ONE_AT_A_TIME))
        left.append(number)
        await gate.settle(ticket, ANSWERED)

    await asyncio.gather(*(visit(number) for number in range(50)))

    assert left == list(range(50))
    assert clock.now().at == began
    assert gate.queues.out == 0


@pytest.mark.parametrize("change", [Reset(), Override((("qps", 1000.0),))], ids=["reset", "override"])
async def test_a_change_by_hand_lets_the_first_ask_again(
    gate: Gate, clock: FakeClock, change: Reset | Override
) -> None:
    """U6: nobody sleeps through a wait that a hand has ended."""
    policy = UNLIMITED.replace(qps=1 / 3600, breaker=True)
    if isinstance(change, Reset):
        policy = UNLIMITED.replace(breaker=True, obey_retry_after=7200)
        await gate.settle(
            await ticket_of(gate, Request(HOST, policy)), Outcome(Kind.SLOWED, 429, retry_after=3600)
        )  # fmt: skip
    else:
        await ticket_of(gate, Request(HOST, policy))
    waiting = asyncio.ensure_future(gate.enter(Request(HOST, policy)))
    await queued(gate, 1)
    before = clock.now().at

    await gate.amend(HOST, policy, change)

    assert isinstance(await waiting, Ticket)
    assert clock.now().at - before <= SECOND


async def test_a_breaker_that_opens_refuses_those_who_wait_already(gate: Gate, clock: FakeClock) -> None:
    """Q4: they are refused when it opens, not when their turn would have come; without a limit in flight too."""
    policy = UNLIMITED.replace(qps=0.01, breaker=True)
    ticket = await ticket_of(gate, Request(HOST, policy))
    waiting = [asyncio.ensure_future(gate.enter(Request(HOST, policy))) for _ in range(3)]
    await queued(gate, 3)
    before = clock.now().at

    await gate.settle(ticket, Outcome(Kind.BLOCKED, 403))

    assert await asyncio.gather(*waiting) == [No(Reason.CIRCUIT_OPEN, 300.0, opened_by="block:403")] * 3
    assert clock.now().at == before


async def test_a_trial_that_succeeds_lets_those_who_wait_for_it_go(gate: Gate, clock: FakeClock) -> None:
    """Q4: exactly one trial however many ask; when it went well, the others leave in the same instant."""
    policy = UNLIMITED.replace(breaker=True)
    await gate.amend(HOST, policy, Trip())
    assert await gate.enter(Request(HOST, policy)) == No(Reason.CIRCUIT_OPEN, 300.0, opened_by="user")
    clock.advance(300.0)
    trial = await ticket_of(gate, Request(HOST, policy))
    waiting = [asyncio.ensure_future(gate.enter(Request(HOST, policy))) for _ in range(5)]
    await queued(gate, 5)
    before = clock.now().at

    await gate.settle(trial, ANSWERED)

    assert trial.lease.trial
    assert all(isinstance(each, Ticket) for each in await asyncio.gather(*waiting))
    assert clock.now().at == before


async def test_what_another_process_holds_is_noticed_when_it_is_free(
    store: MemoryStore, gate: Gate, clock: FakeClock
) -> None:
    """P1, F42: it cannot tell us, so it is asked for again every quarter of a second or so."""
    theirs = Gate(Elsewhere(store, 2), timers=LeapAlarm(clock))
    ticket = await ticket_of(theirs, Request(HOST, ONE_AT_A_TIME))
    waiting = asyncio.ensure_future(ticket_of(gate, Request(HOST, ONE_AT_A_TIME)))
    await queued(gate, 1)

    await theirs.settle(ticket, ANSWERED)

    assert 0 < (await waiting).waited <= 1.5 * POLL


async def test_one_place_of_ours_does_not_hide_one_that_another_process_gives_back(
    store: MemoryStore, gate: Gate, clock: FakeClock
) -> None:
    """P1: two at a time, one ours and one theirs; whichever comes back first is noticed."""
    policy = UNLIMITED.replace(concurrency=2)
    theirs = Gate(Elsewhere(store, 2), timers=LeapAlarm(clock))
    ticket = await ticket_of(theirs, Request(HOST, policy))
    await ticket_of(gate, Request(HOST, policy))
    waiting = asyncio.ensure_future(ticket_of(gate, Request(HOST, policy)))
    await queued(gate, 1)

    await theirs.settle(ticket, ANSWERED)

    assert 0 < (await waiting).waited <= 1.5 * POLL


async def test_a_dead_holders_place_is_free_when_its_lease_runs_out(gate: Gate, store: MemoryStore) -> None:
    """The design's rule 5: nobody gives back what a killed process held; 30 s for the request and 5 s more."""
    store.update(HOST, charge(ONE_AT_A_TIME, 0.0, page=True))

    assert (await ticket_of(gate, Request(HOST, ONE_AT_A_TIME))).waited == 35.0


async def test_limits_that_change_hold_for_those_who_wait_already(gate: Gate, clock: FakeClock) -> None:
    """U8: the policy is asked for anew at each decision, by whoever gives one that can change."""
    present = UNLIMITED.replace(qps=1 / 3600)
    request = Request(HOST, present, renew=lambda: (HOST, present, None))
    await ticket_of(gate, request)
    waiting = asyncio.ensure_future(ticket_of(gate, request))
    await queued(gate, 1)
    before = clock.now().at

    present = UNLIMITED.replace(qps=10.0)
    gate.queues.nudge(HOST)

    await waiting
    assert clock.now().at - before == SECOND // 10


async def test_who_waits_goes_to_the_line_of_another_record_when_that_becomes_its_own(
    gate: Gate, clock: FakeClock
) -> None:
    """C6, U8: two hosts that come to share a record have one pace from then on"""
    keys = {"a": "host:a", "b": "host:b"}
    policy = UNLIMITED.replace(qps=0.1)

    def request(name: str) -> Request:
        return Request(keys[name], policy, renew=lambda: (keys[name], policy, None))

    for name in keys:
        await ticket_of(gate, request(name))
    began = clock.now().at
    waiting = [asyncio.ensure_future(ticket_of(gate, request(name))) for name in ("a", "a", "b", "b")]
    await queued(gate, 4)

    keys = dict.fromkeys(keys, "host:both")
    gate.queues.nudge("host:a")
    gate.queues.nudge("host:b")

    tickets = await asyncio.gather(*waiting)
    assert sorted(round(ticket.waited) for ticket in tickets) == [0, 10, 20, 30]
    assert {ticket.key for ticket in tickets} == {"host:both"}
    assert clock.now().at - began == 30 * SECOND
    assert gate.queues.waiting == 0


async def test_who_may_not_go_any_more_is_refused_when_it_is_told_not_when_it_is_due(
    gate: Gate, clock: FakeClock
) -> None:
    """U9: a host that comes on the denylist; no token is spent"""
    denied = False
    policy = UNLIMITED.replace(qps=1 / 3600)
    refusal = No(Reason.DOMAIN_DENIED, None)
    request = Request(HOST, policy, renew=lambda: refusal if denied else (HOST, policy, None))
    await ticket_of(gate, request)
    waiting = [asyncio.ensure_future(gate.enter(request)) for _ in range(3)]
    await queued(gate, 3)
    before = clock.now().at

    denied = True
    gate.queues.nudge(HOST)

    assert await asyncio.gather(*waiting) == [refusal] * 3
    assert clock.now().at == before


# Closing


async def test_whoever_is_told_to_give_up_does_so_at_once(gate: Gate, clock: FakeClock) -> None:
    """U8: first in line, behind, and in the global line alike; nothing is taken."""
    overall = UNLIMITED.replace(qps=0.01)
    await ticket_of(gate, Request("host:other", UNLIMITED, overall))
    waiters = [gate.timers.waiter() for _ in range(4)]
    requests = [
        Request(HOST, ONE_A_SECOND.replace(qps=0.01)),
        Request(HOST, ONE_A_SECOND.replace(qps=0.01)),
        Request("host:third", UNLIMITED, overall),
        Request("host:fourth", UNLIMITED, overall),
    ]
    await ticket_of(gate, requests[0])
    tasks = [
        asyncio.ensure_future(gate.enter(request, waiter)) for request, waiter in zip(requests, waiters, strict=True)
    ]
    await queued(gate, 6)
    before = clock.now().at

    for waiter in waiters:
        waiter.closed = True
        waiter.wake()

    assert await asyncio.gather(*tasks) == [No(Reason.CLOSED, None)] * 4
    assert clock.now().at == before
    assert gate.queues.waiting == 0
