"""Hosts whose rest is ended while a crawl runs. The journal of the site is the judge."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from curtsy.client import AsyncClient, session_of
from curtsy.core.amendment import Amendment, Override, Pause, Reset, Resume, Trip
from curtsy.core.errors import Reason
from curtsy.crawling.crawl import AsyncCrawl
from curtsy.crawling.frontier.protocol import Claimed, Deferred, host_of
from curtsy.crawling.progress import Hosts
from curtsy.crawling.results import Finished, HostNews
from curtsy.crawling.start import acrawl
from curtsy.engine.gate_steps import amended
from tests.crawling.web import graph
from tests.support.bounds import ends_within
from tests.support.polling import until
from tests.support.redis_server import RedisServer
from tests.support.site import Site

PAGES = 200
SOON = 30.0
"""Seconds that a busy machine may take; the breaker would stay open for 300, and a pause for good."""

QUICK: dict[str, Any] = {
    "allow_private": True, "cache": False, "global_qps": None, "qps": None, "pause_min": 0.1, "pause_max": 0.1,
    "patience": 2 * 86_400.0,
}  # fmt: skip


async def change(client: AsyncClient, host: str, amendment: Amendment) -> None:
    """Change the record of a host, as the commands and the dashboard do."""
    policy = client.policies.of(host)
    await session_of(client).store.update(policy.key_for(host), amended(policy, amendment))


def chain(site: Site, host: str | None = None) -> None:
    graph(site, {f"/{number}": [f"/{number + 1}"] for number in range(PAGES)}, host)


async def rested(crawl: AsyncCrawl, state: str) -> None:
    """Wait until the crawl shows a host in a state."""
    async for snapshot in crawl.snapshots(0.05):
        if any(host.state == state for host in snapshot.hosts):
            return


async def goes_on(site: Site, state: str, rest: Amendment, end: Amendment, **given: Any) -> None:
    """Begin the rest of a host during a crawl, then end it from another client; fail if no page follows soon."""
    chain(site)
    host = host_of(site.url("/0"))
    async with (
        AsyncClient(store=given["store"], cache=False) as other,
        acrawl(site.url("/0"), **QUICK, **given) as crawl,
    ):
        running = asyncio.ensure_future(crawl.run())
        await until(lambda: site.count() > 3)
        await change(other, host, rest)
        await rested(crawl, state)
        before = site.count()
        with ends_within(SOON):
            await change(other, host, end)
            await until(lambda: site.count() > before + 2, SOON)
        crawl.stop()
        await running


RESTS = [
    ("breaker open", Trip(), Reset()),
    ("paused", Pause(), Resume()),
    ("budget spent", Override((("max_requests_per_day", 1),)), Override()),
]


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize(("state", "rest", "end"), RESTS)
async def test_a_host_whose_rest_is_ended_is_requested_at_once(
    site: Site, tmp_path: Path, workers: int, state: str, rest: Amendment, end: Amendment
) -> None:
    store = f"sqlite:///{tmp_path / 'state.sqlite'}"
    await goes_on(site, state, rest, end, store=store, job=tmp_path / "job", workers=workers)


@pytest.mark.parametrize(("state", "rest", "end"), RESTS)
async def test_the_same_in_a_shared_crawl(
    site: Site, tmp_path: Path, state: str, rest: Amendment, end: Amendment
) -> None:
    with RedisServer() as server:
        await goes_on(site, state, rest, end, store=server.url, job=tmp_path / "job")


def refuse(hosts: Hosts, host: str) -> None:
    """Record the refusal of a request by a breaker that is open for 300 s."""
    claimed = Claimed(f"https://{host}/", host, 0, 0, None, 0, 0, 1, 600.0)
    hosts.began(host)
    news = HostNews(Reason.CIRCUIT_OPEN, 300.0, "", None, None)
    hosts.ended(Finished(claimed, Deferred(300.0), news=news), 0.0)


def test_a_host_that_rests_for_another_reason_than_its_record_is_hastened_once() -> None:
    """Else its URLs would be claimed and put back every few seconds"""
    hosts = Hosts()
    refuse(hosts, "a.org")
    assert hosts.resting(0.0, 9) == {"a.org": 300.0}
    assert hosts.may_hasten("a.org", is_earlier=True)
    hosts.hasten(["a.org"], 0.0)
    assert not hosts.has_resting

    refuse(hosts, "a.org")

    assert hosts.resting(0.0, 9) == {"a.org": 300.0}
    assert not hosts.may_hasten("a.org", is_earlier=True)
    assert not hosts.may_hasten("a.org", is_earlier=False), "the breaker opened again"
    assert hosts.may_hasten("a.org", is_earlier=True), "and was reset again"


def test_of_many_resting_hosts_each_has_its_turn() -> None:
    hosts = Hosts()
    for number in range(120):
        refuse(hosts, f"{number}.org")

    looks = [hosts.resting(1.0, 50) for _ in range(3)]

    assert [len(look) for look in looks] == [50, 50, 50]
    assert len({host for look in looks for host in look}) == 120
    assert hosts.resting(300.0, 200) == {}
    assert not hosts.has_resting
