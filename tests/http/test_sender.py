"""The built-in sender where all goes well: what goes on the wire, and what comes back."""

import time
from collections.abc import AsyncIterator

import pytest

from curtsy.core.policy import Policy
from curtsy.core.request import Request, Response
from curtsy.core.url import Url, parse_url
from curtsy.http.sender import HttpSender, Limits
from tests.support.bounds import Lateness
from tests.support.sending import OPEN, get, request
from tests.support.site import Reply, Site, encoded, has_ipv6, redirect


@pytest.fixture
async def sender(site: Site) -> AsyncIterator[HttpSender]:
    sender = HttpSender(resolver=site.names)
    yield sender
    await sender.close()


async def test_an_answer_comes_with_status_headers_and_body(site: Site, sender: HttpSender) -> None:
    """U2"""
    site.page("/a", "hello", headers={"X-Twice": "1"})

    answer = await get(sender, site.url("/a"))

    assert (answer.status, answer.body, answer.wire_bytes) == (200, b"hello", 5)
    assert answer.headers.get("x-twice") == "1"


async def test_the_moment_of_sending_is_that_of_the_write(site: Site, sender: HttpSender) -> None:
    """P1: the pause is counted from it."""
    site.reply("/slow", Reply(body="x", wait=0.1, wait_body=0.1))

    with Lateness() as late:
        answer = await get(sender, site.url("/slow"))
        written = time.monotonic() - answer.sent_ago

    # The moment is noted when the write has returned, by when the site may have begun to count.
    noted = 0.01 + late.most
    assert abs(site.journal[0].at - written) < 0.05 + late.most
    assert 0.1 - noted <= answer.latency < 0.2 + noted
    assert answer.sent_ago - answer.latency >= 0.1 - noted


@pytest.mark.parametrize("target", ["/", "/a?", "/a%2Fb?q=%20&x=", "//x//y", "/a;b=c,d?e=[f]&g='h'", "/%E6%97%A5?%E6"])
async def test_the_target_goes_on_the_wire_exactly_as_it_is(site: Site, sender: HttpSender, target: str) -> None:
    """U1"""
    await get(sender, site.url(target))

    assert site.paths() == [target]


async def test_what_is_asked_for_by_default(site: Site, sender: HttpSender) -> None:
    """U10"""
    await get(sender, site.url("/"))

    assert site.journal[0].headers == [
        ("Host", f"127.0.0.1:{site.port}"),
        ("User-Agent", "tests/1.0"),
        ("Accept", "*/*"),
        ("Accept-Encoding", "gzip, deflate, br, zstd"),
    ]


async def test_no_user_agent_is_made_up(site: Site, sender: HttpSender) -> None:
    """U10"""
    url = parse_url(site.url("/"))
    assert isinstance(url, Url)

    await sender.send(Request(url), OPEN)

    assert site.journal[0].header("User-Agent") is None


async def test_what_the_caller_says_wins(site: Site, sender: HttpSender) -> None:
    """U10"""
    await get(sender, site.url("/"), OPEN, ("accept-encoding", "br"), ("X-A", "1"), ("X-A", "2"))

    sent = site.journal[0].headers
    assert [value for name, value in sent if name.lower() == "accept-encoding"] == ["br"]
    assert [value for name, value in sent if name == "X-A"] == ["1", "2"]


async def test_a_part_is_asked_for_without_a_coding_and_comes_as_it_is(site: Site, sender: HttpSender) -> None:
    """U15"""
    site.page("/file", "0123456789", ranges=True)

    answer = await get(sender, site.url("/file"), OPEN, ("Range", "bytes=3-5"))

    assert (answer.status, answer.body) == (206, b"345")
    assert site.journal[0].header("Accept-Encoding") == "identity"


async def test_a_body_goes_with_its_length(site: Site, sender: HttpSender) -> None:
    """U5"""
    with Lateness() as late:
        reply = await sender.send(request(site.url("/"), "POST", (("Content-Length", "999"),), b"a=1"), OPEN)
        ended_at = time.monotonic()

    assert isinstance(reply, Response)
    assert site.journal[0].method == "POST"
    assert site.journal[0].body == b"a=1"
    assert abs(site.journal[0].at - (ended_at - reply.sent_ago)) < 0.05 + late.most


async def test_credentials_of_the_url_go_as_a_header(site: Site, sender: HttpSender) -> None:
    """F62"""
    await get(sender, site.url("/").replace("http://", "http://us%40er:p%3Aw@"))

    assert site.journal[0].header("Authorization") == "Basic dXNAZXI6cDp3"
    assert site.paths() == ["/"]


@pytest.mark.parametrize("status", [204, 304])
async def test_an_answer_that_has_no_body_is_not_waited_for(site: Site, sender: HttpSender, status: int) -> None:
    """F03"""
    site.reply("/", Reply(status, headers={"ETag": '"1"', "Content-Encoding": "gzip"}))

    answer = await get(sender, site.url("/"))

    assert (answer.status, answer.body) == (status, b"")


@pytest.mark.parametrize("method", ["HEAD", "head"])
async def test_a_head_request_may_announce_any_length(site: Site, sender: HttpSender, method: str) -> None:
    """F03"""
    site.reply("/", Reply(length=1 << 50))

    reply = await sender.send(request(site.url("/"), method), OPEN)

    assert isinstance(reply, Response)
    assert (reply.status, reply.body) == (200, b"")


async def test_a_redirect_is_an_answer_like_any_other(site: Site, sender: HttpSender) -> None:
    """U3: every hop passes all checks, so the sender follows none."""
    site.reply("/", redirect("/elsewhere"))

    answer = await get(sender, site.url("/"))

    assert (answer.status, answer.headers.get("location")) == (302, "/elsewhere")
    assert site.paths() == ["/"]


async def test_no_cookie_is_kept(site: Site, sender: HttpSender) -> None:
    """F64"""
    site.reply("/", Reply(headers={"Set-Cookie": "a=1"}))

    await get(sender, site.url("/"))
    await get(sender, site.url("/"))

    assert site.journal[1].header("Cookie") is None


@pytest.mark.parametrize("coding", ["gzip", "x-gzip", "deflate", "raw deflate", "br", "zstd", "gzip, br", "identity"])
async def test_a_coded_body_comes_decoded(site: Site, sender: HttpSender, coding: str) -> None:
    """F01"""
    body = b"many words " * 30_000
    site.reply("/", encoded(body, coding) if coding != "identity" else Reply(body=body))

    answer = await get(sender, site.url("/"))

    assert answer.body == body
    assert coding == "identity" or answer.wire_bytes < len(body)


@pytest.mark.parametrize(
    "reply",
    [
        Reply(body=b"x" * 300_000),
        Reply(body=b"x" * 300_000, chunked=True),
        Reply(body=b"x" * 300_000, chunked=True, drip=(50_000, 0.001)),
        Reply(body=b"x" * 300_000, length=None),
        Reply(body=b"x" * 300_000, version="1.0"),
        Reply(body=b"x" * 300_000, version="1.0", length=None),
    ],
    ids=["length", "chunked", "chunked in pieces", "until close", "HTTP/1.0", "HTTP/1.0 until close"],
)
async def test_a_body_comes_however_it_is_framed(site: Site, sender: HttpSender, reply: Reply) -> None:
    """F08"""
    site.reply("/", reply)

    answer = await get(sender, site.url("/"))

    assert answer.body == b"x" * 300_000


async def test_interim_answers_are_passed_over(site: Site, sender: HttpSender) -> None:
    """F11"""
    early = b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n"
    site.reply("/", Reply(raw=early * 3 + b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"))

    assert (await get(sender, site.url("/"))).body == b"ok"


async def test_header_values_are_legible_whatever_their_octets(site: Site, sender: HttpSender) -> None:
    """F12"""
    site.reply(
        "/", Reply(raw=b"HTTP/1.1 200 OK\r\nA: gr\xc3\xbc\xc3\x9fe\r\nB: gr\xfc\xdfe\r\nContent-Length: 0\r\n\r\n")
    )

    answer = await get(sender, site.url("/"))

    assert (answer.headers.get("a"), answer.headers.get("b")) == ("grüße", "grüße")


@pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6 loopback")
async def test_ipv6_works(site: Site, sender: HttpSender) -> None:
    """U2"""
    await get(sender, site.url("/", host="::1"))

    assert site.journal[0].host == "::1"


async def test_many_names_can_be_one_machine(site: Site, sender: HttpSender) -> None:
    """U2"""
    site.page("/", "shop", host="shop.test")
    site.page("/", "news", host="news.test")

    assert (await get(sender, site.url("/", host="shop.test"))).body == b"shop"
    assert (await get(sender, site.url("/", host="news.test"))).body == b"news"


async def test_limits_come_from_a_policy() -> None:
    """N9"""
    policy = Policy(timeout=7, connect_timeout=2, max_body=99, max_head=2048, min_speed=5, allow_private=True)

    limits = Limits.of(policy)

    assert limits == Limits(7, 2, 99, 2048, 5, 10.0, True)
    assert Limits.of(policy) is limits
