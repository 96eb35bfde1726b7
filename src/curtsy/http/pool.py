"""The open connections of one event loop: aiohttp's connector, without the session above it.

The connector resolves, connects, and speaks TLS and to proxies; its parser reads the answers. What a session adds
(cookies, redirects, retries, tracing, a request and a response object) is not ours to use, and costs more than all the
rest. Two things are ours, because aiohttp has no setting for them:

- `Wire` (a connection) stamps the moment at which a request was handed to the socket, counts the bytes of an answer
  that are not its body, ends one that has no end, and closes when more comes than was asked for.
- `Connections` keeps no more than some idle connections in all, the latest used; aiohttp bounds only the busy ones.
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
"""Header fields in an answer; real sites stay below a hundred."""

MAX_FRAMING = 4 * 1024 * 1024
"""Bytes that are not its body and that an answer may have, besides as many as its body has: the head, the sizes of
chunks and what is said beside them, trailers. Some programs send each byte in a chunk of its own, which is six: so a
page of a megabyte can come."""

KEEP_ALIVE = 30.0
"""Seconds for which an idle connection is kept: a few turns of a polite pace."""

READ_AHEAD = 65_536
"""Bytes that aiohttp keeps ready: a quarter of its default, for what lies there was taken from a site, too."""

NARROW = 65_536
WIDE = 4 * 1024 * 1024
"""Bytes that the kernel takes ahead of us: few of a body that may have to be given up, many of a stream that is wanted.

By itself the kernel goes up to many megabytes, all of them taken from a site though nobody reads them (F03, F28)."""

STOOD_STILL = 1.0
"""Seconds that a timer may be late before it says nothing of the other side, but that this program was stopped."""

DNS_TTL = 60
"""Seconds for which an address is remembered."""

LATELY = 1.0
"""Seconds after which a kept connection is used without a look whether it was closed: the event loop has looked."""

_HEAD_END = re.compile(rb"\n\r?\n")

Place = tuple[str, str | None]
"""An origin, and the proxy that it is reached by."""


AT_PROXY: ContextVar[bool] = ContextVar("AT_PROXY", default=False)
"""Whether the connection that this task opened last has come no further than to its proxy."""


class HeadTooLarge(aiohttp.ClientError):
    """The head of an answer, with all interim answers before it, is larger than allowed."""


class Wire(ResponseHandler):
    """A connection that stamps what leaves, and gives up on heads without end."""

    def __init__(self, loop: asyncio.AbstractEventLoop, lost: Callable[[Wire], None]) -> None:
        super().__init__(loop)
        self._lost = lost
        self.place: Place = "", None
        """Where it leads to."""

        self.connection: Connection | None = None
        """What aiohttp holds it by."""

        self.idle_since = 0.0
        self._in_head = False
        self._wide = False
        self.sent_at: float | None = None
        """When the last request was written, by `time.monotonic()`; None if it was not."""

        self.head_left = 0
        """Bytes of head that may still come; not below 0 if all that came with it was small enough, too."""

        self._max_head = 0
        self._head: list[bytes] = []
        """What has come of a head that is not complete."""

        self._came = 0
        """Bytes that have come of the answer since."""

        self._has_ended = False
        """Whether the other side has said that it ends here."""

        self._look: Callable[[int], list[Any]] | None = None

        self._due: float | None = None
        """When the answer that is waited for must be there, by the loop's time."""

        self._wakeup: asyncio.TimerHandle | None = None
        """Rings when that is over. It goes on from one answer to the next, for to set one for each takes longer."""

    def send(self, head: bytes, body: bytes | None, *, max_head: int, has_body: bool) -> None:
        """Write a request; an answer of at most `max_head` bytes of head may come, with a body or surely without.

        The stamp is set after the write, not before: a pause counted from it is then never too short.
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
        """A long body has gone out, all but its end: only now is its request sent."""
        super().resume_writing()
        if self.sent_at is not None:
            self.sent_at = time.monotonic()

    async def answer(self, deadline: float) -> tuple[RawResponseMessage, StreamReader]:
        """Wait for the head of the answer, by the loop's time; interim ones (103 …) are passed over."""
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
        if late >= STOOD_STILL:  # it was this program that did: what came meanwhile is still to be read
            self._due += late + STOOD_STILL / 2
        elif late >= 0:
            self.set_exception(TimeoutError())
            return
        # Else it was set for an answer that came.
        self._wakeup = self._loop.call_at(self._due, self._ring)

    def _stop_bell(self) -> None:
        if self._wakeup is not None:
            self._wakeup.cancel()
            self._wakeup = None

    @property
    def is_reusable(self) -> bool:
        """Whether another request may go over it: nothing is left to be read, or to be written."""
        transport = self.transport
        if transport is None or transport.is_closing() or transport.get_write_buffer_size():
            return False
        return not self.should_close

    def has_news(self) -> bool:
        """Whether something came over it, or it was closed, that the event loop has not seen yet."""
        if self._look is None:
            assert self.transport is not None
            self._look = _looker(self.transport.get_extra_info("socket").fileno())
        return self._look(0) != []

    def drop(self) -> None:
        """Close it."""
        if self.connection is not None:
            self.connection.close()
            self.connection = None

    def close(self) -> None:
        """Close it; what is not written yet is not worth keeping it, and the memory of a long body, for."""
        transport = self.transport
        # One of TLS that is closing already has forgotten its buffer.
        if transport is not None and not transport.is_closing() and transport.get_write_buffer_size():
            self.abort()
        else:
            super().close()

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
        """Take what came. aiohttp limits each line and their number, but not their sum, nor what is not the body."""
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
            if data and self.transport is not None:  # more than was asked for, which is no answer to what is asked next
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
        """An answer's head is complete; after an interim one (103 …) the real one is still to come."""
        if not 100 <= data[0].code < 200:
            self._in_head = False
            self._head.clear()
        super().feed_data(data, size)

    def set_exception(self, exc: BaseException, *cause: BaseException) -> None:
        """The answer cannot be read. aiohttp tells whoever waits for a head; a body's reader would wait on (F08).

        If all of it has come, it is what follows that cannot be read, and that is passed over (RFC 9112, 6.3).
        """
        if isinstance(exc, HttpProcessingError) and self._in_head and self._head:
            self._read_again()
        super().set_exception(exc, *cause)
        body = self._payload
        if body is not None and not body.is_eof() and body.exception() is None:
            body.set_exception(exc, *cause)

    def _read_again(self) -> None:
        """Read the head by itself: aiohttp says nothing of one if what came with it cannot be read."""
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
        """The other side ends here; under TLS only if it says so itself, for anybody can end a connection."""
        transport = self.transport
        is_open = transport is not None and not transport.is_closing()
        tls = transport.get_extra_info("ssl_object") if transport is not None and is_open else None
        try:
            self._has_ended = tls is None or not tls.read(1)
        except ssl.SSLError:
            self._has_ended = False
        super().eof_received()

    def connection_lost(self, exc: BaseException | None) -> None:
        """The connection is gone. aiohttp would take that for the end of a body that has no announced length."""
        body = self._payload
        if body is not None and not body.is_eof() and (exc is not None or not self._has_ended):
            if body.exception() is None:
                body.set_exception(aiohttp.ClientPayloadError("the connection broke"))
            self._payload = None  # else aiohttp would say something else of it
        super().connection_lost(exc)
        self._stop_bell()
        self._lost(self)


class _Connector(aiohttp.TCPConnector):
    """A connector that notes when a tunnel is there: what fails later is no failure of the proxy's."""

    async def _start_tls_connection(
        self, *args: Any, **options: Any
    ) -> tuple[asyncio.BaseTransport, ResponseHandler]:  # fmt: skip
        AT_PROXY.set(False)
        return await super()._start_tls_connection(*args, **options)


class Connections:
    """A pool of connections, guarded or open. Made and used within one event loop."""

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
        """The idle ones, the longest idle first."""

        self._kept: dict[Place, list[Wire]] = {}
        """The same by where they lead to, the last used last."""

        self._sweeping: asyncio.TimerHandle | None = None
        self._most_idle = most_idle
        self._keep_alive = keep_alive
        connector = self._connector = _Connector(
            resolver=GuardedResolver(resolver) if guarded else resolver,
            socket_factory=guarded_socket if guarded else open_socket,
            ssl=verify,
            limit=0,  # the sender counts those in flight, so that waiting for one is no time of the site's
            ttl_dns_cache=DNS_TTL,
        )

        def wire() -> ResponseHandler:
            return Wire(loop, self._forget)

        connector._factory = partial(wire)
        # What aiohttp knows a place to connect to by. Nothing of it is sent but the CONNECT to a proxy.
        self._request_to = lru_cache(maxsize=1024)(partial(_request_to, loop))

    async def locate(self, host: str, port: int) -> str:
        """The network of a host, the least of several. It is remembered for the connection that is opened next."""
        found = await self._connector._resolve_host(host, port)
        return min(network_of(each["host"]) for each in found)

    def reuse(self, place: Place) -> Wire | None:
        """A kept connection to a place, if there is one. It must be given back."""
        kept = self._kept.get(place)
        while kept:
            wire = kept[-1]
            self._take_out(wire)
            if wire.is_reusable and (self._loop.time() - wire.idle_since > LATELY or not wire.has_news()):
                return wire
            wire.drop()
        return None

    async def open(self, place: Place, timeout: float) -> Wire:
        """A new connection to a place. It must be given back."""
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
        """Keep a connection if all went well, and close the longest idle if there are too many."""
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
        """Close an idle connection, if it is one."""
        if wire in self._idle:
            self._take_out(wire)
            wire.drop()

    async def shed(self) -> bool:
        """Close all idle connections, to make room; whether there were any."""
        if not self._idle:
            return False
        while self._idle:
            self._forget(next(iter(self._idle)))
        for _ in range(2):  # a transport lets go of its socket a turn of the loop later
            await asyncio.sleep(0)
        return True

    def _sweep(self) -> None:
        """Close what has been idle for too long."""
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
        """Leave all connections as they are: in the child of a fork they are the parent's.

        Closing them would take them out of the parent's event loop, which shares its epoll with ours.
        """
        self._stop_sweeping()
        self._connector._closed = True
        for wire in self._idle:
            if wire.connection is not None:
                wire.connection._protocol = None  # else it would be closed when it is collected


def _looker(file: int) -> Callable[[int], list[Any]]:
    """A function that waits so long for something to read, and answers a list that is empty if there is nothing."""
    if sys.platform == "win32":
        return lambda wait: select.select([file], [], [], wait)[0]
    poll = select.poll()
    poll.register(file, select.POLLIN)
    return poll.poll


def _close_socket(transport: Any) -> None:
    """Close the socket of a transport whose loop has ended: asyncio's own way would wait for that loop."""
    if (tls := getattr(transport, "_ssl_protocol", None)) is not None:
        transport._closed = True  # else it complains of that when it is collected
        transport = tls._transport
    if (made := getattr(transport, "_sock", None)) is not None:
        made.close()
        transport._sock = None


def _request_to(loop: asyncio.AbstractEventLoop, origin: str, proxy: str | None) -> ClientRequest:
    url, through = URL(origin, encoded=True), None if proxy is None else URL(proxy)
    return ClientRequest("GET", url, loop=loop, proxy=through, proxy_headers=None if proxy is None else CIMultiDict())


@lru_cache(maxsize=256)
def _connect_limit(seconds: float) -> aiohttp.ClientTimeout:
    """The time for name, connection and TLS handshake together; the time of the whole is kept by the sender."""
    return aiohttp.ClientTimeout(total=None, connect=seconds)
