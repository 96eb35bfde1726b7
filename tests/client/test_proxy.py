"""A proxy that fails: its failures are no failures of the sites that are asked by it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from curtsy.core.errors import Reason
from curtsy.http.sender import HttpSender
from curtsy.limits import RobotsTxtChecker
from curtsy.stores.memory import MemoryStore
from curtsy.testing import FakeClock
from tests.client.fetching import AGENT, DAWN, TICK, UNPACED, client, host_of
from tests.support.proxy import tunnel
from tests.support.site import Reply, Site, closed_port
from tests.support.snapshot import Snapshot

ALONE: dict[str, Any] = {**UNPACED, "respect_robots": False}


@pytest.mark.parametrize("respect_robots", [True, False])
@pytest.mark.parametrize("kind", ["nameless", "closed", "wants a login"])
async def test_a_failing_proxy_opens_no_breaker_and_those_without_it_go_on(
    site: Site, tmp_path: Path, kind: str, respect_robots: bool
) -> None:
    """U6, B5, R6: the site was not asked, so nothing is learned of it, and nothing charged to it"""
    site.page("/*", "x")
    shared: dict[str, Any] = {
        **UNPACED, "store": f"sqlite:///{tmp_path}/limits.sqlite", "clock": FakeClock(DAWN),
        "respect_robots": respect_robots, "max_requests_per_day": 3,
    }  # fmt: skip
    with Site() as refusing, closed_port() as port:
        refusing.reply("http://*", Reply(407))
        proxy = {"nameless": "http://proxy.test:1", "closed": f"http://127.0.0.1:{port}"}.get(kind, refusing.url(""))
        async with client(sender=HttpSender(proxy=proxy, resolver={}), **shared) as web:
            failed = [await web.fetch(site.url(f"/{number}")) for number in range(4)]
    async with client(**shared) as web:
        result = await web.fetch(site.url("/"))

    assert {each.reason for each in failed} <= {Reason.DNS_ERROR, Reason.CONNECTION_ERROR}
    assert {each.retry_after for each in failed} == {60.0 if kind == "closed" else None}
    assert {(each.record.attempts, each.record.robots_requests, each.status) for each in failed} == {(0, 0, None)}
    assert (result.reason, result.text) == (None, "x")
    assert result.record.requests_left == 2 - respect_robots


async def test_what_a_proxy_refuses_is_asked_for_again_after_a_while() -> None:
    """N2, N3: as a connection that is refused is"""
    clock = FakeClock()
    waits: list[float] = []
    async with tunnel(1, b"500 Oh") as (url, heads), client(proxy=url, clock=clock, **ALONE) as web:
        for _ in range(2):
            began = clock.now().at
            result = await web.fetch("https://shop.test/")
            waits.append((clock.now().at - began) / 1e6)
        host = await host_of(web, "https://shop.test/")

    assert (result.reason, result.retry_after, len(heads)) == (Reason.CONNECTION_ERROR, 60.0, 8)
    assert all(0.75 * 7 - TICK <= wait <= 1.25 * 7 + 0.01 for wait in waits)
    assert (host.failures, host.tripped_at, host.requests) == (0, 0, 0)


async def test_a_login_that_a_proxy_wants_is_not_waited_for(snapshot: Snapshot) -> None:
    """N3"""
    async with tunnel(1, b"407 Proxy Authentication Required") as (url, heads), client(proxy=url, **ALONE) as web:
        results = [await web.fetch(f"{scheme}://shop.test/") for scheme in ("https", "http")]

    assert len(heads) == 2
    for scheme, result in zip(("https", "http"), results, strict=True):
        assert result.reason is Reason.CONNECTION_ERROR
        assert [each in result.message for each in (f"{scheme}://shop.test/", url, "(407)")] == [True] * 3
        assert result.message.count(url.removeprefix("http://")) == 2
        snapshot(result.message, scheme)
        assert result.retry_after is None


async def test_a_proxy_whose_name_does_not_exist_is_tried_once(snapshot: Snapshot) -> None:
    """N3: in no moment will it be another"""
    clock = FakeClock()
    sender = HttpSender(proxy="http://us:hunter2@proxy.test:3128", resolver={})

    async with client(sender=sender, clock=clock, **ALONE) as web:
        began = clock.now().at
        result = await web.fetch("http://shop.test/")

    assert clock.now().at == began
    assert result.reason is Reason.DNS_ERROR
    assert "http://proxy.test:3128" in result.message
    assert "hunter2" not in result.message
    snapshot(result.message)


async def test_a_checker_whose_proxy_fails_goes_by_the_last_copy(site: Site) -> None:
    """R6, R9: without one, as for a file that cannot be had"""
    site.robots("User-agent: *\nDisallow: /private\n")
    clock = FakeClock(DAWN)
    store = MemoryStore(clock)
    async with client(clock=clock, store=store) as web:
        await RobotsTxtChecker(AGENT, client=web).is_allowed(site.url("/"))
    clock.advance(4000)

    with closed_port() as port:
        async with client(clock=clock, store=store, proxy=f"http://127.0.0.1:{port}") as web:
            robots = RobotsTxtChecker(AGENT, client=web)
            known = [await robots.is_allowed(site.url(path)) for path in ("/", "/private")]
            unknown = await robots.is_allowed("http://shop.test/private")

    assert (known, unknown) == ([True, False], True)
