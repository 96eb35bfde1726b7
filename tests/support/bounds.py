"""Checks that something stays within a bound of time or memory."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

MIB = 1024 * 1024


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
        """Seconds by which a thread overslept at most."""
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
            self.most = max(self.most, late)
            self.still += max(0.0, late - (uses - used))
            before, used = now, uses


@contextmanager
def ends_within(seconds: float) -> Iterator[None]:
    """Check how long the block takes, but for the time in which the machine stood still."""
    begun = time.monotonic()
    with Lateness() as late:
        yield
    assert time.monotonic() - begun - late.still < seconds
