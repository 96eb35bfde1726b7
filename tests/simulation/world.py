"""World: which hosts there are, how large, under which policies, and where their links lead."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from random import Random
from zlib import crc32
from zoneinfo import ZoneInfo

from curtsy.core.policy import Policies, Policy
from curtsy.core.request import Headers
from tests.simulation.character import Answer, Character, drawn

BERLIN, KIRITIMATI, UTC = map(ZoneInfo, ("Europe/Berlin", "Pacific/Kiritimati", "UTC"))

FAN = 8
"""Links of a page to others of its host."""

PLAIN = Policy(timezone=UTC)
"""Where a policy begins: the defaults, and a day that does not depend on the machine."""

OVERLAPPING = PLAIN.replace(concurrency=4, pause_min=0, pause_max=0, breaker_error_rate=None)
"""Several requests at once. The breaker's error rate is off, for the referee knows nothing of windows."""

POLICIES: dict[str, tuple[int, Policy]] = {
    "other.example": (43, PLAIN),
    "trusted.example": (10, PLAIN.replace(qps=2, pause_min=0.2, pause_max=0.6, max_requests_per_day=500,
                                      max_pages_per_day=250, timezone=BERLIN, domain_category="trusted")),
    "small.example": (10, PLAIN.replace(max_requests_per_day=7, max_pages_per_day=3, timezone=BERLIN)),
    "east.example": (6, PLAIN.replace(max_requests_per_day=60, max_pages_per_day=0, pause_max=1.5,
                                       timezone=KIRITIMATI)),
    "slow.example": (4, PLAIN.replace(qps=0.02, pause_min=0, pause_max=0, max_requests_per_day=0)),
    "leaky.example": (4, PLAIN.replace(strategy="leaky_bucket", qps=1, burst=5, pause_min=0, pause_max=0, delay=1.3)),
    "quick.example": (4, OVERLAPPING.replace(qps=5, burst=5, max_requests_per_day=0, max_pages_per_day=0)),
    "window.example": (4, OVERLAPPING.replace(strategy="sliding_window", qps=1, burst=3, concurrency=2,
                                          max_requests_per_day=40, max_pages_per_day=20)),
    "strict.example": (4, PLAIN.replace(on_429="trip", breaker_failures=2, breaker_cooldown=60, timeout=8,
                                    robots_unreachable="disallow", deny_paths=("/private/",))),
    "patient.example": (3, PLAIN.replace(on_429="retry", max_retries=1, max_crawl_delay=5, breaker_max_cooldown=600)),
    "endless.example": (2, PLAIN.replace(breaker=False, adapt=False, max_retry_after=30, robots_ttl=600)),
    "denied.example": (2, PLAIN.replace(denied=True)),
}  # fmt: skip
"""The entries, and how many in a hundred hosts have each; the rest are farms."""

FARM = 8
"""Hosts that share one record."""


@dataclass(frozen=True, slots=True)
class Site:
    """A host with its pages, which are numbered from 0 here and from `first` in the world."""

    number: int
    name: str
    size: int
    first: int
    character: Character


class World:
    """All hosts, their policies and pages. Where links lead, what redirects and what is missing is a pure function."""

    def __init__(
        self, seed: int, sizes: list[int], policies: Policies, names: list[str], characters: Callable[[int], Character]
    ) -> None:
        self.seed = seed
        self.policies = policies
        self.sites: list[Site] = []
        first = 0
        for number, (name, size) in enumerate(zip(names, sizes, strict=True)):
            self.sites.append(Site(number, name, size, first, characters(number)))
            first += size
        self.urls = first
        self.by_name = {site.name: site for site in self.sites}

    def _mix(self, *numbers: int) -> int:
        return crc32(repr((self.seed, *numbers)).encode()) * 2_654_435_761 >> 7 & 0xFFFFFF

    def path(self, site: Site, page: int) -> str:
        """Where a page is: one in 16 in the part that a robots.txt may forbid."""
        return f"/private/{page}" if page and not self._mix(1, site.number, page) % 16 else f"/p/{page}"

    def url(self, site: Site, page: int) -> str:
        """The URL of a page."""
        return f"https://{site.name}{self.path(site, page)}"

    def place(self, url: str) -> tuple[Site, int]:
        """Where a URL leads: a host, and a page of it."""
        _, _, name, _, page = url.split("/")
        return self.by_name[name], int(page)

    def number(self, url: str) -> int:
        """The number of a URL among all there are."""
        site, page = self.place(url)
        return site.first + page

    def seeds(self, site: Site, listed: int) -> Iterator[str]:
        """The URLs of a host that are known without any link: its front page, and `listed` in a hundred others."""
        for page in range(site.size):
            if not page or self._mix(2, site.number, page) % 100 < listed:
                yield self.url(site, page)

    def target(self, site: Site, page: int) -> str | None:
        """Where a page redirects to: to the next one for one page in 30, and for half of all in some mazes."""
        share = 2 if not self._mix(3, site.number) % 40 else 30
        if not page or self._mix(4, site.number, page) % share:
            return None
        if not self._mix(5, site.number, page) % 4:
            return self.url(self.sites[self._mix(6, site.number, page) % len(self.sites)], 0)
        return self.url(site, (page + 1) % site.size)

    def is_missing(self, site: Site, page: int) -> bool:
        """Whether a link leads nowhere."""
        return page > 0 and not self._mix(7, site.number, page) % 25

    def links(self, site: Site, page: int) -> list[str]:
        """The links of a page: back to the front, on within its host, and one in five to another host."""
        pages = range(page * FAN + 1, min(page * FAN + FAN + 1, site.size))
        found = [self.url(site, 0), *(self.url(site, each) for each in pages)]
        if not self._mix(8, site.number, page) % 5:
            found.append(self.url(self.sites[self._mix(9, site.number, page) % len(self.sites)], 0))
        return found

    def answer(self, url: str, moment: int, epoch: float, dice: Random) -> Answer:
        """What comes of asking for a URL."""
        is_robots = url.endswith("/robots.txt")
        name = url.split("/", 3)[2]
        character = self.by_name[name].character
        if character.is_troubled(moment, dice):
            return character.trouble_at(epoch, dice)
        took = round(dice.uniform(*character.latency) * 1_000_000)
        if is_robots:
            return Answer(character.robots_status, took, character.robots() if character.robots_status == 200 else b"")
        site, page = self.place(url)
        if self.is_missing(site, page):
            return Answer(404, took, b"not here")
        if (target := self.target(site, page)) is not None:
            return Answer(302, took, headers=Headers([("Location", target)]))
        return Answer(200, took, b"a page")


def zipf(hosts: int, urls: int, exponent: float = 1.0) -> list[int]:
    """Sizes of so many hosts with so many URLs altogether: the k-th largest has 1 / k^exponent of the largest."""
    total = sum((rank + 1) ** -exponent for rank in range(hosts))
    sizes = [max(1, round(urls * (rank + 1) ** -exponent / total)) for rank in range(hosts)]
    sizes[0] += max(1 - sizes[0], urls - sum(sizes))  # what rounding has lost or won
    return sizes


def broad(seed: int, hosts: int, urls: int, *, global_qps: float | None = None) -> World:
    """A world of Zipf sizes with every policy and every character."""
    dice = Random(f"world {seed}")
    sizes = zipf(hosts, urls)
    dice.shuffle(sizes)
    entries = {name: policy for name, (_, policy) in POLICIES.items()}
    kinds = list(POLICIES)
    shares = [share for share, _ in POLICIES.values()]
    names = []
    farmed = 0
    for number in range(hosts):
        if dice.random() < 0.01 * (100 - sum(shares)):
            farm = f"farm{farmed // FARM}.example"
            farmed += 1
            entries.setdefault(farm, PLAIN.replace(key=farm, max_requests_per_day=150, timezone=BERLIN))
            names.append(f"h{number}.{farm}")
        else:
            names.append(f"h{number}.{dice.choices(kinds, shares)[0]}")
    characters = [drawn(dice) for _ in range(hosts)]
    return World(seed, sizes, Policies(PLAIN, entries, global_qps=global_qps), names, characters.__getitem__)
