"""Requests for admission, and the steps of the gate: atomic changes of a record, run by a store."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from curtsy.core.admission import admit, forecast, refusal_of_part
from curtsy.core.amendment import Amendment, Return, Spend, amend
from curtsy.core.decision import Decision, Lease, No, Settled
from curtsy.core.host import USUAL, Host
from curtsy.core.outcome import Kind, Outcome
from curtsy.core.policy import Policy
from curtsy.core.settlement import consequence, settle
from curtsy.core.time import Now
from curtsy.stores import Step


class Request(msgspec.Struct, frozen=True, gc=False):
    """Request for admission."""

    key: str
    policy: Policy
    overall: Policy | None = None
    """Policy of the global rate; None for no global rate."""

    page: bool = True
    robots: bool = False
    count: int = 1
    """Rate tokens needed together."""

    deadline: float | None = None
    """Maximum seconds to wait; None for no limit."""

    renew: Callable[[], tuple[str, Policy, Policy | None] | No] | None = None
    """Function that returns the current key, host policy and global policy, which may change during a wait.

    It returns a No if the request is now forbidden.
    """

    crawl_delay: int = 0
    """Microseconds of Crawl-delay for this user agent, whatever the record says."""

    rank: float | None = None
    """Position among the waiters at the front of the queue, lowest first; None for the end of the queue."""

    foreign: bool = False
    """True if a redirect from another registered domain led here (C22)."""

    guest: bool = False
    """True if that redirect was of a robots.txt."""

    @property
    def global_policy(self) -> Policy | None:
        """Return the policy of the global rate that limits this request; None if none does."""
        return None if self.overall is None or self.overall.qps is None else self.overall

    def current(self) -> Request | No:
        """Return the request under the current policies, or a No if they forbid it."""
        if self.renew is None:
            return self
        renewed = self.renew()
        if isinstance(renewed, No):
            return renewed
        key, policy, overall = renewed
        if policy is self.policy and overall is self.overall and key == self.key:
            return self
        return msgspec.structs.replace(self, key=key, policy=policy, overall=overall)

    def charge(self, policy: Policy, roll: float) -> Step[tuple[Decision, int]]:
        """Return the step that admits and charges the request; see `charge()`."""
        return charge(
            policy, roll, page=self.page, robots=self.robots, count=self.count, crawl_delay=self.crawl_delay,
            foreign=self.foreign, guest=self.guest,
        )  # fmt: skip

    def look(self) -> Step[Decision]:
        """Return the step that decides without changing the record."""
        charged = self.charge(self.policy, 0.0)
        return lambda host, now: (host, charged(host, now)[1][0])

    def foresee(self, ahead: int, more: int) -> Step[float]:
        """Return the step that computes the minimum wait in seconds.

        `ahead` waiters are in front; they and this request need `more` tokens beyond one each.
        """
        return foresee(self.policy, ahead, self.crawl_delay, more, self.count)


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


def uncharged(policy: Policy, lease: Lease, count: int = 1) -> Step[None]:
    """Return the step that reverts the charge of a lease."""

    def step(host: Host | None, now: Now) -> tuple[Host, None]:
        host = settle(host, now, policy, lease, Outcome(Kind.ABANDONED, sent=False))
        return amend(host, now, policy, Return(lease, count)), None

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
        trips = 0 if host is None else (host.extra or USUAL).trips
        host = settle(host, now, policy, lease, outcome)
        return host, (consequence(host, now, policy), (host.extra or USUAL).trips > trips)

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


def followed(policy: Policy) -> Step[No | None]:
    """Return the step that charges a part of a page in the turn of the page, or answers why it is refused."""

    def step(host: Host | None, now: Now) -> tuple[Host | None, No | None]:
        refused = None if host is None else refusal_of_part(host, now, policy)
        return (amend(host, now, policy, Spend()), None) if refused is None else (host, refused)

    return step
