"""Checks that something stays within a bound of time or memory.

A bound of time is for a quiet machine. It grows with how much longer than there a fixed piece of Python takes right
now, so that a machine which is slow, or does other things too, fails no test, and a quiet one lets nothing pass.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

import pytest

MIB = 1024 * 1024
USUAL = 0.00053
"""Seconds that `_work` takes on a quiet machine of 2024."""


@contextmanager
def bounded_memory(most: int = 64 * MIB) -> Iterator[None]:
    """Check how far the process's resident memory rose at its peak. Only Linux can tell."""
    if not Path("/proc/self/clear_refs").exists():
        yield
        return
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
    before = _peak()
    yield
    assert _peak() - before < most


def _peak() -> int:
    status = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmHWM"))


class Lateness:
    """How late this process came to run while the block did: by so much a moment that it noted may be off.

    A request that the site notices late makes the gap before it look longer and the next one shorter.
    """

    STEP = 0.002

    def __init__(self) -> None:
        self.most = 0.0
        """Seconds between two looks of a thread at most: a moment just after the first is noticed at the second."""
        self.still = 0.0
        """Seconds that it overslept in all while this process had no processor: the machine was elsewhere."""
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="lateness", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()

    def _watch(self) -> None:
        before, used = time.monotonic(), time.process_time()
        while not self._is_over.wait(self.STEP):
            now, uses = time.monotonic(), time.process_time()
            late = now - before - self.STEP
            self.most = max(self.most, now - before)
            self.still += max(0.0, late - (uses - used))
            before, used = now, uses


def _work() -> int:
    """Do what programs of Python do: make texts, take them apart, keep them."""
    words = {}
    for number in range(1_500):
        word = f"/section/{number % 97}/{number}"
        words[word.upper().lower()] = len(word.split("/"))
    return sum(words.values())


def slowness(clock: Callable[[], float] = time.thread_time, times: int = 10) -> float:
    """How many times longer than usual the machine needs for the same work right now; 1 if it is not longer.

    By default that is CPU time; by `time.perf_counter` it is also what others on the machine take away.
    """
    began = clock()
    for _ in range(times):
        _work()
    return max(1.0, (clock() - began) / times / USUAL)


class Slowness:
    """How many times longer than usual the machine needs, measured before, within and after a block."""

    EVERY = 0.1

    def __init__(self) -> None:
        self.cpu = 1.0
        """The factor of CPU time."""
        self.wall = 1.0
        """The factor of real time. Only before and after: within the block, its own work would make it longer."""
        self.spent = 0.0
        """Seconds of CPU that the measuring itself took within the block."""
        self._within: list[float] = []
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="slowness", daemon=True)

    def __enter__(self) -> Self:
        self._look()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()
        self._look()
        if self._within:
            self.cpu = max(self.cpu, statistics.median(self._within))
        self.wall = max(self.wall, self.cpu)

    def _look(self) -> None:
        began = time.perf_counter()
        self.cpu = max(self.cpu, slowness())
        self.wall = max(self.wall, (time.perf_counter() - began) / 10 / USUAL)

    def _watch(self) -> None:
        while not self._is_over.wait(self.EVERY):
            self._within.append(slowness(times=2))
            self.spent = time.thread_time()


@contextmanager
def ends_within(seconds: float, work: float = 0.5) -> Iterator[None]:
    """Check how long the block takes on a quiet machine, but for the time in which this one stood still.

    `work` is the CPU time of it, of all its processes, there: so many seconds take longer on a machine that is shared.
    The rest is waiting, and takes no longer.
    """
    with Slowness() as machine, Lateness() as late:
        begun = time.monotonic()
        yield
        took = time.monotonic() - begun
    took -= late.still
    most = seconds * machine.cpu + work * (machine.wall - machine.cpu)
    assert took < most, f"{took:.3f} s, and the machine is {machine.wall:.1f} times slower than usual"


@contextmanager
def cpu_within(seconds: float, clock: Callable[[], float] = time.process_time) -> Iterator[None]:
    """Check how much CPU time of the process, or by `time.thread_time` of the thread, the block takes."""
    with Slowness() as machine:
        begun = clock()
        yield
        took = clock() - begun
    if clock is time.process_time:
        took -= machine.spent
    assert took < seconds * machine.cpu, f"{took:.3f} s, and the machine is {machine.cpu:.1f} times slower than usual"


def skip_unless_punctual(usually: float, mostly: float) -> None:
    """Skip the test if this machine is late even with bare work and sleeps.

    It is if half of them end later than they should by `usually` seconds, or one of fifty by `mostly`.
    """
    late, never = [], threading.Event()
    for _ in range(200):
        began, used = time.perf_counter(), time.thread_time()
        _work()
        _work()
        never.wait(0.001)
        late.append(time.perf_counter() - began - (time.thread_time() - used) - 0.001)
    late.sort()
    if late[100] > usually or late[196] > mostly:
        pytest.skip(f"this machine is late: half of the time by {late[100]:.4f} s, at times by {late[196]:.4f} s")
