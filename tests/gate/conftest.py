"""A gate on a time that leaps, over a store in memory."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from curtsy.engine.gate import Gate
from curtsy.stores import AsyncStore
from curtsy.stores.memory import AsyncMemoryStore, MemoryStore
from curtsy.stores.sqlite import AsyncSQLiteStore
from curtsy.testing import FakeClock
from tests.gate.asking import (
    Slow,
)
from tests.support.leap import LeapAlarm


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def store(clock: FakeClock) -> MemoryStore:
    return MemoryStore(clock)


@pytest.fixture
def gate(store: MemoryStore, clock: FakeClock) -> Gate:
    """A gate for tasks, on a time that leaps."""
    return Gate(store.inner, timers=LeapAlarm(clock), roll=lambda: 0.5)


@pytest.fixture(params=["memory", "sqlite"])
async def slow(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Slow]:
    inner: AsyncStore = AsyncMemoryStore() if request.param == "memory" else AsyncSQLiteStore(tmp_path / "state.sqlite")
    yield Slow(inner)
    await inner.close()
