"""Access control of the dashboard, and security headers of its responses.

- *DNS rebinding*: a request whose Host header is not an own name is refused.
- *Authentication*: with a token, data requires it: as `Authorization: Bearer …`, or once by the login form or
  `?token=`, which set a cookie.
- *Cross-site requests*: no CORS header is sent. A change requires a header whose value only the own page can read.
  Sec-Fetch-Site and Origin headers that name another site cause a refusal.
- *Slow requests* (slowloris): a connection is closed if a request does not arrive in time. uvicorn limits the time
  between two requests, but not the time of an endless head or body.
- *Injected content*: the content security policy runs only own scripts and sends data nowhere else.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import ipaddress
import math
import secrets
import time
from collections.abc import Callable, Iterable
from urllib.parse import urlsplit

import h11
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import cookie_parser
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

LEAST_TOKEN = 16
"""Minimum length of a token in characters: a shorter one could be guessed."""

LOGINS = (10, 2.0)
"""Wrong tokens per address by the form or `?token=` before a delay; seconds until the next try."""

HEADERS_SENT = (100, 0.5)
"""The same for tokens in a header, which programs send with every request."""

SLOTS = 256
"""Number of slots that addresses are hashed to: bounds memory, and one address delays few others."""

CSRF_HEADER = "x-curtsy-csrf"
"""Header required on every request that changes something; `/api/session` returns its value."""

HEADERS = {
    # Trusted types make assigning to innerHTML an error: all data of sites is inserted as text.
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'; "
        "require-trusted-types-for 'script'; trusted-types 'none'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}
"""Headers of every response."""

OPEN_PATHS = ("/static/", "/api/login")
"""Paths that need no token: the page's own files, which hold no data, and the login."""


REQUEST_TIMEOUT = 10.0
"""Seconds from the connection or the first byte of a request to the end of its body."""


class Guesses:
    """Rate limiter of wrong tokens by client address; it delays an address, but never blocks it for long."""

    def __init__(self, free: int, every: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._most, self._every = (free - 1) * every, every
        self._clock = clock
        self._key = secrets.token_bytes(16)
        self._free_at = [0.0] * SLOTS
        """Instant per slot at which all its tries are available again."""

    def may_guess(self, client: str) -> float:
        """Return the seconds until the address may try again; 0 for now."""
        left = self._free_at[self._slot(client)] - self._clock()
        return max(0.0, left - self._most)

    def count(self, client: str) -> None:
        """Count a wrong token."""
        slot = self._slot(client)
        self._free_at[slot] = max(self._free_at[slot], self._clock()) + self._every

    def _slot(self, client: str) -> int:
        return hashlib.blake2b(client.encode(), key=self._key, digest_size=4).digest()[0] % SLOTS


class Guard:
    """ASGI middleware that passes on only permitted requests."""

    def __init__(self, app: ASGIApp, *, names: Iterable[str], literals: bool, port: int, token: str | None) -> None:
        """Create the guard. `names` are the own host names; `literals` accepts any literal IP address too."""
        self._app = app
        self._names = frozenset(name.lower().rstrip(".") for name in names)
        self._literals = literals
        self._token = token
        self.logins = Guesses(*LOGINS)
        self._headers = Guesses(*HEADERS_SENT)
        key = secrets.token_bytes(32)
        self._session = hmac.new(key, (token or "").encode(), hashlib.sha256).hexdigest()
        self.cookie = f"curtsy-{port}"
        """Name of the cookie; it has the port, because browsers share cookies among the ports of a host."""
        self.csrf = hmac.new(key, b"csrf", hashlib.sha256).hexdigest()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse a request, or pass it on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
                headers.setdefault("cache-control", "no-store")
            await send(message)

        headers = Headers(scope=scope)
        client = scope["client"][0] if scope.get("client") else ""
        is_known = self._is_known(headers, client)
        scope.setdefault("state", {})["is_known"] = is_known
        refusal = self._refusal(scope, headers, client, is_known)
        await (refusal or self._app)(scope, receive, guarded)

    def _refusal(self, scope: Scope, headers: Headers, client: str, is_known: bool) -> Response | None:
        """Return the response that refuses a request; None if it is permitted."""
        path, method = scope["path"], scope["method"]
        if not self._is_ours(headers.getlist("host")):
            return refused(421, "wrong_host", "Wrong host name. Use the address that curtsy serve printed.")
        is_page = not path.startswith("/api/") and path != "/metrics"
        if not is_page and headers.get("sec-fetch-site", "none") not in ("same-origin", "none"):
            return refused(403, "cross_site", "Requests from other sites are refused.")
        if method not in ("GET", "HEAD"):
            if not _is_same_origin(headers):
                return refused(403, "cross_site", "Requests from other sites are refused.")
            if path != "/api/login" and not _same(headers.get(CSRF_HEADER, ""), self.csrf):
                return refused(403, "csrf", f"The header {CSRF_HEADER} is missing or wrong. /api/session returns it.")
        if is_page or path.startswith(OPEN_PATHS) or is_known:
            return None
        if "authorization" in headers and (after := self._headers.may_guess(client)):
            return too_many(after)
        return refused(401, "token", "The token is missing or wrong. Log in, or send it as Authorization: Bearer.")

    def _is_ours(self, given: list[str]) -> bool:
        if len(given) != 1:
            return False
        try:
            host = urlsplit(f"//{given[0]}").hostname or ""
            if host.rstrip(".") in self._names:
                return True
            ipaddress.ip_address(host)
        except ValueError:
            return False
        return self._literals  # DNS rebinding needs a name, not an address

    def _is_known(self, headers: Headers, client: str) -> bool:
        if self._token is None or _same(cookie_parser(headers.get("cookie", "")).get(self.cookie, ""), self._session):
            return True
        scheme, _, credentials = headers.get("authorization", "").partition(" ")
        return scheme.lower() == "bearer" and self._accepts(credentials.strip(), client, self._headers)

    def accepts(self, token: str, client: str) -> bool:
        """Return whether this is the token, given by the form or in the query; see `_accepts`."""
        return self._accepts(token, client, self.logins)

    def _accepts(self, token: str, client: str, guesses: Guesses) -> bool:
        """Return whether this is the token; False during an address's delay, even for the right one.

        The comparison takes constant time.
        """
        if self._token is None:
            return True
        if guesses.may_guess(client):
            return False
        is_right = _same(token, self._token)
        if not is_right:
            guesses.count(client)
        return is_right

    def admit(self, response: Response) -> Response:
        """Set the session cookie, which is valid until the server ends."""
        response.set_cookie(self.cookie, self._session, httponly=True, samesite="strict", path="/")
        return response


def _same(one: str, other: str) -> bool:
    return hmac.compare_digest(one.encode(), other.encode())


def _is_same_origin(headers: Headers) -> bool:
    """Return whether the headers of a browser, if any, name the own page as the origin."""
    if headers.get("sec-fetch-site", "same-origin") != "same-origin":
        return False
    origin = headers.get("origin")
    return origin is None or urlsplit(origin).netloc.lower() == headers.get("host", "").lower()


def too_many(after: float) -> Response:
    """Return the response to an address with too many wrong tokens."""
    response = refused(429, "too_many", f"Too many wrong tokens. Try again in {math.ceil(after)} s.")
    response.headers["retry-after"] = str(math.ceil(after))
    return response


def refused(status: int, error: str, message: str) -> JSONResponse:
    """Return an error as a response."""
    return JSONResponse({"error": error, "message": message}, status)


def guarded_names(host: str, more: Iterable[str] = ()) -> tuple[set[str], bool]:
    """Return the names of a server on `host`, and whether any literal IP address is accepted too."""
    import socket

    names = {host.strip("[]"), *more}
    if is_loopback(host):
        return names | {"127.0.0.1", "localhost", "::1"}, False
    return names | {"localhost", socket.gethostname()}, True


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach a server that listens on `host`."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


class Connection(H11Protocol):
    """uvicorn's HTTP/1.1 connection with a time limit for the arrival of a request."""

    request_timeout = REQUEST_TIMEOUT
    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the timer for the first request."""
        super().connection_made(transport)
        self._wait()

    def data_received(self, data: bytes) -> None:
        """Keep the timer running while the request is incomplete."""
        super().data_received(data)
        if self.conn.their_state in (h11.IDLE, h11.SEND_BODY):
            self._wait()
        else:
            self._stop_waiting()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timer."""
        self._stop_waiting()
        super().connection_lost(exc)

    def _wait(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self.request_timeout, self.transport.close)

    def _stop_waiting(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
