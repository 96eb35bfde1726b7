"""The shared frontier on several servers: a cluster whose slots move and whose primaries die."""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import pytest

from curtsy.core.errors import StoreError
from curtsy.crawling.committer import counted
from curtsy.crawling.frontier.protocol import Counts, Done, Ending, Failed, Found
from curtsy.crawling.frontier.redis import RedisFrontier
from curtsy.crawling.frontier.redis_jobs import forget, jobs
from curtsy.crawling.frontier.redis_notes import Notes
from curtsy.crawling.progress import CrawlTotals
from curtsy.crawling.results import Finished, Results
from tests.crawling.leaves import page
from tests.crawling.sharer import Sharer, busiest, filters
from tests.support.redis_server import RedisCluster, RedisServer, redis_available

SLOW = 30.0

_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def cluster() -> Iterator[RedisCluster]:
    if reason := redis_available():
        pytest.skip(reason)
    with RedisCluster(3) as started:
        yield started


@pytest.fixture
def job() -> str:
    return f"job-{next(_numbers)}"


async def test_a_job_is_spread_over_a_cluster_and_found_again(cluster: RedisCluster, job: str) -> None:
    """Issue 5, point 5: keys hash-tagged for Cluster."""
    one = RedisFrontier(cluster.url, job, timeout=SLOW)
    assert await one.add(Found([f"https://{number % 100}.org/{number}" for number in range(300)])) == 300
    claims = await one.claim(50)
    ends = [Ending(each, Failed("timeout"), [Found([f"{each.url}/more"])]) for each in claims]
    assert all(await one.conclude(ends, {"output": 7}))
    await one.close()
    other = RedisFrontier(cluster.url, job, timeout=SLOW)

    assert all(node.command("DBSIZE") > 0 for node in cluster.masters)
    assert await other.counts() == Counts(queued=300, leased=0, done=0, failed=50, hosts=100)
    assert sorted(await other.failures()) == sorted((each.url, "timeout") for each in claims)
    assert await other.notes() == {"output": 7}
    assert [each.counts.queued for each in await jobs(cluster.url)] == [300]
    await other.close()
    assert await forget(cluster.url, job)
    assert [node.command("DBSIZE") for node in cluster.masters] == [0, 0, 0]


class Killed(RedisFrontier):
    """A frontier whose process is killed when it has stored its notes, before its claims end."""

    async def conclude(
        self, endings: Sequence[Ending], notes: Mapping[str, Any] | None = None, reported: Iterable[str] = ()
    ) -> list[bool]:
        self._notes.store = self._store  # type: ignore[method-assign, assignment]
        return await super().conclude(endings, notes, reported)

    async def _store(self, *given: Any) -> None:
        await Notes.store(self._notes, *given)
        raise KeyboardInterrupt


async def test_a_page_whose_worker_was_killed_between_notes_and_end_is_not_written_again(
    cluster: RedisCluster, job: str
) -> None:
    """Issue 17: notes and ends are on different servers. Links of the page are added, and it counts for its host"""
    now = [1000.0]
    pages = ["https://a.org/written", "https://b.org/unwritten"]
    brief = Killed(cluster.url, job, lease=10.0, timeout=SLOW, clock=lambda: now[0])
    assert await brief.add(Found(pages)) == 2
    written, _ = sorted(await brief.claim(2), key=lambda each: each.url)
    with pytest.raises(KeyboardInterrupt):
        await brief.conclude([Ending(written, Done(), is_page=True)], {"output": 1})
    now[0] += 20.0
    other = RedisFrontier(cluster.url, job, lease=10.0, timeout=SLOW, clock=lambda: now[0])

    claims = sorted(await other.claim(2), key=lambda each: each.url)
    results = Results()
    for each in claims:
        results.put(Finished(each, Done(), [Found([f"{each.url}/more"])], page(url=each.url)))
    assert all(await other.conclude([each.ending(0.0) for each in results.finished], {}))

    assert [(each.url, each.tries, each.is_written) for each in claims] == [(pages[0], 1, True), (pages[1], 1, False)]
    assert [each.page is None for each in results.finished] == [True, False]
    assert counted(CrawlTotals(), results.finished, 0.0) == CrawlTotals(fetched=1)
    assert await other.notes() == {"output": 1}
    assert [each.host_pages for each in await other.claim(2)] == [1, 1]
    assert await other.counts() == Counts(queued=0, leased=2, done=2, failed=0, hosts=2)
    await brief.close()
    await other.close()
    assert await forget(cluster.url, job)


class Move:
    """A slot that goes from one master to another, key by key."""

    def __init__(self, cluster: RedisCluster, source: RedisServer, key: str) -> None:
        self.slot = int(source.command("CLUSTER", "KEYSLOT", key))
        self.source = source
        self.target = next(node for node in cluster.masters if node is not source)
        self._others = [node for node in cluster.masters if node is not self.target]

    def begin(self) -> None:
        self.target.command("CLUSTER", "SETSLOT", self.slot, "IMPORTING", _name(self.source))
        self.source.command("CLUSTER", "SETSLOT", self.slot, "MIGRATING", _name(self.target))

    def move(self, count: int) -> int:
        """Move so many keys; how many there were."""
        keys = self.source.command("CLUSTER", "GETKEYSINSLOT", self.slot, count)
        for key in keys:
            self.source.command("MIGRATE", "127.0.0.1", self.target.port, key, 0, 5000)
        return len(keys)

    def end(self) -> None:
        for node in [self.target, *self._others]:
            node.command("CLUSTER", "SETSLOT", self.slot, "NODE", _name(self.target))


def _name(node: RedisServer) -> str:
    name: bytes | str = node.command("CLUSTER", "MYID")
    return name.decode() if isinstance(name, bytes) else name


async def test_a_partition_that_is_on_the_move_is_never_seen_in_part(cluster: RedisCluster, job: str) -> None:
    """F59: those who ask meanwhile wait until it has arrived; scripts are loaded where they are missing."""
    frontier = RedisFrontier(cluster.url, job, partitions=1, timeout=SLOW)
    hasty = RedisFrontier(cluster.url, job, timeout=1.0, worker="hasty")
    await frontier.add(Found([f"https://{number}.org/" for number in range(40)]))
    [claimed] = await frontier.claim()
    while True:
        try:
            await hasty.counts()
            break
        except StoreError:
            continue  # the machine is busy
    source = max(cluster.masters, key=lambda node: int(node.command("DBSIZE")))
    [state] = source.command("KEYS", f"curtsy:crawl:{{{job}@*:state")
    move = Move(cluster, source, state.decode())
    move.target.command("SCRIPT", "FLUSH")

    for moved in range(0, 12, 4):  # nothing has moved, some, more
        if moved == 0:
            move.begin()
        with pytest.raises(StoreError):
            await hasty.add(Found(["https://new.org/"]))
        assert move.move(4) == 4
    waiting = asyncio.create_task(frontier.conclude([Ending(claimed, Done(), [Found(["https://b.org/"])])]))
    await asyncio.sleep(0)
    while move.move(100):
        pass
    move.end()

    assert await waiting == [True]
    assert await frontier.counts() == Counts(queued=40, leased=0, done=1, failed=0, hosts=41)
    got = await frontier.claim(100)
    assert len(got) == 40
    assert await frontier.add(Found([f"https://{number}.org/" for number in range(40)])) == 0
    assert int(move.target.command("DBSIZE")) > 0
    await frontier.close()
    await hasty.close()
    await forget(cluster.url, job)


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_a_hundred_kills_on_a_cluster_lose_nothing(cluster: RedisCluster, job: str) -> None:
    """F53"""
    pages, kills, dice = 6000, 100, random.Random(7)
    with ExitStack() as running:
        sharers = [running.enter_context(Sharer(cluster.url, job, 3.0, pages)) for _ in range(8)]
        alive = list(sharers)
        for _ in range(kills):
            victim = alive.pop(dice.randrange(len(alive)))
            victim.wait_for_events(dice.randint(1, 60))
            victim.kill()
            alive.append(running.enter_context(Sharer(cluster.url, job, 3.0, pages)))
            sharers.append(alive[-1])
        for sharer in alive:
            sharer.end()

        filters(sharers, pages)
    [summary] = asyncio.run(jobs(cluster.url))
    assert summary.counts == Counts(queued=0, leased=0, done=pages, failed=0, hosts=7)


@pytest.mark.soak
@pytest.mark.timeout(300)
def test_workers_go_on_by_themselves_when_a_primary_has_died(job: str) -> None:
    """F54: a replica is promoted; what it had not been told yet may be asked for again, nothing is lost."""
    if reason := redis_available():
        pytest.skip(reason)
    pages = 8000
    with RedisCluster(3, replicas=1) as cluster, ExitStack() as running:
        sharers = [running.enter_context(Sharer(cluster.url, job, 3.0, pages)) for _ in range(4)]
        busiest(sharers, 60)
        cluster.masters[0].stop()
        stopped = time.monotonic()
        for sharer in sharers:
            assert sharer.end() == 0

        done = {event.url for sharer in sharers for event in sharer.events if event.what == "ended"}
        assert len(done) == pages
        gaps = [
            later.at - earlier.at
            for sharer in sharers
            for earlier, later in itertools.pairwise(each for each in sharer.events if each.what != "trouble")
            if later.at > stopped
        ]
        assert max(gaps) < 15
