"""Redis or Valkey server: its address and clients, the requests of updates, and checks.

`url.py` describes the URL. Clients of `redis` serve threads, those of `redis.asyncio` serve tasks. Both have the same
methods, which return a reply or an awaitable of one.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import logging
import math
import random
import time
import weakref
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from curtsy.core.errors import PolicyError, StoreError, not_imported
from curtsy.core.setting import number
from curtsy.stores import generation
from curtsy.stores.cas import SCRIPT, SHA, Attempt, CompareAndSwap
from curtsy.stores.generation import Look
from curtsy.stores.url import ServerUrl, parse_server
from curtsy.system.clock import Clock
from curtsy.system.threads import is_blocking

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
except ImportError as error:
    raise not_imported("a Redis store needs the library redis-py", "redis", "redis", error) from error

FAILURES = (redis.RedisError, redis.exceptions.RedisClusterException, OSError, asyncio.TimeoutError)
"""Exceptions of redis-py for a server that fails. RedisClusterException is no RedisError."""

Refusing = (redis.AuthenticationError, redis.exceptions.AuthorizationError, redis.exceptions.NoPermissionError)
"""Errors of a server that refuses this user. Another attempt would meet the same."""

_Unknown = (redis.AuthenticationError, redis.exceptions.AuthorizationError)
"""Errors of a server that does not know this user or password."""

_Unreachable = (redis.ConnectionError, redis.TimeoutError, redis.exceptions.RedisClusterException, OSError)

RedisCluster = redis.asyncio.cluster.RedisCluster
NoScript = redis.exceptions.NoScriptError
NoPermission = redis.exceptions.NoPermissionError

Moving = (redis.exceptions.TryAgainError, redis.exceptions.ClusterError)
"""Errors while a slot of a cluster is moved: the server's, and redis-py's after its retries."""

_parse_url: Callable[[str], dict[str, Any]] = redis.connection.parse_url


OLDEST = (7, 0)
"""Oldest supported version of Redis; Valkey counts as the Redis version that it reports."""

MOST_PLACES = 10_000
"""Maximum numbers to try for a mark's key on each server of a cluster."""

SEARCH_EVERY = 60.0
"""Seconds until the search is repeated for a server without such a key, which may get more slots."""

PATIENCE = 10
"""Number of timeouts for which an update is retried while other processes are faster."""

logger = logging.getLogger("curtsy")

_swaps: weakref.WeakValueDictionary[tuple[str, float], CompareAndSwap] = weakref.WeakValueDictionary()


@dataclass(frozen=True, slots=True)
class Address(ServerUrl):
    """Address of a server, a cluster or a Sentinel service, with the options of its URL."""

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

    def open(self, timeout: float, on_connect: Callable[[], None] | None = None) -> tuple[Any, list[Any]]:
        """Return a client for threads or tasks, as the caller needs, and the objects to close with it.

        A client for tasks calls `on_connect` for each new connection, except to a cluster.
        """
        library: Any = redis if is_blocking() else redis.asyncio  # both use the same names
        # One retry is safe, because the script recognises a repeated write by its nonce. It is needed, because a
        # connection from before a server's restart fails only in use.
        retry = library.retry.Retry(NoBackoff(), 1, (redis.ConnectionError,))
        limits = {"socket_timeout": timeout, "socket_connect_timeout": timeout, "protocol": 2, "retry": retry}
        if on_connect is not None and self.kind != "cluster":
            limits["redis_connect_func"] = functools.partial(_connected, on_connect)
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
            case redis.exceptions.InvalidResponse():
                text = f"{self.shown} is no Redis server: {why}. Correct the store's URL."
            case redis.ResponseError() if _is_unknown_database(error):
                text = f"{self.shown} does not have this database: {why}. Correct its number in the store's URL."
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


async def _connected(on_connect: Callable[[], None], connection: Any) -> None:
    """Prepare a new connection as redis-py does, and report it."""
    on_connect()
    await connection.on_connect()


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
    return Address(
        place.shown, place.kind, place.url, place.hosts, place.service, place.is_tls, place.replicas, place.timeout,
        options,
    )  # fmt: skip


def _options(url: str, shown: str) -> dict[str, Any]:
    try:
        return _parse_url(url)
    except ValueError as error:
        raise PolicyError(f"{shown}: {error} See the options of redis-py.") from None


class Server:
    """Address, cache and checks of a server, used by the blocking and the async store."""

    def __init__(self, url: str, clock: Clock | None, prefix: str, timeout: float | None = None) -> None:
        """Parse the URL; `timeout` in seconds replaces its timeout."""
        if "{" in prefix:
            raise PolicyError(f"prefix = {prefix!r} must not contain {{, which marks where a cluster keeps a key.")
        self.address = parse_address(url)
        timeout = self.timeout = self.address.timeout if timeout is None else number("timeout", timeout, above=True)
        self.identity = f"{self.address.identity}#{prefix}"
        self.swap = CompareAndSwap(prefix, clock, timeout / 2)
        if clock is None:  # all stores of a process share one cache
            self.swap = _swaps.setdefault((self.identity, timeout), self.swap)
        self._places: dict[str, tuple[int | None, float]] = {}
        self._is_cluster = self.address.kind == "cluster"
        self.everywhere: dict[str, str] = {"target_nodes": "primaries"} if self._is_cluster else {}
        """Arguments that make redis-py send a command to every server that holds records."""

    def entries(self, *, is_last: bool = False) -> list[tuple[Any, ...]]:
        """Return the commands that update the index of hosts.

        A cluster has no index: an unreachable server that holds it would stop the updates on all servers.
        """
        entries = self.swap.entries(is_last=is_last)
        return [] if self._is_cluster else entries

    def looks(self, client: Any, attempts: list[Attempt]) -> list[Look]:
        """Return the looks at marks that must precede the attempts."""
        try:
            if self._is_cluster:
                for attempt in attempts:
                    attempt.server = client.get_node_from_key(self.swap.name(attempt.key)).name
            doubted = self.swap.marks.doubted([attempt.server for attempt in attempts])
            places = [(server, self._place(client, server)) for server in doubted]
            ask, mark = self.swap.marks.ask, self.swap.mark
            return [ask(server, mark(place)) for server, place in places if place is not None]
        except FAILURES as error:
            raise self.failed(error) from error

    def hear(self, attempts: list[Attempt], replies: list[Any], deadline: float) -> list[Attempt]:
        """Take the replies, and return the attempts to retry."""
        left = []
        for attempt, reply in zip(attempts, replies, strict=True):
            if isinstance(reply, Exception):
                attempt.fail(self.failed(reply))
                continue
            try:
                if self.swap.hear(attempt, reply):
                    continue
            except StoreError as error:
                attempt.fail(error)
                continue
            if time.monotonic() < deadline:
                left.append(attempt)
            else:
                attempt.fail(
                    StoreError(
                        f"{self.address.shown}: {attempt.key!r} could not be updated in {attempt.tries} tries, for "
                        "others were always faster. Use fewer processes for one host, or a server that is nearer."
                    )
                )
        return left

    def _place(self, client: Any, server: str) -> int | None:
        """Return a number whose mark is stored on `server`: in a cluster, the text in braces selects the server.

        None if all MOST_PLACES numbers are on other servers, because this one has hardly any slots.
        """
        if not self._is_cluster:
            return 0
        place, until = self._places.get(server, (0, math.inf))
        if time.monotonic() > until or (place is not None and not self._lies_on(client, place, server)):
            there = (each for each in range(MOST_PLACES) if self._lies_on(client, each, server))
            place = next(there, None)
            until = math.inf if place is not None else time.monotonic() + SEARCH_EVERY
        self._places[server] = place, until
        return place

    def _lies_on(self, client: Any, place: int, server: str) -> bool:
        return bool(client.get_node_from_key(self.swap.mark(place)).name == server)

    def check(self, info: dict[str, Any]) -> None:
        """Raise PolicyError for a server that is too old or may evict keys: an evicted limit is a broken one."""
        for each in [info] if "redis_version" in info else info.values():
            version = str(each.get("redis_version", ""))
            numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
            if numbers and numbers < OLDEST:
                raise PolicyError(f"{self.address.shown} is Redis {version}, and 7.0 or later is needed. Upgrade it.")
            policy = each.get("maxmemory_policy", "noeviction")
            if int(each.get("maxmemory", 0)) > 0 and policy != "noeviction":
                raise PolicyError(
                    f"{self.address.shown} has maxmemory-policy {policy}: when memory is short it would forget hosts, "
                    "and with them their limits. Set it to noeviction, or use a server of its own."
                )

    def failed(self, error: BaseException) -> StoreError:
        """Return a StoreError for an error of redis-py, and require a look at all marks."""
        self.swap.marks.doubt_all()
        return self.address.failed(error, self.timeout)


def is_unknown_user(error: BaseException | None) -> bool:
    """Return whether the server does not know the user or the password. A cluster reports that as a cause."""
    return error is not None and (isinstance(error, _Unknown) or is_unknown_user(error.__cause__))


def is_wrong_url(error: BaseException) -> bool:
    """Return whether another attempt with the same URL must fail: wrong login or database, or no Redis server."""
    return is_unknown_user(error) or isinstance(error, redis.exceptions.InvalidResponse) or _is_unknown_database(error)


def _is_unknown_database(error: BaseException) -> bool:
    """Return whether the server does not have the database of the URL. A cluster has no numbered ones."""
    return isinstance(error, redis.ResponseError) and str(error).startswith(
        ("DB index is out of range", "SELECT is not")
    )


def is_unreachable(error: StoreError) -> bool:
    """Return whether an error says that the server did not answer, so that a later attempt may succeed."""
    return isinstance(error.__cause__, _Unreachable) and not is_unknown_user(error.__cause__)


async def reply_of(reply: Any) -> Any:
    """Return the reply of a client for threads, or await that of a client for tasks."""
    return await reply if inspect.isawaitable(reply) else reply


async def close_all(closers: list[Any]) -> None:
    """Close the objects that `Address.open` returned."""
    for each in closers:
        await reply_of(each.close() if is_blocking() else each.aclose())


async def exchange(words: list[tuple[Any, ...]], entries: list[tuple[Any, ...]], client: Any) -> list[Any]:
    """Send all calls of the script in one batch; send its source only if the server does not have it.

    The commands `entries` go in the same batch. Their replies and errors are ignored.
    """
    if len(words) == 1 and not entries:
        try:
            return [await reply_of(client.execute_command("EVALSHA", SHA, 1, *words[0]))]
        except NoScript:
            return [await reply_of(client.execute_command("EVAL", SCRIPT, 1, *words[0]))]
    batch = [*(("EVALSHA", SHA, 1, *each) for each in words), *entries]
    replies = (await pipelined(batch, client))[: len(words)]
    missing = [place for place, reply in enumerate(replies) if isinstance(reply, NoScript)]
    if missing:
        again = await pipelined([("EVAL", SCRIPT, 1, *words[place]) for place in missing], client)
        for place, reply in zip(missing, again, strict=True):
            replies[place] = reply
    return replies


async def pipelined(commands: list[tuple[Any, ...]], client: Any, is_raised: bool = False) -> list[Any]:
    """Send commands at once; return the replies, with errors in place unless `is_raised`."""
    pipeline = client.pipeline(transaction=False)
    for each in commands:
        pipeline.execute_command(*each)
    replies: list[Any] = await reply_of(pipeline.execute(raise_on_error=is_raised))
    return replies


async def names_of(pattern: bytes, client: Any) -> set[bytes]:
    """Return the names of all keys that match a SCAN pattern."""
    found = client.scan_iter(match=pattern, count=1000)
    return set(found) if is_blocking() else {name async for name in found}


async def sample_of(prefix: bytes, most: int, client: Any) -> tuple[list[bytes], int, bool]:
    """Return up to `most` names that begin with `prefix`, and the number of all such names, which may be an estimate.

    The third value tells whether the number is exact: then the server has few keys, and all names are returned. SCAN
    returns keys in the order of their hashes, so that a part of them represents all.
    """
    scanned = client.scan_iter(count=1000)
    seen = list(islice(scanned, most)) if is_blocking() else [name async for name in _first(most, scanned)]
    found = list({name for name in seen if name.startswith(prefix)})
    if len(seen) < most:
        return found, len(found), True
    size = int(await reply_of(client.dbsize()))
    return found, max(len(found), round(size * len(found) / len(seen))), False


async def _first(most: int, names: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    async for name in names:
        yield name
        most -= 1
        if not most:
            return


async def look(words: tuple[Any, ...], client: Any) -> Any:
    """Run the script that looks at a mark."""
    return await reply_of(client.execute_command("EVAL", generation.SCRIPT, 4, *words))


def pause_before(attempts: list[Attempt]) -> float:
    """Return the seconds to wait after 4 to 29 refusals: random, so that competing processes separate."""
    tries = min(attempt.tries for attempt in attempts)
    return random.random() * min(0.02, 0.0005 * 2**tries) if 3 < tries < 30 else 0.0
