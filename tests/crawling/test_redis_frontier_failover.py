"""The shared frontier when a replica that lacks the last writes becomes the primary."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from curtsy.core.errors import PolicyError, StoreError
from curtsy.crawling.frontier.protocol import Claimed, Counts, Done, Ending, Found
from curtsy.crawling.frontier.redis import RedisFrontier
from curtsy.crawling.start import acrawl
from curtsy.stores.url import parse_server
from tests.crawling.web import QUICK, html
from tests.support.listening import carry, listening
from tests.support.polling import block_until, until
from tests.support.redis_server import RedisCluster, RedisServer, redis_available
from tests.support.site import Reply, Site, Visit
from tests.support.snapshot import Snapshot

SLOW = 30.0


class Pair(NamedTuple):
    """A primary and its replica."""

    primary: RedisServer
    replica: RedisServer

    def follow(self) -> None:
        """Make the replica follow, and wait until it has everything."""
        self.replica.command("REPLICAOF", "127.0.0.1", self.primary.port)
        block_until(lambda: self.replica.command("INFO", "replication")["master_link_status"] == "up")
        self.catch_up()

    def catch_up(self) -> None:
        """Wait until the replica has everything."""

        def is_even() -> bool:
            ours, theirs = (each.command("INFO", "replication")["master_repl_offset"] for each in self)
            return bool(ours == theirs)

        block_until(is_even)

    def part(self) -> None:
        """End the replication: from now on the replica is behind."""
        self.replica.command("REPLICAOF", "NO", "ONE")


@pytest.fixture
def pair() -> Iterator[Pair]:
    if reason := redis_available():
        pytest.skip(reason)
    with RedisServer("--repl-diskless-sync-delay", "0") as primary, RedisServer() as replica:
        started = Pair(primary, replica)
        started.follow()
        yield started


class Switch:
    """Address of the current primary: a proxy whose target changes at a failover."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._open: set[asyncio.StreamWriter] = set()

    def fail_over(self, port: int) -> None:
        """Cut all connections, and lead to another server from now on."""
        self._target = port
        for each in self._open:
            each.close()

    async def carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        back, forth = await asyncio.open_connection("127.0.0.1", self._target)
        self._open |= {writer, forth}
        with contextlib.suppress(OSError):
            await asyncio.gather(carry(reader, forth), carry(back, writer))


@contextlib.asynccontextmanager
async def switched(port: int) -> AsyncIterator[tuple[Switch, str]]:
    """Yield a switch that leads to a server, and its URL."""
    switch = Switch(port)
    async with listening(switch.carry) as own:
        yield switch, f"redis://127.0.0.1:{own}/0"


async def finish(frontier: RedisFrontier, claims: list[Claimed]) -> list[bool]:
    return await frontier.conclude([Ending(each, Done()) for each in claims])


async def test_no_worker_ends_or_renews_a_claim_of_another_after_a_failover(pair: Pair) -> None:
    """Issue 17: ticket numbers repeat, because the new primary does not know the last ones"""
    async with switched(pair.primary.port) as (switch, url):
        early, late = (RedisFrontier(url, "job", worker=each, timeout=SLOW, partitions=1) for each in ("early", "late"))
        await early.add(Found([f"https://host{number}.org/" for number in range(6)]))
        await late.claim(0)
        pair.catch_up()
        pair.part()
        before = await early.claim(3)
        pair.primary.stop()
        switch.fail_over(pair.replica.port)
        await until(lambda: _works(late))
        after: list[Claimed] = []
        while len(after) < 6:
            after += await late.claim(6)

        assert {each.url for each in before} < {each.url for each in after}
        assert [await early.renew(each) for each in before] == [None] * 3
        assert await finish(early, before) == [False] * 3
        assert (await late.counts()).leased == 6, "the claims of the other worker still hold"
        assert await finish(late, after) == [True] * 6
        assert await late.counts() == Counts(queued=0, leased=0, done=6, failed=0, hosts=6)
        await early.close()
        await late.close()


async def _works(frontier: RedisFrontier) -> bool:
    try:
        await frontier.claim(0)
    except StoreError:
        return False
    return True


async def test_a_failover_in_the_middle_of_a_crawl_loses_nothing_and_repeats_what_the_replica_lacked(
    pair: Pair,
) -> None:
    """Issue 17: the replica is behind by some claims, ends and URLs; all three workers go on"""
    hosts, pages = 10, 12
    everything = {f"https://host{host}.org/{page}" for host in range(hosts) for page in range(pages)}
    ended: list[str] = []
    behind: list[str] = []

    def links(url: str) -> list[str]:
        place, _, page = url.rpartition("/")
        return [f"{place}/{int(page) + 1}"] if int(page) + 1 < pages else []

    async with switched(pair.primary.port) as (switch, url):
        workers = [RedisFrontier(url, "job", concurrency=2, lease=1.0, timeout=SLOW, partitions=4) for _ in range(3)]
        await workers[0].add(Found([f"https://host{host}.org/0" for host in range(hosts)]))
        held: dict[int, list[Claimed]] = {number: [] for number in range(3)}

        async def go_on(number: int) -> None:
            """Claim some pages, and end those of the turn before."""
            worker, flying = workers[number], held[number]
            with contextlib.suppress(StoreError):
                if flying:
                    valid = list(itertools.compress(flying, await worker.keep(flying)))
                    ends = [Ending(each, Done(), [Found(links(each.url), each.depth + 1)]) for each in valid]
                    for each, is_valid in zip(valid, await worker.conclude(ends), strict=True):
                        if is_valid:
                            ended.append(each.url)
                held[number] = await worker.claim(3)

        turns = itertools.cycle(range(3))
        while len(ended) < len(everything) // 3:
            await go_on(next(turns))
        pair.catch_up()
        pair.part()
        known = len(ended)
        while len(ended) < known + 15:
            await go_on(next(turns))
        behind = ended[known:]
        pair.primary.stop()
        switch.fail_over(pair.replica.port)

        async def is_over() -> bool:
            await go_on(next(turns))
            with contextlib.suppress(StoreError):
                return await workers[0].due_in() is None
            return False

        await until(is_over, within=SLOW, every=0.0)
        counts = await workers[0].counts()
        for worker in workers:
            await worker.close()

    assert set(ended) == everything, "lost"
    assert counts == Counts(queued=0, leased=0, done=len(everything), failed=0, hosts=hosts)
    repeated = [url for url in everything if ended.count(url) > 1]
    assert set(repeated) <= set(behind), "repeated, though the replica knew of its end"


@pytest.mark.parametrize("workers", [1, 2])
async def test_a_crawl_adds_the_links_again_that_the_replica_lacks(
    pair: Pair, site: Site, tmp_path: Path, workers: int
) -> None:
    """Issue 17: though its process knew that they were added, and did not look at them any more"""
    pages, loop = 60, asyncio.get_running_loop()

    async with switched(pair.primary.port) as (switch, url):

        def answer(visit: Visit) -> Reply:
            number = int(visit.path.rpartition("/")[2])
            if number == 6 and site.count(visit.path) == 1:
                pair.catch_up()
                pair.part()
            elif number == 15 and site.count(visit.path) == 1:
                loop.call_soon_threadsafe(switch.fail_over, pair.replica.port)
            below = [each for each in (2 * number + 1, 2 * number + 2) if each < pages]
            return Reply(body=html(*(f"/page/{each}" for each in below)), headers={"Content-Type": "text/html"})

        site.on("/page/*", answer)
        given: dict[str, Any] = {**QUICK, "store": url, "job": tmp_path / "job", "lease": 1.0, "workers": workers}
        async with acrawl(site.url("/page/0"), **given, concurrency=1, timeout=2.0) as crawl:
            summary = await crawl.run()

    paths = [visit.path for visit in site.visits() if visit.path != "/robots.txt"]
    assert summary.ended == "done"
    assert set(paths) == {f"/page/{number}" for number in range(pages)}, "lost"
    assert len(paths) > pages, "the replica lacked nothing"


async def test_with_replicas_a_page_ends_only_when_they_have_its_links(pair: Pair, snapshot: Snapshot) -> None:
    """Issue 17: WAIT before END"""
    frontier = RedisFrontier(f"{pair.primary.url}?replicas=1", "job", timeout=2.0)
    await frontier.add(Found(["https://a.org/"]))
    [claimed] = await frontier.claim()
    assert len(await frontier.conclude([Ending(claimed, Done(), [Found(["https://a.org/1"])])])) == 1
    [claimed] = await frontier.claim()
    pair.part()

    with pytest.raises(StoreError) as told:
        await frontier.conclude([Ending(claimed, Done(), [Found(["https://a.org/2"])])])
    counts = await frontier.counts()
    pair.follow()
    assert await frontier.conclude([Ending(claimed, Done(), [Found(["https://a.org/2"])])]) == [True]
    await frontier.close()

    snapshot(str(told.value).replace(str(pair.primary.port), "PORT"))
    assert (counts.leased, counts.done) == (1, 1)


async def test_with_replicas_a_page_ends_only_when_they_have_the_ends_of_its_outputs(pair: Pair) -> None:
    """Issue 17: on a cluster a failover otherwise takes these, but not the end of the page on another server"""
    frontier = RedisFrontier(f"{pair.primary.url}?replicas=1", "job", timeout=2.0)
    await frontier.add(Found(["https://a.org/"]))
    [claimed] = await frontier.claim()
    pair.part()

    with pytest.raises(StoreError):
        await frontier.conclude([Ending(claimed, Done(), is_page=True)], {"output": 1})
    counts = await frontier.counts()
    pair.follow()
    assert await frontier.conclude([Ending(claimed, Done(), is_page=True)], {"output": 1}) == [True]
    await frontier.close()

    assert (counts.leased, counts.done) == (1, 0)


def test_with_replicas_every_server_of_a_cluster_waits_for_its_own() -> None:
    """Issue 17: links lie on other servers than their page"""
    if reason := redis_available():
        pytest.skip(reason)

    async def crawl(url: str) -> Counts:
        frontier = RedisFrontier(f"{url}?replicas=1", "job", timeout=SLOW)
        await frontier.add(Found(["https://a.org/"]))
        [claimed] = await frontier.claim()
        links = [f"https://host{number}.org/" for number in range(30)]
        assert await frontier.conclude([Ending(claimed, Done(), [Found(links)])], {"output": 7}) == [True]
        counts = await frontier.counts()
        await frontier.close()
        return counts

    with RedisCluster(3, replicas=1) as cluster:
        counts = asyncio.run(crawl(cluster.url))
        waits = [node.calls().get("wait", 0) for node in cluster.masters]

    assert (counts.queued, counts.done) == (30, 1)
    assert min(waits) > 0


@pytest.mark.parametrize("value", ["-1", "x", "", "1000"])
def test_a_number_of_replicas_that_makes_no_sense_is_refused(value: str) -> None:
    """Issue 17"""
    with pytest.raises(PolicyError, match="replicas"):
        parse_server(f"redis://127.0.0.1/0?replicas={value}")


@pytest.mark.parametrize(
    ("url", "replicas", "rest"),
    [
        ("redis://h/0?replicas=2", 2, "redis://h/0?"),
        ("redis://h/0?db=1&replicas=2&protocol=3", 2, "redis://h/0?db=1&protocol=3"),
        ("unix:///run/redis.sock?replicas=1", 1, "unix:///run/redis.sock"),
        ("redis://h/0?db=1", 0, "redis://h/0?db=1"),
    ],
)
def test_the_option_replicas_is_read_and_taken_out_of_the_url(url: str, replicas: int, rest: str) -> None:
    """Issue 17: redis-py does not know it"""
    found = parse_server(url)

    assert (found.replicas, found.url) == (replicas, rest)
