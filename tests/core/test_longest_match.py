"""Patterns of the user's own: the same as those of robots.txt, but for what is inside an escape."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from curtsy.core.longest_match import Patterns, Rule, matches, octets_of
from curtsy.core.policy import Policy
from curtsy.core.url import Url, parse_url
from tests.strategies import ANY
from tests.support.bounds import slowness

PATTERNS = st.text("ab*$/.%?~\u00e9", max_size=8).map("/".__add__)
PATHS = st.text("ab*$/.~\u00e9 |", max_size=8)
SPELLED = {"$": "%24", "*": "%2A", "\u00e9": "%C3%A9", " ": "%20", "|": "%7C"}


def target_of(path: str) -> str:
    url = parse_url("https://example.org/" + path)
    assert isinstance(url, Url)
    return url.target


@ANY
@given(PATTERNS, PATHS)
@example("/a$b*", "a$b")
@example("/a$b", "a$b")
@example("/*a", "*a")
@example("/%7ea", "~a")
def test_a_pattern_of_the_settings_matches_what_a_line_of_robots_txt_would(pattern: str, path: str) -> None:
    """U9, R2: unless it would match inside what is escaped"""
    assume("%" not in pattern or all(each not in path for each in SPELLED))
    target = target_of(path)
    line = Patterns([(1, False, pattern.encode().decode("latin-1"))])

    assert matches(pattern, target) is (line.best(octets_of("https://example.org" + target)) == 0)


@ANY
@given(
    st.text("a24C3*$", max_size=6).map("/".__add__),
    st.text("a24C3x", max_size=6),
    st.sampled_from(sorted(SPELLED)),
)
@example("/*2", "x", "$")
@example("/*4$", "x", "$")
@example("/*C3", "x", "\u00e9")
def test_what_is_escaped_is_a_character_like_any_other(pattern: str, path: str, character: str) -> None:
    """U9: no part of its escape is matched, however it is spelled; `y`, in its place, is never in a pattern"""
    wanted = matches(pattern, target_of(path.replace("x", "y")))

    assert matches(pattern, target_of(path.replace("x", character))) is wanted
    assert matches(pattern, target_of(path.replace("x", SPELLED[character]))) is wanted


@pytest.mark.parametrize("character", sorted(SPELLED))
@pytest.mark.parametrize("pattern", ["/a{}", "/a{}b$", "/*{}b", "/*{}*$", "/*a{}b$"])
def test_a_pattern_may_name_what_is_escaped_by_its_escape(pattern: str, character: str) -> None:
    """U9: `%24` and `%2A` are literal"""
    escape = SPELLED[character]

    for spelled in (character, escape):
        assert matches(pattern.format(escape), target_of(f"a{spelled}b"))
        assert not matches(pattern.format(escape), target_of("azb"))


@pytest.mark.parametrize("pattern", ["/*2", "/*4$", "/*%", "/a%2"])
def test_a_line_of_robots_txt_compares_what_is_written(pattern: str) -> None:
    """R3: RFC 9309, 2.2.2, has reserved octets escaped before octets are compared; Google's parser agrees here"""
    assert Patterns([(1, False, pattern)]).best(octets_of("https://example.org/a%24")) == 0


@pytest.mark.parametrize("pattern", ["/caf\u00e9", "/caf%c3%a9", "/caf%C3%A9$", "/*\u00e9", "/c*%c3%A9$", "/%63af"])
def test_a_pattern_may_be_written_as_people_write_it(pattern: str) -> None:
    """U9: URLs are percent-encoded when they are compared"""
    assert Policy(deny_paths=(pattern,)).refuses_path(target_of("caf\u00e9")) == pattern
    assert Policy(deny_paths=(pattern,)).refuses_path(target_of("tea")) is None


REPEATED = (f"/*{'a' * p}b{'a' * q}" for length in itertools.count(20) for p in range(length) for q in (length - p,))
ENDINGS = (f"/*{number}$" for number in itertools.count())


@pytest.mark.parametrize(
    ("patterns", "path"),
    [(REPEATED, "/" + "a" * 500), (ENDINGS, "/" + "a" * 8000)],
    ids=["pieces of one letter", "endings"],
)
def test_no_file_of_patterns_takes_long_to_ask(patterns: Iterator[str], path: str) -> None:
    """F32: 500 KiB of them, and a path for which each must be looked for"""
    rules: list[Rule] = []
    left = 500 * 1024
    while left > 0:
        pattern = next(patterns)
        left -= len(pattern) + len("Disallow: \n")
        rules.append((len(rules), False, pattern))
    book = Patterns(rules)
    book.best(path)

    def taken() -> float:
        began = time.process_time()
        assert book.best(path) == -1
        return time.process_time() - began

    assert min(taken() for _ in range(3)) < 0.025 * slowness()
