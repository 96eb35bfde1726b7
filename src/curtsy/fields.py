"""The header fields of a request, as they go on the wire: checked once, with what is asked for by default."""

from __future__ import annotations

import base64
import re
from functools import lru_cache
from urllib.parse import unquote

from multidict import CIMultiDict

from curtsy.core.message import Headers, Request

CODINGS = "gzip, deflate, br, zstd"
"""What is asked for unless the caller says otherwise."""

_FRAMING = frozenset({"content-length", "transfer-encoding"})
"""Fields that only whoever writes the body can get right."""

_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_FORBIDDEN = re.compile(r"[\x00-\x08\x0a-\x1f\x7f\ud800-\udfff]")
_TARGET = re.compile(r"/[\x21-\x7e]*")


def fields_of(request: Request) -> CIMultiDict[str]:
    """The header fields that go on the wire, Host left out. Raises ValueError for what must not go there (F26)."""
    if not _TOKEN.fullmatch(request.method) or request.method.upper() == "CONNECT":
        raise ValueError(f"method = {request.method!r} cannot be sent. Use GET, HEAD, POST or another name.")
    if not _TARGET.fullmatch(request.url.target):
        raise ValueError("the path of the URL has characters that cannot be sent. Make it with parse_url().")
    fields = _fields(request.headers)
    if request.url.credentials is not None and "Authorization" not in fields:
        fields = fields.copy()
        secret = unquote(request.url.credentials).encode()
        fields["Authorization"] = "Basic " + base64.b64encode(secret).decode()
    return fields


@lru_cache(maxsize=256)  # most requests of a program have the same ones
def _fields(headers: Headers) -> CIMultiDict[str]:
    fields: CIMultiDict[str] = CIMultiDict()
    for name, value in headers.fields:
        if not _TOKEN.fullmatch(name) or _FORBIDDEN.search(value):
            raise ValueError(f"the header field {name[:50]!r} has characters that cannot be sent. Leave them out.")
        if name.lower() not in _FRAMING:
            fields.add(name, value)
    fields.setdefault("Accept", "*/*")
    # A part of a coded body could not be decoded.
    fields.setdefault("Accept-Encoding", "identity" if "Range" in fields else CODINGS)
    return fields
