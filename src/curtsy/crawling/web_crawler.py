"""WebCrawler: a crawler for pages and index pages with known URLs (R11, U13, U14)."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Mapping
from types import EllipsisType
from typing import Any, Protocol, Self

import msgspec

from curtsy.client import AsyncClient, session_of
from curtsy.core.amendment import CrawlDelay
from curtsy.core.effects import FetchRequest
from curtsy.core.errors import REFUSALS, CurtsyError, FetchError, PolicyError, Reason, RefusedByRobots
from curtsy.core.fetch_state import redirect_target
from curtsy.core.masking import mask_url
from curtsy.core.messages import given
from curtsy.core.policy import Policy
from curtsy.core.request import Headers, Response
from curtsy.core.result import FetchResult
from curtsy.core.setting import number, rule, whole
from curtsy.core.url import Url, parse_url
from curtsy.crawling.frontier.protocol import Claimed, host_of
from curtsy.crawling.options import CrawlOptions
from curtsy.crawling.reader import Reader
from curtsy.crawling.results import CrawledPage
from curtsy.engine.arguments import check_names
from curtsy.http.registered_domain import are_apart
from curtsy.limits.robots import RobotsTxtChecker
from curtsy.settings import load
from curtsy.settings.general import changes
from curtsy.system.log import LibraryLogger, library_logger

_log: LibraryLogger = library_logger("crawl")


_OURS = {"max_in_flight": "given as max_concurrent", "respect_robots": "left out: robots_checker=None means False"}
"""Client arguments that a WebCrawler does not accept, with the alternative."""


class RobotsChecker(Protocol):
    """Interface of an object that decides whether a URL may be fetched, such as `RobotsTxtChecker`."""

    async def is_allowed(self, url: str) -> bool:
        """Return whether the URL may be fetched."""
        ...

    def get_crawl_delay(self, url: str) -> float | None:
        """Return the site's delay between two requests in seconds; None if it names none."""
        ...


class WebCrawler:
    """Polite crawler of given URLs: `max_concurrent` at a time over all hosts, one at a time of each (C11).

    `crawl_delay` is the number of seconds between two requests to a host. The site's own Crawl-delay applies if it is
    longer. A rate, pause, delay or global rate from files or the environment applies too; their defaults do not (C10).
    Without a `robots_checker`, robots.txt is obeyed as in every client. A given one replaces that. With an explicit
    None, robots.txt is not checked (C12). All arguments of `AsyncClient` are accepted too.
    """

    def __init__(
        self,
        timeout: float = 30.0,
        max_pages: int = 50,
        crawl_delay: float = 1.0,
        max_concurrent: int = 5,
        robots_checker: RobotsChecker | EllipsisType | None = ...,
        **settings: Any,
    ) -> None:
        for name, must in _OURS.items():
            if name in settings:
                raise rule(name, settings[name], must)
        own = ("max_pages", "crawl_delay", "max_concurrent", "robots_checker")
        check_names(settings, own, "WebCrawler", unused=_OURS)
        self.max_pages = CrawlOptions(max_pages=max_pages).max_pages or 0
        whole("max_concurrent", max_concurrent, 1)
        number("timeout", timeout)
        number("crawl_delay", crawl_delay)
        self._checker = None if isinstance(robots_checker, EllipsisType) else robots_checker
        match self._checker:
            case object(user_agent=str(agent)):  # the agent for which the checker reads robots.txt (U10)
                settings.setdefault("user_agent", agent)
        self._client = AsyncClient(
            timeout=timeout,
            respect_robots=None if isinstance(robots_checker, EllipsisType) else False,
            max_in_flight=max_concurrent,
            **{**_pace(crawl_delay, settings), **settings},
        )
        self._session = session_of(self._client)
        self._reader = Reader(CrawlOptions(main_text="plain"), "", lambda origin: ())
        self.summary = {"total": 0, "fetched": 0, "cached": 0, "skipped": 0, "failed": 0}
        """Result of the last batch (U14)."""
        self.reasons: dict[str, str] = {}
        """URLs of the last batch without a page, each with its reason."""

    def validate_url(self, url: str) -> str:
        """Return the canonical form of a URL. Raises ValueError unless it is http or https, with a host (C23)."""
        found = parse_url(url)
        if isinstance(found, Url):
            return found.text
        raise ValueError(f"{given(found)!r} is not a URL to fetch: {found.why}. Give an http or https URL.")

    async def crawl_page(self, url: str) -> CrawledPage | None:
        """Fetch one page; return None if it may not or cannot be fetched."""
        result = await self._fetch(url)
        if result is None or not result.ok:
            self._note(url, result)
            return None
        return await asyncio.to_thread(self._read, result)

    async def crawl_pages(self, urls: Iterable[str]) -> list[CrawledPage]:
        """Fetch the first `max_pages` of the URLs; return their pages in the order given.

        A failure does not stop the others: `reasons` holds its cause. Raises FetchError if all pages are missing and at
        least one of them failed rather than being refused.
        """
        if isinstance(urls, str):
            raise PolicyError(f"urls = {urls!r} must be several URLs, not one. Put it in a list, or use crawl_page().")
        wanted = list(dict.fromkeys(urls))
        self.reasons = dict.fromkeys(wanted[self.max_pages :], "max_pages")
        pages = await asyncio.gather(*(self._page_of_many(url) for url in wanted[: self.max_pages]))
        came = [page for page in pages if page is not None]
        cached = sum(page.cache is not None for page in came)
        refused = {str(reason) for reason in REFUSALS} | {"max_pages"}
        failures = {url: reason for url, reason in self.reasons.items() if reason not in refused}
        skipped, failed = len(self.reasons) - len(failures), len(failures)
        self.summary = {
            "total": len(wanted), "fetched": len(came) - cached, "cached": cached, "skipped": skipped, "failed": failed,
        }  # fmt: skip
        _log.info("Batch ended", **self.summary)
        if failures and not came:
            url, reason = next(iter(failures.items()))
            raise FetchError(f"none of {len(wanted)} pages could be fetched: {url} because of {reason}, …", url)
        return came

    async def _page_of_many(self, url: str) -> CrawledPage | None:
        try:
            return await self.crawl_page(url)
        except CurtsyError:
            raise
        except Exception as error:  # raised by the user's checker: without its permission the URL is not requested
            _log.error("A page could not be dealt with", url=mask_url(url), error=repr(error))
            self.reasons[url] = "error"
            return None

    async def crawl_index_page(self, index_url: str, url_pattern: str = "", *, same_host: bool = True) -> list[str]:
        """Return the links of a page, each once, in order: on its own host, matching `url_pattern`, and allowed.

        At most `max_pages` links are returned. Raises Refused or FetchError if the index page is not fetched.
        """
        try:
            pattern = re.compile(url_pattern)
        except re.error as error:
            raise PolicyError(f"url_pattern = {url_pattern!r} is not a regular expression: {error}.") from error
        result = await self._fetch(index_url)
        if result is None:
            raise RefusedByRobots(
                f"not fetching {index_url}: the robots checker says no. Leave it out, or ask the site's owner.",
                reason=Reason.ROBOTS_DISALLOWED,
                url=index_url,
            )
        page = await asyncio.to_thread(self._read, result.raise_for_reason())
        host = host_of(page.final_url)
        found: list[str] = []
        for link in page.links:
            if len(found) >= self.max_pages:
                break
            if (not same_host or host_of(link) == host) and pattern.search(link) and await self._may(link):
                found.append(link)
        return found

    async def _may(self, url: str) -> bool:
        if self._checker is not None:
            return await self._checker.is_allowed(url)
        if not self._client.policies.of(host_of(url)).respect_robots:
            return True
        return await RobotsTxtChecker(self._client.policies.user_agent, client=self._client).is_allowed(url)

    async def _fetch(self, url: str) -> FetchResult | None:
        """Fetch a URL. A user's checker is called for every hop; return None if it refuses."""
        if self._checker is None:
            return await self._client.fetch(url)
        first, is_foreign = parse_url(url), False
        if not isinstance(first, Url):
            return await self._client.fetch(url)
        asked, text = first, url  # with the caller's credentials, if it has any
        for _ in range(self._client.policies.default.max_redirects + 1):
            if not await self._checker.is_allowed(text):
                _log.info(f"Blocked by robots.txt: {mask_url(text)}")
                return None
            if delay := self._checker.get_crawl_delay(asked.text):  # stored in the host's record (R8)
                policy = self._client.policies.of(asked.domain)
                await self._session.gate.amend(policy.key_for(asked.domain), policy, CrawlDelay(delay, asked.origin))
            result = await self._session.fetch_alone(FetchRequest(text, follow=False, is_foreign=is_foreign))
            result = msgspec.structs.replace(result, url=first.text)
            following = redirect_target(asked, Response(result.status or 0, result.headers, b""))
            if result.reason is not Reason.REDIRECTED or not isinstance(following, Url):
                return result
            is_foreign = is_foreign or are_apart(asked.domain, following.domain)
            asked, text = following, following.text
        return result

    def _read(self, result: FetchResult) -> CrawledPage:
        claimed = Claimed(result.url, "", 0, 0, None, 0, 0, 0, 0.0)
        sent = Headers([("User-Agent", self._client.policies.user_agent)])
        page = self._reader.read(claimed, result, sent, result.record.at).page
        assert page is not None
        return page

    def _note(self, url: str, result: FetchResult | None) -> None:
        reason = Reason.ROBOTS_DISALLOWED if result is None else result.reason
        status = f" {result.status}" if result is not None and reason is Reason.HTTP_STATUS else ""
        self.reasons[url] = f"{reason}{status}"

    async def close(self) -> None:
        """Release the resources. Idempotent. A given checker is closed by its owner."""
        await self._client.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()


def _pace(crawl_delay: float, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the pace of WebCrawler, without the values that files or the environment set (C10)."""
    said = load(config=given.get("config"), preset=given.get("preset"))
    loose = {"global_qps": None, **changes(Policy(qps=None, pause_min=0, pause_max=0))}
    is_said = {name: said.origin(None, name) != "built-in" for name in (*loose, "delay")}
    is_said["pause_min"] = is_said["pause_max"] = is_said["pause_min"] or is_said["pause_max"]
    delay = max(crawl_delay, said.policies.default.delay) if is_said["delay"] else crawl_delay
    return {"delay": delay, **{name: value for name, value in loose.items() if not is_said[name]}}
