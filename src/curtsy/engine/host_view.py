"""Read-only views of hosts and crawls in a store, for display and JSON."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from curtsy.core.admission import admit
from curtsy.core.breaker import State
from curtsy.core.budget import Spending
from curtsy.core.crawl_record import CrawlRecord, crawl_key
from curtsy.core.decision import Go, Wait
from curtsy.core.errors import PolicyError
from curtsy.core.host import Host, fresh, in_time
from curtsy.core.message import SECOND, Now
from curtsy.core.policy import OVERRIDABLE, Policies, Policy
from curtsy.core.setting import DAY
from curtsy.stores import Store, read_all


@dataclass(frozen=True, slots=True)
class HostView:
    """State of a host at one moment. Durations are in seconds."""

    domain: str
    next_in: float | None
    """Seconds until the next page may be requested; None if unknown (paused until resumed)."""

    waiting_for: str | None
    """Cause of that wait, from `Wait.because` or `Reason`; None without a wait."""

    requests_today: int
    max_requests_per_day: int
    """Daily request limit; 0 means unlimited."""

    pages_today: int
    max_pages_per_day: int
    budget_resets_in: float
    breaker: str
    """Breaker state: `closed`, `open` or `half_open`."""

    breaker_left: float | None
    """Seconds until the open breaker allows a trial; None if it is not open."""

    failures: int
    """Consecutive failures."""

    trips: int
    """Number of times the breaker has opened."""

    paused: bool
    paused_left: float | None
    """Seconds left of a pause; None without a pause, or for one that lasts until resumed."""

    in_flight: int
    last_asked_ago: float | None
    last_status: int | None
    requests: int
    """Requests sent in total."""

    pages: int
    """Pages received in total."""

    crawl_delay: float | None
    """Delay that robots.txt requests."""

    adapted_delay: float | None
    """Delay that adaptive pacing has reached."""

    latency: float | None
    """Smoothed response time."""

    changed_limits: dict[str, float | None]
    """Limits that a user changed, which override the policy."""


def _reset_in(spending: Spending, now: Now, policy: Policy) -> float:
    """Return the seconds until the budget resets, or until a reached limit has room again."""
    opens = [spending.day.ends - now.epoch / SECOND]
    if 0 < policy.max_requests_per_day <= spending.requests:
        opens.append(spending.opens_in(policy.max_requests_per_day, "requests", now))
    elif 0 < policy.max_pages_per_day <= spending.pages:
        opens.append(spending.opens_in(policy.max_pages_per_day, "pages", now))
    return opens[-1]


def view_of(domain: str, host: Host | None, now: Now, policy: Policy) -> HostView:
    """Return the view of a host; a `host` of None is an unknown one."""
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
    """Return the policy with the user's changed limits; without them if they are invalid for it."""
    changes: dict[str, Any] = {
        name: int(value) if value is not None and OVERRIDABLE.get(name) is int else value
        for name, value in host.overrides
    }
    try:
        return policy.replace(**changes) if changes else policy
    except (PolicyError, TypeError):  # written by another curtsy version, or the settings changed since
        return policy


def pace_alone(host: Host | None, now: Now, policy: Policy) -> Wait | None:
    """Return the wait due to rate, pause and delays alone; None if they impose no wait."""
    if host is None:
        return None
    bare = msgspec.structs.replace(in_time(host, now), places=(), retry_after_until=0, tripped_at=0, paused_until=0)
    free = policy.replace(breaker=False, max_requests_per_day=0, max_pages_per_day=0, max_crawl_delay=DAY)
    decision = admit(bare, now, free)[1]
    return decision if isinstance(decision, Wait) else None


def views(store: Store, policies: Policies, domain: str | None = None) -> list[HostView]:
    """Return the hosts of a store, the last requested first: all, or a domain and its subdomains."""
    names = [key.removeprefix("host:") for key in store.keys("host:")]
    found = [(name, store.read(f"host:{name}")) for name in names if domain is None or is_under(name, domain)]
    views = [view_of(name, host, store.now(), policies.of(name)) for name, host in found if isinstance(host, Host)]
    return sorted(views, key=lambda view: (view.last_asked_ago is None, view.last_asked_ago or 0.0, view.domain))


def is_under(name: str, domain: str) -> bool:
    """Return whether a host is a domain or its subdomain. The port is ignored unless `domain` has one."""
    host = name.rpartition(":")[0] if name.rpartition(":")[2].isdigit() and not name.endswith("]") else name
    return any(each == domain or each.endswith("." + domain) for each in (name, host))


def read_crawls(store: Store) -> list[CrawlRecord]:
    """Return the crawl records of a store: running crawls first, then the latest."""
    crawls = [each for _, each in read_all(store, crawl_key("")) if isinstance(each, CrawlRecord)]
    return sorted(crawls, key=lambda each: (each.state in ("stopped", "finished"), -each.started_at, each.job))
