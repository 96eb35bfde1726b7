"""The parts on a fake clock: a day passes in milliseconds, and every wait is exact."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest

from curtsy.limits import RateLimiter
from curtsy.stores.memory import MemoryStore
from curtsy.testing import FakeClock
from tests.support.leap import LeapAlarm

Made = Callable[..., RateLimiter]
Told = Callable[[int], list[str]]


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def made(clock: FakeClock) -> Made:
    """Makes limiters on the fake clock."""

    def make(*given: Any, **more: Any) -> RateLimiter:
        return RateLimiter(*given, **{"store": MemoryStore(clock), "timers": LeapAlarm(clock), **more})

    return make


@pytest.fixture
def told(caplog: pytest.LogCaptureFixture) -> Told:
    """What the library has logged at a level so far."""
    caplog.set_level(logging.INFO, "curtsy")
    return lambda level: [record.getMessage() for record in caplog.records if record.levelno == level]
