"""with_retry: try again what may fare better in a while (N2, N3, N4)."""

from __future__ import annotations

import asyncio
import inspect
import random
from collections.abc import Awaitable, Callable
from typing import TypeVar

from curtsy.core.errors import FetchError
from curtsy.core.outcome import backoff

Result = TypeVar("Result")


def is_retryable(error: BaseException) -> bool:
    """Whether an error may be over in a moment: 429, 500 to 599, names and connections, timeouts (N3)."""
    if isinstance(error, FetchError):
        return error.status is None or error.status == 429 or 500 <= error.status < 600
    return isinstance(error, OSError)  # connections, names (socket.gaierror), and TimeoutError


async def with_retry(
    fn: Callable[[], Awaitable[Result] | Result],
    max_retries: int = 3,
    initial_delay: float = 1.0,
    *,
    is_retryable: Callable[[BaseException], bool] = is_retryable,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    roll: Callable[[], float] = random.random,
) -> Result:
    """Call `fn` until it succeeds, at most 1 + `max_retries` times, then raise its last error.

    Before the n-th retry it waits initial_delay x 2^(n-1) seconds, give or take 25 %; a `FetchError` that has a
    `retry_after` is waited for that long instead (N4). Any error that is not retryable is raised at once.

    This is for what does not go through a client: a client's retries wait in line with everybody else's.
    """
    attempt = 0
    while True:
        attempt += 1
        try:
            result = fn()
            return await result if inspect.isawaitable(result) else result
        except Exception as error:
            if attempt > max_retries or not is_retryable(error):
                raise
            told = error.retry_after if isinstance(error, FetchError) else None
        await sleep(backoff(attempt, initial_delay, roll()) if told is None else max(0.0, told))
