"""What is found in a page, and what no page can do to us."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from curtsy.core.errors import PolicyError
from curtsy.core.url import Url, parse_url
from curtsy.crawling.extract.links import KnownHrefs
from curtsy.crawling.extract.page import Extract, extract, header_directives, is_html
from curtsy.crawling.extract.text import main_text
from curtsy.crawling.extract.tokens import STEP
from tests.crawling.costly import BOMBS, QUICK
from tests.strategies import ANY
from tests.support.bounds import Slowness
from tests.support.polling import PATIENCE
from tests.support.snapshot import Snapshot

HTML = "text/html; charset=utf-8"

ROOT = Path(__file__).parents[2]

HOSTILE = [
    "javascript:alert(1)", "JaVaScRiPt:void(0)", "java\nscript:alert(1)", "mailto:a@b.example", "tel:+1",
    "data:text/html,x", "file:///etc/passwd", "ftp://h.example/", "gopher://h.example/", "blob:https://h.example/1",
    "about:blank", "ws://h.example/", "http://", "http://:80/", "http:///", "http:", "http:/\\", "http://[",
    "http://[::1", "http://[zz]/", "//[/x", "http://h.example:99999/", "http://h.example:0/", "http://h.example:x/",
    "http://a b/", "http://h%00.example/", "http://h%2f.example/", "http://h%20.example/", "http://h..example/",
    "http://" + "a" * 300 + ".example/", "http://256.256.256.256/", "http://0x1ffffffff/",
    "http://h\u3002\u3002example/", "http://\u0000/", "http://<>/", "/" + "x" * 9000,
    "view-source:http://h.example/", "http://user:pass@:80/",
]  # fmt: skip
"""38 of them, and none leads to a page."""

CURIOUS = [
    ("/a b", "/a%20b"), ("/a\tb\r\nc", "/abc"), ("/%", "/%25"), ("/%zz", "/%25zz"), ("/\u0000", "/%EF%BF%BD"),
    ("/\ud83d", "/%EF%BF%BD%EF%BF%BD%EF%BF%BD"), ("/..//../x", "/x"), ("/a\\b", "/a/b"), ("/a?b c#d", "/a?b%20c"),
    ("  /blank  ", "/blank"), ("/<script>", "/%3Cscript%3E"), ("/caf\u00e9", "/caf%C3%A9"), ('/"', "/%22"),
]  # fmt: skip
"""These do, if one is careful."""


def url(text: str) -> Url:
    found = parse_url(text)
    assert isinstance(found, Url)
    return found


PAGE = url("https://example.org/dir/page.html")


def read(markup: str, page: Url = PAGE) -> Extract:
    return extract(markup.encode("utf-8", "surrogatepass"), HTML, page)


def test_links_come_in_order_absolute_canonical_and_each_once() -> None:
    """U13"""
    found = read(
        '<a href="b">1</a><A HREF=/a>2</A><a href="//Other.Example:443/x#top">3</a><a href="b#frag">4</a>'
        "<area href='../up'><a href=\"http://EXAMPLE.org:80/q?x=1&amp;y=2\">5</a><a name=none>6</a>"
    )

    assert found.links == (
        "https://example.org/dir/b",
        "https://example.org/a",
        "https://other.example/x",
        "https://example.org/up",
        "http://example.org/q?x=1&y=2",
    )
    assert found.skipped == 0


def test_the_base_of_a_page_is_respected_wherever_it_stands() -> None:
    """U12"""
    found = read('<a href="x">1</a><base href="/other/"><base href="/third/"><link rel=canonical href="me">')

    assert found.links == ("https://example.org/other/x",)
    assert found.canonical == "https://example.org/other/me"
    assert found.base == url("https://example.org/other/")


@pytest.mark.parametrize("base", ["javascript:1", "http://[", "data:,x", ""])
def test_a_base_that_is_none_changes_nothing(base: str) -> None:
    """F65"""
    assert read(f'<base href="{base}"><a href="x">').links == ("https://example.org/dir/x",)


def test_a_link_is_unfollowed_only_if_it_stands_there_only_so() -> None:
    found = read('<a rel="NoFollow external" href=a><a rel=nofollow href=b><a href=b><a rel=nofollower href=c>')

    assert len(found.links) == 3
    assert found.unfollowed == {"https://example.org/dir/a"}


@pytest.mark.parametrize(
    ("markup", "directives"),
    [
        ('<meta name="robots" content="NoIndex , nofollow">', {"noindex", "nofollow"}),
        ('<META NAME=Robots CONTENT="none">', {"none", "noindex", "nofollow"}),
        ('<meta name=curtsy content=noindex><meta name=otherbot content=nofollow>', {"noindex"}),
        ('<!-- <meta name=robots content=noindex> -->', set()),
        ('<meta name=robots>', set()),
    ],
)  # fmt: skip
def test_what_a_page_asks_of_crawlers_is_read(markup: str, directives: set[str]) -> None:
    found = read(markup)

    assert found.directives == directives
    assert (found.noindex, found.nofollow) == ("noindex" in directives, "nofollow" in directives)


@pytest.mark.parametrize(
    ("values", "directives"),
    [
        (["noindex"], {"noindex"}),
        (["otherbot: noindex", "nofollow"], {"nofollow"}),
        (["Curtsy: none"], {"none", "noindex", "nofollow"}),
        (["otherbot: noindex, nofollow, curtsy: noai"], {"noai"}),
        (["unavailable_after: 25 Jun 2030, noindex"], {"unavailable_after: 25 jun 2030", "noindex"}),
        ([""], set()),
    ],
)  # fmt: skip
def test_the_header_asks_the_same_of_everybody_or_of_us(values: list[str], directives: set[str]) -> None:
    assert header_directives(values) == directives
    assert extract(b"", "application/pdf", PAGE, x_robots_tag=values).directives == directives


def test_what_a_page_says_about_ai_is_reported() -> None:
    markup = b'<meta name=robots content="noai, max-snippet:5"><meta name="tdm-reservation" content="1">'

    found = extract(markup, HTML, PAGE, x_robots_tag=["noimageai"])

    assert found.signals == ("noai", "noimageai", "tdm-reservation=1")
    assert not found.noindex


def test_the_title_is_one_line_of_text() -> None:
    """U12"""
    assert read("<title>\n Fish &amp;\n  <b>chips </title><title>two</title>").title == "Fish & <b>chips"
    assert read("<title> </title>").title is None
    assert read("").title is None


def test_a_page_that_sends_its_reader_on_links_there() -> None:
    found = read('<meta http-equiv="Refresh" content="5; URL=\'/next\'"><meta http-equiv=refresh content=30>')

    assert found.links == ("https://example.org/next",)


@pytest.mark.parametrize(
    ("body", "content_type", "title"),
    [
        ("<title>日本語</title>".encode("shift_jis"), "text/html; charset=Shift_JIS", "日本語"),
        ("<meta charset=euc-jp><title>日本語</title>".encode("euc-jp"), "text/html", "日本語"),
        (b"\xff\xfe" + "<title>日本語</title>".encode("utf-16-le"), "text/html", "日本語"),
        (b"<title>caf\xe9</title>", "text/html; charset=no-such", "café"),
        (b"<title>\xc3\x28</title>", "text/html; charset=utf-8", "\ufffd("),
    ],
)
def test_the_encoding_is_told(body: bytes, content_type: str, title: str) -> None:
    """U12"""
    assert extract(body, content_type, PAGE).title == title


def test_a_page_of_38_hostile_links_loses_none_of_the_good_ones() -> None:
    """F65"""
    assert len(HOSTILE) == 38
    curious = [href for href, _ in CURIOUS]
    hrefs = ["/ok?i=first", *HOSTILE, *curious, "/ok?i=last"]
    markup = "".join(f"<a href='{href}'>x</a>" for href in hrefs)

    found = read(markup)

    wanted = ["/ok?i=first", *(target for _, target in CURIOUS), "/ok?i=last"]
    assert [link.removeprefix("https://example.org") for link in found.links] == wanted
    assert found.skipped == 38
    assert not any(letter in link for link in found.links for letter in "\r\n \0")


@pytest.mark.parametrize(
    "markup",
    [
        "<!-- <a href=/bad> --><a href=/good>",
        "<script>'<a href=/bad>'</script><a href=/good>",
        "<SCRIPT></b><a href=/bad></SCRIPT ><a href=/good>",
        "<style><a href=/bad></style><a href=/good>",
        "<title><a href=/bad></title><a href=/good>",
        "<img alt='<a href=/bad>'><a href=/good>",
        "</p title=\"<a href=/bad>\"><a href=/good>",
        "<a href=/good><a href=\"/bad",
        "<a href=/good><a href=/bad",
        "<a title='>' class=\"a>b\" data-x=1 href=/good>",
        "<a\nhref\n=\n'/good'\n>",
        "<a/href=/good>",
        "<a href=/good href=/bad>",
        "<p <a href=/bad>><a href=/good>",
        "<<<a href=/good></a></a></b>",
        "<?xml version='1.0'?><!DOCTYPE html><a href=/good>",
        "<a href='&#47;go&#x6f;d'>",
        "\0<a href=/good>\0",
    ],
)  # fmt: skip
def test_broken_markup_is_read_as_a_browser_reads_it(markup: str) -> None:
    """U12"""
    assert read(markup).links == ("https://example.org/good",)


BAD = "<a href=/bad>"

LONG = {
    "a script": f"<script>{'<b>' * 2000}</scrip {BAD}</SCRIPT >",
    "a comment": f"<!--{'- --x' * 2000}{BAD}-->",
    "a comment that ends with a mark": f"<!--{'--' * 2000}{BAD}--!>",
    "a tag": f"""<p {"x " * 40_000} y='{BAD}'>""",
    "a link": f"""<a href=/bad {"x " * 40_000} y='{BAD}'>""",
    "the tag of a script": f"<script {'x ' * 40_000}>{BAD}</script>",
    "the end of a script": f"""<script></script {"x " * 40_000} y='{BAD}'>""",
    "tags that say nothing": "<b></b>" * 2000 + "<p class='x'>" * 2000,
    "a tag with plain attributes": f"""<p{' x="y"' * 70_000} z='{BAD}'>""",
    "a link with plain attributes": f"""<a{' x="y"' * 70_000} z='{BAD}'>""",
}


@pytest.mark.parametrize("markup", LONG.values(), ids=LONG)
def test_what_is_too_long_to_be_read_in_one_go_ends_where_it_ends(markup: str) -> None:
    """U12"""
    assert read(f"{markup}<a href=/good>").links == ("https://example.org/good",)


@pytest.mark.parametrize("short", range(16))
def test_the_end_of_a_script_is_found_wherever_a_step_ends(short: int) -> None:
    """U12"""
    script = "<" * 1000 + "x" * (2 * STEP - short)

    assert read(f"<script>{script}</script><a href=/good>").links == ("https://example.org/good",)


def test_a_title_that_is_too_long_to_be_read_in_one_go_is_whole() -> None:
    """U12"""
    inside = "a<b " * 2000

    assert read(f"<title>{inside}</title><a href=/good>").title == inside.strip()


def test_in_xhtml_an_empty_script_is_over_at_once() -> None:
    """U12: read as HTML, it would swallow the page."""
    markup = b'<head><title/><script src="x.js"/></head><a href="/good">x</a>'

    assert extract(markup, "application/xhtml+xml", PAGE).links == ("https://example.org/good",)


@pytest.mark.parametrize("content_type", ["application/pdf", "image/png", "text/plain", "application/json"])
def test_other_files_are_not_read(content_type: str) -> None:
    found = extract(b"<title>t</title><a href=/x>", content_type, PAGE)

    assert (found.title, found.links, found.encoding) == (None, (), None)
    assert main_text(b"<p>text", content_type) == ""


def test_without_a_type_the_beginning_tells() -> None:
    assert is_html(None, b"\xef\xbb\xbf \n<!doctype html>")
    assert not is_html(None, b"%PDF-1.7")
    assert not is_html("", b"")


@pytest.mark.parametrize("digits", ["9" * 5000, "x" + "f" * 5000, "1114112", "xD800", "0", ""])
def test_a_reference_to_no_character_is_no_crash(digits: str) -> None:
    """F65: Python refuses to read a number of 5,000 digits."""
    found = read(f"<title>a&#{digits};b</title><a href='/a&#{digits};b'>")

    assert found.title is not None
    assert len(found.links) == 1
    assert main_text(f"a&#{digits};b".encode(), HTML)


@ANY
@given(st.binary(max_size=400), st.sampled_from([None, "text/html", "text/html; charset=utf-16", HTML]))
def test_no_bytes_are_a_crash(body: bytes, content_type: str | None) -> None:
    """U12, F65"""
    for padded in (body, b"<" + body, b"<a href=" + body):
        found = extract(padded, content_type, PAGE)
        main_text(padded, content_type)

        for link in found.links:
            assert isinstance(again := parse_url(link), Url)
            assert again.text == link


def test_known_hrefs_are_told_from_fresh_ones() -> None:
    known = KnownHrefs()
    first = extract(b"<a href=/a><a href=/b><a href=rel>", HTML, PAGE, known=known)
    known.learn(first.base.origin, first.fresh)

    second = extract(b"<a href=/a><a href=/c><a href=rel>", HTML, url("https://example.org/other/"), known=known)

    links = ("https://example.org/a", "https://example.org/c", "https://example.org/other/rel")
    assert second.links == links
    assert second.fresh == {"/c": links[1], "rel": links[2]}
    assert extract(b"<a href=rel>", HTML, PAGE, known=known).fresh == {}
    assert extract(b"<a href=/a>", HTML, url("https://other.example/"), known=known).fresh


def test_main_text_takes_the_article_and_leaves_the_rest() -> None:
    """U12"""
    markup = b"""<title>T</title><body><nav>Home</nav><main><header>Head</header><p>Main</p>
    <article><h1>An  <em>old</em>
    story</h1><aside>ad</aside><p>It w<b>as</b> <a href=x>so</a>.<br>So.</p><script>no</script><style>no</style>
    <noscript>no</noscript><footer>foot</footer></article><article>Second</article></main><footer>F</footer>"""

    assert main_text(markup, HTML) == "An old story\nIt was so.\nSo."


@pytest.mark.parametrize(
    ("markup", "text"),
    [
        ("<body><main>M<nav>n</nav></main><p>B", "M"),
        ("<nav>n</nav>B<div>C</div>D", "B\nC\nD"),
        ("no tags &amp; 1 &lt; 2", "no tags & 1 < 2"),
        ("<frameset><frame src=x></frameset>", ""),
        ("a<!-- b -->c", "ac"),
    ],
)
def test_main_text_does_with_what_there_is(markup: str, text: str) -> None:
    """U12"""
    assert main_text(markup.encode(), "text/html") == text


def test_a_reader_that_is_not_installed_is_an_error_that_says_what_to_do() -> None:
    try:
        import trafilatura  # type: ignore[import-not-found, unused-ignore]  # noqa: F401
    except ImportError:
        with pytest.raises(PolicyError, match=r'pip install "curtsy\[text\]"'):
            main_text(b"<p>x", HTML, reader="trafilatura")
    else:
        page = "<article>" + "<p>A sentence that says something, and goes on.</p>" * 20
        assert "A sentence" in main_text(page.encode(), HTML, reader="trafilatura")


def test_a_reader_that_is_there_and_broken_is_an_error_with_its_own_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, snapshot: Snapshot
) -> None:
    why = "lxml.html.clean is now another project"
    (tmp_path / "trafilatura.py").write_text(f"raise ImportError('{why}.')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "trafilatura", raising=False)

    with pytest.raises(PolicyError, match=why) as told:
        main_text(b"<p>x", HTML, reader="trafilatura")

    snapshot(str(told.value))


@pytest.mark.skipif(sys.platform != "linux", reason="the high-water mark of a process is measured as Linux has it")
@pytest.mark.parametrize(
    "name", [*QUICK, *(pytest.param(each, marks=pytest.mark.soak) for each in BOMBS if each not in QUICK)]
)
def test_a_page_made_to_hurt_costs_neither_time_nor_memory(name: str) -> None:
    """F01, F32: at most 2 s of CPU time and 64 MiB besides the page itself, for its links and its main text."""
    command = [sys.executable, "-m", "tests.crawling.costly", name]
    with Slowness() as machine:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, cwd=ROOT)

    assert done.returncode == 0, done.stderr
    links, text, links_mib, text_mib = map(float, done.stdout.split())
    assert links + text < 2 * machine.cpu
    assert max(links_mib, text_mib) < 64
