"""What a limiter can be told, and what not (L6-L8)."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from curtsy.core.errors import InvalidDomain, PolicyError
from curtsy.core.policy import LimitConfig
from curtsy.limits import DomainLimiter, RateLimiter
from tests.limits.asking import DOMAIN
from tests.limits.conftest import Made, Told
from tests.support.said import missing
from tests.support.snapshot import Snapshot

# L6: configuration


@pytest.mark.parametrize(
    ("given", "shown", "bound"),
    [
        ({"global_qps": -1}, "global_qps = -1 ", "0"),
        ({"global_qps": math.nan}, "global_qps = nan ", "0"),
        ({"global_qps": 1e-9}, "global_qps = 1e-09 ", "86400"),
        ({"per_domain_qps": 0}, "per_domain_qps = 0 ", "0"),
        ({"per_domain_qps": 1e-9}, "per_domain_qps = 1e-09 ", "86400"),
        ({"circuit_breaker": "no"}, "circuit_breaker = 'no' ", "True"),
        ({"cooldown_seconds": -5}, "cooldown_seconds = -5 ", "2592000"),
        ({"strategy": "tokenbucket"}, "strategy = 'tokenbucket' ", "token_bucket, leaky_bucket"),
        (
            {"unlimited": ("https://example.org",)},
            "unlimited: domain = 'https://example.org' ",
            "'example.org'",
        ),
        ({"unlimited": [5]}, "unlimited: domain = 5 ", "example.com"),
        ({"domains": {"": LimitConfig()}}, "domains: domain = '' ", "example.com"),
        (
            {"domains": {"A.org": LimitConfig(1), "a.org": LimitConfig(2)}},
            "domains: 'A.org'",
            "'a.org'",
        ),
        ({"timers": 5}, "timers = 5 ", "Timers"),
    ],
    ids=lambda each: each if isinstance(each, str) else "",
)
def test_a_limiter_says_which_of_its_arguments_is_wrong(
    snapshot: Snapshot, given: dict[str, Any], shown: str, bound: str
) -> None:
    """L6, Q6"""
    with pytest.raises(PolicyError) as error:
        RateLimiter(**given)

    assert str(error.value).startswith(shown)
    assert bound in str(error.value).removeprefix(shown)
    snapshot(str(error.value))


def test_an_odd_default_is_told_once_for_all_domains(made: Made, told: Told, snapshot: Snapshot) -> None:
    """L6"""
    limiter = made(LimitConfig(1.0, 61))
    for number in range(10):
        limiter.allow(f"{number}.example")
    limiter.update_config("new.example", LimitConfig(1.0, 5))
    limiter.allow("new.example")

    [warning] = told(logging.WARNING)
    assert warning.startswith("burst_capacity = 61 ")
    assert DOMAIN not in warning
    snapshot(warning)


def test_a_burst_of_more_than_a_minutes_worth_is_warned_about(made: Made, told: Told) -> None:
    """L6: allowed all the same; a minute's worth exactly is not odd."""
    limiter = made(LimitConfig(0.5, 30), {"example.net": LimitConfig(0.5, 31)})
    limiter.allow(DOMAIN)
    assert told(logging.WARNING) == []

    limiter.allow("example.net")

    [warning] = told(logging.WARNING)
    assert missing(warning, "example.net", "burst_capacity = 31 ", "0.5", "30") == []


# L7: the JSON file


def test_a_json_file_is_read_and_domains_not_listed_have_its_default(tmp_path: Path) -> None:
    """L7"""
    file = tmp_path / "limits.json"
    file.write_text(
        json.dumps(
            {
                "version": "1.0",
                "default_config": {"requests_per_second": 2.0, "burst_capacity": 3},
                "domains": {"example.com": {"requests_per_second": 0.5}, "Example.ORG": {"burst_capacity": 7}},
            }
        )
    )

    limiter = RateLimiter(file)

    assert limiter.domain("example.com").config == LimitConfig(0.5, 3)
    assert limiter.domain("example.org").config == LimitConfig(2.0, 7)
    assert limiter.domain("elsewhere.net").config == LimitConfig(2.0, 3)
    assert RateLimiter(str(file)).domain("example.com").config == LimitConfig(0.5, 3)


def test_a_file_that_is_missing_is_an_error_that_names_it(tmp_path: Path) -> None:
    """L7"""
    with pytest.raises(PolicyError, match=r"nowhere\.json"):
        RateLimiter(tmp_path / "nowhere.json")


# L8: domains


@pytest.mark.parametrize(
    ("domain", "remedy"),
    [
        ("", "example.com"),
        ("  ", "example.com"),
        ("https://Example.com/a", "'example.com'"),
        ("example.com/a", "'example.com'"),
        ("exa mple.com", " example.com"),
        (None, "example.com"),
    ],
)
async def test_what_is_no_domain_is_an_error_that_shows_the_right_form(made: Made, domain: Any, remedy: str) -> None:
    """L8, U8: the same for every call, and nothing is remembered of it."""
    limiter = made()
    calls: list[Callable[[], object]] = [
        lambda: limiter.allow(domain),
        lambda: limiter.allow_n(domain, 1),
        lambda: limiter.wait_blocking(domain),
        lambda: limiter.update_config(domain, LimitConfig()),
        lambda: limiter.reset_breaker(domain),
        lambda: DomainLimiter(domain),
    ]

    for call in calls:
        with pytest.raises(InvalidDomain) as error:
            call()
        assert str(error.value).startswith(f"domain = {domain!r} ")
        assert remedy in str(error.value).removeprefix(f"domain = {domain!r} ")
    with pytest.raises(InvalidDomain):
        await limiter.wait(domain)

    assert limiter.get_all_stats() == {}
