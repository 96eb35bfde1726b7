"""A waiter that goes away at any point loses nothing, and the next takes its turn (L2)."""

from __future__ import annotations

import asyncio
import gc
import random
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from curtsy.core.decision import Late
from curtsy.core.errors import StoreError
from curtsy.core.outcome import Kind, Outcome
from curtsy.core.policy import UNLIMITED
from curtsy.engine.gate import LOOK_AGAIN, Gate, Ticket
from curtsy.engine.gate_steps import Request
from curtsy.engine.timers import Waiter
from curtsy.stores import Step, WrappedStore
from curtsy.stores.memory import MemoryStore
from curtsy.testing import FakeClock, FakeTimers
from tests.gate.asking import (
    HOST,
    ONE_A_SECOND,
    ONE_AT_A_TIME,
    Slow,
    departures,
    queued,
    ticket_of,
)
from tests.support.leap import LeapAlarm
from tests.support.polling import block_until, until

# Cancelling


@pytest.mark.parametrize("which", [0, 1, 5, 9])
async def test_a_cancelled_waiter_loses_nothing_and_the_next_takes_its_turn(gate: Gate, which: int) -> None:
    """L2: whoever is cancelled, first, middle or last, those behind move up by exactly one."""
    await ticket_of(gate, Request(HOST, ONE_A_SECOND))
    tasks = [asyncio.ensure_future(departures(gate, Request(HOST, ONE_A_SECOND), 1)) for _ in range(10)]
    await queued(gate, 10)

    tasks.pop(which).cancel()

    assert await asyncio.gather(*tasks) == [[float(turn)] for turn in range(1, 10)]
    assert gate.queues.waiting == 0


async def test_a_task_cancelled_before_it_began_was_never_there(gate: Gate) -> None:
    """L2"""
    task = asyncio.ensure_future(gate.enter(Request(HOST, ONE_A_SECOND)))
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)

    assert await departures(gate, Request(HOST, ONE_A_SECOND), 2) == [0.0, 1.0]
    assert gate.queues.waiting == 0


@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_task_cancelled_while_the_store_is_asked_gives_all_back(slow: Slow, when: str) -> None:
    """L2, B5: place, token and budget of one who is gone when the answer comes are free at once."""
    gate = Gate(slow)
    policy = UNLIMITED.replace(qps=0.01, burst=3, concurrency=1, max_requests_per_day=5, max_pages_per_day=5)
    slow.stop_at = (1, when)
    task = asyncio.ensure_future(gate.enter(Request(HOST, policy, count=3)))
    await slow.stopped.wait()

    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    slow.go_on.set()
    ticket = await asyncio.wait_for(ticket_of(gate, Request(HOST, policy, count=3)), 60)

    assert ticket.go.requests_left == 4
    assert ticket.go.pages_left == 4
    assert gate.queues.waiting == 0


@pytest.mark.parametrize("when", ["before", "after"])
async def test_those_behind_one_cancelled_at_the_store_need_not_poll_for_its_place(slow: Slow, when: str) -> None:
    """The next is told when what was taken in vain is back."""
    gate = Gate(slow, timers=FakeTimers(FakeClock(), jump=False))  # whoever polls does so at no time
    slow.stop_at = (1, when)
    first = asyncio.ensure_future(gate.enter(Request(HOST, ONE_AT_A_TIME)))
    second = asyncio.ensure_future(gate.enter(Request(HOST, ONE_AT_A_TIME)))
    await slow.stopped.wait()

    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    slow.go_on.set()

    assert isinstance(await asyncio.wait_for(second, 60), Ticket)


async def test_a_store_that_fails_after_a_cancel_is_nobodys_problem(store: MemoryStore) -> None:
    """B8: what cannot be given back runs out by itself, and nothing is left behind in the log."""
    broken = Slow(store.inner)
    gate = Gate(broken)
    complaints: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
    broken.stop_at = (1, "before")
    task = asyncio.ensure_future(gate.enter(Request(HOST, ONE_AT_A_TIME)))
    await broken.stopped.wait()

    task.cancel()
    store.close()
    broken.go_on.set()

    with pytest.raises(asyncio.CancelledError):
        await task
    with pytest.raises(StoreError):
        await gate.enter(Request(HOST, ONE_AT_A_TIME))
    await until(lambda: asyncio.all_tasks() == {asyncio.current_task()})
    assert gate.queues.waiting == 0
    assert complaints == []


# All of it at once


class Jittery(WrappedStore):
    """A store that takes its time before it does something and before it answers, now more, now less."""

    def __init__(self, store: MemoryStore, dice: random.Random, meanwhile: Callable[[str], None]) -> None:
        super().__init__(store.inner)
        self._dice = dice
        self._meanwhile = meanwhile

    async def update(self, key: str, step: Step[Any]) -> Any:
        await self._dawdle(key)
        answer = await super().update(key, step)
        await self._dawdle(key)
        return answer

    async def _dawdle(self, key: str) -> None:
        for _ in range(self._dice.randrange(4)):
            await asyncio.sleep(0)
        self._meanwhile(key)
        for _ in range(self._dice.randrange(4)):
            await asyncio.sleep(0)


@pytest.mark.parametrize("seed", range(12))
async def test_whatever_is_cancelled_late_or_closed_nothing_is_lost_and_nothing_is_given_twice(
    store: MemoryStore, clock: FakeClock, seed: int
) -> None:
    """L2, B4, B5, P1: three hundred requests for five hosts, many of them cancelled at some point or other."""
    dice = random.Random(seed)
    lines: dict[str, list[asyncio.Task[None]]] = defaultdict(list)

    def cancel_who_is_asking(key: str) -> None:
        if lines[key] and dice.random() < 0.1:
            lines[key][0].cancel()

    gate = Gate(Jittery(store, dice, cancel_who_is_asking), timers=LeapAlarm(clock), roll=dice.random)
    policies = [
        UNLIMITED.replace(concurrency=1, max_requests_per_day=1000),
        UNLIMITED.replace(concurrency=2, qps=50.0, max_requests_per_day=1000),
        UNLIMITED.replace(
            concurrency=3, pause_min=0.01, pause_max=0.1, max_requests_per_day=1000, max_pages_per_day=1000
        ),
        UNLIMITED.replace(qps=20.0, burst=3, max_requests_per_day=1000),
        UNLIMITED.replace(concurrency=1, max_requests_per_day=15),
    ]
    overall = UNLIMITED.replace(qps=30.0)
    inside, sent = [0] * 5, [0] * 5

    async def visit(number: int) -> None:
        host = number % 5
        policy, deadline = policies[host], dice.choice((None, None, 0.0, 0.3, 5.0))
        waiter = gate.timers.waiter()
        if dice.random() < 0.1:
            asyncio.get_running_loop().call_soon(setattr, waiter, "closed", True)
            asyncio.get_running_loop().call_soon(waiter.wake)
        request = Request(f"host:{host}", policy, dice.choice((None, overall)), deadline=deadline)
        me = asyncio.current_task()
        assert me is not None
        lines[request.key].append(me)
        try:
            answer = await gate.enter(request, waiter)
        finally:
            lines[request.key].remove(me)
        if not isinstance(answer, Ticket):
            return
        inside[host] += 1
        assert inside[host] <= (policy.concurrency or 300)
        outcome = Outcome(Kind.ABANDONED, sent=False)
        try:
            await gate.timers.sleep(gate.timers.waiter(), dice.choice((0.0, 0.02, 0.2)))
            outcome = Outcome(Kind.ANSWERED, 200, page=True)
            sent[host] += 1
        finally:
            inside[host] -= 1
            await asyncio.shield(gate.settle(answer, outcome))

    async def cancel(task: asyncio.Task[None]) -> None:
        await gate.timers.sleep(gate.timers.waiter(), 3 * dice.random())
        for _ in range(dice.randrange(8)):
            await asyncio.sleep(0)
        task.cancel()

    tasks = [asyncio.ensure_future(visit(number)) for number in range(300)]
    cancels = [asyncio.ensure_future(cancel(task)) for task in dice.sample(tasks, 50)]
    results = await asyncio.gather(*tasks, return_exceptions=True)
    await asyncio.gather(*cancels)
    await until(lambda: not gate.driver.background and gate.queues.out == 0)

    assert [each for each in results if not isinstance(each, asyncio.CancelledError | None)] == []
    assert gate.queues.waiting == 0
    for host, policy in enumerate(policies):
        record = store.read(f"host:{host}")
        assert record.places == ()
        assert [day.requests for day in record.days] == [sent[host]]
        assert sent[host] <= policy.max_requests_per_day


def test_a_loop_that_was_closed_with_no_word_holds_up_nobody(store: MemoryStore) -> None:
    """L9: who waited in it cannot get up any more, and does not stand in the way"""
    gate = Gate(store.inner)
    slow = UNLIMITED.replace(qps=0.001)
    assert isinstance(asyncio.run(gate.enter(Request(HOST, slow))), Ticket)
    loop = asyncio.new_event_loop()
    waiting = loop.create_task(gate.enter(Request(HOST, slow)))
    loop.run_until_complete(until(lambda: gate.queues.is_queued(HOST)))
    loop.close()

    is_queued = gate.queues.is_queued(HOST)
    ticket = asyncio.run(gate.enter(Request(HOST, UNLIMITED, deadline=5.0)))

    assert not is_queued
    assert isinstance(ticket, Ticket)
    waiting._log_destroy_pending = False  # type: ignore[attr-defined]


@pytest.mark.parametrize("told_by", ["a newcomer", "nobody"])
def test_who_waits_behind_a_loop_that_is_closed_with_no_word_goes_on(
    store: MemoryStore, clock: FakeClock, told_by: str
) -> None:
    """L9: when the next one comes, else at the next look"""
    timers = FakeTimers(clock, jump=False)
    gate = Gate(store.inner, timers=timers)
    slow = UNLIMITED.replace(qps=0.001)
    assert isinstance(asyncio.run(gate.enter(Request(HOST, slow))), Ticket)
    loop = asyncio.new_event_loop()
    gone = loop.create_task(gate.enter(Request(HOST, slow)))
    loop.run_until_complete(until(lambda: gate.queues.is_queued(HOST)))
    with ThreadPoolExecutor(2) as threads:
        behind = threads.submit(asyncio.run, gate.enter(Request(HOST, UNLIMITED)))
        block_until(lambda: len(timers._asleep) == 2)

        loop.close()
        if told_by == "a newcomer":
            assert isinstance(asyncio.run(gate.enter(Request(HOST, UNLIMITED))), Ticket)
        else:
            clock.advance(LOOK_AGAIN)

        assert isinstance(behind.result(60), Ticket)
    assert gate.queues.waiting == 0
    gone._log_destroy_pending = False  # type: ignore[attr-defined]


@pytest.mark.parametrize("order", ["first first", "last first"])
async def test_many_who_give_up_at_once_take_no_time_in_whatever_order(gate: Gate, order: str) -> None:
    """L2, L9: a task group cancels in no order at all"""
    slow = UNLIMITED.replace(qps=0.0001)
    await ticket_of(gate, Request(HOST, slow))

    async def bare() -> Any:
        await asyncio.get_running_loop().create_future()

    took: dict[str, list[float]] = {"bare tasks": [], "waiters": []}
    for kind in (*took, *took):
        wait = bare if kind == "bare tasks" else lambda: gate.enter(Request(HOST, slow))
        waiting: list[asyncio.Future[Any]] = [asyncio.ensure_future(wait()) for _ in range(10_000)]
        await asyncio.sleep(0)
        assert gate.queues.waiting == (10_000 if kind == "waiters" else 0)
        gc.disable()  # how much garbage other tests have left is not what is measured
        began = time.thread_time()

        for task in waiting if order == "first first" else reversed(waiting):
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)

        took[kind].append(time.thread_time() - began)
        gc.enable()
        assert gate.queues.waiting == 0
    least, waiters = (min(each) for each in took.values())
    assert waiters < 12 * least, "3 times as long; it was 25 times as long when each was searched for"


async def test_a_window_has_its_tokens_back_from_one_that_is_cancelled_at_the_store(slow: Slow) -> None:
    """L2: sliding_window remembers departures, and forgets that one"""
    gate = Gate(slow)
    policy = UNLIMITED.replace(qps=0.001, burst=5, strategy="sliding_window")
    await ticket_of(gate, Request(HOST, policy, count=2))
    slow.stop_at = (2, "after")
    task = asyncio.ensure_future(gate.enter(Request(HOST, policy, count=3)))
    await slow.stopped.wait()

    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    slow.go_on.set()
    await until(lambda: not gate.driver.background)

    await asyncio.wait_for(ticket_of(gate, Request(HOST, policy, count=3)), 60)
    assert isinstance(await gate.enter(Request(HOST, policy, deadline=10.0)), Late)


@pytest.mark.parametrize("when", ["before", "after"])
async def test_who_stands_behind_one_cancelled_at_the_store_goes_when_its_token_is_back(slow: Slow, when: str) -> None:
    """L2: else it would be charged before, and the token be lost"""
    gate = Gate(slow)
    policy = UNLIMITED.replace(qps=0.001, burst=3)
    slow.stop_at = (1, when)
    first = asyncio.ensure_future(gate.enter(Request(HOST, policy)))
    second = asyncio.ensure_future(ticket_of(gate, Request(HOST, policy)))
    await slow.stopped.wait()

    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    slow.go_on.set()

    await asyncio.wait_for(second, 60)
    await asyncio.wait_for(ticket_of(gate, Request(HOST, policy, count=2)), 60)
    assert isinstance(await gate.enter(Request(HOST, policy, deadline=10.0)), Late)
    assert gate.queues.waiting == 0


def test_a_waiter_that_is_collected_while_the_lines_are_locked_stops_nobody(store: MemoryStore) -> None:
    """L9: a task of a closed loop ends when the garbage collector finds it, in whatever that thread is just at"""
    gate = Gate(store.inner)
    slow = UNLIMITED.replace(qps=0.001)
    assert isinstance(asyncio.run(gate.enter(Request(HOST, slow))), Ticket)
    loop = asyncio.new_event_loop()
    waiter: list[Waiter] = []

    async def wait() -> None:
        waiter.append(gate.timers.waiter())
        await gate.enter(Request(HOST, slow), waiter[0])

    task = loop.create_task(wait())
    loop.run_until_complete(until(lambda: gate.queues.is_queued(HOST)))
    loop.close()
    assert gate.queues._lock.acquire(timeout=60)

    left = threading.Thread(target=gate.queues.leave, args=(HOST, waiter[0]), kwargs={"holding": False})
    left.start()
    left.join(60)

    assert not left.is_alive(), "it waits for the lock, which its own thread may have"
    gate.queues._lock.release()
    assert isinstance(asyncio.run(gate.enter(Request(HOST, UNLIMITED, deadline=5.0))), Ticket)
    task._log_destroy_pending = False  # type: ignore[attr-defined]
