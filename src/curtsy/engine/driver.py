"""Driver that carries out the effects of a flow.

At the end of a flow, also after an error, the driver returns its slot at the host, its budget and its claim on rules.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Generator
from dataclasses import replace
from typing import Any, TypeVar

from curtsy.core.amendment import Renew
from curtsy.core.decision import Late
from curtsy.core.effects import (
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
from curtsy.core.rules import Claimed, Known
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
from curtsy.engine.gate import AsyncGate, Ticket
from curtsy.http.exchange import was_sent
from curtsy.http.sender import Limits, Sender
from curtsy.stores import AsyncStore
from curtsy.system.log import library_logger
from curtsy.system.threads import in_thread

Result = TypeVar("Result")
Flow = Generator[Effect, Any, Result]


STORE_GRACE = 0.1
"""Seconds past the deadline until the driver aborts a wait that the gate should have ended."""

_log = library_logger("drive")


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

    def __init__(self, gate: AsyncGate, ticket: Ticket) -> None:
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


class Driver:
    """Runs flows in tasks of one event loop."""

    def __init__(
        self,
        context: Context,
        store: AsyncStore,
        gate: AsyncGate,
        sender: Sender,
        later: Callable[[FetchRequest], bool] = never,
    ) -> None:
        self.context = context
        self._store = store
        self.gate = gate
        self._sender = sender
        self._later = later

    async def run(self, flow: Flow[Result]) -> Result:
        """Run a flow to its end and return its result."""
        resources = HeldResources()
        return await self.go_on(flow, self.begin(flow, resources), resources)

    def begin(self, flow: Flow[Result], resources: HeldResources, answer: Any = None) -> Effect | None:
        """Run a flow until an effect must wait; return that effect, or None at the end.

        At the end, the flow's result is in `resources.result`.
        """
        at_once = self.context.at_once
        try:
            while True:
                effect = flow.send(answer)
                answer = at_once(effect)
                if answer is NOT_YET:
                    return effect
        except StopIteration as end:
            resources.result = end.value
            return None

    async def go_on(self, flow: Flow[Result], effect: Effect | None, resources: HeldResources) -> Result:
        """Run a started flow to its end and return its result."""
        try:
            while effect is not None:
                if isinstance(effect, Send):
                    answer = await self._send(effect, resources)
                else:
                    answer = self._at_the_gate(effect, resources)
                    if answer is NOT_YET:
                        answer = await self._do(effect, resources)
                effect = self.begin(flow, resources, answer)
            result: Result = resources.result
            return result
        finally:
            flow.close()
            if resources.ticket is not None or resources.lines:
                await self._finish(self._give_back(resources))

    def _at_the_gate(self, effect: Effect, resources: HeldResources) -> Any:
        """Return the gate's answer to an effect if it needs no wait; otherwise `NOT_YET`."""
        if isinstance(effect, Enter):
            policies = self.context.policies
            if policies.of(effect.domain) is not effect.policy:
                return NOT_YET  # the settings changed: the queue uses the current ones
            answer = self.gate.enter_at_once(
                effect.key, effect.policy, policies.overall_for(effect.policy), page=effect.page, robots=effect.robots,
                crawl_delay=effect.crawl_delay, foreign=effect.foreign, guest=effect.guest,
            )  # fmt: skip
            if isinstance(answer, Ticket):
                resources.ticket = answer
            return NOT_YET if answer is None else answer
        if isinstance(effect, Settle) and self.gate.is_immediate:
            resources.ticket = None
            assert isinstance(effect.ticket, Ticket)
            return self.gate.leave_at_once(effect.ticket, effect.outcome)
        return NOT_YET

    async def _finish(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Complete work even if its caller is cancelled; `Context.unfinished` tracks it."""
        if self.gate.is_immediate:
            return await work  # an immediate store never suspends, so no cancellation can come between
        task = asyncio.ensure_future(work)
        self.context.unfinished.add(task)
        task.add_done_callback(self.context.unfinished.discard)
        return await asyncio.shield(task)

    async def _in_time(self, seconds: float | None, work: Coroutine[Any, Any, Result]) -> Result | Late:
        """Run work on the store until the deadline: a store that hangs does not know it (C18).

        Returns `Late` after the deadline.
        """
        if seconds is None or self.gate.is_immediate:
            return await work
        try:
            async with asyncio.timeout(seconds + STORE_GRACE) as limit:
                return await work
        except TimeoutError:
            if not limit.expired():
                raise
            return Late(0.0)

    async def _do(self, effect: Effect, resources: HeldResources) -> Any:
        around = self.context
        match effect:
            case Enter():
                answer = await self._in_time(effect.deadline, self.gate.enter(around.gate_request(effect)))
                resources.ticket = answer if isinstance(answer, Ticket) else None
                return answer
            case Settle(ticket, outcome):
                resources.ticket = None
                assert isinstance(ticket, Ticket)
                return await self._finish(self.gate.leave(ticket, outcome))
            case PutBack(ticket):
                resources.ticket = None
                assert isinstance(ticket, Ticket)
                return await self._finish(self.gate.put_back(ticket))
            case Keep(url, what):
                return await in_thread(around.keep, url, what)
            case Claim():
                waiter = self.gate.timers.async_waiter()
                claiming = self.gate.carry(around.claiming(effect, resources, self.gate, waiter), waiter)
                return await self._in_time(effect.deadline, claiming)
            case Hold(origin):
                held = await self._store.update(rules_key(origin), around.claim_step(effect))
                if not isinstance(held, Claimed):
                    resources.claimed.discard(origin)
                return held
            case Learn():
                known: Known = await self._finish(self._store.update(rules_key(effect.origin), learn_step(effect)))
                around.remember(effect.origin, known.rules, known.seconds, effect.policy.robots_ttl)
                resources.leave_line(effect.origin, self.gate)
                return known.rules
            case Release(origin):
                if origin in resources.claimed:
                    await self._finish(self._store.update(rules_key(origin), release_step(around.who)))
                return resources.leave_line(origin, self.gate)
            case Remember(origin):
                return await self._store.read(rules_key(origin))
            case Amend(key, policy, change):
                return await self.gate.amend(key, policy, change)
            case Later(ask):
                return self._later(ask)
            case Send() | Recall() | MayRetry() | Tell():
                raise AssertionError("these are answered before")

    async def _send(self, effect: Send, resources: HeldResources) -> Reply | None:
        ticket = effect.ticket
        assert isinstance(ticket, Ticket)
        if self.gate.timers.now() + effect.timeout > ticket.good_until:
            # The process was suspended: the lease may expire before the response arrives.
            resources.ticket = None
            await self._finish(self.gate.leave(ticket, UNSENT))
            return None
        limits, part, on_wire = limits_of(effect), resources.part, resources.on_wire
        if resources.place is not None and (place := resources.place()) is not None:
            waited = await self._wait_for(place, limits.timeout, ticket)
            if waited is None:
                resources.ticket = None
                await self._finish(self.gate.leave(ticket, UNSENT))
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

    async def _give_back(self, resources: HeldResources) -> None:
        """Return the resources of a flow that did not release them itself."""
        if resources.ticket is not None:
            await self.gate.leave(resources.ticket, UNHEARD if resources.is_sent else UNSENT)
        for origin in list(resources.lines):
            if origin in resources.claimed:
                await self._store.update(rules_key(origin), release_step(self.context.who))
            resources.leave_line(origin, self.gate)
