"""Clocks, which are the sources of `Now`."""

from __future__ import annotations

import hashlib
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Protocol

from curtsy.core.time import Instant, Now


class Clock(Protocol):
    """Source of the current time."""

    def now(self) -> Now:
        """Return the current time."""
        ...


# Nanoseconds of a clock that never jumps and, where the system has such a clock, runs during sleep.
_ticks: Callable[[], int]
if sys.platform == "linux":
    _ticks = partial(time.clock_gettime_ns, time.CLOCK_BOOTTIME)
elif sys.platform == "darwin":
    _ticks = partial(time.clock_gettime_ns, time.CLOCK_MONOTONIC)  # runs during sleep; monotonic_ns() does not
else:
    _ticks = time.monotonic_ns


class SystemClock:
    """Boot-time clock of this machine, for records that no other process reads."""

    def now(self) -> Now:
        """Return the current time."""
        return Now(_ticks() // 1000, time.time_ns() // 1000)  # type: ignore[arg-type]  # a call of Instant takes time


class BootClock:
    """Boot-time clock of this machine: shared by its processes, runs during sleep, restarts at a reboot."""

    def __init__(self) -> None:
        self._boot = _boot_number()

    def now(self) -> Now:
        """Return the current time."""
        return Now(Instant(_ticks() // 1000), time.time_ns() // 1000, self._boot)


def _boot_number() -> int:
    """Return a number that changes at a reboot, from the boot id or else from the time of the boot."""
    try:
        name = Path("/proc/sys/kernel/random/boot_id").read_text()
    except OSError:
        # Rounded to 100 s: a clock that is set by less counts as the same boot, which is harmless.
        name = str(round((time.time() - time.monotonic()) / 100))
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "big")
