"""Patterns of the user's own: the same as those of robots.txt."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from curtsy.core.message import Url, parse_url
from curtsy.core.pattern import Patterns, matches, octets_of
from curtsy.core.policy import Policy
from tests.strategies import ANY

PATTERNS = st.text("ab*$/.%?~\u00e9", max_size=8).map("/".__add__)
PATHS = st.text("ab*$/.~\u00e9 |", max_size=8)


def target_of(path: str) -> str:
    url = parse_url("https://example.org/" + path)
    assert isinstance(url, Url)
    return url.target


@ANY
@given(PATTERNS, PATHS)
@example("/a$b*", "a$b")
@example("/a%24", "a$")
@example("/*a", "*a")
@example("/%7ea", "~a")
def test_a_pattern_of_the_settings_matches_what_a_line_of_robots_txt_would(pattern: str, path: str) -> None:
    """U9, R2"""
    target = target_of(path)
    line = Patterns([(1, False, pattern.encode().decode("latin-1"))])

    assert matches(pattern, target) is (line.best(octets_of("https://example.org" + target)) == 0)


@pytest.mark.parametrize("pattern", ["/caf\u00e9", "/caf%c3%a9", "/caf%C3%A9$", "/*\u00e9", "/c*%c3%A9$", "/%63af"])
def test_a_pattern_may_be_written_as_people_write_it(pattern: str) -> None:
    """U9: URLs are percent-encoded when they are compared"""
    assert Policy(deny_paths=(pattern,)).refuses_path(target_of("caf\u00e9")) == pattern
    assert Policy(deny_paths=(pattern,)).refuses_path(target_of("tea")) is None
