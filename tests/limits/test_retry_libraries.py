"""with_retry around other libraries: their errors are judged by what they say, as our own are."""

from __future__ import annotations

import ssl
from collections.abc import Awaitable, Callable
from importlib import import_module
from typing import Any
from urllib.request import ProxyHandler, build_opener

import aiohttp
import pytest

from curtsy.limits import with_retry
from tests.support.certificates import Authority
from tests.support.site import Reply, Site, closed_port, cut_short, garbage, hang, reset

LONG = 10.0
SHORT = 0.1


async def by_aiohttp(url: str, timeout: float) -> None:
    limits = aiohttp.ClientTimeout(sock_read=timeout)
    async with aiohttp.ClientSession(timeout=limits, raise_for_status=True) as session, session.get(url) as answer:
        await answer.read()


def by_httpx(url: str, timeout: float) -> None:
    with import_module("httpx").Client(trust_env=False, timeout=timeout) as client:
        client.get(url).raise_for_status()


def by_requests(url: str, timeout: float) -> None:
    with import_module("requests").Session() as session:
        session.trust_env = False
        session.get(url, timeout=timeout).raise_for_status()


def by_urllib(url: str, timeout: float) -> None:
    with build_opener(ProxyHandler({})).open(url, timeout=timeout) as answer:
        answer.read()


def by_urllib3(url: str, timeout: float) -> None:
    with import_module("urllib3").PoolManager(retries=0, timeout=timeout) as pool:
        pool.request("GET", url)


LIBRARIES: dict[str, Callable[[str, float], Awaitable[None] | None]] = {
    "aiohttp": by_aiohttp, "httpx": by_httpx, "requests": by_requests, "urllib": by_urllib, "urllib3": by_urllib3
}  # fmt: skip
each_library = pytest.mark.parametrize("library", LIBRARIES)
each_that_raises_for_a_status = pytest.mark.parametrize("library", [each for each in LIBRARIES if each != "urllib3"])


async def tried(library: str, url: str, timeout: float = LONG) -> tuple[int, list[float]]:
    """How often a library is called for a URL that fails, at most twice, and the wait before the second time."""
    pytest.importorskip(library)
    calls = 0
    waits = []

    def get() -> Awaitable[None] | None:
        nonlocal calls
        calls += 1
        return LIBRARIES[library](url, timeout)

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    with pytest.raises(Exception) as caught:
        await with_retry(get, max_retries=1, sleep=sleep, roll=lambda: 0.5)
    error: Any = caught.value
    if library == "urllib" and hasattr(error, "code"):
        error.close()  # it is the answer as well
    return calls, waits


@pytest.mark.parametrize(("status", "calls"), [(400, 1), (404, 1), (429, 2), (500, 2), (503, 2)])
@each_that_raises_for_a_status
async def test_a_status_decides(library: str, status: int, calls: int, site: Site) -> None:
    """N3"""
    site.reply("/", Reply(status))

    assert await tried(library, site.url("/")) == (calls, [1.0][: calls - 1])
    assert site.count("/") == calls


@pytest.mark.parametrize(
    "fields",
    [
        {"Retry-After": "7"},
        {"Retry-After": "Sun, 15 Nov 2026 08:00:07 GMT", "Date": "Sun, 15 Nov 2026 08:00:00 GMT"},
    ],
    ids=["seconds", "a date"],
)
@each_that_raises_for_a_status
async def test_what_the_answer_says_is_waited_for(library: str, fields: dict[str, str], site: Site) -> None:
    """N4"""
    site.reply("/", Reply(503, headers=fields))

    assert await tried(library, site.url("/")) == (2, [7.0])


@pytest.mark.parametrize("fault", [reset(), cut_short(b"hello", 3), garbage(b"")], ids=["reset", "cut short", "empty"])
@each_library
async def test_a_connection_that_breaks_is_tried_again(library: str, fault: Reply, site: Site) -> None:
    """N3"""
    site.reply("/", fault)

    assert await tried(library, site.url("/")) == (2, [1.0])


@each_library
async def test_a_connection_that_is_refused_is_tried_again(library: str) -> None:
    """N3"""
    with closed_port() as port:
        assert await tried(library, f"http://127.0.0.1:{port}/") == (2, [1.0])


@each_library
async def test_an_answer_that_does_not_come_is_tried_again(library: str, site: Site) -> None:
    """N3"""
    site.reply("/", hang())

    assert await tried(library, site.url("/"), SHORT) == (2, [1.0])


@each_library
async def test_a_certificate_that_is_not_trusted_is_not_tried_again(library: str) -> None:
    """N3"""
    with Site(tls=Authority().server("self-signed")) as site:
        assert await tried(library, site.url("/")) == (1, [])


@pytest.mark.parametrize("url", ["nonsense", "http://", "gopher://127.0.0.1/"])
@each_library
async def test_what_is_no_url_is_not_tried_again(library: str, url: str) -> None:
    """N3"""
    assert await tried(library, url) == (1, [])


async def test_an_answer_that_is_no_json_is_not_tried_again(site: Site) -> None:
    """N3"""
    requests = pytest.importorskip("requests")
    site.page("/", "hello")

    def get() -> object:
        with requests.Session() as session:
            session.trust_env = False
            return session.get(site.url("/"), timeout=LONG).json()

    with pytest.raises(requests.JSONDecodeError):
        await with_retry(get)

    assert site.count("/") == 1


async def test_a_certificate_error_that_was_dealt_with_before_is_no_reason_to_give_up() -> None:
    """N3: the mirror is another matter"""
    calls = 0

    async def mirror() -> str:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise ConnectionResetError(104, "reset")
        return "here"

    try:
        raise ssl.SSLCertVerificationError("not valid")
    except ssl.SSLError:
        assert await with_retry(mirror, initial_delay=0) == "here"
