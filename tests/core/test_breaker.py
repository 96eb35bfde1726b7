"""Leave a failing host alone, then try it once."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from curtsy.core.amendment import Reset
from curtsy.core.breaker import State, cooldown, too_many
from curtsy.core.decision import Go, No, Wait
from curtsy.core.errors import Reason
from curtsy.core.host import Host
from curtsy.core.outcome import Kind, Outcome
from curtsy.core.policy import On429, Policy
from curtsy.core.settlement import settle
from curtsy.core.time import SECOND, Instant, Now
from tests.strategies import (
    ANY,
    DAY,
    FREE,
    HOUR,
    MINUTE,
    START,
    Answer,
    Ask,
    Change,
    Event,
    Flight,
    Play,
    Reboot,
    Report,
    SetClock,
    clocks,
    durations,
    histories,
    long_lists,
    outcomes,
    passes,
    reboots,
    reports,
    retry_afters,
)

GUARDED = FREE.replace(breaker=True, breaker_error_rate=None)
GOOD = Outcome(Kind.ANSWERED, 200)
NOT_FOUND = Outcome(Kind.ANSWERED, 404)
NOT_MODIFIED = Outcome(Kind.NOT_MODIFIED, 304)
FAILED = Outcome(Kind.FAILED, 500)
TIMEOUT = Outcome(Kind.FAILED)
BLOCKED = Outcome(Kind.BLOCKED, 403)
CANCELLED = Outcome(Kind.ABANDONED)


def slowed(retry_after: float | None = None) -> Outcome:
    return Outcome(Kind.SLOWED, 429, retry_after=retry_after)


def unavailable(retry_after: float | None = None) -> Outcome:
    return Outcome(Kind.FAILED, 503, retry_after=retry_after)


def opened(policy: Policy = GUARDED) -> Play:
    """A play whose breaker has just opened."""
    play = Play([policy])
    play.answer(play.depart(), BLOCKED)
    return play


def half_open(policy: Policy = GUARDED) -> Play:
    play = opened(policy)
    play.wait(300 * SECOND)
    return play


def where(play: Play) -> State:
    return State.CLOSED if play.host is None else play.host.breaker_state(play.now)


def known(play: Play) -> Host:
    assert play.host is not None
    return play.host


def refused(play: Play, left: float) -> No:
    """The refusal by a breaker, with what opened it."""
    return No(Reason.CIRCUIT_OPEN, left, opened_by=known(play).tripped_by)


# What opens it


@pytest.mark.parametrize(
    ("on_429", "outcome", "expected", "left"),
    [
        # C2: obeyed if it says when to come back, soon; else a block for the longer of the two.
        ("obey", slowed(), State.OPEN, 300.0),
        ("obey", slowed(0.0), State.CLOSED, None),
        ("obey", slowed(60.0), State.CLOSED, None),
        ("obey", slowed(60.1), State.OPEN, 300.0),
        ("obey", slowed(1000.0), State.OPEN, 1000.0),
        ("obey", slowed(1e12), State.OPEN, 86_400.0),
        ("obey", unavailable(5.0), State.CLOSED, None),
        ("obey", unavailable(1000.0), State.OPEN, 1000.0),
        ("obey", unavailable(), State.CLOSED, None),
        ("obey", BLOCKED, State.OPEN, 300.0),
        # Q5 to the letter: every 429 opens it.
        ("trip", slowed(), State.OPEN, 300.0),
        ("trip", slowed(1.0), State.OPEN, 300.0),
        ("trip", slowed(1000.0), State.OPEN, 1000.0),
        ("trip", unavailable(1000.0), State.CLOSED, None),
        ("trip", BLOCKED, State.OPEN, 300.0),
        # N3 and N8 to the letter: no breaker for a 429.
        ("retry", slowed(), State.CLOSED, None),
        ("retry", slowed(1000.0), State.CLOSED, None),
        ("retry", unavailable(1000.0), State.CLOSED, None),
        ("retry", BLOCKED, State.OPEN, 300.0),
    ],
)
def test_what_one_answer_does_to_it(on_429: On429, outcome: Outcome, expected: State, left: float | None) -> None:
    """C2, Q5"""
    play = Play([GUARDED.replace(on_429=on_429)])
    flight = play.depart()
    play.wait(SECOND)

    play.answer(flight, outcome)

    assert where(play) is expected
    if left is not None:
        assert play.ask() == refused(play, left)


@pytest.mark.parametrize("failure", [FAILED, TIMEOUT, unavailable()])
def test_three_failures_in_a_row_open_it(failure: Outcome) -> None:
    """Q5, U6: 5xx, timeouts and connection errors are failures."""
    play = Play([GUARDED])
    seen = []
    for _ in range(3):
        play.answer(play.depart(), failure)
        seen.append(where(play))

    assert seen == [State.CLOSED, State.CLOSED, State.OPEN]


@pytest.mark.parametrize("answer", [GOOD, NOT_FOUND, NOT_MODIFIED])
def test_an_answer_resets_the_count(answer: Outcome) -> None:
    """Q5, U6: a success resets the count; a 404 is an answer."""
    play = Play([GUARDED])

    for outcome in (FAILED, FAILED, answer, FAILED, FAILED):
        play.answer(play.depart(), outcome)

    assert where(play) is State.CLOSED


@pytest.mark.parametrize("between", [CANCELLED, unavailable(5.0), slowed(5.0)])
def test_what_says_nothing_of_its_health_neither_counts_nor_resets(between: Outcome) -> None:
    """U6, C2: an obeyed Retry-After and a cancelled request are neither failure nor success."""
    play = Play([GUARDED])

    for outcome in (FAILED, FAILED, between):
        play.answer(play.depart(), outcome)
    unmoved = where(play)
    play.answer(play.depart(), FAILED)

    assert unmoved is State.CLOSED
    assert where(play) is State.OPEN


def test_nothing_opens_it_when_it_is_switched_off() -> None:
    """Q7: CIRCUIT_BREAKER_ENABLED"""
    play = Play([FREE])

    for _ in range(10):
        play.answer(play.depart(), BLOCKED)

    assert isinstance(play.ask(), Go)


# The error rate


@ANY
@given(long_lists(st.booleans(), 60), st.sampled_from((0.3, 0.5, 1.0)), st.sampled_from((1, 5, 20)))
def test_it_opens_exactly_when_the_share_of_errors_in_the_window_is_too_large(
    failures: list[bool], rate: float, least: int
) -> None:
    """Q12: a breaker that goes by error rate, within one window."""
    policy = GUARDED.replace(
        breaker_failures=10**6, breaker_error_rate=rate, breaker_min_replies=least, breaker_window=1e6
    )
    play = Play([policy])
    replies = errors = 0

    for is_failure in failures:
        play.answer(play.depart(), FAILED if is_failure else GOOD)
        replies, errors = replies + 1, errors + is_failure
        if is_failure and replies >= least and errors >= rate * replies:
            assert where(play) is State.OPEN
            return
        assert where(play) is State.CLOSED


def test_a_window_long_past_counts_for_nothing_and_the_last_one_for_half() -> None:
    """Q12"""
    policy = GUARDED.replace(breaker_failures=100, breaker_error_rate=0.5, breaker_min_replies=10, breaker_window=60.0)
    seen = []
    for pause in (61, 121):
        play = Play([policy])
        play.answer(play.depart(), GOOD)
        for outcome in [FAILED] * 8:
            play.answer(play.depart(), outcome)
        play.wait(pause * SECOND)
        for _ in range(6):
            play.answer(play.depart(), FAILED)
            seen.append(where(play))

    assert seen == [*[State.CLOSED] * 5, State.OPEN, *[State.CLOSED] * 6]


@ANY
@given(st.integers(0, 100), st.integers(0, 100), st.floats(0.01, 1))
def test_failures_and_errors_open_it_by_plain_arithmetic(replies: int, errors: int, rate: float) -> None:
    """Q5, Q12"""
    policy = GUARDED.replace(breaker_error_rate=rate, breaker_min_replies=20, breaker_failures=3)

    assert too_many(3, 0, 0, policy)
    assert too_many(2, replies, errors, policy) == (replies >= 20 and errors >= rate * replies)
    assert not too_many(2, replies, errors, policy.replace(breaker_error_rate=None))


# While it is open


@ANY
@given(st.integers(0, 299_999_999))
def test_every_request_is_refused_until_the_cooldown_is_over_and_told_how_long(passed: int) -> None:
    """Q4: the cooldown is exact."""
    play = opened()

    play.wait(passed)

    assert play.ask() == refused(play, (300 * SECOND - passed) / SECOND)
    assert where(play) is State.OPEN
    play.wait(300 * SECOND - passed)
    assert where(play) is State.HALF_OPEN
    assert isinstance(play.ask(), Go)


@ANY
@given(long_lists(st.tuples(outcomes, durations), 20))
def test_late_answers_from_before_the_trip_count_for_nothing(late: list[tuple[Outcome, int]]) -> None:
    """Issue 2, 3: neither good nor bad ones, while it is open or half open."""
    play = Play([GUARDED.replace(timeout=86_400.0)])
    single_flight = [play.depart() for _ in late]
    play.answer(play.depart(), BLOCKED)
    tripped_at, trips = known(play).tripped_at, known(play).trips

    for flight, (outcome, passed) in zip(single_flight, late, strict=True):
        play.wait(passed)
        play.answer(flight, outcome)
        assert (known(play).tripped_at, known(play).trips) == (tripped_at, trips)


def test_late_failures_from_before_it_closed_count_for_nothing() -> None:
    """Issue 2, 3"""
    play = Play([GUARDED.replace(timeout=86_400.0)])
    late = [play.depart() for _ in range(5)]
    play.answer(play.depart(), BLOCKED)
    play.wait(300 * SECOND)
    play.answer(play.depart(), GOOD)

    for flight in late:
        play.answer(flight, FAILED)

    assert where(play) is State.CLOSED


def test_a_report_by_hand_while_it_is_open_says_nothing_new() -> None:
    """Q6"""
    play = opened()
    play.wait(SECOND)

    for outcome in (BLOCKED, GOOD, FAILED):
        play.happen(Report(outcome))

    assert play.ask() == refused(play, 299.0)


# The trial


@ANY
@given(long_lists(st.integers(0, 2 * SECOND), 40), st.none() | st.integers(1, 5))
def test_exactly_one_trial_is_let_through_however_many_ask(pauses: list[int], concurrency: int | None) -> None:
    """Q4: fifty of fifty is what others let through."""
    play = half_open(GUARDED.replace(concurrency=concurrency, timeout=10 * 86_400.0))
    before = len(play.single_flight)

    for passed in pauses:
        play.wait(passed)
        play.ask()

    trials = play.single_flight[before:]
    assert len(trials) == min(1, len(pauses))
    assert all(flight.lease.trial for flight in trials)


@ANY
@given(
    long_lists(
        st.one_of(
            st.builds(Ask, patient=st.booleans()),
            st.builds(
                Answer, which=st.integers(0, 3), outcome=st.sampled_from((BLOCKED, FAILED, CANCELLED)) | outcomes
            ),
            passes,
            clocks,
            reboots,
        ),
        60,
    ),
    st.none() | st.integers(1, 3),
)
def test_no_history_has_two_trials_on_their_way(history: list[Event], concurrency: int | None) -> None:
    """Q4: half-open's one trial is the lease itself; it is free again when its holder died, and not before."""
    play = Play([GUARDED.replace(concurrency=concurrency)])

    for event in history:
        count = len(play.single_flight)
        play.happen(event)
        for flight in play.single_flight[count:]:
            assert not (flight.lease.trial and any(_is_a_trial_on_its_way(each, flight) for each in play.single_flight))


def _is_a_trial_on_its_way(other: Flight, flight: Flight) -> bool:
    is_live = not other.answers and other.left_at <= flight.left_at < other.until and other.boot == flight.boot
    return other is not flight and other.lease.trial and is_live


@pytest.mark.parametrize("outcome", [GOOD, NOT_FOUND, NOT_MODIFIED])
def test_a_trial_that_is_answered_closes_it(outcome: Outcome) -> None:
    """Q4"""
    play = half_open()

    play.answer(play.depart(), outcome)

    assert where(play) is State.CLOSED
    assert all(isinstance(play.ask(), Go) for _ in range(5))


@pytest.mark.parametrize(
    "outcome", [FAILED, TIMEOUT, BLOCKED, slowed(), slowed(1.0), unavailable(), unavailable(1.0), unavailable(1000.0)]
)
@pytest.mark.parametrize("on_429", ["obey", "trip", "retry"])
def test_a_trial_that_fails_opens_it_again_for_twice_as_long(outcome: Outcome, on_429: On429) -> None:
    """Q4, issue 2: an escalating cooldown, even if the site says when to come back."""
    play = half_open(GUARDED.replace(on_429=on_429))

    play.answer(play.depart(), outcome)

    assert play.ask() == refused(play, max(600.0, outcome.retry_after or 0))


def test_a_trial_that_was_cancelled_leaves_the_way_to_the_next() -> None:
    """L2: nothing is lost on cancel."""
    play = half_open()

    play.answer(play.depart(), Outcome(Kind.ABANDONED, sent=False))

    decision = play.ask()
    assert isinstance(decision, Go)
    assert decision.lease.trial


def test_a_trial_whose_holder_died_leaves_the_way_when_its_lease_runs_out() -> None:
    """F53"""
    play = half_open()
    play.depart()

    assert play.ask() == Wait(35.0, "trial")
    play.wait(35 * SECOND)
    assert isinstance(play.ask(), Go)


def test_a_trial_reported_by_hand_closes_it_and_frees_the_way() -> None:
    """Q6: attempt_reset(), then record_success(), which has no lease."""
    play = half_open()
    play.depart()

    play.happen(Report(GOOD))

    assert where(play) is State.CLOSED
    assert isinstance(play.ask(), Go)


# The cooldown


@ANY
@given(st.integers(0, 60), retry_afters, st.floats(0.1, 10_000), st.floats(0.1, 100_000))
def test_the_cooldown_doubles_up_to_its_cap_and_is_at_least_what_the_site_said(
    trials: int, retry_after: float | None, least: float, most: float
) -> None:
    """Issue 2, 3; C2: max(min(cooldown x 2^trials, max_cooldown), min(retry_after, max_retry_after))"""
    policy = GUARDED.replace(breaker_cooldown=least, breaker_max_cooldown=most)

    seconds = cooldown(trials, retry_after, policy) / SECOND

    doubled = min(least * 2**trials, max(most, least))
    assert seconds == pytest.approx(max(doubled, min(retry_after or 0.0, 86_400.0)), abs=1e-6)


def test_it_stays_open_over_a_reboot_and_the_time_that_passed_counts() -> None:
    """Design, rule 1: a cooldown survives a reboot."""
    play = opened()

    play.happen(Reboot(100 * SECOND))

    assert play.ask() == refused(play, 200.0)
    assert where(play) is State.OPEN


@pytest.mark.parametrize("jump", [-400 * DAY, -DAY, HOUR, 400 * DAY])
def test_a_calendar_that_is_set_moves_no_cooldown(jump: int) -> None:
    """F48"""
    play = opened()

    play.happen(SetClock(jump))

    assert play.ask() == refused(play, 300.0)


def test_a_calendar_that_was_set_back_in_a_reboot_keeps_the_cooldown_whole() -> None:
    """Design, section 3: a value that lies ahead of any rule is cut, and written back."""
    play = opened()
    play.happen(SetClock(-400 * DAY))
    play.happen(Reboot(MINUTE))

    assert play.ask() == refused(play, 300.0)
    assert known(play).boot == 2
    play.wait(300 * SECOND)
    assert isinstance(play.ask(), Go)


# By hand


def test_it_can_be_reset_by_hand() -> None:
    """U6: manual reset ends the opening, its history and every rest."""
    play = opened(GUARDED.replace(adapt=True))
    play.wait(300 * SECOND)
    play.answer(play.depart(), slowed(5000.0))

    play.happen(Change(Reset()))

    assert where(play) is State.CLOSED
    assert isinstance(play.ask(), Go)
    play.answer(play.depart(), BLOCKED)
    assert play.ask() == refused(play, 300.0)


def test_failures_that_left_before_a_reset_count_for_nothing() -> None:
    """U6"""
    play = Play([GUARDED])
    single_flight = [play.depart() for _ in range(3)]
    play.wait(SECOND)
    play.happen(Change(Reset()))

    for flight in single_flight:
        play.answer(flight, FAILED)

    assert where(play) is State.CLOSED


@ANY
@given(histories(clocks, reboots, reports))
def test_trips_are_counted_and_state_and_decision_agree(history: list[Event]) -> None:
    """U6: state and time left can be asked for."""
    play = Play([GUARDED])

    for event in history:
        trips, was_closed = (known(play).trips if play.host else 0), where(play) is State.CLOSED
        play.happen(event)
        if play.host is None:
            continue
        if was_closed and where(play) is not State.CLOSED:
            assert known(play).trips == trips + 1
        decision = play.ask(Ask(page=False))
        is_open = isinstance(decision, No) and decision.reason is Reason.CIRCUIT_OPEN
        # A long rest that the site asked for binds whatever the breaker makes of the answer.
        told_at, until = known(play).told_at, known(play).retry_after_until
        rests = play.at < until and told_at != 0 and told_at < until - GUARDED.obey_retry_after * SECOND
        assert is_open == (where(play) is State.OPEN or rests)


def test_a_host_that_recovers_is_asked_as_often_as_before() -> None:
    """Q4: closing leaves nothing behind."""
    play = half_open(GUARDED.replace(qps=1.0))
    play.answer(play.depart(), GOOD)
    began = play.true

    for _ in range(10):
        play.answer(play.depart(), GOOD)

    assert play.true - began == 10 * SECOND


@ANY
@given(
    st.lists(st.tuples(st.sampled_from(list(Kind)), st.sampled_from([None, 5.0, 5000.0]), st.booleans()), max_size=30)
)
@example([(Kind.FAILED, 5000.0, True), (Kind.BLOCKED, None, False), (Kind.ANSWERED, 5.0, False)])
@example([(Kind.FAILED, 5000.0, True), (Kind.BLOCKED, None, False), (Kind.BLOCKED, None, False)])
def test_nothing_that_another_site_leads_to_says_anything_to_the_breaker(
    told: list[tuple[Kind, float | None, bool]],
) -> None:
    """C22: it is as if only the others had been told; a rest that was asked for binds all the same"""
    policy = Policy(breaker_error_rate=0.5)
    now, mixed, others = Now(Instant(SECOND), START), Host(), Host()
    rests = 0.0

    for kind, retry_after, foreign in told:
        outcome = Outcome(kind, 503, retry_after=retry_after, foreign=foreign)
        mixed = settle(mixed, now, policy, None, outcome)
        if not foreign:
            others = settle(others, now, policy, None, outcome)
        if kind in (Kind.FAILED, Kind.SLOWED, Kind.BLOCKED):
            rests = max(rests, retry_after or 0.0)

    names = ("tripped_at", "cooldown", "failures", "failed_trials", "trips", "replies", "errors", "closed_at")
    assert [getattr(mixed, name) for name in names] == [getattr(others, name) for name in names]
    assert mixed.retry_after_until == (now.at + round(rests * SECOND) if rests else 0)
