"""One exchange: send a request and read its reply within limits. Errors become values."""

from __future__ import annotations

import asyncio
import errno
import os
import ssl
import time

from curtsy.core.errors import Reason
from curtsy.core.message import Failure, Headers, Reply, Request, Response, whole_number
from curtsy.http.address import AddressRefused, NamesBusy, NoAddress, NoIPv6
from curtsy.http.body import Body, Limits, Sink, too_large
from curtsy.http.connection import STOOD_STILL, Connection
from curtsy.http.decoding import UnknownCoding, decoder_of
from curtsy.http.pool import ConnectTimeout, Pool, ProxyFailed, Route
from curtsy.http.proxy import failure_at, login_wanted
from curtsy.http.response import MAX_FIELDS, ReplyError
from curtsy.http.tls import describe, is_plain


class Exchange:
    """One request and its reply."""

    def __init__(self, request: Request, limits: Limits, sink: Sink | None, deadline: float, route: Route) -> None:
        self._request = request
        self._limits = limits
        self._sink = sink
        self._deadline = deadline
        self._route = route
        self.is_proxy_down = False
        """True if the proxy cannot be reached at all, for any URL."""

        self.has_no_room = False
        """True if nothing was sent because this machine cannot open a connection."""

        self._connection: Connection | None = None
        """Connection of the exchange; None until it is open."""

        self._status: int | None = None
        self._body: Body | None = None
        """Body of the response; None until it is read."""

        self._is_whole = True
        """True if the whole body was read."""

    @property
    def is_sent(self) -> bool:
        """Return whether the request may have been sent."""
        return self._connection is not None and self._connection.sent_at is not None

    async def run(self, pool: Pool, head: bytes) -> Reply:
        """Send the request and read the reply. Raises exceptions of the sink, programming errors and CancelledError."""
        connection = pool.reuse(self._route) or await self._open(pool)
        if isinstance(connection, Failure):
            return connection
        self._connection, reply = connection, None
        try:
            reply = await self._converse(connection, head)
            return reply
        finally:
            pool.give_back(connection, is_kept=isinstance(reply, Response) and self._is_whole)

    async def _open(self, pool: Pool) -> Connection | Failure:
        """Open a new connection. Retries once after a timeout during which this program was suspended."""
        loop = asyncio.get_running_loop()
        begun = loop.time()
        timeout = min(self._limits.connect_timeout, max(0.001, self._deadline - begun))
        try:
            try:
                return await pool.open(self._route, timeout)
            except ConnectTimeout:
                if loop.time() < begun + timeout + STOOD_STILL:
                    raise
                return await pool.open(self._route, timeout)
        except ReplyError as error:
            return self._fail(error.reason, error.detail)
        except ProxyFailed as error:
            return self._not_connected(error.error, at_proxy=True)
        except (OSError, ConnectTimeout) as error:
            return self._not_connected(error, at_proxy=False)

    async def _converse(self, connection: Connection, head: bytes) -> Reply:
        request, limits, proxy = self._request, self._limits, self._route.proxy
        try:
            has_body = request.method.upper() != "HEAD"
            connection.send(head, request.body, max_head=limits.max_head, has_body=has_body)
            headers = await connection.read_head(self._deadline)
        except TimeoutError:
            return self._fail(Reason.TIMEOUT, f"no answer within {limits.timeout:g} s")
        except ReplyError as error:
            if error.reason is Reason.TOO_LARGE:
                most = f"{limits.max_head:,} bytes or {MAX_FIELDS:,} fields"
                return self._fail(Reason.TOO_LARGE, f"the head of the answer has more than {most}")
            return self._fail(error.reason, error.detail)
        status = self._status = connection.response.status
        if status == 407 and proxy is not None and request.url.scheme == "http":
            return login_wanted(proxy)  # only a proxy answers 407 (RFC 9110, 15.5.8)
        return await self._read(connection, status, headers)

    async def _read(self, connection: Connection, status: int, headers: Headers) -> Reply:
        head_at = time.monotonic()
        sent_at = head_at if connection.sent_at is None else connection.sent_at
        if status < 200:
            return self._fail(Reason.BAD_RESPONSE, f"the answer's status is {status}, which is none to end with")
        if status == 206 and "range" not in self._request.headers:  # RFC 9110, 15.3.7
            if self._limits.cut:  # the rules in a part of robots.txt apply (C21)
                await self._read_body(connection, status, headers)
            return self._fail(
                Reason.BAD_RESPONSE, "the answer is a part of the page (206), but the request has no Range"
            )
        body = b""
        if self._request.method.upper() != "HEAD" and status not in (204, 304):
            read = await self._read_body(connection, status, headers)
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

    async def _read_body(self, connection: Connection, status: int, headers: Headers) -> bytes | Failure:
        limits, sink = self._limits, self._sink
        is_page = 200 <= status < 300
        if sink is not None and not is_page and not sink.begin(status, headers):  # called even if decoding fails
            sink = None
        length = whole_number(headers.get("Content-Length"))
        try:
            if limits.max_body is not None and length is not None and length > limits.max_body and not limits.cut:
                raise too_large(limits, f"{length:,} bytes are announced")
            # A part of an encoded body cannot be decoded.
            is_raw = status == 206 or (sink is not None and not sink.decodes)
            coding = None if is_raw else headers.get("Content-Encoding")
            decoder = decoder_of(coding, headers.get("Transfer-Encoding"))
            if sink is not None and is_page and not sink.begin(status, headers):
                sink = None
            if sink is not None and status in (200, 206):  # an error page need not be fast
                connection.widen()
            body = self._body = Body(limits, self._deadline, sink, decoder)
            read = await body.read(connection)
            self._is_whole = not body.is_cut
            return read
        except UnknownCoding as error:
            why = f"the body is coded in a way that was not requested: {error}"
            return self._fail(Reason.BAD_RESPONSE, why)
        except ReplyError as error:
            return self._fail(error.reason, error.detail)

    def _fail(self, reason: Reason, detail: str) -> Failure:
        sent_at = None if self._connection is None else self._connection.sent_at
        sent_ago = None if sent_at is None else time.monotonic() - sent_at
        is_part = self._limits.cut and self._status is not None and 200 <= self._status < 300
        part = b"".join(self._body.parts) if is_part and self._body is not None else b""
        return Failure(reason, detail, sent_ago, self._status, self._wire_bytes, part=part)

    def _not_connected(self, error: Exception, *, at_proxy: bool) -> Failure:
        """Return the failure for an error of opening a connection."""
        proxy = self._route.proxy if at_proxy else None
        limit = min(self._limits.connect_timeout, self._limits.timeout)
        match error:
            case AddressRefused():
                return Failure(Reason.ADDRESS_REFUSED, str(error.strerror))
            case NamesBusy():
                return Failure(Reason.DEADLINE, str(error.strerror))
            case NoIPv6():
                why = str(error.strerror)
                if proxy is not None:
                    why = f"the proxy {proxy.origin} cannot be reached: {why}"
                advice = "Ask from a machine that has it, or by a proxy that does."
                return Failure(Reason.ADDRESS_REFUSED, why, ended_at_proxy=at_proxy, advice=advice)
            case OSError() if error.errno in _NO_ROOM:
                self.has_no_room = True
                lack = f"this machine has no room for a connection: {os.strerror(error.errno).lower()}"
                return Failure(Reason.DEADLINE, lack, advice="Send less at once.")
        if proxy is not None:
            self.is_proxy_down = isinstance(error, OSError) and not isinstance(error, ssl.SSLError)
            return failure_at(proxy, error, limit)
        match error:
            case ConnectTimeout():
                why = f"no connection within {limit:g} s, name and TLS handshake included"
                return Failure(Reason.TIMEOUT, why)
            case NoAddress():
                return Failure(Reason.DNS_ERROR, describe(error), is_lasting=error.is_lasting)
            case ssl.SSLError() if is_plain(error):
                return Failure(Reason.TLS_ERROR, "what answers there speaks no TLS", is_answer=True)
            case ssl.SSLError():
                return Failure(Reason.TLS_ERROR, describe(error))
            case _:
                return Failure(Reason.CONNECTION_ERROR, describe(error))


_NO_ROOM = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EADDRNOTAVAIL})
"""Errors of a lack of local resources, which do not concern the host."""

_UNSENT = "Nothing was sent."


def note_unsent(error: asyncio.CancelledError) -> None:
    """Mark a cancellation that came before anything was sent. Only the sender knows that."""
    error.add_note(_UNSENT)


def was_sent(error: asyncio.CancelledError) -> bool:
    """Return whether the cancelled request may have been sent."""
    return not hasattr(error, "__notes__") or _UNSENT not in error.__notes__
