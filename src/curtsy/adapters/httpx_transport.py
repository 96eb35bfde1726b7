"""Transports of httpx and httpx2, which have the same interface and separate classes.

`adapters/httpx.py` and `adapters/httpx2.py` bind these parts to the classes of their library.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterator, Mapping
from itertools import chain
from types import ModuleType
from typing import Any, ClassVar, Generic, TypeVar, Unpack

from curtsy.adapters.hops import AsyncHops, BlockingHops, Fields, Head, Trouble, refusal
from curtsy.blocking import Client
from curtsy.client import AsyncClient
from curtsy.core import errors
from curtsy.core.errors import Reason
from curtsy.core.request import Headers, Response
from curtsy.core.result import FetchResult
from curtsy.engine.body_slot import BodySlot
from curtsy.engine.keywords import ClientKeywords

Hops = TypeVar("Hops", AsyncHops, BlockingHops)

FROM_CACHE = "curtsy_from_cache"
"""Extension of a response from the cache. Its value is `hit`, `revalidated` or `stale`."""

_DECODED = frozenset({"content-encoding", "content-length"})
"""Fields that do not describe a cached body, which is decoded."""


class Library:
    """Classes of one library, and the meaning of its exceptions."""

    def __init__(
        self, module: ModuleType, refused: type[errors.Refused], stream: type[SlotStream], tasks: type[AsyncSlotStream]
    ) -> None:
        self.httpx: Any = module
        self.refused = refused
        self.stream = stream
        self.async_stream = tasks
        httpx: Any = module
        self._troubles: Mapping[type[Exception], Trouble] = {  # the more special ones first
            httpx.PoolTimeout: Trouble(Reason.DEADLINE, False),  # a limit of this program
            httpx.ConnectTimeout: Trouble(Reason.TIMEOUT, False),
            httpx.TimeoutException: Trouble(Reason.TIMEOUT, True),
            httpx.ConnectError: Trouble(Reason.CONNECTION_ERROR, False),
            httpx.ProxyError: Trouble(Reason.CONNECTION_ERROR, False, is_proxys=True),
            httpx.UnsupportedProtocol: Trouble(Reason.INVALID_URL, False),
            httpx.LocalProtocolError: Trouble(Reason.INVALID_URL, False),
            httpx.DecodingError: Trouble(Reason.BAD_RESPONSE, True),
            httpx.TransportError: Trouble(Reason.CONNECTION_ERROR, True),
        }

    def trouble(self, error: Exception) -> Trouble | None:
        """Return the meaning of an exception; None if it is not the network's."""
        return next((each for kind, each in self._troubles.items() if isinstance(error, kind)), None)


class SlotStream:
    """Body of a response that returns its slot at the end."""

    def __init__(self, inner: Any, slot: BodySlot | None, begun: Iterator[bytes] | None = None) -> None:
        """Create it. `begun` continues the body if it was read in part."""
        self._inner = inner
        self._begun = begun
        self._slot = slot
        self._parts = _counted(slot)

    def __iter__(self) -> Iterator[bytes]:
        for part in self._begun or self._inner:
            self._parts[0] += 1
            yield part
        _end(self._slot)

    def close(self) -> None:
        """Close the body and return the slot."""
        try:
            self._inner.close()
        finally:
            _end(self._slot)


class AsyncSlotStream:
    """Body of a response that returns its slot at the end."""

    def __init__(self, inner: Any, slot: BodySlot | None, begun: AsyncIterator[bytes] | None = None) -> None:
        """Create it. `begun` continues the body if it was read in part."""
        self._inner = inner
        self._begun = begun
        self._slot = slot
        self._parts = _counted(slot)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for part in self._begun or self._inner:
            self._parts[0] += 1
            yield part
        _end(self._slot)

    async def aclose(self) -> None:
        """Close the body and return the slot."""
        try:
            await self._inner.aclose()
        finally:
            _end(self._slot)


def _end(slot: BodySlot | None) -> None:
    if slot is not None:
        slot.close()


def _counted(slot: BodySlot | None) -> list[int]:
    """Return the counter by which a slot sees progress. It does not refer to the stream, which refers to the slot."""
    parts = [0]
    if slot is not None:
        slot.progress = lambda: parts[0]
    return parts


async def _after(parts: list[bytes], rest: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    for part in parts:
        yield part
    async for part in rest:
        yield part


class _Wire:
    """One request, and what both kinds of transports do with its response."""

    def __init__(self, library: Library, request: Any, inner: Any) -> None:
        self.library = library
        self.request = request
        self.inner = inner

    def head(self, native: Any) -> Head:
        return Head(native.status_code, Headers(native.headers.multi_items()))

    def trouble(self, error: Exception) -> Trouble | None:
        return self.library.trouble(error)

    def cached(self, response: Response, result: FetchResult) -> Any:
        fields = [each for each in response.headers.fields if each[0].lower() not in _DECODED]
        extensions = {FROM_CACHE: result.record.cache}
        return self.library.httpx.Response(
            response.status, headers=fields, content=response.body, extensions=extensions
        )

    def refused(self, result: FetchResult) -> Exception:
        error: Exception = refusal(self.library.refused, result, self.request)
        return error

    def with_fields(self, added: Fields) -> Any:
        """Return the request with additional header fields; the caller's request stays as it is."""
        if not added:
            return self.request
        given = self.request
        return self.library.httpx.Request(
            given.method, given.url, headers=[*given.headers.multi_items(), *added], stream=given.stream,
            extensions=given.extensions,
        )  # fmt: skip


class _BlockingWire(_Wire):
    def send(self, added: Fields) -> Any:
        return self.inner.handle_request(self.with_fields(added))

    def attach(self, native: Any, slot: BodySlot) -> None:
        native.stream = self.library.stream(native.stream, slot)

    def body(self, native: Any, most: int) -> bytes | None:
        stream, parts, size = native.stream, [], 0
        rest = iter(stream)
        for part in rest:
            parts.append(part)
            size += len(part)
            if size > most:
                native.stream = self.library.stream(stream, None, chain(parts, rest))
                return None
        stream.close()
        body = b"".join(parts)
        native.stream = self.library.httpx.ByteStream(body)
        return body

    def discard(self, native: Any) -> None:
        native.close()


class _AsyncWire(_Wire):
    async def send(self, added: Fields) -> Any:
        return await self.inner.handle_async_request(self.with_fields(added))

    def attach(self, native: Any, slot: BodySlot) -> None:
        native.stream = self.library.async_stream(native.stream, slot)

    async def body(self, native: Any, most: int) -> bytes | None:
        stream, parts, size = native.stream, [], 0
        rest = aiter(stream)
        async for part in rest:
            parts.append(part)
            size += len(part)
            if size > most:
                native.stream = self.library.async_stream(stream, None, _after(parts, rest))
                return None
        await stream.aclose()
        body = b"".join(parts)
        native.stream = self.library.httpx.ByteStream(body)
        return body

    async def discard(self, native: Any) -> None:
        await native.aclose()


class _Transport(Generic[Hops]):
    """Common part of the transports: an inner transport that sends, and the hops that admit."""

    library: ClassVar[Library]

    def __init__(self, inner: Any, hops: Hops) -> None:
        self._inner = inner
        self._hops: Hops = hops


class BlockingTransport(_Transport[BlockingHops]):
    """Shared part of the transports for `Client`."""

    def __init__(self, inner: Any = None, **settings: Unpack[ClientKeywords]) -> None:
        super().__init__(self.library.httpx.HTTPTransport() if inner is None else inner, BlockingHops(settings))

    @property
    def client(self) -> Client:
        """Return the client of curtsy that admits the requests."""
        return self._hops.client

    def handle_request(self, request: Any) -> Any:
        """Send one request when its turn comes."""
        return self._hops.carry(_BlockingWire(self.library, request, self._inner), *_facts(request))

    def close(self) -> None:
        """Close the inner transport, and the client of curtsy with its store."""
        with contextlib.closing(self._hops):
            self._inner.close()


class TaskTransport(_Transport[AsyncHops]):
    """Shared part of the transports for `AsyncClient`."""

    def __init__(self, inner: Any = None, **settings: Unpack[ClientKeywords]) -> None:
        super().__init__(self.library.httpx.AsyncHTTPTransport() if inner is None else inner, AsyncHops(settings))

    @property
    def client(self) -> AsyncClient:
        """Return the client of curtsy that admits the requests."""
        return self._hops.client

    async def handle_async_request(self, request: Any) -> Any:
        """Send one request when its turn comes."""
        return await self._hops.carry(_AsyncWire(self.library, request, self._inner), *_facts(request))

    async def aclose(self) -> None:
        """Close the inner transport, and the client of curtsy with its store."""
        try:
            await self._inner.aclose()
        finally:
            await self._hops.close()


def _facts(request: Any) -> tuple[str, str, Fields, bool]:
    """Return URL, method, header fields, and whether a request has a body."""
    headers = request.headers
    has_body = "transfer-encoding" in headers or headers.get("content-length", "0") != "0"
    return str(request.url), request.method, tuple(headers.multi_items()), has_body
