"""One exchange: send a request and read its reply within limits. Errors become values."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import re
import socket
import ssl
import time

import aiohttp
from aiohttp.http import RawResponseMessage
from aiohttp.http_exceptions import HttpProcessingError

from curtsy.core.errors import Reason
from curtsy.core.message import Failure, Headers, Reply, Request, Response, whole_number
from curtsy.http.address import AddressRefused, NamesBusy, NoIPv6
from curtsy.http.body import Body, Limits, Sink, Unreadable, first_line, too_large
from curtsy.http.decoding import UnknownCoding, decoder_of
from curtsy.http.pool import AT_PROXY, MAX_FIELDS, STOOD_STILL, Connections, HeadTooLarge, Place, Wire

log = logging.getLogger("curtsy")


class Exchange:
    """One request and its reply."""

    def __init__(
        self, request: Request, limits: Limits, sink: Sink | None, deadline: float, proxy: str | None = None
    ) -> None:
        self._request = request
        self._limits = limits
        self._sink = sink
        self._deadline = deadline
        self._proxy = proxy
        self.is_proxy_down = False
        """True if the proxy cannot be reached at all, for any URL."""

        self.has_no_room = False
        """True if nothing was sent because this machine cannot open a connection."""

        self._wire: Wire | None = None
        """Connection of the exchange; None until it is open."""

        self._status: int | None = None
        self._body: Body | None = None
        """Body of the response; None until it is read."""

        self._is_whole = True
        """True if the whole body was read."""

    async def run(self, connections: Connections, head: bytes) -> Reply:
        """Send the request and read the reply. Raises only exceptions of the sink, and CancelledError."""
        request, limits = self._request, self._limits
        has_body = request.method.upper() != "HEAD"
        place = request.url.origin, self._proxy
        wire: Wire | None = None
        reply: Reply | None = None
        try:
            try:
                wire = connections.reuse(place)
                if wire is None:
                    wire = await self._opened(connections, place)
                self._wire = wire
                wire.send(head, request.body, max_head=limits.max_head, has_body=has_body)
                message, content = await wire.answer(self._deadline)
            except Exception as error:
                return self._failed(error)
            except asyncio.CancelledError as error:
                if wire is None or wire.sent_at is None:
                    note_unsent(error)
                raise
            if message.code == 407 and self._proxy is not None and request.url.scheme == "http":
                return _wants_login(self._proxy)  # only a proxy answers 407 (RFC 9110, 15.5.8)
            reply = await self._read(wire, message, content)
            return reply
        finally:
            if wire is not None:
                connections.give_back(wire, well=isinstance(reply, Response) and self._is_whole)

    async def _opened(self, connections: Connections, place: Place) -> Wire:
        """Open a new connection. Retries once after a timeout during which this program was suspended."""
        left = max(0.001, self._deadline - asyncio.get_running_loop().time())
        timeout = min(self._limits.connect_timeout, left)
        try:
            return await connections.open(place, timeout)
        except aiohttp.ConnectionTimeoutError:
            if self._deadline - left + timeout + STOOD_STILL > asyncio.get_running_loop().time():
                raise  # otherwise this program was suspended
        return await connections.open(place, timeout)

    async def _read(self, wire: Wire, message: RawResponseMessage, content: aiohttp.StreamReader) -> Reply:
        head_at = time.monotonic()
        status = self._status = message.code
        sent_at = head_at if wire.sent_at is None else wire.sent_at
        if status < 200:
            return self._fail(Reason.BAD_RESPONSE, f"the answer's status is {status}, which is none to end with")
        if wire.head_left < 0 and _size(message.raw_headers) > self._limits.max_head:
            return self._head_too_large()
        headers = _headers(message)
        if status == 206 and "range" not in self._request.headers:  # RFC 9110, 15.3.7
            if self._limits.cut:  # the rules in a part of robots.txt apply (C21)
                await self._read_body(wire, content, status, headers)
            return self._fail(
                Reason.BAD_RESPONSE, "the answer is a part of the page (206), but the request has no Range"
            )
        body = b""
        if self._request.method.upper() != "HEAD" and status not in (204, 304):
            read = await self._read_body(wire, content, status, headers)
            if not isinstance(read, Failure):
                body = read
            elif 200 <= status < 300:
                return read
            else:  # obey an error or a redirect even if its body is unreadable
                self._is_whole = False
                body = b"" if self._body is None else b"".join(self._body.parts)
        now = time.monotonic()
        return Response(status, headers, body, now - sent_at, head_at - sent_at, self._wire_bytes, self._is_whole)

    @property
    def _wire_bytes(self) -> int:
        return 0 if self._body is None else self._body.wire_bytes

    async def _read_body(
        self, wire: Wire, content: aiohttp.StreamReader, status: int, headers: Headers
    ) -> bytes | Failure:
        limits, sink = self._limits, self._sink
        is_page = 200 <= status < 300
        if sink is not None and not is_page and not sink.begin(status, headers):  # called even if decoding fails
            sink = None
        announced = headers.get("Content-Length")
        length = whole_number(announced)
        try:
            if limits.max_body is not None and length is not None and length > limits.max_body and not limits.cut:
                raise too_large(limits, f"{length:,} bytes are announced")
            # A part of an encoded body cannot be decoded.
            is_raw = status == 206 or (sink is not None and not sink.decodes)
            coding = None if is_raw else headers.get("Content-Encoding")
            decoder = decoder_of(coding, None if announced is not None else headers.get("Transfer-Encoding"))
            if sink is not None and is_page and not sink.begin(status, headers):
                sink = None
            if sink is not None and status in (200, 206):  # an error page need not be fast
                wire.widen()
            body = self._body = Body(limits, self._deadline, sink, decoder)
            read = await body.read(content, announced)
            self._is_whole = not body.is_cut
            return read
        except UnknownCoding as error:
            why = f"the body is coded in a way that was not requested: {error}"
            return self._fail(Reason.BAD_RESPONSE, why)
        except Unreadable as error:
            return self._fail(error.reason, error.detail)

    def _fail(self, reason: Reason, detail: str) -> Failure:
        sent_at = None if self._wire is None else self._wire.sent_at
        sent_ago = None if sent_at is None else time.monotonic() - sent_at
        is_part = self._limits.cut and self._status is not None and 200 <= self._status < 300
        part = b"".join(self._body.parts) if is_part and self._body is not None else b""
        return Failure(reason, detail, sent_ago, self._status, self._wire_bytes, part=part)

    def _head_too_large(self) -> Failure:
        most = f"{self._limits.max_head:,} bytes or {MAX_FIELDS:,} fields"
        return self._fail(Reason.TOO_LARGE, f"the head of the answer has more than {most}")

    def _failed(self, error: Exception) -> Failure:
        """Return the failure for an error before the response's head was received."""
        refused = getattr(error, "os_error", None)
        if isinstance(refused, AddressRefused):
            return self._fail(Reason.ADDRESS_REFUSED, str(refused.strerror))
        if isinstance(refused, NamesBusy):
            return self._fail(Reason.DEADLINE, str(refused.strerror))
        if isinstance(refused, NoIPv6):
            advice = "Ask from a machine that has it, or by a proxy that does."
            why, by_proxy = str(refused.strerror), self._proxy is not None
            if self._proxy is not None:
                why = f"the proxy {_shown(self._proxy)} cannot be reached: {why}"
            return Failure(Reason.ADDRESS_REFUSED, why, ended_at_proxy=by_proxy, advice=advice)
        if isinstance(refused, OSError) and refused.errno in _NO_ROOM:
            self.has_no_room = True
            lack = f"this machine has no room for a connection: {os.strerror(refused.errno).lower()}"
            return Failure(Reason.DEADLINE, lack, advice="Send less at once.")
        if self._proxy is not None and self._wire is None and AT_PROXY.get():
            return self._failed_at_proxy(error, self._proxy)
        match error:
            case HeadTooLarge():
                return self._head_too_large()
            case aiohttp.ConnectionTimeoutError():
                limit = f"{min(self._limits.connect_timeout, self._limits.timeout):g} s"
                return self._fail(Reason.TIMEOUT, f"no connection within {limit}, name and TLS handshake included")
            case TimeoutError() if error.errno is None:
                return self._fail(Reason.TIMEOUT, f"no answer within {self._limits.timeout:g} s")
            case aiohttp.ClientConnectorDNSError():
                is_lasting = error.os_error.errno in _NO_SUCH_NAME
                return Failure(Reason.DNS_ERROR, _words(error.os_error), is_lasting=is_lasting)
            case aiohttp.ClientConnectorCertificateError():
                return self._fail(Reason.TLS_ERROR, _words(error.certificate_error))
            case aiohttp.ClientConnectorSSLError() | ssl.SSLError() if _is_plain(error):
                why = "what answers there speaks no TLS"
                return Failure(Reason.TLS_ERROR, why, is_answer=True)
            case aiohttp.ClientConnectorSSLError() | ssl.SSLError():
                return self._fail(Reason.TLS_ERROR, _words(error))
            case aiohttp.ClientConnectorError():
                return self._fail(Reason.CONNECTION_ERROR, _words(error.os_error))
            case HttpProcessingError():
                why = first_line(error.message)
                if why.startswith(("Got more than", "Too many headers")):
                    return self._head_too_large()
                return self._fail(Reason.BAD_RESPONSE, f"no readable answer: {why}")
            case aiohttp.ServerDisconnectedError():
                return self._fail(Reason.CONNECTION_ERROR, "the connection was closed before an answer came")
            case OSError():
                return self._fail(Reason.CONNECTION_ERROR, f"the connection broke: {_words(error)}")
            case ValueError():
                return self._fail(Reason.INVALID_URL, f"the request cannot be written: {type(error).__name__}")
            case _:
                if not isinstance(error, aiohttp.ClientError):
                    log.warning("an error that was not foreseen ended a request", exc_info=error)
                return self._fail(Reason.CONNECTION_ERROR, f"the request failed: {type(error).__name__}")

    def _failed_at_proxy(self, error: Exception, proxy: str) -> Failure:
        """Return the failure for an error before the proxy connected to the host."""
        reason, is_lasting, advice = Reason.CONNECTION_ERROR, False, "Check its address, or try again later."
        match error:
            case aiohttp.ClientHttpProxyError() if error.status == 407:
                return _wants_login(proxy)
            case aiohttp.ClientHttpProxyError() if error.status in _GATEWAY:
                why = f"the proxy {_shown(proxy)} has no way to it: it refused with status {error.status}"
                return self._fail(Reason.CONNECTION_ERROR, why)
            case aiohttp.ClientHttpProxyError():
                why = f"refused with status {error.status}"
                advice = "Try again later, or ask who runs it."
            case TimeoutError() if error.errno is None:
                reason = Reason.TIMEOUT
                why = f"gave no connection within {min(self._limits.connect_timeout, self._limits.timeout):g} s"
            case aiohttp.ClientConnectorDNSError():
                self.is_proxy_down = True
                reason, is_lasting = Reason.DNS_ERROR, error.os_error.errno in _NO_SUCH_NAME
                why = f"cannot be reached: {_words(error.os_error)}"
                advice = "Check its name." if is_lasting else "Check its name, or try again later."
            case aiohttp.ClientConnectorSSLError() | ssl.SSLError() if _is_plain(error):
                reason, why = Reason.TLS_ERROR, "speaks no TLS"
                advice = "Write http:// instead of https:// before its host."
            case aiohttp.ClientConnectorCertificateError():
                reason, why = Reason.TLS_ERROR, f"cannot be trusted: {_words(error.certificate_error)}"
                advice = "Give the CA that signed it by verify=, if the proxy is yours."
            case aiohttp.ClientConnectorSSLError() | ssl.SSLError():
                reason, why = Reason.TLS_ERROR, f"cannot be reached: {_words(error)}"
            case aiohttp.ServerDisconnectedError():
                why = "closed the connection before it answered"
            case OSError():
                self.is_proxy_down = isinstance(error, aiohttp.ClientProxyConnectionError)
                why = f"cannot be reached: {_words(error)}"
            case aiohttp.ClientResponseError():
                why = "gave no readable answer"
            case _:
                if not isinstance(error, aiohttp.ClientError):
                    log.warning("an error that was not foreseen ended a request", exc_info=error)
                why = f"cannot be reached: {type(error).__name__}"
        return Failure(
            reason, f"the proxy {_shown(proxy)} {why}", is_lasting=is_lasting, ended_at_proxy=True, advice=advice
        )  # fmt: skip


_GATEWAY = frozenset({502, 503, 504})
"""Statuses by which a proxy reports that the host is unreachable or does not answer (RFC 9110, 15.6)."""


def _wants_login(proxy: str) -> Failure:
    """Return the failure for a 407. The advice has no example URL with a password, because it would be masked."""
    scheme, _, place = _shown(proxy).partition("://")
    if "@" in proxy:
        why, advice = "does not accept the login (407)", "Correct the user and the password that stand before its host."
    else:
        why, advice = "wants a login (407)", f"Put the user, a colon, the password and @ before {place}."
    detail = f"the proxy {scheme}://{place} {why}"
    return Failure(Reason.CONNECTION_ERROR, detail, is_lasting=True, ended_at_proxy=True, advice=advice)


def _shown(proxy: str) -> str:
    """Return the URL of a proxy without its credentials."""
    scheme, _, rest = proxy.partition("://")
    return f"{scheme}://{rest.rpartition('@')[2]}"


def note_unsent(error: asyncio.CancelledError) -> None:
    """Mark a cancellation that came before anything was sent. Only the sender knows that."""
    error.add_note(_UNSENT)


def was_sent(error: asyncio.CancelledError) -> bool:
    """Return whether the cancelled request may have been sent."""
    return _UNSENT not in getattr(error, "__notes__", ())


_LOGIN = re.compile(r"^(\s*(?:[A-Za-z][A-Za-z0-9+.-]*:)?[/\\]{2})[^/?#\\]*@")
"""Pattern of the credentials in a Location, which are removed."""

_UNSENT = "Nothing was sent."

_NO_ROOM = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EADDRNOTAVAIL})
"""Errors of a lack of local resources, which do not concern the host."""

_NO_SUCH_NAME = frozenset({socket.EAI_NONAME, getattr(socket, "EAI_NODATA", socket.EAI_NONAME)})
"""Errors of a working resolver for an unknown name. Without a network, other errors occur."""


def _headers(message: RawResponseMessage) -> Headers:
    fields = message.headers.items()
    headers = Headers([(str(name), value if value.isascii() else _legible(name, value)) for name, value in fields])
    if "@" not in (headers.get("location") or ""):
        return headers
    return Headers(
        (name, _LOGIN.sub(r"\1", value) if name.lower() == "location" else value) for name, value in headers.fields
    )


def _size(fields: tuple[tuple[bytes, bytes], ...]) -> int:
    return sum(len(name) + len(value) + 4 for name, value in fields)


def _legible(name: str, value: str) -> str:
    """Return a field's value as text: UTF-8, or else Latin-1 (RFC 9110, 5.5).

    In a Location, octets that are not UTF-8 are percent-encoded, because a site with links in another encoding expects
    the same octets. An ETag is always Latin-1, one character per octet, because it is returned as received (RFC 9110,
    8.8.3).
    """
    if name.lower() == "location":
        return re.sub("[\udc80-\udcff]", lambda octet: f"%{ord(octet[0]) - 0xDC00:02X}", value)
    if name.lower() == "etag":
        return value.encode("utf-8", "surrogateescape").decode("latin-1")
    try:
        value.encode()
    except UnicodeEncodeError:
        return value.encode("utf-8", "surrogateescape").decode("latin-1")
    return value


def _is_plain(error: BaseException) -> bool:
    """Return whether the peer answered a TLS handshake without TLS, usually by a 400 in plain HTTP."""
    if isinstance(error, aiohttp.ClientConnectorError):
        error = error.os_error
    return isinstance(error, ssl.SSLError) and error.reason == "WRONG_VERSION_NUMBER"


def _words(error: BaseException) -> str:
    """Describe an error of the operating system or of TLS, without the URL that aiohttp adds."""
    if isinstance(error, aiohttp.ClientConnectorError):
        error = error.os_error
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the certificate is not valid: {error.verify_message.rstrip('.')}"
    if isinstance(error, ssl.SSLError):
        return f"no TLS with this server: {(error.reason or 'unknown').replace('_', ' ').lower()}"
    if isinstance(error, OSError) and error.errno and not isinstance(error, socket.gaierror):
        return os.strerror(error.errno).lower()
    if several := re.findall(r"\[Errno (\d+)\]", str(error)):  # one per address of the name
        return ", ".join(dict.fromkeys(os.strerror(int(each)).lower() for each in several))
    name = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", type(error).__name__.removesuffix("Error"))
    return (getattr(error, "strerror", None) or name).lower()
