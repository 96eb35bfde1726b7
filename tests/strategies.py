"""Histories of a host: what may happen to its record, in any order, and a play that lets it happen.

A play has a true time, which only goes forward, and the three clocks that a store sees: `at`, which starts anew at a
reboot, the calendar's, which hands set back and forth, and the number of the boot. Whatever is asked of the core in a
play is checked on the way: a denial changes nothing, and every record can be packed.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeVar
from zoneinfo import ZoneInfo

import msgspec
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from curtsy.core.admission import admit
from curtsy.core.amendment import Amendment, CrawlDelay, Override, Pause, Reset, Resume, Spend, Trip, amend
from curtsy.core.decision import Decision, Go, Lease
from curtsy.core.errors import PolicyError
from curtsy.core.host import Host, in_time
from curtsy.core.outcome import Kind, Outcome
from curtsy.core.policy import Policy
from curtsy.core.settlement import settle
from curtsy.core.time import SECOND, Instant, Now

MINUTE, HOUR, DAY = 60 * SECOND, 3600 * SECOND, 86_400 * SECOND
START = 1_800_000_000 * SECOND
"""The calendar when a play begins: 15 January 2027, 08:00 UTC."""

TICK = 1
"""Microseconds that a float of seconds may be off by."""

Item = TypeVar("Item")

_more = os.environ.get("CURTSY_EXAMPLES")
ANY = settings(
    max_examples=int(_more or 80),
    derandomize=_more is None,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
"""The same examples in every run; with `CURTSY_EXAMPLES=5000` that many new ones."""

ZONES = tuple(map(ZoneInfo, ("UTC", "Europe/Berlin", "America/Havana", "Asia/Beirut", "Pacific/Kiritimati")))

FREE = Policy(
    qps=None, pause_min=0, pause_max=0, concurrency=None, adapt=False, breaker=False,
    max_requests_per_day=0, max_pages_per_day=0, timezone=ZONES[0],
)  # fmt: skip
"""No limit of any kind, to put one on."""


# What may happen


@dataclass(frozen=True)
class Ask:
    """Somebody asks to be let through; if told to wait he does, exactly as long, and asks once more."""

    roll: float = 0.0
    page: bool = True
    count: int = 1
    patient: bool = True


@dataclass(frozen=True)
class Answer:
    """An answer comes to one of the requests that left, perhaps for the second time, perhaps long after its lease."""

    which: int
    outcome: Outcome
    sent: float = 0.0
    """When between its admission and now it was really written, from 0 to 1."""


@dataclass(frozen=True)
class Report:
    """Somebody reports how a request went that we know nothing of."""

    outcome: Outcome


@dataclass(frozen=True)
class Pass:
    """Time passes."""

    microseconds: int


@dataclass(frozen=True)
class SetClock:
    """The calendar is set forward, or back."""

    microseconds: int


@dataclass(frozen=True)
class Reboot:
    """The machine is down for so long, and all holders are dead."""

    microseconds: int


@dataclass(frozen=True)
class Change:
    """A hand, or robots.txt."""

    what: Amendment


@dataclass(frozen=True)
class Settings:
    """Another policy holds from now on."""

    which: int


Event = Ask | Answer | Report | Pass | SetClock | Reboot | Change | Settings


@dataclass
class Flight:
    """A request that was let through."""

    lease: Lease
    policy: Policy
    asked: Ask
    left_at: int
    """True time."""

    sent_at: int
    """True time, as far as the record was told."""

    second: int
    """By the calendar."""

    until: int
    """True time at which its place is free."""

    boot: int
    """A holder does not survive a reboot."""

    answers: int = 0
    outcome: Outcome | None = None
    """The first answer."""


@dataclass
class Play:
    """One host, its record, and what became of it."""

    policies: Sequence[Policy]
    true: int = 0
    at: int = 1000 * SECOND
    epoch: int = START
    boot: int = 1
    host: Host | None = None
    may_repeat: bool = True
    """Whether an answer may come twice."""

    policy: Policy = field(init=False)
    single_flight: list[Flight] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.policy = self.policies[0]

    @property
    def now(self) -> Now:
        return Now(Instant(self.at), self.epoch, self.boot)

    def run(self, history: Sequence[Event]) -> list[Flight]:
        for event in history:
            self.happen(event)
        return self.single_flight

    def happen(self, event: Event) -> None:
        match event:
            case Ask():
                decision = self.ask(event)
                if event.patient and not isinstance(decision, Go) and (seconds := waiting(decision)) is not None:
                    self.wait(round(seconds * SECOND))
                    self.ask(event)
            case Answer(which, outcome, sent):
                single_flight = [flight for flight in self.single_flight if self.may_repeat or not flight.answers]
                if single_flight:
                    self.answer(single_flight[-1 - which % len(single_flight)], outcome, sent)
            case Report(outcome):
                self.keep(settle(self.host, self.now, self.policy, None, outcome))
            case Pass(microseconds):
                self.wait(microseconds)
            case SetClock(microseconds):
                self.epoch = max(DAY, self.epoch + microseconds)
            case Reboot(microseconds):
                self.wait(microseconds)
                self.at, self.boot = SECOND, self.boot + 1
            case Change(Override(limits)) if not self.fits(limits):
                pass  # whoever tried was told so
            case Change(what):
                self.keep(amend(self.host, self.now, self.policy, what))
            case Settings(which):
                self.policy = self.policies[which % len(self.policies)]

    def fits(self, limits: tuple[tuple[str, float | None], ...]) -> bool:
        """Whether limits changed by hand fit the present policy."""
        try:
            amend(None, self.now, self.policy, Override(limits))
        except PolicyError:
            return False
        return True

    def wait(self, microseconds: int) -> None:
        self.true += microseconds
        self.at += microseconds
        self.epoch += microseconds

    def ask(self, ask: Ask = Ask()) -> Decision:
        before = self.host
        host, decision = admit(before, self.now, self.policy, ask.roll, page=ask.page, count=ask.count)
        if isinstance(decision, Go):
            lease = decision.lease
            until = self.true + round(lease.lasts * SECOND)
            self.single_flight.append(
                Flight(lease, self.policy, ask, self.true, self.true, self.epoch // SECOND, until, self.boot)
            )  # fmt: skip
        elif before is None:
            assert host is None
        else:
            assert host is before or host == in_time(before, self.now)
        self.keep(host)
        return decision

    def answer(self, flight: Flight, outcome: Outcome, sent: float = 0.0) -> None:
        flight.answers += 1
        flight.outcome = flight.outcome or outcome
        really = flight.left_at + int(sent * (self.true - flight.left_at))
        if outcome.sent:
            outcome = msgspec.structs.replace(outcome, sent_ago=(self.true - really) / SECOND)
            flight.sent_at = max(flight.sent_at, really)
        self.keep(settle(self.host, self.now, flight.policy, flight.lease, outcome))

    def keep(self, host: Host | None) -> None:
        if host is not None:
            packed = msgspec.msgpack.encode(host)
            assert msgspec.msgpack.decode(packed, type=Host) == host
        self.host = host

    def depart(self, ask: Ask = Ask()) -> Flight:
        """Be let through, waiting as long as it takes."""
        decision = self.ask(ask)
        while not isinstance(decision, Go):
            seconds = waiting(decision)
            assert seconds is not None, decision
            self.wait(round(seconds * SECOND))
            decision = self.ask(ask)
        return self.single_flight[-1]


def waiting(decision: Decision) -> float | None:
    """The seconds that a denial says."""
    return None if isinstance(decision, Go) else getattr(decision, "seconds", getattr(decision, "retry_after", None))


# Strategies

rolls = st.sampled_from((0.0, 0.25, 0.5, 0.999999)) | st.floats(0, 1, exclude_max=True)

durations = (
    st.integers(0, 3 * SECOND)
    | st.integers(0, 10 * MINUTE)
    | st.sampled_from((0, 1, SECOND, 35 * SECOND - 1, 35 * SECOND, 300 * SECOND, HOUR, 6 * HOUR, DAY, 2 * DAY))
)

retry_afters = st.sampled_from((None, None, 0.0, 1.0, 59.0, 60.0, 60.5, 400.0, 1e6, 1e15))

outcomes = st.one_of(
    st.builds(
        Outcome,
        kind=st.just(Kind.ANSWERED),
        status=st.sampled_from((200, 404)),
        page=st.booleans(),
        latency=st.none() | st.floats(0, 30),
        rest=st.sampled_from((0.0, 0.0, 0.0, 2.0, 1e12)),
        quota=retry_afters,
    ),
    st.just(Outcome(Kind.NOT_MODIFIED, 304)),
    st.builds(Outcome, kind=st.just(Kind.FAILED), status=st.sampled_from((0, 500, 503)), sent=st.booleans(),
              retry_after=retry_afters, rest=st.sampled_from((0.0, 1.0))),
    st.builds(Outcome, kind=st.just(Kind.BLOCKED), status=st.just(403), retry_after=retry_afters),
    st.builds(Outcome, kind=st.just(Kind.SLOWED), status=st.just(429), retry_after=retry_afters),
    st.builds(Outcome, kind=st.just(Kind.ABANDONED), sent=st.booleans(), rest=st.sampled_from((0.0, 1.0))),
)  # fmt: skip
"""Whatever may become of a request."""

good = st.builds(Outcome, kind=st.just(Kind.ANSWERED), status=st.just(200), page=st.booleans())

asks = st.builds(Ask, roll=rolls, page=st.booleans(), patient=st.booleans())
answers = st.builds(
    Answer, which=st.integers(0, 5), outcome=good | outcomes, sent=st.sampled_from((0.0, 1.0)) | st.floats(0, 1)
)
passes = st.builds(Pass, durations)
clocks = st.builds(SetClock, st.sampled_from((-400 * DAY, -2 * DAY, -DAY, -HOUR, HOUR, DAY, 3 * DAY, 400 * DAY)))
reboots = st.builds(Reboot, durations)
limits = st.sampled_from(
    (
        (),
        (("qps", 0.1),),
        (("qps", None),),
        (("concurrency", 2.0),),
        (("concurrency", None),),
        (("max_requests_per_day", 3.0), ("max_pages_per_day", 2.0)),
        (("pause_min", 3.0),),
        (("pause_min", 7.0), ("pause_max", 9.0)),
        (("burst", 3.0),),
        (("delay", 4.0),),
    )
)
changes: st.SearchStrategy[Change] = st.builds(
    Change,
    st.one_of(
        st.builds(CrawlDelay, st.sampled_from((None, 0.5, 7.0, 300.0, 1e9))),
        st.builds(Pause, st.sampled_from((None, 0, 30.0, 7200.0))),
        st.just(Resume()),
        st.just(Reset()),
        st.just(Trip()),
        st.builds(Spend, st.booleans()),
    ),
)
resumed = st.just(Change(Resume()))


def long_lists(each: st.SearchStrategy[Item], size: int = 50) -> st.SearchStrategy[list[Item]]:
    """Lists of any length; left to itself, Hypothesis makes few of more than ten."""
    return st.lists(each, max_size=10) | st.lists(each, min_size=size // 2, max_size=size)


def histories(*more: st.SearchStrategy[Event], size: int = 50) -> st.SearchStrategy[list[Event]]:
    """Requests, answers and time; and whatever else is given."""
    return long_lists(st.one_of(asks, asks, answers, passes, *more), size)


overrides: st.SearchStrategy[Change] = st.builds(Change, st.builds(Override, limits))
reports: st.SearchStrategy[Report] = st.builds(Report, outcomes)
settings_changes: st.SearchStrategy[Settings] = st.builds(Settings, st.integers(0, 5))

everything: st.SearchStrategy[list[Event]] = histories(
    clocks, reboots, changes, resumed, overrides, reports, settings_changes
)
"""Anything at all."""

policies = st.builds(
    Policy,
    qps=st.none() | st.sampled_from((0.2, 0.8, 1.0, 3.0, 1000.0)),
    burst=st.sampled_from((1, 1, 2, 5)),
    strategy=st.sampled_from(("token_bucket", "token_bucket", "leaky_bucket", "sliding_window")),
    pause_min=st.sampled_from((0.0, 1.5)),
    pause_max=st.sampled_from((1.5, 5.5)),
    delay=st.sampled_from((0.0, 0.0, 2.0)),
    concurrency=st.none() | st.integers(1, 3),
    max_crawl_delay=st.sampled_from((5.0, 300.0)),
    adapt=st.booleans(),
    max_requests_per_day=st.sampled_from((0, 1, 3, 200)),
    max_pages_per_day=st.sampled_from((0, 1, 2, 100)),
    timezone=st.sampled_from(ZONES),
    breaker=st.booleans(),
    breaker_error_rate=st.none() | st.just(0.5),
    on_429=st.sampled_from(("obey", "trip", "retry")),
)
"""Policies of every sort."""
