"""Retries after temporary errors (N2, N3, N4), and the delay that adapts to 429 (N8)."""

from __future__ import annotations

import asyncio
import errno
import inspect
import random
import ssl
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar, overload

from curtsy.core.errors import FetchError, Reason
from curtsy.core.outcome import PASSING, backoff, retry_after
from curtsy.core.request import Headers
from curtsy.core.setting import number, rule

Result = TypeVar("Result")

LONGEST = 86_400.0
"""Maximum seconds accepted from `retry_after` (C2)."""

_DISK = frozenset({errno.ENOSPC, errno.EROFS, errno.EIO, errno.EDQUOT, errno.EMFILE, errno.ENFILE})

_PASSING_KINDS = frozenset(
    {
        "ConnectionError", "TimeoutError",  # Python's own, and classes of these names in other libraries
        "ClientConnectionError", "ClientPayloadError",  # aiohttp
        "NetworkError", "TimeoutException", "RemoteProtocolError",  # httpx
        "Timeout", "ChunkedEncodingError",  # requests
        "IncompleteRead", "ContentTooShortError", "urllib3.ProtocolError",  # urllib and urllib3
    }
)  # fmt: skip
"""Class names of connection, name resolution and timeout errors, so that their libraries need not be installed."""


def is_retryable(error: BaseException) -> bool:
    """Return whether an error may be temporary: 429, 500 to 599, name resolution, connection, timeout (N3).

    Besides `FetchError` and Python's errors, it recognizes those of aiohttp, httpx, requests and urllib3: by their
    status, else by their class.
    """
    if isinstance(error, FetchError):
        if error.reason is not None and error.reason is not Reason.HTTP_STATUS:
            return error.reason in PASSING
        return error.status is None or _is_passing(error.status)
    status = _status(error)
    if status is not None:
        return _is_passing(status)
    match error:
        case object(reason=Exception() as cause):  # of a URLError or of urllib3's MaxRetryError
            return is_retryable(cause)
    # A ValueError is an invalid URL or invalid JSON, even if requests derives it from OSError too.
    if isinstance(error, ValueError | PermissionError) or _is_of_certificate(error):
        return False
    names = {name for kind in type(error).__mro__ for name in (kind.__name__, f"{_package(kind)}.{kind.__name__}")}
    if not names.isdisjoint(_PASSING_KINDS):
        return True
    # An OSError concerns a connection or a name (socket.gaierror), unless it concerns a file. An OSError that a library
    # makes from another error has no errno.
    if not isinstance(error, OSError) or (error.errno is None and _package(type(error)) != "builtins"):
        return False
    return error.filename is None and error.errno not in _DISK


def _is_passing(status: int) -> bool:
    return status == 429 or 500 <= status < 600


def _package(kind: type) -> str:
    return kind.__module__.partition(".")[0]


def _is_of_certificate(error: BaseException) -> bool:
    """Return whether a certificate caused an error: httpx, for example, wraps it in a ConnectError."""
    causes: list[BaseException] = [error]
    for each in causes:
        if isinstance(each, ssl.CertificateError):
            return True
        # The context of Python's own exceptions is unrelated; a library's exception wraps its context.
        is_made = _package(type(each)) not in ("builtins", "socket", "ssl")
        for cause in (each.__cause__, each.__context__ if is_made else None):
            if cause is not None and cause not in causes:
                causes.append(cause)
    return False


def _answers(error: BaseException) -> tuple[object, ...]:
    """Return where the response's status and headers may be: the error (aiohttp, urllib) or its response."""
    match error:
        case object(response=response):
            return error, response
    return (error,)


def _status(error: BaseException) -> int | None:
    """Return the status of the error's response; None without one."""
    for answer in _answers(error):
        match answer:
            case object(status=int(status)) if status >= 100:
                return status
            case object(status_code=int(status)) if status >= 100:
                return status
    return None


def _retry_after_of(error: BaseException) -> float | None:
    """Return the seconds of the site's Retry-After; None without one."""
    if isinstance(error, FetchError):
        return error.retry_after
    for answer in _answers(error):
        match answer:
            case object(headers=object(items=items)):
                return retry_after(Headers((str(name), str(value)) for name, value in items()), time.time())
    return None


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

    The wait before the n-th retry is initial_delay x 2^(n-1) seconds, give or take 25 %. If the error has a
    `retry_after`, or a response with `Retry-After`, that value applies instead (N4), up to a day. An error that is not
    retryable is raised immediately.

    Use it for code without a client: a client's retries queue with all other requests.
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
            seconds = _retry_after_of(error)
        await sleep(backoff(attempt, initial_delay, roll()) if seconds is None else min(max(0.0, seconds), LONGEST))


def adapt_delay(current: float, error: BaseException | None, *, max_delay: float = 10.0) -> float:
    """Return the delay after an error (N8): a 429 doubles it up to `max_delay`, or sets its Retry-After.

    The delay never decreases. Any other status, and errors other than `FetchError`, leave it unchanged.
    """
    if not isinstance(error, FetchError) or error.status != 429:
        return current
    if error.retry_after is not None:
        return max(current, error.retry_after)
    return max(current, min(2 * current, max_delay))
