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
from curtsy.client import AsyncClient
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
from scrapy.pqueues import DownloaderAwarePriorityQueue
from scrapy.responsetypes import responsetypes
from scrapy.settings import BaseSettings
from scrapy.utils.asyncio import is_asyncio_available
from scrapy.utils.httpobj import urlparse_cached
from scrapy.utils.misc import build_from_crawler, load_object
from twisted.python.failure import Failure

__all__ = ["Addon", "DownloadHandler", "Downloader", "PriorityQueue", "Refused", "client_of"]

_log = library_logger("adapters")

INNER = "CURTSY_DOWNLOAD_HANDLERS"
"""Scrapy setting with the download handlers that send the requests, by scheme."""

_DECODED = frozenset({"content-encoding", "content-length"})
"""Fields that do not describe a cached body, which is decoded."""

MOST_WAITING = 5_000
"""Requests that wait in the downloader at most, so that its memory is bounded."""

LOOK = 0.25
"""Seconds between two checks whether the crawl stops, while requests wait."""

_REPLACED: Mapping[str, Any] = {
    "ROBOTSTXT_OBEY": False,
    "ROBOTSTXT_USER_AGENT": None,
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
            _tell(replaced)
        handlers = settings.getwithbase("DOWNLOAD_HANDLERS")
        _put(settings, INNER, {scheme: handlers[scheme] for scheme in ("http", "https")})
        own = dict.fromkeys(("http", "https"), DownloadHandler)
        _put(settings, "DOWNLOAD_HANDLERS", {**settings.getdict("DOWNLOAD_HANDLERS"), **own})
        if load_object(settings["DOWNLOADER"]) is ScrapyDownloader:
            _put(settings, "DOWNLOADER", Downloader)
            if load_object(settings["SCHEDULER_PRIORITY_QUEUE"]) is DownloaderAwarePriorityQueue:
                _put(settings, "SCHEDULER_PRIORITY_QUEUE", PriorityQueue)


def _tell(replaced: list[str]) -> None:
    _log.info("Scrapy settings are switched off, because curtsy replaces them", settings=replaced)


def _put(settings: BaseSettings, name: str, value: object) -> None:
    """Set a Scrapy setting in place of the project's or the spider's."""
    settings.set(name, value, max(settings.getpriority(name) or 0, 15))  # 15: that of add-ons


class _NoDelays(dict[str, dict[str, Any]]):
    """Settings of download slots in which no slot has a delay."""

    def get(self, key: str, default: Any = None) -> dict[str, Any]:
        return {"delay": 0}


class Downloader(ScrapyDownloader):
    """Downloader whose waiting requests do not count against `CONCURRENT_REQUESTS`; those on the wire do.

    A resting host therefore does not keep the downloader from requests for other hosts. With another queue of the
    scheduler than `PriorityQueue`, one waiting request for each host does not count. When the crawl stops, waiting
    requests go back to the scheduler.
    """

    def __init__(self, crawler: Crawler) -> None:
        super().__init__(crawler)
        if crawler.settings.getfloat("DOWNLOAD_DELAY") or hasattr(crawler.spider, "download_delay"):
            _tell(["download_delay"])  # of the spider, which is not in the settings of an add-on
        self.per_slot_settings = _NoDelays()
        self.waiting: Counter[str] = Counter()
        """Requests in the downloader that are not sent yet, by download slot."""
        self._slots: dict[scrapy.Request, str] = {}
        """Download slots of these requests."""
        self.full: set[str] = set()
        """Download slots that take no more requests until a waiting one is sent."""
        queue = load_object(crawler.settings["SCHEDULER_PRIORITY_QUEUE"])
        self._has_own_queue = isinstance(queue, type) and issubclass(queue, PriorityQueue)
        most = self.total_concurrency
        self.connections = asyncio.Semaphore(most) if most > 0 else None
        """Requests that may be on the wire; None for no limit."""

    def fetch(self, request: scrapy.Request, *arguments: Any) -> Any:
        """Download a request."""
        slot = self._slots[request] = self.get_slot_key(request)
        self.waiting[slot] += 1
        if self.waiting[slot] >= self._most_waiting(slot):
            self.full.add(slot)
        deferred = super().fetch(request, *arguments)
        deferred.addBoth(self._ended, request)
        return deferred

    def needs_backout(self) -> bool:
        """Return whether the scheduler must keep its requests."""
        waiting = len(self._slots)
        if waiting >= MOST_WAITING:
            return True
        free = waiting if self._has_own_queue else len(self.waiting)
        return 0 < self.total_concurrency <= len(self.active) - free

    def sent(self, request: scrapy.Request) -> None:
        """Count a request that waits no longer."""
        slot = self._slots.pop(request, None)
        if slot is not None:
            self.full.discard(slot)
            self.waiting[slot] -= 1
            if not self.waiting[slot]:
                del self.waiting[slot]

    def _most_waiting(self, slot: str) -> int:
        """Return how many requests of a download slot may wait: as many as curtsy sends at once."""
        concurrency = client_of(self.crawler).policies.of(slot).concurrency
        return min(concurrency or self.domain_concurrency, self.domain_concurrency)

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


class PriorityQueue(DownloaderAwarePriorityQueue):
    """Queue of the scheduler in which download slots take turns, except those whose requests wait already.

    Requests of a resting host stay in the queue, with `JOBDIR` on disk.
    """

    def pop(self) -> scrapy.Request | None:
        """Return the next request; None if the requests of all slots wait already."""
        slot = self._next()
        if slot is None:
            return None
        every, self.pqueues = self.pqueues, {slot: self.pqueues[slot]}
        try:
            return super().pop()
        finally:
            queue = every.pop(slot)
            if self.pqueues:  # it has more requests, at the next turn
                every[slot] = queue
            self.pqueues = every

    def peek(self) -> scrapy.Request | None:
        """Return what `pop()` would return next."""
        slot = self._next()
        return None if slot is None else self.pqueues[slot].peek()

    def _next(self) -> str | None:
        engine = self.crawler.engine
        downloader = None if engine is None else engine.downloader
        full = downloader.full if isinstance(downloader, Downloader) else ()
        return next((slot for slot in self.pqueues if slot not in full), None)


_HOPS: WeakKeyDictionary[Crawler, AsyncHops] = WeakKeyDictionary()
"""Hops of each crawl, which its download handlers share."""


def client_of(crawler: Crawler) -> AsyncClient:
    """Return the client of curtsy that admits the requests of a crawl."""
    return _hops_of(crawler).client


def _hops_of(crawler: Crawler) -> AsyncHops:
    hops = _HOPS.get(crawler)
    if hops is None:
        settings = crawler.settings
        own: Any = {"user_agent": settings["USER_AGENT"], **settings.getdict("CURTSY")}
        hops = _HOPS[crawler] = AsyncHops(own)
    return hops


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
        downloader = self._downloader()
        connections = None if downloader is None else downloader.connections
        try:
            return await _hops_of(self.crawler).carry(
                wire, request.url, request.method, fields, bool(request.body),
                obeys_robots=not request.meta.get("dont_obey_robotstxt"), connections=connections,
            )  # fmt: skip
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
