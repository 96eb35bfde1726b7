"""Circuit breaker: block a failing host for a while, then try it once.

closed ──(failures in a row, too many errors, a block)──▶ open ──(cooldown over)──▶ half-open
   ▲                                                       ▲                          │  │
   └─────────────────(the trial succeeded)─────────────────┼──────────────────────────┘  │
                                                           └──(it failed: twice as long)──┘
"""

from __future__ import annotations

from enum import StrEnum

from curtsy.core.policy import Policy
from curtsy.core.time import SECOND

CAUSES = ("block", "failures", "rest", "trial", "user")
"""What opens a breaker: a 403 or 429, failures, a rest that the site requested, a failed trial, a user."""


class State(StrEnum):
    """State of a breaker."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


def state(tripped_at: int, cooldown: int, at: int) -> State:
    """Return the state at `at` of a breaker that opened at `tripped_at`; all arguments are microseconds."""
    if not tripped_at:
        return State.CLOSED
    return State.OPEN if at < tripped_at + cooldown else State.HALF_OPEN


def cooldown(failed_trials: int, retry_after: float | None, policy: Policy) -> int:
    """Return how long the breaker stays open, in microseconds.

    Each failed trial doubles the cooldown. `retry_after` is the site's Retry-After in seconds, or None:

    max(min(cooldown x 2^failed_trials, max_cooldown), retry_after)
    """
    doubled = policy.breaker_cooldown * float(1 << min(failed_trials, 20))
    longest = max(policy.breaker_cooldown, policy.breaker_max_cooldown)
    return round(max(min(doubled, longest), min(retry_after or 0.0, policy.max_retry_after)) * SECOND)


def too_many(failures: int, replies: int, errors: int, policy: Policy) -> bool:
    """Return whether the failures in a row or the error rate of the window must open the breaker."""
    if failures >= policy.breaker_failures:
        return True
    rate = policy.breaker_error_rate
    return rate is not None and replies >= policy.breaker_min_replies and errors >= rate * replies
