"""Add-on for Scrapy: `ADDONS = {"curtsy.adapters.scrapy.Addon": 300}`.

The Scrapy setting `CURTSY` is a dict of settings as of `curtsy.AsyncClient`. It is optional. The User-Agent is that of
the requests.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any
from weakref import WeakKeyDictionary

from curtsy.adapters.hops import AsyncHops, Fields, Head, Trouble, refusal
from curtsy.core import errors
from curtsy.core.errors import Reason
from curtsy.core.request import Headers, Response
from curtsy.core.result import FetchResult
from curtsy.engine.body_slot import BodySlot
from curtsy.system.log import library_logger

try:
    import scrapy
except ImportError as error:
    need = "curtsy.adapters.scrapy needs the library Scrapy"
    raise errors.not_imported(need, "scrapy", "scrapy", error) from error

import scrapy.exceptions as trouble
from scrapy.core.downloader import Downloader as ScrapyDownloader
from scrapy.core.downloader.handlers.base import BaseDownloadHandler
from scrapy.crawler import Crawler
from scrapy.responsetypes import responsetypes
from scrapy.settings import BaseSettings
from scrapy.utils.asyncio import is_asyncio_available
from scrapy.utils.httpobj import urlparse_cached
from scrapy.utils.misc import build_from_crawler, load_object
from twisted.python.failure import Failure

__all__ = ["Addon", "DownloadHandler", "Downloader", "Refused"]

_log = library_logger("adapters")

INNER = "CURTSY_DOWNLOAD_HANDLERS"
"""Scrapy setting with the download handlers that send the requests, by scheme."""

_DECODED = frozenset({"content-encoding", "content-length"})
"""Fields that do not describe a cached body, which is decoded."""

LOOK = 0.25
"""Seconds between two checks whether the crawl stops, while requests wait."""

_REPLACED: Mapping[str, Any] = {
    "ROBOTSTXT_OBEY": False,
    "AUTOTHROTTLE_ENABLED": False,
    "DOWNLOAD_DELAY": 0,
    "DOWNLOAD_SLOTS": {},
}
"""Scrapy settings that curtsy replaces, with the values that switch them off."""


class Refused(errors.Refused, trouble.IgnoreRequest):
    """Refusal by curtsy: nothing was sent. `errback` receives it, with `reason`, `url` and `retry_after`."""


class _Postponed(Refused):
    """End of a wait because the crawl stops: the request goes back to the scheduler."""


class Addon:
    """Add-on that lets curtsy admit every http and https request of a crawl."""

    def update_settings(self, settings: BaseSettings) -> None:
        """Put curtsy in front of the download handlers, and switch off what it replaces."""
        given = settings.getdict("CURTSY")
        off = dict(_REPLACED)
        if given.get("cache"):
            off["HTTPCACHE_ENABLED"] = False
        replaced = [name for name, value in off.items() if settings.get(name) and settings.get(name) != value]
        for name in replaced:
            _put(settings, name, {} if name == "DOWNLOAD_SLOTS" else off[name])
        if replaced:
            _log.info("Scrapy settings are switched off, because curtsy replaces them", settings=replaced)
        handlers = settings.getwithbase("DOWNLOAD_HANDLERS")
        _put(settings, INNER, {scheme: handlers[scheme] for scheme in ("http", "https")})
        own = dict.fromkeys(("http", "https"), DownloadHandler)
        _put(settings, "DOWNLOAD_HANDLERS", {**settings.getdict("DOWNLOAD_HANDLERS"), **own})
        if load_object(settings["DOWNLOADER"]) is ScrapyDownloader:
            _put(settings, "DOWNLOADER", Downloader)


def _put(settings: BaseSettings, name: str, value: object) -> None:
    """Set a Scrapy setting in place of the project's or the spider's."""
    settings.set(name, value, max(settings.getpriority(name) or 0, 15))  # 15: that of add-ons


class Downloader(ScrapyDownloader):
    """Downloader in which one waiting request for each host does not count against `CONCURRENT_REQUESTS`.

    A resting host therefore does not keep the downloader from requests for other hosts. When the crawl stops, waiting
    requests go back to the scheduler.
    """

    def __init__(self, crawler: Crawler) -> None:
        super().__init__(crawler)
        self.waiting: Counter[str] = Counter()
        """Requests in the downloader that are not sent yet, by host."""
        self._hosts: dict[scrapy.Request, str] = {}
        """Hosts of these requests."""

    def fetch(self, request: scrapy.Request, *arguments: Any) -> Any:
        """Download a request."""
        host = self._hosts[request] = urlparse_cached(request).netloc
        self.waiting[host] += 1
        deferred = super().fetch(request, *arguments)
        deferred.addBoth(self._ended, request)
        return deferred

    def needs_backout(self) -> bool:
        """Return whether the scheduler must keep its requests."""
        return 0 < self.total_concurrency <= len(self.active) - len(self.waiting)

    def sent(self, request: scrapy.Request) -> None:
        """Count a request that waits no longer."""
        host = self._hosts.pop(request, None)
        if host is not None:
            self.waiting[host] -= 1
            if not self.waiting[host]:
                del self.waiting[host]

    @property
    def is_closing(self) -> bool:
        """Return whether the crawl stops."""
        engine = self.crawler.engine
        if engine is None or not engine.running:
            return True
        is_busy = self.needs_backout() or engine.scraper.slot is None or engine.scraper.slot.needs_backout()
        return not is_busy and engine.needs_backout()

    def _ended(self, result: Any, request: scrapy.Request) -> Any:
        self.sent(request)
        is_postponed = isinstance(result, Failure) and isinstance(result.value, _Postponed)
        return request.replace(dont_filter=True) if is_postponed else result


_HOPS: WeakKeyDictionary[Crawler, AsyncHops] = WeakKeyDictionary()
"""Hops of each crawl, which its download handlers share."""


class DownloadHandler(BaseDownloadHandler):
    """Download handler that sends a request by another one when its turn comes."""

    lazy = True

    def __init__(self, crawler: Crawler) -> None:
        super().__init__(crawler)
        if not is_asyncio_available():
            raise errors.PolicyError("curtsy.adapters.scrapy needs the asyncio reactor, which is Scrapy's default.")
        self._waiting: dict[scrapy.Request, asyncio.Task[Any]] = {}
        """Tasks of the requests that wait for their turn."""
        self._timer: asyncio.TimerHandle | None = None
        handlers = crawler.settings.getdict(INNER)
        self._inner = {
            scheme: build_from_crawler(load_object(handler), crawler) for scheme, handler in handlers.items()
        }

    async def download_request(self, request: scrapy.Request) -> scrapy.http.Response:
        """Send one request when its turn comes. A wait ends when the crawl stops."""
        wire = _Wire(request, self._inner[urlparse_cached(request).scheme], self._sent, self._refused)
        fields = tuple(_fields(request.headers))
        task = asyncio.current_task()
        assert task is not None
        self._waiting[request] = task
        self._watch()
        try:
            return await self._hops().carry(wire, request.url, request.method, fields, bool(request.body))
        except asyncio.CancelledError:
            if request not in self._waiting:
                raise
            task.uncancel()
            raise _Postponed("the crawl stops", reason=Reason.CLOSED, url=request.url) from None
        finally:
            self._waiting.pop(request, None)

    def _watch(self) -> None:
        """Look later whether the crawl stops, if requests wait."""
        if self._waiting and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(LOOK, self._look)

    def _look(self) -> None:
        """End the waits if the crawl stops; else look again later."""
        self._timer = None
        downloader = self._downloader()
        if downloader is not None and downloader.is_closing:
            for task in self._waiting.values():
                task.cancel()
        self._watch()

    def _sent(self, request: scrapy.Request) -> None:
        """Note that a request waits no longer."""
        self._waiting.pop(request, None)
        downloader = self._downloader()
        if downloader is not None:
            downloader.sent(request)

    def _refused(self, reason: Reason | None) -> None:
        """Count a refusal."""
        if self.crawler.stats is not None:
            self.crawler.stats.inc_value(f"curtsy/refused/{reason}")

    def _downloader(self) -> Downloader | None:
        downloader = None if self.crawler.engine is None else self.crawler.engine.downloader
        return downloader if isinstance(downloader, Downloader) else None

    def _hops(self) -> AsyncHops:
        hops = _HOPS.get(self.crawler)
        if hops is None:
            settings = self.crawler.settings
            own: Any = {"user_agent": settings["USER_AGENT"], **settings.getdict("CURTSY")}
            hops = _HOPS[self.crawler] = AsyncHops(own)
        return hops

    async def close(self) -> None:
        """Close the inner handlers, and the client of curtsy with its store."""
        for handler in self._inner.values():
            await handler.close()
        hops = _HOPS.get(self.crawler)
        if hops is not None:
            await hops.close()


_TROUBLES: Mapping[type[Exception], Trouble] = {
    trouble.DownloadTimeoutError: Trouble(Reason.TIMEOUT, True),
    trouble.DownloadConnectionRefusedError: Trouble(Reason.CONNECTION_ERROR, False),
    trouble.CannotResolveHostError: Trouble(Reason.DNS_ERROR, False),
    trouble.UnsupportedURLSchemeError: Trouble(Reason.INVALID_URL, False),
    trouble.DownloadCancelledError: Trouble(Reason.TOO_LARGE, True),
    trouble.ResponseDataLossError: Trouble(Reason.INCOMPLETE, True),
    trouble.DownloadFailedError: Trouble(Reason.CONNECTION_ERROR, True),
    OSError: Trouble(Reason.CONNECTION_ERROR, True),
}


class _Wire:
    """One request of a crawl."""

    def __init__(
        self,
        request: scrapy.Request,
        inner: Any,
        sent: Callable[[scrapy.Request], None],
        refused: Callable[[Reason | None], None],
    ) -> None:
        """Create a wire. `inner` sends. `sent` is called before, `refused` for a refusal."""
        self._request = request
        self._inner = inner
        self._sent = sent
        self._refused = refused

    async def send(self, added: Fields) -> scrapy.http.Response:
        self._sent(self._request)
        for name, value in added:
            self._request.headers[name] = value
        response: scrapy.http.Response = await self._inner.download_request(self._request)
        return response

    def head(self, native: scrapy.http.Response) -> Head:
        return Head(native.status, Headers(_fields(native.headers)), len(native.body))

    def trouble(self, error: Exception) -> Trouble | None:
        return next((each for kind, each in _TROUBLES.items() if isinstance(error, kind)), None)

    def attach(self, native: scrapy.http.Response, slot: BodySlot) -> None:
        slot.close()

    async def body(self, native: scrapy.http.Response, most: int) -> bytes | None:
        return native.body if len(native.body) <= most else None

    async def discard(self, native: scrapy.http.Response) -> None:
        pass

    def cached(self, response: Response, result: FetchResult) -> scrapy.http.Response:
        fields: dict[str, list[str]] = {}
        for name, value in response.headers.fields:
            if name.lower() not in _DECODED:
                fields.setdefault(name, []).append(value)
        headers, url = scrapy.http.Headers(fields), self._request.url
        kind = responsetypes.from_args(headers=headers, url=url, body=response.body)
        flags = ["cached", f"curtsy: {result.record.cache}"]
        return kind(url, status=response.status, headers=headers, body=response.body, flags=flags)

    def refused(self, result: FetchResult) -> Exception:
        self._refused(result.reason)
        error: Exception = refusal(Refused, result)
        return error


def _fields(headers: scrapy.http.Headers) -> list[tuple[str, str]]:
    return [(name.decode("latin-1"), value.decode("latin-1")) for name, values in headers.items() for value in values]
