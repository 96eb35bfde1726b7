"""The parsers, each as a function of bytes that must end without an exception, soon, and in little memory.

An input is expanded first, so that a few bytes stand for up to 10 MB: if the first byte is 128 or more, the second is
the length of a unit that is repeated 2**(first - 128) times, and the rest follows it.
"""

from __future__ import annotations

import contextlib
import resource
import time
from collections.abc import Callable, Iterable

from curtsy.core.cache import Absent, absorb, freshness
from curtsy.core.charset import decode
from curtsy.core.fetch_state import redirect_target
from curtsy.core.masking import mask_url
from curtsy.core.outcome import classify
from curtsy.core.request import Headers, Request, Response
from curtsy.core.robots import parse
from curtsy.core.url import Url, parse_url
from curtsy.crawling.extract.page import extract
from curtsy.crawling.extract.sitemap import parse_sitemap
from curtsy.crawling.extract.text import main_text
from curtsy.http.cookies import Cookies
from curtsy.http.decoding import Damaged, Truncated, UnknownCoding, decoder_of
from tests.support.bounds import slowness

MOST = 10 * 1024 * 1024
"""Bytes of an expanded input: the default limit of a body."""

SECONDS = 2.0
"""CPU time that an input may take."""

MEMORY = 64 * 1024 * 1024
"""Bytes that an input may add to the largest size that the process ever had, beside a copy of itself as text."""

NOW = 1_800_000_000.0
CODINGS = ("gzip", "deflate", "br", "zstd", "gzip, gzip", "br, zstd", "x-gzip, deflate")


class TooCostly(Exception):
    """An input took more time or memory than it may."""


def expanded(data: bytes) -> bytes:
    """Return the input that some bytes stand for."""
    if len(data) < 3 or data[0] < 128:
        return data[1:]
    unit, rest = data[2 : 2 + data[1]], data[2 + data[1] :]
    times = min(1 << min(data[0] - 128, 24), (MOST - len(rest)) // max(1, len(unit)))
    return (unit * times + rest)[:MOST]


def robots(body: bytes) -> None:
    """Parse robots.txt, and ask everything of it."""
    found = parse(body[: 512 * 1024])
    found.crawl_delay("curtsy")
    for url in ("https://example.org/a/b?c=d", "https://example.org/%7Ea/$*"):
        found.verdict("curtsy", url)


def page(body: bytes) -> None:
    """Find the links, the title and the directives of a page, and its text."""
    found = extract(body, "text/html", _here())
    assert len(found.links) <= 20_000
    main_text(body, "text/html")


def sitemap(body: bytes) -> None:
    """Read a sitemap."""
    parse_sitemap(body, "https://example.org/sitemap.xml")


def decoding(body: bytes) -> None:
    """Undo a content coding, up to the limit of a body."""
    decoder = decoder_of(CODINGS[body[0] % len(CODINGS)] if body else "gzip")
    assert decoder is not None
    size = 0
    with contextlib.suppress(Damaged, Truncated):
        for at in range(1, len(body), 65_536):
            for piece in decoder.feed(body[at : at + 65_536]):
                size += len(piece)
                if size > MOST:
                    return
        decoder.finish()


def fields(body: bytes) -> None:
    """Read the header fields of an answer, with everything that is made of them."""
    lines = body[:65_536].decode("latin-1").split("\n")
    headers = Headers([(name, value) for name, colon, value in (line.partition(":") for line in lines) if colon])
    request, answer = Request(_here()), Response(200 + len(lines) % 400, headers, b"<p>")
    classify(answer, NOW)
    freshness(None, request, NOW)
    absorb(Absent(), request, answer, NOW)
    redirect_target(_here(), answer)
    jar = Cookies(lambda: NOW)
    jar.take(_here(), headers)
    jar.header_for(_here())
    decode(answer.body, headers.get("content-type"))
    with contextlib.suppress(UnknownCoding):
        decoder_of(headers.get("content-encoding"), headers.get("transfer-encoding"))


def urls(body: bytes) -> None:
    """Parse, join and mask a URL."""
    text = body.decode("utf-8", "surrogateescape")
    mask_url(text)
    found = parse_url(text)
    if isinstance(found, Url):
        again = parse_url(found.text)
        assert isinstance(again, Url)
        assert again.text == found.text, "what is canonical stays so"
    parse_url(text, _here())


TARGETS: dict[str, Callable[[bytes], None]] = {
    each.__name__: each for each in (robots, page, sitemap, decoding, fields, urls)
}


def check(target: Callable[[bytes], None], data: bytes, *, seconds: float = SECONDS) -> None:
    """Run one input, and raise `TooCostly` if it takes more than it may."""
    body = expanded(data)
    began, largest = time.process_time(), _largest()
    target(body)
    took, grown = time.process_time() - began, _largest() - largest
    if took > seconds and took > seconds * slowness():
        raise TooCostly(f"{took:.1f} s of CPU for {len(body)} bytes")
    if grown > MEMORY + 4 * len(body):
        raise TooCostly(f"{grown >> 20} MiB of memory for {len(body)} bytes")


def seeds(name: str, doublings: int = 20) -> Iterable[bytes]:
    """Return inputs to begin with: each seed alone, and doubled so often."""
    for text in _SEEDS[name]:
        raw = text.encode("utf-8", "surrogateescape")
        yield b"\0" + raw
        if len(raw) < 256:
            yield bytes([128 + doublings, len(raw)]) + raw


def _here() -> Url:
    found = parse_url("https://example.org/a/b")
    assert isinstance(found, Url)
    return found


def _largest() -> int:
    """Return the largest size that the process ever had, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


_SEEDS: dict[str, tuple[str, ...]] = {
    "robots": (
        "User-agent: *\nDisallow: /private\nAllow: /private/ok$\nCrawl-delay: 2.5\nSitemap: https://example.org/s.xml\n",
        "User-agent: curtsy\nUser-agent: other\nDisallow: /*a*b*c$\nContent-Usage: /x train-ai=n\n",
        "\ufeffuser-agent : curtsy # comment\rdisalow: /a\r\n\nRequest-rate: 1/5s 0900-1700\nVisit-time: 0600-0845\n",
        "Disallow: /%41%2A%24*", "Allow: /" + "*a" * 30,
    ),
    "page": (
        '<html><head><base href="/b/"><meta charset=utf-8><title>T</title><link rel=canonical href=/c></head><body>'
        "<a href='x?y=1&amp;z=2' rel=nofollow>x</a><svg><title/><a xlink:href=q></svg><template><a href=n></template>",
        "<a href=//h/p>", "<a href=http:\\\\h\\p>", "<div>", "<b><p>", "<!--", "<script>", "&#x1F600;", "<a b=c ",
        "<meta http-equiv=refresh content='0;url=/r'>", "<a href=https://xn--bcher-kva.example/>",
        "<a href=//bü.example/>",
    ),
    "sitemap": (
        '<?xml version="1.0"?><urlset xmlns="http://www.sitemaps.org/schemas/sitemap/0.9"><url><loc>https://example.org/a'
        "</loc><lastmod>2026-01-01T00:00:00Z</lastmod><priority>0.5</priority></url></urlset>",
        "<sitemapindex><sitemap><loc>https://example.org/s2.xml</loc></sitemap></sitemapindex>",
        "https://example.org/a\nhttps://example.org/b\n", '<!DOCTYPE x [<!ENTITY a "aaaa">]><url><loc>&a;</loc></url>',
        "<url><loc>https://example.org/a</loc></url>", "<![CDATA[", "<rss><item><link>https://example.org/a</link>",
    ),
    "decoding": (
        "\0\x1f\udc8b\x08\0\0\0\0\0\0\x03\x03\0\0\0\0\0\0\0\0\0",
        "\x04\x1f\udc8b\x08\0\0\0\0\0\0\x03\x03\0\0\0\0\0\0\0\0\0",
        "\x03(\udcb5/\udcfd\x04\0\x01\0\0\udc99\udce9\udcd8Q", "\x02;", "\x01x\udc9c\x03\0\0\0\0\x01",
    ),
    "fields": (
        "Retry-After: 120\nRateLimit: \"default\";r=0;t=30\nRateLimit-Policy: \"default\";q=100;w=60\nAge: 5\n"
        "Cache-Control: max-age=60, stale-if-error=5\nSet-Cookie: a=b; Domain=example.org; Max-Age=60; Path=/a\n"
        'ETag: W/"x-gzip"\nVary: Accept\nContent-Type: text/html; charset=utf-8\nLocation: //h/p\n'
        "Content-Range: bytes 0-1/2",
        "Set-Cookie: a=b; Expires=Thu, 01 Jan 2026 00:00:00 GMT\n"
        "X-RateLimit-Remaining: 0\nX-RateLimit-Reset: 1800000060",
        "Content-Encoding: gzip, br", "Cache-Control: " + "a," * 50, "Retry-After: 0" + "0" * 100,
    ),
    "urls": (
        "https://user:pass@example.org:8080/a/../b;c?d=e&token=f#g", "http://[::1]:80/", "http:\\\\h\\p", "https:/h/",
        "///h/p", "https://bücher.example/ß", "/N/@://a:://a:", "http://a%40b:c@d/", "https://h/?u=https%3A%2F%2Fa%3Ab%40c",
        "http://0x7f.1/", "http://💩.example/", "http://h/" + "../" * 60,
    ),
}  # fmt: skip
