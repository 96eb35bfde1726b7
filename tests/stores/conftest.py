"""The contract suite runs over every store, blocking and async; redis needs a server, which one session shares."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from curtsy.stores import AsyncStore
from curtsy.testing import FakeClock
from tests.stores.places import Awaited, InFile, InMemory, OnServer, Place
from tests.support.redis_server import RedisServer, redis_available

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def shared_server() -> Iterator[RedisServer]:
    """One server for the whole session; each place has a prefix of its own on it."""
    if reason := redis_available():
        pytest.skip(reason)
    with RedisServer() as server:
        yield server


@pytest.fixture
def server() -> Iterator[RedisServer]:
    """One for a test that does something to it."""
    if reason := redis_available():
        pytest.skip(reason)
    with RedisServer() as started:
        yield started


def _place(kind: str, request: pytest.FixtureRequest, directory: Path) -> Place:
    match kind:
        case "memory":
            return InMemory()
        case "sqlite":
            return InFile(str(directory / "state" / "state.sqlite"))
        case _:
            server: RedisServer = request.getfixturevalue("shared_server")
            return OnServer(server.url, f"contract-{next(_numbers)}:")


@pytest.fixture(params=["memory", "sqlite", "redis"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    return _place(request.param, request, tmp_path)


@pytest.fixture(params=["sqlite", "redis"])
def shared_place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """A place that several processes can have, and that keeps its records when they close it."""
    return _place(request.param, request, tmp_path)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture(params=["blocking", "async"])
async def store(request: pytest.FixtureRequest, place: Place, clock: FakeClock) -> AsyncIterator[AsyncStore]:
    """A store of either colour, told what to do by `await`."""
    opened = Awaited(place.open(clock)) if request.param == "blocking" else place.open_async(clock)
    yield opened
    await opened.close()
