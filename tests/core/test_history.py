"""History: what was counted in the last hour and the last day."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from curtsy.core.history import KINDS, History, HostHistory, TotalHistory

NOON = 1_800_014_400.0
kinds = st.sampled_from([TotalHistory, HostHistory])
events = st.lists(
    st.tuples(st.integers(0, 100_000), st.tuples(*[st.integers(0, 9)] * len(KINDS)).filter(any)), max_size=30
)  # seconds after noon, and counts


def told(kind: type[History], events: list[tuple[int, tuple[int, ...]]]) -> History:
    whole = kind()
    for after, counts in events:
        whole = whole.plus(kind.of(NOON + after, *counts))
    return whole


@given(kinds, events, events)
def test_processes_together_have_the_history_of_one(
    kind: type[History], one: list[tuple[int, tuple[int, ...]]], two: list[tuple[int, tuple[int, ...]]]
) -> None:
    """In any order: each interval has its own counts, those of the last hour and day are kept, older ones go"""
    end = NOON + max([after for after, _ in one + two], default=0)

    found = told(kind, one).plus(told(kind, two))

    for series in (found.hour, found.day):
        number = int(end // series.seconds)
        for place, _ in enumerate(KINDS):
            wanted = [0] * series.most
            for after, counts in one + two:
                age = number - int((NOON + after) // series.seconds)
                if age < series.most:
                    wanted[series.most - 1 - age] += counts[place]
            assert series.counts(place, end) == wanted
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(found), type=kind) == found


def test_what_is_too_old_goes_and_a_clock_that_was_ahead_hides_nothing() -> None:
    """A clock set back by a day would otherwise hide all counts for a day"""
    history = TotalHistory.of(NOON, 1)

    assert history.kept(NOON + 3000) is history
    assert (history.kept(NOON + 3600).hour.columns, history.kept(NOON + 3600).day) == ((), history.day)
    assert history.kept(NOON + 86_400) == history.kept(NOON - 86_400) == TotalHistory()
    assert history.kept(NOON - 30) is history  # the clocks of two machines differ by a little


def test_it_is_small() -> None:
    """A day of requests without a pause, for one host and for all"""
    for kind, most in ((HostHistory, 500), (TotalHistory, 2000)):
        history = told(kind, [(after, (40, 39, 1, 250_000, 0, 0)) for after in range(0, 90_000, 60)])

        assert len(msgspec.msgpack.encode(history)) < most
        assert len(msgspec.msgpack.encode(kind())) < 10


def test_it_is_json_from_the_first_count_to_the_last() -> None:
    history = HostHistory.of(NOON + 300, 2, 1, 0, 1500).plus(HostHistory.of(NOON + 900, 1))

    found = history.as_dict()

    assert found["hour"]["from"] == NOON + 300
    assert (found["hour"]["seconds"], found["day"]["seconds"]) == (300, 3600)
    assert found["hour"]["requests"] == [2, 0, 1]
    assert found["hour"]["waited"] == pytest.approx([1.5, 0, 0])
    assert found["day"]["requests"] == [3]
    assert HostHistory().as_dict()["day"]["requests"] == []
