"""The open connections of one event loop: aiohttp's connector, without the session above it.

The connector resolves, connects, speaks TLS and to proxies, and keeps connections; its parser reads the answers. What a
session adds (cookies, redirects, retries, tracing, a request and a response object) is not ours to use, and costs more
than all the rest. Two things are taught by a small subclass each, because aiohttp has no setting for them:

- `Wire` (a connection) stamps the moment at which a request was handed to the socket, counts the bytes of a head,
  interim answers included, and ends one that has no end.
- `Connections` keeps no more than some idle connections in all, the latest used; aiohttp bounds only the busy ones.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import time
from functools import lru_cache, partial
from typing import Any

import aiohttp
from aiohttp import ClientRequest
from aiohttp.abc import AbstractResolver
from aiohttp.client_proto import ResponseHandler
from aiohttp.connector import Connection
from aiohttp.http import RawResponseMessage
from aiohttp.streams import StreamReader
from multidict import CIMultiDict
from yarl import URL

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


class Wire(ResponseHandler):
    """A connection that stamps what leaves, and gives up on heads without end."""

    def __init__(self, loop: asyncio.AbstractEventLoop, idle: dict[Wire, None]) -> None:
        super().__init__(loop)
        self._idle = idle
        self._in_head = False
        self._wide = False
        self.sent_at: float | None = None
        """When the last request was written, by `time.monotonic()`; None if it was not."""

        self.head_left = 0
        """Bytes of head that may still come; not below 0 if all that came with it was small enough, too."""

    def send(self, head: bytes, body: bytes | None, *, max_head: int, has_body: bool) -> None:
        """Write a request; an answer of at most `max_head` bytes of head may come, with a body or surely without.

        The stamp is set after the write, not before: a pause counted from it is then never too short.
        """
        self._idle.pop(self, None)
        self.sent_at = None
        self._in_head = True
        self.head_left = max_head
        if self._wide:
            self._buffer_in_kernel(NARROW)
            self._wide = False
        transport = self.transport
        if transport is None or transport.is_closing():
            raise aiohttp.ClientConnectionResetError("the connection was closed before anything was written")
        self.set_response_params(
            skip_payload=not has_body,
            read_until_eof=True,
            auto_decompress=False,
            read_bufsize=READ_AHEAD,
            max_line_size=max_head,
            max_field_size=max_head,
            max_headers=MAX_FIELDS,
        )
        transport.write(head + body if body else head)
        self.sent_at = time.monotonic()

    def resume_writing(self) -> None:
        """A long body has gone out, all but its end: only now is its request sent."""
        super().resume_writing()
        if self.sent_at is not None:
            self.sent_at = time.monotonic()

    async def answer(self, deadline: float) -> tuple[RawResponseMessage, StreamReader]:
        """Wait for the head of the answer, by the loop's time; interim ones (103 …) are passed over."""
        timer = self._loop.call_at(deadline, self.set_exception, TimeoutError())
        try:
            while True:
                message, content = await self.read()
                if not 100 <= message.code < 200 or message.code == 101:
                    return message, content
        finally:
            timer.cancel()

    @property
    def is_reusable(self) -> bool:
        """Whether another request may go over it: nothing is left to be read, or to be written."""
        is_written = self.transport is None or not self.transport.get_write_buffer_size()
        return is_written and not self.should_close

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
        # What aiohttp knows a place to connect to by. Nothing of it is sent but the CONNECT to a proxy.
        self._place = lru_cache(maxsize=1024)(partial(_place, loop))

    async def open(self, origin: str, proxy: str | None, timeout: float) -> tuple[Connection, Wire]:
        """A connection to an origin, kept or new. It must be given back."""
        while True:
            if self._connector.closed:
                raise aiohttp.ClientConnectionError("the connections were closed")
            try:
                connection = await self._connector.connect(self._place(origin, proxy), [], _connect_limit(timeout))
            except TimeoutError as error:
                raise aiohttp.ConnectionTimeoutError from error
            wire = connection.protocol
            assert isinstance(wire, Wire)
            is_new = wire.sent_at is None
            if is_new or not wire.should_close:
                return connection, wire
            connection.close()  # something came over it while it was idle: that is no answer to what is asked now

    def give_back(self, connection: Connection, wire: Wire, *, well: bool) -> None:
        """Keep a connection if all went well, and close the longest idle if there are too many."""
        if not well or not wire.is_reusable:
            connection.close()
            return
        connection.release()
        if wire.is_connected():
            self._idle[wire] = None
            if len(self._idle) > self._most_idle:
                oldest = next(iter(self._idle))
                del self._idle[oldest]
                oldest.close()

    async def close(self) -> None:
        """Close all connections."""
        await self._connector.close()

    def abandon(self) -> None:
        """Leave all connections as they are, in the child of a fork: they are the parent's.

        Closing them would take them out of the parent's event loop, which shares its epoll with ours.
        """
        self._connector._closed = True


def _place(loop: asyncio.AbstractEventLoop, origin: str, proxy: str | None) -> ClientRequest:
    url, through = URL(origin, encoded=True), None if proxy is None else URL(proxy)
    return ClientRequest("GET", url, loop=loop, proxy=through, proxy_headers=None if proxy is None else CIMultiDict())


@lru_cache(maxsize=256)
def _connect_limit(seconds: float) -> aiohttp.ClientTimeout:
    """The time for name, connection and TLS handshake together; the time of the whole is kept by the sender."""
    return aiohttp.ClientTimeout(total=None, connect=seconds)
