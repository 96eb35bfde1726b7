"""Main text of a page, without navigation, headers, footers, asides and scripts (U12).

It needs a tree, and hostile pages can make a tree parser slow. So the parser gets only the beginning of a page, in a
simplified form: blocks without attributes, lines of text, and a bounded number of tags. It costs more than the fetch.
Call it only if the text is wanted, and off the event loop.
"""

from __future__ import annotations

import re
from importlib import import_module
from typing import Any, Literal

from curtsy.core.charset import decode
from curtsy.core.errors import not_imported
from curtsy.crawling.extract.page import XHTML, is_html, kind_of
from curtsy.crawling.extract.tokens import ATTRIBUTE_OR_GAP, ENDS, RAW

Reader = Literal["plain", "trafilatura"]

LONGEST = 2 << 20
"""Bytes of a page that are searched for its main text."""

MOST_TAGS = 10_000
"""Maximum of tags for the parser: its time grows with the square of nested tags, to 0.25 s for these."""

_CHUNK = 65_536

SECTIONS = frozenset({"article", "main", "body", "nav", "header", "footer", "aside"})
"""Tags that distinguish the main text from the rest."""

_LEFT_OUT = sorted(SECTIONS - {"article", "main", "body"})

BREAK = "\ue000"
"""Private-use character in place of block tags that are too many to keep."""

MARKUP = re.compile(
    rf"""<(?:
        (?=[sStTnNxXiI])((?i:noscript|{RAW})){ENDS}{ATTRIBUTE_OR_GAP}*+>
        [^<]*+(?:<(?!/(?i:\1){ENDS})[^<]*+)*+(?:</(?i:\1){ENDS}{ATTRIBUTE_OR_GAP}*+>?|\Z)
      | (/?[A-Za-z][^/> \t\n\f\r]*+){ATTRIBUTE_OR_GAP}*+>?
      | !--(?:-?>|[^-]*+(?:-(?!-!?>)[^-]*+)*+(?:--!?>|\Z))
      | [!?/][^>]*+>?
      |
    )""",
    re.DOTALL | re.VERBOSE,
)
"""Tag, comment, or element whose content has no markup, with the name of a tag or of that element."""

# In XML, such a tag is complete; in HTML, it would begin a script that lasts to the next end tag.
_CLOSED = re.compile(r"<(script|style|title|textarea|iframe|noscript)\b([^<>]*+)(?<=/)>", re.IGNORECASE)

# Inline elements, including all formatting elements (HTML Standard, 13.2.4.3).
_INLINE = frozenset(
    {
        "a", "abbr", "acronym", "b", "bdi", "bdo", "big", "cite", "code", "data", "del", "dfn", "em", "font", "i",
        "img", "input", "ins", "kbd", "label", "map", "mark", "nobr", "q", "rp", "rt", "ruby", "s", "samp", "small",
        "span", "strike", "strong", "sub", "sup", "time", "tt", "u", "var", "wbr",
    }
)  # fmt: skip


def main_text(body: bytes, content_type: str | None = None, *, reader: Reader = "plain") -> str:
    """Return the main text of a page, a line per block; empty if it is not HTML.

    `plain` takes the first of article, main and body, without navigation, header, footer, asides and scripts.
    `trafilatura` recognizes content better, takes longer, and must be installed. Only the first 2 MiB of a page are
    read.
    """
    if not is_html(content_type, body):
        return ""
    text, _ = decode(body[:LONGEST], content_type)
    if kind_of(content_type) == XHTML:
        text = _CLOSED.sub(r"<\1\2></\1>", text)
    if reader == "trafilatura":
        plain = text if text.count("<") <= MOST_TAGS else simplified(text).replace(BREAK, "<br>")
        return str(_trafilatura().extract(plain, include_comments=False) or "")
    from selectolax.lexbor import LexborHTMLParser, SelectolaxError  # 2 MB that most crawls do not need

    try:
        tree = LexborHTMLParser(_with_single_blanks(simplified(text)))
    except SelectolaxError:  # it gives no reason; an unreadable page has no text
        return ""
    tree.strip_tags(_LEFT_OUT, recursive=True)
    root = tree.css_first("article") or tree.css_first("main") or tree.body
    found = "" if root is None else root.text(separator="\n", strip=True, skip_empty=True)
    # selectolax before 1.0 also returns lines for the blanks between blocks.
    return "\n".join([line for each in found.replace(BREAK, "\n").split("\n") if (line := each.strip())])


def simplified(text: str) -> str:
    """Return a page in a form that is safe to parse: blocks without attributes, and lines of text.

    If the tags are too many, only the first sections are kept, and a `BREAK` replaces each other block tag.
    """
    try:
        return MARKUP.sub(_Bare(None), text)
    except _TooManyTagsError:
        return MARKUP.sub(_Bare(SECTIONS), text)


def _with_single_blanks(text: str) -> str:
    """Return a text with each run of blanks as one.

    It works in chunks, because a list of words takes ten times the memory of the text.
    """
    parts: list[str] = []
    for place in range(0, len(text), _CHUNK):
        chunk = text[place : place + _CHUNK]
        if chunk[0].isspace() and parts and not parts[-1].endswith(" "):
            parts.append(" ")
        parts.append(" ".join(chunk.split()))
        if chunk[-1].isspace():
            parts.append(" ")
    return "".join(parts)


class _TooManyTagsError(Exception):
    pass


class _Bare:
    """Replacement function for tags: the tag without attributes, a break, or nothing."""

    def __init__(self, kept: frozenset[str] | None) -> None:
        """Keep the tags in `kept`. None keeps all, and raises _TooManyTagsError above `MOST_TAGS`."""
        self._kept = kept
        self._left = MOST_TAGS

    def __call__(self, tag: re.Match[str]) -> str:
        if tag[2] is None:
            return "&lt;" if tag[0] == "<" else ""  # a lone `<` could become the beginning of a tag
        name = tag[2].lower()
        kind = name.removeprefix("/")
        if kind in _INLINE:
            return ""
        if self._kept is not None and (kind not in self._kept or not self._left):
            return BREAK
        if not self._left:
            raise _TooManyTagsError
        self._left -= 1
        return f"<{name}>"


def _trafilatura() -> Any:
    try:
        return import_module("trafilatura")
    except ImportError as error:
        need = 'the text reader "trafilatura" needs the library of that name'
        raise not_imported(need, "trafilatura", "text", error) from error
