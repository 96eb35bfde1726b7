"""A client that is given nothing: all that it is told stands in environment variables."""

from __future__ import annotations

from pathlib import Path

import pytest

from curtsy.blocking import Client, get
from curtsy.client import AsyncClient, fetch_url
from curtsy.core.errors import Reason
from curtsy.core.result import FetchResult
from tests.support.bounds import Lateness
from tests.support.site import Site

AGENT = "envbot/2.0 (+https://example.org/envbot)"
DENIED = "127.0.0.2"


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A pace, a name, a store and, in a file, a host that is not to be asked."""
    (tmp_path / "domains.yaml").write_text(f"denylist: ['{DENIED}']\n")
    variables = {
        "CONFIG": str(tmp_path / "domains.yaml"), "USER_AGENT": AGENT, "DELAY": "0.4", "QPS": "none",
        "GLOBAL_QPS": "none", "PAUSE": "0, 0", "MAX_REQUESTS_PER_DAY": "2", "DENY_PATHS": "/secret",
        "ALLOW_PRIVATE": "true", "STORE": f"sqlite:///{tmp_path}/hosts.sqlite", "CACHE_DIR": str(tmp_path / "pages"),
    }  # fmt: skip
    for name, value in variables.items():
        monkeypatch.setenv(f"CURTSY_{name}", value)


def urls(site: Site) -> list[str]:
    """A page, a host that is denied, a path that is denied, and a page for which nothing is left of the day."""
    site.page("/*", "x")
    return [site.url("/a"), site.url("/", host=DENIED), site.url("/secret"), site.url("/b")]


def is_obeyed(site: Site, results: list[FetchResult], late: Lateness, folder: Path) -> None:
    """All of them were: as the site saw it."""
    refused = [Reason.DOMAIN_DENIED, Reason.PATH_DENIED, Reason.DOMAIN_BUDGET_EXCEEDED]
    assert [result.reason for result in results] == [None, *refused]
    assert site.paths() == ["/robots.txt", "/a"]
    assert {visit.header("User-Agent") for visit in site.visits()} == {AGENT}
    assert site.gaps()[0] >= 0.35 - late.most  # a request that is noticed late makes the next gap look shorter
    assert (folder / "hosts.sqlite").exists()
    assert (folder / "pages").is_dir()


async def test_a_client_for_tasks_obeys_the_environment(site: Site, tmp_path: Path) -> None:
    """C7, U9, U10"""
    with Lateness() as late:
        async with AsyncClient() as web:
            results = [await web.fetch(url) for url in urls(site)]

    is_obeyed(site, results, late, tmp_path)


def test_a_blocking_client_obeys_the_environment(site: Site, tmp_path: Path) -> None:
    """C7, U9, U10"""
    with Lateness() as late, Client() as web:
        results = [web.fetch(url) for url in urls(site)]

    is_obeyed(site, results, late, tmp_path)


async def test_one_line_for_tasks_obeys_the_environment(site: Site, tmp_path: Path) -> None:
    """C7, U9, U10, B7: four clients, one after the other, with one budget"""
    with Lateness() as late:
        results = [await fetch_url(url) for url in urls(site)]

    is_obeyed(site, results, late, tmp_path)


def test_one_blocking_line_obeys_the_environment(site: Site, tmp_path: Path) -> None:
    """C7, U9, U10, B7"""
    with Lateness() as late:
        results = [get(url) for url in urls(site)]

    is_obeyed(site, results, late, tmp_path)
