"""The URLs of `fetch_many`, read and handed out so that no host holds up another."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from enum import Enum

from curtsy.core.errors import PolicyError
from curtsy.core.message import Url, parse_url
from curtsy.core.policy import rule, whole
from curtsy.core.secrets import mask_url

MOST_AT_ONCE = 1000
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

    Who has a crowd under way is passed over for other hosts, of whose URLs there may be some further on. If there are
    none, it has the room all the same: so one host alone can have all of it.
    """

    def __init__(self, urls: Iterable[str], at_once: int, *, crowd: int = CROWD, ahead: int = AHEAD) -> None:
        if isinstance(urls, str | bytes):
            shown = mask_url(str(urls))
            raise PolicyError(f"urls = {shown!r} must be several URLs, not one. Put it in a list, or use fetch().")
        if not isinstance(urls, Iterable):
            raise rule("urls", urls, "several URLs, such as a list")
        self._room = whole("at_once", at_once, 1)
        self._urls = iter(urls)
        self._crowd, self._most_ahead = crowd, ahead
        self._under_way: Counter[str] = Counter()
        self._put_off: dict[str, deque[str]] = {}
        self._ahead = 0
        self._is_read = False

    def next(self) -> str | NoUrl:
        """The URL to be fetched now, if there is one. At most one is read."""
        if not self._room:
            return NoUrl.NOW
        host = next((host for host in self._put_off if self._under_way[host] < self._crowd), None)
        if host is None and not self._is_read and self._ahead < self._most_ahead:
            try:
                return self._read(next(self._urls))
            except StopIteration:
                self._is_read = True
        if host is None:
            host = next(iter(self._put_off), None)
        return NoUrl.NOW if host is None else self._begin(self._taken_up(host), host)

    def end(self, url: str) -> None:
        """One of those handed out has been fetched: there is room for another."""
        host = _host_of(url)
        self._room += 1
        self._under_way[host] -= 1
        if not self._under_way[host]:
            del self._under_way[host]

    def _read(self, url: str) -> str | NoUrl:
        host = _host_of(url)
        if self._under_way[host] < self._crowd:
            return self._begin(url, host)
        self._put_off.setdefault(host, deque()).append(url)
        self._ahead += 1
        return NoUrl.YET

    def _taken_up(self, host: str) -> str:
        urls = self._put_off[host]
        url = urls.popleft()
        self._ahead -= 1
        if not urls:
            del self._put_off[host]
        return url

    def _begin(self, url: str, host: str) -> str:
        self._room -= 1
        self._under_way[host] += 1
        return url


def _host_of(url: str) -> str:
    """Whose line a URL's fetch stands in."""
    parsed = parse_url(url)
    return parsed.domain if isinstance(parsed, Url) else ""
