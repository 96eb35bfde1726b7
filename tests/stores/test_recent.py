"""Pages read lately: which are held in memory, and of which it is known when that was."""

from __future__ import annotations

from curtsy.cache.keys import OVERHEAD, LastUses, Page, Recent
from tests.support.pages import page, url_of

WEIGHT = 1000 + OVERHEAD


def one(number: int) -> Page:
    return Page(*page(url_of(number), bytes(1000)))


def read(recent: Recent[int], numbers: range) -> list[int]:
    """Read pages as a cache does: those that are not held are read from the disk. Tells which were held."""
    held = []
    for number in numbers:
        if recent.find(str(number)) is None:
            recent.keep(str(number), 1, one(number))
        else:
            held.append(number)
    return held


def test_a_page_is_held_when_it_is_read_again_and_not_the_first_time() -> None:
    """N6"""
    recent: Recent[int] = Recent(100 * WEIGHT)

    assert read(recent, range(1)) == []
    assert recent.find("0") is None
    assert read(recent, range(1)) == []

    assert recent.find("0") == (1, one(0))
    assert read(recent, range(1)) == [0]


def test_pages_that_are_read_once_push_out_nothing() -> None:
    """N6"""
    recent: Recent[int] = Recent(100 * WEIGHT)
    for _ in range(2):
        read(recent, range(100))

    read(recent, range(1000, 5000))

    assert read(recent, range(100)) == list(range(100))


def test_no_more_is_held_than_may_be_and_the_least_recently_used_goes() -> None:
    """N6"""
    recent: Recent[int] = Recent(100 * WEIGHT)
    for first in (0, 0, 100, 100):
        read(recent, range(first, first + 100))

    assert [number for number in range(200) if recent.find(str(number))] == list(range(100, 200))


def test_more_pages_than_can_be_held_do_not_come_and_go_in_turn() -> None:
    """N6: all of them would be read from the disk as often, and held for nothing"""
    recent: Recent[int] = Recent(100 * WEIGHT)

    for _ in range(5):
        assert read(recent, range(300)) == []

    assert not any(recent.find(str(number)) for number in range(300))


def test_the_body_of_a_page_that_was_read_lately_is_known_until_it_is_forgotten() -> None:
    """N6"""
    recent: Recent[int] = Recent(100 * WEIGHT)
    assert recent.body_of("0") is None

    for _ in range(3):
        read(recent, range(1))
        assert recent.body_of("0") == one(0).entry.body_sha256

    recent.forget("0")
    assert recent.body_of("0") is None
    read(recent, range(1))
    recent.forget("0")
    assert recent.body_of("0") is None


def test_nothing_is_remembered_without_memory() -> None:
    """N6"""
    recent: Recent[int] = Recent(0)

    for _ in range(3):
        assert read(recent, range(10)) == []

    assert recent.body_of("0") is None


def test_the_last_use_is_known_of_the_pages_used_last() -> None:
    """N6"""
    lately: LastUses[str] = LastUses(3)
    keys = [f"{number:016x}{'0' * 48}" for number in range(9)]
    for at, key in enumerate(keys, 1):
        lately.note(key, at)
        lately.note(keys[0], at)

    known = [lately.at(key) for key in keys]
    assert known[0] == 9
    assert known[-2:] == [8, 9]
    assert known[1:3] == [0, 0]
    assert [lately.take(keys[0]) for _ in range(2)] == [9, 0]
    assert lately.at(keys[0]) == 0
