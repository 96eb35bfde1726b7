"""What counting costs: a fetch, a snapshot, what a process tells, what a scrape takes."""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Callable

from curtsy.core.record import FetchRecord
from curtsy.core.statistics import PUBLISHED_HOSTS, ProcessStatistics, StatisticsSnapshot, summed
from curtsy.engine.counters import Counters
from curtsy.observe.metrics import Collector, metrics_text
from curtsy.stores.codec import pack

FETCHES = 200_000
RUNS = 3


def record(number: int, host: int) -> FetchRecord:
    url = f"https://host-{host}.example/page/{number}"
    return FetchRecord(
        url, url, f"host-{host}.example", "GET", 200, None, 1, 0, 0.7, 1.2, 20_000, None, None, 150, 80, None,
        1_800_000_000.0 + number, 0.123,
    )  # fmt: skip


def best(work: Callable[[], object], times: int = RUNS) -> float:
    """The shortest of several runs, in seconds of the processor: what else the machine does only adds to it."""
    took = []
    for _ in range(times):
        began = time.thread_time()
        work()
        took.append(time.thread_time() - began)
    return min(took)


def counting(hosts: int) -> float:
    """Seconds for one count, over so many hosts."""
    records = [record(number, number % hosts) for number in range(FETCHES)]

    def work() -> None:
        count = Counters().count
        for each in records:
            count(each)

    return best(work) / FETCHES


def main() -> None:
    for hosts in (1, 100, 1_000, 10_000):
        print(f"count one fetch, {hosts:>6,} hosts      {counting(hosts) * 1e6:8.2f} µs   (at most 1.00)")

    tracemalloc.start()
    counters = Counters()
    for number in range(FETCHES):
        counters.count(record(number, number % 1_000))
    print(f"memory, 1,000 hosts, 20 fetches each  {tracemalloc.get_traced_memory()[0] / 2**20:8.2f} MB")
    tracemalloc.stop()

    told = counters.snapshot(PUBLISHED_HOSTS)
    process = ProcessStatistics(process="one").plus(told, 1_800_000_000.0)
    nothing = StatisticsSnapshot(started_at=-1.0)
    print(f"snapshot, 1,000 hosts                 {best(counters.snapshot) * 1e3:8.2f} ms")
    publishing = best(lambda: process.plus(counters.snapshot(PUBLISHED_HOSTS).since(nothing), 1_800_000_001.0))
    print(f"what a process tells, every 5 s       {publishing * 1e3:8.2f} ms   {len(pack(process)) / 1024:.0f} KB")
    print(f"sum of 10 processes                   {best(lambda: summed([process] * 10)) * 1e3:8.2f} ms")
    print(
        f"one scrape                           {best(lambda: metrics_text(Collector(counters.snapshot))) * 1e3:8.2f} ms"
    )


if __name__ == "__main__":
    main()
