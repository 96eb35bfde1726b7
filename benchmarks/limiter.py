"""What a decision costs, what a host costs, and how exactly it is waited: curtsy beside its peers, in one run.

    python benchmarks/limiter.py [--quick]

Every figure of ours is for all limits at once (rate, pause, budget, breaker, one request at a time); a peer's is for a
single rate, which is all that it has. A ratio above 1 means that curtsy is better.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import itertools
import multiprocessing
import os
import random
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from typing import Any

from curtsy.core.admission import admit
from curtsy.core.decision import Go
from curtsy.core.host import Host
from curtsy.core.message import SECOND, Instant, Now
from curtsy.core.outcome import Kind, Outcome
from curtsy.core.policy import UNLIMITED, UTC, LimitConfig, Policy
from curtsy.core.settlement import settle
from curtsy.engine.gate import Gate, Request, Ticket
from curtsy.limits import RateLimiter
from curtsy.stores import Step
from curtsy.stores.memory import MemoryStore

EVERYTHING = Policy(timezone=UTC, max_requests_per_day=10**9, max_pages_per_day=10**9)
"""All limits on, and a budget that does not end a benchmark."""

missed: list[str] = []


def say(what: str, ours: float, unit: str, target: float | None = None, *, most: bool = True) -> None:
    """Print a figure of ours, and whether it reaches what it must."""
    verdict = ""
    if target is not None:
        reached = ours <= target if most else ours >= target
        verdict = f"   {'at most' if most else 'at least'} {target:g}: {'reached' if reached else 'MISSED'}"
        if not reached:
            missed.append(what)
    print(f"  {what:<58} {ours:>12,.3f} {unit}{verdict}", flush=True)


def peer(what: str, theirs: float, unit: str, ratio: float) -> None:
    """Print a peer's figure, and how many times better ours is."""
    print(f"    {what:<56} {theirs:>12,.3f} {unit}   x {ratio:,.1f}", flush=True)


def best(run: Callable[[], int], times: int = 5) -> float:
    """Microseconds a call, the least over some runs; `run` answers how many calls it made."""
    found = []
    for _ in range(times):
        gc.collect()
        began = time.perf_counter()
        count = run()
        found.append((time.perf_counter() - began) / count * 1e6)
    return min(found)


class SteppingClock:
    """A clock that moves on by a fixed step at each look, so that every request may go."""

    def __init__(self, step: int) -> None:
        self._at, self._step = 10**9, step

    def now(self) -> Now:
        """The present."""
        self._at += self._step
        return Now(Instant(self._at), self._at + 1_800_000_000_000_000)

    def skip(self, microseconds: int) -> None:
        """Let time pass."""
        self._at += microseconds


def finishing(lease: Any, policy: Policy, outcome: Outcome) -> Step[None]:
    """The step that settles a lease."""

    def step(host: Host | None, now: Now) -> tuple[Host, None]:
        return settle(host, now, policy, lease, outcome), None

    return step


def one_decision(names: list[str], days: bool = False) -> float:
    """Microseconds of an `admit` with all limits on, each host once a round, in another order each time.

    A round takes some seconds of the store's time, so that each host is due again; with `days`, it takes so long that
    every decision is a host's first of a new day. The slowest hundredth is left out: there the machine did something
    else.
    """
    clock = SteppingClock(6_000_000 if days else 6_000_000 // len(names) + 1)
    store = MemoryStore(clock)
    outcome = Outcome(Kind.ANSWERED, 200, page=True, latency=0.2, sent_ago=0.0)
    dice, order = random.Random(1), list(names)

    def step(host: Host | None, now: Now) -> tuple[Host | None, Any]:
        return admit(host, now, EVERYTHING, 0.5)

    def run() -> float:
        clock.skip(10_000_000)
        dice.shuffle(order)
        gc.collect()
        spent = []
        for key in order if len(order) > 1 else order * 20_000:
            began = time.perf_counter()
            decision = store.update(key, step)
            spent.append(time.perf_counter() - began)
            assert isinstance(decision, Go)
            store.update(key, finishing(decision.lease, EVERYTHING, outcome))
        spent.sort()
        usual = spent[: len(spent) * 99 // 100]
        return sum(usual) / len(usual) * 1e6

    run()  # every host has a history
    looks = sorted(-(time.perf_counter() - time.perf_counter()) for _ in range(50_000))
    return min(run() for _ in range(5)) - sum(looks[:49_500]) / 49_500 * 1e6


def decisions(quick: bool) -> None:
    """One decision, in memory: a single host, and 100,000 hosts in no order."""
    print("\nOne decision, in memory (microseconds)")
    keys = [f"host:site-{number}.example.org" for number in range(1_000 if quick else 100_000)]
    order = random.Random(1).choices(range(len(keys)), k=50_000)
    one, many = one_decision(keys[:1]), one_decision(keys)
    say("admit, all limits, one host", one, "µs")
    say(f"admit, all limits, {len(keys):,} hosts", many, "µs", 4.0)
    say("  (the stretch)", many, "µs", 2.0)
    say(f"admit, all limits, {len(keys):,} hosts, each on a new day", one_decision(keys, days=True), "µs")

    for name, call in keyed_peers(keys).items():
        chosen = [keys[place % len(keys)] for place in order[:10_000]]

        def run(call: Callable[[str], object] = call, chosen: list[str] = chosen) -> int:
            for key in chosen:
                call(key)
            return len(chosen)

        theirs = best(run)
        peer(f"{name}, one rate, {len(keys):,} keys", theirs, "µs", theirs / many)
    from aiolimiter import AsyncLimiter

    async def single() -> float:
        limiter = AsyncLimiter(1e9, 1)
        began = time.perf_counter()
        for _ in range(50_000):
            await limiter.acquire()
        return (time.perf_counter() - began) / 50_000 * 1e6

    theirs = min(asyncio.run(single()) for _ in range(5))
    peer("aiolimiter, one rate, one key", theirs, "µs", theirs / one)


def keyed_peers(keys: list[str]) -> dict[str, Callable[[str], object]]:
    """How each peer that has keys takes one token without waiting."""
    import limits.storage
    import limits.strategies
    import throttled
    from pyrate_limiter import InMemoryBucket, Limiter, Rate

    import limits

    calls: dict[str, Callable[[str], object]] = {}
    window = limits.strategies.SlidingWindowCounterRateLimiter(limits.storage.MemoryStorage())
    item = limits.RateLimitItemPerSecond(1_000_000)
    calls["limits (sliding window counter)"] = lambda key: window.hit(item, key)
    throttle = throttled.Throttled(
        using="gcra", quota=throttled.per_sec(1_000_000, burst=1_000_000), store=throttled.store.MemoryStore()
    )
    calls["throttled-py (gcra)"] = lambda key: throttle.limit(key)
    limiters: dict[str, Limiter] = {}

    def pyrate(key: str) -> object:
        limiter = limiters.get(key)
        if limiter is None:
            limiter = limiters[key] = Limiter(InMemoryBucket([Rate(1_000_000, 1000)]))
        return limiter.try_acquire(key, blocking=False)

    if len(keys) <= 1_000:  # a limiter a key: with 100,000 it does not end
        calls["pyrate-limiter (a limiter a key)"] = pyrate
    return calls


def resident() -> int:
    """Bytes of memory that this process holds now."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _fill_curtsy(count: int) -> int:
    keys = [f"host:{number}" for number in range(count)]
    gc.collect()
    before = resident()
    clock = SteppingClock(10)
    store = MemoryStore(clock)
    outcome = Outcome(Kind.ANSWERED, 200, page=True, latency=0.2, sent_ago=0.0)
    for key in keys:
        decision = store.update(key, lambda host, now: admit(host, now, EVERYTHING, 0.5))
        assert isinstance(decision, Go)
        lease = decision.lease
        store.update(key, finishing(lease, EVERYTHING, outcome))
    gc.collect()
    used = resident() - before
    store.close()
    return used


def _fill_throttled(count: int) -> int:
    import throttled

    keys = [f"host:{number}" for number in range(count)]
    gc.collect()
    before = resident()
    store = throttled.store.MemoryStore(options={"MAX_SIZE": count + 1})
    throttle = throttled.Throttled(using="gcra", quota=throttled.per_sec(10), store=store)
    for key in keys:
        throttle.limit(key)
    gc.collect()
    return resident() - before


def _fill_aiolimiter(count: int) -> int:
    from aiolimiter import AsyncLimiter

    async def run() -> int:
        keys = [f"host:{number}" for number in range(count)]
        gc.collect()
        before = resident()
        limiters = {key: AsyncLimiter(10, 1) for key in keys}
        for limiter in limiters.values():
            await limiter.acquire()
        gc.collect()
        return resident() - before

    return asyncio.run(run())


def _in_a_process(fill: Callable[[int], int], count: int) -> int:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(fill, (count,))


def memory(quick: bool) -> None:
    """Bytes a host, its name not counted, each in a process of its own."""
    print("\nMemory (bytes a host, its name not counted)")
    ours = 0.0
    for count in (10_000,) if quick else (100_000, 1_000_000):
        ours = _in_a_process(_fill_curtsy, count) / count
        say(f"all limits, {count:,} hosts", ours, "bytes", 300 if count >= 1_000_000 else None)
    for name, fill in (("throttled-py, one rate", _fill_throttled), ("aiolimiter, one rate", _fill_aiolimiter)):
        theirs = _in_a_process(fill, 10_000 if quick else 100_000) / (10_000 if quick else 100_000)
        peer(f"{name}, {10_000 if quick else 100_000:,} keys", theirs, "bytes", theirs / ours)


async def _spacing(wait: Callable[[], Awaitable[object]], count: int) -> tuple[float, float]:
    """The time from first to last, and the least gap."""
    moments = []

    async def one() -> None:
        await wait()
        moments.append(time.monotonic())

    await asyncio.gather(*(one() for _ in range(count)))
    return moments[-1] - moments[0], min(b - a for a, b in itertools.pairwise(moments))


def accuracy(quick: bool) -> None:
    """Q2: ten requests at 1, 0.8 and 0.5 a second; and 200 at a hundred times that."""
    print("\nSpacing (how much longer than ideal, in percent; least gap as a share of the interval)")
    from aiolimiter import AsyncLimiter
    from pyrate_limiter import InMemoryBucket, Limiter, Rate

    plans = [(rate * 100, 200) for rate in (1.0, 0.8, 0.5)]
    if not quick:
        plans = [(rate, 10) for rate in (1.0, 0.8, 0.5)] + plans
    for rate, count in plans:
        ideal = (count - 1) / rate

        async def ours(rate: float = rate, count: int = count) -> tuple[float, float]:
            limiter = RateLimiter(LimitConfig(rate, 1))
            return await _spacing(lambda: limiter.wait("example.org"), count)

        took, least = asyncio.run(ours())
        off = (took / ideal - 1) * 100
        slow = rate <= 1
        say(f"{count} requests at {rate:g} a second: longer by", off, "%", 0.1 if slow else None)
        say(f"{count} requests at {rate:g} a second: least gap", least * rate, "intervals", 1.0, most=False)
        if slow:
            continue  # the peers at the scaled rate only: it says the same in less time

        async def aio(rate: float = rate, count: int = count) -> tuple[float, float]:
            limiter = AsyncLimiter(1, 1 / rate)
            return await _spacing(limiter.acquire, count)

        took, least = asyncio.run(aio())
        print(f"    aiolimiter: longer by {(took / ideal - 1) * 100:.2f} %, least gap {least * rate:.2f}")

        async def pyrate(rate: float = rate, count: int = count) -> tuple[float, float]:
            limiter = Limiter(InMemoryBucket([Rate(1, round(1000 / rate))]))
            return await _spacing(lambda: limiter.try_acquire_async("x"), count)

        took, least = asyncio.run(pyrate())
        print(f"    pyrate-limiter: longer by {(took / ideal - 1) * 100:.2f} %, least gap {least * rate:.2f}")


def lateness(quick: bool) -> None:
    """How late the one that may go is woken, with 10,000 waiters over 1,000 hosts."""
    print("\nWake-up (milliseconds late, 10,000 waiters over 1,000 hosts, 1 a second each)")
    hosts, each = (100, 5) if quick else (1_000, 10)

    async def ours() -> tuple[list[float], float, float]:
        store = MemoryStore()
        gate = Gate(store.inner)
        policy = UNLIMITED.replace(qps=1.0)
        departures: dict[int, list[float]] = {}
        admissions: dict[int, list[int]] = {}

        async def one(host: int) -> None:
            # Hosts start at moments of their own, as in a crawl: else all 1,000 would be due in the same instant.
            ticket = await gate.enter(Request(f"host:{host}", policy, page=False))
            departures.setdefault(host, []).append(time.monotonic())
            assert isinstance(ticket, Ticket)
            admissions.setdefault(host, []).append(ticket.go.lease.left_at)

        async def start(host: int) -> list[asyncio.Task[None]]:
            await asyncio.sleep(host / hosts)
            return [asyncio.ensure_future(one(host)) for _ in range(each)]

        for tasks in await asyncio.gather(*(start(host) for host in range(hosts))):
            await asyncio.gather(*tasks)
        gaps = [b - a for line in departures.values() for a, b in itertools.pairwise(line)]
        least = min(b - a for line in admissions.values() for a, b in itertools.pairwise(line)) / SECOND
        return [(gap - 1.0) * 1000 for gap in gaps], least, min(gaps)

    late, least, noted = asyncio.run(ours())
    late.sort()
    say("p50", late[len(late) // 2], "ms")
    say("p99", late[int(len(late) * 0.99)], "ms", 5.0)
    say("worst", late[-1], "ms")
    say("least gap between two admissions", least, "s", 1.0, most=False)
    # A task that is late to look at the clock makes the gap before it look longer and the next one shorter.
    say("least gap as the tasks themselves note it", noted, "s")


def _hammer(url: str, seconds: float, number: int, results: Any) -> None:
    from curtsy.stores import open_store

    store = open_store(url, fallback=False)
    policy = UNLIMITED.replace(qps=100_000.0, burst=1000, max_requests_per_day=10**9, concurrency=64, timezone=UTC)
    chance = random.Random(number)
    worst, count, ends = 0.0, 0, time.monotonic() + seconds
    while (began := time.monotonic()) < ends:
        key = f"host:{chance.randrange(1000)}"
        decision = store.update(key, lambda host, now: admit(host, now, policy, 0.5))
        if isinstance(decision, Go):
            lease = decision.lease
            store.update(key, finishing(lease, policy, Outcome(Kind.ANSWERED)))
            count += 1
        count += 1
        worst = max(worst, time.monotonic() - began)
    results.put((count, worst))
    store.close()


def _hammer_tasks(url: str, seconds: float, number: int, results: Any) -> None:
    """The same as a crawler does it: 64 tasks of one process."""
    from curtsy.stores import open_async_store

    async def run() -> None:
        store = open_async_store(url, fallback=False)
        policy = UNLIMITED.replace(qps=100_000.0, burst=1000, max_requests_per_day=10**9, concurrency=64, timezone=UTC)
        worst, count, ends = 0.0, 0, time.monotonic() + seconds

        async def task(which: int) -> None:
            nonlocal worst, count
            chance = random.Random(number * 1000 + which)
            while (began := time.monotonic()) < ends:
                key = f"host:{chance.randrange(1000)}"
                decision = await store.update(key, lambda host, now: admit(host, now, policy, 0.5))
                worst = max(worst, time.monotonic() - began)
                count += 1
                if isinstance(decision, Go):
                    lease = decision.lease
                    await store.update(key, finishing(lease, policy, Outcome(Kind.ANSWERED)))
                    count += 1

        await asyncio.gather(*(task(which) for which in range(64)))
        await store.close()
        results.put((count, worst))

    asyncio.run(run())


def _together(work: Callable[..., None], url: str, processes: int, seconds: float) -> tuple[float, float]:
    """Decisions a second and the worst wait, over so many processes at once."""
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    workers = [context.Process(target=work, args=(url, seconds, number, results)) for number in range(processes)]
    for worker in workers:
        worker.start()
    found = [results.get(timeout=seconds * 10 + 60) for _ in workers]
    for worker in workers:
        worker.join()
    return sum(count for count, _ in found) / seconds, max(worst for _, worst in found)


def sqlite(quick: bool) -> None:
    """Decisions a second on one SQLite file."""
    print("\nSQLite (decisions a second over 1,000 hosts; worst wait in milliseconds)")
    seconds = 1.0 if quick else 4.0
    for processes in (1, 4, 8):
        for name, work in (("64 tasks each", _hammer_tasks), ("one thread each", _hammer)):
            with tempfile.TemporaryDirectory() as folder:
                rate, worst = _together(work, f"sqlite:///{folder}/state.sqlite", processes, seconds)
            is_target = processes == 8 and work is _hammer_tasks
            say(f"{processes} processes, {name}", rate, "a second", 10_000 if is_target else None, most=False)
            say(f"{processes} processes, {name}: worst wait", worst * 1000, "ms", 100.0 if is_target else None)
    from pyrate_limiter import Limiter, Rate, SQLiteBucket

    with tempfile.TemporaryDirectory() as folder:
        bucket = SQLiteBucket.init_from_file([Rate(10**9, 1000)], db_path=f"{folder}/peer.sqlite")
        limiter = Limiter(bucket)
        ends, count = time.monotonic() + seconds, 0
        while time.monotonic() < ends:
            limiter.try_acquire("x", blocking=False)
            count += 1
        limiter.close()
    theirs = count / seconds
    peer("pyrate-limiter on SQLite, one rate, one process", theirs, "a second", rate / theirs)


def redis(quick: bool) -> None:
    """Decisions a second of one process on one Redis server."""
    print("\nRedis (decisions a second and process, 64 in flight, 1,000 hosts)")
    program = shutil.which("redis-server")
    if program is None:
        print("  redis-server is not installed: left out")
        return
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        server = subprocess.Popen(
            [program, "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", folder],
            stdout=subprocess.DEVNULL,
        )
        try:
            _wait_for(port)
            seconds = 1.0 if quick else 4.0
            rate, worst = _together(_hammer_tasks, f"redis://127.0.0.1:{port}/0", 1, seconds)
            say("all limits, 64 tasks", rate, "a second", 6_000, most=False)
            say("all limits, 64 tasks: worst wait", worst * 1000, "ms")
            blocking, _ = _together(_hammer, f"redis://127.0.0.1:{port}/1", 1, seconds)
            say("all limits, one thread", blocking, "a second")
            for name, theirs in asyncio.run(_redis_peers(port, seconds)).items():
                peer(f"{name}, one rate, 64 tasks", theirs, "a second", rate / theirs)
        finally:
            server.terminate()
            server.wait()


def _wait_for(port: int) -> None:
    ends = time.monotonic() + 10
    while time.monotonic() < ends:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.02)
    raise SystemExit("redis-server did not start")


async def _redis_peers(port: int, seconds: float) -> dict[str, float]:
    import limits.aio.storage
    import limits.aio.strategies
    import throttled.asyncio

    import limits

    async def rate(call: Callable[[str], Awaitable[object]]) -> float:
        ends, count = time.monotonic() + seconds, 0

        async def task(number: int) -> None:
            nonlocal count
            chance = random.Random(number)
            while time.monotonic() < ends:
                await call(f"host:{chance.randrange(1000)}")
                count += 1

        await asyncio.gather(*(task(number) for number in range(64)))
        return count / seconds

    found = {}
    throttle = throttled.asyncio.Throttled(
        using="gcra",
        quota=throttled.asyncio.per_sec(1_000_000, burst=1_000_000),
        store=throttled.asyncio.store.RedisStore(server=f"redis://127.0.0.1:{port}/2"),
    )
    found["throttled-py"] = await rate(lambda key: throttle.limit(key))
    storage = limits.aio.storage.RedisStorage(f"async+redis://127.0.0.1:{port}/3", implementation="redispy")
    window = limits.aio.strategies.SlidingWindowCounterRateLimiter(storage)
    item = limits.RateLimitItemPerSecond(1_000_000)
    found["limits"] = await rate(lambda key: window.hit(item, key))
    return found


PARTS = {
    "decisions": decisions,
    "memory": memory,
    "accuracy": accuracy,
    "lateness": lateness,
    "sqlite": sqlite,
    "redis": redis,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small sizes, to see that it runs")
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], help="which parts (all, if none is named)")
    options = parser.parse_args()
    print(f"curtsy beside its peers; Python {sys.version.split()[0]}, {os.cpu_count()} cores")
    for name in options.parts or PARTS:
        PARTS[name](options.quick)
    print(f"\n{'Missed: ' + ', '.join(missed) if missed else 'Every figure was reached.'}")


if __name__ == "__main__":
    main()
