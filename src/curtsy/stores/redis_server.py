"""Redis or Valkey server, as the blocking and the async store use it: requests, replies and checks."""

from __future__ import annotations

import logging
import math
import random
import time
import weakref
from typing import Any

from curtsy.core.errors import PolicyError, StoreError
from curtsy.stores import generation
from curtsy.stores.cas import SCRIPT, SHA, Attempt, CompareAndSwap
from curtsy.stores.generation import Look
from curtsy.stores.redis_url import FAILURES, NoScript, parse_address
from curtsy.system.clock import Clock

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


class Server:
    """Address, cache and checks of a server, used by the blocking and the async store."""

    def __init__(self, url: str, clock: Clock | None, prefix: str, timeout: float) -> None:
        if not timeout > 0:
            raise PolicyError(f"timeout = {timeout!r} must be above 0 seconds. Leave it out to use 1.")
        if "{" in prefix:
            raise PolicyError(f"prefix = {prefix!r} must not contain {{, which marks where a cluster keeps a key.")
        self.address = parse_address(url)
        self.timeout = timeout
        self.identity = f"{self.address.identity}#{prefix}"
        self.swap = CompareAndSwap(prefix, clock, timeout / 2)
        if clock is None:  # all stores of a process share one cache
            self.swap = _swaps.setdefault((self.identity, timeout), self.swap)
        self._places: dict[str, tuple[int | None, float]] = {}
        self._is_cluster = self.address.kind == "cluster"
        self.everywhere: dict[str, str] = {"target_nodes": "primaries"} if self._is_cluster else {}
        """Arguments that make redis-py send a command to every server that holds records."""

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

    def ask(self, attempts: list[Attempt]) -> list[tuple[Any, ...]]:
        """Return the arguments of the script for each attempt."""
        return [self.swap.ask(attempt) for attempt in attempts]

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

    def filters(self, info: dict[str, Any]) -> None:
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

    def not_judged(self) -> None:
        """Log that the check is skipped, because a managed server hides its settings."""
        logger.debug("%s does not let us see its settings: not checked for version and eviction", self.address.shown)

    def failed(self, error: BaseException) -> StoreError:
        """Return a StoreError for an error of redis-py, and require a look at all marks."""
        self.swap.marks.doubt_all()
        return self.address.failed(error, self.timeout)

    def closed(self) -> StoreError:
        """Return the error for a call after `close()`."""
        return StoreError(f"{self.address.shown} was used after close(). Open another store.")


def exchange(words: list[tuple[Any, ...]], client: Any) -> list[Any]:
    """Send all calls of the script in one batch; send its source only if the server does not have it."""
    if len(words) == 1:
        try:
            return [client.execute_command("EVALSHA", SHA, 1, *words[0])]
        except NoScript:
            return [client.execute_command("EVAL", SCRIPT, 1, *words[0])]
    with client.pipeline(transaction=False) as pipeline:
        _fill(pipeline, "EVALSHA", SHA, words)
        replies: list[Any] = pipeline.execute(raise_on_error=False)
    if missing := _missing(replies):
        with client.pipeline(transaction=False) as pipeline:
            _fill(pipeline, "EVAL", SCRIPT, [words[place] for place in missing])
            for place, reply in zip(missing, pipeline.execute(raise_on_error=False), strict=True):
                replies[place] = reply
    return replies


async def aexchange(words: list[tuple[Any, ...]], client: Any) -> list[Any]:
    """Send all calls of the script in one batch, as `exchange` does, for tasks."""
    if len(words) == 1:
        try:
            return [await client.execute_command("EVALSHA", SHA, 1, *words[0])]
        except NoScript:
            return [await client.execute_command("EVAL", SCRIPT, 1, *words[0])]
    async with client.pipeline(transaction=False) as pipeline:
        _fill(pipeline, "EVALSHA", SHA, words)
        replies: list[Any] = await pipeline.execute(raise_on_error=False)
    if missing := _missing(replies):
        async with client.pipeline(transaction=False) as pipeline:
            _fill(pipeline, "EVAL", SCRIPT, [words[place] for place in missing])
            for place, reply in zip(missing, await pipeline.execute(raise_on_error=False), strict=True):
                replies[place] = reply
    return replies


def look(words: tuple[Any, ...], client: Any) -> Any:
    """Run the script that looks at a mark."""
    return client.execute_command("EVAL", generation.SCRIPT, 3, *words)


def _fill(pipeline: Any, command: str, script: str, words: list[tuple[Any, ...]]) -> None:
    for each in words:
        pipeline.execute_command(command, script, 1, *each)


def _missing(replies: list[Any]) -> list[int]:
    return [place for place, reply in enumerate(replies) if isinstance(reply, NoScript)]


def pause_before(attempts: list[Attempt]) -> float:
    """Return the seconds to wait after 4 to 29 refusals: random, so that competing processes separate."""
    tries = min(attempt.tries for attempt in attempts)
    return random.random() * min(0.02, 0.0005 * 2**tries) if 3 < tries < 30 else 0.0
