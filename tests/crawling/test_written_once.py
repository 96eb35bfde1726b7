"""Every page of a shared crawl is in one output, whatever happens between the calls of its workers.

Workers with real files and a real server take turns call by call, as dice have it. Between two calls leases expire,
replies are lost, calls arrive late or in part, and workers are stopped or killed and started again.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import random
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from curtsy.core.errors import CurtsyError, StoreError
from curtsy.crawling.committer import Committer
from curtsy.crawling.frontier.lua_job import NOTE
from curtsy.crawling.frontier.protocol import Counts, Deferred, Done, Ending, Failed, Found, Requeue
from curtsy.crawling.frontier.redis import RedisFrontier
from curtsy.crawling.frontier.redis_codec import Call
from curtsy.crawling.frontier.redis_jobs import RedisJobs, forget
from curtsy.crawling.frontier.redis_requeue import requeue_shared
from curtsy.crawling.outputs import open_output
from curtsy.crawling.results import Finished, Results
from tests.crawling.leaves import page
from tests.support.polling import until
from tests.support.redis_server import RedisCluster, RedisServer, redis_available

LEASE = 10.0
TROUBLED = 250
"""Calls in trouble. From then on all are answered, so that the crawl ends."""

FATES = ("lost", "reply lost", "in part", "late", "stopped", "killed", "killed after")
"""What may become of a call that is not answered."""


class Killed(BaseException):
    """The process of a worker ends here."""


class Stopped(BaseException):
    """A worker is told to stop."""


class World:
    """The clock, the dice, and whose turn it is."""

    def __init__(self, server: RedisServer | RedisCluster, job: str, folder: Path, seed: int) -> None:
        self.url, self.job, self.folder = server.url, job, folder
        self.dice = random.Random(seed)
        self._fates = {"answered": 80.0, **{fate: self.dice.choice((0, 1, 4, 20)) for fate in FATES}}
        self._leaps = self.dice.choice((0.02, 0.1, 0.3))
        self._arrivals = self.dice.choice((0.03, 0.1, 0.3))
        self.now = 1000.0
        self.is_calm = False
        self.late: list[tuple[list[Any], int]] = []
        self._network = RedisJobs(server.url, timeout=30.0)
        self._waiting: list[asyncio.Future[None]] = []
        self._busy = 0

    async def turn(self) -> str:
        """Wait for the turn; return what becomes of the call."""
        mine = asyncio.get_running_loop().create_future()
        self._waiting.append(mine)
        self._busy -= 1
        await mine
        return "answered" if self.is_calm else self.dice.choices(list(self._fates), list(self._fates.values()))[0]

    async def run(self, *workers: Worker) -> None:
        """Give turns until all workers are done, and then let all calls arrive that are late."""
        self._busy = len(workers)

        async def work(worker: Worker) -> None:
            try:
                while not await worker.run():
                    for _ in range(self.dice.choice((0, 0, 5, 20))):
                        await self.turn()
            finally:
                self._busy -= 1

        tasks = [asyncio.create_task(work(worker)) for worker in workers]
        for number in itertools.count():
            await until(lambda: not self._busy, every=0.0)
            assert number < 20 * TROUBLED, "the crawl does not end"
            self.is_calm = number >= TROUBLED
            self.now += 1.5 * LEASE if self.dice.random() < (0.02 if self.is_calm else self._leaps) else 0.1
            while self.late and (self.dice.random() < self._arrivals or not self._waiting):
                await self._network.ask(*self.late.pop(self.dice.randrange(len(self.late))))
            if not self._waiting:
                break
            self._busy += 1
            self._waiting.pop(self.dice.randrange(len(self._waiting))).set_result(None)
        await asyncio.gather(*tasks)
        await self._network.aclose()


class Worker:
    """One process after another that take part in the crawl, each with the same file."""

    def __init__(self, world: World, name: str) -> None:
        self._world, self._name = world, name
        self.file = world.folder / f"{name}.jsonl"

    def _frontier(self) -> RedisFrontier:
        world = self._world
        frontier = RedisFrontier(
            world.url,
            world.job,
            worker=self._name,
            concurrency=None,
            lease=LEASE,
            clock=lambda: world.now,
            timeout=30.0,
        )
        ask = frontier._registry.ask

        async def obstructed(calls: list[Any], replicas: int = 0) -> list[Any]:
            fate = await world.turn()
            if fate == "late":
                world.late.append((calls, replicas))
            if fate in ("reply lost", "killed after"):
                await ask(calls, replicas)
            if fate == "in part":
                await ask([call for call in calls if world.dice.random() < 0.5], replicas)
            if fate.startswith("killed"):
                raise Killed
            if fate == "stopped":
                raise Stopped
            if fate != "answered":
                raise StoreError("no answer")
            return await ask(calls, replicas)

        frontier._registry.ask = obstructed  # type: ignore[method-assign]
        return frontier

    async def run(self) -> bool:
        """Take part from a start to an end; return whether the crawl is over then."""
        frontier, results = self._frontier(), Results()
        committer = Committer(frontier, [open_output(str(self.file))], f":{self._name}")
        try:
            await committer.open(await frontier.notes())
            await self._crawl(frontier, committer, results)
            await frontier.close()
        except (StoreError, Stopped):
            with contextlib.suppress(CurtsyError, Stopped, Killed):
                await committer.give_back(results.finished)
                await frontier.close()
            return False
        except Killed:
            return False
        else:
            return True
        finally:
            committer.close()
            await frontier._registry.aclose()

    async def _crawl(self, frontier: RedisFrontier, committer: Committer, results: Results) -> None:
        dice, patience = self._world.dice, 4
        while True:
            await self._world.turn()
            try:
                for claimed in await frontier.claim(3):
                    results.put(Finished(claimed, Done(), page=page(url=claimed.url)))
                if results.finished and dice.random() < 0.5:
                    batch = list(results.finished)
                    await committer.write(batch, 0.0, 0.0)
                    del results.finished[: len(batch)]
                if not results.finished and await frontier.due_in() is None:
                    return
            except StoreError:
                patience -= 1
                if not patience:
                    raise


@pytest.fixture(scope="module")
def single() -> Iterator[RedisServer]:
    if reason := redis_available():
        pytest.skip(reason)
    with RedisServer() as started:
        yield started


@pytest.fixture(scope="module")
def cluster() -> Iterator[RedisCluster]:
    if reason := redis_available():
        pytest.skip(reason)
    with RedisCluster(3) as started:
        yield started


async def play(server: RedisServer | RedisCluster, folder: Path, seed: int) -> None:
    """Let two workers crawl through trouble; every page is in one of their files then."""
    world = World(server, f"job-{seed}", folder, seed)
    urls = [f"https://{number % 7}.org/{number}" for number in range(15)]
    seeds = RedisFrontier(world.url, world.job, partitions=16, clock=lambda: world.now)
    assert await seeds.add(Found(urls)) == len(urls)
    workers = [Worker(world, name) for name in "ab"]

    await world.run(*workers)

    lines = [json.loads(line)["url"] for worker in workers for line in worker.file.read_text().splitlines()]
    assert Counter(lines) == Counter(urls), seed
    assert await seeds.counts() == Counts(queued=0, leased=0, done=len(urls), failed=0, hosts=7), seed
    await seeds.close()
    assert await forget(world.url, world.job)


@pytest.mark.parametrize("seed", range(8))
async def test_each_page_is_in_one_output(single: RedisServer, tmp_path: Path, seed: int) -> None:
    """Issue 17: before, a lease that expired while the notes were under way left a page in two files"""
    await play(single, tmp_path, seed)


async def test_each_page_is_in_one_output_on_a_cluster(cluster: RedisCluster, tmp_path: Path) -> None:
    """Issue 17: the same scripts and dice; the notes are on another server than most claims"""
    await play(cluster, tmp_path, 4)


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("kind", ["single", "cluster"])
async def test_each_page_is_in_one_output_whatever_the_dice_say(
    request: pytest.FixtureRequest, tmp_path: Path, kind: str
) -> None:
    """Issue 17"""
    server = request.getfixturevalue(kind)
    for seed in range(100, 1100 if kind == "single" else 200):
        folder = tmp_path / str(seed)
        folder.mkdir()
        await play(server, folder, seed)


@pytest.mark.parametrize("end", ["killed", "killed for good", "stopped"])
async def test_notes_that_arrive_after_the_end_of_their_process_change_nothing(single: RedisServer, end: str) -> None:
    """Issue 17: before, a page counted as written that its successor had truncated, or one that was put back"""
    job, now, late = f"late-{end}", [1000.0], []

    def frontier(worker: str) -> RedisFrontier:
        return RedisFrontier(single.url, job, worker=worker, lease=LEASE, partitions=1, clock=lambda: now[0])

    one, two = frontier("one"), frontier("two" if end == "killed for good" else "one")
    ask = one._registry.ask

    async def hold(calls: list[Call], replicas: int = 0) -> list[Any]:
        if any(call.script is NOTE for call in calls):
            late.extend(calls)
            raise StoreError("no answer")
        return await ask(calls, replicas)

    await one.add(Found(["https://a.org/"]))
    assert await one.notes() == {}
    await one.note({"output": 1})
    [claimed] = await one.claim()
    one._registry.ask = hold  # type: ignore[method-assign]
    with pytest.raises(StoreError):
        await one.conclude([Ending(claimed, Done(), is_page=True)], {"output": 2})
    if end == "stopped":
        await one.conclude([Ending(claimed, Deferred(0.0))])
        await one.close()
    assert await two.notes("" if two.worker == "one" else "one") == {"output": 1}
    network = RedisJobs(single.url)
    await network.ask(late)
    await network.aclose()
    now[0] += 2 * LEASE

    [again] = await two.claim()
    assert (again.is_written, await two.notes()) == (False, {"output": 1})
    assert await two.conclude([Ending(again, Done(), is_page=True)], {"output": 2}) == [True]
    await two.close()
    await one._registry.aclose()


async def test_a_process_is_forgotten_when_it_has_ended(single: RedisServer) -> None:
    """Only what a killed process leaves behind is kept: its last pages may be asked for"""
    frontier = RedisFrontier(single.url, "ended", worker="one")
    await frontier.add(Found(["https://a.org/"]))
    await frontier.notes()
    claims = await frontier.claim()
    await frontier.conclude([Ending(each, Done(), is_page=True) for each in claims], {"output": 1})
    keys = [f"curtsy:crawl:{{ended}}:{key}" for key in ("written", "callers", "taken")]
    assert [single.command("EXISTS", key) for key in keys] == [1, 1, 0]

    await frontier.close()

    assert [single.command("EXISTS", key) for key in keys] == [0, 0, 0]


async def test_queueing_failed_urls_again_forgets_their_owners_and_no_other_pages(single: RedisServer) -> None:
    """Issue 17: before, the marks of all pages were deleted; a worker at work needs them"""
    now = [time.time()]
    first, other, last = (RedisFrontier(single.url, "again", lease=LEASE, clock=lambda: now[0]) for _ in range(3))
    await first.add(Found(["https://a.org/written", "https://b.org/failed"]))
    page, _ = sorted(await first.claim(2), key=lambda each: each.url)
    await first._notes.store(await first._opened(), {"output": 1}, [page])  # its process is killed before the end
    now[0] += 2 * LEASE
    await other.claim(2)
    now[0] += 2 * LEASE
    written, failed = sorted(await other.claim(2), key=lambda each: each.url)
    await other.conclude([Ending(failed, Failed("timeout"))])

    choice = Requeue(reasons=frozenset({"timeout"}))
    found = await requeue_shared(single.url, "again", choice, [], lambda notes, found: {}, lambda notes, worker: 0.0)
    now[0] += 2 * LEASE
    claims = sorted(await last.claim(2), key=lambda each: each.url)

    assert found == Counter(timeout=1)
    assert written.is_written
    assert [(each.tries, each.is_written) for each in claims] == [(3, True), (0, False)]
    assert await last.conclude([Ending(each, Done(), is_page=True) for each in claims], {"output": 2}) == [True, True]
    for each in (first, other, last):
        await each.close()
