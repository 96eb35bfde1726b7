"""Conversion of links for a mirror: those to its files become relative, all others absolute.

Everything else in a page or a style sheet stays as it is, byte for byte. The conversion starts from the body as it was
received, so it can be repeated at any time.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from urllib.parse import quote

from curtsy.core.charset import octets
from curtsy.core.url import Url, parse_url
from curtsy.crawling.extract.page import XHTML, is_html, kind_of
from curtsy.crawling.extract.references import Form, Piece, Value, decoded, pieces, replaced, values
from curtsy.crawling.extract.traps import Traps
from curtsy.crawling.outputs.mirror_names import link_to
from curtsy.crawling.requisites import STYLES

Names = Callable[[Iterable[str]], Mapping[str, str]]
"""Function that returns the name of the file of each URL that has one."""

_TRAPS = Traps()
"""Rules by which a crawl shortens URLs before it fetches them."""

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
MOST = 50_000
"""Maximum number of attributes with links that are converted in one page; later ones stay as they are."""

_NOT_ASCII = ("utf-16", "iso2022")
"""Beginnings of the names of encodings in which an ASCII byte may be a part of another character."""


def has_links(content_type: str | None, body: bytes) -> bool:
    """Return whether a body has links to convert."""
    return kind_of(content_type) == STYLES or is_html(content_type, body)


def converted(body: bytes, content_type: str | None, url: Url, name: str, names: Names) -> bytes:
    """Return a body of a URL with converted links, for its file. A body that cannot be decoded is unchanged."""
    codec = octets(body, content_type, 0)[1]
    if not codec.startswith(_NOT_ASCII):
        text = _Conversion(body.decode("latin-1"), codec, content_type, url, name).text(names)
        return text.encode("latin-1")
    try:
        text = body.decode(codec)
        if text.encode(codec) == body:
            return _Conversion(text, None, content_type, url, name).text(names).encode(codec, "xmlcharrefreplace")
    except UnicodeError:
        pass
    return body


class _Conversion:
    """Conversion of one text. `codec` is that of its bytes, if they are read as Latin-1."""

    def __init__(self, text: str, codec: str | None, content_type: str | None, url: Url, name: str) -> None:
        self._text, self._codec, self._name = text, codec, name
        self._values = [Value(0, len(text), Form.SHEET)]
        if kind_of(content_type) != STYLES:
            self._values = list(islice(values(text, is_xml=kind_of(content_type) == XHTML), MOST))
        given = next((decoded(text, each, self._decode) for each in self._values if each.form is Form.BASE), None)
        base = None if given is None else parse_url(given, url)
        self._has_base = isinstance(base, Url)
        self._base = base if isinstance(base, Url) else url
        self._urls: dict[str, str] = {}
        """Canonical URL of each reference that has one."""
        self._names: Mapping[str, str] = {}
        self._is_local = False
        """True if the last URL was one of a file."""

    def text(self, names: Names) -> str:
        """Return the converted text."""
        for value in self._values:
            for piece in pieces(value.form, decoded(self._text, value, self._decode)):
                if piece.url not in self._urls and self._leads_elsewhere(piece.url, value.form):
                    url = parse_url(piece.url, self._base)
                    if isinstance(url, Url):
                        self._urls[piece.url] = url.text
        fetched = {url: _TRAPS.stripped(url) for url in self._urls.values()}
        found = names({*fetched, *fetched.values()})
        self._names = {url: name for url, other in fetched.items() if (name := found.get(url) or found.get(other))}
        return replaced(self._text, self._values, self._new_url, self._decode, self._encode)

    def _leads_elsewhere(self, reference: str, form: Form) -> bool:
        if form in (Form.BASE, Form.GUARD):
            return False
        return reference != "" and (self._has_base or not reference.startswith("#"))

    def _new_url(self, piece: Piece, form: Form) -> str | None:
        if form is Form.BASE:
            return ""
        if form is Form.GUARD:
            return "" if self._is_local else None
        self._is_local = False
        if (url := self._urls.get(piece.url)) is None:
            return None
        _, mark, fragment = piece.url.partition("#")
        fragment = mark + quote(fragment, safe="/?:@!$&*+,;=~%-._")
        name = self._names.get(url)
        if name is None:
            return None if _SCHEME.match(piece.url) else url + fragment
        self._is_local = True
        new = fragment if name == self._name and mark else link_to(name, self._name) + fragment
        return None if new == piece.url else new

    def _decode(self, part: str) -> str:
        if self._codec is None or part.isascii():
            return part
        return part.encode("latin-1").decode(self._codec, "replace")

    def _encode(self, part: str) -> str:
        if self._codec is None or part.isascii():
            return part
        return part.encode(self._codec, "xmlcharrefreplace").decode("latin-1")
