"""HTTP/1.1 client connection: writes a request, and passes what is received to the reader of its response."""

from __future__ import annotations

import asyncio
import contextlib
import math
import select
import socket
import sys
import time
from collections.abc import Callable
from typing import Any

import msgspec

from curtsy.core.errors import Reason
from curtsy.core.request import Headers
from curtsy.core.url import Url
from curtsy.http.response import NO_RESPONSE, ReplyError, ResponseReader
from curtsy.http.tls import has_ended_safely

READ_AHEAD = 65_536
"""Unread bytes of a body above which reading pauses, because buffered data also costs the site traffic."""

NARROW = 65_536
WIDE = 4 * 1024 * 1024
"""Receive buffers in bytes: small for a body that may be abandoned, large for a wanted stream.

By default, the kernel buffers many megabytes, all sent by the site even if they are never read (F03, F28).
"""

STOOD_STILL = 1.0
"""Seconds of a timer's delay above which this program was suspended and the peer is not to blame."""


class Route(msgspec.Struct, frozen=True, gc=False):
    """Way to a server. Requests with the same route may use the same connection."""

    scheme: str
    host: str
    port: int
    proxy: Url | None
    """Proxy to reach the server by; None for a direct connection."""

    guarded: bool
    """True if the address guard applies. A guarded request uses no connection that was opened without the guard."""


class Connection(asyncio.BufferedProtocol):
    """Connection to a server or to its proxy. It carries one request at a time."""

    def __init__(
        self, opened: socket.socket, route: Route, lost: Callable[[Connection], None], buffer: memoryview
    ) -> None:
        """`opened` is the socket of the transport. `lost` is called when the connection is closed, by either side.

        `buffer` is for received data. All connections of an event loop share it, because each takes its data at once.
        Otherwise, asyncio allocates 256 KiB for each read, by two system calls or more.
        """
        self._buffer = buffer
        self.route = route
        self._socket = opened
        self._lost = lost
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self.response = NO_RESPONSE
        """Response to the present request."""

        self.sent_at: float | None = None
        """Time of the present request's write, by `time.monotonic()`; None if it was not written."""

        self.idle_since = 0.0
        """Loop time at which the pool took the connection back."""

        self._taken = 0
        """Bytes of the response's body that were read."""

        self._is_paused = False
        self._is_wide = False
        self._is_lost = False
        """True if the peer closed the connection, or sent data that no request asked for."""

        self._waiter: asyncio.Future[bool] | None = None
        self._until = math.inf
        """Loop time at which the present wait ends."""

        self._timer: asyncio.TimerHandle | None = None
        """Timer for that time. It is reused for later waits, because a timer for each wait takes longer."""

        self._timer_at = math.inf
        """Loop time of the timer; infinite without one."""

        self._poll: Callable[[int], list[Any]] | None = None

    def start(self, transport: asyncio.Transport) -> None:
        """Use a transport: the first one, or that of TLS in a tunnel."""
        self._transport = transport
        # A buffer set before connecting would limit for good how far it can grow.
        self._set_receive_buffer(NARROW)

    @property
    def transport(self) -> asyncio.Transport:
        """Transport of the connection."""
        assert self._transport is not None, "the connection has not started"
        return self._transport

    def send(self, head: bytes, body: bytes | None, *, max_head: int, has_body: bool) -> None:
        """Write a request. The response may have `max_head` bytes of head, and a body if `has_body`.

        The time is recorded after the write, so that a pause counted from it is never too short. Raises ReplyError if
        the connection is closed.
        """
        self.sent_at = None
        if self._is_wide:
            self._set_receive_buffer(NARROW)
            self._is_wide = False
        transport = self._transport
        assert transport is not None, "the connection has not started"
        if self._is_lost or transport.is_closing():
            raise ReplyError(Reason.CONNECTION_ERROR, "the connection was closed before anything was written")
        self.response, self._taken = ResponseReader(max_head, has_body), 0
        transport.write(head + body if body else head)
        self.sent_at = time.monotonic()

    def resume_writing(self) -> None:
        """Record that a long body was written, all but its end: the request counts as sent only now."""
        if self.sent_at is not None:
            self.sent_at = time.monotonic()

    async def read_head(self, deadline: float) -> Headers:
        """Return the response's header fields. Raises TimeoutError at `deadline` (loop time), and ReplyError."""
        response = self.response
        while response.headers is None:
            if response.error is not None:
                raise response.error
            if not await self._input_until(deadline):
                late = self._loop.time() - deadline
                if late < STOOD_STILL:
                    raise TimeoutError
                deadline += late + STOOD_STILL / 2  # this program was suspended: received data is still unread
        return response.headers

    def take(self) -> bytes:
        """Return the received and unread part of the body; empty if there is none."""
        parts = self.response.parts
        if not parts:
            return b""
        part = parts[0] if len(parts) == 1 else b"".join(parts)
        self.response.parts, self._taken = [], self.response.received
        if self._is_paused:
            self._is_paused = False
            if not self.transport.is_closing():
                self.transport.resume_reading()
        return part

    async def read(self, until: float) -> bytes | None:
        """Return the next part of the body; empty at its end, None if nothing arrives until a loop time.

        Raises ReplyError after the last part of an incomplete body.
        """
        response = self.response
        while not response.parts:
            if response.is_complete:
                return b""
            if response.error is not None:
                raise response.error
            if not await self._input_until(until):
                return None
        return self.take()

    def widen(self) -> None:
        """Enlarge the receive buffer for a wanted stream."""
        self._is_wide = True
        self._set_receive_buffer(WIDE)

    @property
    def is_reusable(self) -> bool:
        """Return whether another request may use the connection: nothing is left to read or to write."""
        response, transport = self.response, self._transport
        if transport is None or self._is_lost or not (response.is_reusable and response.is_complete):
            return False
        return not (transport.is_closing() or transport.get_write_buffer_size())

    def rest(self, now: float) -> None:
        """Become idle at a loop time. Drop the response: an idle connection then has fewer objects to collect."""
        self.idle_since, self.response, self._waiter = now, NO_RESPONSE, None

    def is_silent(self) -> bool:
        """Return whether an idle connection is open: no data or close has arrived, processed by the loop or not."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return False
        if self._poll is None:
            self._poll = _poller(self._socket.fileno())
        return not self._poll(0)

    def close(self) -> None:
        """Close the connection. Aborts it if data is unwritten, to free the memory of a long body."""
        transport = self.transport
        # A TLS transport that is closing has no buffer any more.
        if not transport.is_closing() and transport.get_write_buffer_size():
            transport.abort()
        else:
            transport.close()

    def abort(self) -> None:
        """Close the connection at once."""
        self.transport.abort()

    def close_socket(self) -> None:
        """Close the socket of a connection whose event loop is closed."""
        self._socket.close()

    # Callbacks of the transport

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return the buffer for received data."""
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Process received data."""
        response = self.response
        if self._transport is None or self.sent_at is None or response.is_complete:
            self._is_lost = True  # unrequested data, which must not answer the next request
            if self._transport is not None:
                self._transport.abort()
            return
        response.feed(self._buffer[:nbytes])
        if response.error is not None:
            self.abort()
        elif not response.is_complete and response.received - self._taken > READ_AHEAD and not self._is_paused:
            self._is_paused = True
            self._transport.pause_reading()
        self._wake()

    def eof_received(self) -> None:
        """Process the end of the peer's data. The transport closes itself then."""
        if self._transport is not None:
            self.response.end_input(None, is_safe=has_ended_safely(self._transport))
            self._wake()

    def connection_lost(self, exc: Exception | None) -> None:
        """Process the end of the connection."""
        self._is_lost = True
        self.response.end_input(exc, is_safe=False)
        self._wake()
        self._stop_timer()
        self._lost(self)

    def _input_until(self, until: float) -> asyncio.Future[bool]:
        """Return a future of the next input; its result is False if there is none until a loop time."""
        self._until = until
        if until < self._timer_at:
            self._stop_timer()
            self._timer, self._timer_at = self._loop.call_at(until, self._time_out), until
        waiter = self._waiter = self._loop.create_future()
        return waiter

    def _time_out(self) -> None:
        self._timer, self._timer_at = None, math.inf
        if self._waiter is None or self._waiter.done() or self._until == math.inf:
            return
        if self._loop.time() < self._until:  # the timer was set for an earlier wait
            self._timer, self._timer_at = self._loop.call_at(self._until, self._time_out), self._until
        else:
            self._waiter.set_result(False)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer, self._timer_at = None, math.inf

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(True)

    def _set_receive_buffer(self, size: int) -> None:
        with contextlib.suppress(OSError):  # the connection may be closed already
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, size)


def _poller(file: int) -> Callable[[int], list[Any]]:
    """Return a function that waits up to a timeout for input, and returns an empty list if there is none."""
    if sys.platform == "win32":
        return lambda wait: select.select([file], [], [], wait)[0]
    poll = select.poll()
    poll.register(file, select.POLLIN)
    return poll.poll
