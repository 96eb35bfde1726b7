"""Resolution of hrefs to absolute canonical URLs, cheap enough for pages with hundreds of links.

Most links of a page were on the page before it, so hrefs are first looked up as written (`KnownHrefs`). Most others are
canonical except for the origin and the folder (`Joiner`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import islice

from curtsy.core.url import MAX_URL, Url, parse_url, without_blanks

HREFS = 20_000
"""Hrefs cached per site."""

IN_ALL = 50_000
"""Hrefs cached over all sites: some 12 MB at usual lengths."""

SHORT = 500
"""Characters of an href and its URL together, from which on they are not cached."""

# Characters that parse_url() keeps, and escapes that are canonical.
_PLAIN = re.compile(r"(?:[A-Za-z0-9_.~!$&'()*+,;=:@/?-]++|%(?:[89A-F][0-9A-F]|2[0-9A-CF]))*+")
# A host that is canonical and no address, and the beginning of a path.
_ABSOLUTE = re.compile(r"https?://(?=[^/]{1,253}/)(?!-)(?:[a-z0-9_-]{1,63}\.)++[a-z]{2,63}/(?!/)")
_UNSURE = frozenset(".?")
# Characters with which a relative path begins that is below the folder of its page.
_NAMES = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_~-")
LONG = 2000
"""Characters of an href from which on it is always parsed."""

FOLDERS = 100
"""Folders, such as `../../`, that are cached for a page."""

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
        self._folders: dict[str, str] = {}
        """URLs of folders by the relative paths that end with `./`, without it."""
        self._long_folders: dict[str, str] = {}
        """The same for those that are charged to links; empty if an href must be parsed as a whole."""

    def join(self, href: str, is_plain: bool = False) -> str | None:
        """Return the URL of an href; None if it leads to no page or is cut.

        With `is_plain`, the caller has checked that it is short, and has only plain characters and no fragment.
        """
        is_below = is_plain and href[:1] in _NAMES and ":" not in href and "/." not in href
        if is_below and (folder := self._folders.get("") or self._folder("")):
            return folder + href
        page = href if is_plain or "#" not in href else href.partition("#")[0]
        if is_plain or (len(href) < LONG and _PLAIN.fullmatch(page)):
            if page[:1] == "/":
                if page[1:2] != "/" and "/." not in page:
                    return self._origin + page
            elif ":" in page:
                if _ABSOLUTE.match(page) and "/." not in page:
                    return page
            elif page and (url := self._relative(page)):
                return url
        return self._parsed(href, page)

    def _relative(self, page: str) -> str:
        """Return the URL of a relative path; empty if it must be parsed as a whole."""
        dots, _, rest = page.rpartition("./")
        if rest[:1] in _UNSURE or "/." in rest:
            return ""
        folder = self._folders.get(dots) or self._folder(dots)
        return folder + rest if folder else ""

    def _folder(self, dots: str) -> str:
        """Return the URL of a relative path that ends with `./`, given without it.

        It is empty if an href with that path must be parsed as a whole.
        """
        if dots not in self._long_folders and len(self._folders) + len(self._long_folders) < FOLDERS:
            found = parse_url(f"{dots}./", self._base)
            folder = found.text if isinstance(found, Url) else ""
            if 0 < len(folder) <= _FREE:
                self._folders[dots] = folder
                return folder
            self._long_folders[dots] = folder if len(folder) < MAX_URL - LONG else ""
        folder = self._long_folders.get(dots, "")
        return folder if folder and self._lend(len(folder) - len(dots)) else ""

    def _parsed(self, href: str, page: str) -> str | None:
        """Return the URL of any other href; `page` is the href without its fragment."""
        if page.startswith(_NO_PAGES):
            return None
        is_copied = not page.startswith(_LASTING)
        if (is_copied and not self._lend(len(self._base.target), _READ_AGAIN)) or not self._is_affordable(href):
            self.cut += 1
            return None
        found = parse_url(href, self._base)
        return found.text if isinstance(found, Url) else None

    def _lend(self, length: int, times: int = 1) -> bool:
        """Charge a link for a part of the base URL; return False if the budget is exceeded."""
        self._lent += times * max(0, length - _FREE)
        return self._lent <= MOST_LENT

    def _is_affordable(self, href: str) -> bool:
        """Charge an href for its host if that is not ASCII; return False if the budget is exceeded."""
        if href.isascii() and "%" not in href:
            return True
        found = _HOST.match(without_blanks(href))
        if found is None or (found[1].isascii() and "%" not in found[1]) or found[1] in self._foreign:
            return True
        self._left -= len(found[1])
        if self._left < 0:
            return False
        self._foreign.add(found[1])
        return True


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

    def clear(self) -> None:
        """Forget all: the frontier may lack URLs that it had stored."""
        self._sites.clear()
        self._count = 0

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
