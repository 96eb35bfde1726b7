"""Which URLs belong to a crawl, and what is said of the others."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from curtsy.core.errors import PolicyError
from curtsy.core.url import Url, parse_url
from curtsy.crawling.extract.scope import Kind, OutOfScope, Scope, ending_of
from curtsy.crawling.frontier.protocol import host_of
from curtsy.http.registered_domain import site_of
from tests.strategies import ANY
from tests.support.bounds import cpu_within
from tests.support.snapshot import Snapshot

KINDS: tuple[Kind, ...] = ("host", "site", "domains", "prefix", "any")

hosts = st.sampled_from(
    [
        "example.org", "www.example.org", "a.b.example.org", "example.org:8080", "example.co.uk", "x.example.co.uk",
        "alice.github.io", "bob.github.io", "localhost", "localhost:8000", "127.0.0.1:8000", "127.0.0.2:8000",
        "[::1]:8000",
    ]
)  # fmt: skip
segments = st.sampled_from(["", "docs", "docs2", "a.pdf", "b.JPG", "File:c.png", "login", "%20", "1"])


@st.composite
def urls(draw: st.DrawFn) -> str:
    """Canonical URLs, of which many have something in common."""
    scheme = draw(st.sampled_from(["http", "https"]))
    path = "/".join(draw(st.lists(segments, max_size=4)))
    query = draw(st.sampled_from(["", "?q=1", "?f=a.pdf/b"]))
    url = parse_url(f"{scheme}://{draw(hosts)}/{path}{query}")
    assert isinstance(url, Url)
    return url.text


@st.composite
def scopes(draw: st.DrawFn) -> tuple[list[str], Scope]:
    """Any scope, and its seeds."""
    seeds = draw(st.lists(urls(), min_size=1, max_size=3))
    scope = Scope.around(
        seeds,
        kind=draw(st.sampled_from(KINDS)),
        domains=draw(st.lists(hosts, min_size=1, max_size=2)),
        match=draw(st.lists(st.sampled_from(["/docs/", r"\d$", "q="]), max_size=2)),
        skip=draw(st.lists(st.sampled_from(["/login", "docs2"]), max_size=1)),
        max_depth=draw(st.none() | st.integers(0, 3)),
        files=draw(st.sampled_from(["pages", "all", [".pdf"]])),
    )
    return seeds, scope


def around(kind: Kind, *seeds: str, **more: object) -> Scope:
    return Scope.around(seeds, kind=kind, **more)  # type: ignore[arg-type]


def refuses(scope: Scope, url: str) -> str | None:
    return scope.refuses(url, 1)


# Where


@pytest.mark.parametrize(
    ("kind", "seed", "url", "reason"),
    [
        ("host", "https://example.org/a", "http://example.org/b", None),
        ("host", "https://example.org/", "https://www.example.org/", "other_host"),
        ("host", "https://example.org/", "https://example.org:8443/", "other_host"),
        ("host", "https://example.org/", "https://elsewhere.test/", "other_site"),
        ("host", "http://127.0.0.1:8000/", "http://127.0.0.2:8000/", "other_site"),
        ("site", "https://www.example.org/", "https://shop.example.org:8443/x", None),
        ("site", "https://a.example.co.uk/", "https://b.example.co.uk/", None),
        ("site", "https://a.example.co.uk/", "https://other.co.uk/", "other_site"),
        ("site", "https://alice.github.io/", "https://bob.github.io/", "other_site"),
        ("site", "https://example.org/", "https://notexample.org/", "other_site"),
        ("site", "http://127.0.0.1:8000/", "http://127.0.0.1:8000/x", None),
        ("site", "http://127.0.0.1:8000/", "http://127.0.0.1:8001/", "other_site"),
        ("site", "http://127.0.0.1:8000/", "http://127.0.0.2:8000/", "other_site"),
        ("site", "http://localhost:8000/", "http://localhost:8001/", "other_site"),
        ("site", "http://[::1]:8000/", "http://[::2]:8000/", "other_site"),
        ("prefix", "https://example.org/docs/intro?x=/y/", "http://example.org/docs/a/b", None),
        ("prefix", "https://example.org/docs/", "https://example.org/docs", "outside_prefix"),
        ("prefix", "https://example.org/docs/", "https://example.org/docs2/", "outside_prefix"),
        ("prefix", "https://example.org/docs/", "https://www.example.org/docs/", "other_host"),
        ("prefix", "https://example.org/docs/", "https://elsewhere.test/docs/", "other_site"),
        ("any", "https://example.org/", "https://elsewhere.test/", None),
    ],
)
def test_where_a_url_is_decides_by_the_kind(kind: Kind, seed: str, url: str, reason: str | None) -> None:
    """Issue 5"""
    assert refuses(around(kind, seed), url) == reason


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("https://example.org/", None),
        ("https://example.org:8443/", None),
        ("https://a.b.example.org/", None),
        ("https://notexample.org/", "other_domain"),
        ("https://org/", "other_domain"),
        ("http://127.0.0.1:8000/", None),
        ("http://127.0.0.1:8001/", "other_domain"),
        ("https://seed.test/other", "other_domain"),
    ],
)
def test_domains_are_those_given_and_the_hosts_under_them(url: str, reason: str | None) -> None:
    """Issue 5"""
    scope = around("domains", "https://seed.test/", domains=["Example.org", "127.0.0.1:8000"])

    assert refuses(scope, url) == reason


@pytest.mark.parametrize("kind", KINDS)
def test_domains_belong_to_a_crawl_of_any_kind(kind: Kind) -> None:
    """Issue 5"""
    scope = around(kind, "https://example.org/docs/", domains=["example.net"])

    assert refuses(scope, "https://cdn.example.net/anything") is None


def test_the_site_of_a_public_suffix_is_itself() -> None:
    assert site_of("github.io") == "github.io"
    assert site_of("www.example.org:8080") == "example.org"


# What


def test_skip_wins_over_match_and_one_match_is_enough() -> None:
    """Issue 5"""
    scope = around("any", "https://example.org/", match=["/docs/", "/blog/"], skip=[r"\?print=1$"])

    assert refuses(scope, "https://example.org/blog/1") is None
    assert refuses(scope, "https://example.org/about") == "not_matched"
    assert refuses(scope, "https://example.org/blog/1?print=1") == "skipped"


def test_no_more_links_than_the_depth_lead_to_a_page() -> None:
    """Issue 5"""
    scope = around("any", "https://example.org/", max_depth=2)

    assert [scope.refuses("https://example.org/x", depth) for depth in (0, 2, 3)] == [None, None, "too_deep"]


@pytest.mark.parametrize(
    ("url", "ending"),
    [
        ("https://example.org/", ""),
        ("https://example.org/a.html", ".html"),
        ("https://example.org/a.b/c", ""),
        ("https://example.org/a.PDF?x=y.z/w.q", ".pdf"),
        ("https://example.org/?f=a.jpg", ""),
        ("https://example.org/wiki/File:A.jpg", ""),
        ("https://example.org:8080/a.tar.gz", ".gz"),
        ("https://example.org/.well-known", ".well-known"),
    ],
)
def test_the_ending_is_that_of_the_path(url: str, ending: str) -> None:
    assert ending_of(url) == ending


@pytest.mark.parametrize("name", ["a", "a.html", "a.php", "a.v2", "File:a.png", "a.xml", "?f=a.png", "a.pdf/"])
def test_what_may_be_a_page_is_one(name: str) -> None:
    """Issue 5"""
    assert refuses(around("any", "https://example.org/"), f"https://example.org/{name}") is None


@pytest.mark.parametrize("name", ["a.png", "a.MP4?x=1", "a.woff2", "a.tar.gz", "a.css", "a.js", "a.pdf", "a.docx"])
def test_what_is_plainly_no_page_is_left_out_unless_it_is_asked_for(name: str) -> None:
    """Issue 5"""
    url, seed = f"https://example.org/{name}", "https://example.org/"
    ending = ending_of(url)

    assert refuses(around("any", seed), url) == "file_type"
    assert refuses(around("any", seed, files="all"), url) is None
    for written in (ending, ending[1:], f"*{ending.upper()}"):
        assert refuses(around("any", seed, files=[written]), url) is None
        assert refuses(around("any", seed, files=[written]), "https://example.org/a.exe") == "file_type"


def test_the_rules_of_a_host_are_no_page_unless_every_file_or_just_this_one_is_wanted() -> None:
    """R1: a listing of the root directory links to them; other files with a dot are pages like any"""
    seed, robots = "https://example.org/", "https://example.org/robots.txt"
    others = ("a/robots.txt", "robots.txt?x=1", "?x=/robots.txt", ".htaccess", ".well-known/about", "robots.html")

    assert refuses(around("any", seed), robots) == "robots_file"
    assert refuses(around("any", seed, files="all"), robots) is None
    assert refuses(around("any", robots), robots) is None
    assert [refuses(around("any", seed), f"{seed}{each}") for each in others] == [None] * len(others)


def test_one_text_is_a_sequence_of_one() -> None:
    scope = Scope.around("https://example.org/", match="/docs/", skip="x$", domains="example.net", files="pdf")

    assert scope == Scope.around(
        ["https://example.org/"], match=["/docs/"], skip=["x$"], domains=["example.net"], files=[".pdf"]
    )


# What holds for any scope


@ANY
@given(scopes())
def test_a_seed_is_always_fetched(given_scope: tuple[list[str], Scope]) -> None:
    """Issue 5"""
    seeds, scope = given_scope

    assert [scope.refuses(seed, 0) for seed in seeds] == [None] * len(seeds)


@ANY
@given(scopes(), urls(), urls(), st.integers(0, 4))
def test_a_widened_scope_has_the_new_page_and_all_of_the_old_ones(
    given_scope: tuple[list[str], Scope], target: str, other: str, depth: int
) -> None:
    """Issue 5"""
    _, scope = given_scope

    before, was_refused = scope.refuses(other, depth), scope.refuses(target, 0) is not None

    assert scope.widen(target) == was_refused

    assert scope.refuses(target, 0) is None
    assert before is not None or scope.refuses(other, depth) is None
    assert not scope.widen(target)


@ANY
@given(scopes(), urls(), st.lists(urls(), max_size=9))
def test_a_scope_can_be_kept_as_plain_values(
    given_scope: tuple[list[str], Scope], target: str, asked: list[str]
) -> None:
    """Issue 5: resume"""
    _, scope = given_scope
    scope.widen(target)

    kept = json.loads(json.dumps(scope.as_plain()))

    resumed = Scope.from_plain(kept)
    assert resumed == scope
    assert scope.changes(kept) == []
    resumed.widen(target)
    assert [resumed.refuses(url, 1) for url in asked] == [scope.refuses(url, 1) for url in asked]


@ANY
@given(scopes(), urls())
def test_the_option_that_a_reason_names_includes_the_url(given_scope: tuple[list[str], Scope], url: str) -> None:
    """Conventions: errors; a hint that does not help is none"""
    seeds, scope = given_scope
    wider: dict[str, Kind] = {OutOfScope.OUTSIDE_PREFIX: "host", OutOfScope.OTHER_HOST: "site"}
    named = {OutOfScope.OTHER_HOST, OutOfScope.OTHER_SITE, OutOfScope.OTHER_DOMAIN}

    reason = scope.refuses(url, 0)

    if reason in wider:
        assert around(wider[reason], *seeds).covers(url)
    if reason in named:
        assert around(scope.kind, *seeds, domains=host_of(url)).covers(url)
    assert reason not in {OutOfScope.OTHER_SITE} or not around("site", *seeds).covers(url)


@ANY
@given(scopes(), urls(), st.integers(0, 4))
def test_every_reason_can_be_explained(given_scope: tuple[list[str], Scope], url: str, depth: int) -> None:
    """Issue 5"""
    _, scope = given_scope
    reason = scope.refuses(url, depth)

    if reason is not None:
        explained = scope.explain(reason, url)
        assert url in explained
        assert re.search(r"\. [A-Z].+\.$", explained.replace(url, "URL")), "what to do is a sentence of its own"
    assert "\n" not in scope.describe()


# Widening


@pytest.mark.parametrize("kind", ["host", "site", "prefix", "domains"])
def test_a_scope_is_widened_in_linear_time(kind: Kind) -> None:
    """F32: a list of seeds that all redirect, such as http://h.org/ to https://www.h.org/"""
    scope = around(kind, "https://example.org/", domains="example.org")

    with cpu_within(5.0):
        for number in range(20_000):
            scope.widen(f"https://www.h{number}.org/")

    assert refuses(scope, "https://www.h77.org/a") is None
    assert refuses(scope, "https://www.other.org/a") is not None


def test_a_redirect_out_of_a_prefix_opens_one_page_and_not_the_host() -> None:
    """Issue 5"""
    scope = around("prefix", "https://example.org/docs/")

    for target in ("https://example.org/login", "https://www.example.org/docs/", "https://www.example.org/login"):
        scope.widen(target)

    for host in ("example.org", "www.example.org"):
        assert refuses(scope, f"https://{host}/login") is None
        assert refuses(scope, f"https://{host}/shop") == "outside_prefix"
    assert refuses(scope, "https://www.example.org/docs/1") is None


# Changes


def test_the_scope_of_a_job_of_an_earlier_version_is_the_same() -> None:
    """Issue 18, 4: its notes have the old name of max_depth"""
    now = around("site", "https://example.org/", max_depth=2)
    noted = {**now.as_plain(), "depth": 2}
    noted.pop("max_depth", None)

    assert now.changes(noted) == []
    assert Scope.from_plain(noted) == now


def test_a_changed_scope_is_said(snapshot: Snapshot) -> None:
    """Issue 5: "a changed scope is said" """
    old = around("site", "https://example.org/", match="/a/", max_depth=3)
    new = around("site", "https://example.net/", match="/b/", skip="/c/", domains="cdn.test", files="all")

    changes = new.changes(old.as_plain())

    data = ["example.net", "example.org", "cdn.test", "/b/", "/a/", "/c/", "3", "files"]
    assert [datum in change for datum, change in zip(data, changes, strict=True)] == [True] * len(data)
    snapshot("\n".join(changes))


def test_another_kind_of_scope_is_said_once(snapshot: Snapshot) -> None:
    """Issue 5"""
    old = around("site", "https://example.org/")

    [change] = around("any", "https://example.org/").changes(old.as_plain())

    snapshot(change)


def test_an_old_scope_that_cannot_be_read_is_said_and_not_fatal(snapshot: Snapshot) -> None:
    """U16"""
    scope = around("site", "https://example.org/")
    olds: list[dict[str, object]] = [{}, {"kind": "galaxy", "places": []}, {"kind": "site", "places": 5}, {"x": 1}]

    for old in olds:
        [change] = scope.changes(old)

        assert scope.describe() in change
        snapshot(change)
        with pytest.raises(PolicyError, match="scope"):
            Scope.from_plain(old)


# Words


def test_a_scope_is_described_in_one_line(snapshot: Snapshot) -> None:
    scope = around(
        "host",
        "https://b.test/",
        "https://a.test/",
        match=["/x", "/y"],
        skip="z",
        max_depth=1,
        domains="c.test",
        files="pdf",
    )

    assert "1" in scope.describe().split()
    snapshot(scope.describe())


def test_many_places_are_not_listed_all(snapshot: Snapshot) -> None:
    scope = around("host", *(f"https://h{number}.test/" for number in range(9)))

    described = scope.describe()

    assert re.findall(r"h\d\.test", described) == ["h0.test", "h1.test", "h2.test"]
    assert "6" in described.split()
    snapshot(described)


def test_an_explanation_says_what_why_and_what_to_do(snapshot: Snapshot) -> None:
    """Conventions"""
    scope = around("site", "https://example.org/", skip=["/login", "print"])

    for reason, url in (
        ("other_site", "https://other.test/x"),
        ("skipped", "https://example.org/print/1"),
        ("file_type", "https://example.org/a.pdf"),
        ("robots_file", "https://example.org/robots.txt"),
    ):
        assert url in scope.explain(reason, url)
        snapshot(scope.explain(reason, url), reason)


def test_an_explanation_shows_no_secret() -> None:
    """F62"""
    scope = around("site", "https://example.org/")

    assert "s3cret" not in scope.explain(OutOfScope.OTHER_SITE, "https://other.test/?access_token=s3cret")


# Mistakes


@pytest.mark.parametrize(
    ("given_settings", "named"),
    [
        ({"match": ["ok", "("]}, "match[1] = '('"),
        ({"skip": "*.pdf"}, "skip[0] = '*.pdf'"),
        ({"kind": "galaxy"}, "kind = 'galaxy'"),
        ({"kind": "domains"}, "domains = ()"),
        ({"max_depth": -1}, "max_depth = -1"),
        ({"max_depth": True}, "max_depth = True"),
        ({"domains": ["https://example.org/"]}, "domain = 'https://example.org/'"),
        ({"files": [".p/df"]}, "files: '.p/df'"),
    ],
    ids=["match", "skip", "kind", "no domain", "depth", "bool", "domain", "files"],
)
def test_a_mistake_is_named(given_settings: dict[str, object], named: str, snapshot: Snapshot) -> None:
    """Issue 5"""
    with pytest.raises(PolicyError, match=re.escape(named)) as told:
        Scope.around(["https://example.org/"], **given_settings)  # type: ignore[arg-type]

    snapshot(str(told.value))


def test_a_seed_that_is_no_url_is_named_without_its_password(snapshot: Snapshot) -> None:
    """F62"""
    with pytest.raises(PolicyError, match=r"ftp://\S*example\.org/") as raised:
        Scope.around(["ftp://user:s3cret@example.org/"])

    assert "s3cret" not in str(raised.value)
    snapshot(str(raised.value))


def test_a_crawl_of_nothing_is_a_mistake() -> None:
    with pytest.raises(PolicyError, match=r"^seeds = \(\) "):
        Scope.around([])
