"""A process that asks for as many requests as it can get, and writes down each one that it was given.

    python -m tests.support.admitter <file or redis URL> <journal> <zone> <how> <seed>

`how` is `tasks` or `threads`. With $ADMITTER_OFF its wall clock is off by so many seconds, as that of a machine whose
clock nobody sets. It says `ready` when it has asked the store for the first time, and works until it is killed or its
standard input ends. Nothing is sent anywhere: a line in the journal stands for what would be.
"""

from __future__ import annotations

import os
import sys
import time

from tests.support.stores import redis_store, sqlite_store

if _off := float(os.environ.get("ADMITTER_OFF", 0)):
    # Before curtsy is imported, and in this process alone: it must not make any difference.
    _time, _time_ns = time.time, time.time_ns
    time.time = lambda: _time() + _off
    time.time_ns = lambda: _time_ns() + round(_off * 1e9)

import asyncio
import random
import threading
from collections.abc import Callable
from zoneinfo import ZoneInfo

from curtsy.core.decision import Late, No
from curtsy.core.errors import Reason
from curtsy.core.outcome import Kind, Outcome
from curtsy.core.policy import UNLIMITED, Policy
from curtsy.engine.gate import Gate, Ticket
from curtsy.engine.gate_steps import Request
from curtsy.stores import AsyncStore, Store
from curtsy.stores.blocking import for_tasks
from curtsy.stores.redis import AsyncRedisStore
from curtsy.stores.sqlite import AsyncSQLiteStore

DOMAINS = 20
GLOBAL_QPS = 300.0
PATIENCE = 20.0
"""Seconds that a busy machine may take: the stores stand without a shelter here, so that none counts by itself."""

REST = 0.02
"""Seconds after a refusal, which comes at once, so that the processes do more than be refused."""

OUTCOMES = {
    Outcome(Kind.ANSWERED, 200, page=True): 6,
    Outcome(Kind.ANSWERED, 404): 2,
    Outcome(Kind.NOT_MODIFIED, 304): 1,
    Outcome(Kind.FAILED, sent=False): 1,
    Outcome(Kind.ABANDONED, sent=False): 1,
}
"""What may come of a request, and how often."""


def policies(zone: str) -> dict[str, Policy]:
    """What holds for each of the domains: every limit alone, and several together."""
    # So that a dead holder's place is free after 5 s.
    free = UNLIMITED.replace(timezone=ZoneInfo(zone), timeout=0.001, robots_timeout=0.001)
    kinds = (
        free.replace(qps=25.0),
        free.replace(qps=40.0, burst=3),
        free.replace(qps=25.0, strategy="leaky_bucket"),
        free.replace(qps=20.0, burst=4, strategy="sliding_window"),
        free.replace(concurrency=1),
        free.replace(concurrency=2),
        free.replace(concurrency=1, pause_min=0.02, pause_max=0.08),
        free.replace(concurrency=None, max_requests_per_day=60),
        free.replace(concurrency=2, max_requests_per_day=0, max_pages_per_day=30),
        free.replace(qps=50.0, concurrency=2, delay=0.01, max_requests_per_day=90, max_pages_per_day=40),
    )
    return {f"{number}.example.org": kinds[number % len(kinds)] for number in range(DOMAINS)}


class Journal:
    """A file that many processes append whole lines to. A line that was written stays, whoever is killed then."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def write(self, *words: object) -> None:
        os.write(self._file, (" ".join(map(str, (*words, os.getpid()))) + "\n").encode())


class Admitter:
    """What tasks and threads do alike: choose, write down, make something up that came of it."""

    def __init__(self, journal: Journal, zone: str, seed: int) -> None:
        self._journal = journal
        self._policies = policies(zone)
        self._overall = UNLIMITED.replace(qps=GLOBAL_QPS)
        self._dice = random.Random(seed)
        self.spent: set[str] = set()
        """Domains that have had their day's budget."""

    def request(self) -> Request:
        """Some domain's next request; half of them pass the global rate, some have a deadline."""
        domains = [domain for domain in self._policies if domain not in self.spent]
        domain = self._dice.choice(domains)
        return Request(
            f"host:{domain}",
            self._policies[domain],
            self._overall if int(domain.partition(".")[0]) < DOMAINS // 2 else None,
            page=self._dice.random() < 0.8,
            deadline=self._dice.choice((None, 0.05, 0.5)),
        )

    def left(self, ticket: Ticket) -> None:
        """Write down that a request leaves, before it does."""
        lease = ticket.lease
        self._journal.write("in", ticket.key, lease.number, lease.left_at, int(lease.page))

    def done(self, ticket: Ticket, at: int) -> Outcome:
        """Write down that a request has ended, before its place is given back."""
        [outcome] = self._dice.choices(list(OUTCOMES), list(OUTCOMES.values()))
        if not ticket.lease.page and outcome.page:
            outcome = Outcome(Kind.ANSWERED, 200)
        self._journal.write("out", ticket.key, ticket.lease.number, at, f"{outcome.kind.name}:{int(outcome.page)}")
        return outcome

    def refused(self, request: Request, answer: No | Late) -> None:
        """A budget that is spent is not asked for again; at the end it must be spent to the last request."""
        if isinstance(answer, No):
            assert answer.reason is Reason.DOMAIN_BUDGET_EXCEEDED, answer
            if self._dice.random() < 0.2:  # what is given back may yet be had
                self.spent.add(request.key.removeprefix("host:"))

    def takes(self) -> float:
        """How long a request is on its way."""
        return self._dice.choice((0.0, 0.0, 0.002, 0.01, 0.03))


async def ask(store: AsyncStore, gate: Gate, work: Admitter, over: Callable[[], bool]) -> None:
    """Pass the gate again and again until it is over."""
    while not over():
        request = work.request()
        answer = await gate.enter(request)
        if isinstance(answer, Ticket):
            work.left(answer)
            await gate.timers.sleep(gate.timers.waiter(), work.takes())
            await gate.settle(answer, work.done(answer, (await store.now()).at))
        else:
            work.refused(request, answer)
            await gate.timers.sleep(gate.timers.waiter(), REST)


async def with_tasks(place: str, work: Admitter, over: Callable[[], bool]) -> None:
    """Ask from fifteen tasks at once."""
    is_server = place.startswith("redis:")
    store: AsyncStore = (
        AsyncRedisStore(place, timeout=PATIENCE) if is_server else AsyncSQLiteStore(place, patience=PATIENCE)
    )
    gate = Gate(store)
    await store.now()
    print("ready", flush=True)
    await asyncio.gather(*(ask(store, gate, work, over) for _ in range(15)))
    await store.close()


def with_threads(place: str, work: Admitter, over: Callable[[], bool]) -> None:
    """Ask from five threads at once, each with an event loop of its own over one blocking store."""
    is_server = place.startswith("redis:")
    store: Store = redis_store(place, timeout=PATIENCE) if is_server else sqlite_store(place, patience=PATIENCE)
    tasks = for_tasks(store)
    gate = Gate(tasks)
    store.now()
    print("ready", flush=True)
    threads = [threading.Thread(target=lambda: asyncio.run(ask(tasks, gate, work, over))) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    store.close()


def main() -> None:
    place, journal, zone, how, seed = sys.argv[1:]
    is_over = threading.Event()

    def listen() -> None:
        sys.stdin.read()
        is_over.set()

    threading.Thread(target=listen, daemon=True).start()
    work = Admitter(Journal(journal), zone, int(seed))
    if how == "tasks":
        asyncio.run(with_tasks(place, work, is_over.is_set))
    else:
        with_threads(place, work, is_over.is_set)


if __name__ == "__main__":
    main()
