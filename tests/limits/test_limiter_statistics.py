"""What a limiter counts (L4, L5)."""

from __future__ import annotations

import json
import pickle
import threading
from datetime import UTC, datetime

import pytest

from curtsy.core.breaker import State
from curtsy.core.errors import UnknownDomain, WaitTimeout
from curtsy.core.policy import LimitConfig
from curtsy.core.time import SECOND
from curtsy.limits.statistics import LimitStats, snapshot_of
from curtsy.testing import FakeClock
from tests.limits.asking import DOMAIN, stats_of, waits
from tests.limits.conftest import Made
from tests.support.snapshot import Snapshot

# L4, L5: statistics


async def test_statistics_are_exact(made: Made, clock: FakeClock) -> None:
    """L4, L5: every field, after waits, a request that was let through at once, a timeout and a cancel."""
    limiter = made(LimitConfig(2.0, 1))
    assert limiter.allow(DOMAIN)
    await waits(limiter, clock, 2)
    with pytest.raises(WaitTimeout):
        await limiter.wait(DOMAIN, timeout=0.1)
    last = clock.now().epoch
    clock.advance(0.49)
    await limiter.wait(DOMAIN)

    found = stats_of(limiter).as_dict()

    assert found.pop("total_wait_time_ms") == pytest.approx(1010.0)
    assert found.pop("average_wait_time_ms") == pytest.approx(505.0)
    assert found == {
        "domain": DOMAIN,
        "total_requests": 4,
        "delayed_requests": 2,
        "last_request_time": f"{datetime.fromtimestamp(last / SECOND + 0.5, UTC):%Y-%m-%dT%H:%M:%S.%f}"[:-3] + "Z",
        "delay_rate": 0.5,
        "canceled_requests": 1,
    }


async def test_a_wait_of_ten_milliseconds_is_no_delay_and_a_longer_one_is(made: Made, clock: FakeClock) -> None:
    """L5"""
    limiter = made(LimitConfig(1.0, 1))
    await limiter.wait(DOMAIN)
    clock.advance(0.99)
    await limiter.wait(DOMAIN)
    assert stats_of(limiter).delayed_requests == 0
    clock.advance(0.9899)
    await limiter.wait(DOMAIN)

    assert stats_of(limiter).delayed_requests == 1
    assert stats_of(limiter).total_wait_time_ms == pytest.approx(20.1), "every wait counts"


def test_without_requests_every_figure_is_zero() -> None:
    """L5: nothing is divided by nothing."""
    found = LimitStats(DOMAIN).snapshot()

    assert found == snapshot_of(DOMAIN, 0, 0, 0.0, None, 0)


async def test_a_snapshot_reads_the_same_in_python_and_in_json(made: Made, clock: FakeClock) -> None:
    """L5"""
    limiter = made(LimitConfig(1.0, 1))
    await waits(limiter, clock, 3)
    found = stats_of(limiter)

    as_json = json.loads(json.dumps(found))
    assert json.loads(json.dumps(limiter.get_stats()))["total_requests"] == 3
    assert (found.total_requests, pickle.loads(pickle.dumps(found))) == (3, found)

    assert as_json == dict(found) == {name: found[name] for name in found}
    assert list(as_json) == [
        "domain", "total_requests", "delayed_requests", "total_wait_time_ms", "average_wait_time_ms",
        "last_request_time", "delay_rate", "canceled_requests",
    ]  # fmt: skip
    assert datetime.fromisoformat(as_json["last_request_time"]).utcoffset() == UTC.utcoffset(None)
    with pytest.raises(KeyError):
        found["nonsense"]


def test_a_domain_never_seen_has_no_statistics(made: Made, snapshot: Snapshot) -> None:
    """L4: an error that says so, which is a KeyError too."""
    limiter = made()

    for ask in (limiter.get_stats, limiter.reset):
        with pytest.raises(UnknownDomain, match=r"\bexample\.org ") as error:
            ask("Example.org")
        snapshot(str(error.value), ask.__name__)
    with pytest.raises(KeyError):
        limiter.get_stats(DOMAIN)


def test_all_statistics_are_a_copy(made: Made) -> None:
    """L4"""
    limiter = made()
    limiter.allow(DOMAIN)

    copied = limiter.get_all_stats()
    copied.clear()
    limiter.allow("example.net")

    assert set(limiter.get_all_stats()) == {DOMAIN, "example.net"}
    assert copied == {}


def test_a_reset_zeroes_statistics_and_leaves_tokens_alone(made: Made) -> None:
    """L4: of one domain, or of all."""
    limiter = made(LimitConfig(1.0, 1))
    assert limiter.allow(DOMAIN)
    assert limiter.allow("example.net")

    limiter.reset(DOMAIN)

    assert stats_of(limiter).total_requests == 0
    assert stats_of(limiter, "example.net").total_requests == 1
    assert not limiter.allow(DOMAIN)
    limiter.reset()
    assert stats_of(limiter, "example.net").total_requests == 0


def test_a_snapshot_taken_while_threads_count_is_consistent() -> None:
    """L4, L9: total, delayed and wait time always belong together."""
    stats = LimitStats(DOMAIN)
    torn = []

    def count() -> None:
        for _ in range(5000):
            stats.count(1, 0.1)

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        found = stats.snapshot()
        if found.delayed_requests != found.total_requests or found.total_wait_time_ms != pytest.approx(
            100 * found.total_requests
        ):
            torn.append(found)

    assert torn == []
    assert stats.snapshot().total_requests == 20_000


async def test_totals_are_of_what_was_not_reset(made: Made) -> None:
    """L4, Q6: refused ones too"""
    limiter = made(LimitConfig(1000.0, 100))
    for _ in range(10):
        await limiter.acquire("https://example.org/")
    limiter.record_failure("https://example.org/", 403)
    for _ in range(3):
        assert not await limiter.acquire("https://example.org/")
    await limiter.acquire("https://example.net/")

    limiter.reset(DOMAIN)
    for _ in range(5):
        await limiter.wait(DOMAIN)

    stats = limiter.get_stats()
    assert (stats.total_requests, stats.blocked_requests) == (6, 0)


def test_a_domain_that_was_only_looked_at_is_not_seen(made: Made) -> None:
    """L4"""
    limiter = made()

    assert limiter.refusal("https://example.org/") is None
    assert limiter.breaker_state(DOMAIN) == (State.CLOSED, 0.0)

    assert limiter.get_all_stats() == {}
    with pytest.raises(UnknownDomain):
        limiter.get_stats(DOMAIN)
