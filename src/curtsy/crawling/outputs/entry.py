"""PageEntry: a page as a JSON object, in lines and in meta files. Users rely on its schema.

`docs/reference/crawl-page.schema.json` defines the same for programs, and a test compares the two. Fields are only ever
added.
"""

from __future__ import annotations

import hashlib
from typing import Any, Literal

import msgspec

from curtsy.core.cache import url_sha256
from curtsy.core.charset import decode
from curtsy.core.message import Headers
from curtsy.core.record import FetchRecord
from curtsy.core.secrets import mask_url
from curtsy.crawling.results import CrawledPage

BodyForm = Literal["none", "text", "base64"]
"""Form of a body in an entry: absent, decoded by its encoding, or byte for byte."""

HIDDEN = frozenset({"authorization", "proxy-authorization", "cookie", "cookie2", "set-cookie", "set-cookie2"})
"""Header fields, in lower case, that no output contains (F62)."""

_TEXTS = ("text/", "application/json", "application/xml", "application/javascript", "application/ecmascript")


class FetchEntry(msgspec.Struct, frozen=True, gc=False):
    """Cost of the fetch."""

    attempts: int
    retries: int
    waited: float
    took: float
    bytes: int


class PageEntry(msgspec.Struct, frozen=True):
    """Page as it is written. Fields without an explanation are those of `CrawledPage`."""

    url: str
    url_sha256: str
    """SHA-256 of the unmasked URL. It distinguishes URLs that differ only in a masked value."""

    final_url: str
    status: int
    fetched_at: str
    content_type: str | None
    encoding: str | None
    size: int
    """Size of the body in bytes."""

    sha256: str
    """SHA-256 of the body."""

    title: str | None
    text: str
    links: tuple[str, ...]
    depth: int
    parent: str | None
    redirected: bool
    canonical: str | None
    directives: tuple[str, ...]
    signals: tuple[str, ...]
    links_cut: int
    duplicate_of: str | None
    cache: str | None
    headers: dict[str, str]
    """Headers by lower-case name; repeated ones are joined by commas, as in HTTP."""

    request_headers: dict[str, str]
    fetch: FetchEntry | None
    body: str | msgspec.UnsetType | None = msgspec.UNSET
    """Body as text; None if it is binary, such as an image."""

    body_base64: bytes | msgspec.UnsetType = msgspec.UNSET


def entry_of(page: CrawledPage, *, body: BodyForm = "none", mask_secrets: bool = True) -> PageEntry:
    """Return a page as it is written. `mask_secrets` masks values in URLs that look secret (F62)."""
    shown = mask_url if mask_secrets else _as_it_is
    links = tuple(map(mask_url, page.links)) if mask_secrets else page.links
    return PageEntry(
        url=shown(page.url),
        url_sha256=url_sha256(page.url),
        final_url=shown(page.final_url),
        status=page.status,
        fetched_at=page.fetched_at,
        content_type=page.content_type,
        encoding=page.encoding,
        size=len(page.body),
        sha256=hashlib.sha256(page.body).hexdigest(),
        title=page.title,
        text=page.text,
        links=links,
        depth=page.depth,
        parent=None if page.parent is None else shown(page.parent),
        redirected=page.redirected,
        canonical=None if page.canonical is None else shown(page.canonical),
        directives=page.directives,
        signals=page.signals,
        links_cut=page.links_cut,
        duplicate_of=None if page.duplicate_of is None else shown(page.duplicate_of),
        cache=page.cache,
        headers=_fields(page.headers, mask_secrets),
        request_headers=_fields(page.request_headers, mask_secrets),
        fetch=None if page.record is None else _fetch(page.record),
        body=_text(page) if body == "text" else msgspec.UNSET,
        body_base64=page.body if body == "base64" else msgspec.UNSET,
    )


_encode = msgspec.json.Encoder().encode


def encode(entry: msgspec.Struct) -> bytes:
    """Return the entry as JSON on one line. A lone surrogate becomes U+FFFD."""
    try:
        return _encode(entry)
    except UnicodeEncodeError:
        return _encode(_legible(msgspec.to_builtins(entry)))


def _as_it_is(text: str) -> str:
    return text


def _fields(headers: Headers, mask_secrets: bool) -> dict[str, str]:
    shown = {name: headers[name] for name in headers if name not in HIDDEN}
    if mask_secrets:
        for name, value in shown.items():
            if "=" in value or "%3" in value or "@" in value:
                shown[name] = mask_url(value)
    return shown


def _fetch(record: FetchRecord) -> FetchEntry:
    return FetchEntry(record.attempts, record.retries, record.waited, record.took, record.bytes)


def _text(page: CrawledPage) -> str | None:
    kind = (page.content_type or "").partition(";")[0].strip().lower()
    if page.encoding is None and kind and not kind.startswith(_TEXTS) and not kind.endswith(("+xml", "+json")):
        return None
    return decode(page.body, page.content_type)[0]


def _legible(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "surrogatepass").decode("utf-8", "replace")
    if isinstance(value, dict):
        return {_legible(name): _legible(each) for name, each in value.items()}
    return [_legible(each) for each in value] if isinstance(value, list | tuple) else value
