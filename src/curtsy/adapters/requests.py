"""Adapter for requests: `mount(session)`.

The arguments are settings as of `curtsy.Client`. Adapters that the session has already send the requests.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from http.client import responses
from io import BytesIO, IOBase, RawIOBase
from typing import Any, Self, Unpack
from weakref import ref

from curtsy.adapters.hops import BlockingHops, Fields, Head, Trouble, refusal
from curtsy.blocking import Client
from curtsy.core import errors
from curtsy.core.errors import Reason
from curtsy.core.request import Headers, Response
from curtsy.core.result import FetchResult
from curtsy.engine.body_slot import BodySlot
from curtsy.engine.keywords import ClientKeywords

try:
    import requests
except ImportError as error:
    need = "curtsy.adapters.requests needs the library requests"
    raise errors.not_imported(need, "requests", "requests", error) from error

import urllib3
from requests.adapters import BaseAdapter, HTTPAdapter
from requests.structures import CaseInsensitiveDict
from requests.utils import get_encoding_from_headers, rewind_body
from urllib3.exceptions import HTTPError, MaxRetryError, NewConnectionError

__all__ = ["Adapter", "CachedResponse", "Refused", "mount"]

_DECODED = frozenset({"content-encoding", "content-length"})
"""Fields that do not describe a cached body, which is decoded."""


PART = 1 << 16
"""Bytes of a body that are read at a time for the cache."""


class Refused(errors.Refused, requests.RequestException):
    """Refusal by curtsy: nothing was sent. It has `reason`, `url`, `retry_after` and `request`."""


class CachedResponse(requests.Response):
    """Response from the cache."""

    from_cache = ""
    """`hit`, `revalidated` or `stale`."""


_TROUBLES: Mapping[type[Exception], Trouble] = {  # the more special ones first
    requests.ConnectTimeout: Trouble(Reason.TIMEOUT, False),
    requests.Timeout: Trouble(Reason.TIMEOUT, True),
    requests.exceptions.ProxyError: Trouble(Reason.CONNECTION_ERROR, False, is_proxys=True),
    requests.exceptions.SSLError: Trouble(Reason.TLS_ERROR, False),
    requests.ConnectionError: Trouble(Reason.CONNECTION_ERROR, True),
    requests.exceptions.InvalidURL: Trouble(Reason.INVALID_URL, False),
    requests.exceptions.ChunkedEncodingError: Trouble(Reason.INCOMPLETE, True),
    requests.exceptions.ContentDecodingError: Trouble(Reason.BAD_RESPONSE, True),
    requests.RequestException: Trouble(Reason.CONNECTION_ERROR, True),
}

_NOT_CONNECTED = Trouble(Reason.CONNECTION_ERROR, False)

_ONCE = urllib3.Retry(0, read=False)
"""Retries of an inner adapter: none, because each try must pass the gate."""


def mount(session: requests.Session, **settings: Unpack[ClientKeywords]) -> Client:
    """Let a session send its requests when their turn comes; return the client of curtsy that admits them.

    `session.close()` closes the client.
    """
    adapter = Adapter(**settings)
    for prefix, inner in list(session.adapters.items()):
        if prefix.lower().startswith("http"):
            session.mount(prefix, adapter.around(inner))
    return adapter.client


class Adapter(BaseAdapter):
    """Transport adapter of requests around an inner one, whose retries pass the gate."""

    def __init__(self, inner: BaseAdapter | None = None, **settings: Unpack[ClientKeywords]) -> None:
        super().__init__()
        self._hops = BlockingHops(settings)
        self._use(inner or HTTPAdapter())

    def _use(self, inner: BaseAdapter) -> None:
        self._inner = inner
        self._retries = _ONCE
        if isinstance(inner, HTTPAdapter):
            self._retries, inner.max_retries = inner.max_retries, _ONCE

    def around(self, inner: BaseAdapter) -> Self:
        """Return an adapter around another inner one. Both share the client of curtsy."""
        other = type(self).__new__(type(self))
        BaseAdapter.__init__(other)
        other._hops = self._hops
        other._use(inner)
        return other

    @property
    def client(self) -> Client:
        """Return the client of curtsy that admits the requests."""
        return self._hops.client

    def send(
        self,
        request: requests.PreparedRequest,
        stream: bool = False,
        timeout: Any = None,
        verify: bool | str = True,
        cert: Any = None,
        proxies: Any = None,
    ) -> requests.Response:
        """Send one request when its turn comes, and repeat it as the inner adapter's `max_retries` says."""
        given = {"stream": stream, "timeout": timeout, "verify": verify, "cert": cert, "proxies": proxies}
        retries = self._retries
        while True:
            try:
                response = self._try(request, given)
            except (requests.ConnectionError, requests.Timeout) as error:
                retries = _after_error(retries, request, error)
                retries.sleep()
            else:
                has_retry_after = "Retry-After" in response.headers
                if not retries.is_retry(request.method or "", response.status_code, has_retry_after):
                    return response
                try:
                    following = retries.increment(request.method, request.url, response=response.raw)
                except MaxRetryError as error:
                    if not retries.raise_on_status:
                        return response
                    response.close()
                    raise requests.exceptions.RetryError(error, request=request) from error
                response.raw.drain_conn()
                following.sleep(response.raw)
                retries = following
            if not isinstance(request.body, bytes | str | None):
                rewind_body(request)

    def _try(self, request: requests.PreparedRequest, given: Mapping[str, Any]) -> requests.Response:
        headers = request.headers
        has_body = "Transfer-Encoding" in headers or headers.get("Content-Length", "0") != "0"
        fields = tuple((name, _text(value)) for name, value in headers.items())
        wire = _Wire(request, self._inner, given)
        response = self._hops.carry(wire, request.url or "", request.method or "GET", fields, has_body)
        response.connection = self  # type: ignore[assignment] # authentication sends its further requests by it
        return response

    def close(self) -> None:
        """Close the inner adapter, and the client of curtsy with its store."""
        try:
            self._inner.close()
        finally:
            self._hops.close()


def _after_error(retries: urllib3.Retry, request: requests.PreparedRequest, error: Exception) -> urllib3.Retry:
    """Return the retries that are left after an error. Raises the error if there are none."""
    try:
        return retries.increment(request.method, request.url, error=_cause(error))
    except HTTPError:
        raise error from None


def _cause(error: Exception) -> Exception:
    """Return the exception of urllib3 that an exception of requests stands for."""
    given = error.args[0] if error.args else error
    if isinstance(given, MaxRetryError) and given.reason is not None:
        return given.reason
    return given if isinstance(given, Exception) else error


class _Wire:
    """One request of a session."""

    __slots__ = ("_given", "_inner", "_request")

    def __init__(self, request: requests.PreparedRequest, inner: BaseAdapter, given: Mapping[str, Any]) -> None:
        self._request = request
        self._inner = inner
        self._given = given

    def send(self, added: Fields) -> requests.Response:
        request = self._request
        if added:
            request = request.copy()
            request.headers.update(added)
        return self._inner.send(request, **self._given)

    def head(self, native: requests.Response) -> Head:
        return Head(native.status_code, Headers(native.headers.items()))

    def trouble(self, error: Exception) -> Trouble | None:
        if isinstance(error, requests.ConnectionError) and isinstance(_cause(error), NewConnectionError):
            return _NOT_CONNECTED
        return next((each for kind, each in _TROUBLES.items() if isinstance(error, kind)), None)

    def attach(self, native: requests.Response, slot: BodySlot) -> None:
        raw = native.raw
        if not isinstance(raw, urllib3.HTTPResponse):  # a body that is not on the network
            slot.close()
            return
        body = ref(raw)

        def release() -> None:
            if (found := body()) is not None:
                type(found).release_conn(found)
            slot.close()

        # urllib3 calls it at the end of the body, and requests when a response is closed.
        raw.release_conn = release  # type: ignore[method-assign]
        slot.progress = lambda: None if (found := body()) is None else found.tell()

    def body(self, native: requests.Response, most: int) -> bytes | None:
        raw, data = native.raw, bytearray()
        # In parts: `read()` may allocate as many bytes as it may return.
        while len(data) <= most and (part := raw.read(PART, decode_content=False)):
            data += part
        if len(data) <= most:
            raw.release_conn()
            native.raw = _raw(native.status_code, native.headers.items(), BytesIO(data))
            return bytes(data)
        native.raw = _raw(native.status_code, native.headers.items(), _Resumed(bytes(data), raw))
        return None

    def discard(self, native: requests.Response) -> None:
        native.close()

    def cached(self, response: Response, result: FetchResult) -> requests.Response:
        fields = [each for each in response.headers.fields if each[0].lower() not in _DECODED]
        found = CachedResponse()
        found.from_cache = result.record.cache or ""
        found.status_code = response.status
        found.headers = CaseInsensitiveDict(fields)
        found.encoding = get_encoding_from_headers(found.headers)
        found.raw = _raw(response.status, fields, BytesIO(response.body))
        found.reason = found.raw.reason
        found.url = self._request.url or ""
        found.request = self._request
        return found

    def refused(self, result: FetchResult) -> Exception:
        error: Exception = refusal(Refused, result, self._request)
        return error


class _Resumed(RawIOBase):
    """Body that was read in part: its beginning, then the rest from the network."""

    def __init__(self, begin: bytes, rest: urllib3.BaseHTTPResponse) -> None:
        self._begin = BytesIO(begin)
        self._rest = rest

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        part = self._begin.read(len(buffer)) or self._rest.read(len(buffer), decode_content=False)
        buffer[: len(part)] = part
        return len(part)

    def close(self) -> None:
        self._rest.close()
        super().close()


def _raw(status: int, fields: Iterable[tuple[str, str]], body: IOBase) -> urllib3.HTTPResponse:
    """Return a response of urllib3 with another body."""
    headers, phrase = urllib3.HTTPHeaderDict(list(fields)), responses.get(status, "")
    return urllib3.HTTPResponse(body, headers, status, reason=phrase, preload_content=False)


def _text(value: str | bytes) -> str:
    return value.decode("latin-1") if isinstance(value, bytes) else value
