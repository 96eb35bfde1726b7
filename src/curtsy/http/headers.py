"""Header fields: of a request as sent, checked and completed; of a response as received, decoded to text."""

from __future__ import annotations

import base64
import re
from urllib.parse import unquote_to_bytes

from curtsy.core.bounded import remember_few
from curtsy.core.request import Headers, Request
from curtsy.core.url import Url, octets_of

CODINGS = "gzip, deflate, br, zstd"
"""Default `Accept-Encoding`."""

_FRAMING = frozenset({"content-length", "transfer-encoding"})
"""Fields that curtsy sets itself, to match the body that it writes."""

_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_FORBIDDEN = re.compile(r"[\x00-\x08\x0a-\x1f\x7f\ud800-\udfff]")
_TARGET = re.compile(r"/[\x21-\x7e]*")

_VALIDATORS = frozenset({"if-none-match", "if-match", "if-range"})
"""Fields that return an ETag, whose characters are octets, as in the response that sent it."""

_WITHOUT_BODY = frozenset({"GET", "HEAD", "OPTIONS", "TRACE"})
"""Methods whose requests usually have no body. Their `Content-Length` is sent only with a body."""


def head_of(request: Request, proxy: Url | None = None) -> bytes:
    """Return the head of a request, up to the empty line. Raises ValueError for invalid characters (F26).

    A proxy gets the absolute URL for http; https is tunnelled through it.
    """
    url, method = request.url, request.method.upper()
    if method != "GET" and (not _TOKEN.fullmatch(method) or method == "CONNECT"):
        raise ValueError(f"method = {request.method!r} cannot be sent. Use GET, HEAD, POST or another name.")
    if not _TARGET.fullmatch(url.target):
        raise ValueError("the path of the URL has characters that cannot be sent. Make it with parse_url().")
    lines, names = _lines(request.headers.fields)
    target = url.target
    if proxy is not None and url.scheme == "http":
        target = url.text
        lines += proxy_authorization(proxy)
    if "host" not in names:
        lines = f"Host: {url.domain}\r\n{lines}"
    if url.credentials is not None and "authorization" not in names:
        lines += f"Authorization: {_basic(url.credentials)}\r\n"
    if request.body is not None or method not in _WITHOUT_BODY:
        lines += f"Content-Length: {len(request.body or b'')}\r\n"
        if request.body and "content-type" not in names:
            lines += "Content-Type: application/octet-stream\r\n"
    return f"{method} {target} HTTP/1.1\r\n{lines}\r\n".encode("utf-8", "surrogateescape")


def connect_head(host: str, port: int, proxy: Url) -> bytes:
    """Return the head of the request for a tunnel through a proxy."""
    target = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    return f"CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n{proxy_authorization(proxy)}\r\n".encode()


def proxy_authorization(proxy: Url) -> str:
    """Return the line with a proxy's credentials; empty if it has none."""
    if proxy.credentials is None:
        return ""
    credentials = proxy.credentials if ":" in proxy.credentials else f"{proxy.credentials}:"
    return f"Proxy-Authorization: {_basic(credentials)}\r\n"


def _basic(credentials: str) -> str:
    return f"Basic {base64.b64encode(unquote_to_bytes(octets_of(credentials))).decode()}"


@remember_few(256)  # most requests of a program have the same fields
def _lines(fields: tuple[tuple[str, str], ...]) -> tuple[str, frozenset[str]]:
    """Return the fields as lines, and their names in lower case."""
    for name, value in fields:
        if not _TOKEN.fullmatch(name) or _FORBIDDEN.search(value):
            raise ValueError(f"the header field {name[:50]!r} has characters that cannot be sent. Leave them out.")
    kept = [(name, value) for name, value in fields if name.lower() not in _FRAMING]
    names = {name.lower() for name, _ in kept}
    if "accept" not in names:
        kept.append(("Accept", "*/*"))
    if "accept-encoding" not in names:  # a part of an encoded body cannot be decoded
        kept.append(("Accept-Encoding", "identity" if "range" in names else CODINGS))
    return "".join(f"{name}: {_octets(name, value)}\r\n" for name, value in kept), frozenset(names)


def _octets(name: str, value: str) -> str:
    """Return a value prepared for encoding: UTF-8, or Latin-1 for a validator if all its characters fit."""
    if value.isascii() or name.lower() not in _VALIDATORS or max(value) > "\xff":
        return value
    return value.encode("latin-1").decode("ascii", "surrogateescape")


_LOGIN = re.compile(r"^(\s*(?:[A-Za-z][A-Za-z0-9+.-]*:)?[/\\]{2})[^/?#\\]*@")
"""Pattern of the credentials in a Location, which are removed."""


def response_headers(fields: list[tuple[bytes, bytes]]) -> Headers:
    """Return received fields as text, without the credentials of a Location."""
    try:
        headers = Headers([(name.decode("ascii"), value.decode("ascii").rstrip(" \t")) for name, value in fields])
    except UnicodeDecodeError:
        headers = Headers([(name.decode("ascii"), _legible(name, value).rstrip(" \t")) for name, value in fields])
    location = headers.by_name.get("location")
    if location is None or "@" not in location:
        return headers
    return Headers(
        (name, _LOGIN.sub(r"\1", value) if name.lower() == "location" else value) for name, value in headers.fields
    )


def _legible(name: bytes, value: bytes) -> str:
    """Return a field's value as text: UTF-8, or else Latin-1 (RFC 9110, 5.5).

    In a Location, octets that are not UTF-8 are percent-encoded, because a site with links in another encoding expects
    the same octets. An ETag is always Latin-1, one character per octet, because it is returned as received (RFC 9110,
    8.8.3).
    """
    if name.lower() == b"location":
        text = value.decode("utf-8", "surrogateescape")
        return re.sub("[\udc80-\udcff]", lambda octet: f"%{ord(octet[0]) - 0xDC00:02X}", text)
    if name.lower() == b"etag":
        return value.decode("latin-1")
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value.decode("latin-1")
