"""Clients that keep pages, and answers that say how long."""

from __future__ import annotations

from email.utils import formatdate
from pathlib import Path
from typing import Any

from curtsy.client import AsyncClient
from curtsy.testing import FakeClock
from tests.client.fetching import client

HOUR = {"Cache-Control": "max-age=3600"}


def dated(clock: FakeClock, cache_control: str, **fields: str) -> dict[str, str]:
    """The fields of an answer that is sent now, by the fake clock."""
    return {"Date": formatdate(clock.now().epoch / 1e6, usegmt=True), "Cache-Control": cache_control, **fields}


def keeping(place: Path, clock: FakeClock, **settings: Any) -> AsyncClient:
    """A client that keeps pages, and has no budget."""
    return client(cache=place, clock=clock, max_requests_per_day=0, max_pages_per_day=0, **settings)
