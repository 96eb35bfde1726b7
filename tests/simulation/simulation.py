"""Simulation: a day of a crawl, from its first host to the last URL's account."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from random import Random

from curtsy.core.policy import Policies
from curtsy.core.time import SECOND
from curtsy.stores.memory import MemoryStore
from tests.crawling.driven import local
from tests.simulation.crew import Moment, Worker
from tests.simulation.ledger import DONE, FAILED, QUEUED, Ledger
from tests.simulation.referee import Referee
from tests.simulation.timeline import NOON, StoreClock, Timeline, whole
from tests.simulation.world import World

DAY = 86_400 * SECOND


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How a day goes."""

    workers: int = 20
    hands: int = 2
    """URLs that a worker has in hand at once."""

    crashes: int = 100
    lasts: int = DAY
    listed: int = 50
    """How many in a hundred URLs are known from the beginning; the others are found by links."""

    lag: int = SECOND
    """Microseconds that it takes to connect, at most."""

    stalls: tuple[float, float] | None = None
    """Between how many and how many seconds a process is now and then stopped between its charge and its sending."""

    lease: float = 600.0
    """Of a URL, in seconds."""


@dataclass(slots=True)
class Outcome:
    """What came of a day."""

    digest: str
    violations: dict[str, int]
    examples: list[str]
    errors: list[str]
    """What is wrong in the accounts."""

    hosts: int
    urls: int
    """Those that became known, which are all done, failed or queued."""

    done: int
    failed: dict[str, int]
    queued: int
    sends: dict[str, int]
    statuses: dict[int, int]
    crashes: dict[str, int]
    repeats: int
    graces: int
    events: int
    seconds: float = field(compare=False)
    """That it took in real time."""

    def __str__(self) -> str:
        lines = [
            f"{self.hosts:,} hosts, {self.urls:,} URLs: {self.done:,} done, {sum(self.failed.values()):,} failed, "
            f"{self.queued:,} queued",
            f"failed: {self.failed}",
            f"sent: {self.sends}, answered: {dict(sorted(self.statuses.items()))}",
            f"crashes: {sum(self.crashes.values()):,} {self.crashes}, repeated for them: {self.repeats:,}",
            f"violations: {self.violations}, gaps short by the lag of a crashed one: {self.graces:,}",
            f"{self.events:,} events in {self.seconds:.1f} s: {self.events / self.seconds:,.0f} a second",
            self.digest,
            *self.examples,
            *self.errors[:20],
        ]
        return "\n".join(lines)


class Simulation:
    """Many workers on one world. The referee may be told other policies than they, to see that he sees it."""

    def __init__(self, world: World, plan: Plan, seed: int, told: Policies | None = None) -> None:
        self.world, self.plan = world, plan
        self.timeline = Timeline()
        self.dice = Random(f"day {seed}")
        self.store = MemoryStore(StoreClock(self.timeline))
        self.lag = plan.lag
        self.failures: Counter[str] = Counter()
        policies = world.policies
        self.frontier = local(
            concurrency=lambda host: policies.of(host).concurrency, lease=plan.lease, clock=self.timeline.now
        )
        delayed = plan.lag + (whole(plan.stalls[1]) if plan.stalls else 0)
        self.referee = Referee(world, told or policies, self.timeline.began, NOON, delayed)
        self.ledger = Ledger(world)
        self._workers: list[Worker] = []
        self._idle: list[Worker] = []
        """Those with a hand free, once for each."""
        self._hired = 0
        self._crashes: Counter[str] = Counter()
        self._looks_at = 0
        """When the frontier is looked at next; 0 if nobody knows."""

    def run(self) -> Outcome:
        """Have a day go by."""
        began = time.perf_counter()
        timeline, plan, dice = self.timeline, self.plan, self.dice
        ends_at = timeline.began + plan.lasts
        for site in self.world.sites:  # they become known over nearly all of the day
            timeline.after(dice.randrange(plan.lasts * 9 // 10), partial(self._arrive, site.number))
        for _ in range(plan.workers):
            self._hire()
        for _ in range(plan.crashes):
            timeline.after(dice.randrange(plan.lasts * 9 // 10), self._doom)
        timeline.run(ends_at)
        events = timeline.events
        self.ledger.close(self.frontier, timeline)
        counts, referee = self.ledger.counts(), self.referee
        return Outcome(
            digest=referee.digest,
            violations=dict(referee.violations),
            examples=referee.examples,
            errors=self.ledger.errors,
            hosts=len(self.world.sites),
            urls=counts[DONE] + counts[FAILED] + counts[QUEUED],
            done=counts[DONE],
            failed=dict(self.failures),
            queued=counts[QUEUED],
            sends=dict(referee.sends),
            statuses=dict(referee.statuses),
            crashes=dict(self._crashes),
            repeats=referee.repeats,
            graces=referee.graces,
            events=events,
            seconds=time.perf_counter() - began,
        )

    def stall(self) -> int:
        """Microseconds for which a process is stopped between its charge and its sending; nearly always 0."""
        stalls = self.plan.stalls
        return 0 if stalls is None or self.dice.random() > 0.02 else whole(self.dice.uniform(*stalls))

    def _arrive(self, number: int) -> None:
        seeds = list(self.world.seeds(self.world.sites[number], self.plan.listed))
        self.frontier.add(seeds, priority=1)
        self.ledger.add(seeds)
        self._look()

    def _hire(self) -> None:
        self._hired += 1
        worker = Worker(self, self._hired)
        self._workers.append(worker)
        self._idle += [worker] * self.plan.hands
        self._look()

    def _doom(self) -> None:
        """Somebody is to die, now or when he next comes to that moment."""
        moment = self.dice.choice(list(Moment))
        if self._workers:
            worker = self.dice.choice(self._workers)
            if moment is Moment.WHENEVER and self.dice.random() < 0.5:
                worker.die(moment)
            else:
                worker.doom = moment

    def crashed(self, worker: Worker, moment: Moment) -> None:
        """A worker has died; another one begins after a while."""
        self._crashes[moment.value] += 1
        self._workers.remove(worker)
        self._idle = [each for each in self._idle if each is not worker]
        self.timeline.after(whole(self.dice.expovariate(1 / 30)), self._hire)

    def freed(self, worker: Worker) -> None:
        """A worker has a hand free."""
        if worker.is_alive:
            self._idle.append(worker)
        self._look()

    def _look(self) -> None:
        """Hand out what is due to those who are idle, or look again when something is."""
        idle, timeline = self._idle, self.timeline
        while idle:
            claims = self.frontier.claim(1)
            if not claims:
                break
            place = self.dice.randrange(len(idle))
            idle[place], idle[-1] = idle[-1], idle[place]
            idle.pop().take(claims[0])
            idle = self._idle  # whoever dies on the way takes his other hand with him
        if not idle:
            return
        due = self.frontier.due_in()
        if due is None:
            return
        due_at = timeline.at + max(1, whole(due))
        if not timeline.at < self._looks_at <= due_at:
            self._looks_at = due_at
            timeline.call(due_at, self._look)
