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

# Possessive wherever more than one character is taken (`*+`): nothing that was read is given back and read again.
_GAP = r"[ \t\n\f\r]"
_QUOTED = r"""(?:"[^"]*+(?:"|\Z)|'[^']*+(?:'|\Z))"""
_ATTRIBUTES = rf"""(?:
    [/ \t\n\f\r]++ | [^/> \t\n\f\r][^/>= \t\n\f\r]*+ {_GAP}*+ (?: = {_GAP}*+ (?: {_QUOTED} | [^> \t\n\f\r]*+ ) )?
)*+"""
_ENDS = r"(?=[/> \t\n\f\r])"

# A run of text and of tags that say nothing about links is passed over in one step. The names are those that cannot be
# the beginning of one that matters, by their first two letters; others are passed over one by one. What is most common
# comes first: tags without attributes, and with simple ones.
_NOTHING = rf"""(?:
    [/c-hjkopqruvwyz][a-z0-9]*+>
  | /[A-Za-z][^<>"'=]*+>
  | (?:[c-hjkopqruvwyz]|li{_ENDS}|strong|s[abd-su-z]|t[a-df-hj-z]|i[a-eg-z]|b[b-z]|m[a-df-z]|n[a-np-z]|a[b-qs-z])
    [a-z0-9]*+(?:[ ][a-z-]++="[^"]*+")*+(?:>|{_ENDS}{_ATTRIBUTES}>)
)"""
_NOTHINGS = rf"[^<]*+(?:<{_NOTHING}[^<]*+)*+"

# Most links: nothing that has to be unescaped, and no `rel` before or after.
_PLAIN = rf"""
    a{_GAP}++(?:[a-gi-qs-z][a-z-]*+="[^"]*+"{_GAP}++)*+
    href="([^"&\0]{{1,2000}}+)"
    (?:>|(?:{_GAP}++[a-qs-z][a-z-]*+="[^"]*+")*+{_GAP}*+>)
"""

_TOKEN = re.compile(
    rf"""<(?:
        {_PLAIN}{_NOTHINGS}
      | ([aA]|[aA][rR][eE][aA]|[bB][aA][sS][eE]|[lL][iI][nN][kK]|[mM][eE][tT][aA]){_ENDS}({_ATTRIBUTES})(>?)
      | {_NOTHING}{_NOTHINGS}
      | /[A-Za-z][^>"'=]*+>
      | (?=[tTsSxXiInN])((?i:title|script|style|textarea|xmp|iframe|noembed|noframes)){_ENDS}{_ATTRIBUTES}>
        (.*?)(?:</(?i:\5){_ENDS}{_ATTRIBUTES}|\Z)
      | /?[A-Za-z][^/> \t\n\f\r]*+{_ATTRIBUTES}
      | !--(?:-?>|.*?(?:--!?>|\Z))
      | [!?/][^>]*+
      | (?:[^<]*+<(?![A-Za-z!?/])){{0,999}}+  # lone ones are tokens too: between two, other threads have their turn
    )""",
    re.DOTALL | re.VERBOSE,
)
_ATTRIBUTE = re.compile(
    r"""([^/> \t\n\f\r][^/>= \t\n\f\r]*+)[ \t\n\f\r]*+"""
    r"""(?:=[ \t\n\f\r]*+(?:"([^"]*+)"|'([^']*+)'|([^> \t\n\f\r]*+)))?"""
)
_REFERENCE = re.compile(r"&(?:#[0-9]++;?|#[xX][0-9a-fA-F]++;?|[A-Za-z][A-Za-z0-9]*+(?:;|(?![=A-Za-z0-9])))")

# More digits than any character has; of some thousands, Python makes no number at all.
_ENDLESS = re.compile(r"&#(?:[0-9]{20,}+|[xX][0-9a-fA-F]{20,}+);?")

_MARKUP = re.compile(
    rf"""<(?:
        (?=[sStTnNxXiI])((?i:script|style|noscript|title|textarea|xmp|iframe|noembed|noframes)){_ENDS}{_ATTRIBUTES}>
        .*?(?:</(?i:\1){_ENDS}{_ATTRIBUTES}>?|\Z)
      | (/?[A-Za-z][^/> \t\n\f\r]*+){_ATTRIBUTES}>?
      | !--(?:-?>|.*?(?:--!?>|\Z))
      | [!?/][^>]*+>?
      |
    )""",
    re.DOTALL | re.VERBOSE,
)

TITLE = "title"

LONGEST_TAG = 65_536
"""Characters of attributes; a tag with more of them says nothing that a crawler could use."""

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
    for token in _TOKEN.finditer(text):
        group = token.lastindex  # the last one of a kind of token, by which it is known
        if group == 1:
            hrefs[token[1]] = True
        elif group == 4:
            name, attributes, end = token.group(2, 3, 4)
            if end and len(attributes) < LONGEST_TAG:
                yield name.lower(), attributes
        elif group == 6 and token[5].lower() == TITLE:
            yield TITLE, token[6]


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
