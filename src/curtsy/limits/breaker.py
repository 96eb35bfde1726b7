"""CircuitBreaker: stops requests to failing hosts (Q4)."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from curtsy.core.admission import admit
from curtsy.core.amendment import Reset, Trip, amend
from curtsy.core.breaker import State
from curtsy.core.decision import Go
from curtsy.core.host import Host
from curtsy.core.outcome import Kind, Outcome
from curtsy.core.policy import UNLIMITED, short_cooldown
from curtsy.core.setting import DAY, number, rule, whole
from curtsy.core.settlement import settle
from curtsy.core.time import Now
from curtsy.limits.arguments import checked_key, opened
from curtsy.stores import Store
from curtsy.system.log import library_logger

_log = library_logger("guards")


def checked_cooldown(seconds: float) -> float:
    """Return a configured cooldown in seconds; log a warning if it is short."""
    seconds = number("cooldown_seconds", seconds, above=True, most=30 * DAY, default=300)
    if (warning := short_cooldown("cooldown_seconds", seconds)) is not None:
        _log.warning(warning)
    return seconds


def outcome_of(status: int | None) -> Outcome:
    """Return the outcome of a reported status (U6).

    403 and 429 are a block, 5xx and None (no response) a failure, all others an answer.
    """
    if status is None:
        return Outcome(Kind.FAILED)
    if isinstance(status, bool) or not isinstance(status, int) or not 100 <= status <= 999:
        raise rule("status", status, "an HTTP status such as 503, or None if there was no answer")
    if status == 403:
        return Outcome(Kind.BLOCKED, status)
    if status == 429:
        return Outcome(Kind.SLOWED, status)
    return Outcome(Kind.FAILED if status >= 500 else Kind.ANSWERED, status)


class CircuitBreaker:
    """Breaker that opens at a block or after consecutive failures, and allows one trial after a cooldown.

    `on_429` is `trip`: every 429 opens it (Q5). Breakers with the same `store` (or its URL) and `key` share their
    state.
    """

    def __init__(
        self,
        cooldown_seconds: float = 300,
        *,
        failures: int = 3,
        max_cooldown_seconds: float = 21_600,
        error_rate: float | None = None,
        store: str | Store | None = None,
        key: str = "breaker",
    ) -> None:
        self.cooldown_seconds = checked_cooldown(cooldown_seconds)
        longest = number("max_cooldown_seconds", max_cooldown_seconds, above=True, most=30 * DAY)
        self._policy = UNLIMITED.replace(
            breaker=True,
            breaker_cooldown=self.cooldown_seconds,
            breaker_max_cooldown=max(longest, self.cooldown_seconds),
            breaker_failures=whole("failures", failures, 1),
            breaker_error_rate=None if error_rate is None else number("error_rate", error_rate, above=True, most=1.0),
            on_429="trip",
        )
        self._key = checked_key(key)
        self._store = opened(store)
        self._is_store_ours = isinstance(store, str)

    def trip(self) -> None:
        """Open the breaker now."""
        self._change(lambda host, now: amend(host, now, self._policy, Trip()))

    def reset(self) -> None:
        """Close the breaker and clear its failures."""
        self._change(lambda host, now: amend(host, now, self._policy, Reset()))

    def attempt_reset(self) -> bool:
        """Request permission: True if the breaker is closed, or for the single trial after the cooldown.

        Report the trial by `record_success` or `record_failure`; until then all other calls return False.
        """

        def step(host: Host | None, now: Now) -> tuple[Host | None, bool]:
            changed, decision = admit(host, now, self._policy, page=False)
            if host is None or not host.tripped_at:
                return host, True
            return changed, isinstance(decision, Go)

        return self._store.update(self._key, step)

    def record_success(self) -> None:
        """Report a success, which clears consecutive failures; after a trial it closes the breaker."""
        self._change(lambda host, now: settle(host, now, self._policy, None, Outcome(Kind.ANSWERED)))

    def record_failure(self, status: int | None = None) -> None:
        """Report a failure. 403 and 429 open the breaker immediately, 5xx and None after `failures` in a row.

        Any other status is an answer and counts as a success (U6).
        """
        outcome = outcome_of(status)
        self._change(lambda host, now: settle(host, now, self._policy, None, outcome))

    @property
    def state(self) -> State:
        """Return the state: closed, open or half open."""
        return self._view().state

    @property
    def is_open(self) -> bool:
        """Return whether the breaker refuses every request now."""
        return self._view().is_open

    @property
    def time_left(self) -> float:
        """Return the seconds until a trial is allowed; 0 if the breaker is not open."""
        return self._view().time_left

    @property
    def trips(self) -> int:
        """Return how often the breaker has opened."""
        return self._view().trips

    def close(self) -> None:
        """Close a store that was opened by its URL. Idempotent; the breaker's record is kept."""
        if self._is_store_ours:
            self._store.close()

    def _view(self) -> BreakerView:
        return self._store.update(self._key, read_breaker)

    def _change(self, change: Callable[[Host | None, Now], Host]) -> None:
        self._store.update(self._key, lambda host, now: (change(host, now), None))


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


def read_breaker(host: Host | None, now: Now) -> tuple[Host | None, BreakerView]:
    """Read the breaker of a record, as a step; without a record it is closed and has never opened."""
    if host is None:
        return host, BreakerView(State.CLOSED, 0.0, 0)
    return host, BreakerView(host.breaker_state(now), host.breaker_left(now), host.trips)
