"""A host's record: its instants on any clock, how long it must be kept, and how two of them become one."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from curtsy.core.admission import admit
from curtsy.core.amendment import CrawlDelay, Override, Pause, Release, Resume, Spend, Trip, amend
from curtsy.core.breaker import State
from curtsy.core.decision import Go, No, Wait
from curtsy.core.errors import Reason
from curtsy.core.host import Extra, Host, Place, fresh, in_time
from curtsy.core.outcome import Kind, Outcome
from curtsy.core.policy import Policy
from curtsy.core.settlement import settle
from curtsy.core.time import SECOND, Instant, Now
from tests.strategies import (
    ANY,
    DAY,
    FREE,
    HOUR,
    MINUTE,
    START,
    Ask,
    Change,
    Event,
    Play,
    Reboot,
    SetClock,
    changes,
    everything,
    histories,
    policies,
    reboots,
    reports,
    waiting,
)

WEEK = 7 * DAY
GOOD = Outcome(Kind.ANSWERED, 200, page=True)
BLOCKED = Outcome(Kind.BLOCKED, 403)
PAST = ("sent_at", "told_at", "backed_off_at", "tripped_at", "closed_at", "window_at")
"""Instants that no rule puts ahead of the present."""


def known(play: Play) -> Host:
    assert play.host is not None
    return play.host


@ANY
@given(histories(reports), st.sampled_from(Kind), st.integers(1, 3))
def test_a_body_that_is_read_later_only_keeps_the_slot(history: list[Event], kind: Kind, concurrency: int) -> None:
    """Adapters: settled with the head of the response; the slot returns by a release, once"""
    policy = Policy(concurrency=concurrency)
    play = Play([policy])
    play.run(history)
    host, decision = admit(play.host, play.now, policy, page=True)
    assume(isinstance(decision, Go))
    assert isinstance(decision, Go)
    outcome = Outcome(kind, 200, page=True)

    whole = settle(host, play.now, policy, decision.lease, outcome)
    kept = settle(host, play.now, policy, decision.lease, msgspec.structs.replace(outcome, keeps_slot=True))
    released = amend(kept, play.now, policy, Release(decision.lease))

    assert len(kept.places) == len(whole.places) + 1
    assert released == whole
    assert amend(released, play.now, policy, Release(decision.lease)) is released


# In time


@ANY
@given(everything, policies, st.integers(0, 3 * DAY), st.integers(-400 * DAY, 400 * DAY), st.booleans())
def test_no_instant_lies_ahead_of_now_whatever_the_clocks_did(
    history: list[Event], policy: Policy, back: int, jump: int, is_reboot: bool
) -> None:
    """Design, section 3: what comes from a clock that ran backwards is cut and written back."""
    play = Play([policy])
    play.run(history)
    assume(play.host is not None)
    before = in_time(known(play), play.now)
    boot = play.boot + is_reboot
    now = Now(Instant(max(1, play.at - back)), max(DAY, play.epoch + jump), boot)

    after = in_time(before, now)

    assert after.boot == boot
    assert after.written_at <= now.at
    assert all(getattr(after, name) <= now.at for name in PAST)
    assert all(place.left_at <= now.at for place in after.places)
    # Never: stays never. What was ahead is not further ahead than it was.
    for name in (*PAST, "retry_after_until"):
        assert bool(getattr(after, name)) == bool(getattr(before, name))
    if before.retry_after_until:
        assert (
            after.retry_after_until - now.at <= max(0, before.retry_after_until - before.written_at) or jump + back < 0
        )
    assert (after.paused_until < 0) == (before.paused_until < 0)
    for name in ("serial", "delay", "cooldown", "spent", "roll", "failures", "requests", "pages", "trips"):
        assert getattr(after, name) == getattr(before, name)
    for one, other in zip(before.days, after.days, strict=True):
        assert (one.ends, one.requests, one.pages) == (other.ends, other.requests, other.pages)
        assert other.spent_at <= now.at // SECOND + 1
    assert in_time(after, now) is after


@ANY
@given(histories(reports, changes, size=30), policies, st.integers(0, 3 * DAY))
def test_a_reboot_changes_no_decision_but_by_the_time_that_passed(
    history: list[Event], policy: Policy, down: int
) -> None:
    """Design, rule 1: instants are moved over by way of the epoch."""
    rebooted, running = Play([policy]), Play([policy])
    for play in (rebooted, running):
        play.run(history)

    rebooted.happen(Reboot(down))
    running.wait(down)

    one, other = rebooted.ask(Ask(page=False)), running.ask(Ask(page=False))
    # To the microsecond: an instant that would become 0, which means never, becomes 1.
    assert waiting(one) == pytest.approx(waiting(other), abs=2e-6)
    assert type(one) is type(other) or (waiting(other) or 0.0) <= 1e-6


def test_a_record_in_time_is_handed_on_as_it_is() -> None:
    """Design, section 2: a step that changes nothing returns the very record that it was given."""
    play = Play([FREE.replace(qps=1.0)])
    play.depart()

    host, decision = admit(play.host, play.now, play.policy)

    assert isinstance(decision, Wait)
    assert host is play.host


def test_a_clock_that_ran_backwards_does_not_stall_the_host() -> None:
    """Design, section 4: wall-clock limiters stall for an hour after a clock step."""
    play = Play([FREE.replace(qps=0.5)])
    play.depart()
    play.wait(SECOND)
    play.happen(Change(CrawlDelay(1.0)))

    play.at -= HOUR // 4

    assert play.ask() == Wait(1.0, "rate")
    assert known(play).written_at == play.at


@pytest.mark.parametrize("step", ["admit", "settle", "amend"])
def test_every_step_writes_down_when(step: str) -> None:
    """Design, section 3: by that a clock that ran backwards is found out."""
    play = Play([FREE.replace(qps=0.5)])
    flight = play.depart()
    play.wait(SECOND)
    if step == "admit":
        play.depart()
    elif step == "settle":
        play.answer(flight, GOOD)
    else:
        play.happen(Change(CrawlDelay(1.0)))

    assert known(play).written_at == play.at
    assert known(play).offset == play.epoch - play.at


def test_a_rest_that_no_request_earned_does_not_grow_when_a_clock_runs_backwards() -> None:
    """Q6: a record may know a rest, or a pause, and no request at all."""
    play = Play([FREE])
    play.host = settle(None, play.now, FREE, None, Outcome(Kind.SLOWED, 429, retry_after=30.0))

    play.at -= HOUR // 4

    assert play.ask() == Wait(30.0, "rest")


def test_an_answer_that_counts_is_not_taken_for_a_late_one_after_a_clock_ran_backwards() -> None:
    """U6: `closed_at` is moved like the rest, or the breaker would be deaf until the clock has caught up."""
    play = Play([FREE.replace(breaker=True)])
    play.depart()
    play.wait(DAY)
    play.happen(Change(Trip()))
    play.wait(300 * SECOND)
    play.answer(play.depart(), GOOD)
    play.happen(SetClock(-30 * DAY))
    play.happen(Reboot(MINUTE))

    play.answer(play.depart(), BLOCKED)

    assert isinstance(play.ask(), No)


def test_the_state_of_a_breaker_can_be_asked_for_after_a_reboot() -> None:
    """U6"""
    play = Play([FREE.replace(breaker=True)], at=5 * DAY)
    play.happen(Change(Trip()))
    host = known(play)

    play.happen(Reboot(MINUTE))

    assert host.breaker_state(play.now) is State.OPEN


# How long it lasts


@ANY
@given(
    histories(reboots, changes, reports, st.just(Change(Resume())), size=30),
    policies,
    st.sampled_from((1 / 86_400, 0.001, 1.0, None)),
    st.integers(0, 20 * DAY),
)
def test_a_record_is_never_dropped_while_it_says_something(
    history: list[Event], policy: Policy, qps: float | None, idle: int
) -> None:
    """Design, section 4: dropped at that time, a fresh record permits nothing that the kept one would refuse."""
    policy = policy.replace(qps=qps, max_crawl_delay=86_400.0)
    play = Play([policy])
    play.run(history)
    play.happen(Change(CrawlDelay(None)))  # it is learned again before the next page, with robots.txt
    play.wait(idle)
    lasts = known(play).lasts(play.now)
    if lasts is None:
        assert known(play).paused_until
        return

    play.wait(max(0, lasts))

    kept = Play([policy], host=play.host, at=play.at, epoch=play.epoch, boot=play.boot)
    dropped = Play([policy], host=None, at=play.at, epoch=play.epoch, boot=play.boot)
    for ask in (Ask(), Ask(page=False), Ask(), Ask(page=False)):
        one, other = kept.ask(ask), dropped.ask(ask)
        if known(play).tripped_at and policy.breaker:
            return  # a week after its cooldown a breaker is taken for closed
        assert type(one) is type(other)
        for each in (kept, dropped):
            each.wait(11 * SECOND)


@ANY
@given(everything, policies, st.integers(0, 10 * DAY))
def test_time_only_ever_shortens_what_a_record_lasts(history: list[Event], policy: Policy, passed: int) -> None:
    """A store that asks again later gets the same moment, so that records do end."""
    play = Play([policy])
    play.run(history)
    assume(play.host is not None)
    host = in_time(known(play), play.now)
    before = host.lasts(play.now)
    play.wait(passed)

    after = host.lasts(play.now)

    if before is not None and before < 5 * WEEK:
        assert after is not None
        assert after == pytest.approx(before - passed, abs=2)


def test_a_host_that_was_left_alone_for_long_can_be_forgotten() -> None:
    """Design, section 4: a host is forgotten when its record says no more than a fresh one."""
    play = Play([Policy(timezone=FREE.timezone)])
    play.answer(play.depart(), GOOD)

    play.wait(4 * DAY)

    lasts = known(play).lasts(play.now)
    assert lasts is not None
    assert lasts <= 0


@pytest.mark.parametrize("what", [Pause(), Override((("qps", 0.1),))])
def test_what_a_hand_has_changed_is_kept_until_a_hand_takes_it_back(what: Pause | Override) -> None:
    """Issue 2, 3"""
    play = Play([FREE])
    play.happen(Change(what))
    play.wait(400 * DAY)

    assert known(play).lasts(play.now) is None


def test_a_pause_that_is_over_keeps_no_record() -> None:
    """A hand's change ends with its own time."""
    play = Play([FREE])
    play.happen(Change(Pause(60.0)))
    during = known(play).lasts(play.now)
    play.wait(61 * SECOND)

    assert during is None
    assert known(play).lasts(play.now) is not None


@pytest.mark.parametrize("outcome", [BLOCKED, Outcome(Kind.SLOWED, 429)])
def test_what_a_host_has_taught_us_is_kept_for_a_week(outcome: Outcome) -> None:
    """A raised delay, a breaker's history."""
    play = Play([Policy(timezone=FREE.timezone)])

    play.answer(play.depart(), outcome)

    lasts = known(play).lasts(play.now)
    assert lasts is not None
    assert WEEK <= lasts <= WEEK + HOUR


def test_a_slow_bucket_is_kept_until_it_is_full_again() -> None:
    """L1: at one request a day a burst of ten is back after ten days."""
    play = Play([FREE.replace(qps=1 / 86_400, burst=10)])
    for _ in range(10):
        play.depart()

    lasts = known(play).lasts(play.now)

    assert lasts is not None
    assert lasts >= 10 * DAY


def test_a_long_rest_and_a_long_lease_are_kept_to_their_end() -> None:
    """C2: Retry-After is believed up to 30 days, if one sets it so; a lease lasts as long as its request may."""
    patient = FREE.replace(max_retry_after=30 * 86_400.0, timeout=20 * 86_400.0, concurrency=1)
    resting, held = Play([patient]), Play([patient])
    resting.answer(resting.depart(), Outcome(Kind.FAILED, 503, retry_after=25 * 86_400.0))
    held.depart()

    assert (known(resting).lasts(resting.now) or 0) >= 25 * DAY
    assert (known(held).lasts(held.now) or 0) >= 20 * DAY


def test_a_day_is_remembered_for_two_more_than_it_can_last() -> None:
    """B6: for clocks that are set back."""
    play = Play([FREE.replace(max_requests_per_day=1)])
    play.happen(Change(Spend()))

    assert known(play).lasts(play.now) == 25 * HOUR + 2 * DAY


def test_a_record_that_the_core_did_not_write_lasts_too() -> None:
    """A store's own tests write records by hand; none of them is gone at once."""
    lasts = Host(requests=1).lasts(Now(Instant(START), START))

    assert lasts is not None
    assert lasts >= 2 * DAY


# Joined


@ANY
@given(
    histories(changes, reports, size=20),
    histories(changes, reports, size=20),
    histories(changes, reports, size=20),
    policies,
    st.booleans(),
)
def test_two_records_that_went_their_own_way_are_joined_carefully(
    before: list[Event], theirs: list[Event], ours: list[Event], policy: Policy, is_rebooted: bool
) -> None:
    """B8, F55: nothing that was spent is lost, and of everything else the more careful is kept."""
    store, alone = Play([policy]), Play([policy])
    store.run(before)
    if is_rebooted and store.host is not None:  # from here on, what was before has instants below 0
        store.happen(Reboot(HOUR))
        store.host = in_time(store.host, store.now)
    alone.boot = store.boot
    alone.host, alone.epoch, alone.at, alone.true = store.host, store.epoch, store.at, store.true
    base = store.host
    store.run(theirs)
    alone.run(ours)
    if store.host is None or alone.host is None:
        return
    later = max(store.at, alone.at)
    was = base or Host()

    host = store.host.joined(alone.host, base)

    pair = (store.host, alone.host)
    for name in ("sent_at", "retry_after_until", "backed_off_at"):
        assert getattr(host, name) == max((each for each in (getattr(one, name) for one in pair) if each), default=0)
    for name in ("delay", "failures", "crawl_delay", "latency", "failed_trials", "serial"):
        assert getattr(host, name) == max(getattr(each, name) for each in pair)
    for name in ("requests", "pages", "trips"):
        assert getattr(host, name) == sum(getattr(each, name) for each in pair) - getattr(was, name)
    open_until = [each.tripped_at + each.cooldown for each in pair if each.tripped_at]
    assert host.tripped_at + host.cooldown == max(open_until, default=0)
    assert (host.paused_until < 0) == any(each.paused_until < 0 for each in pair)
    assert len(host.days) <= 2
    assert host.spent >= max(each.spent for each in pair if each.sent_at == host.sent_at)
    live = {place.number for each in pair for place in each.places if place not in was.places}
    assert {place.number for place in host.places} >= live
    now = Now(Instant(later), START + later, store.boot)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(host), type=Host) == host
    # Whatever either of them refuses or puts off, they refuse or put off together.
    decisions = [admit(each, now, policy, page=False)[1] for each in (*pair, host)]
    if isinstance(decisions[2], Go):
        # All but what the other side knows to be over: a place or a budget that was given back, a pause that was ended.
        for decision in decisions[:2]:
            is_taken = isinstance(decision, Wait) and decision.because in ("in_flight", "trial")
            is_over = isinstance(decision, No) and decision.reason in (Reason.PAUSED, Reason.DOMAIN_BUDGET_EXCEEDED)
            assert isinstance(decision, Go) or is_taken or is_over


def test_joining_with_what_did_not_change_is_the_record_itself() -> None:
    """F55: most records were not touched in an outage."""
    play = Play([Policy(concurrency=2)])
    play.depart()
    base = known(play)
    play.answer(play.single_flight[0], GOOD)

    assert known(play).joined(base, base) == known(play)


def test_tokens_of_both_sides_are_spent() -> None:
    """F55: comes back without a burst."""
    play = Play([FREE.replace(qps=1.0, burst=3)])
    play.depart()
    base = known(play)
    sides = []
    for _ in range(2):
        side = Play([play.policy], host=base, at=play.at, epoch=play.epoch)
        side.depart()
        side.depart()
        sides.append(known(side))

    joined = sides[0].joined(sides[1], base)

    assert isinstance(admit(joined, play.now, play.policy)[1], Wait)
    assert joined.spent >= 5_000_000


def test_the_windows_of_both_sides_are_joined_with_all_their_departures() -> None:
    """Q12, F55: those of the same microsecond too."""
    policy = FREE.replace(qps=1.0, burst=4, strategy="sliding_window")
    now = Now(Instant(SECOND), START)
    one, _ = admit(None, now, policy, count=2)
    other, _ = admit(None, now, policy, count=2)
    assert one is not None
    assert other is not None

    joined = one.joined(other, None)

    assert len(joined.recent) == 4
    assert isinstance(admit(joined, now, policy)[1], Wait)


def test_a_place_that_was_given_back_in_an_outage_is_free_and_one_that_was_taken_is_not() -> None:
    """P1, F55"""
    base = Host(places=(Place(1, 5, 99), Place(2, 6, 99)))
    store = Host(places=(Place(1, 5, 99), Place(2, 6, 99), Place(3, 7, 99)))
    ours = Host(places=(Place(2, 6, 99), Place(3, 8, 98)))

    joined = store.joined(ours, base)

    assert joined.places == (Place(2, 6, 99), Place(3, 7, 99), Place(3, 8, 98))


def test_a_limit_changed_by_hand_in_an_outage_is_brought_home() -> None:
    """Issue 2, 3"""
    now = Now(Instant(SECOND), START)
    base = fresh(now)
    ours = amend(base, now, FREE, Override((("delay", 3.0),)))

    assert base.joined(ours, base).overrides == (("delay", 3.0),)
    assert ours.joined(base, base).overrides == (("delay", 3.0),)


@ANY
@given(histories(), histories(), policies)
def test_a_record_from_before_catches_up_and_what_both_have_counted_counts_once(
    before: list[Event], after: list[Event], policy: Policy
) -> None:
    """B8: a store that has gone back to an older record"""
    play = Play([policy])
    play.run(before)
    old = play.host
    play.run(after)
    assume(old is not None and play.host is not None)
    assert old is not None
    latest = known(play)

    host = old.caught_up(latest)

    assume(host is not old)
    assert (host.requests, host.pages, host.trips) == (latest.requests, latest.pages, latest.trips)
    assert host.sent_at == latest.sent_at
    assert host.spent >= latest.spent
    assert {place.number for place in host.places} >= {place.number for place in latest.places}
    for day in (each for each in latest.days if each.requests or each.pages):
        [met] = [each for each in host.days if each.ends == day.ends]
        assert met.requests >= day.requests
        assert met.pages >= day.pages
    if not isinstance(admit(latest, play.now, policy)[1], Go):
        assert not isinstance(admit(host, play.now, policy)[1], Go)


def test_one_that_is_ahead_is_left_as_it_is() -> None:
    """B8: a breaker that has closed since, a pause that was ended"""
    play = Play([Policy()])
    play.depart()
    play.answer(play.single_flight[0], GOOD)
    old = amend(known(play), play.now, play.policy, Pause())
    play.wait(10 * SECOND)
    play.depart()

    assert known(play).caught_up(old) is known(play)


def test_one_that_was_begun_without_knowing_is_caught_up() -> None:
    """B8"""
    now = Now(Instant(90 * SECOND), START)
    policy = FREE.replace(max_requests_per_day=100)
    before, begun = Host(), Host()
    for _ in range(30):
        before = admit(before, Now(Instant(SECOND), START), policy)[0] or before
    for _ in range(2):
        begun = admit(begun, now, policy)[0] or begun

    host = begun.caught_up(amend(before, now, policy, Override((("delay", 3.0),))))

    assert host.days[-1].requests == 30
    assert host.sent_at == begun.sent_at
    assert host.overrides == (("delay", 3.0),)


# Its shape


def test_new_fields_are_at_the_end_and_all_have_a_default() -> None:
    """Issue 2, 5: an older record reads as it is."""
    packed = msgspec.msgpack.encode(Host())
    older = msgspec.msgpack.encode(msgspec.msgpack.decode(packed)[:-1])

    assert msgspec.msgpack.decode(older, type=Host) == Host()
    assert (Host.__struct_fields__[-1], Extra.__struct_fields__[-1]) == ("extra", "told_at")


def test_a_record_of_a_quiet_host_is_small() -> None:
    """Design, section 3: about 64 bytes were measured for 16 fields."""
    play = Play([Policy()])
    for _ in range(20):
        play.answer(play.depart(), GOOD, 0.5)

    assert len(msgspec.msgpack.encode(play.host)) <= 128
