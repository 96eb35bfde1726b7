"""Where `Now` comes from. A fake one makes a day pass in milliseconds."""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from curtsy.core.message import SECOND, Instant, Now


class Clock(Protocol):
    """Anything that knows the present."""

    def now(self) -> Now:
        """The present."""
        ...


_BOOT_TIME = getattr(time, "CLOCK_BOOTTIME", getattr(time, "CLOCK_MONOTONIC", None))
"""The clock that never jumps and goes on in sleep; None where the system has none."""


def _ticks() -> int:
    return time.monotonic_ns() if _BOOT_TIME is None else time.clock_gettime_ns(_BOOT_TIME)


class SystemClock:
    """This machine's boot-time clock, for records that no other process reads."""

    def now(self) -> Now:
        """The present."""
        return Now(Instant(_ticks() // 1000), time.time_ns() // 1000)


class BootClock:
    """The machine's boot-time clock: one for all its processes, goes on in sleep, starts anew at a reboot."""

    def __init__(self) -> None:
        self._boot = _boot_number()

    def now(self) -> Now:
        """The present."""
        return Now(Instant(_ticks() // 1000), time.time_ns() // 1000, self._boot)


def _boot_number() -> int:
    """A number that changes when the machine's clock starts anew: from its boot id, else from when it booted."""
    try:
        name = Path("/proc/sys/kernel/random/boot_id").read_text()
    except OSError:
        # To the nearest minute or so: a clock that is set by less is taken for the same boot, which does no harm.
        name = str(round((time.time() - time.monotonic()) / 100))
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "big")


class FakeClock:
    """A clock that stands still until it is moved: for tests of our own and of our users."""

    def __init__(self, epoch: float = 1_800_000_000.0, at: float = 1_000.0, boot: int = 1) -> None:
        self._lock = threading.Lock()
        self._at = round(at * SECOND)
        self._epoch = round(epoch * SECOND)
        self._boot = boot
        self._listeners: list[Callable[[], None]] = []

    def on_advance(self, listener: Callable[[], None]) -> None:
        """Call `listener` whenever time has passed."""
        self._listeners.append(listener)

    def now(self) -> Now:
        """The present."""
        with self._lock:
            return Now(Instant(self._at), self._epoch, self._boot)

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        if seconds < 0:
            raise ValueError(f"seconds = {seconds!r} must be at least 0. To set the calendar back, use set_back().")
        with self._lock:
            self._at += round(seconds * SECOND)
            self._epoch += round(seconds * SECOND)
        for listener in self._listeners:
            listener()

    def set_back(self, seconds: float) -> None:
        """Set the calendar back (or, if negative, forward), as an operator or a time server does."""
        with self._lock:
            self._epoch -= round(seconds * SECOND)

    def reboot(self, down: float = 60.0) -> None:
        """Restart the machine: after `down` seconds the clock that never jumps starts anew."""
        with self._lock:
            self._epoch += round(down * SECOND)
            self._at = SECOND
            self._boot += 1
