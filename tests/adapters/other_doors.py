"""Doors of the libraries that need an event loop of their own: Scrapy, and a browser by Playwright."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Any

import scrapy
from playwright.async_api import Browser, BrowserContext, Error, Playwright, async_playwright
from scrapy.crawler import AsyncCrawlerRunner
from scrapy.exceptions import DownloadConnectionRefusedError, DownloadTimeoutError, IgnoreRequest

import curtsy
import curtsy.adapters.playwright
import curtsy.adapters.scrapy
from tests.adapters.doors import Door, Page
from tests.adapters.loop import LOOP
from tests.client.fetching import AGENT
from tests.observe.browser import FLAGS, program, require
from tests.support.polling import until


class IdleSpider(scrapy.Spider):
    """Spider that waits for requests from outside."""

    name = "idle"

    async def start(self) -> AsyncIterator[Any]:
        await asyncio.get_running_loop().create_future()
        yield None


class ScrapyDoor(Door):
    name = "scrapy"
    error = IgnoreRequest
    broken = DownloadConnectionRefusedError
    timed_out = DownloadTimeoutError
    is_for_tasks = streams = uploads = False
    agent = "Scrapy/"

    def __init__(
        self, scrapy: dict[str, Any] | None = None, spider: type[IdleSpider] = IdleSpider, **settings: Any
    ) -> None:
        """Start a crawl. `scrapy`: settings of Scrapy."""
        super().__init__(**settings)
        LOOP.run(self._start(scrapy or {}, spider))

    async def _start(self, given: dict[str, Any], spider: type[IdleSpider]) -> None:
        runner = AsyncCrawlerRunner(
            {
                "ADDONS": {"curtsy.adapters.scrapy.Addon": 300}, "CURTSY": self.settings, "RETRY_ENABLED": False,
                "LOG_LEVEL": "CRITICAL", "TELNETCONSOLE_ENABLED": False, "CONCURRENT_REQUESTS_PER_DOMAIN": 64,
                "CONCURRENT_REQUESTS": 64, **given,
            }
        )  # fmt: skip
        self.crawler = runner.create_crawler(spider)
        started = asyncio.Event()
        self.crawler.signals.connect(started.set, scrapy.signals.engine_started, weak=False)
        self.crawl = runner.crawl(self.crawler)
        await until(lambda: started.is_set() or self.crawl.done())
        if self.crawl.done():  # it has failed
            await self.crawl
        await until(lambda: self.crawler.engine is not None and self.crawler.engine.running)

    @property
    def client(self) -> curtsy.AsyncClient:
        return curtsy.adapters.scrapy.client_of(self.crawler)

    async def scheduled(self, url: str, **more: Any) -> Any:
        """Get a page by the scheduler; return its response."""
        return await LOOP.start(self._scheduled(url, more))

    async def _scheduled(self, url: str, more: dict[str, Any]) -> Any:
        done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        def failed(failure: Any) -> None:
            done.set_exception(failure.value)

        self.crawler.engine.crawl(scrapy.Request(url, done.set_result, errback=failed, dont_filter=True, **more))
        return await done

    async def get(self, url: str, headers: Mapping[str, str] | None = None) -> Page:
        return await LOOP.start(self._fetch(scrapy.Request(url, headers=headers)))

    async def post(self, url: str, body: bytes) -> Page:
        return await LOOP.start(self._fetch(scrapy.Request(url, method="POST", body=body)))

    async def head(self, url: str) -> int:
        return (await LOOP.start(self._fetch(scrapy.Request(url, method="HEAD")))).status

    async def hurry(self, url: str) -> Page:
        return await LOOP.start(self._fetch(scrapy.Request(url, meta={"download_timeout": 0.2})))

    async def _fetch(self, request: scrapy.Request) -> Page:
        found = await self.crawler.engine.download_async(request)
        text = found.text if isinstance(found, scrapy.http.TextResponse) else ""
        cache = next((flag[8:] for flag in found.flags if flag.startswith("curtsy: ")), None)
        return Page(found.status, text, found, cache)

    def field(self, native: Any, name: str) -> str:
        value: bytes = native.headers[name]
        return value.decode()

    async def shut(self) -> None:
        await LOOP.start(self._stop())

    async def _stop(self) -> None:
        await self.crawler.stop_async()
        await self.crawl


class OneBrowser:
    """Chromium for all tests of a process. It is started by the first that needs it."""

    def __init__(self) -> None:
        self._playwright: Playwright | None = None
        self._browser: Browser | None = None

    async def get(self) -> Browser:
        if self._browser is None:
            self._playwright = await async_playwright().start()
            self._browser = await self._playwright.chromium.launch(executable_path=program(), args=list(FLAGS))
        return self._browser

    def end(self) -> None:
        """End it, if it was started."""
        if self._browser is not None:
            LOOP.run(self._end())

    async def _end(self) -> None:
        assert self._browser is not None
        assert self._playwright is not None
        await self._browser.close()
        await self._playwright.stop()


BROWSER = OneBrowser()


class PlaywrightDoor(Door):
    name = "playwright"
    error = curtsy.adapters.playwright.Refused
    broken = timed_out = Error
    streams = uploads = False
    agent = AGENT
    many = 8
    context: BrowserContext

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        require()
        LOOP.run(self._start())

    async def _start(self) -> None:
        self.context = await (await BROWSER.get()).new_context()
        try:
            self.attachment = await curtsy.adapters.playwright.attach(self.context, **self.settings)
        except BaseException:
            await self.context.close()
            raise

    @property
    def client(self) -> curtsy.AsyncClient:
        return self.attachment.client

    async def get(self, url: str, headers: Mapping[str, str] | None = None) -> Page:
        return await LOOP.start(self._get(url, headers or {}))

    async def hurry(self, url: str) -> Page:
        return await LOOP.start(self._get(url, {}, 200.0))

    async def _get(self, url: str, headers: Mapping[str, str], timeout: float | None = None) -> Page:
        page = await self.context.new_page()
        try:
            await page.set_extra_http_headers(dict(headers))
            found = await page.goto(url, timeout=timeout)
            assert found is not None
            return Page(found.status, await found.text(), found)
        except Error as error:
            raise curtsy.adapters.playwright.refusal(page) or error from error
        finally:
            await page.close()

    async def post(self, url: str, body: bytes) -> Page:
        return await LOOP.start(self._post(url, body.decode()))

    async def _post(self, url: str, body: str) -> Page:
        name, _, value = body.partition("=")
        page = await self.context.new_page()
        await page.set_content(f"<form action={url} method=post><input name={name} value={value}></form>")
        async with page.expect_navigation() as navigation:
            await page.evaluate("document.forms[0].submit()")
        found = await navigation.value
        assert found is not None
        done = Page(found.status, await found.text(), found)
        await page.close()
        return done

    def field(self, native: Any, name: str) -> str:
        value: str = native.headers[name.lower()]
        return value

    async def close_client(self) -> None:
        await LOOP.start(self.client.close())

    async def shut(self) -> None:
        await LOOP.start(self._stop())

    async def _stop(self) -> None:
        await self.context.close()
        await self.attachment.close()
