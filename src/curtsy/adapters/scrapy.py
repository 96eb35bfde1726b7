"""Add-on for Scrapy: `ADDONS = {"curtsy.adapters.scrapy.Addon": 300}`.

The Scrapy setting `CURTSY` is a dict of settings as of `curtsy.AsyncClient`. It is optional. The User-Agent is that of
the requests.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
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

__all__ = ["Addon", "DownloadHandler", "Downloader", "Refused"]

_log = library_logger("adapters")

INNER = "CURTSY_DOWNLOAD_HANDLERS"
"""Scrapy setting with the download handlers that send the requests, by scheme."""

_DECODED = frozenset({"content-encoding", "content-length"})
"""Fields that do not describe a cached body, which is decoded."""

_REPLACED: Mapping[str, Any] = {
    "ROBOTSTXT_OBEY": False,
    "AUTOTHROTTLE_ENABLED": False,
    "DOWNLOAD_DELAY": 0,
    "DOWNLOAD_SLOTS": {},
}
"""Scrapy settings that curtsy replaces, with the values that switch them off."""


class Refused(errors.Refused, trouble.IgnoreRequest):
    """Refusal by curtsy: nothing was sent. `errback` receives it, with `reason`, `url` and `retry_after`."""


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

    A resting host therefore does not keep the downloader from requests for other hosts.
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

    def _ended(self, result: Any, request: scrapy.Request) -> Any:
        self.sent(request)
        return result


_HOPS: WeakKeyDictionary[Crawler, AsyncHops] = WeakKeyDictionary()
"""Hops of each crawl, which its download handlers share."""


class DownloadHandler(BaseDownloadHandler):
    """Download handler that sends a request by another one when its turn comes."""

    lazy = True

    def __init__(self, crawler: Crawler) -> None:
        super().__init__(crawler)
        if not is_asyncio_available():
            raise errors.PolicyError("curtsy.adapters.scrapy needs the asyncio reactor, which is Scrapy's default.")
        handlers = crawler.settings.getdict(INNER)
        self._inner = {
            scheme: build_from_crawler(load_object(handler), crawler) for scheme, handler in handlers.items()
        }

    async def download_request(self, request: scrapy.Request) -> scrapy.http.Response:
        """Send one request when its turn comes."""
        wire = _Wire(self.crawler, request, self._inner[urlparse_cached(request).scheme])
        fields = tuple(_fields(request.headers))
        return await self._hops().carry(wire, request.url, request.method, fields, bool(request.body))

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

    def __init__(self, crawler: Crawler, request: scrapy.Request, inner: Any) -> None:
        self._crawler = crawler
        self._request = request
        self._inner = inner

    async def send(self, added: Fields) -> scrapy.http.Response:
        downloader = None if self._crawler.engine is None else self._crawler.engine.downloader
        if isinstance(downloader, Downloader):
            downloader.sent(self._request)
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
        if self._crawler.stats is not None:
            self._crawler.stats.inc_value(f"curtsy/refused/{result.reason}")
        error: Exception = refusal(Refused, result)
        return error


def _fields(headers: scrapy.http.Headers) -> list[tuple[str, str]]:
    return [(name.decode("latin-1"), value.decode("latin-1")) for name, values in headers.items() for value in values]
