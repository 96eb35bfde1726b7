"""What tests of a limiter ask of it."""

from __future__ import annotations

from curtsy.core.time import SECOND
from curtsy.limits import RateLimiter
from curtsy.limits.statistics import StatsSnapshot
from curtsy.testing import FakeClock

DOMAIN = "example.org"


def stats_of(limiter: RateLimiter, domain: str = DOMAIN) -> StatsSnapshot:
    return limiter.get_stats(domain)


async def waits(limiter: RateLimiter, clock: FakeClock, times: int, domain: str = DOMAIN) -> list[float]:
    """Wait so often, one after the other; the fake seconds from the beginning to each departure."""
    began, left = clock.now().at, []
    for _ in range(times):
        await limiter.wait(domain)
        left.append((clock.now().at - began) / SECOND)
    return left
