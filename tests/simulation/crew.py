"""Crew: workers that crawl by the real flow, gate, rules and admission, each as a process of its own, and may crash.

A worker has its own lines, rules in memory and share of retries, as a process has; the store and the frontier are
everybody's. A flow's effects are carried out by the real driver, but for the three that take time: entering the gate
and waiting for rules, whose ways are the real ones, and sending.
"""

from __future__ import annotations

from collections import Counter
from enum import Enum
from functools import partial
from random import Random
from typing import Any, Protocol

from curtsy.core.effects import FetchRequest, Flow, Send, Settle
from curtsy.core.errors import Reason
from curtsy.core.flow import fetch
from curtsy.core.policy import Policy
from curtsy.core.request import Failure, Reply, Request, Response
from curtsy.core.result import FetchResult
from curtsy.core.time import SECOND
from curtsy.core.url import Url
from curtsy.crawling.frontier.protocol import Claimed, Deferred, Done
from curtsy.crawling.running_fetches import MAX_WAIT
from curtsy.engine.context import Context, HeldResources
from curtsy.engine.driver import Driver
from curtsy.engine.gate import Gate, Ticket
from curtsy.engine.store_driver import Finished, Procedure, Sleep
from curtsy.engine.timers import Waiter
from curtsy.http.sender import Limits, Sink
from curtsy.stores.memory import MemoryStore
from curtsy.stores.protocol import Answer as Stored
from curtsy.stores.protocol import NotNow, Step, WrappedStore
from tests.crawling.driven import Driven
from tests.simulation.character import NEVER, REFUSED, Answer
from tests.simulation.ledger import DONE, FAILED, Ledger
from tests.simulation.referee import Flight, Referee
from tests.simulation.timeline import Timeline, whole
from tests.simulation.verdict import Verdict, refused, verdict
from tests.simulation.world import World


class Moment(Enum):
    """When a worker dies."""

    CLAIMED = "between claim and admission"
    CHARGED = "between charge and send"
    SENT = "between send and settlement"
    SETTLED = "between settlement and done"
    WHENEVER = "whatever it is doing"


class Scene(Protocol):
    """What all workers share."""

    timeline: Timeline
    world: World
    dice: Random
    store: MemoryStore
    frontier: Driven
    referee: Referee
    ledger: Ledger
    failures: Counter[str]
    lag: int
    """Microseconds that it takes to connect, at most."""

    def stall(self) -> int:
        """Microseconds for which a process is stopped between its charge and its sending; nearly always 0."""
        ...

    def freed(self, worker: Worker) -> None:
        """A worker has a hand free."""
        ...

    def crashed(self, worker: Worker, moment: Moment) -> None:
        """A worker has died."""
        ...


class Window(WrappedStore):
    """The common store, as one process sees it."""

    is_immediate = True

    def __init__(self, store: MemoryStore, identity: str) -> None:
        super().__init__(store.inner)
        self._identity = identity

    @property
    def identity(self) -> str:
        """Of its own, for the queues before a store are a process's own."""
        return self._identity

    def update_now(self, key: str, step: Step[Stored]) -> Stored | NotNow:
        return self.inner.update_now(key, step)


class Nowhere:
    """No sender: the simulation sends by itself."""

    async def send(self, request: Request, limits: Limits) -> Reply:
        raise NotImplementedError

    async def stream(self, request: Request, limits: Limits, sink: Sink) -> Reply:
        raise NotImplementedError

    async def locate(self, url: Url, limits: Limits) -> str:
        raise NotImplementedError

    async def refused_address(self, url: Url, limits: Limits) -> str | None:
        raise NotImplementedError

    async def close(self) -> None:
        pass


def _is_single(policy: Policy) -> bool:
    """Whether requests go one by one. Else connecting may change their distance on the wire: no admission can know."""
    return policy.concurrency == 1 and policy.burst == 1


class Worker:
    """One process of the crawl."""

    def __init__(self, scene: Scene, number: int) -> None:
        self.scene = scene
        self.number = number
        timeline, roll = scene.timeline, scene.dice.random
        store = Window(scene.store, f"worker {number} of {id(scene)}")
        self.gate = Gate(store, timers=timeline, roll=roll)
        world = scene.world
        self.around = Context(
            lambda: world.policies, timeline.now, timeline.epoch, roll=roll, number=number << 32
        )  # fmt: skip
        self.driver = Driver(self.around, self.gate, Nowhere())
        self.chances: Counter[str] = Counter()
        self.visits: list[Visit] = []
        self.is_alive = True
        self.doom: Moment | None = None
        """When it is to die next."""

    def take(self, claimed: Claimed) -> None:
        """Begin with a URL, a moment after the frontier has handed it out."""
        visit = Visit(self, claimed)
        self.visits.append(visit)
        if not self.dies(Moment.CLAIMED):
            self.scene.timeline.after(self.scene.dice.randrange(20_000), visit.begin)

    def dies(self, moment: Moment) -> bool:
        """Whether it is now that it dies; then it does."""
        if self.doom is moment:
            self.die(moment)
            return True
        return not self.is_alive

    def die(self, moment: Moment) -> None:
        """End as a process does that is killed: nothing is given back, nothing is said."""
        if self.is_alive:
            self.is_alive = False
            for visit in self.visits:
                self.scene.referee.died(visit.single_flight)
            self.visits.clear()
            self.scene.crashed(self, moment)


class Died(Exception):
    """The worker has ended in the middle of a flow."""


class Rest(Waiter):
    """A visit's waiter: a wake-up has it go on at this very microsecond, after whoever is at it now."""

    __slots__ = ("is_woken", "visit")

    def __init__(self, visit: Visit) -> None:
        super().__init__()
        self.visit = visit
        self.is_woken = False

    def wake(self) -> None:
        self.is_woken = True
        self.visit.woken()


class Visit:
    """One URL in the hands of a worker."""

    def __init__(self, worker: Worker, claimed: Claimed) -> None:
        self.worker = worker
        self.claimed = claimed
        self.single_flight: list[Flight] = []
        scene = worker.scene
        self._scene, self._timeline = scene, scene.timeline
        self._procedure: Procedure[FetchResult] | None = None
        self._resources = HeldResources()
        self._rest = Rest(self)
        self._wait = 0
        """Which wait this is; 0 if it does not wait."""
        self._waits = 0

    def begin(self) -> None:
        """Fetch it, unless it is known to kill."""
        if self.worker.is_alive:
            if (end := refused(self.claimed)) is not None:
                self._conclude(end)
                return
            # As the crawler asks: nobody stands in line for long, and nothing is sent when the claim may be another's.
            max_wait = MAX_WAIT if self._scene.world.policies.global_qps is None else None
            deadline = max(0.001, self.claimed.leased_until - self._timeline.now())
            ask = FetchRequest(self.claimed.url, max_wait=max_wait, follow=False, deadline=deadline)
            flow = self._watched(fetch(ask, self.worker.around))
            self._procedure = self.worker.driver.procedure(flow, self._resources)
            self._go_on(None)

    def _watched(self, flow: Flow[FetchResult]) -> Flow[FetchResult]:
        """The flow, which ends with its worker between settlement and done."""
        answer: Any = None
        while True:
            try:
                effect = flow.send(answer)
            except StopIteration as end:
                result: FetchResult = end.value
                return result
            answer = yield effect
            if isinstance(effect, Settle) and self.worker.dies(Moment.SETTLED):
                raise Died

    def _go_on(self, answer: Any) -> None:
        """Carry out the flow until it has to wait."""
        assert self._procedure is not None
        self._timeline.current_waiter = self._rest
        try:
            effect = self.worker.driver.advance(self._procedure, answer)
        except Died:
            return
        match effect:
            case Finished(result):
                self._end(result)
            case Send():
                self._send(effect)
            case Sleep(_, seconds):
                self._sleep(seconds)
            case _:
                raise AssertionError(f"{type(effect).__name__} takes time, or is answered at once")

    def _sleep(self, seconds: float | None) -> None:
        self._waits += 1
        self._wait = self._waits
        if self._rest.is_woken:
            self.woken()
        elif seconds is not None:
            self._timeline.after(whole(seconds), partial(self._awake, self._wait))

    def woken(self) -> None:
        """Somebody has given way."""
        if self._wait:
            self._timeline.after(0, partial(self._awake, self._wait))

    def _awake(self, wait: int) -> None:
        if self._wait == wait and self.worker.is_alive:
            self._wait, self._rest.is_woken = 0, False
            self._go_on(None)

    # Sending

    def _send(self, effect: Send) -> None:
        if self.worker.dies(Moment.CHARGED):
            return
        stall = self._scene.stall()
        if stall and _is_single(effect.policy):
            self._timeline.after(stall, partial(self._depart, effect))
        else:
            self._depart(effect)

    def _depart(self, effect: Send) -> None:
        """As the real driver does: look at the lease before sending, for the process may have been stopped."""
        worker, ticket = self.worker, effect.ticket
        if not worker.is_alive:
            return
        assert isinstance(ticket, Ticket)
        if self._timeline.now() + effect.timeout > ticket.good_until:
            self._go_on(None)
            return
        worker.around.retries.count(effect.request.url.domain)
        self._resources.is_sent = True
        lag = self._scene.dice.randrange(self._scene.lag + 1) if _is_single(effect.policy) else 0
        self._timeline.after(lag, partial(self._leave, effect, lag))

    def _leave(self, effect: Send, lag: int) -> None:
        """Be on the wire, though the asker may not live to hear the answer."""
        if not self.worker.is_alive:
            return  # the connection was never made
        timeline, scene = self._timeline, self._scene
        url = effect.request.url.text
        answer = scene.world.answer(url, timeline.at - timeline.began, timeline.epoch(), scene.dice)
        patience = max(1, round(effect.timeout * SECOND) - lag)
        is_mute = answer.status == NEVER or answer.took > patience
        took = patience if is_mute else answer.took
        flight = scene.referee.sent(url, timeline.at, is_refused=answer.status == REFUSED)
        self.single_flight.append(flight)
        timeline.after(took, partial(self._hear, effect, flight, None if is_mute else answer))
        if self.worker.doom is Moment.SENT:
            timeline.after(scene.dice.randrange(took + 1), self._die_on_the_way)

    def _die_on_the_way(self) -> None:
        self.worker.dies(Moment.SENT)

    def _hear(self, effect: Send, flight: Flight, answer: Answer | None) -> None:
        """The answer comes, or nobody waits for it any longer; None if there was none."""
        worker, timeline, policy = self.worker, self._timeline, effect.policy
        ago = (timeline.at - flight.sent_at) / SECOND
        full = policy.robots_timeout if flight.is_robots else policy.timeout
        # Given up because the claim ran out: that says nothing of the host.
        is_cut_off = answer is None and effect.timeout < full
        status, retry_after = (NEVER, None) if answer is None else (answer.status, answer.retry_after)
        is_heard = worker.is_alive and not is_cut_off
        self._scene.referee.answered(
            flight, timeline.at, status, retry_after, is_heard=is_heard, is_learned=worker.doom is not Moment.SETTLED
        )  # fmt: skip
        if not worker.is_alive:
            return
        reply: Reply
        if answer is None:
            reply = Failure(Reason.TIMEOUT, "no answer came", ago)
        elif answer.status == REFUSED:
            reply = Failure(Reason.CONNECTION_ERROR, "the connection was refused")
        else:
            reply = Response(answer.status, answer.headers, answer.body, ago, ago, len(answer.body))
        self._resources.is_sent = False
        self._go_on(reply)

    # The end

    def _end(self, result: FetchResult) -> None:
        worker = self.worker
        if worker.dies(Moment.SETTLED):
            return
        self._conclude(verdict(self.claimed, result, self._scene.world, worker.chances))

    def _conclude(self, verdict: Verdict) -> None:
        """Tell the frontier: first what was found, then that the URL is done; a kill may come between."""
        worker, scene, end = self.worker, self._scene, verdict.end
        frontier, ledger = scene.frontier, scene.ledger
        if verdict.found:
            found = list(verdict.found)
            frontier.add(found, depth=verdict.depth, parent=self.claimed.url, hops=verdict.hops)
            ledger.add(found)
            if worker.doom is Moment.WHENEVER and worker.dies(Moment.WHENEVER):
                return
        if isinstance(end, Deferred):
            frontier.defer(self.claimed, end.seconds, last=end.last)
        elif isinstance(end, Done):
            if frontier.done(self.claimed, after=end.after):
                ledger.end(self.claimed.url, DONE)
        elif frontier.fail(self.claimed, end.reason, after=end.after):
            scene.failures[end.reason] += 1
            ledger.end(self.claimed.url, FAILED)
        worker.visits.remove(self)
        scene.freed(worker)
