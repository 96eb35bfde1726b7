"""A memory that is bounded in entries and bytes."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from curtsy.core.bounded import LONGEST_FIELD, Bounded
from curtsy.core.cache import url_sha256
from curtsy.core.request import Headers, Request
from curtsy.core.url import Url, parse_url
from curtsy.core.variant import variant_of
from curtsy.http.headers import head_of
from tests.strategies import ANY

KEYS = st.integers(0, 30)
SIZES = st.integers(0, 60)


@ANY
@given(st.lists(st.tuples(st.sampled_from(["put", "get", "pop"]), KEYS, SIZES), max_size=200))
def test_whatever_is_put_there_the_bounds_hold_and_the_last_one_stays(steps: list[tuple[str, int, int]]) -> None:
    """F28"""
    memory: Bounded[int, tuple[int, int]] = Bounded(10, 100, lambda value: value[1])
    latest: dict[int, tuple[int, int]] = {}

    for number, (what, key, size) in enumerate(steps):
        if what == "put":
            latest[key] = number, size
            memory.put(key, latest[key])
            assert memory.get(key) == latest[key]
        elif what == "pop":
            memory.pop(key)
            latest.pop(key, None)
        else:
            assert memory.get(key) in (None, latest.get(key))
        kept = dict(memory.items())
        assert kept.items() <= latest.items()
        assert len(kept) <= 10
        assert sum(size for _, size in kept.values()) <= 100


def test_what_was_used_longest_ago_goes_first() -> None:
    memory: Bounded[str, int] = Bounded(10, 100, lambda value: value)
    for key in "abcd":
        memory.put(key, 25)
    memory.get("a")

    memory.put("e", 25)

    assert [key for key, _ in memory.items()] == ["d", "a", "e"]  # an eighth is free again


def test_a_large_entry_pushes_out_none_that_takes_no_bytes() -> None:
    memory: Bounded[str, int] = Bounded(10, 100, lambda value: value)
    for key in "abc":
        memory.put(key, 0)

    memory.put("d", 99)
    memory.put("e", 500)

    assert [key for key, _ in memory.items()] == ["a", "b", "c", "e"]


def _request(number: int, length: int) -> Request:
    url = parse_url("https://example.org/")
    assert isinstance(url, Url)
    return Request(url, headers=Headers([("Cookie", f"{number}=" + length * "x")]))


LONG: dict[str, Callable[[int], object]] = {
    "url": lambda number: url_sha256(f"https://example.org/{number}" + 8000 * "x"),
    "host": lambda number: parse_url(f"https://{number}." + 900 * "\U0001f600" + "/"),
    "variant": lambda number: variant_of((), _request(number, 8000)),
    "head": lambda number: head_of(_request(number, 8000)),
}


@pytest.mark.parametrize("kind", LONG)
def test_long_texts_that_a_site_chooses_are_not_remembered(kind: str) -> None:
    """F28: thousands of memos, each of kilobytes"""
    LONG[kind](0)
    tracemalloc.start()
    try:
        for number in range(100):
            LONG[kind](number)
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert kept < 100 * LONGEST_FIELD
