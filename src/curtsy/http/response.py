"""Reading of one response from received data, within limits on its head and its framing. It does no input or output.

httptools (llhttp) parses heads and chunked framing. The rest of the message syntax is decided here, because the limits
depend on it (RFC 9112): where a head ends, whether a response has a body and where that ends, and whether another
request may use the connection.
"""

from __future__ import annotations

import re
import ssl
import sys
from enum import Enum, auto

import httptools

from curtsy.core.errors import Reason
from curtsy.core.request import Headers, whole_number
from curtsy.http.headers import response_headers
from curtsy.http.tls import describe

MAX_FIELDS = 1000
"""Largest number of header fields in a response; real sites have fewer than a hundred."""

HEAD_STEP = 4096
"""Bytes of a head that are parsed at once: nearly always all of them, and few of a body are copied twice."""

MAX_FRAMING = 4 * 1024 * 1024
"""Bytes that a chunked body may have in addition to twice its content: chunk sizes, extensions and trailers. Some
programs send each byte in a chunk of its own, which takes six bytes. The limit admits such a page of a megabyte."""

_HEAD_END = re.compile(rb"\n\r?\n")
_VERSIONS = frozenset({"1.0", "1.1"})


class ReplyError(Exception):
    """Response that cannot be used, with a reason and a description."""

    def __init__(self, reason: Reason, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason
        self.detail = detail


def _head_too_large() -> ReplyError:
    return ReplyError(Reason.TOO_LARGE, "the head of the answer is too large")


class _Expects(Enum):
    """Next input of a response."""

    HEAD = auto()
    LENGTH = auto()
    """A body with a Content-Length."""

    CHUNKS = auto()
    """A body with the Transfer-Encoding `chunked`."""

    CLOSE = auto()
    """A body that lasts until the peer closes the connection."""

    NOTHING = auto()
    """The response is complete, or it failed."""


class ResponseReader:
    """Incremental reader of one response and its interim responses (103 …).

    The response may have `max_head` bytes of head, interim responses included, and a body if `has_body`.
    """

    __slots__ = (
        "_expects", "_framed", "_has_body", "_head_left", "_in_head", "_is_ended", "_left", "_parser",
        "_tail", "error", "fields", "headers", "is_complete", "is_reusable", "length", "parts", "received", "status",
    )  # fmt: skip

    def __init__(self, max_head: int, has_body: bool) -> None:
        self._expects = _Expects.HEAD
        self._has_body = has_body
        self._head_left = max_head
        self._parser: httptools.HttpResponseParser | None = None
        """Parser of the present head, or of a chunked body. It refers to this object, so it is dropped early."""

        self._tail = b""
        """Last two bytes of an incomplete head."""

        self._in_head = True
        self._is_ended = False
        """True if the parser found the end of a chunked body."""

        self._left = 0
        """Bytes of the body that are still to come; the largest number if only the peer's close ends it."""

        self.received = 0
        self._framed = 0
        """Bytes of the body received, without and with the framing of a chunked body."""

        self.status = 0
        self.length: int | None = None
        """Announced bytes of the body; None if unknown."""

        self.fields: list[tuple[bytes, bytes]] = []
        self.headers: Headers | None = None
        """Header fields of the response; None until its head is complete."""

        self.parts: list[bytes] = []
        """Received parts of the body."""

        self.error: BaseException | None = None
        """Error that ended the response."""

        self.is_complete = False
        """True if the whole response was received."""

        self.is_reusable = False
        """True if another request may use the connection after the response."""

    def feed(self, data: bytes | memoryview) -> None:
        """Process received data, of which parts are copied. Errors are recorded in `error`."""
        try:
            while data and self._expects is _Expects.HEAD:
                data = self._feed_head(data)
            if self._expects is _Expects.NOTHING:
                self.is_reusable = self.is_reusable and not data  # RFC 9112, 6.3: other data follows the response
            elif data:
                self._feed_body(data)
        except ReplyError as error:
            self.fail(error)

    def fail(self, error: BaseException) -> None:
        """End the response with an error, unless it has ended."""
        if self._expects is not _Expects.NOTHING:
            self.error = error
            self._end(is_reusable=False)

    def end_input(self, error: BaseException | None, *, is_safe: bool) -> None:
        """Process the end of the connection: an error, or a close, which is not forged if `is_safe`."""
        if error is not None and not isinstance(error, OSError):
            self.fail(error)  # a programming error, for the caller
        elif self._expects is _Expects.HEAD:
            if isinstance(error, ssl.SSLError):
                self.fail(ReplyError(Reason.TLS_ERROR, describe(error)))
            elif error is not None:
                self.fail(ReplyError(Reason.CONNECTION_ERROR, f"the connection broke: {describe(error)}"))
            else:
                self.fail(ReplyError(Reason.CONNECTION_ERROR, "the connection was closed before an answer came"))
        elif self._expects is _Expects.CLOSE and error is None and is_safe:
            self._end(is_reusable=False)
        else:
            whole = f" of {self.received + self._left:,}" if self._expects is _Expects.LENGTH else ""
            why = f"the body broke off after {self.received:,}{whole} bytes"
            self.fail(ReplyError(Reason.INCOMPLETE, why))

    def _end(self, *, is_reusable: bool) -> None:
        self._expects = _Expects.NOTHING
        self._parser = None
        self.is_complete = self.error is None
        self.is_reusable = is_reusable

    def _feed_head(self, data: bytes | memoryview) -> bytes | memoryview:
        """Parse the next part of a head. Return the data after it."""
        head = bytes(data[:HEAD_STEP])
        if self._parser is None:
            if not head.startswith(b"H"):
                begun = head.lstrip(b"\r\n")  # RFC 9112, 2.2: empty lines before a message
                self._spend_head(len(head) - len(begun))
                if begun and not begun.startswith(b"H"):  # llhttp accepts RTSP and ICE
                    raise ReplyError(Reason.BAD_RESPONSE, "no readable answer: it is not HTTP")
                return data[len(head) - len(begun) :]
            self._open_parser()
        searched = self._tail + head
        found = _HEAD_END.search(searched)
        end = len(head) if found is None else found.end() - len(self._tail)
        self._spend_head(end)
        self._tail = searched[-2:]
        head = head[:end]
        if b"\0" in head:  # RFC 9110, 5.5: dangerous in a field's value, and invalid elsewhere
            raise ReplyError(Reason.BAD_RESPONSE, "no readable answer: its head has a NUL byte")
        self._parse(head, "no readable answer")
        if found is not None:
            if self._in_head:
                raise ReplyError(Reason.BAD_RESPONSE, "no readable answer: its head is incomplete")
            self._begin_body()
        return data[end:]

    def _spend_head(self, size: int) -> None:
        self._head_left -= size
        if self._head_left < 0 or len(self.fields) > MAX_FIELDS:
            raise _head_too_large()

    def _open_parser(self) -> None:
        self._in_head, self._is_ended, self._tail, self.fields = True, False, b"", []
        self._parser = httptools.HttpResponseParser(self)
        # Folded and unusual field values, lines that end in LF, and `5 \r\n` occur on the web. Browsers accept them.
        self._parser.set_dangerous_leniencies(
            lenient_headers=True, lenient_optional_cr_before_lf=True, lenient_spaces_after_chunk_size=True
        )

    def _parse(self, data: bytes | memoryview, what: str) -> None:
        assert self._parser is not None
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            pass  # a 101: the exchange refuses it
        except httptools.HttpParserCallbackError:
            raise  # a programming error
        except httptools.HttpParserError as error:
            raise ReplyError(Reason.BAD_RESPONSE, f"{what}: {error}") from None

    def _begin_body(self) -> None:
        """Decide by the head whether there is a body, and where it ends (RFC 9112, 6.3)."""
        parser = self._parser
        assert parser is not None
        status, version = parser.get_status_code(), parser.get_http_version()
        if version not in _VERSIONS:
            raise ReplyError(Reason.BAD_RESPONSE, f"no readable answer: its version is {version}")
        if len(self.fields) > MAX_FIELDS:
            raise _head_too_large()
        headers = response_headers(self.fields)
        fields = headers.by_name
        names = "".join(fields)
        if " " in names or "\t" in names:  # llhttp accepts a space before some colons (RFC 9112, 5.1)
            raise ReplyError(Reason.BAD_RESPONSE, "no readable answer: a space follows the name of a field")
        if 100 <= status < 200 and status != 101:
            self._parser = None
            return
        self.status, self.headers = status, headers
        coding, length = fields.get("transfer-encoding"), fields.get("content-length")
        if length is not None:
            self.length = whole_number(length)
        if not self._has_body or status < 200 or status in (204, 304):
            self._end(is_reusable=self.is_reusable)
            return
        if coding is not None and "chunked" in coding.lower():
            self._expects = _Expects.CHUNKS
            # RFC 9112, 6.1: HTTP/1.0 has no Transfer-Encoding, so the framing may be misunderstood.
            self.is_reusable = self.is_reusable and version == "1.1"
            return
        self._parser = None
        if length is None or coding is not None:
            self._expects, self._left = _Expects.CLOSE, sys.maxsize
            return
        self._expects, self._left = _Expects.LENGTH, self.length or 0
        if not self._left:
            self._end(is_reusable=self.is_reusable)

    def _feed_body(self, data: bytes | memoryview) -> None:
        if self._expects is _Expects.CHUNKS:
            self._feed_chunks(data)
            return
        left = self._left = self._left - len(data)
        if left < 0:
            data = data[:left]
        self.received += len(data)
        self.parts.append(bytes(data))
        if left <= 0:
            self._end(is_reusable=self.is_reusable and left == 0)

    def _feed_chunks(self, data: bytes | memoryview) -> None:
        self._framed += len(data)
        try:
            self._parse(data, "the body's framing is broken")
        except ReplyError:
            if not self._is_ended:
                raise
            self.is_reusable = False  # the error concerns data after the response
        if self._is_ended:
            self._end(is_reusable=self.is_reusable)
        elif self._framed - 2 * self.received > MAX_FRAMING:
            why = f"the body's framing is broken: more than {MAX_FRAMING:,} bytes are not the body"
            raise ReplyError(Reason.BAD_RESPONSE, why)

    # Callbacks of the parser

    def on_header(self, name: bytes, value: bytes) -> None:
        """Collect a header field. Trailers are ignored."""
        if self._in_head:
            self.fields.append((name, value))

    def on_headers_complete(self) -> None:
        """Record the end of a head, and whether the connection stays open. llhttp forgets that after the message."""
        if self._in_head and self._parser is not None:
            self._in_head = False
            self.is_reusable = self._parser.should_keep_alive()

    def on_body(self, part: bytes) -> None:
        """Collect a part of a chunked body."""
        if not self._is_ended:
            self.received += len(part)
            self.parts.append(part)

    def on_message_complete(self) -> None:
        """Record the end of a chunked body."""
        self._is_ended = True

    def on_message_begin(self) -> None:
        """Notice that another message follows the response."""
        if self._is_ended:
            self.is_reusable = False


NO_RESPONSE = ResponseReader(100, False)
"""Response of all connections without a request. It is complete, so nothing changes it."""

NO_RESPONSE.feed(b"HTTP/1.1 204 No Content\r\n\r\n")
