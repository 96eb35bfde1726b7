"""How soon after one request the next may leave: three strategies for the rate, the pause, and delays that adapt."""

from __future__ import annotations

from itertools import pairwise

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from curtsy.core.admission import FORGIVEN, admit
from curtsy.core.amendment import CrawlDelay, Resume
from curtsy.core.decision import Go, No, Wait
from curtsy.core.errors import Reason
from curtsy.core.host import Host
from curtsy.core.outcome import Kind, Outcome
from curtsy.core.pace import latency_delay, pause, raised, rate_ready, smoothed, spent_after, sunk
from curtsy.core.policy import Policy, Strategy
from curtsy.core.settlement import settle
from curtsy.core.time import SECOND, Instant, Now
from tests.strategies import (
    ANY,
    DAY,
    FREE,
    HOUR,
    TICK,
    Answer,
    Ask,
    Change,
    Event,
    Flight,
    Pass,
    Play,
    Reboot,
    SetClock,
    Settings,
    changes,
    clocks,
    durations,
    good,
    histories,
    long_lists,
    outcomes,
    overrides,
    passes,
    policies,
    reboots,
    reports,
    settings_changes,
    waiting,
)

GOOD = Outcome(Kind.ANSWERED, 200)
SLOWED = Outcome(Kind.SLOWED, 429)

rates = st.sampled_from((1 / 86_400, 0.2, 0.8, 1.0, 3.0, 7.0, 999.0)) | st.floats(0.01, 5000)


# Two requests are never closer than …


def least_gap(play: Play, roll: float) -> float:
    """Microseconds that must lie between the last request and one that leaves now, by plain arithmetic."""
    policy, host = play.policy, play.host
    assert host is not None
    for limits in (host.overrides, host.overrides):
        for name, value in limits:
            try:
                policy = policy.replace(**{name: int(value) if name == "concurrency" and value else value})
            except ValueError:
                continue
    gaps = [policy.delay * SECOND, policy.pause_min * SECOND]
    side = int(roll * 256) / 255  # the dice have so many sides, both ends of the pause among them
    gaps.append((policy.pause_min + (policy.pause_max - policy.pause_min) * side) * SECOND)
    gaps.append(host.crawl_delay)
    if policy.qps and (policy.burst == 1 or policy.strategy == "leaky_bucket"):
        gaps.append(SECOND / policy.qps)
    if policy.adapt:
        gaps.append(host.delay)
        gaps.append(min(policy.max_delay, 5.0 * (host.latency / SECOND - policy.target_latency)) * SECOND)
    return max(gaps)


def check_gaps(play: Play, history: list[Event]) -> None:
    """Run a history, and look at each departure as it happens."""
    for event in history:
        count, before = len(play.single_flight), play.host
        play.happen(event)
        if len(play.single_flight) == count or before is None or count == 0:
            continue
        flight, earlier = play.single_flight[count], play.single_flight[:count]
        last = max(each.sent_at for each in earlier)
        roll = earlier[-1].asked.roll
        play.host, after = before, play.host
        assert flight.left_at - last >= least_gap(play, roll) - TICK
        play.host = after


PACED = [
    Policy(max_requests_per_day=0, max_pages_per_day=0, concurrency=None, timezone=FREE.timezone),
    FREE.replace(qps=2.5),
    FREE.replace(qps=0.4, strategy="leaky_bucket", burst=5),
    FREE.replace(qps=4.0, strategy="sliding_window", delay=0.25),
    FREE.replace(pause_min=1.5, pause_max=5.5, breaker=True, adapt=True),
    FREE,
]


@ANY
@given(histories(clocks, changes, overrides, reports, settings_changes), st.integers(0, 5))
@example([Ask(), Settings(1), Ask(patient=False)], 5)
def test_two_requests_are_never_closer_than_any_rule_allows(history: list[Event], first: int) -> None:
    """P1, R8, N8, C1, F48: by interval, pause, delay, Crawl-delay, adapted delay; the calendar set as one likes."""
    play = Play(PACED)
    play.policy = PACED[first]

    check_gaps(play, history)


@ANY
@given(
    histories(st.builds(SetClock, st.sampled_from((-DAY, -HOUR, -SECOND))), reboots, changes, settings_changes),
    st.integers(0, 5),
)
@example([Ask(roll=0.5074911792543488), Ask()], 0)
def test_a_reboot_brings_no_two_requests_closer(history: list[Event], first: int) -> None:
    """Design, rule 1: over a reboot only the calendar tells the time; if it was set back, nothing comes sooner."""
    play = Play(PACED)
    play.policy = PACED[first]

    check_gaps(play, history)


@ANY
@given(long_lists(st.tuples(durations, st.floats(0, 1)), 30), rates)
def test_the_interval_is_counted_from_the_real_departure(delays: list[tuple[int, float]], qps: float) -> None:
    """Design, section 4: a late departure never shortens the next gap."""
    play = Play([FREE.replace(qps=qps, concurrency=1, timeout=3 * 86_400.0)])

    for took, sent in delays:
        flight = play.depart()
        play.wait(took)
        play.answer(flight, GOOD, sent)

    sent_at = [flight.sent_at for flight in play.single_flight]
    assert all((b - a + TICK) * qps >= SECOND * (1 - 1e-9) for a, b in pairwise(sent_at))


def test_a_record_that_was_lost_on_the_way_still_spaces_the_next_request() -> None:
    """F54: the store was flushed between a request and its answer."""
    play = Play([FREE.replace(qps=0.5)])
    flight = play.depart()
    play.host = None
    play.wait(SECOND)

    play.answer(flight, GOOD, 1.0)

    assert play.ask() == Wait(2.0, "rate")


# The rate in any window


def stream(*more: st.SearchStrategy[Event]) -> st.SearchStrategy[list[Event]]:
    """Somebody who asks as often as he may, and now and then does not."""
    each = st.one_of(
        st.builds(Ask, count=st.integers(1, 3), patient=st.booleans()),
        passes,
        st.builds(Answer, which=st.integers(0, 3), outcome=good, sent=st.floats(0, 1)),
        *more,
    )
    return long_lists(each, 40)


streams = stream() | stream(clocks) | stream(reboots)
"""With a calendar that is set as one likes, or reboots over which it tells the time."""


@ANY
@given(streams, rates, st.sampled_from((1, 1.6, 2, 3, 10)))
def test_a_token_bucket_lets_no_more_go_in_any_window_than_burst_and_rate(
    history: list[Event], qps: float, burst: float
) -> None:
    """L1, Q1: in any W seconds at most burst + rate x W."""
    play = Play([FREE.replace(qps=qps, burst=burst)])

    single_flight = play.run(history)

    assert_rate(single_flight, qps, burst)


def assert_rate(single_flight: list[Flight], qps: float, burst: float, late: int = 0) -> None:
    for first in range(len(single_flight)):
        total = 0
        most = max(burst, single_flight[first].asked.count)
        for flight in single_flight[first:]:
            total += flight.asked.count
            window = (flight.left_at - single_flight[first].left_at + late) / SECOND
            assert total <= max(most, flight.asked.count) + qps * window + 1e-6


@ANY
@given(long_lists(durations, 30), rates)
def test_a_schedule_makes_up_for_lateness_and_for_no_more(delays: list[int], qps: float) -> None:
    """Q2, design, section 4: the global rate keeps its schedule, so that lateness does not add up."""
    play = Play([FREE.replace(qps=qps)])

    for late in delays:
        host, decision = admit(play.host, play.now, play.policy, scheduled=True)
        if isinstance(decision, Wait):
            play.wait(round(decision.seconds * SECOND) + late % 40_000)
            host, decision = admit(play.host, play.now, play.policy, scheduled=True)
        assert isinstance(decision, Go)
        play.host = host
        play.single_flight.append(
            Flight(decision.lease, play.policy, Ask(), play.true, play.true, 0, 0, 1),
        )

    assert_rate(play.single_flight, qps, 1, FORGIVEN)


@pytest.mark.parametrize("qps", [1.0, 0.8, 0.5, 7.0, 300.0])
def test_a_stream_that_waits_as_told_takes_exactly_its_time(qps: float) -> None:
    """Q2: ten requests take nine intervals, to the microsecond."""
    play = Play([FREE.replace(qps=qps)])

    for _ in range(10):
        play.depart()

    assert play.true == pytest.approx(9 * SECOND / qps, abs=9)
    assert play.true >= 9 * SECOND / qps - 1e-3


def test_lateness_of_a_scheduled_stream_does_not_add_up() -> None:
    """Q2: a hundred departures, each 3 ms late."""
    play = Play([FREE.replace(qps=10.0)])
    for _ in range(100):
        host, decision = admit(play.host, play.now, play.policy, scheduled=True)
        if isinstance(decision, Wait):
            play.wait(round(decision.seconds * SECOND) + 3000)
            host, decision = admit(play.host, play.now, play.policy, scheduled=True)
        assert isinstance(decision, Go)
        play.host = host

    assert play.true == 99 * SECOND // 10 + 3000


def test_a_scheduled_request_a_moment_after_the_clocks_zero_is_remembered() -> None:
    """An instant of 0 means never: a first departure must not be stamped so."""
    play = Play([FREE.replace(qps=1.0)], at=5)

    play.host, _ = admit(None, play.now, play.policy, scheduled=True)

    assert isinstance(play.ask(), Wait)


@ANY
@given(streams, rates, st.integers(1, 5))
def test_a_leaky_bucket_lets_requests_leave_evenly(history: list[Event], qps: float, burst: int) -> None:
    """Q12: it saves nothing; who takes several at once is followed by as many intervals."""
    play = Play([FREE.replace(qps=qps, burst=burst, strategy="leaky_bucket")])

    single_flight = play.run(history)

    assert all((b.left_at - a.left_at) * qps >= a.asked.count * SECOND - 1e-3 for a, b in pairwise(single_flight))


@ANY
@given(streams, rates, st.integers(3, 6))
def test_a_sliding_window_never_holds_more_than_the_burst(history: list[Event], qps: float, burst: int) -> None:
    """Q12: at most `burst` requests in any `burst / qps` seconds."""
    play = Play([FREE.replace(qps=qps, burst=burst, strategy="sliding_window")])

    single_flight = play.run(history)

    for first in range(len(single_flight)):
        within = [
            each
            for each in single_flight[first:]
            if (each.left_at - single_flight[first].left_at) * qps < burst * SECOND
        ]
        assert sum(each.asked.count for each in within) <= burst


@ANY
@given(long_lists(st.tuples(st.integers(0, 3), durations, st.floats(0, 1)), 30), st.integers(1, 4))
def test_a_sliding_window_counts_from_the_real_departures(
    events: list[tuple[int, int, float]], burst: int
) -> None:  # fmt: skip
    """Q12, design, rule 5: settle() stamps the real moment of sending, whatever has left since."""
    play = Play([FREE.replace(qps=2.0, burst=burst, strategy="sliding_window")])

    for which, took, sent in events:
        flight = play.depart()
        known = [each.sent_at for each in play.single_flight if each is not flight]
        assert sum(flight.left_at - each < burst * SECOND / 2 - TICK for each in known) < burst
        play.wait(took % (2 * SECOND))
        on_their_way = [each for each in play.single_flight if not each.answers]
        play.answer(on_their_way[-1 - which % len(on_their_way)], GOOD, sent)


def test_a_sliding_window_survives_a_reboot() -> None:
    """Design, rule 1: each of its departures is moved over to the new run of the clock."""
    play = Play([FREE.replace(qps=1.0, burst=3, strategy="sliding_window")])
    for _ in range(3):
        play.depart()
        play.wait(SECOND // 2)

    play.happen(Reboot(SECOND // 2))

    assert play.ask() == Wait(1.0, "rate")
    play.wait(SECOND)
    assert [isinstance(play.ask(), Go) for _ in range(2)] == [True, False]


@pytest.mark.parametrize("strategy", ["token_bucket", "leaky_bucket", "sliding_window"])
def test_a_rate_that_was_just_set_holds_for_the_very_next_request(strategy: Strategy) -> None:
    """Design, rule 3: a record holds facts, so a changed setting holds at once."""
    play = Play([FREE, FREE.replace(qps=0.5, strategy=strategy)])
    play.depart()

    play.happen(Settings(1))

    assert play.ask() == Wait(2.0, "rate")


@pytest.mark.parametrize(
    ("learned", "because"),
    [(Host().replace(delay=10 * SECOND), "adapted"), (Host(latency=9 * SECOND), "slow_site"),
     (Host().replace(crawl_delay=10 * SECOND), "crawl_delay")],
    ids=["adapted", "slow", "Crawl-delay"],
)  # fmt: skip
def test_what_was_learned_of_a_host_holds_after_any_rest_that_its_policy_asks_for(learned: Host, because: str) -> None:
    """C1, N8, R8: the longest pause is 5.5 s, and 8 s after the last request there are still 2 to wait."""
    at = 1000 * SECOND
    host = msgspec.structs.replace(learned, boot=1, sent_at=at, spent=1_000_000, written_at=at)

    decision = admit(host, Now(Instant(at + 8 * SECOND), 1_800_000_000 * SECOND, 1), Policy())[1]

    assert decision == Wait(2.0, because)


@given(st.integers(0, 10**7), st.integers(0, 10**12), rates)
@ANY
def test_what_is_spent_flows_back_and_the_moment_it_has_is_the_one_foretold(
    spent: int, elapsed: int, qps: float
) -> None:
    """Q1: GCRA in whole numbers; rounding never lets anybody go too soon."""
    policy = FREE.replace(qps=qps)

    left = spent_after(spent, elapsed, policy)
    ready = rate_ready(0, spent, (), policy)

    assert left == max(0, spent - elapsed * 1000 * 1_000_000 // policy.interval_ns)
    assert spent_after(spent, ready, policy) == 0
    assert spent == 0 or spent_after(spent, ready - 1, policy) > 0 or ready * qps < 2


# The pause


@ANY
@given(st.floats(0, 30), st.floats(0, 30), st.integers(0, 65_535), st.integers(0, 65_535))
def test_a_pause_lies_between_its_bounds_and_follows_its_dice(low: float, span: float, one: int, other: int) -> None:
    """P1: uniform, by the roll that is kept in the record."""
    policy = Policy(pause_min=low, pause_max=low + span)

    assert low * SECOND <= pause(0, policy) <= low * SECOND + 1
    assert abs(pause(65_535, policy) - (low + span) * SECOND) <= 2
    assert (pause(one, policy) <= pause(other, policy)) or one > other


def test_every_process_agrees_on_the_pause_because_its_roll_is_kept() -> None:
    """P1, design, section 4"""
    play = Play([FREE.replace(pause_min=1.5, pause_max=5.5)])
    play.depart(Ask(roll=0.5))

    waits = {play.ask(Ask(roll=roll)) for roll in (0.0, 0.3, 0.99)}

    assert waits == {Wait((1_500_000 + 4_000_000 * 128 // 255) / SECOND, "pause")}


# The adapted delay


def test_a_429_doubles_the_delay_up_to_ten_seconds() -> None:
    """N8: from 200 ms where there is no delay at all."""
    delay, policy, seen = 0, FREE.replace(adapt=True), []
    for _ in range(8):
        delay = raised(delay, None, policy)
        seen.append(delay / SECOND)

    assert seen == [0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10.0, 10.0]


def test_doubling_starts_from_what_was_configured() -> None:
    """N8"""
    assert raised(0, None, FREE.replace(adapt=True, delay=3.0)) == 6 * SECOND
    assert raised(0, None, FREE.replace(adapt=True, qps=0.5)) == 4 * SECOND
    assert raised(0, None, FREE.replace(adapt=True, delay=60.0)) == 60 * SECOND


@ANY
@given(st.integers(0, DAY), st.none() | st.integers(-SECOND, 10**15), st.floats(0, 100))
def test_a_429_never_makes_the_delay_shorter(delay: int, told: int | None, configured: float) -> None:
    """U7: Retry-After 0 or a date in the past never makes us faster."""
    policy = FREE.replace(adapt=True, delay=configured)

    after = raised(delay, told, policy)

    assert after >= max(delay, policy.delay_us)
    assert after <= max(delay, policy.delay_us, policy.max_delay_us)


@ANY
@given(long_lists(st.sampled_from((True, True, True, True, False)), 100), st.sampled_from((0.0, 0.5, 3.0)))
def test_a_raised_delay_sinks_by_a_tenth_after_every_ten_successes(answered: list[bool], configured: float) -> None:
    """N8: never below what was configured, and not by anything but successes."""
    play = Play([FREE.replace(adapt=True, delay=configured)])
    expected, calm = 0.0, 0

    for is_good in answered:
        play.wait(DAY)
        play.answer(play.depart(), GOOD if is_good else SLOWED)
        if not is_good:
            expected, calm = max(0.2, min(10.0, 2 * max(expected, configured))), 0
        elif expected:
            calm += 1
            if calm == 10:
                expected, calm = expected * 0.9, 0
                expected = expected if expected > max(configured, 0.001) else 0.0
        assert play.host is not None
        assert play.host.delay / SECOND == pytest.approx(expected, abs=1e-4)
        gap = play.ask()
        if expected > configured:
            assert isinstance(gap, Wait)
            assert gap.seconds == pytest.approx(expected, abs=1e-4)


def test_one_episode_is_one_step_however_many_answers_say_so() -> None:
    """N8, design, section 4"""
    play = Play([FREE.replace(adapt=True)])
    single_flight = [play.depart() for _ in range(20)]
    play.wait(SECOND)

    for flight in single_flight:
        play.answer(flight, SLOWED)
        play.wait(SECOND)

    assert play.host is not None
    assert play.host.delay == SECOND // 5


def test_the_delay_becomes_what_the_server_said() -> None:
    """N8, C2: it rests that long, and from then on is asked no more often than that, up to max_delay."""
    play = Play([FREE.replace(adapt=True)])
    play.answer(play.depart(), Outcome(Kind.SLOWED, 429, retry_after=7.0))

    assert play.ask() == Wait(7.0, "rest")
    play.depart()
    assert play.ask() == Wait(7.0, "adapted")


@pytest.mark.parametrize("outcome", [GOOD, Outcome(Kind.FAILED, 500), Outcome(Kind.BLOCKED, 403)])
def test_other_answers_leave_the_delay_as_it_is(outcome: Outcome) -> None:
    """N8"""
    play = Play([FREE.replace(adapt=True)])

    play.answer(play.depart(), outcome)

    assert play.host is not None
    assert play.host.delay == 0


def test_nothing_adapts_when_that_is_switched_off() -> None:
    """N8, Q12"""
    play = Play([FREE])

    play.answer(play.depart(), Outcome(Kind.SLOWED, 429, latency=30.0))

    assert isinstance(play.ask(), Go)


@pytest.mark.parametrize(
    "outcome",
    [
        Outcome(Kind.SLOWED, 429, retry_after=1e12),
        Outcome(Kind.FAILED, 503, retry_after=1e12),
        Outcome(Kind.ANSWERED, 200, quota=1e12),
    ],
)
def test_no_rest_is_believed_beyond_max_retry_after(outcome: Outcome) -> None:
    """C2, F50: not even that of a RateLimit field on a good answer."""
    play = Play([FREE.replace(max_retry_after=3600.0)])

    play.answer(play.depart(), outcome)

    assert play.ask() == No(Reason.CIRCUIT_OPEN, 3600.0)


def test_a_rest_is_not_cut_short_by_a_later_and_shorter_one() -> None:
    """C1, C2: of two answers in flight, the one that asks for more is obeyed."""
    play = Play([FREE])
    single_flight = [play.depart(), play.depart()]

    for flight, seconds in zip(single_flight, (50.0, 5.0), strict=True):
        play.answer(flight, Outcome(Kind.SLOWED, 429, retry_after=seconds))

    assert play.ask() == Wait(50.0, "rest")


@ANY
@given(histories(reports, changes, size=30), policies, outcomes)
def test_no_bad_answer_lets_the_next_request_go_sooner(history: list[Event], policy: Policy, outcome: Outcome) -> None:
    """U7: whatever it says, and whenever it comes."""
    free = {"concurrency": None, "breaker": False, "max_requests_per_day": 0, "max_pages_per_day": 0}
    play = Play([policy.replace(**free, max_crawl_delay=86_400.0)])
    play.run([*history, Change(Resume())])
    if play.host is not None and play.host.crawl_delay > DAY:
        return
    flight = play.depart()
    before = play.ask(Ask(page=False))
    if isinstance(before, Go):
        return

    play.answer(flight, outcome)

    after = play.ask(Ask(page=False))
    is_calm = outcome.kind in (Kind.ANSWERED, Kind.NOT_MODIFIED) and policy.adapt
    assert is_calm or (waiting(after) or 0.0) >= (waiting(before) or 0.0)


# The response time


@ANY
@given(st.integers(0, 100 * SECOND), st.integers(0, 1000), st.floats(0, 1e308), st.floats(0.01, 100))
def test_the_delay_of_a_slow_site_is_continuous_and_bounded(
    latency: int, step: int, factor: float, target: float
) -> None:
    """Q12: factor x (response time - target), up to max_delay."""
    policy = FREE.replace(adapt=True, latency_factor=factor, target_latency=target)

    one, other = latency_delay(latency, policy), latency_delay(latency + step, policy)

    assert 0 <= one <= other <= policy.max_delay_us
    assert other - one <= min(factor, 1e12) * step + 2
    assert latency > target * SECOND or one == 0


@ANY
@given(st.lists(st.integers(0, 30 * SECOND), min_size=1, max_size=50))
def test_the_smoothed_response_time_lies_among_those_seen(samples: list[int]) -> None:
    """Q12"""
    latency = 0
    for sample in samples:
        latency = smoothed(latency, sample)

        assert 0 <= latency < max(samples) + 1000  # in whole milliseconds, rounded up
        assert latency % 1000 == 0


@given(st.integers(0, DAY), st.floats(0, 100))
@ANY
def test_a_delay_sinks_to_nothing_and_never_rises(delay: int, configured: float) -> None:
    """N8"""
    policy = FREE.replace(adapt=True, delay=configured)

    after = sunk(delay, policy)

    assert after == 0 or policy.floor_us < after < delay
    assert after == 0 or after == delay * 9 // 10


def test_a_calendar_that_is_set_forward_brings_no_request_closer() -> None:
    """F48: pacing by the clock that never jumps."""
    play = Play([Policy(concurrency=None)])
    play.depart(Ask(roll=0.5))
    before = play.ask()

    play.happen(SetClock(DAY))

    assert play.ask() == before


def test_a_failure_by_hand_rests_and_the_record_needs_no_request_for_it() -> None:
    """Q6: record_failure with a Retry-After, before anything was asked."""
    play = Play([FREE])
    play.host = settle(None, play.now, play.policy, None, Outcome(Kind.SLOWED, 429, retry_after=5.0))

    assert play.ask() == Wait(5.0, "rest")


def test_what_robots_txt_no_longer_asks_for_is_forgotten() -> None:
    """R8"""
    play = Play([FREE])
    play.happen(Change(CrawlDelay(9.0)))
    play.depart()

    play.happen(Change(CrawlDelay(None)))

    assert isinstance(play.ask(), Go)


@pytest.mark.parametrize("before", ["token_bucket", "sliding_window"])
def test_another_strategy_opens_no_second_burst(before: Strategy) -> None:
    """L7, Q12: what was spent under the one before counts, and goes on to count"""
    after: Strategy = "sliding_window" if before == "token_bucket" else "token_bucket"
    slow = FREE.replace(qps=0.1, burst=10)
    play = Play([slow.replace(strategy=before), slow.replace(strategy=after)])
    for _ in range(10):
        play.depart()
    play.run([Settings(1)])

    assert isinstance(play.ask(), Wait)

    play.run([Pass(101 * SECOND)])
    left = 0
    while isinstance(play.ask(), Go) and left < 30:
        play.depart()
        left += 1
    assert left <= 10
