"""Manners for a browser that Playwright drives: `await attach(context)`.

A route intercepts the first request of each resource. It cannot intercept the requests that follow a redirect. In
Chromium, a session of the DevTools protocol (domain Fetch) for each page intercepts those too, and the heads of all
responses. Other browsers have the route only.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from functools import partial
from typing import Any, Literal, Unpack
from weakref import WeakKeyDictionary, WeakSet

from curtsy.adapters import hops as shared
from curtsy.client import AsyncClient
from curtsy.core import errors
from curtsy.core.effects import FetchRequest
from curtsy.core.errors import PolicyError, Reason
from curtsy.core.request import Failure, Headers, Reply, Request, Response, whole_number
from curtsy.core.url import Url, parse_url
from curtsy.engine.arguments import check_names
from curtsy.engine.keywords import ClientKeywords
from curtsy.http.registered_domain import are_apart

try:
    from playwright import async_api
except ImportError as error:
    need = "curtsy.adapters.playwright needs the library Playwright"
    raise errors.not_imported(need, "playwright", "playwright", error) from error

__all__ = ["Attachment", "Refused", "attach", "refusal"]

IN_FLIGHT = 6
"""Parts of pages that are requested from a host at the same time, as browsers do by HTTP/1.1."""

_ONLY_PAGES = """
if (navigator.serviceWorker)
    navigator.serviceWorker.register = () => Promise.reject(new Error('off'));
delete window.SharedWorker;
new MutationObserver(records => {
    for (const {addedNodes} of records)
        for (const node of addedNodes)
            if (node.nodeName === 'SCRIPT' && node.type === 'speculationrules') node.remove();
}).observe(document, {childList: true, subtree: true});
"""
"""Script that keeps pages from service workers, shared workers and speculation rules, whose requests no route sees."""

_BLOCKED = ["*/favicon.ico"]
"""URLs that Playwright aborts in a context with routes. As a page closes, the browser would request them anyway."""

_PATTERNS = [{"urlPattern": "*", "requestStage": stage} for stage in ("Request", "Response")]

_ABORTED = Failure(Reason.CLOSED, "the browser ended the request", 0.0)

_GONE = Failure(Reason.CLOSED, "the browser did not wait for its turn", None)

Carry = Callable[[Request], Awaitable[Reply]]


class Refused(errors.Refused):
    """Refusal by curtsy: nothing was sent. The browser reports `net::ERR_BLOCKED_BY_CLIENT`."""


_REFUSALS: WeakKeyDictionary[async_api.Page, Refused] = WeakKeyDictionary()


def refusal(page: async_api.Page) -> Refused | None:
    """Return the refusal of the last document of a page, with `reason` and `retry_after`; None if it was admitted."""
    return _REFUSALS.get(page)


async def attach(
    context: async_api.BrowserContext,
    *,
    parts: Literal["follow", "pace"] = "follow",
    third_party: Literal["pace", "deny"] = "pace",
    **settings: Unpack[ClientKeywords],
) -> Attachment:
    """Admit every http and https request of a browser context.

    Documents obey robots.txt and wait for their turn. With `parts="follow"`, images, scripts and other parts from the
    page's own site are charged, but do not wait; with "pace" each waits for its turn. Requests to other sites wait for
    the turn of their host, or are refused with `third_party="deny"`. The end of the context closes the client.
    """
    check_names(settings, ("parts", "third_party"), "attach")
    if settings.get("cache"):
        raise PolicyError("the adapter for Playwright has no cache, because only the browser can create its responses.")
    attachment = Attachment(context, shared.AsyncHops(settings), parts == "follow", third_party == "deny")
    await attachment.start()
    return attachment


class Attachment:
    """Attachment of curtsy to one browser context."""

    def __init__(
        self, context: async_api.BrowserContext, hops: shared.AsyncHops, follows: bool, denies_third_party: bool
    ) -> None:
        self._context = context
        self._hops = hops
        self._follows = follows
        self._denies_third_party = denies_third_party
        self._slots: defaultdict[str, asyncio.Semaphore] = defaultdict(lambda: asyncio.Semaphore(IN_FLIGHT))
        self._admitted: Counter[tuple[str, str]] = Counter()
        """Requests that a session of the DevTools protocol has admitted, and that the route lets pass."""
        self._tasks: set[asyncio.Future[Any]] = set()
        self._watches: WeakKeyDictionary[async_api.Page, asyncio.Future[None]] = WeakKeyDictionary()
        """Tasks that open the session of each page."""
        self._requests: WeakKeyDictionary[async_api.Page, set[asyncio.Future[Any]]] = WeakKeyDictionary()
        """Tasks of the requests of each page whose head has not come yet."""
        self._closing: WeakSet[async_api.Page] = WeakSet()

    @property
    def client(self) -> AsyncClient:
        """Return the client of curtsy that admits the requests."""
        return self._hops.client

    async def start(self) -> None:
        """Intercept the requests of all pages."""
        context = self._context
        await context.add_init_script(_ONLY_PAGES)
        await context.route("**/*", self._route)
        context.on("page", self._begin_watch)
        context.on("close", lambda _: self.begin(None, self.close()))
        for page in context.pages:
            self._begin_watch(page)
        await asyncio.gather(*self._watches.values())
        context.new_page = self._new_page  # type: ignore[method-assign]
        context.close = self._close_context  # type: ignore[method-assign]

    async def close(self) -> None:
        """Close the client of curtsy with its store. Idempotent."""
        await self._hops.close()

    async def _new_page(self) -> async_api.Page:
        """Open a page, and return it when its requests are intercepted."""
        page = await type(self._context).new_page(self._context)
        await self._watches[page]
        return page

    def _begin_watch(self, page: async_api.Page) -> None:
        page.on("close", lambda page: self.begin(None, self._end_requests(page)))
        page.close = partial(self._close_page, page)  # type: ignore[method-assign]
        self._watches[page] = asyncio.ensure_future(self._watch(page))

    async def _close_page(self, page: async_api.Page, **options: Any) -> None:
        """End the requests of a page, and close it. Else the browser would send those that wait, as it closes."""
        if not options.get("run_before_unload"):  # else the page may stay
            await self._end_requests(page)
        await type(page).close(page, **options)

    async def _close_context(self, **options: Any) -> None:
        await asyncio.gather(*(self._end_requests(page) for page in self._context.pages))
        await type(self._context).close(self._context, **options)

    async def _end_requests(self, page: async_api.Page) -> None:
        """End the requests of a page, those that come later included."""
        self._closing.add(page)
        works = list(self._requests.get(page, ()))
        for work in works:
            work.cancel()
        await asyncio.gather(*works, return_exceptions=True)

    def begin(self, page: async_api.Page | None, work: Coroutine[Any, Any, Any]) -> asyncio.Future[Any]:
        """Start the work for a request of a page, which ends with the page."""
        task = asyncio.ensure_future(work)
        tasks = self._tasks if page is None else self._requests.setdefault(page, set())
        tasks.add(task)
        task.add_done_callback(tasks.discard)
        if page in self._closing:
            asyncio.get_running_loop().call_soon(task.cancel)  # the task has begun then, and ends the request
        return task

    async def _watch(self, page: async_api.Page) -> None:
        """Intercept the requests of a page by the DevTools protocol, if the browser has it."""
        with contextlib.suppress(async_api.Error):  # another browser, or the page was closed
            await _PageSession(self, page, await self._context.new_cdp_session(page)).start()

    async def _route(self, route: async_api.Route) -> None:
        request = route.request
        asked = (request.method, request.url)
        if self._admitted[asked] > 0:
            self._admitted[asked] -= 1
            await route.continue_()
            return
        page = None
        with contextlib.suppress(async_api.Error):  # the frame of a first navigation may not be there yet
            page = request.frame.page
        with contextlib.suppress(asyncio.CancelledError):
            await self.begin(page, self._admit(route, page))

    async def _admit(self, route: async_api.Route, page: async_api.Page | None) -> None:
        """Let the browser send an intercepted request when its turn comes."""
        request = route.request
        headers = {**request.headers, "user-agent": self.user_agent}

        async def send(_: Request) -> Reply:
            await route.continue_(headers=headers)
            response = await request.response()
            return _ABORTED if response is None else _head(response.status, await response.headers_array())

        is_document = request.is_navigation_request()
        try:
            refused = await self.judge(request.url, request.method, headers, is_document, page, send)
        except BaseException:
            with contextlib.suppress(async_api.Error):
                await route.abort()
            raise
        if is_document and page is not None:
            note(page, refused)
        if refused is not None:
            await route.abort("blockedbyclient")

    @property
    def user_agent(self) -> str:
        """Return the User-Agent that the browser sends."""
        return self.client.policies.user_agent

    def passed(self, method: str, url: str) -> None:
        """Let the route pass a request that a session has admitted."""
        self._admitted[method, url] += 1

    async def judge(
        self,
        address: str,
        method: str,
        headers: Mapping[str, str],
        is_document: bool,
        page: async_api.Page | None,
        send: Carry,
    ) -> Refused | None:
        """Let the browser send a request when its turn comes; return the refusal, or None."""
        url = parse_url(address)
        if not isinstance(url, Url):  # a URL of the browser's own
            await send(Request(_NOWHERE))
            return None
        carried: list[Request] = []

        async def once(request: Request) -> Reply:
            carried.append(request)
            return await send(request)

        top = None if page is None else parse_url(page.url)
        is_own = isinstance(top, Url) and not are_apart(top.domain, url.domain)
        follows = is_own and not is_document and self._follows
        if not is_document and not is_own and self._denies_third_party:
            return Refused(f"{url.domain} is not the site of the page", reason=Reason.DOMAIN_DENIED, url=url.text)
        agent = Headers((("User-Agent", headers.get("user-agent") or self.user_agent),))
        ask = FetchRequest(url.text, method, agent, is_part=not is_document, follows=follows, obeys_robots=is_document)
        async with self._slots[url.domain] if follows else contextlib.nullcontext():
            result = await self._hops.admit(ask, once)
        return None if carried else shared.refusal(Refused, result)


_found = parse_url("http://localhost/")
assert isinstance(_found, Url)
_NOWHERE = _found


def note(page: async_api.Page, refused: Refused | None) -> None:
    """Note the refusal of a page's document, or that it was admitted."""
    if refused is None:
        _REFUSALS.pop(page, None)
    else:
        _REFUSALS[page] = refused


class _PageSession:
    """Session of the DevTools protocol that intercepts the requests of one page."""

    def __init__(self, attachment: Attachment, page: async_api.Page, session: async_api.CDPSession) -> None:
        self._attachment = attachment
        self._page = page
        self._session = session
        self._heads: dict[str, asyncio.Future[Reply]] = {}
        """Replies that sent requests wait for, by the id of the request."""
        self._main_frame = ""

    async def start(self) -> None:
        """Intercept requests and the heads of responses."""
        self._session.on("Fetch.requestPaused", self._paused)
        with contextlib.suppress(async_api.Error):  # an older browser
            await self._session.send("Page.setPrerenderingAllowed", {"isAllowed": False})
            await self._session.send("Network.enable", {"maxTotalBufferSize": 0, "maxResourceBufferSize": 0})
            await self._session.send("Network.setBlockedURLs", {"urls": _BLOCKED})
        tree = await self._session.send("Page.getFrameTree")
        self._main_frame = tree["frameTree"]["frame"]["id"]
        await self._session.send("Fetch.enable", {"patterns": _PATTERNS})

    def _paused(self, event: dict[str, Any]) -> None:
        is_response = "responseStatusCode" in event or "responseErrorReason" in event
        if is_response:
            head = self._heads.pop(event["requestId"], None)
            if head is not None and not head.done():
                head.set_result(_reply(event))
        if not is_response:
            self._attachment.begin(self._page, self._request(event))
        elif _is_rules(event):
            self._attachment.begin(None, self._send("Fetch.failRequest", event, errorReason="BlockedByClient"))
        else:
            self._attachment.begin(None, self._send("Fetch.continueResponse", event))

    async def _request(self, event: dict[str, Any]) -> None:
        number, request = event["requestId"], event["request"]
        headers = {name.lower(): value for name, value in request["headers"].items()}
        headers["user-agent"] = self._attachment.user_agent
        fields = [{"name": name, "value": value} for name, value in headers.items()]
        is_document = event["resourceType"] == "Document"

        async def send(_: Request) -> Reply:
            head: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
            self._heads[number] = head
            if "redirectedRequestId" not in event:
                self._attachment.passed(request["method"], request["url"])
            if not await self._send("Fetch.continueRequest", event, headers=fields):
                return _GONE
            return await head

        try:
            refused = await self._attachment.judge(
                request["url"], request["method"], headers, is_document, self._page, send
            )
        except BaseException:
            await self._send("Fetch.failRequest", event, errorReason="Failed")
            raise
        finally:
            self._heads.pop(number, None)
        if is_document and event["frameId"] == self._main_frame:
            note(self._page, refused)
        if refused is not None:
            await self._send("Fetch.failRequest", event, errorReason="BlockedByClient")

    async def _send(self, command: str, event: dict[str, Any], **more: Any) -> bool:
        """Send a command about a request; return False if the browser has ended it."""
        try:
            await self._session.send(command, {"requestId": event["requestId"], **more})
        except async_api.Error:
            return False
        return True


def _is_rules(event: Mapping[str, Any]) -> bool:
    """Return whether a response has speculation rules, whose requests no route sees."""
    fields = event.get("responseHeaders") or ()
    return any(
        each["name"].lower() == "content-type" and each["value"].startswith("application/speculationrules")
        for each in fields
    )


def _reply(event: Mapping[str, Any]) -> Reply:
    """Return the reply that the head of a response stands for."""
    if "responseStatusCode" in event:
        return _head(event["responseStatusCode"], event.get("responseHeaders", []))
    reason = event["responseErrorReason"]
    if reason in ("Aborted", "BlockedByClient", "BlockedByResponse"):
        return _ABORTED
    is_timeout = reason in ("TimedOut", "ConnectionAborted")
    is_sent = reason in ("TimedOut", "ConnectionClosed", "ConnectionReset", "Failed")
    return Failure(
        Reason.TIMEOUT if is_timeout else Reason.CONNECTION_ERROR,
        f"the browser says {reason}",
        0.0 if is_sent else None,
    )


def _head(status: int, fields: list[Any]) -> Response:
    headers = Headers((each["name"], each["value"]) for each in fields)
    size = whole_number(headers.get("content-length"))
    return Response(status, headers, b"", wire_bytes=size or 0, is_whole=status in (204, 304) or size == 0)
