"""The URLs of `fetch_many`, read and handed out so that no host holds up another."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from enum import Enum

from curtsy.core.errors import PolicyError
from curtsy.core.fair_share import share_of
from curtsy.core.message import Url, parse_url
from curtsy.core.policy import rule, whole
from curtsy.core.secrets import mask_url
from curtsy.http.registered_domain import site_of

DEFAULT_CONCURRENCY = 1000
"""Fetches that `fetch_many` has under way; what waits in a host's line is one of them."""

CROWD = 100
"""Fetches of one host under way, most of them in its line: with so many, other hosts go first."""

AHEAD = 10_000
"""URLs that are put off at most, while those of other hosts are looked for."""


class NoUrl(Enum):
    """What is handed out in place of a URL."""

    NOW = "there is no room, or nothing left"
    YET = "one was read, and put off"


class Batch:
    """Hands out URLs while there is room for them, those of one host in their order.

    A host that has a crowd under way, or a registered domain that has a quarter of the room, is passed over for others,
    of whose URLs there may be some further on. If there are none, it has the room all the same: so one host alone can
    have all of it.
    """

    def __init__(self, urls: Iterable[str], concurrency: int, *, crowd: int = CROWD, ahead: int = AHEAD) -> None:
        if isinstance(urls, str | bytes):
            shown = mask_url(str(urls))
            raise PolicyError(f"urls = {shown!r} must be several URLs, not one. Put it in a list, or use fetch().")
        if not isinstance(urls, Iterable):
            raise rule("urls", urls, "several URLs, such as a list")
        self._most = self._room = whole("concurrency", concurrency, 1)
        self._share = share_of(concurrency)
        self._urls = iter(urls)
        self._crowd, self._most_ahead = crowd, ahead
        self._under_way: Counter[str] = Counter()
        self._sites: Counter[str] | None = None
        """How many are under way, by registered domain; None if they were never so many that it matters."""
        self._put_off: dict[str, dict[str, deque[str]]] = {}
        """What was read and not begun, by registered domain and host; the next in turn comes first."""
        self._ahead = 0
        self._is_read = False

    def next(self) -> str | NoUrl:
        """The URL to be fetched now, if there is one. At most one is read."""
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
        """One of those handed out has been fetched: there is room for another."""
        host = _host_of(url)
        self._room += 1
        self._under_way[host] -= 1
        if not self._under_way[host]:
            del self._under_way[host]
        if self._sites is not None:
            self._sites[site_of(host)] -= 1

    def _free_host(self) -> str | None:
        """The next host that was put off and need not be any more."""
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
        """The first URL of a host that was put off; its host and its registered domain are the last in turn then."""
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
    """Whose line a URL's fetch stands in."""
    parsed = parse_url(url)
    return parsed.domain if isinstance(parsed, Url) else ""
