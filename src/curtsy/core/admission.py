"""The three operations that change a host's record: admit, settle and amend.

`admit()` decides before a request. `settle()` records the result of a request. `amend()` applies user commands and
robots.txt. All three are pure functions: a store runs each as one atomic step and may repeat it.
"""

from __future__ import annotations

from functools import lru_cache

import msgspec

from curtsy.core import breaker
from curtsy.core.budget import ALIKE, Day, refunded
from curtsy.core.errors import PolicyError, Reason
from curtsy.core.host import CLOSE, Host, Place, fresh, in_time, offset_at, shared, with_delays
from curtsy.core.message import SECOND, Now
from curtsy.core.outcome import Kind, Outcome
from curtsy.core.pace import (
    CALM,
    ROLLS,
    SIDES,
    departures,
    latency_delay,
    pause,
    raised,
    rate_ready,
    smoothed,
    spent_after,
    sunk,
)
from curtsy.core.policy import DAY, TOKEN, Policy, number

__all__ = [
    "OVERRIDABLE", "Amendment", "CrawlDelay", "Decision", "Go", "Host", "Late", "Lease", "No", "Override", "Pause",
    "Place", "Renew", "Reset", "Resume", "Return", "Spend", "Trip", "Wait", "admit", "amend", "forecast", "ready_in",
    "settle",
]  # fmt: skip


class Lease(msgspec.Struct, frozen=True, gc=False):
    """Permission to send one request now, already charged. `settle()` ends it."""

    number: int
    left_at: int
    lasts: float
    """Seconds until the slot expires and another request may take it. The sender checks this before sending."""

    page: bool
    """True if a page was charged in addition to the request."""

    day: Day | None = None
    """The charged day, as it was before the charge; None if no budget was charged."""

    trial: bool = False
    """True if this is the single trial request of a half-open breaker."""

    sent_before: int = -1
    """Departure before this one, in microseconds. `Return` restores it and `spent_before` if this lease is unused. -1
    if the lease took several tokens, which may be returned in parts."""

    spent_before: int = 0


class Go(msgspec.Struct, frozen=True, gc=False):
    """Decision: send now."""

    lease: Lease
    requests_left: int | None = None
    """Requests left in today's budget after this one; None if unlimited."""

    pages_left: int | None = None


class Wait(msgspec.Struct, frozen=True, gc=False):
    """Decision: try again after `seconds`."""

    seconds: float
    because: str
    """Cause of the wait: rate, pause, delay, crawl_delay, adapted, slow_site, rest, in_flight or trial."""


class No(msgspec.Struct, frozen=True, gc=False):
    """Decision: refused; a short wait does not help."""

    reason: Reason
    retry_after: float | None
    """Seconds until a retry makes sense; None if unknown."""

    limit: str = ""
    """The exceeded budget limit: `requests` or `pages`; empty for other reasons."""

    day: int = 0
    """First epoch second of the exhausted day; 0 if the last 24 h count because the clock jumped."""


class Late(msgspec.Struct, frozen=True, gc=False):
    """Deadline that cannot be met. Nothing was charged."""

    needed: float
    """Minimum wait in seconds."""


Decision = Go | Wait | No

_replace = msgspec.structs.replace

GUESTS = 5
"""Requests per day that robots.txt redirects from other registered domains may send to a host. They cost none of its
budget. A site has one robots.txt, requested at most once an hour, so 5 are enough."""

FORGIVEN = SECOND // 50
"""Maximum delay of a scheduled departure that still counts as on time, in microseconds."""


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

    `Go` charges the request in the returned record. Any other decision charges nothing. If several limits
    require a wait, the latest instant wins (C1).

    `page`: the answer may be a page. `robots`: the request is for robots.txt itself. `roll`: random number in [0, 1)
    for the pause that follows. `count`: number of rate tokens to take. `crawl_delay`: microseconds that robots.txt
    requires of this client; the larger of it and the record's value applies. `scheduled`: a slightly late departure is
    recorded at its scheduled time, so that delays do not accumulate. `foreign`: a redirect from another registered
    domain led here; such a request must not use the single trial of a breaker (C22). `guest`: that redirect was for a
    robots.txt.
    """
    at = now.at
    if host is None:
        host, given = fresh(now), None
    else:
        if host.written_at > at or host.boot != now.boot:
            host = in_time(host, now)
        given = host
        if host.overrides:
            policy = _overridden(policy, host.overrides)

    # Refusals come first, so that no request waits only to be refused (B13: cooldown, then budget).
    if host.paused_until and (host.paused_until < 0 or at < host.paused_until):
        return given, No(Reason.PAUSED, None if host.paused_until < 0 else (host.paused_until - at) / SECOND)
    trial = False
    if host.tripped_at or host.told_at:
        closed_until = host.closed_until(policy)
        if at < closed_until:
            return given, No(Reason.CIRCUIT_OPEN, (closed_until - at) / SECOND)
        trial = bool(host.tripped_at and policy.breaker)
        if trial and foreign:
            return given, No(Reason.CIRCUIT_OPEN, policy.breaker_cooldown)
    has_guests = guest and at < host.guests_until
    if has_guests and host.guests >= GUESTS:
        return given, No(Reason.DOMAIN_BUDGET_EXCEEDED, (host.guests_until - at) / SECOND)
    if host.crawl_delay and host.crawl_delay > policy.max_crawl_delay * SECOND and not robots:
        return given, No(Reason.CRAWL_DELAY_TOO_LONG, None)
    places = host.places
    if places:
        places = _still_held(places, at)
    day, earlier, jumped_at, charged = host.day, host.earlier, host.jumped_at, None
    requests_left = pages_left = None
    requests = pages = 0
    wait_until, because = 0, ""
    most_requests, most_pages = policy.max_requests_per_day, policy.max_pages_per_day
    if most_requests or most_pages:
        second = now.epoch // SECOND
        if (
            day is not None
            and second < day.ends
            and not jumped_at
            and -ALIKE <= second - at // SECOND - day.offset <= ALIKE
        ):
            requests, pages = day.requests, day.pages
        else:
            spending = host.spending(now, policy.calendar)
            day, earlier, jumped_at = spending.day, spending.earlier, spending.jumped_at
            requests, pages = spending.requests, spending.pages
        if most_requests and requests >= most_requests:
            return given, _exceeded(host, now, policy, "requests")
        if page and most_pages and pages >= most_pages:
            # Each request in flight reserves a page. The page becomes available again if the answer is not a page.
            if not places:
                return given, _exceeded(host, now, policy, "pages")
            wait_until, because = min(place.until for place in places), "in_flight"
        if guest:  # guests have their own allowance
            day, earlier, jumped_at = host.day, host.earlier, host.jumped_at
        else:
            charged = day

    concurrency = policy.concurrency
    if places and concurrency is not None and len(places) >= concurrency:
        free_at = sorted(place.until for place in places)[len(places) - concurrency]
        if free_at > wait_until:
            wait_until, because = free_at, "in_flight"
    if trial:
        for place in places:
            if place.left_at >= host.tripped_at + host.cooldown and place.until > wait_until:
                wait_until, because = place.until, "trial"
    if host.retry_after_until > at and host.retry_after_until > wait_until:
        wait_until, because = host.retry_after_until, "rest"
    ready_at, sent_before, spent = 0, host.sent_at, host.spent
    # Fast path: a host that rested longer than any pace requires needs no exact computation.
    is_rested = (
        at - sent_before > policy.rested_us
        and spent <= TOKEN
        and count == 1
        and not host.delay
        and not host.crawl_delay
        and not crawl_delay
        and host.latency <= policy.target_us
    )
    if sent_before and not is_rested:
        ready_at, why = _paced(host, policy, count, crawl_delay)
        if ready_at > wait_until:
            wait_until, because = ready_at, why
    if wait_until > at:
        return given, Wait((wait_until - at) / SECOND, because)

    serial = at if at > host.serial else host.serial + 1
    sent_at: int = at
    if scheduled and ready_at and at - ready_at < min(policy.interval_us, FORGIVEN):
        sent_at = ready_at
    lasts = policy.robots_lease if robots else policy.lease
    if concurrency is not None or trial:
        place = Place(serial, at, at + (round(lasts * SECOND) if robots else policy.lease_us))
        places = (*places, place) if places else (place,)
    recent: tuple[int, ...] = ()
    if not is_rested and policy.strategy == "sliding_window" and policy.interval_ns:
        burst = int(policy.burst)
        before = departures(sent_before, spent, host.recent, burst) if sent_before else host.recent
        recent = (*before, *[at] * count)[-burst:]
    if charged is not None:
        day = Day(charged.ends, charged.offset, shared(-(-at // SECOND)), charged.requests + 1, charged.pages + page)
        if most_requests:
            requests_left = most_requests - requests - 1
        if most_pages:
            pages_left = most_pages - pages - page if pages < most_pages else 0
    offset = host.offset
    if not 0 <= offset + at - now.epoch < CLOSE:  # a clock was set, or has drifted
        offset = offset_at(now)
    if guest:
        until = host.guests_until if has_guests else at + round(DAY * SECOND)
        host = _replace(host, guests=host.guests + 1 if has_guests else 1, guests_until=until)
    left = _replace(
        host,
        offset=offset,
        sent_at=sent_at,
        roll=ROLLS[int(roll * SIDES)],
        spent=TOKEN if is_rested else spent_after(spent, sent_at - sent_before, policy) + count * TOKEN,
        recent=recent,
        serial=serial,
        places=places,
        earlier=earlier,
        day=day,
        jumped_at=jumped_at,
        written_at=at,
    )
    departed = sent_before if count == 1 else -1
    lease = Lease(serial, at, lasts, page and charged is not None, charged, trial, departed, spent)
    return left, Go(lease, requests_left, pages_left)


def _exceeded(host: Host, now: Now, policy: Policy, limit: str) -> No:
    """Return the refusal for an exhausted budget."""
    spending = host.spending(now, policy.calendar)
    most = policy.max_requests_per_day if limit == "requests" else policy.max_pages_per_day
    starts = 0 if spending.jumped_at else policy.calendar.day_of(now.epoch // SECOND)[0]
    return No(Reason.DOMAIN_BUDGET_EXCEEDED, spending.opens_in(most, limit, now), limit, starts)


def _still_held(places: tuple[Place, ...], at: int) -> tuple[Place, ...]:
    """Return the slots that have not expired."""
    return tuple([place for place in places if place.until > at])


def _paced(host: Host, policy: Policy, count: int = 1, crawl_delay: int = 0) -> tuple[int, str]:
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


class Settled(msgspec.Struct, frozen=True, gc=False):
    """State of a host after a reply was recorded. Durations are seconds."""

    next_in: float
    """Seconds until pace and rest allow the next request."""

    open_for: float = 0.0
    """Seconds during which all requests are refused, by the breaker or a long rest; 0 if requests are accepted."""


def consequence(host: Host, now: Now, policy: Policy) -> Settled:
    """Return the state of a host whose record was just written."""
    return Settled(ready_in(host, now, policy), max(0, host.closed_until(policy) - now.at) / SECOND)


def ready_in(host: Host, now: Now, policy: Policy) -> float:
    """Return the seconds until a host may be contacted again, if a slot is free.

    The record must have been written just now.
    """
    if host.overrides:
        policy = _overridden(policy, host.overrides)
    ready_at = max(host.retry_after_until, _paced(host, policy)[0] if host.sent_at else 0)
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
            policy = _overridden(policy, host.overrides)
        ready_at = _paced(host, policy, 1, crawl_delay)[0] if host.sent_at else 0
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


def settle(host: Host | None, now: Now, policy: Policy, lease: Lease | None, outcome: Outcome) -> Host:
    """Record the consequences of a reply in the host's record.

    Without a lease, the caller reports a result (`record_success`, `record_failure`). Nothing was charged then, so no
    charge is corrected.
    """
    host = fresh(now) if host is None else in_time(host, now)
    if host.overrides:
        policy = _overridden(policy, host.overrides)
    host = _as_of(now, host) if lease is None else _given_back(host, now, policy, lease, outcome)
    if outcome.kind is Kind.ABANDONED:
        # The outcome does not describe the host, but a retry, as after a proxy failure, still waits (N2).
        return _rested(host, now, policy, outcome.rest)
    host = _adapted(host, now, policy, lease, outcome)
    return _judged(host, now, policy, lease, outcome) if policy.breaker and not outcome.foreign else host


def _given_back(host: Host, now: Now, policy: Policy, lease: Lease, outcome: Outcome) -> Host:
    """Free the slot, record the real time of sending and refund unused charges (rule 5).

    The pace stays charged even if nothing was sent, so that an unreachable host is not contacted sooner.
    """
    at, places, day, earlier = now.at, host.places, host.day, host.earlier
    sent_at, spent, recent = host.sent_at, host.spent, host.recent
    until = lease.left_at + lease.lasts * SECOND if policy.concurrency is None else 0.0
    for place in places:
        if place.number == lease.number:
            until = place.until
            places = tuple([each for each in places if each is not place])
    # No refund after the lease expired: its holder counts as dead, even if it returns.
    is_free = not outcome.sent or outcome.kind is Kind.NOT_MODIFIED
    is_no_page = lease.page and not outcome.page
    # No refund after the calendar jumped either: the charged day is then unknown.
    if (is_free or is_no_page) and at < until and lease.day is not None and host.jumped_at <= lease.left_at:
        day = refunded(day, lease.day, int(is_free), int(is_no_page))
        earlier = refunded(earlier, lease.day, int(is_free), int(is_no_page))
    if outcome.sent and outcome.sent_ago is not None:
        really = at - round(outcome.sent_ago * SECOND)
        if recent and lease.left_at < really <= at and lease.left_at in recent:
            found = recent.index(lease.left_at)
            recent = tuple(sorted((*recent[:found], *recent[found + 1 :], really)))
        if sent_at < really <= at:
            sent_at, spent = really, max(spent, TOKEN)  # less only if the record was lost meanwhile
    offset = host.offset
    if not 0 <= offset + at - now.epoch < CLOSE:  # as in `admit()`
        offset = offset_at(now)
    return _replace(
        host,
        offset=offset,
        written_at=at,
        earlier=earlier,
        day=day,
        sent_at=sent_at,
        spent=spent,
        recent=recent,
        places=places,
        requests=host.requests + outcome.sent,
        pages=host.pages + outcome.page,
        status=outcome.status or host.status,
    )


def _adapted(host: Host, now: Now, policy: Policy, lease: Lease | None, outcome: Outcome) -> Host:
    """Apply rests, and adapt the delay to status and latency."""
    at, told = now.at, outcome.quota or 0.0
    retry_after = None if outcome.retry_after is None else min(outcome.retry_after, policy.max_retry_after)
    is_trouble = outcome.kind in _TROUBLE
    if retry_after is not None and is_trouble:
        told = max(told, retry_after)
    host = _rested(_rested(host, now, policy, outcome.rest), now, policy, told, is_told=True)
    latency = host.latency
    if outcome.latency is not None:
        latency = smoothed(latency, round(outcome.latency * SECOND))
        latency = host.latency if latency == host.latency else shared(latency)
    delay, calm, backed_off_at = host.delay, host.calm, host.backed_off_at
    if policy.adapt:
        if outcome.kind is Kind.SLOWED or (retry_after is not None and outcome.status == 503):
            if lease is None or lease.left_at >= backed_off_at:  # one step per episode, not per reply
                wished = None if retry_after is None else round(retry_after * SECOND)
                delay, calm, backed_off_at = raised(delay, wished, policy), 0, at
        elif delay and not is_trouble:
            calm += 1
            if calm >= CALM:
                delay, calm = sunk(delay, policy), 0
    return _replace(host, latency=latency, delay=delay, calm=calm, backed_off_at=backed_off_at)


def _rested(host: Host, now: Now, policy: Policy, rest: float, *, is_told: bool = False) -> Host:
    """Return the record with a rest of `rest` seconds from now, unless its present rest ends later.

    `is_told`: the site requested the rest.
    """
    until = now.at + round(min(rest, policy.max_retry_after) * SECOND)
    if rest <= 0 or until < host.retry_after_until or (until == host.retry_after_until and not is_told):
        return host
    return _replace(host, retry_after_until=until, told_at=now.at if is_told else 0)


_TROUBLE = (Kind.FAILED, Kind.SLOWED, Kind.BLOCKED)


def _judged(host: Host, now: Now, policy: Policy, lease: Lease | None, outcome: Outcome) -> Host:
    """Update the breaker after a reply (Q4, Q5, U6, C2)."""
    at, left_at = now.at, now.at if lease is None else lease.left_at
    is_failure, is_block = _meaning(outcome, policy)
    wanted = outcome.quota if outcome.retry_after is None else outcome.retry_after
    if host.tripped_at:
        if left_at < host.tripped_at + host.cooldown:
            # The request left before the trip, or a user reported it while open. Only a longer requested rest counts.
            longer = at - host.tripped_at + round(min(wanted or 0.0, policy.max_retry_after) * SECOND)
            return _replace(host, cooldown=longer) if is_block and wanted and longer > host.cooldown else host
        if outcome.kind in _TROUBLE:
            return _tripped(host, at, policy, wanted, host.failed_trials + 1)
        if is_block:
            return _tripped(host, at, policy, wanted, 0)
        return _replace(
            host, tripped_at=0, cooldown=0, failed_trials=0, failures=0, closed_at=at, window_at=at, replies=0, errors=0
        )
    if left_at < host.closed_at:
        return host
    if is_block:
        return _tripped(host, at, policy, wanted, 0)
    if outcome.kind in (Kind.SLOWED, Kind.FAILED) and not is_failure:
        return host  # the host gave a Retry-After, which is obeyed
    window_at, replies, errors = host.window_at, host.replies, host.errors
    if at - window_at > policy.breaker_window * SECOND:
        # The previous window counts half, and nothing if it began two or more windows ago.
        halves = 2 if at - window_at < 2 * policy.breaker_window * SECOND else replies + 1
        window_at, replies, errors = shared(at // SECOND * SECOND), replies // halves, errors // halves
    failures = host.failures + 1 if is_failure else 0
    replies, errors = replies + 1, errors + is_failure
    if is_failure and breaker.too_many(failures, replies, errors, policy):
        return _tripped(host, at, policy, wanted, 0)
    return _replace(host, failures=failures, window_at=window_at, replies=replies, errors=errors)


def _meaning(outcome: Outcome, policy: Policy) -> tuple[bool, bool]:
    """Return whether a reply is a failure, and whether it is a block, which opens the breaker at once (C2).

    With any status, a quota window longer than `obey_retry_after` is a block. So is such a Retry-After if `on_429` is
    `obey`. The breaker then refuses the next request with a retry time instead of making it wait.
    """
    obeyed = policy.obey_retry_after
    if (outcome.quota or 0.0) > obeyed or ((outcome.retry_after or 0.0) > obeyed and policy.on_429 == "obey"):
        return False, True
    if outcome.kind not in _TROUBLE:
        return False, False
    if outcome.kind is Kind.BLOCKED:
        return False, True
    says_when = outcome.retry_after is not None
    if outcome.kind is Kind.SLOWED:
        return False, policy.on_429 == "trip" or (policy.on_429 == "obey" and not says_when)
    return not (outcome.status == 503 and says_when and policy.on_429 == "obey"), False


def _tripped(host: Host, at: int, policy: Policy, retry_after: float | None, failed_trials: int) -> Host:
    return _replace(
        host,
        tripped_at=at,
        cooldown=breaker.cooldown(failed_trials, retry_after, policy),
        failed_trials=failed_trials,
        trips=host.trips + 1,
        failures=0,
        window_at=at,
        replies=0,
        errors=0,
    )


class Reset(msgspec.Struct, frozen=True):
    """User command: close the breaker and end every rest."""


class Trip(msgspec.Struct, frozen=True):
    """User command: open the breaker."""


class Pause(msgspec.Struct, frozen=True):
    """User command: send nothing for `seconds`; None until resumed."""

    seconds: float | None = None


class Resume(msgspec.Struct, frozen=True):
    """User command: end a pause."""


class Override(msgspec.Struct, frozen=True):
    """User command: override limits of the host's policy. Empty `limits` removes all overrides."""

    limits: tuple[tuple[str, float | None], ...] = ()


class CrawlDelay(msgspec.Struct, frozen=True):
    """Crawl-delay of an origin's robots.txt in seconds; None if absent. The longest of several origins applies."""

    seconds: float | None
    origin: str = ""
    joined: bool = False
    """True to keep a longer known delay of this origin, which applies to another client of the host."""


class Spend(msgspec.Struct, frozen=True):
    """Charge for a request that was sent without admission, and for its page if `page` (B10)."""

    page: bool = False


class Return(msgspec.Struct, frozen=True):
    """Return of rate tokens that were not used."""

    lease: Lease
    count: int = 1


class Renew(msgspec.Struct, frozen=True):
    """Lease extension of a slot whose request is still in flight."""

    lease: Lease


Amendment = Renew | Return | Reset | Trip | Pause | Resume | Override | CrawlDelay | Spend


def amend(host: Host | None, now: Now, policy: Policy, change: Amendment) -> Host:
    """Change a record for a user command or a robots.txt.

    Raises PolicyError for an invalid limit or pause.
    """
    given = host = fresh(now) if host is None else in_time(host, now)
    host = _as_of(now, host)
    edit = _replace
    match change:
        case Renew(lease):
            until = now.at + round(lease.lasts * SECOND)
            places = (
                Place(each.number, each.left_at, until) if each.number == lease.number else each for each in host.places
            )
            return edit(host, places=tuple(places))
        case Return(lease, count):
            # Valid once, and only before the next departure: a later return would let two requests leave together.
            if host.serial != lease.number:
                return given
            # With other requests in flight, the last departure may be later than the one that the lease remembers.
            is_alone = not host.places and (policy.concurrency == 1 or not host.requests)
            if host.sent_at == lease.left_at and lease.sent_before >= 0 and is_alone and not host.recent:
                return edit(host, spent=lease.spent_before, sent_at=lease.sent_before, serial=host.serial + 1)
            spent, sent_at, recent = max(0, host.spent - count * TOKEN), host.sent_at, host.recent[:-count]
            if recent and policy.interval_ns:  # the last departure is now an earlier one
                back = (sent_at - recent[-1]) * 1000 * TOKEN // policy.interval_ns  # tokens refilled since then
                spent = spent + back if spent else min(back, len(recent) * TOKEN)
                sent_at = recent[-1]
            return edit(host, spent=spent, sent_at=sent_at, recent=recent, serial=host.serial + 1)
        case Reset():
            return edit(
                host, tripped_at=0, cooldown=0, failed_trials=0, failures=0, closed_at=now.at, retry_after_until=0,
                window_at=now.at, replies=0, errors=0, delay=0, calm=0,
            )  # fmt: skip
        case Trip():
            return _tripped(host, now.at, policy, None, host.failed_trials)
        case Pause(seconds):
            if seconds is None:
                return edit(host, paused_until=-1)
            return edit(host, paused_until=now.at + round(number("seconds", seconds, most=365 * DAY) * SECOND))
        case Resume():
            return edit(host, paused_until=0)
        case Override(limits):
            _changed(policy, limits)  # raises PolicyError before anything is stored
            return edit(host, overrides=limits)
        case CrawlDelay(seconds, origin, joined):
            delay = round(min(seconds or 0.0, 30 * DAY) * SECOND)  # larger than any max_crawl_delay
            if joined:
                delay = max(delay, dict(host.delays).get(origin, 0))
            others = tuple(each for each in host.delays if each[0] != origin)
            delays = with_delays(others, ((origin, delay),)) if delay else others
            longest = delays[-1][1] if delays else 0
            is_known = longest == host.crawl_delay and delays == host.delays
            return given if is_known else edit(host, crawl_delay=longest, delays=delays)
        case Spend(page):
            spending = host.spending(now, policy.calendar)
            return edit(
                host,
                day=spending.charged(1, int(page), now.at),
                earlier=spending.earlier,
                jumped_at=spending.jumped_at,
                requests=host.requests + 1,
                pages=host.pages + page,
            )


def _as_of(now: Now, host: Host) -> Host:
    """Return the record with the time of this write. Its instants are on the present clock already."""
    return _replace(host, offset=offset_at(now), written_at=now.at)


OVERRIDABLE = {
    "qps": float, "burst": float, "concurrency": int, "delay": float, "pause_min": float, "pause_max": float,
    "max_requests_per_day": int, "max_pages_per_day": int,
}  # fmt: skip
"""Limits that can be overridden while running, and the type of each."""


@lru_cache(maxsize=1024)
def _overridden(policy: Policy, limits: tuple[tuple[str, float | None], ...]) -> Policy:
    """Return the policy with the overrides applied.

    Overrides that have become invalid because the settings changed are skipped.
    """
    try:
        return _changed(policy, limits)
    except PolicyError:
        for limit in (*limits, *limits):  # two passes, because a limit may become valid only after another
            try:
                policy = _changed(policy, (limit,))
            except PolicyError:
                continue
        return policy


def _changed(policy: Policy, limits: tuple[tuple[str, float | None], ...]) -> Policy:
    changes: dict[str, float | None] = {}
    for name, value in limits:
        if name not in OVERRIDABLE:
            raise PolicyError(f"{name} cannot be changed while running. These can: {', '.join(OVERRIDABLE)}.")
        is_whole = OVERRIDABLE[name] is int and isinstance(value, float) and value.is_integer()
        changes[name] = int(value) if is_whole and value is not None else value
    return policy.replace(**changes)
