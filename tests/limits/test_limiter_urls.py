"""RateLimiter as the document on global rates and breakers has it (Q1, Q6, Q10-Q12, C9, C10, C13)."""

from __future__ import annotations

import asyncio
import logging
import time

import pytest

from curtsy.core.breaker import State
from curtsy.core.decision import No
from curtsy.core.errors import InvalidDomain, PolicyError, Reason, UnknownDomain
from curtsy.core.policy import UNLIMITED, LimitConfig, Policies, Policy
from curtsy.core.time import SECOND
from curtsy.limits import RateLimiter
from curtsy.limits.statistics import TotalStats
from curtsy.testing import FakeClock
from tests.limits.conftest import Made, Told
from tests.support.bounds import cpu_within
from tests.support.polling import until
from tests.support.said import missing
from tests.support.snapshot import Snapshot

URL = "https://example.org/page"


def totals(limiter: RateLimiter) -> TotalStats:
    return limiter.get_stats()


async def departures(limiter: RateLimiter, clock: FakeClock, urls: list[str]) -> list[float]:
    """Acquire all at once; the fake seconds after which each leaves, in the order given."""
    began = clock.now().at

    async def acquire(url: str) -> float:
        assert await limiter.acquire(url)
        return (clock.now().at - began) / SECOND

    return await asyncio.gather(*(acquire(url) for url in urls))


# Q1: one limit for all, and one for each


async def test_all_requests_pass_the_global_limit_in_the_order_in_which_they_came(made: Made, clock: FakeClock) -> None:
    """Q1: 0.8 a second over ten domains."""
    limiter = made(global_qps=0.8, per_domain_qps=0.8)

    left = await departures(limiter, clock, [f"https://{number}.example.org/" for number in range(10)])

    assert left == [number * 1.25 for number in range(10)]


async def test_domains_do_not_wait_for_each_other_but_for_the_global_limit(made: Made, clock: FakeClock) -> None:
    """Q1: a slow domain with a long line, and a quick one."""
    limiter = made(domains={"slow.org": LimitConfig(0.01, 1)}, global_qps=10.0, per_domain_qps=5.0)
    urls = ["https://slow.org/"] * 3 + ["https://quick.org/"] * 3

    left = await departures(limiter, clock, urls)

    assert left[:3] == [0.0, 100.0, 200.0]
    assert left[3:] == pytest.approx([0.1, 0.3, 0.5])


async def test_a_global_limit_changed_while_running_holds_for_those_who_wait(made: Made, clock: FakeClock) -> None:
    """Q6, U8"""
    limiter = made(global_qps=0.001, per_domain_qps=100.0)
    await limiter.acquire(URL)
    waiting = asyncio.ensure_future(departures(limiter, clock, ["https://a.org/", "https://b.org/"]))
    for _ in range(8):
        await asyncio.sleep(0)

    limiter.use_global(2.0)

    assert await waiting == [0.5, 1.0]


# Q6, C9: one class for both documents


async def test_an_open_breaker_refuses_and_says_why_and_for_how_long(made: Made, clock: FakeClock) -> None:
    """Q4, Q6"""
    limiter = made()
    assert await limiter.acquire(URL)
    assert limiter.refusal(URL) is None

    limiter.record_failure(URL, 403)
    clock.advance(100)

    assert not await limiter.acquire(URL)
    assert limiter.refusal(URL) == No(Reason.CIRCUIT_OPEN, 200.0, opened_by="block:403")
    assert limiter.breaker_state("example.org") == (State.OPEN, 200.0)
    assert await limiter.acquire("https://example.net/")
    limiter.reset_breaker("example.org")
    assert limiter.breaker_state("example.org") == (State.CLOSED, 0.0)
    assert await limiter.acquire(URL)
    assert limiter.refusal(URL) is None


@pytest.mark.parametrize("status", [429, 403])
async def test_a_block_trips_at_once(made: Made, status: int) -> None:
    """Q5"""
    limiter = made()

    limiter.record_failure(URL, status)

    assert limiter.breaker_state("example.org")[0] is State.OPEN


async def test_the_breaker_can_be_left_out(made: Made) -> None:
    """Q7"""
    limiter = made(circuit_breaker=False, per_domain_qps=1000.0)

    for _ in range(10):
        limiter.record_failure(URL, 429)

    assert await limiter.acquire(URL)
    assert totals(limiter).circuit_breaker_trips == 0


async def test_totals_are_exact(made: Made, clock: FakeClock) -> None:
    """Q6, C9: what came by `acquire`, `wait` and `allow`, what was refused, what has tripped and is open."""
    limiter = made(LimitConfig(1.0, 1))
    assert await limiter.acquire(URL)
    await limiter.wait("example.org")
    assert limiter.allow("example.net")
    limiter.record_failure(URL, 403)
    assert not await limiter.acquire(URL)
    assert not await limiter.acquire(URL)
    limiter.record_failure("https://example.net/", 429)
    clock.advance(299)

    found = totals(limiter)

    assert found.as_dict() == {
        "total_requests": 5,
        "blocked_requests": 2,
        "circuit_breaker_trips": 2,
        "circuit_breakers_open": 2,
        "domains": 2,
        "delayed_requests": 1,
        "total_wait_time_ms": pytest.approx(1000.0),
        "alerts": ["breaker_open", "many_blocked"],
    }
    assert found["blocked_requests"] == 2
    clock.advance(1)
    assert totals(limiter).circuit_breakers_open == 0
    limiter.reset()
    assert totals(limiter).total_requests == totals(limiter).blocked_requests == 0


@pytest.mark.parametrize("url", ["", "example.org", "ftp://example.org/", "https://", "mailto:a@example.org"])
async def test_what_is_no_url_is_an_error(made: Made, url: str, snapshot: Snapshot) -> None:
    """L8, U1"""
    limiter = made()

    with pytest.raises(InvalidDomain) as error:
        await limiter.acquire(url)
    assert f"url = {url!r} " in str(error.value)
    snapshot(str(error.value))
    with pytest.raises(InvalidDomain):
        limiter.record_success(url)


async def test_urls_and_domains_are_the_same_bucket(made: Made, clock: FakeClock) -> None:
    """C9, C6: `wait("example.org")` and `acquire("https://EXAMPLE.org/x")`; another port is another domain."""
    limiter = made(LimitConfig(1.0, 1))

    await limiter.wait("example.org")
    assert await departures(limiter, clock, ["https://EXAMPLE.org/x?y#z"]) == [1.0]
    assert await departures(limiter, clock, ["https://example.org:8443/"]) == [0.0]
    with pytest.raises(UnknownDomain):
        limiter.get_stats("elsewhere.org")


def test_at_start_it_logs_its_settings(made: Made, told: Told) -> None:
    """Q6"""
    made(global_qps=0.8, per_domain_qps=0.5, cooldown_seconds=600)

    [line] = told(logging.INFO)
    assert line.startswith("Rate limiter ready ")
    for word in ('"global_qps":0.8', '"per_domain_qps":0.5', '"circuit_breaker":true', '"cooldown":600'):
        assert word in line
    assert told(logging.WARNING) == []


def test_a_short_cooldown_is_warned_about(made: Made, told: Told, snapshot: Snapshot) -> None:
    """Q4: not if there is no breaker that it could be short for."""
    made(circuit_breaker=False, cooldown_seconds=10)
    assert told(logging.WARNING) == []

    made(cooldown_seconds=299)

    [warning] = told(logging.WARNING)
    assert missing(warning, "cooldown_seconds = 299 ", "300") == []
    snapshot(warning)


# C10: defaults


async def test_by_itself_a_limiter_keeps_its_documents_defaults(made: Made, clock: FakeClock) -> None:
    """C10, L7: one a second, burst 1, no global limit, the breaker at 300 s."""
    limiter = made()

    assert await departures(limiter, clock, [URL, URL, "https://example.net/"]) == [0.0, 1.0, 0.0]
    limiter.record_failure(URL, 403)
    assert limiter.breaker_state("example.org") == (State.OPEN, 300.0)


# Q10: watching


async def test_a_line_of_statistics_is_written_every_minute(made: Made, clock: FakeClock, told: Told) -> None:
    """Q10: while requests come; the fake clock counts the minutes."""
    limiter = made(per_domain_qps=1.0)

    await departures(limiter, clock, [URL])
    for _ in range(181):
        await limiter.acquire(URL)

    lines = [line for line in told(logging.INFO) if line.startswith("Rate limiter statistics")]
    assert len(lines) == 3
    assert '"total_requests":60' in lines[0] or '"total_requests":61' in lines[0]


async def test_alerts_are_told_when_they_begin_and_when_they_end(made: Made, clock: FakeClock, told: Told) -> None:
    """Q10: a breaker is open, more than a tenth blocked, more than five trips; each once."""
    limiter = made(per_domain_qps=1000.0)
    for number in range(18):
        assert await limiter.acquire(f"https://{number}.org/")
    limiter.record_failure("https://0.org/", 403)
    limiter.log_stats()
    limiter.log_stats()
    assert [line.split(" {")[0] for line in told(logging.WARNING)[1:]] == ["Alert: breaker_open"]

    for _ in range(3):
        assert not await limiter.acquire("https://0.org/")
    for number in range(1, 6):
        limiter.record_failure(f"https://{number}.org/", 403)
    limiter.log_stats()
    alerts = [line.split(" {")[0] for line in told(logging.WARNING) if line.startswith("Alert")]
    assert alerts == ["Alert: breaker_open", "Alert: many_blocked", "Alert: many_trips"]

    clock.advance(300)
    for number in range(100):
        assert await limiter.acquire(f"https://{number + 100}.org/")
    alerts = [line.split(" {")[0] for line in told(logging.WARNING) if line.startswith("Alert")]
    assert alerts[3:] == ["Alert over: breaker_open"]
    limiter.log_stats()
    alerts = [line.split(" {")[0] for line in told(logging.WARNING) if line.startswith("Alert")]
    assert alerts[4:] == ["Alert over: many_blocked"]


@pytest.mark.parametrize(
    ("stats", "alerts"),
    [
        (TotalStats(total_requests=10, blocked_requests=1), ()),
        (TotalStats(total_requests=10, blocked_requests=2), ("many_blocked",)),
        (TotalStats(circuit_breaker_trips=5), ()),
        (TotalStats(circuit_breaker_trips=6), ("many_trips",)),
        (TotalStats(circuit_breakers_open=1), ("breaker_open",)),
    ],
)
def test_what_is_alarming_has_exact_bounds(stats: TotalStats, alerts: tuple[str, ...]) -> None:
    """Q10"""
    assert stats.alerts == alerts


# Q11: cost


async def test_an_acquire_costs_well_under_a_thousandth_of_its_interval() -> None:
    """Q11: less than 0.1 % of a processor at 0.8 a second, that is 1.25 ms for each request; here real time."""
    limiter = RateLimiter(global_qps=1e6, per_domain_qps=1e6)
    await limiter.acquire(URL)

    with cpu_within(500 * 0.001, time.thread_time):
        for _ in range(500):
            await limiter.acquire(URL)
            limiter.record_success(URL)


async def test_waiting_costs_next_to_nothing() -> None:
    """Q11: half a second in line, with a hundred others behind."""
    limiter = RateLimiter(global_qps=0.001, per_domain_qps=1.0)
    await limiter.acquire(URL)
    tasks = [asyncio.ensure_future(limiter.acquire(f"https://{number}.org/")) for number in range(100)]
    await until(lambda: limiter.gate.queues.waiting == 200)  # each for its host and for the global pace

    with cpu_within(0.05, time.thread_time):
        done, _ = await asyncio.wait(tasks, timeout=0.5)

    assert not done
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


# Q12: what the document only wishes for


async def test_some_domains_can_be_left_without_a_limit(made: Made, clock: FakeClock) -> None:
    """Q12, C13: they and what is under them; but they pass the gate like all others, and count."""
    limiter = made(unlimited=("intranet.org",), per_domain_qps=1.0)

    assert await departures(limiter, clock, ["https://a.intranet.org/"] * 5) == [0.0] * 5
    assert await departures(limiter, clock, [URL] * 2) == [0.0, 1.0]
    assert limiter.domain("intranet.org").policy.qps is None
    assert totals(limiter).total_requests == 7
    limiter.record_failure("https://a.intranet.org/", 403)
    assert not await limiter.acquire("https://a.intranet.org/")


async def test_an_unlimited_domain_is_outside_the_global_rate_and_uses_none_of_it(
    made: Made, clock: FakeClock
) -> None:  # fmt: skip
    """C16: whether the argument or the policy says so; C13: it passes the gate and is counted."""
    policies = Policies(Policy(), {"free.org": UNLIMITED.replace(global_rate=False)}, global_qps=2.0)
    limiter = made(unlimited=("intranet.org",), global_qps=2.0, policies=policies)

    assert await departures(limiter, clock, ["https://intranet.org/", "https://free.org/"] * 2) == [0.0] * 4
    assert await departures(limiter, clock, ["https://a.org/", "https://b.org/"]) == [0.0, 0.5]
    assert totals(limiter).total_requests == 6


def test_buckets_and_breakers_can_be_looked_at_and_not_changed(made: Made, clock: FakeClock) -> None:
    """Q6: `global_bucket`, `domain_buckets` and `circuit_breakers` are read-only views of the present."""
    limiter = made(LimitConfig(2.0, 4), global_qps=0.5)
    assert all(limiter.allow("a.org") for _ in range(3))
    for _ in range(3):
        limiter.record_failure("https://b.org/", 503)

    buckets, breakers = limiter.domain_buckets, limiter.circuit_breakers

    assert (buckets["a.org"].tokens_per_second, buckets["a.org"].capacity) == (2.0, 4)
    assert buckets["a.org"].tokens == pytest.approx(1.0, abs=0.01)
    assert limiter.global_bucket.tokens_per_second == 0.5
    assert limiter.global_bucket.tokens == 1.0
    assert {name: each.is_open for name, each in breakers.items()} == {"a.org": False, "b.org": True}
    assert (breakers["b.org"].time_left, breakers["b.org"].trips) == (300.0, 1)
    with pytest.raises(TypeError):
        buckets["c.org"] = buckets["a.org"]  # type: ignore[index]
    with pytest.raises(AttributeError):
        breakers["b.org"].trips = 0  # type: ignore[misc]
    clock.advance(1.0)
    assert limiter.domain_buckets["a.org"].tokens == pytest.approx(3.0, abs=0.01)


@pytest.mark.parametrize(
    ("strategy", "expected"),
    [
        ("token_bucket", [0.0, 0.0, 0.0, 1.0, 2.0, 3.0, 4.0]),
        ("leaky_bucket", [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0]),
        ("sliding_window", [0.0, 0.0, 0.0, 3.0, 3.0, 3.0, 6.0]),
    ],
)
async def test_there_is_a_choice_of_strategies(
    made: Made, clock: FakeClock, strategy: str, expected: list[float]
) -> None:
    """Q12: three at once after a rest, none at all, or three in any three seconds."""
    limiter = made(LimitConfig(1.0, 3), strategy=strategy)

    assert await departures(limiter, clock, [URL] * 7) == expected


async def test_without_a_limit_any_number_goes_at_once(made: Made, clock: FakeClock) -> None:
    """Q12, U8: by the list, or by the policy"""
    listed, by_policy = made(unlimited=["A.org", "www.a.org"]), made(policies=Policies(Policy(qps=None)))
    began = clock.now().at

    for limiter in (listed, by_policy):
        assert limiter.allow_n("a.org", 2)
        await limiter.wait_n("a.org", 1000)
        with pytest.raises(PolicyError, match="n = 1000000000001 "):
            limiter.allow_n("a.org", 10**12 + 1)

    assert clock.now().at == began
