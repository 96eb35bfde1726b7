"""Requisites: the images, styles, scripts, fonts and frames that pages need, as URLs of a crawl.

They are fetched right after their page, whatever its depth, and are no pages: they do not count for `max_pages` or the
daily budget of pages, and go to mirrors and archives only. robots.txt, the pace and the budget of requests apply. A
requisite that is HTML, such as a frame, is a page like any other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import islice

from curtsy.core.charset import octets
from curtsy.core.url import Url, parse_url
from curtsy.crawling.extract.page import LONGEST_PAGE, XHTML, is_html, kind_of
from curtsy.crawling.extract.references import Form, Value, decoded, pieces, values
from curtsy.crawling.extract.scope import OutOfScope, Scope
from curtsy.crawling.extract.tokens import from_octets
from curtsy.crawling.extract.traps import Traps
from curtsy.crawling.frontier.protocol import Claimed, Found, host_of
from curtsy.crawling.options import CrawlOptions
from curtsy.http.registered_domain import site_of

PRIORITY, LOWEST = 300, 250
"""Priorities of requisites, above all others: one that is put back last loses one."""

MOST = 5000
"""Maximum number of requisites of one page."""

STYLES = "text/css"

_NEEDED = frozenset({Form.REQUISITE, Form.SRCSET, Form.STYLE, Form.SHEET})


def is_requisite(claimed: Claimed) -> bool:
    """Return whether a URL was queued because a page needs it."""
    return claimed.priority > LOWEST


def needed_by(body: bytes, content_type: str | None, base: Url) -> tuple[str, ...]:
    """Return the canonical URLs that a page or a style sheet needs. `base` is the base URL of its references."""
    is_sheet = kind_of(content_type) == STYLES
    if not is_sheet and not is_html(content_type, body):
        return ()
    text, _ = octets(body, content_type, LONGEST_PAGE)
    found: Iterable[Value] = [Value(0, len(text), Form.SHEET)]
    if not is_sheet:
        found = values(text, is_xml=kind_of(content_type) == XHTML)
    return tuple(islice(dict.fromkeys(_canonical(text, found, base)), MOST))


def _canonical(text: str, found: Iterable[Value], base: Url) -> Iterable[str]:
    for value in found:
        if value.form in _NEEDED:
            for piece in pieces(value.form, decoded(text, value, from_octets)):
                url = None if piece.url[:1] in ("", "#") else parse_url(piece.url, base)
                if isinstance(url, Url):
                    yield url.text


class Requisites:
    """Choice of the requisites that a crawl fetches."""

    def __init__(self, options: CrawlOptions, scope: Callable[[], Scope], traps: Traps | None) -> None:
        self._is_anywhere = options.requisites == "any"
        self._scope = scope
        self._traps = traps

    def found(self, claimed: Claimed, urls: Iterable[str]) -> list[Found]:
        """Return the URLs to add to the frontier of those that a claimed page needs."""
        stripped = urls if self._traps is None else map(self._traps.stripped, urls)
        wanted = [url for url in stripped if self.outside(url, claimed.url) is None]
        return [Found(wanted, claimed.depth, PRIORITY, claimed.url)] if wanted else []

    def outside(self, url: str, page: str) -> OutOfScope | None:
        """Return why a URL that a page needs is not fetched; None if it is."""
        if self._traps is not None and self._traps.is_too_long(url):
            return OutOfScope.TOO_LONG
        scope = self._scope()
        if scope.skips(url):
            return OutOfScope.SKIPPED
        if self._is_anywhere or scope.covers(url) or site_of(host_of(url)) == site_of(host_of(page)):
            return None
        return OutOfScope.OTHER_SITE
