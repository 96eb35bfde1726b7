"""How the test site takes one request and sends one reply: HTTP/1.1 by hand, so that every rule of it can be broken."""

from __future__ import annotations

import asyncio
import socket
import struct
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from email.utils import formatdate
from http import HTTPStatus

from tests.support.reply import PIECE, Reply


@dataclass(slots=True)
class Visit:
    """One request, as the site saw it."""

    at: float
    """When its head had come."""

    host: str
    """As the Host field names it, without the port."""

    method: str
    target: str
    """Path and query."""

    headers: list[tuple[str, str]]
    body: bytes
    connection: int
    """Counted from 1 in the order in which they were opened."""

    concurrent: int = 0
    """Requests to this host under way when it came, itself included."""

    answered_at: float | None = None
    """When all was sent, or the client was gone; None while under way."""

    status: int | None = None
    taken: int = 0
    """Bytes that the client's side took, the head included."""

    @property
    def path(self) -> str:
        """The target without its query."""
        return self.target.partition("?")[0]

    def header(self, name: str) -> str | None:
        """The first value of a field, whatever its case."""
        return next((value for each, value in self.headers if each.lower() == name.lower()), None)


class NotHttp(Exception):
    """What came is no request: a TLS handshake, perhaps."""


async def read_request(reader: asyncio.StreamReader, connection: int) -> Visit | None:
    """The next request on a connection; None if there is none. Raises NotHttp."""
    try:
        head = await reader.readexactly(1)
        if not head.isalpha():
            raise NotHttp
        head += await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return None
    at = time.monotonic()
    line, *lines = head[:-4].decode("latin-1").split("\r\n")
    method, target, _ = line.split(" ", 2)
    headers = [(name, value.strip()) for name, _, value in (each.partition(":") for each in lines)]
    visit = Visit(at, "", method, target, headers, b"", connection)
    name = visit.header("Host") or ""
    host, colon, port = name.rpartition(":")
    visit.host = (host if colon and port.isdigit() else name).strip("[]").lower()
    if length := visit.header("Content-Length"):
        visit.body = await reader.readexactly(int(length))
    elif visit.header("Transfer-Encoding"):
        visit.body = b"".join([part async for part in _chunks(reader)])
    return visit


async def _chunks(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """Yield the chunks of a request's body."""
    while size := int(await reader.readuntil(b"\r\n"), 16):
        yield await reader.readexactly(size)
        await reader.readexactly(2)
    await reader.readuntil(b"\r\n")


async def play(reply: Reply, visit: Visit, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
    """Send a reply; whether the connection goes on."""
    if reply.wait and await gone(reader, reply.wait):
        return False
    if reply.raw is not None:
        for number, piece in enumerate([reply.raw] if isinstance(reply.raw, bytes) else reply.raw()):
            if number and reply.drip and await gone(reader, reply.drip[1]):
                return False
            await _send(piece, visit, writer)
    else:
        await _send_parts(reply, visit, reader, writer)
    match reply.end:
        case "hang":
            await gone(reader, None)
        case "reset":
            # Without lingering, closing is a reset (RST instead of FIN).
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()
    until_close = reply.length is None and not reply.chunked and visit.method != "HEAD"
    return reply.end == "keep" and reply.version == "1.1" and not until_close


async def _send_parts(reply: Reply, visit: Visit, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    body = reply.body.encode() if isinstance(reply.body, str) else reply.body
    head = _head(reply, body if isinstance(body, bytes) else None)
    if visit.method == "HEAD" or reply.status in (204, 304):
        await _send(head, visit, writer)
        return
    whole = isinstance(body, bytes) and not (reply.wait_body or reply.drip or reply.chunked or reply.stop_after)
    if whole and isinstance(body, bytes) and len(body) <= PIECE and reply.stop_after is None:
        await _send(head + body, visit, writer)
        return
    await _send(head, visit, writer)
    if reply.wait_body and await gone(reader, reply.wait_body):
        raise ConnectionResetError
    for piece in _pieces(body, reply):
        if reply.drip and await gone(reader, reply.drip[1]):
            raise ConnectionResetError
        await _send(b"%x\r\n%b\r\n" % (len(piece), piece) if reply.chunked else piece, visit, writer)
    if reply.chunked and reply.stop_after is None:
        await _send(b"0\r\n\r\n", visit, writer)


def _head(reply: Reply, body: bytes | None) -> bytes:
    reason = reply.reason
    if reason is None:
        known = reply.status in HTTPStatus._value2member_map_
        reason = HTTPStatus(reply.status).phrase if known else "Unknown"
    fields = list(reply.headers.items() if isinstance(reply.headers, Mapping) else reply.headers)
    given = {name.lower() for name, _ in fields}
    if "date" not in given:
        fields.append(("Date", formatdate(usegmt=True)))
    if reply.chunked:
        fields.append(("Transfer-Encoding", "chunked"))
    elif reply.length == "true":
        if body is not None and reply.status not in (204, 304) and "content-length" not in given:
            fields.append(("Content-Length", str(len(body))))
    elif reply.length is not None:
        fields.append(("Content-Length", str(reply.length)))
    lines = [f"HTTP/{reply.version} {reply.status} {reason}", *(f"{name}: {value}" for name, value in fields)]
    return "\r\n".join(lines).encode("utf-8", "surrogateescape") + b"\r\n\r\n"


def _pieces(body: bytes | Callable[[], Iterable[bytes]], reply: Reply) -> Iterator[bytes]:
    size = reply.drip[0] if reply.drip else PIECE
    left = reply.stop_after
    whole: Iterable[bytes] = [body] if isinstance(body, bytes) else body()
    for part in whole:
        for start in range(0, len(part), size):
            piece = part[start : start + size]
            if left is not None:
                piece = piece[:left]
                left -= len(piece)
            if piece:
                yield piece
            if left == 0:
                return


async def _send(data: bytes, visit: Visit, writer: asyncio.StreamWriter) -> None:
    for start in range(0, len(data), PIECE):
        piece = data[start : start + PIECE]
        writer.write(piece)
        await writer.drain()
        visit.taken += len(piece)


async def gone(reader: asyncio.StreamReader, seconds: float | None) -> bool:
    """Wait; whether the client left meanwhile."""
    try:
        await asyncio.wait_for(reader.read(1), seconds)
    except TimeoutError:
        return False
    return True
