"""Read-only views of a limiter's buckets and breakers at one moment (Q6)."""

from __future__ import annotations

import msgspec

from curtsy.core.breaker import State
from curtsy.core.host import Host, in_time
from curtsy.core.message import Now
from curtsy.core.pace import spent_after
from curtsy.core.policy import TOKEN, Policy


class BucketView(msgspec.Struct, frozen=True):
    """Bucket of a domain or of the global rate."""

    tokens_per_second: float | None
    """Rate; None for no limit."""

    capacity: float
    """Tokens in a full bucket."""

    tokens: float
    """Tokens available at that moment; `capacity` without a limit."""


class BreakerView(msgspec.Struct, frozen=True):
    """Circuit breaker of a domain."""

    state: State
    time_left: float
    """Seconds until a trial request is allowed; 0 if the breaker is not open."""

    trips: int
    """Number of times the breaker has opened."""

    @property
    def is_open(self) -> bool:
        """Return whether the breaker refuses every request."""
        return self.state is State.OPEN


def bucket_view(policy: Policy, host: Host | None, now: Now) -> BucketView:
    """Return the bucket of a policy with the tokens that its record has left."""
    spent = 0
    if host is not None:
        host = in_time(host, now)
        spent = spent_after(host.spent, max(0, now.at - host.sent_at), policy)
    return BucketView(policy.qps, policy.burst, max(0.0, policy.burst - spent / TOKEN))


def breaker_view(host: Host | None, now: Now) -> BreakerView:
    """Return the breaker of a record; without a record it is closed and never opened."""
    if host is None:
        return BreakerView(State.CLOSED, 0.0, 0)
    return BreakerView(host.breaker_state(now), host.breaker_left(now), host.trips)
