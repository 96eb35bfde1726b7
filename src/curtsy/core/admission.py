"""Admission: decide whether a request may leave now, by a list of rules.

`admit()` is one of the three changes of a host's record, beside `settle()` (settlement.py) and `amend()`
(amendment.py). All are pure: a store runs each as one atomic step, and may run it again.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from curtsy.core.budget import Spending, spending
from curtsy.core.decision import Decision, Go, Lease, No, Wait
from curtsy.core.errors import Reason
from curtsy.core.host import USUAL, Host, Place, fresh, in_time, offset_at
from curtsy.core.pace import CALM, ROLLS, SIDES, departures, latency_delay, pause, rate_ready, spent_after
from curtsy.core.policy import TOKEN, Policy, overridden
from curtsy.core.setting import DAY
from curtsy.core.time import SECOND, Now

GUESTS = 5
"""Requests per day that robots.txt redirects from other registered domains may send to a host. They cost none of its
budget. A site has one robots.txt, requested at most once an hour, so 5 are enough."""

FORGIVEN = SECOND // 50
"""Maximum delay of a scheduled departure that still counts as on time, in microseconds."""


class Case(msgspec.Struct, frozen=True, gc=False):
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

    spending: Spending | None
    """Charges that count now; None without a budget."""

    is_trial: bool
    """Whether the request is the single trial of a breaker whose cooldown is over."""

    is_rested: bool
    """Whether the host rested longer than any pace requires, so that no exact computation is needed."""


# Each rule returns `No` if it refuses the request, `Wait` if the request must wait, and None if it has no objection.


def _paused(host: Host, policy: Policy, at: int, case: Case) -> No | None:
    until = host.paused_until
    if not until or 0 < until <= at:
        return None
    return No(Reason.PAUSED, None if until < 0 else (until - at) / SECOND)


def _closed(host: Host, policy: Policy, at: int, case: Case) -> No | None:
    closed_until = host.closed_until(policy)
    if at < closed_until:
        return No(
            Reason.CIRCUIT_OPEN, (closed_until - at) / SECOND, opened_by=host.tripped_by if policy.breaker else ""
        )
    # A request that another site led here must not use the trial (C22).
    return No(Reason.CIRCUIT_OPEN, policy.breaker_cooldown) if case.is_trial and case.foreign else None


def _too_many_guests(host: Host, policy: Policy, at: int, case: Case) -> No | None:
    if case.guest and at < host.guests_until and host.guests >= GUESTS:
        return No(Reason.DOMAIN_BUDGET_EXCEEDED, (host.guests_until - at) / SECOND)
    return None


def _crawl_delay_too_long(host: Host, policy: Policy, at: int, case: Case) -> No | None:
    is_long = not case.robots and host.crawl_delay > policy.max_crawl_delay * SECOND
    return No(Reason.CRAWL_DELAY_TOO_LONG, None) if is_long else None


def _budget_spent(host: Host, policy: Policy, at: int, case: Case) -> No | Wait | None:
    spent, requests, pages = case.spending, policy.max_requests_per_day, policy.max_pages_per_day
    if spent is None:
        return None
    if 0 < requests <= spent.requests:
        limit, most = "requests", requests
    elif not (case.page and 0 < pages <= spent.pages):
        return None
    elif case.places:
        # Each request in flight reserves a page. The page becomes available again if the answer is not a page.
        return _wait(min(place.until for place in case.places), at, "in_flight")
    else:
        limit, most = "pages", pages
    starts = 0 if spent.jumped_at else policy.calendar.day_of(case.now.epoch // SECOND)[0]
    return No(Reason.DOMAIN_BUDGET_EXCEEDED, spent.opens_in(most, limit, case.now), limit, starts)


def _no_slot(host: Host, policy: Policy, at: int, case: Case) -> Wait | None:
    places, most = case.places, policy.concurrency
    if not places or most is None or len(places) < most:
        return None
    return _wait(sorted(place.until for place in places)[len(places) - most], at, "in_flight")


def _trial_in_flight(host: Host, policy: Policy, at: int, case: Case) -> Wait | None:
    if not case.is_trial:
        return None
    closed_until = host.tripped_at + host.cooldown
    return _wait(max((place.until for place in case.places if place.left_at >= closed_until), default=0), at, "trial")


def _resting(host: Host, policy: Policy, at: int, case: Case) -> Wait | None:
    return _wait(host.retry_after_until, at, "rest")


def _too_soon(host: Host, policy: Policy, at: int, case: Case) -> Wait | None:
    if not host.sent_at or case.is_rested:
        return None
    ready_at, because = paced(host, policy, case.count, case.crawl_delay)
    return _wait(ready_at, at, because)


def _wait(until: int, at: int, because: str) -> Wait | None:
    return Wait((until - at) / SECOND, because) if until > at else None


Rule = Callable[[Host, Policy, int, Case], No | Wait | None]

PACE: tuple[Rule, ...] = (_budget_spent, _no_slot, _resting, _too_soon)
"""The rules for a host without a mark: no pause, trip, requested rest or Crawl-delay."""

IDLE: dict[tuple[bool, bool], tuple[Rule, ...]] = {
    (True, True): (_budget_spent,),
    (True, False): (_budget_spent, _too_soon),
    (False, True): (),
    (False, False): (_too_soon,),
}
"""The rules for such a host without a rest or a request in flight, by whether it has a budget, and whether it has
rested longer than any pace requires."""

RULES: tuple[Rule, ...] = (
    _paused, _closed, _too_many_guests, _crawl_delay_too_long, _budget_spent,
    _no_slot, _trial_in_flight, _resting, _too_soon,
)  # fmt: skip
"""All rules. Those that refuse come first, so that no request waits only to be refused; the cooldown comes before the
budget (B13). The shorter lists only save time: the rules that they leave out have no objection there."""


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

    `Go` charges the request in the returned record. Any other decision charges nothing. Of several waits the longest
    applies (C1).

    `page`: the answer may be a page. `robots`: the request is for robots.txt itself. `roll`: random number in [0, 1)
    for the pause that follows. `count`: number of rate tokens to take. `crawl_delay`: microseconds that robots.txt
    requires of this client; the larger of it and the record's value applies. `scheduled`: a slightly late departure is
    recorded at its scheduled time, so that delays do not accumulate. `foreign`: a redirect from another registered
    domain led here (C22). `guest`: that redirect was for a robots.txt.
    """
    at, given = now.at, host
    if host is None:
        host = fresh(now)
    else:
        if host.written_at > at or host.boot != now.boot:
            host = given = in_time(host, now)
        if host.extra is not None and host.extra.overrides:
            policy = overridden(policy, host.extra.overrides)
    extra = host.extra or USUAL
    is_limited = policy.max_requests_per_day or policy.max_pages_per_day
    case = Case(
        now, page, robots, count, crawl_delay, foreign, guest,
        host.places and tuple([place for place in host.places if place.until > at]),
        spending(host.day, host.earlier, extra.jumped_at, now, policy.calendar) if is_limited else None,
        bool(extra.tripped_at and policy.breaker),
        count == 1 and not crawl_delay and _has_rested(host, policy, at),
    )  # fmt: skip
    wait: Wait | None = None
    for rule in _rules(host, at, case):
        found = rule(host, policy, at, case)
        if found is None:
            continue
        if isinstance(found, No):
            return given, found
        if wait is None or found.seconds > wait.seconds:
            wait = found
    return (given, wait) if wait is not None else _charged(host, policy, case, roll, scheduled)


def refusal_of_part(host: Host, now: Now, policy: Policy) -> No | None:
    """Return why a part of a page may not leave in the turn of its page; None if it may."""
    host = in_time(host, now)
    policy = overridden(policy, host.overrides) if host.overrides else policy
    spent = spending(host.day, host.earlier, host.jumped_at, now, policy.calendar)
    case = Case(now, False, False, 1, 0, False, False, (), spent, False, False)
    for rule in (_paused, _closed, _budget_spent):
        if isinstance(found := rule(host, policy, now.at, case), No):
            return found
    rest = _resting(host, policy, now.at, case)
    return None if rest is None else No(Reason.CIRCUIT_OPEN, rest.seconds)


def _rules(host: Host, at: int, case: Case) -> tuple[Rule, ...]:
    """Return the rules that can object."""
    extra = host.extra or USUAL
    if case.guest or extra.paused_until or extra.tripped_at or extra.told_at or extra.crawl_delay:
        return RULES
    if case.places or extra.retry_after_until > at:
        return PACE
    return IDLE[case.spending is not None, case.is_rested]


def _has_rested(host: Host, policy: Policy, at: int) -> bool:
    """Return whether the last departure was longer ago than any pace of one request requires."""
    return (
        at - host.sent_at > policy.rested_us
        and host.spent <= TOKEN
        and (host.extra is None or not (host.extra.delay or host.extra.crawl_delay))
        and host.latency <= policy.target_us
    )


def _charged(host: Host, policy: Policy, case: Case, roll: float, scheduled: bool) -> tuple[Host, Go]:
    """Charge the request: return the record after it and the lease."""
    now, at, places, budget = case.now, case.now.at, case.places, case.spending
    departed = host.sent_at
    serial = at if at > host.serial else host.serial + 1
    sent_at = _departure(host, policy, case) if scheduled else at
    lasts = policy.robots_lease if case.robots else policy.lease
    if policy.concurrency is not None or case.is_trial:
        place = Place(serial, at, at + (round(lasts * SECOND) if case.robots else policy.lease_us))
        places = (*places, place) if places else (place,)
    spent = TOKEN
    recent: tuple[int, ...] = ()
    if not case.is_rested:
        spent = case.count * TOKEN
        if policy.interval_ns:
            spent += spent_after(host.spent, sent_at - departed, policy)
            recent = _recent(host, policy, case)
    day, earlier = host.day, host.earlier
    charged = requests_left = pages_left = None
    if case.guest:  # guests have their own allowance
        host = _with_guest(host, at)
    elif budget is not None:
        charged, earlier = budget.day, budget.earlier
        if budget.jumped_at != budget.stored[2]:
            host = host.replace(jumped_at=budget.jumped_at)
        day = budget.charged(1, case.page, at)
        if policy.max_requests_per_day:
            requests_left = policy.max_requests_per_day - budget.requests - 1
        if policy.max_pages_per_day:
            pages_left = max(0, policy.max_pages_per_day - budget.pages - case.page)
    left = msgspec.structs.replace(
        host,
        offset=offset_at(now, host.offset),
        sent_at=sent_at,
        roll=ROLLS[int(roll * SIDES)],
        spent=spent,
        recent=recent,
        serial=serial,
        places=places,
        earlier=earlier,
        day=day,
        written_at=at,
    )
    is_page = case.page and charged is not None
    sent_before = departed if case.count == 1 else -1
    lease = Lease(serial, at, lasts, is_page, charged, case.is_trial, sent_before, host.spent)
    return left, Go(lease, requests_left, pages_left)


def _departure(host: Host, policy: Policy, case: Case) -> int:
    """Return the scheduled instant of a departure that is only slightly late; else now."""
    at = case.now.at
    ready_at = paced(host, policy, case.count, case.crawl_delay)[0] if host.sent_at and not case.is_rested else 0
    return ready_at if ready_at and at - ready_at < min(policy.interval_us, FORGIVEN) else at


def _with_guest(host: Host, at: int) -> Host:
    """Return the record with one more guest in its present period of a day."""
    if at < host.guests_until:
        return host.replace(guests=host.guests + 1)
    return host.replace(guests=1, guests_until=at + round(DAY * SECOND))


def _recent(host: Host, policy: Policy, case: Case) -> tuple[int, ...]:
    """Return the departures in a sliding window, this one included; empty for the other strategies."""
    if policy.strategy != "sliding_window" or not policy.interval_ns:
        return ()
    burst = int(policy.burst)
    before = departures(host.sent_at, host.spent, host.recent, burst) if host.sent_at else host.recent
    return (*before, *[case.now.at] * case.count)[-burst:]


def paced(host: Host, policy: Policy, count: int = 1, crawl_delay: int = 0) -> tuple[int, str]:
    """Return the instant at which the pace allows the next request, and the limit that decides it.

    The pace consists of rate, pause and delays.
    """
    sent_at, extra, why = host.sent_at, host.extra or USUAL, "rate"
    latest = rate_ready(sent_at, host.spent, host.recent, policy, count) if policy.interval_ns else sent_at
    if policy.pause_us or policy.pause_span_us:
        paused = sent_at + pause(host.roll, policy)
        if paused > latest:
            latest, why = paused, "pause"
    if sent_at + policy.delay_us > latest:
        latest, why = sent_at + policy.delay_us, "delay"
    crawl_delay = crawl_delay if crawl_delay > extra.crawl_delay else extra.crawl_delay
    if sent_at + crawl_delay > latest:
        # `admit()` refuses pages if the delay exceeds the maximum; a robots.txt request waits at most the maximum.
        held = min(crawl_delay, round(policy.max_crawl_delay * SECOND))
        latest, why = max(latest, sent_at + held), "crawl_delay"
    if policy.adapt:
        if sent_at + extra.delay > latest:
            latest, why = sent_at + extra.delay, "adapted"
        slow = sent_at + latency_delay(host.latency, policy) if host.latency > policy.target_us else 0
        if slow > latest:
            latest, why = slow, "slow_site"
    return latest, why


def ready_in(host: Host, now: Now, policy: Policy) -> float:
    """Return the seconds until a host may be contacted again, if a slot is free.

    The record must have been written just now.
    """
    extra = host.extra or USUAL
    if extra.overrides:
        policy = overridden(policy, extra.overrides)
    ready_at = extra.retry_after_until
    if host.sent_at and not _has_rested(host, policy, now.at):
        ready_at = max(ready_at, paced(host, policy)[0])
    return (ready_at - now.at) / SECOND if ready_at > now.at else 0.0


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
