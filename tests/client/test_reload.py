"""Settings that change while somebody waits."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from curtsy.client import AsyncClient
from tests.client.fetching import AGENT, until
from tests.support.site import Site


async def test_a_request_that_waits_is_let_go_by_a_gentler_wait(site: Site, tmp_path: Path) -> None:
    """U9: a changed file is picked up while running, by those who wait already too."""
    site.page("/a", "a")
    site.page("/b", "b")
    settings = tmp_path / "curtsy.yaml"
    settings.write_text("default_policy:\n  qps: 0.001\n  pause: [0, 0]\n  respect_robots: false\n")
    async with AsyncClient(
        config=settings, store="memory:", cache=False, user_agent=AGENT, allow_private=True, global_qps=None
    ) as web:
        assert (await web.fetch(site.url("/a"))).ok
        waiting = asyncio.ensure_future(web.fetch(site.url("/b")))
        await until(lambda: web.gate.lines.waiting)

        settings.write_text("default_policy:\n  qps: 1000\n  pause: [0, 0]\n  respect_robots: false\n")
        os.utime(settings, ns=(1, 1))
        web._settings.reload()
        web.gate.lines.nudge(next(iter(web.gate.lines._lines)))

        assert (await asyncio.wait_for(waiting, 20)).ok
