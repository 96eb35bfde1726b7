"""Parser of sitemaps: their pages and further sitemaps (sitemaps.org; RSS, Atom and plain text too).

It uses no XML parser, and so has none of its risks: no DOCTYPE can make it define, expand or fetch an entity. One
pattern finds the few relevant elements in linear time. A broken file yields the entries before and after the break.
Only character references and XML's five predefined entities are replaced.

The protocol allows 50 MB, decompressed, and 50,000 URLs per file. The rest is not read (F01), and a warning reports
that. A file is decompressed and read in windows, so its memory depends on its URLs and not on its size.

*Other hosts.* By the protocol, a sitemap lists pages of its own host, unless the other host's robots.txt names it. All
URLs are returned in canonical form, and a warning reports how many are on other hosts. The crawl's scope decides
whether to fetch them: a false entry gains nothing for a host in scope.

A large file takes about a second; read it off the event loop.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable, Iterator, Sequence
from itertools import chain

import msgspec

from curtsy.core.charset import codec_of
from curtsy.core.url import MAX_URL, Url, parse_url
from curtsy.crawling.extract.links import Joiner
from curtsy.crawling.extract.tokens import attributes, plain_text
from curtsy.crawling.frontier.protocol import host_of
from curtsy.crawling.frontier.url_table import PackedUrls, fingerprint
from curtsy.http.decoding import Damaged, Gzip, Truncated

MOST_ELEMENTS = 2_000_000
"""Tags or lines that are read per file: more than 50 MB of real ones, and two seconds at most."""

_GZIP = b"\x1f\x8b"
_LAYERS = 2
"""Most layers of gzip: the file's own, and that of a server that compressed it again."""

_HEAD = 4096
"""Bytes by which a file is recognized."""

_PIECE = 65_536
"""Bytes of a body that are read at a time."""

_UNDECIDED = len(b"<![CDATA[")
"""Bytes at the end of a window in which a comment of the preceding element may begin."""

_BLANKS = " \t\r\n\ufeff"
_LONGEST = 8 * MAX_URL
"""Bytes of a value with its blanks, comments and references; no URL needs more."""

# All repetitions are possessive (`*+`), so nothing is backtracked.
_COMMENT = rb"!--(?:[^-]++|-(?!->))*+"
_CDATA = rb"!\[CDATA\[(?:[^]]++|\](?!\]>))*+"
_ASIDE = rb"(?:" + _COMMENT + rb"(?:-->)?|" + _CDATA + rb"(?:\]\]>)?)"
_DOCTYPE = rb"!DOCTYPE[^[>]*+(?:\[(?:<" + _COMMENT + rb"""|"[^"]*+"|'[^']*+'|[^]"'<]++|<)*+)?"""
_NAMES = rb"urlset|sitemapindex|url|sitemap|loc|rss|RDF|feed|item|entry|link|guid|html"
_VALUED = rb"(/?)([A-Za-z_][\w.-]*+:)?(" + _NAMES + rb")(?=[\s/>])([^<>]*+)>((?:[^<]++|<" + _ASIDE + rb")*+)"
# The last alternative is empty: it stops at every tag, so that tags are counted and other threads can run.
_ELEMENT = re.compile(rb"<(?:" + _VALUED + rb"|" + _ASIDE + rb"|" + _DOCTYPE + rb"|)")
_PART = re.compile(rb"<!\[CDATA\[((?:[^]]++|\](?!\]>))*+)|<" + _COMMENT + rb"|(?:\]\]>|-->)?([^<]*+)")
_IS_XML = re.compile(rb"(?:\xef\xbb\xbf)?\s*+<|[^<]{0,4096}<(?:[\w.-]+:)?(?:urlset|sitemapindex|rss|RDF|feed)\b")
_ROOT = re.compile(
    rb"(?:\xef\xbb\xbf)?\s*+(?:<(?:\?[^>]*+|" + _COMMENT + rb"--)>\s*+)*+<(?:[\w.-]+:)?(?:urlset|sitemapindex)[\s>]"
)
_DECLARATION = re.compile(rb"""\s*+<\?xml\s[^>]{0,200}?encoding\s*=\s*["']([A-Za-z0-9._:-]+)["']""")
_LINE = re.compile(rb"[^\r\n]+")
_REFERENCE = re.compile(r"&(?:amp|lt|gt|quot|apos|#[0-9]++|#[xX][0-9A-Fa-f]++);")
_OTHER_REFERENCE = re.compile(r"&[A-Za-z_][\w.-]*;")
_UTF16 = {
    codecs.BOM_UTF16_LE: "utf-16-le",
    codecs.BOM_UTF16_BE: "utf-16-be",
    b"<\0": "utf-16-le",
    b"\0<": "utf-16-be",
}
"""Codecs by the first two bytes of a file: a byte order mark, or `<` without one."""


class Limits(msgspec.Struct, frozen=True):
    """Limits on the reading of a file."""

    max_bytes: int = 52_428_800
    """Bytes after decompression."""

    max_urls: int = 50_000
    window: int = 1 << 20
    """Bytes that are read together. No tag, comment or line of a real sitemap is longer."""


PROTOCOL = Limits()
"""Limits of a file by sitemaps.org."""


class Sitemap(msgspec.Struct, frozen=True):
    """URLs of a file, without duplicates, in its order."""

    pages: Sequence[str] = ()
    """Canonical URLs of pages, compressed in memory."""

    sitemaps: tuple[str, ...] = ()
    """Canonical URLs of further sitemaps.

    They may refer to one another in a circle or without end, so the caller must bound them.
    """

    parse_warnings: tuple[str, ...] = ()
    """Problems of the file, one sentence each."""


def is_sitemap(body: bytes) -> bool:
    """Return whether the first bytes of a body show a sitemap or a sitemap index.

    Feeds and lists of URLs are not recognized.
    """
    head = body[:_HEAD]
    if head.startswith(_GZIP):
        try:
            head = next(Gzip().feed(head), b"")[:_HEAD]
        except Damaged:
            return False
    return _ROOT.match(head) is not None


def parse_sitemap(body: bytes, url: str, *, limits: Limits = PROTOCOL) -> Sitemap:
    """Parse a sitemap, a sitemap index, a feed or a list of URLs, gzipped or not. It never raises.

    `url` is the file's own, the base of relative URLs.
    """
    reader = _Reader(url, limits)
    reader.read_all(body)
    return Sitemap(reader.pages, tuple(reader.sitemaps), reader.parse_warnings())


class _Full(Exception):
    """Signal that the limit of URLs is reached."""


class _Reader:
    """State of the reading of one file."""

    def __init__(self, url: str, limits: Limits) -> None:
        self.pages = PackedUrls()
        base = parse_url(url)
        self._base = base if isinstance(base, Url) else None
        self._join = _absolute if self._base is None else Joiner(self._base).join
        self._limits = limits
        self._codec = "utf-8"
        self._parse_warnings: dict[str, None] = {}
        self._known: set[int] = set()
        """Fingerprints of the URLs so far."""
        self._elsewhere = 0
        self.sitemaps: dict[str, None] = {}
        self._entries = 0
        """Number of entries; duplicates and illegible ones count too, because they cost as much time."""
        self._illegible = 0
        self._is_index = False
        self._has_entities = False
        self._looked_at = 0
        """Number of tags or lines so far."""
        self._prefix: bytes | None = None
        """Namespace prefix of the elements: empty for <url>, `sm:` for <sm:url>. None before the first."""
        # The current entry
        self._inside: bytes | None = None
        self._loc: str | None = None

    def read_all(self, body: bytes) -> None:
        """Read a body as XML or as a list of URLs."""
        windows = _windows(self.decompressed(body), self._limits.window)
        first = next(windows, b"")
        if not first:
            self.odd("The file is empty.")
        elif _IS_XML.match(first):
            self._read(self.read_elements, first, windows)
        else:
            self._read(self.read_lines, first, windows)

    def odd(self, sentence: str) -> None:
        """Record a problem of the file."""
        self._parse_warnings[sentence] = None

    # Bytes

    def decompressed(self, body: bytes) -> Iterator[bytes]:
        """Yield the decompressed file in pieces, up to the limit, in an encoding that extends ASCII."""
        pieces: Iterator[bytes] = (body[start : start + _PIECE] for start in range(0, len(body), _PIECE))
        for _ in range(_LAYERS):
            first, pieces = _peek(pieces)
            if not first.startswith(_GZIP):
                break
            pieces = self._unzipped(pieces)
        first, pieces = _peek(self._limited(pieces), 1024)
        if codec := _UTF16.get(first[:2]):
            return _transcoded(pieces, codec)
        if declared := _DECLARATION.match(first[:1024]):
            self._codec = codec_of(declared[1].decode("ascii")) or "utf-8"
            if self._codec.startswith("utf-16"):
                self._codec = "utf-8"  # UTF-16 would have been recognized above
        return pieces

    def _limited(self, pieces: Iterator[bytes]) -> Iterator[bytes]:
        left = self._limits.max_bytes
        for piece in pieces:
            if len(piece) > left:
                self.odd(f"It has more than {self._limits.max_bytes:,} bytes: the rest was not read.")
                yield piece[:left]
                return
            left -= len(piece)
            yield piece

    def _unzipped(self, packed: Iterator[bytes]) -> Iterator[bytes]:
        decoder = Gzip()
        try:
            for piece in packed:
                yield from decoder.feed(piece)
            decoder.finish()
        except Damaged as error:
            self.odd(f"Its gzip is damaged ({error}): what comes after that was not read.")
        except Truncated:
            self.odd("Its gzip ends too soon: the rest is missing.")

    def _text(self, raw: bytes) -> str:
        try:
            return raw.decode(self._codec)
        except UnicodeDecodeError:
            return raw.decode("windows-1252", "replace")  # a URL with a wrong letter is better than none

    def _read(self, read: Callable[[bytes, bool], int], first: bytes, windows: Iterator[bytes]) -> None:
        """Read a file in windows with `read`, which returns how many bytes it has consumed.

        The rest is part of the next window. A negative number ends the reading.
        """
        try:
            window = first
            while True:
                following = next(windows, None)
                done = read(window, following is None)
                if following is None or done < 0:
                    break
                if len(window) - done > self._limits.window:
                    most = self._limits.window
                    self.odd(f"It has a tag, comment or line of more than {most:,} bytes: the rest was not read.")
                    break
                window = window[done:] + following
            self._end()
        except _Full:
            pass

    def _is_too_much(self) -> bool:
        self._looked_at += 1
        if self._looked_at <= MOST_ELEMENTS:
            return False
        self.odd(f"It has more than {MOST_ELEMENTS:,} tags or lines: the rest was not read.")
        return True

    # Lines

    def read_lines(self, window: bytes, is_last: bool) -> int:
        """Read URLs, one per line; return the bytes consumed, or -1 to stop."""
        for line in _LINE.finditer(window):
            if line.end() == len(window) and not is_last:
                return line.start()
            if self._is_too_much():
                return -1
            text = self._text(window[line.start() : min(line.end(), line.start() + _LONGEST)]).strip(_BLANKS)
            if text[:8].lower().startswith(("http://", "https://")):
                self._add(text, is_sitemap=False)
            elif text:
                self._illegible += 1
        return len(window)

    # XML

    def read_elements(self, window: bytes, is_last: bool) -> int:
        """Read a sitemap, an index or a feed; return the bytes consumed, or -1 to stop."""
        for element in _ELEMENT.finditer(window):
            if not is_last and not _is_decided(element, window):
                return element.start()
            if self._is_too_much():
                return -1
            if element[3] is None:
                if window.startswith(b"<!DOCTYPE", element.start()) and b"<!ENTITY" in element[0]:
                    self._has_entities = True
                    self.odd("It declares entities of its own. They are never expanded; what needs them is left out.")
            elif not self._read_element(element, is_at_end=element.end() == len(window)):
                return -1
        return len(window)

    def _read_element(self, element: re.Match[bytes], *, is_at_end: bool) -> bool:
        """Read one relevant element; return False to stop."""
        slash, given, name, written, content = element.groups()
        if self._prefix is None:  # the first element shows the prefix of the others
            if name == b"html":
                self.odd("It is an HTML page, not a sitemap.")
                return False
            self._is_index = name == b"sitemapindex"
            self._prefix = b"" if name == b"RDF" else given or b""
        if (given or b"") != self._prefix:
            return True  # <image:loc> and its like
        if name in (b"url", b"sitemap", b"item", b"entry"):
            self._end()
            self._inside = None if slash or written.endswith(b"/") else name
        elif not slash:
            if is_at_end and not written.endswith(b"/"):
                self.odd("It ends in the middle of an element.")
                return False
            self._take(name, written, content)
        return True

    def _take(self, name: bytes, written: bytes, content: bytes) -> None:
        """Store the value of an element."""
        match name:
            case b"loc":
                if self._loc is not None:
                    self._end()  # the end tag of the previous entry is missing
                self._loc = self._value(content)
            case b"link" if self._inside == b"item" and (value := self._value(content)):
                self._loc = value
            case b"link" if self._inside in (b"item", b"entry") and self._loc is None:
                self._looked_at += len(written) // 4  # attributes take about as long as tags
                values = attributes(self._text(written[:_LONGEST]))
                if values.get("rel", "alternate").strip().lower() == "alternate":
                    self._loc = values.get("href")
            case b"guid" if self._inside == b"item" and self._loc is None and b"false" not in written:
                value = self._value(content)
                self._loc = value if value.startswith(("http://", "https://")) else None

    def _value(self, content: bytes) -> str:
        """Return the text of an element; empty if it is too long."""
        if len(content) > _LONGEST:
            return ""
        self._looked_at += 2 * content.count(b"&")  # a reference takes longer than a tag
        if b"<" not in content:
            return _unescaped(self._text(content)).strip(_BLANKS)
        parts = []
        for part in _PART.finditer(content):
            raw, text = part.groups()
            parts.append(self._text(raw) if raw else _unescaped(self._text(text or b"")))
        return "".join(parts).strip(_BLANKS)

    def _end(self) -> None:
        """Add the current entry and begin another."""
        if self._loc is not None:
            is_sitemap = self._inside == b"sitemap" or (self._inside is None and self._is_index)
            loc, self._loc = self._loc, None
            self._add(loc, is_sitemap=is_sitemap)

    def _add(self, text: str, *, is_sitemap: bool) -> None:
        if self._entries >= self._limits.max_urls:
            self.odd(f"It lists more than {self._limits.max_urls:,} URLs: the rest was not read.")
            raise _Full
        self._entries += 1
        url = None if self._has_entities and _OTHER_REFERENCE.search(text) else self._join(text) if text else None
        if url is None:
            self._illegible += 1
            return
        known = len(self._known)
        self._known.add(fingerprint(url))
        if len(self._known) == known:
            return
        if is_sitemap and self._base is not None and url == self._base.text:
            self.odd("It lists itself.")
            return
        self._elsewhere += self._base is not None and host_of(url) != self._base.domain
        if is_sitemap:
            self.sitemaps[url] = None
        else:
            self.pages.append(url)

    # Results

    def parse_warnings(self) -> tuple[str, ...]:
        """Return the problems of the file."""
        if self._illegible:
            self.odd(f"{self._illegible:,} of its entries are no URLs.")
        if self._base is not None and self._elsewhere:
            self.odd(f"{self._elsewhere:,} of its URLs are on other hosts than {self._base.domain}.")
        if not self.pages and not self.sitemaps and not self._parse_warnings:
            self.odd("It lists nothing.")
        return tuple(self._parse_warnings)


def _absolute(text: str) -> str | None:
    url = parse_url(text)
    return url.text if isinstance(url, Url) else None


def _unescaped(text: str) -> str:
    """Return a text with XML's references replaced. Other ampersands are kept, as unescaped text."""
    return _REFERENCE.sub(lambda found: plain_text(found[0]), text) if "&" in text else text


def _is_decided(element: re.Match[bytes], window: bytes) -> bool:
    """Return whether no bytes after the window can change an element."""
    end = element.end()
    if len(window) - end < _UNDECIDED:
        return False
    # An empty match may be a tag whose end is beyond the window. The next `<` is searched first: it is near if there
    # are many tags, and `>` may be missing for all of them.
    return end > element.start() + 1 or window.find(b"<", end) >= 0 or window.find(b">", end) >= 0


def _windows(pieces: Iterator[bytes], size: int) -> Iterator[bytes]:
    """Yield the same bytes in pieces of one size, except for the last."""
    gathered = bytearray()
    for piece in pieces:
        gathered += piece
        while len(gathered) >= size:
            yield bytes(gathered[:size])
            del gathered[:size]
    if gathered:
        yield bytes(gathered)


def _peek(pieces: Iterator[bytes], count: int = 2) -> tuple[bytes, Iterator[bytes]]:
    """Return at least the first `count` bytes, if there are as many, and an iterator over all pieces."""
    first = b""
    for piece in pieces:
        first += piece
        if len(first) >= count:
            break
    return first, chain((first,), pieces)


def _transcoded(pieces: Iterator[bytes], codec: str) -> Iterator[bytes]:
    """Yield UTF-16 as UTF-8."""
    decoder = codecs.getincrementaldecoder(codec)("replace")
    for piece in pieces:
        yield decoder.decode(piece).encode("utf-8", "replace")
