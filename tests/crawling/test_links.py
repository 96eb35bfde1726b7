"""Hrefs: as they are written, and what becomes of them."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from selectolax.lexbor import LexborHTMLParser

from curtsy.core.url import Url, parse_url
from curtsy.crawling.extract.links import Joiner, KnownHrefs
from curtsy.crawling.extract.markup import WINDOW, Scan
from curtsy.crawling.extract.tokens import attributes, from_octets
from tests.strategies import ANY

SEGMENTS = st.sampled_from(
    [
        "a", "b.c", "..", ".", "", "x-y", "~u", "%41", "%7e", "a b", "é", "0x7f", "a;b", "a;", "A", ":", "?", "?q=1",
        "&", "#f", "http:", "https:", "//", "h.org", "H.org", "127.1", "1.2.3", "-h.org", "xn--p1ai", "a_b.org",
        "h.org.", "h..org", "h.org:80", "@", "\\", "\t", "\n", ".well", "a.", "%2E", "%C3%A9", "%c3", "%2F", "%2", "'",
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
        '<a class="c" href="u5" id="i">', '<p title="', '<a href="u6" ', "<s>", "<strong ", "</>", '="', "<p=", "b='",
        "<svgx>", "<scripty>", "<templates>", "<a ", "hreflang=de ", "rel=x ", "<A\nHREF='u7'", "<a href=''",
        "<a name=n>", "<img alt='<a href=bad>'>", "a=b<c", "a='>'", '<a href="u8&amp;b" ', "<a href>", "<a href= u9>",
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


LINKS = st.integers(0, 99).flatmap(
    lambda number: st.sampled_from(
        [
            f"<a href=u{number}>x</a>", f'<A HREF="u{number}"></A>', f"<a rel=x href='u{number}' ></a>",
            f"<area href=u{number}>", f"<!-- <a href=u{number}> -->",
            f"<script>'<a href=u{number}>'</script>", f"<title><a href=u{number}></title>",
            f"<script><!--<script><a href=u{number}></script>--></script>",
        ]
    )
)  # fmt: skip
INSIDE = LINKS.filter(lambda markup: "<title>" not in markup)
FOREIGN: st.SearchStrategy[str] = st.deferred(
    lambda: (
        INSIDE
        | st.sampled_from(
            ["<title/>", "<style/>", "<script/>", "<textarea />", "<iframe/>", "<path d='M1 2'/>", "<use href=#x />"]
        )
        | st.sampled_from(["<title>x</title>", "<g>", "<path>", "x < y", "<![CDATA[<a href=cdata>]]>", "<TITLE\n/>"])
        | st.builds("<style>{}</style>".format, INSIDE)
        | st.builds("<g>{}{}</g>".format, FOREIGN, FOREIGN)
        | st.builds("<foreignObject>{}</foreignObject>".format, MESSY)
        | st.builds("<svg>{}</svg>".format, FOREIGN)
    )
)
MESSY: st.SearchStrategy[str] = st.deferred(
    lambda: (
        LINKS
        | st.builds("<div>{}{}</div>".format, MESSY, MESSY)
        | st.builds("<ul><li>{}<li>{}</ul>".format, MESSY, MESSY)
        | st.builds("<table><tr><td>{}<td>{}</table>".format, MESSY, MESSY)
        | st.builds("<template>{}{}</template>".format, MESSY, MESSY)
        | st.builds("<svg viewBox='0 0'>{}{}{}</svg>".format, FOREIGN, FOREIGN, FOREIGN)
        | st.builds("<math><mi>{}</mi><annotation>{}</annotation></math>".format, LINKS, FOREIGN)
        | st.builds("<div><svg>{}<g></div>".format, FOREIGN)
        | st.builds("<svg><g><p>{}</p>".format, MESSY)
        | st.sampled_from(["<svg/>", "<svg><g/></svg>", "<br/>", "<b>x</b>", "</p>", "<template/></template>"])
    )
)
"""Pages as people write them: drawings, formulas and templates that are left open, or closed in odd ways."""


def hrefs_of(markup: str, *, window: int = WINDOW) -> dict[str, bool]:
    """What the scanner finds, as it is written, each with whether it may be followed."""
    scan = Scan(markup.encode("utf-8", "surrogatepass").decode("latin-1"), 1000, window=window)
    for name, written in scan.tags():
        values = attributes(from_octets(written))
        if name in ("a", "area") and "href" in values:
            scan.add(values["href"], is_followed="nofollow" not in values.get("rel", "").lower().split())
    return scan.hrefs


def without_fragments(hrefs: Iterable[tuple[str, bool]]) -> dict[str, bool]:
    """Hrefs without fragments; one is followed if one of its occurrences is."""
    found: dict[str, bool] = {}
    for href, is_followed in hrefs:
        page = href.partition("#")[0]
        found[page] = found.get(page, False) or is_followed
    return found


@ANY
@given(st.lists(PIECES, max_size=14).map("".join))
@example("<script></SCRIPT <a href=u1>")
@example("<a href=u1><!--><a href=u2>")
@example('</div ="><a href=u1>')
def test_links_are_found_where_a_parser_finds_them(pieces: str) -> None:
    """U12: the parser is Lexbor. It may make several elements of one tag, but in their order."""
    markup = "<body>" + pieces
    nodes = LexborHTMLParser(markup).css("a, area")
    wanted = [node.attributes["href"] or "" for node in nodes if "href" in node.attributes]

    assert list(hrefs_of(markup)) == list(dict.fromkeys(wanted))


@ANY
@given(st.lists(MESSY, max_size=4).map("".join))
@example("<svg><title/></svg><a href=u1>")
@example("<math><style/></math><a href=u1>")
@example("<svg><title><a href=u1></title></svg><a href=u2>")
@example("<template><svg><title></template><a href=u1>")
@example("<script><!--<script></script><a href=u1>--></script><a href=u2>")
def test_drawings_formulas_and_templates_are_read_as_a_parser_reads_them(pieces: str) -> None:
    """U12: no link behind them is lost, and those in a template are not links of the page."""
    markup = f"<body>{pieces}<a href=last>"
    wanted = {node.attributes["href"] for node in LexborHTMLParser(markup).css("a, area") if "href" in node.attributes}

    assert set(hrefs_of(markup)) == wanted


GAPS = st.sampled_from([" ", "\n", "\t ", "  "])
QUOTES = st.sampled_from(['"{}"', "'{}'", "{}"])
VALUES = st.sampled_from(
    ["u", "/a/b.html", "../c?d=1", "e#f", "#g", "h%20i", "j&amp;k=1", "é", "l;m", "n'", "mailto:o@p.org"]
)
RELS = st.sampled_from(["nofollow", "NoFollow", "noopener", "external nofollow", "nofollower", "next"])
ATTRIBUTES = st.one_of(
    st.builds("{}={}".format, st.sampled_from(["href", "HREF", "hReF"]), st.builds(str.format, QUOTES, VALUES)),
    st.builds("{}={}".format, st.sampled_from(["rel", "REL"]), st.builds(str.format, QUOTES, RELS)),
    st.sampled_from(
        ["class=c", "ID='i'", 'title="a > b"', "download", "hreflang=de", "data-x='<a href=bad>'", "x = y", "/"]
    ),
)
STYLED = st.lists(
    st.builds(
        "<{}{}{}>x</{}>".format,
        st.sampled_from(["a", "A"]),
        GAPS,
        st.builds(str.join, GAPS, st.lists(ATTRIBUTES, min_size=1, max_size=4)),
        st.sampled_from(["a", "A"]),
    )
    | st.sampled_from(["<p>x", "<LI CLASS='c'>", "<!-- <a href=no> -->", "<script>'<a href=no>'</script>", "a < b"]),
    max_size=6,
)


@ANY
@given(STYLED.map("".join), st.integers(0, 400), st.integers(300, 400))
@example("<a rel=nofollow rel=x href=u><a href=v rel=x rel=nofollow>", 0, 300)
def test_links_of_any_style_are_those_of_a_parser(markup: str, start: int, window: int) -> None:
    """U12: also where the search is interrupted, which is never in a tag of ordinary length."""
    page = f"<body>{'x' * start}{markup}"
    nodes = LexborHTMLParser(page).css("a, area")
    wanted = without_fragments(
        (node.attributes["href"] or "", "nofollow" not in (node.attributes.get("rel") or "").lower().split())
        for node in nodes
        if "href" in node.attributes
    )

    assert without_fragments(hrefs_of(page).items()) == wanted
    assert without_fragments(hrefs_of(page, window=window).items()) == wanted


@pytest.mark.parametrize("href", ["a?id=#", "../é#", "#.html"])
def test_no_link_is_cut_because_of_a_base_of_ordinary_length(href: str) -> None:
    """U12"""
    base = parse_url(f"http://example.org/{'a' * 150}/list?page=1")
    assert isinstance(base, Url)
    joiner = Joiner(base)

    found = {joiner.join(href.replace("#", str(number))) for number in range(5000)}

    assert len(found) == 5000
    assert joiner.cut == 0


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
