"""How a shared job lies on its servers: partitions over nodes, long queues, small hosts, and jobs of format 3."""

from __future__ import annotations

import bisect
import itertools
from collections import Counter

import msgspec
import pytest
from redis.crc import key_slot

from curtsy.core.errors import PolicyError
from curtsy.crawling.frontier.partition import IDLE_LOOK, LOOK, OTHER_TURNS, PARTITIONS, Partitions
from curtsy.crawling.frontier.protocol import PAGES, Claimed, Counts, Deferred, Done, Ending, Failed, Found
from curtsy.crawling.frontier.redis import RedisFrontier
from curtsy.crawling.frontier.redis_codec import Report
from curtsy.crawling.frontier.redis_jobs import FORMAT, SLOTS, SharedJob, find, home, jobs
from tests.support.polling import block_until
from tests.support.redis_server import RedisServer

SLOW = 30.0


def test_a_job_has_as_many_partitions_on_each_node_of_a_cluster_as_on_any_other() -> None:
    """Issue 17: the fullest of 3 to 64 nodes has at most 1.15 times the mean"""
    job = SharedJob("a job", 1_700_000_000_000_000, PARTITIONS)
    slots = sorted(_slot(job.base(number)) for number in range(PARTITIONS))

    assert len({job.base(number) for number in range(PARTITIONS)}) == PARTITIONS
    for nodes in range(3, 65):
        places = [bisect.bisect_left(slots, node * SLOTS // nodes) for node in range(nodes + 1)]
        fullest = max(after - before for before, after in itertools.pairwise(places))
        assert fullest <= 1.15 * PARTITIONS / nodes, nodes


def _slot(key: str) -> int:
    return int(key_slot(key.encode()))


async def test_a_long_queue_is_split_and_keeps_its_order(server: RedisServer) -> None:
    """Issue 17: no key of a queue exceeds 16 MB; what goes back, or is added between, has its place"""
    frontier = RedisFrontier(server.url, "long", partitions=1, concurrency=40, timeout=SLOW)
    given = [f"https://a.org/{'x' * 900}/{number:06d}" for number in range(9000)]
    for start in range(0, 8000, 1000):
        await frontier.add(Found(given[start : start + 1000], depth=1))
    await frontier.add(Found(["https://a.org/first"]))
    sizes = {
        key: int(server.command("MEMORY", "USAGE", key, "SAMPLES", 0)) for key in server.command("KEYS", "*{long@*")
    }

    got = await frontier.claim(40)
    await frontier.conclude([Ending(each, Deferred(0.0)) for each in got[20:]])
    order = [each.url for each in got[:20]]
    await frontier.conclude([Ending(each, Done(0.0)) for each in got[:20]])
    await frontier.add(Found(given[8000:], depth=1))
    while got := await frontier.claim(40):
        order += [each.url for each in got]
        await frontier.conclude([Ending(each, Done(0.0)) for each in got])

    assert order == ["https://a.org/first", *given]
    assert max(sizes.values()) < 16e6
    assert sum(b":more:" in key for key in sizes) > 1
    assert await frontier.counts() == Counts(queued=0, leased=0, done=9001, failed=0, hosts=1)
    assert not server.command("KEYS", "*{long@*:more*")
    await frontier.close()


@pytest.mark.parametrize("parent", [None, "https://www.site000000.org/2026/11/some-page-of-links.html"])
async def test_a_url_of_a_host_of_its_own_takes_little_memory(server: RedisServer, parent: str | None) -> None:
    """Issue 17: at most 200 bytes with its host, its page, and the memory of having seen it"""
    frontier = RedisFrontier(server.url, "small", timeout=SLOW)
    await frontier.check()
    urls = [f"https://www.site{number:06d}.org/2026/some-item-{number:08d}.html" for number in range(30_000)]
    before = server.command("INFO", "memory")["used_memory"]
    await frontier.add(Found(urls, parent=parent))
    await frontier.close()

    # While the server moves a large table to a larger one, it has both.
    block_until(lambda: server.command("INFO", "memory")["used_memory"] - before <= 200 * len(urls))


async def test_a_new_host_of_an_earlier_version_is_served(server: RedisServer) -> None:
    """Issue 17: the list of new hosts had names alone, and their URLs were with the hosts"""
    frontier = RedisFrontier(server.url, "before", partitions=1, timeout=SLOW)
    await frontier.add(Found(["https://a.org/1", "https://b.org/1"], parent="http://c.org/"))
    [fresh], [hosts] = (server.command("KEYS", f"*{{before@*:{name}") for name in ("fresh", "hosts"))
    for place, entry in enumerate(server.command("LRANGE", fresh, 0, -1)):
        name, lone = msgspec.msgpack.decode(entry[8:], type=tuple[msgspec.Raw, msgspec.Raw])
        host = msgspec.msgpack.decode(name, type=str)
        fields = msgspec.msgpack.decode(server.command("HGET", hosts, host), type=list[msgspec.Raw])
        server.command("HSET", hosts, host, msgspec.msgpack.encode([*fields, lone]))
        server.command("LSET", fresh, place, entry[:8] + host.encode())

    claims = await frontier.claim(5)

    assert [(each.url, each.parent) for each in claims] == [
        ("https://a.org/1", "http://c.org/"), ("https://b.org/1", "http://c.org/"),
    ]  # fmt: skip
    assert (await frontier.counts()).queued == 0
    await frontier.close()


async def test_hosts_that_were_never_due_have_their_turn_in_the_order_they_came(server: RedisServer) -> None:
    """Contract: of each, the URL of the highest rank goes first, whenever it came"""
    frontier = RedisFrontier(server.url, "turns", partitions=1, timeout=SLOW)
    for number in range(50):
        await frontier.add(Found([f"https://{number}.org/deep"], depth=3))
    await frontier.add(Found([f"https://{number}.org/" for number in range(0, 50, 2)]))

    first = await frontier.claim(50)
    await frontier.conclude([Ending(each, Done(0.0)) for each in first])
    second = await frontier.claim(50)
    await frontier.close()

    assert [each.host for each in first] == [f"{number}.org" for number in range(50)]
    assert [each.depth for each in first] == [0, 3] * 25
    assert sorted(each.url for each in second) == sorted(f"https://{number}.org/deep" for number in range(0, 50, 2))


async def _begin_as_format_3(server: RedisServer, job: str) -> RedisFrontier:
    """Open a job of format 3 with a worker beside it that knows no later one."""
    frontier = RedisFrontier(server.url, job, worker="new", partitions=8, timeout=SLOW)
    await frontier.check()
    await frontier.close()
    server.command("HSET", f"{home(job)}:meta", "format", 3)
    server.command("HDEL", f"{home(job)}:meta", "even")
    server.command("ZADD", f"{home(job)}:workers", 9 * 10**15, "old")
    return RedisFrontier(server.url, job, worker="new", timeout=SLOW)


async def _format(server: RedisServer, job: str) -> int:
    return int(server.command("HGET", f"{home(job)}:meta", "format"))


async def test_a_job_of_a_later_format_is_refused_also_by_a_worker_that_was_away(server: RedisServer) -> None:
    """Issue 17, 1: with a clear message, not as an outage; and the jobs beside it are shown"""
    clock = [1000.0]
    away = RedisFrontier(server.url, "later", worker="away", partitions=8, timeout=SLOW, clock=lambda: clock[0])
    beside = RedisFrontier(server.url, "beside", partitions=8, timeout=SLOW)
    await away.claim(0)
    await beside.check()
    server.command("HSET", f"{home('later')}:meta", "format", FORMAT + 1)
    clock[0] += 60.0

    new = RedisFrontier(server.url, "later", timeout=SLOW)
    for refused in (away.claim(0), new.check()):
        with pytest.raises(PolicyError, match=f"format {FORMAT + 1}.*[Uu]pgrade"):
            await refused
    found = {each.name: each.trouble for each in await jobs(server.url)}
    for each in (away, beside, new):
        await each.close()

    assert found["beside"] == ""
    assert f"format {FORMAT + 1}" in found["later"]


async def test_a_job_of_format_3_is_written_as_such_until_all_workers_know_format_4(server: RedisServer) -> None:
    """Issue 17: readers accept one version back, and jobs are migrated"""
    job = "older"
    frontier = await _begin_as_format_3(server, job)
    await frontier.add(Found([f"https://{number}.org/{page}" for number in range(20) for page in range(3)]))
    first = await frontier.claim(10)
    await frontier.conclude([Ending(each, Failed("timeout", 0.0)) for each in first[:4]])
    packed = [value for key in server.command("KEYS", f"*{{{job}@*:hosts") for value in server.command("HVALS", key)]
    assert await _format(server, job) == 3
    assert all(value[0] in (0x00, 0x43) for value in packed), "as format 3 packs a host: its due instant first"
    assert not server.command("KEYS", f"*{{{job}@*:fresh")

    server.command("ZREM", f"{home(job)}:workers", "old")
    late = RedisFrontier(server.url, job, worker="late", timeout=SLOW)
    await late.claim(0)
    assert await _format(server, job) == FORMAT
    await late.add(Found([f"https://more{number}.org/" for number in range(20)]))
    await frontier.add(Found([f"https://more{number}.org/2" for number in range(20)]))  # it writes format 3 yet
    await frontier.close()
    found = await _all(late)
    counts = await late.counts()
    await late.close()

    assert Counter(each.url for each in found) == dict.fromkeys({each.url for each in found}, 1)
    assert len(found) == 56 + 40
    assert counts == Counts(queued=0, leased=0, done=96, failed=4, hosts=40)


async def _all(frontier: RedisFrontier) -> list[Claimed]:
    found: list[Claimed] = []
    while await frontier.due_in() is not None:
        got = await frontier.claim(100)
        found += got
        await frontier.conclude([Ending(each, Done(0.0)) for each in got])
    return found


async def test_failures_are_read_up_to_a_limit(server: RedisServer) -> None:
    """Issue 17"""
    frontier = RedisFrontier(server.url, "failed", timeout=SLOW, partitions=16)
    await frontier.add(Found([f"https://{number}.org/" for number in range(300)]))
    claims = await frontier.claim(300)
    await frontier.conclude([Ending(each, Failed("timeout")) for each in claims])

    some, whole = await frontier.failures(20), await frontier.failures()
    await frontier.close()

    assert len(some) == 20
    assert set(some) < set(whole)
    assert len(whole) == 300


async def test_the_pages_of_all_workers_are_added_up_and_never_decrease(server: RedisServer) -> None:
    """Issue 17: every note of a worker brings the sum"""
    one, other = (RedisFrontier(server.url, "pages", timeout=SLOW, partitions=1) for _ in range(2))
    await one.note({f"{PAGES}one": 7, "plain": 1})
    await other.note({f"{PAGES}other": 5})
    await one.note({f"{PAGES}one": 6})
    sums, notes = (one.pages, other.pages), await one.notes()
    await one.note({f"{PAGES}one": 9})
    found = await find(server.url, "pages")
    for each in (one, other):
        await each.close()

    assert (sums, one.pages, notes) == ((12, 12), 14, {"plain": 1})
    assert found is not None


def _report(wait: int) -> Report:
    return Report(wait, 0, 0, 0, 0, 0, 0, msgspec.Raw(b""))


@pytest.mark.parametrize("is_useful", [True, False])
def test_a_worker_that_could_take_more_polls_less_often_the_longer_that_is_in_vain(is_useful: bool) -> None:
    """Issue 17: at least every IDLE_LOOK seconds"""
    partitions = Partitions("one", 64)
    partitions.share(["other"])
    moments = []
    for second in range(60):
        now = round(second * LOOK * 1e6)
        if len(partitions.to_poll(now, is_hungry=True)) == 64:
            partitions.polled_all(now, is_in_vain=not is_useful)
            moments.append(second)
    gaps = [after - before for before, after in itertools.pairwise(moments)]

    assert gaps[:4] == ([1, 1, 1, 1] if is_useful else [1, 2, 4, 5])
    assert max(gaps) <= IDLE_LOOK


def test_a_worker_with_enough_to_do_polls_every_partition_in_turn() -> None:
    """Issue 17"""
    partitions = Partitions("one", 64)
    partitions.to_poll(0, is_hungry=False)
    partitions.polled_all(0, is_in_vain=True)
    partitions.share(["other"])
    partitions.polled_all(0, is_in_vain=True)

    polled = [partitions.to_poll(turn, is_hungry=False) for turn in range(OTHER_TURNS)]

    assert {number for each in polled for number in each} == set(range(64))
    assert max(map(len, polled)) < 64 / 2
