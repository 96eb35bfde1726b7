"""The built-in sender and heads at their worst: endless, broken, or none at all."""

import itertools
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import replace
from functools import partial

import pytest

from curtsy.core.errors import Reason
from curtsy.core.request import Response
from curtsy.http.sender import HttpSender
from tests.support.bounds import MIB, bounded_memory, ends_within
from tests.support.sending import OPEN, fail, get, request
from tests.support.site import (
    Reply,
    Site,
    garbage,
    reset,
)

QUICK = replace(OPEN, timeout=1.0, connect_timeout=0.8)


@pytest.fixture
async def sender(site: Site) -> AsyncIterator[HttpSender]:
    sender = HttpSender(resolver=site.names, connections=1)
    yield sender
    await sender.close()


def _endless_fields() -> Iterable[bytes]:
    yield b"HTTP/1.1 200 OK\r\n"
    for number in itertools.count():
        yield b"".join(b"X-%d: y\r\n" % (1000 * number + n) for n in range(1000))


ENDLESS_HEADS: dict[str, Callable[[], Iterable[bytes]]] = {
    "16 MiB in one field": lambda: [b"HTTP/1.1 200 OK\r\nX: ", *[b"y" * MIB] * 16, b"\r\n\r\n"],
    "100,000 fields": lambda: [b"HTTP/1.1 200 OK\r\n", b"X-A: y\r\n" * 100_000, b"\r\n"],
    "fields without end": _endless_fields,
    "a field without end": lambda: itertools.chain([b"HTTP/1.1 200 OK\r\nX: "], itertools.repeat(b"y" * 65_536)),
    "a name without end": lambda: itertools.chain([b"HTTP/1.1 200 OK\r\nX"], itertools.repeat(b"y" * 65_536)),
    "a reason without end": lambda: itertools.chain([b"HTTP/1.1 200 "], itertools.repeat(b"y" * 65_536)),
    "interim answers without end": lambda: itertools.repeat(b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n" * 50),
    "100 without end": lambda: itertools.repeat(b"HTTP/1.1 100 Continue\r\n\r\n" * 50),
    "lines without end": lambda: itertools.repeat(b"\r\n" * 5000),
}


@pytest.mark.parametrize("kind", ENDLESS_HEADS)
async def test_a_head_without_end_is_given_up(site: Site, sender: HttpSender, kind: str) -> None:
    """F11"""
    site.reply("/", Reply(raw=ENDLESS_HEADS[kind]))

    with bounded_memory(), ends_within(3):
        failure = await fail(sender, site.url("/"), replace(OPEN, timeout=2))

    assert failure.reason in (Reason.TOO_LARGE, Reason.BAD_RESPONSE)
    await site.left()
    assert site.journal[0].taken <= 8 * MIB


async def test_interim_answers_that_drip_end_at_the_deadline(site: Site, sender: HttpSender) -> None:
    """F11"""
    site.reply("/", Reply(raw=lambda: itertools.repeat(b"HTTP/1.1 103 Early Hints\r\n\r\n"), drip=(1, 0.05)))

    with ends_within(4):
        failure = await fail(sender, site.url("/"), QUICK)

    assert failure.reason is Reason.TIMEOUT


@pytest.mark.parametrize(("size", "fits"), [(60_000, True), (70_000, False)])
async def test_the_limit_holds_for_the_whole_head(site: Site, sender: HttpSender, size: int, fits: bool) -> None:
    """F11"""
    fields = [(f"X-{n}", "y" * 1000) for n in range(size // 1000)]
    site.reply("/", Reply(headers=fields, body="x" * 200_000))

    reply = await sender.send(request(site.url("/")), OPEN)

    assert isinstance(reply, Response) == fits


async def test_a_large_body_that_comes_with_its_head_is_no_large_head(site: Site, sender: HttpSender) -> None:
    """F11"""
    site.page("/", b"x" * MIB)

    answer = await get(sender, site.url("/"), replace(OPEN, max_head=1024))

    assert len(answer.body) == MIB


@pytest.mark.parametrize(
    "raw",
    [
        b"this is not HTTP\r\n\r\n",
        b"\x16\x03\x01\x02\x00",
        b"HTTP/1.1 abc OK\r\n\r\n",
        b"HTTP/1.1 99999 OK\r\n\r\n",
        b"HTTP/1.1\r\n\r\n",
        b"HTTP/9.9 200 OK\r\n\r\n",
        b"SSH-2.0-OpenSSH_9.6\r\n",
        b"HTTP/1.1 200 OK\r\nno colon\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: a\x00b\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello!",
        b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\nhello",
        b"\x00" * 100,
    ],
)
async def test_what_is_not_http_is_a_bad_response(site: Site, sender: HttpSender, raw: bytes) -> None:
    """F12"""
    site.reply("/", garbage(raw))

    failure = await fail(sender, site.url("/"))

    assert failure.reason is Reason.BAD_RESPONSE
    assert failure.sent_ago is not None
    assert site.count() == 1
    await site.left()


@pytest.mark.parametrize(
    "reply",
    [garbage(b""), reset(), garbage(b"HTTP/1.1 200 OK\r\nContent-Le"), garbage(b"HT")],
    ids=["empty", "reset", "half a head", "two bytes"],
)
async def test_no_answer_is_a_connection_error(site: Site, sender: HttpSender, reply: Reply) -> None:
    """F12"""
    site.reply("/", reply)

    failure = await fail(sender, site.url("/"))

    assert failure.reason is Reason.CONNECTION_ERROR
    assert failure.sent_ago is not None
    assert site.count() == 1


EXCESS = {
    "a length too small": ("GET", b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok, and more", 200, b"ok"),
    "after an interim one": (
        "GET", b"HTTP/1.1 103 Early\r\n\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok...", 200, b"ok",
    ),
    "lines without a return": ("GET", b"\n\nHTTP/1.1 200 OK\nContent-Length: 2\n\nok...", 200, b"ok"),
    "after the last chunk": (
        "GET", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n...", 200, b"ok",
    ),
    "a body to HEAD": ("HEAD", b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\n<html>", 200, b""),
    "a chunk to 204": ("GET", b"HTTP/1.1 204 No Content\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 204, b""),
    "a body to 304": ("GET", b"HTTP/1.1 304 Not Modified\r\n\r\n<html>", 304, b""),
    "two answers more": (
        "GET", b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok" * 3 + b"...", 200, b"ok",
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", EXCESS)
async def test_what_follows_an_answer_is_passed_over_and_ends_the_connection(
    site: Site, sender: HttpSender, kind: str
) -> None:
    """F12: RFC 9112, 6.3"""
    method, raw, status, body = EXCESS[kind]
    site.reply("/", Reply(raw=raw, end="hang"))

    reply = await sender.send(request(site.url("/"), method), OPEN)

    assert isinstance(reply, Response)
    assert (reply.status, reply.body) == (status, body)
    await site.left()


async def test_an_answer_with_something_after_it_may_come_in_pieces(site: Site, sender: HttpSender) -> None:
    """F12: RFC 9112, 6.3"""
    raw = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok and more"

    for size in range(1, len(raw)):
        site.reply("/", Reply(raw=partial(list, [raw[:size], raw[size:]]), drip=(1, 0.003), end="hang"))
        assert (await get(sender, site.url("/"))).body == b"ok"
        await site.left()


async def test_the_head_of_an_answer_that_breaks_in_the_same_packet_is_known(site: Site, sender: HttpSender) -> None:
    """F08"""
    site.reply("/", garbage(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\nzz\r\n"))

    failure = await fail(sender, site.url("/"))

    assert (failure.reason, failure.status) == (Reason.BAD_RESPONSE, 200)


async def test_an_answer_that_nobody_asked_for_is_not_taken_for_the_next(site: Site, sender: HttpSender) -> None:
    """F12"""
    one = b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\none"
    site.reply("/one", Reply(raw=one + b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil"))
    site.page("/two", "two")

    first = await get(sender, site.url("/one"))
    second = await sender.send(request(site.url("/two")), OPEN)

    assert first.body == b"one"
    assert not isinstance(second, Response) or second.body == b"two"


async def test_a_part_that_was_not_requested_is_a_bad_response(site: Site, sender: HttpSender) -> None:
    """F12: RFC 9110, 15.3.7"""
    site.reply("/", Reply(206, b"part", {"Content-Range": "bytes 0-3/100"}))

    failure = await fail(sender, site.url("/"))
    part = await get(sender, site.url("/"), OPEN, ("Range", "bytes=0-3"))

    assert (failure.reason, failure.status) == (Reason.BAD_RESPONSE, 206)
    assert (part.status, part.body) == (206, b"part")
