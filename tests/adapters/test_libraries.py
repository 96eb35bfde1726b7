"""What only one library has, and what is missing without it."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import httpx
import pytest
import requests
from requests.adapters import HTTPAdapter
from urllib3 import Retry

import curtsy.adapters.httpx
import curtsy.adapters.requests
from curtsy.client import session_of
from curtsy.core.effects import FetchRequest
from curtsy.core.request import Headers, Request, Response
from curtsy.testing import FakeClock
from tests.adapters.doors import PLAIN, HttpxDoor
from tests.client.fetching import AGENT, DAWN, host_of
from tests.client.fetching import client as polite
from tests.support.site import Reply, Site, reset
from tests.support.warm import Process

LIBRARIES = ("aiohttp", "httpx", "httpx2", "playwright", "requests", "scrapy")


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_missing_library_is_named_with_its_extra(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Adapters: what to install"""
    module = f"curtsy.adapters.{library}"
    monkeypatch.delitem(sys.modules, module, raising=False)
    monkeypatch.setitem(sys.modules, library, None)

    with pytest.raises(curtsy.PolicyError) as error:
        importlib.import_module(module)

    assert f'pip install "curtsy[{library}]"' in str(error.value)


@pytest.mark.parametrize("name", ["max_retries", "cookies", "stale_while_revalidate"])
def test_what_the_library_does_is_no_setting(name: str) -> None:
    """Adapters: no retries of their own"""
    with pytest.raises(curtsy.PolicyError, match=name):
        curtsy.adapters.httpx.AsyncTransport(**{name: 1})  # type: ignore[arg-type]


@pytest.mark.parametrize("trouble", [Reply(503, "busy"), reset()], ids=["status", "connection"])
def test_each_retry_of_requests_passes_the_gate(site: Site, trouble: Reply) -> None:
    """Adapters: the session's own retries, at curtsy's pace"""
    session = requests.Session()
    session.mount("http://", HTTPAdapter(max_retries=Retry(3, status_forcelist=[503], backoff_factor=0)))
    settings = PLAIN | {"qps": 20, "respect_robots": False}
    site.script("/flaky", [trouble, trouble, Reply(200, "fine")])

    with session:
        client = curtsy.adapters.requests.mount(session, **settings)
        answer = session.get(site.url("/flaky"), stream=True)
        requested = client.stats().requests
        answer.close()

    assert answer.status_code == 200
    assert requested == site.count("/flaky") == 3
    assert all(b.at - a.at > 0.02 for a, b in pairwise(site.visits()))


def test_retries_of_requests_end(site: Site) -> None:
    """Adapters: with the error of requests"""
    session = requests.Session()
    session.mount("http://", HTTPAdapter(max_retries=Retry(1, status_forcelist=[503], backoff_factor=0)))
    site.reply("/busy", Reply(503, "busy"))

    with session:
        curtsy.adapters.requests.mount(session, **PLAIN)
        with pytest.raises(requests.exceptions.RetryError):
            session.get(site.url("/busy"))

    assert site.count("/busy") == 2


async def test_a_request_without_a_user_agent_gets_that_of_the_settings(site: Site) -> None:
    """Adapters: robots.txt and page are requested under one name"""
    door = HttpxDoor()
    del door.http.headers["User-Agent"]
    site.page("/a")

    await door.get(site.url("/a"))
    await door.close()

    assert [visit.header("User-Agent") for visit in site.visits()] == [AGENT, AGENT]


async def test_an_inner_transport_sends(site: Site) -> None:
    """Adapters: any transport of the library may be inside"""
    inner = httpx.MockTransport(lambda request: httpx.Response(200, text=f"mock of {request.url.path}"))
    transport = curtsy.adapters.httpx.AsyncTransport(inner, **PLAIN, respect_robots=False)

    async with httpx.AsyncClient(transport=transport) as client:
        page = await client.get(site.url("/a"))

    assert page.text == "mock of /a"
    assert site.connections == 0


async def test_the_pause_begins_when_the_head_has_come(site: Site) -> None:
    """Adapters: a library may connect first, and send later than it is called"""
    clock = FakeClock(DAWN)
    site.robots()

    async def send(request: Request) -> Response:
        clock.advance(5.0)
        return Response(200, Headers(), b"", sent_ago=5.0)

    async with polite(clock=clock) as client:
        await session_of(client).hop(FetchRequest(site.url("/a")), send)
        host = await host_of(client, site.url("/a"))

    assert host.sent_at == clock.now().at


PROGRAM = """
import json, sys
import requests
import curtsy.adapters.requests

task = json.loads(sys.argv[1])
with requests.Session() as session:
    curtsy.adapters.requests.mount(session, **task["settings"])
    for url in task["urls"]:
        try:
            print(session.get(url).status_code)
        except curtsy.Refused as refused:
            print(refused.reason)
"""


async def test_two_libraries_in_two_processes_share_one_budget(site: Site, tmp_path: Path) -> None:
    """Adapters: by the store of the settings"""
    settings = PLAIN | {
        "store": f"sqlite:///{tmp_path}/state.sqlite", "respect_robots": False,
        "max_requests_per_day": 5,
    }  # fmt: skip
    site.page("/*", "x")
    door = HttpxDoor(**settings)
    urls = [site.url(f"/{number}") for number in range(4)]

    for url in urls:
        await door.get(url)
    task = json.dumps({"settings": settings, "urls": urls})
    process: Process[str] = Process("tests.support.program", PROGRAM, task, text=True, stdout=subprocess.PIPE)
    out, _ = process.communicate(timeout=60)
    await door.close()

    assert out.split() == ["200", *["domain_budget_exceeded"] * 3]
    assert site.count() == 5
