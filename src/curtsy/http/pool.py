"""Connections of one event loop: opened directly or through a proxy, and kept for the next request."""

from __future__ import annotations

import asyncio
import math
import ssl
from collections.abc import AsyncGenerator

from curtsy.core.errors import Reason
from curtsy.core.url import Url
from curtsy.http.address import Names, Resolver, connect, network_of, permitted
from curtsy.http.connection import Connection, Route
from curtsy.http.headers import connect_head
from curtsy.http.response import ReplyError
from curtsy.http.slots import Slots
from curtsy.http.tls import system_context

KEEP_ALIVE = 30.0
"""Seconds for which an idle connection is kept: a few requests at a polite pace."""

BUFFER = 262_144
"""Bytes that one read of a connection receives at most."""

MAX_TUNNEL_HEAD = 65_536
"""Bytes of head that a proxy's answer to CONNECT may have."""

SLOW = "?"
"""Placeholder address of all names whose lookup exceeds the connect timeout. They share slots, because they may all
have the same address."""


class ConnectTimeout(Exception):
    """No connection within the connect timeout."""


class TunnelRefused(Exception):
    """Answer of a proxy that opens no tunnel."""

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


class ProxyFailed(Exception):
    """Error that occurred before a proxy connected to the server."""

    def __init__(self, error: Exception) -> None:
        super().__init__(error)
        self.error = error


class Pool:
    """Connections of one event loop, created and used within that loop.

    At most `most` requests are in flight, and at most `most_idle` connections are idle, each for at most `keep_alive`
    seconds. `tls` is None for the system's CAs.
    """

    def __init__(
        self, *, most: int, most_idle: int, keep_alive: float, resolver: Resolver, tls: ssl.SSLContext | None
    ) -> None:
        self.slots = Slots(most)
        self.names = Names(resolver)
        self.had_room_at = 0.0
        """Loop time at which a request with a connection last ended."""

        self.is_closed = False
        self._loop = asyncio.get_running_loop()
        self.time = self._loop.time
        self._most_idle = most_idle
        self._keep_alive = keep_alive
        self._tls = tls
        self._idle: dict[Connection, None] = {}
        """Idle connections, longest idle first."""

        self._by_route: dict[Route, list[Connection]] = {}
        """Idle connections by route, last used last. A route without one may have an empty list while a connection is
        open."""

        self._connections: set[Connection] = set()
        """All open connections."""

        self._opening: set[asyncio.Timeout] = set()
        self._buffer = memoryview(bytearray(BUFFER))
        self._sweeper: asyncio.TimerHandle | None = None
        self._guardian = self._close_at_end()

    async def start(self) -> None:
        """Register the pool with its event loop, which closes the pool when it shuts down."""
        await anext(self._guardian)

    async def _close_at_end(self) -> AsyncGenerator[None, None]:
        """Wait for `close()` or `loop.shutdown_asyncgens()`, as by `asyncio.run()`; then close all connections."""
        try:
            yield
        finally:
            self.is_closed = True
            if self._sweeper is not None:
                self._sweeper.cancel()
            self.names.close()
            for limit in self._opening:
                if not limit.expired():
                    limit.reschedule(self.time())
            for connection in list(self._connections):
                connection.abort()
            await _sockets_closed()

    async def close(self) -> None:
        """Close all connections and end their requests."""
        await self._guardian.aclose()

    def close_sockets(self) -> None:
        """Close the connections of an event loop that was closed without a shutdown."""
        for connection in list(self._connections):
            connection.close_socket()

    async def locate(self, url: Url, connect_timeout: float, *, guarded: bool) -> str:
        """Return the smallest network of a host's addresses; `SLOW` after the connect timeout, empty on an error.

        The lookup is cached for the next connection.
        """
        try:
            async with asyncio.timeout(connect_timeout):
                addresses = await self.names.addresses(url.host)
            return min(network_of(each) for each in (permitted(url.host, addresses) if guarded else addresses))
        except TimeoutError:
            return SLOW
        except (OSError, ValueError):
            return ""

    def reuse(self, route: Route) -> Connection | None:
        """Return an idle connection, or None. The caller must give it back."""
        idle = self._by_route.get(route)
        while idle:
            connection = idle.pop()
            del self._idle[connection]
            if connection.is_silent():
                return connection
            connection.close()
        return None

    async def open(self, route: Route, timeout: float) -> Connection:
        """Open a connection: name lookup, TCP, tunnel and TLS within `timeout` seconds. The caller must give it back.

        Raises OSError, ReplyError and ConnectTimeout; ProxyFailed around them if only the proxy was reached.
        """
        peer, is_at_proxy = route.proxy or route, route.proxy is not None
        limit = asyncio.timeout(timeout)
        self._opening.add(limit)
        connection: Connection | None = None
        try:
            async with limit:
                connection = await self._connect(peer, timeout, route)
                if route.proxy is not None and route.scheme == "https":
                    await self._open_tunnel(connection, route, route.proxy)
                    is_at_proxy = False
                    await self._start_tls(connection, route, timeout)
            if not self.is_closed:
                self._connections.add(connection)
                return connection
        except (OSError, ReplyError, TunnelRefused) as error:
            known = ConnectTimeout() if limit.expired() else error
            if not self.is_closed:
                raise (ProxyFailed(known) if is_at_proxy else known) from error
        finally:
            self._opening.discard(limit)
            if connection is not None and connection not in self._connections:
                connection.abort()
        raise ReplyError(Reason.CONNECTION_ERROR, "the connections were closed")

    async def _connect(self, peer: Url | Route, timeout: float, route: Route) -> Connection:
        try:
            addresses = await self.names.addresses(peer.host)
        except ValueError as error:  # as of a label that is too long
            raise ReplyError(Reason.INVALID_URL, f"the request cannot be written: {type(error).__name__}") from error
        addresses = permitted(peer.host, addresses) if route.guarded else addresses
        opened = await connect(addresses, peer.port, guarded=route.guarded)
        connection = Connection(opened, route, self._forget, self._buffer)
        if peer.scheme == "https":
            transport, _ = await self._loop.create_connection(
                lambda: connection, sock=opened, ssl=self._context, server_hostname=peer.host,
                ssl_handshake_timeout=timeout + 1,
            )  # fmt: skip
        else:
            transport, _ = await self._loop.create_connection(lambda: connection, sock=opened)
        connection.start(transport)
        return connection

    async def _open_tunnel(self, connection: Connection, route: Route, proxy: Url) -> None:
        head = connect_head(route.host, route.port, proxy)
        connection.send(head, None, max_head=MAX_TUNNEL_HEAD, has_body=False)
        await connection.read_head(math.inf)
        if not 200 <= connection.response.status < 300:
            raise TunnelRefused(connection.response.status)

    async def _start_tls(self, connection: Connection, route: Route, timeout: float) -> None:
        transport = await self._loop.start_tls(
            connection.transport, connection, self._context, server_hostname=route.host,
            ssl_handshake_timeout=timeout + 1,
        )  # fmt: skip
        if transport is None:
            raise ConnectionResetError
        connection.start(transport)

    @property
    def _context(self) -> ssl.SSLContext:
        return self._tls or system_context()

    def give_back(self, connection: Connection, *, is_kept: bool) -> None:
        """Keep a connection if its exchange succeeded (`is_kept`). Closes the longest idle one above the limit."""
        self.had_room_at = now = self.time()
        if not is_kept or self.is_closed or not connection.is_reusable:
            connection.close()
            return
        connection.rest(now)
        self._idle[connection] = None
        idle = self._by_route.get(connection.route)
        if idle is None:
            self._by_route[connection.route] = [connection]
        else:
            idle.append(connection)
        if len(self._idle) > self._most_idle:
            self._close_idle(next(iter(self._idle)))
        if self._sweeper is None:
            self._sweeper = self._loop.call_later(self._keep_alive, self._sweep)

    def _take_out(self, connection: Connection) -> None:
        del self._idle[connection]
        self._by_route[connection.route].remove(connection)

    def _close_idle(self, connection: Connection) -> None:
        self._take_out(connection)
        connection.close()

    def _forget(self, connection: Connection) -> None:
        """Remove a connection that was closed."""
        self._connections.discard(connection)
        if connection in self._idle:
            self._take_out(connection)
        if not self._by_route.get(connection.route, True):
            del self._by_route[connection.route]

    async def shed(self) -> bool:
        """Close all idle connections, to make room. Return whether there were any."""
        idle = list(self._idle)
        for connection in idle:
            self._take_out(connection)
            connection.abort()
        if idle:
            await _sockets_closed()
        return bool(idle)

    def _sweep(self) -> None:
        """Close the connections that have been idle for too long."""
        self._sweeper = None
        while self._idle:
            oldest = next(iter(self._idle))
            left = oldest.idle_since + self._keep_alive - self.time()
            if left > 0:
                self._sweeper = self._loop.call_later(left, self._sweep)
                return
            self._close_idle(oldest)


async def _sockets_closed() -> None:
    """Wait until aborted transports have closed their sockets, one or two loop iterations later."""
    for _ in range(3):
        await asyncio.sleep(0)
