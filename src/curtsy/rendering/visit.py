"""Visit: one page in a browser that has no network, from its HTML to the DOM after its scripts."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from typing import Any

import msgspec
from playwright.async_api import Browser, BrowserContext, Error, Page, Route, ViewportSize
from playwright.async_api import Request as Wanted

from curtsy.core.effects import FetchRequest, Render
from curtsy.core.errors import CurtsyError, Reason
from curtsy.core.request import NO_HEADERS, Failure, Headers, Reply, Response
from curtsy.core.result import FetchResult
from curtsy.core.url import Url, parse_url
from curtsy.engine.renderer import Fetch
from curtsy.http.registered_domain import are_apart

GRACE = 5.0
"""Seconds for the browser to hand over a DOM, or to close a page."""

_IMAGE = (
    b"GIF89a\x01\x00\x01\x00\x80\x00\x00\x00\x00\x00\x00\x00\x00!\xf9\x04\x01\x00\x00\x00\x00,\x00\x00\x00\x00\x01"
    b"\x00\x01\x00\x00\x02\x02D\x01\x00;"
)
"""Transparent image of one pixel."""

_BLANKS = {"stylesheet": ("text/css", b""), "image": ("image/gif", _IMAGE)}
"""What the page gets instead of parts that do not change its DOM. An error would, because scripts handle it."""

_FETCHED = frozenset({"script", "xhr", "fetch"})
"""Kinds of parts that are requested from their sites."""

_BROWSERS_OWN = frozenset({"user-agent", "accept-encoding", "host", "content-length", "connection"})
"""Fields of a browser's request that the client writes by itself."""

_OF_THE_WIRE = frozenset(
    {"content-encoding", "content-length", "transfer-encoding", "content-disposition", "set-cookie", "connection"}
)
"""Fields of a response that do not describe the decoded body, or that the browser must not act on."""

_UTF_8 = """() => {
    for (const meta of document.querySelectorAll('meta[charset]')) meta.setAttribute('charset', 'utf-8')
    for (const meta of document.querySelectorAll('meta[http-equiv="content-type" i]'))
        meta.setAttribute('content', 'text/html; charset=utf-8')
}"""
"""Script that makes a page name the encoding in which its DOM is written."""

_VIEW = ViewportSize(width=1280, height=2000)


class Visit:
    """One page in a browser context of its own, which ends with it.

    The client fetches the scripts of the page and what they request, by all of its rules. Stylesheets, images, fonts,
    media and frames are not requested. A script that leads to another page ends the visit: that is a redirect.
    """

    def __init__(
        self,
        effect: Render,
        max_body: int | None,
        fetch: Fetch,
        *,
        seconds: float,
        denies_third_party: bool,
        slot_of: Callable[[str], asyncio.Semaphore],
    ) -> None:
        """Create a visit. `slot_of` returns the slots of a host for parts that do not wait for a turn."""
        self._request = effect.request
        self._reply = effect.page
        self._max_body = max_body
        self._fetch = fetch
        self._seconds = seconds
        self._denies_third_party = denies_third_party
        self._slot_of = slot_of
        self._has_begun = False
        self._page: Page | None = None
        self._end: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        """The end of the visit before the page is idle: a redirect, or a crash."""
        self._tasks: set[asyncio.Task[None]] = set()
        """Answers to the browser's requests."""
        self._fetches: set[asyncio.Future[FetchResult]] = set()
        """Fetches for these answers."""
        self._is_over = False
        self.is_stuck = False
        """True if the browser hangs, or could not close the page."""

    async def run(self, browser: Browser) -> Reply:
        """Render the page. Raises an Error of Playwright if the browser has ended."""
        began = time.monotonic()
        agent = self._request.headers.get("user-agent")
        context = await browser.new_context(
            user_agent=agent, service_workers="block", accept_downloads=False, viewport=_VIEW
        )
        try:
            async with asyncio.timeout(self._seconds + 2 * GRACE):
                return await self._shown(context, began)
        except TimeoutError:
            self.is_stuck = True
            return _failed(self._reply, "the browser hangs")
        finally:
            await self._leave(context)

    async def _shown(self, context: BrowserContext, began: float) -> Reply:
        await context.route("**/*", self._route)
        page = self._page = await context.new_page()
        context.on("page", lambda other: self._start(other.close()))  # a popup
        page.on("crash", lambda _: self._finish(_failed(self._reply, "its process crashed, or took too much memory")))
        url = self._request.url.text
        shown = asyncio.ensure_future(page.goto(url, wait_until="networkidle", timeout=0))
        either: list[asyncio.Future[Any]] = [shown, self._end]
        try:
            await asyncio.wait(either, timeout=self._seconds, return_when=asyncio.FIRST_COMPLETED)
            if self._end.done():
                return self._end.result()
            if shown.done() and (error := shown.exception()) is not None:
                raise error
            if page.url == "about:blank":
                return _failed(self._reply, "it was not shown in time")
            return await self._dom(page, self._seconds + GRACE - (time.monotonic() - began))
        finally:
            shown.cancel()
            await asyncio.wait({shown})

    async def _dom(self, page: Page, seconds: float) -> Reply:
        """Return the page with its present DOM. After `seconds` it counts as one whose scripts do not end."""
        reading = asyncio.ensure_future(_content(page))
        either: list[asyncio.Future[Any]] = [reading, self._end]
        await asyncio.wait(either, timeout=max(1.0, seconds), return_when=asyncio.FIRST_COMPLETED)
        if not reading.done():
            reading.cancel()
            await asyncio.wait({reading})
            return self._end.result() if self._end.done() else _failed(self._reply, "its scripts do not end")
        body = reading.result().encode("utf-8", "replace")
        if self._max_body is not None and len(body) > self._max_body:
            why = f"the rendered page is larger than {self._max_body:,} bytes"
            return Failure(Reason.TOO_LARGE, why, self._reply.sent_ago, self._reply.status)
        kind = (self._reply.headers.get("content-type") or "").partition(";")[0].strip()
        fields = self._reply.headers.without(frozenset({"content-type"})).fields
        headers = Headers((*fields, ("Content-Type", f"{kind}; charset=utf-8")))
        return msgspec.structs.replace(self._reply, headers=headers, body=body, rendered=True)

    async def _leave(self, context: BrowserContext) -> None:
        # Only the fetches are cancelled: Playwright waits for ever for a request whose answer was begun and not ended.
        self._is_over = True
        for fetch in self._fetches:
            fetch.cancel()
        results: list[BaseException | None] = []
        try:
            async with asyncio.timeout(GRACE):
                results = await asyncio.gather(*self._tasks, return_exceptions=True)
                await context.close()
        except TimeoutError:  # only the end of the browser ends it
            self.is_stuck = True
        except Error:  # the browser has ended
            pass
        for result in results:
            if isinstance(result, Exception) and not isinstance(result, Error | CurtsyError):
                raise result

    def _finish(self, reply: Reply) -> None:
        if not self._end.done():
            self._end.set_result(reply)

    def _start(self, work: Any) -> None:
        self._tasks.add(asyncio.ensure_future(work))

    def _route(self, route: Route) -> None:
        self._start(self._answered(route))

    async def _answered(self, route: Route) -> None:
        try:
            await self._answer(route)
        except BaseException:
            with contextlib.suppress(Error):
                await route.abort()  # else Playwright would wait for the answer
            raise

    async def _answer(self, route: Route) -> None:
        """Answer a request of the browser."""
        wanted = route.request
        if self._is_over:
            await route.abort("aborted")
        elif wanted.is_navigation_request():
            await self._navigate(route, wanted)
        elif (blank := _BLANKS.get(wanted.resource_type)) is not None:
            await route.fulfill(status=200, content_type=blank[0], body=blank[1])
        elif wanted.resource_type in _FETCHED:
            await self._fetch_part(route, wanted)
        else:
            await route.abort("blockedbyclient")

    async def _navigate(self, route: Route, wanted: Wanted) -> None:
        """Answer the page itself; note another page that a script leads to, and stay."""
        if not self._has_begun:
            self._has_begun = True
            await route.fulfill(status=200, headers=_described(self._reply.headers), body=self._reply.body)
            return
        url = parse_url(wanted.url)
        is_main = wanted.frame.parent_frame is None and wanted.frame.page is self._page
        if is_main and wanted.method == "GET" and isinstance(url, Url) and url.text != self._request.url.text:
            self._finish(msgspec.structs.replace(self._reply, status=302, headers=_location(url), body=b""))
        await route.abort("aborted")

    async def _fetch_part(self, route: Route, wanted: Wanted) -> None:
        """Answer a request for a script or for data."""
        url = parse_url(wanted.url)
        is_own = isinstance(url, Url) and not are_apart(url.domain, self._request.url.domain)
        if not isinstance(url, Url) or (self._denies_third_party and not is_own):
            await route.abort("blockedbyclient")
            return
        # Equal requests of several pages are one: a script is requested without the fields that name the page.
        fields = NO_HEADERS if wanted.resource_type == "script" else _asked(wanted.headers)
        ask = FetchRequest(
            url.text,
            wanted.method,
            fields,
            wanted.post_data_buffer,
            self._seconds,
            is_part=True,
            follows=is_own,
            obeys_robots=False,
        )
        fetch = asyncio.ensure_future(self._fetched(ask, self._slot_of(url.domain) if is_own else None))
        self._fetches.add(fetch)
        fetch.add_done_callback(self._fetches.discard)
        await asyncio.wait({fetch})
        result = None if fetch.cancelled() else fetch.result()
        if result is None or result.status is None:
            await route.abort("failed")
        else:
            await route.fulfill(status=result.status, headers=_described(result.headers), body=result.body)

    async def _fetched(self, ask: FetchRequest, slot: asyncio.Semaphore | None) -> FetchResult:
        async with contextlib.nullcontext() if slot is None else slot:
            return await self._fetch(ask)


async def _content(page: Page) -> str:
    await page.evaluate(_UTF_8)
    return await page.content()


def _failed(reply: Response, why: str) -> Failure:
    return Failure(Reason.NOT_RENDERED, f"the browser did not render it: {why}", reply.sent_ago, reply.status)


def _location(url: Url) -> Headers:
    return Headers((("Location", url.text),))


def _described(headers: Headers) -> dict[str, str]:
    """Return the header fields for a decoded body."""
    return dict(headers.without(_OF_THE_WIRE))


def _asked(headers: dict[str, str]) -> Headers:
    """Return the header fields that a script sends."""
    fields = headers.items()
    return Headers((name, value) for name, value in fields if name not in _BROWSERS_OWN and not name.startswith("sec-"))
