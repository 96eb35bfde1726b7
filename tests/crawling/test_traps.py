"""What is taken for a trap, what is not, and what is stripped from a URL."""

from __future__ import annotations

import re
import string
import tracemalloc

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from curtsy.core.url import Url, parse_url
from curtsy.crawling.extract.traps import MAX_QUERIES, PATHS, QUERIES, TRACKING, Traps, repeated_run
from tests.strategies import ANY

HEX = "0123456789abcdef0123456789abcdef"
SITE = "https://example.org"

words = st.sampled_from(["a", "bb", "cc", "dd", "1", "22", "", "x.html"])
paths = st.lists(words, max_size=12)
names = st.sampled_from(
    ["id", "sid", "PHPSESSID", "utm_source", "UTM_x", "cfid", "cftoken", "s", "", "session", "fbclid"]
)
values = st.sampled_from(["", "1", HEX, "long-words-with-9", "a" * 30, "ABCDEFGHIJKLMNOPQRS1"])
pairs = st.builds("{}={}".format, names, values) | names
sessions = st.sampled_from(
    [
        "",
        f";jsessionid={HEX}",
        ";JSESSIONID=1.n",
        ";sid=1",
        f";sid={HEX}",
        ";v=1",
        "/(S(abcdefghijklmnopqrstuvwx))",
        "/.",
    ]
)


@st.composite
def urls(draw: st.DrawFn) -> str:
    """Canonical URLs, many with something that is to be stripped."""
    path = "".join(f"/{segment}{draw(sessions)}" for segment in draw(st.lists(words, max_size=4))) or "/"
    query = "&".join(draw(st.lists(pairs, max_size=4)))
    url = parse_url(f"{SITE}{path}{'?' if draw(st.booleans()) else ''}{query}")
    return url.text if isinstance(url, Url) else SITE + "/"


# Endless paths


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("/", None),
        ("/" + "a" * 1900, None),
        ("/" + "a" * 2000, "too_long"),
        ("/a?" + "b" * 2000, "too_long"),
        ("/dir/dir/x", None),
        ("/dir/dir/dir/", "trap"),
        ("/dir/dir/dir", "trap"),
        ("/x/aa/bb/aa/bb/aa/bb", "trap"),
        ("/aa/bb/aa/bb/aa", None),
        ("/aa/x/aa/y/aa/z", None),
        ("/a/b/a/b/a/b", None),
        ("/a/bb/a/bb/a/bb", "trap"),
        ("/2001/01/01/01/", None),
        ("/f/f/f/f00", None),
        ("/a////b", None),
        ("/" + "/".join(f"p{n}" for n in range(30)), None),
        ("/" + "/".join(f"p{n}" for n in range(31)), "trap"),
        ("/aa?x=/bb/bb/bb/bb", None),
    ],
)
def test_only_what_grows_without_end_is_a_trap(path: str, reason: str | None) -> None:
    """Issue 5"""
    assert Traps().filters(SITE + path) == reason


@ANY
@given(paths)
@example(["bb", "cc", "bb", "cc", "bb", "cc"])
@example(["1", "bb", "1", "bb", "1", "bb"])
def test_a_run_is_repeated_if_a_pattern_finds_it(segments: list[str]) -> None:
    """Issue 5: the rule, told once more in another way."""
    found = re.search(r"((?:/[^/]*)*?/(?!\d+(?:/|$))[^/]{2,}(?:/[^/]*)*?)\1\1(?=/|$)", "/" + "/".join(segments))

    assert (repeated_run(segments, 3) is not None) == (found is not None)
    assert (Traps().filters(f"{SITE}/{'/'.join(segments)}") is not None) == (found is not None)


# Endless queries


def test_a_path_has_so_many_queries_and_no_more() -> None:
    """Issue 5: an endless calendar"""
    traps = Traps()
    days = [f"{SITE}/calendar?day={day}" for day in range(MAX_QUERIES + 50)]

    first = [traps.filters(day) for day in days]
    second = [traps.filters(day) for day in days]

    assert first == second == [None] * MAX_QUERIES + ["trap"] * 50
    assert traps.filters(f"{SITE}/calendar") is None
    assert traps.filters(f"{SITE}/other?day=1") is None
    assert traps.filters("https://www.example.org/calendar?day=1") is None


@ANY
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 9)), max_size=99), st.integers(1, 5))
def test_a_url_that_was_let_through_stays_so(asked: list[tuple[int, int]], limit: int) -> None:
    """Issue 5"""
    traps = Traps(max_queries=limit)
    let_through: dict[int, set[int]] = {}

    for path, query in asked:
        known = let_through.setdefault(path, set())
        is_trap = traps.filters(f"{SITE}/{path}?q={query}") is not None
        assert is_trap == (query not in known and len(known) == limit)
        if not is_trap:
            known.add(query)


@pytest.mark.parametrize(("others", "queries"), [(PATHS, 1), (QUERIES // MAX_QUERIES, MAX_QUERIES)])
def test_what_is_remembered_is_bounded_and_what_is_asked_about_stays(others: int, queries: int) -> None:
    """F45: of paths and of queries, those that were unused for longest are forgotten."""
    traps = Traps()
    for number in range(MAX_QUERIES):
        traps.filters(f"{SITE}/idle?q={number}")
        traps.filters(f"{SITE}/busy?q={number}")

    for number in range(others):
        for query in range(queries):
            traps.filters(f"{SITE}/{number}?q={query}")
        assert traps.filters(f"{SITE}/busy?q=new{number}") == "trap"

    assert traps.filters(f"{SITE}/idle?q=new") is None


# Session ids and tracking


@pytest.mark.parametrize(
    ("url", "stripped"),
    [
        (f"/a;jsessionid={HEX}?x=1", "/a?x=1"),
        ("/a;JSESSIONID=7F.node1/b", "/a/b"),
        (f"/a;sid={HEX};v=2", "/a;v=2"),
        (f"/.;sid={HEX}/b", "/b"),
        ("/(S(55mfgh55vgblurtywsityvjq))/page.aspx", "/page.aspx"),
        ("/page?PHPSESSID=1&id=2", "/page?id=2"),
        ("/page?id=2&ASPSESSIONIDQABCDEFG=XYZ", "/page?id=2"),
        ("/page?CFID=12&CFTOKEN=34&id=2", "/page?id=2"),
        (f"/page?sid={HEX}", "/page"),
        (f"/page?session_id={HEX}&b", "/page?b"),
        ("/page?sessionid=9b2fd1e4-3b1f-4b7c-9d52-1f0c4a1b2c3d", "/page"),
        ("/page?osCsid=k3J9x0PqLm28ZtVbNw7s", "/page"),
        ("/page?utm_source=a&id=1&UTM_medium=b&gclid=c&fbclid=d", "/page?id=1"),
        ("/page?_ga=2.1&mc_eid=1", "/page"),
    ],
)
def test_what_says_who_is_asking_is_stripped(url: str, stripped: str) -> None:
    """Issue 5"""
    assert Traps().stripped(SITE + url) == SITE + stripped


@pytest.mark.parametrize(
    "url",
    [
        "/", "/a", "/a?b=c", "/a?", "/a?b&&c", "/a;v=1.2", "/a;sid=1", "/wiki/Set_(S(n))/x", "/wiki/Foo_(bar)",
        "/page?sid=12345", "/page?session=opening-keynote-2026", "/page?session=internationalconference",
        "/page?session=20261115120000000000", "/page?s=covid-19-vaccination", f"/commit?id={HEX}", "/page?cfid=1",
        "/page?q=utm_source", "/page?my_utm_source=1", "/page?q=PHPSESSID=1", "/page?sidebar=1",
    ],
)  # fmt: skip
def test_what_says_something_about_the_page_is_kept(url: str) -> None:
    """Issue 5: a false positive loses a page"""
    assert Traps().stripped(SITE + url) == SITE + url


@ANY
@given(urls())
def test_what_is_stripped_is_canonical_and_has_nothing_left_to_strip(url: str) -> None:
    """U1"""
    traps = Traps()

    once = traps.stripped(url)

    found = parse_url(once)
    assert isinstance(found, Url)
    assert found.text == once
    assert traps.stripped(once) == once
    assert len(once) <= len(url)


SUSPECT = re.compile(
    "|".join([r"sess|sid|;|\(|cftoken|zenid|_|id=", *(re.escape(name.rstrip("*")) for name in TRACKING)]), re.IGNORECASE
)


@ANY
@given(st.text(string.printable, max_size=60), st.text(string.printable, max_size=60))
@example("", "WBRAID")
def test_other_urls_are_as_they_were(path: str, query: str) -> None:
    url = parse_url(f"{SITE}/{path}?{query}")
    if isinstance(url, Url) and not SUSPECT.search(url.text):
        assert Traps().stripped(url.text) == url.text


def test_long_paths_with_queries_are_remembered_in_little_memory() -> None:
    """F32"""
    traps = Traps()

    tracemalloc.start()
    for number in range(5000):
        traps.filters(f"http://example.org/{'a' * 1900}{number}?a")
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert held < 4_000_000
