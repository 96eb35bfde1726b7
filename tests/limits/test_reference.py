"""The reference page of the parts names every one of them, and every argument (docs/reference/parts.md)."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest

from curtsy import limits

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "parts.md").read_text()


@pytest.mark.parametrize("name", limits.__all__)
def test_the_reference_has_every_part(name: str) -> None:
    """Conventions: what is public is on a page."""
    assert f"`{name}" in PAGE or f"{name}(" in PAGE


@pytest.mark.parametrize("name", ["RateLimiter", "TokenBucket", "CircuitBreaker", "DomainDailyBudgetManager"])
def test_the_reference_has_every_argument_and_every_method(name: str) -> None:
    """Conventions: names, signatures, meaning."""
    part = getattr(limits, name)
    section = PAGE.partition(f"## `{name}`")[2].partition("\n## ")[0]

    arguments = [each for each in inspect.signature(part).parameters if each != "self"]
    methods = [each for each, value in vars(part).items() if not each.startswith("_") and callable(value)]

    missing = [each for each in arguments + methods if each not in section]
    assert missing == []
