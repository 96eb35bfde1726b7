"""Open connections of one event loop: aiohttp's connector without its session.

The connector resolves names, connects, and handles TLS and proxies; its parser reads the responses. A session's
features (cookies, redirects, retries, tracing, request and response objects) are unused here and cost more than all the
rest. Two parts are curtsy's own, because aiohttp has no setting for them:

- `Wire` (a connection) records when a request was written to the socket, counts the bytes of a response outside its
  body, aborts an endless response, and closes if unrequested data arrives.
- `Connections` limits the idle connections and keeps the latest used; aiohttp limits only the busy ones.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import select
import socket
import ssl
import sys
import time
from collections.abc import Callable
from contextvars import ContextVar
from functools import lru_cache, partial
from typing import Any

import aiohttp
from aiohttp import ClientRequest
from aiohttp.abc import AbstractResolver
from aiohttp.client_proto import ResponseHandler
from aiohttp.connector import Connection
from aiohttp.http import RawResponseMessage
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.streams import StreamReader
from multidict import CIMultiDict
from yarl import URL

from curtsy.http.address import GuardedResolver, guarded_socket, network_of, open_socket

MAX_FIELDS = 1000
"""Largest number of header fields in a response; real sites have fewer than a hundred."""

MAX_FRAMING = 4 * 1024 * 1024
"""Bytes outside its body that a response may have, in addition to as many as its body has: the head, chunk sizes and
extensions, and trailers. Some programs send each byte in a chunk of its own, which takes six bytes. The limit admits
such a page of a megabyte."""

KEEP_ALIVE = 30.0
"""Seconds for which an idle connection is kept: a few requests at a polite pace."""

READ_AHEAD = 65_536
"""Bytes that aiohttp buffers: a quarter of its default, because buffered data also costs the site traffic."""

NARROW = 65_536
WIDE = 4 * 1024 * 1024
"""Receive buffers in bytes: small for a body that may be abandoned, large for a wanted stream.

By default, the kernel buffers many megabytes, all sent by the site even if they are never read (F03, F28).
"""

STOOD_STILL = 1.0
"""Seconds of a timer's delay above which this program was suspended and the peer is not to blame."""

DNS_TTL = 60
"""Seconds for which a resolved address is cached."""

LATELY = 1.0
"""Idle seconds after which a connection is reused without polling it, because the event loop has run since."""

_HEAD_END = re.compile(rb"\n\r?\n")

Place = tuple[str, str | None]
"""Origin, and the proxy to reach it by; None for a direct connection."""


AT_PROXY: ContextVar[bool] = ContextVar("AT_PROXY", default=False)
"""True while the connection that this task opened last has reached only its proxy."""


class HeadTooLarge(aiohttp.ClientError):
    """Head of a response, interim responses included, that exceeds the limit."""


class Wire(ResponseHandler):
    """Connection that records when requests are sent, and aborts endless heads."""

    def __init__(self, loop: asyncio.AbstractEventLoop, lost: Callable[[Wire], None]) -> None:
        super().__init__(loop)
        self._lost = lost
        self.place: Place = "", None
        """Destination of the connection."""

        self.connection: Connection | None = None
        """aiohttp's handle of the connection."""

        self.idle_since = 0.0
        self._in_head = False
        self._wide = False
        self.sent_at: float | None = None
        """Time of the last request's write, by `time.monotonic()`; None if it was not written."""

        self.head_left = 0
        """Bytes of head that may still arrive. Body data received with the head counts too, so it may be negative."""

        self._max_head = 0
        self._head: list[bytes] = []
        """Received data of an incomplete head."""

        self._came = 0
        """Bytes of the response received after its head."""

        self._has_ended = False
        """True if the peer has closed its side properly."""

        self._look: Callable[[int], list[Any]] | None = None

        self._due: float | None = None
        """Loop time by which the awaited response must arrive."""

        self._wakeup: asyncio.TimerHandle | None = None
        """Timer for that time. It is reused for later responses, because a timer per response takes longer."""

    def send(self, head: bytes, body: bytes | None, *, max_head: int, has_body: bool) -> None:
        """Write a request. The response may have `max_head` bytes of head, and a body if `has_body`.

        The time is recorded after the write, so that a pause counted from it is never too short.
        """
        self.sent_at = None
        self._in_head = True
        self.head_left = self._max_head = max_head
        self._skip_payload = not has_body
        self._came = 0
        if self._wide:
            self._buffer_in_kernel(NARROW)
            self._wide = False
        transport = self.transport
        if transport is None or transport.is_closing():
            raise aiohttp.ClientConnectionResetError("the connection was closed before anything was written")
        self._parse_anew()
        transport.write(head + body if body else head)
        self.sent_at = time.monotonic()

    def _parse_anew(self) -> None:
        self.set_response_params(
            skip_payload=self._skip_payload,
            read_until_eof=True,
            auto_decompress=False,
            read_bufsize=READ_AHEAD,
            max_line_size=self._max_head,
            max_field_size=self._max_head,
            max_headers=MAX_FIELDS,
        )

    def resume_writing(self) -> None:
        """Record that a long body was written, all but its end: the request counts as sent only now."""
        super().resume_writing()
        if self.sent_at is not None:
            self.sent_at = time.monotonic()

    async def answer(self, deadline: float) -> tuple[RawResponseMessage, StreamReader]:
        """Wait until `deadline` (loop time) for the response's head. Skips interim responses (103 …)."""
        self._due = deadline
        if self._wakeup is None or self._wakeup.when() > deadline:
            self._stop_bell()
            self._wakeup = self._loop.call_at(deadline, self._ring)
        try:
            while True:
                message, content = await self.read()
                if not 100 <= message.code < 200 or message.code == 101:
                    return message, content
        finally:
            self._due = None

    def _ring(self) -> None:
        self._wakeup = None
        if self._due is None:
            return
        late = self._loop.time() - self._due
        if late >= STOOD_STILL:  # this program was suspended: data received meanwhile is still unread
            self._due += late + STOOD_STILL / 2
        elif late >= 0:
            self.set_exception(TimeoutError())
            return
        # Otherwise the timer was set for an earlier response.
        self._wakeup = self._loop.call_at(self._due, self._ring)

    def _stop_bell(self) -> None:
        if self._wakeup is not None:
            self._wakeup.cancel()
            self._wakeup = None

    @property
    def is_reusable(self) -> bool:
        """Return whether another request may use the connection: nothing is left to read or to write."""
        transport = self.transport
        if transport is None or transport.is_closing() or transport.get_write_buffer_size():
            return False
        return not self.should_close

    def has_news(self) -> bool:
        """Return whether data or a close has arrived that the event loop has not processed yet."""
        if self._look is None:
            assert self.transport is not None
            self._look = _looker(self.transport.get_extra_info("socket").fileno())
        return self._look(0) != []

    def drop(self) -> None:
        """Close the connection and its aiohttp handle."""
        if self.connection is not None:
            self.connection.close()
            self.connection = None

    def close(self) -> None:
        """Close the connection. Aborts it if data is unwritten, to free the memory of a long body."""
        transport = self.transport
        # A TLS transport that is closing has no buffer any more.
        if transport is not None and not transport.is_closing() and transport.get_write_buffer_size():
            self.abort()
        else:
            super().close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Set the receive buffer. A buffer set before connecting would limit for good how far it can grow."""
        super().connection_made(transport)
        self._buffer_in_kernel(NARROW)

    def widen(self) -> None:
        """Enlarge the receive buffer for a wanted stream."""
        self._wide = True
        self._buffer_in_kernel(WIDE)

    def _buffer_in_kernel(self, size: int) -> None:
        made = None if self.transport is None else self.transport.get_extra_info("socket")
        if made is not None:
            with contextlib.suppress(OSError):  # the connection may be closed already
                made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, size)

    def data_received(self, data: bytes) -> None:
        """Process received data. aiohttp limits header lines and their number, but not the bytes outside the body."""
        if self._in_head:
            self.head_left -= len(data)
            self._head.append(data)
            super().data_received(data)
            if self._in_head and self.head_left < 0:
                self._in_head = False
                self._give_up(HeadTooLarge())
            return
        body = self._payload
        if self.sent_at is not None and (body is None or body.is_eof()):
            if data and self.transport is not None:  # unrequested data, which must not answer the next request
                self.force_close()
                self.transport.abort()
            return
        self._came += len(data)
        super().data_received(data)
        if body is not None and not body.is_eof() and self._came - 2 * body.total_bytes > MAX_FRAMING:
            self._give_up(HttpProcessingError(message=f"more than {MAX_FRAMING:,} bytes are not the body"))

    def _give_up(self, why: Exception) -> None:
        self.set_exception(why)
        if self.transport is not None:
            self.transport.abort()

    def feed_data(self, data: tuple[Any, StreamReader], size: int = 0) -> None:
        """Record a complete head; after an interim response (103 …), the final one is still to come."""
        if not 100 <= data[0].code < 200:
            self._in_head = False
            self._head.clear()
        super().feed_data(data, size)

    def set_exception(self, exc: BaseException, *cause: BaseException) -> None:
        """Fail the response. aiohttp fails only the waiter for a head; the reader of a body would hang (F08).

        If the body is complete, the error concerns later data, which is ignored (RFC 9112, 6.3).
        """
        if isinstance(exc, HttpProcessingError) and self._in_head and self._head:
            self._read_again()
        super().set_exception(exc, *cause)
        body = self._payload
        if body is not None and not body.is_eof() and body.exception() is None:
            body.set_exception(exc, *cause)

    def _read_again(self) -> None:
        """Parse the head separately: aiohttp drops a head if the data received with it is invalid."""
        came = b"".join(self._head).lstrip(b"\r\n")
        self._head.clear()
        self._parse_anew()
        begun = 0
        for end in _HEAD_END.finditer(came):
            super().data_received(came[begun : end.end()])
            begun = end.end()
            if not self._in_head:
                super().data_received(came[begun:])
                return
            if self._exception is not None:
                return

    def eof_received(self) -> None:
        """Record the end of the peer's data. Under TLS it must be authenticated: an attacker can forge a FIN."""
        transport = self.transport
        is_open = transport is not None and not transport.is_closing()
        tls = transport.get_extra_info("ssl_object") if transport is not None and is_open else None
        try:
            self._has_ended = tls is None or not tls.read(1)
        except ssl.SSLError:
            self._has_ended = False
        super().eof_received()

    def connection_lost(self, exc: BaseException | None) -> None:
        """Handle a lost connection. aiohttp would take it for the end of a body without a length."""
        body = self._payload
        if body is not None and not body.is_eof() and (exc is not None or not self._has_ended):
            if body.exception() is None:
                body.set_exception(aiohttp.ClientPayloadError("the connection broke"))
            self._payload = None  # otherwise aiohttp would set another error
        super().connection_lost(exc)
        self._stop_bell()
        self._lost(self)


class _Connector(aiohttp.TCPConnector):
    """Connector that records when a tunnel is open: later failures are not the proxy's."""

    async def _start_tls_connection(
        self, *args: Any, **options: Any
    ) -> tuple[asyncio.BaseTransport, ResponseHandler]:  # fmt: skip
        AT_PROXY.set(False)
        return await super()._start_tls_connection(*args, **options)


class Connections:
    """Pool of connections, with or without the address guard. Created and used within one event loop."""

    def __init__(
        self,
        *,
        guarded: bool,
        verify: ssl.SSLContext | bool,
        resolver: AbstractResolver,
        most_idle: int,
        keep_alive: float = KEEP_ALIVE,
    ) -> None:
        loop = self._loop = asyncio.get_running_loop()
        self._idle: dict[Wire, None] = {}
        """Idle connections, longest idle first."""

        self._kept: dict[Place, list[Wire]] = {}
        """Idle connections by destination, last used last."""

        self._sweeping: asyncio.TimerHandle | None = None
        self._most_idle = most_idle
        self._keep_alive = keep_alive
        connector = self._connector = _Connector(
            resolver=GuardedResolver(resolver) if guarded else resolver,
            socket_factory=guarded_socket if guarded else open_socket,
            ssl=verify,
            limit=0,  # the sender limits requests in flight, so that waiting does not count as the site's time
            ttl_dns_cache=DNS_TTL,
        )

        def wire() -> ResponseHandler:
            return Wire(loop, self._forget)

        connector._factory = partial(wire)
        # Request object that identifies a destination for aiohttp. Only a proxy's CONNECT is sent from it.
        self._request_to = lru_cache(maxsize=1024)(partial(_request_to, loop))

    async def locate(self, host: str, port: int) -> str:
        """Return the smallest network of a host's addresses. The lookup is cached for the next connection."""
        found = await self._connector._resolve_host(host, port)
        return min(network_of(each["host"]) for each in found)

    def reuse(self, place: Place) -> Wire | None:
        """Return an idle connection to a destination, or None. The caller must give it back."""
        kept = self._kept.get(place)
        while kept:
            wire = kept[-1]
            self._take_out(wire)
            if wire.is_reusable and (self._loop.time() - wire.idle_since > LATELY or not wire.has_news()):
                return wire
            wire.drop()
        return None

    async def open(self, place: Place, timeout: float) -> Wire:
        """Open a connection to a destination. The caller must give it back."""
        AT_PROXY.set(place[1] is not None)
        if self._connector.closed:
            raise aiohttp.ClientConnectionError("the connections were closed")
        try:
            connection = await self._connector.connect(self._request_to(*place), [], _connect_limit(timeout))
        except TimeoutError as error:
            raise aiohttp.ConnectionTimeoutError from error
        wire = connection.protocol
        assert isinstance(wire, Wire)
        wire.place, wire.connection = place, connection
        return wire

    def give_back(self, wire: Wire, *, well: bool) -> None:
        """Keep a connection if the exchange succeeded (`well`). Closes the longest idle one above the limit."""
        if not well or not wire.is_reusable or self._connector.closed:
            wire.drop()
            return
        wire.idle_since = self._loop.time()
        self._idle[wire] = None
        self._kept.setdefault(wire.place, []).append(wire)
        if len(self._idle) > self._most_idle:
            self._forget(next(iter(self._idle)))
        if self._sweeping is None:
            self._sweeping = self._loop.call_later(self._keep_alive, self._sweep)

    def _take_out(self, wire: Wire) -> None:
        del self._idle[wire]
        kept = self._kept[wire.place]
        kept.remove(wire)
        if not kept:
            del self._kept[wire.place]

    def _forget(self, wire: Wire) -> None:
        """Close a connection if it is idle."""
        if wire in self._idle:
            self._take_out(wire)
            wire.drop()

    async def shed(self) -> bool:
        """Close all idle connections, to make room. Return whether there were any."""
        if not self._idle:
            return False
        while self._idle:
            self._forget(next(iter(self._idle)))
        for _ in range(2):  # a transport closes its socket one loop iteration later
            await asyncio.sleep(0)
        return True

    def _sweep(self) -> None:
        """Close the connections that have been idle for too long."""
        self._sweeping = None
        while self._idle:
            oldest = next(iter(self._idle))
            left = oldest.idle_since + self._keep_alive - self._loop.time()
            if left > 0:
                self._sweeping = self._loop.call_later(left, self._sweep)
                return
            self._forget(oldest)

    async def close(self) -> None:
        """Close all connections."""
        if self._loop.is_closed():
            for wire in self._idle:
                _close_socket(wire.transport)
            self.abandon()
            return
        while self._idle:
            self._forget(next(iter(self._idle)))
        self._stop_sweeping()
        await self._connector.close()

    def _stop_sweeping(self) -> None:
        if self._sweeping is not None:
            self._sweeping.cancel()
            self._sweeping = None

    def abandon(self) -> None:
        """Leave all connections open: in the child of a fork they belong to the parent.

        Closing them would remove them from the parent's event loop, which shares its epoll with the child's.
        """
        self._stop_sweeping()
        self._connector._closed = True
        for wire in self._idle:
            if wire.connection is not None:
                wire.connection._protocol = None  # otherwise it would be closed when it is collected


def _looker(file: int) -> Callable[[int], list[Any]]:
    """Return a function that waits up to a timeout for readable data.

    It returns an empty list if no data arrives.
    """
    if sys.platform == "win32":
        return lambda wait: select.select([file], [], [], wait)[0]
    poll = select.poll()
    poll.register(file, select.POLLIN)
    return poll.poll


def _close_socket(transport: Any) -> None:
    """Close the socket of a transport whose loop is closed: asyncio's own close needs that loop."""
    if (tls := getattr(transport, "_ssl_protocol", None)) is not None:
        transport._closed = True  # otherwise it warns when it is collected
        transport = tls._transport
    if (made := getattr(transport, "_sock", None)) is not None:
        made.close()
        transport._sock = None


def _request_to(loop: asyncio.AbstractEventLoop, origin: str, proxy: str | None) -> ClientRequest:
    url, through = URL(origin, encoded=True), None if proxy is None else URL(proxy)
    return ClientRequest("GET", url, loop=loop, proxy=through, proxy_headers=None if proxy is None else CIMultiDict())


@lru_cache(maxsize=256)
def _connect_limit(seconds: float) -> aiohttp.ClientTimeout:
    """Return the timeout for name, connection and TLS handshake together; the sender limits the total."""
    return aiohttp.ClientTimeout(total=None, connect=seconds)
