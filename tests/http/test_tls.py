"""The built-in sender over TLS: what is refused, and with which word."""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from curtsy.core.errors import PolicyError, Reason
from curtsy.core.request import Failure, Response
from curtsy.http.sender import HttpSender
from tests.support.bounds import ends_within
from tests.support.certificates import Authority, Kind
from tests.support.listening import listening
from tests.support.sending import OPEN, fail, get, request
from tests.support.site import Reply, Site, cut_short, has_ipv6

AUTHORITY = Authority()
QUICK = replace(OPEN, timeout=20, connect_timeout=0.8)


@pytest.fixture
async def sender() -> AsyncIterator[HttpSender]:
    sender = HttpSender(verify=AUTHORITY.client(), resolver=Site.names)
    yield sender
    await sender.close()


async def test_a_good_certificate_passes(sender: HttpSender) -> None:
    """F36"""
    with Site(tls=AUTHORITY.server("good")) as site:
        site.page("/", "secure")

        answers = [await get(sender, site.url("/", host=host)) for host in ("127.0.0.1", "shop.test", "shop.test")]

        assert [answer.body for answer in answers] == [b"secure"] * 3
        assert [visit.connection for visit in site.journal] == [1, 2, 2]


def test_a_connection_kept_in_a_loop_that_has_ended_is_closed() -> None:
    """N9: with asyncio.run() more than once"""
    sender = HttpSender(verify=AUTHORITY.client())

    with Site(tls=AUTHORITY.server("good")) as site:
        for _ in range(2):
            asyncio.run(get(sender, site.url("/")))
        asyncio.run(sender.close())
        asyncio.run(site.left())

        assert site.connections == 2


@pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6 loopback")
async def test_a_good_certificate_passes_for_an_ipv6_address(sender: HttpSender) -> None:
    """F36"""
    with Site(tls=AUTHORITY.server("good")) as site:
        assert (await get(sender, site.url("/", host="::1"))).status == 404


async def test_an_authority_of_ones_own_can_be_given_as_a_file(tmp_path: Path) -> None:
    """F36"""
    AUTHORITY.write(tmp_path / "ca.pem")
    sender = HttpSender(verify=tmp_path / "ca.pem")

    with Site(tls=AUTHORITY.server("good")) as site:
        answer = await get(sender, site.url("/"))
    await sender.close()

    assert answer.status == 404


@pytest.mark.parametrize(
    ("kind", "word"), [("expired", "expired"), ("wrong host", "127.0.0.1"), ("self-signed", "issuer")]
)
async def test_a_bad_certificate_is_refused_and_named(sender: HttpSender, kind: Kind, word: str) -> None:
    """F36"""
    with Site(tls=AUTHORITY.server(kind)) as site:
        failure = await fail(sender, site.url("/"))

        assert (failure.reason, failure.sent_ago) == (Reason.TLS_ERROR, None)
        assert word in failure.detail
        assert not site.journal


async def test_an_authority_that_the_system_does_not_know_is_refused_by_default() -> None:
    """F36"""
    sender = HttpSender()

    with Site(tls=AUTHORITY.server("good")) as site:
        failure = await fail(sender, site.url("/"))
    await sender.close()

    assert failure.reason is Reason.TLS_ERROR


async def test_plain_http_on_a_tls_port_is_a_tls_error(sender: HttpSender) -> None:
    """F36"""
    with Site() as site:
        failure = await fail(sender, site.url("/", scheme="https"))

    assert (failure.reason, failure.sent_ago) == (Reason.TLS_ERROR, None)


async def test_tls_on_a_plain_port_is_no_answer(sender: HttpSender) -> None:
    """F36"""
    with Site(tls=AUTHORITY.server("good")) as site:
        failure = await fail(sender, site.url("/", scheme="http"), QUICK)

    assert failure.reason in (Reason.BAD_RESPONSE, Reason.CONNECTION_ERROR)


async def test_a_silent_handshake_ends_at_the_connect_limit(sender: HttpSender) -> None:
    """F36"""
    with Site(silent=True) as site:
        with ends_within(5):
            failure = await fail(sender, site.url("/", scheme="https"), QUICK)

        assert (failure.reason, failure.sent_ago) == (Reason.TIMEOUT, None)
        await site.left()


async def test_a_body_that_breaks_off_under_tls_is_incomplete(sender: HttpSender) -> None:
    """F06"""
    with Site(tls=AUTHORITY.server("good")) as site:
        site.reply("/", cut_short(b"x" * 1000, 400))

        assert (await fail(sender, site.url("/"))).reason is Reason.INCOMPLETE


@pytest.mark.parametrize("is_said", [True, False])
async def test_a_body_without_a_length_ends_only_where_the_site_says_so(sender: HttpSender, is_said: bool) -> None:
    """F06: anybody can end a connection (RFC 9112, 8)"""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\n\r\nhalf of the page")
        if not is_said:
            writer.get_extra_info("socket").shutdown(socket.SHUT_WR)
        writer.close()

    async with listening(talk, tls=AUTHORITY.server("good")) as port:
        reply = await sender.send(request(f"https://127.0.0.1:{port}/"), OPEN)

    if is_said:
        assert isinstance(reply, Response)
        assert reply.body == b"half of the page"
    else:
        assert isinstance(reply, Failure)
        assert reply.reason is Reason.INCOMPLETE


@pytest.mark.parametrize("verify", [False, "no such file"])
def test_verification_cannot_be_switched_off_by_a_word(verify: bool | str) -> None:
    """F36"""
    with pytest.raises(PolicyError, match="verify = "):
        HttpSender(verify=verify)


async def test_whoever_insists_can_give_a_context_of_their_own() -> None:
    """F36"""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    sender = HttpSender(verify=context)

    with Site(tls=AUTHORITY.server("self-signed")) as site:
        answer = await get(sender, site.url("/"))
    await sender.close()

    assert answer.status == 404


@pytest.mark.parametrize(
    "raw",
    [
        b"HTTP/1.1 200 OK\r\nX-A : b\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nx",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nxHTTP/1.1 junk\r\n\r\n",
    ],
    ids=["field", "lengths", "chunk", "more"],
)
async def test_what_cannot_be_read_is_a_value_under_tls_too(raw: bytes) -> None:
    """F08: and the next request is answered"""
    with Site(tls=AUTHORITY.server("good")) as site:
        sender = HttpSender(resolver=site.names, verify=AUTHORITY.client())
        site.script("/", [Reply(raw=raw), Reply(body="well")])
        url = site.url("/", host="shop.test")

        reply = await sender.send(request(url), OPEN)
        after = await get(sender, url)
        await sender.close()

    assert isinstance(reply, Response) or reply.reason is Reason.BAD_RESPONSE
    assert after.body == b"well"
