"""What a terminal acts on, or shows nothing for, is made visible."""

from __future__ import annotations

import json
import unicodedata

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from curtsy.core.escape import visible

DECEPTIVE = [
    "\xad", "\u061c", "\u180e", *map(chr, range(0x200B, 0x2010)), *map(chr, range(0x202A, 0x202F)),
    *map(chr, range(0x2060, 0x206A)), "\u3164", "\ufe0f", "\ufeff", "\U000e0001", "\U000e0041", "\U000e007f",
    "\U000e0100",
]  # fmt: skip
"""Soft hyphen, zero-width characters, marks and overrides of direction, fillers, variation selectors, tags."""


@pytest.mark.parametrize("letter", DECEPTIVE)
def test_a_url_cannot_read_as_another_by_what_is_not_seen_in_it(letter: str) -> None:
    """F32"""
    shown = visible(f"https://exa{letter}mple.org/")

    assert shown.isascii()
    assert shown != "https://example.org/"
    assert json.loads(f'"{visible(letter, is_json=True)}"') == letter


def test_each_is_shown_by_its_number() -> None:
    """F32"""
    assert visible("a\x1bb\xadc\u200bd\U000e0041e") == "a\\x1bb\\xadc\\u200bd\\U000e0041e"
    assert visible("\u200b\U000e0041", is_json=True) == "\\u200b\\udb40\\udc41"
    assert visible("\ud800") == "\\ud800"
    harmless = "Grüße ✓ 日本語 🎩 עברית e\u0301"
    assert visible(harmless) == harmless


@given(st.text())
@example("".join(DECEPTIVE))
def test_nothing_that_steers_or_hides_is_left(text: str) -> None:
    """F32: controls, ends of lines, lone surrogates"""
    assert not {unicodedata.category(each) for each in visible(text)} & {"Cc", "Cs", "Zl", "Zp"}
    assert not set(visible(text)) & set(DECEPTIVE)
    assert json.loads(visible(json.dumps(text, ensure_ascii=False), is_json=True)) == text
