"""with_retry by itself: waits that double, give or take a quarter, for what may pass."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from curtsy.core.errors import FetchError, Reason, Unreachable
from curtsy.limits import with_retry
from tests.client.fetching import UNPACED, client
from tests.support.polling import until
from tests.support.site import Reply, Site

ALONE: dict[str, Any] = {**UNPACED, "respect_robots": False, "breaker": False, "adapt": False}
"""Nothing makes a request wait but the retries themselves."""


class Flaky:
    """Raises some errors in turn, then answers."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.calls = 0
        self.waits: list[float] = []

    async def __call__(self) -> str:
        self.calls += 1
        if self.errors:
            raise self.errors.pop(0)
        return "fine"

    async def sleep(self, seconds: float) -> None:
        self.waits.append(seconds)


def refused(status: int | None = 503, after: float | None = None, reason: Reason | None = None) -> FetchError:
    return FetchError("no", "http://example.org/", status, after, reason)


async def test_with_retry_makes_four_attempts_and_raises_the_last_error() -> None:
    """N2"""
    errors = [refused() for _ in range(5)]
    flaky = Flaky(*errors)

    with pytest.raises(FetchError) as caught:
        await with_retry(flaky, sleep=flaky.sleep)

    assert caught.value is errors[3]
    assert flaky.calls == 4
    for wait, ideal in zip(flaky.waits, (1, 2, 4), strict=True):
        assert 0.75 * ideal <= wait <= 1.25 * ideal


async def test_with_retry_uses_the_dice_it_is_given() -> None:
    """N2: ±25 %"""
    low, high = Flaky(refused(), refused()), Flaky(refused(), refused())

    await with_retry(low, initial_delay=0.2, sleep=low.sleep, roll=lambda: 0.0)
    await with_retry(high, initial_delay=0.2, sleep=high.sleep, roll=lambda: 1.0)

    assert low.waits == pytest.approx([0.15, 0.3])
    assert high.waits == pytest.approx([0.25, 0.5])


@pytest.mark.parametrize(
    "error",
    [refused(429), refused(500), refused(599), refused(None), TimeoutError(), ConnectionResetError(),
     OSError(113, "no route"), refused(200, reason=Reason.INCOMPLETE), Unreachable("dns", reason=Reason.DNS_ERROR)],
)  # fmt: skip
async def test_with_retry_tries_again_what_may_pass(error: Exception) -> None:
    """N3"""
    flaky = Flaky(error)

    assert await with_retry(flaky, sleep=flaky.sleep) == "fine"
    assert flaky.calls == 2


@pytest.mark.parametrize(
    "error",
    [refused(404), refused(403), ValueError("x"), KeyError("x"), FileNotFoundError(2, "no such file", "/x"),
     PermissionError(13, "no"), OSError(28, "disk full"), Unreachable("tls", reason=Reason.TLS_ERROR),
     Unreachable("big", status=200, reason=Reason.TOO_LARGE)],
)  # fmt: skip
async def test_with_retry_raises_at_once_what_will_not_pass(error: Exception) -> None:
    """N2, N3"""
    flaky = Flaky(error)

    with pytest.raises(type(error)):
        await with_retry(flaky, sleep=flaky.sleep)

    assert (flaky.calls, flaky.waits) == (1, [])


@pytest.mark.parametrize(("after", "waited"), [(7.0, 7.0), (0.0, 0.0), (-5.0, 0.0), (1e12, 86_400.0)])
async def test_with_retry_waits_as_long_as_the_site_said(after: float, waited: float) -> None:
    """N4"""
    flaky = Flaky(refused(429, after))

    await with_retry(flaky, sleep=flaky.sleep)

    assert flaky.waits == [waited]


async def test_with_retry_asks_the_callers_own_judge_and_takes_plain_functions() -> None:
    """N2"""
    calls = []

    def fails() -> str:
        calls.append(1)
        if len(calls) < 3:
            raise KeyError("x")
        return "fine"

    async def at_once(seconds: float) -> None:
        pass

    assert await with_retry(fails, is_retryable=lambda error: isinstance(error, KeyError), sleep=at_once) == "fine"
    assert len(calls) == 3


async def test_with_retry_really_waits(site: Site) -> None:
    """N2, N5: with a client's result, which raises what it is"""
    site.script("/", [Reply(500), Reply(body="fine")])

    async with client(**ALONE, max_retries=0) as web:

        async def fetch() -> str:
            return (await web.fetch(site.url("/"))).raise_for_reason().text

        began = time.monotonic()
        assert await with_retry(fetch, initial_delay=0.1) == "fine"

    assert time.monotonic() - began >= 0.075


async def test_with_retry_is_cancelled_at_once() -> None:
    """N2"""
    flaky = Flaky(refused(429, 1000.0))
    task = asyncio.ensure_future(with_retry(flaky))
    await until(lambda: flaky.calls)

    task.cancel()

    with pytest.raises(asyncio.CancelledError):
        await task
    assert flaky.calls == 1
