"""Links: hrefs as they stand in a page made absolute and canonical, at a cost that a page of hundreds can bear.

Most links of a page were on the page before it. So hrefs are looked up as they are written, before anything is made of
them (`KnownHrefs`), and most of the others are canonical but for the host, which a pattern can tell (`Joiner`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from curtsy.core.message import Url, parse_url

SITES = 1000
"""Sites whose hrefs are remembered."""

HREFS = 5000
"""Hrefs of a site that are remembered."""

# What is canonical but for its origin or folder. Left out is all that parse_url() might change: dot segments within,
# escapes, ports, hosts that may be addresses, and the empty parameters and queries that urljoin() drops.
_PLAIN = r"/(?!/|\.|.*/\.)[\w.~!$&'()*+,=:@/-]*+(?:\?[\w.~!$&'()*+,=:@/?-]++)?"
_ROOTED = re.compile(_PLAIN, re.ASCII)
_ABSOLUTE = re.compile(rf"https?://(?=[^/]{{1,253}}/)(?!-)(?:[a-z0-9_-]{{1,63}}\.)++[a-z]{{2,63}}{_PLAIN}", re.ASCII)
_RELATIVE = re.compile(r"((?:\.\./)*+)[\w~-](?!.*/\.)(?!.*//)[\w.~/-]*+", re.ASCII)
_LONG = 2000


class Joiner:
    """Makes the hrefs of a page absolute and canonical, as `parse_url(href, base)` does."""

    def __init__(self, base: Url) -> None:
        self._base = base
        self._origin = base.origin
        self._folders: list[str] = []
        """The folder that the page is in, the one above it, and so on."""
        folder = base.target.partition("?")[0].rpartition("/")[0]
        while folder and _ROOTED.fullmatch(folder) and "//" not in folder:
            self._folders.append(f"{base.origin}{folder}/")
            folder = folder.rpartition("/")[0]
        if not folder:
            self._folders.append(f"{base.origin}/")

    def join(self, href: str) -> str | None:
        """The URL that a link leads to; None if it leads to no page."""
        page, _, _ = href.partition("#")
        if len(page) < _LONG:
            if _ROOTED.fullmatch(page):
                return self._origin + page
            if _ABSOLUTE.fullmatch(page):
                return page
            if self._folders and (relative := _RELATIVE.fullmatch(page)):
                end = relative.end(1)
                return self._folders[min(end // 3, len(self._folders) - 1)] + page[end:]
        found = parse_url(href, self._base)
        return found.text if isinstance(found, Url) else None


class KnownHrefs:
    """Hrefs that need no second look, by site. It may forget any of them at any time: a frontier knows for certain.

    Only those are remembered that mean the same on every page of their site.
    """

    def __init__(self, *, sites: int = SITES, hrefs: int = HREFS) -> None:
        self._sites: dict[str, set[str]] = {}
        self._most_sites = sites
        self._most_hrefs = hrefs

    def unknown(self, origin: str, hrefs: Iterable[str]) -> list[str]:
        """Those that are not known, in order. `origin` is that of the pages' base URL."""
        known = self._sites.get(origin)
        return list(hrefs) if known is None else [href for href in hrefs if href not in known]

    def learn(self, origin: str, hrefs: Iterable[str]) -> None:
        """Remember hrefs: to be called when what they lead to is safe in the frontier, and not before."""
        known = self._sites.pop(origin, None) or set()
        known.update(href for href in hrefs if href.startswith(("/", "http://", "https://")))
        if len(known) > self._most_hrefs:
            known.clear()
        if len(self._sites) >= self._most_sites:
            del self._sites[next(iter(self._sites))]
        self._sites[origin] = known  # last in order, so that the one unused for longest goes first
