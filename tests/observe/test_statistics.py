"""Statistics: what was counted is what happened, in any sum and over any time."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from curtsy.core.errors import REFUSALS
from curtsy.core.record import FetchRecord, Share
from curtsy.core.statistics import (
    LAST,
    PUBLISHED_FETCHES,
    PUBLISHED_HOSTS,
    Counts,
    Latencies,
    ProcessStatistics,
    StatisticsSnapshot,
    Waits,
    summed,
)
from curtsy.core.time import SECOND, Instant, Now
from curtsy.engine.counters import Counters
from curtsy.stores.codec import pack, unpack
from tests.client.fetching import UNPACED, client, domain_of
from tests.observe.recording import NOON, fetched, records, refused, tallied
from tests.support.bounds import cpu_within
from tests.support.site import Reply, Site, redirect

COUNTED = Counts().keys()


async def test_what_is_counted_is_what_the_site_has_seen(site: Site, tmp_path: Path) -> None:
    """Issue 7: requests, pages, robots.txt, retries, refusals, failures, cache; over all and per host"""
    site.robots("User-agent: *\nDisallow: /private/")
    site.page("/page", "hello", etag='"1"')
    site.page("/page", "hello", host="127.0.0.2")
    site.script("/flaky", [Reply(503), Reply(200, "fine")])
    site.reply("/moved", redirect("/page"))
    asked = ["/page", "/page", "/missing", "/private/a", "/flaky", "/moved"]

    async with client(cache=tmp_path, **UNPACED) as web:
        for path in asked:
            await web.fetch(site.url(path))
        await web.fetch(site.url("/page", host="127.0.0.2"))
        await web.fetch("ftp://example.org/")
        found = web.stats()
    await site.left()  # its journal is whole

    robots = site.count("/robots.txt")
    host = found.hosts[domain_of(site.url("/"))]
    assert found.requests == len(site.journal) - robots
    assert found.robots_requests == robots == 2
    assert found.pages == sum(visit.status == 200 for visit in site.journal) - robots
    assert found.retries == site.count("/flaky") - 1 == 1
    assert found.revalidated == sum(visit.status == 304 for visit in site.journal) == 2
    assert (found.fetches, found.ok) == (8, 5)
    assert found.refused == {"robots_disallowed": 1, "invalid_url": 1}
    assert found.failed == {"http_status": 1}
    assert host.requests == len(site.visits(host="127.0.0.1")) - site.count("/robots.txt", host="127.0.0.1")
    assert found.domains == {name: each.requests for name, each in found.hosts.items()}
    assert found.latency.count == found.fetches - 2
    assert [Path(fetch.url).name for fetch in host.last] == ["page", "page", "missing", "a", "flaky", "page"]
    assert [fetch.status for fetch in host.last] == [200, 200, 404, None, 200, 200]


async def test_a_breaker_that_opens_is_counted_once(site: Site) -> None:
    """Q6: trips, and what is refused after them"""
    site.reply("/*", Reply(403))

    async with client() as web:
        for number in range(3):
            await web.fetch(site.url(f"/{number}"))
        found = web.stats()

    assert (found.trips, found.blocked) == (1, 2)
    assert found.hosts[domain_of(site.url("/"))].trips == 1
    assert (found.lately.trips, found.lately.blocked, found.lately.requests) == (1, 2, 1)


@given(st.lists(records, max_size=60), st.integers(1, 6))
def test_the_hosts_and_the_others_are_the_whole(history: list[FetchRecord], most: int) -> None:
    """Issue 7: whatever is counted, and however few hosts are kept one by one; requests by domain are exact"""
    found = tallied(*history, hosts=most).snapshot()
    parts = [found.other, *found.hosts.values()]
    requests = Counter[str]()
    for record in history:
        requests[record.domain] += record.attempts

    assert found.fetches == len(history)
    assert found.domains == {name: count for name, count in requests.items() if count}
    assert len(found.hosts) <= most + max(1, most // 4)
    for name in COUNTED:
        whole = getattr(found, name)
        if isinstance(whole, int | float):
            assert whole == sum(getattr(part, name) for part in parts), name
        elif isinstance(whole, dict):
            assert whole == dict(sum((Counter(getattr(part, name)) for part in parts), Counter[str]())), name
        else:
            assert whole.count == sum(getattr(part, name).count for part in parts), name


@given(st.lists(records, max_size=40))
def test_what_is_counted_follows_from_the_records(history: list[FetchRecord]) -> None:
    """L5, Q6, Issue 7"""
    found = tallied(*history).snapshot()

    reasons = Counter(record.reason for record in history if record.reason is not None)
    assert found.ok == sum(record.reason is None for record in history)
    assert found.reasons == reasons == Counter(found.refused) + Counter(found.failed)
    assert set(found.refused) <= {reason.value for reason in REFUSALS}
    assert not set(found.failed) & {reason.value for reason in REFUSALS}
    assert found.delayed == sum(record.waited > 0.010 for record in history)
    assert found.waited == sum(record.waited for record in history) == found.waits.total
    assert found.waits.count == len(history)
    assert found.revalidated == sum(record.cache == "revalidated" for record in history)
    assert found.cache_hits == sum(record.cache in ("hit", "stale") for record in history)
    assert found.lately.requests == found.requests


@given(st.lists(records, max_size=30), st.lists(records, max_size=30), st.integers(1, 20))
def test_what_came_since_and_what_was_before_are_the_whole(
    before: list[FetchRecord], after: list[FetchRecord], most: int
) -> None:
    """Issue 7: also when hosts were summed in between"""
    counters = tallied(*before, hosts=most)
    earlier = counters.snapshot()
    for record in after:
        counters.count(record)

    news = counters.snapshot().since(earlier)

    assert news.fetches == len(after)
    assert news.requests == sum(record.attempts for record in after)
    assert news.waits.count == len(after)
    assert sum(host.fetches for host in news.hosts.values()) + news.other.fetches >= len(after)
    process = ProcessStatistics(process="p").plus(earlier, NOON).plus(news, NOON + 1)
    whole = summed([process])
    assert (whole.fetches, whole.requests) == (len(before + after), sum(each.attempts for each in before + after))


def test_a_reset_starts_again_from_nothing() -> None:
    """Issue 7: and what came since an earlier snapshot is then all there is"""
    seconds = iter(range(100))
    counters = Counters(epoch=lambda: NOON + next(seconds))
    counters.count(fetched())
    earlier = counters.snapshot()

    counters.reset()

    assert counters.snapshot().fetches == 0
    assert counters.snapshot().hosts == {}
    counters.count(fetched())
    counters.count(fetched())
    assert counters.snapshot().since(earlier).fetches == 2


def test_a_snapshot_is_consistent_while_threads_count() -> None:
    """Issue 7: every sum in it holds at every moment"""
    counters, halt = Counters(), threading.Event()

    def work(name: str) -> None:
        while not halt.is_set():
            counters.count(fetched(name, waited=1.0))

    threads = [threading.Thread(target=work, args=(f"{number}.example",)) for number in range(3)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(200):
            found = counters.snapshot()
            assert found.requests == found.fetches == found.pages == found.waits.count == found.delayed
            assert found.requests == sum(host.requests for host in found.hosts.values())
            assert found.bytes == 1000 * found.requests
    finally:
        halt.set()
        for thread in threads:
            thread.join()


def test_only_the_busiest_hosts_are_kept_one_by_one() -> None:
    """Issue 7: bounded, whatever comes; a host that becomes busy later is found too"""
    counters = tallied(*(fetched(f"{number}.example") for number in range(500)), hosts=20)
    for _ in range(100):
        counters.count(fetched("late.example"))

    found = counters.snapshot(5)

    assert len(counters.snapshot().hosts) <= 25
    assert next(iter(found.hosts)) == "late.example"
    assert len(found.hosts) == 5
    assert found.requests == 600
    assert found.domains["late.example"] == 100
    assert len(found.domains) == 501


def test_the_last_fetches_of_a_host_are_remembered_without_secrets() -> None:
    """F62, Issue 7: a bounded timeline"""
    secret = "https://example.org/?token=hunter2"
    counters = tallied(*(fetched(final_url=f"{secret}&n={number}", at=NOON + number) for number in range(LAST + 5)))

    host = counters.snapshot().hosts["example.org"]

    assert len(host.last) == LAST
    assert [fetch.at for fetch in host.last] == [NOON + number for number in range(5, LAST + 5)]
    assert host.last[-1].url == f"https://example.org/?token=***&n={LAST + 4}"
    assert "hunter2" not in json.dumps(counters.snapshot().as_dict())
    assert (host.requests_left, host.pages_left, host.last_at) == (199, 99, NOON + LAST + 4)


def test_all_of_it_can_be_written_as_json_and_read_like_a_mapping() -> None:
    """Issue 7"""
    found = tallied(fetched(waited=0.5), refused(reason="paused")).snapshot()

    plain = json.loads(json.dumps(found.as_dict()))

    assert set(plain) == set(found.keys())
    assert plain["requests"] == found["requests"] == 1
    assert plain["hosts"]["example.org"]["refused"] == {"paused": 1}
    assert plain["waits"]["count"] == 2
    assert plain["waits"]["bounds"] == list(Waits.bounds)
    assert plain["hosts"]["example.org"]["last"][0]["status"] == 200
    assert plain["lately"] == {"requests": 1, "blocked": 0, "trips": 0}
    assert plain["history"]["hour"]["requests"] == [1]


@pytest.mark.parametrize(("share", "seconds"), [(0.0, 0.0), (0.5, 0.05), (0.75, 0.1), (1.0, 0.5)])
def test_a_quantile_lies_between_the_bounds(share: float, seconds: float) -> None:
    """Issue 7: straight in between"""
    waits = Waits((0, 0, 0), 0.0)
    assert waits.quantile(share) == 0.0

    counts = (0, 0, 0, 0, 0, 2, 0, 1, 0, 0, 0, 0, 0, 0, 0)  # two up to 0.1, one up to 0.5
    assert Latencies(counts).quantile(share) == pytest.approx({0.0: 0.075, 0.5: 0.09375, 0.75: 0.3125, 1.0: 0.5}[share])
    assert Latencies((), 0.0).mean == 0.0


def test_the_last_hour_is_an_hour() -> None:
    """Q10: what alerts look at"""
    at = [NOON]
    counters = Counters(epoch=lambda: at[0])
    counters.count(fetched())
    counters.count_trip("example.org")
    assert counters.snapshot().lately.trips == 1

    at[0] += 3000
    counters.count(fetched())
    assert (counters.snapshot().lately.requests, counters.snapshot().lately.trips) == (2, 1)

    at[0] += 1000
    assert (counters.snapshot().lately.requests, counters.snapshot().lately.trips) == (1, 0)
    at[0] += 3600
    assert counters.snapshot().lately.requests == 0
    assert counters.snapshot().requests == 2


# What a process tells in the store


def told(*histories: list[FetchRecord], at: float = NOON) -> list[ProcessStatistics]:
    """A process for each history."""
    return [
        ProcessStatistics(process=str(number), started_at=at).plus(tallied(*history).snapshot(), at)
        for number, history in enumerate(histories)
    ]


@given(st.lists(st.lists(records, max_size=20), max_size=4))
def test_processes_together_have_counted_what_one_would_have(histories: list[list[FetchRecord]]) -> None:
    """Issue 7: readers sum"""
    whole = tallied(*(record for history in histories for record in history)).snapshot()

    found = summed(told(*histories))

    for name in COUNTED:
        assert getattr(found, name) == getattr(whole, name), name
    assert found.domains == whole.domains
    assert found.lately == whole.lately
    assert {name: host.fetches for name, host in found.hosts.items()} == {
        name: host.fetches for name, host in whole.hosts.items()
    }


@given(st.lists(records, max_size=20), st.lists(records, max_size=20), st.lists(records, max_size=20))
def test_what_was_counted_in_an_outage_is_added_once(
    before: list[FetchRecord], here: list[FetchRecord], there: list[FetchRecord]
) -> None:
    """F55: the store's record went on, and ours did too"""
    [base] = told(before)
    ours = base.plus(tallied(*here).snapshot(), NOON + 1)
    theirs = base.plus(tallied(*there).snapshot(), NOON + 2)

    joined = theirs.joined(ours, base)

    assert summed([joined]).fetches == len(before + here + there)
    assert summed([joined]).requests == sum(each.attempts for each in before + here + there)


def test_what_a_process_tells_stays_small_and_survives_the_store() -> None:
    """Issue 7: bounded, however long it runs and however many hosts it asks"""
    names = [f"host-{number}.some-domain.example" for number in range(1200)]
    counters = tallied(*(fetched(name, at=NOON + number) for number in range(25) for name in names))
    record = ProcessStatistics(process="p")
    for number in range(3):
        record = record.plus(counters.snapshot(PUBLISHED_HOSTS), NOON + number)

    packed = pack(record)

    assert unpack(packed) == record
    assert len(record.hosts) == PUBLISHED_HOSTS
    assert sum(len(host.last) for host in record.hosts) <= PUBLISHED_FETCHES + PUBLISHED_HOSTS
    assert len(packed) < 250_000
    assert summed([record]).fetches == 3 * 25 * 1200


def test_a_record_goes_a_day_after_it_was_last_written() -> None:
    """Issue 7: a process that ended or was killed is not counted for ever"""
    [record] = told([fetched()])

    def left(seconds: float) -> int | None:
        return record.lasts(Now(Instant(0), round((NOON + seconds) * SECOND)))

    assert left(0) == 86_400 * SECOND
    assert left(86_401) == -SECOND


def test_nothing_is_nothing() -> None:
    """Issue 7: no processes, no counts, no division by zero"""
    found = summed([])

    assert found == StatisticsSnapshot()
    assert (found.waits.mean, found.waits.quantile(0.95)) == (0.0, 0.0)


def test_a_count_costs_little() -> None:
    """Issue 7: well under a microsecond on a quiet machine (benchmarks/commands.py); this one may be busy"""
    counters, record = Counters(), fetched(waited=0.7)
    counters.count(record)

    with cpu_within(20_000 * 10e-6, time.thread_time):
        for _ in range(20_000):
            counters.count(record)


@pytest.mark.parametrize("most", [1000, 8])
def test_what_went_to_hosts_on_the_way_is_counted_for_them(most: int) -> None:
    """Issue 4, 9: also when there are more hosts than are counted one by one"""
    records = [
        fetched(
            f"{number % 50}.example",
            attempts=3,
            bytes=30,
            robots_requests=2,
            elsewhere=(Share(f"way-{number % 70}.example", 2, 1, 1, 20),),
            retries=1,
        )
        for number in range(600)
    ]

    found = tallied(*records, hosts=most).snapshot()

    assert (found.requests, found.bytes, found.retries, found.robots_requests) == (1800, 18_000, 600, 1200)
    assert (found.fetches, found.pages, sum(found.domains.values())) == (600, 600, 1800)
    if most == 1000:
        assert (found.hosts["1.example"].requests, found.hosts["way-1.example"].requests) == (12, 18)
