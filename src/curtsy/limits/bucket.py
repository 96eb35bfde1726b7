"""TokenBucket: one rate, nothing else (Q3)."""

from __future__ import annotations

from curtsy.core.admission import Go, admit
from curtsy.core.host import Host
from curtsy.core.message import Now
from curtsy.core.policy import MOST_BURST, UNLIMITED, number, rate
from curtsy.engine.gate import AsyncGate, Request, Ticket
from curtsy.engine.timers import Timers
from curtsy.limits.arguments import checked_alarm, checked_key
from curtsy.limits.opening import AnyStore, opened_for_both


class TokenBucket:
    """Tokens that flow in at a steady rate; each request takes one.

    It starts full. `capacity` is twice the rate if it is left out, but never below 1: else a rate under a half could
    never send anything. Buckets with the same `store` and `key` are one: `store` is the URL of one, or a store; without
    it, the bucket is this one's own.
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
        """Wait for a token, first come first served, and take it. Returns the seconds waited."""
        answer = await self._gate.enter(Request(self._key, self._policy, page=False))
        assert isinstance(answer, Ticket)  # without a deadline, budget or breaker there is nothing to refuse it
        return answer.waited

    def try_acquire(self) -> bool:
        """Take a token if there is one, without waiting and without going ahead of those who wait."""
        if self._gate.lines.is_queued(self._key):
            return False

        def step(host: Host | None, now: Now) -> tuple[Host | None, bool]:
            changed, decision = admit(host, now, self._policy, page=False)
            return changed, isinstance(decision, Go)

        return self._store.update(self._key, step)

    async def aclose(self) -> None:
        """Let go of a store that was opened by its URL. Idempotent."""
        if self._is_store_ours:
            await self._async_store.close()
            self._store.close()
