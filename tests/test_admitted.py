"""Over-admission is zero: eight processes, twenty domains, some killed at any moment, two with a clock that is off.

What was admitted is in a journal that every process appends to before it would send, by the store's own clock. Here it
is held against every limit.
"""

from __future__ import annotations

import os
import random
import sqlite3
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import pytest

from curtsy.core.host import Host
from curtsy.core.policy import Policy
from curtsy.core.time import SECOND
from curtsy.stores import Store
from tests.support.admitter import GLOBAL_QPS, policies
from tests.support.noon import zone_at_noon
from tests.support.polling import block_until
from tests.support.redis_server import RedisServer, redis_available
from tests.support.stores import redis_store, sqlite_store
from tests.support.warm import Process

ROOT = Path(__file__).parents[1]
PROCESSES = 8
KILLS = 5
LEAST = 400
"""Requests that are let through in all."""

OFF = {3: "90", 6: "-90"}
"""Which processes have a wall clock that is off, and by how many seconds."""


@dataclass
class Visit:
    """One request that was let through, as the journal has it."""

    number: int
    left_at: int
    page: bool
    pid: int
    done_at: int | None = None
    """When its holder set about to give the place back; None if it was killed before."""

    outcome: str = ""

    @property
    def is_refunded(self) -> bool:
        """Whether its request does not count in the budget."""
        return self.outcome.startswith(("NOT_MODIFIED", "FAILED", "ABANDONED"))


class Crowd:
    """The processes, and what they have written down."""

    def __init__(self, place: str, directory: Path, *, off: dict[int, str]) -> None:
        self._place = place
        self._journal = directory / "journal"
        self._off = off
        self.zone = zone_at_noon()
        self._seeds = iter(range(1000))
        self.processes = [self._start(number) for number in range(PROCESSES)]
        self.killed: set[int] = set()

    def _start(self, number: int) -> Process[str] | subprocess.Popen[str]:
        how, pipe = "threads" if number % 3 == 2 else "tasks", subprocess.PIPE
        words = ["tests.support.admitter", self._place, str(self._journal), self.zone, how, str(next(self._seeds))]
        if number not in self._off:
            return Process(*words, text=True, stdin=pipe, stdout=pipe, stderr=pipe)
        return subprocess.Popen(  # its clock must be off before it imports anything
            [sys.executable, "-m", *words], cwd=ROOT, env={**os.environ, "ADMITTER_OFF": self._off[number]},
            stdin=pipe, stdout=pipe, stderr=pipe, text=True,
        )  # fmt: skip

    def run(self, dice: random.Random) -> None:
        """Let them work, and kill and replace some of them at random moments.

        They go on until the places of the dead are taken again.
        """
        for process in self.processes:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        for _ in range(KILLS):
            enough = self._written() + dice.randint(1_000, 20_000)
            block_until(lambda: self._written() >= enough)  # noqa: B023
            number = dice.randrange(PROCESSES)
            victim = self.processes[number]
            victim.kill()
            victim.communicate()
            self.killed.add(victim.pid)
            self.processes[number] = self._start(number)
        killed_at = max(visit.left_at for each in self.visits().values() for visit in each)
        block_until(lambda: self._has_gone_on_since(killed_at), every=0.2)
        for process in self.processes:
            assert process.stdin is not None
            process.stdin.close()
            process.stdin = None
        for process in self.processes:
            assert process.communicate(timeout=60)[1] == ""
            assert process.returncode == 0

    def _written(self) -> int:
        return self._journal.stat().st_size if self._journal.exists() else 0

    def _has_gone_on_since(self, at: int) -> bool:
        """Whether the leases of that time are over, and every host was asked often."""
        visits = self.visits().values()
        lease = max(policy.lease_us for policy in policies(self.zone).values())
        last = max(each[-1].left_at for each in visits)
        return last > at + lease + SECOND and sum(map(len, visits)) >= LEAST and min(map(len, visits)) >= 5

    def end(self) -> None:
        """Leave nobody behind, however the test went."""
        for process in self.processes:
            process.kill()
            process.communicate()

    def visits(self) -> dict[str, list[Visit]]:
        """What was let through, by domain, in order of the store's clock."""
        visits: dict[str, dict[int, Visit]] = defaultdict(dict)
        for line in self._journal.read_text().splitlines():
            what, key, number, at, more, pid = line.split()
            if what == "in":
                assert int(number) not in visits[key], "two were given the same place"
                visits[key][int(number)] = Visit(int(number), int(at), bool(int(more)), int(pid))
            else:
                visit = visits[key][int(number)]
                visit.done_at, visit.outcome = int(at), more
        return {
            key.removeprefix("host:"): sorted(each.values(), key=lambda visit: visit.left_at)
            for key, each in visits.items()
        }


@pytest.fixture(params=["sqlite", "redis"])
def crowd(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Crowd, Store]]:
    if request.param == "sqlite":
        store = sqlite_store(tmp_path / "state.sqlite")
        crowd = Crowd(str(tmp_path / "state.sqlite"), tmp_path, off={})
        yield crowd, store
        store.close()
        crowd.end()
        with sqlite3.connect(tmp_path / "state.sqlite") as database:
            assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        database.close()
        return
    if reason := redis_available():
        pytest.skip(reason)
    with RedisServer() as server:
        crowd = Crowd(server.url, tmp_path, off=OFF)
        records = redis_store(server.url, timeout=20)
        yield crowd, records
        records.close()
        crowd.end()


def check_pace(visits: list[Visit], policy: Policy) -> None:
    """No rate, pause or delay is broken, to the microsecond of the store's clock."""
    left = [visit.left_at for visit in visits]
    assert len(set(left)) == len(left) or policy.qps is None or policy.burst > 1
    least = max(policy.pause_us, policy.delay_us)
    if policy.qps is not None and (policy.burst == 1 or policy.strategy == "leaky_bucket"):
        least = max(least, policy.interval_us)
    assert all(after - before >= least for before, after in pairwise(left))
    burst = int(policy.burst)
    if policy.qps is None or burst == 1:
        return
    if policy.strategy == "sliding_window":
        assert all(left[i + burst] - left[i] >= burst * policy.interval_us for i in range(len(left) - burst))
    else:
        for first in range(len(left)):
            for last in range(first + burst, len(left)):
                assert left[last] - left[first] >= (last - first + 1 - burst) * policy.interval_us - (last - first)


def check_places(visits: list[Visit], policy: Policy, crowd: Crowd) -> None:
    """Never more on their way than allowed; a killed holder is, until its lease has run out.

    So is one that the machine did not run for so long that it came back too late: then its place was another's already.
    """
    if policy.concurrency is None:
        return
    moments: list[tuple[int, int]] = []
    for visit in visits:
        until = visit.left_at + policy.lease_us
        if visit.done_at is None:
            assert visit.pid in crowd.killed
        else:
            until = min(until, visit.done_at)
        moments += [(visit.left_at, 1), (until, -1)]
    inside = 0
    for _, change in sorted(moments):  # whoever leaves in the same microsecond leaves first
        inside += change
        assert inside <= policy.concurrency


def check_budget(visits: list[Visit], policy: Policy, host: Host) -> None:
    """No more of a day than it has; and what the record says is not less than what was sent."""
    requests = sum(not visit.is_refunded for visit in visits)
    pages = sum(visit.outcome.endswith(":1") for visit in visits)
    assert requests <= (policy.max_requests_per_day or requests)
    assert pages <= (policy.max_pages_per_day or pages)
    if policy.max_requests_per_day or policy.max_pages_per_day:
        [day] = host.days
        assert requests <= day.requests <= (policy.max_requests_per_day or day.requests)
        assert pages <= day.pages <= (policy.max_pages_per_day or day.pages)


def test_nothing_is_admitted_that_should_not_be(crowd: tuple[Crowd, Store]) -> None:
    """B4, B7, F38, F42, F53, section 7 of the design: budget, rate, pause and places, with kills and wrong clocks."""
    processes, store = crowd
    processes.run(random.Random(5))
    visits = processes.visits()

    for domain, policy in policies(processes.zone).items():
        check_pace(visits[domain], policy)
        check_places(visits[domain], policy, processes)
        check_budget(visits[domain], policy, store.read(f"host:{domain}"))
    assert len(processes.killed) == KILLS
    check_global_rate([visit for number in range(10) for visit in visits[f"{number}.example.org"]])
    check_progress(visits)


def check_global_rate(visits: list[Visit]) -> None:
    """All that pass the global rate together: at most two batches ahead of it, in any window."""
    left, batch = sorted(visit.left_at for visit in visits), round(GLOBAL_QPS / 20)
    for first in range(0, len(left), 7):
        for last in range(first + 2 * batch, min(len(left), first + 300)):
            assert last - first + 1 <= GLOBAL_QPS * (left[last] - left[first]) / SECOND + 2 * batch


def check_progress(visits: dict[str, list[Visit]]) -> None:
    """And it was no standstill, though a dead holder keeps its host closed for 5 s."""
    left = sorted(visit.left_at for each in visits.values() for visit in each)
    assert min(map(len, visits.values())) >= 5
    assert len(left) >= LEAST
    assert left[-1] - left[0] > 4 * SECOND
