"""Alerts: what somebody should look at (Q10), found in the statistics and in how hosts stand.

breaker_open          a breaker is open
many_blocked          more than a tenth of the last hour's requests were refused because of one
many_trips            breakers opened more than five times in the last hour
budget_nearly_used    a host has used nine tenths of its budget of the day, or more
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
"""The share of a day's budget from which on it is nearly used."""

MOST_NAMED = 10
"""Hosts that an alert names."""

ALERTS = ("breaker_open", "many_blocked", "many_trips", "budget_nearly_used")
"""Every alert there is, in the order in which they are told."""


class Watched(Protocol):
    """A host as of one moment, as far as alerts look at it: `HostView` is one."""

    @property
    def domain(self) -> str:
        """Its name."""
        ...

    @property
    def breaker(self) -> str:
        """`closed`, `open` or `half_open`."""
        ...

    @property
    def requests_today(self) -> int:
        """What was spent of the budget."""
        ...

    @property
    def max_requests_per_day(self) -> int:
        """0 for unlimited."""
        ...

    @property
    def pages_today(self) -> int:
        """What was spent of the budget of pages."""
        ...

    @property
    def max_pages_per_day(self) -> int:
        """0 for unlimited."""
        ...


class Alert(msgspec.Struct, frozen=True):
    """Something that somebody should look at."""

    name: str
    """One of `ALERTS`."""

    message: str
    """What it is, in a sentence with the values."""

    domains: tuple[str, ...] = ()
    """The hosts that it is about, the first few; empty if it is about all together."""


def budget_used(host: Watched) -> float:
    """The share of the day's budget that is used: of requests or of pages, whichever is the larger."""
    spent = ((host.requests_today, host.max_requests_per_day), (host.pages_today, host.max_pages_per_day))
    return max((count / limit for count, limit in spent if limit), default=0.0)


def alerts_of(statistics: StatisticsSnapshot, hosts: Iterable[Watched] = ()) -> tuple[Alert, ...]:
    """What somebody should look at: in what was counted in the last hour, and in how hosts stand now."""
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
    """Tells the log when an alert begins, once, and when it is over."""

    def __init__(self, log: LibraryLogger | None = None) -> None:
        self._log = log or library_logger("alerts")
        self.active: tuple[Alert, ...] = ()
        """What was alarming at the last look."""

    def look(self, alerts: tuple[Alert, ...]) -> None:
        """Take what is alarming now, and tell what has changed."""
        before, self.active = {alert.name for alert in self.active}, alerts
        for alert in alerts:
            if alert.name not in before:
                self._log.warning(f"Alert: {alert.message}", alert=alert.name, domains=alert.domains)
        now = {alert.name for alert in alerts}
        for name in ALERTS:
            if name in before and name not in now:
                self._log.info("Alert over", alert=name)
