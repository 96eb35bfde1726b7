"""Read-only views of the hosts in a store, for display and JSON."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from curtsy.core.admission import admit
from curtsy.core.breaker import State
from curtsy.core.budget import Spending
from curtsy.core.decision import Go, Wait
from curtsy.core.errors import PolicyError, Reason
from curtsy.core.host import Host, fresh, in_time
from curtsy.core.policy import OVERRIDABLE, Policies, Policy
from curtsy.core.setting import DAY
from curtsy.core.time import SECOND, Now
from curtsy.stores import Store, for_threads
from curtsy.stores.survey import HOSTS, Survey

RECENT = 1_000
"""Number of hosts used last that a list has."""

TROUBLED = 10_000
"""Maximum number of hosts in trouble that a list has."""

FOUND = 10_000
"""Maximum number of hosts that a search by domain examines."""


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

    opened_by: str | None
    """What opened the breaker, such as `block:403` or `failures:500`; None while it is closed, or if unknown."""

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

    @property
    def is_in_trouble(self) -> bool:
        """Return whether requests are refused, or wait for more than the usual pace."""
        return self.paused or self.breaker != State.CLOSED or self.waiting_for in _TROUBLE


_TROUBLE = ("rest", Reason.CIRCUIT_OPEN, Reason.DOMAIN_BUDGET_EXCEEDED, Reason.CRAWL_DELAY_TOO_LONG)
"""Causes of a wait that are trouble. A rest that is too long to wait for refuses requests like an open breaker."""


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
        opened_by=host.tripped_by or None,
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
    bare = in_time(host, now).replace(places=(), retry_after_until=0, tripped_at=0, paused_until=0)
    free = policy.replace(breaker=False, max_requests_per_day=0, max_pages_per_day=0, max_crawl_delay=DAY)
    decision = admit(bare, now, free)[1]
    return decision if isinstance(decision, Wait) else None


@dataclass(frozen=True, slots=True)
class HostList:
    """Hosts to show, of all hosts that a store knows."""

    views: list[HostView]
    """Hosts in the order of their last requests, the latest first."""

    total: int
    """Number of known hosts: all, or those of the requested domain."""

    in_trouble: int = 0
    """Number of hosts that had trouble at their last use: a tripped breaker, a pause, a requested rest."""

    is_exact: bool = True
    """False if `total` is an estimate."""

    @property
    def is_complete(self) -> bool:
        """Return whether the list has every host."""
        return self.is_exact and len(self.views) >= self.total


def list_hosts(store: Store, policies: Policies, domain: str | None = None, also: Iterable[str] = ()) -> HostList:
    """Return the hosts used last, those in trouble and `also` the named ones; or a domain and its subdomains.

    The cost is bounded: it does not grow with the number of hosts, except for a search by domain in C.
    """
    reader = for_threads(store)
    if domain is not None:
        found = reader.page(HOSTS, part=domain, most=FOUND)
        hosts = {
            key: host for key, host in found if is_under(key.removeprefix(HOSTS), domain) and is_used(key, policies)
        }
        shared = reader.read(policies.of(domain).key_for(domain))  # a host without a record of its own may share one
        if isinstance(shared, Host):
            hosts[f"{HOSTS}{domain}"] = shared
        survey = Survey(hosts, len(hosts), 0, len(found) < FOUND)
    else:
        survey = reader.survey(RECENT, TROUBLED)
        if len(survey.hosts) < survey.total:
            named = {key: reader.read(key) for key in {f"{HOSTS}{name}" for name in also} - survey.hosts.keys()}
            survey = survey.overlaid({key: host for key, host in named.items() if isinstance(host, Host)})
        survey = survey.only(lambda key: is_used(key, policies))
    return HostList(_sorted_views(survey.hosts.items(), reader.now(), policies), *survey[1:])


def is_used(key: str, policies: Policies) -> bool:
    """Return whether a host's record is in use. One from before its hosts were `shared` is not: theirs is another."""
    return policies.of(key.removeprefix(HOSTS)).key_for(key.removeprefix(HOSTS)) == key


def joined(lists: Iterable[HostList]) -> HostList:
    """Return several lists as one, with each host once."""
    several = list(lists)
    views = list({view.domain: view for each in several for view in each.views}.values())
    doubled = sum(len(each.views) for each in several) - len(views)
    total, troubled = sum(each.total for each in several), sum(each.in_trouble for each in several)
    return HostList(views, total - doubled, troubled, all(each.is_exact for each in several))


def views(store: Store, policies: Policies, domain: str | None = None) -> list[HostView]:
    """Return the hosts of `list_hosts`, the last requested first: a source of host metrics."""
    return list_hosts(store, policies, domain).views


def every_view(store: Store, policies: Policies, domain: str | None = None) -> Iterator[HostView]:
    """Yield every host, or a domain and its subdomains, by name and in bounded memory."""
    reader, after = for_threads(store), ""
    while found := reader.page(HOSTS, part=domain or "", after=after, most=RECENT):
        now, after = reader.now(), found[-1][0]
        for key, host in found:
            name = key.removeprefix(HOSTS)
            if isinstance(host, Host) and (domain is None or is_under(name, domain)) and is_used(key, policies):
                yield view_of(name, host, now, policies.of(name))


def _sorted_views(hosts: Iterable[tuple[str, Any]], now: Now, policies: Policies) -> list[HostView]:
    named = [(key.removeprefix(HOSTS), host) for key, host in hosts if isinstance(host, Host)]
    views = [view_of(name, host, now, policies.of(name)) for name, host in named]
    return sorted(views, key=lambda view: (view.last_asked_ago is None, view.last_asked_ago or 0.0, view.domain))


def is_under(name: str, domain: str) -> bool:
    """Return whether a host is a domain or its subdomain. The port is ignored unless `domain` has one."""
    host = name.rpartition(":")[0] if name.rpartition(":")[2].isdigit() and not name.endswith("]") else name
    return any(each == domain or each.endswith("." + domain) for each in (name, host))
