"""Alerts for operators (Q10), derived from the statistics and the host records.

breaker_open          a breaker is open
many_blocked          open breakers refused more than a tenth of the last hour's requests
many_trips            breakers opened more than five times in the last hour
budget_nearly_used    a host has used at least nine tenths of its daily budget
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

import msgspec

from curtsy.core.breaker import State
from curtsy.core.record import alarming
from curtsy.core.statistics import StatisticsSnapshot
from curtsy.system.log import LibraryLogger, library_logger

NEARLY = 0.9
"""Share of the daily budget at which a host counts as nearly used up."""

MOST_NAMED = 10
"""Maximum number of hosts named in an alert."""

ALERTS = ("breaker_open", "many_blocked", "many_trips", "budget_nearly_used")
"""All alert names, in the order of their output."""


class Watched(Protocol):
    """State of a host at one moment, as far as alerts need it. `HostView` implements it."""

    @property
    def domain(self) -> str:
        """Return the host's name."""
        ...

    @property
    def breaker(self) -> str:
        """Return `closed`, `open` or `half_open`."""
        ...

    @property
    def requests_today(self) -> int:
        """Return the requests counted against today's budget."""
        ...

    @property
    def max_requests_per_day(self) -> int:
        """Return the daily request limit; 0 means unlimited."""
        ...

    @property
    def pages_today(self) -> int:
        """Return the pages counted against today's budget."""
        ...

    @property
    def max_pages_per_day(self) -> int:
        """Return the daily page limit; 0 means unlimited."""
        ...


class Alert(msgspec.Struct, frozen=True):
    """Condition that an operator should look at."""

    name: str
    """Name from `ALERTS`."""

    message: str
    """Sentence that describes the condition, with its values."""

    domains: tuple[str, ...] = ()
    """First `MOST_NAMED` affected hosts; empty if the alert concerns all hosts together."""


def budget_used(host: Watched) -> float:
    """Return the used share of the daily budget: the larger of requests and pages."""
    spent = ((host.requests_today, host.max_requests_per_day), (host.pages_today, host.max_pages_per_day))
    return max((count / limit for count, limit in spent if limit), default=0.0)


def alerts_of(statistics: StatisticsSnapshot, hosts: Iterable[Watched] = ()) -> tuple[Alert, ...]:
    """Return the alerts for the last hour's counts and the hosts' current state."""
    lately, hosts = statistics.lately, list(hosts)
    tripped = [host.domain for host in hosts if host.breaker == State.OPEN]
    spent = [host.domain for host in hosts if budget_used(host) >= NEARLY]
    asked = lately.requests + lately.blocked
    found = []
    for name in alarming(asked, lately.blocked, lately.trips, len(tripped)):
        if name == "breaker_open":
            found.append(
                Alert(name, f"The circuit breaker is open for {_named(tripped)}.", tuple(tripped[:MOST_NAMED]))
            )
        elif name == "many_blocked":
            share = f"{lately.blocked:,} of {asked:,} requests"
            found.append(Alert(name, f"In the last hour {share} were refused because a breaker was open."))
        else:
            found.append(Alert(name, f"In the last hour breakers opened {lately.trips:,} times."))
    if spent:
        words = f"Nine tenths of the day's budget, or more, are used for {_named(spent)}."
        found.append(Alert("budget_nearly_used", words, tuple(spent[:MOST_NAMED])))
    return tuple(found)


def _named(domains: list[str]) -> str:
    shown, more = ", ".join(domains[:MOST_NAMED]), len(domains) - MOST_NAMED
    return f"{shown} and {more:,} more" if more > 0 else shown


class AlertWatch:
    """Log of alerts: one entry when an alert begins, one when it ends."""

    def __init__(self, log: LibraryLogger | None = None) -> None:
        self._log = log or library_logger("alerts")
        self.active: tuple[Alert, ...] = ()
        """Alerts found by the last `look()`."""

    def look(self, alerts: tuple[Alert, ...]) -> None:
        """Replace the active alerts and log the differences."""
        before, self.active = {alert.name for alert in self.active}, alerts
        for alert in alerts:
            if alert.name not in before:
                self._log.warning(f"Alert: {alert.message}", alert=alert.name, domains=alert.domains)
        now = {alert.name for alert in alerts}
        for name in ALERTS:
            if name in before and name not in now:
                self._log.info("Alert over", alert=name)
