"""URLs and domains: one way to write each, nothing raises, nothing can be smuggled in."""

from __future__ import annotations

import gc
import re
import tracemalloc
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from curtsy.core.errors import InvalidDomain
from curtsy.core.request import Headers
from curtsy.core.url import MAX_URL, InvalidUrl, Url, canonical_host, parse_domain, parse_url
from tests.strategies import ANY
from tests.support.snapshot import Snapshot


def url(text: str, base: Url | None = None) -> Url:
    found = parse_url(text, base)
    assert isinstance(found, Url), found
    return found


BASE = url("https://example.org/a/b?c=d")

PIECES = (
    "http://", "https://", "HTTP:", "//", "/", "\\", "?", "#", ":", "@", "user:pw@", "[", "]", "::1", ".", "..", "%",
    "%2e", "%2F", "%00", "%zz", "%41", "0x", "0", "127.1", "8080", "a", "A", "xn--", "_", "-", "~", " ", "\t", "\r\n",
    "\x00", "\x7f", "é", "ß", "。", "①", "İ", "ſ", "\u200d", "\u00ad", "\ud800", "٠", "ﷺ", "\U0001f600", "|", "{",
    '"', "<", "^", "`",
)  # fmt: skip
pieces = st.lists(st.sampled_from(PIECES), max_size=12).map("".join)
anything = (
    st.text(max_size=40) | pieces | pieces.map("http://".__add__) | pieces.map("https://example.org/".__add__)
)  # fmt: skip


# Any text


@ANY
@given(anything, st.none() | st.just(BASE))
@example("http://1_0.0.0.1/", None)
@example("http://%2e%2E/%2e", None)
@example("https://example.org/" + "é" * 8000, None)
def test_no_text_raises_and_what_is_a_url_is_so_in_one_way(text: str, base: Url | None) -> None:
    """U1, F26, F65: never an exception out of the blue; reading the canonical form again changes nothing."""
    found = parse_url(text, base)

    if isinstance(found, InvalidUrl):
        assert found.why
        return
    again = parse_url(found.text)
    assert isinstance(again, Url)
    assert (again.text, again.scheme, again.host, again.port, again.target, again.domain) == (
        found.text, found.scheme, found.host, found.port, found.target, found.domain,
    )  # fmt: skip
    assert all("!" <= letter <= "~" for letter in found.text)  # no space, no control byte, nothing beyond ASCII
    assert found.scheme in ("http", "https")
    assert found.text == found.origin + found.target
    assert found.target.startswith("/")
    assert "#" not in found.text
    assert len(found.text) <= MAX_URL
    assert not any(part in (".", "..") for part in found.target.partition("?")[0].split("/"))
    assert parse_domain(found.domain) == found.domain
    assert canonical_host(f"[{found.host}]" if ":" in found.host else found.host) == found.host


@ANY
@given(st.none() | st.integers() | st.binary(max_size=5) | st.lists(st.integers(), max_size=2))
def test_what_is_not_text_is_no_url_and_no_domain(value: Any) -> None:
    """U1, L8"""
    assert isinstance(parse_url(value), InvalidUrl)
    with pytest.raises(InvalidDomain, match="domain = "):
        parse_domain(value)


@ANY
@given(anything)
@example("example.org:")
@example("[::1")
def test_any_text_is_a_domain_in_one_way_or_an_error_that_shows_the_form(text: str) -> None:
    """L8"""
    try:
        found = parse_domain(text)
    except InvalidDomain as error:
        message = str(error)
    else:
        assert parse_domain(found) == found
        assert found == found.lower()
        assert all("!" <= letter <= "~" for letter in found)
        assert url(f"http://{found}/").host == url(f"https://{found}/").host
        return
    assert message.startswith("domain = ")
    assert re.search(r"\. [A-Z].*\.$", message)  # and a sentence about what to do
    assert message.endswith(("'.", "example.com."))


# Canonical URLs


@pytest.mark.parametrize(
    ("given_", "expected"),
    [
        ("HTTP://Example.ORG", "http://example.org/"),
        ("https://example.org:443/", "https://example.org/"),
        ("http://example.org:80", "http://example.org/"),
        ("http://example.org:443/", "http://example.org:443/"),
        ("https://example.org:/x", "https://example.org/x"),
        ("https://example.org:00443/", "https://example.org/"),
        ("https://example.org/a#fragment", "https://example.org/a"),
        ("https://example.org?q#f", "https://example.org/?q"),
        ("https://example.org/a/./b/../c", "https://example.org/a/c"),
        ("https://example.org/../../a", "https://example.org/a"),
        ("https://example.org/a/b/..", "https://example.org/a/"),
        ("https://example.org/a/%2e%2E/b", "https://example.org/b"),
        ("https://example.org/a//b", "https://example.org/a//b"),
        ("https://example.org\\a\\b", "https://example.org/a/b"),
        ("https://bücher.example/ü?ß=é", "https://xn--bcher-kva.example/%C3%BC?%C3%9F=%C3%A9"),
        ("https://例え.jp", "https://xn--r8jz45g.jp/"),
        ("https://example.org/%7Euser/%c3%bc", "https://example.org/~user/%C3%BC"),
        ("https://example.org/100%", "https://example.org/100%25"),
        ("https://example.org/a b", "https://example.org/a%20b"),
        ("https://example.org/a|b\"c<d>e^f`g{h}", "https://example.org/a%7Cb%22c%3Cd%3Ee%5Ef%60g%7Bh%7D"),
        ("  \t\nhttps://exam\r\nple.org/a\tb \x00", "https://example.org/ab"),
        ("https://example.org./", "https://example.org/"),
        ("https://user:pw@example.org/a", "https://example.org/a"),
        ("https://user:p@w@example.org/a", "https://example.org/a"),
        ("http://127.1/", "http://127.0.0.1/"),
        ("http://2130706433/", "http://127.0.0.1/"),
        ("http://0x7f.0.0.0x1/", "http://127.0.0.1/"),
        ("http://0177.0.0.01/", "http://127.0.0.1/"),
        ("http://１２７.０.０.１/", "http://127.0.0.1/"),
        ("http://[::1]:8080/", "http://[::1]:8080/"),
        ("http://[2001:DB8:0:0::1]/", "http://[2001:db8::1]/"),
        ("http://[fe80::1%25eth0]/", "http://[fe80::1]/"),
        ("http://_dmarc.example.org/", "http://_dmarc.example.org/"),
        ("http://exa%6Dple.org/", "http://example.org/"),
        ("http://b%C3%BCcher.example/", "http://xn--bcher-kva.example/"),
        ("http://127%2E0.0.1/", "http://127.0.0.1/"),
        ("http://-example-.org/", "http://-example-.org/"),
        ("http://\U0001f4a9.la/", "http://xn--ls8h.la/"),
        ("http://i\u2764\ufe0f.ws/", "http://xn--i-7iq.ws/"),
        ("http://faß.de/", "http://xn--fa-hia.de/"),
        ("http://example.ΟΔΟΣ/", "http://example.xn--pxavbq/"),
        ("http://οδος.gr/", "http://xn--pxavbm.gr/"),
    ],
)  # fmt: skip
def test_a_url_is_written_in_one_way(given_: str, expected: str) -> None:
    """U1"""
    assert url(given_).text == expected


@pytest.mark.parametrize(
    ("given_", "datum"),
    [
        ("", ""),
        (" \n", ""),
        ("example.org", "https://"),
        ("example.org:8080/x", "https://"),
        ("//example.org", "https://"),
        ("ftp://example.org", "ftp"),
        ("javascript:alert(1)", "javascript"),
        ("file:///etc/passwd", "file"),
        ("data:text/html,x", "data"),
        ("https:example.org", "https:"),
        ("https://", ""),
        ("https:///x", ""),
        ("https://exa mple.org", "exa mple.org"),
        ("https://exa%20mple.org", "exa%20mple.org"),
        ("https://exa%2Fmple.org", "exa%2Fmple.org"),
        ("https://%5B::1%5D", "port"),
        ("https://%FF.org", "%FF.org"),
        ("https://" + "é" * 60 + ".org", "é" * 60),
        ("https://a\u200db.org", "a\\u200db.org"),
        ("https://\u0301a.org", "\u0301a.org"),
        ("https://a\u05d0.org", "a\u05d0.org"),
        ("https://example..org", "example..org"),
        ("https://" + "a" * 64 + ".org", "a" * 64),
        ("https://" + "a." * 127 + "toolong", "a.a"),
        ("https://example.org:0", "0"),
        ("https://example.org:65536", "65536"),
        ("https://example.org:8o", "port"),
        ("https://example.org:-1", "port"),
        ("https://[::1", "port"),
        ("https://[::g]", "[::g]"),
        ("http://256.0.0.1", "256.0.0.1"),
        ("http://1.2.3.4.5", "1.2.3.4.5"),
        ("http://4294967296", "4294967296"),
        ("http://089.0.0.1", "089.0.0.1"),
        ("http://1_0.0.0.1", "1_0.0.0.1"),
        ("http://0o7.0.0.1", "0o7.0.0.1"),
        ("http://0x7_f.1", "0x7_f.1"),
        ("http://\ud800.org", "\\ud800.org"),
        ("https://https://example.org/", "scheme"),
        ("http://HTTPS://example.org/", "scheme"),
        ("https://example.org/" + "a" * MAX_URL, "8,192"),
        ("https://example.org/" + "é" * 2000, "12,020"),
    ],
    ids=lambda each: each[:40],
)
def test_anything_else_is_a_clear_refusal(snapshot: Snapshot, given_: str, datum: str) -> None:
    """U1, F22"""
    found = parse_url(given_)

    assert isinstance(found, InvalidUrl)
    assert datum in found.why
    snapshot(found.why)


@pytest.mark.parametrize(
    ("reference", "expected"),
    [
        ("c", "https://example.org/a/c"),
        ("../c", "https://example.org/c"),
        ("/c?x=1#y", "https://example.org/c?x=1"),
        ("?q", "https://example.org/a/b?q"),
        ("//other.org/x", "https://other.org/x"),
        ("http://other.org", "http://other.org/"),
        ("  /c\r\nX-Injected: 1 ", "https://example.org/cX-Injected:%201"),
        ("", "https://example.org/a/b?c=d"),
    ],
)
def test_a_reference_is_read_against_its_base(reference: str, expected: str) -> None:
    """U3, F26: a Location cannot bring a line of its own."""
    assert url(reference, BASE).text == expected


@pytest.mark.parametrize(
    ("reference", "expected"),
    [
        # 5.4.1, normal examples
        ("g", "http://a/b/c/g"), ("./g", "http://a/b/c/g"), ("g/", "http://a/b/c/g/"), ("/g", "http://a/g"),
        ("//g", "http://g/"), ("?y", "http://a/b/c/d;p?y"), ("g?y", "http://a/b/c/g?y"),
        ("#s", "http://a/b/c/d;p?q"), ("g#s", "http://a/b/c/g"), ("g?y#s", "http://a/b/c/g?y"),
        (";x", "http://a/b/c/;x"), ("g;x", "http://a/b/c/g;x"), ("g;x?y#s", "http://a/b/c/g;x?y"),
        ("", "http://a/b/c/d;p?q"), (".", "http://a/b/c/"), ("./", "http://a/b/c/"), ("..", "http://a/b/"),
        ("../", "http://a/b/"), ("../g", "http://a/b/g"), ("../..", "http://a/"), ("../../", "http://a/"),
        ("../../g", "http://a/g"),
        # 5.4.2, abnormal examples
        ("../../../g", "http://a/g"), ("../../../../g", "http://a/g"), ("/./g", "http://a/g"), ("/../g", "http://a/g"),
        ("g.", "http://a/b/c/g."), (".g", "http://a/b/c/.g"), ("g..", "http://a/b/c/g.."), ("..g", "http://a/b/c/..g"),
        ("./../g", "http://a/b/g"), ("./g/.", "http://a/b/c/g/"), ("g/./h", "http://a/b/c/g/h"),
        ("g/../h", "http://a/b/c/h"), ("g;x=1/./y", "http://a/b/c/g;x=1/y"), ("g;x=1/../y", "http://a/b/c/y"),
        ("g?y/./x", "http://a/b/c/g?y/./x"), ("g?y/../x", "http://a/b/c/g?y/../x"), ("g#s/./x", "http://a/b/c/g"),
        ("g#s/../x", "http://a/b/c/g"), ("http:g", "http://a/b/c/g"),
    ],
)  # fmt: skip
def test_a_reference_is_read_as_the_standard_shows(reference: str, expected: str) -> None:
    """U3: every example of RFC 3986, 5.4, but `g:h`, which is no web page; `http:g` as browsers read it."""
    assert url(reference, url("http://a/b/c/d;p?q")).text == expected


@pytest.mark.parametrize(
    ("base", "reference", "expected"),
    [
        ("/web/2020/http://example.com/a/b", "c", "http://h/web/2020/http://example.com/a/c"),
        ("/web/2020/http://example.com/a/b", "../c", "http://h/web/2020/http://example.com/c"),
        ("/a//b", "./c", "http://h/a//c"),
        ("/a//b", "../c", "http://h/a/c"),
        ("/a/b", "c//../d", "http://h/a/c/d"),
        ("/a/b", "/c//d", "http://h/c//d"),
        ("//a/b", "c", "http://h//a/c"),
        ("/a/b", "..//c", "http://h//c"),
    ],
)
def test_an_empty_segment_of_a_path_is_a_segment(base: str, reference: str, expected: str) -> None:
    """U3: RFC 3986, 5.2.3 and 5.2.4"""
    assert url(reference, url("http://h" + base)).text == expected


@pytest.mark.parametrize(
    ("reference", "expected"),
    [
        ("/a?", "https://example.org/a?"),
        ("?", "https://example.org/a/b?"),
        ("c;", "https://example.org/a/c;"),
        ("c/d:e", "https://example.org/a/c/d:e"),
        ("2:1", "https://example.org/a/2:1"),
        ("\\c", "https://example.org/c"),
        ("..\\c", "https://example.org/c"),
        ("\\\\other.org\\c", "https://other.org/c"),
        ("/\\other.org/c", "https://other.org/c"),
        ("c?d\\e", "https://example.org/a/c?d%5Ce"),
        ("https:c", "https://example.org/a/c"),
        ("HTTPS:/c", "https://example.org/c"),
        ("https:\\\\other.org", "https://other.org/"),
        ("https:?q", "https://example.org/a/b?q"),
        ("https:/other.org/c", "https://example.org/other.org/c"),
        ("http:/other.org/c", "http://other.org/c"),
        ("http:other.org", "http://other.org/"),
        ("http:\\\\other.org\\c", "http://other.org/c"),
        ("http:////other.org//c", "http://other.org//c"),
        ("https:\\/\\other.org", "https://other.org/"),
        ("///other.org/c", "https://other.org/c"),
        ("/\\/other.org?/\\", "https://other.org/?/%5C"),
    ],
)
def test_a_reference_leads_to_where_a_browser_would_go(reference: str, expected: str) -> None:
    """U3: WHATWG's URL"""
    assert url(reference, BASE).text == expected


@pytest.mark.parametrize(
    "reference", ["javascript:x", "mailto:a@b.org", "http://[", "file:///etc/passwd", "http:", "///", "g:h"]
)
def test_a_reference_to_where_nobody_can_follow_is_refused(reference: str) -> None:
    """F22"""
    assert isinstance(parse_url(reference, BASE), InvalidUrl)


def test_credentials_are_kept_apart_and_never_shown() -> None:
    """F62"""
    found = url("https://user:s3cret@example.org/a")

    assert found.credentials == "user:s3cret"
    assert "s3cret" not in found.text + found.domain + found.origin + repr(found)


def test_a_port_of_its_own_makes_a_domain_of_its_own() -> None:
    """C6"""
    assert url("https://example.org/").domain == "example.org"
    assert url("https://example.org:8443/").domain == "example.org:8443"
    assert url("http://[::1]:8080/").domain == "[::1]:8080"
    assert url("http://[::1]:8080/").host == "::1"


def test_megabytes_from_a_hostile_page_are_not_remembered() -> None:
    """F22, F65: what is too long is refused before it gets into any memo."""
    texts = [f"https://example.org/{number}/" + "a" * 1_000_000 for number in range(3)]
    parse_url(texts[0])
    gc.collect()
    tracemalloc.start()
    try:
        for number in range(100):
            parse_url(f"https://example.org/{number}/" + "b" * 1_000_000)
        gc.collect()
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert kept < 1_000_000


# Domains


@pytest.mark.parametrize(
    ("given_", "expected"),
    [
        ("example.com", "example.com"),
        (" Example.COM ", "example.com"),
        ("example.com.", "example.com"),
        ("www.example.com", "www.example.com"),
        ("example.com:8080", "example.com:8080"),
        ("bücher.example", "xn--bcher-kva.example"),
        ("127.1", "127.0.0.1"),
        ("::1", "[::1]"),
        ("[::1]", "[::1]"),
        ("[::1]:443", "[::1]:443"),
        ("localhost", "localhost"),
    ],
)
def test_a_domain_is_folded(given_: str, expected: str) -> None:
    """L8, B9"""
    assert parse_domain(given_) == expected


@pytest.mark.parametrize(
    ("given_", "shown", "remedy"),
    [
        ("", "''", "example.com"),
        ("  ", "'  '", "example.com"),
        ("https://example.com", "'https://example.com'", "'example.com'"),
        ("HTTPS://Example.com:8080/x", "'HTTPS://Example.com:8080/x'", "'example.com:8080'"),
        ("ftp://example.com", "'ftp://example.com'", " example.com"),
        ("example.com/path", "'example.com/path'", "'example.com'"),
        ("example.com?q", "'example.com?q'", "'example.com'"),
        ("example.com:99999", "'example.com:99999'", "'example.com'"),
        ("example.com:0", "'example.com:0'", "'example.com'"),
        ("example.com:", "'example.com:'", "'example.com'"),
        ("example.com:8080/x", "'example.com:8080/x'", "'example.com:8080'"),
        ("exa mple.com", "'exa mple.com'", " example.com"),
        ("user:s3cret@example.com", "'…@example.com'", "'example.com'"),
        ("a\r\nb", r"'a\r\nb'", ""),
    ],
)
def test_what_is_no_domain_is_an_error_that_shows_the_right_form(
    snapshot: Snapshot, given_: str, shown: str, remedy: str
) -> None:
    """L8, F62: the right form, and no secret."""
    with pytest.raises(InvalidDomain) as found:
        parse_domain(given_)

    message, given = str(found.value), f"domain = {shown} "
    assert message.startswith(given)
    assert remedy in message.removeprefix(given)
    assert "s3cret" not in message
    snapshot(message)


def test_an_error_does_not_repeat_a_book() -> None:
    """Conventions: a message can be read."""
    with pytest.raises(InvalidDomain) as found:
        parse_domain("x" * 100_000)

    assert len(str(found.value)) < 300


# Headers


@ANY
@given(st.lists(st.tuples(st.sampled_from(("Accept", "accept", "X-A", "x-b")), st.text(max_size=5)), max_size=8))
def test_header_fields_are_found_in_any_case_and_kept_in_order(fields: list[tuple[str, str]]) -> None:
    """RFC 9110, 5.3: repeated fields are one list."""
    headers = Headers(fields)

    assert headers.fields == tuple(fields)
    for name in ("ACCEPT", "x-a", "X-B", "absent"):
        values = [value for each, value in fields if each.lower() == name.lower()]
        assert headers.all(name) == values
        assert headers.get(name) == (", ".join(values) if values else None)
        assert (name in headers) is bool(values)
    assert len(headers) == len({name.lower() for name, _ in fields}) == len(list(headers))
    assert headers == Headers(fields)
    assert hash(headers) == hash(Headers(fields))


def test_headers_can_be_read_like_a_mapping() -> None:
    """Issue 4, 1"""
    headers = Headers([("Content-Type", "text/html"), ("Link", "<a>"), ("link", "<b>")])

    assert dict(headers) == {"content-type": "text/html", "link": "<a>, <b>"}
    assert list(headers.items()) == list(zip(headers.keys(), headers.values(), strict=True))
    assert headers["CONTENT-TYPE"] == "text/html"
    assert (headers.get("LINK", ""), headers.get("etag"), headers.get("etag", "none")) == ("<a>, <b>", None, "none")
    assert isinstance(headers, Mapping)


@pytest.mark.parametrize(
    "url",
    ["http://e.org/{}/%41#\U0001f600", "foo{}:\U0001f600", "http://\U0001f600{}:", "http://u{}:\U0001f600"],
    ids=["fragments", "other schemes", "ports", "logins"],
)
def test_long_urls_of_pages_take_no_memory_once_they_were_read(url: str) -> None:
    """F01, F32"""
    tail = "x" * 8000 + ("@e.org/" if url.startswith("http://u") else "")
    gc.collect()
    tracemalloc.start()
    try:
        for number in range(1000):
            parse_url(url.format(number) + tail)
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert kept < 4 << 20
