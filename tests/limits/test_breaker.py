"""CircuitBreaker: leave alone what fails (Q4, Q5, U6, Q12)."""

from __future__ import annotations

import logging
import math
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from curtsy.core.breaker import State
from curtsy.core.errors import PolicyError
from curtsy.limits import CircuitBreaker
from curtsy.stores.memory import MemoryStore
from curtsy.testing import FakeClock
from tests.limits.conftest import Told
from tests.support.bounds import slowness
from tests.support.said import missing
from tests.support.snapshot import Snapshot
from tests.support.stores import sqlite_store


@pytest.fixture
def breaker(clock: FakeClock) -> CircuitBreaker:
    return CircuitBreaker(store=MemoryStore(clock))


def test_it_is_closed_until_it_is_tripped(breaker: CircuitBreaker) -> None:
    """Q4"""
    assert (breaker.state, breaker.is_open, breaker.time_left, breaker.trips) == (State.CLOSED, False, 0.0, 0)
    assert breaker.attempt_reset()

    breaker.trip()

    assert (breaker.state, breaker.is_open, breaker.time_left, breaker.trips) == (State.OPEN, True, 300.0, 1)
    assert not breaker.attempt_reset()


def test_after_the_cooldown_one_trial_is_let_through_and_its_success_closes_it(
    breaker: CircuitBreaker, clock: FakeClock
) -> None:
    """Q4: exactly one of fifty."""
    breaker.trip()
    clock.advance(300)

    assert [breaker.attempt_reset() for _ in range(50)] == [True] + [False] * 49
    breaker.record_success()

    assert breaker.state is State.CLOSED
    assert all(breaker.attempt_reset() for _ in range(50))


def test_a_trial_that_nobody_reports_on_is_given_to_another_in_the_end(
    breaker: CircuitBreaker, clock: FakeClock
) -> None:
    """Q4: its holder died; after the time of a request and 5 s."""
    breaker.trip()
    clock.advance(300)
    assert breaker.attempt_reset()

    clock.advance(34.9)
    assert not breaker.attempt_reset()
    clock.advance(0.1)

    assert breaker.attempt_reset()


def test_one_trial_among_threads_is_one() -> None:
    """Q4: however many ask at once."""
    clock = FakeClock()
    breaker = CircuitBreaker(store=MemoryStore(clock))
    breaker.trip()
    clock.advance(300)
    start = threading.Barrier(20)
    answers: list[bool] = []

    def ask() -> None:
        start.wait()
        answers.append(breaker.attempt_reset())

    threads = [threading.Thread(target=ask) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert sum(answers) == 1


@pytest.mark.parametrize("status", [403, 429])
def test_a_block_trips_at_once(breaker: CircuitBreaker, status: int) -> None:
    """Q5"""
    breaker.record_failure(status)

    assert breaker.is_open


def test_three_failures_in_a_row_trip_and_a_success_resets_the_count(breaker: CircuitBreaker) -> None:
    """Q5, U6: a timeout has no status."""
    for _ in range(5):
        breaker.record_failure(500)
        breaker.record_failure()
        breaker.record_success()
    assert not breaker.is_open

    for _ in range(3):
        breaker.record_failure(502)

    assert breaker.is_open
    assert breaker.trips == 1


def test_how_many_failures_it_takes_can_be_said(clock: FakeClock) -> None:
    """Q5"""
    breaker = CircuitBreaker(failures=1, store=MemoryStore(clock))

    breaker.record_failure(500)

    assert breaker.is_open


def test_it_can_go_by_the_share_of_errors(clock: FakeClock) -> None:
    """Q12: half of twenty within the window, though never three in a row."""
    breaker = CircuitBreaker(error_rate=0.5, store=MemoryStore(clock))
    for _ in range(9):
        breaker.record_failure(500)
        breaker.record_success()
    breaker.record_success()
    assert not breaker.is_open

    breaker.record_failure(500)

    assert breaker.is_open


def test_it_can_be_closed_by_hand(breaker: CircuitBreaker) -> None:
    """U6"""
    breaker.trip()

    breaker.reset()

    assert breaker.state is State.CLOSED
    assert breaker.attempt_reset()


def test_tripping_asking_and_recovering_take_under_a_millisecond() -> None:
    """Q4, real time: the median of a hundred of each."""
    breaker = CircuitBreaker()
    took: dict[str, list[float]] = {"trip": [], "refuse": [], "reset": []}
    for _ in range(100):
        for name, act in (("trip", breaker.trip), ("refuse", breaker.attempt_reset), ("reset", breaker.reset)):
            began = time.perf_counter()
            act()
            took[name].append(time.perf_counter() - began)

    assert max(sorted(each)[50] for each in took.values()) < 0.001 * slowness()


@pytest.mark.parametrize(("seconds", "warned"), [(299, True), (0.5, True), (300, False), (301, False)])
def test_a_cooldown_below_300_is_warned_about(told: Told, seconds: float, warned: bool) -> None:
    """Q4"""
    CircuitBreaker(seconds)

    assert bool(told(logging.WARNING)) is warned
    if warned:
        assert missing(told(logging.WARNING)[0], f"cooldown_seconds = {seconds:g} ", "300") == []


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ({"cooldown_seconds": 0}, "cooldown_seconds = 0 "),
        ({"cooldown_seconds": -1}, "cooldown_seconds = -1 "),
        ({"cooldown_seconds": math.nan}, "cooldown_seconds = nan "),
        ({"max_cooldown_seconds": math.inf}, "max_cooldown_seconds = inf "),
        ({"failures": 0}, "failures = 0 "),
        ({"error_rate": 1.5}, "error_rate = 1.5 "),
    ],
    ids=lambda each: each if isinstance(each, str) else "",
)
def test_a_bad_breaker_is_an_error(snapshot: Snapshot, given: dict[str, Any], shown: str) -> None:
    """L6"""
    with pytest.raises(PolicyError) as error:
        CircuitBreaker(**given)

    assert str(error.value).startswith(shown)
    snapshot(str(error.value))


def test_two_keys_on_one_store_are_two_breakers_and_one_key_is_one(tmp_path: Path) -> None:
    """B7: on SQLite it is open in another process, and after a restart."""
    first = sqlite_store(tmp_path / "state.sqlite")
    CircuitBreaker(store=first, key="one").trip()
    first.close()

    again = sqlite_store(tmp_path / "state.sqlite")
    assert CircuitBreaker(store=again, key="one").is_open
    assert not CircuitBreaker(store=again, key="two").is_open
    again.close()


def test_breakers_with_the_url_of_a_store_are_one(tmp_path: Path) -> None:
    """Q4, issue 2, point 6"""
    url = f"sqlite:///{tmp_path / 'state.sqlite'}"
    one, same, other = (CircuitBreaker(store=url, key=key) for key in ("a", "a", "b"))

    one.record_failure(403)

    assert same.is_open
    assert not other.is_open
    for each in (one, same, other):
        each.close()
