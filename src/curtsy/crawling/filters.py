"""Decisions on a URL and its links by its response."""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import islice
from typing import Protocol

import msgspec

from curtsy.core import crawl_messages
from curtsy.core.errors import REFUSALS, Reason
from curtsy.core.fetch_state import NO_TIME, redirect_target
from curtsy.core.outcome import is_worth_repeating
from curtsy.core.request import Headers, Response
from curtsy.core.result import FetchResult
from curtsy.core.robots import product_token
from curtsy.core.url import InvalidUrl, Url, parse_url
from curtsy.crawling.extract.links import KnownHrefs
from curtsy.crawling.extract.page import is_html
from curtsy.crawling.extract.scope import OutOfScope, Scope
from curtsy.crawling.extract.traps import Traps
from curtsy.crawling.frontier.protocol import Claimed, Deferred, Done, Failed, Found, host_of
from curtsy.crawling.frontier.url_table import FARTHEST, PackedUrls
from curtsy.crawling.jobs import SITEMAPS, WIDENED
from curtsy.crawling.link_check import LinkCheck, Slices
from curtsy.crawling.options import CrawlOptions
from curtsy.crawling.reader import (
    GZIP,
    SEED_PRIORITY,
    SITEMAP_PRIORITY,
    Reader,
    Reading,
    SiteInfo,
    SitemapQuota,
    answer_of,
    is_for_sitemap,
    is_listed,
    moment,
    origin_of,
)
from curtsy.crawling.requisites import Requisites, is_requisite
from curtsy.crawling.results import CrawledPage, Finished, SkippedUrl
from curtsy.engine.session import Session
from curtsy.http.registered_domain import are_apart, site_of
from curtsy.system.log import LibraryLogger, library_logger
from curtsy.system.threads import in_thread

_log: LibraryLogger = library_logger("crawl")

NOINDEX, NOT_CANONICAL = "noindex", "not_canonical"
"""Reason codes for pages that are left out of the results."""

FOREIGN_PRIORITY = -1
"""Priority of links from another registered domain. A host's own links go first, so no site floods another's queue."""

RESERVE_PRIORITY = -200
"""Priority of sitemaps that are read only when their host has no page left."""

MOST_FOREIGN_URLS = 10_000
"""Maximum number of remembered URLs to which another registered domain has redirected."""

LARGE = 100_000
"""Body size in bytes above which a page is read in a thread, so that the event loop is not blocked."""

RICH = 2000
"""Number of equals signs above which a smaller body is read in a thread too. Each link has one, and an unusual link
takes 20 µs or more."""

OFTEN = 20
"""Links between two checks of the time. With patterns, each link is checked, because a single match may take long."""

CHECKING = 1.0
"""CPU seconds for the links of one page. Only patterns that are slow on long URLs need so many."""

READERS = 2
"""Maximum number of heavy pages read at once. Each may take some 60 MB, and more would only wait for one another."""

READ_ON = 2.0
"""Seconds for which responses are still read when a crawl ends. The other URLs go back to the frontier."""

CHANCES = 3
"""Number of times a URL is put back because its host failed, before the URL itself counts as failed."""

SECOND_LOOK = 60.0
"""Seconds until the retry of a host without a known retry time."""

UPGRADE = 3600.0
"""Seconds until the retry of a host whose record only a later version can read; usually beyond the patience."""

LATER = dict.fromkeys(
    (Reason.DEADLINE, Reason.DOMAIN_BUDGET_EXCEEDED, Reason.CIRCUIT_OPEN, Reason.PAUSED, Reason.STORE_UNREACHABLE,
     Reason.CLOSED), SECOND_LOOK,
) | {Reason.RECORD_TOO_NEW: UPGRADE}  # fmt: skip
"""Refusals after which the URL stays queued, with the seconds until the retry if its time is unknown."""

MOST_REMEMBERED = 100_000
"""Maximum number of remembered links that were too deep."""

NO_SITEMAP = "no_sitemap"
"""Reason code for a sitemap that is absent from its usual path, or from the URL in robots.txt."""

MOST_NESTED = 3
"""Maximum depth of nested sitemap indexes."""

MOST_LEFT_OUT = 10_000
"""Maximum number of excluded URLs listed for one page or sitemap. Further ones are only counted."""

MOST_FOREIGN = 3
"""Maximum number of sitemaps that a robots.txt may name on hosts outside the crawl. Those hosts did not agree to it."""


NOWHERE = Scope("domains", ())
"""Empty scope."""


def scope_of(seeds: Sequence[str], options: CrawlOptions) -> Scope:
    """Return the scope of a crawl. Raises PolicyError."""
    return Scope.around(
        seeds, kind=options.scope, domains=options.domains, match=options.match, skip=options.skip,
        max_depth=options.max_depth, files=options.files,
    )  # fmt: skip


class PagesPassedOver(Protocol):
    """Part of the frontier that filters use."""

    async def pass_over(self, url: str, other: str) -> bool:
        """Skip a page in favour of another, unless the other was skipped; return whether it was."""
        ...


class Filters:
    """Decision on a URL and its links by its response.

    It writes nothing except that a page is left out in favour of another (`pass_over`).
    """

    def __init__(
        self, options: CrawlOptions, session: Session, frontier: PagesPassedOver, wanted: Callable[[], int | None]
    ) -> None:
        """Create the filters. `wanted` returns how many more pages are needed than queued; None means no limit."""
        self._options = options
        self._session = session
        self._frontier = frontier
        self.scope = NOWHERE
        """Scope of the crawl; empty before `begin`."""
        self._traps = Traps() if options.avoid_traps else None
        self._requisites = Requisites(options, lambda: self.scope, self._traps)
        self._origins = SiteInfo(session)
        self._wanted = wanted
        self.sitemaps = SitemapQuota(options.max_sitemaps)
        agent = session.policies.user_agent
        self.known = KnownHrefs()
        """Hrefs that need no further check; extended when a page is written."""
        self._is_costly = options.main_text is not None or callable(options.extract)
        self._reader = Reader(options, product_token(agent), self._origins.signals, self.known)
        self._readers = asyncio.Semaphore(READERS)
        self._read_until = math.inf
        self._sent = Headers([("User-Agent", agent)])
        self.followed_at_once: set[str] = set()
        """URLs whose redirects are followed at once, because their targets were claimed before."""
        self._foreign: dict[str, None] = {}
        """Redirect targets in a chain that led to another registered domain, and canonicals there, latest last."""
        self._too_deep: set[int] = set()
        """Hashes of links that were reported as too deep."""
        self._chances: Counter[str] = Counter()
        """Number of times each URL was put back because its host failed."""

    def begin(self, seeds: Sequence[str]) -> None:
        """Create the scope from the first seeds. Raises PolicyError."""
        self.scope = scope_of(seeds, self._options)

    async def decide(self, claimed: Claimed, result: FetchResult) -> Finished:
        """Decide on a URL and its links by its response."""
        reason = result.reason
        if reason is Reason.REDIRECTED:
            return await self._redirected(claimed, result)
        self.followed_at_once.discard(claimed.url)
        if reason is None:
            return await self._read(claimed, result)
        # Without a retry time, the robots.txt failure is an old one and the page is a fresh cache entry: skip it.
        if reason in LATER or (reason is Reason.ROBOTS_UNREACHABLE and result.retry_after):
            return Finished(
                claimed, Deferred(LATER.get(reason, SECOND_LOOK) if result.retry_after is None else result.retry_after)
            )
        if reason not in REFUSALS:
            is_cut_off = self._is_cut_off(claimed, result)
            if is_cut_off and not result.record.attempts:
                return Finished(claimed, Deferred(0.0))
            if (result.retry_after is not None or is_cut_off) and self._has_chance(claimed, result):
                # The host is resting or named a retry time, so the failure may not be this URL's (F52).
                self._chances[claimed.url] += 1
                return Finished(claimed, Deferred(result.retry_after or 0.0, last=True))
            self._chances.pop(claimed.url, None)
            if result.status in (404, 410) and is_for_sitemap(claimed):
                return self.skip(claimed, NO_SITEMAP, result.message, result)
        words = f"{reason} {result.status}" if reason is Reason.HTTP_STATUS else str(reason)
        return self.skip(claimed, words, result.message, result, failed=reason not in REFUSALS)

    def _has_chance(self, claimed: Claimed, result: FetchResult) -> bool:
        return may_pass(result) and self._chances[claimed.url] < CHANCES

    def _is_cut_off(self, claimed: Claimed, result: FetchResult) -> bool:
        """Return whether a timeout was the end of the lease, which may have passed while the request waited."""
        is_over = self._session.timers.now() >= claimed.leased_until - NO_TIME
        return result.reason is Reason.TIMEOUT and is_over

    async def _read(self, claimed: Claimed, result: FetchResult) -> Finished:
        self._chances.pop(claimed.url, None)
        body, epoch = result.body, self._session.epoch()
        is_heavy = len(body) > LARGE or (len(body) > 15 * RICH and body.count(b"=") > RICH)
        if is_heavy or body.startswith(GZIP) or self._is_costly:
            async with self._readers:
                if self._session.timers.now() >= self._read_until:
                    return Finished(claimed, Deferred(0.0))
                reading = await in_thread(self._reader.read, claimed, result, self._sent, epoch)
        else:
            reading = self._reader.read(claimed, result, self._sent, epoch)
        return await self._read_page(claimed, result, reading)

    def stop_reading(self) -> None:
        """Stop reading responses after READ_ON seconds, because the crawl ends. Idempotent."""
        self._read_until = min(self._read_until, self._session.timers.now() + READ_ON)

    async def _read_page(self, claimed: Claimed, result: FetchResult, reading: Reading) -> Finished:
        """Decide on a page or sitemap that was read."""
        check, page = await self._check_links(claimed, reading), reading.page
        fresh = reading.fresh
        if check.unlearned:
            fresh = {href: link for href, link in fresh.items() if link not in check.unlearned}
        finished = Finished(
            claimed, Done(result.next_in), self._found(check, reading), page, check.left_out, (reading.origin, fresh),
            more_left_out=check.more, links_cut=check.cut + (0 if page is None else page.links_cut),
        )  # fmt: skip
        if page is None:
            self.sitemaps.spend(site_of(host_of(_namer(claimed))), len(result.body))
            if noted := self.sitemaps.noted():
                finished.notes = {SITEMAPS: noted}
        elif is_for_sitemap(claimed) and (outside := self._outside(page.url, claimed.depth)) is not None:
            return self.skip(claimed, outside, crawl_messages.no_sitemap(page.url), result)
        elif is_requisite(claimed) and not is_html(page.content_type, page.body):
            finished.page, finished.requisite = None, page
        else:
            if check.cut:
                finished.page = msgspec.structs.replace(page, links_cut=finished.links_cut)
            if (why := await self._why_not_kept(finished, page, reading)) is not None:
                finished.leave_out(*why)
        if cut := finished.links_cut:
            _log.warning(crawl_messages.too_many_links(claimed.url, cut, self._options.max_links_per_page))
        return finished

    async def _why_not_kept(self, finished: Finished, page: CrawledPage, reading: Reading) -> tuple[str, ...] | None:
        """Return the arguments of `leave_out` for a page that is left out of the results; None to keep it.

        A canonical URL to fetch instead is added to `finished`.
        """
        claimed, canonical = finished.claimed, page.canonical
        if self._options.obey_canonical and canonical is not None and canonical != page.url:
            # Of pages that name one another in a circle, the last one is kept.
            is_outside = self._outside(canonical, claimed.depth) is not None
            if not is_outside and not await self._frontier.pass_over(page.url, canonical):
                finished.found = [*finished.found, Found((canonical,), claimed.depth, claimed.priority, page.url)]
                if are_apart(host_of(canonical), claimed.host):
                    self._remember_foreign(canonical)
                return NOT_CANONICAL, crawl_messages.not_canonical(page.url, canonical), canonical
        if reading.is_noindex:
            return NOINDEX, crawl_messages.noindex(page.url)
        return None

    async def _check_links(self, claimed: Claimed, reading: Reading) -> LinkCheck:
        """Check the links of a page or sitemap. After CHECKING seconds the remaining links are dropped."""
        links: Collection[str]
        if reading.sitemap is None:
            check, links = LinkCheck(claimed, claimed.depth + 1, [], []), dict.fromkeys(reading.fresh.values())
        else:
            check, links = LinkCheck(claimed, claimed.depth, PackedUrls(), PackedUrls()), reading.sitemap.pages
        often = 1 if self._options.match or self._options.skip else OFTEN
        year = time.gmtime(self._session.epoch()).tm_year
        slices = Slices() if len(links) > often else None  # few links take no time, and the CPU time a system call
        for place, link in enumerate(links):
            if slices is not None and not place % often and slices.is_over():
                if slices.spent >= CHECKING:
                    check.cut = len(links) - place
                    check.unlearned.update(islice(links, place, None))
                    break
                await asyncio.sleep(0)
                slices.begin()
            url = link if self._traps is None else self._traps.stripped(link)
            reason = self._outside(url, check.depth, claimed.url, year)
            if reason is None:
                check.add(url)
            else:
                self._leave_out(check, link, url, reason)
        return check

    def _leave_out(self, check: LinkCheck, link: str, url: str, reason: str) -> None:
        """Record an excluded link. The first MOST_LEFT_OUT are listed, the others counted by reason."""
        if reason is OutOfScope.TOO_DEEP:  # another page may link to it from a lower depth
            check.unlearned.add(link)
        if len(check.left_out) >= MOST_LEFT_OUT:
            check.more[reason] = check.more.get(reason, 0) + 1
        elif url != check.claimed.url and not self._is_reported(reason, url):
            check.at = check.at or moment(self._session.epoch())
            why = self.scope.explain(reason, url)
            check.left_out.append(SkippedUrl(url, reason, why, None, check.depth, check.claimed.url, at=check.at))

    def _found(self, check: LinkCheck, reading: Reading) -> list[Found]:
        """Return the links and sitemaps to add to the frontier."""
        claimed, depth = check.claimed, check.depth
        # The sitemaps of a host that only serves another host's sitemap are skipped.
        is_other = is_for_sitemap(claimed) or is_requisite(claimed)
        found = [] if is_other else self._sitemaps_of(origin_of(claimed.url), len(check))
        found += self._requisites.found(claimed, reading.requisites)
        if reading.sitemap is not None and claimed.hops < MOST_NESTED:
            further = [each for each in reading.sitemap.sitemaps if self._is_near(each, claimed.host)]
            found += self._queued(further, _namer(claimed), len(check), depth, claimed.hops + 1)
        groups = (check.own, 0), (check.foreign, FOREIGN_PRIORITY)
        return found + [Found(urls, depth, priority, claimed.url) for urls, priority in groups if urls]

    def _is_reported(self, reason: str, link: str) -> bool:
        """Return whether a link was already reported as too deep.

        Links with other reasons are learned, so they are reported once anyway.
        """
        hashed = hash(link)
        if reason is not OutOfScope.TOO_DEEP or hashed in self._too_deep:
            return reason is OutOfScope.TOO_DEEP
        if len(self._too_deep) >= MOST_REMEMBERED:
            self._too_deep.clear()
        self._too_deep.add(hashed)
        return False

    def _is_near(self, sitemap: str, host: str) -> bool:
        """Return whether a named sitemap is on the same host or on a host in the scope."""
        return host_of(sitemap) == host or self.scope.refuses(f"{origin_of(sitemap)}/", 0) is None

    def _outside(self, url: str, depth: int, page: str = "", year: int = 9999) -> str | None:
        """Return the reason to exclude a URL, linked by a page; None if it belongs to the crawl."""
        if self._traps is not None and self._traps.is_too_long(url):
            return OutOfScope.TOO_LONG  # before any pattern: matching may take quadratic time or worse
        reason = self.scope.refuses(url, depth)
        if reason is None and self._traps is not None:
            reason = self._traps.filters(url, page, depth, year)
        return reason

    def _sitemaps_of(self, origin: str, coming: int = 0) -> list[Found]:
        """Return the sitemaps of an origin at its first visit. `coming` is the number of pages found with them."""
        if not self._options.sitemaps:
            return []
        host = host_of(f"{origin}/")
        urls = dict.fromkeys(self._origins.sitemaps(origin, self._options.max_sitemaps + MOST_FOREIGN))
        for url in [url for url in urls if not self._is_near(url, host)][MOST_FOREIGN:]:
            del urls[url]
        return self._queued(urls, f"{origin}/robots.txt", coming)

    def _queued(self, urls: Iterable[str], namer: str, coming: int, depth: int = 0, hops: int = 0) -> list[Found]:
        """Return the sitemaps to add within the site's quota. If pages are limited, at most one is not in reserve."""
        taken = self.sitemaps.take(site_of(host_of(namer)), urls)
        wanted = self._wanted()
        at_once = len(taken) if wanted is None else int(wanted > coming)
        groups = ((taken[:at_once], SITEMAP_PRIORITY), (taken[at_once:], RESERVE_PRIORITY))
        return [Found(group, depth, priority, namer, hops) for group, priority in groups if group]

    async def _redirected(self, claimed: Claimed, result: FetchResult) -> Finished:
        finished = await self._redirect_target(claimed, result)
        finished.redirect = answer_of(claimed, result, self._sent, self._session.epoch())
        return finished

    async def _redirect_target(self, claimed: Claimed, result: FetchResult) -> Finished:
        url = parse_url(result.final_url)
        assert isinstance(url, Url)
        target = redirect_target(url, Response(result.status or 0, result.headers, b""))
        if target is None or isinstance(target, InvalidUrl):
            words = crawl_messages.bad_redirect(claimed.url, target.why if target else None)
            return self.skip(claimed, str(Reason.BAD_REDIRECT), words, result, failed=True)
        most = min(self._session.policies.of(claimed.host).max_redirects, FARTHEST)
        is_back = claimed.hops > 0 and target.text == claimed.parent
        if is_back and self._session.context.keeps_cookies and "set-cookie" in result.headers:
            return self._followed_at_once(claimed, result)  # with the cookie, the target may differ
        is_circle = is_back or target.text == claimed.url
        if claimed.hops >= most or is_circle:
            circle, often = crawl_messages.redirected_in_circle, crawl_messages.redirected_too_often
            words = circle(claimed.url) if is_circle else often(claimed.url, most)
            return self.skip(claimed, str(Reason.TOO_MANY_REDIRECTS), words, result, failed=True)
        notes = {}
        reason = self._outside(target.text, claimed.depth)
        if is_requisite(claimed):
            reason = self._requisites.outside(target.text, claimed.url)
        elif is_for_sitemap(claimed) and self._is_near(target.text, claimed.host):
            reason = None  # a sitemap is not a page, whatever its path
            if not self.sitemaps.take(site_of(host_of(_namer(claimed))), (target.text,)):
                return self.skip(claimed, NO_SITEMAP, crawl_messages.no_sitemap(claimed.url), result)
        elif reason is not None and is_seed(claimed):  # the crawl follows the redirects of its seeds
            self.scope.widen(target.text)
            notes[WIDENED + target.text] = self._session.epoch()
            reason = self._outside(target.text, claimed.depth)
        if reason is not None:
            return self.skip(claimed, reason, crawl_messages.redirected_outside(claimed.url, target.text), result)
        if self._options.obey_canonical and await self._frontier.pass_over(claimed.url, target.text):
            return self._followed_at_once(claimed, result)  # the target was left out, perhaps in favour of this URL
        if self.is_foreign(claimed):
            self._remember_foreign(target.text)
        found = Found((target.text,), claimed.depth, claimed.priority, claimed.url, claimed.hops + 1)
        return Finished(claimed, Done(result.next_in), (found, *self._sitemaps_of(url.origin)), notes=notes)

    def is_foreign(self, claimed: Claimed) -> bool:
        """Return whether another registered domain redirects to a URL, or names it as a sitemap or canonical (C22).

        The same holds for the rest of such a redirect chain.
        """
        if claimed.parent is None:
            return False
        is_known = claimed.url in self._foreign
        if claimed.hops or is_listed(claimed):
            return is_known or are_apart(host_of(claimed.parent), claimed.host)
        # A canonical: if the host itself linked to it before, failures count as usual.
        return is_known and are_apart(host_of(claimed.parent), claimed.host)

    def _remember_foreign(self, url: str) -> None:
        self._foreign[url] = None
        if len(self._foreign) > MOST_FOREIGN_URLS:
            del self._foreign[next(iter(self._foreign))]

    def _followed_at_once(self, claimed: Claimed, result: FetchResult) -> Finished:
        """Request a URL again and follow its redirect directly, because the target is not fetched by itself again."""
        self.followed_at_once.add(claimed.url)
        return Finished(claimed, Deferred(result.next_in or 0.0))

    def skip(
        self, claimed: Claimed, reason: str, message: str, result: FetchResult | None = None, *, failed: bool = False
    ) -> Finished:
        """End a URL without a page. `result` is its response, if it was requested."""
        after, status = (None, None) if result is None else (result.next_in, result.status)
        at = moment(self._session.epoch())
        skipped = SkippedUrl(claimed.url, reason, message, status, claimed.depth, claimed.parent, not failed, at)
        return Finished(claimed, Failed(reason, after), skipped=(skipped,))


def is_seed(claimed: Claimed) -> bool:
    """Return whether it is a seed, or a redirect target of one."""
    return 0 < claimed.priority <= SEED_PRIORITY


def may_pass(result: FetchResult) -> bool:
    """Return whether a failure may be a temporary one of the host. A repeatable failure is not."""
    if result.reason is Reason.HTTP_STATUS:
        return is_worth_repeating(Response(result.status or 0, result.headers, b""))
    return result.reason not in (Reason.TOO_LARGE, Reason.TLS_ERROR, Reason.BAD_RESPONSE)


def _namer(claimed: Claimed) -> str:
    """Return the robots.txt that named a sitemap, directly or via a sitemap index; else that of its own host."""
    if claimed.parent is not None and is_listed(claimed):
        return claimed.parent
    return f"{origin_of(claimed.url)}/robots.txt"
