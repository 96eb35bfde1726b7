"""`--cookies`, for sites that want their cookie back before they show anything."""

from __future__ import annotations

import pytest

from tests.cli.shell import Shell
from tests.support.site import Site
from tests.support.snapshot import Snapshot
from tests.support.wall import wall


@pytest.mark.parametrize("command", [("get",), ("crawl",), ("download", "-o", "file")])
def test_a_site_that_wants_a_cookie_is_read_with_cookies_and_without_it_says_so(
    shell: Shell, site: Site, command: tuple[str, ...], snapshot: Snapshot
) -> None:
    """U3, U14: what, why and what to do"""
    wall(site, "<title>behind</title>")

    without = shell(*command, site.url("/walled"), "--preset", "own")
    asked = site.count("/walled")
    kept = shell(*command, site.url("/walled"), "--preset", "own", "--cookies")

    assert without.code == 1
    assert "--cookies" in without.err
    assert site.url("/walled") in without.err
    snapshot(" ".join(without.err.split()).rpartition("/walled ")[2].partition(" curtsy: ")[0])
    assert kept.code == 0
    assert site.count("/walled") == asked + 2
