"""Issue 5: many workers in virtual time, thousands of them killed; no rule broken, no URL lost, each day repeatable."""

from __future__ import annotations

import resource
import sys
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from curtsy.core.policy import Policies, Policy
from curtsy.core.time import SECOND
from tests.simulation.character import HOUR, NEVER, REFUSED, Character
from tests.simulation.crew import Moment
from tests.simulation.referee import Referee
from tests.simulation.simulation import Outcome, Plan, Simulation
from tests.simulation.timeline import NOON
from tests.simulation.world import BERLIN, KIRITIMATI, PLAIN, UTC, World, broad
from tests.strategies import ANY


def check(outcome: Outcome) -> None:
    assert not outcome.violations, str(outcome)
    assert not outcome.errors, str(outcome)
    assert outcome.done + sum(outcome.failed.values()) + outcome.queued == outcome.urls, str(outcome)


def test_a_day_of_twenty_workers_of_which_a_hundred_crash_breaks_no_rule_and_loses_no_url() -> None:
    """Issue 5, F38, F52"""
    outcome = Simulation(broad(1, 300, 5000), Plan(workers=20, crashes=125), 1).run()

    check(outcome)
    assert sum(outcome.crashes.values()) >= 90
    assert set(outcome.crashes) == {moment.value for moment in Moment}
    assert outcome.urls > 4000
    assert outcome.done > 2500
    assert outcome.repeats > 10  # the crashes did hit what was in flight


def test_the_same_seed_gives_the_same_day_and_another_seed_another() -> None:
    """Issue 5"""
    one, again, other = (
        Simulation(broad(seed, 60, 800), Plan(workers=8, crashes=40), seed).run() for seed in (7, 7, 8)
    )  # fmt: skip

    assert one == again
    assert one.digest != other.digest


@pytest.mark.parametrize("qps", [0.1, 0.8, 15.0])
def test_the_rate_of_all_hosts_together_holds_over_all_workers(qps: float) -> None:
    """Issue 5, Q1"""
    plan = Plan(workers=10, crashes=40, lasts=12 * HOUR, lag=0)

    outcome = Simulation(broad(3, 60, 800, global_qps=qps), plan, 3).run()

    check(outcome)
    assert outcome.done > 200


@pytest.mark.parametrize("stalls", [(0.1, 3.9), (4.0, 34.0), (36.0, 90.0)])
def test_a_worker_that_is_stopped_before_it_sends_breaks_no_rule(stalls: tuple[float, float]) -> None:
    """Issue 5: so shortly that its request still ends within its lease, longer, or until the lease has run out."""
    outcome = Simulation(broad(4, 100, 1500), Plan(workers=10, crashes=40, stalls=stalls), 4).run()

    check(outcome)


# Small worlds of any kind

policies = st.builds(
    PLAIN.replace,
    qps=st.sampled_from((None, 5.0, 0.8, 0.01)),
    pause_min=st.sampled_from((0.0, 1.5)),
    pause_max=st.sampled_from((1.5, 5.5)),
    delay=st.sampled_from((0.0, 0.0, 3.0)),
    concurrency=st.sampled_from((1, 1, 1, 3, None)),
    burst=st.sampled_from((1, 1, 4)),
    strategy=st.sampled_from(("token_bucket", "leaky_bucket", "sliding_window")),
    adapt=st.booleans(),
    max_crawl_delay=st.sampled_from((5.0, 300.0)),
    max_requests_per_day=st.sampled_from((0, 1, 5, 200)),
    max_pages_per_day=st.sampled_from((0, 1, 4, 100)),
    timezone=st.sampled_from((UTC, BERLIN, KIRITIMATI)),
    breaker=st.booleans(),
    breaker_failures=st.sampled_from((1, 3)),
    breaker_cooldown=st.sampled_from((10.0, 300.0)),
    breaker_max_cooldown=st.sampled_from((60.0, 3600.0)),
    breaker_error_rate=st.none(),  # the referee knows nothing of windows, and here several may be under way
    on_429=st.sampled_from(("obey", "trip", "retry")),
    max_retry_after=st.sampled_from((20.0, 86_400.0)),
    timeout=st.sampled_from((4.0, 6.0, 30.0)),
    max_retries=st.sampled_from((0, 3)),
    respect_robots=st.sampled_from((True, True, False)),
    robots_ttl=st.sampled_from((60.0, 3600.0)),
    robots_unreachable=st.sampled_from(("allow", "disallow")),
    deny_paths=st.sampled_from(((), ("/private/",))),
    denied=st.sampled_from((False,) * 9 + (True,)),
)

characters = st.builds(
    Character,
    latency=st.sampled_from(((0.0, 0.0), (0.05, 1.0), (2.0, 40.0))),
    trouble=st.sampled_from((0.0, 0.1, 0.7)),
    status=st.sampled_from((429, 503, 500, 403, NEVER, REFUSED)),
    retry_after=st.sampled_from((None, (0, 5), (50, 70), (500, 5000))),
    dated=st.booleans(),
    dead=st.sampled_from(((), ((0, HOUR),), ((10 * HOUR, 14 * HOUR),))),
    robots_status=st.sampled_from((200, 200, 200, 404, 503)),
    disallows=st.booleans(),
    crawl_delay=st.sampled_from((None, None, 2.5, 50.0, 400.0)),
)


@st.composite
def worlds(draw: st.DrawFn) -> World:
    """Up to nine hosts under up to three policies; the last three, if there are so many, share one record."""
    entries = {f"{letter}.example": draw(policies) for letter in draw(st.sampled_from(("a", "ab", "abc")))}
    names = [f"h{number}.{draw(st.sampled_from(sorted(entries)))}" for number in range(draw(st.integers(1, 6)))]
    answers = [draw(characters) for _ in names]
    if draw(st.booleans()):
        entries["farm.example"] = draw(policies).replace(key="farm.example")
        names += [f"f{number}.farm.example" for number in range(3)]
        answers += [draw(characters) for _ in range(3)]
    sizes = [draw(st.integers(1, 25)) for _ in names]
    global_qps = draw(st.sampled_from((None, None, 0.5, 10.0)))
    return World(
        draw(st.integers(0, 99)), sizes, Policies(PLAIN, entries, global_qps=global_qps), names, answers.__getitem__
    )  # fmt: skip


plans = st.builds(
    Plan,
    workers=st.integers(1, 5),
    hands=st.integers(1, 3),
    crashes=st.sampled_from((0, 5, 40)),
    lasts=st.sampled_from((2 * HOUR, 30 * HOUR)),
    listed=st.sampled_from((0, 100)),
    lag=st.sampled_from((0, SECOND)),
    lease=st.sampled_from((60.0, 600.0)),
)


@given(worlds(), plans, st.integers(0, 99))
@ANY
def test_in_no_small_world_is_a_rule_broken_or_a_url_lost(world: World, plan: Plan, seed: int) -> None:
    """Issue 5, C1"""
    check(Simulation(world, plan, seed).run())


# The referee and the ledger can tell


def alike(policy: Policy, character: Character, *, global_qps: float | None = None) -> World:
    """Three hosts of 30 pages."""
    names = [f"h{number}.example" for number in range(3)]
    return World(1, [30] * 3, Policies(policy, global_qps=global_qps), names, lambda number: character)


FINE = Character()
FREE = PLAIN.replace(max_requests_per_day=0, max_pages_per_day=0)
HASTY = FREE.replace(qps=None, pause_min=0, pause_max=0, concurrency=4, adapt=False, breaker=False)


@pytest.mark.parametrize(
    ("rule", "kept", "told", "character"),
    [
        ("gap", FREE, FREE.replace(pause_min=4), FINE),
        ("gap", FREE.replace(pause_min=0, pause_max=0, qps=2), FREE.replace(pause_min=0, pause_max=0, qps=1), FINE),
        ("concurrency", HASTY, HASTY.replace(concurrency=3), FINE),
        ("rate", HASTY, HASTY.replace(qps=1, burst=3), FINE),
        ("rate", HASTY, HASTY.replace(qps=1, burst=3, strategy="sliding_window"), FINE),
        ("budget", PLAIN.replace(max_requests_per_day=20), PLAIN.replace(max_requests_per_day=19), FINE),
        ("budget", PLAIN.replace(max_pages_per_day=20), PLAIN.replace(max_pages_per_day=19), FINE),
        (
            "budget",
            PLAIN.replace(max_requests_per_day=10),
            PLAIN.replace(max_requests_per_day=10, timezone=KIRITIMATI),
            FINE,
        ),
        ("denied", FREE, FREE.replace(denied=True), FINE),
        ("denied", FREE, FREE.replace(deny_paths=("/private/",)), FINE),
        ("robots", FREE.replace(respect_robots=False), FREE, FINE),
        ("robots", FREE.replace(robots_ttl=20), FREE, FINE),
        ("robots", FREE, FREE.replace(robots_unreachable="disallow"), Character(robots_status=500)),
        ("robots", FREE, FREE.replace(max_crawl_delay=5), Character(crawl_delay=6)),
        (
            "retry_after",
            FREE.replace(max_retry_after=1),
            FREE,
            Character(trouble=0.3, status=429, retry_after=(20, 50)),
        ),
        ("breaker", FREE.replace(breaker=False), FREE, Character(trouble=0.7, status=500)),
        ("breaker", FREE.replace(breaker_cooldown=60), FREE, Character(trouble=0.7, status=500)),
    ],
)
def test_the_referee_sees_it_when_workers_keep_another_rule(
    rule: str, kept: Policy, told: Policy, character: Character
) -> None:
    """Issue 5: a judge who never finds anything proves nothing."""
    plan = Plan(workers=5, crashes=0, lasts=16 * HOUR, lag=0)

    outcome = Simulation(alike(kept, character), plan, 1, Policies(told, global_qps=None)).run()

    assert set(outcome.violations) == {rule}, str(outcome)
    check(Simulation(alike(kept, character), plan, 1).run())


def test_the_referee_sees_it_when_the_rate_of_all_hosts_is_exceeded() -> None:
    """Issue 5, Q1"""
    world, plan = alike(FREE, FINE, global_qps=0.5), Plan(workers=5, crashes=0, lasts=4 * HOUR, lag=0)

    outcome = Simulation(world, plan, 1, Policies(FREE, global_qps=0.4)).run()

    assert set(outcome.violations) == {"global"}, str(outcome)


def test_the_referee_sees_it_when_a_page_is_asked_for_again_though_its_asker_lived() -> None:
    """Issue 5"""
    policy = HASTY.replace(respect_robots=False)
    world = alike(policy, FINE)
    url = world.url(world.sites[0], 0)
    for died in (True, False):
        referee = Referee(world, world.policies, 0, NOON, 0)
        flight = referee.sent(url, SECOND, is_refused=False)
        referee.answered(flight, 2 * SECOND, 200, None, is_heard=True, is_learned=True)
        if died:
            referee.died([flight])
        referee.sent(url, 3 * SECOND, is_refused=False)

        assert dict(referee.violations) == ({} if died else {"repeat": 1})
        assert referee.repeats == died


def test_the_ledger_sees_it_when_a_url_is_lost_or_ended_behind_its_back() -> None:
    """Issue 5"""
    world = alike(FREE, FINE)
    simulation = Simulation(world, Plan(workers=1, crashes=0, lasts=HOUR, listed=0), 1)
    simulation.frontier.add([world.url(world.sites[0], 0)])
    [claimed] = simulation.frontier.claim()
    simulation.frontier.done(claimed)

    assert simulation.run().errors


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_a_day_of_a_million_urls_on_fifty_thousand_hosts_by_two_hundred_workers(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Issue 5, F38, F52: about three minutes of one core."""
    world = broad(1, 50_000, 1_150_000)
    began = time.process_time()

    outcome = Simulation(world, Plan(workers=200, crashes=5000, listed=75), 1).run()

    with capsys.disabled():
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // (1024 if sys.platform == "linux" else 1024**2)
        print(f"\n{outcome}\n{time.process_time() - began:.0f} s of CPU, at most {peak} MB")
    check(outcome)
    assert outcome.urls >= 1_000_000
    assert sum(outcome.crashes.values()) >= 3000
