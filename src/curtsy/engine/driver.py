"""Driver that executes the effects of a flow.

`Driver.procedure()` turns a flow into a procedure, whose effects on the store `StoreDriver` executes. At the end of a
flow, also after an error, the driver returns its slot at the host, its budget and its claim on rules.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Generator
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar, assert_never

import msgspec

from curtsy.core.amendment import Renew
from curtsy.core.decision import Late
from curtsy.core.effects import (
    Admitted,
    Amend,
    Claim,
    Effect,
    Enter,
    FetchRequest,
    Hold,
    Keep,
    Later,
    Learn,
    MayRetry,
    PutBack,
    Recall,
    Release,
    Remember,
    Send,
    Settle,
    Tell,
)
from curtsy.core.errors import Reason
from curtsy.core.fetch_state import UNHEARD, UNSENT
from curtsy.core.message import Failure, Reply, Request, Response
from curtsy.core.rules import Busy, Claimed, Known, Rules
from curtsy.engine.context import (
    NOT_YET,
    Context,
    HeldResources,
    learn_step,
    limits_of,
    release_step,
    rules_key,
)
from curtsy.engine.download import Part, TooLong, Unwanted
from curtsy.engine.gate import LOGGED, POLL, Answer, Gate, Ticket
from curtsy.engine.store_driver import Procedure, Read, Sleep, StoreDriver, Update, single
from curtsy.http.exchange import was_sent
from curtsy.http.sender import Limits, Sender
from curtsy.system.log import library_logger
from curtsy.system.threads import in_thread

Result = TypeVar("Result")
Flow = Generator[Effect, Any, Result]

_log = library_logger("drive")
_gate_log = library_logger("gate")


class Sending(msgspec.Struct, frozen=True):
    """Effect: send the request of a flow. Answer: a `Reply`, or None if nothing was sent."""

    send: Send
    resources: HeldResources


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


class _Keeping:
    """Periodic renewal of a request's lease, every third of its duration.

    A download may outlast any lease. So may a request that first waits for one of the client's connections.
    """

    __slots__ = ("_gate", "_task", "_ticket", "_timer")

    def __init__(self, gate: Gate, ticket: Ticket) -> None:
        self._gate = gate
        self._ticket = ticket
        self._task: asyncio.Task[None] | None = None
        self._timer = asyncio.get_running_loop().call_later(ticket.lease.lasts / 3, self._begin)

    def end(self) -> None:
        """Stop the renewal."""
        self._timer.cancel()
        if self._task is not None:
            self._task.cancel()

    def _begin(self) -> None:
        self._task = asyncio.ensure_future(self._renew())

    async def _renew(self) -> None:
        ticket = self._ticket
        while True:
            await self._gate.amend(ticket.key, ticket.policy, Renew(ticket.lease))
            await asyncio.sleep(ticket.lease.lasts / 3)


class Driver(StoreDriver):
    """Runs flows in tasks of one event loop."""

    def __init__(
        self,
        context: Context,
        gate: Gate,
        sender: Sender,
        later: Callable[[FetchRequest], bool] = never,
    ) -> None:
        super().__init__(gate.driver.store, gate.timers, gate.driver.background)
        self.context = context
        self.gate = gate
        self._sender = sender
        self._later = later

    async def run_flow(self, flow: Flow[Result], resources: HeldResources | None = None) -> Result:
        """Run a flow to its end and return its result."""
        resources = resources or HeldResources()
        procedure = self.procedure(flow, resources)
        result: Result = await self.complete(procedure, self.advance(procedure), resources)
        return result

    async def complete(self, procedure: Procedure[Any], effect: Any, resources: HeldResources) -> Any:
        """Run the procedure of a flow from an effect of `advance()` to its end, and return its result."""
        try:
            return await self.resume(procedure, effect)
        finally:
            if resources.ticket is not None or resources.waiters:
                await self.finish(self.run(self._give_back(resources)))

    def procedure(self, flow: Flow[Result], resources: HeldResources) -> Procedure[Result]:
        """Return a flow as a procedure: it answers the effects of the flow, or turns them into those of the store.

        Besides them it yields `Sending` and `Keep`.
        """
        immediate = self.context.answer
        try:
            effect = next(flow)
            while True:
                answer = immediate(effect)
                if answer is NOT_YET:
                    answer = yield from self._steps(effect, resources)
                effect = flow.send(answer)
        except StopIteration as end:
            result: Result = end.value
            return result
        finally:
            flow.close()

    def _steps(self, effect: Effect, resources: HeldResources) -> Procedure[Any]:
        """Return the procedure that answers one effect of a flow."""
        match effect:
            case Enter():
                return self._enter(effect, resources)
            case Send():
                return self._transmit(effect, resources)
            case Settle(ticket, outcome):
                return self._return(resources, self.gate.settlement(_checked(ticket), outcome))
            case PutBack(ticket):
                return self._return(resources, self.gate.returning(_checked(ticket)))
            case Claim():
                return self.limited(self._claim(effect, resources), effect.deadline)
            case Hold():
                return self._renew_claim(effect, resources)
            case Learn():
                return self._learn(effect, resources)
            case Release(origin):
                return self._release(origin, resources)
            case Remember(origin):
                return single(Read(rules_key(origin)))
            case Amend(key, policy, change):
                return self.gate.amendment(key, policy, change)
            case Keep():
                return single(effect)
            case Later(request):
                return _answered(self._later(request))
            case Recall() | MayRetry() | Tell():
                raise AssertionError("the context answers these")
            case _:
                assert_never(effect)

    def _enter(self, effect: Enter, resources: HeldResources) -> Procedure[Answer]:
        admission = self.gate.admission(self.context.gate_request(effect))
        answer: Answer = yield from self.limited(admission, effect.deadline)
        resources.ticket = answer if isinstance(answer, Ticket) else None
        return answer

    def _transmit(self, effect: Send, resources: HeldResources) -> Procedure[Reply | None]:
        """Send a request. If the answer is None, nothing was sent, and the ticket is given back."""
        reply: Reply | None = yield Sending(effect, resources)
        if reply is None:
            yield from self._return(resources, self.gate.settlement(_checked(effect.ticket), UNSENT))
        return reply

    def _return(self, resources: HeldResources, procedure: Procedure[Result]) -> Procedure[Result]:
        """Run the procedure that ends the ticket of a flow."""
        resources.ticket = None
        return self.finishing(procedure)

    # Rules of robots.txt

    def _claim(self, effect: Claim, resources: HeldResources) -> Procedure[Known | Claimed | Late]:
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
                    return Late(POLL)
                if not queues.is_first(key, waiter):
                    yield Sleep(waiter, left)
                    continue
                answer = context.cached_rules(effect)
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

    # Effects that are not of the store

    async def execute(self, effect: Any, procedure: Procedure[Any]) -> Any:
        """Execute one effect of a procedure and return its answer."""
        match effect:
            case Sending(send, resources):
                return await self._send(send, resources)
            case Keep(url, change):
                return await in_thread(self.context.keep, url, change)
            case _:
                return await super().execute(effect, procedure)

    async def _send(self, effect: Send, resources: HeldResources) -> Reply | None:
        ticket = _checked(effect.ticket)
        if self.timers.now() + effect.timeout > ticket.good_until:
            # The process was suspended: the lease may expire before the response arrives.
            return None
        limits, part, on_wire = limits_of(effect), resources.part, resources.on_wire
        if resources.place is not None and (place := resources.place()) is not None:
            waited = await self._wait_for(place, limits.timeout, ticket)
            if waited is None:
                return None  # the flow queues again, and the gate checks its deadline
            if limits.counts_waiting:
                limits = replace(limits, timeout=max(0.001, limits.timeout - waited))
            elif limits.patience is not None:
                limits = replace(limits, patience=max(0.001, limits.patience - waited))
        self.context.retries.count(effect.request.url.domain)
        resources.is_sent, resources.is_robots = True, effect.cut
        if on_wire is not None:
            on_wire(True)
        keeping = _Keeping(self.gate, ticket)
        try:
            if part is not None and not effect.cut:
                reply = await self._stream(effect.request, limits, part)
            else:
                reply = await self._sender.send(effect.request, limits)
        except asyncio.CancelledError as error:
            resources.is_sent = was_sent(error)
            raise
        finally:
            keeping.end()
            if on_wire is not None:
                on_wire(False)
        resources.is_sent = False
        if _log.hears(logging.DEBUG):
            _tell(effect.request, reply)
        return reply

    async def _wait_for(self, place: Awaitable[None], most: float, ticket: Ticket) -> float | None:
        """Wait up to `most` seconds for permission to send; return the seconds waited, or None on timeout."""
        began, keeping = time.monotonic(), _Keeping(self.gate, ticket)
        try:
            async with asyncio.timeout(most):
                await place
        except TimeoutError:
            return None
        finally:
            keeping.end()
        return time.monotonic() - began

    async def _stream(self, request: Request, limits: Limits, part: Part) -> Reply:
        """Send a request and write the body to a file.

        Exceptions that the sender lets through come from the file: disk errors and its size limit.
        """
        began = time.monotonic()
        limits = replace(limits, max_body=part.max_size)
        try:
            return await self._sender.stream(part.prepare(request), limits, part)
        except OSError as error:
            return Failure(Reason.NOT_WRITTEN, f"it could not be written: {error.strerror}", time.monotonic() - began)
        except TooLong as error:
            return Failure(Reason.TOO_LARGE, str(error), time.monotonic() - began, wire_bytes=part.came)
        except Unwanted as error:
            took = time.monotonic() - began
            return Response(error.status, error.headers, b"", took, took, part.came)


def _checked(ticket: Admitted) -> Ticket:
    """Return the ticket of an effect, which this gate has issued."""
    assert isinstance(ticket, Ticket)
    return ticket


def _answered(answer: Result) -> Procedure[Result]:
    """Return a procedure that has its result already."""
    return answer
    yield
