"""Guard: who may talk to the dashboard, and what a browser may do with its answers.

- *Rebinding*: a site whose name is made to point at this machine gives itself away by its Host header.
- *Strangers*: with a token, nobody without it gets any data. It comes as `Authorization: Bearer …`, or once by the
  login form or `?token=`, after which a cookie stands for it.
- *Other sites' pages*: no CORS header is ever sent; what changes something needs a header that only our own page can
  know, and browsers' word on where a request comes from is believed if it says elsewhere.
- *Content*: whatever a site managed to smuggle into the page, the content security policy lets nothing run that is not
  ours, nor lets anything be sent elsewhere.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import secrets
from collections.abc import Iterable
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import cookie_parser
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

LEAST_TOKEN = 16
"""Characters of a token: fewer could be guessed."""

CSRF_HEADER = "x-curtsy-csrf"
"""What every request that changes something must carry; `/api/session` tells its value."""

HEADERS = {
    # Trusted types make assigning to innerHTML an error: everything from a site goes in as text.
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
"""What every answer carries."""

OPEN_PATHS = ("/static/", "/api/login")
"""What may be asked for without the token: the page's own files, which hold no data, and the way in."""


class Guard:
    """An ASGI application around another one, which sees only requests that may be answered."""

    def __init__(self, app: ASGIApp, *, names: Iterable[str], literals: bool, port: int, token: str | None) -> None:
        """`names` are the hosts that we go by; with `literals` any address that is written out is one of them."""
        self._app = app
        self._names = frozenset(name.lower().rstrip(".") for name in names)
        self._literals = literals
        self._token = token
        key = secrets.token_bytes(32)
        self._session = hmac.new(key, (token or "").encode(), hashlib.sha256).hexdigest()
        self.cookie = f"curtsy-{port}"
        """The cookie's name: browsers share cookies among the ports of a host."""
        self.csrf = hmac.new(key, b"csrf", hashlib.sha256).hexdigest()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse, or pass on."""
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
        refusal = self._refusal(scope, headers)
        scope.setdefault("state", {})["is_known"] = self._is_known(headers)
        await (refusal or self._app)(scope, receive, guarded)

    def _refusal(self, scope: Scope, headers: Headers) -> Response | None:
        """Why a request is not answered; None if it may be."""
        path, method = scope["path"], scope["method"]
        if not self._is_ours(headers.getlist("host")):
            return _refused(
                421, "wrong_host", "This is not the host that was asked for. Use the address that curtsy serve printed."
            )
        is_page = not path.startswith("/api/") and path != "/metrics"
        if not is_page and headers.get("sec-fetch-site", "none") not in ("same-origin", "none"):
            return _refused(403, "cross_site", "Another site's page may not ask for this.")
        if method not in ("GET", "HEAD"):
            if not _is_same_origin(headers):
                return _refused(403, "cross_site", "Another site's page may not do this.")
            if path != "/api/login" and not _same(headers.get(CSRF_HEADER, ""), self.csrf):
                return _refused(403, "csrf", f"The header {CSRF_HEADER} is missing or wrong. /api/session tells it.")
        if is_page or path.startswith(OPEN_PATHS) or self._is_known(headers):
            return None
        return _refused(401, "token", "The token is missing or wrong. Log in, or send it as Authorization: Bearer.")

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
        return self._literals  # an address cannot be made to point elsewhere

    def _is_known(self, headers: Headers) -> bool:
        if self._token is None:
            return True
        scheme, _, credentials = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and self.accepts(credentials.strip()):
            return True
        return _same(cookie_parser(headers.get("cookie", "")).get(self.cookie, ""), self._session)

    def accepts(self, token: str) -> bool:
        """Whether this is the token; the time that takes says nothing about how near it was."""
        return self._token is None or _same(token, self._token)

    def admit(self, response: Response) -> Response:
        """Let whoever gets this response in from now on, until the server ends."""
        response.set_cookie(self.cookie, self._session, httponly=True, samesite="strict", path="/")
        return response


def _same(one: str, other: str) -> bool:
    return hmac.compare_digest(one.encode(), other.encode())


def _is_same_origin(headers: Headers) -> bool:
    """Whether a browser, if it is one, says that our own page asks."""
    if headers.get("sec-fetch-site", "same-origin") != "same-origin":
        return False
    origin = headers.get("origin")
    return origin is None or urlsplit(origin).netloc.lower() == headers.get("host", "").lower()


def _refused(status: int, error: str, message: str) -> JSONResponse:
    return JSONResponse({"error": error, "message": message}, status)


def guarded_names(host: str, more: Iterable[str] = ()) -> tuple[set[str], bool]:
    """The names that a server on `host` goes by, and whether any address that is written out is one of them."""
    import socket

    names = {host.strip("[]"), *more}
    if is_loopback(host):
        return names | {"127.0.0.1", "localhost", "::1"}, False
    return names | {"localhost", socket.gethostname()}, True


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a server that listens there."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
