"""The queue before the decision: first come, first served per host, and no host waits for another.

Nothing is consumed until the moment of departure. A waiter stands in its host's line; only the first of a line asks the
store, and when its moment has come the decision is made and it leaves. So a cancelled waiter has nothing to give back,
ten thousand of them cost nothing, and one heap with one timer (per event loop) wakes exactly the one that may go.

There is one set of lines per process and store, whoever comes through it: tasks of any loop, and threads. The way
through is one generator, `passage`, carried out by `Gate` for threads and by `AsyncGate` for tasks.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Generator
from typing import Any, TypeVar

import msgspec

from curtsy.alarm import Alarm, SystemAlarm, Waiter
from curtsy.core.admission import (
    Amendment,
    Decision,
    Go,
    Late,
    Lease,
    No,
    Return,
    Wait,
    admit,
    amend,
    forecast,
    settle,
)
from curtsy.core.errors import Reason
from curtsy.core.host import Host
from curtsy.core.message import Now
from curtsy.core.outcome import Kind, Outcome
from curtsy.core.policy import Policy
from curtsy.lines import lines_of
from curtsy.stores import AsyncStore, Step, Store

GLOBAL = "global"
"""The key of the one record that every request passes."""

POLL = 0.25
"""Seconds after which a place that another process holds is asked for again: it cannot tell us."""

LOOK_AGAIN = 30.0
"""Seconds after which a long wait is looked at again, or a quarter of it if that is more: a hand may have ended it."""


class Request(msgspec.Struct, frozen=True, gc=False):
    """What is asked of the gate."""

    key: str
    policy: Policy
    overall: Policy | None = None
    """The policy of the global rate; None if there is none."""

    page: bool = True
    robots: bool = False
    count: int = 1
    """How many tokens of the rate are needed at once."""

    deadline: float | None = None
    """Seconds that may be waited; None for as long as it takes."""


class Ticket(msgspec.Struct, frozen=True, gc=False):
    """Leave now, already charged."""

    key: str
    policy: Policy
    go: Go
    waited: float
    """Seconds spent in the line."""

    good_until: float
    """By the alarm's clock, counted from before the store was asked: later than that the place may be another's."""

    @property
    def lease(self) -> Lease:
        """What must be given back by `leave()`."""
        return self.go.lease


Answer = Ticket | No | Late


class Update(msgspec.Struct, frozen=True, gc=False):
    """Change a record by a step: answered by what the step answers."""

    key: str
    step: Step[Any]
    undo: Callable[[Any], Step[Any] | None] | None = None
    """What takes back an answer that came when nobody waited for it any more."""


class Sleep(msgspec.Struct, frozen=True, gc=False):
    """Wait to be woken, at most so long."""

    seconds: float | None


Result = TypeVar("Result")
Way = Generator[Update | Sleep, Any, Result]
"""Something that updates and waits: carried out by `Gate` for threads and by `AsyncGate` for tasks."""


class _Way:
    """What both gates share: the lines, the alarm, the dice, and the way through as a generator."""

    def __init__(self, store: Store | AsyncStore, alarm: Alarm | None, roll: Callable[[], float]) -> None:
        self._shelter: Any = store
        self.lines = lines_of(store.identity)
        self.alarm: Alarm = alarm or SystemAlarm()
        self._roll = roll

    def passage(self, request: Request, waiter: Waiter) -> Way[Answer]:
        """The way of one request through the gate."""
        lines, key = self.lines, request.key
        began = self.alarm.now()
        until = None if request.deadline is None else began + request.deadline
        ahead = lines.join(key, waiter)
        holding = False
        try:
            if ahead and until is not None:
                needed = yield Update(key, _foresee(request, ahead))
                if needed > until - self.alarm.now():
                    return Late(needed)
            while True:
                if waiter.closed:
                    return No(Reason.CLOSED, None)
                left = None if until is None else until - self.alarm.now()
                if not lines.is_first(key, waiter):
                    if left is not None and left <= 0:
                        return Late((yield Update(key, _foresee(request, ahead))))
                    yield Sleep(left)
                    continue
                decision, asked_at = yield from self._ask(request, waiter, until)
                match decision:
                    case Go():
                        holding = request.policy.concurrency is not None
                        waited = self.alarm.now() - began
                        return Ticket(key, request.policy, decision, waited, asked_at + decision.lease.lasts)
                    case No():
                        return decision
                    case Wait(seconds, because):
                        if left is not None and seconds > left:
                            return Late(seconds)
                        if because in ("in_flight", "trial") and not lines.holds(key):
                            seconds = min(seconds, POLL * (0.5 + self._roll()))
                        yield Sleep(min(seconds, max(LOOK_AGAIN, seconds / 4)))
        finally:
            lines.leave(key, waiter, holding=holding)

    def _ask(self, request: Request, waiter: Waiter, until: float | None) -> Way[tuple[Decision, float]]:
        """Ask for the first of a line, and say when. The global token is in hand before the host is charged."""
        decision: Decision
        overall = request.overall
        token: Lease | None = None
        if overall is not None and overall.qps is not None:
            decision = yield Update(request.key, _look(request))
            if not isinstance(decision, Go):
                return decision, 0.0
            taken = yield from self._token(self._shared_out(overall), waiter, until)
            if not isinstance(taken, Lease):
                return taken, 0.0
            token = taken
        asked_at = self.alarm.now()
        decision = yield _charge(request, self._roll())
        if token is not None and overall is not None and not isinstance(decision, Go):
            yield Update(GLOBAL, _return(overall, token))
            self.lines.nudge(GLOBAL)
        return decision, asked_at

    def _token(self, overall: Policy, waiter: Waiter, until: float | None) -> Way[Lease | Wait | No]:
        """Wait for a token of the global rate, in a line of its own, which all hosts share."""
        lines = self.lines
        batch = _batch(overall)
        lines.join(GLOBAL, waiter)
        try:
            while True:
                if waiter.closed:
                    return No(Reason.CLOSED, None)
                left = None if until is None else until - self.alarm.now()
                if not lines.is_first(GLOBAL, waiter):
                    if left is not None and left <= 0:
                        return Wait(overall.interval_us / 1e6, "global")
                    yield Sleep(left)
                    continue
                while lines.prepaid:
                    if lines.prepaid.popleft() > self.alarm.now():
                        return PREPAID
                decision: Decision = yield Update(GLOBAL, _take(overall, batch))
                if isinstance(decision, Go):
                    lapses_at = self.alarm.now() + 1.0
                    lines.prepaid.extend([lapses_at] * (batch - 1))
                    return decision.lease
                if isinstance(decision, No) or (left is not None and decision.seconds > left):
                    return decision
                yield Sleep(decision.seconds)
        finally:
            lines.leave(GLOBAL, waiter, holding=False)

    def _shared_out(self, overall: Policy) -> Policy:
        """The global policy, or this process's share of it while the shared store cannot be reached."""
        share: float = getattr(self._shelter, "share", 1.0)
        if share >= 1.0 or overall.qps is None:
            return overall
        return overall.but(qps=overall.qps * share)


PREPAID = Lease(0, 0, 0.0, False)
"""A global token that was paid for with others; it is not worth giving back."""


def _batch(overall: Policy) -> int:
    """How many global tokens are taken at once: a twentieth of a second's worth, so 1 at rates that one can follow."""
    return max(1, int((overall.qps or 0.0) / 20))


def _charge(request: Request, roll: float) -> Update:
    """Admit for good; should the one who asked be gone when the answer comes, what it took is given back."""

    def undo(decision: Decision) -> Step[Host] | None:
        if not isinstance(decision, Go):
            return None
        return _settle(request.policy, decision.lease, Outcome(Kind.ABANDONED, sent=False))

    return Update(request.key, _admit(request, roll), undo)


def _admit(request: Request, roll: float) -> Step[Decision]:
    def step(host: Host | None, now: Now) -> tuple[Host | None, Decision]:
        return admit(
            host, now, request.policy, roll, page=request.page, robots=request.robots, count=request.count
        )  # fmt: skip

    return step


def _look(request: Request) -> Step[Decision]:
    def step(host: Host | None, now: Now) -> tuple[Host | None, Decision]:
        return host, admit(
            host, now, request.policy, page=request.page, robots=request.robots, count=request.count
        )[1]  # fmt: skip

    return step


def _foresee(request: Request, ahead: int) -> Step[float]:
    def step(host: Host | None, now: Now) -> tuple[Host | None, float]:
        return host, forecast(host, now, request.policy, ahead)

    return step


def _take(overall: Policy, count: int) -> Step[Decision]:
    def step(host: Host | None, now: Now) -> tuple[Host | None, Decision]:
        return admit(host, now, overall, page=False, count=count, scheduled=True)

    return step


def _return(overall: Policy, token: Lease) -> Step[None]:
    def step(host: Host | None, now: Now) -> tuple[Host | None, None]:
        return (None, None) if host is None else (amend(host, now, overall, Return(token)), None)

    return step


def _settle(policy: Policy, lease: Lease | None, outcome: Outcome) -> Step[Host]:
    def step(host: Host | None, now: Now) -> tuple[Host, Host]:
        settled = settle(host, now, policy, lease, outcome)
        return settled, settled

    return step


def _amend(policy: Policy, change: Amendment) -> Step[Host]:
    def step(host: Host | None, now: Now) -> tuple[Host, Host]:
        amended = amend(host, now, policy, change)
        return amended, amended

    return step


class Gate(_Way):
    """The gate for threads."""

    def __init__(self, store: Store, *, alarm: Alarm | None = None, roll: Callable[[], float] = random.random) -> None:
        super().__init__(store, alarm, roll)
        self._store = store

    def enter(self, request: Request, waiter: Waiter | None = None) -> Answer:
        """Wait until the request may leave, and charge it. Nothing is taken when the answer is not a Ticket."""
        waiter = waiter or self.alarm.waiter()
        return self.carry(self.passage(request, waiter), waiter)

    def carry(self, way: Way[Result], waiter: Waiter) -> Result:
        """Carry out a way to its end."""
        try:
            effect = next(way)
            while True:
                if isinstance(effect, Update):
                    effect = way.send(self._store.update(effect.key, effect.step))
                else:
                    self.alarm.sleep(waiter, effect.seconds)
                    effect = next(way)
        except StopIteration as end:
            result: Result = end.value
            return result
        finally:
            way.close()

    def leave(self, ticket: Ticket, outcome: Outcome) -> Host:
        """Write the consequences of what came back, and let the next one ask."""
        try:
            return self._store.update(ticket.key, _settle(ticket.policy, ticket.lease, outcome))
        finally:
            if ticket.policy.concurrency is not None:
                self.lines.returned(ticket.key)

    def amend(self, key: str, policy: Policy, change: Amendment) -> Host:
        """Change a host's record by hand, and let who waits for it ask again."""
        host = self._store.update(key, _amend(policy, change))
        self.lines.nudge(key)
        return host


class AsyncGate(_Way):
    """The gate for tasks."""

    def __init__(
        self, store: AsyncStore, *, alarm: Alarm | None = None, roll: Callable[[], float] = random.random
    ) -> None:
        super().__init__(store, alarm, roll)
        self._store = store
        self._is_immediate: bool = getattr(store, "is_immediate", False)
        self._background: set[asyncio.Future[None]] = set()

    async def enter(self, request: Request, waiter: Waiter | None = None) -> Answer:
        """Wait until the request may leave, and charge it. Nothing is taken when the answer is not a Ticket."""
        waiter = waiter or self.alarm.async_waiter()
        return await self.carry(self.passage(request, waiter), waiter)

    async def carry(self, way: Way[Result], waiter: Waiter) -> Result:
        """Carry out a way to its end."""
        try:
            effect = next(way)
            while True:
                if not isinstance(effect, Update):
                    await self.alarm.async_sleep(waiter, effect.seconds)
                    effect = next(way)
                elif effect.undo is None:
                    effect = way.send(await self._store.update(effect.key, effect.step))
                else:
                    effect = way.send(await self._update(effect.key, effect.step, effect.undo))
        except StopIteration as end:
            result: Result = end.value
            return result
        finally:
            way.close()

    async def _update(self, key: str, step: Step[Any], undo: Callable[[Any], Step[Any] | None]) -> Any:
        """Update, and take it back by `undo(answer)` if the task is cancelled while the store is at it."""
        if self._is_immediate:
            return await self._store.update(key, step)
        update = asyncio.ensure_future(self._store.update(key, step))
        try:
            return await asyncio.shield(update)
        except asyncio.CancelledError:
            undoing = asyncio.ensure_future(self._undo(key, update, undo))
            self._background.add(undoing)
            undoing.add_done_callback(self._background.discard)
            raise

    async def _undo(self, key: str, update: Awaitable[Any], undo: Callable[[Any], Step[Any] | None]) -> None:
        step = undo(await update)
        if step is not None:
            await self._store.update(key, step)
            self.lines.nudge(key)

    async def leave(self, ticket: Ticket, outcome: Outcome) -> Host:
        """Write the consequences of what came back, and let the next one ask."""
        try:
            return await self._store.update(ticket.key, _settle(ticket.policy, ticket.lease, outcome))
        finally:
            if ticket.policy.concurrency is not None:
                self.lines.returned(ticket.key)

    async def amend(self, key: str, policy: Policy, change: Amendment) -> Host:
        """Change a host's record by hand, and let who waits for it ask again."""
        host = await self._store.update(key, _amend(policy, change))
        self.lines.nudge(key)
        return host
