"""Checks that something stays within a bound of time or memory."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

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


@contextmanager
def ends_within(seconds: float) -> Iterator[None]:
    """Check how long the block takes."""
    begun = time.monotonic()
    yield
    assert time.monotonic() - begun < seconds
