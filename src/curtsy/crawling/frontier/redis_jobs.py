"""Registry: the crawls that many machines share on a Redis server, by their names: begun, found, listed, forgotten.

    curtsy:crawls                        set     the names of all jobs
    curtsy:crawl:{name}:meta             hash    when it was born, its number of partitions, its format
    curtsy:crawl:{name}:workers          zset    who is at work on it, by when that was last heard
    curtsy:crawl:{name}:notes            hash    plain values
    curtsy:crawl:{name@born:n}:…                 its partitions; see scripts.py

What stands in braces decides where a cluster keeps a key, so that each partition is in one place. A job that is begun
anew is born anew, and its keys have other names: one who is still at work on the old one cannot touch it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

import msgspec

from curtsy.core.errors import CurtsyError, PolicyError
from curtsy.core.message import SECOND
from curtsy.crawling.frontier.protocol import Counts
from curtsy.crawling.frontier.redis_call import Call, send
from curtsy.crawling.frontier.redis_codec import Report, read_report
from curtsy.crawling.frontier.scripts import CLAIM, GONE, OPEN, PRESENT
from curtsy.stores.pipeline import Pipeline
from curtsy.stores.redis_server import Server

PARTITIONS = 64
"""Parts of a new job: enough to spread it over a cluster's nodes and a hundred workers, few enough to look at all."""

PRESENCE = 6.0
"""Seconds for which a worker counts as one that is there, after it was last heard of."""

TIMEOUT = 5.0
"""Seconds that the server may keep us waiting."""

FORMAT = 3
"""How partitions are laid out. Another one is refused."""

_PREFIX = "curtsy:"
_NAMES = f"{_PREFIX}crawls"
_BATCH = 500


class JobGone(PolicyError):
    """The job is not there any more: it was forgotten or begun anew, or the server has lost it.

    No StoreError, for to try again is of no use.
    """


class SharedJob(msgspec.Struct, frozen=True):
    """One life of a job, and where its keys are."""

    name: str
    born: int
    """By which this life of the job is told from an earlier one: the server's microseconds at its birth."""

    partitions: int

    def base(self, partition: int) -> str:
        """What the keys of a partition begin with."""
        return f"{_PREFIX}crawl:{{{_quoted(self.name)}@{self.born}:{partition}}}"


class JobSummary(msgspec.Struct, frozen=True):
    """A job as it stands."""

    name: str
    counts: Counts
    heard: dict[str, float] = {}
    """Who is at work on it, or was and did not take leave, each with the seconds since that was last heard."""

    changed_at: float | None = None
    """Epoch second of the last change, by the server's clock; None if nothing was ever added."""

    notes: dict[str, Any] = {}
    """All that its workers have noted."""

    @property
    def workers(self) -> int:
        """How many are at work on it."""
        return sum(ago <= PRESENCE for ago in self.heard.values())


class RedisJobs:
    """The jobs of a server, as one event loop has them."""

    def __init__(self, url: str, *, timeout: float = TIMEOUT, clock: Callable[[], float] | None = None) -> None:
        self.server = Server(url, None, _PREFIX, timeout)
        self.clock = clock
        self._line: Pipeline | None = None

    def now(self) -> str:
        """The present as scripts take it: empty unless it is given, for tests."""
        return "" if self.clock is None else str(round(self.clock() * SECOND))

    async def ask(self, calls: list[Call]) -> list[Any]:
        """Send all at once; the replies, with an error of ours in place of each that failed."""
        if self._line is None:
            self._line = Pipeline(self.server, asyncio.get_running_loop())
        replies = await self._line.call(lambda client: send(calls, client)) if calls else []
        return [self._failed(each) if isinstance(each, BaseException) else each for each in replies]

    async def demand(self, calls: list[Call]) -> list[Any]:
        """The same, if none has failed; else the first error is raised."""
        replies = await self.ask(calls)
        for reply in replies:
            if isinstance(reply, CurtsyError):
                raise reply
        return replies

    def _failed(self, error: BaseException) -> CurtsyError:
        if str(error).startswith(GONE):
            return JobGone(
                f"{self.server.address.shown} does not have the job any more: it was forgotten, begun anew by somebody "
                "else, or lost with the server's memory. Start it again."
            )
        return self.server.failed(error)

    async def find(self, name: str) -> SharedJob | None:
        """The job of that name, if there is one."""
        [[born, partitions]] = await self.demand([Call(("HMGET", f"{home(name)}:meta", "born", "partitions"))])
        return None if born is None else SharedJob(name, int(born), int(partitions))

    async def open(self, name: str, worker: str, *, partitions: int, fresh: bool) -> SharedJob:
        """The job of that name, begun if there is none, or if it is to be `fresh` and nobody else is at work on it."""
        words = (self.now(), round(PRESENCE * SECOND), worker, partitions, FORMAT, int(fresh))
        replies = await self.demand([Call(("SADD", _NAMES, name)), OPEN.on(home(name), *words)])
        born, count, format, others = map(int, replies[1])
        shown = self.server.address.shown
        if others:
            raise PolicyError(
                f"the job {name!r} on {shown} cannot be begun anew, for {others} others are at work on it, or were "
                f"{PRESENCE:g} s ago. Stop them first, or join them without a fresh start."
            )
        if format != FORMAT:
            which, remedy = ("a later", "Upgrade this one") if format > FORMAT else ("an earlier", "Begin it anew")
            raise PolicyError(f"the job {name!r} on {shown} was begun by {which} curtsy. {remedy}.")
        job = SharedJob(name, born, count)
        # Scripts refuse a partition that has no ticket: what was forgotten must not come back by somebody's late call.
        first = [Call(("HSETNX", f"{job.base(number)}:state", "ticket", born)) for number in range(count)]
        await self.demand(first)
        if fresh:
            await self._sweep(name, but=job)
        return job

    async def look(self, job: SharedJob) -> list[Report]:
        """How each partition stands."""
        calls = [CLAIM.on(job.base(number), self.now(), "", 0, 0, 0, "") for number in range(job.partitions)]
        return [read_report(reply) for reply in await self.demand(calls)]

    async def forget(self, name: str) -> bool:
        """Remove a job and all it has; False if there was none."""
        job = await self.find(name)
        if job is not None:  # first what lets others go on with it
            await self.demand([Call(("UNLINK", f"{home(name)}:meta"))])
            await self._unlink([f"{job.base(number)}:state" for number in range(job.partitions)])
        await self._unlink([f"{home(name)}:{each}" for each in ("workers", "notes")])
        await self._sweep(name)
        await self.demand([Call(("SREM", _NAMES, name))])
        return job is not None

    async def jobs(self) -> list[JobSummary]:
        """All jobs, by their names."""
        [names] = await self.demand([Call(("SMEMBERS", _NAMES))])
        found = [await self.job(name) for name in sorted(each.decode() for each in names)]
        return [each for each in found if each is not None]

    async def job(self, name: str) -> JobSummary | None:
        """The job of that name as it stands, if there is one."""
        job = await self.find(name)
        if job is None:
            return None
        changes = [Call(("HGET", f"{job.base(number)}:state", "last")) for number in range(job.partitions)]
        asked = [PRESENT.on(home(name), self.now()), Call(("HGETALL", f"{home(name)}:notes")), *changes]
        heard, notes, *changed = await self.demand(asked)
        return JobSummary(
            name=name,
            counts=total(await self.look(job)),
            heard={worker.decode(): ago / SECOND for worker, ago in _pairs(heard)},
            changed_at=max((float(each) / SECOND for each in changed if each is not None), default=None),
            notes={key.decode(): msgspec.json.decode(value) for key, value in _pairs(notes)},
        )

    async def _sweep(self, name: str, but: SharedJob | None = None) -> None:
        """Remove the keys of all partitions of a job's lives, `but` of one of them."""
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

    async def close(self) -> None:
        """Give back the connections."""
        line, self._line = self._line, None
        if line is not None:
            await line.close()


async def forget(url: str, job: str) -> bool:
    """Remove a job from the server at that URL; False if there was none. Those at work on it get an error."""
    registry = RedisJobs(url)
    try:
        return await registry.forget(job)
    finally:
        await registry.close()


async def find(url: str, job: str) -> JobSummary | None:
    """The job of that name on the server at that URL, if there is one."""
    registry = RedisJobs(url)
    try:
        return await registry.job(job)
    finally:
        await registry.close()


async def jobs(url: str) -> list[JobSummary]:
    """The jobs on the server at that URL, by their names."""
    registry = RedisJobs(url)
    try:
        return await registry.jobs()
    finally:
        await registry.close()


def _pairs(words: Any) -> list[tuple[Any, Any]]:
    """What a server answers as a mapping, by either of its protocols."""
    return list(words.items() if isinstance(words, dict) else zip(words[::2], words[1::2], strict=True))


def total(reports: list[Report]) -> Counts:
    """All partitions together."""
    return Counts(
        queued=sum(report.queued for report in reports),
        leased=sum(report.leased for report in reports),
        done=sum(report.done for report in reports),
        failed=sum(report.failed for report in reports),
        hosts=sum(report.hosts for report in reports),
    )


def home(name: str) -> str:
    """What the keys of a job as a whole begin with."""
    return f"{_PREFIX}crawl:{{{_quoted(name)}}}"


def _quoted(name: str) -> str:
    """A name without anything that means something in a key or a pattern."""
    return quote(name, safe="")
