"""A system clock that is set back, ahead and home again: judged by what the site saw (B6, C19)."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from curtsy.core.errors import Reason
from tests.client.fetching import AGENT, UNPACED
from tests.support.noon import zone_at_noon
from tests.support.redis_server import RedisServer, redis_available
from tests.support.site import Site
from tests.support.warm import Process

DAY = 86_400
LIMIT = 5
JOURNEYS = {
    "back a day": [(0, 3), (-DAY, 5), (0, 5)],
    "back one day, two days, and home": [(0, 3), (-DAY, 2), (-2 * DAY, 5), (0, 5)],
    "ahead a day and home": [(0, 3), (DAY, 4), (0, 5), (DAY, 5)],
    "ahead a year and home": [(0, 3), (365 * DAY, 4), (0, 5)],
    "to and fro": [(off * DAY, 1) for off in (0, 1, -1, 2, -2, 40, -40, 3, 0)],
}


def travel(settings: dict[str, Any], site: Site, legs: list[tuple[int, int]]) -> list[list[str | None]]:
    """Let a process with a clock of its own request pages."""
    given = {
        "cache": False, "allow_private": True, "user_agent": AGENT, "respect_robots": False,
        "max_requests_per_day": LIMIT, "max_pages_per_day": 0, "timezone": zone_at_noon(), **UNPACED, **settings,
    }  # fmt: skip
    task = json.dumps({"settings": given, "url": site.url(""), "legs": legs})
    process = Process("tests.client.traveller", task, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    assert err == ""
    found: list[list[str | None]] = json.loads(out)
    return found


@pytest.mark.parametrize("legs", JOURNEYS.values(), ids=JOURNEYS.keys())
@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_no_system_clock_opens_a_second_budget(
    site: Site, tmp_path: Path, kind: str, legs: list[tuple[int, int]]
) -> None:
    """B6, C19"""
    site.page("/*", "x")
    store = "memory:" if kind == "memory" else f"sqlite:///{tmp_path}/hosts.sqlite"

    reasons = travel({"store": store}, site, legs)

    assert len(site.journal) == LIMIT
    assert reasons[-1][-1] == Reason.DOMAIN_BUDGET_EXCEEDED


@pytest.mark.parametrize("legs", JOURNEYS.values(), ids=JOURNEYS.keys())
def test_no_restart_with_another_date_opens_a_second_budget(
    site: Site, tmp_path: Path, legs: list[tuple[int, int]]
) -> None:
    """B6, B7, C19: and a clock that is ahead does not make the store forget what was spent"""
    site.page("/*", "x")

    for leg in legs:
        travel({"store": f"sqlite:///{tmp_path}/hosts.sqlite"}, site, [leg])

    assert len(site.journal) == LIMIT


def test_a_clock_of_a_client_means_nothing_to_a_shared_store(site: Site) -> None:
    """F53: on Redis, the server's clock counts"""
    if reason := redis_available():
        pytest.skip(reason)
    site.page("/*", "x")

    with RedisServer() as server:
        travel({"store": server.url}, site, JOURNEYS["to and fro"])
        travel({"store": server.url}, site, [(-DAY, 3)])

    assert len(site.journal) == LIMIT
