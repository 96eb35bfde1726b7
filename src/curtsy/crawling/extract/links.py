"""Links: hrefs as they stand in a page made absolute and canonical, at a cost that a page of hundreds can bear.

Most links of a page were on the page before it. So hrefs are looked up as they are written, before anything is made of
them (`KnownHrefs`), and most of the others are canonical but for the host, which a pattern can tell (`Joiner`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import islice

from curtsy.core.message import Url, parse_url, without_blanks

HREFS = 20_000
"""Hrefs of a site that are remembered."""

IN_ALL = 50_000
"""Hrefs that are remembered over all sites: some 12 MB, if they are as long as most."""

SHORT = 500
"""Characters of an href and its URL together, above which they are not remembered."""

# What is canonical but for its origin or folder. Left out is all that parse_url() might change: dot segments within,
# escapes, ports, and hosts that may be addresses.
_PLAIN = r"/(?!/|\.|.*/\.)[\w.~!$&'()*+,=:@/-]*+(?:\?[\w.~!$&'()*+,=:@/?-]++)?"
_ROOTED = re.compile(_PLAIN, re.ASCII)
_ABSOLUTE = re.compile(rf"https?://(?=[^/]{{1,253}}/)(?!-)(?:[a-z0-9_-]{{1,63}}\.)++[a-z]{{2,63}}{_PLAIN}", re.ASCII)
_DOTTED = re.compile(r"(?!.*//)[\w.~/-]++", re.ASCII)
_LONG = 2000

# An authority that has to be mapped to ASCII, which takes 5 µs for each character and more.
_HOST = re.compile(r"(?:https?:[/\\]*+|[/\\]{2,}+)([^/\\?#]*+)", re.IGNORECASE)
MOST_FOREIGN = 50_000
"""Characters of hosts that are not ASCII on one page: 2,500 names of usual length. Links to more are cut."""

MOST_LENT = 4 << 20
"""Characters that the links of one page take over from its base URL. Links that need more are cut: 20,000 hrefs of five
characters under a base of 8,000 would be 160 MB."""

_FREE = 200
"""Characters of a base URL that every link may take over: those of ordinary pages are shorter, and nothing is cut."""

_READ_AGAIN = 8
"""How often they count for a link that has the base read again, which takes 50 ns and more for each."""

# Schemes that links often have and that lead to no page.
_NO_PAGES = ("mailto:", "javascript:", "tel:", "data:")

# What begins so means the same on every page of a site.
_LASTING = ("/", "http://", "https://")


class Joiner:
    """Makes the hrefs of a page absolute and canonical, as `parse_url(href, base)` does."""

    def __init__(self, base: Url) -> None:
        self._base = base
        self._origin = base.origin
        self.cut = 0
        """Links that were given up, because they take too long to be read or too much memory."""
        self._lent = 0
        """Characters of the base URL that links have taken over, weighted by the time that takes."""
        self._foreign: set[str] = set()
        self._left = MOST_FOREIGN
        self._folder: str | None = ""
        """The path of the folder that the page is in; None if it is an odd one, empty if nobody has asked yet."""

    def join(self, href: str) -> str | None:
        """The URL that a link leads to; None if it leads to no page."""
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
                    has_dots = page[0] == "." or "/." in page
                    if not self._lend(folder, _READ_AGAIN if has_dots else 1):
                        return None
                    return self._origin + (_resolved(folder + page) if has_dots else folder + page)
        if not page.startswith(_LASTING) and not self._lend(self._base.target, _READ_AGAIN):
            return None
        if not (href.isascii() and "%" not in href) and not self._is_affordable(href):
            self.cut += 1
            return None
        found = parse_url(href, self._base)
        return found.text if isinstance(found, Url) else None

    def _lend(self, part: str, times: int) -> bool:
        """Whether a link may take over a part of the base URL."""
        self._lent += times * max(0, len(part) - _FREE)
        if self._lent <= MOST_LENT:
            return True
        self.cut += 1
        return False

    def _is_affordable(self, href: str) -> bool:
        """Whether the host of an href, if it has one that is not ASCII, is within what a page may cost."""
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
    """A path without dot segments (RFC 3986, 5.2.4)."""
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
    """Hrefs that need no second look, by site. It may forget any of them at any time: a frontier knows for certain.

    Only those are remembered as they are written that mean the same on every page of their site; of others, it is the
    URL that they lead to.
    """

    def __init__(self, *, hrefs: int = HREFS, in_all: int = IN_ALL) -> None:
        self._sites: dict[str, dict[str, str]] = {}
        self._count = 0
        self._most_hrefs = hrefs
        self._most_in_all = in_all

    def of(self, origin: str) -> Mapping[str, str]:
        """Those of a site, each with the URL that it leads to. `origin` is that of the pages' base URL."""
        return self._sites.get(origin, _NONE)

    def learn(self, origin: str, hrefs: Mapping[str, str]) -> None:
        """Remember hrefs: to be called when what they lead to is safe in the frontier, and not before.

        Of more than a site may have, the first ones.
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
        self._sites[origin] = known  # last in order, so that the one unused for longest goes first
        self._count += len(known)
        while self._count > self._most_in_all:
            self._count -= len(self._sites.pop(next(iter(self._sites))))


_NONE: Mapping[str, str] = {}
