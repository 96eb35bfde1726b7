"""TokenBucket: a single rate limit (Q3)."""

from __future__ import annotations

from curtsy.core.admission import admit
from curtsy.core.decision import Go
from curtsy.core.host import Host
from curtsy.core.message import Now
from curtsy.core.policy import MOST_BURST, UNLIMITED, number, rate
from curtsy.engine.gate import AsyncGate, Request, Ticket
from curtsy.engine.timers import Timers
from curtsy.limits.arguments import checked_alarm, checked_key
from curtsy.limits.opening import AnyStore, opened_for_both


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
        store: AnyStore | None = None,
        key: str = "bucket",
        timers: Timers | None = None,
    ) -> None:
        self.tokens_per_second = rate("tokens_per_second", tokens_per_second)
        twice = min(max(1.0, 2.0 * tokens_per_second), float(MOST_BURST))
        if capacity is None:
            self.capacity = twice
        else:
            self.capacity = number("capacity", capacity, least=1, most=MOST_BURST, default=f"{twice:g}")
        self._policy = UNLIMITED.replace(qps=self.tokens_per_second, burst=self.capacity)
        self._key = checked_key(key)
        timers = checked_alarm(timers)
        self._store, self._async_store = opened_for_both(store)
        self._is_store_ours = isinstance(store, str)
        self._gate = AsyncGate(self._async_store, timers=timers)

    async def acquire(self) -> float:
        """Wait in FIFO order for a token and take it; return the seconds waited."""
        answer = await self._gate.enter(Request(self._key, self._policy, page=False))
        assert isinstance(answer, Ticket)  # no deadline, budget or breaker can refuse it
        return answer.waited

    def try_acquire(self) -> bool:
        """Take a token if one is available and no waiter is queued; return whether it was taken."""
        if self._gate.lines.is_queued(self._key):
            return False

        def step(host: Host | None, now: Now) -> tuple[Host | None, bool]:
            changed, decision = admit(host, now, self._policy, page=False)
            return changed, isinstance(decision, Go)

        return self._store.update(self._key, step)

    async def aclose(self) -> None:
        """Close a store that was opened by its URL. Idempotent."""
        if self._is_store_ours:
            await self._async_store.close()
            self._store.close()
