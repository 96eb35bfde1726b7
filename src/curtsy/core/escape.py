"""Unseen: characters that a terminal acts on, or shows nothing for, made visible.

What a site sends, in its robots.txt or in a header, must not move the cursor; and a URL must not read as another one
because of something in it that cannot be seen, or that turns the order of its letters round.
"""

from __future__ import annotations

import re

# Controls; ends of lines; lone surrogates; and what Unicode calls Default_Ignorable_Code_Point: soft hyphen, fillers,
# zero-width characters, marks and overrides of direction, variation selectors, tags.
_UNSEEN = re.compile(
    r"[\x00-\x1f\x7f-\x9f\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e\u2060-\u206f"
    r"\u3164\ud800-\udfff\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\U0001bca0-\U0001bca3\U0001d173-\U0001d17a"
    r"\U000e0000-\U000e0fff]"
)


def visible(text: str, *, is_json: bool = False) -> str:
    r"""The text with each of them escaped: as `\x1b`, `\u200b` or `\U000e0041`, or as JSON has it within a string."""
    return _UNSEEN.sub(_in_json if is_json else _in_words, text)


def _in_words(found: re.Match[str]) -> str:
    code = ord(found[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _in_json(found: re.Match[str]) -> str:
    """As two halves, if four digits are too few."""
    data = found[0].encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{data[place : place + 2].hex()}" for place in range(0, len(data), 2))
