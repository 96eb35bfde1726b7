"""Gate that admits requests in FIFO order per host; no host waits for another.

Nothing is charged until a request leaves. Each waiter is in its host's queue, and only the first one asks the store. A
cancelled waiter therefore has nothing to return, and ten thousand waiters cost nothing. One heap with one timer per
event loop wakes exactly the waiter that may go.

There is one set of queues per process and store, shared by the tasks of all loops and by threads. The passage is one
generator, `resources`, which `Gate` runs for threads and `AsyncGate` for tasks.
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

from curtsy.core.amendment import Amendment
from curtsy.core.decision import Decision, Go, Late, Lease, No, Settled, Wait
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
"""Seconds: shorter waits are not logged, even at debug level."""

GLOBAL = "global"
"""Key of the record of the global rate, which every request passes."""

POLL = 0.25
"""Seconds between checks of a slot that another process holds: it cannot notify this one."""

HELD = ("in_flight", "trial")
"""Causes of waits for a slot that another request holds. It may be released before its lease expires."""

LOOK_AGAIN = 30.0
"""Seconds until a long wait is checked again, or a quarter of it if longer: a user may have ended it."""


class Request(msgspec.Struct, frozen=True, gc=False):
    """Request for admission."""

    key: str
    policy: Policy
    overall: Policy | None = None
    """Policy of the global rate; None for no global rate."""

    page: bool = True
    robots: bool = False
    count: int = 1
    """Rate tokens needed together."""

    deadline: float | None = None
    """Maximum seconds to wait; None for no limit."""

    renew: Callable[[], tuple[str, Policy, Policy | None] | No] | None = None
    """Function that returns the current key, host policy and global policy, which may change during a wait.

    It returns a No if the request is now forbidden.
    """

    crawl_delay: int = 0
    """Microseconds of Crawl-delay for this user agent, whatever the record says."""

    rank: float | None = None
    """Position among the waiters at the front of the queue, lowest first; None for the end of the queue."""

    foreign: bool = False
    """True if a redirect from another registered domain led here (C22)."""

    guest: bool = False
    """True if that redirect was of a robots.txt."""

    def present(self) -> Request | No:
        """Return the request under the current policies, or a No if they forbid it."""
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
        """Return the step that decides without changing the record."""
        return look(
            self.policy, page=self.page, robots=self.robots, count=self.count, crawl_delay=self.crawl_delay,
            foreign=self.foreign, guest=self.guest,
        )  # fmt: skip

    def charged(self, roll: float) -> Step[tuple[Decision, int]]:
        """Return the step that decides and charges the record."""
        return charge(
            self.policy, roll, page=self.page, robots=self.robots, count=self.count, crawl_delay=self.crawl_delay,
            foreign=self.foreign, guest=self.guest,
        )  # fmt: skip

    def foreseen(self, ahead: int, more: int) -> Step[float]:
        """Return the step that computes the minimum wait in seconds.

        `ahead` waiters are in front; they and this request need `more` tokens beyond one each.
        """
        return foresee(self.policy, ahead, self.crawl_delay, more, self.count)


class Ticket(msgspec.Struct, frozen=True, gc=False):
    """Permission to send now, already charged."""

    key: str
    policy: Policy
    go: Go
    waited: float
    """Seconds spent in the queue."""

    good_until: float
    """Time of the timers' clock until which the slot is certain, counted from before the store was called."""

    epoch: int = 0
    """Departure in microseconds since 1970, by the store's calendar."""

    beside: tuple[str, Step[Any]] | None = None
    """Key and step that return the global token of this ticket."""

    @property
    def lease(self) -> Lease:
        """Return the lease, which `leave()` gives back."""
        return self.go.lease


Answer = Ticket | No | Late


class Update(msgspec.Struct, frozen=True, gc=False):
    """Effect: update a record by a step, and answer with the step's result."""

    key: str
    step: Step[Any]
    undo: Callable[[Any], Step[Any] | None] | None = None
    """Function from the answer to a step that reverts it if the caller was cancelled; None from it keeps the change."""

    beside: tuple[str, Step[Any]] | None = None
    """Another key and step for the revert: the caller's global token."""


class Sleep(msgspec.Struct, frozen=True, gc=False):
    """Effect: wait to be woken, at most `seconds`; None for no limit."""

    seconds: float | None


Result = TypeVar("Result")
Way = Generator[Update | Sleep, Any, Result]
"""Generator of updates and waits, run by `Gate` for threads and by `AsyncGate` for tasks."""


_Beside = tuple[str, Step[Any]] | None
"""Key and step that revert a related change, if there is one."""


class _Way:
    """Common base of both gates: queues, timers, random source and the passage as a generator."""

    def __init__(self, store: Store | AsyncStore, timers: Timers | None, roll: Callable[[], float]) -> None:
        self.tripped: Callable[[str], None] = lambda key: None
        """Callback with the key of a host whose breaker a reply has opened."""
        self._fallback: Any = store
        self.lines = lines_of(store.identity)
        self.timers: Timers = timers or SystemTimers()
        self._roll = roll

    def resources(self, request: Request, waiter: Waiter) -> Way[Answer]:
        """Run one request through the gate, as a generator."""
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
                if request.key != key:  # its record has changed: it joins the end of that queue
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
                            # The release of a held slot is unpredictable. Only the other waits are certain.
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
        """Decide for the first waiter of a queue. The global token is taken before the host is charged.

        Returns the request used, the decision, its epoch by the store in microseconds, the timers' time before the
        call, and the change that returns the global token.
        """
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
        """Return an unused global token and wake the next waiter for it."""
        if beside is not None:
            try:
                yield Update(*beside, undo=_let_it_be)
            finally:
                self.lines.nudge(GLOBAL)

    def _token(self, request: Request, waiter: Waiter, until: float | None, news: int) -> Way[Lease | Wait | No]:
        """Wait for a token of the global rate, in a queue where registered domains take turns.

        If the news number of the host's queue differs from `news`, the host's record is checked again.
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
                    return PREPAID  # the global limit was removed meanwhile
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
                # Unused tokens of a batch expire when the next batch is available, so batches do not accumulate.
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
        """Report a breaker that this reply opened; return the host's new state."""
        settled, has_tripped = answer
        if has_tripped:
            self.tripped(ticket.key)
        return settled

    def _give_way(self, ticket: Ticket) -> None:
        """Wake the next waiter: a slot is free, or the host now refuses."""
        if ticket.policy.concurrency is not None:
            self.lines.returned(ticket.key)
        else:
            self.lines.nudge(ticket.key)

    def _shared_out(self, overall: Policy) -> Policy:
        """Return the global policy, or this process's share of it while the shared store is unreachable."""
        share: float = getattr(self._fallback, "share", 1.0)
        if share >= 1.0 or overall.qps is None:
            return overall
        return overall.replace(qps=overall.qps * share)


PREPAID = Lease(0, 0, 0.0, False)
"""Token from a batch taken earlier; it is not returned if unused."""


def _batch(overall: Policy) -> int:
    """Return how many global tokens to take at once: those of a twentieth of a second, at least 1."""
    return max(1, int((overall.qps or 0.0) / 20))


def _still(request: Request) -> Request | Wait | No:
    """Return the request under the current policies; a zero wait if it must start over on another record."""
    present = request.present()
    return Wait(0.0, "changed") if isinstance(present, Request) and present.key != request.key else present


def _let_it_be(answer: object) -> None:
    """Undo nothing: the update must complete even if its caller is cancelled."""


class Gate(_Way):
    """Gate for threads."""

    def __init__(
        self, store: Store, *, timers: Timers | None = None, roll: Callable[[], float] = random.random
    ) -> None:
        super().__init__(store, timers, roll)
        self._store = store

    def enter(self, request: Request, waiter: Waiter | None = None) -> Answer:
        """Wait until the request may leave, and charge it. Only a Ticket charges anything."""
        waiter = waiter or self.timers.waiter()
        return self.carry(self.resources(request, waiter), waiter)

    def carry(self, way: Way[Result], waiter: Waiter) -> Result:
        """Run a passage to its end and return its result."""
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
        """Return an unused ticket: slot, budget and rate are as if it had never been taken."""
        try:
            self._store.update(ticket.key, uncharged(ticket.policy, ticket.lease))
            if ticket.beside is not None:
                self._store.update(*ticket.beside)
        finally:
            self._give_way(ticket)
            self.lines.nudge(GLOBAL)

    def leave(self, ticket: Ticket, outcome: Outcome) -> Settled:
        """Record the consequences of a reply and wake the next waiter."""
        try:
            return self._told(ticket, self._store.update(ticket.key, settled(ticket.policy, ticket.lease, outcome)))
        finally:
            self._give_way(ticket)

    def amend(self, key: str, policy: Policy, change: Amendment) -> Host:
        """Apply a user's change to a host's record and wake its first waiter."""
        host = self._store.update(key, amended(policy, change))
        self.lines.nudge(key)
        return host


class AsyncGate(_Way):
    """Gate for tasks."""

    def __init__(
        self, store: AsyncStore, *, timers: Timers | None = None, roll: Callable[[], float] = random.random
    ) -> None:
        super().__init__(store, timers, roll)
        self._store = store
        self.is_immediate: bool = getattr(store, "is_immediate", False)
        """True if the store never suspends, as with memory."""
        self._at_once: Store | None = getattr(store, "at_once", None) if self.is_immediate else None
        self._background: set[asyncio.Future[None]] = set()
        self._undone: set[Way[Any]] = set()
        """Passages whose cancelled update is being reverted. Until that is done, their queues do not advance."""

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
        """Admit a request that need not wait; return None if it must queue.

        It must queue if the store may suspend, a global rate applies, other requests are queued, or the decision is to
        wait. Only a Ticket charges anything.
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
        """Do the same as `leave()` on a store that never suspends (`is_immediate`)."""
        assert self._at_once is not None
        try:
            return self._told(ticket, self._at_once.update(ticket.key, settled(ticket.policy, ticket.lease, outcome)))
        finally:
            self._give_way(ticket)

    async def enter(self, request: Request, waiter: Waiter | None = None) -> Answer:
        """Wait until the request may leave, and charge it. Only a Ticket charges anything."""
        waiter = waiter or self.timers.async_waiter()
        return await self.carry(self.resources(request, waiter), waiter)

    async def carry(self, way: Way[Result], waiter: Waiter) -> Result:
        """Run a passage to its end and return its result."""
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
        """Update a record; if the task is cancelled meanwhile, revert the update by `undo(answer)`."""
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
            # If the store is unreachable, the slot is freed when its lease expires.
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
        """Return an unused ticket: slot, budget and rate are as if it had never been taken."""
        try:
            await self._store.update(ticket.key, uncharged(ticket.policy, ticket.lease))
            if ticket.beside is not None:
                await self._store.update(*ticket.beside)
        finally:
            self._give_way(ticket)
            self.lines.nudge(GLOBAL)

    async def leave(self, ticket: Ticket, outcome: Outcome) -> Settled:
        """Record the consequences of a reply and wake the next waiter."""
        try:
            return self._told(
                ticket, await self._store.update(ticket.key, settled(ticket.policy, ticket.lease, outcome))
            )
        finally:
            self._give_way(ticket)

    async def amend(self, key: str, policy: Policy, change: Amendment) -> Host:
        """Apply a user's change to a host's record and wake its first waiter."""
        host = await self._store.update(key, amended(policy, change))
        self.lines.nudge(key)
        return host
