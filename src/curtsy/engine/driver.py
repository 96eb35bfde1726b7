"""Driver that executes the effects of a flow.

`Driver.procedure()` turns a flow into a procedure, whose effects on the store `StoreDriver` executes. At the end of a
flow, also after an error, the driver returns its slot at the host, its budget and its claim on rules.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from types import GeneratorType
from typing import Any, TypeVar
from weakref import ref

import msgspec

from curtsy.core.amendment import Renew
from curtsy.core.cache import Store as StorePage
from curtsy.core.decision import Late, Settled
from curtsy.core.effects import (
    Admitted,
    Amend,
    Claim,
    Effect,
    Enter,
    FetchRequest,
    Flow,
    Hold,
    Keep,
    Later,
    Learn,
    MayRetry,
    PutBack,
    Recall,
    Release,
    Remember,
    Render,
    Send,
    Settle,
    Tell,
)
from curtsy.core.errors import RecordTooNew, StoreError
from curtsy.core.fetch_state import UNHEARD, UNSENT
from curtsy.core.request import Failure, Reply, Request, Response
from curtsy.core.rules import Busy, Claimed, Known, Rules
from curtsy.engine.context import Context, HeldResources, learn_step, limits_of, release_step, rules_key
from curtsy.engine.gate import LOGGED, POLL, Answer, Gate, Ticket
from curtsy.engine.gate_steps import Request as GateRequest
from curtsy.engine.store_driver import Finished, Procedure, Read, Sleep, StoreDriver, Update, single
from curtsy.http.exchange import was_sent
from curtsy.http.sender import Sender
from curtsy.system.log import library_logger
from curtsy.system.threads import in_thread

Result = TypeVar("Result")

_log = library_logger("drive")
_gate_log = library_logger("gate")


SMALL = 256 * 1024
"""Bytes of body up to which a cache write is done in place; larger ones run in a thread."""


def _tell(request: Request, reply: Reply) -> None:
    """Log one request and its reply at debug level. The log masks the URL."""
    asked = {"method": request.method, "url": request.url.text}
    if isinstance(reply, Response):
        _log.debug("Answered", **asked, status=reply.status, bytes=reply.wire_bytes)
    else:
        _log.debug("Not answered", **asked, reason=reply.reason.value, detail=reply.detail)


def never(ask: FetchRequest) -> bool:
    """Decline to revalidate a cached page later."""
    return False


class _Renewals:
    """Renewal of the leases of requests in progress, each after every third of its duration, by one timer.

    A download may outlast any lease. So may a request that first waits for one of the client's connections.
    """

    def __init__(self, gate: Gate) -> None:
        self._gate = gate
        self._due: dict[int, tuple[float, Ticket]] = {}
        """Tickets of the requests in progress by id, with the loop time of their next renewal."""

        self._armed_for = 0.0
        """Loop time of the timer."""

        self._timer: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def is_busy(self) -> bool:
        """True if requests are in progress."""
        return bool(self._due)

    def begin(self, ticket: Ticket) -> None:
        """Renew the lease of a ticket until `end()`."""
        loop = asyncio.get_running_loop()
        if loop is not self._loop:  # the timer and the tickets of another loop have ended with it
            self._loop, self._timer, self._due = loop, None, {}
        due = loop.time() + ticket.lease.lasts / 3
        self._due[id(ticket)] = due, ticket
        if self._timer is None or self._armed_for > due:
            self._arm(loop, due)

    def end(self, ticket: Ticket) -> None:
        """Stop the renewal of a ticket."""
        self._due.pop(id(ticket), None)

    def _arm(self, loop: asyncio.AbstractEventLoop, due: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._armed_for = due
        self._timer = loop.call_at(due, _renew, ref(self))  # the event loop must not keep a closed client alive

    def renew(self) -> None:
        """Renew the leases that are due."""
        self._timer = None
        loop = asyncio.get_running_loop()
        now = loop.time()
        for number, (due, ticket) in list(self._due.items()):
            if due <= now:
                self._due[number] = now + ticket.lease.lasts / 3, ticket
                task = asyncio.ensure_future(self._extend(ticket))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
        if self._due:
            self._arm(loop, min(due for due, _ in self._due.values()))

    async def _extend(self, ticket: Ticket) -> None:
        with contextlib.suppress(StoreError):  # the next renewal may succeed; the request's settlement reports it
            await self._gate.amend(ticket.key, ticket.policy, Renew(ticket.lease))


def _renew(renewals: ref[_Renewals]) -> None:
    if (found := renewals()) is not None:
        found.renew()


class Driver(StoreDriver):
    """Runs flows in tasks of one event loop. Without a sender, they must end before they send."""

    def __init__(
        self,
        context: Context,
        gate: Gate,
        sender: Sender | None = None,
        later: Callable[[FetchRequest], bool] = never,
    ) -> None:
        super().__init__(gate.driver.store, gate.timers, gate.driver.background)
        self.context = context
        self.gate = gate
        self._sender = sender
        self._renewals = _Renewals(gate)
        self._answers: dict[type[Effect], Callable[[Any, HeldResources], Any]] = {
            Recall: lambda effect, _: context.recall(effect),
            Keep: self._keep,
            Claim: self._claim,
            Enter: self._enter,
            Settle: self._settle,
            Tell: lambda effect, _: (context.postponed if effect.is_postponed else context.told)(effect.record),
            PutBack: lambda effect, held: self._return(held, gate.returning(_checked(effect.ticket))),
            Hold: self._renew_claim,
            Learn: self._learn,
            Release: lambda effect, held: self._release(effect.origin, held),
            Remember: lambda effect, _: single(Read(rules_key(effect.origin))),
            Amend: lambda effect, _: gate.amendment(effect.key, effect.policy, effect.change),
            MayRetry: lambda effect, _: context.retries.take(effect.host),
            Later: lambda effect, _: later(effect.ask),
            Render: lambda effect, _: single(effect),
        }
        """For each effect of a flow: a function that returns the answer, or the procedure that finds it."""

    async def run_flow(self, flow: Flow[Result], resources: HeldResources | None = None) -> Result:
        """Run a flow to its end and return its result."""
        resources = resources or HeldResources()
        procedure = self.procedure(flow, resources)
        result: Result = await self.complete(procedure, self.advance(procedure), resources)
        return result

    async def complete(self, procedure: Procedure[Any], effect: Any, resources: HeldResources) -> Any:
        """Run the procedure of a flow from an effect of `advance()` to its end, and return its result."""
        try:
            while type(effect) is not Finished:
                try:
                    if type(effect) is Send:
                        answer: Any = await self._send(effect, resources)
                    elif type(effect) is Keep:
                        answer = await in_thread(self.context.keep, effect.url, effect.what)
                    elif type(effect) is Render:
                        answer = await self._render(effect, resources)
                    else:
                        answer = await self.execute(effect, procedure)
                except RecordTooNew as error:
                    effect = self.raise_in(procedure, error)
                else:
                    effect = self.advance(procedure, answer)
            return effect.result
        finally:
            self.close(procedure)
            if resources.ticket is not None or resources.waiters:
                await self.finish(self.run(self._give_back(resources)))

    def procedure(self, flow: Flow[Result], resources: HeldResources) -> Procedure[Result]:
        """Return a flow as a procedure: it answers the effects of the flow, or turns them into those of the store.

        Besides them it yields `Send`, `Render`, and `Keep` for a large body.
        """
        answers = self._answers
        try:
            effect = next(flow)
            while True:
                try:
                    if type(effect) is Send:
                        answer = yield effect
                        if answer is None:  # nothing was sent
                            yield from self._return(resources, self.gate.settlement(_checked(effect.ticket), UNSENT))
                    else:
                        answer = answers[type(effect)](effect, resources)
                        if type(answer) is GeneratorType:
                            answer = yield from answer
                except RecordTooNew as error:
                    effect = flow.throw(error)
                else:
                    effect = flow.send(answer)
        except StopIteration as end:
            result: Result = end.value
            return result
        finally:
            flow.close()

    def _keep(self, effect: Keep, resources: HeldResources) -> Procedure[None] | None:
        if isinstance(effect.what, StorePage) and len(effect.what.body) > SMALL:
            return single(effect)
        self.context.keep(effect.url, effect.what)
        return None

    def _enter(self, effect: Enter, resources: HeldResources) -> Answer | Procedure[Answer]:
        policies = self.context.policies
        request = self.context.gate_request(effect, policies)
        is_current = policies.of(effect.domain) is effect.policy  # else the queue handles the changed settings
        # Alone, a request would only wait for the next turn of the event loop.
        may_propose = not self.is_immediate and self._renewals.is_busy
        answer = self.gate.admit_now(request, may_propose=may_propose) if is_current else None
        if answer is None:
            return self._queue(request, resources)
        resources.ticket = answer if isinstance(answer, Ticket) else None
        return answer

    def _queue(self, request: GateRequest, resources: HeldResources) -> Procedure[Answer]:
        answer: Answer = yield from self.limited(self.gate.queueing(request), request.deadline)
        resources.ticket = answer if isinstance(answer, Ticket) else None
        return answer

    def _settle(self, effect: Settle, resources: HeldResources) -> Settled | Procedure[Settled]:
        ticket, outcome = _checked(effect.ticket), effect.outcome
        resources.ticket = None
        if resources.send is not None and not resources.is_robots and outcome.sent_ago:
            # The library may have connected first, and sent later than the call began: no gap may be too short.
            outcome = msgspec.structs.replace(outcome, sent_ago=0.0)
        if resources.has_open_body and ticket.policy.concurrency is not None:
            resources.open_ticket, resources.has_open_body = ticket, False
            outcome = msgspec.structs.replace(outcome, keeps_slot=True)
        state = self.gate.settle_now(ticket, outcome)
        return self.finishing(self.gate.settlement(ticket, outcome)) if state is None else state

    def _return(self, resources: HeldResources, procedure: Procedure[Result]) -> Procedure[Result]:
        """Run the procedure that ends the ticket of a flow."""
        resources.ticket = None
        return self.finishing(procedure)

    # Rules of robots.txt

    def _claim(self, effect: Claim, resources: HeldResources) -> Known | Procedure[Known | Claimed | Late]:
        known = self.context.known_rules(effect.origin, effect.ttl)
        return known or self.limited(self._claim_or_wait(effect, resources), effect.deadline)

    def _claim_or_wait(self, effect: Claim, resources: HeldResources) -> Procedure[Known | Claimed | Late]:
        """Return an origin's rules, or claim the right to fetch them.

        The queue orders waiters within this process; a claim in the store excludes other processes.
        """
        context, queues, waiter = self.context, self.gate.queues, self.timers.waiter()
        origin, key = effect.origin, rules_key(effect.origin)
        until = None if effect.deadline is None else context.now() + effect.deadline
        queues.join(key, waiter)
        is_logged = False
        try:
            while True:
                left = None if until is None else until - context.now()
                if left is not None and left <= 0:
                    return Late(POLL, self.gate.driver.cause_in_queue)
                if not queues.is_first(key, waiter):
                    yield Sleep(waiter, left)
                    continue
                answer = context.known_rules(origin, effect.ttl)
                if answer is None:
                    answer = yield Update(key, context.claim_step(effect), partial(self._unclaim, key))
                match answer:
                    case Busy(seconds):
                        if seconds >= LOGGED and not is_logged and _gate_log.hears(logging.DEBUG):
                            _gate_log.debug("Waiting for a robots.txt that another process fetches", origin=origin)
                            is_logged = True
                        pause = min(seconds, POLL * (0.5 + context.roll()))
                        yield Sleep(waiter, pause if left is None else min(pause, left))
                    case Known(rules, seconds):
                        context.remember(origin, rules, seconds, effect.ttl)
                        return answer
                    case Claimed():
                        # The flow now keeps the queue position and releases the claim.
                        resources.claimed.add(origin)
                        resources.waiters[origin] = waiter
                        return answer
        finally:
            if resources.waiters.get(origin) is not waiter:
                queues.leave(key, waiter, holding=False)

    def _unclaim(self, key: str, answer: Known | Claimed | Busy | None) -> Procedure[None]:
        """Release a claim whose task was cancelled."""
        if isinstance(answer, Claimed):
            yield Update(key, release_step(self.context.who))
            self.gate.queues.nudge(key)

    def _renew_claim(self, effect: Hold, resources: HeldResources) -> Procedure[Known | Claimed | Busy]:
        held: Known | Claimed | Busy = yield Update(rules_key(effect.origin), self.context.claim_step(effect))
        if not isinstance(held, Claimed):
            resources.claimed.discard(effect.origin)
        return held

    def _learn(self, effect: Learn, resources: HeldResources) -> Procedure[Rules]:
        # Only the update is shielded: the flow itself wakes the waiters, so that it enters the gate before them.
        known: Known = yield from self.finishing(single(Update(rules_key(effect.origin), learn_step(effect))))
        self.context.remember(effect.origin, known.rules, known.seconds, effect.policy.robots_ttl)
        resources.leave_queue(effect.origin, self.gate.queues)
        return known.rules

    def _release(self, origin: str, resources: HeldResources) -> Procedure[None]:
        if origin in resources.claimed:
            yield from self.finishing(single(Update(rules_key(origin), release_step(self.context.who))))
        resources.leave_queue(origin, self.gate.queues)

    def _give_back(self, resources: HeldResources) -> Procedure[None]:
        """Return the resources of a flow that did not release them itself."""
        if resources.ticket is not None:
            yield from self.gate.settlement(resources.ticket, UNHEARD if resources.is_sent else UNSENT)
        for origin in list(resources.waiters):
            yield from self._release(origin, resources)

    async def _render(self, effect: Render, resources: HeldResources) -> Reply:
        """Render a page. Meanwhile it counts as a request on the wire, so that a crawl starts no more than it may."""
        assert self.context.render is not None, "only a client with a renderer asks for it"
        on_wire = resources.on_wire or _ignore
        on_wire(True, None)
        reply: Reply | None = None
        try:
            reply = await self.context.render(effect)
            return reply
        finally:
            on_wire(False, reply)

    # Sending

    async def _send(self, effect: Send, resources: HeldResources) -> Reply | None:
        ticket = _checked(effect.ticket)
        if ticket.proposal is not None:
            await asyncio.sleep(0)  # the other tasks of this turn of the event loop join the transaction
            if not self.gate.confirm(ticket):
                resources.ticket = None
                return None
        # A longer timeout than that of the lease is possible, because the lease is renewed.
        needed = effect.timeout if effect.cut else min(effect.timeout, ticket.policy.timeout)
        if self.timers.now() + needed > ticket.good_until:
            # The process was suspended: the lease may expire before the response arrives.
            return None
        limits, on_wire = limits_of(effect), resources.on_wire
        self._renewals.begin(ticket)
        try:
            if resources.place is not None and (place := resources.place()) is not None:
                waited = await _waited(place, limits.timeout)
                if waited is None:
                    return None  # the flow queues again, and the gate checks its deadline
                if limits.counts_waiting:
                    limits = replace(limits, timeout=max(0.001, limits.timeout - waited))
                elif limits.patience is not None:
                    limits = replace(limits, patience=max(0.001, limits.patience - waited))
            self.context.retries.count(effect.request.url.domain)
            resources.is_sent, resources.is_robots = True, effect.cut
            if on_wire is not None:
                on_wire(True, None)
            assert self._sender is not None, "a dry run sends nothing"
            send = self._sender.send if resources.send is None or effect.cut else resources.send
            reply: Reply | None = None
            try:
                reply = await send(effect.request, limits)
            except asyncio.CancelledError as error:
                resources.is_sent = was_sent(error)
                raise
            finally:
                if on_wire is not None:
                    on_wire(False, reply)
        finally:
            self._renewals.end(ticket)
        resources.is_sent = False
        if not isinstance(reply, Response | Failure):  # None would mean that nothing was sent, and be retried for ever
            raise TypeError(f"the sender returned {reply!r} instead of a Response or a Failure")
        if resources.reads_later and not effect.cut:
            resources.has_open_body = isinstance(reply, Response) and not reply.is_whole
        if _log.hears(logging.DEBUG):
            _tell(effect.request, reply)
        return reply


def _ignore(is_on_wire: bool, reply: Reply | None) -> None:
    """Do nothing at the start and the end of a request."""


async def _waited(place: Awaitable[object], most: float) -> float | None:
    """Wait up to `most` seconds for permission to send; return the seconds waited, or None on timeout."""
    began = time.monotonic()
    try:
        async with asyncio.timeout(most):
            await place
    except TimeoutError:
        return None
    return time.monotonic() - began


def _checked(ticket: Admitted) -> Ticket:
    """Return the ticket of an effect, which this gate has issued."""
    assert isinstance(ticket, Ticket)
    return ticket
