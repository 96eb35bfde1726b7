"""Clients and settings as pickles: what engines such as Ray and Dask send to their workers (issue 17, 4)."""

from __future__ import annotations

import pickle
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest

from curtsy.blocking import Client
from curtsy.client import AsyncClient
from curtsy.core.errors import PolicyError
from curtsy.settings import load
from curtsy.stores import MemoryStore
from curtsy.testing import FakeClock
from tests.client.fetching import AGENT, UNPACED
from tests.support.site import Site


def fetch_all(client: Client, urls: list[str]) -> list[bool]:
    """Fetch in a worker process, with the client that was sent to it."""
    with client:
        return [client.fetch(url).ok for url in urls]


def test_processes_share_the_budget_of_a_pickled_client(site: Site, tmp_path: Path) -> None:
    """B4, B7, issue 17, 4"""
    site.page("/a", "a")
    settings: dict[str, Any] = {**UNPACED, "respect_robots": False, "max_requests_per_day": 5}
    urls = [site.url(f"/a?{number}") for number in range(4)]

    with (
        Client(store=tmp_path / "state", cache=False, allow_private=True, user_agent=AGENT, **settings) as client,
        ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool,
    ):
        results = [pool.submit(fetch_all, client, urls) for _ in range(2)]
        fetched = sum(sum(result.result(timeout=60)) for result in results)

    assert (fetched, site.count()) == (5, 5)


async def test_an_async_client_is_unpickled_with_its_arguments(tmp_path: Path) -> None:
    async with AsyncClient(store=tmp_path / "state", cache=False, qps=0.25, user_agent=AGENT) as client:
        again = pickle.loads(pickle.dumps(client))

    async with again:
        assert again.policies.of("example.org").qps == 0.25
        assert again.policies.user_agent == AGENT


@pytest.mark.parametrize("part", [{"store": MemoryStore()}, {"clock": FakeClock()}], ids=["store", "clock"])
def test_a_part_that_is_open_here_is_named(part: dict[str, Any]) -> None:
    with Client(cache=False, user_agent=AGENT, **part) as client, pytest.raises(PolicyError) as error:
        pickle.dumps(client)

    [name] = part
    assert name in str(error.value)


def test_settings_are_equal_after_a_pickle() -> None:
    settings = load(qps=0.25, user_agent=AGENT)

    assert pickle.loads(pickle.dumps(settings)) == settings
