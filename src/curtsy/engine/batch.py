"""Scheduling of the URLs of `fetch_many`, so that no host blocks another."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from enum import Enum

from curtsy.core.errors import PolicyError
from curtsy.core.fair_share import share_of
from curtsy.core.masking import mask_url
from curtsy.core.setting import rule, whole
from curtsy.core.url import Url, parse_url
from curtsy.http.registered_domain import site_of

MAX_IN_FLIGHT = 1000
"""Default maximum of fetches in progress in `fetch_many`, including those waiting in a host's queue."""

CROWD = 100
"""Concurrent fetches of one host, most of them queued, from which on other hosts go first."""

AHEAD = 10_000
"""Maximum number of deferred URLs while the batch looks for other hosts."""


class NoUrl(Enum):
    """Answer of `Batch.next` in place of a URL."""

    NOW = "there is no room, or nothing left"
    YET = "one was read, and put off"


class Batch:
    """Scheduler of URLs up to a limit; URLs of one host keep their order.

    The batch defers the URLs of a host with `crowd` active fetches, and of a registered domain with a quarter of the
    limit. It then reads up to `ahead` URLs to find other hosts. If it finds no other host, deferred URLs start
    anyway: a single host can use the full limit.
    """

    def __init__(self, urls: Iterable[str], max_in_flight: int, *, crowd: int = CROWD, ahead: int = AHEAD) -> None:
        if isinstance(urls, str | bytes):
            shown = mask_url(str(urls))
            raise PolicyError(f"urls = {shown!r} must be several URLs, not one. Put it in a list, or use fetch().")
        if not isinstance(urls, Iterable):
            raise rule("urls", urls, "several URLs, such as a list")
        self._most = self._room = whole("max_in_flight", max_in_flight, 1)
        self._share = share_of(max_in_flight)
        self._urls = iter(urls)
        self._crowd, self._most_ahead = crowd, ahead
        self._under_way: Counter[str] = Counter()
        self._sites: Counter[str] | None = None
        """Active fetches by registered domain; None until their number first reaches a domain's share."""
        self._put_off: dict[str, dict[str, deque[str]]] = {}
        """Deferred URLs by registered domain and host; the next in turn comes first."""
        self._ahead = 0
        self._is_read = False

    def next(self) -> str | NoUrl:
        """Return the next URL to fetch, or why there is no URL. Reads at most one URL."""
        if not self._room:
            return NoUrl.NOW
        host = self._free_host()
        if host is None and not self._is_read and self._ahead < self._most_ahead:
            try:
                return self._read(next(self._urls))
            except StopIteration:
                self._is_read = True
        if host is None:
            host = next((host for hosts in self._put_off.values() for host in hosts), None)
        return NoUrl.NOW if host is None else self._begin(self._taken_up(host), host)

    def end(self, url: str) -> None:
        """Report that a URL's fetch has ended, which frees its slot."""
        host = _host_of(url)
        self._room += 1
        self._under_way[host] -= 1
        if not self._under_way[host]:
            del self._under_way[host]
        if self._sites is not None:
            self._sites[site_of(host)] -= 1

    def _free_host(self) -> str | None:
        """Return the next deferred host that is below its limits; None if all are at them."""
        free = (hosts for site, hosts in self._put_off.items() if not self._has_its_share(site))
        return next((host for hosts in free for host in hosts if self._under_way[host] < self._crowd), None)

    def _has_its_share(self, site: str) -> bool:
        return self._sites is not None and self._sites[site] >= self._share

    def _read(self, url: str) -> str | NoUrl:
        host = _host_of(url)
        if self._sites is None and self._most - self._room >= self._share:
            self._sites = Counter()
            for each, count in self._under_way.items():
                self._sites[site_of(each)] += count
        if self._under_way[host] < self._crowd and (self._sites is None or not self._has_its_share(site_of(host))):
            return self._begin(url, host)
        self._put_off.setdefault(site_of(host), {}).setdefault(host, deque()).append(url)
        self._ahead += 1
        return NoUrl.YET

    def _taken_up(self, host: str) -> str:
        """Remove and return a host's first deferred URL. The host and its registered domain move to the end."""
        site = site_of(host)
        hosts = self._put_off.pop(site)
        urls = hosts.pop(host)
        url = urls.popleft()
        self._ahead -= 1
        if urls:
            hosts[host] = urls
        if hosts:
            self._put_off[site] = hosts
        return url

    def _begin(self, url: str, host: str) -> str:
        self._room -= 1
        self._under_way[host] += 1
        if self._sites is not None:
            self._sites[site_of(host)] += 1
        return url


def _host_of(url: str) -> str:
    """Return the host in whose queue a URL waits; empty for an invalid URL."""
    parsed = parse_url(url)
    return parsed.domain if isinstance(parsed, Url) else ""
