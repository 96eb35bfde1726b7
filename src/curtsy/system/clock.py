"""Clocks, which are the sources of `Now`, and a fake clock for tests."""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from curtsy.core.message import SECOND, Instant, Now


class Clock(Protocol):
    """Source of the current time."""

    def now(self) -> Now:
        """Return the current time."""
        ...


_BOOT_TIME = getattr(time, "CLOCK_BOOTTIME", getattr(time, "CLOCK_MONOTONIC", None))
"""Clock that never jumps and runs during sleep; None if the system does not have it."""


def _ticks() -> int:
    return time.monotonic_ns() if _BOOT_TIME is None else time.clock_gettime_ns(_BOOT_TIME)


class SystemClock:
    """Boot-time clock of this machine, for records that no other process reads."""

    def now(self) -> Now:
        """Return the current time."""
        return Now(Instant(_ticks() // 1000), time.time_ns() // 1000)


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


class FakeClock:
    """Clock for tests, which moves only on request."""

    def __init__(self, epoch: float = 1_800_000_000.0, at: float = 1_000.0, boot: int = 1) -> None:
        self._lock = threading.Lock()
        self._at = round(at * SECOND)
        self._epoch = round(epoch * SECOND)
        self._boot = boot
        self._listeners: list[Callable[[], None]] = []

    def on_advance(self, listener: Callable[[], None]) -> None:
        """Call `listener` after each `advance()`."""
        self._listeners.append(listener)

    def now(self) -> Now:
        """Return the current time."""
        with self._lock:
            return Now(Instant(self._at), self._epoch, self._boot)

    def advance(self, seconds: float) -> None:
        """Let `seconds` pass. Raises ValueError if they are negative."""
        if seconds < 0:
            raise ValueError(f"seconds = {seconds!r} must be at least 0. To set the calendar back, use set_back().")
        with self._lock:
            self._at += round(seconds * SECOND)
            self._epoch += round(seconds * SECOND)
        for listener in self._listeners:
            listener()

    def set_back(self, seconds: float) -> None:
        """Set the calendar back by `seconds` (forward if negative), as an operator or a time server does."""
        with self._lock:
            self._epoch -= round(seconds * SECOND)

    def reboot(self, down: float = 60.0) -> None:
        """Restart the machine: the calendar advances by `down` seconds, and the boot-time clock restarts."""
        with self._lock:
            self._epoch += round(down * SECOND)
            self._at = SECOND
            self._boot += 1
