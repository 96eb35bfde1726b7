"""CrawledPage: one page of a crawl; Skipped: one URL that became none, and why."""

from __future__ import annotations

import msgspec

from curtsy.core.message import NO_HEADERS, Headers
from curtsy.core.record import FetchRecord
from curtsy.core.secrets import mask_url, masked_repr


class CrawledPage(msgspec.Struct, frozen=True):
    """A page that was fetched, or was kept from an earlier fetch and still holds."""

    url: str
    """As it was asked for, canonical."""

    final_url: str
    """After redirects that were followed on the way. A crawl takes them as URLs of their own: there it is `url`."""

    status: int
    title: str | None
    text: str
    """The main text; empty unless it was asked for, or if the page is no HTML."""

    links: tuple[str, ...]
    """The pages that it links to, canonical, in order, each once."""

    fetched_at: str
    """When the answer came: ISO 8601, UTC."""

    content_type: str | None
    encoding: str | None
    """Of the text; None if it is no HTML."""

    body: bytes
    """Decompressed."""

    headers: Headers
    """Of the answer."""

    request_headers: Headers = NO_HEADERS
    """What was sent, as far as it was ours to say."""

    depth: int = 0
    """How many links lead here from a seed."""

    parent: str | None = None
    """The page on which it was found first, or which redirected here."""

    redirected: bool = False
    """Whether `parent` redirected here, rather than linking."""

    cache: str | None = None
    """`hit`, `revalidated` or `stale` if the body was kept from an earlier fetch; None if it came just now."""

    canonical: str | None = None
    """What the page calls its own URL."""

    directives: tuple[str, ...] = ()
    """What it asks of crawlers, by meta tags and `X-Robots-Tag`: `noindex`, `nofollow` …"""

    signals: tuple[str, ...] = ()
    """What it, its headers and its site's robots.txt say about the use by AI: `noai`, `Content-Signal: …` …"""

    links_cut: int = 0
    """How many links are missing in `links`, at least: there were more than `max_links_per_page`, or the page takes too
    long to read."""

    duplicate_of: str | None = None
    """A page of this crawl with the very same body, if those are looked for."""

    record: FetchRecord | None = None
    """The fetch itself: attempts, waits, bytes."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {mask_url(self.url)} {self.status} {len(self.body):,} bytes>"


class Skipped(msgspec.Struct, frozen=True, gc=False):
    """A URL from which no page came, for now or for good."""

    url: str
    reason: str
    """A `Reason`, or why it is out of the crawl's scope: `other_host`, `too_deep`, `not_matched` …"""

    message: str = ""
    """What, why and what to do."""

    status: int | None = None
    depth: int = 0
    parent: str | None = None
    is_refusal: bool = True
    """Whether we chose not to ask; False if we asked and it failed."""

    at: str = ""
    """When: ISO 8601, UTC."""

    __repr__ = masked_repr
