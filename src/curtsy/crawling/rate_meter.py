"""Rate of a crawl and estimate of its remaining time, for display only."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from curtsy.core.policy import Policies
from curtsy.crawling.frontier.protocol import HostQueue
from curtsy.crawling.progress import gap_of

MINUTE = 60.0

MOST_MARKS = 600
"""Maximum number of marks, because a fake clock may stand still while they are added."""


class RateMeter:
    """Page rate over the last minute."""

    def __init__(self) -> None:
        self._marks: deque[tuple[float, int]] = deque(maxlen=MOST_MARKS)
        """Times with the number of pages at each."""

    def mark(self, now: float, pages: int) -> None:
        """Record the current number of pages."""
        self._marks.append((now, pages))
        while len(self._marks) > 2 and self._marks[0][0] < now - MINUTE:
            self._marks.popleft()

    def rate(self, now: float, pages: int) -> float:
        """Return the pages per second over the last minute."""
        if not self._marks:
            return 0.0
        then, before = self._marks[0]
        return (pages - before) / (now - then) if now > then else 0.0


def time_left(
    queued: int, most: int | None, queues: Sequence[HostQueue], policies: Policies, rate: float, patience: float
) -> float | None:
    """Estimate the seconds until the queue, or `most` URLs of it, is done; None if unknown.

    The estimate is the time of the slowest host, or of all hosts under their shared rate, whichever is longer. Without
    pauses, it follows from the present rate. Hosts that are due after more than `patience` seconds are ignored.
    """
    soon = [each for each in queues if (each.due_in or 0.0) <= patience]
    left = queued - sum(each.queued for each in queues if each not in soon)
    left = left if most is None else min(left, most)
    if left <= 0:
        return 0.0

    def needs(each: HostQueue) -> float:
        gaps = min(each.queued, left) - (each.due_in is not None)  # the first request waits only until the host is due
        return (each.due_in or 0.0) + max(0, gaps) * gap_of(policies.of(each.host))

    by_host = max(map(needs, soon), default=0.0)
    by_all = left / policies.global_qps if policies.global_qps else 0.0
    return max(by_host, by_all) or (left / rate if rate > 0 else None)
