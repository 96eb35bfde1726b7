"""HostView: what is known of one host, as figures of the moment, ready to be shown or written as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec

from curtsy.core.admission import OVERRIDABLE, Go, Wait, admit
from curtsy.core.breaker import State
from curtsy.core.budget import Spending
from curtsy.core.errors import PolicyError
from curtsy.core.host import Host, fresh, in_time
from curtsy.core.message import SECOND, Now
from curtsy.core.policy import DAY, Policies, Policy
from curtsy.stores import Store


@dataclass(frozen=True, slots=True)
class HostView:
    """One host as of one moment. Durations are seconds."""

    domain: str
    next_in: float | None
    """Until the next page can be asked for; None if nobody knows (paused until resumed)."""

    waiting_for: str | None
    """What that wait is for, as `Wait.because` or a `Reason` has it; None if there is none."""

    requests_today: int
    max_requests_per_day: int
    """0 for unlimited."""

    pages_today: int
    max_pages_per_day: int
    budget_resets_in: float
    breaker: str
    """`closed`, `open` or `half_open`."""

    breaker_left: float | None
    """How long it stays open; None if it is not."""

    failures: int
    """In a row."""

    trips: int
    """Times that the breaker has opened."""

    paused: bool
    paused_left: float | None
    """None if it is not paused, or until it is resumed."""

    in_flight: int
    last_asked_ago: float | None
    last_status: int | None
    requests: int
    """Sent, ever."""

    pages: int
    """Received, ever."""

    crawl_delay: float | None
    """What its robots.txt asks for."""

    adapted_delay: float | None
    """What its pace was slowed to."""

    latency: float | None
    """Its response time, smoothed."""

    changed_limits: dict[str, float | None]
    """By hand, over its policy."""


def _reset_in(spending: Spending, now: Now, policy: Policy) -> float:
    """Seconds until what was spent counts no more, or some of it, if a limit is reached."""
    opens = [spending.day.ends - now.epoch / SECOND]
    if 0 < policy.max_requests_per_day <= spending.requests:
        opens.append(spending.opens_in(policy.max_requests_per_day, "requests", now))
    elif 0 < policy.max_pages_per_day <= spending.pages:
        opens.append(spending.opens_in(policy.max_pages_per_day, "pages", now))
    return opens[-1]


def view_of(domain: str, host: Host | None, now: Now, policy: Policy) -> HostView:
    """The figures of one host; None is one that nothing is known of."""
    host = fresh(now) if host is None else in_time(host, now)
    policy = changed(policy, host)
    decision = admit(host, now, policy)[1]
    match decision:
        case Go():
            next_in: float | None = 0.0
            waiting_for = None
        case Wait(seconds, because):
            next_in, waiting_for = seconds, because
        case no:
            next_in, waiting_for = no.retry_after, no.reason.value
    spending = host.spending(now, policy.calendar)
    state = host.breaker_state(now) if policy.breaker else State.CLOSED
    is_paused = host.paused_until < 0 or host.paused_until > now.at
    return HostView(
        domain=domain,
        next_in=next_in,
        waiting_for=waiting_for,
        requests_today=spending.requests,
        max_requests_per_day=policy.max_requests_per_day,
        pages_today=spending.pages,
        max_pages_per_day=policy.max_pages_per_day,
        budget_resets_in=_reset_in(spending, now, policy),
        breaker=state.value,
        breaker_left=_seconds(host.tripped_at + host.cooldown - now.at) if state is State.OPEN else None,
        failures=host.failures,
        trips=host.trips,
        paused=is_paused,
        paused_left=_seconds(host.paused_until - now.at) if is_paused and host.paused_until > 0 else None,
        in_flight=sum(place.until > now.at for place in host.places),
        last_asked_ago=_seconds(now.at - host.sent_at) if host.sent_at else None,
        last_status=host.status or None,
        requests=host.requests,
        pages=host.pages,
        crawl_delay=_seconds(host.crawl_delay) if host.crawl_delay else None,
        adapted_delay=_seconds(host.delay) if host.delay else None,
        latency=_seconds(host.latency) if host.latency else None,
        changed_limits=dict(host.overrides),
    )


def _seconds(microseconds: int) -> float:
    return microseconds / SECOND


def changed(policy: Policy, host: Host) -> Policy:
    """The policy with the limits that were changed by hand, as far as they fit it."""
    changes: dict[str, Any] = {
        name: int(value) if value is not None and OVERRIDABLE.get(name) is int else value
        for name, value in host.overrides
    }
    try:
        return policy.replace(**changes) if changes else policy
    except (PolicyError, TypeError):  # of another version of curtsy, or the settings have changed since
        return policy


def pace_alone(host: Host | None, now: Now, policy: Policy) -> Wait | None:
    """What rate, pause and delays alone ask to wait, whatever else stands in the way; None for nothing."""
    if host is None:
        return None
    bare = msgspec.structs.replace(in_time(host, now), places=(), retry_after_until=0, tripped_at=0, paused_until=0)
    free = policy.replace(breaker=False, max_requests_per_day=0, max_pages_per_day=0, max_crawl_delay=DAY)
    decision = admit(bare, now, free)[1]
    return decision if isinstance(decision, Wait) else None


def views(store: Store, policies: Policies, domain: str | None = None) -> Iterator[HostView]:
    """The hosts that a store knows: all, or a domain and the hosts under it."""
    for key in store.keys("host:"):
        name = key.removeprefix("host:")
        if domain is not None and not is_under(name, domain):
            continue
        host = store.read(key)
        if isinstance(host, Host):
            yield view_of(name, host, store.now(), policies.of(name))


def is_under(name: str, domain: str) -> bool:
    """Whether a host is a domain or lies under it, on any port unless the domain has one."""
    host = name.rpartition(":")[0] if name.rpartition(":")[2].isdigit() and not name.endswith("]") else name
    return any(each == domain or each.endswith("." + domain) for each in (name, host))
