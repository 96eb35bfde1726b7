"""Limiter: the cost of a decision, of a host and of a wait, and the requests per second over processes.

    python -m benchmarks.limiter [PART ...] [--quick]

A request is one admission and one settlement, with all limits at once: rate, pause, budget, breaker, one request at a
time. A peer's figure is that of a single rate, which is all that it has.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
import multiprocessing
import random
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from importlib import import_module
from typing import Any

from benchmarks.measure import cpu, in_process, is_installed, memory, redis_server
from benchmarks.report import Report, run
from curtsy.core.admission import admit
from curtsy.core.decision import Go, Lease
from curtsy.core.host import Host
from curtsy.core.outcome import Kind, Outcome
from curtsy.core.policy import UNLIMITED, UTC, Policy
from curtsy.core.settlement import settle
from curtsy.core.time import SECOND, Instant, Now
from curtsy.engine.gate import Gate, Ticket
from curtsy.engine.gate_steps import Request
from curtsy.stores import AsyncStore, Step, open_async_store, open_store
from curtsy.stores.memory import AsyncMemoryStore

EVERYTHING = Policy(timezone=UTC, max_requests_per_day=10**9, max_pages_per_day=10**9)
"""All limits, and a budget that does not end the benchmark."""

OVERALL = UNLIMITED.replace(qps=100_000.0)
"""Global rate, above the speed of the benchmark."""

FAST = UNLIMITED.replace(qps=100_000.0, burst=1000, max_requests_per_day=10**9, concurrency=64, timezone=UTC)
"""All limits, above the speed of the benchmark."""

ANSWERED = Outcome(Kind.ANSWERED, 200, page=True, latency=0.2, sent_ago=0.0)


class SteppingClock:
    """Clock that advances by a fixed step at each call."""

    def __init__(self, step: int) -> None:
        self._at, self._step = 10**9, step

    def now(self) -> Now:
        """Return the current time."""
        self._at += self._step
        return Now(Instant(self._at), self._at + 1_800_000_000_000_000)

    def skip(self, microseconds: int) -> None:
        """Advance the clock, so that every host is due again."""
        self._at += microseconds


def admitting(policy: Policy) -> Step[Any]:
    """Return the step that admits a request."""
    return lambda host, now: admit(host, now, policy, 0.5)


def settling(policy: Policy, lease: Lease) -> Step[None]:
    """Return the step that settles a request."""

    def step(host: Host | None, now: Now) -> tuple[Host, None]:
        return settle(host, now, policy, lease, ANSWERED), None

    return step


def decisions(report: Report) -> None:
    """Report the CPU time of the decisions of a request, in memory, over hosts in random order."""
    count, rounds = (1_000, 1) if report.is_quick else (100_000, 3)
    keys = [f"host:site-{number}.org" for number in range(count)]
    report.title(f"decisions in memory, {count:,} hosts")
    alone, whole = asyncio.run(_decide(keys, rounds))
    report.add("admit", alone, "µs", at_most=4)
    report.add("admission, global rate and settlement through the gate", whole, "µs", at_most=15)
    for name, call in _keyed_peers().items():
        chosen = iter(random.Random(1).choices(keys, k=30_000))
        report.add(f"{name}, one rate", [cpu(partial(_call_next, call, chosen), 10_000) for _ in range(3)], "µs")


def _call_next(call: Callable[[str], object], keys: Iterator[str]) -> None:
    call(next(keys))


async def _decide(keys: list[str], rounds: int) -> tuple[list[float], list[float]]:
    """Return the microseconds of an admission, and of a whole request through the gate, for each round."""
    clock = SteppingClock(6_000_000 // len(keys) + 1)
    store = AsyncMemoryStore(clock)
    gate, step = Gate(store), admitting(EVERYTHING)
    leases: dict[str, Lease] = {}
    alone, whole = [], []

    def admit_all() -> None:
        for key in keys:
            leases[key] = store.update_now(key, step).lease

    async def request_all() -> None:
        for key in keys:
            ticket = await gate.enter(Request(key, EVERYTHING, OVERALL))
            assert isinstance(ticket, Ticket)
            await gate.settle(ticket, ANSWERED)

    for number in range(rounds + 1):
        random.Random(number).shuffle(keys)
        clock.skip(10 * SECOND)
        alone.append(cpu(admit_all, 1) / len(keys))
        for key, lease in leases.items():
            store.update_now(key, settling(EVERYTHING, lease))
        clock.skip(10 * SECOND)
        gc.collect()
        began = time.process_time()
        await request_all()
        whole.append((time.process_time() - began) / len(keys) * 1e6)
    await store.close()
    return alone[1:], whole[1:]  # in the first round the hosts are new


def _keyed_peers() -> dict[str, Callable[[str], object]]:
    """Return how each peer takes a token of a key without waiting."""
    calls: dict[str, Callable[[str], object]] = {}
    if is_installed("limits"):
        limits, storage = import_module("limits"), import_module("limits.storage")
        window = import_module("limits.strategies").SlidingWindowCounterRateLimiter(storage.MemoryStorage())
        calls["limits"] = partial(window.hit, limits.RateLimitItemPerSecond(1_000_000))
    if is_installed("throttled"):
        throttled = import_module("throttled")
        quota = throttled.per_sec(1_000_000, burst=1_000_000)
        calls["throttled-py"] = throttled.Throttled(
            using="gcra", quota=quota, store=throttled.store.MemoryStore()
        ).limit
    return calls


def hosts(report: Report) -> None:
    """Report the memory of a host with its key."""
    report.title("memory of a host with its key")
    for count, goal in ((10_000, None),) if report.is_quick else ((100_000, 400), (1_000_000, 300)):
        report.add(f"{count:,} hosts", in_process(_fill, count) / count, "bytes", at_most=goal)
    if is_installed("throttled"):
        count = 10_000 if report.is_quick else 100_000
        report.add(f"throttled-py, one rate, {count:,} keys", in_process(_fill_throttled, count) / count, "bytes")


def _fill(count: int) -> float:
    gc.collect()
    before = memory("VmRSS")
    store, step = AsyncMemoryStore(SteppingClock(10)), admitting(EVERYTHING)
    for number in range(count):
        key = f"host:site-{number}.org"
        store.update_now(key, settling(EVERYTHING, store.update_now(key, step).lease))
    gc.collect()
    return memory("VmRSS") - before


def _fill_throttled(count: int) -> float:
    throttled = import_module("throttled")
    gc.collect()
    before = memory("VmRSS")
    store = throttled.store.MemoryStore(options={"MAX_SIZE": count + 1})
    throttle = throttled.Throttled(using="gcra", quota=throttled.per_sec(10), store=store)
    for number in range(count):
        throttle.limit(f"host:site-{number}.org")
    gc.collect()
    return memory("VmRSS") - before


def wakeups(report: Report) -> None:
    """Report how late waiters are woken that may go once a second and host."""
    hosts, each = (100, 3) if report.is_quick else (1_000, 10)
    report.title(f"wake-up, {hosts * each:,} waiters over {hosts:,} hosts, one a second and host")
    late, short = asyncio.run(_wake(hosts, each))
    late.sort()
    report.add("late, p50", late[len(late) // 2], "ms")
    report.add("late, p99", late[int(len(late) * 0.99)], "ms", at_most=5)
    report.add("late, worst", late[-1], "ms")
    report.add("gaps shorter than a second", short, "gaps", at_most=0)


async def _wake(hosts: int, each: int) -> tuple[list[float], int]:
    """Return the milliseconds that each waiter was late, and the number of short gaps."""
    gate, policy = Gate(AsyncMemoryStore()), UNLIMITED.replace(qps=1.0)
    woken: dict[int, list[float]] = {host: [] for host in range(hosts)}
    admitted: dict[int, list[int]] = {host: [] for host in range(hosts)}

    async def wait(host: int) -> None:
        ticket = await gate.enter(Request(f"host:{host}", policy, page=False))
        woken[host].append(time.monotonic())
        assert isinstance(ticket, Ticket)
        admitted[host].append(ticket.lease.left_at)

    async def start(host: int) -> None:
        await asyncio.sleep(host / hosts)  # as in a crawl; otherwise all hosts would be due at the same time
        await asyncio.gather(*(wait(host) for _ in range(each)))

    await asyncio.gather(*map(start, range(hosts)))
    late = [(b - a - 1.0) * 1e3 for times in woken.values() for a, b in itertools.pairwise(times)]
    gaps = [b - a for times in admitted.values() for a, b in itertools.pairwise(times)]
    return late, sum(gap < SECOND for gap in gaps)


# Requests per second over processes


def _work_in_tasks(url: str, seconds: float, number: int, ready: Any, results: Any) -> None:
    """Send requests from 64 tasks, as a crawler does."""

    async def work() -> tuple[int, float]:
        store: AsyncStore = open_async_store(url, fallback=False)
        count, worst, step = 0, 0.0, admitting(FAST)
        await store.now()
        ready.wait(60)
        ends = time.monotonic() + seconds

        async def task(which: int) -> None:
            nonlocal count, worst
            chance = random.Random(number * 1000 + which)
            while (began := time.monotonic()) < ends:
                key = f"host:{chance.randrange(1000)}"
                decision = await store.update(key, step)
                worst = max(worst, time.monotonic() - began)
                if isinstance(decision, Go):
                    await store.update(key, settling(FAST, decision.lease))
                    count += 1

        await asyncio.gather(*map(task, range(64)))
        await store.close()
        return count, worst

    results.put(asyncio.run(work()))


def _work_in_thread(url: str, seconds: float, number: int, ready: Any, results: Any) -> None:
    """Send requests from one thread."""
    store = open_store(url, fallback=False)
    chance, step = random.Random(number), admitting(FAST)
    store.now()
    ready.wait(60)
    count, worst, ends = 0, 0.0, time.monotonic() + seconds
    while (began := time.monotonic()) < ends:
        key = f"host:{chance.randrange(1000)}"
        decision = store.update(key, step)
        worst = max(worst, time.monotonic() - began)
        if isinstance(decision, Go):
            store.update(key, settling(FAST, decision.lease))
            count += 1
    store.close()
    results.put((count, worst))


def _together(work: Callable[..., None], url: str, processes: int, seconds: float) -> tuple[float, float]:
    """Return the requests per second of processes at the same time, and the longest wait in milliseconds."""
    context = multiprocessing.get_context("spawn")
    results, ready = context.Queue(), context.Barrier(processes)
    workers = [context.Process(target=work, args=(url, seconds, number, ready, results)) for number in range(processes)]
    for worker in workers:
        worker.start()
    found = [results.get(timeout=seconds * 10 + 60) for _ in workers]
    for worker in workers:
        worker.join()
    return sum(count for count, _ in found) / seconds, max(worst for _, worst in found) * 1e3


def sqlite(report: Report) -> None:
    """Report the requests per second of processes on one SQLite file."""
    seconds, rounds = (0.5, 1) if report.is_quick else (4.0, 3)
    for processes in (1, 8):
        report.title(f"SQLite, 1,000 hosts, {processes} {'process' if processes == 1 else 'processes'}")
        for name, work, goal in (("64 tasks", _work_in_tasks, 12_000), ("one thread", _work_in_thread, 5_000)):
            found = []
            for _ in range(rounds):
                with tempfile.TemporaryDirectory() as folder:
                    found.append(_together(work, f"sqlite:///{folder}/state.sqlite", processes, seconds))
            speeds, waits = zip(*found, strict=True)
            report.add(f"{name} each, requests", speeds, "/s", at_least=goal if processes == 8 else None)
            report.add(f"{name} each, worst wait", waits, "ms", at_most=100 if processes == 8 else None)


def redis(report: Report) -> None:
    """Report the requests per second of one process on one Redis server."""
    if not is_installed("redis-server"):
        return
    seconds, rounds = (0.5, 1) if report.is_quick else (4.0, 3)
    report.title("Redis, 1,000 hosts, one process")
    with redis_server() as url:
        found = [_together(_work_in_tasks, f"{url}/{number}", 1, seconds) for number in range(rounds)]
        speeds, waits = zip(*found, strict=True)
        report.add("64 tasks, requests", speeds, "/s", at_least=10_000)
        report.add("64 tasks, worst wait", waits, "ms")
        speed, _ = _together(_work_in_thread, f"{url}/{rounds}", 1, seconds)
        report.add("one thread, requests", speed, "/s")
        for name, speed in asyncio.run(_redis_peers(url, seconds)).items():
            report.add(f"{name}, one rate, 64 tasks", speed, "/s")


async def _redis_peers(url: str, seconds: float) -> dict[str, float]:
    """Return how many tokens a second each peer takes."""

    async def speed(call: Callable[[str], Awaitable[object]]) -> float:
        ends, count = time.monotonic() + seconds, 0

        async def task(number: int) -> None:
            nonlocal count
            chance = random.Random(number)
            while time.monotonic() < ends:
                await call(f"host:{chance.randrange(1000)}")
                count += 1

        await asyncio.gather(*map(task, range(64)))
        return count / seconds

    found = {}
    if is_installed("throttled"):
        throttled = import_module("throttled.asyncio")
        store = throttled.store.RedisStore(server=f"{url}/14")
        quota = throttled.per_sec(1_000_000, burst=1_000_000)
        found["throttled-py"] = await speed(throttled.Throttled(using="gcra", quota=quota, store=store).limit)
    if is_installed("limits"):
        storage = import_module("limits.aio.storage").RedisStorage(f"async+{url}/15", implementation="redispy")
        window = import_module("limits.aio.strategies").SlidingWindowCounterRateLimiter(storage)
        item = import_module("limits").RateLimitItemPerSecond(1_000_000)
        found["limits"] = await speed(partial(window.hit, item))
    return found


PARTS = {"decisions": decisions, "hosts": hosts, "wakeups": wakeups, "sqlite": sqlite, "redis": redis}

if __name__ == "__main__":
    run("limiter", __doc__, PARTS)
