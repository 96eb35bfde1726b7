"""One exchange: wait for a slot, send a request and read its reply within limits. Errors become values."""

from __future__ import annotations

import asyncio
import errno
import math
import os
import ssl
import time
from collections.abc import Mapping

from curtsy.core.errors import Reason
from curtsy.core.request import Failure, Headers, Reply, Request, Response
from curtsy.http.address import AddressRefused, NamesBusy, NoAddress, NoIPv6, network_of, refused_unpinned
from curtsy.http.body import Body, Limits, Sink, too_large
from curtsy.http.connection import STOOD_STILL, Connection, Route
from curtsy.http.decoding import UnknownCoding, decoder_of
from curtsy.http.pool import ConnectTimeout, Pool, ProxyFailed
from curtsy.http.proxy import failure_at, login_wanted
from curtsy.http.response import MAX_FIELDS, ReplyError, ResponseReader
from curtsy.http.tls import describe, is_plain

ROOM_PAUSE = 0.05
"""Seconds between attempts to open a connection when connections outside this sender use up the room."""


class Exchange:
    """One request and its reply. A request waits again if the machine has no room for its connection."""

    __slots__ = (
        "_body", "_connection", "_deadline", "_has_no_room", "_head", "_is_whole", "_limits", "_request", "_route",
        "_sink", "_status", "is_proxy_down",
    )  # fmt: skip

    def __init__(self, request: Request, limits: Limits, sink: Sink | None, route: Route, head: bytes) -> None:
        self._request = request
        self._limits = limits
        self._sink = sink
        self._route = route
        self._head = head
        self._deadline = 0.0
        """Loop time at which the reply must be complete."""

        self.is_proxy_down = False
        """True if the proxy cannot be reached at all, for any URL."""

        self._has_no_room = False
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

    async def run(self, pool: Pool) -> Reply:
        """Send the request and read the reply. Raises exceptions of the sink, programming errors and CancelledError."""
        limits, host, slots = self._limits, self._route.host, pool.slots
        began = now = pool.time()
        address = network_of(host) if ":" in host or host[-1:].isdigit() else ""
        max_wait = limits.timeout if limits.counts_waiting else limits.patience
        until = math.inf if max_wait is None else began + max_wait
        while True:
            if not slots.take_at_once(host, address):
                try:
                    address = await self._wait_for_slot(pool, address, until)
                except TimeoutError:
                    why = f"all {slots.most} connections were in use for {max_wait:g} s"
                    return Failure(Reason.DEADLINE, why, advice="Allow more, or send less.")
                now = pool.time()
            self._deadline, self._has_no_room = min(now + limits.timeout, until), False
            try:
                reply = await self._run_in_slot(pool)
                if not self._has_no_room:
                    return reply
                if await pool.shed():
                    continue
                is_alone = not slots.shrink()
                now = pool.time()
                # Connections outside this sender use up the room and may never end.
                is_hopeless = is_alone and now - max(began, pool.had_room_at) >= limits.connect_timeout
                if is_hopeless or pool.is_closed or now >= self._deadline:
                    return reply
            finally:
                slots.give_back(host, address)
            if is_alone:
                await asyncio.sleep(ROOM_PAUSE)

    async def _wait_for_slot(self, pool: Pool, address: str, until: float) -> str:
        """Wait for a slot until a loop time. Return the host's address. Raises TimeoutError."""
        url, limits = self._request.url, self._limits
        async with asyncio.timeout_at(None if until == math.inf else until):
            if not address and self._route.proxy is None:
                address = await pool.locate(url, limits.connect_timeout, guarded=not limits.allow_private)
            await pool.slots.take(url.host, address, first=self._has_no_room)
        if pool.time() >= until:  # the slot was granted at the same moment
            pool.slots.give_back(url.host, address)
            raise TimeoutError
        return address

    async def _run_in_slot(self, pool: Pool) -> Reply:
        route, limits = self._route, self._limits
        if route.proxy is not None and not limits.allow_private:
            refused = await refused_unpinned(route.host, pool.names, limits.connect_timeout)
            if refused is not None:
                return Failure(Reason.ADDRESS_REFUSED, str(refused.strerror))
        connection = pool.reuse(route) or await self._open(pool)
        if isinstance(connection, Failure):
            return connection
        self._connection, is_kept = connection, False
        try:
            reply = await self._converse(connection)
            is_kept = self._is_whole and isinstance(reply, Response)
            return reply
        finally:
            pool.give_back(connection, is_kept=is_kept)

    async def _open(self, pool: Pool) -> Connection | Failure:
        """Open a new connection. Retries once after a timeout during which this program was suspended."""
        begun = pool.time()
        timeout = min(self._limits.connect_timeout, max(0.001, self._deadline - begun))
        try:
            try:
                return await pool.open(self._route, timeout)
            except ConnectTimeout:
                if pool.time() < begun + timeout + STOOD_STILL:
                    raise
                return await pool.open(self._route, timeout)
        except ReplyError as error:
            return self._fail(error.reason, error.detail)
        except ProxyFailed as error:
            return self._not_connected(error.error, at_proxy=True)
        except (OSError, ConnectTimeout) as error:
            return self._not_connected(error, at_proxy=False)

    async def _converse(self, connection: Connection) -> Reply:
        """Send the request on a connection and read the reply."""
        request, limits, proxy = self._request, self._limits, self._route.proxy
        has_body = request.method != "HEAD" and request.method.upper() != "HEAD"
        try:
            connection.send(self._head, request.body, max_head=limits.max_head, has_body=has_body)
            headers = await connection.read_head(self._deadline)
        except TimeoutError:
            return self._fail(Reason.TIMEOUT, f"no answer within {limits.timeout:g} s")
        except ReplyError as error:
            if error.reason is Reason.TOO_LARGE:
                most = f"{limits.max_head:,} bytes or {MAX_FIELDS:,} fields"
                return self._fail(Reason.TOO_LARGE, f"the head of the answer has more than {most}")
            return self._fail(error.reason, error.detail)
        head_at = time.monotonic()
        sent_at = head_at if connection.sent_at is None else connection.sent_at
        status = self._status = connection.response.status
        if status < 200:
            return self._fail(Reason.BAD_RESPONSE, f"the answer's status is {status}, which is none to end with")
        if status == 407 and proxy is not None and request.url.scheme == "http":
            return login_wanted(proxy)  # only a proxy answers 407 (RFC 9110, 15.5.8)
        if status == 206 and "range" not in request.headers:  # RFC 9110, 15.3.7
            if limits.cut:  # the rules in a part of robots.txt apply (C21)
                await self._read_body(connection, status, headers)
            why = "the answer is a part of the page (206), but the request has no Range"
            return self._fail(Reason.BAD_RESPONSE, why)
        body = b""
        if has_body and status not in (204, 304):
            is_there = self._is_there(connection.response, headers.by_name)
            read = connection.take() if is_there else await self._read_body(connection, status, headers)
            if not isinstance(read, Failure):
                body = read
            elif 200 <= status < 300:
                return read
            else:  # obey an error or a redirect even if its body is unreadable
                self._is_whole = False
                body = b"" if self._body is None else b"".join(self._body.parts)
        wire_bytes = len(body) if self._body is None else self._body.wire_bytes
        took = time.monotonic() - sent_at
        return Response(status, headers, body, took, head_at - sent_at, wire_bytes, self._is_whole)

    def _is_there(self, response: ResponseReader, fields: Mapping[str, str]) -> bool:
        """Return whether the whole body has been received, and needs neither a check nor decoding."""
        most = self._limits.max_body
        return (
            response.is_complete
            and self._sink is None
            and (most is None or response.received <= most)
            and "content-encoding" not in fields
            and ("transfer-encoding" not in fields or fields["transfer-encoding"] == "chunked")
        )

    async def _read_body(self, connection: Connection, status: int, headers: Headers) -> bytes | Failure:
        limits, sink = self._limits, self._sink
        is_page = 200 <= status < 300
        if sink is not None and not is_page and not sink.begin(status, headers):  # called even if decoding fails
            sink = None
        response, fields, most = connection.response, headers.by_name, limits.max_body
        try:
            if most is not None and response.length is not None and response.length > most and not limits.cut:
                raise too_large(limits, f" (it has {response.length:,})")
            # A part of an encoded body cannot be decoded.
            is_raw = status == 206 or (sink is not None and not sink.decodes)
            coding = None if is_raw else fields.get("content-encoding")
            decoder = decoder_of(coding, fields.get("transfer-encoding"))
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
        wire_bytes = 0 if self._body is None else self._body.wire_bytes
        return Failure(reason, detail, sent_ago, self._status, wire_bytes, part=part)

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
                self._has_no_room = True
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
