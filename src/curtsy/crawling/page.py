"""CrawledPage: a page of a crawl. Skipped: a URL without a page, and the reason."""

from __future__ import annotations

import msgspec

from curtsy.core.message import NO_HEADERS, Headers
from curtsy.core.record import FetchRecord
from curtsy.core.secrets import mask_url, masked_repr


class CrawledPage(msgspec.Struct, frozen=True):
    """Page that was fetched, or is a valid cache entry."""

    url: str
    """Requested URL, canonical."""

    final_url: str
    """URL after the followed redirects. In a crawl it equals `url`, because each redirect target is a URL of its
    own."""

    status: int
    title: str | None
    text: str
    """Main text; empty if it was not requested or the page is not HTML."""

    links: tuple[str, ...]
    """Linked pages, canonical, in order, without duplicates."""

    fetched_at: str
    """Time of the response: ISO 8601, UTC."""

    content_type: str | None
    encoding: str | None
    """Encoding of the text; None if the page is not HTML."""

    body: bytes
    """Decompressed body."""

    headers: Headers
    """Response headers."""

    request_headers: Headers = NO_HEADERS
    """Request headers that curtsy set itself."""

    depth: int = 0
    """Number of links from a seed."""

    parent: str | None = None
    """First page that links to it, or the URL that redirected to it."""

    redirected: bool = False
    """True if `parent` redirected here; False if it links here."""

    cache: str | None = None
    """`hit`, `revalidated` or `stale` if the body is a cache entry; None if it was fetched now."""

    canonical: str | None = None
    """URL that the page names as its canonical one."""

    directives: tuple[str, ...] = ()
    """Directives for crawlers in meta tags and `X-Robots-Tag`: `noindex`, `nofollow` …"""

    signals: tuple[str, ...] = ()
    """Statements on AI use in the page, its headers and the site's robots.txt: `noai`, `Content-Signal: …` …"""

    links_cut: int = 0
    """Minimum number of links missing in `links`: the page has more than `max_links_per_page`, or takes too long to
    read."""

    duplicate_of: str | None = None
    """Page of this crawl with the same body, if duplicates are searched."""

    record: FetchRecord | None = None
    """Record of the fetch: attempts, waits, bytes."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {mask_url(self.url)} {self.status} {len(self.body):,} bytes>"


class Skipped(msgspec.Struct, frozen=True, gc=False):
    """URL without a page, temporarily or permanently."""

    url: str
    reason: str
    """A `Reason`, or why it is outside the scope: `other_host`, `too_deep`, `not_matched` …"""

    message: str = ""
    """Explanation: what happened, why, and what to do."""

    status: int | None = None
    depth: int = 0
    parent: str | None = None
    is_refusal: bool = True
    """True if curtsy decided against the request or the page; False if the request failed."""

    at: str = ""
    """Time: ISO 8601, UTC."""

    __repr__ = masked_repr
