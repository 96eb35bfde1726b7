"""The short way through the gate: for who need not wait, and never past anybody who does."""

from __future__ import annotations

import asyncio

from curtsy.core.decision import No
from curtsy.core.errors import Reason
from curtsy.core.outcome import Kind, Outcome
from curtsy.core.policy import UNLIMITED, Policy
from curtsy.engine.gate import Answer, Gate, Ticket
from curtsy.engine.gate_steps import Request
from curtsy.engine.store_driver import Finished
from curtsy.stores.memory import MemoryStore
from curtsy.testing import FakeClock
from tests.gate.asking import ANSWERED, HOST, ONE_A_SECOND, ONE_AT_A_TIME, Slow, queued, ticket_of


def enter(gate: Gate, policy: Policy, overall: Policy | None = None) -> Answer | None:
    """The answer that a request has without any wait; None if there is none, and it goes away."""
    procedure = gate.admission(Request(HOST, policy, overall))
    effect = gate.driver.advance(procedure)
    procedure.close()
    return effect.result if isinstance(effect, Finished) else None


def settle(gate: Gate, ticket: Ticket, outcome: Outcome) -> None:
    assert isinstance(gate.driver.advance(gate.settlement(ticket, outcome)), Finished)


async def test_who_need_not_wait_leaves_at_once_and_is_charged(gate: Gate, store: MemoryStore) -> None:
    """Issue 4: the same record as by the long way."""
    ticket = enter(gate, ONE_AT_A_TIME)

    assert isinstance(ticket, Ticket)
    assert (ticket.waited, len(store.read(HOST).places), gate.queues.held(HOST)) == (0.0, 1, 1)
    settle(gate, ticket, ANSWERED)
    assert (store.read(HOST).places, store.read(HOST).requests, gate.queues.held(HOST)) == ((), 1, 0)


async def test_who_must_wait_is_charged_nothing(gate: Gate, store: MemoryStore) -> None:
    """Issue 4"""
    assert isinstance(enter(gate, ONE_A_SECOND), Ticket)
    before = store.read(HOST)

    assert enter(gate, ONE_A_SECOND) is None
    assert store.read(HOST) == before


async def test_who_is_refused_hears_it_at_once(gate: Gate) -> None:
    """B2"""
    policy = UNLIMITED.replace(max_requests_per_day=1)
    assert isinstance(enter(gate, policy), Ticket)

    refused = enter(gate, policy)

    assert isinstance(refused, No)
    assert refused.reason is Reason.DOMAIN_BUDGET_EXCEEDED


async def test_nobody_goes_past_one_who_stands_in_line(gate: Gate, clock: FakeClock) -> None:
    """L2: though there would be a place for the newcomer."""
    first = await ticket_of(gate, Request(HOST, ONE_AT_A_TIME))
    waiting = asyncio.ensure_future(gate.enter(Request(HOST, ONE_AT_A_TIME)))
    await queued(gate, 1)

    settle(gate, first, ANSWERED)  # there is a place now, and it is the waiting one's
    assert enter(gate, ONE_AT_A_TIME) is None

    assert isinstance(await waiting, Ticket)


async def test_the_first_of_the_line_is_woken_by_a_place_that_was_had_the_short_way(gate: Gate) -> None:
    """L2"""
    ticket = enter(gate, ONE_AT_A_TIME)
    assert isinstance(ticket, Ticket)
    waiting = asyncio.ensure_future(gate.enter(Request(HOST, ONE_AT_A_TIME)))
    await queued(gate, 1)

    settle(gate, ticket, Outcome(Kind.ABANDONED, sent=False))

    assert isinstance(await waiting, Ticket)


async def test_the_short_way_is_closed_where_a_token_or_the_store_must_be_waited_for(gate: Gate, slow: Slow) -> None:
    """Q1"""
    assert isinstance(enter(gate, UNLIMITED, overall=ONE_A_SECOND), Ticket)
    assert enter(gate, UNLIMITED, overall=ONE_A_SECOND) is None
    assert enter(Gate(slow), UNLIMITED) is None
