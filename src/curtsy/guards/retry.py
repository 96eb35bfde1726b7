"""with_retry: try again what may fare better in a while (N2, N3, N4)."""

from __future__ import annotations

import asyncio
import errno
import inspect
import random
import ssl
from collections.abc import Awaitable, Callable
from typing import TypeVar, overload

from curtsy.core.errors import FetchError, Reason
from curtsy.core.outcome import PASSING, backoff
from curtsy.core.policy import number, rule

Result = TypeVar("Result")

LONGEST = 86_400.0
"""Seconds beyond which no `retry_after` is believed (C2)."""

_DISK = frozenset({errno.ENOSPC, errno.EROFS, errno.EIO, errno.EDQUOT, errno.EMFILE, errno.ENFILE})


def is_retryable(error: BaseException) -> bool:
    """Whether an error may be over in a moment: 429, 500 to 599, names and connections, timeouts (N3)."""
    if isinstance(error, FetchError):
        if error.reason is not None and error.reason is not Reason.HTTP_STATUS:
            return error.reason in PASSING
        return error.status is None or error.status == 429 or 500 <= error.status < 600
    # An OSError is of a connection, a name (socket.gaierror) or a timeout, unless it is of a file or a certificate.
    if not isinstance(error, OSError) or isinstance(error, PermissionError | ssl.CertificateError):
        return False
    return error.filename is None and error.errno not in _DISK


@overload
async def with_retry(
    fn: Callable[[], Awaitable[Result]],
    max_retries: int = 3,
    initial_delay: float = 1.0,
    *,
    is_retryable: Callable[[BaseException], bool] = is_retryable,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    roll: Callable[[], float] = random.random,
) -> Result: ...


@overload
async def with_retry(
    fn: Callable[[], Result],
    max_retries: int = 3,
    initial_delay: float = 1.0,
    *,
    is_retryable: Callable[[BaseException], bool] = is_retryable,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    roll: Callable[[], float] = random.random,
) -> Result: ...


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
    `retry_after` is waited for that long instead (N4), a day at most. An error that is not retryable is raised at once.

    This is for what does not go through a client: a client's retries wait in line with everybody else's.
    """
    if not callable(fn):
        raise rule("fn", fn, "a function, which can be called again; a coroutine cannot")
    number("max_retries", max_retries)
    number("initial_delay", initial_delay)
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
        await sleep(backoff(attempt, initial_delay, roll()) if told is None else min(max(0.0, told), LONGEST))
