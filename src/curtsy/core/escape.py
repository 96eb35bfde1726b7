"""Escapes for characters that a terminal interprets or does not show.

Text from a site, in robots.txt or a header, must not move the cursor. A URL must not look like another one because of
characters that are invisible or change the direction of writing.
"""

from __future__ import annotations

import re

# Controls, line ends, lone surrogates, and Unicode's Default_Ignorable_Code_Point: soft hyphen, fillers, zero-width
# characters, direction marks and overrides, variation selectors, tags.
_UNSEEN = re.compile(
    r"[\x00-\x1f\x7f-\x9f\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e\u2060-\u206f"
    r"\u3164\ud800-\udfff\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\U0001bca0-\U0001bca3\U0001d173-\U0001d17a"
    r"\U000e0000-\U000e0fff]"
)


def visible(text: str, *, is_json: bool = False) -> str:
    r"""Escape such characters as `\x1b`, `\u200b` or `\U000e0041`, or as in a JSON string."""
    return _UNSEEN.sub(_in_json if is_json else _in_words, text)


def _in_words(found: re.Match[str]) -> str:
    code = ord(found[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _in_json(found: re.Match[str]) -> str:
    """Return the JSON escape, a surrogate pair above U+FFFF."""
    data = found[0].encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{data[place : place + 2].hex()}" for place in range(0, len(data), 2))
