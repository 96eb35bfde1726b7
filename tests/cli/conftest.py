"""What the tests of the command line share: a site, and a shell that knows nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.shell import Shell
from tests.support.site import Site


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    """A shell at home in a directory of its own."""
    return Shell(tmp_path)


@pytest.fixture
def site() -> Iterator[Site]:
    """A site with a page, and a part that its robots.txt forbids."""
    with Site() as site:
        site.page("/", "<title>Home</title>\n", etag='"1"')
        site.robots("User-agent: *\nDisallow: /private/\nAllow: /private/open\n")
        yield site
