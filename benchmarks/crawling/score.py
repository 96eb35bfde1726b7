"""Score: what a site saw of a crawler, by the site's own clock, at the moment of receipt."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field

RETRY_AFTER = 2.0
"""Seconds that a host wants to be left alone for, once it was asked too often."""

TOLERANCE = 0.02
"""Seconds that a gap may be short of the pause before it counts: the site's own lateness in reading its sockets."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What a site is made of, and what it asks of its visitors."""

    sizes: tuple[int, ...]
    """Pages of each host."""

    pause: float = 0.0
    """Seconds between two requests to a host that the visitors are told to leave."""

    per_host: int = 1
    """Requests to a host at once that the visitors are told not to exceed."""

    latency: float = 0.0
    """Seconds that each answer takes."""

    most_per_second: int | None = None
    """Requests a second above which a host answers 429 with a `Retry-After`, until it has had its rest."""

    @property
    def pages(self) -> int:
        """All pages that may be asked for."""
        return sum(self.sizes)

    @property
    def bound(self) -> float:
        """Seconds that the pauses alone take: one before each page of the largest host, which follow robots.txt."""
        return max(self.sizes) * self.pause


@dataclass(frozen=True, slots=True)
class Score:
    """What the site saw of one visitor."""

    pages: int
    """Pages that were handed out, each counted once."""

    span: float
    """Seconds from the first request to the last."""

    requests: int
    robots: int
    """Requests for robots.txt."""

    repeated: int
    """Requests for a page that had been handed out before."""

    forbidden: int
    """Requests for what robots.txt disallows."""

    unknown: int
    """Requests for what nothing links to."""

    gap: float
    """The shortest gap between two requests to one host."""

    short: int
    """Gaps that were shorter than the pause."""

    inside: int
    """Requests that came inside a `Retry-After`."""

    at_once: int
    """Most requests in flight to one host."""

    in_flight: int
    """Most requests in flight in all."""

    busy: float
    """The share of the span for which the site itself had work: near 1, the site is what was measured."""


@dataclass(slots=True)
class Host:
    """One host of a site, and what it has seen."""

    size: int
    given: set[int] = field(default_factory=set)
    asked_at: float = float("-inf")
    retry_after_until: float = float("-inf")
    recent: deque[float] = field(default_factory=deque)
    open: int = 0


class Ledger:
    """Keeps the score of all hosts."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._began = self._ended = self._idle = 0.0
        self._requests = self._robots = self._pages = self._repeated = self._forbidden = self._unknown = 0
        self._short = self._inside = self._open = self._at_once = self._in_flight = 0
        self._gap = float("inf")

    def open(self, host: Host, now: float) -> bool:
        """Note a request to the host. Whether it is answered; else it is told to come back later."""
        self._requests += 1
        if not self._began:
            self._began, self._idle = now, time.process_time()
        self._ended = now
        gap = now - host.asked_at
        host.asked_at = now
        if gap < self._gap:
            self._gap = gap
        if gap < self._plan.pause - TOLERANCE:
            self._short += 1
        host.open += 1
        self._open += 1
        self._at_once = max(self._at_once, host.open)
        self._in_flight = max(self._in_flight, self._open)
        return self._plan.most_per_second is None or self._is_welcome(host, now, self._plan.most_per_second)

    def _is_welcome(self, host: Host, now: float, most: int) -> bool:
        is_inside = now < host.retry_after_until - TOLERANCE
        self._inside += is_inside
        recent = host.recent
        recent.append(now)
        while recent[0] <= now - 1:
            recent.popleft()
        if not is_inside and len(recent) <= most:
            return True
        host.retry_after_until = now + self._plan.latency + RETRY_AFTER
        return False

    def page(self, host: Host, number: int, is_given: bool) -> None:
        """Note that a page was asked for, and whether it is handed out."""
        if number in host.given:
            self._repeated += 1
        elif is_given:
            host.given.add(number)
            self._pages += 1

    def robots(self) -> None:
        """Note that robots.txt was asked for."""
        self._robots += 1

    def stray(self, is_forbidden: bool) -> None:
        """Note a request for what is forbidden, or does not exist."""
        self._forbidden += is_forbidden
        self._unknown += not is_forbidden

    def close(self, host: Host) -> None:
        """Note that a request was answered, or its connection lost."""
        host.open -= 1
        self._open -= 1

    def score(self) -> Score:
        """What was seen so far."""
        span = self._ended - self._began
        return Score(
            pages=self._pages,
            span=span,
            requests=self._requests,
            robots=self._robots,
            repeated=self._repeated,
            forbidden=self._forbidden,
            unknown=self._unknown,
            gap=self._gap,
            short=self._short,
            inside=self._inside,
            at_once=self._at_once,
            in_flight=self._in_flight,
            busy=(time.process_time() - self._idle) / span if span else 0.0,
        )
