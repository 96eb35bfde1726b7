"""Character: how a host answers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from email.utils import formatdate
from random import Random

from curtsy.core.request import NO_HEADERS, Headers
from curtsy.core.time import SECOND

NEVER, REFUSED = 0, -1
"""Instead of a status: no answer comes, and no connection can be had."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a host is about to say to one request."""

    status: int
    took: int
    """Microseconds until it is said."""

    body: bytes = b""
    headers: Headers = NO_HEADERS
    retry_after: float | None = None
    """Seconds for which the host wants to be left alone, however it words that."""


@dataclass(frozen=True, slots=True)
class Character:
    """How a host behaves, all in all."""

    latency: tuple[float, float] = (0.02, 1.2)
    trouble: float = 0.0
    """How many of its answers are trouble."""

    status: int = 503
    """What it says then, `NEVER` and `REFUSED` among it."""

    retry_after: tuple[int, int] | None = None
    """Between how many and how many seconds it then asks for; None if it does not say."""

    dated: bool = False
    """Whether it says so by a date."""

    dead: tuple[tuple[int, int], ...] = ()
    """Between which microseconds of the day nothing but trouble comes."""

    robots_status: int = 200
    disallows: bool = False
    """Whether its robots.txt forbids /private/."""

    crawl_delay: float | None = None

    def robots(self) -> bytes:
        """Its robots.txt; one with a Crawl-delay names us, and forbids everything to the others."""
        rules = "Disallow: /private/\n" if self.disallows else "Disallow:\n"
        if self.crawl_delay is None:
            return f"User-agent: *\n{rules}".encode()
        delay = f"Crawl-delay: {self.crawl_delay:g}\n"
        return f"User-agent: *\nDisallow: /p/\n\nUser-agent: curtsy\n{rules}{delay}".encode()

    def is_troubled(self, moment: int, dice: Random) -> bool:
        """Whether this is one of those answers; `moment` counts from when the day began."""
        is_dead = any(begins <= moment < ends for begins, ends in self.dead)
        return is_dead or (self.trouble > 0 and dice.random() < self.trouble)

    def trouble_at(self, epoch: float, dice: Random) -> Answer:
        """The trouble."""
        took = round(dice.uniform(*self.latency) * SECOND)
        if self.retry_after is None or self.status <= 0:
            return Answer(self.status, took)
        asked = dice.randint(*self.retry_after)
        said_at = epoch + took / SECOND
        if not self.dated:
            return Answer(self.status, took, headers=Headers([("Retry-After", str(asked))]), retry_after=asked)
        until = int(said_at) + 1 + asked
        return Answer(
            self.status, took, headers=Headers([("Retry-After", formatdate(until, usegmt=True))]),
            retry_after=until - said_at,
        )  # fmt: skip


HOUR = 3600 * SECOND


def drawn(dice: Random) -> Character:
    """A character as hosts have them: most are fine, and there is one of every kind of the others."""
    kind = dice.random()
    low = dice.uniform(0.01, 0.2)
    high = low + dice.uniform(0.0, 1.0)
    begins = dice.randrange(24 * HOUR)
    hours = ((begins, begins + dice.randrange(HOUR // 2, 5 * HOUR)),)
    delay = dice.choice((0.5, 3.0, 10.0, 40.0, 90.0)) if dice.random() < 0.1 else None
    plain = Character((low, high), disallows=dice.random() < 0.5, crawl_delay=delay)
    if kind < 0.05:
        return replace(plain, latency=(1.0, 12.0))
    if kind < 0.07:
        return replace(plain, latency=(5.0, 45.0))  # some of it beyond any patience
    if kind < 0.13:
        return replace(plain, trouble=0.1, status=429, retry_after=(1, 40), dated=dice.random() < 0.3)
    if kind < 0.16:
        return replace(plain, trouble=0.05, status=429, retry_after=dice.choice((None, (70, 4000))))
    if kind < 0.20:
        return replace(plain, trouble=0.2, status=503, retry_after=dice.choice((None, (2, 50), (100, 900))))
    if kind < 0.23:
        return replace(plain, trouble=dice.choice((0.2, 0.6)), status=dice.choice((500, NEVER, REFUSED)))
    if kind < 0.27:
        return replace(plain, dead=hours, status=dice.choice((502, NEVER, REFUSED)))
    if kind < 0.29:
        return replace(plain, dead=hours, status=503, retry_after=(600, 7200))
    if kind < 0.31:
        return replace(plain, trouble=0.03, status=403)
    if kind < 0.33:
        return replace(plain, robots_status=dice.choice((500, 503, 404, 403)))
    if kind < 0.335:
        return replace(plain, crawl_delay=4000.0)  # longer than anybody waits for
    return plain
