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
from collections.abc import Mapping, Sequence
from typing import Protocol

from curtsy.core.errors import Reason
from curtsy.core.message import Failure, Reply, Request, Url
from curtsy.http.address import Resolver, network_of, open_resolver, refused_behind_proxy
from curtsy.http.body import Limits, Sink
from curtsy.http.exchange import Exchange, note_unsent
from curtsy.http.headers import head_of
from curtsy.http.pool import KEEP_ALIVE, SLOW, Pool, Route
from curtsy.http.proxy import Proxies
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

    async def close(self) -> None:
        """Close all connections. Idempotent; later requests fail."""
        ...


PROXY_REST = 5.0
"""Seconds for which no request uses a proxy after it could not be reached."""

RESERVED_FILES = 16
"""File descriptors reserved for databases, logs, outputs and name lookups."""

ROOM_PAUSE = 0.05
"""Seconds between attempts to open a connection when connections outside this sender use up the room."""


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

    async def send(self, request: Request, limits: Limits) -> Reply:
        """Send one request, once."""
        return await self._send(request, limits, None)

    async def stream(self, request: Request, limits: Limits, sink: Sink) -> Reply:
        """Send one request, once, and write the body to `sink` as it arrives."""
        return await self._send(request, limits, sink)

    async def locate(self, url: Url, limits: Limits) -> str:
        """Return the address of a URL's host; empty if it has none or a proxy resolves it.

        `SLOW` if the lookup exceeds the connect timeout.
        """
        if self._closed or self._process != os.getpid() or self._proxies.may_apply(url):
            return ""
        pool = await self._pool()
        return await pool.locate(url, limits.connect_timeout, guarded=not limits.allow_private)

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
        sending = _Sending(request, limits, sink, route, head)
        try:
            pool = self._pools.get(asyncio.get_running_loop())
            if pool is None or pool.is_closed or self._process != os.getpid():
                pool = await self._pool()
            reply = await sending.run(pool)
        except asyncio.CancelledError as error:
            if not sending.is_sent:
                note_unsent(error)
            raise
        if proxy is not None and isinstance(reply, Failure) and sending.is_proxy_down:
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


class _Sending:
    """One request that waits for a slot, and again if the machine has no room for its connection."""

    def __init__(self, request: Request, limits: Limits, sink: Sink | None, route: Route, head: bytes) -> None:
        self._request = request
        self._limits = limits
        self._sink = sink
        self._route = route
        self._head = head
        self._exchange: Exchange | None = None
        """Last exchange; None before the first one."""

    @property
    def is_sent(self) -> bool:
        """Return whether the request may have been sent."""
        return self._exchange is not None and self._exchange.is_sent

    @property
    def is_proxy_down(self) -> bool:
        """Return whether the proxy cannot be reached at all, for any URL."""
        return self._exchange is not None and self._exchange.is_proxy_down

    async def run(self, pool: Pool) -> Reply:
        """Send the request and return the reply."""
        loop, limits, host, slots = asyncio.get_running_loop(), self._limits, self._request.url.host, pool.slots
        began = loop.time()
        address = network_of(host) if ":" in host or host[-1:].isdigit() else ""
        max_wait = limits.timeout if limits.counts_waiting else limits.patience
        until = None if max_wait is None else began + max_wait
        while True:
            if not slots.take_at_once(host, address):
                try:
                    address = await self._wait_for_slot(pool, address, until)
                except TimeoutError:
                    why = f"all {slots.most} connections were in use for {max_wait:g} s"
                    return Failure(Reason.DEADLINE, why, advice="Allow more, or send less.")
            deadline = loop.time() + limits.timeout if until is None else min(loop.time() + limits.timeout, until)
            try:
                reply = await self._exchanged(pool, deadline)
                if self._exchange is None or not self._exchange.has_no_room:
                    pool.had_room_at = loop.time()
                    return reply
                if await pool.shed():
                    continue
                is_alone = not slots.shrink()
                # Connections outside this sender use up the room and may never end.
                is_hopeless = is_alone and loop.time() - max(began, pool.had_room_at) >= limits.connect_timeout
                if is_hopeless or pool.is_closed or loop.time() >= deadline:
                    return reply
            finally:
                slots.give_back(host, address)
            if is_alone:
                await asyncio.sleep(ROOM_PAUSE)

    async def _wait_for_slot(self, pool: Pool, address: str, until: float | None) -> str:
        """Wait for a slot until a loop time. Return the host's address. Raises TimeoutError."""
        url, limits = self._request.url, self._limits
        async with asyncio.timeout_at(until):
            if not address and self._route.proxy is None:
                address = await pool.locate(url, limits.connect_timeout, guarded=not limits.allow_private)
            await pool.slots.take(url.host, address, first=self._exchange is not None)
        if until is not None and asyncio.get_running_loop().time() >= until:  # the slot was granted at the same moment
            pool.slots.give_back(url.host, address)
            raise TimeoutError
        return address

    async def _exchanged(self, pool: Pool, deadline: float) -> Reply:
        """Send the request in its slot."""
        limits, url = self._limits, self._request.url
        if self._route.proxy is not None and not limits.allow_private:
            refused = await refused_behind_proxy(url.host, pool.names, limits.connect_timeout)
            if refused is not None:
                return Failure(Reason.ADDRESS_REFUSED, str(refused.strerror))
        self._exchange = Exchange(self._request, limits, self._sink, deadline, self._route)
        return await self._exchange.run(pool, self._head)


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
