"""Foreign content: what stands inside SVG, MathML and templates (HTML Standard, 13.2.6.5).

There a tag means something else than in HTML: `<title/>` is complete in a drawing, a script in it has tags inside, and
the links of a template are not links of the page. Which rules hold depends on the elements that are open, so they are
kept in a stack while such content lasts, and only then: the rest of a page is read without one (`markup.py`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from curtsy.crawling.extract.tokens import (
    ATTRIBUTE,
    COMMENT,
    LONGEST_TAG,
    LONGEST_TITLE,
    RAW,
    TITLE,
    attributes,
    end_of_comment,
    end_of_raw,
    end_of_tag,
)

DEPTH = 512
"""Elements that are open at once, at most, as in browsers; deeper ones are read as if they were empty."""

LOOKED_BACK = 4096
"""Characters before foreign content in which it is looked for what is open around it."""

_TAG = re.compile(
    rf"""<(?:
        (/?)([A-Za-z][^/> \t\n\f\r]*+)((?: [ \t\n\f\r]++ | /(?!>) | {ATTRIBUTE} ){{0,65535}}+)(/?)(>?)
      | {COMMENT}
      | (!\[CDATA\[)
      | (!--)
      | [!?/][^>]*+
    )""",
    re.DOTALL | re.VERBOSE,
)

_NO_MARKUP = re.compile(r"<(?:!--|(script|style)\b)")

_RAW = frozenset(RAW.split("|"))
_TOLD = frozenset({"a", "area", "base", "link", "meta"})
_LINKS = frozenset({"a", "area"})
_VOID = frozenset(
    {
        "area", "base", "basefont", "bgsound", "br", "col", "embed", "frame", "hr", "img", "image", "input", "keygen",
        "link", "meta", "param", "source", "track", "wbr",
    }
)  # fmt: skip
_BREAKS_OUT = frozenset(
    {
        "b", "big", "blockquote", "body", "br", "center", "code", "dd", "div", "dl", "dt", "em", "embed", "h1", "h2",
        "h3", "h4", "h5", "h6", "head", "hr", "i", "img", "li", "listing", "menu", "meta", "nobr", "ol", "p", "pre",
        "ruby", "s", "small", "span", "strong", "strike", "sub", "sup", "table", "tt", "u", "ul", "var",
    }
)  # fmt: skip
_ENDS_PARAGRAPH = frozenset(
    {
        "address", "article", "aside", "blockquote", "center", "details", "dialog", "dir", "div", "dl", "fieldset",
        "figcaption", "figure", "footer", "form", "h1", "h2", "h3", "h4", "h5", "h6", "header", "hgroup", "hr", "li",
        "dd", "dt", "listing", "main", "menu", "nav", "ol", "p", "pre", "search", "section", "summary",
        "table", "ul", "xmp",
    }
)  # fmt: skip
_IN_TABLE = frozenset({"caption", "colgroup", "tbody", "thead", "tfoot", "tr", "td", "th"})
_NOT_NESTED = frozenset({"a", "button", "nobr"})
_SCOPES = frozenset({"table", "td", "th", "caption"})
_CELLS = _IN_TABLE | {"table"}
_POINTS = {
    "svg": frozenset({"foreignobject", "desc", "title"}),
    "math": frozenset({"mi", "mo", "mn", "ms", "mtext"}),
}
_NOT_AROUND = _VOID | _RAW | {"body", "html", "head", "p", "form", "svg", "math"}
_AFTER_NAME = tuple("/> \t\n\f\r")
_ENCODED_HTML = ("text/html", "application/xhtml+xml")


class _Element(NamedTuple):
    kind: str
    """`html`, `svg` or `math`."""
    name: str
    is_point: bool = False
    """Whether what is inside it is HTML again (an integration point)."""


_TEMPLATE = _Element("html", "template", is_point=True)


class Subtree:
    """A drawing, a formula or a template, from its start tag to where it ends."""

    def __init__(self, text: str, start: int) -> None:
        self._text = text
        self._start = start
        self.place = start
        """How far it has been read; at last, where it ends."""
        self.work = 0
        """Tags that were read; one that takes longer counts for several."""
        self._stack: list[_Element] = []
        self._templates = 0
        """Templates that are open."""
        self._before: str | None = None
        """What stands before it, without comments and scripts; None if nobody has asked yet."""

    def tags(self, most: int) -> Iterator[tuple[str, str]]:
        """Read to the end, or as long as `most` tags take. Yields those that matter, as `markup.Scan` does."""
        text = self._text
        while self.work < most:
            self.work += 1
            token = _TAG.search(text, self.place)
            if token is None:
                self.place = len(text)
                return
            self.place = token.end()
            end, name, written, closed, is_whole = token.group(1, 2, 3, 4, 5)
            if name is None:
                self._pass_over(token)
                continue
            if not is_whole:
                self.place, written, closed = end_of_tag(text, token.end()), "", ""
            name = name.lower()
            if end:
                self._end(name, token.start())
            elif self._begins_outside(name, written):
                self.place = token.start()
                return
            elif self._is_html(name):
                yield from self._html(name, written, closed)
            else:
                if name in _LINKS and not self._templates:
                    yield name, written
                if not closed:
                    self._push(_foreign(self._stack[-1].kind, name, written))
            if not self._stack:
                return

    def _pass_over(self, token: re.Match[str]) -> None:
        """Pass over what is no tag."""
        if token[6] is not None and self._stack and self._stack[-1].kind != "html":
            end = self._text.find("]]>", token.end())
            self.place = len(self._text) if end < 0 else end
        elif token[7] is not None:
            self.place = end_of_comment(self._text, token.end())
        elif token[6] is not None:
            end = self._text.find(">", token.start())
            self.place = len(self._text) if end < 0 else end

    def _push(self, element: _Element) -> None:
        if len(self._stack) < DEPTH:
            self._stack.append(element)
            self._templates += element is _TEMPLATE

    def _cut(self, place: int) -> None:
        """Close all elements from one on."""
        self._templates -= sum(each is _TEMPLATE for each in self._stack[place:])
        del self._stack[place:]

    # Start tags

    def _is_html(self, name: str) -> bool:
        """Whether a start tag is one of HTML."""
        if not self._stack:
            return True
        kind, parent, is_point = self._stack[-1]
        if kind == "html" or (parent == "annotation-xml" and name == "svg"):
            return True
        return is_point and not (kind == "math" and name in ("mglyph", "malignmark"))

    def _begins_outside(self, name: str, written: str) -> bool:
        """Whether a start tag ends the foreign content around it, and is read behind that."""
        if not self._stack or self._is_html(name):
            return False
        if name not in _BREAKS_OUT and not (name == "font" and not attributes(written).keys().isdisjoint(_FONT)):
            return False
        self._break_out()
        return not self._stack

    def _break_out(self) -> None:
        while self._stack and self._stack[-1].kind != "html" and not self._stack[-1].is_point:
            self._stack.pop()

    def _html(self, name: str, written: str, closed: str) -> Iterator[tuple[str, str]]:
        """Take in a start tag of HTML."""
        if name in ("svg", "math"):
            if not closed:
                self._push(_Element(name, name))
        elif name == "template":
            self._push(_TEMPLATE)
        elif name in _RAW:
            begin, self.place = self.place, end_of_raw(name, self._text, self.place)
            if name == TITLE and not self._templates:
                yield TITLE, self._text[begin : min(self.place, begin + LONGEST_TITLE)]
        else:
            if name in _TOLD and not self._templates and len(written) < LONGEST_TAG:
                yield name, written
            implied = "p" if name in _ENDS_PARAGRAPH else name if name in _NOT_NESTED else None
            if implied is not None and (open_one := self._last_html(implied)) is not None:
                self._cut(open_one)
            if name not in _VOID and (name not in _IN_TABLE or self._is_in_table()):
                self._push(_Element("html", name))

    def _is_in_table(self) -> bool:
        return any(each is _TEMPLATE or each.name == "table" for each in self._stack)

    # End tags

    def _last_html(self, name: str) -> int | None:
        """Return the place of the last open element of HTML with that name, up to the next boundary."""
        self.work += len(self._stack) // 64
        for place in range(len(self._stack) - 1, -1, -1):
            element = self._stack[place]
            if element.kind == "html" and element.name == name:
                return place
            if element is _TEMPLATE or (name not in _CELLS and (element.is_point or element.name in _SCOPES)):
                return None
        return None

    def _end(self, name: str, start: int) -> None:
        stack = self._stack
        self.work += len(stack) // 64
        if stack[-1].kind != "html":
            if name in ("p", "br"):
                self._break_out()
                return
            for place in range(len(stack) - 1, -1, -1):
                if stack[place].kind == "html":
                    break
                if stack[place].name == name:
                    self._cut(place)
                    return
        if name == "template":
            if self._templates:
                self._cut(next(place for place in range(len(stack) - 1, -1, -1) if stack[place] is _TEMPLATE))
        elif (place_of_html := self._last_html(name)) is not None:
            self._cut(place_of_html)
        elif self._ends_around(name):
            self._cut(0)
            self.place = start

    def _ends_around(self, name: str) -> bool:
        """Whether an end tag is that of an element around all of this, which ends with it."""
        if name in _NOT_AROUND:
            return False
        if any(each is _TEMPLATE or (each.is_point and name not in _CELLS) for each in self._stack):
            return False
        self.work += 32  # it takes so much longer than a tag
        if self._before is None:
            self._before = _markup(self._text[max(0, self._start - LOOKED_BACK) : self._start].lower())
        before = self._before
        return all(_is_open(before, each) for each in ((name, "table") if name in _IN_TABLE else (name,)))


_FONT = frozenset({"color", "face", "size"})


def _markup(text: str) -> str:
    """Return a part of a page without its comments, scripts and styles; those that do not end in it stay."""
    # No single pattern: it would look for the missing end of each, and a part has a thousand beginnings.
    parts: list[str] = []
    done = place = 0
    missing: set[str] = set()
    while (begun := _NO_MARKUP.search(text, place)) is not None:
        place, begin, ending = begun.end(), begun.end(), "-->"
        if begun[1]:
            close = text.find(">", begin)
            if close < 0:
                break
            if text[close - 1] == "/":
                continue
            begin, ending = close + 1, f"</{begun[1]}"
        end = -1 if ending in missing else text.find(ending, begin)
        if end < 0:
            missing.add(ending)
            continue
        parts.append(text[done : begun.start()])
        done = place = end + len(ending)
    return "".join((*parts, text[done:]))


def _is_open(before: str, name: str) -> bool:
    """Whether more tags of an element begin than end in a part of the page."""
    begins, ends = (
        sum(each[:1] in _AFTER_NAME for each in before.split(beginning + name)[1:]) for beginning in ("<", "</")
    )
    return begins > ends


def _foreign(kind: str, name: str, written: str) -> _Element:
    """Return an element of SVG or MathML, inside another one."""
    is_point = name in _POINTS[kind]
    if kind == "math" and name == "annotation-xml":
        is_point = attributes(written).get("encoding", "").lower() in _ENCODED_HTML
    return _Element(kind, name, is_point)
