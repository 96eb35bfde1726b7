"""Built-in sender on aiohttp: one request, one reply, within limits and to permitted addresses only.

A sender ignores robots.txt, pace, redirects, cookies, retries and caches: it sends one hop, once. It returns a
`Response`, or a `Failure` with the reason and the time since the request was sent. It raises only
exceptions of a sink and the task's own cancellation, which closes the connection.
"""

from __future__ import annotations

import asyncio
import os
import ssl
import sys
import time
import urllib.request
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Protocol
from urllib.parse import quote

import aiohttp
from aiohttp.abc import AbstractResolver

from curtsy.core import messages
from curtsy.core.errors import PolicyError, Reason
from curtsy.core.message import DEFAULT_PORTS, Failure, InvalidUrl, Reply, Request, Url, parse_url
from curtsy.http.address import network_of, open_resolver, refused_behind_proxy
from curtsy.http.body import Limits, Sink
from curtsy.http.exchange import Exchange, note_unsent
from curtsy.http.headers import head_of
from curtsy.http.pool import KEEP_ALIVE, Connections
from curtsy.http.slots import Slots

if sys.platform != "win32":
    import resource

__all__ = ["AiohttpSender", "Limits", "Sender", "Sink"]


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

    async def close(self) -> None:
        """Close all connections. Idempotent; later requests fail."""
        ...


SLOW = "?"
"""Placeholder address of all names whose lookup exceeds the connect timeout. They share slots, because they may all
have the same address."""

PROXY_REST = 5.0
"""Seconds for which no request uses a proxy after it could not be reached."""


RESERVED_FILES = 16
"""File descriptors reserved for databases, logs, outputs and name lookups."""

ROOM_PAUSE = 0.05
"""Seconds between attempts to open a connection when connections outside this sender use up the room."""


class AiohttpSender:
    """Sender over HTTP/1.1 with persistent, shared connections, in one pool per event loop.

    `verify` is True, the path of a CA file or folder to trust besides the system's, or an SSLContext. `proxy` is the
    URL of a proxy. With `use_environment` and no `proxy`, HTTP_PROXY, HTTPS_PROXY and NO_PROXY apply. A request whose
    proxy is unusable is not sent. `connections` limits the requests in flight, `idle` the idle connections kept; both
    are reduced to fit the process's limit of open files. `keep_alive` is the seconds an idle connection is kept. A
    request waits if there is no room for its connection. `resolver` is a table of names and addresses, or an aiohttp
    resolver. A sender may be created before a fork.

    With a proxy, the address guard judges the addresses that the name has here. The proxy chooses the address.
    """

    def __init__(
        self,
        *,
        verify: bool | str | Path | ssl.SSLContext = True,
        proxy: str | None = None,
        use_environment: bool = False,
        connections: int = 100,
        idle: int = 200,
        keep_alive: float = KEEP_ALIVE,
        resolver: AbstractResolver | Mapping[str, str | Sequence[str]] | None = None,
    ) -> None:
        self._verify = _verifier(verify)
        self._proxies: dict[str, str | PolicyError] = {}
        if proxy:
            found = parse_url(proxy)
            if isinstance(found, InvalidUrl):
                given = messages.given(found)
                raise PolicyError(f"proxy = {given!r} must be an http or https URL, such as http://proxy.example:3128.")
            self._proxies = dict.fromkeys(DEFAULT_PORTS, _written(found))
        elif use_environment:
            self._proxies = environment_proxies()
        self._bypassed = lru_cache(maxsize=4096)(urllib.request.proxy_bypass)  # reads the whole environment each time
        self._bypassing = not proxy
        self._connections = connections
        self._idle = idle
        self._keep_alive = keep_alive
        self._down: dict[str, tuple[float, Failure]] = {}
        """Unreachable proxies: the monotonic time until which they are skipped, and their failure."""
        self._resolver = resolver
        self._pools: dict[asyncio.AbstractEventLoop, _Pool] = {}
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
        if self._closed or self._process != os.getpid() or self._proxies.get(url.scheme) is not None:
            return ""
        loop = asyncio.get_running_loop()
        pool = self._pools.get(loop) or await self._open_pool(loop)
        return await pool.locate(url, limits)

    def is_full(self) -> bool:
        """Return whether a new request may have to wait for a connection of this sender."""
        pool = self._pools.get(asyncio.get_running_loop())
        return pool is not None and pool.places.are_taken

    async def close(self) -> None:
        """Close all connections. Idempotent; later requests fail."""
        self._closed = True
        self._leave_to_parent()
        here = asyncio.get_running_loop()
        while self._pools:
            loop, pool = self._pools.popitem()
            if loop is here or loop.is_closed():
                await pool.close()
            elif loop.is_running():
                await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(pool.close(), loop))
            else:
                pool.abandon()  # a stopped loop cannot close connections

    async def _send(self, request: Request, limits: Limits, sink: Sink | None) -> Reply:
        if self._closed:
            why = "the sender was closed. Make a new one, or close it later."
            return Failure(Reason.CLOSED, why, advice="")
        try:
            proxy = self._proxy_for(request.url)
            head = head_of(request, proxy)
        except ValueError as error:
            return Failure(Reason.INVALID_URL, str(error), advice="")
        loop = asyncio.get_running_loop()
        if proxy is not None and (down := self._down.get(proxy)) is not None and time.monotonic() < down[0]:
            return down[1]
        pool = self._pools.get(loop) if self._process == os.getpid() else None
        exchange: Exchange | None = None
        try:
            if pool is None:
                pool = await self._open_pool(loop)
            began, host = loop.time(), request.url.host
            address = network_of(host) if ":" in host or host[-1:].isdigit() else ""
            patience = limits.timeout if limits.counts_waiting else limits.patience
            until = None if patience is None else began + patience
            while True:
                if not pool.places.take_at_once(host, address):
                    try:
                        async with asyncio.timeout_at(until):
                            if not address and proxy is None:
                                address = await pool.locate(request.url, limits)
                            await pool.places.take(host, address, first=exchange is not None)
                        if until is not None and loop.time() >= until:  # the slot was granted at the same moment
                            pool.places.give_back(host, address)
                            raise TimeoutError
                    except TimeoutError:
                        why = f"all {pool.places.most} connections were in use for {patience:g} s"
                        return Failure(Reason.DEADLINE, why, advice="Allow more, or send less.")
                deadline = loop.time() + limits.timeout if until is None else min(loop.time() + limits.timeout, until)
                exchange = Exchange(request, limits, sink, deadline, proxy)
                try:
                    reply = await self._exchanged(exchange, pool, request, limits, proxy, head)
                    if not exchange.has_no_room:
                        pool.had_room_at = loop.time()
                        return reply
                    if await pool.shed():
                        continue
                    is_alone = not pool.places.shrink()
                    # Connections outside this sender use up the room and may never end.
                    is_hopeless = is_alone and loop.time() - max(began, pool.had_room_at) >= limits.connect_timeout
                    if is_hopeless or self._closed or loop.time() >= deadline:
                        return reply
                finally:
                    pool.places.give_back(host, address)
                if is_alone:
                    await asyncio.sleep(ROOM_PAUSE)
        except asyncio.CancelledError as error:
            if exchange is None or exchange.has_no_room:  # otherwise the exchange has marked it
                note_unsent(error)
            raise

    async def _exchanged(
        self, exchange: Exchange, pool: _Pool, request: Request, limits: Limits, proxy: str | None, head: bytes
    ) -> Reply:
        """Send one request that holds a slot."""
        if proxy is not None and not limits.allow_private:
            try:
                refused = await refused_behind_proxy(request.url.host, pool.resolver, limits.connect_timeout)
            except asyncio.CancelledError as error:
                note_unsent(error)
                raise
            if refused is not None:
                return Failure(Reason.ADDRESS_REFUSED, str(refused.strerror))
        connections = pool.connections(guarded=not limits.allow_private and proxy is None)
        reply = await exchange.run(connections, head)
        if proxy is not None and isinstance(reply, Failure) and exchange.is_proxy_down:
            self._down[proxy] = time.monotonic() + PROXY_REST, reply
        if self._closed and isinstance(reply, Failure):
            return Failure(Reason.CLOSED, "the sender was closed meanwhile", reply.sent_ago, reply.status)
        return reply

    def _leave_to_parent(self) -> None:
        """Forget the parent's connections after a fork."""
        if self._process == os.getpid():
            return
        self._process = os.getpid()
        for pool in self._pools.values():
            pool.abandon()
        _INHERITED.append(self._pools)
        self._pools = {}

    async def _open_pool(self, loop: asyncio.AbstractEventLoop) -> _Pool:
        self._leave_to_parent()
        gone = [each for each in self._pools if each.is_closed()]
        old = [self._pools.pop(each) for each in gone]
        room = _room()
        most, idle = max(1, min(self._connections, room * 2 // 3)), min(self._idle, room // 6)
        pool = self._pools[loop] = _Pool(
            self._verify, open_resolver(self._resolver), most, idle, self._keep_alive
        )  # fmt: skip
        for each in old:
            await each.close()
        return pool

    def _proxy_for(self, url: Url) -> str | None:
        """Return the proxy for a URL, or None.

        Raises PolicyError if the configured proxy is unusable, because only the user may decide to bypass it.
        """
        proxy = self._proxies.get(url.scheme)
        if proxy is None or (self._bypassing and self._bypassed(url.host)):
            return None
        if isinstance(proxy, PolicyError):
            raise PolicyError(str(proxy))
        return proxy


def environment_proxies() -> dict[str, str | PolicyError]:
    """Return the proxies of HTTP_PROXY and HTTPS_PROXY by scheme, or the error of an unusable one.

    A proxy without a scheme is an http proxy, as for curl.
    """
    proxies: dict[str, str | PolicyError] = {}
    for scheme, given in urllib.request.getproxies_environment().items():
        if scheme not in DEFAULT_PORTS or not given.strip():
            continue
        found = parse_url(given if "://" in given else f"http://{given.strip()}")
        if isinstance(found, Url):
            proxies[scheme] = _written(found)
        else:
            proxies[scheme] = PolicyError(
                f"{scheme.upper()}_PROXY = {messages.given(found)!r} must be an http or https proxy, such as "
                "http://proxy.example:3128. Set another, unset it, or set NO_PROXY=* to go without any."
            )
    return proxies


def check_environment() -> None:
    """Raise PolicyError if the environment names an unusable proxy, once instead of for each URL."""
    if urllib.request.getproxies_environment().get("no", "").strip() == "*":
        return
    for found in environment_proxies().values():
        if isinstance(found, PolicyError):
            raise found


def _written(proxy: Url) -> str:
    """Return the URL of a proxy with its credentials, quoted so that aiohttp cannot misread them."""
    if proxy.credentials is None:
        return proxy.origin
    return f"{proxy.scheme}://{quote(proxy.credentials, safe=':%', errors='surrogatepass')}@{proxy.domain}"


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


_INHERITED: list[object] = []
"""References to the parent's pools after a fork, so that the child never finalizes them."""


class _Pool:
    """Connections of one event loop."""

    def __init__(
        self, verify: ssl.SSLContext | bool, resolver: AbstractResolver, most: int, idle: int, keep_alive: float
    ) -> None:
        self.places = Slots(most)
        self.had_room_at = 0.0
        """Loop time at which a request with a connection last ended."""

        self.resolver = resolver
        self._verify = verify
        self._idle = idle
        self._keep_alive = keep_alive
        # Two pools, so that no guarded request uses a connection that was opened without the guard.
        self._by_guard: dict[bool, Connections] = {}

    def connections(self, *, guarded: bool) -> Connections:
        """Return the connections with or without the address guard."""
        found = self._by_guard.get(guarded)
        if found is None:
            found = self._by_guard[guarded] = Connections(
                guarded=guarded,
                verify=self._verify,
                resolver=self.resolver,
                most_idle=self._idle,
                keep_alive=self._keep_alive,
            )
        return found

    async def locate(self, url: Url, limits: Limits) -> str:
        """Return the smallest address of a URL's host; `SLOW` after the connect timeout, empty on an error."""
        connections = self.connections(guarded=not limits.allow_private)
        try:
            async with asyncio.timeout(limits.connect_timeout):
                return await connections.locate(url.host, url.port)
        except TimeoutError:
            return SLOW
        except (OSError, aiohttp.ClientError):
            return ""

    async def shed(self) -> bool:
        """Close all idle connections, to make room. Return whether there were any."""
        return any([await connections.shed() for connections in self._by_guard.values()])

    async def close(self) -> None:
        """Close all connections."""
        for connections in self._by_guard.values():
            await connections.close()
        await self.resolver.close()

    def abandon(self) -> None:
        """Leave all connections to the parent process."""
        for connections in self._by_guard.values():
            connections.abandon()


def _verifier(verify: bool | str | Path | ssl.SSLContext) -> ssl.SSLContext | bool:
    if isinstance(verify, ssl.SSLContext) or verify is True:
        return verify
    if verify is False:
        raise PolicyError(
            "verify = False must be True, the path of a CA file or folder, or an ssl.SSLContext. "
            "Certificates are always verified; for a site of your own, give its CA."
        )
    path = Path(verify)
    if not path.exists():
        raise PolicyError(f"verify = {str(path)!r} must be a CA file or folder that exists.")
    context = ssl.create_default_context()
    if path.is_dir():
        context.load_verify_locations(capath=str(path))
    else:
        context.load_verify_locations(cafile=str(path))
    context.set_alpn_protocols(["http/1.1"])
    return context
