"""Mistakes that newcomers make, and what they are told."""

from __future__ import annotations

from pathlib import Path
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
        (lambda: AsyncClient(max_retries=-1), "max_retries = -1 must be a whole number of at least 0"),
        (lambda: AsyncClient(connections=0), "connections = 0 must be a whole number of at least 1"),
        (lambda: AsyncClient(stale_if_error=-1), "stale_if_error = -1 must be"),
        (lambda: AsyncClient(cache_mode="ofline"), "cache_mode = 'ofline' must be"),  # type: ignore[arg-type]
        (lambda: AsyncClient(proxy="127.0.0.1:3128"), "proxy = '127.0.0.1:3128' must be an http or https URL"),
    ],
    ids=["limiter", "budget", "deadline", "retries", "connections", "stale", "cache mode", "proxy"],
)
async def test_a_wrong_argument_is_an_error_at_once(mistake: Any, message: str) -> None:
    with pytest.raises(PolicyError, match=message):
        mistake()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"body": "text"}, "body = 'str' must be bytes"),
        ({"deadline": "5"}, "deadline = '5' must be a number of seconds"),
        ({"headers": {"X-Count": 1}}, "header 'X-Count' must be text"),
        ({"headers": ["X-Count"]}, "headers = 'list' must be a mapping"),
        ({"method": None}, "method = None must be text"),
    ],
    ids=["body", "deadline", "header", "headers", "method"],
)
async def test_a_mistake_of_the_callers_is_never_laid_at_the_hosts_door(
    site: Site, options: dict[str, Any], message: str
) -> None:
    """U6: it is told at once, and no breaker hears of it."""
    async with client() as web:
        with pytest.raises(PolicyError, match=message):
            await web.fetch(site.url("/"), **options)

        assert await web._store.keys() == []
    assert site.connections == 0


async def test_what_an_argument_says_goes_before_any_file(tmp_path: Path) -> None:
    """Issue 2, 2: also when it says what would hold without any file"""
    file = tmp_path / "curtsy.yaml"
    file.write_text("default_policy:\n  respect_robots: false\n  allow_private: true\n")

    async with AsyncClient(config=file, store="memory:", cache=False) as web:
        by_file = web.policies.default
    async with AsyncClient(config=file, store="memory:", cache=False, respect_robots=True, allow_private=False) as web:
        by_argument = web.policies.default

    assert (by_file.respect_robots, by_file.allow_private) == (False, True)
    assert (by_argument.respect_robots, by_argument.allow_private) == (True, False)


async def test_what_cannot_be_called_again_is_not_retried() -> None:
    """N2"""
    with pytest.raises(PolicyError, match="fn = "):
        await with_retry(42)  # type: ignore[call-overload]
    with pytest.raises(PolicyError, match="max_retries = -1"):
        await with_retry(lambda: 1, -1)
