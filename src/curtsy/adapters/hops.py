"""Hops of other libraries: the implementation that all adapters share, for tasks and for threads."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import msgspec

from curtsy.blocking import Client, parts_of
from curtsy.client import AsyncClient, session_of
from curtsy.core.cache import KEPT, KEPT_IF_SAID, entry_of
from curtsy.core.effects import FetchRequest
from curtsy.core.errors import PolicyError, Reason
from curtsy.core.request import Failure, Headers, Reply, Request, Response, whole_number
from curtsy.core.result import FetchResult
from curtsy.engine.body_slot import BodySlot, Hop, Send
from curtsy.engine.keywords import ClientKeywords
from curtsy.engine.session import Session
from curtsy.http.decoding import Damaged, Truncated, UnknownCoding, decoder_of

Native = TypeVar("Native")
"""Response of the library."""

Fields = tuple[tuple[str, str], ...]

_ADDED = frozenset({"user-agent", "if-none-match", "if-modified-since"})
"""Header fields that an adapter may add to a request: a missing User-Agent, and the conditions of the cache."""

_LIBRARYS_OWN = {
    "max_retries": "The library retries by itself, and each try passes the gate",
    "stale_while_revalidate": "Only the library can send a request, while its caller waits",
    "cookies": "The library keeps cookies by itself",
}


class Head(NamedTuple):
    """Head of a response."""

    status: int
    headers: Headers
    size: int | None = None
    """Bytes of the body if it has come already; None if it is still to be read."""


class Trouble(NamedTuple):
    """Meaning of an exception of a library."""

    reason: Reason
    is_sent: bool
    """True if the request may have been sent."""

    is_proxys: bool = False
    """True if a proxy failed, so that the error says nothing about the host."""


class Wire(Protocol[Native]):
    """One request of a library, and its response."""

    def head(self, native: Native) -> Head:
        """Return the head of a response."""
        ...

    def trouble(self, error: Exception) -> Trouble | None:
        """Return the meaning of the library's error; None for an error that is not the network's."""
        ...

    def attach(self, native: Native, slot: BodySlot) -> None:
        """Close the slot when the body of the response ends or is closed."""
        ...

    def cached(self, response: Response, result: FetchResult) -> Native:
        """Return a cached response as one of the library."""
        ...

    def refused(self, result: FetchResult) -> Exception:
        """Return the exception for a refusal."""
        ...


class AsyncWire(Wire[Native], Protocol[Native]):
    """Request that a task sends."""

    async def send(self, added: Fields) -> Native:
        """Send the request with additional header fields."""
        ...

    async def body(self, native: Native, most: int) -> bytes | None:
        """Read the body as it was received; return None if it has more than `most` bytes.

        The reader of the response gets the whole body in any case.
        """
        ...

    async def discard(self, native: Native) -> None:
        """Close a response that has no reader."""
        ...


class BlockingWire(Wire[Native], Protocol[Native]):
    """Request that a thread sends."""

    def send(self, added: Fields) -> Native:
        """Send the request with additional header fields."""
        ...

    def body(self, native: Native, most: int) -> bytes | None:
        """Read the body as it was received; return None if it has more than `most` bytes.

        The reader of the response gets the whole body in any case.
        """
        ...

    def discard(self, native: Native) -> None:
        """Close a response that has no reader."""
        ...


class _Exchange(Generic[Native]):
    """One request on the wire: what the library answered, and what curtsy is told about it."""

    def __init__(self, wire: Wire[Native], ask: FetchRequest, session: Session, has_proxy: bool) -> None:
        """Create an exchange. `has_proxy`: what cannot be connected is the proxy."""
        self._wire = wire
        self._has_proxy = has_proxy
        self._ask = ask
        self._session = session
        self._began = 0.0
        self._reply: Reply | None = None
        self._error: Exception | None = None
        self.native: Native | None = None
        """Response of the library that its caller has not received yet."""

    def take(self) -> Native | None:
        """Return a response that its caller will not receive, so that it can be discarded."""
        unused, self.native = self.native, None
        return unused

    def begin(self, request: Request) -> Fields:
        """Start the clock; return the header fields to add to the library's request."""
        self._began = time.monotonic()
        if request.headers is self._ask.headers:
            return ()
        had = self._ask.headers
        return tuple(each for each in request.headers.fields if each[0].lower() in _ADDED and each[0] not in had)

    def came(self, native: Native) -> Response:
        """Return the reply for the head of a response, whose body may be still to be read."""
        self.native = native
        status, headers, size = self._wire.head(native)
        took = time.monotonic() - self._began
        is_whole = size is not None
        if size is None:
            size = whole_number(headers.get("content-length"))
            is_whole = self._ask.method == "HEAD" or status in (101, 204, 304) or size == 0
            size = 0 if is_whole else size or 0
        reply = self._reply = Response(status, headers, b"", took, took, size, is_whole)
        return reply

    def most_to_store(self, request: Request, reply: Response) -> int:
        """Return the most bytes of a body that the cache stores, so that it must be read first; 0 for none."""
        session = self._session
        if not session.context.has_cache or self._ask.method != "GET" or self._ask.body is not None:
            return 0
        if reply.status not in KEPT and reply.status not in KEPT_IF_SAID:
            return 0
        most = session.policies.of(request.url.domain).max_body or sys.maxsize - 1
        is_kept = reply.wire_bytes <= most and entry_of(request, reply, session.epoch()) is not None
        return most if is_kept else 0

    def read(self, reply: Response, body: bytes | None, most: int) -> Response:
        """Return the reply with its whole body, decoded; without it if it is too large or damaged."""
        found = None if body is None else _decoded(reply.headers.get("content-encoding"), body, most)
        if body is None or found is None:
            return reply
        took = time.monotonic() - self._began
        whole = Response(reply.status, reply.headers, found, took, reply.latency, reply.wire_bytes or len(body))
        self._reply = whole
        return whole

    def failed(self, error: Exception) -> Failure:
        """Return the failure for an error of the library; raise other errors again."""
        found = self._wire.trouble(error)
        if found is None:
            raise error
        self._error = error
        detail = " ".join(str(error).split()) or type(error).__name__
        sent_ago = time.monotonic() - self._began if found.is_sent else None
        is_unconnected = found.reason in (Reason.CONNECTION_ERROR, Reason.TIMEOUT) and not found.is_sent
        is_proxys = found.is_proxys or (self._has_proxy and is_unconnected)
        return Failure(found.reason, detail, sent_ago, ended_at_proxy=is_proxys)

    def end(self, hop: Hop) -> Native:
        """Return the response for the caller. Raises the library's error, or the refusal."""
        if isinstance(hop.end, Response) and hop.end is not self._reply:
            return self._wire.cached(hop.end, hop.result)
        if self._error is not None:
            raise self._error
        native, self.native = self.native, None
        if native is None:
            raise self._wire.refused(hop.result)
        if hop.slot is not None:
            self._wire.attach(native, hop.slot)
        return native


class AsyncHops:
    """Hops of a library whose requests are sent by tasks."""

    def __init__(self, settings: ClientKeywords) -> None:
        self.client = AsyncClient(**_own(settings))
        self._session = session_of(self.client)
        self._deadline = settings.get("deadline")
        self._has_proxy = settings.get("proxy") is not None

    async def carry(
        self,
        wire: AsyncWire[Native],
        url: str,
        method: str,
        fields: Fields,
        has_body: bool,
        *,
        obeys_robots: bool = True,
        connections: asyncio.Semaphore | None = None,
    ) -> Native:
        """Admit a request, let the library send it, and return its response.

        `connections` limits the requests on the wire, also those for robots.txt.
        """
        ask = _ask(url, method, fields, has_body, self._deadline, obeys_robots)
        exchange = _Exchange(wire, ask, self._session, self._has_proxy)

        async def discard() -> None:
            if (unused := exchange.take()) is not None:
                await wire.discard(unused)

        async def send(request: Request) -> Reply:
            try:
                await discard()  # the page is requested again
                native = await wire.send(exchange.begin(request))
                reply = exchange.came(native)
                most = exchange.most_to_store(request, reply)
                return exchange.read(reply, await wire.body(native, most), most) if most else reply
            except Exception as error:
                return exchange.failed(error)

        try:
            return exchange.end(await self._session.hop(ask, send, connections))
        finally:
            await discard()

    async def admit(self, ask: FetchRequest, send: Send) -> FetchResult:
        """Let a browser send a request when its turn comes; return the result."""
        hop = await self._session.hop(msgspec.structs.replace(ask, deadline=self._deadline), send)
        if hop.slot is not None:
            hop.slot.close()
        return hop.result

    async def close(self) -> None:
        """Close the client and its store. Idempotent."""
        await self.client.close()


class BlockingHops:
    """Hops of a library whose requests are sent by threads. A background event loop runs all but the sending."""

    def __init__(self, settings: ClientKeywords) -> None:
        self.client = Client(**_own(settings))
        self._deadline = settings.get("deadline")
        self._has_proxy = settings.get("proxy") is not None

    def carry(self, wire: BlockingWire[Native], url: str, method: str, fields: Fields, has_body: bool) -> Native:
        """Admit a request, let the library send it in this thread, and return its response."""
        thread, session = parts_of(self.client)
        ask = _ask(url, method, fields, has_body, self._deadline)
        exchange = _Exchange(wire, ask, session, self._has_proxy)
        handover = _Handover()
        future = thread.submit(session.hop(ask, handover.send))
        future.add_done_callback(handover.ended)
        try:
            while (request := handover.next()) is not None:
                handover.answer(self._sent(exchange, wire, request))
            return exchange.end(future.result())
        except BaseException:  # also Ctrl-C: the hop returns what it holds
            future.cancel()
            raise
        finally:
            if (unused := exchange.take()) is not None:
                wire.discard(unused)

    def _sent(self, exchange: _Exchange[Native], wire: BlockingWire[Native], request: Request) -> Reply:
        try:
            if (unused := exchange.take()) is not None:  # the page is requested again
                wire.discard(unused)
            native = wire.send(exchange.begin(request))
            reply = exchange.came(native)
            most = exchange.most_to_store(request, reply)
            return exchange.read(reply, wire.body(native, most), most) if most else reply
        except Exception as error:
            return exchange.failed(error)

    def close(self) -> None:
        """Close the client and its store. Idempotent."""
        self.client.close()


class _Handover:
    """Handover of admitted requests from the event loop to the thread that sends them, and of the replies back."""

    def __init__(self) -> None:
        self._requests: SimpleQueue[Request | None] = SimpleQueue()
        self._reply: asyncio.Future[Reply] | None = None

    async def send(self, request: Request) -> Reply:
        """Hand a request over, and wait for its reply."""
        self._reply = asyncio.get_running_loop().create_future()
        self._requests.put(request)
        return await self._reply

    def next(self) -> Request | None:
        """Wait for the next request; None at the end of the hop."""
        return self._requests.get()

    def answer(self, reply: Reply) -> None:
        """Hand the reply back, unless the client was closed meanwhile."""
        assert self._reply is not None
        with contextlib.suppress(RuntimeError):  # the event loop has ended
            self._reply.get_loop().call_soon_threadsafe(_resolve, self._reply, reply)

    def ended(self, _: Future[Hop]) -> None:
        """End the wait for requests."""
        self._requests.put(None)


def _resolve(future: asyncio.Future[Reply], reply: Reply) -> None:
    if not future.done():  # else the hop was cancelled meanwhile
        future.set_result(reply)


def _decoded(coding: str | None, body: bytes, most: int) -> bytes | None:
    """Return a body without its Content-Encoding; None if it is damaged, or has more than `most` bytes."""
    try:
        decoder = decoder_of(coding)
        if decoder is None:
            return body
        parts, size = [], 0
        for part in decoder.feed(body):
            parts.append(part)
            size += len(part)
            if size > most:
                return None
        decoder.finish()
    except (Damaged, Truncated, UnknownCoding):
        return None
    return b"".join(parts)


def _own(settings: ClientKeywords) -> ClientKeywords:
    """Return the settings of an adapter's client. Raises PolicyError for what is the library's own task."""
    for name, why in _LIBRARYS_OWN.items():
        if name in settings:
            raise PolicyError(f"{name} is not a setting of an adapter. {why}.")
    return {"cache": False, **settings, "max_retries": 0, "stale_while_revalidate": False}


def _ask(
    url: str, method: str, fields: Fields, has_body: bool, deadline: float | None, obeys_robots: bool = True
) -> FetchRequest:
    body = b"" if has_body else None
    return FetchRequest(url, method.upper(), Headers(fields), body, deadline, obeys_robots=obeys_robots)


def refusal(kind: type[Any], result: FetchResult, request: object = None) -> Any:
    """Return the refusal of a hop as an exception of an adapter, with the library's request."""
    error = kind(result.message, reason=result.reason, url=result.final_url, retry_after=result.retry_after)
    if request is not None:
        error.request = request
    return error
