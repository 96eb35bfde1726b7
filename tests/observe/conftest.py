"""What the tests of watching share: an environment that says nothing."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _nothing_from_outside(nothing_from_outside: None) -> None:
    """All of these tests want it."""
