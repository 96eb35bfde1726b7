"""Mistakes that newcomers make, and what they are told."""

from __future__ import annotations

from typing import Any

import pytest

from curtsy import AsyncClient, DomainDailyBudgetManager, PolicyError, RateLimiter, Reason, with_retry
from tests.client.fetching import client
from tests.support.site import Site


async def test_one_url_in_place_of_many_is_told_apart() -> None:
    async with client() as web:
        with pytest.raises(PolicyError, match="must be several URLs, not one"):
            await anext(web.fetch_many("http://127.0.0.1/"))


async def test_an_address_that_may_not_be_asked_costs_no_turn(site: Site) -> None:
    """U2: it is refused before anything is taken, and the message says what opens it."""
    async with client(allow_private=False) as web:
        result = await web.fetch(site.url("/"))

        assert result.reason is Reason.ADDRESS_REFUSED
        assert "loopback" in result.message
        assert "allow_private" in result.message
        assert (result.record.waited, await web._store.keys()) == (0.0, [])
    assert site.connections == 0


@pytest.mark.parametrize(
    ("mistake", "message"),
    [
        (lambda: RateLimiter(2), "config = 2 must be a LimitConfig"),  # type: ignore[arg-type]
        (lambda: DomainDailyBudgetManager({"x.org": 2}, store="memory:"), "policies = "),  # type: ignore[arg-type]
        (lambda: AsyncClient(deadline=-1, store="memory:", cache=False), "deadline = -1 must be"),
    ],
    ids=["limiter", "budget", "deadline"],
)
async def test_a_wrong_argument_is_an_error_at_once(mistake: Any, message: str) -> None:
    with pytest.raises(PolicyError, match=message):
        mistake()


async def test_what_cannot_be_called_again_is_not_retried() -> None:
    """N2"""
    with pytest.raises(PolicyError, match="fn = "):
        await with_retry(42)  # type: ignore[call-overload]
    with pytest.raises(PolicyError, match="max_retries = -1"):
        await with_retry(lambda: 1, -1)
