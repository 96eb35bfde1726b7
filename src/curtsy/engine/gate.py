"""Gate that admits requests in FIFO order per host; no host waits for another.

Nothing is charged until a request leaves. Each waiter is in its host's queue, and only the first one asks the store. A
cancelled waiter therefore has nothing to return, and ten thousand waiters cost nothing. One heap with one timer per
event loop wakes exactly the waiter that may go.

There is one set of queues per process and store, shared by the tasks of all event loops. What the gate does is written
as procedures (engine/store_driver.py), which also a flow can contain; the async methods run one of them.
"""

from __future__ import annotations

import logging
import math
import random
from collections.abc import Callable
from functools import partial

import msgspec

from curtsy.core.amendment import Amendment, Release
from curtsy.core.decision import Decision, Go, Late, Lease, No, Settled, Wait
from curtsy.core.errors import Reason
from curtsy.core.host import Host
from curtsy.core.outcome import Outcome
from curtsy.core.policy import Policy
from curtsy.core.time import SECOND
from curtsy.engine.gate_steps import Request, amended, foresee, give_back, settled, take, uncharged
from curtsy.engine.store_driver import Procedure, Sleep, StoreDriver, Update
from curtsy.engine.timers import SystemTimers, Timers, Waiter
from curtsy.engine.wait_queue import queues_of
from curtsy.stores import NOT_NOW, AsyncStore, NotNow, Proposal, Shared, Step
from curtsy.system.log import library_logger

_log = library_logger("gate")

LOGGED = 1.0
"""Seconds: shorter waits are not logged, even at debug level."""

GLOBAL = "global"
"""Key of the record of the global rate, which every request passes."""

OUTAGE, OUTAGE_POLL = "outage", 0.5
"""Cause of a wait for a store that does not answer, and the seconds between two attempts of a waiter."""

POLL = 0.25
"""Seconds between checks of a slot that another process holds: it cannot notify this one."""

HELD = ("in_flight", "trial")
"""Causes of waits for a slot that another request holds. It may be released before its lease expires."""

STALE = 0.5
"""Seconds after which a token of the global rate is returned once, because the store hung meanwhile. Else the requests
of all processes would leave together when it answers again."""

LOOK_AGAIN = 30.0
"""Seconds until a long wait is checked again, or a quarter of it if longer: a user may have ended it."""


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

    proposal: Proposal | None = None
    """Charge that `Gate.confirm` must write before the request is sent; None if it is written."""

    refund: Step[None] | None = None
    """Step that returns the global token of this ticket; None if there is none to return."""

    @property
    def lease(self) -> Lease:
        """Return the lease, which `settle()` ends."""
        return self.go.lease


Answer = Ticket | No | Late


class Gate:
    """Gate in front of one store."""

    def __init__(
        self, store: AsyncStore, *, timers: Timers | None = None, roll: Callable[[], float] = random.random
    ) -> None:
        self.on_trip: Callable[[str], None] = lambda key: None
        """Callback with the key of a host whose breaker a reply has opened."""
        self.on_outage: Callable[[], None] = lambda: None
        """Callback for each request that finds the store out and waits."""
        self.queues = queues_of(store.identity)
        self.timers: Timers = timers or SystemTimers()
        self.driver = StoreDriver(store, self.timers)
        self.is_immediate = self.driver.is_immediate
        """True if the store never suspends, as with memory."""
        self.roll = roll
        self.max_outage: float | None = None
        """Seconds for which a request waits for a store that does not answer; None for no limit."""

    async def enter(self, request: Request, waiter: Waiter | None = None) -> Answer:
        """Wait until the request may leave, and charge it. Only a Ticket charges anything."""
        return await self.driver.run(self.admission(request, waiter))

    async def settle(self, ticket: Ticket, outcome: Outcome) -> Settled:
        """Record the consequences of a reply and wake the next waiter."""
        state = self.settle_now(ticket, outcome)
        return await self.driver.run(self.settlement(ticket, outcome)) if state is None else state

    async def put_back(self, ticket: Ticket) -> None:
        """Return an unused ticket: slot, budget and rate are as if it had never been taken."""
        await self.driver.run(self.returning(ticket))

    async def amend(self, key: str, policy: Policy, change: Amendment) -> Host:
        """Apply a user's change to a host's record and wake its first waiter."""
        return await self.driver.run(self.amendment(key, policy, change))

    def admission(self, request: Request, waiter: Waiter | None = None) -> Procedure[Answer]:
        """Admit a request: at once if it need not wait, otherwise in the queue of its host."""
        answer = self.admit_now(request) if request.current() is request else None
        return (yield from self.queueing(request, waiter)) if answer is None else answer

    def queueing(self, request: Request, waiter: Waiter | None = None) -> Procedure[Answer]:
        """Admit a request in the queue of its host."""
        return _Admission(self, request, waiter or self.timers.waiter()).run()

    def admit_now(self, request: Request, *, may_propose: bool = False) -> Ticket | No | None:
        """Decide without the queue; None if the request or the store must wait.

        Its policies must be those in force. Nothing can come between the look at the queue and the charge, so that the
        request passes no other. `may_propose`: the caller confirms the ticket before it sends.
        """
        update_now, queues, has_rate = self.driver.update_now, self.queues, request.global_policy is not None
        if queues.is_queued(request.key):
            return None
        asked_at = self.timers.now()
        if has_rate and (queues.is_queued(GLOBAL) or not queues.take_prepaid(asked_at)):
            return None
        step = request.charge(request.policy, self.roll())
        proposed = self.driver.store.propose(request.key, step) if may_propose else NOT_NOW
        answer, proposal = (update_now(request.key, step), None) if proposed is NOT_NOW else proposed
        decision, epoch = (None, 0) if answer is NOT_NOW else answer
        if isinstance(decision, Go):
            if request.policy.concurrency is not None:
                queues.hold(request.key)
            good_until = asked_at + decision.lease.lasts
            return Ticket(request.key, request.policy, decision, 0.0, good_until, epoch, proposal)
        if has_rate:
            queues.return_prepaid()
        if proposal is not None:  # the queue decides on the present record
            proposal.is_void = True
            return None
        return decision if isinstance(decision, No) else None

    def confirm(self, ticket: Ticket) -> bool:
        """Write the charge of a ticket; return False if the ticket is void: nothing was charged."""
        if ticket.proposal is None or self.driver.store.confirm(ticket.proposal):
            return True
        self._free(ticket)
        return False

    def _withdraw(self, ticket: Ticket) -> bool:
        """Drop a charge that is not yet written; return False if it is written and must be settled."""
        if ticket.proposal is None or ticket.proposal.is_written:
            return False
        ticket.proposal.is_void = True
        self._free(ticket)
        return True

    def settlement(self, ticket: Ticket, outcome: Outcome) -> Procedure[Settled]:
        """Record the consequences of a reply, and wake the next waiter: a slot is free, or the host now refuses."""
        if self._withdraw(ticket):
            return Settled(0.0)
        try:
            return self._settled(ticket, (yield Update(ticket.key, settled(ticket.policy, ticket.lease, outcome))))
        finally:
            self._wake(ticket, outcome)

    def settle_now(self, ticket: Ticket, outcome: Outcome) -> Settled | None:
        """Do the same at once; None if the store must wait, so that nothing was done.

        A plain answer is written with the next admission. If the process is killed before, the lease expires.
        """
        update, answer = self.driver.update_soon if outcome.is_plain else self.driver.update_now, None
        try:
            answer = update(ticket.key, settled(ticket.policy, ticket.lease, outcome))
            return None if answer is NOT_NOW else self._settled(ticket, answer)
        finally:
            if answer is not NOT_NOW:
                self._wake(ticket, outcome)

    def releasing(self, ticket: Ticket) -> Procedure[None]:
        """Return the slot of a settled request whose outcome kept it."""
        try:
            yield Update(ticket.key, amended(ticket.policy, Release(ticket.lease)))
        finally:
            self._free(ticket)

    def _settled(self, ticket: Ticket, answer: tuple[Settled, bool]) -> Settled:
        state, has_tripped = answer
        if has_tripped:
            self.on_trip(ticket.key)
        return state

    def returning(self, ticket: Ticket) -> Procedure[None]:
        """Return an unused ticket completely."""
        if self._withdraw(ticket):
            return
        try:
            yield Update(ticket.key, uncharged(ticket.policy, ticket.lease))
            if ticket.refund is not None:
                yield Update(GLOBAL, ticket.refund)
        finally:
            self._free(ticket)
            self.queues.nudge(GLOBAL)

    def amendment(self, key: str, policy: Policy, change: Amendment) -> Procedure[Host]:
        """Change a host's record and wake its first waiter."""
        host: Host = yield Update(key, amended(policy, change))
        self.queues.nudge(key)
        return host

    def _wake(self, ticket: Ticket, outcome: Outcome) -> None:
        """Wake the next waiter after a settlement."""
        if outcome.keeps_slot:
            self.queues.nudge(ticket.key)  # the reply may have closed the breaker, or the host now refuses
        else:
            self._free(ticket)

    def _free(self, ticket: Ticket) -> None:
        if ticket.policy.concurrency is not None:
            self.queues.returned(ticket.key)
        else:
            self.queues.nudge(ticket.key)

    def shared_out(self, policy: Policy) -> Policy:
        """Return a policy, or this process's share of its limits while it continues without the shared store."""
        share = self.driver.store.share
        return policy if share >= 1.0 else policy.shared_out(share)


PREPAID = Lease(0, 0, 0.0, False)
"""Token from a batch taken earlier; it is not returned if unused."""


class _Admission:
    """Admission of one request that waits in the queue of its host, and in that of the global rate."""

    __slots__ = (
        "_began", "_gate", "_has_returned", "_is_holding", "_key", "_out_since", "_queues", "_request", "_timers",
        "_until", "_waiter",
    )  # fmt: skip

    def __init__(self, gate: Gate, request: Request, waiter: Waiter) -> None:
        self._gate, self._queues, self._timers = gate, gate.queues, gate.timers
        self._request = request
        self._waiter = waiter
        self._key = request.key
        """Key of the queue in which the waiter is."""
        self._began = gate.timers.now()
        self._until = None if request.deadline is None else self._began + request.deadline
        self._is_holding = self._has_returned = False
        self._out_since: float | None = None
        """Time of the first attempt that found the store out; None if the last one reached it."""

    def run(self) -> Procedure[Answer]:
        """Wait for the turn and the time of the request, and charge it."""
        queues, waiter, request = self._queues, self._waiter, self._request
        ahead, more = queues.join(self._key, waiter, request.count, rank=request.rank)
        try:
            if ahead and self._until is not None:
                needed = yield Update(self._key, request.foresee(ahead, more))
                if needed > self._until - self._timers.now():
                    return Late(needed, self._gate.driver.cause_in_queue)
            answer: Answer | None = None
            while answer is None:
                answer = self._refused()
                if answer is None:
                    is_first = queues.is_first(self._key, waiter)
                    answer = yield from self._ask() if is_first else self._wait_for_turn()
            return answer
        finally:
            queues.leave(self._key, waiter, holding=self._is_holding)

    def _time_left(self) -> float | None:
        """Return the seconds until the deadline; None without a deadline."""
        return None if self._until is None else self._until - self._timers.now()

    def _refused(self) -> No | None:
        """Apply the current settings; return the refusal if they or a closed waiter end the wait."""
        if self._waiter.closed:
            return No(Reason.CLOSED, None)
        current = self._request.current()
        if isinstance(current, No):
            return current
        self._request = current
        if current.key != self._key:  # its record has changed: it joins the end of that queue
            self._queues.leave(self._key, self._waiter, holding=False)
            self._key = current.key
            self._queues.join(self._key, self._waiter, current.count)
        return None

    def _wait_for_turn(self) -> Procedure[Late | None]:
        left = self._time_left()
        if left is not None and left <= 0:
            foreseen = self._request.foresee(*self._queues.ahead(self._key, self._waiter))
            return Late((yield Update(self._key, foreseen)), self._gate.driver.cause_in_queue)
        if self._queues.tidy(self._key):
            left = LOOK_AGAIN if left is None else min(left, LOOK_AGAIN)
        yield Sleep(self._waiter, left)
        return None

    def _ask(self) -> Procedure[Answer | None]:
        """Ask the store as the first waiter of the queue; None if the request has waited and must ask again."""
        refund: Step[None] | None = None
        if (overall := self._request.global_policy) is not None:
            token = yield from self._global_token()
            if isinstance(token, Wait):
                return (yield from self._wait(token))
            if isinstance(token, No):
                return token
            if token is not PREPAID:
                refund = give_back(overall, token)
            current = self._request.current()
            if isinstance(current, No) or current.key != self._key:
                yield from self._return_token(refund)
                return current if isinstance(current, No) else None
            self._request = current
        request, asked_at = self._request, self._timers.now()
        policy = self._gate.shared_out(request.policy)
        charged = Shared(request.charge(policy, self._gate.roll()))
        answer = yield Update(self._key, charged, partial(self._revert, request, refund))
        if answer is NOT_NOW:
            yield from self._return_token(refund)
            return (yield from self._wait(self._outage(asked_at)))
        self._out_since = None
        decision, epoch = answer
        if isinstance(decision, Go):
            if overall is not None and not self._has_returned and self._timers.now() - asked_at > STALE:
                self._has_returned = True
                yield from self._gate.driver.finishing(self._revert(request, refund, answer))
                return None
            self._is_holding = request.policy.concurrency is not None
            waited, good_until = self._timers.now() - self._began, asked_at + decision.lease.lasts
            return Ticket(self._key, request.policy, decision, waited, good_until, epoch, refund=refund)
        yield from self._return_token(refund)
        return decision if isinstance(decision, No) else (yield from self._wait(decision))

    def _outage(self, asked_at: float) -> Wait:
        """Return the wait for a store that did not answer the attempt of `asked_at`."""
        if self._out_since is None:
            self._out_since = asked_at
            self._gate.on_outage()
        return Wait(OUTAGE_POLL, OUTAGE)

    def _revert(
        self, request: Request, refund: Step[None] | None, answer: tuple[Decision, int] | NotNow | None
    ) -> Procedure[None]:
        """Revert a charge whose task was cancelled, with its global token."""
        decision = None if answer is None or answer is NOT_NOW else answer[0]
        if isinstance(decision, Go):
            yield Update(request.key, uncharged(request.policy, decision.lease, request.count))
            self._queues.nudge(request.key)
        if refund is not None:
            yield Update(GLOBAL, refund)
            self._queues.nudge(GLOBAL)

    def _return_token(self, refund: Step[None] | None) -> Procedure[None]:
        """Return an unused global token, if there is one, and wake the next waiter for it."""
        if refund is not None:
            yield from self._gate.driver.finishing(self._refund(refund))

    def _refund(self, refund: Step[None]) -> Procedure[None]:
        try:
            yield Update(GLOBAL, refund)
        finally:
            self._queues.nudge(GLOBAL)

    def _wait(self, wait: Wait) -> Procedure[Late | No | None]:
        """Wait as the decision requires; `Late` if that takes longer than the deadline allows."""
        key, policy, seconds, because = self._key, self._request.policy, wait.seconds, wait.because
        if because == OUTAGE:
            out_for = self._timers.now() - (self._out_since or 0.0)
            if out_for >= (self._gate.max_outage or math.inf):
                return No(Reason.STORE_UNREACHABLE, None)
        left = self._time_left()
        if left is not None:
            # The release of a held slot is unpredictable. Only the other waits are certain.
            needed = seconds
            if because in HELD:
                needed = yield Update(key, self._request.foresee(0, self._request.count - 1))
            if needed > left or left <= 0:
                return Late(needed or POLL, because)
        if because in HELD and self._queues.held(key) < (policy.concurrency or 1):
            seconds = min(seconds, POLL * (0.5 + self._gate.roll()))
        if seconds >= LOGGED and _log.hears(logging.DEBUG):
            host = key.removeprefix("host:")
            _log.debug("Waiting for a host", host=host, seconds=round(seconds, 3), because=because)
        seconds = min(seconds, max(LOOK_AGAIN, seconds / 4))
        yield Sleep(self._waiter, seconds if left is None else min(seconds, left))
        return None

    # The global rate

    def _global_token(self) -> Procedure[Lease | Wait | No]:
        """Wait for a token of the global rate, in a queue where registered domains take turns.

        The host is checked first, and again after every change of its queue, so that no token is taken in vain.
        """
        queues, waiter = self._queues, self._waiter
        changes = queues.changes(self._key)
        decision: Decision = yield Update(self._key, self._request.look())
        if not isinstance(decision, Go):
            return decision
        ahead, _ = queues.join(GLOBAL, waiter, host=self._key.removeprefix("host:"))
        try:
            while True:
                refused, changes = yield from self._look_again(changes)
                if refused is not None:
                    return refused
                if (overall := self._request.global_policy) is None:
                    return PREPAID  # the global limit was removed meanwhile
                overall = self._gate.shared_out(overall)
                token: Lease | Wait | No | None
                if queues.is_first(GLOBAL, waiter):
                    token = yield from self._take_token(overall)
                else:
                    token = yield from self._wait_for_global_turn(overall, ahead)
                    ahead, _ = queues.ahead(GLOBAL, waiter)
                if token is not None:
                    return token
        finally:
            queues.leave(GLOBAL, waiter, holding=False)

    def _look_again(self, changes: int) -> Procedure[tuple[Wait | No | None, int]]:
        """Check the settings, and the host if it has changed; return what ends the wait, and the present changes."""
        if self._waiter.closed:
            return No(Reason.CLOSED, None), changes
        request = self._request
        current = request.current()
        if isinstance(current, No):
            return current, changes
        if current.key != request.key:
            return Wait(0.0, "changed"), changes  # it starts over on another record
        if current is request and self._queues.changes(self._key) == changes:
            return None, changes
        self._request, changes = current, self._queues.changes(self._key)
        decision: Decision = yield Update(self._key, current.look())
        return None if isinstance(decision, Go) else decision, changes

    def _wait_for_global_turn(self, overall: Policy, ahead: int) -> Procedure[Wait | None]:
        left = self._time_left()
        if left is not None:
            if _batch(overall) == 1:
                needed = yield Update(GLOBAL, foresee(overall, ahead))
                if needed > left:
                    return Wait(needed, "global")
            if left <= 0:
                return Wait(overall.interval_us / SECOND, "global")
        if self._queues.tidy(GLOBAL):
            left = LOOK_AGAIN if left is None else min(left, LOOK_AGAIN)
        yield Sleep(self._waiter, left)
        return None

    def _take_token(self, overall: Policy) -> Procedure[Lease | Wait | No | None]:
        """Take a token as the first waiter of all hosts; None if it has waited and must try again."""
        now, left, batch = self._timers.now(), self._time_left(), _batch(overall)
        if self._queues.take_prepaid(now):
            return PREPAID
        taken = Shared(take(overall, batch))
        decision: Decision | NotNow = yield Update(GLOBAL, taken, partial(self._untake, overall, batch))
        if decision is NOT_NOW:
            return self._outage(now)
        if isinstance(decision, Go):
            # Unused tokens of a batch expire when the next batch is available, so batches do not accumulate.
            self._queues.prepay(batch - 1, now + batch * overall.interval_us / SECOND)
            return decision.lease
        if isinstance(decision, No) or (left is not None and decision.seconds > left):
            return decision
        yield Sleep(self._waiter, decision.seconds)
        return None

    def _untake(self, overall: Policy, batch: int, decision: Decision | NotNow | None) -> Procedure[None]:
        """Return the tokens of a batch whose task was cancelled."""
        if isinstance(decision, Go):
            yield Update(GLOBAL, give_back(overall, decision.lease, batch))
            self._queues.nudge(GLOBAL)


def _batch(overall: Policy) -> int:
    """Return how many global tokens to take at once: those of a twentieth of a second, at least 1."""
    return max(1, int((overall.qps or 0.0) / 20))
