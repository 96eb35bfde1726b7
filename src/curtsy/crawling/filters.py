"""Judge: what an answer means for its URL, and for the links in it."""

from __future__ import annotations

import asyncio
import hashlib
import math
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import islice
from typing import NamedTuple

import msgspec

from curtsy.client import AsyncClient
from curtsy.core.errors import REFUSALS, Reason
from curtsy.core.fetch_state import redirect_target
from curtsy.core.message import Headers, InvalidUrl, Response, Url, parse_url
from curtsy.core.outcome import is_worth_repeating
from curtsy.core.result import FetchResult
from curtsy.core.robots import product_token
from curtsy.crawling import messages
from curtsy.crawling.committer import Finished
from curtsy.crawling.extract.links import KnownHrefs
from curtsy.crawling.extract.scope import OutOfScope, Scope
from curtsy.crawling.extract.traps import Traps
from curtsy.crawling.frontier.packed_urls import PackedUrls
from curtsy.crawling.frontier.protocol import AsyncFrontier, Claimed, Deferred, Done, Failed, Found, host_of
from curtsy.crawling.frontier.url_table import FARTHEST
from curtsy.crawling.job_values import SITEMAPS, WIDENED
from curtsy.crawling.options import CrawlOptions
from curtsy.crawling.page import CrawledPage, Skipped
from curtsy.crawling.quota import SitemapQuota
from curtsy.crawling.reader import (
    DUPLICATE,
    GZIP,
    NOINDEX,
    NOT_CANONICAL,
    RESERVE_PRIORITY,
    SITEMAP_PRIORITY,
    Reader,
    Reading,
    answer_of,
    is_for_sitemap,
    is_listed,
    is_seed,
    moment,
)
from curtsy.crawling.site_info import SiteInfo
from curtsy.http.registered_domain import are_apart, site_of
from curtsy.system.log import LibraryLogger, library_logger
from curtsy.system.threads import in_thread

_log: LibraryLogger = library_logger("crawl")

MOST_LED = 10_000
"""URLs of which it is remembered that another registered domain has led there."""

LARGE = 100_000
"""Bytes of a body from which on it is read in a thread, so that nothing else waits for that."""

RICH = 2000
"""Equals signs in a smaller body from which on it is too: no link is without, and an odd one takes 20 µs or more."""

TURN = 0.01
"""Seconds for which links are judged before others have their turn."""

OFTEN = 20
"""Links between two looks at the time, unless there are patterns, which may take long for a single one."""

SIFTING = 1.0
"""Seconds of CPU time for the links of one page: only patterns that take long for long URLs need so many."""

READERS = 2
"""Heavy pages that are read at once: each may take some 60 MB, and more of them would only wait for one another."""

READ_ON = 2.0
"""Seconds for which pages that have come are still read when a crawl is to end; the others go back to the frontier."""

CHANCES = 3
"""How often a URL is put back because its host failed, before it counts as failed itself."""

SECOND_LOOK = 60.0
"""Seconds after which a host is asked again that cannot say when."""

LATER = frozenset({Reason.DEADLINE, Reason.DOMAIN_BUDGET_EXCEEDED, Reason.CIRCUIT_OPEN, Reason.PAUSED, Reason.CLOSED})
"""Refusals that pass by themselves: the URL waits."""

MOST_REMEMBERED = 100_000
"""Links that were too deep that are remembered."""

NO_SITEMAP = "no_sitemap"
"""Why nothing came of the usual place of a sitemap, or of the one that robots.txt names."""

MOST_NESTED = 3
"""Sitemaps that name sitemaps, in a row."""

MOST_LEFT_OUT = 10_000
"""URLs of one page or sitemap that are named as left out; of more, it is counted how many there are."""

MOST_FOREIGN = 3
"""Sitemaps that a robots.txt may name on hosts that are no part of the crawl: these had no say in it."""


NOWHERE = Scope("domains", ())
"""A scope that has nothing."""


def scope_of(seeds: Sequence[str], options: CrawlOptions) -> Scope:
    """The scope of a crawl from seeds with these options. Raises PolicyError."""
    return Scope.around(
        seeds,
        kind=options.scope,
        domains=options.domains,
        match=options.match,
        skip=options.skip,
        depth=options.depth,
        files=options.files,
    )


class Sifted(NamedTuple):
    """What comes of the links of a page or of a sitemap."""

    found: list[Found]
    """What is to be added to the frontier."""

    left_out: list[Skipped]
    more: Mapping[str, int]
    """How many more are left out than `left_out` names, by reason."""

    learned: tuple[str, Mapping[str, str]]
    """An origin, and hrefs on its pages that need no second look."""

    cut: int
    """How many links were given up because judging them took too long."""


class Filters:
    """Says what becomes of a URL when its answer has come. Writes nothing, but which pages were left out for others."""

    def __init__(
        self,
        options: CrawlOptions,
        client: AsyncClient,
        frontier: AsyncFrontier,
        wanted: Callable[[], int | None],
    ) -> None:
        """`wanted` says how many more pages are wanted than wait; None if there is no limit."""
        self._options = options
        self._client = client
        self._frontier = frontier
        self.scope = NOWHERE
        """Which URLs belong to the crawl; nothing before `begin`."""
        self._traps = Traps() if options.avoid_traps else None
        self._origins = SiteInfo(client)
        self._wanted = wanted
        self.sitemaps = SitemapQuota(options.max_sitemaps)
        agent = client.policies.user_agent
        self.known = KnownHrefs()
        """Hrefs that need no second look; to be told of more when a page is written."""
        self._reader = Reader(options, product_token(agent), self._origins.signals, self.known)
        self._readers = asyncio.Semaphore(READERS)
        self._read_until = math.inf
        self._sent = Headers([("User-Agent", agent)])
        self._bodies: dict[bytes, str] = {}
        """The page that had a body first, by the body's digest."""
        self.led_back: set[str] = set()
        """URLs whose redirects are followed at once, for they lead to pages that had their turn before."""
        self._led_away: dict[str, None] = {}
        """Targets of redirects behind one that led to another registered domain, the latest last."""
        self._too_deep: set[int] = set()
        """Hashes of links of which it was told that they are too deep."""
        self._chances: Counter[str] = Counter()
        """How often each URL was put back because its host failed."""

    def begin(self, seeds: Sequence[str]) -> None:
        """Make the scope for the first seeds. Raises PolicyError."""
        self.scope = scope_of(seeds, self._options)

    async def filters(self, claimed: Claimed, result: FetchResult) -> Finished:
        """Say what an answer means for its URL and its links."""
        reason = result.reason
        if reason is Reason.REDIRECTED:
            return await self._redirected(claimed, result)
        self.led_back.discard(claimed.url)
        if reason is None:
            return await self._read(claimed, result)
        # A copy that is still fresh is judged by a robots.txt that failed, however long ago: that is not waited for.
        if reason in LATER or (reason is Reason.ROBOTS_UNREACHABLE and result.retry_after):
            return Finished(claimed, Deferred(SECOND_LOOK if result.retry_after is None else result.retry_after))
        words = f"{reason} {result.status}" if reason is Reason.HTTP_STATUS else str(reason)
        if reason in REFUSALS:
            return self.skipped(claimed, words, result.message, after=result.next_in)
        if result.retry_after is not None and may_pass(result) and self._chances[claimed.url] < CHANCES:
            # The host rests, or says when to come back: its fault, perhaps, and not this URL's (F52).
            self._chances[claimed.url] += 1
            return Finished(claimed, Deferred(result.retry_after, last=True))
        self._chances.pop(claimed.url, None)
        if result.status in (404, 410) and is_for_sitemap(claimed):
            return self.skipped(claimed, NO_SITEMAP, result.message, after=result.next_in, status=result.status)
        return self.skipped(claimed, words, result.message, after=result.next_in, failed=True, status=result.status)

    async def _read(self, claimed: Claimed, result: FetchResult) -> Finished:
        self._chances.pop(claimed.url, None)
        epoch = self._client.epoch()
        body = result.body
        is_heavy = len(body) > LARGE or (len(body) > 15 * RICH and body.count(b"=") > RICH)
        if is_heavy or body.startswith(GZIP) or self._options.text != "none":
            async with self._readers:
                if self._client.timers.now() >= self._read_until:
                    return Finished(claimed, Deferred(0.0))
                reading = await in_thread(self._reader.read, claimed, result, self._sent, epoch)
        else:
            reading = self._reader.read(claimed, result, self._sent, epoch)
        finished = await self._made(claimed, result, reading)
        if (cut := finished.links_cut) and not isinstance(finished.end, Failed):
            _log.warning(messages.too_many_links(claimed.url, cut, self._options.max_links_per_page))
        return finished

    def read_no_longer(self) -> None:
        """The crawl is to end: read what has come for a moment still. Idempotent."""
        self._read_until = min(self._read_until, self._client.timers.now() + READ_ON)

    async def _made(self, claimed: Claimed, result: FetchResult, reading: Reading) -> Finished:
        """Say what becomes of a page that was read."""
        sifted = await self._sifted(claimed, reading)
        found, left_out, cut = sifted.found, sifted.left_out, sifted.cut
        end = Done(result.next_in)
        page = reading.page
        if page is None:
            self.sitemaps.spend(site_of(host_of(_namer(claimed))), len(result.body))
            notes = {SITEMAPS: noted} if (noted := self.sitemaps.noted()) else {}
            return Finished(
                claimed, end, found, None, left_out, sifted.learned, notes, more_left_out=sifted.more, links_cut=cut
            )  # fmt: skip
        cut += page.links_cut
        if cut != page.links_cut:
            page = msgspec.structs.replace(page, links_cut=cut)
        if is_for_sitemap(claimed) and (outside := self._outside(page.url, claimed.depth)) is not None:
            return self.skipped(claimed, outside, messages.no_sitemap(page.url), after=result.next_in)
        why: tuple[str, str] | None = None
        if reading.is_noindex:
            why = NOINDEX, messages.noindex(page.url)
        canonical = await self._canonical(claimed, page)
        if canonical is not None:
            found.append(Found((canonical,), claimed.depth, claimed.priority, page.url))
            why = NOT_CANONICAL, messages.not_canonical(page.url, canonical)
        if self._options.drop_duplicates and why is None:
            first = self._bodies.setdefault(_digest(page.body), page.url)
            if first != page.url:
                why = DUPLICATE, messages.duplicate(page.url, first)
        if why is not None:
            skipped = Skipped(page.url, *why, page.status, page.depth, page.parent, at=page.fetched_at)
            left_out, page = [*left_out, skipped], None
        return Finished(
            claimed, end, found, page, left_out, sifted.learned, more_left_out=sifted.more, links_cut=cut
        )  # fmt: skip

    async def _canonical(self, claimed: Claimed, page: CrawledPage) -> str | None:
        """The URL that is to be fetched in a page's stead; None if the page itself is as good as any."""
        url = page.canonical
        if not self._options.obey_canonical or url is None or url == page.url:
            return None
        if self._outside(url, claimed.depth) is not None:
            return None
        # Of pages that name one another in a circle, the one that comes last is kept.
        return None if await self._frontier.pass_over(page.url, url) else url

    async def _sifted(self, claimed: Claimed, reading: Reading) -> Sifted:
        """Judge the links of a page or of a sitemap.

        Of what is left out, only so many are named; the others are counted, by reason. The last links are given up if
        judging all of them takes too long.
        """
        url = claimed.url
        origin = url[: url.index("/", 8)]
        further: Sequence[str] = ()
        if reading.sitemap is not None:
            depth = claimed.depth
            links: Collection[str] = reading.sitemap.pages
            if claimed.hops < MOST_NESTED:
                further = [each for each in reading.sitemap.sitemaps if self._is_near(each, claimed.host)]
        else:
            depth, links = claimed.depth + 1, dict.fromkeys(reading.fresh.values())
        inside: PackedUrls | list[str] = [] if reading.sitemap is None else PackedUrls()
        left_out: list[Skipped] = []
        deep: set[str] = set()
        more: Counter[str] = Counter()
        at, cut, slices = "", 0, Slices()
        often = 1 if self._options.match or self._options.skip else OFTEN
        for place, link in enumerate(links):
            if not place % often and slices.is_over():
                if slices.spent >= SIFTING:
                    cut = len(links) - place
                    break
                await asyncio.sleep(0)
                slices.begin()
            wanted = link if self._traps is None else self._traps.stripped(link)
            reason = self._outside(wanted, depth)
            if reason is None:
                inside.append(wanted)
                continue
            if reason is OutOfScope.TOO_DEEP:  # it need not be from another page: that is not to be known for good
                deep.add(link)
            if len(left_out) >= MOST_LEFT_OUT:
                more[reason] += 1
            elif wanted != url and not self._is_told(reason, wanted):
                why, at = self.scope.explain(reason, wanted), at or moment(self._client.epoch())
                left_out.append(Skipped(wanted, reason, why, None, depth, url, at=at))
        # A host that only serves a sitemap of another one need not have its own sitemaps read.
        found = [] if is_for_sitemap(claimed) else self._sitemaps_of(origin, len(inside))
        if further:
            found += self._queued(further, _namer(claimed), len(inside), depth, claimed.hops + 1)
        if inside:
            found.append(Found(inside, depth, 0, url))
        fresh = reading.fresh
        if cut:
            deep.update(islice(links, len(links) - cut, None))
        if deep:
            fresh = {href: link for href, link in fresh.items() if link not in deep}
        return Sifted(found, left_out, more, (reading.origin, fresh), cut)

    def _is_told(self, reason: str, link: str) -> bool:
        """Whether it was told already that a link is too deep; others are told once anyway, for they are known then."""
        if reason is not OutOfScope.TOO_DEEP:
            return False
        hashed = hash(link)
        if hashed in self._too_deep:
            return True
        if len(self._too_deep) >= MOST_REMEMBERED:
            self._too_deep.clear()
        self._too_deep.add(hashed)
        return False

    def _is_near(self, sitemap: str, host: str) -> bool:
        """Whether a sitemap that another one names is on the same host, or at least on one that is crawled."""
        return host_of(sitemap) == host or self.scope.refuses(sitemap[: sitemap.index("/", 8) + 1], 0) is None

    def _outside(self, url: str, depth: int) -> str | None:
        """Why a URL does not belong to the crawl; None if it does."""
        if self._traps is not None and self._traps.is_too_long(url):
            return OutOfScope.TOO_LONG  # before any pattern, whose time may grow with the square of a URL, or faster
        reason = self.scope.refuses(url, depth)
        if reason is None and self._traps is not None:
            reason = self._traps.filters(url)
        return reason

    def _sitemaps_of(self, origin: str, coming: int = 0) -> list[Found]:
        """The sitemaps of an origin that is met for the first time, beside so many pages."""
        if not self._options.sitemaps:
            return []
        host, foreign, urls = host_of(f"{origin}/"), 0, []
        for url in self._origins.sitemaps(origin, self._options.max_sitemaps + MOST_FOREIGN):
            if not self._is_near(url, host):
                foreign += 1
                if foreign > MOST_FOREIGN:
                    continue
            urls.append(url)
        return self._queued(urls, f"{origin}/robots.txt", coming) if urls else []

    def _queued(self, urls: Iterable[str], namer: str, coming: int, depth: int = 0, hops: int = 0) -> list[Found]:
        """Sitemaps to be added, as far as their site has some left: at most one at once if few pages are wanted."""
        taken = self.sitemaps.take(site_of(host_of(namer)), urls)
        wanted = self._wanted()
        at_once = len(taken) if wanted is None else int(wanted > coming)
        groups = ((taken[:at_once], SITEMAP_PRIORITY), (taken[at_once:], RESERVE_PRIORITY))
        return [Found(group, depth, priority, namer, hops) for group, priority in groups if group]

    async def _redirected(self, claimed: Claimed, result: FetchResult) -> Finished:
        finished = await self._led_on(claimed, result)
        finished.redirect = answer_of(claimed, result, self._sent, self._client.epoch())
        return finished

    async def _led_on(self, claimed: Claimed, result: FetchResult) -> Finished:
        url = parse_url(result.final_url)
        assert isinstance(url, Url)
        target = redirect_target(url, Response(result.status or 0, result.headers, b""))
        after, status = result.next_in, result.status
        if target is None or isinstance(target, InvalidUrl):
            words = messages.bad_redirect(claimed.url, target.why if target else None)
            return self.skipped(claimed, str(Reason.BAD_REDIRECT), words, after=after, failed=True, status=status)
        most = min(self._client.policies.of(claimed.host).max_redirects, FARTHEST)
        is_back = claimed.hops > 0 and target.text == claimed.parent
        is_circle = is_back or target.text == claimed.url
        if is_back and self._client.keeps_cookies and "set-cookie" in result.headers:
            return self._followed_at_once(claimed, result)  # with the cookie, it may lead elsewhere
        if claimed.hops >= most or is_circle:
            circle, often = messages.redirected_in_circle, messages.redirected_too_often
            words = circle(claimed.url) if is_circle else often(claimed.url, most)
            return self.skipped(claimed, str(Reason.TOO_MANY_REDIRECTS), words, after=after, failed=True, status=status)
        notes = {}
        reason = self._outside(target.text, claimed.depth)
        if is_for_sitemap(claimed) and self._is_near(target.text, claimed.host):
            reason = None  # a sitemap is no page, whatever its name
            if not self.sitemaps.take(site_of(host_of(_namer(claimed))), (target.text,)):
                words = messages.no_sitemap(claimed.url)
                return self.skipped(claimed, NO_SITEMAP, words, after=after, status=status)
        elif reason is not None and is_seed(claimed):  # where a seed leads, the crawl is to go
            self.scope.widen(target.text)
            notes[WIDENED + target.text] = self._client.epoch()
            reason = self._outside(target.text, claimed.depth)
        if reason is not None:
            words = messages.redirected_outside(claimed.url, target.text)
            return self.skipped(claimed, reason, words, after=after, status=status)
        if self._options.obey_canonical and await self._frontier.pass_over(claimed.url, target.text):
            return self._followed_at_once(claimed, result)  # it was left out, in favour of this one perhaps
        if self.is_foreign(claimed):
            self._led_away[target.text] = None
            if len(self._led_away) > MOST_LED:
                del self._led_away[next(iter(self._led_away))]
        found = Found((target.text,), claimed.depth, claimed.priority, claimed.url, claimed.hops + 1)
        return Finished(claimed, Done(after), (found, *self._sitemaps_of(url.origin)), notes=notes, is_redirect=True)

    def is_foreign(self, claimed: Claimed) -> bool:
        """Whether another registered domain led to a URL: it redirects there, or names it as a sitemap (C22).

        So did it to all that comes behind such a redirect.
        """
        parent = claimed.parent
        if parent is None or not (claimed.hops or is_listed(claimed)):
            return False
        return claimed.url in self._led_away or are_apart(host_of(parent), claimed.host)

    def _followed_at_once(self, claimed: Claimed, result: FetchResult) -> Finished:
        """Have a URL asked for again that leads to one which is not fetched any more: it is followed there."""
        self.led_back.add(claimed.url)
        return Finished(claimed, Deferred(result.next_in or 0.0))

    def skipped(
        self,
        claimed: Claimed,
        reason: str,
        message: str,
        *,
        after: float | None = None,
        failed: bool = False,
        status: int | None = None,
    ) -> Finished:
        """End a URL from which no page came."""
        at = moment(self._client.epoch())
        skipped = Skipped(claimed.url, reason, message, status, claimed.depth, claimed.parent, not failed, at)
        return Finished(claimed, Failed(reason, after), skipped=(skipped,))


class Slices:
    """The CPU time of work on the event loop that lets others have their turn now and then."""

    def __init__(self) -> None:
        self.spent = 0.0
        """Seconds, all slices together, when the last one was over."""
        self.begin()

    def begin(self) -> None:
        """Begin a slice."""
        self._began_at = time.thread_time()

    def is_over(self) -> bool:
        """Whether the slice has taken long enough."""
        seconds = time.thread_time() - self._began_at
        if seconds < TURN:
            return False
        self.spent += seconds
        return True


def may_pass(result: FetchResult) -> bool:
    """Whether a failure may be the host's, and for a while: not one that the next answer would only repeat."""
    if result.reason is Reason.HTTP_STATUS:
        return is_worth_repeating(Response(result.status or 0, result.headers, b""))
    return result.reason not in (Reason.TOO_LARGE, Reason.TLS_ERROR, Reason.BAD_RESPONSE)


def _namer(claimed: Claimed) -> str:
    """The robots.txt that has named a sitemap, perhaps by way of others; else that of its own host."""
    if claimed.parent is not None and is_listed(claimed):
        return claimed.parent
    return f"{claimed.url[: claimed.url.index('/', 8)]}/robots.txt"


def _digest(body: bytes) -> bytes:
    return hashlib.blake2b(body, digest_size=16).digest()
