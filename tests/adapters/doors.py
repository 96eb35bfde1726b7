"""Each library in one form, so that one suite can judge all adapters, and `AsyncClient` itself."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, TypeVar

import aiohttp
import httpx
import httpx2
import requests

import curtsy
import curtsy.adapters.aiohttp
import curtsy.adapters.httpx
import curtsy.adapters.httpx2
import curtsy.adapters.requests
from curtsy.client import session_of
from curtsy.engine.session import Session
from tests.client.fetching import AGENT, UNPACED

T = TypeVar("T")


PLAIN: dict[str, Any] = {
    "allow_private": True, "user_agent": AGENT, "timezone": "UTC", "store": "memory:", **UNPACED,
}  # fmt: skip
"""Settings of tests that are about something else."""


class Page(NamedTuple):
    """What the user of a library sees."""

    status: int
    text: str
    native: Any
    cache: str | None = None


class Body(NamedTuple):
    """A response whose body is not read yet."""

    native: Any
    read: Callable[[], Any]
    close: Callable[[], Any]


class Door:
    """One library, with its adapter."""

    name = ""
    error: type[Exception] = Exception
    """What users of the library catch."""
    broken: type[Exception] = Exception
    """What it raises without a connection."""
    is_for_tasks = True
    agent = AGENT
    """Its own User-Agent, at its beginning."""

    def __init__(self, **settings: Any) -> None:
        self.settings = PLAIN | settings
        self.threads = ThreadPoolExecutor(64)

    @property
    def session(self) -> Session:
        return session_of(self.client)

    @property
    def client(self) -> curtsy.AsyncClient:
        raise NotImplementedError

    async def get(self, url: str, headers: Mapping[str, str] | None = None) -> Page:
        """Get a page, and follow redirects."""
        raise NotImplementedError

    async def open(self, url: str) -> Body:
        """Get a response with its body still to be read."""
        raise NotImplementedError

    async def post(self, url: str, body: bytes) -> Page:
        raise NotImplementedError

    async def shut(self) -> None:
        """Close the library."""
        raise NotImplementedError

    async def close(self) -> None:
        await self.shut()
        self.threads.shutdown()

    async def aside(self, work: Callable[..., T], *arguments: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self.threads, work, *arguments)


Opener = Callable[..., Door]


class OwnDoor(Door):
    name = "curtsy"
    error = broken = curtsy.CurtsyError

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self._client = curtsy.AsyncClient(**{"cache": False, **self.settings, "max_retries": 0})

    @property
    def client(self) -> curtsy.AsyncClient:
        return self._client

    async def get(self, url: str, headers: Mapping[str, str] | None = None) -> Page:
        return self._page(await self.client.fetch(url, headers=headers))

    async def post(self, url: str, body: bytes) -> Page:
        return self._page(await self.client.fetch(url, method="POST", body=body))

    def _page(self, result: curtsy.FetchResult) -> Page:
        if result.status is None:
            result.raise_for_reason()
        return Page(result.status or 0, result.text, result, result.record.cache)

    async def shut(self) -> None:
        await self.client.close()


class HttpxDoor(Door):
    name = "httpx"
    error: type[Exception] = httpx.RequestError
    broken: type[Exception] = httpx.ConnectError
    agent = "python-httpx/"
    library: Any = httpx
    adapter: Any = curtsy.adapters.httpx

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.transport = self.adapter.AsyncTransport(**self.settings)
        self.http = self.library.AsyncClient(transport=self.transport, follow_redirects=True)

    @property
    def client(self) -> curtsy.AsyncClient:
        found: curtsy.AsyncClient = self.transport.client
        return found

    async def get(self, url: str, headers: Mapping[str, str] | None = None) -> Page:
        return self._page(await self.http.get(url, headers=headers))

    async def post(self, url: str, body: bytes) -> Page:
        return self._page(await self.http.post(url, content=body))

    def _page(self, found: Any) -> Page:
        return Page(found.status_code, found.text, found, found.extensions.get("curtsy_from_cache"))

    async def open(self, url: str) -> Body:
        found = await self.http.send(self.http.build_request("GET", url), stream=True)
        return Body(found, found.aread, found.aclose)

    async def shut(self) -> None:
        await self.http.aclose()


class Httpx2Door(HttpxDoor):
    name = "httpx2"
    error = httpx2.RequestError
    broken = httpx2.ConnectError
    agent = "python-httpx2/"
    library = httpx2
    adapter = curtsy.adapters.httpx2


class BlockingDoor(Door):
    is_for_tasks = False
    polite: curtsy.Client

    @property
    def client(self) -> curtsy.AsyncClient:
        return self.polite._client


class BlockingHttpxDoor(BlockingDoor):
    name = "httpx in threads"
    error: type[Exception] = httpx.RequestError
    broken: type[Exception] = httpx.ConnectError
    agent = "python-httpx/"
    library: Any = httpx
    adapter: Any = curtsy.adapters.httpx

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        transport = self.adapter.Transport(**self.settings)
        self.polite = transport.client
        self.http = self.library.Client(transport=transport, follow_redirects=True)

    async def get(self, url: str, headers: Mapping[str, str] | None = None) -> Page:
        return self._page(await self.aside(lambda: self.http.get(url, headers=headers)))

    async def post(self, url: str, body: bytes) -> Page:
        return self._page(await self.aside(lambda: self.http.post(url, content=body)))

    def _page(self, found: Any) -> Page:
        return Page(found.status_code, found.text, found, found.extensions.get("curtsy_from_cache"))

    async def open(self, url: str) -> Body:
        found = await self.aside(lambda: self.http.send(self.http.build_request("GET", url), stream=True))
        return Body(found, lambda: self.aside(found.read), lambda: self.aside(found.close))

    async def shut(self) -> None:
        await self.aside(self.http.close)


class BlockingHttpx2Door(BlockingHttpxDoor):
    name = "httpx2 in threads"
    error = httpx2.RequestError
    broken = httpx2.ConnectError
    agent = "python-httpx2/"
    library = httpx2
    adapter = curtsy.adapters.httpx2


class AiohttpDoor(Door):
    name = "aiohttp"
    error = aiohttp.ClientError
    broken = aiohttp.ClientConnectorError
    agent = "Python/"

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.middleware = curtsy.adapters.aiohttp.Middleware(**self.settings)
        self.http = aiohttp.ClientSession(middlewares=[self.middleware], cookie_jar=aiohttp.CookieJar(unsafe=True))

    @property
    def client(self) -> curtsy.AsyncClient:
        return self.middleware.client

    async def get(self, url: str, headers: Mapping[str, str] | None = None) -> Page:
        async with self.http.get(url, headers=headers) as found:
            return Page(found.status, await found.text(), found)

    async def post(self, url: str, body: bytes) -> Page:
        async with self.http.post(url, data=body) as found:
            return Page(found.status, await found.text(), found)

    async def open(self, url: str) -> Body:
        found = await self.http.get(url)

        async def close() -> None:
            found.close()

        return Body(found, found.read, close)

    async def shut(self) -> None:
        await self.http.close()
        await self.middleware.close()


class RequestsDoor(BlockingDoor):
    name = "requests"
    error = requests.RequestException
    broken = requests.ConnectionError
    agent = "python-requests/"

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.http = requests.Session()
        self.polite = curtsy.adapters.requests.mount(self.http, **self.settings)

    async def get(self, url: str, headers: Mapping[str, str] | None = None) -> Page:
        return self._page(await self.aside(lambda: self.http.get(url, headers=headers)))

    async def post(self, url: str, body: bytes) -> Page:
        return self._page(await self.aside(lambda: self.http.post(url, data=body)))

    def _page(self, found: requests.Response) -> Page:
        cache = found.from_cache if isinstance(found, curtsy.adapters.requests.CachedResponse) else None
        return Page(found.status_code, found.text, found, cache)

    async def open(self, url: str) -> Body:
        found = await self.aside(lambda: self.http.get(url, stream=True))
        return Body(found, lambda: self.aside(lambda: found.content), lambda: self.aside(found.close))

    async def shut(self) -> None:
        await self.aside(self.http.close)


DOORS: tuple[type[Door], ...] = (
    OwnDoor, HttpxDoor, BlockingHttpxDoor, Httpx2Door, BlockingHttpx2Door, AiohttpDoor, RequestsDoor,
)  # fmt: skip
