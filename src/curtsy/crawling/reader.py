"""Reader: parses a response into a page or a sitemap.

SiteInfo       sitemaps and signals of a robots.txt
SitemapQuota   limit on the sitemaps of a site
"""

from __future__ import annotations

import re
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from functools import lru_cache
from heapq import nlargest
from typing import Any

import msgspec

from curtsy.core.crawl_messages import not_extracted
from curtsy.core.masking import mask_url
from curtsy.core.request import Headers
from curtsy.core.result import FetchResult
from curtsy.core.rules import agent_rules
from curtsy.core.url import Url, parse_url
from curtsy.crawling.extract.fields import fields_of, values_of
from curtsy.crawling.extract.links import KnownHrefs
from curtsy.crawling.extract.page import Extract, extract, is_html
from curtsy.crawling.extract.sitemap import Sitemap, is_sitemap, parse_sitemap
from curtsy.crawling.extract.text import main_text
from curtsy.crawling.frontier.protocol import Claimed
from curtsy.crawling.frontier.url_table import fingerprint
from curtsy.crawling.options import CrawlOptions
from curtsy.crawling.requisites import is_requisite, needed_by
from curtsy.crawling.results import CrawledPage
from curtsy.engine.session import Session
from curtsy.system.log import LibraryLogger, library_logger

_log: LibraryLogger = library_logger("crawl")

SEED_PRIORITY, SITEMAP_PRIORITY = 100, 200
"""Priorities. Sitemaps precede pages, because they list them. Links have priority 0. A URL that is put back last loses
one."""

MOST_WARNINGS, MOST_PROBLEM = 5, 300
"""Warnings about extraction in a run, because all pages may have the same error, and characters of an error."""

GZIP = b"\x1f\x8b"

# A sitemap by its root element, after a declaration and comments.
_SITEMAP = re.compile(rb"(?:\xef\xbb\xbf)?\s*+(?:<[?!][^>]*+>\s*+)*+<(?:\w++:)?(?:urlset|sitemapindex)\b")

_SIGNAL_HEADERS = frozenset({"content-signal", "content-usage", "tdm-reservation"})


class Reading(msgspec.Struct, frozen=True):
    """Parsed response."""

    page: CrawledPage | None
    """None if the response is a sitemap."""

    fresh: dict[str, str] = {}
    """Hrefs that were unknown and may be followed, each with its link."""

    origin: str = ""
    """Origin of the page's base URL, to which the hrefs belong."""

    sitemap: Sitemap | None = None
    is_noindex: bool = False
    requisites: tuple[str, ...] = ()
    """URLs that the page needs."""


class Reader:
    """Parser of responses. It has no side effects, so it may run in any thread."""

    def __init__(
        self,
        options: CrawlOptions,
        agent: str,
        signals: Callable[[str], tuple[str, ...]],
        known: KnownHrefs | None = None,
    ) -> None:
        self._options = options
        self._agent = agent
        """Product token of the user agent, for directives addressed to it."""
        self._signals = signals
        """Function that returns the AI signals in an origin's robots.txt."""
        self._known = known
        self._fields = fields_of(options.extract) if isinstance(options.extract, Mapping) else ()
        self._lock = threading.Lock()
        self._problems = 0
        """Number of pages whose fields could not be extracted."""

    def read(self, claimed: Claimed, result: FetchResult, sent: Headers, epoch: float) -> Reading:
        """Parse a response into a page or a sitemap."""
        url = parse_url(result.final_url)
        assert isinstance(url, Url)
        options, headers, body = self._options, result.headers, result.body
        if options.sitemaps and (is_for_sitemap(claimed) or _is_sitemap(body)):
            sitemap = parse_sitemap(body, url.text)
            is_page = not sitemap.pages and not sitemap.sitemaps and is_html(result.content_type, body)
            if is_listed(claimed) or not is_page:  # some sites redirect an absent sitemap to a page
                return Reading(None, sitemap=sitemap)
        asked = headers.all("x-robots-tag") if "x-robots-tag" in headers else ()
        found = extract(
            body, result.content_type, url, agent=self._agent, x_robots_tag=asked, known=self._known,
            max_links=options.max_links_per_page,
        )  # fmt: skip
        reader = options.main_text
        text = None if reader is None else main_text(body, result.content_type, reader=reader)
        page = msgspec.structs.replace(
            answer_of(claimed, result, sent, epoch),
            title=found.title,
            main_text=text,
            links=found.links,
            encoding=found.encoding,
            canonical=found.canonical,
            directives=tuple(sorted(found.directives)),
            signals=self._signals(url.origin) + _header_signals(headers) + found.signals,
            links_cut=found.links_cut,
        )
        is_noindex = options.obey_noindex and found.noindex
        if options.extract is not None and not is_requisite(claimed):
            page = self._with_fields(page)
        needed = () if options.requisites == "none" else needed_by(body, result.content_type, found.base)
        fresh, origin = self._followed(found), found.base.origin
        return Reading(page, fresh, origin, is_noindex=is_noindex, requisites=needed)

    def _with_fields(self, page: CrawledPage) -> CrawledPage:
        """Return a page with its extracted fields. An error keeps the page, and is counted in the totals."""
        extract = self._options.extract
        if callable(extract):
            with self._lock:  # one call at a time, although pages are read in several threads
                values, problem = _returned_by(extract, page)
        else:
            values, problem = values_of(self._fields, page.body, page.content_type, page.final_url)
        if problem is not None:
            problem = mask_url(" ".join(problem.split()))[:MOST_PROBLEM]
            self._problems += 1
            if self._problems <= MOST_WARNINGS:
                _log.warning(not_extracted(page.url, problem))
        return msgspec.structs.replace(page, extracted=values, extract_error=problem)

    def _followed(self, found: Extract) -> dict[str, str]:
        if not self._options.obey_nofollow or not (found.nofollow or found.unfollowed):
            return found.fresh
        followed = () if found.nofollow else found.fresh.items()
        return {href: link for href, link in followed if link not in found.unfollowed}


def _returned_by(extract: Callable[[CrawledPage], Any], page: CrawledPage) -> tuple[dict[str, Any], str | None]:
    """Return the fields that a user's function returns, as plain values, and its error in words."""
    try:
        given = extract(page)
        found = {} if given is None else msgspec.json.decode(msgspec.json.encode(given))
    except Exception as error:  # of any kind: the page itself is kept
        return {}, f"{type(error).__name__}: {error}"
    if not isinstance(found, dict):
        return {}, f"the function returned a value of the type {type(given).__name__}, and must return a dict"
    return found, None


def is_for_sitemap(claimed: Claimed) -> bool:
    """Return whether it is fetched because a sitemap is expected there."""
    return SEED_PRIORITY < claimed.priority <= SITEMAP_PRIORITY or is_in_reserve(claimed)


def is_in_reserve(claimed: Claimed) -> bool:
    """Return whether it is a sitemap to read only if no other URL is left."""
    return claimed.priority < -SEED_PRIORITY


def _is_sitemap(body: bytes) -> bool:
    return is_sitemap(body) if body.startswith(GZIP) else _SITEMAP.match(body, 0, 4096) is not None


def answer_of(claimed: Claimed, result: FetchResult, sent: Headers, epoch: float) -> CrawledPage:
    """Return a response as an unparsed page."""
    return CrawledPage(
        url=result.url,
        final_url=result.final_url,
        status=result.status or 0,
        title=None,
        links=(),
        fetched_at=moment(epoch),
        content_type=result.content_type,
        encoding=None,
        body=result.body,
        headers=result.headers,
        request_headers=sent,
        depth=claimed.depth,
        parent=claimed.parent,
        redirected=claimed.hops > 0,
        cache=result.record.cache,
        record=result.record,
        rendered=result.rendered,
    )


def is_listed(claimed: Claimed) -> bool:
    """Return whether robots.txt names it as a sitemap. Such a URL has that robots.txt as its parent."""
    return claimed.parent is not None and claimed.parent.endswith("/robots.txt")


def _header_signals(headers: Headers) -> tuple[str, ...]:
    if _SIGNAL_HEADERS.isdisjoint(headers.by_name):
        return ()
    names = sorted(_SIGNAL_HEADERS)
    return tuple(f"{name}: {value[:200]}" for name in names for value in headers.all(name))


def origin_of(url: str) -> str:
    """Return the origin of a canonical URL."""
    return url[: url.index("/", 8)]


def moment(epoch: float) -> str:
    """Return an epoch second as ISO 8601, UTC."""
    second, rest = divmod(round(1e6 * epoch), 1_000_000)
    return f"{_whole_second(second)}.{rest // 1000:03}Z"


@lru_cache(maxsize=16)
def _whole_second(second: int) -> str:
    return datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%dT%H:%M:%S")


MOST_SIGNALS = 1000
"""Maximum number of robots.txt texts with remembered AI signals."""


class SiteInfo:
    """Information on origins from the rules that the session has cached; it sends no requests."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._met: set[str] = set()
        self._signals: dict[int, tuple[str, ...]] = {}
        """AI signals by the hash of a text. Texts may be long and are often equal on many hosts."""

    def sitemaps(self, origin: str, most: int) -> list[str]:
        """Return the first `most` sitemaps of an origin, or their usual path; empty if it was met before."""
        if origin in self._met:
            return []
        self._met.add(origin)
        base = parse_url(origin + "/")
        assert isinstance(base, Url)
        text = self._text(origin)
        named = agent_rules(text, self._session.policies.user_agent).sitemaps[:most] if text else ()
        urls = [each.text for name in named if isinstance(each := parse_url(name, base), Url)]
        return urls or [f"{origin}/sitemap.xml"]

    def signals(self, origin: str) -> tuple[str, ...]:
        """Return the AI signals of an origin, each as a field with its value."""
        text = self._text(origin)
        if not text:
            return ()
        key = hash(text)
        known = self._signals.get(key)
        if known is None:
            said = agent_rules(text, self._session.policies.user_agent).content_signals
            known = tuple(f"{each.field}: {each.value[:200]}" for each in said)
            if len(self._signals) >= MOST_SIGNALS:
                self._signals.clear()
            self._signals[key] = known
        return known

    def _text(self, origin: str) -> bytes | None:
        rules = self._session.known_rules(origin)
        return None if rules is None else rules.text


MOST_SITEMAP_BYTES = 1 << 30
"""Maximum sitemap bytes read of a site: those of a few million URLs, compressed."""

MOST_KNOWN = 100_000
"""Maximum number of remembered sitemaps, which count once even if they are named twice."""

MANY, MOST_NOTED = 20, 1000
"""Number of sitemaps from which a site's count is noted in the job, and maximum number of noted sites."""


class SitemapQuota:
    """Quota of sitemaps for each site. A sitemap counts when it is queued; redirects count too."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._counts: Counter[str] = Counter()
        self._known: set[int] = set()
        """Fingerprints of the URLs of recently queued sitemaps."""
        self._many: set[str] = set()
        """Sites with many sitemaps."""
        self._bytes: Counter[str] = Counter()
        self._told: set[str] = set()

    def resume(self, noted: Any) -> None:
        """Resume with the result of `noted` from an earlier run."""
        if isinstance(noted, dict):
            self._counts.update({site: count for site, count in noted.items() if isinstance(count, int)})
            self._many.update(self._counts)

    def noted(self) -> dict[str, int]:
        """Return the number of sitemaps of each site that has many."""
        return {site: self._counts[site] for site in nlargest(MOST_NOTED, self._many, key=self._counts.__getitem__)}

    def take(self, site: str, urls: Iterable[str]) -> list[str]:
        """Return the sitemaps that may be queued: within the site's quota, each once."""
        taken = []
        for url in urls:
            key = fingerprint(url)
            if key in self._known:
                continue
            if self._counts[site] >= self._most or self._bytes[site] >= MOST_SITEMAP_BYTES:
                self._tell(site)
                break
            if len(self._known) >= MOST_KNOWN:
                self._known.clear()
            self._known.add(key)
            self._counts[site] += 1
            taken.append(url)
        if self._counts[site] >= MANY:
            self._many.add(site)
        return taken

    def spend(self, site: str, size: int) -> None:
        """Count `size` bytes of a sitemap that was read."""
        self._bytes[site] += size

    def _tell(self, site: str) -> None:
        if site not in self._told:
            self._told.add(site)
            _log.warning(
                f"{site} has more sitemaps than are read: {self._counts[site]:,} so far, {self._bytes[site]:,} bytes. "
                f"The others are left out. Raise max_sitemaps (--max-sitemaps), which is {self._most:,}, if the site "
                "is that large."
            )
