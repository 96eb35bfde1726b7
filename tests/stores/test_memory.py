"""What only the memory store does: idle records are packed, and a fork is survived."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from curtsy.core.host import Host
from curtsy.core.rules import Rules
from curtsy.core.time import SECOND
from curtsy.stores import Step
from curtsy.stores.memory import AsyncMemoryStore, MemoryStore
from curtsy.testing import FakeClock
from tests.stores.steps import count, keep, remove


@given(st.lists(st.tuples(st.integers(0, 12), st.sampled_from([count, keep, remove])), max_size=120))
def test_how_many_records_are_kept_unpacked_makes_no_difference(moves: list[tuple[int, Step[Any]]]) -> None:
    """L10"""
    clock = FakeClock()
    roomy, tight = MemoryStore(clock), MemoryStore(clock, hot=2)
    for number, step in moves:
        assert roomy.update(str(number), step) == tight.update(str(number), step)

    held = roomy.keys()
    assert tight.keys() == held
    assert [tight.read(key) for key in held] == [roomy.read(key) for key in held]


def test_a_record_that_says_nothing_any_more_is_dropped_rather_than_packed() -> None:
    """L10"""
    clock = FakeClock()
    store = MemoryStore(clock, hot=1)
    lasting = Rules(valid_until=clock.now().epoch / SECOND)
    store.update("rules:old", lambda record, now: (Rules(), None))
    store.update("rules:new", lambda record, now: (lasting, None))
    store.update("host:a", lambda record, now: (Host(), None))

    assert store.keys() == ["host:a", "rules:new"]


def test_large_texts_of_robots_txt_take_a_bounded_number_of_bytes() -> None:
    """F28: those written longest ago are dropped, and nothing else is"""
    store = MemoryStore()
    text = b"#" * 500_000

    for number in range(100):
        store.update(f"rules:{number}", lambda rules, now: (Rules(body=text), None))
        store.update(f"rules:small{number}", lambda rules, now: (Rules(body=text[:5000]), None))
        store.update(f"host:{number}", lambda host, now: (Host(), None))

    large = [int(key[6:]) for key in store.keys("rules:") if "small" not in key]
    assert sorted(large) == list(range(100 - len(large), 100))
    assert 50 <= len(large) <= (32 << 20) / 500_000
    assert (len(store.keys("host:")), len(store.keys("rules:small"))) == (100, 100)


def test_idle_hosts_take_few_bytes_each() -> None:
    """L10: 50,000 hosts, mostly packed, as most of a million are. `make bench` has the million."""
    if not os.path.exists("/proc/self/statm"):
        pytest.skip("needs /proc to see how much memory a process uses")
    script = """
import msgspec
from curtsy.core.budget import Day
from curtsy.core.host import Host
from curtsy.stores.memory import MemoryStore

def used():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096

def spend(record, now):
    day = Day(now.epoch // 10**6 + 86400, (now.epoch - now.at) // 10**6, now.at // 10**6, 3, 2)
    host = Host(offset=now.epoch, sent_at=now.at, spent=500_000, serial=3, day=day, latency=90_000, requests=3)
    return host, None

keys = [f"host:{number}.example.org" for number in range(50_000)]
store = MemoryStore(hot=5_000)
before = used()
for key in keys:
    store.update(key, spend)
print((used() - before) / len(keys))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=120)

    assert float(done.stdout) < 300


async def test_an_async_store_over_another_has_the_same_records() -> None:
    """L9"""
    store = MemoryStore()
    tasks = store.inner
    store.update("a", count)

    assert await tasks.update("a", count) == 2
    assert tasks.identity == store.identity != AsyncMemoryStore().identity


def test_a_fork_in_the_middle_of_other_threads_updates_leaves_the_child_a_working_store() -> None:
    """Clients survive a fork: no lock is left behind that nobody releases."""
    script = """
import os, threading
from curtsy.stores.memory import MemoryStore
from tests.stores.steps import count

store = MemoryStore()
end = threading.Event()

def hammer():
    while not end.is_set():
        store.update("a", count)

threads = [threading.Thread(target=hammer, daemon=True) for _ in range(3)]
for thread in threads:
    thread.start()
for _ in range(30):
    child = os.fork()
    if not child:
        store.update("a", count)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
end.set()
for thread in threads:
    thread.join()
"""
    subprocess.run([sys.executable, "-W", "ignore", "-c", script], check=True, timeout=60)
