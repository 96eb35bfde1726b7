"""What the tests of adapters share: an environment that says nothing, a site, and each library in turn."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from tests.adapters.doors import DOORS, Door, Opener
from tests.adapters.other_doors import BROWSER, PlaywrightDoor, ScrapyDoor
from tests.support.site import Site


@pytest.fixture(autouse=True)
def _nothing_from_outside(nothing_from_outside: None) -> None:
    """All of these tests want it."""


@pytest.fixture(scope="session", autouse=True)
def _no_browser_stays() -> Iterator[None]:
    """The browser ends with the tests."""
    yield
    BROWSER.end()


@pytest.fixture
def site() -> Iterator[Site]:
    with Site() as site:
        yield site


@pytest.fixture(params=(*DOORS, ScrapyDoor, PlaywrightDoor), ids=lambda door: door.name)
async def opened(request: pytest.FixtureRequest) -> AsyncIterator[Opener]:
    """A function that opens the library of this turn with settings; all are closed at the end."""
    doors: list[Door] = []

    def opener(**settings: Any) -> Door:
        door: Door = request.param(**settings)
        doors.append(door)
        return door

    yield opener
    for door in doors:
        await door.close()
