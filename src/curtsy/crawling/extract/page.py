"""Extraction from a page: its title, its links and its directives to crawlers (U12, U13).

No tree is built, and the time is linear in the size of the page (see `markup.py`). The bytes read and the links taken
are bounded: `Extract.links_cut` reports the loss.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import msgspec

from curtsy.core.charset import octets
from curtsy.core.masking import masked_repr
from curtsy.core.url import Url, parse_url
from curtsy.crawling.extract.links import Joiner, KnownHrefs
from curtsy.crawling.extract.markup import Scan
from curtsy.crawling.extract.tokens import TITLE, attributes, from_octets, plain_text

MAX_LINKS = 20_000
"""Maximum links of one page, by default."""

XHTML = "application/xhtml+xml"
HTML = frozenset({"text/html", XHTML})
"""Content types that are read for links; other bodies are saved as they are."""

AI_SIGNALS = frozenset({"noai", "noimageai"})
"""Directives on the use of a page by AI. They are reported and decide nothing here."""

# Directives with a value, which look like the name of a crawler and its directive.
_VALUED = frozenset({"unavailable_after", "max-snippet", "max-image-preview", "max-video-preview"})

_REFRESH = re.compile(r"""[\s\d.]*+[;,]?\s*+url\s*+=\s*+["']?\s*+([^"']+)""", re.IGNORECASE)

LONGEST_PAGE = 16 << 20
"""Bytes of a page, as UTF-8, that are searched for links."""

_LONGEST_VALUE, _MOST_SIGNALS = 1000, 20
"""Characters of a robots directive that are read, and signals of a page that are reported."""


class Extract(msgspec.Struct, frozen=True):
    """Content extracted from a page."""

    title: str | None
    links: tuple[str, ...]
    """Canonical URLs of the linked pages, in order and without duplicates."""

    unfollowed: frozenset[str]
    """Links that occur only with `rel=nofollow`."""

    fresh: dict[str, str]
    """Hrefs that were not known, most without fragment, each with its link; the argument of `KnownHrefs.learn`."""

    skipped: int
    """Number of hrefs without a link: other schemes, invalid URLs, and those cut for their cost."""

    links_cut: int
    """Least number of links lost, because they were too many or the page takes too long to read."""

    base: Url
    """Base URL of relative links."""

    canonical: str | None
    """URL that the page names as its own; None if it names no valid one."""

    directives: frozenset[str]
    """Directives to crawlers from meta tags and `X-Robots-Tag`, in lower case."""

    signals: tuple[str, ...]
    """Statements on AI and text mining."""

    encoding: str | None
    """Encoding of the body; None if the body is not HTML and was not read."""

    __repr__ = masked_repr

    @property
    def noindex(self) -> bool:
        """Return whether the page asks not to be kept."""
        return "noindex" in self.directives

    @property
    def nofollow(self) -> bool:
        """Return whether the page asks that its links not be followed."""
        return "nofollow" in self.directives


def is_html(content_type: str | None, body: bytes = b"") -> bool:
    """Return whether a response is HTML; without a Content-Type, its first bytes decide."""
    kind = kind_of(content_type)
    return kind in HTML or (not kind and body[:1024].lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"<"))


def kind_of(content_type: str | None) -> str:
    """Return the media type of a Content-Type in lower case, without parameters."""
    return (content_type or "").partition(";")[0].strip().lower()


def extract(
    body: bytes,
    content_type: str | None,
    url: Url,
    *,
    agent: str = "curtsy",
    x_robots_tag: Iterable[str] = (),
    known: KnownHrefs | None = None,
    max_links: int = MAX_LINKS,
) -> Extract:
    """Extract title, links and directives from a page. It never raises.

    `agent` is our product token: directives for it count besides those for all crawlers. `x_robots_tag` has the values
    of that header. Hrefs in `known` are not resolved again. Only the first `max_links` links are taken.
    """
    asked = header_directives(x_robots_tag, agent)
    if not is_html(content_type, body):
        return Extract(None, (), frozenset(), {}, 0, 0, url, None, frozenset(asked), _signals(asked), None)
    text, encoding = octets(body, content_type, LONGEST_PAGE)
    scan = Scan(text, max_links, is_xml=kind_of(content_type) == XHTML)
    page = _Page(url, agent, scan)
    for name, written in scan.tags():
        page.read(name, written)
    base = page.base or url
    joiner = Joiner(base)
    join, odd = joiner.join, scan.odd
    site = {} if known is None else known.of(base.origin)
    links: dict[str, bool] = {}
    fresh: dict[str, str] = {}
    skipped = 0
    for href, is_followed in scan.hrefs.items():
        link = site.get(href)
        if link is None:
            link = join(href, href not in odd)
            if link is None:
                skipped += 1
                continue
            if link not in site:
                fresh[href] = link
        if is_followed or link not in links:
            links[link] = is_followed
    asked |= page.directives
    cut = scan.cut + joiner.cut
    if not scan.is_whole or len(text) >= LONGEST_PAGE:
        cut = max(cut, 1)  # their number is unknown
    return Extract(
        title=page.title,
        links=tuple(links),
        unfollowed=frozenset(() if all(links.values()) else [link for link in links if not links[link]]),
        fresh=fresh,
        skipped=skipped,
        links_cut=cut,
        base=base,
        canonical=None if page.canonical is None else joiner.join(page.canonical),
        directives=frozenset(asked),
        signals=_signals(asked) + tuple(page.signals),
        encoding=encoding,
    )


class _Page:
    """Values collected from the tags of a page."""

    def __init__(self, url: Url, agent: str, scan: Scan) -> None:
        self._url = url
        self._scan = scan
        self._names = ("robots", agent.lower())
        self._hints = (*self._names, "refresh", "tdm-reservation", "&")
        """Words of which a meta tag that `_meta` reads has one."""
        self.title: str | None = None
        self.base: Url | None = None
        self.canonical: str | None = None
        self.directives: set[str] = set()
        self.signals: list[str] = []

    def read(self, name: str, written: str) -> None:
        """Collect the values of one tag."""
        if name == TITLE:
            if self.title is None:
                self.title = " ".join(plain_text(from_octets(written)).split()) or None
            return
        if name == "meta" and not any(map(written.lower().__contains__, self._hints)):
            return
        values = attributes(written if written.isascii() else from_octets(written))
        if name == "meta":
            self._meta(values)
        elif (href := values.get("href")) is None:
            return
        elif name == "base":
            if self.base is None:
                found = parse_url(href, self._url)
                self.base = found if isinstance(found, Url) else self._url
        elif name == "link":
            if self.canonical is None and "canonical" in values.get("rel", "").lower().split():
                self.canonical = href
        else:
            is_followed = "rel" not in values or "nofollow" not in values["rel"].lower().split()
            self._scan.add(href, is_followed=is_followed)

    def _meta(self, values: dict[str, str]) -> None:
        name, content = values.get("name", "").strip().lower(), values.get("content", "")
        if name in self._names:
            self.directives |= _directives(content[:_LONGEST_VALUE])
        elif name == "tdm-reservation":
            if len(self.signals) < _MOST_SIGNALS:
                self.signals.append(f"tdm-reservation={content.strip()[:100]}")
        elif values.get("http-equiv", "").strip().lower() == "refresh" and (found := _REFRESH.match(content)):
            self._scan.add(found[1])


def header_directives(x_robots_tag: Iterable[str], agent: str = "curtsy") -> set[str]:
    """Return the `X-Robots-Tag` directives for all crawlers and for `agent`."""
    asked: set[str] = set()
    for value in x_robots_tag:
        is_ours = True
        for part in value.split(","):
            name, colon, rest = part.partition(":")
            if colon and name.strip().lower() not in _VALUED:
                is_ours = name.strip().lower() == agent.lower()
                part = rest
            if is_ours:
                asked |= _directives(part)
    return asked


def _directives(content: str) -> set[str]:
    found = {word for part in content.split(",") if (word := " ".join(part.lower().split())[:100])}
    return found | {"noindex", "nofollow"} if "none" in found else found


def _signals(directives: set[str]) -> tuple[str, ...]:
    return tuple(sorted(directives & AI_SIGNALS))
