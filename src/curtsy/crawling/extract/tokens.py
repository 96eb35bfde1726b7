"""Tokens of HTML: the patterns and endings by which tags, comments and raw text are read (HTML Standard, 13.2.5).

The text of a page is UTF-8 read as Latin-1: one character for each octet. So a page takes no more memory than its body
does, and markup looks the same in it. `from_octets` makes text of what is found.
"""

from __future__ import annotations

import html
import re
from html.entities import html5

# Possessive wherever more than one character is taken (`*+`): nothing that was read is given back and read again. And
# what is made of parts has no more than some thousands of them: a token is read in one go, and no other thread has its
# turn meanwhile. What is longer is cut off there, and read on behind its end.
GAP = r"[ \t\n\f\r]"
_QUOTED = r"""(?:"[^"]*+(?:"|\Z)|'[^']*+(?:'|\Z))"""
ATTRIBUTE = rf"""[^/> \t\n\f\r][^/>= \t\n\f\r]*+ {GAP}*+ (?: = {GAP}*+ (?: {_QUOTED} | [^> \t\n\f\r]*+ ) )?"""
ATTRIBUTE_OR_GAP = rf"(?: [/ \t\n\f\r]++ | {ATTRIBUTE} )"
ATTRIBUTES = rf"{ATTRIBUTE_OR_GAP}{{0,65535}}+"
ENDS = r"(?=[/> \t\n\f\r])"

RAW = "title|script|style|textarea|xmp|iframe|noembed|noframes"
"""Elements of HTML in which there is no markup."""

COMMENT = r"!--(?:-?>|[^-]*+(?:-(?!-!?>)[^-]*+){0,999}+(?:--!?>|\Z))"
"""A comment ends at once, or at the first `-->` or `--!>`."""

TITLE, SCRIPT = "title", "script"

LONGEST_TAG = 65_536
"""Characters of attributes; a tag with more of them says nothing that a crawler could use."""

LONGEST_TITLE = 16_384
"""Characters of a title that are read."""

STEP = 1 << 17
"""Characters in which an ending is looked for at once; and a few more, so that none is missed between two."""

_ENDINGS = {name: re.compile(rf"</{name}{ENDS}", re.IGNORECASE) for name in RAW.split("|")}
_COMMENT_END = re.compile("--!?>")
_MORE = re.compile(ATTRIBUTES, re.VERBOSE)
_SCRIPT = re.compile(rf"<(?:!--(-?>)?|/?script{ENDS})|-->", re.IGNORECASE)

_ATTRIBUTE = re.compile(
    r"""([^/> \t\n\f\r][^/>= \t\n\f\r]*+)[ \t\n\f\r]*+"""
    r"""(?:=[ \t\n\f\r]*+(?:"([^"]*+)"|'([^']*+)'|([^> \t\n\f\r]*+)))?"""
)
_REFERENCE = re.compile(r"&(?:#[0-9]++;?|#[xX][0-9a-fA-F]++;?|[A-Za-z][A-Za-z0-9]*+(?:;|(?![=A-Za-z0-9])))")

# More digits than any character has; of some thousands, Python makes no number at all.
_ENDLESS = re.compile(r"&#(?:[0-9]{20,}+|[xX][0-9a-fA-F]{20,}+);?")


def from_octets(octets: str) -> str:
    """Decode a part of a page that is UTF-8 read as Latin-1."""
    return octets if octets.isascii() else octets.encode("latin-1").decode("utf-8", "replace")


def end_of_tag(text: str, place: int) -> int:
    """Return where a tag ends whose attributes were too many for one token: at its `>`."""
    while (more := _MORE.match(text, place)) is not None and more.end() > place:
        place = more.end()
    return place


def end_of_comment(text: str, place: int) -> int:
    """Return where the ending of a comment begins; `place` is somewhere in it."""
    return _found(_COMMENT_END, text, place)


def end_of_raw(name: str, text: str, place: int) -> int:
    """Return where the end tag of a raw element begins whose content begins at `place`; `name` is in lower case."""
    end = _found(_ENDINGS[name], text, place)
    if name == SCRIPT and text.find("<!--", place, end) >= 0:
        return _end_of_script(text, place)
    return end


def _end_of_script(text: str, place: int) -> int:
    """Find the end of a script that hides in a comment: one that it quotes there does not count (13.2.5.15 to 31)."""
    is_escaped = is_quoted = False
    for found in _SCRIPT.finditer(text, place):
        if found[1] or found[0] == "-->":
            is_escaped = is_quoted = False
        elif found[0] == "<!--":
            is_escaped = True
        elif found[0][1] != "/":
            is_quoted = is_escaped
        elif is_quoted:
            is_quoted = False
        else:
            return found.start()
    return len(text)


def _found(ending: re.Pattern[str], text: str, start: int) -> int:
    """Return where an ending is found, or the end of the text. Between two steps other threads have their turn."""
    for place in range(start, len(text), STEP):
        if (found := ending.search(text, place, place + STEP + 20)) is not None:
            return found.start()
    return len(text)


def attributes(written: str) -> dict[str, str]:
    """Return the attributes of a tag by their names, in lower case; of two by one name, the first counts.

    What is written is text, and no octets.
    """
    found: dict[str, str] = {}
    for name, double, single, bare in _ATTRIBUTE.findall(written):
        name = name.lower()
        if name not in found:
            value = double or single or bare
            found[name] = unescape(value) if "&" in value or "\0" in value else value
    return found


def unescape(value: str) -> str:
    """Return an attribute's value without character references.

    `&copy=` stays as it is, as in a query: without a semicolon, a name counts only if no letter, digit or `=` is next.
    """
    return _REFERENCE.sub(_character, value).replace("\0", "\ufffd")


def _character(reference: re.Match[str]) -> str:
    if reference[0][1] == "#":
        return plain_text(reference[0])
    return html5.get(reference[0][1:], reference[0])


def plain_text(inside: str) -> str:
    """Return what stands inside a title, without character references."""
    return html.unescape(_ENDLESS.sub("\ufffd", inside))
