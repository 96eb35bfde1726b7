"""What every store promises, whichever it is (stores/__init__.py)."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import pytest

from curtsy.core.budget import Day
from curtsy.core.errors import StoreError
from curtsy.core.host import Extra, Host
from curtsy.core.host import Place as Lease
from curtsy.core.time import Now
from curtsy.stores import AsyncStore, Step
from curtsy.testing import FakeClock
from tests.stores.places import InMemory, Place
from tests.stores.steps import Refusal, count, keep, refuse, remove, stamp
from tests.stores.worker import Worker, run

FULL = Host(
    boot=2**32 - 1,
    offset=1_800_000_000_000_000,
    sent_at=2**53 + 1,
    recent=(1, 2**62, -5),
    places=(Lease(7, 1, 2), Lease(8, 3, 4)),
    earlier=Day(1_800_000_000, 1_799_999_000, 900, 9, 8),
    day=Day(1_800_086_400, 1_799_999_000, 1000, 200, 100),
    extra=Extra(jumped_at=77, overrides=(("qps", 0.1), ("max_requests_per_day", None)), paused_until=-1),
)
"""A record with something of everything."""

KEYS = [
    "",
    "host:example.org",
    "host:例え.テスト",
    "host:\U0001f980",
    "nul\0inside",
    "\0",
    "lone surrogate \ud800",
    "line\nend\r\ttab",
    "{braces}:{more}",
    "}{",
    "glob*?[a-z]\\*",
    "' OR 1=1; --",
    "%s %(key)s _%",
    "long " * 2000,
    " blank ",
]


async def test_a_missing_record_is_none(store: AsyncStore) -> None:
    """B7: nothing is made up."""
    seen = await store.update("host:a", lambda record, now: (None, record))

    assert seen is None
    assert await store.read("host:a") is None
    assert await store.keys() == []


async def test_a_record_comes_back_as_it_was_written(store: AsyncStore) -> None:
    """B7"""
    await store.update("host:a", lambda record, now: (FULL, None))

    assert await store.read("host:a") == FULL
    assert await store.update("host:a", lambda record, now: (record, record)) == FULL


async def test_the_answer_of_a_step_comes_out(store: AsyncStore) -> None:
    """B4"""
    answers = [await store.update("host:a", count) for _ in range(3)]

    assert answers == [1, 2, 3]


async def test_returning_none_removes_the_record(store: AsyncStore) -> None:
    """B7: a host that says nothing any more is forgotten."""
    await store.update("host:a", count)

    assert await store.update("host:a", remove) is True
    assert await store.read("host:a") is None
    assert await store.update("host:a", count) == 1


async def test_the_very_record_given_changes_nothing(store: AsyncStore) -> None:
    """B4: a refusal changes nothing."""
    await store.update("host:a", count)

    assert await store.update("host:a", keep) == 1
    assert await store.read("host:a") == Host(requests=1)


async def test_a_step_that_raises_changes_nothing_and_its_exception_comes_out(store: AsyncStore) -> None:
    """B4"""
    await store.update("host:a", count)

    with pytest.raises(Refusal, match="not like this"):
        await store.update("host:a", refuse)
    assert await store.update("host:a", count) == 2
    with pytest.raises(Refusal):
        await store.update("host:new", refuse)
    assert await store.read("host:new") is None


async def test_many_updates_answer_in_order_and_see_each_other(store: AsyncStore) -> None:
    """B4"""
    steps: list[tuple[str, Step[Any]]] = [("a", count), ("b", count), ("a", count), ("b", remove), ("b", count)]

    assert await store.update_many(steps) == [1, 1, 2, True, 1]
    assert await store.update_many([]) == []


async def test_of_many_updates_one_that_raises_leaves_the_others_done(store: AsyncStore) -> None:
    """B4"""
    with pytest.raises(Refusal):
        await store.update_many([("a", count), ("b", refuse), ("c", count), ("a", count)])

    assert [await store.update(key, keep) for key in "abc"] == [2, 0, 1]


async def test_a_thousand_updates_at_once(store: AsyncStore) -> None:
    """B4"""
    keys = [f"host:{number % 700}.example.org" for number in range(1000)]

    answers = await store.update_many([(key, count) for key in keys])

    assert answers == [1] * 700 + [2] * 300
    assert len(await store.keys("host:")) == 700


@pytest.mark.parametrize("key", KEYS, ids=[ascii(key[:20]) for key in KEYS])
async def test_any_text_is_a_key(store: AsyncStore, key: str) -> None:
    """B9"""
    await store.update(key, count)
    await store.update(key + "x", count)

    assert await store.read(key) == Host(requests=1)
    assert await store.update(key, count) == 2
    assert await store.keys() == [key, key + "x"]
    await store.forget(key)
    assert await store.keys() == [key + "x"]


async def test_keys_that_differ_in_form_only_are_different_keys(store: AsyncStore) -> None:
    """B9: nothing is normalised here."""
    names = ["host:a", "host:A", "host:a ", "é", "e\u0301", "\U0001f600", "\ud83d\ude00", "1", "01"]

    await store.update_many([(name, count) for name in names])

    assert await store.keys() == sorted(names)


async def test_keys_are_listed_by_a_literal_prefix_and_in_order(store: AsyncStore) -> None:
    """B7"""
    names = [
        "host:b",
        "host:a",
        "host:ab",
        "hos",
        "host;",
        "rules:a",
        "host:*",
        "host:[a]",
        "host:é",
        "global",
        "ho%t:",
    ]
    await store.update_many([(name, count) for name in names])

    assert await store.keys() == sorted(names)
    assert await store.keys("host:") == ["host:*", "host:[a]", "host:a", "host:ab", "host:b", "host:é"]
    assert await store.keys("host:a") == ["host:a", "host:ab"]
    assert await store.keys("host:*") == ["host:*"]
    assert await store.keys("host:[a]") == ["host:[a]"]
    assert await store.keys("ho%") == ["ho%t:"]
    assert await store.keys("none") == []


async def test_forget_removes_one_record_and_may_be_repeated(store: AsyncStore) -> None:
    """U6: a manual reset."""
    await store.update_many([("a", count), ("b", count)])

    await store.forget("a")
    await store.forget("a")

    assert await store.keys() == ["b"]
    assert await store.update("a", count) == 1


async def test_a_hundred_tasks_lose_no_update(store: AsyncStore) -> None:
    """L9, B4"""

    async def five(key: str) -> list[int]:
        return [await store.update(key, count) for _ in range(5)]

    answers = await asyncio.gather(*(five(f"host:{number % 3}") for number in range(100)))

    assert sorted(answer for each in answers[::3] for answer in each) == list(range(1, 171))
    assert [await store.update(f"host:{number}", keep) for number in range(3)] == [170, 165, 165]


def test_eight_threads_lose_no_update(place: Place) -> None:
    """L9, B4"""
    store = place.open()
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: store.update("host:a", count), range(400)))

    assert sorted(answers) == list(range(1, 401))
    store.close()


async def test_threads_and_tasks_share_the_same_records(place: Place, clock: FakeClock) -> None:
    """L9: a blocking and an async store of one place are one store."""
    blocking, tasks = place.open(clock), place.open_async(clock)

    assert blocking.identity == tasks.identity
    blocking.update("host:a", count)
    assert await tasks.update("host:a", count) == 2
    assert blocking.read("host:a") == await tasks.read("host:a") == Host(requests=2)
    await tasks.close()
    blocking.close()


def test_four_processes_lose_no_update(shared_place: Place) -> None:
    """B4, F42"""
    said = run([Worker("one", 150, shared_place) for _ in range(4)])

    assert sorted(int(number) for each in said for number in each) == list(range(1, 601))


async def test_time_never_runs_backwards_for_a_key_whatever_the_calendar_does(
    store: AsyncStore, clock: FakeClock
) -> None:
    """B6, F48"""
    seen: dict[str, list[Now]] = {"host:a": [], "host:b": []}
    for seconds in (0.0, 1.5, 7200.0, -86_400.0, 3.0, 86_400.0):
        clock.set_back(seconds)
        clock.advance(0.001)
        for key, moments in seen.items():
            moments.append(await store.update(key, stamp))

    for moments in seen.values():
        assert all(before.at <= after.at for before, after in pairwise(moments))
        assert moments[-1].at > moments[0].at


async def test_time_passes_in_the_store_as_it_does_outside(store: AsyncStore, clock: FakeClock) -> None:
    """P1: what is paced by the store is paced in real seconds."""
    before = await store.update("host:a", stamp)
    clock.advance(2.5)
    after = await store.update("host:a", stamp)

    assert after.at - before.at == after.epoch - before.epoch == 2_500_000


async def test_records_outlive_the_store_that_wrote_them(shared_place: Place, clock: FakeClock) -> None:
    """B7"""
    first = shared_place.open(clock)
    first.update_many([("host:a", count), ("host:b", lambda record, now: (FULL, None))])
    first.close()

    again = shared_place.open_async(clock)

    assert await again.update("host:a", count) == 2
    assert await again.read("host:b") == FULL
    await again.close()


async def test_a_store_is_closed_once_or_twice_and_then_says_so(store: AsyncStore) -> None:
    """U8"""
    await store.update("host:a", count)

    await store.close()
    await store.close()

    for use in (
        store.update("host:a", count),
        store.update_many([("a", count)]),
        store.read("a"),
        store.keys(),
        store.forget("a"),
    ):
        with pytest.raises(StoreError, match="clos"):
            await use


async def test_closing_one_store_leaves_another_of_the_same_place_open(shared_place: Place) -> None:
    """B7"""
    one, other = shared_place.open_async(), shared_place.open_async()
    await one.update("host:a", count)

    await one.close()

    assert await other.update("host:a", count) == 2
    await other.close()


def test_two_places_have_two_identities(place: Place) -> None:
    """One gate is kept for each store of a process, by its identity."""
    store, other = place.open(), InMemory().open()

    assert store.identity != other.identity
    assert store.identity == place.open().identity
    store.close()
