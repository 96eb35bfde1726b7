"""Registry of the crawls that machines share on a Redis server: open, find, list and forget jobs.

    curtsy:crawls                        set     names of all jobs
    curtsy:crawl:{name}:meta             hash    creation time, number of partitions, format, pages of all workers
    curtsy:crawl:{name}:workers          zset    workers by the time of their last heartbeat
    curtsy:crawl:{name}:leased           hash    leased URLs of each worker, by its last heartbeat, until it signs off
    curtsy:crawl:{name}:seen             zset    the latest workers by the time of their last heartbeat, also ended ones
    curtsy:crawl:{name}:versions         hash    formats that the workers can write, before the job is upgraded
    curtsy:crawl:{name}:pages            hash    pages of each worker
    curtsy:crawl:{name}:notes            hash    plain values
    curtsy:crawl:{name}:written          hash    by process: the number of its last call for notes, and the pages of its
                                                 last batch with stored notes
    curtsy:crawl:{name}:callers          hash    by worker: the process that has its outputs
    curtsy:crawl:{name}:taken            hash    URLs whose leases expired, each with the ticket that may write its page
    curtsy:crawl:{name@born:n}:…                 partitions; see lua_library.py

The part in braces decides where a cluster stores a key, so each partition is on one node. A job that starts over gets a
new creation time, and so other keys: a worker on the old job cannot touch them.
"""

from __future__ import annotations

import asyncio
import binascii
import contextlib
import functools
import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from urllib.parse import quote

import msgspec

from curtsy.core.crawl_messages import replicas_behind, unknown_format
from curtsy.core.errors import CurtsyError, PolicyError, StoreError
from curtsy.core.time import SECOND
from curtsy.crawling.frontier.lua_job import OPEN, PRESENT
from curtsy.crawling.frontier.lua_partition import GONE, PEEK
from curtsy.crawling.frontier.protocol import Counts
from curtsy.crawling.frontier.redis_codec import Call
from curtsy.stores.redis import Connection
from curtsy.stores.redis_server import Moving, NoScript, RedisCluster, Refusing, Server

PRESENCE = 6.0
"""Seconds after its last heartbeat for which a worker counts as present."""

MOST_SEEN = 1000
"""Number of workers of a job whose last heartbeat is remembered: the latest ones."""

FORMAT, OLDEST_FORMAT = 4, 3
"""Latest and oldest known version of the partition layout. Jobs of other versions are refused.

A job gets the latest one as soon as all its present workers know it. Until then, they write the older one.
"""

SLOTS = 16_384
"""Hash slots of a cluster."""

_PREFIX = "curtsy:"
_NAMES = f"{_PREFIX}crawls"
_BATCH = 500

_KEYS = ("workers", "versions", "leased", "seen", "pages", "notes", "written", "callers", "taken")

_AGAIN = 1.0
"""Seconds after which a call is repeated if it waits for its server."""

_AT_ONCE = 128
"""Calls that are sent at once: the timeout applies to each batch, and a poll of all partitions is many calls."""

_PAUSE = 0.05
"""Seconds between two tries while a slot is being moved."""


class JobGone(PolicyError):
    """Error: the job was forgotten, started over, or lost by the server.

    It is not a StoreError because a retry cannot succeed.
    """


class SharedJob(msgspec.Struct, frozen=True):
    """One run of a job from its creation, and the prefix of its keys."""

    name: str
    born: int
    """Creation time in microseconds by the server's clock; it distinguishes the job from earlier ones of its name."""

    partitions: int
    format: int = FORMAT
    is_even: bool = True
    """True if each partition is in its own equal range of a cluster's slots, as in all jobs since format 4."""

    def base(self, partition: int) -> str:
        """Return the key prefix of a partition."""
        return _bases(self.name, self.born, self.partitions, self.is_even)[partition]


class Heartbeat(msgspec.Struct, frozen=True):
    """Last heartbeat of a worker."""

    ago: float
    """Seconds since then."""

    is_last: bool = False
    """True if the worker has signed off."""


class JobSummary(msgspec.Struct, frozen=True):
    """State of a job."""

    name: str
    counts: Counts
    heard: dict[str, float] = {}
    """Seconds since the last heartbeat of each worker that has not signed off, as far as others have not dropped it."""

    seen: dict[str, Heartbeat] = {}
    """Last heartbeat of the latest workers, also of those that were killed or have signed off."""

    changed_at: float | None = None
    """Epoch second of the last change, by the server's clock; None if nothing was ever added."""

    notes: dict[str, Any] = {}
    """Notes of all workers."""

    trouble: str = ""
    """Error that prevents reading the job; empty if it is readable."""

    @property
    def workers(self) -> int:
        """Return the number of present workers."""
        return sum(ago <= PRESENCE for ago in self.heard.values())


class RedisJobs:
    """Jobs of a server, accessed from one event loop."""

    def __init__(self, url: str, *, timeout: float | None = None, clock: Callable[[], float] | None = None) -> None:
        self.server = Server(url, None, _PREFIX, timeout)
        self.clock = clock
        self._line: Connection | None = None
        self._waits_until = 0.0
        """Monotonic second until which calls are repeated if the server does not answer."""
        self._tell: Callable[[StoreError], None] | None = None
        """Callback for the first such error."""
        self.connections = 0
        """Number of connections opened so far, and of calls that failed."""

    def now(self) -> str:
        """Return the time argument of scripts: empty, or the microseconds of `clock` in tests."""
        return "" if self.clock is None else str(round(self.clock() * SECOND))

    async def ask(self, calls: list[Call], replicas: int = 0) -> list[Any]:
        """Send all calls in order; return the replies, with a CurtsyError in place of each failed one.

        Raise StoreError if fewer than `replicas` replicas of a server got the calls in time.
        """
        if not calls:
            return []
        while True:
            try:
                return await self._ask(calls, replicas)
            except StoreError as error:
                if time.monotonic() >= self._waits_until or isinstance(error.__cause__, Refusing):
                    raise
                if self._tell is not None:
                    self._tell(error)
                    self._tell = None
            await asyncio.sleep(_AGAIN)

    async def _ask(self, calls: list[Call], replicas: int) -> list[Any]:
        if self._line is None:
            self._line = Connection(self.server, self._count)
        wait = ("WAIT", replicas, round(self.server.timeout * 500)) if replicas else ()
        replies: list[Any] = []
        for start in range(0, len(calls), _AT_ONCE):
            send = functools.partial(_send, calls[start : start + _AT_ONCE], wait)
            replies += await self._line.call(send)
        if any(isinstance(each, _Behind) for each in replies):
            raise StoreError(replicas_behind(self.server.address.shown, replicas, self.server.timeout / 2))
        return [self._failed(each) if isinstance(each, BaseException) else each for each in replies]

    @contextlib.contextmanager
    def outlast(self, seconds: float, tell: Callable[[StoreError], None]) -> Iterator[None]:
        """Repeat calls for up to `seconds` if the server does not answer; see `AsyncFrontier.outlast`."""
        self._waits_until, self._tell = time.monotonic() + seconds, tell
        try:
            yield
        finally:
            self._waits_until, self._tell = 0.0, None

    def _count(self) -> None:
        self.connections += 1

    async def demand(self, calls: list[Call], replicas: int = 0) -> list[Any]:
        """Send all calls at once; return the replies, or raise the first error."""
        replies = await self.ask(calls, replicas)
        for reply in replies:
            if isinstance(reply, CurtsyError):
                raise reply
        return replies

    def _failed(self, error: BaseException) -> CurtsyError:
        self._count()
        if str(error).startswith(GONE):
            return JobGone(
                f"{self.server.address.shown} does not have the job any more: it was deleted, restarted by another "
                "process, or lost with the server's memory. Start it again, with other outputs."
            )
        return self.server.failed(error)

    async def find(self, name: str) -> SharedJob | None:
        """Return the job with a name; None if it does not exist."""
        fields = ("born", "partitions", "format", "even")
        [[born, partitions, format, even]] = await self.demand([Call(("HMGET", f"{home(name)}:meta", *fields))])
        return None if born is None else SharedJob(name, int(born), int(partitions), int(format), even is not None)

    async def open(self, name: str, worker: str, *, partitions: int, restart: bool) -> SharedJob:
        """Return the job with a name; create it if it is new or if `restart` is set.

        Raise PolicyError for `restart` while other workers are present, and for a job of another format.
        """
        words = (self.now(), round(PRESENCE * SECOND), worker, partitions, FORMAT, int(restart))
        replies = await self.demand([Call(("SADD", _NAMES, name)), OPEN.on(home(name), *words)])
        born, count, format, others, even = map(int, replies[1])
        shown = self.server.address.shown
        if others:
            raise PolicyError(
                f"the job {name!r} on {shown} cannot be restarted, because {others} other workers run it, or did "
                f"{PRESENCE:g} s ago. Stop them first, or join them without --restart."
            )
        self.check(name, format)
        job = SharedJob(name, born, count, format, bool(even))
        # Scripts refuse a partition without a ticket, so a worker's late call cannot recreate a forgotten one.
        first = [Call(("HSETNX", f"{job.base(number)}:state", "ticket", born)) for number in range(count)]
        await self.demand(first)
        if restart:
            await self._sweep(name, but=job)
        return job

    def check(self, name: str, format: int) -> None:
        """Raise PolicyError for a job of an unknown format."""
        if not OLDEST_FORMAT <= format <= FORMAT:
            raise PolicyError(unknown_format(name, self.server.address.shown, format, OLDEST_FORMAT, FORMAT))

    async def forget(self, name: str) -> bool:
        """Remove a job and all its keys; return False if it did not exist."""
        job = await self.find(name)
        if job is not None:  # first, so that no worker can resume it
            await self.demand([Call(("UNLINK", f"{home(name)}:meta"))])
            await self._unlink([f"{job.base(number)}:state" for number in range(job.partitions)])
        await self._unlink([f"{home(name)}:{each}" for each in _KEYS])
        await self._sweep(name)
        await self.demand([Call(("SREM", _NAMES, name))])
        return job is not None

    async def jobs(self) -> list[JobSummary]:
        """Return the state of all jobs, sorted by name."""
        [names] = await self.demand([Call(("SMEMBERS", _NAMES))])
        found = []
        for name in sorted(each.decode() for each in names):
            try:
                found.append(await self.job(name))
            except PolicyError as error:  # a job of a later format does not hide the others
                found.append(JobSummary(name, Counts(0, 0, 0, 0, 0), trouble=str(error)))
        return [each for each in found if each is not None]

    async def job(self, name: str) -> JobSummary | None:
        """Return the state of a job; None if it does not exist."""
        job = await self.find(name)
        if job is None:
            return None
        self.check(name, job.format)
        peeks = [PEEK.on(job.base(number)) for number in range(job.partitions)]
        asked = [PRESENT.on(home(name), self.now()), Call(("HGETALL", f"{home(name)}:notes")), *peeks]
        [heard, seen, are_left], notes, *found = await self.demand(asked)
        ago = {worker.decode(): ago / SECOND for worker, ago in _pairs(heard)}
        beats = {
            worker.decode(): Heartbeat(ago / SECOND, not is_left)
            for (worker, ago), is_left in zip(_pairs(seen), are_left, strict=True)
        }
        changed_at, *counts = zip(*found, strict=True)
        return JobSummary(
            name=name,
            counts=Counts(*map(sum, counts)),
            heard=ago,
            seen={name: Heartbeat(each) for name, each in ago.items()} | beats,  # an earlier version is not in `seen`
            changed_at=max(changed_at) / SECOND or None,
            notes=read_notes(notes),
        )

    async def _sweep(self, name: str, but: SharedJob | None = None) -> None:
        """Remove the partitions of all jobs that ever had this name, except those of `but`."""
        assert self._line is not None
        kept = "" if but is None else f"{_PREFIX}crawl:{{{_quoted(name)}@{but.born}:"

        async def scan(client: Any) -> list[str]:
            pattern = f"{_PREFIX}crawl:{{{_quoted(name)}@*"
            names = {key.decode() async for key in client.scan_iter(match=pattern, count=1000)}
            return [key for key in names if not kept or not key.startswith(kept)]

        await self._unlink(await self._line.call(scan, bounded=False))

    async def _unlink(self, keys: list[str]) -> None:
        for start in range(0, len(keys), _BATCH):
            await self.demand([Call(("UNLINK", key)) for key in keys[start : start + _BATCH]])

    async def aclose(self) -> None:
        """Close the connections."""
        line, self._line = self._line, None
        if line is not None:
            await line.close()


class _Behind(Exception):
    """Error: too few replicas have a call."""


async def _send(calls: Sequence[Call], wait: tuple[Any, ...], client: Any) -> list[Any]:
    """Send all calls at once; return the replies, errors included.

    `wait` is the command that waits for replicas, or empty. The function retries until every slot has arrived, so the
    caller must set a timeout.
    """
    replies: list[Any] = [None] * len(calls)
    left = dict(enumerate(calls))
    task = asyncio.current_task()
    assert task is not None
    cancelled = task.cancelling()
    while left:
        got = dict(zip(left, await _exchange(list(left.values()), client, wait), strict=True))
        for place, reply in got.items():
            replies[place] = reply
        unknown = {left[place].script: place for place, reply in reversed(got.items()) if isinstance(reply, NoScript)}
        is_moving = any(type(reply) in Moving for reply in got.values())
        left = {place: calls[place] for place, reply in got.items() if type(reply) in (*Moving, NoScript)}
        for place in unknown.values():  # the first call brings the script for all others on its server
            left[place] = calls[place].spelled_out()
        if is_moving:
            if task.cancelling() > cancelled:  # redis-py may report a cancellation as a failed reply
                raise asyncio.CancelledError
            await asyncio.sleep(_PAUSE)
    return replies


async def _exchange(calls: list[Call], client: Any, wait: tuple[Any, ...]) -> list[Any]:
    """Send calls at once. With `wait`, the reply to a call that too few replicas have is a _Behind error."""
    servers: dict[str, Any] = {}
    async with client.pipeline(transaction=False) as pipeline:
        for call in calls:
            pipeline.execute_command(*call.words)
        if wait:  # on the same connections as the calls, because each connection waits for its own writes
            servers = _servers(calls, client)
            for server in servers.values():
                pipeline.execute_command(*wait, **server)
        replies: list[Any] = await pipeline.execute(raise_on_error=False)
    waited, replies = replies[len(calls) :], replies[: len(calls)]
    if any(isinstance(each, int) and each < wait[1] for each in waited):
        return [each if isinstance(each, BaseException) else _Behind() for each in replies]
    return [next((error for error in waited if isinstance(error, BaseException)), each) for each in replies]


def _servers(calls: list[Call], client: Any) -> dict[str, Any]:
    """Return the servers of the calls by name, each with the arguments that make redis-py send a command there."""
    if not isinstance(client, RedisCluster):
        return {"": {}}
    nodes = {node.name: node for call in calls if (node := client.get_node_from_key(call.key)) is not None}
    return {name: {"target_nodes": node} for name, node in nodes.items()}


async def forget(url: str, job: str) -> bool:
    """Remove a job from the server at `url`; return False if it did not exist.

    Its workers get a JobGone error.
    """
    async with contextlib.aclosing(RedisJobs(url)) as registry:
        return await registry.forget(job)


async def find(url: str, job: str, timeout: float | None = None) -> JobSummary | None:
    """Return the state of a job on the server at `url`; None if it does not exist.

    `timeout` is the seconds to wait for the server; None for those of the URL.
    """
    async with contextlib.aclosing(RedisJobs(url, timeout=timeout)) as registry:
        return await registry.job(job)


async def jobs(url: str) -> list[JobSummary]:
    """Return the state of all jobs on the server at `url`, sorted by name."""
    async with contextlib.aclosing(RedisJobs(url)) as registry:
        return await registry.jobs()


def _pairs(words: Any) -> list[tuple[Any, Any]]:
    """Return the pairs of a mapping in the reply format of RESP2 or RESP3."""
    return list(words.items() if isinstance(words, dict) else zip(words[::2], words[1::2], strict=True))


def read_notes(words: Any) -> dict[str, Any]:
    """Return the notes in a reply."""
    return {name.decode(): msgspec.json.decode(value) for name, value in _pairs(words)}


def home(name: str) -> str:
    """Return the prefix of a job's common keys."""
    return f"{_PREFIX}crawl:{{{_quoted(name)}}}"


@functools.lru_cache(maxsize=64)
def _bases(name: str, born: int, count: int, is_even: bool) -> tuple[str, ...]:
    """Return the key prefixes of all partitions.

    If they are even, the numbers in the hash tags are chosen so that the partitions divide a cluster's slots into equal
    ranges. Nodes own ranges of slots, so each gets its share of the partitions.
    """
    tag = f"{_quoted(name)}@{born}:"
    numbers = list(range(count))
    if is_even:
        begun, left = binascii.crc_hqx(tag.encode(), 0), set(numbers)  # the CRC16 that clusters use
        for number in itertools.count():
            partition = binascii.crc_hqx(b"%d" % number, begun) % SLOTS * count // SLOTS
            if partition in left:
                left.discard(partition)
                numbers[partition] = number
            if not left:
                break
    return tuple(f"{_PREFIX}crawl:{{{tag}{number}}}" for number in numbers)


def _quoted(name: str) -> str:
    """Return a name without characters that are special in keys or patterns."""
    return quote(name, safe="")
