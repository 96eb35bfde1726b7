"""What a limiter can be told, and what not (L6-L8)."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable
from dataclasses import FrozenInstanceError
from pathlib import Path
from typing import Any

import pytest

from curtsy.core.errors import InvalidDomain, PolicyError
from curtsy.core.policy import LimitConfig
from curtsy.limits import DomainLimiter, RateLimiter
from tests.limits.asking import DOMAIN
from tests.limits.conftest import Made, Told

# L6: configuration


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"requests_per_second": 0}, "requests_per_second = 0 must be a number above 0."),
        ({"requests_per_second": -1}, "requests_per_second = -1 must be a number above 0."),
        ({"requests_per_second": math.nan}, "requests_per_second = nan must be a number above 0."),
        ({"requests_per_second": math.inf}, "requests_per_second = inf must be a finite number above 0."),
        ({"requests_per_second": "2"}, "requests_per_second = '2' must be a number above 0."),
        ({"burst_capacity": 0}, "burst_capacity = 0 must be a whole number of at least 1. Leave it out to use"),
        ({"burst_capacity": -3}, "burst_capacity = -3 must be a whole number of at least 1."),
        ({"burst_capacity": 1.5}, "burst_capacity = 1.5 must be a whole number of at least 1."),
        ({"burst_capacity": True}, "burst_capacity = True must be a whole number of at least 1."),
        ({"burst_capacity": 10**12 + 1}, "burst_capacity = 1000000000001 must be at most 1000000000000, for stores"),
    ],
)
def test_a_bad_configuration_says_field_rule_and_value(given: dict[str, Any], message: str) -> None:
    """L6, U8"""
    with pytest.raises(PolicyError) as error:
        LimitConfig(**given)

    assert str(error.value).startswith(message)
    assert isinstance(error.value, ValueError)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"global_qps": -1}, "global_qps = -1 must be a number above 0."),
        ({"global_qps": math.nan}, "global_qps = nan must be a number above 0."),
        ({"global_qps": 1e-9}, "global_qps = 1e-09 must be at least one a day (1 / 86400)."),
        ({"per_domain_qps": 0}, "per_domain_qps = 0 must be a number above 0."),
        ({"per_domain_qps": 1e-9}, "per_domain_qps = 1e-09 must be at least one a day (1 / 86400)."),
        ({"circuit_breaker": "no"}, "circuit_breaker = 'no' must be True or False."),
        ({"cooldown_seconds": -5}, "cooldown_seconds = -5 must be a number above 0 and at most 2592000."),
        ({"strategy": "tokenbucket"}, "strategy = 'tokenbucket' must be one of token_bucket, leaky_bucket"),
        (
            {"unlimited": ("https://example.org",)},
            "unlimited: domain = 'https://example.org' must be a host without a scheme.",
        ),
        ({"unlimited": [5]}, "unlimited: domain = 5 must be text."),
        ({"domains": {"": LimitConfig()}}, "domains: domain = '' must not be empty."),
        (
            {"domains": {"A.org": LimitConfig(1), "a.org": LimitConfig(2)}},
            "domains: 'A.org' and 'a.org' are one domain. Remove one of them.",
        ),
        ({"timers": 5}, "timers = 5 must be a Timers, or left out for real time."),
    ],
)
def test_a_limiter_says_which_of_its_arguments_is_wrong(given: dict[str, Any], message: str) -> None:
    """L6, Q6"""
    with pytest.raises(PolicyError) as error:
        RateLimiter(**given)

    assert str(error.value).startswith(message)


def test_a_configuration_cannot_be_changed() -> None:
    """L6: `update_config` replaces it whole."""
    config = LimitConfig(1.0, 1)

    with pytest.raises(FrozenInstanceError):
        config.requests_per_second = 2.0  # type: ignore[misc]


def test_an_odd_default_is_told_once_for_all_domains(made: Made, told: Told) -> None:
    """L6"""
    limiter = made(LimitConfig(1.0, 61))
    for number in range(10):
        limiter.allow(f"{number}.example")
    limiter.update_config("new.example", LimitConfig(1.0, 5))
    limiter.allow("new.example")

    [warning] = told(logging.WARNING)
    assert warning.startswith("burst_capacity = 61 is more than a minute's worth of requests")


def test_a_burst_of_more_than_a_minutes_worth_is_warned_about(made: Made, told: Told) -> None:
    """L6: allowed all the same; a minute's worth exactly is not odd."""
    limiter = made(LimitConfig(0.5, 30), {"example.net": LimitConfig(0.5, 31)})
    limiter.allow(DOMAIN)
    assert told(logging.WARNING) == []

    limiter.allow("example.net")

    [warning] = told(logging.WARNING)
    assert warning.startswith(
        "example.net: burst_capacity = 31 is more than a minute's worth of requests (0.5 a second"
    )


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


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("this is: not [a file", ["limits.json"]),
        ('{"default_config": {"requests_per_second": -1}}', ["limits.json", "requests_per_second = -1", "above 0"]),
        ('{"domains": {"a.org": {"burst_capacity": 0}}}', ["limits.json", "a.org", "burst_capacity = 0", "at least 1"]),
        ('{"domains": {"https://a.org": {}}}', ["limits.json", "https://a.org", "a.org"]),
        ('{"domains": {"a.org": {"requests_per_secnd": 1}}}', ["limits.json", "requests_per_second"]),
        ('{"default_config": {"requests_per_second": NaN}}', ["limits.json", "requests_per_second"]),
    ],
)
def test_a_bad_file_is_an_error_that_names_file_key_rule_and_value(tmp_path: Path, text: str, words: list[str]) -> None:
    """L7: every entry is checked before any is used."""
    file = tmp_path / "limits.json"
    file.write_text(text)

    with pytest.raises(PolicyError) as error:
        RateLimiter(file)

    for word in words:
        assert word in str(error.value)


def test_a_file_that_is_missing_is_an_error_that_names_it(tmp_path: Path) -> None:
    """L7"""
    with pytest.raises(PolicyError, match=r"nowhere\.json"):
        RateLimiter(tmp_path / "nowhere.json")


# L8: domains


@pytest.mark.parametrize(
    ("domain", "message"),
    [
        ("", "domain = '' must not be empty. Give a host such as example.com."),
        ("  ", "domain = '  ' must not be empty. Give a host such as example.com."),
        (
            "https://Example.com/a",
            "domain = 'https://Example.com/a' must be a host without a scheme. Write 'example.com'.",
        ),
        ("example.com/a", "domain = 'example.com/a' must be a host and nothing else. Write 'example.com'."),
        ("exa mple.com", "domain = 'exa mple.com' must be a host and nothing else. Give a host such as example.com."),
        (None, "domain = None must be text. Give a host such as example.com."),
    ],
)
async def test_what_is_no_domain_is_an_error_that_shows_the_right_form(made: Made, domain: Any, message: str) -> None:
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
        assert str(error.value) == message
    with pytest.raises(InvalidDomain):
        await limiter.wait(domain)

    assert limiter.get_all_stats() == {}
