"""What a client may be given to remember and keep things in."""

from __future__ import annotations

import contextlib
from pathlib import Path

from curtsy import Client
from curtsy.client import session_of
from curtsy.core.host import Host
from curtsy.stores import Store, open_store
from curtsy.stores.memory import MemoryStore
from tests.client.fetching import AGENT, UNPACED, client, domain_of
from tests.support.site import Site


async def test_a_blocking_store_does_as_well(site: Site, tmp_path: Path) -> None:
    """Design, section 3: a store of any colour; it stays its owner's"""
    site.page("/*", "x")

    with contextlib.closing(open_store(f"sqlite:///{tmp_path}/state.sqlite")) as store:
        async with client(clock=None, store=store, **UNPACED) as web:
            results = [await web.fetch(site.url(f"/{number}")) for number in range(3)]

        assert all(result.ok for result in results)
        assert days_of(store, site) == [(4, 3)]


def test_it_does_for_the_blocking_client(site: Site, tmp_path: Path) -> None:
    """Design, section 3"""
    site.page("/*", "x")

    with contextlib.closing(open_store(f"sqlite:///{tmp_path}/state.sqlite")) as store:
        with Client(store=store, cache=False, user_agent=AGENT, allow_private=True, **UNPACED) as web:
            assert web.fetch(site.url("/")).ok

        assert days_of(store, site) == [(2, 1)]


async def test_what_is_open_to_two_clients_is_paced_for_both(tmp_path: Path) -> None:
    """P1: also if the one has it by its URL"""
    url = f"sqlite:///{tmp_path}/state.sqlite"

    with contextlib.closing(open_store(url)) as store:
        async with client(clock=None, store=store) as one, client(clock=None, store=url) as other:
            assert session_of(one).gate.queues is session_of(other).gate.queues


async def test_a_path_is_that_of_an_sqlite_file(site: Site, tmp_path: Path) -> None:
    """U9"""
    site.page("/*", "x")
    file = tmp_path / "state.sqlite"

    async with client(clock=None, store=file, **UNPACED) as web:
        assert (await web.fetch(site.url("/"))).ok
        assert session_of(web).store_url == f"sqlite:///{file}"

    with contextlib.closing(open_store(f"sqlite:///{file}")) as store:
        assert days_of(store, site) == [(2, 1)]


async def test_memory_is_shared_as_it_is() -> None:
    """Design, section 3: nothing is waited for"""
    store = MemoryStore()

    async with client(clock=None, store=store) as web:
        assert session_of(web).gate.is_immediate


def days_of(store: Store, site: Site) -> list[tuple[int, int]]:
    """The requests and pages that are remembered of the site's host."""
    host = store.read("host:" + domain_of(site.url("/")))
    assert isinstance(host, Host)
    return [(day.requests, day.pages) for day in host.days]
