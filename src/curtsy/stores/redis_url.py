"""Addresses of Redis or Valkey servers, opened with redis-py. `url.py` describes the URL."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from curtsy.core.errors import PolicyError, StoreError
from curtsy.stores.url import parse_server

try:
    import redis
    import redis.asyncio
    import redis.asyncio.cluster
    import redis.asyncio.retry
    import redis.asyncio.sentinel
    import redis.cluster
    import redis.connection
    import redis.retry
    import redis.sentinel
    from redis.backoff import NoBackoff
except ImportError as missing:
    raise ImportError("a Redis store needs redis-py. Install it with: pip install 'curtsy[redis]'") from missing

FAILURES = (redis.RedisError, redis.exceptions.RedisClusterException, OSError, asyncio.TimeoutError)
"""Exceptions of redis-py for a server that fails. RedisClusterException is no RedisError."""

NoScript = redis.exceptions.NoScriptError
NoPermission = redis.exceptions.NoPermissionError

Moving = (redis.exceptions.TryAgainError, redis.exceptions.ClusterError)
"""Errors while a slot of a cluster is moved: the server's, and redis-py's after its retries."""

_parse_url: Callable[[str], dict[str, Any]] = redis.connection.parse_url


@dataclass(frozen=True, slots=True)
class Address:
    """Address of a server, a cluster or a Sentinel service, with its login."""

    shown: str
    """Text for messages, without user, password and options."""

    kind: str
    """`cluster`, `sentinel`, or empty for one server."""

    url: str = field(repr=False)
    hosts: tuple[tuple[str, int], ...]
    service: str = ""
    options: dict[str, Any] = field(default_factory=dict, repr=False)
    """Options for redis-py."""

    @property
    def identity(self) -> str:
        """Text that is equal for the same records, whichever way the URL is written."""
        database = self.options.get("db", 0)
        if not self.hosts:
            return f"{self.shown}?db={database}"
        scheme = f"redis+{self.kind}" if self.kind else "redis"
        places = ",".join(sorted(f"{host.lower()}:{port}" for host, port in self.hosts))
        return "/".join(part for part in (f"{scheme}://{places}", self.service, str(database)) if part)

    def open(self, timeout: float) -> tuple[Any, list[Any]]:
        """Return a blocking client, and the objects to close with `close()`."""
        return self._open(redis, timeout)

    def open_async(self, timeout: float) -> tuple[Any, list[Any]]:
        """Return an async client, and the objects to close with `aclose()`."""
        return self._open(redis.asyncio, timeout)

    def _open(self, library: Any, timeout: float) -> tuple[Any, list[Any]]:
        """Open a client of `library`: `redis` and `redis.asyncio` use the same names."""
        # One retry is safe, because the script recognises a repeated write by its nonce. It is needed, because a
        # connection from before a server's restart fails only in use.
        retry = library.retry.Retry(NoBackoff(), 1, (redis.ConnectionError,))
        limits = {"socket_timeout": timeout, "socket_connect_timeout": timeout, "protocol": 2, "retry": retry}
        if self.kind == "cluster":
            nodes = [library.cluster.ClusterNode(host, port) for host, port in self.hosts]
            cluster = library.cluster.RedisCluster(startup_nodes=nodes, **limits, **self.options)
            return cluster, [cluster]
        if self.kind == "sentinel":
            own, login = self._split(limits)
            sentinel = library.sentinel.Sentinel(self.hosts, sentinel_kwargs=login, **own)
            primary = sentinel.master_for(self.service)
            return primary, [primary, *sentinel.sentinels]
        client = library.Redis.from_url(self.url, **limits)
        return client, [client]

    def _split(self, limits: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the options of the servers and of the sentinels, whose login begins with `sentinel_` in the URL."""
        prefix = "sentinel_"
        own = limits | {name: value for name, value in self.options.items() if not name.startswith(prefix)}
        tls = {name: value for name, value in self.options.items() if name.startswith("ssl")}
        login = {name.removeprefix(prefix): value for name, value in self.options.items() if name.startswith(prefix)}
        return own, limits | tls | login

    def failed(self, error: BaseException, timeout: float) -> StoreError:
        """Return a StoreError with the cause and the remedy of an error of redis-py."""
        for secret in (str(self.options[name]) for name in ("password", "sentinel_password") if self.options.get(name)):
            # Mask the error itself, because it becomes `__cause__`; redis-py before 8.0 names a sentinel's password.
            error.args = tuple(each.replace(secret, "***") if isinstance(each, str) else each for each in error.args)
        why = f"{error}".strip().rstrip(".") or type(error).__name__
        match error:
            case redis.exceptions.NoPermissionError():
                text = (
                    f"{self.shown} refuses us: {why}. Let the user have all keys that begin with curtsy: (~curtsy:*), "
                    "and run scripts (+eval +evalsha)."
                )
            case redis.AuthenticationError() | redis.exceptions.AuthorizationError():
                text = f"{self.shown} refuses us: {why}. Check user and password in the store's URL."
            case redis.TimeoutError() | TimeoutError():
                text = (
                    f"{self.shown} does not answer within {timeout:g} s. It may be overloaded, stopped or cut off: "
                    "check the server and the way to it."
                )
            case redis.ReadOnlyError():
                text = f"{self.shown} is a replica: {why}. Give the primary's address, or use redis+sentinel://."
            case redis.OutOfMemoryError():
                text = f"{self.shown} is full: {why}. Raise its maxmemory."
            case redis.ConnectionError() | OSError():
                text = f"{self.shown} cannot be reached: {why}. Start the server, or correct the store's URL."
            case _:
                text = f"{self.shown} failed: {why}. Look into the server's log."
        return StoreError(text)


def parse_address(url: str) -> Address:
    """Parse a URL. Raises PolicyError, with a message without secrets."""
    place = parse_server(url)
    options = _options(place.url, place.shown if place.hosts else "the socket's URL")
    if place.kind:
        for name in ("host", "port", "connection_class"):
            options.pop(name, None)
        if place.kind == "cluster":
            options.pop("db", None)
        if place.is_tls:
            options["ssl"] = True
    return Address(place.shown, place.kind, place.url, place.hosts, place.service, options)


def _options(url: str, shown: str) -> dict[str, Any]:
    try:
        return _parse_url(url)
    except ValueError as error:
        raise PolicyError(f"{shown}: {error} See the options of redis-py.") from None
