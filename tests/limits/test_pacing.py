"""What the documents take for granted: one at a time, a pause, a cooldown (P), and what adapts (Q12)."""

from __future__ import annotations

import asyncio
import random
from itertools import pairwise

from curtsy.core.decision import No
from curtsy.core.errors import FetchError, Reason
from curtsy.core.outcome import Kind, Outcome
from curtsy.core.policy import UNLIMITED, Policies, Policy
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


async def test_by_default_one_request_at_a_time_with_a_random_pause_between(clock: FakeClock) -> None:
    """P1: uniform in 1.5 to 5.5 s; never two at once."""
    left, most = await visits(clock, Policy(max_requests_per_day=0, max_pages_per_day=0), 200, takes=0.3)

    gaps = sorted(after - before for before, after in pairwise(left))
    assert most == 1
    assert gaps[0] >= 1.5
    assert gaps[-1] <= 5.5 + 1e-6
    assert gaps[0] < 1.6
    assert gaps[-1] > 5.4
    assert 3.3 < sum(gaps) / len(gaps) < 3.7


async def test_a_request_that_takes_longer_than_the_pause_is_waited_for(clock: FakeClock) -> None:
    """P1, C1: the latest of all moments wins."""
    left, most = await visits(clock, Policy(), 4, takes=10.0)

    assert most == 1
    assert left == [0.0, 10.0, 20.0, 30.0]


async def test_the_default_pace_is_that_of_the_rate_where_that_is_longer_than_the_pause(clock: FakeClock) -> None:
    """C10, C1, P2: 0.2 a second, as in the documents' example, is one in 5 s whatever the dice say."""
    left, _ = await visits(clock, Policy(qps=0.2, pause_max=4.9), 5)

    assert left == [0.0, 5.0, 10.0, 15.0, 20.0]


def test_a_policy_has_a_category_a_rate_and_limits_and_its_defaults_are_the_documents() -> None:
    """P2, C10, B1, C3"""
    default = Policy()
    trusted = Policies(default, {"wikipedia.org": Policy(domain_category="trusted", qps=0.2, max_requests_per_day=500)})

    assert (default.qps, default.burst, default.concurrency) == (0.8, 1, 1)
    assert (default.pause_min, default.pause_max) == (1.5, 5.5)
    assert (default.max_requests_per_day, default.max_pages_per_day) == (200, 100)
    assert trusted.of("de.wikipedia.org").domain_category == "trusted"
    assert trusted.of("example.org") is default
    assert trusted.global_qps == 0.8


async def test_nothing_is_sent_while_a_domain_rests(clock: FakeClock) -> None:
    """P3, C2: a Retry-After that is obeyed is waited for; a block is refused until its cooldown ends."""
    gate = Gate(AsyncMemoryStore(clock=clock), timers=LeapAlarm(clock))
    policy = UNLIMITED.replace(breaker=True)
    ticket = await gate.enter(Request(HOST, policy))
    assert isinstance(ticket, Ticket)
    await gate.settle(ticket, Outcome(Kind.SLOWED, 429, retry_after=40.0))

    rested = await gate.enter(Request(HOST, policy))
    assert isinstance(rested, Ticket)
    assert rested.waited == 40.0

    await gate.settle(rested, Outcome(Kind.BLOCKED, 403))
    assert await gate.enter(Request(HOST, policy)) == No(Reason.CIRCUIT_OPEN, 300.0)
    clock.advance(300)
    assert isinstance(await gate.enter(Request(HOST, policy)), Ticket)


async def test_a_site_that_answers_slowly_is_asked_less_often(clock: FakeClock) -> None:
    """Q12: three seconds to answer, where one is the target: five seconds of delay for each above it."""
    gate = Gate(AsyncMemoryStore(clock=clock), timers=LeapAlarm(clock))
    policy = UNLIMITED.replace(adapt=True, target_latency=1.0, latency_factor=5.0, max_delay=60.0)
    waited = []
    for latency in (0.5, 3.0, 3.0):
        ticket = await gate.enter(Request(HOST, policy))
        assert isinstance(ticket, Ticket)
        waited.append(ticket.waited)
        await gate.settle(ticket, Outcome(Kind.ANSWERED, 200, latency=latency))

    assert waited[:2] == [0.0, 0.0]
    assert waited[2] > 0


async def test_what_has_no_limit_passes_the_gate_all_the_same(clock: FakeClock) -> None:
    """C13: it is in the record, it can be stopped there, and the global rate holds."""
    left, _ = await visits(clock, UNLIMITED, 3, overall=UNLIMITED.replace(qps=1.0))

    assert left == [0.0, 1.0, 2.0]


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
