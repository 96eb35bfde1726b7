"""References of a page or a style sheet to other URLs, with their places in the text.

`markup.py` finds the links of a page at the least cost. This module finds every URL in the markup and the CSS: links,
and *requisites*, which a browser loads to show the page (images, styles, scripts, fonts, frames). A mirror replaces
them. Text that is UTF-8 read as Latin-1, as of `charset.octets`, is fine: markup is ASCII.
"""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Iterator
from enum import Enum, auto
from typing import NamedTuple

from curtsy.crawling.extract.tokens import (
    ATTRIBUTES,
    ENDS,
    RAW,
    SCRIPT,
    attribute_places,
    end_of_comment,
    end_of_raw,
    end_of_tag,
    unescape,
)


class Form(Enum):
    """Form of a value that contains URLs."""

    LINK = auto()
    REQUISITE = auto()
    BASE = auto()
    SRCSET = auto()
    REFRESH = auto()
    STYLE = auto()
    """CSS in an attribute."""

    GUARD = auto()
    """Attribute, with its name, that forbids a browser to load other bytes, or from another origin."""

    SHEET = auto()
    """CSS in a style element, or a style sheet: without character references."""


class Value(NamedTuple):
    """Part of a text that contains URLs: an attribute's value without its quotes, or CSS."""

    start: int
    end: int
    form: Form
    is_quoted: bool = True
    """False for an attribute's value without quotes."""


class Piece(NamedTuple):
    """URL in a value, with its place there."""

    start: int
    end: int
    url: str


# Comments, ends of foreign content, and start tags that have attributes or content of another kind.
_TAG = re.compile(
    rf"""<(?:(!--)|/(svg|math){ENDS}|
        (?=[A-Za-z][^/> \t\n\f\r]*+[/ \t\n\f\r]|(?:svg|math|{RAW})>)([A-Za-z][^/> \t\n\f\r]*+)({ATTRIBUTES})(>?+))""",
    re.ASCII | re.VERBOSE | re.IGNORECASE,
)
_RAW = frozenset(RAW.split("|"))
_FOREIGN = frozenset({"svg", "math"})

_LINK, _REQUISITE = Form.LINK, Form.REQUISITE
_PICTURE = {"src": _REQUISITE, "srcset": Form.SRCSET}
_XLINK = {"href": _REQUISITE, "xlink:href": _REQUISITE}
_BACKGROUND = {"background": _REQUISITE}
_TAGS: dict[str, dict[str, Form]] = {
    "a": {"href": _LINK, "xlink:href": _LINK},
    "area": {"href": _LINK},
    "audio": {"src": _REQUISITE},
    "base": {"href": Form.BASE},
    "body": _BACKGROUND,
    "embed": {"src": _REQUISITE},
    "feimage": _XLINK,
    "form": {"action": _LINK},
    "frame": {"src": _REQUISITE},
    "iframe": {"src": _REQUISITE},
    "image": _XLINK,
    "img": _PICTURE,
    "input": {"src": _REQUISITE},
    "link": {"href": _LINK, "imagesrcset": Form.SRCSET},
    "meta": {"content": Form.REFRESH},
    "object": {"data": _REQUISITE},
    "script": {"src": _REQUISITE, **_XLINK},
    "source": _PICTURE,
    "table": _BACKGROUND,
    "td": _BACKGROUND,
    "th": _BACKGROUND,
    "track": {"src": _REQUISITE},
    "use": _XLINK,
    "video": {"src": _REQUISITE, "poster": _REQUISITE},
}
"""Attributes with URLs, by tag."""

_LOADED = frozenset(["stylesheet", "icon", "apple-touch-icon", "mask-icon", "preload", "modulepreload", "manifest"])
"""Relations of a `link` that a browser loads with the page."""

_OPENSEARCH = "application/opensearchdescription+xml"
"""Type of a `link` whose relation `search` a browser loads. Other links of that relation lead to a search page."""

_STRING = r"""(?:"(?P<double{0}>(?:[^"\\\n]|\\.)*+)"|'(?P<single{0}>(?:[^'\\\n]|\\.)*+)')"""
_CSS = re.compile(
    rf"""/\*(?:[^*]|\*(?!/))*+(?:\*/|\Z)
    | @namespace\b[^;]*+;
    | url\([ \t\r\n\f]*+(?:{_STRING.format(1)}|(?P<bare>[^"'()\\ \t\r\n\f]++))[ \t\r\n\f]*+\)
    | @import[ \t\r\n\f]++{_STRING.format(2)}
    | {_STRING.format(3)}""",
    re.VERBOSE | re.IGNORECASE | re.DOTALL,
)
_IN_CSS = ("double1", "single1", "bare", "double2", "single2")
_CSS_ESCAPE = re.compile(r"\\(?:([0-9a-fA-F]{1,6})[ \t\r\n\f]?|(.))", re.DOTALL)
_CANDIDATE = re.compile(r"[ \t\n\f\r,]*+([^ \t\n\f\r]++)")
_DESCRIPTORS = re.compile(r"(?:\([^)]*+\)?|[^,(])*+,?")
_STYLE = re.compile("style", re.IGNORECASE)
_GUARD = re.compile(
    r"""[ \t\n\f\r]++(?:integrity|crossorigin)(?=[=\s/>]|\Z)(?:=(?:"[^"]*+"|'[^']*+'|[^> \t\n\f\r]*+))?+""",
    re.IGNORECASE,
)
_GUARDED = frozenset({"link", "script"})
_REFRESH = re.compile(r"""[\s\d.]*+[;,]?\s*+url\s*+=\s*+["']?\s*+([^"']+)""", re.IGNORECASE)
_BLANKS = " \t\n\f\r"


def values(text: str, *, is_xml: bool = False) -> Iterator[Value]:
    """Yield the values with URLs of a page, tag by tag. With `is_xml`, an element such as `<script/>` is complete."""
    place, foreign = 0, 0
    while (found := _TAG.search(text, place)) is not None:
        place, name = found.end(), found[3]
        if name is None:
            if found[1] is not None:
                place = end_of_comment(text, place - 2)  # <!--> is a comment, too
            foreign = max(0, foreign - (found[2] is not None))
            continue
        if not found[5]:  # it is too long for the pattern
            place = end_of_tag(text, place) + 1
        name, (start, end) = name.lower(), found.span(4)
        if name in _TAGS or _STYLE.search(text, start, end) is not None:
            yield from _in_tag(name, text, start, end)
        is_complete = text.startswith("/", place - 2) and (is_xml or foreign > 0)
        if name in _FOREIGN and not text.startswith("/", place - 2):
            foreign += 1
        elif name in _RAW and not is_complete and (not foreign or name in ("style", SCRIPT)):
            begin, place = place, end_of_raw(name, text, place)
            if name == "style":
                yield Value(begin, place, Form.SHEET)


def _in_tag(name: str, text: str, start: int, end: int) -> Iterator[Value]:
    forms = _TAGS.get(name, {})
    places: dict[str, tuple[int, int, bool]] = {}
    for attribute, begin, stop, is_quoted in attribute_places(text, start, end):
        places.setdefault(attribute, (begin, stop, is_quoted))
    for attribute, (begin, stop, is_quoted) in places.items():
        form = Form.STYLE if attribute == "style" else forms.get(attribute)
        if form is None or begin == stop:
            continue
        if name == "link" and form is _LINK and "rel" in places:
            relations = text[slice(*places["rel"][:2])].lower().split()
            if not _LOADED.isdisjoint(relations) or ("search" in relations and _is_opensearch(text, places)):
                form = _REQUISITE
        elif name == "meta":
            kind = places.get("http-equiv", (0, 0))
            if text[kind[0] : kind[1]].strip().lower() != "refresh":
                continue
        yield Value(begin, stop, form, is_quoted)
    if name in _GUARDED:
        for guard in _GUARD.finditer(text, start - 1, end):
            yield Value(*guard.span(), Form.GUARD)


def _is_opensearch(text: str, places: dict[str, tuple[int, int, bool]]) -> bool:
    return "type" in places and text[slice(*places["type"][:2])].strip(_BLANKS).lower() == _OPENSEARCH


def pieces(form: Form, value: str) -> list[Piece]:
    """Return the URLs in a decoded value, in order."""
    match form:
        case Form.SRCSET:
            return list(_in_srcset(value))
        case Form.REFRESH:
            found = _REFRESH.match(value)
            return [] if found is None else [Piece(*found.span(1), found[1])]
        case Form.STYLE | Form.SHEET:
            return list(_in_css(value))
        case _:
            return [Piece(0, len(value), value.strip(_BLANKS))]


def _in_srcset(value: str) -> Iterator[Piece]:
    place = 0
    while (found := _CANDIDATE.match(value, place)) is not None:
        url = found[1].rstrip(",")
        if url:
            yield Piece(found.start(1), found.start(1) + len(url), url)
        place = found.end()
        if len(url) == len(found[1]) and (rest := _DESCRIPTORS.match(value, place)) is not None:
            place = rest.end()


def _in_css(value: str) -> Iterator[Piece]:
    for found in _CSS.finditer(value):
        for name in _IN_CSS:
            if found[name]:
                url = found[name]
                yield Piece(*found.span(name), _CSS_ESCAPE.sub(_unescaped, url) if "\\" in url else url)


def _unescaped(escape: re.Match[str]) -> str:
    if escape[1] is None:
        return "" if escape[2] == "\n" else escape[2]
    code = int(escape[1], 16)
    return chr(code) if 0 < code < 0xD800 or 0xDFFF < code < 0x110000 else "\ufffd"


def decoded(text: str, value: Value, decode: Callable[[str], str]) -> str:
    """Return a value with its character references replaced. `decode` reads a part of the text."""
    given = decode(text[value.start : value.end])
    return unescape(given) if value.form is not Form.SHEET and "&" in given else given


def replaced(
    text: str,
    found: list[Value],
    new_url: Callable[[Piece, Form], str | None],
    decode: Callable[[str], str],
    encode: Callable[[str], str],
) -> str:
    """Return the text with other URLs; all else stays as it is.

    `new_url` returns a URL of characters that need no quotes, or None to keep the one that is there. `encode` reverses
    `decode`.
    """
    changes = []
    for value in found:
        given = decoded(text, value, decode)
        new, end = [], 0
        for piece in pieces(value.form, given):
            if (url := new_url(piece, value.form)) is not None:
                new += [given[end : piece.start], url]
                end = piece.end
        if new:
            whole = "".join(new) + given[end:]
            if value.form not in (Form.SHEET, Form.GUARD):
                whole = html.escape(whole) if value.is_quoted else f'"{html.escape(whole)}"'
            changes.append((value.start, value.end, encode(whole)))
    parts, place = [], 0
    for start, stop, whole in sorted(changes):
        parts += [text[place:start], whole]
        place = stop
    return "".join(parts) + text[place:]
