"""Markup: the tags of a page that say something about links, found in one pass.

This is the tokenizer of the HTML Standard (13.2.5), as far as links need it, and no tree is built. A tree is where
pages made to hurt do hurt: the parser in C that reads the main text takes 1.1 GB for 36 KB of `<font>` tags left open,
and minutes for 100,000 nested `<div>` or attributes, and nothing could stop it. Here every character is looked at once
or twice, whatever the page. The tests hold it against that parser.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from functools import partial
from html.entities import html5

# Possessive wherever more than one character is taken (`*+`): nothing that was read is given back and read again. And
# what is made of parts has no more than some thousands of them: a token is read in one go, and no other thread has its
# turn meanwhile. What is longer is cut off there, and gone on with behind its end (`_end_of`).
_GAP = r"[ \t\n\f\r]"
_QUOTED = r"""(?:"[^"]*+(?:"|\Z)|'[^']*+(?:'|\Z))"""
_ATTRIBUTE_OR_GAP = rf"""(?:
    [/ \t\n\f\r]++ | [^/> \t\n\f\r][^/>= \t\n\f\r]*+ {_GAP}*+ (?: = {_GAP}*+ (?: {_QUOTED} | [^> \t\n\f\r]*+ ) )?
)"""
_ATTRIBUTES = rf"{_ATTRIBUTE_OR_GAP}{{0,65535}}+"
_ENDS = r"(?=[/> \t\n\f\r])"

# A run of text and of tags that say nothing about links is passed over in one step. The names are those that cannot be
# the beginning of one that matters, by their first two letters; others are passed over one by one. What is most common
# comes first: tags without attributes, and with simple ones.
_NOTHING = rf"""(?:
    [/c-hjkopqruvwyz][a-z0-9]*+>
  | /[A-Za-z][^<>"'=]*+>
  | (?:[c-hjkopqruvwyz]|li{_ENDS}|strong|s[abd-su-z]|t[a-df-hj-z]|i[a-eg-z]|b[b-z]|m[a-df-z]|n[a-np-z]|a[b-qs-z])
    [a-z0-9]*+(?:[ ][a-z-]++="[^"]*+"){{0,999}}+(?:>|{_ENDS}{_ATTRIBUTES}>)
)"""
_NOTHINGS = rf"[^<]*+(?:<{_NOTHING}[^<]*+){{0,999}}+"

# Most links: nothing that has to be unescaped, and no `rel` before or after.
_PLAIN = rf"""
    a{_GAP}++(?:[a-gi-qs-z][a-z-]*+="[^"]*+"{_GAP}++){{0,999}}+
    href="([^"&\0]{{1,2000}}+)"
    (?:>|(?:{_GAP}++[a-qs-z][a-z-]*+="[^"]*+"){{0,999}}+{_GAP}*+>)
"""

# What is no markup inside them; and comments, which end at once, or at the first `-->` or `--!>`.
_RAW = "title|script|style|textarea|xmp|iframe|noembed|noframes"
_COMMENT = r"!--(?:-?>|[^-]*+(?:-(?!-!?>)[^-]*+){0,999}+(?:--!?>|\Z))"

_TOKEN = re.compile(
    rf"""<(?:
        {_PLAIN}{_NOTHINGS}
      | ([aA]|[aA][rR][eE][aA]|[bB][aA][sS][eE]|[lL][iI][nN][kK]|[mM][eE][tT][aA]){_ENDS}({_ATTRIBUTES})(>?)
      | {_NOTHING}{_NOTHINGS}
      | /[A-Za-z][^>"'=]*+>
      | (?=[tTsSxXiInN])((?i:{_RAW})){_ENDS}{_ATTRIBUTES}>
        ([^<]*+(?:<(?!/(?i:\5){_ENDS})[^<]*+){{0,999}}+)(?:(?:(?=</(?i:\5){_ENDS})|\Z)())?
      | /?[A-Za-z][^/> \t\n\f\r]*+{_ATTRIBUTES}(?:(?=[^>])())?
      | {_COMMENT}
      | (!--)
      | [!?/][^>]*+
      | (?:[^<]*+<(?![A-Za-z!?/])){{0,999}}+  # lone ones are tokens too: between two, other threads have their turn
    )""",
    re.DOTALL | re.VERBOSE,
)
_LINK, _META, _CUT_TEXT, _TEXT, _CUT_TAG = 1, 4, 6, 7, 8
"""The last groups of tokens by which they are known; of a comment that is cut off it is another one still."""

_ENDINGS = {name: re.compile(rf"</{name}{_ENDS}", re.IGNORECASE) for name in _RAW.split("|")}
_COMMENT_END = re.compile("--!?>")
_MORE = re.compile(_ATTRIBUTES, re.VERBOSE)
_NAME = re.compile(rf"<({_RAW}){_ENDS}", re.IGNORECASE)

_ATTRIBUTE = re.compile(
    r"""([^/> \t\n\f\r][^/>= \t\n\f\r]*+)[ \t\n\f\r]*+"""
    r"""(?:=[ \t\n\f\r]*+(?:"([^"]*+)"|'([^']*+)'|([^> \t\n\f\r]*+)))?"""
)
_REFERENCE = re.compile(r"&(?:#[0-9]++;?|#[xX][0-9a-fA-F]++;?|[A-Za-z][A-Za-z0-9]*+(?:;|(?![=A-Za-z0-9])))")

# More digits than any character has; of some thousands, Python makes no number at all.
_ENDLESS = re.compile(r"&#(?:[0-9]{20,}+|[xX][0-9a-fA-F]{20,}+);?")

_MARKUP = re.compile(
    rf"""<(?:
        (?=[sStTnNxXiI])((?i:noscript|{_RAW})){_ENDS}{_ATTRIBUTE_OR_GAP}*+>
        [^<]*+(?:<(?!/(?i:\1){_ENDS})[^<]*+)*+(?:</(?i:\1){_ENDS}{_ATTRIBUTE_OR_GAP}*+>?|\Z)
      | (/?[A-Za-z][^/> \t\n\f\r]*+){_ATTRIBUTE_OR_GAP}*+>?
      | !--(?:-?>|[^-]*+(?:-(?!-!?>)[^-]*+)*+(?:--!?>|\Z))
      | [!?/][^>]*+>?
      |
    )""",
    re.DOTALL | re.VERBOSE,
)

TITLE = "title"

LONGEST_TAG = 65_536
"""Characters of attributes; a tag with more of them says nothing that a crawler could use."""

STEP = 1 << 17
"""Characters in which an ending is looked for at once; and a few more, so that none is missed between two."""

SECTIONS = frozenset({"article", "main", "body", "nav", "header", "footer", "aside"})
"""Tags by which the main text is told from the rest."""

MOST_TAGS = 10_000
"""A parser's time grows with the square of nested tags: so many take it a quarter of a second at worst."""

# Parts of a line of text. All formatting elements (HTML Standard, 13.2.4.3) are among them.
_INLINE = frozenset(
    {
        "a", "abbr", "acronym", "b", "bdi", "bdo", "big", "cite", "code", "data", "del", "dfn", "em", "font", "i",
        "img", "input", "ins", "kbd", "label", "map", "mark", "nobr", "q", "rp", "rt", "ruby", "s", "samp", "small",
        "span", "strike", "strong", "sub", "sup", "time", "tt", "u", "var", "wbr",
    }
)  # fmt: skip


def tags(text: str, hrefs: dict[str, bool]) -> Iterator[tuple[str, str]]:
    """The `a`, `area`, `base`, `link` and `meta` tags of a page, each with its attributes as they are written.

    A `title` comes with what stands inside it instead. An `a` without `rel` mostly does not come at all: its href is
    put into `hrefs`, as one to be followed. What is in comments, scripts and other tags' attributes is no tag, and
    neither is a last one that is cut off.
    """
    start: int | None = 0
    while start is not None:
        tokens, start = _TOKEN.finditer(text, start), None
        for token in tokens:
            group = token.lastindex  # the last one of a kind of token, by which it is known
            if group == _LINK:
                hrefs[token[1]] = True
            elif group == _META:
                name, attributes, end = token.group(2, 3, 4)
                if not end:
                    start = _end_of(token, text)
                    break
                if len(attributes) < LONGEST_TAG:
                    yield name.lower(), attributes
            elif group == _TEXT:
                if token[5].lower() == TITLE:
                    yield TITLE, token[6]
            elif group is not None:
                start = _end_of(token, text)
                if group == _CUT_TEXT and token[5].lower() == TITLE:
                    yield TITLE, text[token.start(6) : start]
                break


def _end_of(token: re.Match[str], text: str) -> int:
    """Where something ends that was too long for one token: a tag, a comment, or what stands inside a script."""
    place = token.end()
    if token.lastindex == _CUT_TEXT:
        return _found(_ENDINGS[token[5].lower()], text, place)
    if token.lastindex not in (_META, _CUT_TAG):
        return _found(_COMMENT_END, text, place)
    while (more := _MORE.match(text, place)) is not None and more.end() > place:
        place = more.end()
    name = _NAME.match(text, token.start())
    return place if name is None else _found(_ENDINGS[name[1].lower()], text, place)


def _found(ending: re.Pattern[str], text: str, start: int) -> int:
    """Where an ending is found, or the end of the text; looked for in steps, between which others have their turn."""
    for place in range(start, len(text), STEP):
        if (found := ending.search(text, place, place + STEP + 20)) is not None:
            return found.start()
    return len(text)


def attributes(written: str) -> dict[str, str]:
    """The attributes of a tag by their names, in lower case; of two by one name, the first counts."""
    found: dict[str, str] = {}
    for name, double, single, bare in _ATTRIBUTE.findall(written):
        name = name.lower()
        if name not in found:
            found[name] = unescape(double or single or bare)
    return found


def simplified(text: str) -> str:
    """A page that a parser can read without harm: blocks without attributes, and lines of text in them."""
    for kept in (None, SECTIONS, frozenset[str]()):
        plain = _MARKUP.sub(partial(_bare, kept), text)
        if plain.count("<") <= MOST_TAGS:
            break
    return plain


def _bare(kept: frozenset[str] | None, tag: re.Match[str]) -> str:
    """What becomes of a tag: itself without attributes, a break or nothing. `kept` are those that stay; None: all."""
    if tag[2] is None:
        return "&lt;" if tag[0] == "<" else ""  # a lone one could become the beginning of a tag
    name = tag[2].lower()
    kind = name.removeprefix("/")
    if kind in _INLINE:
        return ""
    return f"<{name}>" if kept is None or kind in kept else "<br>"


def unescape(value: str) -> str:
    """An attribute's value without character references.

    `&copy=` stays as it is, as in a query: without a semicolon, a name counts only if no letter, digit or `=` is next.
    """
    if "&" in value:
        value = _REFERENCE.sub(_character, value)
    return value.replace("\0", "\ufffd") if "\0" in value else value


def _character(reference: re.Match[str]) -> str:
    if reference[0][1] == "#":
        return plain_text(reference[0])
    return html5.get(reference[0][1:], reference[0])


def plain_text(inside: str) -> str:
    """What stands inside a title, without character references."""
    return html.unescape(_ENDLESS.sub("\ufffd", inside))
