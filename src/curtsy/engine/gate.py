"""The queue before the decision: first come, first served per host, and no host waits for another.

Nothing is consumed until the moment of departure. A waiter stands in its host's line; only the first of a line asks the
store, and when its moment has come the decision is made and it leaves. So a cancelled waiter has nothing to give back,
ten thousand of them cost nothing, and one heap with one timer (per event loop) wakes exactly the one that may go.

There is one set of lines per process and store, whoever comes through it: tasks of any loop, and threads. The way
through is one generator, `resources`, carried out by `Gate` for threads and by `AsyncGate` for tasks.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Awaitable, Callable, Generator
from functools import partial
from typing import Any, TypeVar

import msgspec

from curtsy.core.admission import Amendment, Decision, Go, Late, Lease, No, Settled, Wait
from curtsy.core.errors import Reason, StoreError
from curtsy.core.host import Host
from curtsy.core.message import SECOND
from curtsy.core.outcome import Outcome
from curtsy.core.policy import Policy
from curtsy.engine.gate_steps import (
    amended,
    charge,
    foresee,
    give_back,
    look,
    settled,
    take,
    uncharge,
    uncharged,
    untake,
)
from curtsy.engine.timers import SystemTimers, Timers, Waiter
from curtsy.engine.wait_queue import lines_of
from curtsy.stores import AsyncStore, Step, Store
from curtsy.system.log import library_logger

_log = library_logger("gate")

TOLD = 1.0
"""Seconds: shorter waits are not told, not even to who looks for a fault."""

GLOBAL = "global"
"""The key of the one record that every request passes."""

POLL = 0.25
"""Seconds after which a place that another process holds is asked for again: it cannot tell us."""

HELD = ("in_flight", "trial")
"""Waits for a place that somebody holds: it may be given back at any moment, whatever its lease says."""

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

    renew: Callable[[], tuple[str, Policy, Policy | None] | No] | None = None
    """The key, the host's policy and the global one as they are now, for limits that change while one waits; a No for
    one that may not go any more."""

    crawl_delay: int = 0
    """Microseconds that robots.txt asks of who asks, whatever the record says."""

    rank: float | None = None
    """If it goes before those who stand in line: where among those who do so, too."""

    foreign: bool = False
    """Whether a redirect from another registered domain led here (C22)."""

    guest: bool = False
    """Whether that was one of a robots.txt."""

    def present(self) -> Request | No:
        """The same under the policies of the moment."""
        if self.renew is None:
            return self
        renewed = self.renew()
        if isinstance(renewed, No):
            return renewed
        key, policy, overall = renewed
        if policy is self.policy and overall is self.overall and key == self.key:
            return self
        return msgspec.structs.replace(self, key=key, policy=policy, overall=overall)

    def looked(self) -> Step[Decision]:
        """Decide, and change nothing."""
        return look(
            self.policy, page=self.page, robots=self.robots, count=self.count, crawl_delay=self.crawl_delay,
            foreign=self.foreign, guest=self.guest,
        )  # fmt: skip

    def charged(self, roll: float) -> Step[tuple[Decision, int]]:
        """Decide for good."""
        return charge(
            self.policy, roll, page=self.page, robots=self.robots, count=self.count, crawl_delay=self.crawl_delay,
            foreign=self.foreign, guest=self.guest,
        )  # fmt: skip

    def foreseen(self, ahead: int, more: int) -> Step[float]:
        """The seconds that it must wait at the least, with so many before it who need so many tokens more."""
        return foresee(self.policy, ahead, self.crawl_delay, more, self.count)


class Ticket(msgspec.Struct, frozen=True, gc=False):
    """Leave now, already charged."""

    key: str
    policy: Policy
    go: Go
    waited: float
    """Seconds spent in the line."""

    good_until: float
    """By the alarm's clock, counted from before the store was asked: later than that the place may be another's."""

    epoch: int = 0
    """When it left, in microseconds since 1970 by the store's calendar."""

    beside: tuple[str, Step[Any]] | None = None
    """What gives back the token of the global rate that went with it."""

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
    """What takes back an answer that came when nobody waited for it any more; its None leaves all as it is."""

    beside: tuple[str, Step[Any]] | None = None
    """Another change that goes with taking it back: what the asker had in hand already."""


class Sleep(msgspec.Struct, frozen=True, gc=False):
    """Wait to be woken, at most so long."""

    seconds: float | None


Result = TypeVar("Result")
Way = Generator[Update | Sleep, Any, Result]
"""Something that updates and waits: carried out by `Gate` for threads and by `AsyncGate` for tasks."""


_Beside = tuple[str, Step[Any]] | None
"""A change that takes back what goes with another, if there is such a thing."""


class _Way:
    """What both gates share: the lines, the alarm, the dice, and the way through as a generator."""

    def __init__(self, store: Store | AsyncStore, timers: Timers | None, roll: Callable[[], float]) -> None:
        self.tripped: Callable[[str], None] = lambda key: None
        """Told the key of a host whose breaker has been opened by a reply, if anybody counts that."""
        self._fallback: Any = store
        self.lines = lines_of(store.identity)
        self.timers: Timers = timers or SystemTimers()
        self._roll = roll

    def resources(self, request: Request, waiter: Waiter) -> Way[Answer]:
        """The way of one request through the gate."""
        lines, key = self.lines, request.key
        began = self.timers.now()
        until = None if request.deadline is None else began + request.deadline
        ahead, more = lines.join(key, waiter, request.count, rank=request.rank)
        holding = False
        try:
            if ahead and until is not None:
                needed = yield Update(key, request.foreseen(ahead, more))
                if needed > until - self.timers.now():
                    return Late(needed)
            while True:
                if waiter.closed:
                    return No(Reason.CLOSED, None)
                present = request.present()
                if isinstance(present, No):
                    return present
                request = present
                if request.key != key:  # another record is its own now: to the end of that one's line
                    lines.leave(key, waiter, holding=False)
                    key = request.key
                    lines.join(key, waiter, request.count)
                if not lines.is_first(key, waiter):
                    left = None if until is None else until - self.timers.now()
                    if left is not None and left <= 0:
                        return Late((yield Update(key, request.foreseen(*lines.ahead(key, waiter)))))
                    if lines.tidy(key):
                        left = LOOK_AGAIN if left is None else min(left, LOOK_AGAIN)
                    yield Sleep(left)
                    continue
                request, decision, epoch, asked_at, beside = yield from self._ask(request, waiter, until)
                match decision:
                    case Go():
                        holding = request.policy.concurrency is not None
                        waited, good_until = self.timers.now() - began, asked_at + decision.lease.lasts
                        return Ticket(key, request.policy, decision, waited, good_until, epoch, beside)
                    case No():
                        return decision
                    case Wait(seconds, because):
                        left = None if until is None else until - self.timers.now()
                        if left is not None:
                            # How long a place is held nobody knows: only what comes besides is certain.
                            needed = seconds
                            if because in HELD:
                                needed = yield Update(key, request.foreseen(0, request.count - 1))
                            if needed > left or left <= 0:
                                return Late(needed or POLL)
                        if because in HELD and lines.held(key) < (request.policy.concurrency or 1):
                            seconds = min(seconds, POLL * (0.5 + self._roll()))
                        if seconds >= TOLD and _log.hears(logging.DEBUG):
                            host = key.removeprefix("host:")
                            _log.debug("Waiting for a host", host=host, seconds=round(seconds, 3), because=because)
                        seconds = min(seconds, max(LOOK_AGAIN, seconds / 4))
                        yield Sleep(seconds if left is None else min(seconds, left))
        finally:
            lines.leave(key, waiter, holding=holding)

    def _ask(
        self, request: Request, waiter: Waiter, until: float | None
    ) -> Way[tuple[Request, Decision, int, float, _Beside]]:
        """Ask for the first of a line; also says by which request, and when, by the store's calendar and (from before)
        by our clock, and what would give back the global token, which is in hand before the host is charged."""
        decision: Decision
        beside: _Beside = None
        if request.overall is not None and request.overall.qps is not None:
            news = self.lines.news(request.key)
            decision = yield Update(request.key, request.looked())
            if not isinstance(decision, Go):
                return request, decision, 0, 0.0, None
            token = yield from self._token(request, waiter, until, news)
            if not isinstance(token, Lease):
                return request, token, 0, 0.0, None
            if token is not PREPAID:
                beside = GLOBAL, give_back(request.overall, token)
            present = _still(request)
            if not isinstance(present, Request):
                yield from self._put_back(beside)
                return request, present, 0, 0.0, None
            request = present
        asked_at = self.timers.now()
        undo = partial(uncharge, request.policy, request.count)
        decision, epoch = yield Update(request.key, request.charged(self._roll()), undo, beside)
        if not isinstance(decision, Go):
            yield from self._put_back(beside)
        return request, decision, epoch, asked_at, beside

    def _put_back(self, beside: _Beside) -> Way[None]:
        """Give back a global token that is not needed after all, and tell who waits for it."""
        if beside is not None:
            try:
                yield Update(*beside, undo=_let_it_be)
            finally:
                self.lines.nudge(GLOBAL)

    def _token(self, request: Request, waiter: Waiter, until: float | None, news: int) -> Way[Lease | Wait | No]:
        """Wait for a token of the global rate, in a line of its own, where registered domains take turns.

        Whenever there are other news of the host than the ones given, it is looked at again.
        """
        lines = self.lines
        ahead, _ = lines.join_shared(GLOBAL, waiter, request.key.removeprefix("host:"))
        try:
            while True:
                if waiter.closed:
                    return No(Reason.CLOSED, None)
                present = _still(request)
                if not isinstance(present, Request):
                    return present
                if present is not request or lines.news(request.key) != news:
                    request, news = present, lines.news(request.key)
                    looked: Decision = yield Update(request.key, request.looked())
                    if not isinstance(looked, Go):
                        return looked
                if request.overall is None or request.overall.qps is None:
                    return PREPAID  # the limit was lifted meanwhile
                overall = self._shared_out(request.overall)
                batch = _batch(overall)
                left = None if until is None else until - self.timers.now()
                if not lines.is_first(GLOBAL, waiter):
                    if left is not None and batch == 1:
                        needed = yield Update(GLOBAL, foresee(overall, ahead))
                        if needed > left:
                            return Wait(needed, "global")
                    if left is not None and left <= 0:
                        return Wait(overall.interval_us / SECOND, "global")
                    if lines.tidy(GLOBAL):
                        left = LOOK_AGAIN if left is None else min(left, LOOK_AGAIN)
                    yield Sleep(left)
                    ahead, _ = lines.ahead(GLOBAL, waiter)
                    continue
                while lines.prepaid:
                    if lines.prepaid.popleft() > self.timers.now():
                        return PREPAID
                # What is left of a batch lapses when the next can be had: so no two of them are saved up.
                lapses_at = self.timers.now() + batch * overall.interval_us / SECOND
                decision: Decision = yield Update(GLOBAL, take(overall, batch), partial(untake, overall, batch))
                if isinstance(decision, Go):
                    lines.prepaid.extend([lapses_at] * (batch - 1))
                    return decision.lease
                if isinstance(decision, No) or (left is not None and decision.seconds > left):
                    return decision
                yield Sleep(decision.seconds)
        finally:
            lines.leave(GLOBAL, waiter, holding=False)

    def _told(self, ticket: Ticket, answer: tuple[Settled, bool]) -> Settled:
        """Tell of a breaker that a reply has opened; what holds for the host now is handed on."""
        settled, has_tripped = answer
        if has_tripped:
            self.tripped(ticket.key)
        return settled

    def _give_way(self, ticket: Ticket) -> None:
        """Let the next one ask: there is a place again, or it is to be refused now."""
        if ticket.policy.concurrency is not None:
            self.lines.returned(ticket.key)
        else:
            self.lines.nudge(ticket.key)

    def _shared_out(self, overall: Policy) -> Policy:
        """The global policy, or this process's share of it while the shared store cannot be reached."""
        share: float = getattr(self._fallback, "share", 1.0)
        if share >= 1.0 or overall.qps is None:
            return overall
        return overall.replace(qps=overall.qps * share)


PREPAID = Lease(0, 0, 0.0, False)
"""A global token that was paid for with others; it is not worth giving back."""


def _batch(overall: Policy) -> int:
    """How many global tokens are taken at once: a twentieth of a second's worth, so 1 at rates that one can follow."""
    return max(1, int((overall.qps or 0.0) / 20))


def _still(request: Request) -> Request | Wait | No:
    """The request under the policies of the moment, if its record is still the same; else it must ask anew."""
    present = request.present()
    return Wait(0.0, "changed") if isinstance(present, Request) and present.key != request.key else present


def _let_it_be(answer: object) -> None:
    """The undo of what is to be done to its end, though nobody waits for it."""


class Gate(_Way):
    """The gate for threads."""

    def __init__(
        self, store: Store, *, timers: Timers | None = None, roll: Callable[[], float] = random.random
    ) -> None:
        super().__init__(store, timers, roll)
        self._store = store

    def enter(self, request: Request, waiter: Waiter | None = None) -> Answer:
        """Wait until the request may leave, and charge it. Nothing is taken when the answer is not a Ticket."""
        waiter = waiter or self.timers.waiter()
        return self.carry(self.resources(request, waiter), waiter)

    def carry(self, way: Way[Result], waiter: Waiter) -> Result:
        """Carry out a way to its end."""
        try:
            effect = next(way)
            while True:
                if isinstance(effect, Update):
                    effect = way.send(self._store.update(effect.key, effect.step))
                else:
                    self.timers.sleep(waiter, effect.seconds)
                    effect = next(way)
        except StopIteration as end:
            result: Result = end.value
            return result
        finally:
            way.close()

    def put_back(self, ticket: Ticket) -> None:
        """Give back a place that is not needed after all, with its turn, as if it had never been taken."""
        try:
            self._store.update(ticket.key, uncharged(ticket.policy, ticket.lease))
            if ticket.beside is not None:
                self._store.update(*ticket.beside)
        finally:
            self._give_way(ticket)
            self.lines.nudge(GLOBAL)

    def leave(self, ticket: Ticket, outcome: Outcome) -> Settled:
        """Write the consequences of what came back, and let the next one ask."""
        try:
            return self._told(ticket, self._store.update(ticket.key, settled(ticket.policy, ticket.lease, outcome)))
        finally:
            self._give_way(ticket)

    def amend(self, key: str, policy: Policy, change: Amendment) -> Host:
        """Change a host's record by hand, and let who waits for it ask again."""
        host = self._store.update(key, amended(policy, change))
        self.lines.nudge(key)
        return host


class AsyncGate(_Way):
    """The gate for tasks."""

    def __init__(
        self, store: AsyncStore, *, timers: Timers | None = None, roll: Callable[[], float] = random.random
    ) -> None:
        super().__init__(store, timers, roll)
        self._store = store
        self.is_immediate: bool = getattr(store, "is_immediate", False)
        """Whether the store answers without waiting, as memory does."""
        self._at_once: Store | None = getattr(store, "at_once", None) if self.is_immediate else None
        self._background: set[asyncio.Future[None]] = set()
        self._undone: set[Way[Any]] = set()
        """Ways that end when what they have taken is back: until then nobody else gets on in their lines."""

    def enter_at_once(
        self,
        key: str,
        policy: Policy,
        overall: Policy | None,
        *,
        page: bool,
        robots: bool,
        crawl_delay: int = 0,
        foreign: bool = False,
        guest: bool = False,
    ) -> Ticket | No | None:
        """The short way through, for a request that need not wait; None if it must stand in line.

        That is so when the store would have to be waited for, when there is a global rate, when others stand in line
        already, and when the decision is to wait. Nothing is taken unless the answer is a Ticket.
        """
        store, lines = self._at_once, self.lines
        if store is None or (overall is not None and overall.qps is not None) or lines.is_queued(key):
            return None
        asked_at = self.timers.now()
        step = charge(
            policy, self._roll(), page=page, robots=robots, crawl_delay=crawl_delay, foreign=foreign, guest=guest
        )  # fmt: skip
        decision, epoch = store.update(key, step)
        if isinstance(decision, Go):
            if policy.concurrency is not None:
                lines.hold(key)
            return Ticket(key, policy, decision, 0.0, asked_at + decision.lease.lasts, epoch)
        return decision if isinstance(decision, No) else None

    def leave_at_once(self, ticket: Ticket, outcome: Outcome) -> Settled:
        """The same as `leave()`, where the store need not be waited for (`is_immediate`)."""
        assert self._at_once is not None
        try:
            return self._told(ticket, self._at_once.update(ticket.key, settled(ticket.policy, ticket.lease, outcome)))
        finally:
            self._give_way(ticket)

    async def enter(self, request: Request, waiter: Waiter | None = None) -> Answer:
        """Wait until the request may leave, and charge it. Nothing is taken when the answer is not a Ticket."""
        waiter = waiter or self.timers.async_waiter()
        return await self.carry(self.resources(request, waiter), waiter)

    async def carry(self, way: Way[Result], waiter: Waiter) -> Result:
        """Carry out a way to its end."""
        try:
            effect = next(way)
            while True:
                if not isinstance(effect, Update):
                    await self.timers.async_sleep(waiter, effect.seconds)
                    effect = next(way)
                elif effect.undo is None or self.is_immediate:
                    effect = way.send(await self._store.update(effect.key, effect.step))
                else:
                    effect = way.send(await self._update(effect, effect.undo, way))
        except StopIteration as end:
            result: Result = end.value
            return result
        finally:
            if way not in self._undone:
                way.close()

    async def _update(self, effect: Update, undo: Callable[[Any], Step[Any] | None], way: Way[Any]) -> Any:
        """Update, and take it back by `undo(answer)` if the task is cancelled while the store is at it."""
        update = asyncio.ensure_future(self._store.update(effect.key, effect.step))
        try:
            return await asyncio.shield(update)
        except asyncio.CancelledError:
            self._undone.add(way)
            undoing = asyncio.ensure_future(self._undo(effect, update, undo, way))
            self._background.add(undoing)
            undoing.add_done_callback(self._background.discard)
            raise

    async def _undo(
        self, effect: Update, update: Awaitable[Any], undo: Callable[[Any], Step[Any] | None], way: Way[Any]
    ) -> None:
        try:
            # A store that is out cannot be told: then a place comes back when its lease runs out.
            with contextlib.suppress(StoreError):
                if (step := undo(await update)) is not None:
                    await self._store.update(effect.key, step)
                    self.lines.nudge(effect.key)
            if effect.beside is not None:
                key, step = effect.beside
                with contextlib.suppress(StoreError):
                    await self._store.update(key, step)
                    self.lines.nudge(key)
        finally:
            self._undone.discard(way)
            way.close()

    async def put_back(self, ticket: Ticket) -> None:
        """Give back a place that is not needed after all, with its turn, as if it had never been taken."""
        try:
            await self._store.update(ticket.key, uncharged(ticket.policy, ticket.lease))
            if ticket.beside is not None:
                await self._store.update(*ticket.beside)
        finally:
            self._give_way(ticket)
            self.lines.nudge(GLOBAL)

    async def leave(self, ticket: Ticket, outcome: Outcome) -> Settled:
        """Write the consequences of what came back, and let the next one ask."""
        try:
            return self._told(
                ticket, await self._store.update(ticket.key, settled(ticket.policy, ticket.lease, outcome))
            )
        finally:
            self._give_way(ticket)

    async def amend(self, key: str, policy: Policy, change: Amendment) -> Host:
        """Change a host's record by hand, and let who waits for it ask again."""
        host = await self._store.update(key, amended(policy, change))
        self.lines.nudge(key)
        return host
