"""The open connections of one event loop: aiohttp's session, taught what it does not do by itself.

Three things are taught by a small subclass each, because aiohttp has no setting for them:

- `Hop` (a request) stamps the moment at which the head was handed to the socket, and nothing is stamped if it was not.
- `Wire` (a connection) counts the bytes of a head, interim answers included, and ends one that has no end.
- `Connections` keeps no more than some idle connections in all, the latest used; aiohttp bounds only the busy ones.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import time
from contextvars import ContextVar
from functools import lru_cache, partial
from typing import Any

import aiohttp
from aiohttp import ClientRequest, ClientResponse
from aiohttp.abc import AbstractResolver, AbstractStreamWriter
from aiohttp.client_proto import ResponseHandler
from aiohttp.connector import Connection
from aiohttp.streams import StreamReader

from curtsy.address import GuardedResolver, guarded_socket

MAX_FIELDS = 1000
"""Header fields in an answer; real sites stay below a hundred."""

KEEP_ALIVE = 30.0
"""Seconds for which an idle connection is kept: a few turns of a polite pace."""

READ_AHEAD = 65_536
"""Bytes that aiohttp keeps ready: a quarter of its default, for what lies there was taken from a site, too."""

NARROW = 65_536
WIDE = 4 * 1024 * 1024
"""Bytes that the kernel takes ahead of us: few of a body that may have to be given up, many of a stream that is wanted.

By itself the kernel goes up to many megabytes, all of them taken from a site though nobody reads them (F03, F28)."""

DNS_TTL = 60
"""Seconds for which an address is remembered."""


class HeadTooLarge(aiohttp.ClientError):
    """The head of an answer, with all interim answers before it, is larger than allowed."""


class Departure:
    """What its connection tells of one request."""

    __slots__ = ("max_head", "sent_at", "wire")

    def __init__(self, max_head: int) -> None:
        self.max_head = max_head
        self.sent_at: float | None = None
        """When the request was written, by `time.monotonic()`; None if it was not."""

        self.wire: Wire | None = None
        """The connection that it went over."""


DEPARTING: ContextVar[Departure] = ContextVar("curtsy.departing")
"""The departure of the present task: aiohttp makes its request objects itself and hands nothing through to them."""


class Hop(ClientRequest):
    """A request that stamps its departure when it is written."""

    async def send(self, conn: Connection) -> ClientResponse:
        """Write the request. After the write, not before: a pause counted from the stamp is then never too short."""
        departure = DEPARTING.get()
        if isinstance(conn.protocol, Wire):
            conn.protocol.begin(departure)
        answer = await super().send(conn)
        departure.sent_at = time.monotonic()
        return answer

    async def write_bytes(
        self, writer: AbstractStreamWriter, conn: Connection, content_length: int | None = None
    ) -> None:
        """Write a request with a body, which aiohttp does in a task of its own, after `send()`."""
        await super().write_bytes(writer, conn, content_length)
        DEPARTING.get().sent_at = time.monotonic()


class Wire(ResponseHandler):
    """A connection that gives up on heads without end."""

    def __init__(self, loop: asyncio.AbstractEventLoop, idle: dict[Wire, None]) -> None:
        super().__init__(loop)
        self._idle = idle
        self._in_head = False
        self._wide = False
        self.departure: Departure | None = None
        """The last request that went over it."""

        self.head_left = 0
        """Bytes of head that may still come; not below 0 if all that came with it was small enough, too."""

    def begin(self, departure: Departure) -> None:
        """A request goes out: an answer of at most `max_head` bytes of head may come."""
        self._idle.pop(self, None)
        self._in_head = True
        self.head_left = departure.max_head
        if self._wide:
            self._buffer_in_kernel(NARROW)
            self._wide = False
        self.departure = departure
        departure.wire = self

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The connection is there. Only now: a buffer set before would bound for good how far it can be widened."""
        super().connection_made(transport)
        self._buffer_in_kernel(NARROW)

    def widen(self) -> None:
        """A stream comes that is wanted: let it come as fast as it can."""
        self._wide = True
        self._buffer_in_kernel(WIDE)

    def _buffer_in_kernel(self, size: int) -> None:
        made = None if self.transport is None else self.transport.get_extra_info("socket")
        if made is not None:
            with contextlib.suppress(OSError):  # the connection may be gone already
                made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, size)

    def data_received(self, data: bytes) -> None:
        """Take what came. aiohttp limits each line and their number, but not their sum, nor interim answers."""
        if self._in_head:
            self.head_left -= len(data)
        super().data_received(data)
        if self._in_head and self.head_left < 0:
            self._in_head = False
            self.set_exception(HeadTooLarge())
            if self.transport is not None:
                self.transport.abort()

    def feed_data(self, data: tuple[Any, StreamReader], size: int = 0) -> None:
        """An answer's head is complete; after an interim one (103 …) the real one is still to come."""
        if not 100 <= data[0].code < 200:
            self._in_head = False
        super().feed_data(data, size)

    def set_exception(self, exc: BaseException, *cause: BaseException) -> None:
        """The answer cannot be read. aiohttp tells whoever waits for a head; a body's reader would wait on (F08)."""
        super().set_exception(exc, *cause)
        body = self._payload
        if body is not None and not body.is_eof() and body.exception() is None:
            body.set_exception(exc, *cause)

    def connection_lost(self, exc: BaseException | None) -> None:
        """The connection is gone. aiohttp would take a reset for the end of a body that has no announced length."""
        self._idle.pop(self, None)
        body = self._payload
        if exc is not None and body is not None and not body.is_eof() and body.exception() is None:
            body.set_exception(aiohttp.ClientPayloadError("the connection broke"), exc)
        super().connection_lost(exc)


class Connections:
    """A pool of connections, guarded or open. Made and used within one event loop."""

    def __init__(
        self, *, guarded: bool, verify: ssl.SSLContext | bool, resolver: AbstractResolver, most_idle: int
    ) -> None:
        loop = asyncio.get_running_loop()
        idle: dict[Wire, None] = {}

        def wire() -> ResponseHandler:
            return Wire(loop, idle)

        self._idle = idle
        self._most_idle = most_idle
        connector = self._connector = aiohttp.TCPConnector(
            resolver=GuardedResolver(resolver) if guarded else resolver,
            socket_factory=guarded_socket if guarded else None,
            ssl=verify,
            limit=0,  # the sender counts those in flight, so that waiting for one is no time of the site's
            keepalive_timeout=KEEP_ALIVE,
            ttl_dns_cache=DNS_TTL,
        )
        connector._factory = partial(wire)
        self.session = aiohttp.ClientSession(
            connector=connector,
            cookie_jar=aiohttp.DummyCookieJar(),
            request_class=Hop,
            auto_decompress=False,
            raise_for_status=False,
            max_headers=MAX_FIELDS,
            read_bufsize=READ_AHEAD,
        )
        # aiohttp would send a GET a second time, unseen, if the first found its connection closed (RFC 9110, 9.2.2).
        # Every request has to be admitted and counted, so asking again is the flow's decision.
        self.session._retry_connection = False

    def settle(self, departure: Departure, *, well: bool) -> None:
        """Keep an exchange's connection if all went well, and close the longest idle if there are too many."""
        wire = departure.wire
        # aiohttp frees a connection with the last byte of a body; it may be on its way with another request by now.
        if wire is None or wire.departure is not departure:
            return
        if not well:
            wire.close()
        elif wire.is_connected():
            self._idle[wire] = None
            if len(self._idle) > self._most_idle:
                oldest = next(iter(self._idle))
                del self._idle[oldest]
                oldest.close()

    async def close(self) -> None:
        """Close all connections."""
        await self.session.close()

    def abandon(self) -> None:
        """Leave all connections as they are, in the child of a fork: they are the parent's.

        Closing them would take them out of the parent's event loop, which shares its epoll with ours.
        """
        self.session.detach()
        self._connector._closed = True


@lru_cache(maxsize=256)
def connect_limit(seconds: float) -> aiohttp.ClientTimeout:
    """The time for name, connection and TLS handshake together; the time of the whole is kept by the sender."""
    return aiohttp.ClientTimeout(total=None, connect=seconds)
