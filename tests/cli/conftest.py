"""What the tests of the command line share: a site, and a shell that knows nothing."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.shell import Shell
from tests.support.site import Site

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture(scope="session")
def warm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Where a process listens that runs commands without their start-up."""
    path = tmp_path_factory.mktemp("warm") / "socket"
    process = subprocess.Popen([sys.executable, "-m", "tests.cli.warm", str(path)], cwd=ROOT)
    try:
        until = time.monotonic() + 30
        while not path.exists():
            assert process.poll() is None
            assert time.monotonic() < until
            time.sleep(0.01)
        yield path
    finally:
        process.kill()
        process.wait()


@pytest.fixture
def shell(tmp_path: Path, warm: Path) -> Shell:
    """A shell at home in a directory of its own."""
    return Shell(tmp_path, warm)


@pytest.fixture
def site() -> Iterator[Site]:
    """A site with a page, and a part that its robots.txt forbids."""
    with Site() as site:
        site.page("/", "<title>Home</title>\n", etag='"1"')
        site.robots("User-agent: *\nDisallow: /private/\nAllow: /private/open\n")
        yield site
