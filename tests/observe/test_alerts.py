"""Alerts: found by exact rules, told once when they begin and once when they end."""

from __future__ import annotations

import logging
import re
from dataclasses import replace
from typing import Any

import pytest

from curtsy.client import session_of
from curtsy.core.amendment import Reset
from curtsy.core.policy import Policy
from curtsy.core.statistics import Lately, StatisticsSnapshot
from curtsy.core.time import Instant, Now
from curtsy.engine.alerts import ALERTS, AlertWatch, alerts_of, budget_used
from curtsy.engine.host_view import HostView, view_of
from tests.client.fetching import UNPACED, client, domain_of
from tests.support.polling import until
from tests.support.site import Reply, Site
from tests.support.snapshot import Snapshot


def standing(domain: str = "example.org", breaker: str = "closed", **changes: Any) -> HostView:
    """How a host stands that was never asked, but for the changes."""
    view = view_of(domain, None, Now(Instant(0), 0), Policy())
    return replace(view, breaker=breaker, **changes)


def names(lately: Lately, *hosts: HostView) -> list[str]:
    return [alert.name for alert in alerts_of(StatisticsSnapshot(lately=lately), hosts)]


@pytest.mark.parametrize(
    ("lately", "found"),
    [
        (Lately(), []),
        (Lately(requests=90, blocked=10), []),
        (Lately(requests=89, blocked=11), ["many_blocked"]),
        (Lately(blocked=1), ["many_blocked"]),
        (Lately(requests=1000, trips=5), []),
        (Lately(requests=1000, trips=6), ["many_trips"]),
    ],
)
def test_what_was_counted_is_alarming_above_exact_bounds(lately: Lately, found: list[str]) -> None:
    """Q10: more than 10 % blocked, more than 5 trips; of the last hour"""
    assert names(lately) == found


@pytest.mark.parametrize(
    ("host", "found"),
    [
        (standing(), []),
        (standing(breaker="open"), ["breaker_open"]),
        (standing(breaker="half_open"), []),
        (standing(requests_today=179), []),
        (standing(requests_today=180), ["budget_nearly_used"]),
        (standing(pages_today=90), ["budget_nearly_used"]),
        (standing(requests_today=500, max_requests_per_day=0), []),
        (standing(requests_today=200, breaker="open"), ["breaker_open", "budget_nearly_used"]),
    ],
)
def test_how_a_host_stands_is_alarming_above_exact_bounds(host: HostView, found: list[str]) -> None:
    """Q10, Issue 7: a breaker is open; nine tenths of a budget are used"""
    assert names(Lately(), host) == found


def test_an_alert_names_the_first_hosts_and_counts_the_others(snapshot: Snapshot) -> None:
    """Q10"""
    hosts = [standing(f"{number}.example", "open") for number in range(12)]

    [alert] = alerts_of(StatisticsSnapshot(), hosts)

    assert alert.domains == tuple(f"{number}.example" for number in range(10))
    assert re.findall(r"\d+\.example", alert.message) == list(alert.domains)
    assert "2 more" in alert.message
    snapshot(alert.message)
    assert budget_used(standing(requests_today=50, pages_today=50)) == 0.5


def told(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    """What the log was told of alerts: level, and the name."""
    lines = [record for record in caplog.records if record.name == "curtsy.alerts"]
    return [(line.levelname, next(name for name in ALERTS if f'"{name}"' in line.getMessage())) for line in lines]


def test_an_alert_is_told_once_when_it_begins_and_once_when_it_ends(caplog: pytest.LogCaptureFixture) -> None:
    """Q10"""
    caplog.set_level(logging.INFO, "curtsy")
    watch = AlertWatch()
    trouble = alerts_of(StatisticsSnapshot(lately=Lately(trips=6)), [standing(breaker="open")])

    for alerts in ((), trouble, trouble, trouble[1:], (), (), trouble[:1]):
        watch.look(alerts)

    assert told(caplog) == [
        ("WARNING", "breaker_open"),
        ("WARNING", "many_trips"),
        ("INFO", "breaker_open"),
        ("INFO", "many_trips"),
        ("WARNING", "breaker_open"),
    ]
    assert watch.active == trouble[:1]


async def test_a_client_writes_its_statistics_and_tells_what_is_alarming(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    """Q10: a line now and then, a warning when a breaker opens, and a word when it is closed again"""
    caplog.set_level(logging.INFO, "curtsy")
    site.page("/*", "hello")
    site.reply("/forbidden", Reply(403))
    host = domain_of(site.url("/"))

    def lines() -> list[str]:
        return [record.getMessage() for record in caplog.records if record.name == "curtsy.statistics"]

    async with client(clock=None, stats_every=0.02, **UNPACED) as web:
        for number in range(20):
            await web.fetch(site.url(f"/{number}"))
        await web.fetch(site.url("/forbidden"))
        await until(lambda: ("WARNING", "breaker_open") in told(caplog))
        policy = web.policies.of(host)
        await session_of(web).gate.amend(policy.key_for(host), policy, Reset())
        await until(lambda: ("INFO", "breaker_open") in told(caplog))  # though nothing more is fetched

    assert told(caplog) == [("WARNING", "breaker_open"), ("INFO", "breaker_open")]
    assert '"requests":21' in lines()[-1]
    assert '"failed":{"http_status":1}' in lines()[-1]
    assert len(lines()) == len(set(lines())), "the same line twice: nothing had happened in between"


async def test_a_budget_that_is_nearly_used_is_told(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    """Issue 7"""
    caplog.set_level(logging.INFO, "curtsy")
    site.page("/*", "hello")

    async with client(clock=None, stats_every=0.02, max_pages_per_day=10, **UNPACED) as web:
        for number in range(9):
            await web.fetch(site.url(f"/{number}"))
        await until(lambda: bool(told(caplog)))

    assert told(caplog) == [("WARNING", "budget_nearly_used")]
    assert domain_of(site.url("/")) in next(
        record.getMessage() for record in caplog.records if record.name == "curtsy.alerts"
    )


async def test_no_line_is_written_when_none_is_wanted(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    """Q10: stats_every: none"""
    caplog.set_level(logging.INFO, "curtsy")
    site.page("/", "hello")

    async with client(clock=None, stats_every=None, **UNPACED) as web:
        await web.fetch(site.url("/"))

    assert session_of(web).periodic == ()
    assert [record for record in caplog.records if record.name in ("curtsy.statistics", "curtsy.alerts")] == []
