"""Steps of the gate: atomic changes of a record, run by a store."""

from __future__ import annotations

from typing import Required, TypedDict, Unpack

from curtsy.core.admission import admit, forecast
from curtsy.core.amendment import Amendment, Return, amend
from curtsy.core.decision import Decision, Lease, Settled
from curtsy.core.host import Host
from curtsy.core.message import Now
from curtsy.core.outcome import Kind, Outcome
from curtsy.core.policy import Policy
from curtsy.core.settlement import consequence, settle
from curtsy.stores import Step


class Case(TypedDict, total=False):
    """Arguments of `admit()` that describe a request."""

    page: Required[bool]
    robots: bool
    count: int
    crawl_delay: int
    foreign: bool
    guest: bool


def charge(policy: Policy, roll: float, **case: Unpack[Case]) -> Step[tuple[Decision, int]]:
    """Return the step that admits and charges; it answers the decision and its epoch in microseconds."""

    def step(host: Host | None, now: Now) -> tuple[Host | None, tuple[Decision, int]]:
        host, decision = admit(host, now, policy, roll, **case)
        return host, (decision, now.epoch)

    return step


def uncharged(policy: Policy, lease: Lease, count: int = 1) -> Step[None]:
    """Return the step that reverts the charge of a lease."""

    def step(host: Host | None, now: Now) -> tuple[Host, None]:
        host = settle(host, now, policy, lease, Outcome(Kind.ABANDONED, sent=False))
        return amend(host, now, policy, Return(lease, count)), None

    return step


def look(policy: Policy, **case: Unpack[Case]) -> Step[Decision]:
    """Return the step that decides without changing the record."""
    return lambda host, now: (host, admit(host, now, policy, **case)[1])


def foresee(policy: Policy, ahead: int, crawl_delay: int = 0, more: int = 0, count: int = 1) -> Step[float]:
    """Return the step that computes the minimum wait in seconds.

    `ahead` waiters are in front; they and this request need `more` tokens beyond one each.
    """

    def step(host: Host | None, now: Now) -> tuple[Host | None, float]:
        return host, forecast(host, now, policy, ahead, crawl_delay, more, count)

    return step


def take(overall: Policy, count: int) -> Step[Decision]:
    """Return the step that takes tokens of the global rate."""

    def step(host: Host | None, now: Now) -> tuple[Host | None, Decision]:
        return admit(host, now, overall, page=False, count=count, scheduled=True)

    return step


def give_back(overall: Policy, token: Lease, count: int = 1) -> Step[None]:
    """Return the step that returns tokens of the global rate."""

    def step(host: Host | None, now: Now) -> tuple[Host | None, None]:
        return (None, None) if host is None else (amend(host, now, overall, Return(token, count)), None)

    return step


def settled(policy: Policy, lease: Lease | None, outcome: Outcome) -> Step[tuple[Settled, bool]]:
    """Return the step that records the consequences of a reply.

    It answers the host's new state, and whether this reply opened the breaker.
    """

    def step(host: Host | None, now: Now) -> tuple[Host, tuple[Settled, bool]]:
        trips = 0 if host is None else host.trips
        host = settle(host, now, policy, lease, outcome)
        return host, (consequence(host, now, policy), host.trips > trips)

    return step


def amended(policy: Policy, change: Amendment) -> Step[Host]:
    """Return the step that applies a user's change; it answers the new record."""

    def step(host: Host | None, now: Now) -> tuple[Host, Host]:
        host = amend(host, now, policy, change)
        return host, host

    return step


def amended_if_known(policy: Policy, change: Amendment) -> Step[Host | None]:
    """Return the same step for existing records only; it answers None without a record."""

    def step(host: Host | None, now: Now) -> tuple[Host | None, Host | None]:
        host = None if host is None else amend(host, now, policy, change)
        return host, host

    return step
