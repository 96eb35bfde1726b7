"""Redis as several servers: a cluster whose slots move, and a primary that sentinels replace."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

import pytest
import redis

from curtsy.core.crawl_record import CrawlRecord, crawl_key
from curtsy.core.errors import StoreError
from curtsy.core.record import Record
from curtsy.core.statistics import ProcessStatistics, stats_key
from curtsy.engine.gate_steps import charge
from curtsy.stores import AsyncStore
from curtsy.stores.fallback import AsyncFallbackStore
from curtsy.stores.redis import AsyncRedisStore
from tests.stores.places import Awaited
from tests.stores.steps import count, keep
from tests.strategies import FREE
from tests.support.polling import PATIENCE
from tests.support.redis_server import RedisCluster, RedisSentinel, RedisServer, redis_available
from tests.support.stores import fallback_store, redis_store

SLOW = 10.0
KEYS = [f"host:{number}" for number in range(30)]


@pytest.fixture(scope="module")
def cluster() -> Iterator[RedisCluster]:
    if reason := redis_available():
        pytest.skip(reason)
    with RedisCluster(3) as started:
        yield started


@pytest.fixture(autouse=True)
def _empty(request: pytest.FixtureRequest) -> None:
    if "cluster" in request.fixturenames:
        for node in request.getfixturevalue("cluster").masters:
            node.flush()


def test_records_are_spread_over_a_cluster_and_found_again(cluster: RedisCluster) -> None:
    """Issue 2, point 5"""
    store = redis_store(cluster.url, timeout=SLOW)

    assert store.update_many([(key, count) for key in KEYS]) == [1] * len(KEYS)

    assert all(node.command("KEYS", "curtsy:{*") for node in cluster.masters)
    assert store.keys("host:") == sorted(KEYS)
    assert [store.update(key, keep) for key in KEYS] == [1] * len(KEYS)
    store.forget(KEYS[0])
    assert store.read(KEYS[0]) is None
    assert abs(store.now().at / 1e6 - time.time()) < 60
    store.close()


async def test_slots_that_move_between_updates_are_followed(cluster: RedisCluster) -> None:
    """F59: and the script is sent where it is missing."""
    store, async_store = redis_store(cluster.url, timeout=SLOW), AsyncRedisStore(cluster.url, timeout=SLOW)
    store.update(KEYS[0], count)
    await async_store.update(KEYS[0], count)
    slot = cluster.masters[0].command("CLUSTER KEYSLOT", f"curtsy:{{{KEYS[0]}}}")
    source = next(node for node in cluster.masters if node.command("DBSIZE"))
    target = next(node for node in cluster.masters if node is not source)
    target.command("SCRIPT FLUSH")

    _begin_move(source, target, slot)
    store.update(KEYS[0], count)  # still at the source
    _move_keys(source, target, slot)
    store.update(KEYS[0], count)  # ASK: the source says where it is now
    await async_store.update(KEYS[0], count)
    _end_move(cluster, target, slot)
    store.update(KEYS[0], count)  # MOVED

    assert await async_store.update(KEYS[0], count) == 7
    assert target.command("KEYS", "curtsy:{*") == [f"curtsy:{{{KEYS[0]}}}".encode()]
    store.close()
    await async_store.close()


async def test_one_server_that_is_flushed_gets_its_records_back(cluster: RedisCluster) -> None:
    """B8, F59"""
    step = charge(FREE.replace(max_requests_per_day=9), 0.0, page=True)
    blocking, tasks = (
        fallback_store(redis_store(cluster.url, timeout=SLOW)),
        AsyncFallbackStore(AsyncRedisStore(cluster.url, timeout=SLOW)),
    )
    stores: tuple[AsyncStore, ...] = Awaited(blocking), tasks
    for times, store in enumerate(stores):
        for key in KEYS:
            await store.update(key, step)
        cluster.masters[times].flush()
        for key in KEYS:
            await store.update(key, step)
        spent = [(await store.read(key)).days[-1].requests for key in KEYS]
        assert spent == [2 * times + 2] * len(KEYS)
    for store in stores:
        await store.close()


def _name(node: RedisServer) -> str:
    name: bytes = node.command("CLUSTER MYID")
    return name.decode() if isinstance(name, bytes) else name


def _begin_move(source: RedisServer, target: RedisServer, slot: int) -> None:
    target.command("CLUSTER SETSLOT", slot, "IMPORTING", _name(source))
    source.command("CLUSTER SETSLOT", slot, "MIGRATING", _name(target))


def _move_keys(source: RedisServer, target: RedisServer, slot: int) -> None:
    for key in source.command("CLUSTER GETKEYSINSLOT", slot, 100):
        source.command("MIGRATE", "127.0.0.1", target.port, key, 0, 5000)


def _end_move(cluster: RedisCluster, target: RedisServer, slot: int) -> None:
    for node in [target, *(each for each in cluster.masters if each is not target)]:
        node.command("CLUSTER SETSLOT", slot, "NODE", _name(target))


async def test_a_primary_that_dies_is_replaced_and_found_by_its_sentinel() -> None:
    """F54: back within 15 s, with all that the replica had."""
    if reason := redis_available():
        pytest.skip(reason)
    at_once = ("--repl-diskless-sync-delay", "0")
    with (
        RedisServer(*at_once) as primary,
        RedisServer(*at_once, "--replicaof", "127.0.0.1", str(primary.port)) as replica,
        RedisSentinel(primary) as sentinel,
    ):
        store, async_store = redis_store(sentinel.url), AsyncRedisStore(sentinel.url)
        store.update("host:a", count)
        await async_store.update("host:a", count)
        deadline = time.monotonic() + PATIENCE
        while not sentinel.command("SENTINEL MASTERS")["main"]["num-slaves"]:
            assert time.monotonic() < deadline
        assert primary.command("WAIT", 1, 10_000) == 1

        primary.stop()
        answers: list[int] = []
        while len(answers) < 2:
            assert time.monotonic() < deadline
            try:
                answers.append(
                    store.update("host:a", count) if not answers else await async_store.update("host:a", count)
                )
            except StoreError:
                continue

        assert answers == [3, 4]
        assert replica.command("INFO", "replication")["role"] == "master"
        store.close()
        await async_store.close()


@pytest.mark.parametrize("kind", ["server", "cluster"])
async def test_crawls_and_statistics_are_found_without_reading_all_keys(
    request: pytest.FixtureRequest, kind: str
) -> None:
    """Issue 17, 5: beside a million hosts, too"""
    there: RedisServer | RedisCluster = request.getfixturevalue(kind)
    nodes = there.masters if isinstance(there, RedisCluster) else [there]
    fill = "for number = 1, 6000 do redis.call('SET', KEYS[1] .. number, '1') end"
    for node in nodes:
        node.flush()
        with contextlib.suppress(redis.ResponseError):  # of the nodes that have not this slot
            node.command("EVAL", fill, 1, "{many}")
    now = time.time()
    crawl, process = CrawlRecord(job="docs", updated_at=now), ProcessStatistics(process="one", at=now)
    records: dict[str, Record] = {crawl_key("docs"): crawl, crawl_key("gone"): crawl, stats_key("one"): process}
    store = AsyncRedisStore(there.url, timeout=SLOW)
    for key, record in records.items():
        await store.update(key, lambda _, now, record=record: (record, None))  # type: ignore[misc]
    await store.forget(crawl_key("gone"))
    for node in nodes:
        node.command("CONFIG", "RESETSTAT")

    crawls, statistics = await store.records(crawl_key("")), await store.records(stats_key(""))

    assert crawls == [(crawl_key("docs"), crawl)]
    assert statistics == [(stats_key("one"), process)]
    assert not any("scan" in node.calls() for node in nodes)
    await store.close()
