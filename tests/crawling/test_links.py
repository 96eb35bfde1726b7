"""Hrefs: as they are written, and what becomes of them."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st
from selectolax.lexbor import LexborHTMLParser

from curtsy.core.message import Url, parse_url
from curtsy.crawling.links import Joiner, KnownHrefs
from curtsy.crawling.markup import attributes, tags
from tests.strategies import ANY

SEGMENTS = st.sampled_from(
    [
        "a", "b.c", "..", ".", "", "x-y", "~u", "%41", "%7e", "a b", "é", "0x7f", "a;b", "a;", "A", ":", "?", "?q=1",
        "&", "#f", "http:", "https:", "//", "h.org", "H.org", "127.1", "1.2.3", "-h.org", "xn--p1ai", "a_b.org",
        "h.org.", "h..org", "h.org:80", "@", "\\", "\t", "\n", ".well", "a.",
    ]
)  # fmt: skip
HOSTS = st.sampled_from(["h.org", "www.h.org", "H.org", "1.2.3.4", "h.org:80", "h.org.", "h", "a-.org", "-a.org"])
HREFS = st.one_of(
    st.lists(SEGMENTS, max_size=6).map("/".join),
    st.lists(SEGMENTS, max_size=6).map("".join),
    st.text("abz019./?#:;=&%-_~@\\ \t\nH[]", max_size=14),
    st.builds("http://{}/{}".format, HOSTS, st.text("ab./?;=%~", max_size=8)),
)
BASES = st.sampled_from(
    [
        "https://www.h.org/", "http://h.org/a/b/c.html", "http://h.org/a//b/c", "http://h.org/a/%41/",
        "http://h.org:81/x?q=/../y", "http://127.0.0.1:8080/d/e/f/", "http://h.org/a;b/c;d", "http://h.org/~u/x",
    ]
)  # fmt: skip
PIECES = st.sampled_from(
    [
        "<", "</", ">", "/>", "a", "A", " ", "\n", "\t", "\f", "href", "HREF", "=", '"', "'", "x", "y&amp;z", "&copy=1",
        "&lt", "&#65;", "&notit;", "<!--", "-->", "--!>", "<!", "<?", "<p>", "</p>", "<div ", "<script>", "</script>",
        "<style>", "</style>", "<title>", "</title>", "<textarea>", "</textarea>", "title=", "<a href=u1>",
        "<a href='u2'>", '<a href="u3">', "<a class=q href = u4 >", "</a>", "<b>", "<li>", "<iframe>", "</iframe>",
        "<noscript>", "</noscript>", "<img alt='", "/", "!", "-", "\x00", "\x0b", "é", "<area href=z>", "<base ",
        "<meta ", "<br/>", "<xmp>", "</xmp>", "</SCRIPT ", "<Title>", '<li class="c">', "<link ",
        '<a class="c" href="u5" id="i">', '<p title="', '<a href="u6" ', "<s>", "<strong ", "</>", '="',
    ]
)  # fmt: skip


@ANY
@given(BASES, HREFS)
@example("https://www.h.org/", "0 #")
@example("https://www.h.org/", "http://h.org/.")
@example("http://h.org/a/b", "../../../x")
def test_a_link_is_joined_as_parse_url_joins_it(base: str, href: str) -> None:
    """U1, F65: the short ways lead to the same place."""
    page = parse_url(base)
    assert isinstance(page, Url)
    wanted = parse_url(href, page)

    assert Joiner(page).join(href) == (wanted.text if isinstance(wanted, Url) else None)


@ANY
@given(st.lists(PIECES, max_size=14).map("".join))
@example("<script></SCRIPT <a href=u1>")
@example("<a href=u1><!--><a href=u2>")
@example('</div ="><a href=u1>')
def test_links_are_found_where_a_parser_finds_them(pieces: str) -> None:
    """U12: the parser is Lexbor. It may make several elements of one tag, but in their order."""
    markup = "<body>" + pieces
    wanted = [node.attributes["href"] or "" for node in LexborHTMLParser(markup).tags("a") if "href" in node.attributes]

    found: dict[str, bool] = {}
    for name, written in tags(markup, found):
        if name == "a" and (href := attributes(written).get("href")) is not None:
            found[href] = True

    assert list(found) == list(dict.fromkeys(wanted))


def test_only_hrefs_that_mean_the_same_everywhere_are_known_as_they_are_written() -> None:
    known = KnownHrefs()
    lasting = ["/a", "//h.org/d", "https://h.org/e"]
    passing = ["b", "?c", "../f", "#g", ""]

    known.learn("https://h.org", {href: f"https://h.org/{number}" for number, href in enumerate(lasting + passing)})

    assert known.of("https://h.org") == {
        **{href: f"https://h.org/{number}" for number, href in enumerate(lasting)},
        **{f"https://h.org/{number}": f"https://h.org/{number}" for number in range(3, 8)},
    }
    assert not known.of("http://h.org")


def test_what_is_known_is_bounded() -> None:
    known = KnownHrefs(hrefs=10, in_all=30)
    for site in range(10):
        for number in range(25):
            known.learn(f"https://{site}.org", {f"/{number}": f"https://{site}.org/{number}"})

    remembered = [site for site in range(10) if "/24" in known.of(f"https://{site}.org")]
    assert remembered == [5, 6, 7, 8, 9]
    assert "/1" not in known.of("https://9.org")


def test_of_a_page_with_more_hrefs_than_a_site_may_have_the_first_are_known() -> None:
    known = KnownHrefs(hrefs=10, in_all=30)
    known.learn("https://other.org", {"/a": "https://other.org/a"})

    known.learn("https://h.org", {f"/{number}": f"https://h.org/{number}" for number in range(100)})

    assert list(known.of("https://h.org")) == [f"/{number}" for number in range(10)]
    assert known.of("https://other.org")
