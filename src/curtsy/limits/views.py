"""Read-only views of a limiter's buckets and breakers, as of one moment (Q6)."""

from __future__ import annotations

import msgspec

from curtsy.core.breaker import State
from curtsy.core.host import Host, in_time
from curtsy.core.message import Now
from curtsy.core.pace import spent_after
from curtsy.core.policy import TOKEN, Policy


class BucketView(msgspec.Struct, frozen=True):
    """The bucket of a domain, or of the global rate."""

    tokens_per_second: float | None
    """None for no limit."""

    capacity: float
    """Tokens that a full bucket holds."""

    tokens: float
    """Tokens in it at that moment; `capacity` if there is no limit."""


class BreakerView(msgspec.Struct, frozen=True):
    """The circuit breaker of a domain."""

    state: State
    time_left: float
    """Seconds until a trial request is let through; 0 if the breaker is not open."""

    trips: int
    """How often it has opened."""

    @property
    def is_open(self) -> bool:
        """Return whether every request is refused."""
        return self.state is State.OPEN


def bucket_view(policy: Policy, host: Host | None, now: Now) -> BucketView:
    """Return the bucket of a policy with what its record has left."""
    spent = 0
    if host is not None:
        host = in_time(host, now)
        spent = spent_after(host.spent, max(0, now.at - host.sent_at), policy)
    return BucketView(policy.qps, policy.burst, max(0.0, policy.burst - spent / TOKEN))


def breaker_view(host: Host | None, now: Now) -> BreakerView:
    """Return the breaker of a record; a missing record is a closed one that never opened."""
    if host is None:
        return BreakerView(State.CLOSED, 0.0, 0)
    return BreakerView(host.breaker_state(now), host.breaker_left(now), host.trips)
