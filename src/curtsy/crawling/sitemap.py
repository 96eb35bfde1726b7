"""Sitemaps, read: the pages that a site lists, and the further sitemaps (sitemaps.org; RSS, Atom and plain text too).

There is no XML parser here, and so nothing of what one can be made to do: no entity is ever defined, expanded or
fetched, no matter what a DOCTYPE says. The few elements that matter are found by one pattern, in time that grows with
the file and not faster, and a file that is broken gives what stands before and after the break. Character references
and XML's own five entities are undone, and nothing else.

The protocol allows 50 MB, decompressed, and 50,000 URLs a file. More is not read (F01), and is said among the oddities.

*Other hosts.* By the protocol a sitemap lists pages of its own host, unless that other host's robots.txt names it. What
it lists is returned whole, in canonical form, and the oddities say how much of it lies elsewhere: whether it is fetched
is for the crawl's scope to say, and a host that is in it gains nothing by being lied about.

A large file takes a second or so; read it off the event loop.
"""

from __future__ import annotations

import codecs
import re
from datetime import UTC
from email.utils import parsedate_to_datetime

import msgspec

from curtsy.core.message import MAX_URL, Url, parse_url
from curtsy.core.secrets import masked_repr
from curtsy.core.text import codec_of
from curtsy.crawling.frontier import host_of
from curtsy.crawling.links import Joiner
from curtsy.crawling.markup import attributes, plain_text
from curtsy.decoding import Damaged, Gzip, Truncated

MOST_ELEMENTS = 2_000_000
"""Tags or lines that are looked at in a file: more than fit into 50 MB of real ones, and two seconds at most."""

_GZIP = b"\x1f\x8b"
_LAYERS = 2
"""How often a file may be compressed: by itself, and once more by a server that did not see it."""

_HEAD = 4096
"""Bytes of a file by which it is recognized."""

_BLANKS = " \t\r\n"
_LONGEST = 8 * MAX_URL
"""Bytes of a value, with its blanks, comments and references; no URL needs more."""

# Possessive wherever more than one byte is taken (`*+`): nothing that was read is given back and read again.
_COMMENT = rb"!--(?:[^-]++|-(?!->))*+"
_CDATA = rb"!\[CDATA\[(?:[^]]++|\](?!\]>))*+"
_ASIDE = rb"(?:" + _COMMENT + rb"(?:-->)?|" + _CDATA + rb"(?:\]\]>)?)"
_DOCTYPE = rb"!DOCTYPE[^[>]*+(?:\[(?:<" + _COMMENT + rb"""|"[^"]*+"|'[^']*+'|[^]"'<]++|<)*+)?"""
_NAMES = rb"urlset|sitemapindex|url|sitemap|loc|lastmod|priority|rss|RDF|feed|item|entry|link|guid|pubDate|updated|html"
_VALUED = rb"(/?)([A-Za-z_][\w.-]*+:)?(" + _NAMES + rb")(?=[\s/>])([^<>]*+)>((?:[^<]++|<" + _ASIDE + rb")*+)"
# The last choice is nothing: every tag is stopped at, so that they can be counted and other threads have their turn.
_ELEMENT = re.compile(rb"<(?:" + _VALUED + rb"|" + _ASIDE + rb"|" + _DOCTYPE + rb"|)")
_PART = re.compile(rb"<!\[CDATA\[((?:[^]]++|\](?!\]>))*+)|<" + _COMMENT + rb"|(?:\]\]>|-->)?([^<]*+)")
_IS_XML = re.compile(rb"\s*+<|[^<]{0,4096}<(?:[\w.-]+:)?(?:urlset|sitemapindex|rss|RDF|feed)\b")
_ROOT = re.compile(
    rb"(?:\xef\xbb\xbf)?\s*+(?:<(?:\?[^>]*+|" + _COMMENT + rb"--)>\s*+)*+<(?:[\w.-]+:)?(?:urlset|sitemapindex)[\s>]"
)
_DECLARATION = re.compile(rb"""\s*+<\?xml\s[^>]{0,200}?encoding\s*=\s*["']([A-Za-z0-9._:-]+)["']""")
_LINE = re.compile(rb"[^\r\n]+")
_REFERENCE = re.compile(r"&(?:amp|lt|gt|quot|apos|#[0-9]++|#[xX][0-9A-Fa-f]++);")
_OTHER_REFERENCE = re.compile(r"&[A-Za-z_][\w.-]*;")
_DATE = re.compile(
    r"\d{4}(?:-(?:0[1-9]|1[0-2])(?:-(?:0[1-9]|[12]\d|3[01])"
    r"(?:[T ]\d\d:\d\d(?::\d\d(?:\.\d{1,9})?)?(?:Z|[+-]\d\d:?\d\d)?)?)?)?",
    re.ASCII,
)
_PRIORITY = re.compile(r"0?\.\d{1,9}|[01](?:\.0{1,9})?", re.ASCII)
_MARKS = ((codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be"))
_UNMARKED = ((b"<\0", "utf-16-le"), (b"\0<", "utf-16-be"))


class Limits(msgspec.Struct, frozen=True):
    """How much of a file is read."""

    max_bytes: int = 52_428_800
    """After decompression."""

    max_urls: int = 50_000


PROTOCOL = Limits()
"""What sitemaps.org allows a file."""


class Entry(msgspec.Struct, frozen=True, gc=False):
    """A page that a site lists."""

    url: str
    """Canonical."""

    lastmod: str | None = None
    """When it changed last: a W3C date (`2026-11-15`, `2026-11-15T08:00:00+01:00`); None if it is not said legibly."""

    priority: float | None = None
    """0 to 1, relative to the site's other pages; None if it does not say."""

    __repr__ = masked_repr


class Sitemap(msgspec.Struct, frozen=True):
    """What a file lists, each URL once, in its order."""

    pages: tuple[Entry, ...] = ()
    sitemaps: tuple[str, ...] = ()
    """Further sitemaps, canonical. They may list one another in a circle, and on without end: bound that."""

    oddities: tuple[str, ...] = ()
    """What is wrong with it, a sentence each."""


def is_sitemap(body: bytes) -> bool:
    """Whether a body is, by its beginning, a sitemap or an index of them. Feeds and lists of URLs are not told so."""
    head = body[:_HEAD]
    if head.startswith(_GZIP):
        try:
            head = next(Gzip().feed(head), b"")[:_HEAD]
        except Damaged:
            return False
    return _ROOT.match(head) is not None


def parse_sitemap(body: bytes, url: str, *, limits: Limits = PROTOCOL) -> Sitemap:
    """Read a sitemap, an index of them, a feed or a list of URLs, gzipped or not. Never raises.

    `url` is where it came from: what is relative in it is relative to that.
    """
    reader = _Reader(url, limits)
    whole = reader.decompressed(body)
    if not whole:
        reader.odd("The file is empty.")
    elif _IS_XML.match(whole):
        reader.read_xml(whole)
    else:
        reader.read_lines(whole)
    return reader.sitemap()


class _Full(Exception):
    """No more URLs are taken."""


class _Reader:
    """What was read of one file so far."""

    def __init__(self, url: str, limits: Limits) -> None:
        base = parse_url(url)
        self._base = base if isinstance(base, Url) else None
        self._join = _absolute if self._base is None else Joiner(self._base).join
        self._limits = limits
        self._codec = "utf-8"
        self._oddities: dict[str, None] = {}
        self._pages: dict[str, Entry] = {}
        self._sitemaps: dict[str, None] = {}
        self._entries = 0
        """Of any kind; the same one twice, or one that is illegible, costs no less time than another."""
        self._illegible = 0
        self._is_index = False
        self._has_entities = False
        # What is being put together.
        self._inside: bytes | None = None
        self._loc: str | None = None
        self._lastmod: str | None = None
        self._priority: float | None = None

    def odd(self, sentence: str) -> None:
        """Note what is wrong."""
        self._oddities[sentence] = None

    # Bytes

    def decompressed(self, body: bytes) -> bytes | bytearray:
        """The file itself, as far as the limits go, in UTF-8 or another encoding that has ASCII in it."""
        whole: bytes | bytearray = body
        for _ in range(_LAYERS):
            if not whole.startswith(_GZIP):
                break
            whole = self._unzipped(whole)
        if len(whole) > self._limits.max_bytes:
            self._cut()
            whole = whole[: self._limits.max_bytes]
        if whole.startswith(codecs.BOM_UTF8):
            return whole[len(codecs.BOM_UTF8) :]
        for mark, codec in (*_MARKS, *_UNMARKED):
            if whole.startswith(mark):
                return _transcoded(whole, codec)
        if declared := _DECLARATION.match(whole[:1024]):
            self._codec = codec_of(declared[1].decode("ascii")) or "utf-8"
            if self._codec.startswith("utf-16"):
                self._codec = "utf-8"  # it could not be read so far if that were true
        return whole

    def _unzipped(self, packed: bytes | bytearray) -> bytearray:
        decoder, whole, most = Gzip(), bytearray(), self._limits.max_bytes
        try:
            for piece in decoder.feed(bytes(packed)):
                whole += piece
                if len(whole) > most:
                    self._cut()
                    del whole[most:]
                    return whole
            decoder.finish()
        except Damaged as error:
            self.odd(f"Its gzip is damaged ({error}): what comes after that was not read.")
        except Truncated:
            self.odd("Its gzip ends too soon: the rest is missing.")
        return whole

    def _cut(self) -> None:
        self.odd(f"It has more than {self._limits.max_bytes:,} bytes: the rest was not read.")

    def _text(self, raw: bytes) -> str:
        try:
            return raw.decode(self._codec)
        except UnicodeDecodeError:
            return raw.decode("windows-1252", "replace")  # better a URL with a wrong letter than none

    # Lines

    def read_lines(self, whole: bytes | bytearray) -> None:
        """Read a list of URLs, one a line."""
        try:
            for number, line in enumerate(_LINE.finditer(whole)):
                if self._is_too_much(number):
                    break
                end = min(line.end(), line.start() + _LONGEST)
                text = self._text(bytes(whole[line.start() : end])).strip(_BLANKS)
                if text[:8].lower().startswith(("http://", "https://")):
                    self._add(text, is_sitemap=False)
                elif text:
                    self._illegible += 1
        except _Full:
            pass

    def _is_too_much(self, number: int) -> bool:
        if number < MOST_ELEMENTS:
            return False
        self.odd(f"It has more than {MOST_ELEMENTS:,} tags or lines: the rest was not read.")
        return True

    # XML

    def read_xml(self, whole: bytes | bytearray) -> None:
        """Read a sitemap, an index or a feed."""
        try:
            self._read_elements(whole)
            self._end()
        except _Full:
            pass

    def _read_elements(self, whole: bytes | bytearray) -> None:
        prefix: bytes | None = None
        for number, element in enumerate(_ELEMENT.finditer(whole)):
            if self._is_too_much(number):
                return
            slash, given, name, written, content = element.groups()
            if name is None:
                if whole.startswith(b"<!DOCTYPE", element.start()) and b"<!ENTITY" in element[0]:
                    self._has_entities = True
                    self.odd("It declares entities of its own. They are never expanded; what needs them is left out.")
                continue
            if prefix is None:  # the first element tells how the others are written: <url>, or <sm:url>
                if name == b"html":
                    self.odd("It is an HTML page, not a sitemap.")
                    return
                self._is_index = name == b"sitemapindex"
                prefix = b"" if name == b"RDF" else given or b""
            if (given or b"") != prefix:
                continue  # <image:loc> and its like
            if name in (b"url", b"sitemap", b"item", b"entry"):
                self._end()
                self._inside = None if slash or written.endswith(b"/") else name
            elif not slash:
                if element.end() == len(whole) and not written.endswith(b"/"):
                    self.odd("It ends in the middle of an element.")
                    return
                self._take(name, written, content)

    def _take(self, name: bytes, written: bytes, content: bytes) -> None:
        """Take in an element that has a value."""
        match name:
            case b"loc":
                if self._loc is not None:
                    self._end()  # the end of the one before is missing
                self._loc = self._value(content)
            case b"link" if self._inside == b"item" and (value := self._value(content)):
                self._loc = value
            case b"link" if self._inside in (b"item", b"entry") and self._loc is None:
                values = attributes(self._text(written[:_LONGEST]))
                if values.get("rel", "alternate").strip().lower() == "alternate":
                    self._loc = values.get("href")
            case b"guid" if self._inside == b"item" and self._loc is None and b"false" not in written:
                value = self._value(content)
                self._loc = value if value.startswith(("http://", "https://")) else None
            case b"lastmod" | b"pubDate" | b"updated":
                self._lastmod = _date(self._value(content[:1000]))
            case b"priority":
                value = self._value(content[:1000])
                self._priority = float(value) if _PRIORITY.fullmatch(value) else None

    def _value(self, content: bytes) -> str:
        """The text of an element."""
        if len(content) > _LONGEST:
            return ""
        if b"<" not in content:
            return _unescaped(self._text(content)).strip(_BLANKS)
        parts = []
        for part in _PART.finditer(content):
            raw, text = part.groups()
            parts.append(self._text(raw) if raw else _unescaped(self._text(text or b"")))
        return "".join(parts).strip(_BLANKS)

    def _end(self) -> None:
        """Add what was put together."""
        if self._loc is not None:
            is_sitemap = self._inside == b"sitemap" or (self._inside is None and self._is_index)
            loc, self._loc = self._loc, None
            self._add(loc, is_sitemap=is_sitemap)
        self._lastmod = self._priority = None

    def _add(self, text: str, *, is_sitemap: bool) -> None:
        if self._entries >= self._limits.max_urls:
            self.odd(f"It lists more than {self._limits.max_urls:,} URLs: the rest was not read.")
            raise _Full
        self._entries += 1
        url = None if self._has_entities and _OTHER_REFERENCE.search(text) else self._join(text) if text else None
        if url is None:
            self._illegible += 1
        elif url in self._sitemaps or url in self._pages:
            pass
        elif not is_sitemap:
            self._pages[url] = Entry(url, self._lastmod, self._priority)
        elif self._base is not None and url == self._base.text:
            self.odd("It lists itself.")
        else:
            self._sitemaps[url] = None

    # The end

    def sitemap(self) -> Sitemap:
        """All that was read."""
        if self._illegible:
            self.odd(f"{self._illegible:,} of its entries are no URLs.")
        if self._base is not None:
            own = self._base.domain
            elsewhere = sum(host_of(url) != own for urls in (self._pages, self._sitemaps) for url in urls)
            if elsewhere:
                self.odd(f"{elsewhere:,} of its URLs are on other hosts than {own}.")
        if not self._pages and not self._sitemaps and not self._oddities:
            self.odd("It lists nothing.")
        return Sitemap(tuple(self._pages.values()), tuple(self._sitemaps), tuple(self._oddities))


def _absolute(text: str) -> str | None:
    url = parse_url(text)
    return url.text if isinstance(url, Url) else None


def _unescaped(text: str) -> str:
    """A text without XML's own references. Another ampersand is one that somebody forgot to escape."""
    return _REFERENCE.sub(lambda found: plain_text(found[0]), text) if "&" in text else text


def _transcoded(whole: bytes | bytearray, codec: str) -> bytearray:
    """UTF-16 as UTF-8, a piece at a time."""
    decoder, made = codecs.getincrementaldecoder(codec)("replace"), bytearray()
    for start in range(0, len(whole), 65_536):
        made += decoder.decode(bytes(whole[start : start + 65_536])).encode("utf-8")
    return made.removeprefix(codecs.BOM_UTF8)


def _date(text: str) -> str | None:
    """A W3C date as it is; that of a feed (RFC 5322) as one; None if it is neither."""
    if _DATE.fullmatch(text):
        return text
    try:
        moment = parsedate_to_datetime(text[:64])
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).astimezone(UTC).isoformat()
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
