"""Scanner for the tags of a page that concern links, in one pass.

It implements the tokenizer of the HTML Standard (13.2.5) as far as links need it, and builds no tree. Hostile pages
make tree parsers expensive: the C parser for the main text takes 1.1 GB for 36 KB of open `<font>` tags. It takes
minutes for 100,000 nested `<div>` or attributes, and cannot be interrupted. Here every character is read once or twice,
and the work per page is bounded. `foreign_content.py` reads SVG, MathML and templates, which have their own rules. The
tests compare the results with that parser.

The pattern searches for tokens and *fails* at an ordinary tag without links, so that the search proceeds to the next
`<` at the speed of `memchr`. No `<` inside an ordinary tag is missed, because a tag that contains one is not ordinary.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from itertools import islice, pairwise

from curtsy.crawling.extract.foreign_content import Subtree
from curtsy.crawling.extract.tokens import (
    ATTRIBUTES,
    COMMENT,
    ENDS,
    GAP,
    LONGEST_TAG,
    LONGEST_TITLE,
    RAW,
    TITLE,
    end_of_raw,
    end_of_token,
    from_octets,
    unescape,
)

MOST_WORK, FOR_LINK = 600_000, 30
"""Steps for one page, and additional steps for each link that it may have.

An ordinary tag and a plain link are none, because the size of a page limits them; other tags are several.
"""

RESTART, FOREIGN = 4, 8
"""Steps to restart behind a long token, and to read a tag in foreign content."""

WINDOW = 1 << 18
"""Characters searched at once, at most: the interpreter lock is not released meanwhile."""


def _any_case(*names: str) -> str:
    """Return a pattern of names in any case: the flag IGNORECASE takes twice the time."""
    return "|".join("".join(f"[{letter}{letter.upper()}]" for letter in name) for name in names)


def _no(characters: str) -> str:
    """Return a class of all other characters up to U+00FF: a negated class takes twice the time."""
    borders = sorted({-1, 256, *map(ord, characters)})
    pairs = [(low + 1, high - 1) for low, high in pairwise(borders) if high - low > 1]
    return "[" + "".join(f"\\x{low:02x}-\\x{high:02x}" for low, high in pairs) + "]"


_DOUBLE, _SINGLE, _BARE = _no('"<'), _no("'<"), _no("\"'<> \t\n\f\r")
_VALUE = rf"""(?:"{_DOUBLE}*+"|'{_SINGLE}*+'|{_BARE}++)"""

# Rest of an ordinary tag, from within its name. A quote counts only behind the `=` of an attribute's name: a tag with
# any other quote is not ordinary.
_NAME, _INSIDE = _no("<>\"'=/ \t\n\f\r"), _no("<>\"'=")
_REST = rf"""{_NAME}*+(?:>|[/ \t\n\f\r]{_INSIDE}*+(?:=(?<=[a-zA-Z0-9-]=){_VALUE}{_INSIDE}*+){{0,999}}+>)"""

# The same for tags that are consumed: a `<` in their values does no harm, and long paths are read faster.
_LONG_REST = _REST.replace(_DOUBLE, '[^"]').replace(_SINGLE, "[^']")

# Names of ordinary tags: their first letters exclude all others.
_ORDINARY = r"""(?:[/c-hjko-ru-wyzC-HJKO-RU-WYZ] | [sS](?![cCvV]|[tT](?![rR])) | [tT](?![eEiI]) | [lL](?![iI][nN])
    | [bB](?![aA]) | [iI](?![fF]) | [mM](?![eE]|[aA][tT]) | [aA][b-qs-zB-QS-Z] | [nN](?![oO]))"""

# The usual link: group 3 is an href in which only the fragment, which is left out, needs a closer look.
_OTHER = rf"""(?:[a-gi-qs-zA-GI-QS-Z:@_] | [hH](?![rR][eE][fF](?![a-zA-Z-])) | [rR](?![eE][lL](?![a-zA-Z-])))
    [a-zA-Z0-9_:.@-]*+(?:={_VALUE})?+"""
_REL = rf"""{_any_case("rel")}=("[a-zA-Z -]{{0,99}}+"|'[a-zA-Z -]{{0,99}}+'|[a-zA-Z-]{{1,99}}+)"""
_FRAGMENT = _no("\"'&<> \t\n\f\r")
_HREF = rf"""{_any_case("href")}=(?:
    (?![ \t\n\f\r>])(["']?+)([a-zA-Z0-9_.~!$()*+,=:@/?-]{{0,2000}}+)(?:\#{_FRAGMENT}{{0,2000}}+)?+\2
  | "({_DOUBLE}{{0,9999}}+)"
  | '({_SINGLE}{{0,9999}}+)'
)"""
_OTHERS = rf"""(?:{_OTHER}|(?(1)(?!)|)(?(6)(?!)|){_REL})"""
_LINK = rf"""[aA]{GAP}++(?:(?![hH][rR][eE][fF]=){_OTHERS}{GAP}++){{0,99}}+{_HREF}
    (?:(?(1)(?!)|)>|(?:{GAP}++{_OTHERS}){{0,99}}+(?(1)()|){GAP}*+/?>)"""
_ANCHOR = rf"[aA](?:{GAP}++{_OTHER}){{0,99}}+{GAP}*+>"

# An SVG of shapes only; `foreign_content.py` reads all others.
_SHAPE = (
    r"/?(?:path|g|use|circle|rect|line|poly(?:line|gon)|ellipse|defs|stop|symbol|mask|clipPath|text|tspan"
    r"|(?:linear|radial)Gradient)" + ENDS
)
_QUIET = rf"{COMMENT}|title>[^<]*+</title>"
_SVG = rf"svg{ENDS}{_REST}(?<!/>)[^<]*+(?:<(?:{_SHAPE}{_LONG_REST}|{_QUIET})[^<]*+){{0,999}}+</svg>"

# A template of ordinary tags only: its links are not links of the page.
_TEMPLATE = rf"""template{ENDS}{_REST}[^<]*+
    (?:<(?:(?!/[tT][eE][mM])(?:{_ORDINARY}|[aA]{ENDS}|svg){_LONG_REST}|{_QUIET})[^<]*+){{0,999}}+</template>"""

_TOKEN = re.compile(
    rf"""<(?:
        {_LINK}
      | (?![^A-Za-z!?/] | /[a-zA-Z0-9]++> | {_ORDINARY}{_REST} | {_ANCHOR})(?:
            {COMMENT}
          | {_any_case("script")}{ENDS}{_REST}(?<!/>)[^<]*+(?:<(?!/{_any_case("script")}|!--)[^<]*+){{0,999}}+
            (?=</{_any_case("script")}{ENDS})
          | {_SVG}
          | {_TEMPLATE}
          | (?=[aAbBlLmM])({_any_case("area", "base", "link", "meta", "a")}){ENDS}({ATTRIBUTES})>
          | (?=[tTsSxXiInN])({_any_case(*RAW.split("|"))}){ENDS}{ATTRIBUTES}>
          | (?=[sSmMtT])({_any_case("svg", "math", "template")}){ENDS}
          | /?[A-Za-z][^/> \t\n\f\r]*+{ATTRIBUTES}>
          | (?!!--|/[A-Za-z])[!?/][^>]*+>
          | ()
        )
    )""",
    re.ASCII | re.DOTALL | re.VERBOSE,
)
_PLAIN, _MARK, _TAG, _RAW, _SUBTREE = 3, 7, 9, 10, 11
"""Numbers of the last matching group, which identify the kinds of tokens: up to `_MARK`, they are links.

A token that is not complete has another one.
"""


class Scan:
    """Single pass over the text of a page, which is UTF-8 read as Latin-1."""

    def __init__(self, text: str, most: int, *, is_xml: bool = False, window: int = WINDOW) -> None:
        """Take at most `most` hrefs. With `is_xml`, an element such as `<script/>` is complete.

        `window` is the number of characters that are searched at once.
        """
        self._text = text
        self._most = most
        self._is_xml = is_xml
        self._window = window
        self._work = 0
        self._most_work = MOST_WORK + FOR_LINK * most
        self._place = 0
        """Position up to which the text was read, between two tokens."""
        self.hrefs: dict[str, bool] = {}
        """Hrefs in order, each with True if it is to be followed. Some have lost their fragment."""
        self.odd: set[str] = set()
        """Hrefs that may have other than plain characters, and those of rare tags."""
        self._latest = self.hrefs
        """Dictionary for the next plain hrefs: another one when the limit is reached."""
        self.cut = 0
        """Approximate number of hrefs over the limit: a repeated one may count more than once."""
        self.is_whole = True
        """True if the page was read to its end."""

    def add(self, href: str, *, is_followed: bool = True) -> None:
        """Take an href unless the limit is reached.

        It is followed if at least one of its occurrences is.
        """
        if href in self.hrefs:
            self.hrefs[href] = self.hrefs[href] or is_followed
        elif len(self.hrefs) < self._most:
            self.hrefs[href] = is_followed
            self.odd.add(href)
        else:
            self.cut += 1

    def tags(self) -> Iterator[tuple[str, str]]:
        """Yield the `a`, `area`, `base`, `link` and `meta` tags of a page with their raw attributes.

        A `title` comes with its content instead. Most `a` tags are not yielded: their hrefs are taken directly.
        Comments, scripts, templates and attribute values contain no tags, and a truncated last tag is skipped.
        """
        while self._place < len(self._text):
            if self._work >= self._most_work:
                self.is_whole = False
                return
            self._work += RESTART
            yield from self._tags_up_to(self._place + self._window)
            if len(self.hrefs) >= self._most:
                self._cut()

    def _tags_up_to(self, end: int) -> Iterator[tuple[str, str]]:
        """Yield the tags from the position up to `end`, or to a token behind which the search must restart."""
        latest, plain = self._latest, _PLAIN
        for token in _TOKEN.finditer(self._text, self._place, end):
            group = token.lastindex
            if group == plain:
                latest[token[plain]] = True
            elif group is None:
                continue
            elif group > _TAG:
                yield from self._read(token, end)
                return
            else:
                if group != _TAG:
                    self._link(token)
                elif self._is_wanted(token):
                    yield token[8].lower(), token[_TAG]
                if self._work >= self._most_work:
                    self._place = token.end()
                    return
        self._place = end

    def _link(self, token: re.Match[str]) -> None:
        """Take a link that has a `rel`, or an href that is not plain."""
        before, plain, behind = token.group(1, _PLAIN, 6)
        rel = before or behind
        is_followed = rel is None or _is_followed(rel)
        if plain is not None:
            self._work += 1
            self._latest[plain] = is_followed or self._latest.get(plain, False)
            return
        href = from_octets(token[4] or token[5] or "")
        self._work += 4 + len(href) // 2
        self.add(unescape(href) if "&" in href or "\0" in href else href, is_followed=is_followed)

    def _is_wanted(self, token: re.Match[str]) -> bool:
        """Return whether a tag has a relevant attribute and is not a link over the limit."""
        name, written = token[8].lower(), token[_TAG]
        lower = written.lower()
        if len(written) >= LONGEST_TAG or (_HINTS[name] not in lower and "&" not in lower):
            self._work += 1
            return False
        if len(self.hrefs) >= self._most and name in _LINKS:
            self.cut += 1
            return False
        self._work += 4 + len(written) // 2
        return True

    def _read(self, token: re.Match[str], end: int) -> Iterator[tuple[str, str]]:
        """Read raw text, foreign content, or a token that is not complete, and set the position behind it."""
        text, group, start = self._text, token.lastindex, token.start()
        if group == _RAW:
            name, begin = token[_RAW].lower(), token.end()
            if self._is_xml and text.startswith("/>", begin - 2):
                self._place = begin
                return
            self._place = end_of_raw(name, text, begin)
            if name == TITLE:
                self._work += RESTART
                yield TITLE, text[begin : min(self._place, begin + LONGEST_TITLE)]
        elif group == _SUBTREE:
            subtree = Subtree(text, start)
            yield from subtree.tags((self._most_work - self._work) // FOREIGN)
            self._work += FOREIGN * subtree.work
            self._place = subtree.place
        elif end < len(text) and start > end - self._window:
            self._place = start  # it is complete in the next window
        else:
            self._place = end_of_token(text, start)

    def _cut(self) -> None:
        """Drop the plain hrefs over the limit. Further ones are only counted."""
        latest = self._latest
        if latest is self.hrefs:
            latest = {}
            for href in list(islice(self.hrefs, self._most, None)):
                latest[href] = self.hrefs.pop(href)
        self.cut += sum(href not in self.hrefs for href in latest)
        self._latest = {}


@lru_cache(maxsize=256)
def _is_followed(rel: str) -> bool:
    """Return whether a `rel` attribute as written, with its quotes, permits to follow a link."""
    return "nofollow" not in rel.strip("\"'").lower().split()


_LINKS = frozenset({"a", "area"})
_HINTS = {"a": "href", "area": "href", "base": "href", "link": "canonical", "meta": "content"}
"""Words that the attributes of a relevant tag contain, unless they have character references."""
