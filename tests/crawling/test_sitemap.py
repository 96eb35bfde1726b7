"""What a site lists, and what no such list can do to us."""

from __future__ import annotations

import gzip
import re
import socket
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from xml.sax.saxutils import escape

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from curtsy.core.url import Url, parse_url
from curtsy.crawling.extract.sitemap import Limits, Sitemap, is_sitemap, parse_sitemap
from tests.strategies import ANY
from tests.support.bounds import cpu_within
from tests.support.snapshot import Snapshot

WHERE = "https://example.org/maps/sitemap.xml"
NS = 'xmlns="http://www.sitemaps.org/schemas/sitemap/0.9"'


def read(text: str | bytes, limits: Limits | None = None) -> Sitemap:
    body = text.encode() if isinstance(text, str) else text
    found = parse_sitemap(body, WHERE) if limits is None else parse_sitemap(body, WHERE, limits=limits)
    return msgspec.structs.replace(found, pages=tuple(found.pages))


def pages(text: str | bytes) -> list[str]:
    return list(read(text).pages)


def urlset(*locs: str) -> str:
    entries = "".join(f"<url><loc>{escape(loc)}</loc></url>\n" for loc in locs)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n<urlset {NS}>\n{entries}</urlset>\n'


# The forms


def test_a_sitemap_lists_pages() -> None:
    """Issue 5"""
    found = read(
        f"""<?xml version="1.0" encoding="UTF-8"?>
        <urlset {NS} xmlns:image="http://www.google.com/schemas/sitemap-image/1.1">
          <url>
            <loc> https://example.org/a?x=1&amp;y=2 </loc><lastmod>2026-11-15</lastmod>
            <changefreq>daily</changefreq><priority>0.8</priority>
            <image:image><image:loc>https://example.org/a.png</image:loc></image:image>
          </url>
          <url><loc>https://example.org/b</loc><lastmod>2026-11-15T08:00:00+01:00</lastmod></url>
          <url><lastmod>yesterday</lastmod><priority>9</priority><loc>https://example.org/c</loc></url>
        </urlset>"""
    )

    assert found == Sitemap(
        pages=(
            "https://example.org/a?x=1&y=2",
            "https://example.org/b",
            "https://example.org/c",
        )
    )


def test_an_index_lists_sitemaps() -> None:
    """Issue 5"""
    found = read(
        f"<sitemapindex {NS}><sitemap><loc>https://example.org/1.xml.gz</loc><lastmod>2026</lastmod></sitemap>"
        "<sitemap><loc>/2.xml</loc></sitemap></sitemapindex>"
    )

    assert found == Sitemap(sitemaps=("https://example.org/1.xml.gz", "https://example.org/2.xml"))


def test_an_index_that_lists_itself_is_no_circle(snapshot: Snapshot) -> None:
    found = read(f"<sitemapindex><sitemap><loc>{WHERE}</loc></sitemap></sitemapindex>")

    [told] = found.parse_warnings
    assert found == Sitemap(parse_warnings=(told,))
    snapshot(told)


def test_a_plain_list_has_a_url_a_line() -> None:
    """Issue 5"""
    found = read("\ufeffhttps://example.org/a\r\n\n  HTTPS://Example.org/b#top  \rhttps://example.org/a\nnonsense\n")

    assert list(found.pages) == ["https://example.org/a", "https://example.org/b"]
    [told] = found.parse_warnings
    assert "1" in told.split()


RSS = """<?xml version="1.0"?><rss version="2.0" xmlns:atom="http://www.w3.org/2005/Atom"><channel>
<link>https://example.org/</link><atom:link rel="self" href="https://example.org/feed"/>
<item><title>x</title><link><![CDATA[https://example.org/1?a=1&b=2]]></link>
<guid isPermaLink="false">https://example.org/?p=1</guid><pubDate>Sun, 15 Nov 2026 09:00:00 +0100</pubDate></item>
<item><guid>https://example.org/2</guid></item><item><guid>urn:x</guid></item></channel></rss>"""
ATOM = """<feed xmlns="http://www.w3.org/2005/Atom"><link rel="self" href="/feed"/><updated>2026-01-01</updated>
<entry><link rel="edit" href="/edit/1"/><link href="/1?a=1&amp;b=2"/><updated>2026-11-15T08:00:00Z</updated></entry>
<entry><link rel='alternate' type='text/html' href='2'></link></entry></feed>"""
RDF = """<rdf:RDF xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#" xmlns="http://purl.org/rss/1.0/">
<channel><link>https://example.org/</link></channel>
<item rdf:about="x"><link>https://example.org/1</link></item></rdf:RDF>"""


@pytest.mark.parametrize(
    ("feed", "expected"),
    [
        (
            RSS,
            ("https://example.org/1?a=1&b=2", "https://example.org/2"),
        ),
        (
            ATOM,
            ("https://example.org/1?a=1&b=2", "https://example.org/maps/2"),
        ),
        (RDF, ("https://example.org/1",)),
    ],
    ids=["rss", "atom", "rdf"],
)
def test_a_feed_lists_its_entries(feed: str, expected: tuple[str, ...]) -> None:
    """Issue 5"""
    assert read(feed) == Sitemap(expected)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "iso-8859-1"])
def test_encodings_are_told(encoding: str) -> None:
    """U12"""
    text = (
        f'<?xml version="1.0" encoding="{encoding.removesuffix("-sig")}"?><urlset><url><loc>/café</loc></url></urlset>'
    )

    assert pages(text.encode(encoding)) == ["https://example.org/caf%C3%A9"]


@pytest.mark.parametrize("pack", [gzip.compress, lambda body: gzip.compress(gzip.compress(body))])
def test_gzip_is_told_by_its_first_bytes(pack: Callable[[bytes], bytes]) -> None:
    """Issue 5: also where the server has compressed what was compressed"""
    packed = pack(urlset("https://example.org/a").encode())

    assert pages(packed) == ["https://example.org/a"]


def test_a_namespace_may_have_a_prefix() -> None:
    assert pages("<s:urlset><s:url><s:loc>/a</s:loc><video:loc>/v</video:loc></s:url></s:urlset>") == [
        "https://example.org/a"
    ]


def test_urls_are_canonical_relative_to_the_file_and_each_once(snapshot: Snapshot) -> None:
    """U1"""
    found = read(urlset("HTTPS://EXAMPLE.org:443/a#x", "b", "/a", "//example.org/c d", "mailto:x", "", "http://["))

    assert list(found.pages) == [
        "https://example.org/a", "https://example.org/maps/b", "https://example.org/c%20d",
    ]  # fmt: skip
    [told] = found.parse_warnings
    assert "3" in told.split()
    snapshot(told)


def test_pages_of_other_hosts_are_listed_and_said(snapshot: Snapshot) -> None:
    """Issue 5: the scope decides"""
    found = read(urlset("https://example.org/a", "https://www.example.org/b", "https://evil.test/c"))

    assert len(found.pages) == 3
    [told] = found.parse_warnings
    assert "2" in told.split()
    snapshot(told)


@pytest.mark.parametrize(
    "text", ["<!DOCTYPE html><html><a href='/x'>x</a></html>", "", "<urlset/>"], ids=["HTML", "empty", "no entry"]
)
def test_what_is_no_sitemap_says_so(text: str, snapshot: Snapshot) -> None:
    """Issue 5"""
    found = read(text)

    [told] = found.parse_warnings
    assert found == Sitemap(parse_warnings=(told,))
    snapshot(told)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (urlset("/a").encode(), True),
        (b"\xef\xbb\xbf <?xml version='1.0'?><!-- made by x --><?xml-stylesheet?>\n<sm:sitemapindex>", True),
        (gzip.compress(urlset("/a").encode(), mtime=0), True),
        (RSS.encode(), False),
        (b"<!DOCTYPE html><html><urlset>", False),
        (b"", False),
        (b"\x1f\x8bnonsense", False),
        (gzip.compress(b"<html>", mtime=0), False),
    ],
)
def test_a_sitemap_is_known_by_its_beginning(body: bytes, expected: bool) -> None:
    """Issue 5"""
    assert is_sitemap(body) is expected


# Broken ones


@pytest.mark.parametrize(
    "text",
    [
        "<urlset><url><loc>/a</loc><url><loc>/b</loc></urlset>",
        "<urlset><loc>/a</loc><loc>/b</loc>",
        "<url><loc>/a</loc></url><url><loc>/b</url>",
        "PHP Warning: x in y\n<urlset><url><loc>/a</loc></url><url><loc>/b</loc></url></urlset>",
        "<urlset><url><loc>/a</loc></url></oops><<&&<url a=b><loc x='1'>/b</loc></url>",
        "<urlset><!-- <url><loc>/no</loc></url> --><url><loc>/a</loc></url><loc>/b</loc></urlset>",
        "<urlset><url><loc>/a</loc></url><![CDATA[<loc>/no</loc>]]><url><loc>/b</loc></url></urlset>",
        "<urlset><url><loc>/<!-- no -->a</loc></url><url><loc><![CDATA[/]]>b</loc></url></urlset>",
        "<urlset><url><loc>/a</loc></url><url><loc>/b</loc></url><url><loc>/cut-o",
        "<urlset><url><loc>/a</loc></url><url><loc>/b</loc></url><url><lo",
    ],
)
def test_a_broken_file_is_read_as_far_as_it_goes(text: str) -> None:
    """Issue 5"""
    assert pages(text) == ["https://example.org/a", "https://example.org/b"]


def test_a_raw_ampersand_is_one() -> None:
    assert pages("<urlset><url><loc>/a?x=1&copy=2&reg_=3&y</loc></url></urlset>") == [
        "https://example.org/a?x=1&copy=2&reg_=3&y"
    ]


def test_a_gzip_that_is_cut_or_damaged_gives_what_comes_before(snapshot: Snapshot) -> None:
    """Issue 5"""
    packed = gzip.compress(urlset(*(f"/{number * 7919 % 10007}" for number in range(9000))).encode())
    damaged = packed[:15_000] + b"\xff" * 50 + packed[15_050:]

    cut, hurt = read(packed[:15_000]), read(damaged)

    assert len(cut.pages) > 3000
    assert len(hurt.pages) > 3000
    snapshot("\n".join(cut.parse_warnings), "cut")
    [damage] = hurt.parse_warnings
    snapshot(re.sub(r"\(.+\)", "(WHY)", damage), "damaged")


paths = st.lists(st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"]), max_size=20), max_size=12)


@ANY
@given(paths)
def test_what_was_written_is_read(given_paths: list[str]) -> None:
    """Issue 5"""
    here = parse_url(WHERE)
    assert isinstance(here, Url)
    written = [f"https://example.org/{path}" for path in given_paths]
    expected = [url.text for each in written if isinstance(url := parse_url(each, here), Url)]

    assert pages(urlset(*written)) == list(dict.fromkeys(expected))


@ANY
@given(paths, st.integers(0, 2000))
def test_a_file_that_is_cut_anywhere_lists_nothing_that_the_whole_does_not(given_paths: list[str], end: int) -> None:
    """Issue 5"""
    whole = urlset(*(f"https://example.org/{path}" for path in given_paths)).encode()

    cut = pages(whole[:end])

    assert cut == pages(whole)[: len(cut)]


PIECES = st.sampled_from(
    [
        b"<urlset>", b"<url>", b"</url>", b"<loc>", b"</loc>", b"/a", b"http://[", b"<![CDATA[", b"]]>", b"<!--",
        b"-->",
        b"<!DOCTYPE x [", b"<!ENTITY a '", b"]>", b"&a;", b"&#x110000;", b"&#99999999999;", b"<item>", b"<link href=",
        b"<entry>", b"<lastmod>", b"<pubDate>", b"Mon, 32 Foo 99999 25:61", b"<priority>", b"1e999", b"\x1f\x8b", b"\0",
        b"\xff\xfe", b"<", b">", b"\xe4", b"<?xml encoding='utf-16'?>", b"<?xml version='1.0' encoding='zip'?>", b"\n",
    ]
)  # fmt: skip


@ANY
@given(st.binary(max_size=300) | st.lists(PIECES, max_size=40).map(b"".join), st.text(max_size=20) | st.just(WHERE))
def test_nothing_raises(body: bytes, where: str) -> None:
    """Issue 5"""
    for each in (body, gzip.compress(body), b"\x1f\x8b\x08" + body):
        found = parse_sitemap(each, where)

        for url in (*found.pages, *found.sitemaps):
            again = parse_url(url)
            assert isinstance(again, Url)
            assert again.text == url
        is_sitemap(each)


@ANY
@given(st.lists(PIECES | st.sampled_from([b"<loc>/b</loc>", b"<sitemap>", b" x "]), max_size=60), st.integers(16, 200))
def test_where_a_window_ends_makes_no_difference(pieces: list[bytes], window: int) -> None:
    """F01: a file is read a window at a time"""
    body = b"<urlset>" + b"".join(pieces)
    whole, parted = read(body), read(body, Limits(window=window))

    told = set(parted.parse_warnings) - set(whole.parse_warnings)
    if not any(re.search(rf"\b{window}\b", each) for each in told):  # no element is longer than the window
        assert parted == whole
    else:
        assert parted.pages == whole.pages[: len(parted.pages)]


@pytest.mark.parametrize("window", range(40, 90))
def test_no_entry_is_lost_where_a_window_ends(window: int) -> None:
    """F01"""
    text = (
        "<urlset><!-- <loc>/no --><url><loc>/a</loc></url><url ><loc><![CDATA[/b]]></loc><lastmod>2026-11-15"
        "</lastmod></url><image:loc>/i</image:loc><x y='1'/><url><loc>/<!-- - -->c</loc></url></urlset>"
    )

    found = read(text, Limits(window=window))

    assert list(found.pages) == [f"https://example.org/{name}" for name in "abc"]
    assert found == read(text)


# Hostile ones


def laughs() -> str:
    entities = "".join(f'<!ENTITY lol{n} "{f"&lol{n - 1};" * 10}">' for n in range(1, 30))
    return f'<?xml version="1.0"?><!DOCTYPE urlset [<!ENTITY lol0 "/lol">{entities}]>'


def test_a_billion_laughs_are_not_laughed(snapshot: Snapshot) -> None:
    """F01"""
    found = read(f"{laughs()}<urlset><url><loc>/a&lol29;</loc></url><url><loc>/b</loc></url></urlset>")

    assert list(found.pages) == ["https://example.org/b"]
    snapshot(found.parse_warnings[0])


def test_no_entity_reads_a_file_or_asks_a_host(tmp_path: Path) -> None:
    """F22"""
    secret = tmp_path / "secret"
    secret.write_text("/s3cret")
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        there = f"http://127.0.0.1:{server.getsockname()[1]}/"
        found = read(
            f'<!DOCTYPE urlset SYSTEM "{there}dtd" [<!ENTITY a SYSTEM "{secret.as_uri()}"><!ENTITY b SYSTEM "{there}b">'
            f'<!ENTITY % c SYSTEM "{there}c"> %c;]><urlset><url><loc>&a;</loc></url><url><loc>&b;</loc></url>'
            "<url><loc>/fine</loc></url></urlset>"
        )

        with pytest.raises(BlockingIOError):
            server.accept()
    assert "s3cret" not in repr(found)
    assert list(found.pages) == ["https://example.org/fine"]


def test_what_stands_in_a_doctype_is_no_entry() -> None:
    text = (
        "<!DOCTYPE urlset [<!-- ' --><!ENTITY a '<url><loc>/no</loc></url>'>]><urlset><url><loc>/a</loc></url></urlset>"
    )

    assert pages(text) == ["https://example.org/a"]


def test_a_gzip_bomb_ends_at_the_limit(snapshot: Snapshot) -> None:
    """F01"""
    zeros = gzip.compress(bytes(1 << 20), 9) * 1024  # a GiB
    tracemalloc.start()
    try:
        found = read(zeros)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert found.pages == ()
    snapshot("\n".join(found.parse_warnings))
    assert peak < 16 * 1024 * 1024


def test_no_more_urls_are_read_than_the_limit_says(snapshot: Snapshot) -> None:
    """Issue 5: 50,000 a file"""
    found = read(urlset(*(f"/{number}" for number in range(50_001))))

    assert len(found.pages) == 50_000
    [told] = found.parse_warnings
    assert "50,000" in told
    snapshot(told)
    assert len(read(urlset(*(f"/{number}" for number in range(50_000)))).pages) == 50_000


def test_no_more_bytes_are_read_than_the_limit_says(snapshot: Snapshot) -> None:
    """Issue 5"""
    text = urlset(*(f"/{number}" for number in range(100)))

    found = read(text, Limits(max_bytes=len(text) // 2, max_urls=1000))

    assert 30 < len(found.pages) < 60
    assert list(found.pages) == pages(text)[: len(found.pages)]
    [told] = [each for each in found.parse_warnings if f"{len(text) // 2:,}" in each]
    snapshot(told)


@pytest.mark.parametrize(
    "piece",
    [
        "<", "<url>", "<a>", "<!--", "<loc>", "<loc>&amp;", "<loc><![CDATA[", "<loc><!-- -", "<!DOCTYPE [", "<x:",
        "<loc ",
        '<!DOCTYPE a ["', "<loc>]]>", "-", "]]", "&#1", "\n", "<?", "</url", "<a:b:c", "<item><link href='",
    ],
)  # fmt: skip
def test_no_file_takes_more_time_than_its_size_explains(piece: str) -> None:
    """F32, for sitemaps: a fraction of a second, twice; a quarter of a minute if time grew with the square."""
    body = b"<urlset>" + piece.encode() * (200_000 // len(piece))

    with cpu_within(5):
        read(body)
        read(body[8:])


@pytest.mark.parametrize(
    "piece",
    ["<a.b.c", f"<url><loc>/{'&#65;' * 10_000}</loc></url>", f"<item><link {'a ' * 30_000}></item>"],
    ids=["tags without ends", "references", "attributes"],
)
def test_a_small_file_that_is_large_when_unpacked_takes_some_seconds_at_most(piece: str) -> None:
    """F01, F32"""
    body = gzip.compress(b"<urlset>" + piece.encode() * ((12 << 20) // len(piece)), 1)

    with cpu_within(6):
        parse_sitemap(body, "https://example.org/sitemap.xml.gz")
