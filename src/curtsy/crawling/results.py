"""Results of a crawl: its pages, its URLs without a page, and the queue of results until they are written."""

from __future__ import annotations

import asyncio
import hashlib
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, Self

import msgspec

from curtsy.core.charset import decode
from curtsy.core.crawl_messages import duplicate
from curtsy.core.errors import Reason
from curtsy.core.masking import mask_url, masked_repr
from curtsy.core.record import FetchRecord
from curtsy.core.request import NO_HEADERS, Headers
from curtsy.core.result import FetchResult, parsed_json
from curtsy.crawling.frontier.protocol import Claimed, Deferred, Done, Ending, Failed, Found

DUPLICATE = "duplicate"
"""Reason code for pages with the same body as an earlier one."""

MOST_LINKS = 1000
"""Maximum number of links added in one call. If a page has more, its links are added in chunks before the page is
written, so that other tasks run in between. After a kill, the page is fetched again and its links are known already."""

LARGE = 1_000_000
"""Body size in bytes above which a page is written in a thread, so that the event loop is not blocked."""


class CrawledPage(msgspec.Struct, frozen=True):
    """Page that was fetched, or is a valid cache entry."""

    url: str
    """Requested URL, canonical."""

    final_url: str
    """URL after the followed redirects. In a crawl it equals `url`, because each redirect target is a URL of its
    own."""

    status: int
    title: str | None
    links: tuple[str, ...]
    """Linked pages, canonical, in order, without duplicates."""

    fetched_at: str
    """Time of the response, or at which the crawl took it from the cache: ISO 8601, UTC."""

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

    main_text: str | None = None
    """Main text: empty if the page is not HTML, None if it was not requested."""

    extracted: dict[str, Any] | None = None
    """Extracted fields by name; None if no fields were requested."""

    extract_error: str | None = None
    """Reason why `extracted` is empty or incomplete; None if there was no error."""

    record: FetchRecord | None = None
    """Record of the fetch: attempts, waits, bytes."""

    rendered: bool = False
    """True if the body is the DOM of a browser, after the scripts of the page."""

    @property
    def text(self) -> str:
        """Return the body as text. Each access detects the encoding and decodes again."""
        return decode(self.body, self.content_type)[0]

    def json(self) -> Any:
        """Return the body parsed as JSON. Raises ValueError if it is not JSON."""
        return parsed_json(self.body)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {mask_url(self.url)} {self.status} {len(self.body):,} bytes>"


class SkippedUrl(msgspec.Struct, frozen=True, gc=False):
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

    instead: str | None = None
    """URL whose page is kept instead, as the canonical one."""

    __repr__ = masked_repr


class HostNews(msgspec.Struct, frozen=True, gc=False):
    """What a response says about its host: the progress shows it."""

    reason: Reason | None
    retry_after: float | None
    cause: str
    requests_left: int | None
    pages_left: int | None
    crawl_delay: float = 0.0
    """Seconds between two requests that the site's robots.txt wants, if the settings want fewer; else 0."""

    @classmethod
    def of(cls, result: FetchResult, crawl_delay: float) -> Self:
        """Return the news of a response."""
        reason, record = result.reason, result.record
        delay = 0.0 if reason is Reason.CRAWL_DELAY_TOO_LONG else crawl_delay  # then it is not followed
        return cls(reason, result.retry_after, result.cause, record.requests_left, record.pages_left, delay)


class Finished(msgspec.Struct):
    """Result of one claim."""

    claimed: Claimed
    end: Done | Failed | Deferred
    found: Sequence[Found] = ()
    page: CrawledPage | None = None
    skipped: Sequence[SkippedUrl] = ()
    """URLs without a page: the claimed URL itself and links outside the scope."""

    learned: tuple[str, Mapping[str, str]] = ("", {})
    """Origin, and hrefs on its pages that need no further check once this claim is written. Each href maps to its
    link."""

    notes: Mapping[str, Any] = {}
    links_cut: int = 0
    """Minimum number of links of the page that were dropped."""

    redirect: CrawledPage | None = None
    """Response of a redirect or of a failed redirect. It is not a page, but archives store it."""

    requisite: CrawledPage | None = None
    """Response that a page needs, such as an image. It is not a page."""

    more_left_out: Mapping[str, int] = {}
    """Number of links outside the scope beyond those in `skipped`, by reason."""

    bytes: int = 0
    """Body bytes received over the network, including bodies that are not stored."""

    answered_at: float | None = None
    """Time at which the seconds in `end` start to count. None: they count from the time of writing."""

    news: HostNews | None = None
    """News of the host; None without a response."""

    @property
    def is_large(self) -> bool:
        """Return whether writing it takes long."""
        page = self.page or self.requisite
        size = len(self.skipped) if page is None else len(self.skipped) + len(page.links)
        return size > MOST_LINKS or (page is not None and len(page.body) > LARGE)

    def leave_out(self, reason: str, message: str, instead: str | None = None) -> None:
        """Leave the page out of the results, in favour of the page of `instead`."""
        page = self.page
        assert page is not None
        place = page.depth, page.parent
        skipped = SkippedUrl(page.url, reason, message, page.status, *place, at=page.fetched_at, instead=instead)
        self.skipped, self.page = [*self.skipped, skipped], None

    def drop_all_but_links(self) -> None:
        """Leave out what an earlier worker has written."""
        self.page, self.redirect, self.requisite, self.skipped, self.more_left_out = None, None, None, (), {}
        if isinstance(self.end, Failed):
            self.end = Done(self.end.after)

    def ending(self, now: float, *, is_logged: bool = False) -> Ending:
        """Return it as an ending for the frontier. The ending's seconds count from `now`. `is_logged`: log a page."""
        end = self.end
        if self.answered_at is not None:
            age = now - self.answered_at
            match end:
                case Done(after) if after:
                    end = Done(max(0.0, after - age))
                case Failed(reason, after) if after:
                    end = Failed(reason, max(0.0, after - age))
                case Deferred(seconds, last) if seconds:
                    end = Deferred(max(0.0, seconds - age), last)
        is_page = self.page is not None
        is_counted = is_page or (self.claimed.is_written and isinstance(end, Done))
        return Ending(self.claimed, end, self.found, is_counted, is_page and is_logged)


class Results:
    """Finished fetches: unread, yielded, or ready to be written."""

    def __init__(self, *, drop_duplicates: bool = False) -> None:
        """Create the queue. With `drop_duplicates`, a page with the body of an earlier one is left out."""
        self._drops_duplicates = drop_duplicates
        self._bodies: dict[bytes, str] = {}
        """URL of the first page with a body, by the body's digest."""
        self.finished: list[Finished] = []
        """Results to be written."""
        self.is_iterated = False
        """True if a consumer iterates over the pages; else they go to the outputs only."""
        self.changed = asyncio.Event()
        """Set when a page is available, or when the crawl has ended."""
        self._unread: deque[Finished] = deque()
        self._handed: dict[int, Finished] = {}
        """Yielded results that the consumer has not finished yet, by ticket."""

    def put(self, finished: Finished) -> None:
        """Add the result of a fetch."""
        if finished.claimed.is_written:
            finished.drop_all_but_links()
        if (page := finished.page) is not None and self._drops_duplicates:
            digest = hashlib.blake2b(page.body, digest_size=16).digest()
            if (first := self._bodies.setdefault(digest, page.url)) != page.url:
                finished.leave_out(DUPLICATE, duplicate(page.url, first), first)
        if finished.page is not None and self.is_iterated:
            self._unread.append(finished)
            self.changed.set()
        else:
            self.finished.append(finished)

    def take(self) -> Finished | None:
        """Return the next page for the consumer, or None."""
        if not self._unread:
            return None
        finished = self._unread.popleft()
        self._handed[finished.claimed.ticket] = finished
        return finished

    def accept(self, finished: Finished) -> None:
        """Mark a yielded page for writing, unless it was put back meanwhile."""
        if self._handed.pop(finished.claimed.ticket, None) is not None:
            self.finished.append(finished)

    def accept_all(self) -> None:
        """Mark all yielded pages for writing."""
        self.finished += self._handed.values()
        self._handed.clear()

    def give_back(self) -> None:
        """Put back the URLs of pages that the consumer did not take or finish."""
        self.finished += [Finished(each.claimed, Deferred(0.0)) for each in self.held()]
        self._handed.clear()
        self._unread.clear()

    def held(self) -> list[Finished]:
        """Return the results that may not be written yet."""
        return [*self._handed.values(), *self._unread]

    def holds(self) -> int:
        """Return the number of results that may not be written yet."""
        return len(self._handed) + len(self._unread)
