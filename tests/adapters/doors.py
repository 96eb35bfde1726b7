"""Each library in one form, so that one suite can judge all adapters, and `AsyncClient` itself."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
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
    part: Callable[[], Any]
    """Reads the first part of it."""


async def one_by_one(parts: list[bytes]) -> AsyncIterator[bytes]:
    """Yield the parts of a body."""
    for part in parts:
        yield part


class Door:
    """One library, with its adapter."""

    name = ""
    error: type[Exception] = Exception
    """What users of the library catch."""
    broken: type[Exception] = Exception
    """What it raises without a connection."""
    timed_out: type[Exception] = Exception
    """What it raises if there is no answer in time."""
    bad_status: type[Exception] | None = None
    """What `raise_for_status()` of its responses raises; None without that method."""
    is_for_tasks = True
    streams = True
    """True if its users read the body of a response by themselves."""
    uploads = True
    """True if a body can be sent in parts."""
    agent = AGENT
    """Its own User-Agent, at its beginning."""
    many = 50
    """Requests at the same time that it takes easily."""

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

    async def upload(self, url: str, parts: list[bytes]) -> Page:
        """Send a body in parts."""
        raise NotImplementedError

    async def head(self, url: str) -> int:
        """Return the status of a HEAD request."""
        raise NotImplementedError

    async def hurry(self, url: str) -> Page:
        """Get a page with a timeout of 0.2 s."""
        raise NotImplementedError

    async def login(self, url: str) -> Page:
        """Get a page with the library's own digest authentication, which requests it twice."""
        raise NotImplementedError

    def field(self, native: Any, name: str) -> str:
        """Return a header field of a response."""
        value: str = native.headers[name]
        return value

    async def close_client(self) -> None:
        """Close the client of curtsy."""
        await self.client.close()

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
    error = broken = timed_out = curtsy.CurtsyError
    streams = uploads = False

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

    async def head(self, url: str) -> int:
        return (await self.client.fetch(url, method="HEAD")).status or 0

    async def hurry(self, url: str) -> Page:
        return self._page(await self.client.fetch(url, timeout=0.2))

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
    timed_out: type[Exception] = httpx.ReadTimeout
    bad_status: type[Exception] = httpx.HTTPStatusError
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

    async def upload(self, url: str, parts: list[bytes]) -> Page:
        return self._page(await self.http.post(url, content=one_by_one(parts)))

    async def head(self, url: str) -> int:
        status: int = (await self.http.head(url)).status_code
        return status

    async def hurry(self, url: str) -> Page:
        return self._page(await self.http.get(url, timeout=0.2))

    async def login(self, url: str) -> Page:
        return self._page(await self.http.get(url, auth=self.library.DigestAuth("user", "word")))

    def _page(self, found: Any) -> Page:
        return Page(found.status_code, found.text, found, found.extensions.get("curtsy_from_cache"))

    async def open(self, url: str) -> Body:
        found = await self.http.send(self.http.build_request("GET", url), stream=True)
        return Body(found, found.aread, found.aclose, lambda: anext(found.aiter_raw()))

    async def shut(self) -> None:
        await self.http.aclose()


class Httpx2Door(HttpxDoor):
    name = "httpx2"
    error = httpx2.RequestError
    broken = httpx2.ConnectError
    timed_out = httpx2.ReadTimeout
    bad_status = httpx2.HTTPStatusError
    agent = "python-httpx2/"
    library = httpx2
    adapter = curtsy.adapters.httpx2


class BlockingDoor(Door):
    is_for_tasks = False
    polite: curtsy.Client

    async def close_client(self) -> None:
        await self.aside(self.polite.close)

    @property
    def client(self) -> curtsy.AsyncClient:
        return self.polite._client


class BlockingHttpxDoor(BlockingDoor):
    name = "httpx in threads"
    error: type[Exception] = httpx.RequestError
    broken: type[Exception] = httpx.ConnectError
    timed_out: type[Exception] = httpx.ReadTimeout
    bad_status: type[Exception] = httpx.HTTPStatusError
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

    async def upload(self, url: str, parts: list[bytes]) -> Page:
        return self._page(await self.aside(lambda: self.http.post(url, content=iter(parts))))

    async def head(self, url: str) -> int:
        status: int = (await self.aside(self.http.head, url)).status_code
        return status

    async def hurry(self, url: str) -> Page:
        return self._page(await self.aside(lambda: self.http.get(url, timeout=0.2)))

    async def login(self, url: str) -> Page:
        auth = self.library.DigestAuth("user", "word")
        return self._page(await self.aside(lambda: self.http.get(url, auth=auth)))

    def _page(self, found: Any) -> Page:
        return Page(found.status_code, found.text, found, found.extensions.get("curtsy_from_cache"))

    async def open(self, url: str) -> Body:
        found = await self.aside(lambda: self.http.send(self.http.build_request("GET", url), stream=True))
        return Body(
            found,
            lambda: self.aside(found.read),
            lambda: self.aside(found.close),
            lambda: self.aside(next, found.iter_raw()),
        )

    async def shut(self) -> None:
        await self.aside(self.http.close)


class BlockingHttpx2Door(BlockingHttpxDoor):
    name = "httpx2 in threads"
    error = httpx2.RequestError
    broken = httpx2.ConnectError
    timed_out = httpx2.ReadTimeout
    bad_status = httpx2.HTTPStatusError
    agent = "python-httpx2/"
    library = httpx2
    adapter = curtsy.adapters.httpx2


class AiohttpDoor(Door):
    name = "aiohttp"
    error = aiohttp.ClientError
    broken = aiohttp.ClientConnectorError
    timed_out = aiohttp.ServerTimeoutError
    bad_status = aiohttp.ClientResponseError
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

    async def upload(self, url: str, parts: list[bytes]) -> Page:
        async with self.http.post(url, data=one_by_one(parts)) as found:
            return Page(found.status, await found.text(), found)

    async def head(self, url: str) -> int:
        async with self.http.head(url) as found:
            return found.status

    async def hurry(self, url: str) -> Page:
        async with self.http.get(url, timeout=aiohttp.ClientTimeout(sock_read=0.2)) as found:
            return Page(found.status, await found.text(), found)

    async def login(self, url: str) -> Page:
        digest = aiohttp.DigestAuthMiddleware("user", "word")
        async with self.http.get(url, middlewares=(digest, self.middleware)) as found:
            return Page(found.status, await found.text(), found)

    async def open(self, url: str) -> Body:
        found = await self.http.get(url)

        async def close() -> None:
            found.close()

        return Body(found, found.read, close, lambda: found.content.readany())

    async def shut(self) -> None:
        await self.http.close()
        await self.middleware.close()


class RequestsDoor(BlockingDoor):
    name = "requests"
    error = requests.RequestException
    broken = requests.ConnectionError
    timed_out = requests.ReadTimeout
    bad_status = requests.HTTPError
    agent = "python-requests/"

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.http = requests.Session()
        self.polite = curtsy.adapters.requests.mount(self.http, **self.settings)

    async def get(self, url: str, headers: Mapping[str, str] | None = None) -> Page:
        return self._page(await self.aside(lambda: self.http.get(url, headers=headers)))

    async def post(self, url: str, body: bytes) -> Page:
        return self._page(await self.aside(lambda: self.http.post(url, data=body)))

    async def upload(self, url: str, parts: list[bytes]) -> Page:
        return self._page(await self.aside(lambda: self.http.post(url, data=iter(parts))))

    async def head(self, url: str) -> int:
        return (await self.aside(self.http.head, url)).status_code

    async def hurry(self, url: str) -> Page:
        return self._page(await self.aside(lambda: self.http.get(url, timeout=0.2)))

    async def login(self, url: str) -> Page:
        auth = requests.auth.HTTPDigestAuth("user", "word")
        return self._page(await self.aside(lambda: self.http.get(url, auth=auth)))

    def _page(self, found: requests.Response) -> Page:
        cache = found.from_cache if isinstance(found, curtsy.adapters.requests.CachedResponse) else None
        return Page(found.status_code, found.text, found, cache)

    async def open(self, url: str) -> Body:
        found = await self.aside(lambda: self.http.get(url, stream=True))
        return Body(
            found,
            lambda: self.aside(lambda: found.content),
            lambda: self.aside(found.close),
            lambda: self.aside(next, found.iter_content(1024)),
        )

    async def shut(self) -> None:
        await self.aside(self.http.close)


DOORS: tuple[type[Door], ...] = (
    OwnDoor, HttpxDoor, BlockingHttpxDoor, Httpx2Door, BlockingHttpx2Door, AiohttpDoor, RequestsDoor,
)  # fmt: skip
"""Libraries whose requests are sent in the loop or the threads of the tests."""
