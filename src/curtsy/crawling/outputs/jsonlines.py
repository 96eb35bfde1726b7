"""JsonLines: one JSON object per page and line. PageEntry: that object, which is also in meta files.

Users rely on the schema of PageEntry. `docs/reference/crawl-page.schema.json` defines the same for programs, and a test
compares the two. Fields are only ever added.
"""

from __future__ import annotations

import hashlib
import os
from typing import Any, Literal, TypeVar

import msgspec

from curtsy.core.cache import url_sha256
from curtsy.core.masking import mask_url, mask_urls
from curtsy.core.request import Headers
from curtsy.crawling.outputs.protocol import FileOutput
from curtsy.crawling.results import CrawledPage

T = TypeVar("T")

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
    links: tuple[str, ...]
    depth: int
    parent: str | None
    redirected: bool
    canonical: str | None
    directives: tuple[str, ...]
    signals: tuple[str, ...]
    links_cut: int
    cache: str | None
    headers: dict[str, str]
    """Headers by lower-case name; repeated ones are joined by commas, as in HTTP."""

    request_headers: dict[str, str]
    fetch: FetchEntry | None
    rendered: bool = False
    extracted: dict[str, Any] | msgspec.UnsetType = msgspec.UNSET
    extract_error: str | msgspec.UnsetType = msgspec.UNSET
    main_text: str | msgspec.UnsetType = msgspec.UNSET
    text: str | msgspec.UnsetType | None = msgspec.UNSET
    """Body as text; None if it is binary, such as an image."""

    body_base64: bytes | msgspec.UnsetType = msgspec.UNSET


def entry_of(page: CrawledPage, *, body: BodyForm = "none", mask_secrets: bool = True) -> PageEntry:
    """Return a page as it is written. `mask_secrets` masks values in URLs that look secret (F62)."""
    parent, canonical, links = page.parent, page.canonical, page.links
    urls: tuple[str, ...] = (page.url, page.final_url, parent or "", canonical or "")
    if mask_secrets:
        urls, links = mask_urls(urls), mask_urls(links)
    record = page.record
    return PageEntry(
        url=urls[0],
        url_sha256=url_sha256(page.url),
        final_url=urls[1],
        status=page.status,
        fetched_at=page.fetched_at,
        content_type=page.content_type,
        encoding=page.encoding,
        size=len(page.body),
        sha256=hashlib.sha256(page.body).hexdigest(),
        title=page.title,
        links=links,
        depth=page.depth,
        parent=None if parent is None else urls[2],
        redirected=page.redirected,
        canonical=None if canonical is None else urls[3],
        directives=page.directives,
        signals=page.signals,
        links_cut=page.links_cut,
        cache=page.cache,
        headers=_fields(page.headers, mask_secrets),
        request_headers=_fields(page.request_headers, mask_secrets),
        fetch=None
        if record is None
        else FetchEntry(record.attempts, record.retries, record.waited, record.took, record.bytes),
        rendered=page.rendered,
        extracted=_set(page.extracted),
        extract_error=_set(page.extract_error),
        main_text=_set(page.main_text),
        text=_text(page) if body == "text" else msgspec.UNSET,
        body_base64=page.body if body == "base64" else msgspec.UNSET,
    )


def _set(value: T | None) -> T | msgspec.UnsetType:
    return msgspec.UNSET if value is None else value


_encode = msgspec.json.Encoder().encode


def encode(entry: msgspec.Struct) -> bytes:
    """Return the entry as JSON on one line. A lone surrogate becomes U+FFFD."""
    try:
        return _encode(entry)
    except UnicodeEncodeError:
        return _encode(_legible(msgspec.to_builtins(entry)))


def _fields(headers: Headers, mask_secrets: bool) -> dict[str, str]:
    shown = {name: value for name, value in headers.by_name.items() if name not in HIDDEN}
    if mask_secrets:
        for name, value in shown.items():
            if "=" in value or "%3" in value or "@" in value:
                shown[name] = mask_url(value)
    return shown


def _text(page: CrawledPage) -> str | None:
    kind = (page.content_type or "").partition(";")[0].strip().lower()
    if page.encoding is None and kind and not kind.startswith(_TEXTS) and not kind.endswith(("+xml", "+json")):
        return None
    return page.text


def _legible(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "surrogatepass").decode("utf-8", "replace")
    if isinstance(value, dict):
        return {_legible(name): _legible(each) for name, each in value.items()}
    return [_legible(each) for each in value] if isinstance(value, list | tuple) else value


class JsonLines(FileOutput):
    """Pages as lines of JSON, each a `PageEntry`, in the order of arrival. `-` is standard output.

    `body` adds the bodies: decoded as `text`, or byte for byte as `base64`. With `mask_secrets`, values in URLs that
    look secret are written as `***`.
    """

    def __init__(self, path: str | os.PathLike[str], *, body: BodyForm = "none", mask_secrets: bool = True) -> None:
        super().__init__("jsonl", path)
        self._body: BodyForm = body
        self._mask_secrets = mask_secrets

    def page(self, page: CrawledPage) -> None:
        """Write a line."""
        line = encode(entry_of(page, body=self._body, mask_secrets=self._mask_secrets))
        with self._restored():
            self._file.write(line, b"\n")
