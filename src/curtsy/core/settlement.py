"""Settlement: decide and record what a reply changes for its host.

Pure: a store runs `settle()` as one atomic step, and may run it again.
"""

from __future__ import annotations

import msgspec

from curtsy.core import breaker
from curtsy.core.admission import ready_in
from curtsy.core.budget import refunded, shared
from curtsy.core.decision import Lease, Settled
from curtsy.core.host import USUAL, Host, fresh, in_time, offset_at
from curtsy.core.outcome import Kind, Outcome
from curtsy.core.pace import CALM, raised, smoothed, sunk
from curtsy.core.policy import TOKEN, Policy, overridden
from curtsy.core.time import SECOND, Now

_replace = msgspec.structs.replace

_TROUBLE = (Kind.FAILED, Kind.SLOWED, Kind.BLOCKED)


def settle(host: Host | None, now: Now, policy: Policy, lease: Lease | None, outcome: Outcome) -> Host:
    """Record the consequences of a reply in the host's record.

    Without a lease, the caller reports a result (`record_success`, `record_failure`). Nothing was charged then, so no
    charge is corrected.
    """
    if host is None:
        host = fresh(now)
    elif host.written_at > now.at or host.boot != now.boot:
        host = in_time(host, now)
    if host.extra is not None and host.extra.overrides:
        policy = overridden(policy, host.extra.overrides)
    if lease is None:
        host = _replace(as_of(now, host), latency=_latency(host, outcome))
    else:
        host = _given_back(host, now, policy, lease, outcome)
    if outcome.kind is Kind.ABANDONED:
        # The outcome does not describe the host, but a retry, as after a proxy failure, still waits (N2).
        return _rested(host, now.at, policy, outcome.rest)
    host = _adapted(host, now.at, policy, lease, outcome)
    return _judged(host, now.at, policy, lease, outcome) if policy.breaker and not outcome.foreign else host


def consequence(host: Host, now: Now, policy: Policy) -> Settled:
    """Return the state of a host whose record was just written."""
    return Settled(ready_in(host, now, policy), max(0, host.closed_until(policy) - now.at) / SECOND)


def _given_back(host: Host, now: Now, policy: Policy, lease: Lease, outcome: Outcome) -> Host:
    """Free the slot unless the outcome keeps it, record the real time of sending and refund unused charges (rule 5).

    The pace stays charged even if nothing was sent, so that an unreachable host is not contacted sooner.
    """
    at, places, day, earlier = now.at, host.places, host.day, host.earlier
    sent_at, spent, recent = host.sent_at, host.spent, host.recent
    until = lease.left_at + lease.lasts * SECOND if policy.concurrency is None else 0.0
    for place in places:
        if place.number == lease.number:
            until = place.until
            if not outcome.keeps_slot:
                places = tuple([each for each in places if each is not place]) if len(places) > 1 else ()
            break
    if lease.day is not None:
        is_free, is_no_page = outcome.is_free, lease.page and not outcome.page
        # No refund after the lease expired: its holder counts as dead, even if it returns. No refund after the calendar
        # jumped either: the charged day is then unknown.
        if (is_free or is_no_page) and at < until and host.jumped_at <= lease.left_at:
            day = refunded(day, lease.day, int(is_free), int(is_no_page))
            earlier = refunded(earlier, lease.day, int(is_free), int(is_no_page))
    if outcome.sent and outcome.sent_ago is not None:
        really = at - round(outcome.sent_ago * SECOND)
        if recent and lease.left_at < really <= at and lease.left_at in recent:
            found = recent.index(lease.left_at)
            recent = tuple(sorted((*recent[:found], *recent[found + 1 :], really)))
        if sent_at < really <= at:
            sent_at, spent = really, max(spent, TOKEN)  # less only if the record was lost meanwhile
    return _replace(
        host, offset=offset_at(now, host.offset), written_at=at, earlier=earlier, day=day, sent_at=sent_at, spent=spent,
        recent=recent, places=places, requests=host.requests + outcome.sent, pages=host.pages + outcome.page,
        status=outcome.status or host.status, latency=_latency(host, outcome),
    )  # fmt: skip


def _adapted(host: Host, at: int, policy: Policy, lease: Lease | None, outcome: Outcome) -> Host:
    """Apply rests, and adapt the delay to the status."""
    is_trouble, retry_after = outcome.kind in _TROUBLE, outcome.retry_after
    if not (is_trouble or outcome.rest or outcome.quota or (host.extra or USUAL).delay):
        return host
    told = outcome.quota or 0.0
    if retry_after is not None and is_trouble:
        told = max(told, retry_after)
    if outcome.rest or told:
        host = _rested(_rested(host, at, policy, outcome.rest), at, policy, told, is_told=True)
    is_slowed = outcome.kind is Kind.SLOWED or (retry_after is not None and outcome.status == 503)
    if not policy.adapt or not (is_slowed or (host.delay and not is_trouble)):
        return host
    if not is_slowed:
        is_calm = host.calm + 1 >= CALM
        return host.replace(
            delay=sunk(host.delay, policy) if is_calm else host.delay, calm=0 if is_calm else host.calm + 1
        )
    if lease is not None and lease.left_at < host.backed_off_at:  # one step per episode, not per reply
        return host
    wished = None if retry_after is None else round(min(retry_after, policy.max_retry_after) * SECOND)
    return host.replace(delay=raised(host.delay, wished, policy), calm=0, backed_off_at=at)


def _latency(host: Host, outcome: Outcome) -> int:
    """Return the smoothed response time after a reply, in microseconds."""
    if outcome.latency is None:
        return host.latency
    latency = smoothed(host.latency, round(outcome.latency * SECOND))
    return host.latency if latency == host.latency else shared(latency)


def _rested(host: Host, at: int, policy: Policy, rest: float, *, is_told: bool = False) -> Host:
    """Return the record with a rest of `rest` seconds from now, unless its present rest ends later.

    `is_told`: the site requested the rest.
    """
    if rest <= 0:
        return host
    until = at + round(min(rest, policy.max_retry_after) * SECOND)
    if until < host.retry_after_until or (until == host.retry_after_until and not is_told):
        return host
    return host.replace(retry_after_until=until, told_at=at if is_told else 0)


def _judged(host: Host, at: int, policy: Policy, lease: Lease | None, outcome: Outcome) -> Host:
    """Update the breaker after a reply (Q4, Q5, U6, C2)."""
    left_at = at if lease is None else lease.left_at
    is_failure, is_block = _meaning(outcome, policy)
    wanted = outcome.quota if outcome.retry_after is None else outcome.retry_after
    extra = host.extra or USUAL
    if extra.tripped_at:
        return _judged_open(host, at, policy, left_at, outcome, wanted, is_block)
    if left_at < extra.closed_at:
        return host
    if is_block:
        return tripped(host, at, policy, _block(outcome, policy), wanted)
    if outcome.kind in (Kind.SLOWED, Kind.FAILED) and not is_failure:
        return host  # the host gave a Retry-After, which is obeyed
    window_at, replies, errors = host.window_at, host.replies, extra.errors
    if at - window_at > policy.breaker_window * SECOND:
        # The previous window counts half, and nothing if it began two or more windows ago.
        halves = 2 if at - window_at < 2 * policy.breaker_window * SECOND else replies + 1
        window_at, replies, errors = shared(at // SECOND * SECOND), replies // halves, errors // halves
    failures = extra.failures + 1 if is_failure else 0
    replies, errors = replies + 1, errors + is_failure
    if is_failure and breaker.too_many(failures, replies, errors, policy):
        return tripped(host, at, policy, _cause("failures", outcome), wanted)
    if failures != extra.failures or errors != extra.errors:
        host = host.replace(failures=failures, errors=errors)
    return _replace(host, window_at=window_at, replies=replies)


def _judged_open(
    host: Host, at: int, policy: Policy, left_at: int, outcome: Outcome, wanted: float | None, is_block: bool
) -> Host:
    """Update a breaker that is open: a trial closes it, or opens it for longer."""
    if left_at < host.tripped_at + host.cooldown:
        # The request left before the trip, or a user reported it while open. Only a longer requested rest counts.
        longer = at - host.tripped_at + round(min(wanted or 0.0, policy.max_retry_after) * SECOND)
        return host.replace(cooldown=longer) if is_block and wanted and longer > host.cooldown else host
    if outcome.kind in _TROUBLE:
        return tripped(host, at, policy, _cause("trial", outcome), wanted, host.failed_trials + 1)
    return tripped(host, at, policy, _cause("rest", outcome), wanted) if is_block else untripped(host, at)


def _meaning(outcome: Outcome, policy: Policy) -> tuple[bool, bool]:
    """Return whether a reply is a failure, and whether it is a block, which opens the breaker at once (C2).

    With any status, a quota window longer than `obey_retry_after` is a block. So is such a Retry-After if `on_429` is
    `obey`. The breaker then refuses the next request with a retry time instead of making it wait.
    """
    if outcome.kind not in _TROUBLE and outcome.quota is None and outcome.retry_after is None:
        return False, False
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


def _block(outcome: Outcome, policy: Policy) -> str:
    """Return the cause of a trip by one reply: a requested rest that is too long, or else its status."""
    longest = max(outcome.quota or 0.0, outcome.retry_after or 0.0)
    return _cause("rest" if longest > policy.obey_retry_after else "block", outcome)


def _cause(name: str, outcome: Outcome) -> str:
    """Return a cause from `breaker.CAUSES` with the status of the reply or the reason code of the failure, if known.

    A status of success is no cause: a body that came too slowly fails with `timeout`, although its status was 200.
    """
    is_cause = outcome.status >= 400 or not outcome.failure
    return f"{name}:{(is_cause and outcome.status) or outcome.failure}".rstrip(":")


def tripped(
    host: Host, at: int, policy: Policy, by: str, retry_after: float | None = None, failed_trials: int = 0
) -> Host:
    """Return the record with its breaker opened now, `by` a cause."""
    return host.replace(
        tripped_at=at, tripped_by=by, cooldown=breaker.cooldown(failed_trials, retry_after, policy),
        failed_trials=failed_trials, trips=host.trips + 1, failures=0, window_at=at, replies=0, errors=0,
    )  # fmt: skip


def untripped(host: Host, at: int) -> Host:
    """Return the record with its breaker closed now."""
    return host.replace(
        tripped_at=0, tripped_by="", cooldown=0, failed_trials=0, failures=0, closed_at=at, window_at=at,
        replies=0, errors=0,
    )  # fmt: skip


def as_of(now: Now, host: Host) -> Host:
    """Return the record with the time of this write. Its instants are on the present clock already."""
    return _replace(host, offset=offset_at(now), written_at=now.at)
