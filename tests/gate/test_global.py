"""The global rate: one line that all hosts share, in hand before a host is charged (Q1)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from curtsy.core.amendment import Trip
from curtsy.core.decision import No
from curtsy.core.errors import Reason
from curtsy.core.outcome import Kind, Outcome
from curtsy.core.policy import UNLIMITED
from curtsy.core.time import SECOND
from curtsy.engine.gate import GLOBAL, Answer, Gate, Ticket
from curtsy.engine.gate_steps import Request, charge, settled
from curtsy.stores import Step, WrappedStore
from curtsy.stores.memory import MemoryStore
from curtsy.testing import FakeClock, FakeTimers
from tests.gate.asking import (
    ANSWERED,
    HOST,
    ONE_AT_A_TIME,
    Elsewhere,
    Slow,
    queued,
    ticket_of,
)
from tests.support.leap import LeapAlarm

# The global rate


async def test_the_global_rate_serves_hosts_in_the_order_in_which_they_are_ready(gate: Gate, clock: FakeClock) -> None:
    """Q1: twenty hosts, two a second over all, none of them loses a moment."""
    began, overall = clock.now().at, UNLIMITED.replace(qps=2.0)
    left: list[tuple[int, int]] = []

    async def enter(number: int) -> None:
        await ticket_of(gate, Request(f"host:{number}", UNLIMITED.replace(concurrency=1), overall))
        left.append((number, clock.now().at - began))

    await asyncio.gather(*(enter(number) for number in range(20)))

    assert left == [(number, number * SECOND // 2) for number in range(20)]


async def test_the_global_rate_is_shared_by_registered_domain(gate: Gate) -> None:
    """Q1: wildcard DNS. Hosts of one registered domain that wait cost another one turn; its own are in order"""
    overall = UNLIMITED.replace(qps=1.0)
    names = ["first.org", *(f"h{number}.evil.org" for number in range(100)), "honest.org", "www.honest.org"]
    left: list[str] = []

    async def enter(name: str) -> None:
        await ticket_of(gate, Request(f"host:{name}", UNLIMITED, overall))
        left.append(name)

    await asyncio.gather(*(enter(name) for name in names))

    # The first of the evil ones was there before any other waited.
    assert left[:6] == ["first.org", "h0.evil.org", "h1.evil.org", "honest.org", "h2.evil.org", "www.honest.org"]
    assert left[6:] == names[4:-2]


async def test_no_lease_is_held_while_waiting_for_the_global_rate(
    gate: Gate, store: MemoryStore, clock: FakeClock
) -> None:
    """Section 3 of the design: nobody else is kept from a host by one who may not leave yet."""
    overall = UNLIMITED.replace(qps=0.1)
    await ticket_of(gate, Request("host:other", UNLIMITED, overall))
    waiting = asyncio.ensure_future(ticket_of(gate, Request(HOST, ONE_AT_A_TIME, overall)))
    await queued(gate, 2)

    assert store.read(HOST) is None
    theirs = await ticket_of(Gate(Elsewhere(store, 2), timers=LeapAlarm(clock)), Request(HOST, ONE_AT_A_TIME))
    store.update(HOST, settled(ONE_AT_A_TIME, theirs.lease, ANSWERED))
    assert (await waiting).waited == 10.0


class Rival(WrappedStore):
    """A store where another process takes the host's place just before ours is charged."""

    is_immediate = False

    def __init__(self, store: MemoryStore, key: str) -> None:
        super().__init__(store.inner)
        self._key = key
        self._times = 0

    async def update(self, key: str, step: Step[Any]) -> Any:
        if key == self._key:
            self._times += 1
            if self._times == 2:  # the first was only a look
                await super().update(key, charge(ONE_AT_A_TIME, 0.0, page=True))
        return await super().update(key, step)


async def test_a_global_token_goes_back_when_the_host_says_no(store: MemoryStore, clock: FakeClock) -> None:
    """Section 3 of the design: another host leaves with it in the same instant."""
    gate = Gate(Rival(store, HOST), timers=LeapAlarm(clock), roll=lambda: 0.5)
    overall = UNLIMITED.replace(qps=0.1)
    robbed = asyncio.ensure_future(ticket_of(gate, Request(HOST, ONE_AT_A_TIME, overall)))
    await asyncio.sleep(0)

    other = await ticket_of(gate, Request("host:other", UNLIMITED, overall))

    assert other.waited == 0
    assert (await robbed).waited >= 35.0


class Hanging(WrappedStore):
    """A store that hangs for two seconds when a host is to be charged, the first so many times."""

    is_immediate = False

    def __init__(self, store: MemoryStore, clock: FakeClock, times: int) -> None:
        super().__init__(store.inner)
        self._clock = clock
        self.left = times

    async def update(self, key: str, step: Step[Any]) -> Any:
        if key == HOST and self.left:
            self.left -= 1
            self._clock.advance(2.0)
        return await super().update(key, step)


@pytest.mark.parametrize(("times", "waited", "until_next"), [(1, 2.0, 2.0), (100, 10.0, 0.0)])
async def test_a_token_from_before_the_store_hung_is_exchanged_once(
    store: MemoryStore, clock: FakeClock, times: int, waited: float, until_next: float
) -> None:
    """Issue 17: else each process sends with an old one when the store is back. One that is always slow is not left"""
    overall = UNLIMITED.replace(qps=0.5)
    gate = Gate(Hanging(store, clock, times), timers=LeapAlarm(clock), roll=lambda: 0.5)

    ticket = await ticket_of(gate, Request(HOST, ONE_AT_A_TIME, overall))
    other = await ticket_of(gate, Request("host:other", UNLIMITED, overall))

    assert (ticket.waited, other.waited) == (waited, until_next)


@pytest.mark.parametrize("question", [2, 3], ids=["taking the token", "charging the host"])
@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_global_token_of_one_cancelled_at_the_store_is_not_lost(slow: Slow, when: str, question: int) -> None:
    """L2: whether it was being taken or was in hand already; the next leaves at once though the rate is one an hour."""
    gate = Gate(slow)
    overall = UNLIMITED.replace(qps=1 / 3600)
    slow.stop_at = (question, when)
    task = asyncio.ensure_future(gate.enter(Request(HOST, ONE_AT_A_TIME, overall)))
    await slow.stopped.wait()

    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    slow.go_on.set()

    assert isinstance(await asyncio.wait_for(gate.enter(Request("host:next", UNLIMITED, overall)), 60), Ticket)
    assert isinstance(await asyncio.wait_for(gate.enter(Request(HOST, ONE_AT_A_TIME)), 60), Ticket)


@pytest.mark.parametrize("processes", [1, 5])
async def test_prepaid_batches_keep_the_global_rate_in_every_window(
    store: MemoryStore, clock: FakeClock, processes: int
) -> None:
    """Q1: 400 a second are taken 20 at a time; after a rest as in the middle of it, never two batches ahead."""
    overall, batch = UNLIMITED.replace(qps=400.0), 20
    timers = LeapAlarm(clock)
    gates = [Gate(Elsewhere(store, number), timers=timers) for number in range(processes)]
    left: list[int] = []

    async def enter(number: int) -> None:
        await ticket_of(gates[number % processes], Request(f"host:{number}", UNLIMITED, overall))
        left.append(clock.now().at)

    for burst, rest in ((1, 0.04), (3, 0.049), (500, 0.9), (1, 0.999), (700, 0.0)):
        await asyncio.gather(*(enter(number) for number in range(burst)))
        clock.advance(rest)

    for first in range(len(left)):
        for last in range(first + 2 * batch, min(first + 200, len(left))):
            assert last - first + 1 <= 400 * (left[last] - left[first]) / SECOND + 2 * batch
    assert (left[-1] - left[-700]) / SECOND == pytest.approx(700 / 400, abs=0.1)


class Counting(WrappedStore):
    """Counts what is asked of the global record."""

    is_immediate = False
    asked = 0

    async def update(self, key: str, step: Step[Any]) -> Any:
        self.asked += key == GLOBAL
        return await super().update(key, step)


async def test_a_fast_global_rate_is_not_asked_for_once_a_request(store: MemoryStore, clock: FakeClock) -> None:
    """Q1, section 3 of the design: one record must not be hot; at 400 a second twenty are taken at once"""
    counting, overall = Counting(store.inner), UNLIMITED.replace(qps=400.0)
    gate = Gate(counting, timers=LeapAlarm(clock))

    for number in range(100):
        await ticket_of(gate, Request(f"host:{number}", UNLIMITED, overall))

    assert counting.asked <= 2 * 100 / 20


async def test_a_global_rate_that_is_lifted_lets_everybody_go(gate: Gate, clock: FakeClock) -> None:
    """Q6: changed while running, it holds for those in its line."""
    overall = UNLIMITED.replace(qps=1 / 3600)

    def request(key: str) -> Request:
        return Request(key, UNLIMITED, overall, renew=lambda: (key, UNLIMITED, overall))

    requests = [request(f"host:{number}") for number in range(5)]
    await ticket_of(gate, requests[0])
    waiting = [asyncio.ensure_future(ticket_of(gate, request)) for request in requests]
    await queued(gate, 10)
    before = clock.now().at

    overall = UNLIMITED
    gate.queues.nudge(GLOBAL)

    await asyncio.gather(*waiting)
    assert clock.now().at == before


# What happens to a host while its first waits in the global line


async def in_global_line(gate: Gate, request: Request) -> asyncio.Task[Answer]:
    """The first of a host's line, whom the host lets go and the global rate does not."""
    await ticket_of(gate, Request("host:other", UNLIMITED, request.overall))
    waiting = asyncio.ensure_future(gate.enter(request))
    await queued(gate, 2)
    return waiting


async def test_a_limit_that_changes_holds_for_who_waits_in_the_global_line(gate: Gate, clock: FakeClock) -> None:
    """U8: it is charged by the limits of the moment at which it leaves"""
    overall, present = UNLIMITED.replace(qps=0.1), UNLIMITED.replace(qps=10.0)
    request = Request(HOST, present, overall, renew=lambda: (HOST, present, overall))
    await ticket_of(gate, Request(HOST, present))
    began = clock.now().at
    clock.advance(1)
    waiting = await in_global_line(gate, request)

    present = UNLIMITED.replace(qps=1 / 60)

    ticket = await waiting
    assert isinstance(ticket, Ticket)
    assert ticket.policy is present
    assert clock.now().at - began == 60 * SECOND
    await ticket_of(gate, Request("host:third", UNLIMITED, overall))
    assert clock.now().at - began <= 70 * SECOND, "the token that it had in hand was given back"


@pytest.mark.parametrize("by", ["hand", "reply"])
async def test_an_open_breaker_refuses_at_once_who_waits_in_the_global_line(
    gate: Gate, clock: FakeClock, by: str
) -> None:
    """Q4: and everybody behind, and everybody who comes"""
    policy = UNLIMITED.replace(breaker=True, concurrency=5)
    flight = await ticket_of(gate, Request(HOST, policy))
    request = Request(HOST, policy, UNLIMITED.replace(qps=0.01))
    first = await in_global_line(gate, request)
    behind = asyncio.ensure_future(gate.enter(request))
    await queued(gate, 3)
    before = clock.now().at

    if by == "hand":
        await gate.amend(HOST, policy, Trip())
    else:
        await gate.settle(flight, Outcome(Kind.BLOCKED, 403))
    newcomer = await gate.enter(request)

    for answer in (await first, await behind, newcomer):
        assert isinstance(answer, No)
        assert answer.reason is Reason.CIRCUIT_OPEN
    assert clock.now().at == before
    assert gate.queues.waiting == 0


async def test_news_that_change_nothing_cost_nobody_its_place_in_the_global_line(gate: Gate, clock: FakeClock) -> None:
    """L2: first come, first served"""
    overall = UNLIMITED.replace(qps=0.1)
    first = await in_global_line(gate, Request(HOST, UNLIMITED, overall))
    second = asyncio.ensure_future(ticket_of(gate, Request("host:second", UNLIMITED, overall)))
    await queued(gate, 4)

    gate.queues.nudge(HOST)

    ticket = await first
    assert isinstance(ticket, Ticket)
    assert (ticket.waited, (await second).waited) == (10.0, 20.0)


async def test_a_turn_that_is_put_back_gives_back_the_global_one_too(store: MemoryStore, clock: FakeClock) -> None:
    """Q1: nothing was sent, so nobody waits for it"""
    gate = Gate(store.inner, timers=FakeTimers(clock, jump=False))
    request = Request(HOST, UNLIMITED, UNLIMITED.replace(qps=0.1))
    first = await gate.enter(request)
    assert isinstance(first, Ticket)

    await gate.put_back(first)
    second = await asyncio.wait_for(gate.enter(request), 60)

    assert isinstance(second, Ticket)
