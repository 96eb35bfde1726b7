"""Scanner for the tags of a page that concern links, in one pass.

It implements the tokenizer of the HTML Standard (13.2.5) as far as links need it, and builds no tree. Hostile pages
make tree parsers expensive: the C parser for the main text takes 1.1 GB for 36 KB of open `<font>` tags. It takes
minutes for 100,000 nested `<div>` or attributes, and cannot be interrupted. Here every character is read once or twice,
and the work per page is bounded. `foreign_content.py` reads SVG, MathML and templates, which have their own rules. The
tests compare the results with that parser.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Iterator
from itertools import islice

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
    end_of_comment,
    end_of_raw,
    end_of_tag,
    from_octets,
)

MOST_WORK, FOR_LINK = 600_000, 30
"""Steps for one page, and additional steps for each link that it may have.

A token is one step, a tag with attributes several. 50 MB of ordinary markup take this many.
"""

RESTART, FOREIGN = 4, 8
"""Steps to restart behind a long token, and to read a tag in foreign content."""

BATCH = 1024
"""Tokens between two checks of the work done."""

# One step skips a run of text and of tags that do not concern links. The names are those whose first two letters
# exclude a relevant name; others are skipped one by one. The most frequent alternatives come first: tags without
# attributes, and with simple ones. An SVG of shapes only is skipped too; `foreign_content.py` reads all others.
_SHAPE = "(?:path|g|use|circle|rect|line|poly(?:line|gon)|ellipse|defs|stop|symbol|mask|clipPath|linearGradient)"
_REST = rf"""(?:[ ][a-zA-Z0-9:-]++="[^"]*+"){{0,99}}+(?:/?>|{ENDS}{ATTRIBUTES}>)"""
_SHAPES = rf"[^<]*+(?:<(?:/{_SHAPE}>|{_SHAPE}{_REST}|title>[^<]*+</title>)[^<]*+){{0,99}}+"
_SVG = rf"svg{_REST}{_SHAPES}"
_NOTHING = rf"""(?:
    [/c-hjkopqruvwyz][a-z0-9]*+>
  | /[A-Za-z][^<>"'=]*+>
  | (?:[c-hjkopqruvwyz]|li{ENDS}|strong|s[abd-su]|t[a-df-hj-z]|i[a-eg-z]|b[b-z]|m(?:[b-df-z]|a(?!th))
      |n[a-np-z]|a[b-qs-z])[a-z0-9]*+(?:[ ][a-z-]++="[^"]*+"){{0,999}}+(?:>|{ENDS}{ATTRIBUTES}>)
  | {_SVG}(?:<{_SVG}</svg>{_SHAPES}){{0,9}}+</svg>
)"""
_NOTHINGS = rf"[^<]*+(?:<{_NOTHING}[^<]*+){{0,999}}+"

# The usual link: no character reference, and no `rel` before or after.
_PLAIN = rf"""
    a{GAP}++(?:[a-gi-qs-z][a-z-]*+="[^"]*+"{GAP}++){{0,999}}+
    href="([^"&\0]{{1,2000}}+)"
    (?:>|(?:{GAP}++[a-qs-z][a-z-]*+="[^"]*+"){{0,999}}+{GAP}*+>)
"""

_TOKEN = re.compile(
    rf"""<(?:
        {_PLAIN}{_NOTHINGS}
      | ([aA]|[aA][rR][eE][aA]|[bB][aA][sS][eE]|[lL][iI][nN][kK]|[mM][eE][tT][aA]){ENDS}({ATTRIBUTES})(>?)
      | {_NOTHING}{_NOTHINGS}
      | /[A-Za-z][^>"'=]*+>
      | (?=[tTsSxXiInN])((?i:{RAW})){ENDS}{ATTRIBUTES}>
        ([^<]*+(?:<(?!/(?i:\5){ENDS}|!--)[^<]*+){{0,999}}+)(?:(?:(?=</(?i:\5){ENDS})|\Z)())?
      | ((?i:svg|math|template)){ENDS}
      | /?[A-Za-z][^/> \t\n\f\r]*+{ATTRIBUTES}(?:(?=[^>])())?
      | {COMMENT}
      | (!--)
      | [!?/][^>]*+
      | (?:[^<]*+<(?![A-Za-z!?/])){{0,999}}+  # lone ones are tokens too: between two, other threads have their turn
    )""",
    re.DOTALL | re.VERBOSE,
)
_LINK, _META, _CUT_TEXT, _TEXT, _SUBTREE, _CUT_TAG = 1, 4, 6, 7, 8, 9
"""Numbers of the last matching group, which identify the kinds of tokens.

A cut comment has another one.
"""

_LINKS = frozenset({"a", "A", "area", "AREA"})
_NAME = re.compile(rf"<({RAW}){ENDS}", re.IGNORECASE)


class Scan:
    """Single pass over the text of a page, which is UTF-8 read as Latin-1."""

    def __init__(self, text: str, most: int, *, is_xml: bool = False) -> None:
        """Take at most `most` hrefs. With `is_xml`, an element such as `<script/>` is complete."""
        self._text = text
        self._most = most
        self._is_xml = is_xml
        self._work = 0
        self._most_work = MOST_WORK + FOR_LINK * most
        self._restart: int | None = None
        self.hrefs: dict[str, bool] = {}
        """Hrefs in order, each with True if it is to be followed."""
        self._latest = self.hrefs
        """Dictionary for the next plain hrefs: another one when the limit is reached."""
        self._is_ascii = text.isascii()
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
        else:
            self.cut += 1

    def tags(self) -> Iterator[tuple[str, str]]:
        """Yield the `a`, `area`, `base`, `link` and `meta` tags of a page with their raw attributes.

        A `title` comes with its content instead. Most `a` tags without `rel` are not yielded: their hrefs are taken
        directly, to be followed. Comments, scripts, templates and attribute values contain no tags, and a truncated
        last tag is skipped.
        """
        tokens = _TOKEN.finditer(self._text)
        while self._work < self._most_work:
            count = yield from self._batch(tokens)
            self._work += count
            if len(self.hrefs) >= self._most:
                self._cut()
            if self._restart is not None:
                self._work += RESTART
                tokens = _TOKEN.finditer(self._text, self._restart)
            elif count < BATCH and self._work < self._most_work:
                return
        self.is_whole = False

    def _batch(self, tokens: Iterator[re.Match[str]]) -> Generator[tuple[str, str], None, int]:
        """Yield the tags of the next tokens; return the number of tokens, at most BATCH."""
        latest, is_ascii, count = self._latest, self._is_ascii, 0
        self._restart = None
        for count, token in enumerate(islice(tokens, BATCH), 1):  # noqa: B007
            group = token.lastindex
            if group == _LINK:
                href = token[1]
                latest[href if is_ascii or href.isascii() else from_octets(href)] = True
                continue
            if group == _META:
                if (tag := self._tag(token)) is not None:
                    yield tag
            elif group is not None:
                yield from self._read(token)
            if self._restart is not None or self._work >= self._most_work:
                break
        return count

    def _tag(self, token: re.Match[str]) -> tuple[str, str] | None:
        """Return a complete tag that is wanted, with its raw attributes."""
        name, written, end = token.group(2, 3, 4)
        if not end:
            self._restart = end_of_tag(self._text, token.end())
            return None
        return (name.lower(), written) if self._is_wanted(name, written) else None

    def _is_wanted(self, name: str, written: str) -> bool:
        """Return whether a tag has a relevant attribute and is not a link over the limit."""
        if not ("href" in written or _matters(written)) or len(written) >= LONGEST_TAG:
            self._work += 1
            return False
        if len(self.hrefs) >= self._most and name in _LINKS:
            self.cut += 1
            return False
        self._work += 4 + len(written) // 2
        return True

    def _read(self, token: re.Match[str]) -> Iterator[tuple[str, str]]:
        """Read raw text, foreign content, or a token that was cut and resumes behind its end."""
        text, group = self._text, token.lastindex
        if group in (_TEXT, _CUT_TEXT):
            raw, begin = token[5].lower(), token.start(6)
            if self._is_xml and text.startswith("/>", begin - 2):
                self._work += (token.end() - begin) // 8  # its text was read in vain
                self._restart = begin
                return
            if group == _CUT_TEXT:
                self._restart = end_of_raw(raw, text, begin)
            if raw == TITLE:
                self._work += RESTART
                end_of_title = token.end(6) if self._restart is None else self._restart
                yield TITLE, text[begin : min(end_of_title, begin + LONGEST_TITLE)]
        elif group == _SUBTREE:
            subtree = Subtree(text, token.start())
            yield from subtree.tags((self._most_work - self._work) // FOREIGN)
            self._work += FOREIGN * subtree.work
            self._restart = subtree.place
        else:
            self._restart = _end_of(token, text)

    def _cut(self) -> None:
        """Drop the plain hrefs over the limit. Further ones are only counted."""
        latest = self._latest
        if latest is self.hrefs:
            latest = {}
            for href in list(islice(self.hrefs, self._most, None)):
                latest[href] = self.hrefs.pop(href)
        self.cut += sum(href not in self.hrefs for href in latest)
        self._latest = {}


def _matters(written: str) -> bool:
    """Return whether attributes may matter: every relevant tag has one of these two names."""
    return "href" in (lower := written.lower()) or "content" in lower


def _end_of(token: re.Match[str], text: str) -> int:
    """Return the end of a tag or comment that was too long for one token."""
    if token.lastindex != _CUT_TAG:
        return end_of_comment(text, token.end())
    place = end_of_tag(text, token.end())
    name = _NAME.match(text, token.start())
    return place if name is None else end_of_raw(name[1].lower(), text, place)
