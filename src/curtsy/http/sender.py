"""Built-in sender: one request, one reply, within limits and to permitted addresses only.

A sender ignores robots.txt, pace, redirects, cookies, retries and caches: it sends one hop, once. It returns a
`Response`, or a `Failure` with the reason and the time since the request was sent. It raises only exceptions of a sink,
programming errors, and the task's own cancellation, which closes the connection.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any, Protocol

from curtsy.core.errors import Reason
from curtsy.core.request import Failure, Reply, Request
from curtsy.core.url import Url
from curtsy.http.address import AddressRefused, NoAddress, Resolver, open_resolver, refused_unpinned
from curtsy.http.body import Limits, Sink
from curtsy.http.connection import Route
from curtsy.http.exchange import Exchange, note_unsent
from curtsy.http.headers import head_of
from curtsy.http.pool import KEEP_ALIVE, SLOW, ConnectTimeout, Pool, ProxyFailed, TunnelRefused
from curtsy.http.proxy import Proxies
from curtsy.http.response import ReplyError
from curtsy.http.tls import Verify, check_verify

if sys.platform != "win32":
    import resource

__all__ = ["SLOW", "HttpSender", "Limits", "Sender", "Sink"]


class Sender(Protocol):
    """Protocol of an object that sends one request and returns one reply."""

    async def send(self, request: Request, limits: Limits) -> Reply:
        """Send one request, once."""
        ...

    async def stream(self, request: Request, limits: Limits, sink: Sink) -> Reply:
        """Send one request, once, and write the body to `sink` as it arrives. The reply's own body is empty.

        The body has no deadline, only a size limit and a minimum speed. It is decoded if `sink.decodes`, except for a
        partial response (206).
        """
        ...

    async def locate(self, url: Url, limits: Limits) -> str:
        """Return the address of a URL's host, by which a crawl shares its connections; empty if it is unknown."""
        ...

    async def refused_address(self, url: Url, limits: Limits) -> str | None:
        """Return why an address of a URL's host is refused, before another library connects to it; None if none is."""
        ...

    async def close(self) -> None:
        """Close all connections. Idempotent; later requests fail."""
        ...


PROXY_REST = 5.0
"""Seconds for which no request uses a proxy after it could not be reached."""

RESERVED_FILES = 16
"""File descriptors reserved for databases, logs, outputs and name lookups."""


class HttpSender:
    """Sender over HTTP/1.1 with persistent, shared connections, in one pool per event loop.

    `verify` is True, the path of a CA file or folder to trust besides the system's, or an SSLContext. `proxy` is the
    URL of a proxy. With `use_environment` and no `proxy`, HTTP_PROXY, HTTPS_PROXY and NO_PROXY apply. A request whose
    proxy is unusable is not sent. `connections` limits the requests in flight, `idle` the idle connections kept; both
    are reduced to fit the process's limit of open files. `keep_alive` is the seconds an idle connection is kept. A
    request waits if there is no room for its connection. `resolver` is a table of names and addresses, or an object
    with `async resolve(host)` that returns addresses. A sender may be created before a fork.

    With a proxy, the address guard judges the addresses that the name has here. The proxy chooses the address.
    """

    def __init__(
        self,
        *,
        verify: Verify = True,
        proxy: str | None = None,
        use_environment: bool = False,
        connections: int = 100,
        idle: int = 200,
        keep_alive: float = KEEP_ALIVE,
        resolver: Resolver | Mapping[str, str | Sequence[str]] | None = None,
    ) -> None:
        self._tls = check_verify(verify)
        self._proxies = Proxies(proxy, use_environment=use_environment)
        self._connections = connections
        self._idle = idle
        self._keep_alive = keep_alive
        self._down: dict[Url, tuple[float, Failure]] = {}
        """Unreachable proxies: the monotonic time until which they are skipped, and their failure."""

        self._resolver = resolver
        self._pools: dict[asyncio.AbstractEventLoop, Pool] = {}
        self._process = os.getpid()
        self._closed = False

    def send(self, request: Request, limits: Limits) -> Coroutine[Any, Any, Reply]:
        """Send one request, once."""
        return self._send(request, limits, None)

    def stream(self, request: Request, limits: Limits, sink: Sink) -> Coroutine[Any, Any, Reply]:
        """Send one request, once, and write the body to `sink` as it arrives."""
        return self._send(request, limits, sink)

    async def locate(self, url: Url, limits: Limits) -> str:
        """Return the address of a URL's host; empty if it has none or a proxy resolves it.

        `SLOW` if the lookup exceeds the connect timeout.
        """
        if self._closed or self._process != os.getpid() or self._proxies.may_apply(url):
            return ""
        pool = await self._pool()
        return await pool.locate(url, limits.connect_timeout, guarded=not limits.allow_private)

    async def refused_address(self, url: Url, limits: Limits) -> str | None:
        """Return why an address of a URL's host is refused; None if none is, or if private ones are allowed."""
        if limits.allow_private or self._closed:
            return None
        refused = await refused_unpinned(url.host, (await self._pool()).names, limits.connect_timeout)
        return None if refused is None else str(refused.strerror)

    async def connects(self, url: Url, limits: Limits) -> bool:
        """Return whether a URL's host can be connected, with TLS for https. Sends no request.

        True if the scheme makes no difference: the name is unknown, or its address is refused.
        """
        pool, proxy = await self._pool(), self._proxies.of(url)
        route = Route(url.scheme, url.host, url.port, proxy, proxy is None and not limits.allow_private)
        try:
            if proxy is not None and await self.refused_address(url, limits) is not None:
                return True
            pool.give_back(await pool.open(route, limits.connect_timeout), is_kept=False)
        except (AddressRefused, NoAddress, ProxyFailed):
            return True
        except (OSError, ReplyError, TunnelRefused, ConnectTimeout):
            return False
        return True

    async def close(self) -> None:
        """Close all connections. Idempotent; later requests fail."""
        self._closed = True
        self._leave_to_parent()
        here = asyncio.get_running_loop()
        while self._pools:
            loop, pool = self._pools.popitem()
            if loop is here:
                await pool.close()
            elif loop.is_closed():
                pool.close_sockets()
            elif loop.is_running():
                await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(pool.close(), loop))
            # Otherwise the loop is stopped, so it cannot close connections.

    async def _send(self, request: Request, limits: Limits, sink: Sink | None) -> Reply:
        if self._closed:
            why = "the sender was closed. Make a new one, or close it later."
            return Failure(Reason.CLOSED, why, advice="")
        url = request.url
        try:
            proxy = self._proxies.of(url)
            head = head_of(request, proxy)
        except ValueError as error:
            return Failure(Reason.INVALID_URL, str(error), advice="")
        if proxy is not None and (down := self._down.get(proxy)) is not None and time.monotonic() < down[0]:
            return down[1]
        route = Route(url.scheme, url.host, url.port, proxy, proxy is None and not limits.allow_private)
        exchange = Exchange(request, limits, sink, route, head)
        try:
            pool = self._pools.get(asyncio.get_running_loop())
            if pool is None or pool.is_closed or self._process != os.getpid():
                pool = await self._pool()
            reply = await exchange.run(pool)
        except asyncio.CancelledError as error:
            if not exchange.is_sent:
                note_unsent(error)
            raise
        if proxy is not None and isinstance(reply, Failure) and exchange.is_proxy_down:
            self._down[proxy] = time.monotonic() + PROXY_REST, reply
        if self._closed and isinstance(reply, Failure):
            return Failure(Reason.CLOSED, "the sender was closed meanwhile", reply.sent_ago, reply.status)
        return reply

    async def _pool(self) -> Pool:
        """Return the pool of the running event loop."""
        loop = asyncio.get_running_loop()
        self._leave_to_parent()
        pool = self._pools.get(loop)
        if pool is not None and not pool.is_closed:
            return pool
        for ended in [each for each in self._pools if each.is_closed()]:
            self._pools.pop(ended).close_sockets()
        room = _room()
        pool = self._pools[loop] = Pool(
            most=max(1, min(self._connections, room * 2 // 3)),
            most_idle=min(self._idle, room // 6),
            keep_alive=self._keep_alive,
            resolver=open_resolver(self._resolver),
            tls=self._tls,
        )
        await pool.start()
        return pool

    def _leave_to_parent(self) -> None:
        """Forget the parent's connections after a fork.

        Closing them would remove them from the parent's event loop, which shares its epoll with the child's.
        """
        if self._process != os.getpid():
            self._process = os.getpid()
            _INHERITED.append(self._pools)
            self._pools = {}


_INHERITED: list[object] = []
"""References to the parent's pools after a fork, so that the child never finalizes them."""


def _room() -> int:
    """Return how many connections this process can still open, less `RESERVED_FILES`."""
    if sys.platform == "win32":
        return 8192
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if most == resource.RLIM_INFINITY:
        return 1 << 20
    try:
        are_open = len(os.listdir("/dev/fd"))
    except OSError:
        are_open = RESERVED_FILES
    return max(0, most - are_open - RESERVED_FILES)
