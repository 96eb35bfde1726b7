"""Settings that change while somebody waits."""

from __future__ import annotations

import asyncio
import os
import threading
from pathlib import Path

from curtsy.client import AsyncClient, session_of
from curtsy.core.errors import Reason
from curtsy.core.result import FetchResult
from curtsy.stores.memory import MemoryStore
from curtsy.testing import FakeClock
from tests.client.fetching import AGENT, DAWN, client
from tests.support.polling import until
from tests.support.site import Reply, Site, Visit
from tests.support.snapshot import Snapshot


async def changed_while_one_waits(site: Site, folder: Path, *texts: str) -> FetchResult:
    """What becomes of a fetch that waits for its turn when the settings change: the last change comes while it does."""
    site.page("/a", "a")
    site.page("/b", "b")
    settings = folder / "curtsy.yaml"
    settings.write_text(texts[0])
    async with AsyncClient(
        config=settings, store="memory:", cache=False, user_agent=AGENT, allow_private=True, global_qps=None
    ) as web:
        assert (await web.fetch(site.url("/a"))).ok
        for text in texts[1:-1]:
            change(web, settings, text)
        waiting = asyncio.ensure_future(web.fetch(site.url("/b")))
        await until(lambda: session_of(web).gate.queues.waiting)

        change(web, settings, texts[-1])
        for key in list(session_of(web).gate.queues._queues):
            session_of(web).gate.queues.nudge(key)

        return await asyncio.wait_for(waiting, 60)


def change(web: AsyncClient, settings: Path, text: str) -> None:
    settings.write_text(text)
    os.utime(settings, ns=(1, 1))
    session_of(web).settings.reload()


SLOW = "default_policy:\n  qps: 0.001\n  pause: [0, 0]\n  respect_robots: false\n"


async def test_a_request_that_waits_is_let_go_by_a_gentler_wait(site: Site, tmp_path: Path) -> None:
    """U9: a changed file is picked up while running, by those who wait already too."""
    assert (await changed_while_one_waits(site, tmp_path, SLOW, SLOW.replace("0.001", "1000"))).ok


async def test_a_host_that_is_denied_meanwhile_is_not_asked(site: Site, tmp_path: Path, snapshot: Snapshot) -> None:
    """U9: nothing is ever sent, nor waited for"""
    result = await changed_while_one_waits(site, tmp_path, SLOW, SLOW + "denylist: ['127.0.0.1']\n")

    assert result.reason is Reason.DOMAIN_DENIED
    assert "denylist" in result.message
    snapshot(result.message)
    assert site.paths() == ["/a"]


async def test_a_path_that_is_denied_meanwhile_is_not_asked_for(site: Site, tmp_path: Path) -> None:
    """U9"""
    quick = SLOW.replace("0.001", "1000") + "  deny_paths: [/b]\n"

    result = await changed_while_one_waits(site, tmp_path, SLOW, quick)

    assert result.reason is Reason.PATH_DENIED
    assert site.paths() == ["/a"]


async def test_a_timeout_that_is_shortened_meanwhile_holds_and_nobody_waits_for_ever(
    site: Site, tmp_path: Path
) -> None:
    """U9: the place lasts as long as the new one says"""
    short = SLOW.replace("0.001", "1000") + "  timeout: 2\n  robots_timeout: 1\n"

    assert (await changed_while_one_waits(site, tmp_path, SLOW, short)).ok


async def test_a_host_that_comes_to_share_a_record_waits_for_that_one(site: Site, tmp_path: Path) -> None:
    """C6, U9"""
    shared = "allowlist:\n- domain: '127.0.0.1'\n  shared: true\n  qps: 1000\n"

    result = await changed_while_one_waits(site, tmp_path, SLOW, SLOW + shared)

    assert result.ok


async def test_a_host_that_is_denied_while_its_robots_txt_is_on_its_way_is_not_asked(
    site: Site, tmp_path: Path
) -> None:
    """U9"""
    settings = tmp_path / "curtsy.yaml"
    settings.write_text("default_policy:\n  pause: [0, 0]\n")
    asked, answered = threading.Event(), threading.Event()

    def robots(visit: Visit) -> Reply:
        asked.set()
        answered.wait(60)
        return Reply(404)

    site.on("/robots.txt", robots)
    site.page("/a", "a")
    async with AsyncClient(
        config=settings, store="memory:", cache=False, user_agent=AGENT, allow_private=True, global_qps=None
    ) as web:
        fetching = asyncio.ensure_future(web.fetch(site.url("/a")))
        await until(asked.is_set)

        settings.write_text("default_policy:\n  pause: [0, 0]\ndenylist: ['127.0.0.1']\n")
        session_of(web).settings.reload()
        answered.set()

        result = await asyncio.wait_for(fetching, 60)

    assert result.reason is Reason.DOMAIN_DENIED
    assert site.paths() == ["/robots.txt"]


async def test_a_robots_txt_that_nobody_wants_any_more_is_not_asked_for(site: Site, tmp_path: Path) -> None:
    """U9, R1: the settings said so while it stood in line"""
    heeding = SLOW.replace("false", "true")

    result = await changed_while_one_waits(site, tmp_path, SLOW, heeding, SLOW.replace("0.001", "1000"))

    assert result.ok
    assert site.paths() == ["/a", "/b"]


async def test_a_copy_of_robots_txt_that_is_to_hold_for_less_now_does(site: Site, tmp_path: Path) -> None:
    """R5, U9: what is at hand in memory, and what the store has for the next client"""
    site.robots("")
    site.page("/*", "x")
    settings = tmp_path / "curtsy.yaml"
    settings.write_text("default_policy:\n  robots_ttl: 3600\n")
    clock = FakeClock(DAWN)
    store = MemoryStore(clock)

    async with client(config=settings, clock=clock, store=store) as web:
        await web.fetch(site.url("/a"))
        clock.advance(100)
        site.robots("User-agent: *\nDisallow: /b\n")
        change(web, settings, "default_policy:\n  robots_ttl: 60\n")
        forbidden = await web.fetch(site.url("/b"))
    clock.advance(30)
    async with client(clock=clock, store=store, robots_ttl=20) as other:
        await other.fetch(site.url("/c"))

    assert forbidden.reason is Reason.ROBOTS_DISALLOWED
    assert site.paths() == ["/robots.txt", "/a", "/robots.txt", "/robots.txt", "/c"]
