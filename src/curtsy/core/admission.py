"""Admission: decide whether a request may leave now, by a list of rules.

`admit()` is one of the three changes of a host's record, beside `settle()` (settlement.py) and `amend()`
(amendment.py). All are pure: a store runs each as one atomic step, and may run it again.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from curtsy.core.budget import ALIKE, Day
from curtsy.core.decision import Decision, Go, Lease, No, Wait
from curtsy.core.errors import Reason
from curtsy.core.host import CLOSE, Host, Place, fresh, in_time, offset_at, shared
from curtsy.core.message import SECOND, Now
from curtsy.core.pace import CALM, ROLLS, SIDES, departures, latency_delay, pause, rate_ready, spent_after
from curtsy.core.policy import TOKEN, Policy, overridden
from curtsy.core.setting import DAY

_replace = msgspec.structs.replace

GUESTS = 5
"""Requests per day that robots.txt redirects from other registered domains may send to a host. They cost none of its
budget. A site has one robots.txt, requested at most once an hour, so 5 are enough."""

FORGIVEN = SECOND // 50
"""Maximum delay of a scheduled departure that still counts as on time, in microseconds."""


class Case(msgspec.Struct, gc=False):
    """A request that asks to leave, and the state that several rules look at. Instants are microseconds."""

    now: Now
    page: bool
    robots: bool
    count: int
    crawl_delay: int
    foreign: bool
    guest: bool
    places: tuple[Place, ...]
    """Slots that have not expired."""

    is_trial: bool
    """Whether the request is the single trial of a breaker whose cooldown is over."""

    is_rested: bool
    """Whether the host rested longer than any pace requires, so that no exact computation is needed."""

    ready_at: int = 0
    """Instant at which the pace allows the request; 0 if it does not matter."""

    day: Day | None = None
    earlier: Day | None = None
    jumped_at: int = 0
    requests: int = 0
    """Requests that count against the budget; 0 without a budget."""

    pages: int = 0
    is_spent: bool = False
    """Whether all requests of the day are charged, or all pages and the request wants one."""


# Refusals: None if the rule does not refuse.


def _paused(host: Host, policy: Policy, at: int, case: Case) -> No | None:
    until = host.paused_until
    if not until or 0 < until <= at:
        return None
    return No(Reason.PAUSED, None if until < 0 else (until - at) / SECOND)


def _closed(host: Host, policy: Policy, at: int, case: Case) -> No | None:
    if not (host.tripped_at or host.told_at):
        return None
    closed_until = host.closed_until(policy)
    if at < closed_until:
        return No(Reason.CIRCUIT_OPEN, (closed_until - at) / SECOND)
    # A request that another site led here must not use the trial (C22).
    return No(Reason.CIRCUIT_OPEN, policy.breaker_cooldown) if case.is_trial and case.foreign else None


def _too_many_guests(host: Host, policy: Policy, at: int, case: Case) -> No | None:
    if case.guest and at < host.guests_until and host.guests >= GUESTS:
        return No(Reason.DOMAIN_BUDGET_EXCEEDED, (host.guests_until - at) / SECOND)
    return None


def _crawl_delay_too_long(host: Host, policy: Policy, at: int, case: Case) -> No | None:
    if host.crawl_delay and host.crawl_delay > policy.max_crawl_delay * SECOND and not case.robots:
        return No(Reason.CRAWL_DELAY_TOO_LONG, None)
    return None


def _budget_spent(host: Host, policy: Policy, at: int, case: Case) -> No | None:
    if not case.is_spent:
        return None
    if policy.max_requests_per_day and case.requests >= policy.max_requests_per_day:
        limit, most = "requests", policy.max_requests_per_day
    elif not case.places:
        limit, most = "pages", policy.max_pages_per_day
    else:
        return None
    spending = host.spending(case.now, policy.calendar)
    starts = 0 if spending.jumped_at else policy.calendar.day_of(case.now.epoch // SECOND)[0]
    return No(Reason.DOMAIN_BUDGET_EXCEEDED, spending.opens_in(most, limit, case.now), limit, starts)


# Waits: the instant until which the request waits, and its name in `Wait.because`; None if the rule requires no wait.


def _page_in_flight(host: Host, policy: Policy, at: int, case: Case) -> tuple[int, str] | None:
    # Each request in flight reserves a page. The page becomes available again if the answer is not a page.
    return (min(place.until for place in case.places), "in_flight") if case.is_spent and case.places else None


def _no_slot(host: Host, policy: Policy, at: int, case: Case) -> tuple[int, str] | None:
    places, most = case.places, policy.concurrency
    if not places or most is None or len(places) < most:
        return None
    return sorted(place.until for place in places)[len(places) - most], "in_flight"


def _trial_in_flight(host: Host, policy: Policy, at: int, case: Case) -> tuple[int, str] | None:
    if not case.is_trial or not case.places:
        return None
    closed_until = host.tripped_at + host.cooldown
    return max((place.until for place in case.places if place.left_at >= closed_until), default=0), "trial"


def _resting(host: Host, policy: Policy, at: int, case: Case) -> tuple[int, str] | None:
    return (host.retry_after_until, "rest") if host.retry_after_until > at else None


def _too_soon(host: Host, policy: Policy, at: int, case: Case) -> tuple[int, str] | None:
    if not host.sent_at or case.is_rested:
        return None
    case.ready_at, because = paced(host, policy, case.count, case.crawl_delay)
    return case.ready_at, because


REFUSALS: tuple[Callable[[Host, Policy, int, Case], No | None], ...] = (
    _paused, _closed, _too_many_guests, _crawl_delay_too_long, _budget_spent,
)  # fmt: skip
"""The rules that refuse, in this order: the cooldown before the budget (B13)."""

WAITS: tuple[Callable[[Host, Policy, int, Case], tuple[int, str] | None], ...] = (
    _page_in_flight, _no_slot, _trial_in_flight, _resting, _too_soon,
)  # fmt: skip
"""The rules that make a request wait. The latest instant wins (C1), the first rule of several with the same."""


def admit(
    host: Host | None,
    now: Now,
    policy: Policy,
    roll: float = 0.0,
    *,
    page: bool = True,
    robots: bool = False,
    count: int = 1,
    crawl_delay: int = 0,
    scheduled: bool = False,
    foreign: bool = False,
    guest: bool = False,
) -> tuple[Host | None, Decision]:
    """Decide whether a request may leave now.

    `Go` charges the request in the returned record. Any other decision charges nothing.

    `page`: the answer may be a page. `robots`: the request is for robots.txt itself. `roll`: random number in [0, 1)
    for the pause that follows. `count`: number of rate tokens to take. `crawl_delay`: microseconds that robots.txt
    requires of this client; the larger of it and the record's value applies. `scheduled`: a slightly late departure is
    recorded at its scheduled time, so that delays do not accumulate. `foreign`: a redirect from another registered
    domain led here (C22). `guest`: that redirect was for a robots.txt.
    """
    at = now.at
    if host is None:
        host, given = fresh(now), None
    else:
        if host.written_at > at or host.boot != now.boot:
            host = in_time(host, now)
        given = host
        if host.overrides:
            policy = overridden(policy, host.overrides)
    case = Case(
        now, page, robots, count, crawl_delay, foreign, guest,
        host.places and _still_held(host.places, at),
        bool(host.tripped_at and policy.breaker),
        at - host.sent_at > policy.rested_us and host.spent <= TOKEN and count == 1 and not host.delay
        and not host.crawl_delay and not crawl_delay and host.latency <= policy.target_us,
    )  # fmt: skip
    if policy.max_requests_per_day or policy.max_pages_per_day:
        _count(host, policy, case)

    # Refusals come first, so that no request waits only to be refused. The conditions before the loops only save time:
    # a rule objects to none of the others.
    if case.is_spent or guest or host.paused_until or host.tripped_at or host.told_at or host.crawl_delay:
        for refuses in REFUSALS:
            no = refuses(host, policy, at, case)
            if no is not None:
                return given, no
    if case.places or not case.is_rested or host.retry_after_until > at:
        wait_until, because = int(at), ""
        for waits in WAITS:
            wait = waits(host, policy, at, case)
            if wait is not None and wait[0] > wait_until:
                wait_until, because = wait
        if because:
            return given, Wait((wait_until - at) / SECOND, because)
    return _charged(host, policy, case, roll, scheduled)


def _count(host: Host, policy: Policy, case: Case) -> None:
    """Count the requests and pages of the budget's day."""
    now, day = case.now, host.day
    second = now.epoch // SECOND
    if (
        day is not None
        and second < day.ends
        and not host.jumped_at
        and -ALIKE <= second - now.at // SECOND - day.offset <= ALIKE
    ):
        case.day, case.earlier, case.requests, pages = day, host.earlier, day.requests, day.pages
    else:
        spending = host.spending(now, policy.calendar)
        case.day, case.earlier, case.jumped_at = spending.day, spending.earlier, spending.jumped_at
        case.requests, pages = spending.requests, spending.pages
    case.pages = pages
    case.is_spent = 0 < policy.max_requests_per_day <= case.requests or (
        case.page and 0 < policy.max_pages_per_day <= pages
    )


def _charged(host: Host, policy: Policy, case: Case, roll: float, scheduled: bool) -> tuple[Host, Go]:
    """Charge the request: return the record after it and the lease."""
    now, at = case.now, case.now.at
    serial = at if at > host.serial else host.serial + 1
    sent_at: int = at
    if scheduled and case.ready_at and at - case.ready_at < min(policy.interval_us, FORGIVEN):
        sent_at = case.ready_at
    lasts = policy.robots_lease if case.robots else policy.lease
    places = case.places
    if policy.concurrency is not None or case.is_trial:
        place = Place(serial, at, at + (round(lasts * SECOND) if case.robots else policy.lease_us))
        places = (*places, place) if places else (place,)
    day, earlier, jumped_at, charged = host.day, host.earlier, host.jumped_at, None
    most_requests, most_pages = policy.max_requests_per_day, policy.max_pages_per_day
    if (most_requests or most_pages) and not case.guest:  # guests have their own allowance
        charged, earlier, jumped_at = case.day, case.earlier, case.jumped_at
        assert charged is not None
        spent_at = shared(-(-at // SECOND))
        day = Day(charged.ends, charged.offset, spent_at, charged.requests + 1, charged.pages + case.page)
    offset = host.offset
    if not 0 <= offset + at - now.epoch < CLOSE:  # a clock was set, or has drifted
        offset = offset_at(now)
    left = _replace(
        host if not case.guest else _with_guest(host, at),
        offset=offset,
        sent_at=sent_at,
        roll=ROLLS[int(roll * SIDES)],
        spent=TOKEN if case.is_rested else spent_after(host.spent, sent_at - host.sent_at, policy) + case.count * TOKEN,
        recent=() if case.is_rested else _recent(host, policy, case),
        serial=serial,
        places=places,
        earlier=earlier,
        day=day,
        jumped_at=jumped_at,
        written_at=at,
    )
    departed = host.sent_at if case.count == 1 else -1
    lease = Lease(
        serial, at, lasts, case.page and charged is not None, charged, case.is_trial, departed, host.spent
    )  # fmt: skip
    requests_left = most_requests - case.requests - 1 if most_requests and charged is not None else None
    pages_left = max(0, most_pages - case.pages - case.page) if most_pages and charged is not None else None
    return left, Go(lease, requests_left, pages_left)


def _with_guest(host: Host, at: int) -> Host:
    """Return the record with one more guest in its present period of a day."""
    if at < host.guests_until:
        return _replace(host, guests=host.guests + 1)
    return _replace(host, guests=1, guests_until=at + round(DAY * SECOND))


def _recent(host: Host, policy: Policy, case: Case) -> tuple[int, ...]:
    """Return the departures in a sliding window, this one included; empty for the other strategies."""
    if policy.strategy != "sliding_window" or not policy.interval_ns:
        return ()
    burst = int(policy.burst)
    before = departures(host.sent_at, host.spent, host.recent, burst) if host.sent_at else host.recent
    return (*before, *[case.now.at] * case.count)[-burst:]


def _still_held(places: tuple[Place, ...], at: int) -> tuple[Place, ...]:
    """Return the slots that have not expired."""
    return tuple([place for place in places if place.until > at])


def paced(host: Host, policy: Policy, count: int = 1, crawl_delay: int = 0) -> tuple[int, str]:
    """Return the instant at which the pace allows the next request, and the limit that decides it.

    The pace consists of rate, pause and delays.
    """
    sent_at = host.sent_at
    latest, why = rate_ready(sent_at, host.spent, host.recent, policy, count), "rate"
    if policy.pause_us or policy.pause_span_us:
        paused = sent_at + pause(host.roll, policy)
        if paused > latest:
            latest, why = paused, "pause"
    if sent_at + policy.delay_us > latest:
        latest, why = sent_at + policy.delay_us, "delay"
    if host.crawl_delay > crawl_delay:
        crawl_delay = host.crawl_delay
    if sent_at + crawl_delay > latest:
        # `admit()` refuses pages if the delay exceeds the maximum; a robots.txt request waits at most the maximum.
        held = min(crawl_delay, round(policy.max_crawl_delay * SECOND))
        latest, why = max(latest, sent_at + held), "crawl_delay"
    if policy.adapt:
        if sent_at + host.delay > latest:
            latest, why = sent_at + host.delay, "adapted"
        if host.latency > policy.target_us:
            slow = sent_at + latency_delay(host.latency, policy)
            if slow > latest:
                latest, why = slow, "slow_site"
    return latest, why


def ready_in(host: Host, now: Now, policy: Policy) -> float:
    """Return the seconds until a host may be contacted again, if a slot is free.

    The record must have been written just now.
    """
    if host.overrides:
        policy = overridden(policy, host.overrides)
    ready_at = max(host.retry_after_until, paced(host, policy)[0] if host.sent_at else 0)
    return max(0, ready_at - now.at) / SECOND


def forecast(
    host: Host | None, now: Now, policy: Policy, ahead: int, crawl_delay: int = 0, more: int = 0, count: int = 1
) -> float:
    """Return the minimum wait in seconds of a request that has `ahead` others before it.

    All of them together take `more` tokens beyond one each; `count` is this request's own number of tokens. Occupied
    slots are ignored, because they can become free at any moment.
    """
    wait = spent = gap = 0
    recent: tuple[int, ...] = ()
    if host is not None:
        host = in_time(host, now)
        if host.overrides:
            policy = overridden(policy, host.overrides)
        ready_at = paced(host, policy, 1, crawl_delay)[0] if host.sent_at else 0
        wait = max(0, ready_at - now.at, host.retry_after_until - now.at)
        if policy.interval_ns:  # refill is rounded up: a forecast must not be too long
            spent = max(0, host.spent + (host.sent_at - now.at) * 1000 * TOKEN // policy.interval_ns)
        if policy.strategy == "sliding_window" and host.sent_at:
            recent = departures(host.sent_at, host.spent, host.recent, int(policy.burst))
        gap = min(max(host.crawl_delay, crawl_delay), round(policy.max_crawl_delay * SECOND))
        if policy.adapt:  # the delay decreases on the way if all requests succeed
            gap = max(gap, int(host.delay * 0.9 ** (1 + (ahead + len(host.places)) // CALM)) - 1000)
    if policy.strategy == "sliding_window":
        # Each request leaves one window after the request `burst` positions before it, so whole windows can be added.
        burst = int(policy.burst)
        window = burst * policy.interval_ns // 1000
        windows, place = divmod(ahead + more, burst)
        before = len(recent) + place - burst
        by_rate = max(wait, recent[before] + window - now.at if before >= 0 else 0) + windows * window
    else:
        # A request that needs more tokens than the bucket holds leaves when the bucket is full.
        missing = max(0, spent + (ahead + 1 + more) * TOKEN - max(policy.burst_tokens, count * TOKEN))
        by_rate = missing * policy.interval_ns // (1000 * TOKEN)
    return max(wait + ahead * max(gap, policy.pause_us, policy.delay_us), by_rate) / SECOND
