"""How soon after one request the next may leave: three strategies for the rate, the pause, and delays that adapt.

All of it is arithmetic on whole microseconds, rounded so that nothing is ever sooner than it should be.
"""

from __future__ import annotations

from curtsy.core.message import SECOND
from curtsy.core.policy import TOKEN, Policy

ROLL = 65_536
"""A roll is below this."""

SIDES = 256
ROLLS = tuple(range(0, ROLL, 257))
"""The sides of the dice, both ends among them: numbers that all hosts share."""

FIRST_DELAY = SECOND // 5
"""Where doubling starts for a host that has no delay at all (N8)."""

CALM = 10
"""Successes after which a raised delay sinks by a tenth (N8)."""


def spent_after(spent: int, elapsed: int, policy: Policy) -> int:
    """Token bucket: what is still spent after `elapsed` microseconds, as one number.

    spent(t) = max(0, spent - t / interval); a request may go while spent + 1 <= burst.
    """
    if not policy.interval_ns:
        return 0
    left = spent - elapsed * 1000 * TOKEN // policy.interval_ns
    return left if left > 0 else 0


def rate_ready(sent_at: int, spent: int, recent: tuple[int, ...], policy: Policy, count: int = 1) -> int:
    """The first instant at which the rate lets `count` requests go together, whatever the strategy.

    A leaky bucket is a token bucket whose burst is 1: it saves nothing, so its requests leave evenly.
    """
    if not policy.interval_ns:
        return 0
    if policy.strategy == "sliding_window":
        # The oldest that must have left the window, so that `count` more fit into it.
        burst = int(policy.burst)
        recent = departures(sent_at, spent, recent, burst)
        place = len(recent) + count - burst - 1
        return (
            0
            if place < 0 or not recent
            else recent[min(place, len(recent) - 1)] - (-burst * policy.interval_ns // 1000)
        )
    saved = policy.burst_tokens - count * TOKEN
    missing = spent - saved if saved > 0 else spent
    return sent_at if missing <= 0 else sent_at - (-missing * policy.interval_ns // (1000 * TOKEN))


def departures(sent_at: int, spent: int, recent: tuple[int, ...], burst: int) -> tuple[int, ...]:
    """The last departures, for a sliding window.

    What left under another strategy, which remembers only the last and how much was spent, left with that one. What was
    forgotten under a smaller burst left with the first that is remembered.
    """
    tokens = min(burst, -(-spent // TOKEN))
    if not recent or recent[-1] < sent_at:
        return (*recent, *[sent_at] * tokens)
    return (*[recent[0]] * (tokens - len(recent)), *recent)


def pause(roll: int, policy: Policy) -> int:
    """The random pause after a request: uniform between its bounds (P1)."""
    return policy.pause_us + policy.pause_span_us * roll // (ROLL - 1)


def latency_delay(latency: int, policy: Policy) -> int:
    """The delay that a slow site earns: factor x (response time - target), up to `max_delay`."""
    late = latency - policy.target_us
    return int(min(policy.max_delay_us, late * policy.latency_factor)) if late > 0 and policy.adapt else 0


def smoothed(latency: int, sample: int) -> int:
    """The response time, each new one counting for a quarter, the first as it is; in whole milliseconds, rounded up."""
    return -(-(4 * sample if not latency else 3 * latency + sample) // 4000) * 1000


def raised(delay: int, retry_after: int | None, policy: Policy) -> int:
    """The delay after a 429 (N8): doubled, or what the server said; at most `max_delay`, never shorter than it was."""
    present = max(delay, policy.floor_us)
    wanted = retry_after if retry_after is not None else max(2 * present, FIRST_DELAY)
    return max(present, min(wanted, policy.max_delay_us))


def sunk(delay: int, policy: Policy) -> int:
    """A raised delay after a calm stretch: a tenth less; 0, which is none, once it says no more than the policy."""
    delay = delay * 9 // 10
    return delay if delay > max(policy.floor_us, 1000) else 0
