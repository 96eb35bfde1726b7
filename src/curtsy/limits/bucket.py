"""TokenBucket: a single rate limit (Q3)."""

from __future__ import annotations

import msgspec

from curtsy.core.admission import admit
from curtsy.core.decision import Go
from curtsy.core.host import Host, in_time
from curtsy.core.pace import spent_after
from curtsy.core.policy import MOST_BURST, TOKEN, UNLIMITED, Policy
from curtsy.core.setting import number, rate
from curtsy.core.time import Now
from curtsy.engine.arguments import check_parts
from curtsy.engine.gate import Gate, Ticket
from curtsy.engine.gate_steps import Request
from curtsy.engine.timers import Timers
from curtsy.limits.arguments import checked_key, opened
from curtsy.stores import NOT_NOW, Shared, Step, Store
from curtsy.stores.blocking import for_tasks


class TokenBucket:
    """Token bucket: tokens arrive at a steady rate, and each request takes one.

    The bucket starts full. `capacity` defaults to twice the rate, but at least 1: otherwise a rate below one half could
    never send. `store` is a store or its URL; buckets with the same `store` and `key` share their tokens. Without
    `store`, the bucket is private.
    """

    def __init__(
        self,
        tokens_per_second: float,
        capacity: float | None = None,
        *,
        store: str | Store | None = None,
        key: str = "bucket",
        timers: Timers | None = None,
    ) -> None:
        self.tokens_per_second = rate("tokens_per_second", tokens_per_second)
        twice = min(max(1.0, 2.0 * tokens_per_second), float(MOST_BURST))
        given = twice if capacity is None else capacity
        self.capacity = number("capacity", given, least=1, most=MOST_BURST, default=f"{twice:g}")
        self._policy = UNLIMITED.replace(qps=self.tokens_per_second, burst=self.capacity)
        self._key = checked_key(key)
        check_parts(timers=timers)
        self._store = opened(store)
        self._is_store_ours = isinstance(store, str)
        self._gate = Gate(self._store.inner if self._is_store_ours else for_tasks(self._store), timers=timers)

    async def acquire(self) -> float:
        """Wait in FIFO order for a token and take it; return the seconds waited."""
        answer = await self._gate.enter(Request(self._key, self._policy, page=False))
        assert isinstance(answer, Ticket)  # no deadline, budget or breaker can refuse it
        return answer.waited

    def try_acquire(self) -> bool:
        """Take a token if one is available and no waiter is queued; return whether it was taken."""
        if self._gate.queues.is_queued(self._key):
            return False
        return self._store.update(self._key, Shared(take_tokens(self._policy))) not in (None, NOT_NOW)

    async def aclose(self) -> None:
        """Close a store that was opened by its URL. Idempotent."""
        if self._is_store_ours:
            await self._store.inner.close()
            self._store.close()


class BucketView(msgspec.Struct, frozen=True):
    """Bucket of a domain or of the global rate."""

    tokens_per_second: float | None
    """Rate; None for no limit."""

    capacity: float
    """Tokens in a full bucket."""

    tokens: float
    """Tokens available at that moment; `capacity` without a limit."""


def take_tokens(policy: Policy, count: int = 1) -> Step[int | None]:
    """Return the step that takes tokens if they are available; it returns the time in microseconds, else None."""

    def step(host: Host | None, now: Now) -> tuple[Host | None, int | None]:
        changed, decision = admit(host, now, policy, page=False, count=count)
        return changed, now.epoch if isinstance(decision, Go) else None

    return step


def read_bucket(policy: Policy) -> Step[BucketView]:
    """Return the step that reads the bucket of a policy in a record."""

    def step(host: Host | None, now: Now) -> tuple[Host | None, BucketView]:
        spent = 0
        if host is not None:
            current = in_time(host, now)
            spent = spent_after(current.spent, max(0, now.at - current.sent_at), policy)
        return host, BucketView(policy.qps, policy.burst, max(0.0, policy.burst - spent / TOKEN))

    return step
