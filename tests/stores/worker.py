"""A process of its own that uses a shared store: `python -m tests.stores.worker <what> <how often> <place> …`.

It says `ready` when it has the store open, and starts with the first line on its standard input.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from curtsy.stores import NOT_NOW, AsyncStore, BlockingStore, Store
from tests.stores.places import Place, place_of
from tests.stores.steps import count, keep
from tests.support.warm import Process

ROOT = Path(__file__).parents[2]


class Worker:
    """Such a process, as a test sees it."""

    def __init__(self, what: str, times: int, place: Place) -> None:
        pipe = subprocess.PIPE
        self.process: Process[str] = Process(
            "tests.stores.worker", what, times, *place.words(), text=True, stdin=pipe, stdout=pipe
        )

    def wait_until_ready(self) -> None:
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "ready\n"

    def go(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()

    def hear(self, lines: int) -> list[str]:
        """Wait until it has said so much."""
        assert self.process.stdout is not None
        return [self.process.stdout.readline().rstrip("\n") for _ in range(lines)]

    def kill(self) -> list[str]:
        """End it with SIGKILL; what it had said by then."""
        self.process.kill()
        return self.said()

    def said(self) -> list[str]:
        """All it says until its end, whole lines only."""
        assert self.process.stdout is not None
        # Not by `communicate()`: that leaves out what `hear()` has read ahead, and may begin within a line.
        said = self.process.stdout.read()
        self.process.communicate(timeout=120)
        return said.rpartition("\n")[0].splitlines()


def run(workers: Sequence[Worker]) -> list[list[str]]:
    """Start all at once, wait for their end, and return what they said."""
    for worker in workers:
        worker.wait_until_ready()
    for worker in workers:
        worker.go()
    said = [worker.said() for worker in workers]
    assert [worker.process.returncode for worker in workers] == [0] * len(workers)
    return said


def count_one(store: Store, times: int) -> None:
    """All on one key; says each number it got."""
    for _ in range(times):
        print(store.update("host:one", count), flush=True)


def count_many(store: Store, times: int) -> None:
    """In turn on twenty keys, until killed; says each key and number once they are acknowledged."""
    for turn in range(times):
        key = f"host:{turn % 20}.example.org"
        print(key, store.update(key, count), flush=True)


def measure(store: Store, times: int) -> None:
    """Update for a while without a break; says how often, and the longest wait in seconds."""
    end = time.monotonic() + times / 1000
    done, longest = 0, 0.0
    while (start := time.monotonic()) < end:
        store.update(f"host:{done % 50}.example.org", count)
        longest = max(longest, time.monotonic() - start)
        done += 1
    print(done, longest)


def count_mixed(store: BlockingStore, times: int) -> None:
    """On three keys, by two threads and four tasks at once; the tasks try first without the writer thread."""

    async def counted_at_once(inner: AsyncStore, key: str, way: int) -> bool:
        if way == 2:
            proposed = inner.propose(key, count)
            if proposed is NOT_NOW:
                return False
            await asyncio.sleep(0)
            return inner.confirm(proposed[1])
        return (inner.update_soon if way else inner.update_now)(key, count) is not NOT_NOW

    def counted(thread: int) -> None:
        for turn in range(times):
            store.update(f"host:{(turn + thread) % 3}", count)

    async def task(number: int) -> None:
        for turn in range(times):
            key = f"host:{(turn + number) % 3}"
            if not await counted_at_once(store.inner, key, turn % 3):
                await store.inner.update(key, count)
            if turn % 7 == number:
                await asyncio.sleep(0)

    async def tasks() -> None:
        await asyncio.gather(
            *(task(number) for number in range(4)), *(asyncio.to_thread(counted, one) for one in (0, 1))
        )

    asyncio.run(tasks())


WORK: dict[str, Callable[[Any, int], None]] = {
    "one": count_one,
    "many": count_many,
    "measure": measure,
    "mixed": count_mixed,
}


def main() -> None:
    what, times, *words = sys.argv[1:]
    store = place_of(words).open()
    store.update("ready", keep)
    print("ready", flush=True)
    sys.stdin.readline()
    WORK[what](store, int(times))
    store.close()


if __name__ == "__main__":
    main()
