"""Patterns and helpers for the tokens of HTML: tags, comments and raw text (HTML Standard, 13.2.5).

The text of a page is UTF-8 read as Latin-1: one character per octet. So a page takes no more memory than its body, and
its markup is unchanged. `from_octets` decodes the parts that are extracted.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from html.entities import html5

# All repetitions are possessive (`*+`), so nothing is backtracked. They are bounded to some thousands, because one
# token is matched without releasing the interpreter lock. A longer token is cut there, and reading resumes behind its
# end.
GAP = r"[ \t\n\f\r]"
_QUOTED = r"""(?:"[^"]*+(?:"|\Z)|'[^']*+(?:'|\Z))"""
ATTRIBUTE = rf"""[^/> \t\n\f\r][^/>= \t\n\f\r]*+ {GAP}*+ (?: = {GAP}*+ (?: {_QUOTED} | [^> \t\n\f\r]*+ ) )?"""
ATTRIBUTE_OR_GAP = rf"(?: [/ \t\n\f\r]++ | {ATTRIBUTE} )"
ATTRIBUTES = rf"{ATTRIBUTE_OR_GAP}{{0,65535}}+"
ENDS = r"(?=[/> \t\n\f\r])"

RAW = "title|script|style|textarea|xmp|iframe|noembed|noframes"
"""Elements of HTML whose content has no markup."""

COMMENT = r"!--(?:-?>|[^-]*+(?:-(?!-!?>)[^-]*+){0,999}+--!?>)"
"""Pattern of a comment, which ends at once, or at the first `-->` or `--!>`."""

TITLE, SCRIPT = "title", "script"

LONGEST_TAG = 65_536
"""Characters of attributes; longer tags have nothing that a crawler could use."""

LONGEST_TITLE = 16_384
"""Characters of a title that are read."""

STEP = 1 << 17
"""Characters searched for an ending at once, with a small overlap so that none is missed."""

_ENDINGS = {name: re.compile(rf"</{name}{ENDS}", re.IGNORECASE) for name in RAW.split("|")}
_NAME = re.compile(r"</?([A-Za-z][^/> \t\n\f\r]*+)")
_COMMENT_END = re.compile("--!?>")
_MORE = re.compile(ATTRIBUTES, re.VERBOSE)
_SCRIPT = re.compile(rf"<(?:!--(-?>)?|/?script{ENDS})|-->", re.IGNORECASE)

_ATTRIBUTE = re.compile(
    r"""([^/> \t\n\f\r][^/>= \t\n\f\r]*+)[ \t\n\f\r]*+"""
    r"""(?:=[ \t\n\f\r]*+(?:"([^"]*+)"|'([^']*+)'|([^> \t\n\f\r]*+)))?"""
)
_REFERENCE = re.compile(r"&(?:#[0-9]++;?|#[xX][0-9a-fA-F]++;?|[A-Za-z][A-Za-z0-9]*+(?:;|(?![=A-Za-z0-9])))")

# More digits than any character has. Python refuses to convert thousands of them.
_ENDLESS = re.compile(r"&#(?:[0-9]{20,}+|[xX][0-9a-fA-F]{20,}+);?")


def from_octets(octets: str) -> str:
    """Decode a part of a page that is UTF-8 read as Latin-1."""
    return octets if octets.isascii() else octets.encode("latin-1").decode("utf-8", "replace")


def end_of_tag(text: str, place: int) -> int:
    """Return the position of the `>` of a tag that was too long for one token."""
    while (more := _MORE.match(text, place)) is not None and more.end() > place:
        place = more.end()
    return place


def end_of_comment(text: str, place: int) -> int:
    """Return the position of a comment's ending; `place` is somewhere in the comment."""
    return _found(_COMMENT_END, text, place)


def end_of_token(text: str, place: int) -> int:
    """Return the end of a tag or comment that is too long for a pattern, or not complete; it begins at `place`.

    The content of a raw element belongs to its start tag.
    """
    if text.startswith("<!--", place):
        return end_of_comment(text, place + 4)
    name = _NAME.match(text, place)
    if name is None:
        end = text.find(">", place)
        return len(text) if end < 0 else end
    end = end_of_tag(text, name.end())
    raw = name[1].lower()
    return end_of_raw(raw, text, end) if raw in _ENDINGS else end


def end_of_raw(name: str, text: str, place: int) -> int:
    """Return the position of the end tag of a raw element.

    Its content begins at `place`; `name` is in lower case.
    """
    end = _found(_ENDINGS[name], text, place)
    if name == SCRIPT and text.find("<!--", place, end) >= 0:
        return _end_of_script(text, place)
    return end


def _end_of_script(text: str, place: int) -> int:
    """Return the end of a script that contains `<!--`.

    A script element quoted in that comment does not end it (13.2.5.15 to 31).
    """
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
    """Return the position of an ending, or the length of the text.

    The search proceeds in steps, so that other threads can run in between.
    """
    for place in range(start, len(text), STEP):
        if (found := ending.search(text, place, place + STEP + 20)) is not None:
            return found.start()
    return len(text)


def attributes(written: str) -> dict[str, str]:
    """Return the attributes of a tag by lower-case name; of duplicates, the first counts.

    `written` is decoded text.
    """
    found: dict[str, str] = {}
    for name, double, single, bare in _ATTRIBUTE.findall(written):
        name = name.lower()
        if name not in found:
            value = double or single or bare
            found[name] = unescape(value) if "&" in value or "\0" in value else value
    return found


def attribute_places(text: str, start: int, end: int) -> Iterator[tuple[str, int, int, bool]]:
    """Yield the attributes between two places: the lower-case name, the place of the value, and if it has quotes."""
    for found in _ATTRIBUTE.finditer(text, start, end):
        group = found.lastindex or 1
        if group > 1:
            yield found[1].lower(), *found.span(group), group < 4


def unescape(value: str) -> str:
    """Return an attribute's value with its character references replaced.

    `&copy=` is kept, as in a query. Without a semicolon, a reference counts only if no letter, digit or `=` follows.
    """
    if value.count("&") == value.count("&amp;"):
        return value.replace("&amp;", "&").replace("\0", "\ufffd")
    return _REFERENCE.sub(_character, value).replace("\0", "\ufffd")


def _character(reference: re.Match[str]) -> str:
    if reference[0][1] == "#":
        return plain_text(reference[0])
    return html5.get(reference[0][1:], reference[0])


def plain_text(inside: str) -> str:
    """Return the text of a title with its character references replaced."""
    return html.unescape(_ENDLESS.sub("\ufffd", inside)) if "&" in inside else inside
