"""What the tests of the client share: an environment that says nothing."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from curtsy.testing import FakeClock


@pytest.fixture(autouse=True)
def _nothing_from_outside(nothing_from_outside: None) -> None:
    """All of these tests want it."""


@pytest.fixture
def clock() -> FakeClock:
    """A fake clock that is set right: the site's answers have the real date."""
    return FakeClock(time.time())


@pytest.fixture(params=["pages", "pages.sqlite"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Where pages are kept: in files, and packed into one."""
    return tmp_path / str(request.param)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where a file shall be, in a folder that does not exist yet."""
    return tmp_path / "new" / "report.pdf"
