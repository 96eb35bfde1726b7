"""ASGI application of the dashboard: routes, their responses, and actions of the user."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Iterable
from functools import lru_cache
from importlib import resources
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Literal

import msgspec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from curtsy import __version__
from curtsy.cache.keys import PageCache
from curtsy.core.amendment import Override, Pause, Reset, Resume, amend
from curtsy.core.errors import CurtsyError, InvalidDomain, PolicyError, StoreError
from curtsy.core.host import Host
from curtsy.core.masking import mask_url
from curtsy.core.policy import Policy
from curtsy.core.time import Now
from curtsy.core.url import InvalidUrl, parse_domain, parse_url
from curtsy.engine.gate_steps import amended, amended_if_known
from curtsy.observe.dashboard import views
from curtsy.observe.dashboard.board import Board
from curtsy.observe.dashboard.security import Guard, guarded_names, refused, too_many
from curtsy.observe.dashboard.stream import Watch
from curtsy.observe.why import explain
from curtsy.settings import Settings
from curtsy.stores import Step, Store
from curtsy.stores.blocking import for_tasks
from curtsy.system.log import library_logger

if TYPE_CHECKING:
    from curtsy.observe.metrics import Collector

FILES = {
    "style.css": "text/css",
    "app.js": "text/javascript",
    "basics.js": "text/javascript",
    "plots.js": "text/javascript",
    "icon.svg": "image/svg+xml",
}
"""Files of the page, besides `index.html`."""

MOST_BODY = 16_384
"""Maximum size of a request body in bytes."""

_log = library_logger("dashboard")

_encode = msgspec.json.Encoder(enc_hook=str).encode


class Dashboard:
    """ASGI application behind `curtsy serve`, over a store.

    `settings` returns the current settings. `cache` is the cache that "why" reads; None for no cache. The server
    listens on `host` and `port`; `names` are further accepted host names. Any `host` except loopback requires a
    `token`.
    """

    def __init__(
        self, store: Store, settings: Callable[[], Settings], *, cache: PageCache | None = None,
        host: str = "127.0.0.1", port: int = 8765, names: Iterable[str] = (), token: str | None = None,
    ) -> None:  # fmt: skip
        self._store = store
        self._settings = settings
        self._cache = cache
        self.watch = Watch(Board(store, settings))
        self._collector: Collector | None = None
        self._collecting = asyncio.Lock()
        app = Starlette(
            routes=[
                Route("/", self._page),
                Route("/static/{name}", self._file),
                Route("/metrics", self._metrics),
                Route("/api/session", self._session),
                Route("/api/login", self._login, methods=["POST"]),
                Route("/api/overview", self._overview),
                Route("/api/hosts", self._hosts),
                Route("/api/host", self._host),
                Route("/api/why", self._why),
                Route("/api/stream", self._stream),
                Route("/api/actions", self._act, methods=["POST"]),
            ],
            exception_handlers={CurtsyError: _failed, views.InvalidQuery: _failed},
        )
        ours, literals = guarded_names(host, names)
        self.guard = Guard(app, names=ours, literals=literals, port=port, token=token)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or refuse it."""
        await self.guard(scope, receive, send)

    def stop(self) -> None:
        """End the event streams; the server waits for them when it stops."""
        self.watch.stop()

    async def _page(self, request: Request) -> Response:
        if (token := request.query_params.get("token")) is not None and self.guard.accepts(token, _client(request)):
            return self.guard.admit(RedirectResponse("/", 303))  # removes the token from the address bar
        response = _static("index.html", "text/html", request)
        if not request.scope["state"]["is_known"] and response.status_code == 200:
            response.status_code = 401  # the page shows the login form
        return response

    async def _file(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name not in FILES:
            return refused(404, "not_found", "There is no such file.")
        return _static(name, FILES[name], request)

    async def _metrics(self, request: Request) -> Response:
        await asyncio.to_thread(self.count)
        if (collector := self._collector) is None:
            message = 'Metrics need the library prometheus-client. Install it: pip install "curtsy[metrics]".'
            return refused(501, "not_installed", message)
        from curtsy.observe.metrics import CONTENT_TYPE, metrics_text

        await self.watch.refresh()
        async with self._collecting:  # concurrent collections could make counters decrease
            text = await asyncio.to_thread(metrics_text, collector)
        return Response(text, headers={"content-type": CONTENT_TYPE})

    def count(self) -> None:
        """Start to count for `/metrics` if prometheus_client is installed. Raises StoreError.

        Earlier events are not counted.
        """
        if self._collector is None and find_spec("prometheus_client") is not None:
            from curtsy.observe.metrics import Collector, StoreSource

            self._collector = Collector(
                StoreSource(self._store), lambda: self.watch.board.views, crawls=lambda: self.watch.board.crawls
            )

    async def _session(self, request: Request) -> Response:
        settings = self._settings()
        return _json({
            "version": __version__, "csrf": self.guard.csrf, "store": mask_url(self._store.identity),
            "user_agent": settings.user_agent, "preset": settings.preset,
            "metrics": find_spec("prometheus_client") is not None,
        })  # fmt: skip

    async def _login(self, request: Request) -> Response:
        class Login(msgspec.Struct):
            token: str

        try:
            given = msgspec.json.decode(await _body(request), type=Login)
        except (msgspec.MsgspecError, ValueError):
            return refused(400, "invalid", 'Send {"token": "…"} as JSON.')
        if after := self.guard.logins.may_guess(_client(request)):
            return too_many(after)
        if not self.guard.accepts(given.token, _client(request)):
            return refused(401, "token", "Wrong token.")
        return self.guard.admit(_json({"ok": True}))

    async def _overview(self, request: Request) -> Response:
        await self.watch.refresh()
        board = self.watch.board
        return _json({"at": board.at, **views.overview_of(board), "samples": list(board.samples)})

    async def _hosts(self, request: Request) -> Response:
        query = views.Query.of(request.query_params)
        await self.watch.refresh()
        board = self.watch.board
        page = await asyncio.to_thread(views.page_of, board, query)
        counts = {"total": board.totals["hosts"], "listed": board.totals["listed"], "matching": page.matching}
        found = {"at": board.at, **counts, "offset": page.offset}
        return _json(found | {"hosts": [row.fields() for row in page.rows]})

    async def _host(self, request: Request) -> Response:
        domain = parse_domain(request.query_params.get("domain", ""))
        await self.watch.refresh()
        settings, told = self._settings(), views.fetches_of(self.watch.board, domain)
        urls = tuple(dict.fromkeys(fetch["url"] for fetch in told["fetches"]))

        def read() -> dict[str, Any]:
            found = views.host_of(self._store, settings, domain)
            return found | told | {"robots": views.robots_of(self._store, settings, domain, urls)}

        return _json(await asyncio.to_thread(read) | {"policy": views.policy_of(settings, domain)})

    async def _why(self, request: Request) -> Response:
        text = request.query_params.get("url", "").strip()
        url = parse_url(text if "://" in text or not text else f"https://{text}")
        if isinstance(url, InvalidUrl):
            return refused(422, "invalid_url", f"This cannot be requested: {url.why}.")
        found = await explain(url, self._settings(), for_tasks(self._store), self._cache)
        return _json(found.as_dict())

    async def _stream(self, request: Request) -> Response:
        if self.watch.is_full:
            return refused(503, "full", "Too many pages are open. Close some.")
        domain = request.query_params.get("host")
        watch = self.watch
        events = watch.host(parse_domain(domain)) if domain else watch.overview(views.Query.of(request.query_params))
        return StreamingResponse(events, media_type="text/event-stream")

    async def _act(self, request: Request) -> Response:
        if request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
            return refused(415, "invalid", "Send the action as application/json.")
        try:
            action = msgspec.json.decode(await _body(request), type=Action)
        except (msgspec.MsgspecError, ValueError) as error:
            return refused(400, "invalid", f"Invalid action: {error}.")
        domain = await asyncio.to_thread(act, action, self._settings(), self._store, _client(request))
        await self.watch.hurry()
        return _json(await asyncio.to_thread(views.host_of, self._store, self._settings(), domain))


def _client(request: Request) -> str:
    """Return the address that a request comes from."""
    return "" if request.client is None else request.client.host


async def _body(request: Request) -> bytes:
    """Read the body of a request. Raises ValueError if it exceeds MOST_BODY."""
    body = b""
    async for piece in request.stream():
        body += piece
        if len(body) > MOST_BODY:
            raise ValueError("the body is too long")
    return body


def _json(value: Any) -> Response:
    return Response(_encode(value), media_type="application/json")


ERRORS = {
    views.InvalidQuery: (400, "invalid"),
    InvalidDomain: (422, "invalid"),
    PolicyError: (422, "invalid"),
    StoreError: (503, "store"),
    CurtsyError: (500, "error"),
}
"""Status and name of the response to each error, the most specific first."""


async def _failed(request: Request, error: Exception) -> Response:
    """Convert an error to a JSON response."""
    status, name = next(found for kind, found in ERRORS.items() if isinstance(error, kind))
    return refused(status, name, str(error))


@lru_cache(maxsize=8)
def _read(name: str) -> tuple[bytes, str]:
    """Return a file of the page, and its ETag."""
    data = resources.files(__package__).joinpath("static", name).read_bytes()
    return data, f'"{hashlib.sha256(data).hexdigest()[:16]}"'


def _static(name: str, media_type: str, request: Request) -> Response:
    data, tag = _read(name)
    headers = {"etag": tag, "cache-control": "no-cache"}
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers=headers)
    return Response(data, media_type=media_type, headers=headers)


class Action(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Requested action."""

    action: Literal["reset", "pause", "resume", "limit"]
    domain: str
    seconds: float | None = None
    """Duration of a pause; None until the host is resumed."""

    limits: dict[str, float | Literal["none"] | None] = {}
    """New limits by name: a number, `none` for no limit, or null to restore the policy's value."""


_WORDS = {
    "reset": "Breaker reset by a user",
    "pause": "Host paused by a user",
    "resume": "Host resumed by a user",
    "limit": "Limits changed by a user",
}


def act(action: Action, settings: Settings, store: Store, client: str) -> str:
    """Apply an action; return the normalized domain.

    Raises PolicyError or InvalidDomain for an invalid action. Raises PolicyError if a host to reset or resume is
    unknown.
    """
    domain = parse_domain(action.domain)
    policy = settings.policies.of(domain)
    step: Step[Host | None]
    match action.action:
        case "reset":
            step = amended_if_known(policy, Reset())
        case "pause":
            if action.seconds is not None and not action.seconds > 0:
                raise PolicyError(f"seconds = {action.seconds!r} must be above 0. Leave it out to pause until resumed.")
            step = amended(policy, Pause(action.seconds))
        case "resume":
            step = amended_if_known(policy, Resume())
        case "limit":
            step = _limited(policy, action.limits)
    host = store.update(policy.key_for(domain), step)
    if host is None:
        raise PolicyError(f"{domain} is unknown: no request was sent to it. There is nothing to undo.")
    details: dict[str, Any] = {"seconds": action.seconds} if action.action == "pause" else {}
    if action.action == "limit":
        details = {"limits": dict(host.overrides)}
    _log.info(_WORDS[action.action], domain=domain, client=client, **details)
    return domain


def _limited(policy: Policy, limits: dict[str, float | Literal["none"] | None]) -> Step[Host]:
    """Return a step that changes some limits and keeps earlier changes of the others."""

    def step(host: Host | None, now: Now) -> tuple[Host, Host]:
        found = dict(() if host is None else host.overrides)
        for name, value in limits.items():
            if value is None:
                found.pop(name, None)
            else:
                found[name] = None if value == "none" else float(value)
        host = amend(host, now, policy, Override(tuple(found.items())))
        return host, host

    return step
