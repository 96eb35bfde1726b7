"""with_retry: try again what may fare better in a while (N2, N3, N4)."""

from __future__ import annotations

import asyncio
import errno
import inspect
import random
import ssl
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar, overload

from curtsy.core.errors import FetchError, Reason
from curtsy.core.message import Headers
from curtsy.core.outcome import PASSING, backoff, retry_after
from curtsy.core.policy import number, rule

Result = TypeVar("Result")

LONGEST = 86_400.0
"""Seconds beyond which no `retry_after` is believed (C2)."""

_DISK = frozenset({errno.ENOSPC, errno.EROFS, errno.EIO, errno.EDQUOT, errno.EMFILE, errno.ENFILE})

_PASSING_KINDS = frozenset(
    {
        "ConnectionError", "TimeoutError",  # Python's own, and those of that name elsewhere
        "ClientConnectionError", "ClientPayloadError",  # aiohttp
        "NetworkError", "TimeoutException", "RemoteProtocolError",  # httpx
        "Timeout", "ChunkedEncodingError",  # requests
        "IncompleteRead", "ContentTooShortError", "urllib3.ProtocolError",  # urllib and urllib3
    }
)  # fmt: skip
"""Errors of names, connections and timeouts by the names of their classes: the libraries need not be there."""


def is_retryable(error: BaseException) -> bool:
    """Whether an error may be over in a moment: 429, 500 to 599, names and connections, timeouts (N3).

    Besides `FetchError` and Python's own, those of aiohttp, httpx, requests and urllib3 are known: by the status that
    they carry, else by their class.
    """
    if isinstance(error, FetchError):
        if error.reason is not None and error.reason is not Reason.HTTP_STATUS:
            return error.reason in PASSING
        return error.status is None or _is_passing(error.status)
    status = _status(error)
    if status is not None:
        return _is_passing(status)
    reason = getattr(error, "reason", None)
    if isinstance(reason, Exception):  # what is behind a URLError, or urllib3's MaxRetryError
        return is_retryable(reason)
    # A ValueError is of a URL that is none, or an answer that is no JSON, though requests makes an OSError of it too.
    if isinstance(error, ValueError | PermissionError) or _is_of_certificate(error):
        return False
    names = {name for kind in type(error).__mro__ for name in (kind.__name__, f"{_package(kind)}.{kind.__name__}")}
    if not names.isdisjoint(_PASSING_KINDS):
        return True
    # An OSError is of a connection or a name (socket.gaierror), unless it is of a file. What a library makes of
    # something else has no number.
    if not isinstance(error, OSError) or (error.errno is None and _package(type(error)) != "builtins"):
        return False
    return error.filename is None and error.errno not in _DISK


def _is_passing(status: int) -> bool:
    return status == 429 or 500 <= status < 600


def _package(kind: type) -> str:
    return kind.__module__.partition(".")[0]


def _is_of_certificate(error: BaseException) -> bool:
    """Whether a certificate is behind an error, however a library calls it: httpx makes a ConnectError of it."""
    causes: list[BaseException] = [error]
    for each in causes:
        if isinstance(each, ssl.CertificateError):
            return True
        # What was being handled when Python itself raised is another matter; a library raises what it made of it.
        is_made = _package(type(each)) not in ("builtins", "socket", "ssl")
        for cause in (each.__cause__, each.__context__ if is_made else None):
            if cause is not None and cause not in causes:
                causes.append(cause)
    return False


def _answers(error: BaseException) -> tuple[object, object]:
    """Where an answer's status and headers may be: on the error (aiohttp, urllib), or on its response."""
    return error, getattr(error, "response", None)


def _status(error: BaseException) -> int | None:
    """The status of the answer that an error is about; None if there is none."""
    found = (getattr(answer, name, None) for answer in _answers(error) for name in ("status", "status_code"))
    return next((each for each in found if isinstance(each, int) and each >= 100), None)


def _told(error: BaseException) -> float | None:
    """Seconds after which the site said to come back; None if it did not say."""
    if isinstance(error, FetchError):
        return error.retry_after
    for answer in _answers(error):
        headers: Any = getattr(answer, "headers", None)
        if hasattr(headers, "items"):
            return retry_after(Headers((str(name), str(value)) for name, value in headers.items()), time.time())
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

    Before the n-th retry it waits initial_delay x 2^(n-1) seconds, give or take 25 %; if the error has a
    `retry_after`, or an answer with `Retry-After`, it waits that long instead (N4), a day at most. An error that is
    not retryable is raised at once.

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
            told = _told(error)
        await sleep(backoff(attempt, initial_delay, roll()) if told is None else min(max(0.0, told), LONGEST))
