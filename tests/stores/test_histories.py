"""The same history gives the same answers and the same records on every store (issue 2: the differential test)."""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from curtsy.core.decision import Decision, Go, Lease
from curtsy.core.errors import PolicyError
from curtsy.core.host import Host
from curtsy.core.policy import Policy
from curtsy.core.time import SECOND
from curtsy.engine.gate_steps import Request, amended, charge, foresee, give_back, settled, take
from curtsy.stores import AsyncStore, Step
from curtsy.testing import FakeClock
from tests.stores.places import Awaited, InFile, InMemory, OnServer, Place
from tests.strategies import (
    Answer,
    Ask,
    Change,
    Event,
    Pass,
    Report,
    answers,
    asks,
    changes,
    overrides,
    passes,
    policies,
    reports,
    resumed,
    waiting,
)
from tests.support.redis_server import RedisServer

FEW = settings(
    max_examples=int(os.environ.get("CURTSY_EXAMPLES", 80)),
    derandomize="CURTSY_EXAMPLES" not in os.environ,
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
)
"""Each example asks real stores. With `CURTSY_EXAMPLES=2000` that many new ones."""

HOSTS = 3
_numbers = itertools.count(1)


@dataclass
class Stores:
    """Some stores that all see the same clock, and an event loop for those that need one."""

    clock: FakeClock
    named: dict[str, AsyncStore]
    runner: asyncio.Runner
    prefix: str = ""
    """Of the keys: each example has hosts of its own."""

    leases: dict[str, list[tuple[Policy, Lease]]] = field(default_factory=dict)

    def begin(self) -> None:
        self.prefix = f"host:{next(_numbers)}-"
        self.leases = {}

    def key(self, host: int) -> str:
        return f"{self.prefix}{host}.example.org"

    def update(self, key: str, step: Step[Any]) -> Any:
        """Run a step on every store, and have the answer that all of them agree on."""
        answers = {name: self.runner.run(outcome_of(store, key, step)) for name, store in self.named.items()}
        expected = next(iter(answers.values()))
        assert answers == dict.fromkeys(answers, expected)
        return expected

    def records(self, key: str) -> dict[str, Host | None]:
        """What every store has; a record that says nothing any more may be there or not."""
        found = {name: self.runner.run(read(store, key)) for name, store in self.named.items()}
        return {name: None if host is None or self._is_over(host) else host for name, host in found.items()}

    def _is_over(self, host: Host) -> bool:
        lasts = host.lasts(self.clock.now())
        return lasts is not None and lasts <= 0


async def outcome_of(store: AsyncStore, key: str, step: Step[Any]) -> Any:
    """What a step answers, or what it raises."""
    try:
        return await store.update(key, step)
    except PolicyError as error:
        return type(error), str(error)


async def read(store: AsyncStore, key: str) -> Host | None:
    record: Host | None = await store.read(key)
    return record


@pytest.fixture(params=["blocking", "async"])
def stores(request: pytest.FixtureRequest, tmp_path: Path, shared_server: RedisServer) -> Iterator[Stores]:
    # On a server the two clocks are one, and there are no boots: so here too.
    clock = FakeClock(epoch=1_800_000_000.0, at=1_800_000_000.0, boot=0)
    places: dict[str, Place] = {
        "memory": InMemory(hot=1),  # so small that records are packed and unpacked all the time
        "sqlite": InFile(str(tmp_path / "state.sqlite")),
        "redis": OnServer(shared_server.url, f"histories-{next(_numbers)}:"),
    }
    with asyncio.Runner() as runner:
        named: dict[str, AsyncStore] = {
            name: Awaited(place.open(clock)) if request.param == "blocking" else place.open_async(clock)
            for name, place in places.items()
        }
        yield Stores(clock, named, runner)
        for store in named.values():
            runner.run(store.close())


@dataclass(frozen=True)
class Foresee:
    """Somebody wants to know how long he would wait."""

    ahead: int


@dataclass(frozen=True)
class Token:
    """Somebody takes tokens of a rate that keeps a schedule, and perhaps gives them back at once."""

    count: int
    is_returned: bool


foresights = st.builds(Foresee, st.integers(0, 5))
tokens = st.builds(Token, st.integers(1, 3), st.booleans())
events = st.one_of(asks, asks, answers, passes, changes, resumed, overrides, reports, foresights, tokens)
plays = st.lists(st.tuples(st.integers(0, HOSTS - 1), events), max_size=30)


def happen(stores: Stores, key: str, policy: Policy, event: Event | Foresee | Token) -> None:
    """Let one thing happen on every store."""
    leases = stores.leases.setdefault(key, [])
    match event:
        case Ask(patient=patient):
            decision = ask(stores, key, policy, event)
            seconds = waiting(decision)
            if patient and seconds is not None:
                stores.clock.advance(seconds)
                decision = ask(stores, key, policy, event)
            if isinstance(decision, Go):
                leases.append((policy, decision.lease))
        case Answer(which, outcome, sent):
            if leases:
                asked, lease = leases[-1 - which % len(leases)]
                if outcome.sent:
                    ago = (1 - sent) * (stores.clock.now().at - lease.left_at) / SECOND
                    outcome = msgspec.structs.replace(outcome, sent_ago=ago)
                stores.update(key, settled(asked, lease, outcome))
        case Report(outcome):
            stores.update(key, settled(policy, None, outcome))
        case Change(what):
            stores.update(key, amended(policy, what))
        case Pass(microseconds):
            stores.clock.advance(microseconds / SECOND)
        case Foresee(ahead):
            stores.update(key, foresee(policy, ahead))
        case Token(count, is_returned):
            taken: Decision = stores.update(key, take(policy, count))
            if is_returned and isinstance(taken, Go):
                stores.update(key, give_back(policy, taken.lease, count))
        case _:
            raise AssertionError(event)


def ask(stores: Stores, key: str, policy: Policy, event: Ask) -> Decision:
    looked: Decision = stores.update(key, Request(key, policy, page=event.page, count=event.count).look())
    decision: Decision
    decision, epoch = stores.update(key, charge(policy, event.roll, page=event.page, count=event.count))
    assert looked == decision
    assert epoch == stores.clock.now().epoch
    return decision


@FEW
@given(play=plays, policy=policies)
def test_the_same_history_gives_the_same_answers_and_records_on_every_store(
    stores: Stores, play: list[tuple[int, Any]], policy: Policy
) -> None:
    """B4, B7, issue 2: admit, settle, amend and forecast on three hosts, in any order, over days."""
    stores.begin()

    for host, event in play:
        happen(stores, stores.key(host), policy, event)

    for host in range(HOSTS):
        records = stores.records(stores.key(host))
        assert records == dict.fromkeys(records, records["memory"])


@FEW
@given(hosts=st.lists(st.integers(0, HOSTS - 1), min_size=1, max_size=30), policy=policies)
def test_many_at_once_are_answered_as_one_after_the_other(stores: Stores, hosts: list[int], policy: Policy) -> None:
    """B4: `update_many` on every store, with several for one host among them."""
    stores.begin()

    answers = {
        name: stores.runner.run(
            store.update_many([(stores.key(host), charge(policy, 0.5, page=True)) for host in hosts])
        )
        for name, store in stores.named.items()
    }

    assert answers == dict.fromkeys(answers, answers["memory"])
    for host in set(hosts):
        records = stores.records(stores.key(host))
        assert records == dict.fromkeys(records, records["memory"])
