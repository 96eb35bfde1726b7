"""Where a Redis or Valkey is: a URL read, shown without its secrets, and opened with redis-py.

    redis://user:password@host:6379/0               one server
    rediss://host:6380/0?ssl_ca_certs=ca.pem        the same with TLS
    unix:///run/redis.sock?db=0                     the same by its socket
    redis+sentinel://host:26379,host:26379/service  whichever server the sentinels say is the primary
    redis+cluster://host:6379,host:6379             a cluster; any of its nodes will do

`rediss+sentinel` and `rediss+cluster` are the last two with TLS. Options of redis-py can follow a `?`.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, unquote

from curtsy.core.errors import PolicyError, StoreError

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
"""What redis-py raises when the server fails us. (RedisClusterException is no RedisError.)"""

NoScript = redis.exceptions.NoScriptError
NoPermission = redis.exceptions.NoPermissionError

Moving = (redis.exceptions.TryAgainError, redis.exceptions.ClusterError)
"""What is said while a slot of a cluster is on the move, by the server and by redis-py, which tries for a while."""

# Up to the last @ it is the login, whatever stands there: a part of a password must not be taken for a host, and shown.
_URL = re.compile(
    r"(?P<scheme>rediss?(?:\+sentinel|\+cluster)?)://(?:(?P<login>[^?]*)@)?(?P<hosts>[^/?]*)(?P<path>/[^?]*)?"
    r"(?:\?(?P<query>.*))?"
    r"|(?P<unix>unix)://(?:[^@/]*@)?(?P<socket>/[^?]*)(?:\?.*)?",
    re.DOTALL,
)
_HOST = re.compile(r"(?:\[(?P<address>[^\]]+)\]|(?P<name>[^:\[\]]*))(?::(?P<port>[0-9]{1,5}))?")
_PORTS = {"sentinel": 26379}
_parse_url: Callable[[str], dict[str, Any]] = redis.connection.parse_url


@dataclass(frozen=True, slots=True)
class Address:
    """A server, a cluster or a service, and how to log in there."""

    shown: str
    """For messages: no user, no password, no options."""

    kind: str
    """`cluster`, `sentinel`, or empty for one server."""

    url: str = field(repr=False)
    hosts: tuple[tuple[str, int], ...]
    service: str = ""
    options: dict[str, Any] = field(default_factory=dict, repr=False)
    """As redis-py takes them."""

    @property
    def identity(self) -> str:
        """The same text for the same records, however their address is written."""
        database = self.options.get("db", 0)
        if not self.hosts:
            return f"{self.shown}?db={database}"
        scheme = f"redis+{self.kind}" if self.kind else "redis"
        places = ",".join(sorted(f"{host.lower()}:{port}" for host, port in self.hosts))
        return "/".join(part for part in (f"{scheme}://{places}", self.service, str(database)) if part)

    def open(self, timeout: float) -> tuple[Any, list[Any]]:
        """A blocking client, and all that must be closed with `close()`."""
        return self._open(redis, timeout)

    def open_async(self, timeout: float) -> tuple[Any, list[Any]]:
        """An async client, and all that must be closed with `aclose()`."""
        return self._open(redis.asyncio, timeout)

    def _open(self, library: Any, timeout: float) -> tuple[Any, list[Any]]:
        """redis-py has everything twice, under the same names."""
        # One more try is safe, for a write that was taken before is known by its nonce; and it is needed, for a
        # connection from before a server's restart shows only in use that it is dead.
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
        """Options for the servers, and those for the sentinels, whose login has its own names in the URL."""
        prefix = "sentinel_"
        own = limits | {name: value for name, value in self.options.items() if not name.startswith(prefix)}
        tls = {name: value for name, value in self.options.items() if name.startswith("ssl")}
        login = {name.removeprefix(prefix): value for name, value in self.options.items() if name.startswith(prefix)}
        return own, limits | tls | login

    def failed(self, error: BaseException, timeout: float) -> StoreError:
        """What redis-py says, in our words: what, why, what to do."""
        why = f"{error}".strip().rstrip(".") or type(error).__name__
        for name in ("password", "sentinel_password"):
            if secret := self.options.get(name):
                why = why.replace(str(secret), "***")
        match error:
            case (
                redis.AuthenticationError()
                | redis.exceptions.NoPermissionError()
                | redis.exceptions.AuthorizationError()
            ):
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
    """Read a URL; PolicyError says what is wrong with it, without its secrets."""
    found = _URL.fullmatch(url)
    if found is None:
        scheme = url.partition("://")[0] if "://" in url else ""
        raise PolicyError(
            f"the store's URL begins with {scheme[:40]!r}, which is no Redis. Write redis://host:6379/0, or begin it "
            "with rediss, unix, redis+sentinel or redis+cluster."
        )
    if found["unix"]:
        return Address(f"unix://{found['socket']}", "", url, (), options=_options(url, "the socket's URL"))
    scheme, _, kind = found["scheme"].partition("+")
    if not found["login"] and "@" in (found["query"] or ""):
        raise PolicyError("the store's URL has a ? before its @. In a password, write ? as %3F.")
    path = unquote(found["path"] or "")
    shown = f"{found['scheme']}://{found['hosts']}{path}"
    hosts = tuple(_host(each, _PORTS.get(kind, 6379), shown) for each in found["hosts"].split(","))
    if len(hosts) > 1 and not kind:
        raise PolicyError(f"{shown} names several hosts. Write redis+cluster:// or redis+sentinel:// if that is it.")
    service, _, database = path.removeprefix("/").partition("/") if kind == "sentinel" else ("", "", path[1:])
    if kind == "sentinel" and not service:
        raise PolicyError(f"{shown} names no service. Write it after the hosts: redis+sentinel://host:26379/mymaster.")
    if database and not (database.isascii() and database.isdigit()):
        raise PolicyError(f"{shown}: the database {database!r} must be a number. Leave it out to use 0.")
    if kind == "cluster" and database not in ("", "0"):
        raise PolicyError(f"{shown}: a cluster has no database but 0. Leave it out.")
    login = f"{quote(found['login'], safe=':%')}@" if found["login"] else ""
    plain = f"{scheme}://{login}{found['hosts'].partition(',')[0]}/{database}?{found['query'] or ''}"
    options = _options(plain, shown)
    if kind:
        for name in ("host", "port", "connection_class"):
            options.pop(name, None)
        if kind == "cluster":
            options.pop("db", None)
        if scheme == "rediss":
            options["ssl"] = True
    return Address(shown, kind, plain, hosts, service, options)


def _options(url: str, shown: str) -> dict[str, Any]:
    try:
        return _parse_url(url)
    except ValueError as error:
        raise PolicyError(f"{shown}: {error} See the options of redis-py.") from None


def _host(text: str, default: int, shown: str) -> tuple[str, int]:
    found = _HOST.fullmatch(text)
    port = int(found["port"] or default) if found else 0
    if found is None or not 0 < port < 65536:
        raise PolicyError(f"{shown}: {text!r} is no host and port. Write it as in redis://example.org:6379/0.")
    return found["address"] or found["name"] or "localhost", port
