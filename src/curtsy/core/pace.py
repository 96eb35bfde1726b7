"""Pace: the time between two requests, from three rate strategies, a pause and adapted delays.

All arithmetic uses whole microseconds and rounds so that no request leaves too early.
"""

from __future__ import annotations

from curtsy.core.policy import TOKEN, Policy
from curtsy.core.time import SECOND

ROLL = 65_536
"""Upper bound of a roll, exclusive."""

SIDES = 256
ROLLS = tuple(range(0, ROLL, 257))
"""Possible rolls, both ends included. All hosts share these number objects."""

FIRST_DELAY = SECOND // 5
"""First raised delay of a host without a delay, in microseconds (N8)."""

CALM = 10
"""Successes after which a raised delay decreases by a tenth (N8)."""


def spent_after(spent: int, elapsed: int, policy: Policy) -> int:
    """Return the tokens of a bucket that are still spent after `elapsed` microseconds.

    spent(t) = max(0, spent - t / interval); a request may go while spent + 1 <= burst.
    """
    if not policy.interval_ns:
        return 0
    left = spent - elapsed * 1000 * TOKEN // policy.interval_ns
    return left if left > 0 else 0


def rate_ready(sent_at: int, spent: int, recent: tuple[int, ...], policy: Policy, count: int = 1) -> int:
    """Return the first instant at which the rate admits `count` requests together.

    A leaky bucket is a token bucket with a burst of 1: it saves no tokens, so its requests leave evenly.
    """
    if not policy.interval_ns:
        return 0
    if policy.strategy == "sliding_window":
        # The oldest departure that must have left the window before `count` more fit in.
        burst = int(policy.burst)
        recent = departures(sent_at, spent, recent, burst)
        place = len(recent) + count - burst - 1
        if place < 0 or not recent:
            return 0
        return recent[min(place, len(recent) - 1)] - (-burst * policy.interval_ns // 1000)
    saved = policy.burst_tokens - count * TOKEN
    missing = spent - saved if saved > 0 else spent
    return sent_at if missing <= 0 else sent_at - (-missing * policy.interval_ns // (1000 * TOKEN))


def departures(sent_at: int, spent: int, recent: tuple[int, ...], burst: int) -> tuple[int, ...]:
    """Return the last departures of a sliding window.

    Other strategies store only the last departure and the spent tokens. Requests that left under them count at that
    last departure. Departures dropped under a smaller burst count at the first one stored.
    """
    tokens = min(burst, -(-spent // TOKEN))
    if not recent or recent[-1] < sent_at:
        return (*recent, *[sent_at] * tokens)
    return (*[recent[0]] * (tokens - len(recent)), *recent)


def pause(roll: int, policy: Policy) -> int:
    """Return the random pause after a request, uniform between its bounds (P1)."""
    return policy.pause_us + policy.pause_span_us * roll // (ROLL - 1)


def latency_delay(latency: int, policy: Policy) -> int:
    """Return the delay for a slow site: factor x (response time - target), up to `max_delay`."""
    late = latency - policy.target_us
    return int(min(policy.max_delay_us, late * policy.latency_factor)) if late > 0 and policy.adapt else 0


def smoothed(latency: int, sample: int) -> int:
    """Return the smoothed response time, rounded up to whole milliseconds.

    A new sample has a weight of one quarter; the first sample is taken as it is.
    """
    return -(-(4 * sample if not latency else 3 * latency + sample) // 4000) * 1000


def raised(delay: int, retry_after: int | None, policy: Policy) -> int:
    """Return the delay after a 429 (N8): doubled, or the given `retry_after`.

    It is at most `max_delay`, and never shorter than before.
    """
    present = max(delay, policy.floor_us)
    wanted = retry_after if retry_after is not None else max(2 * present, FIRST_DELAY)
    return max(present, min(wanted, policy.max_delay_us))


def sunk(delay: int, policy: Policy) -> int:
    """Return a raised delay reduced by a tenth; 0 (not raised) once it does not exceed the policy's delay."""
    delay = delay * 9 // 10
    return delay if delay > max(policy.floor_us, 1000) else 0
