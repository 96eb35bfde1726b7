"""Optional cookie jar: cookies are kept per host, never sent to another host, and bounded (F64)."""

from __future__ import annotations

import re
import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

from curtsy.core.request import Headers, whole_number
from curtsy.core.time import cookie_date
from curtsy.core.url import Url

_NAME = re.compile(r"[\x21-\x3a\x3c\x3e-\x7e]{1,256}", re.ASCII)  # wider than a token: PHP sets `name[key]`
_VALUE = re.compile(r"[\x21-\x3a\x3c-\x7e ]{0,4096}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Cookie:
    """Cookie of one host."""

    name: str
    value: str
    path: str
    is_secure: bool
    """True if the cookie has the attribute `Secure`. A plain http response must not overwrite it."""

    is_private: bool
    """True if the cookie was set over https, with or without `Secure`. It is never sent over http (F25)."""

    expires: float | None
    """Time in seconds since the epoch; None for the lifetime of the jar."""

    @property
    def size(self) -> int:
        """Return the approximate memory size in bytes."""
        return 300 + len(self.name) + len(self.value) + len(self.path)


class Cookies:
    """Cookie jar.

    A cookie belongs to the exact host that set it; `Domain` only restricts which host may set it. A cookie set over
    http is also sent over https to the same host, but not the reverse. The jar is never written to disk.

    Limits: 50 cookies per host, 4 KiB each, 1,000 hosts and 8 MB in total; the oldest are dropped first. One request
    sends at most 8,000 bytes of cookies, the latest set, because common servers accept lines of 8 KiB.
    """

    PER_HOST, HOSTS, SENT, BYTES = 50, 1000, 8000, 8_000_000

    def __init__(self, epoch: Callable[[], float]) -> None:
        self._epoch = epoch
        self._lock = threading.Lock()
        self._hosts: OrderedDict[str, OrderedDict[tuple[str, str], Cookie]] = OrderedDict()
        self._size = 0

    def __len__(self) -> int:
        return sum(len(jar) for jar in self._hosts.values())

    def header_for(self, url: Url) -> str | None:
        """Return the `Cookie` header for a URL, longest paths first (RFC 6265, 5.4); None if it is empty."""
        with self._lock:
            jar = self._hosts.get(url.domain)
            if not jar:
                return None
            now, path = self._epoch(), url.target.partition("?")[0]
            for key in [key for key, each in jar.items() if each.expires is not None and each.expires <= now]:
                self._size -= jar.pop(key).size
            sent, left = [], self.SENT
            for each in reversed(jar.values()):
                if not _is_under(path, each.path) or (each.is_private and url.scheme != "https"):
                    continue
                size = len(each.name) + len(each.value) + len("=; ")
                if size <= left:
                    sent.append(each)
                    left -= size
        sent.reverse()
        sent.sort(key=lambda each: -len(each.path))
        return "; ".join(f"{each.name}={each.value}" for each in sent) or None

    def take(self, url: Url, headers: Headers) -> None:
        """Store the permitted cookies of a response."""
        for line in headers.all("set-cookie"):
            cookie = self._read(line, url)
            if cookie is not None:
                self._put(url.domain, cookie, is_safe=url.scheme == "https")

    def _put(self, domain: str, cookie: Cookie, *, is_safe: bool) -> None:
        with self._lock:
            jar = self._hosts.setdefault(domain, OrderedDict())
            self._hosts.move_to_end(domain)
            if not is_safe and any(each.is_secure and each.name == cookie.name for each in jar.values()):
                return  # http must not overwrite Secure cookies (RFC 6265bis, 5.7)
            if (before := jar.pop((cookie.name, cookie.path), None)) is not None:
                self._size -= before.size
            if cookie.expires is None or cookie.expires > self._epoch():
                jar[cookie.name, cookie.path] = cookie
                self._size += cookie.size
            if len(jar) > self.PER_HOST:
                self._size -= jar.popitem(last=False)[1].size
            while len(self._hosts) > self.HOSTS or self._size > self.BYTES:
                self._size -= sum(each.size for each in self._hosts.popitem(last=False)[1].values())

    def _read(self, line: str, url: Url) -> Cookie | None:
        """Parse a `Set-Cookie` field (RFC 6265, 5.2); None if it is for another host, too large or invalid."""
        pair, *attributes = line.split(";")
        name, equals, value = (part.strip() for part in pair.partition("="))
        if not equals or not _NAME.fullmatch(name) or not _VALUE.fullmatch(value) or len(pair) > 4096:
            return None
        path, domain, is_secure, expires, max_age = "", "", False, None, None
        for attribute in attributes:
            key, _, said = (part.strip() for part in attribute.partition("="))
            match key.lower():
                case "domain":
                    domain = said.lower().lstrip(".")
                case "path" if said.startswith("/") and len(said) <= 1024:  # RFC 6265bis, 5.6: longer paths are ignored
                    path = said
                case "secure":
                    is_secure = True
                case "expires":
                    expires = cookie_date(said)
                case "max-age" if (seconds := whole_number(said.removeprefix("-"))) is not None:
                    max_age = -seconds if said.startswith("-") else seconds
        if domain and domain != url.host and not _is_parent(domain, url.host):
            return None
        if is_secure and url.scheme != "https":
            return None
        # Name prefixes (RFC 6265bis, 4.1.3).
        if name.lower().startswith(("__secure-", "__host-")) and not is_secure:
            return None
        if name.lower().startswith("__host-") and (domain or path != "/"):
            return None
        until = expires if max_age is None else self._epoch() + max_age
        default = url.target.partition("?")[0].rpartition("/")[0] or "/"
        return Cookie(name, value, path or default, is_secure, url.scheme == "https", until)


def _is_under(path: str, cookie_path: str) -> bool:
    """Return whether a path is within a cookie's path (RFC 6265, 5.1.4)."""
    return path == cookie_path or path.startswith(cookie_path.removesuffix("/") + "/")


def _is_parent(domain: str, host: str) -> bool:
    """Return whether a host may set cookies for `domain`: a parent domain that is not a public suffix.

    An IP address has no parent domain (RFC 6265, 5.1.3).
    """
    is_address = ":" in host or host.rpartition(".")[2].isdigit()
    return not is_address and host.endswith("." + domain) and not _is_public(domain)


def _is_public(domain: str) -> bool:
    """Return whether a domain is a public suffix, such as `co.uk`."""
    return bool(public_suffixes().is_public(domain))


@cache
def public_suffixes() -> Any:
    """Return the Public Suffix List, loaded once."""
    from publicsuffixlist import PublicSuffixList  # takes 0.1 s, and few cookies name a domain

    return PublicSuffixList()
