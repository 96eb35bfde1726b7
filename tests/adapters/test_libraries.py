"""What only one library has, and what is missing without it."""

from __future__ import annotations

import importlib
import os
import pickle
import sys
from base64 import b64encode
from hashlib import sha1
from itertools import pairwise

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
from tests.adapters.doors import PLAIN, AiohttpDoor, HttpxDoor
from tests.client.fetching import AGENT, DAWN, host_of
from tests.client.fetching import client as polite
from tests.support.site import Reply, Site, Visit, closed_port, reset

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


def test_a_session_works_on_in_a_fork_and_as_a_pickle(site: Site) -> None:
    """Adapters: each has a client of its own"""
    site.page("/*", "here")

    with requests.Session() as session:
        curtsy.adapters.requests.mount(session, **PLAIN)
        before = session.get(site.url("/parent")).status_code
        if (child := os.fork()) == 0:
            os._exit(session.get(site.url("/child")).status_code - 200)
        _, code = os.waitpid(child, 0)
        with pickle.loads(pickle.dumps(session)) as copy:
            copied = copy.get(site.url("/copy")).status_code

    assert (before, code, copied) == (200, 0, 200)
    assert site.paths() == ["/robots.txt", "/parent", "/robots.txt", "/child", "/robots.txt", "/copy"]


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


async def test_an_open_websocket_keeps_no_slot(site: Site) -> None:
    """Adapters: it is one request, which ends when the site has agreed"""
    door = AiohttpDoor(respect_robots=False)
    site.on("/ws", agreed)
    site.page("/a")

    async with door.http.ws_connect(site.url("/ws")):
        page = await door.get(site.url("/a"))
    await door.close()

    assert page.status == 200
    assert site.paths() == ["/ws", "/a"]


def agreed(visit: Visit) -> Reply:
    """Agree to a WebSocket (RFC 6455, 4.2.2), and say nothing more."""
    key = (visit.header("Sec-WebSocket-Key") or "") + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
    accept = b64encode(sha1(key.encode(), usedforsecurity=False).digest()).decode()
    fields = f"Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: {accept}\r\n"
    return Reply(raw=f"HTTP/1.1 101 Switching Protocols\r\n{fields}\r\n".encode(), end="hang")


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


async def test_a_dead_proxy_is_not_the_sites_fault(site: Site) -> None:
    """Adapters: however often it fails, no breaker opens"""
    with closed_port() as port:
        proxy = f"http://127.0.0.1:{port}"
        inner = httpx.AsyncHTTPTransport(proxy=proxy)
        transport = curtsy.adapters.httpx.AsyncTransport(inner, **PLAIN, respect_robots=False, proxy=proxy)
        async with httpx.AsyncClient(transport=transport) as client:
            for _ in range(5):
                with pytest.raises(httpx.ConnectError):
                    await client.get(site.url("/a"))


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
