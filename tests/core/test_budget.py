"""Requests and pages a day: no history of the calendar gets more out of a day than its limit."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, date, datetime, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from curtsy.core.admission import admit
from curtsy.core.amendment import Pause, Resume, amend
from curtsy.core.budget import ALIKE, Day, joined, refunded
from curtsy.core.decision import Go, No, Wait
from curtsy.core.errors import Reason
from curtsy.core.host import Host
from curtsy.core.outcome import Kind, Outcome
from curtsy.core.policy import Policy
from curtsy.core.time import SECOND, Calendar, Instant, Now
from tests.strategies import (
    ANY,
    DAY,
    FREE,
    HOUR,
    MINUTE,
    ZONES,
    Answer,
    Ask,
    Event,
    Flight,
    Pass,
    Play,
    Reboot,
    SetClock,
    Settings,
    asks,
    clocks,
    good,
    histories,
    long_lists,
    outcomes,
    passes,
    reboots,
    settings_changes,
)

BUDGET = FREE.replace(max_requests_per_day=5, max_pages_per_day=3, concurrency=2)
PAGE = Outcome(Kind.ANSWERED, 200, page=True)
NO_PAGE = Outcome(Kind.ANSWERED, 404)
NOT_MODIFIED = Outcome(Kind.NOT_MODIFIED, 304)
UNSENT = Outcome(Kind.ABANDONED, sent=False)
CUT_OFF = Outcome(Kind.ABANDONED)

days_apart = st.builds(
    SetClock, st.sampled_from((-400 * DAY, -3 * DAY, -DAY, -25 * HOUR, -HOUR, HOUR, DAY, 2 * DAY, 400 * DAY))
)
long_passes = st.builds(Pass, st.integers(0, 3 * DAY))
spending: st.SearchStrategy[list[Event]] = long_lists(
    st.one_of(
        st.builds(Ask, page=st.booleans(), patient=st.just(False)),
        st.builds(Ask, page=st.just(True), patient=st.just(False)),
        st.builds(Answer, which=st.integers(0, 3), outcome=good | outcomes),
        passes,
        long_passes,
        days_apart,
        reboots,
    ),
    60,
)


def dates(single_flight: list[Flight], zone: ZoneInfo) -> Counter[date]:
    """How many left on each local date, by the calendar as it stood when they left."""
    return Counter(datetime.fromtimestamp(flight.second, zone).date() for flight in single_flight)


def is_counted(flight: Flight) -> bool:
    """Whether a request costs anything: it was sent, or nobody can tell; an answer 304 costs nothing (B5)."""
    outcome = flight.outcome
    return outcome is None or (outcome.sent and outcome.kind is not Kind.NOT_MODIFIED)


# Any history of the clock


def offset_of(flight: Flight) -> int:
    """How far the calendar was ahead of the true time when a request left, in seconds."""
    return flight.second - flight.left_at // SECOND


def has_jumped(one: Flight, later: Flight) -> bool:
    """Whether the calendar jumped between two requests, as far as it shows: a later date after a reboot is believed."""
    if one.boot != later.boot:
        return later.second + ALIKE < one.second
    return abs(offset_of(later) - offset_of(one)) > ALIKE


def filters(single_flight: list[Flight], limit: int, zone: ZoneInfo) -> None:
    """Check what the site saw: C19, by the true time.

    Around a jump, no 24 h that end with a request have more than the limit. A calendar day without one has no more.
    """
    counted = [flight for flight in single_flight if is_counted(flight)]
    jumps = [later.left_at for one, later in pairwise(single_flight) if has_jumped(one, later)]
    for flight in counted:
        lately = [each for each in counted if 0 <= flight.left_at - each.left_at < DAY]
        if any(0 <= flight.left_at - jump < DAY for jump in jumps):
            assert len(lately) <= limit
        if not any(0 <= flight.left_at - jump < 2 * DAY for jump in jumps):
            date = datetime.fromtimestamp(flight.second, zone).date()
            assert sum(datetime.fromtimestamp(each.second, zone).date() == date for each in lately) <= limit


@ANY
@given(spending, st.sampled_from(ZONES), st.sampled_from((1, 2, 5)), st.none() | st.integers(1, 3))
@example([*[Ask(patient=False)] * 3, SetClock(-DAY), *[Ask(patient=False)] * 3, SetClock(DAY), Ask(patient=False)],
         ZONES[0], 2, None)  # fmt: skip
@example([Ask(patient=False), SetClock(DAY), *[Ask(patient=False)] * 3, SetClock(-DAY), *[Ask(patient=False)] * 3],
         ZONES[0], 2, None)  # fmt: skip
def test_no_history_of_the_clock_opens_a_second_budget(
    history: list[Event], zone: ZoneInfo, limit: int, concurrency: int | None
) -> None:
    """B4, B6, C19: clocks set back and forth by days, reboots, crashed holders, late answers."""
    policy = BUDGET.replace(timezone=zone, max_requests_per_day=limit, max_pages_per_day=0, concurrency=concurrency)
    play = Play([policy], may_repeat=concurrency is not None)  # only a place tells a second answer from the first

    for event in history:
        if isinstance(event, Reboot) and seems_longer(play):
            continue
        play.happen(event)
        if isinstance(event, Reboot):
            play.ask()  # a clock set ahead before the first look would be the same

    filters(play.single_flight, limit, zone)


def seems_longer(play: Play) -> bool:
    """Whether the clock was set ahead since the last write.

    A machine that then reboots looks as if it had been off for as long. Nothing can tell the two apart (C19).
    """
    host = play.host
    return (
        host is not None and play.epoch - (host.written_at + host.offset) > play.at - host.written_at + ALIKE * SECOND
    )


@ANY
@given(spending, st.sampled_from(ZONES), st.sampled_from((1, 2, 5)), st.none() | st.integers(1, 3))
def test_no_history_of_the_clock_gets_more_pages_than_the_limit(
    history: list[Event], zone: ZoneInfo, limit: int, concurrency: int | None
) -> None:
    """B4, B5, C19: a page is set aside for each request that may bring one."""
    policy = BUDGET.replace(timezone=zone, max_requests_per_day=0, max_pages_per_day=limit, concurrency=concurrency)
    play = Play([policy], may_repeat=concurrency is not None)

    play.run([event for event in history if not isinstance(event, Reboot)])

    every = [
        flight for flight in play.single_flight if flight.asked.page and (not flight.outcome or flight.outcome.page)
    ]
    jumps = [later.left_at for one, later in pairwise(play.single_flight) if has_jumped(one, later)]
    for flight in every:
        if any(0 <= flight.left_at - jump < DAY for jump in jumps):
            assert sum(0 <= flight.left_at - each.left_at < DAY for each in every) <= limit


@ANY
@given(spending, st.sampled_from(ZONES), st.sampled_from((1, 2, 5)), st.booleans())
def test_whatever_the_clock_did_the_budget_opens_again_when_it_says(
    history: list[Event], zone: ZoneInfo, limit: int, is_page: bool
) -> None:
    """C19: no clock closes a day for ever. A day has up to 25 h; after a jump it takes 24 h at most."""
    limits = {"max_requests_per_day": 0 if is_page else limit, "max_pages_per_day": limit if is_page else 0}
    play = Play([BUDGET.replace(timezone=zone, concurrency=None, **limits)])
    play.run([event for event in history if not isinstance(event, Answer)])
    decision = play.ask()
    while isinstance(decision, Go):
        decision = play.ask()
    assert isinstance(decision, No)
    assert decision.retry_after is not None

    assert 0 < decision.retry_after <= (25 * 3600 if decision.day else 24 * 3600 + 2)  # whole seconds are kept
    play.wait(round(decision.retry_after * SECOND) - 1)
    early = play.ask()
    assert isinstance(early, No)
    play.wait(1)
    assert isinstance(play.ask(), Go)


def test_charges_from_before_a_jump_end_one_by_one() -> None:
    """B2, C19: the refusal names the end of the first, though a second jump counts them as one sum."""
    play = Play([FREE.replace(max_requests_per_day=3)])
    for _ in range(2):
        play.depart()
    play.happen(SetClock(-400 * DAY))
    play.wait(DAY - 3 * SECOND)
    play.depart()
    play.happen(SetClock(-400 * DAY))

    decision = play.ask()

    assert isinstance(decision, No)
    assert decision.retry_after == 3


@ANY
@given(
    histories(long_passes, settings_changes, size=60),
    st.lists(st.sampled_from(ZONES), min_size=2, max_size=4, unique=True),
)
def test_zones_that_come_and_go_open_no_second_budget(history: list[Event], zones: list[ZoneInfo]) -> None:
    """B6: a setting that was changed, or processes in several zones that share a store."""
    play = Play([BUDGET.replace(timezone=zone, max_pages_per_day=0) for zone in zones])

    play.run(history)

    counted = [flight for flight in play.single_flight if is_counted(flight)]
    for one, other in pairwise(counted):
        if one.policy is not other.policy:
            assert sum(0 <= other.left_at - each.left_at < 22 * HOUR for each in counted) <= 2 * 5
    assert play.host is None or len(play.host.days) <= 2


@ANY
@given(asks, st.lists(clocks, max_size=5))
def test_a_day_that_was_spent_stays_so_when_the_clock_comes_back(ask: Ask, jumps: list[SetClock]) -> None:
    """B6, C10: a clock set back never opens a second budget for a day already used."""
    play = Play([BUDGET.replace(max_requests_per_day=1)])
    play.ask(ask)
    there = play.epoch

    for jump in jumps:
        play.happen(jump)
        play.ask(ask)
    play.epoch = there

    decision = play.ask(ask)
    assert isinstance(decision, No)
    assert decision.reason is Reason.DOMAIN_BUDGET_EXCEEDED
    assert len(play.single_flight) == 1


def test_processes_in_two_zones_have_one_budget_between_them() -> None:
    """B6: each rollover of the one would be a new day for the other."""
    here, there = (BUDGET.replace(timezone=ZoneInfo(name), max_pages_per_day=0) for name in ("UTC", "Asia/Tokyo"))
    play = Play([here, there])
    for _ in range(24 * 6):
        for which in (1, 0):
            play.happen(Settings(which))
            play.ask()
        play.wait(HOUR // 2)

    assert len(play.single_flight) == 4 * 5, "in three days, which touch four dates"


@pytest.mark.parametrize("steps", [1, -1], ids=["fast", "slow"])
def test_a_clock_that_runs_wrong_is_not_believed(steps: int) -> None:
    """C19: a step of half a minute between any two requests adds up to a jump within the day."""
    play = Play([BUDGET.replace(max_requests_per_day=100, max_pages_per_day=0, qps=None)])
    for _ in range(24 * 60):
        play.ask()
        play.wait(MINUTE * 2)
        play.happen(SetClock(steps * 50 * SECOND))

    times = [flight.left_at for flight in play.single_flight]
    assert all(sum(0 <= one - other < DAY for other in times) <= 100 for one in times)
    assert len(times) >= 200


# What counts


@pytest.mark.parametrize(
    ("outcome", "requests", "pages"),
    [
        (PAGE, 1, 1),
        (NO_PAGE, 1, 0),
        (NOT_MODIFIED, 0, 0),
        (UNSENT, 0, 0),
        (CUT_OFF, 1, 0),
        (Outcome(Kind.FAILED, 500), 1, 0),
        (Outcome(Kind.FAILED, sent=False), 0, 0),
        (Outcome(Kind.SLOWED, 429), 1, 0),
        (Outcome(Kind.BLOCKED, 403), 1, 0),
        (None, 1, 1),
    ],
)
def test_what_a_request_costs_depends_on_what_became_of_it(outcome: Outcome | None, requests: int, pages: int) -> None:
    """B5, C4, B12: request recorded, page recorded (both counters); 304 and unsent are given back."""
    play = Play([BUDGET])
    flight = play.depart()

    if outcome is not None:
        play.answer(flight, outcome)

    assert play.host is not None
    day = play.host.days[-1]
    assert (day.requests, day.pages) == (requests, pages)


def test_robots_txt_counts_as_a_request_and_never_as_a_page() -> None:
    """Design, section 2"""
    play = Play([BUDGET])

    play.answer(play.depart(Ask(page=False)), NO_PAGE)

    assert play.host is not None
    assert (play.host.days[-1].requests, play.host.days[-1].pages) == (1, 0)


def test_a_refund_that_comes_after_midnight_goes_to_the_day_that_was_charged() -> None:
    """B5, B6"""
    play = Play([BUDGET.replace(timeout=86_400.0)])
    flight = play.depart()
    play.wait(DAY * 3 // 4)
    play.depart()

    play.answer(flight, UNSENT)

    assert play.host is not None
    assert [day.requests for day in play.host.days] == [0, 1]


# The cases of every test suite of it


def test_a_budget_survives_a_reboot() -> None:
    """B7"""
    play = Play([FREE.replace(max_requests_per_day=1)])
    play.depart()

    play.at, play.boot = SECOND, 2

    assert isinstance(play.ask(), No)


def test_a_limit_that_was_lowered_holds_at_once() -> None:
    """Design, rule 3"""
    play = Play([BUDGET, BUDGET.replace(max_requests_per_day=2)])
    for _ in range(3):
        play.answer(play.depart(), NO_PAGE)

    play.happen(Settings(1))

    assert isinstance(play.ask(), No)


# The calendar


@pytest.mark.parametrize(
    ("zone", "day", "hours"),
    [
        ("Europe/Berlin", date(2026, 3, 29), 23),
        ("Europe/Berlin", date(2026, 10, 25), 25),
        ("Europe/Berlin", date(2026, 7, 1), 24),
        ("America/Havana", date(2026, 3, 8), 23),  # 0:00 does not exist: the day begins at 1:00
        ("America/Havana", date(2026, 11, 1), 25),  # 0:00 comes twice: it begins at the first
        ("Asia/Beirut", date(2026, 3, 29), 23),  # 0:00 does not exist
        ("Asia/Beirut", date(2026, 10, 24), 25),  # 24:00 is 23:00 again
        ("Africa/Cairo", date(2026, 10, 29), 25),
        ("Pacific/Apia", date(2011, 12, 29), 24),  # the 30th was left out
        ("America/St_Johns", date(2010, 11, 6), 24),  # clocks went back at 0:01, so 23:01 to 0:01 came again …
        ("America/St_Johns", date(2010, 11, 7), 25),  # … and belongs to the day that had begun
    ],
)
def test_days_are_as_long_as_they_are(zone: str, day: date, hours: int) -> None:
    """B6, design, section 4: a daylight-saving change neither skips nor doubles a day."""
    tz = ZoneInfo(zone)
    noon = int(datetime(day.year, day.month, day.day, 12, tzinfo=tz).timestamp())

    starts, ends = Calendar(tz).day_of(noon)

    assert (ends - starts) / 3600 == hours
    assert Calendar(tz).date_of(starts) == day.isoformat()
    assert Calendar(tz).date_of(starts - 1) != day.isoformat() or zone == "America/St_Johns"


@pytest.mark.parametrize("zone", [*map(str, ZONES), "Africa/Cairo", "America/St_Johns", "Pacific/Apia"])
@pytest.mark.parametrize("year", [2010, 2011, 2026])
def test_days_follow_each_other_without_gap_or_overlap(zone: str, year: int) -> None:
    """B6: a moment belongs to one day; asked in any order, the answer is the same."""
    tz = ZoneInfo(zone)
    forth, back = Calendar(tz), Calendar(tz)
    first = int(datetime(year, 1, 1, tzinfo=UTC).timestamp())
    seconds = range(first, first + 366 * 86_400, 1801)

    found = [forth.day_of(second) for second in seconds]
    again = [back.day_of(second) for second in reversed(seconds)]

    assert found == again[::-1]
    assert all(starts <= second < ends for second, (starts, ends) in zip(seconds, found, strict=True))
    assert all(one[1] == other[0] for one, other in pairwise(dict.fromkeys(found)))
    assert len(set(found)) >= 365


def test_a_budget_is_not_doubled_in_the_hour_that_comes_again() -> None:
    """B6: a zone that sets its clocks back over midnight has an hour of the old date after the new day began."""
    tz = ZoneInfo("America/St_Johns")
    last_evening = datetime(2010, 11, 6, 22, 0, tzinfo=tz)
    play = Play([FREE.replace(max_requests_per_day=3, timezone=tz)])
    play.epoch = int(last_evening.timestamp()) * SECOND

    for _ in range(4 * 360):
        play.ask()
        play.wait(10 * SECOND)

    assert len(play.single_flight) == 6
    assert datetime.fromtimestamp(play.epoch / SECOND, tz) == last_evening + timedelta(hours=3)


def test_a_local_zone_is_the_machines_own() -> None:
    """B6: default: local"""
    starts, ends = Calendar(None).day_of(1_800_000_000)

    assert datetime.fromtimestamp(starts).time().isoformat() == "00:00:00"
    assert datetime.fromtimestamp(ends).date() - datetime.fromtimestamp(starts).date() == timedelta(days=1)


# What comes before it


def spent(policy: Policy) -> Play:
    """A host whose requests of the day are spent."""
    play = Play([policy])
    for _ in range(policy.max_requests_per_day):
        play.answer(play.depart(Ask(page=False)), NO_PAGE)
    return play


def test_a_host_that_is_paused_and_has_its_budget_spent_is_refused_for_the_pause() -> None:
    """B13, P3: who pauses a host by hand is not told of its budget"""
    play = spent(BUDGET)
    play.host = amend(play.host, play.now, BUDGET, Pause(60.0))

    paused = play.ask()
    play.host = amend(play.host, play.now, BUDGET, Resume())
    resumed = play.ask()

    assert paused == No(Reason.PAUSED, 60.0)
    assert isinstance(resumed, No)
    assert resumed.reason is Reason.DOMAIN_BUDGET_EXCEEDED


# What is not wanted


BERLIN = ZoneInfo("Europe/Berlin")


def story(begins: datetime) -> list[tuple[object, ...]]:
    """What a host that is asked as often as it may be decides in some twenty minutes: waits, a breaker, the budget."""
    policy = Policy(timezone=BERLIN, max_requests_per_day=40, max_pages_per_day=30, breaker_cooldown=300.0)
    play = Play([policy])
    play.epoch = int(begins.timestamp()) * SECOND
    told: list[tuple[object, ...]] = []
    for number in range(150):
        decision = play.ask()
        match decision:
            case Go(_, requests_left, pages_left):
                told.append(("go", requests_left, pages_left))
                play.wait(SECOND)
                play.answer(play.single_flight[-1], Outcome(Kind.FAILED, 500) if 20 <= number < 30 else PAGE)
            case Wait(seconds, because):
                told.append(("wait", seconds, because))
                play.wait(round(seconds * SECOND))
            case No(Reason.DOMAIN_BUDGET_EXCEEDED, _, limit):  # until midnight, wherever that is
                told.append(("no budget", limit))
                break
            case No(reason, seconds):
                told.append(("no", reason, seconds))
                play.wait(round((seconds or 0) * SECOND))
    return told


def test_a_host_is_asked_alike_at_night_and_at_noon_on_weekdays_and_on_holidays() -> None:
    """B14: no slots by time of day, no night or holiday mode"""
    weekday, sunday = datetime(2026, 11, 18, tzinfo=BERLIN), datetime(2026, 11, 15, tzinfo=BERLIN)
    christmas, new_year = datetime(2026, 12, 25, tzinfo=BERLIN), datetime(2027, 1, 1, tzinfo=BERLIN)
    noon = story(weekday.replace(hour=12))

    assert {what for what, *_ in noon} == {"go", "wait", "no", "no budget"}
    for day in (weekday, sunday, christmas, new_year):
        for hour in range(23):
            assert story(day.replace(hour=hour)) == noon, f"{day:%d %B}, {hour} o'clock"


# The record


def test_a_record_has_two_days_at_most_however_long_a_host_is_known() -> None:
    """Design, section 3: a record stays small."""
    play = Play([BUDGET.replace(max_requests_per_day=9)])
    for _ in range(40):
        play.depart()
        play.wait(7 * HOUR)

    assert play.host is not None
    assert len(play.host.days) == 2
    assert max(day.requests for day in play.host.days) <= 4


def test_a_clock_that_ran_ahead_and_was_put_right_costs_no_more_than_a_day() -> None:
    """B6, C19: a machine that woke in the wrong year."""
    play = Play([FREE.replace(max_requests_per_day=3)])
    play.happen(SetClock(400 * DAY))
    play.depart()
    play.happen(SetClock(-400 * DAY))

    counts = []
    for _ in range(30):
        counts.append(sum(isinstance(play.ask(), Go) for _ in range(4)))
        play.wait(DAY)

    assert counts == [2, *[3] * 29]


@pytest.mark.parametrize("years", [-1, 1])
def test_a_reboot_with_a_wrong_date_closes_nothing_for_ever(years: int) -> None:
    """C19: what was spent runs out by the clock of the new run, though nothing is admitted meanwhile."""
    play = Play([FREE.replace(max_requests_per_day=2)])
    play.happen(SetClock(years * 365 * DAY))
    assert [isinstance(play.ask(), Go) for _ in range(3)] == [True, True, False]
    play.happen(Reboot(60 * SECOND))
    play.happen(SetClock(-365 * DAY))

    counts = []
    for _ in range(60):
        counts.append(sum(isinstance(play.ask(), Go) for _ in range(3)))
        play.wait(HOUR)

    assert counts[:24] == [0] * 24
    assert sum(counts[24:48]) == 2


def test_what_is_given_back_after_a_jump_stays_charged() -> None:
    """C19: too much is safe, too little is not."""
    play = Play([BUDGET])
    flight = play.depart()
    play.happen(SetClock(-DAY))
    play.depart()
    play.happen(SetClock(DAY))
    play.depart()

    play.answer(flight, UNSENT)

    assert play.host is not None
    assert [day.requests for day in play.host.days] == [2, 1]


def test_only_the_day_that_was_charged_gets_a_charge_back() -> None:
    """Too much is safe, too little is not."""
    day = Day(200, 0, 150, 7, 3)

    assert refunded(day, Day(100, 0), 1, 1) is day
    assert refunded(day, Day(200, 0), 1, 0) == Day(200, 0, 150, 6, 3)


@ANY
@given(spending, spending, spending, st.sampled_from(ZONES))
def test_days_that_went_two_ways_are_joined_with_all_that_was_spent(
    before: list[Event], theirs: list[Event], ours: list[Event], zone: ZoneInfo
) -> None:
    """B8, F55: what was counted while the store was out is not lost, whatever the calendars did meanwhile."""
    store, alone = Play([BUDGET.replace(timezone=zone)]), Play([BUDGET.replace(timezone=zone)])
    store.run(before)
    alone.host, alone.epoch, alone.at, alone.boot = store.host, store.epoch, store.at, store.boot
    base = store.host.days if store.host else ()
    for play, events in ((store, theirs), (alone, ours)):
        play.single_flight = []
        play.run([event for event in events if not isinstance(event, Answer | Reboot)])
    there = store.host.days if store.host else ()
    here = alone.host.days if alone.host else ()

    days = joined(there, here, base)

    assert len(days) <= 2
    assert len({day.ends for day in days}) == len(days)
    known = {day.ends: day.requests for day in base}
    added = sum(max(0, day.requests - known.get(day.ends, 0)) for day in here)
    assert sum(day.requests for day in days) == sum(day.requests for day in there) + added
    if added:
        assert days[-1].spent_at == max(day.spent_at for day in (*there, *here))


@pytest.mark.parametrize(
    ("ours", "together"),
    [
        (Day(100, 0, 9, 7, 5), Day(100, 0, 9, 8, 6)),
        (Day(100, 0, 7, 5, 4), Day(100, 0, 8, 6, 5)),
        (Day(100, 0, 9, 4, 2), Day(100, 0, 8, 6, 4)),
    ],
    ids=["requests and pages", "pages alone", "given back"],
)
def test_pages_are_joined_as_requests_are(ours: Day, together: Day) -> None:
    """B8: and what was given back on one side takes nothing from the other"""
    base, there = Day(100, 0, 1, 5, 3), Day(100, 0, 8, 6, 4)

    assert joined((there,), (ours,), (base,)) == (together,)


def test_what_is_left_after_a_jump_is_of_the_last_24_hours() -> None:
    """C19: what was spent the day before counts too"""
    noon = 1_800_057_600 + 12 * 3600
    days = Day(noon - 12 * 3600, noon, -60_000, 40, 40), Day(noon + 12 * 3600, noon, 0, 3, 2)
    host = Host(boot=1, written_at=1, earlier=days[0], day=days[1])
    policy = Policy(timezone=ZoneInfo("UTC"), max_requests_per_day=100, max_pages_per_day=50)

    now, before = (admit(host, Now(Instant(10**6), second * SECOND, 1), policy)[1] for second in (noon, noon - 86_400))

    assert isinstance(now, Go)
    assert isinstance(before, Go)
    assert (now.requests_left, now.pages_left) == (96, 47)
    assert (before.requests_left, before.pages_left) == (56, 7)
