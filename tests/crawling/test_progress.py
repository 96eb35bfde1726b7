"""How long a crawl will take, as it is told to people."""

from __future__ import annotations

import pytest

from curtsy.core.policy import Policies, Policy
from curtsy.crawling.frontier.protocol import HostQueue
from curtsy.crawling.progress import time_left

POLICIES = Policies(Policy(qps=None, pause_min=2.0, pause_max=4.0), global_qps=None)
"""A pause of three seconds on average, and nothing else."""

DAY = 86400.0


def told(*queues: HostQueue, most: int | None = None) -> float | None:
    """Seconds that a crawl of these hosts will take, with ten minutes' patience."""
    return time_left(sum(each.queued for each in queues), most, queues, POLICIES, 0.0, 600.0)


@pytest.mark.parametrize(
    ("queue", "seconds"),
    [
        (HostQueue("a.example", 5, 0, 0.0), 12.0),
        (HostQueue("a.example", 5, 0, 1.0), 13.0),
        (HostQueue("a.example", 5, 1, None), 15.0),
        (HostQueue("a.example", 1, 0, 283.0), 283.0),
    ],
)
def test_the_time_until_a_host_is_due_counts(queue: HostQueue, seconds: float) -> None:
    """Issue 5, point 8: a host that rests for five minutes is not done in three seconds"""
    assert told(queue) == seconds


def test_what_is_due_tomorrow_is_not_waited_for() -> None:
    """Issue 5, point 8: a host whose budget is spent does not make the crawl longer"""
    spent = HostQueue("spent.example", 500, 0, DAY)

    assert told(HostQueue("a.example", 3, 0, 1.0), spent) == 7.0
    assert told(HostQueue("a.example", 3, 0, 1.0), spent, most=2) == 4.0
    assert told(spent) == 0.0
