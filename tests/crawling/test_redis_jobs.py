"""What a server says of a shared job to whoever looks: its workers, its notes, its last change."""

from __future__ import annotations

import pytest

from curtsy.crawling.frontier.protocol import Done, Ending, Found
from curtsy.crawling.frontier.redis import RedisFrontier
from curtsy.crawling.frontier.redis_jobs import MOST_SEEN, PRESENCE, Heartbeat, RedisJobs, find
from curtsy.crawling.jobs import shared
from curtsy.crawling.progress import CrawlTotals, together
from tests.support.redis_server import RedisServer

START = 1000.0


class Time:
    """A clock that stands still until it is moved."""

    def __init__(self) -> None:
        self.seconds = START

    def __call__(self) -> float:
        return self.seconds


async def test_a_job_says_who_is_at_work_and_when_that_was_last_heard(server: RedisServer) -> None:
    """Issue 5: a worker that was killed counts for a moment, and one that took leave is not named"""
    clock = Time()
    workers = [RedisFrontier(server.url, "heard", worker=name, clock=clock) for name in ("one", "two", "gone")]
    registry = RedisJobs(server.url, clock=clock)
    for each in workers:
        await each.claim()
    await workers[2].close()
    clock.seconds += PRESENCE - 1
    await workers[1].claim()

    here = await registry.job("heard")
    clock.seconds += 2
    later = await registry.job("heard")
    await registry.aclose()
    for each in workers:
        await each.close()

    assert here is not None
    assert later is not None
    assert (here.heard, here.workers) == ({"one": PRESENCE - 1, "two": 0.0}, 2)
    assert (later.heard, later.workers) == ({"one": PRESENCE + 1, "two": 2.0}, 1)


async def test_the_last_heartbeat_of_ended_workers_is_remembered(server: RedisServer) -> None:
    """Issue 17: of one that was killed, after others have dropped it; of one that signed off; after a restart, none"""
    clock = Time()
    workers = {name: RedisFrontier(server.url, "seen", worker=name, clock=clock) for name in ("here", "killed", "gone")}
    registry = RedisJobs(server.url, clock=clock)
    for each in workers.values():
        await each.claim()
    await workers["gone"].close()
    clock.seconds += 60
    await workers["here"].claim()

    found = await registry.job("seen")
    server.command("ZADD", "curtsy:crawl:{seen}:seen", *(word for each in range(2000) for word in (each, f"old{each}")))
    clock.seconds += 2
    await workers["here"].claim()
    many = await registry.job("seen")
    for each in workers.values():
        await each.close()
    new = RedisFrontier(server.url, "seen", worker="new", clock=clock, restart=True)
    await new.claim()
    anew = await registry.job("seen")
    await new.close()
    await registry.aclose()

    assert found is not None
    assert many is not None
    assert anew is not None
    assert found.seen == {"here": Heartbeat(0.0), "killed": Heartbeat(60.0), "gone": Heartbeat(60.0, is_last=True)}
    assert set(found.heard) == {"here"}
    assert len(many.seen) == MOST_SEEN
    assert {"here", "killed", "gone"} <= many.seen.keys()
    assert set(anew.seen) == {"new"}


async def test_a_look_is_no_change(server: RedisServer) -> None:
    """Issue 5: the last change is the crawl's, not that of whoever looks"""
    clock = Time()
    frontier = RedisFrontier(server.url, "changed", clock=clock)
    registry = RedisJobs(server.url, clock=clock)
    await frontier.check()
    untouched = await registry.job("changed")
    await frontier.add(Found(["https://a.org/1", "https://b.org/2"]))
    clock.seconds += 10
    [claimed] = await frontier.claim(1)
    await frontier.conclude([Ending(claimed, Done())])
    clock.seconds += 10

    first, second = await registry.job("changed"), await registry.job("changed")
    await frontier.close()
    await registry.aclose()

    assert untouched is not None
    assert untouched.changed_at is None
    assert first is not None
    assert first == second
    assert first.changed_at == START + 10


async def test_there_is_no_such_job(server: RedisServer) -> None:
    """Issue 5"""
    assert await find(server.url, "nobody's") is None


async def test_what_workers_have_noted_stands_as_if_one_had(server: RedisServer) -> None:
    """Issue 5: totals are added up, each reason has one example, and each file is named"""
    frontier = RedisFrontier(server.url, "noted")
    example = {"url": "https://a.org/1", "message": "no", "parent": None}
    await frontier.note(
        {
            "seeds": ["https://a.org/"], "command": "curtsy crawl a.org", "totals:one": {"fetched": 3, "seconds": 2.0},
            "totals:two": {"fetched": 4, "cached": 1, "failed": {"http_status 404": 2}, "seconds": 1.5},
            "output:one:examples": {"http_status 404": example}, "output:two:jsonl:/b/pages.jsonl": 7,
            "output:two:examples": {"http_status 404": {**example, "url": "https://a.org/2"}, "trap": example},
        }
    )  # fmt: skip

    found = await find(server.url, "noted")
    await frontier.close()

    assert found is not None
    job = shared(found)
    assert job.totals == CrawlTotals(fetched=7, cached=1, failed={"http_status 404": 2}, seconds=2.0)
    assert (job.seeds, job.counts) == (("https://a.org/",), found.counts)
    assert job.notes["output:examples"] == {"http_status 404": example, "trap": example}
    assert job.notes["output:jsonl:/b/pages.jsonl"] == 7


@pytest.mark.parametrize("count", [0, 1, 3])
def test_totals_of_several_are_the_sum_of_every_figure_but_the_time(count: int) -> None:
    """Issue 5: workers run side by side, so the time is that of the longest"""
    one = CrawlTotals(1, 2, 3, {"a": 4}, {"b": 5}, {"c": 6}, 7, 8, 9.0)

    whole = together([one] * count)

    if not count:
        assert whole == CrawlTotals()
        return
    assert whole == CrawlTotals(
        count, 2 * count, 3 * count, {"a": 4 * count}, {"b": 5 * count}, {"c": 6 * count}, 7 * count, 8 * count,
        9.0,
    )  # fmt: skip
    assert one == CrawlTotals(1, 2, 3, {"a": 4}, {"b": 5}, {"c": 6}, 7, 8, 9.0)
