"""Middleware for aiohttp: `aiohttp.ClientSession(middlewares=[Middleware()])`.

The arguments are settings as of `curtsy.AsyncClient`. A session's total timeout includes the wait for the turn.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import Self, Unpack

from curtsy.adapters.hops import AsyncHops, Fields, Head, Trouble, refusal
from curtsy.client import AsyncClient
from curtsy.core import errors
from curtsy.core.errors import PolicyError, Reason
from curtsy.core.request import Headers, Response
from curtsy.core.result import FetchResult
from curtsy.engine.body_slot import BodySlot
from curtsy.engine.keywords import ClientKeywords

try:
    import aiohttp
except ImportError as error:
    raise errors.not_imported(
        "curtsy.adapters.aiohttp needs the library aiohttp", "aiohttp", "aiohttp", error
    ) from error

__all__ = ["Middleware", "Refused"]


class Refused(errors.Refused, aiohttp.ClientError):
    """Refusal by curtsy: nothing was sent. It has `reason`, `url` and `retry_after`."""


_TROUBLES: Mapping[type[Exception], Trouble] = {  # the more special ones first
    aiohttp.ConnectionTimeoutError: Trouble(Reason.TIMEOUT, False),
    aiohttp.ServerTimeoutError: Trouble(Reason.TIMEOUT, True),
    aiohttp.ClientProxyConnectionError: Trouble(Reason.CONNECTION_ERROR, False, is_proxys=True),
    aiohttp.ClientHttpProxyError: Trouble(Reason.CONNECTION_ERROR, False, is_proxys=True),
    aiohttp.ClientSSLError: Trouble(Reason.TLS_ERROR, False),
    aiohttp.ClientConnectorError: Trouble(Reason.CONNECTION_ERROR, False),
    aiohttp.ClientPayloadError: Trouble(Reason.INCOMPLETE, True),
    aiohttp.InvalidURL: Trouble(Reason.INVALID_URL, False),
    aiohttp.ClientResponseError: Trouble(Reason.BAD_RESPONSE, True),
    aiohttp.ClientError: Trouble(Reason.CONNECTION_ERROR, True),
}


class Middleware:
    """Client middleware of aiohttp. Sessions may share one; close it after them, or use `async with`."""

    def __init__(self, **settings: Unpack[ClientKeywords]) -> None:
        if settings.get("cache"):
            raise PolicyError("the adapter for aiohttp has no cache, because only aiohttp can create its responses.")
        self._hops = AsyncHops(settings)

    @property
    def client(self) -> AsyncClient:
        """Return the client of curtsy that admits the requests."""
        return self._hops.client

    async def __call__(
        self, request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
    ) -> aiohttp.ClientResponse:
        """Send one request when its turn comes."""
        headers = request.headers
        has_body = "Transfer-Encoding" in headers or headers.get("Content-Length", "0") != "0"
        wire = _Wire(request, handler)
        return await self._hops.carry(wire, str(request.url), request.method, tuple(headers.items()), has_body)

    async def close(self) -> None:
        """Close the client of curtsy with its store. Idempotent."""
        await self._hops.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


class _Wire:
    """One request of a session."""

    __slots__ = ("_handler", "_request")

    def __init__(self, request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType) -> None:
        self._request = request
        self._handler = handler

    async def send(self, added: Fields) -> aiohttp.ClientResponse:
        self._request.headers.update(added)
        return await self._handler(self._request)

    def head(self, native: aiohttp.ClientResponse) -> Head:
        return Head(native.status, Headers(native.headers.items()))

    def trouble(self, error: Exception) -> Trouble | None:
        return next((each for kind, each in _TROUBLES.items() if isinstance(error, kind)), None)

    def attach(self, native: aiohttp.ClientResponse, slot: BodySlot) -> None:
        connection, content = native.connection, native.content
        if connection is None:  # the whole body has come with the head
            slot.close()
        else:
            slot.progress = lambda: content.total_bytes
            connection.add_callback(slot.close)

    async def body(self, native: aiohttp.ClientResponse, most: int) -> bytes | None:
        raise AssertionError("there is no cache")

    async def discard(self, native: aiohttp.ClientResponse) -> None:
        native.close()

    def cached(self, response: Response, result: FetchResult) -> aiohttp.ClientResponse:
        raise AssertionError("there is no cache")

    def refused(self, result: FetchResult) -> Exception:
        error: Exception = refusal(Refused, result)
        return error
