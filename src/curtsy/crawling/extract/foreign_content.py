"""Reader of foreign content: SVG, MathML and templates (HTML Standard, 13.2.6.5).

Tags have another meaning there. `<title/>` is complete in SVG, a script in it has tags inside, and the links of a
template are not links of the page. The rules depend on the open elements, so they are kept in a stack within such
content only. The rest of a page is read without a stack (`markup.py`).
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
"""Maximum of open elements, as in browsers; deeper ones are read as if they were empty."""

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
_FONT = frozenset({"color", "face", "size"})
_AROUND = _ENDS_PARAGRAPH - {"p"} | _CELLS | {"button", "label", "span"}
"""Elements that may surround foreign content: their end tag ends it if it was left open."""

_ENCODED_HTML = ("text/html", "application/xhtml+xml")


class _Element(NamedTuple):
    kind: str
    """Namespace: `html`, `svg` or `math`."""
    name: str
    is_point: bool = False
    """True for an integration point: its content is HTML again."""


_TEMPLATE = _Element("html", "template", is_point=True)


class Subtree:
    """SVG, MathML or template element, from its start tag to its end."""

    def __init__(self, text: str, start: int) -> None:
        self._text = text
        self.place = start
        """Position up to which the text was read; finally, the end of the element."""
        self.work = 0
        """Number of tags read; a slow one counts for several."""
        self._stack: list[_Element] = []
        self._templates = 0
        """Number of open templates."""

    def tags(self, most: int) -> Iterator[tuple[str, str]]:
        """Yield the relevant tags, as `markup.Scan` does, up to the end or until `work` is `most`."""
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
        """Skip a token that is not a tag."""
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
        """Close all elements from a position in the stack."""
        self._templates -= sum(each is _TEMPLATE for each in self._stack[place:])
        del self._stack[place:]

    # Start tags

    def _is_html(self, name: str) -> bool:
        """Return whether a start tag is one of HTML."""
        if not self._stack:
            return True
        kind, parent, is_point = self._stack[-1]
        if kind == "html" or (parent == "annotation-xml" and name == "svg"):
            return True
        return is_point and not (kind == "math" and name in ("mglyph", "malignmark"))

    def _begins_outside(self, name: str, written: str) -> bool:
        """Return whether a start tag ends all of the foreign content and is to be read after it."""
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
        """Process a start tag of HTML."""
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
        """Return the stack position of the last open HTML element with a name, up to the next boundary."""
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
        """Return whether an end tag closes an element around the whole subtree, and so the subtree."""
        if name not in _AROUND:
            return False
        return not any(each is _TEMPLATE or (each.is_point and name not in _CELLS) for each in self._stack)


def _foreign(kind: str, name: str, written: str) -> _Element:
    """Return the stack entry of a start tag inside SVG or MathML."""
    is_point = name in _POINTS[kind]
    if kind == "math" and name == "annotation-xml":
        is_point = attributes(written).get("encoding", "").lower() in _ENCODED_HTML
    return _Element(kind, name, is_point)
