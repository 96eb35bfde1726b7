"""Steps of the gate: atomic changes of a record, run by a store."""

from __future__ import annotations

from curtsy.core.admission import admit, forecast
from curtsy.core.amendment import Amendment, Return, amend
from curtsy.core.decision import Decision, Go, Lease, Settled
from curtsy.core.host import Host
from curtsy.core.message import Now
from curtsy.core.outcome import Kind, Outcome
from curtsy.core.policy import Policy
from curtsy.core.settlement import consequence, settle
from curtsy.stores import Step


def charge(
    policy: Policy,
    roll: float,
    *,
    page: bool,
    robots: bool = False,
    count: int = 1,
    crawl_delay: int = 0,
    foreign: bool = False,
    guest: bool = False,
) -> Step[tuple[Decision, int]]:
    """Return the step that admits and charges; it answers the decision and its epoch in microseconds."""

    def step(host: Host | None, now: Now) -> tuple[Host | None, tuple[Decision, int]]:
        host, decision = admit(
            host, now, policy, roll, page=page, robots=robots, count=count, crawl_delay=crawl_delay, foreign=foreign,
            guest=guest,
        )  # fmt: skip
        return host, (decision, now.epoch)

    return step


def uncharge(policy: Policy, count: int, answer: tuple[Decision, int]) -> Step[None] | None:
    """Return the step that reverts a charge (slot, budget, tokens); None if nothing was charged."""
    decision, _ = answer
    return uncharged(policy, decision.lease, count) if isinstance(decision, Go) else None


def uncharged(policy: Policy, lease: Lease, count: int = 1) -> Step[None]:
    """Return the step that reverts the charge of a lease."""

    def step(host: Host | None, now: Now) -> tuple[Host, None]:
        host = settle(host, now, policy, lease, Outcome(Kind.ABANDONED, sent=False))
        return amend(host, now, policy, Return(lease, count)), None

    return step


def look(
    policy: Policy,
    *,
    page: bool,
    robots: bool = False,
    count: int = 1,
    crawl_delay: int = 0,
    foreign: bool = False,
    guest: bool = False,
) -> Step[Decision]:
    """Return the step that decides without changing the record."""
    deciding = charge(
        policy, 0.0, page=page, robots=robots, count=count, crawl_delay=crawl_delay, foreign=foreign, guest=guest
    )  # fmt: skip

    def step(host: Host | None, now: Now) -> tuple[Host | None, Decision]:
        return host, deciding(host, now)[1][0]

    return step


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


def untake(overall: Policy, count: int, decision: Decision) -> Step[None] | None:
    """Return the step that returns taken tokens; None if no token was taken."""
    return give_back(overall, decision.lease, count) if isinstance(decision, Go) else None


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
