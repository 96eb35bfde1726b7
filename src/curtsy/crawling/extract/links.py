"""Resolution of hrefs to absolute canonical URLs, cheap enough for pages with hundreds of links.

Most links of a page were on the page before it, so hrefs are first looked up as written (`KnownHrefs`). Most others are
canonical except for the host, which a pattern recognizes (`Joiner`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import islice

from curtsy.core.message import Url, parse_url, without_blanks

HREFS = 20_000
"""Hrefs cached per site."""

IN_ALL = 50_000
"""Hrefs cached over all sites: some 12 MB at usual lengths."""

SHORT = 500
"""Characters of an href and its URL together, from which on they are not cached."""

# Targets that are canonical except for their origin or folder. Everything that parse_url() might change is excluded:
# inner dot segments, escapes, ports, and hosts that may be addresses.
_PLAIN = r"/(?!/|\.|.*/\.)[\w.~!$&'()*+,=:@/-]*+(?:\?[\w.~!$&'()*+,=:@/?-]++)?"
_ROOTED = re.compile(_PLAIN, re.ASCII)
_ABSOLUTE = re.compile(rf"https?://(?=[^/]{{1,253}}/)(?!-)(?:[a-z0-9_-]{{1,63}}\.)++[a-z]{{2,63}}{_PLAIN}", re.ASCII)
_DOTTED = re.compile(r"(?!.*//)[\w.~/-]++", re.ASCII)
_LONG = 2000

# An authority that must be mapped to ASCII, which takes 5 µs or more per character.
_HOST = re.compile(r"(?:https?:[/\\]*+|[/\\]{2,}+)([^/\\?#]*+)", re.IGNORECASE)
MOST_FOREIGN = 50_000
"""Characters of non-ASCII hosts on one page: 2,500 names of usual length. Further such links are cut."""

MOST_LENT = 4 << 20
"""Characters that the links of one page may copy from its base URL; further such links are cut.

Otherwise 20,000 hrefs of five characters under a base of 8,000 would take 160 MB.
"""

_FREE = 200
"""Characters of a base URL that every link may copy: ordinary base URLs are shorter, so nothing is cut."""

_READ_AGAIN = 8
"""Weight of copied characters if the base is parsed again, which takes 50 ns or more for each."""

# Frequent schemes that lead to no page.
_NO_PAGES = ("mailto:", "javascript:", "tel:", "data:")

# Prefixes of hrefs that mean the same on every page of a site.
_LASTING = ("/", "http://", "https://")


class Joiner:
    """Resolver of a page's hrefs to absolute canonical URLs, with the results of `parse_url(href, base)`."""

    def __init__(self, base: Url) -> None:
        self._base = base
        self._origin = base.origin
        self.cut = 0
        """Links that were cut because they take too much time or memory."""
        self._lent = 0
        """Characters of the base URL that links have copied, weighted by their cost."""
        self._foreign: set[str] = set()
        self._left = MOST_FOREIGN
        self._folder: str | None = ""
        """Path of the page's folder; None if it is not plain, empty if not computed yet."""

    def join(self, href: str) -> str | None:
        """Return the URL of an href; None if it leads to no page or is cut."""
        page = href.partition("#")[0] if "#" in href else href
        if len(page) < _LONG:
            if _ROOTED.fullmatch(page):
                return self._origin + page
            if _ABSOLUTE.fullmatch(page):
                return page
            if page.startswith(_NO_PAGES):
                return None
            if not page and len(href) < _LONG:
                return self._base.text
            if _DOTTED.fullmatch(page):
                folder = "" if page[0] == "/" else self._plain_folder()
                if folder is not None:
                    return self._in_folder(folder, page)
        return self._parsed(href, page)

    def _in_folder(self, folder: str, page: str) -> str | None:
        """Return the URL of a path relative to a folder of the base's origin."""
        has_dots = page[0] == "." or "/." in page
        if not self._lend(folder, _READ_AGAIN if has_dots else 1):
            return None
        return self._origin + (_resolved(folder + page) if has_dots else folder + page)

    def _parsed(self, href: str, page: str) -> str | None:
        """Return the URL of any other href; `page` is the href without its fragment."""
        if not page.startswith(_LASTING) and not self._lend(self._base.target, _READ_AGAIN):
            return None
        if not (href.isascii() and "%" not in href) and not self._is_affordable(href):
            self.cut += 1
            return None
        found = parse_url(href, self._base)
        return found.text if isinstance(found, Url) else None

    def _lend(self, part: str, times: int) -> bool:
        """Charge a link for a part of the base URL; return False if the budget is exceeded."""
        self._lent += times * max(0, len(part) - _FREE)
        if self._lent <= MOST_LENT:
            return True
        self.cut += 1
        return False

    def _is_affordable(self, href: str) -> bool:
        """Charge an href for its host if that is not ASCII; return False if the budget is exceeded."""
        found = _HOST.match(without_blanks(href))
        if found is None or (found[1].isascii() and "%" not in found[1]) or found[1] in self._foreign:
            return True
        self._left -= len(found[1])
        if self._left < 0:
            return False
        self._foreign.add(found[1])
        return True

    def _plain_folder(self) -> str | None:
        if self._folder == "":
            folder = self._base.target.partition("?")[0].rpartition("/")[0]
            is_plain = not folder or (_ROOTED.fullmatch(folder) and "//" not in folder)
            self._folder = f"{folder}/" if is_plain else None
        return self._folder


def _resolved(path: str) -> str:
    """Return a path without dot segments (RFC 3986, 5.2.4)."""
    segments: list[str] = []
    parts = path.split("/")
    for part in parts[1:]:
        if part == "..":
            del segments[-1:]
        elif part != ".":
            segments.append(part)
    if parts[-1] in ("..", "."):
        segments.append("")
    return "/" + "/".join(segments)


class KnownHrefs:
    """Cache of resolved hrefs by site. It may drop any entry: the frontier has the authoritative set.

    An href is cached as written if it means the same on every page of its site; otherwise its URL is cached.
    """

    def __init__(self, *, hrefs: int = HREFS, in_all: int = IN_ALL) -> None:
        self._sites: dict[str, dict[str, str]] = {}
        self._count = 0
        self._most_hrefs = hrefs
        self._most_in_all = in_all

    def of(self, origin: str) -> Mapping[str, str]:
        """Return the cached hrefs of a site, each with its URL; `origin` is that of the base URL."""
        return self._sites.get(origin, _NONE)

    def learn(self, origin: str, hrefs: Mapping[str, str]) -> None:
        """Cache hrefs, up to the limit of a site.

        Call it only after the frontier has stored their URLs.
        """
        if not hrefs:
            return
        known = self._sites.pop(origin, {})
        self._count -= len(known)
        if len(known) + len(hrefs) > self._most_hrefs:
            known = {}
        for href, link in islice(hrefs.items(), self._most_hrefs):
            if len(href) + len(link) < SHORT:
                known[href if href.startswith(_LASTING) else link] = link
        self._sites[origin] = known  # last in order, so that the site updated longest ago is dropped first
        self._count += len(known)
        while self._count > self._most_in_all:
            self._count -= len(self._sites.pop(next(iter(self._sites))))


_NONE: Mapping[str, str] = {}
