"""What only the shared frontier does: many workers that come, go and die, and a server that fails in its own ways."""

from __future__ import annotations

import asyncio
import itertools
import random
import re
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import ExitStack
from typing import Any, Self

import pytest

from curtsy.core.errors import PolicyError, StoreError
from curtsy.crawling.frontier.partition import GRACE, LOOK
from curtsy.crawling.frontier.protocol import Claimed, Counts, Deferred, Done, Ending, Failed, Found, Lapsed
from curtsy.crawling.frontier.redis import LEASE, MARGIN, RedisFrontier
from curtsy.crawling.frontier.redis_jobs import PRESENCE, JobGone, forget, home, jobs
from tests.crawling.sharer import Sharer, busiest, filters
from tests.support.listening import carry, listening
from tests.support.polling import PATIENCE, until
from tests.support.redis_server import RedisServer
from tests.support.snapshot import Snapshot

SLOW = 30.0
"""Seconds of patience with a busy machine, where the test is not about patience."""

_numbers = itertools.count(1)


@pytest.fixture
def job() -> str:
    return f"job {next(_numbers)}"


class Time:
    """A clock that stands still until it is moved."""

    def __init__(self) -> None:
        self.seconds = 1000.0

    def __call__(self) -> float:
        return self.seconds


Make = Callable[..., RedisFrontier]


@pytest.fixture
async def make(server: RedisServer, job: str) -> AsyncIterator[Make]:
    """Opens workers of one job, and closes them at the end."""
    opened: list[RedisFrontier] = []

    def make(url: str = server.url, timeout: float = SLOW, **given: Any) -> RedisFrontier:
        opened.append(RedisFrontier(url, job, timeout=timeout, **given))
        return opened[-1]

    yield make
    for each in opened:
        await each.close()


def urls(host: str, *names: object) -> list[str]:
    return [f"https://{host}/{name}" for name in names]


async def add(frontier: RedisFrontier, *given: str) -> int:
    return await frontier.add(Found(given))


async def done(frontier: RedisFrontier, *claims: Claimed) -> list[bool]:
    return await frontier.conclude([Ending(claimed, Done()) for claimed in claims])


async def claim_when_it_can(frontier: RedisFrontier, seconds: float = PATIENCE) -> Claimed:
    got: list[Claimed] = []

    async def is_claimed() -> bool:
        got.extend(await frontier.claim())
        return bool(got)

    await until(is_claimed, within=seconds, every=0.01)
    return got[0]


# Many workers.


async def test_a_host_is_served_by_one_worker_at_a_time(make: Make) -> None:
    """Issue 5, point 5: while one has something of it out, all of it is that one's."""
    clock = Time()
    one, other = make(concurrency=3, clock=clock), make(concurrency=3, clock=clock)
    await add(one, *urls("a.org", *range(6)))
    [first] = await one.claim()
    await other.claim(0)
    clock.seconds += 2 * GRACE / 1e6

    assert await other.claim(9) == []
    assert len(await one.claim(9)) == 2
    await done(one, first)
    assert await other.claim(9) == []
    [next_one] = await one.claim(9)

    assert next_one.host == "a.org"


async def test_a_host_goes_to_another_worker_when_nothing_of_it_is_out(make: Make) -> None:
    """Issue 5, point 5"""
    clock = Time()
    one, other = make(clock=clock), make(clock=clock)
    await add(one, *urls("a.org", 1, 2))
    [first] = await one.claim()
    await done(one, first)
    await other.claim(0)
    clock.seconds += 2 * GRACE / 1e6

    [second] = await other.claim()

    assert second.url == "https://a.org/2"
    assert await one.claim() == []


async def test_the_pages_of_a_host_are_counted_over_all_workers(make: Make) -> None:
    """Issue 5, point 5"""
    clock = Time()
    one, other = make(clock=clock), make(clock=clock)
    await add(one, *urls("a.org", 1, 2, 3))
    for worker, had in ((one, 0), (other, 1)):
        await worker.claim(0)
        clock.seconds += 2 * GRACE / 1e6
        [claimed] = await worker.claim()
        assert claimed.host_pages == had
        await worker.conclude([Ending(claimed, Done(), is_page=True)])
    clock.seconds += 2 * GRACE / 1e6

    [last] = await one.claim()

    assert last.host_pages == 2


@pytest.mark.parametrize("host", ["a.org", "b.org"])
async def test_two_workers_that_leave_out_pages_for_one_another_at_once_do_not_lose_both(make: Make, host: str) -> None:
    """Issue 5, points 4 and 5: on one host one is kept, on two at least one"""
    workers = make(), make()
    for number in range(20):
        one, other = f"https://a.org/{number}", f"https://{host}/{number}/other"
        answers = await asyncio.gather(workers[0].pass_over(one, other), workers[1].pass_over(other, one))
        assert any(answers)
        assert host == "b.org" or not all(answers)


async def test_what_was_left_out_is_known_of_hosts_of_all_partitions(make: Make) -> None:
    """Issue 5, point 4"""
    one, other = make(), make()
    circle = [f"https://{number}.org/" for number in range(5)]

    for place in range(4):
        assert not await one.pass_over(circle[place], circle[place + 1])
    assert await other.pass_over(circle[4], circle[0])
    assert not await one.pass_over("https://else.org/", circle[4]), "that one was kept"


async def test_workers_leave_hosts_to_their_owner_for_a_moment_and_no_longer(make: Make) -> None:
    """Issue 5, point 5: affinity is a preference, never needed."""
    clock = Time()
    one, other = make(clock=clock, worker="one"), make(clock=clock, worker="other")
    await one.claim()
    await other.claim()
    clock.seconds += PRESENCE / 2  # by now they know of each other
    await add(one, *(f"https://{number}.org/" for number in range(200)))
    await one.claim(0)
    mine = await one.claim(200)
    await other.claim(0)

    theirs = await other.claim(200)

    assert len(mine) + len(theirs) == 200, "all that is due is had at once"
    assert min(len(mine), len(theirs)) > 50
    await done(one, *mine)
    await add(one, *(f"https://{number}.org/again" for number in range(200)))
    await done(other, *theirs)
    assert {each.host for each in await one.claim(200)} == {each.host for each in mine}
    clock.seconds += max(LOOK, GRACE / 1e6)
    assert {each.host for each in await one.claim(200)} == {each.host for each in theirs}


async def test_who_is_not_heard_of_loses_its_preference(make: Make) -> None:
    """F53"""
    clock = Time()
    one, dead = make(clock=clock, worker="one"), make(clock=clock, worker="dead")
    await dead.claim()
    await one.claim()
    clock.seconds += PRESENCE + 1
    await one.claim()

    await add(one, *(f"https://{number}.org/" for number in range(100)))

    assert len(await one.claim(100)) == 100


async def test_hosts_of_one_registered_domain_delay_no_other_over_all_partitions(make: Make) -> None:
    """Q1, F61: wildcard DNS"""
    frontier = make()
    await add(frontier, *(f"https://h{number}.evil.org/{page}" for number in range(1000) for page in range(2)))
    await add(frontier, *(url for host in ("one.org", "two.org") for url in urls(host, *range(20))))

    got: Counter[str] = Counter()
    for _ in range(20):
        claims = await frontier.claim(3)
        got.update(claimed.host.removeprefix("h") for claimed in claims)
        await frontier.conclude([Ending(claimed, Done(0.0)) for claimed in claims])

    assert got["one.org"] == got["two.org"] == 20


async def test_it_is_over_only_when_nobody_has_anything_left(make: Make) -> None:
    """Issue 5, point 5: it ends by itself when all is done, everywhere."""
    one, other = make(), make()
    await add(one, *urls("a.org", 1))
    [claimed] = await one.claim()

    due_in = await other.due_in()
    assert due_in is not None
    assert due_in <= LOOK, "others may find something at any time"
    await one.conclude([Ending(claimed, Done(), [Found(urls("b.org", 1))])])
    assert await other.due_in() is not None
    await done(other, await claim_when_it_can(other))

    assert await one.due_in() is None
    assert await other.due_in() is None


async def test_idle_workers_learn_at_their_next_look_that_the_last_page_of_another_has_ended(make: Make) -> None:
    """Issue 17: though they look at all partitions less often the longer nothing comes"""
    clock = Time()
    one, other = make(clock=clock), make(clock=clock)
    await add(one, *(f"https://{number}.org/" for number in range(50)))
    claims = await one.claim(50)
    for _ in range(10):
        clock.seconds += LOOK
        assert await other.claim(9) == []
        assert await other.due_in() is not None
        assert await one.claim(9) == []

    await done(one, *claims)

    assert (one.workers, other.workers) == (2, 2)
    assert await one.due_in() is None
    clock.seconds += LOOK
    assert await other.claim(9) == []
    assert await other.due_in() is None


class Way(ABC):
    """A way to a server, on which things happen."""

    def __init__(self, port: int) -> None:
        self._port = port

    async def __aenter__(self) -> Self:
        self._listening = listening(self._carry)
        self.url = f"redis://127.0.0.1:{await self._listening.__aenter__()}/0"
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._listening.__aexit__(None, None, None)

    @abstractmethod
    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None: ...


class Stepper(Way):
    """A way to a server on which something else happens between any two commands, though they were sent at once."""

    def __init__(self, port: int, between: Callable[[], Awaitable[None]]) -> None:
        super().__init__(port)
        self._between = between

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        back, forth = await asyncio.open_connection("127.0.0.1", self._port)

        async def ask() -> None:
            while head := await reader.readline():
                command = [head]
                for _ in range(int(head[1:])):
                    length = await reader.readline()
                    command += [length, await reader.readexactly(int(length[1:]) + 2)]
                forth.write(b"".join(command))
                await self._between()
            forth.close()

        try:
            await asyncio.gather(ask(), carry(back, writer))
        finally:
            forth.close()


async def test_a_chain_of_pages_over_many_hosts_never_looks_as_if_it_were_over(server: RedisServer, make: Make) -> None:
    """Issue 5, point 5: partitions are looked at one after the other, while pages end and lead elsewhere."""
    clock = Time()
    worker, length, is_begun = make(clock=clock, lease=1e6), 500, False
    await add(worker, "https://0.org/")
    [claimed] = await worker.claim()

    async def go_on() -> None:
        nonlocal claimed, is_begun
        number = int(claimed.host.removesuffix(".org")) + 1
        if is_begun and number < length:
            await worker.conclude([Ending(claimed, Done(), [Found([f"https://{number}.org/"])])])
            while not (got := await worker.claim()):
                clock.seconds += GRACE / 1e6  # it is left to the other for a moment
            [claimed] = got

    async with Stepper(server.port, go_on) as stepper:
        watcher = make(stepper.url, clock=clock)
        await watcher.check()
        is_begun = True
        while claimed.host != f"{length - 1}.org":
            assert await watcher.due_in() is not None
            clock.seconds += LOOK  # so that it looks again
        await done(worker, claimed)
        clock.seconds += LOOK

        assert await watcher.due_in() is None
        await watcher.close()


def test_workers_that_are_killed_lose_nothing_and_share_no_host(server: RedisServer, job: str) -> None:
    """F53: four workers, two of them killed, one comes late."""
    pages = 300
    with ExitStack() as running:
        sharers = [running.enter_context(Sharer(server.url, job, 3.0, pages)) for _ in range(3)]
        busiest(sharers, 20).kill()
        sharers.append(running.enter_context(Sharer(server.url, job, 3.0, pages)))
        busiest([sharer for sharer in sharers if not sharer.is_killed], 40).kill()
        for sharer in sharers:
            sharer.end()

        filters(sharers, pages)
        assert sum(sharer.is_killed for sharer in sharers) == 2
    [summary] = [each for each in asyncio.run(jobs(server.url)) if each.name == job]
    assert summary.counts == Counts(queued=0, leased=0, done=pages, failed=0, hosts=7)


# Leases.


async def test_a_worker_counts_its_lease_from_before_it_asked_and_stops_short_of_its_end(make: Make) -> None:
    """F60"""
    frontier = make()
    await add(frontier, *urls("a.org", 1))
    before = time.monotonic()
    [claimed] = await frontier.claim()
    assert claimed.leased_until - before <= LEASE - MARGIN + (time.monotonic() - before)

    before = time.monotonic()
    renewed = await frontier.renew(claimed)

    assert renewed is not None
    assert before + LEASE - MARGIN <= renewed.leased_until <= time.monotonic() + LEASE - MARGIN


async def test_what_a_silent_worker_has_goes_to_another_only_after_it_has_stopped(make: Make) -> None:
    """F60: and the silent one is told so when it comes back."""
    silent, other = make(lease=0.5), make(lease=30.0)
    await add(silent, *urls("a.org", 1))
    [lost] = await silent.claim()

    taken = await claim_when_it_can(other)

    assert time.monotonic() >= lost.leased_until
    assert (taken.url, taken.tries) == (lost.url, 1)
    assert await silent.renew(lost) is None
    with pytest.raises(Lapsed, match=r"\b1\b.*\b1\b"):
        await silent.conclude([Ending(lost, Failed("timeout"), [Found(urls("b.org", 1))])])
    assert await other.counts() == Counts(queued=1, leased=1, done=0, failed=0, hosts=2)
    assert await done(other, taken) == [True]


async def test_of_claims_that_ended_too_late_none_is_ended_and_those_that_were_kept_can_be(
    make: Make, snapshot: Snapshot
) -> None:
    """F60: so that an output can be cut back, and written without what is another's."""
    clock = Time()
    slow, other = make(clock=clock, lease=60.0), make(clock=clock, lease=60.0)
    await add(slow, *urls("a.org", 1), *urls("b.org", 1))
    claims = sorted(await slow.claim(2), key=lambda claimed: claimed.host)
    clock.seconds += 30.0
    await slow.renew(claims[0])
    clock.seconds += 31.0
    await other.claim(0)
    clock.seconds += 2 * GRACE / 1e6
    taken = await other.claim(2)

    with pytest.raises(Lapsed, match=r"\b1\b.*\b2\b") as told:
        await slow.conclude([Ending(claimed, Done()) for claimed in claims], {"output": 7})
    snapshot(str(told.value))

    assert [claimed.url for claimed in taken] == [claims[1].url]
    assert ((await other.counts()).done, await other.notes()) == (0, {})
    assert await slow.keep(claims) == [True, False]
    assert await done(slow, claims[0]) == [True]
    assert await done(other, *taken) == [True]


async def test_while_its_leases_last_a_worker_asks_nobody_whether_its_claims_are_its_own(
    server: RedisServer, make: Make
) -> None:
    """Issue 5: a page costs no further trip to the server."""
    frontier = make()
    await add(frontier, *urls("a.org", 1))
    claims = await frontier.claim()
    asked = server.calls()["evalsha"]

    assert await frontier.keep(claims) == [True]

    assert server.calls()["evalsha"] == asked


async def test_who_closes_gives_back_what_it_has_at_once(make: Make) -> None:
    """U17"""
    leaving, other = make(), make()
    await add(leaving, *urls("a.org", 1))
    [claimed] = await leaving.claim()

    await leaving.close()

    again = await claim_when_it_can(other)
    assert (again.url, again.tries) == (claimed.url, 0)


# Trouble.


class Cutter(Way):
    """A way to a server that is cut when told so: what was asked arrives there, and the reply is lost."""

    def __init__(self, port: int) -> None:
        super().__init__(port)
        self.cuts = 0
        """Replies that will be lost."""

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        back, forth = await asyncio.open_connection("127.0.0.1", self._port)

        async def answer() -> None:
            while data := await back.read(1 << 16):
                if self.cuts:
                    self.cuts -= 1
                    break
                writer.write(data)
            writer.close()

        await asyncio.gather(answer(), carry(reader, forth))


async def test_a_conclusion_whose_reply_was_lost_can_be_repeated_and_counts_once(
    server: RedisServer, make: Make
) -> None:
    """F55"""
    async with Cutter(server.port) as cutter:
        frontier = make(cutter.url)
        await add(frontier, *urls("a.org", 1, 2))
        [claimed] = await frontier.claim()
        ending = Ending(claimed, Failed("timeout", 0.0), [Found(urls("b.org", 1, 2))])

        cutter.cuts = 5
        with pytest.raises(StoreError, match=re.escape(cutter.url)):
            await frontier.conclude([ending], {"output": 7})
        cutter.cuts = 0
        await frontier.conclude([ending], {"output": 7})

        assert await frontier.counts() == Counts(queued=3, leased=0, done=0, failed=1, hosts=2)
        assert await frontier.failures() == [(claimed.url, "timeout")]
        assert await frontier.notes() == {"output": 7}
        await frontier.close()


async def test_a_claim_whose_end_was_told_is_not_taken_for_another_s_though_its_lease_is_over(
    server: RedisServer, make: Make
) -> None:
    """F55: its page would be in no output, for nobody fetches it any more."""
    clock = Time()
    async with Cutter(server.port) as cutter:
        frontier = make(cutter.url, clock=clock, lease=60.0)
        await add(frontier, *urls("a.org", 1))
        [claimed] = await frontier.claim()
        cutter.cuts = 5
        with pytest.raises(StoreError, match=re.escape(cutter.url)):
            await done(frontier, claimed)
        cutter.cuts = 0
        clock.seconds += 61.0

        assert await frontier.keep([claimed]) == [True]
        await done(frontier, claimed)

        assert await frontier.counts() == Counts(queued=0, leased=0, done=1, failed=0, hosts=1)
        await frontier.close()


@pytest.mark.parametrize("is_polled", [False, True])
async def test_a_claim_whose_reply_was_lost_is_queued_again_by_the_next_one(
    server: RedisServer, make: Make, is_polled: bool
) -> None:
    """F55, issue 17, 1: long before its lease ends, and as often as replies are lost. Nothing was sent for it"""
    async with Cutter(server.port) as cutter:
        frontier = make(cutter.url, lease=600.0)
        await add(frontier, *urls("a.org", 1))
        await frontier.claim(0)
        cutter.cuts = 5
        with pytest.raises(StoreError):
            await frontier.claim()
        cutter.cuts = 0
        if is_polled:  # the report says that nothing is due before the lease ends
            await frontier.counts()

        claimed = await claim_when_it_can(frontier)

        assert claimed.tries == 0
        assert await frontier.claim() == []
        assert await done(frontier, claimed) == [True]
        await frontier.close()


async def test_a_server_that_hangs_is_an_error_and_all_goes_on_when_it_is_back(make: Make, snapshot: Snapshot) -> None:
    """F55"""
    with RedisServer() as server:
        frontier, hasty = make(server.url), make(server.url, timeout=0.2)
        await add(frontier, *urls("a.org", 1))
        [claimed] = await frontier.claim()
        server.pause()

        with pytest.raises(StoreError, match=r"\b0\.2\b") as told:
            await done(hasty, claimed)
        server.resume()
        snapshot(str(told.value))

        await done(frontier, claimed)  # unless the server has heard the hasty one after all
        assert await frontier.counts() == Counts(queued=0, leased=0, done=1, failed=0, hosts=1)
        await frontier.close()
        await hasty.close()


async def test_a_server_that_was_restarted_has_all_that_it_was_told(make: Make) -> None:
    """F54: and the scripts are sent to it again."""
    with RedisServer("--appendfsync", "always", appendonly=True) as server:
        frontier = make(server.url)
        await add(frontier, *urls("a.org", 1, 2))
        [claimed] = await frontier.claim()
        server.restart()

        assert await done(frontier, claimed) == [True]
        assert [each.url for each in await frontier.claim(9)] == urls("a.org", 2)
        await frontier.close()


async def test_a_job_that_the_server_has_lost_is_an_error_that_is_not_waited_out(
    server: RedisServer, make: Make, job: str, snapshot: Snapshot
) -> None:
    """F54: nothing is begun anew by itself."""
    frontier = make()
    await add(frontier, *urls("a.org", 1))
    await forget(server.url, job)

    with pytest.raises(JobGone, match=re.escape(server.url)) as told:
        await frontier.claim()
    snapshot(str(told.value))
    with pytest.raises(JobGone):
        await add(frontier, *urls("a.org", 2))
    assert not _keys(server, job)


async def test_a_server_that_may_forget_is_refused(make: Make) -> None:
    """Design, section 3"""
    with (
        RedisServer("--maxmemory", "50mb", "--maxmemory-policy", "allkeys-lru") as server,
        pytest.raises(PolicyError, match="allkeys-lru"),
    ):
        await make(server.url).check()


async def test_a_server_that_is_not_there_is_an_error_that_says_so(make: Make, snapshot: Snapshot) -> None:
    """F55"""
    with pytest.raises(StoreError, match=r"127\.0\.0\.1:1\b") as told:
        await make("redis://127.0.0.1:1/0").claim()

    assert str(told.value.__cause__) in str(told.value)
    snapshot(str(told.value).replace(str(told.value.__cause__), "WHY"))


async def test_a_clock_that_is_set_back_holds_nothing_up(make: Make) -> None:
    """F48: the server's this time."""
    clock = Time()
    frontier = make(clock=clock, lease=100.0, partitions=1, worker="one")
    await add(frontier, *urls("a.org", 1, 2), *urls("b.org", 1))
    first, lost = await frontier.claim(2)
    await frontier.conclude([Ending(first, Done(5.0))])

    clock.seconds -= 500
    await frontier.counts()
    restarted = make(clock=clock, lease=100.0, worker="one")
    clock.seconds += 4.0
    assert await restarted.claim(9) == []
    clock.seconds += 1.0
    assert [each.url for each in await restarted.claim(9)] == urls("a.org", 2)
    clock.seconds += 95.0

    assert [(each.url, each.tries) for each in await restarted.claim(9)] == [(lost.url, 1)]


# Jobs.


async def test_jobs_are_listed_with_their_counts_and_forgotten_with_all_their_keys(
    server: RedisServer, make: Make, job: str
) -> None:
    """Issue 5, point 4"""
    frontier = make()
    await add(frontier, *(f"https://{number % 50}.org/{number}" for number in range(500)))
    await frontier.claim(3)

    [summary] = [each for each in await jobs(server.url) if each.name == job]
    assert (summary.counts, summary.workers) == (Counts(queued=497, leased=3, done=0, failed=0, hosts=50), 1)

    assert await forget(server.url, job)
    assert not await forget(server.url, job)
    assert not _keys(server, job)
    assert job not in [each.name for each in await jobs(server.url)]


def _keys(server: RedisServer, job: str) -> list[bytes]:
    found: list[bytes] = server.command("KEYS", f"curtsy:crawl:{{{job.replace(' ', '%20')}[@}}]*")
    return found


async def test_a_fresh_start_is_refused_while_others_are_at_work(make: Make, job: str, snapshot: Snapshot) -> None:
    """Issue 5, point 4"""
    old = make(worker="old")
    await add(old, *urls("a.org", 1, 2))
    await old.note({"scope": 1})
    [claimed] = await old.claim()

    with pytest.raises(PolicyError, match=re.escape(job)) as told:
        await make(restart=True).check()
    snapshot(str(told.value))
    assert (await make().counts()).leased == 1

    again = make(restart=True, worker="old")  # it was killed, and comes back
    assert await again.counts() == Counts(queued=0, leased=0, done=0, failed=0, hosts=0)
    assert await again.notes() == {}
    assert await add(again, *urls("a.org", 1)) == 1
    with pytest.raises(JobGone):
        await done(old, claimed)


async def test_the_number_of_partitions_is_the_job_s_own(make: Make) -> None:
    """Design, section 3"""
    one = make(partitions=3)
    await add(one, *(f"https://{number}.org/" for number in range(20)))

    assert len(await make(partitions=7, worker="late").claim(20)) == 20


@pytest.mark.parametrize("format", [1, 99])
async def test_a_job_of_another_format_is_left_alone(
    server: RedisServer, make: Make, job: str, format: int, snapshot: Snapshot
) -> None:
    """Conventions: errors say what, why, what to do."""
    await add(make(), *urls("a.org", 1))
    server.command("HSET", f"{home(job)}:meta", "format", format)

    with pytest.raises(PolicyError, match=re.escape(job)) as told:
        await make().claim()

    snapshot(str(told.value))


@pytest.mark.parametrize("given", [{"job": ""}, {"lease": 0.0}, {"lease": -1.0}, {"partitions": 0}])
def test_settings_that_make_no_sense_are_refused(given: dict[str, Any]) -> None:
    """Conventions: errors say what, why, what to do."""
    with pytest.raises(PolicyError):
        RedisFrontier("redis://127.0.0.1/0", **{"job": "x", **given})


async def test_a_frontier_that_was_closed_is_of_no_more_use(make: Make, snapshot: Snapshot) -> None:
    """Contract"""
    frontier = make()
    await frontier.close()

    with pytest.raises(StoreError) as told:
        await frontier.claim()

    snapshot(str(told.value))


# What it costs.


async def test_the_set_of_all_urls_ever_seen_stays_arrays_of_integers(
    server: RedisServer, make: Make, job: str
) -> None:
    """Design, section 3: about 10 bytes a URL."""
    frontier = make(partitions=1)
    given = [f"https://a.org/{number}" for number in range(12_000)]
    assert await add(frontier, *given) == len(given)

    names = server.command("KEYS", f"curtsy:crawl:{{{job.replace(' ', '%20')}@*:seen:*")
    assert {server.command("OBJECT", "ENCODING", name) for name in names} == {b"intset"}
    assert len({name.split(b":seen:")[1].split(b":")[0] for name in names}) == 3, "generations"
    assert await add(frontier, *random.Random(1).sample(given, 2000)) == 0


async def test_a_claim_among_many_hosts_is_a_few_calls(server: RedisServer, make: Make) -> None:
    """Issue 5: no scan of all hosts."""
    frontier = make()
    await add(frontier, *(f"https://{number}.org/" for number in range(5000)))
    await frontier.claim()
    server.command("CONFIG", "RESETSTAT")

    got = await frontier.claim(10)

    assert len(got) == 10
    assert server.calls()["evalsha"] < 80, "a few partitions, and a look at all if it is time"
    assert server.calls()["zrange"] < 500


async def test_urls_that_lie_together_are_put_back_each_to_its_own_place(make: Make) -> None:
    """Contract, where bundles are taken apart"""
    frontier = make(concurrency=5)
    await add(frontier, *urls("a.org", *range(100)))
    got = await frontier.claim(5)

    order = [got[3], got[0], got[4], got[2], got[1]]
    await frontier.conclude([Ending(each, Deferred(0.0)) for each in order])

    assert [each.url for each in await frontier.claim(5)] == urls("a.org", *range(5))
    assert (await frontier.counts()).queued == 95


async def test_the_outlook_names_urls_of_a_lost_worker_and_of_others_and_the_next_host(make: Make) -> None:
    """Issue 17: lost are those of a worker that is not present, and only the lease decides when they are free"""
    clock = Time()
    lost, other, here = (make(clock=clock, lease=60.0) for _ in range(3))
    await add(lost, *urls("a.org", 1), *urls("b.org", 1), *urls("c.org", 1))
    for worker in (lost, other, here):  # each has the host of its own claim
        await worker.claim(0)
        clock.seconds += 2 * GRACE / 1e6
    [_] = await lost.claim(1)
    [held] = await other.claim(1)
    [rested] = await here.claim(1)
    await here.conclude([Ending(rested, Deferred(40.0))])
    clock.seconds += PRESENCE + 1
    await other.due_in()
    await here.due_in()

    busy = here.outlook()
    await done(other, held)
    clock.seconds += 2
    await other.due_in()
    await here.due_in()
    idle = here.outlook()

    assert (busy.elsewhere, busy.lost) == (2, 0)
    assert (idle.elsewhere, idle.lost) == (0, 1)
    assert idle.lost_for == pytest.approx(60.0 - PRESENCE - 3, abs=2.0)
    assert idle.due_in == pytest.approx(40.0 - PRESENCE - 3, abs=2.0)


async def test_urls_that_present_workers_lease_between_their_heartbeats_are_not_called_lost(make: Make) -> None:
    """Issue 17: a worker is lost when its heartbeat has ended, not when its last heartbeat was without leases"""
    clock = Time()
    busy, here = (make(clock=clock) for _ in range(2))
    await add(busy, *urls("a.org", 1))
    await here.claim(0)
    await busy.claim(0)
    clock.seconds += 2 * GRACE / 1e6

    [_] = await busy.claim(1)
    clock.seconds += LOOK / 2
    await here.counts()

    assert (here.outlook().elsewhere, here.outlook().lost) == (1, 0)


async def test_urls_of_a_killed_process_are_called_lost_by_the_next_one_of_its_name(make: Make) -> None:
    """Issue 17: from its start, also while others are present"""
    clock = Time()
    killed, other = make(clock=clock, worker="one", lease=60.0), make(clock=clock, lease=60.0)
    await add(killed, *urls("a.org", 1))
    [_] = await killed.claim(1)
    await other.claim(0)
    clock.seconds += LOOK + 1

    again = make(clock=clock, worker="one", lease=60.0)
    await again.counts()
    await again.due_in()

    assert (again.outlook().elsewhere, again.outlook().lost) == (0, 1)
    assert again.outlook().lost_for == pytest.approx(60.0 - LOOK - 1, abs=1.0)
