"""Gauge: how fast a crawl goes, and how long it will take: for people to look at, not to decide by."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from curtsy.core.policy import Policies
from curtsy.crawling.frontier.protocol import HostQueue
from curtsy.crawling.progress import gap_of

MINUTE = 60.0

MOST_MARKS = 600
"""Marks that are kept at most: a fake clock may stand still while they are made."""


class RateMeter:
    """The pages of the last minute."""

    def __init__(self) -> None:
        self._marks: deque[tuple[float, int]] = deque(maxlen=MOST_MARKS)
        """Moments, each with the pages that there were."""

    def mark(self, now: float, pages: int) -> None:
        """Note how many pages there are by now."""
        self._marks.append((now, pages))
        while len(self._marks) > 2 and self._marks[0][0] < now - MINUTE:
            self._marks.popleft()

    def rate(self, now: float, pages: int) -> float:
        """Pages a second, over the last minute."""
        if not self._marks:
            return 0.0
        then, before = self._marks[0]
        return (pages - before) / (now - then) if now > then else 0.0


def time_left(
    queued: int, most: int | None, queues: Sequence[HostQueue], policies: Policies, rate: float, patience: float
) -> float | None:
    """Seconds until what is queued is done, or `most` of it, by the pauses that remain; None if nothing tells.

    It is the slowest host's time, or that of all hosts under the rate they share, whichever is longer; what has no
    pauses goes on as fast as it went. Hosts that are due after more than `patience` are not waited for.
    """
    soon = [each for each in queues if (each.due_in or 0.0) <= patience]
    left = queued - sum(each.queued for each in queues if each not in soon)
    left = left if most is None else min(left, most)
    if left <= 0:
        return 0.0

    def needs(each: HostQueue) -> float:
        gaps = min(each.queued, left) - (each.due_in is not None)  # the first needs no pause but that until it is due
        return (each.due_in or 0.0) + max(0, gaps) * gap_of(policies.of(each.host))

    by_host = max(map(needs, soon), default=0.0)
    by_all = left / policies.global_qps if policies.global_qps else 0.0
    return max(by_host, by_all) or (left / rate if rate > 0 else None)
