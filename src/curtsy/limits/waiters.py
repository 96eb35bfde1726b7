"""Waits for the tokens of a domain: their requests, their errors, and the waiters, which closing a limiter ends."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from weakref import WeakSet

from curtsy.core.decision import Late, No
from curtsy.core.errors import (
    CurtsyError,
    LimiterClosed,
    PolicyError,
    Reason,
    Refused,
    RefusedByBreaker,
    RefusedByBudget,
    RefusedByPolicy,
    RefusedByRobots,
    WaitTimeout,
)
from curtsy.core.message import Url, parse_url
from curtsy.core.messages import refused, span
from curtsy.core.policy import Policy
from curtsy.core.setting import number, whole
from curtsy.engine.gate import Request
from curtsy.engine.timers import Waiter
from curtsy.limits.domain_limits import DomainLimits
from curtsy.limits.statistics import LOCK

LEAVE = 2.0
"""Seconds that closing waits for waiters to leave: their event loop may never run again."""

POLL = 0.005
"""Seconds between checks that they have left."""

_REFUSALS: dict[Reason, type[Refused]] = {
    Reason.DOMAIN_BUDGET_EXCEEDED: RefusedByBudget,
    Reason.CIRCUIT_OPEN: RefusedByBreaker,
    Reason.CRAWL_DELAY_TOO_LONG: RefusedByRobots,
}


class Waiters:
    """Tasks and threads that wait for one limiter."""

    def __init__(self) -> None:
        self.is_closed = False
        self._waiters: WeakSet[Waiter] = WeakSet()

    @contextlib.contextmanager
    def register(self, waiter: Waiter) -> Iterator[Waiter]:
        """Register a waiter during the block. Raises LimiterClosed after `close()`."""
        with LOCK:  # orders this with `close()`
            self.check_open()
            self._waiters.add(waiter)
        try:
            yield waiter
        finally:
            if not waiter.is_gone:  # else the garbage collector runs this, perhaps while this thread reads the set
                with LOCK:
                    self._waiters.discard(waiter)

    def wake(self) -> None:
        """Wake all waiters: a change may affect a waiter and not those ahead of it."""
        for waiter in self._copy():
            waiter.wake()

    def close(self) -> None:
        """End all waits and refuse later ones. Idempotent."""
        with LOCK:
            self.is_closed = True
        for waiter in self._copy():
            waiter.closed = True
            waiter.wake()

    async def wait_until_left(self) -> None:
        """Wait until closed waiters have left, because they may be using the store."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LEAVE):
                while not all(each.is_gone for each in self._copy()):  # noqa: ASYNC110 -- other loops set no event
                    await asyncio.sleep(POLL)

    def check_open(self) -> None:
        """Raise LimiterClosed after `close()`."""
        if self.is_closed:
            raise closed_error()

    def _copy(self) -> list[Waiter]:
        with LOCK:
            return list(self._waiters)


def closed_error() -> LimiterClosed:
    """Return the error for waiters at `close()` and for later calls."""
    return LimiterClosed("This rate limiter is closed. Make another one to go on.")


def token_request(domain: str, limits: Callable[[], DomainLimits], timeout: float | None, n: int) -> Request:
    """Return the request for `n` tokens. It raises PolicyError if `n` exceeds the burst, now or during its wait."""
    whole("n", n, 1)
    if timeout is not None:
        number("timeout", timeout)

    def current() -> tuple[str, Policy, None]:
        rates = limits().of(domain)
        if n > rates.most:
            raise PolicyError(
                f"{domain}: n = {n} must be at most burst_capacity ({rates.most}), because the bucket holds "
                "no more. Ask for fewer at once, or raise burst_capacity."
            )
        return rates.key, rates.policy, None

    return Request(*current(), page=False, count=n, deadline=timeout, renew=current)


def wait_error(domain: str, answer: No | Late, request: Request) -> CurtsyError:
    """Return the error for a wait without a ticket: too late, or refused by an entry in a shared record."""
    if isinstance(answer, Late):
        timeout, needed = request.deadline or 0.0, answer.needed
        more = "" if needed > timeout else " more"
        return WaitTimeout(
            f"{domain} cannot be asked within {timeout:g} s: it would take {needed:.3f} s{more}. "
            "Allow more time, or ask less often.",
            needed,
        )
    if answer.reason is Reason.DOMAIN_BUDGET_EXCEEDED:  # the limit comes from the record: a limiter has no budget
        wait = "" if answer.retry_after is None else f" The next can go in {span(answer.retry_after)}."
        what = f"{domain} has had its {answer.limit} of today.{wait} Raise its max_{answer.limit}_per_day"
        message = f"{what} only if the site agreed."
    else:
        url = parse_url(f"https://{domain}/")
        assert isinstance(url, Url)
        message = refused(url, request.policy, answer)
    kind = _REFUSALS.get(answer.reason, RefusedByPolicy)
    return kind(message, reason=answer.reason, retry_after=answer.retry_after)
