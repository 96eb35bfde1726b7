"""What the built-in sender refuses to write: nothing that a caller gives can break the head of a request."""

from collections.abc import AsyncIterator

import pytest
from msgspec import structs

from curtsy.core.errors import Reason
from curtsy.core.request import Failure, Headers, Request
from curtsy.core.url import Url, parse_url
from curtsy.http.headers import head_of
from curtsy.http.sender import HttpSender
from tests.support.sending import OPEN, fail, request
from tests.support.site import Site


@pytest.fixture
async def sender(site: Site) -> AsyncIterator[HttpSender]:
    sender = HttpSender(resolver=site.names)
    yield sender
    await sender.close()


@pytest.mark.parametrize(
    "header",
    [
        ("X-A", "a\r\nX-Injected: 1"),
        ("X-A", "a\nb"),
        ("X-A", "a\x00b"),
        ("X-A", "\x7f"),
        ("X-A", "\ud800"),
        ("X-A: 1\r\nX-Injected", "2"),
        ("X A", "1"),
        ("", "1"),
        ("User-Agent", "x\r\nX-Injected: 1"),
    ],
)
async def test_what_would_break_the_head_is_never_written(
    site: Site, sender: HttpSender, header: tuple[str, str]
) -> None:
    """F26"""
    failure = await fail(sender, site.url("/"), OPEN, header)

    assert (failure.reason, failure.sent_ago) == (Reason.INVALID_URL, None)
    assert site.connections == 0


@pytest.mark.parametrize("target", ["/a b", "/a\r\nX-Injected: 1", "/\x00", "/ü", "a"])
async def test_a_target_that_was_not_made_canonical_is_never_written(
    site: Site, sender: HttpSender, target: str
) -> None:
    """F26"""
    url = Url(site.url(target), "http", "127.0.0.1", site.port, target, f"127.0.0.1:{site.port}")

    reply = await sender.send(Request(url), OPEN)

    assert isinstance(reply, Failure)
    assert (reply.reason, reply.sent_ago, site.connections) == (Reason.INVALID_URL, None, 0)


@pytest.mark.parametrize("method", ["", "GE T", "GET\r\n", "CONNECT"])
async def test_a_method_that_is_none_is_never_written(site: Site, sender: HttpSender, method: str) -> None:
    """F26"""
    reply = await sender.send(structs.replace(request(site.url("/")), method=method), OPEN)

    assert isinstance(reply, Failure)
    assert (reply.reason, site.connections) == (Reason.INVALID_URL, 0)


def test_headers_that_were_checked_once_are_not_changed_by_use() -> None:
    """F25: the prepared fields are shared by requests that have the same headers."""
    plain = parse_url("http://example.org/")
    secret = parse_url("http://user:password@example.org/")
    assert isinstance(plain, Url)
    assert isinstance(secret, Url)
    headers = Headers([("User-Agent", "x")])

    assert b"Authorization" in head_of(Request(secret, headers=headers))
    assert b"Authorization" not in head_of(Request(plain, headers=headers))


def head(method: str = "GET", *headers: tuple[str, str], body: bytes | None = None, proxy: Url | None = None) -> bytes:
    return head_of(request("http://example.org:8080/a?b=1", method, headers, body), proxy)


def test_a_head_is_what_is_asked_for_and_nothing_else() -> None:
    """Issue 4"""
    assert head().split(b"\r\n") == [
        b"GET /a?b=1 HTTP/1.1",
        b"Host: example.org:8080",
        b"User-Agent: tests/1.0",
        b"Accept: */*",
        b"Accept-Encoding: gzip, deflate, br, zstd",
        b"",
        b"",
    ]


@pytest.mark.parametrize(
    ("method", "body", "length"),
    [("POST", b"abc", b"3"), ("POST", None, b"0"), ("PUT", b"", b"0"), ("GET", b"q", b"1"), ("GET", None, None)],
)
def test_a_body_is_announced_where_one_may_be_expected(method: str, body: bytes | None, length: bytes | None) -> None:
    """Issue 4: RFC 9110, 8.6. A length that the caller gives is not believed."""
    found = head(method, ("Content-Length", "7"), body=body)

    assert (b"Content-Length: " in found) == (length is not None)
    assert length is None or b"Content-Length: %b\r\n" % length in found
    assert (b"Content-Type: application/octet-stream" in found) == bool(body)


def test_the_callers_own_fields_stand_in_place_of_ours() -> None:
    """Issue 4"""
    found = head("POST", ("hOST", "other"), ("Accept", "text/html"), ("Content-Type", "text/plain"), body=b"x")

    assert found.lower().count(b"host:") == found.lower().count(b"accept:") == found.count(b"Content-Type") == 1
    assert b"hOST: other\r\n" in found


def test_a_proxy_is_told_the_whole_url_and_who_we_are_to_it() -> None:
    """U2: but only where it is to see the request."""
    proxy = parse_url("http://us:p%40w@127.0.0.1:1")
    assert isinstance(proxy, Url)

    assert head(proxy=proxy).startswith(b"GET http://example.org:8080/a?b=1 HTTP/1.1\r\n")
    assert b"Proxy-Authorization: Basic dXM6cEB3\r\n" in head(proxy=proxy)
    secret = head_of(request("https://example.org/a"), proxy)
    assert secret.startswith(b"GET /a HTTP/1.1\r\n")
    assert b"Proxy-Authorization" not in secret
