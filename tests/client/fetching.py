"""A client for the tests: loopback permitted, nothing kept, waits that take no time."""

from __future__ import annotations

from typing import Any

from curtsy.client import AsyncClient, session_of
from curtsy.core.host import Host
from curtsy.core.url import Url, parse_url
from curtsy.testing import FakeClock

AGENT = "testbot/1.0 (+https://example.org/bot)"

UNPACED: dict[str, Any] = {"global_qps": None, "qps": None, "pause_min": 0.0, "pause_max": 0.0}
"""No pace at all, for tests in real time that are about something else."""

DAWN = 1_800_000_000.0
"""Epoch second at which the fake clocks of the tests start: 2027-01-15, 08:00 UTC."""


TICK = 1e-5
"""Seconds that sums of floats may be off."""


def client(**settings: Any) -> AsyncClient:
    """A client with every default, on a fake clock of its own unless one is given, or None for real time."""
    given = {"allow_private": True, "cache": False, "user_agent": AGENT, "timezone": "UTC", **settings}
    given.setdefault("clock", FakeClock(DAWN))
    if given["clock"] is None:
        given.setdefault("store", "memory:")
    return AsyncClient(**given)


def domain_of(url: str) -> str:
    """What pace, budget and breaker of a URL are kept for."""
    parsed = parse_url(url)
    assert isinstance(parsed, Url)
    return parsed.domain


async def host_of(client: AsyncClient, url: str) -> Host:
    """What is remembered of a URL's host."""
    found = await session_of(client).store.read("host:" + domain_of(url))
    assert isinstance(found, Host)
    return found


async def lease_until(client: AsyncClient, url: str) -> int | None:
    """When the lease of the one request to a URL's host runs out, in microseconds; None without such a request."""
    found = await session_of(client).store.read("host:" + domain_of(url))
    return found.places[0].until if isinstance(found, Host) and found.places else None


async def lease_is_renewed(client: AsyncClient, url: str, before: int | None) -> bool:
    """Return whether the lease of the one request to a URL's host runs out at another moment than before."""
    return await lease_until(client, url) != before
