"""What is told to the frontier of a claim that has come to its end."""

from __future__ import annotations

import pytest

from curtsy.crawling.frontier import Claimed, Deferred, Done, Failed
from curtsy.crawling.harvest import Finished

CLAIMED = Claimed("https://h.org/", "h.org", 0, 0, None, 0, 0, 1, 0.0)


@pytest.mark.parametrize(
    ("end", "wanted"),
    [
        (Done(1.0), Done(0.75)),
        (Done(0.1), Done(0.0)),
        (Done(None), Done(None)),
        (Failed("gone", 1.0), Failed("gone", 0.75)),
        (Failed("gone"), Failed("gone")),
        (Deferred(2.0, last=True), Deferred(1.75, last=True)),
    ],
)
def test_the_time_between_an_answer_and_its_writing_is_no_pause(
    end: Done | Failed | Deferred, wanted: Done | Failed | Deferred
) -> None:
    """Issue 5: admission counts from its answer, and the frontier from when it is told."""
    finished = Finished(CLAIMED, end, heard_at=10.0)

    assert finished.ending(10.25).end == wanted


def test_what_was_called_off_waits_from_when_it_is_written() -> None:
    """Issue 5"""
    assert Finished(CLAIMED, Deferred(0.05)).ending(1e6).end == Deferred(0.05)
