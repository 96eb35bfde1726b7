"""The built-in sender as a stream: what downloads are built on."""

import asyncio
import gzip
import itertools
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from curtsy.core.errors import Reason
from curtsy.core.request import Failure, Headers, Response
from curtsy.http.sender import HttpSender
from tests.support.bounds import MIB, bounded_memory
from tests.support.sending import OPEN, get, request
from tests.support.site import (
    Reply,
    Site,
    dripping,
    encoded,
    endless,
)
from tests.support.snapshot import Snapshot

SMALL = replace(OPEN, max_body=MIB)


@pytest.fixture
async def sender(site: Site) -> AsyncIterator[HttpSender]:
    sender = HttpSender(resolver=site.names, connections=1)
    yield sender
    await sender.close()


class Kept:
    """A sink that keeps what it gets."""

    def __init__(self, *, wanted: bool = True, pause: float = 0.0, error: Exception | None = None) -> None:
        self.pieces: list[bytes] = []
        self.status: int | None = None
        self._wanted = wanted
        self._pause = pause
        self._error = error

    decodes = True

    def begin(self, status: int, headers: Headers) -> bool:
        self.status = status
        return self._wanted

    async def write(self, piece: bytes) -> None:
        if self._error is not None:
            raise self._error
        await asyncio.sleep(self._pause)
        self.pieces.append(piece)


async def test_a_stream_goes_to_the_sink_decoded_and_in_pieces(site: Site, sender: HttpSender) -> None:
    """U15"""
    body = b"many words " * 100_000
    site.reply("/", encoded(body, "gzip"))
    sink = Kept()

    reply = await sender.stream(request(site.url("/")), OPEN, sink)

    assert isinstance(reply, Response)
    assert (reply.status, reply.body, sink.status) == (200, b"", 200)
    assert b"".join(sink.pieces) == body
    assert len(sink.pieces) > 1


async def test_a_part_goes_to_the_sink_as_it_is(site: Site, sender: HttpSender) -> None:
    """U15"""
    site.page("/", b"0123456789", ranges=True, headers={"Content-Encoding": "gzip"})
    sink = Kept()

    await sender.stream(request(site.url("/"), headers=(("Range", "bytes=4-"),)), OPEN, sink)

    assert (sink.status, b"".join(sink.pieces)) == (206, b"456789")


async def test_a_body_that_the_sink_does_not_want_is_the_replys(site: Site, sender: HttpSender) -> None:
    """U15"""
    sink = Kept(wanted=False)

    reply = await sender.stream(request(site.url("/nothing")), OPEN, sink)

    assert isinstance(reply, Response)
    assert (reply.status, reply.body, sink.pieces) == (404, b"nothing here", [])


async def test_a_stream_has_a_least_speed_instead_of_a_deadline(site: Site, sender: HttpSender) -> None:
    """U15"""
    site.reply("/steady", dripping(b"x" * 60_000, 0.05, size=2000))
    site.reply("/slow", dripping(b"x" * 20_000, 0.05, size=2))
    limits = replace(OPEN, timeout=1.0, min_speed=1000, speed_window=1.0)

    steady = await sender.stream(request(site.url("/steady")), limits, Kept())
    slow = await sender.stream(request(site.url("/slow")), limits, Kept())

    assert isinstance(steady, Response)
    assert not isinstance(slow, Response)
    assert slow.reason is Reason.TOO_SLOW


@pytest.mark.parametrize("is_stream", [True, False])
@pytest.mark.parametrize("is_coded", [True, False])
async def test_a_body_may_pause_after_a_first_piece_that_comes_with_the_head(
    site: Site, sender: HttpSender, is_stream: bool, is_coded: bool
) -> None:
    """U15: for as long as the window of the least speed, also if that piece takes long to decode"""
    plain = b"x" * (64 * MIB if is_coded else 2000)
    body = gzip.compress(plain) if is_coded else plain
    head = (
        f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\n{'Content-Encoding: gzip' if is_coded else 'X: y'}\r\n\r\n"
    )
    site.reply("/", Reply(raw=lambda: iter([head.encode() + body[:-500], body[-500:]]), drip=(1, 1.0)))
    limits, sink = replace(OPEN, max_body=None), Kept()

    ask = request(site.url("/"))
    reply = await (sender.stream(ask, limits, sink) if is_stream else sender.send(ask, limits))

    assert isinstance(reply, Response)
    assert (b"".join(sink.pieces) or reply.body) == plain


async def test_a_slow_sink_is_not_taken_for_a_slow_site(site: Site, sender: HttpSender) -> None:
    """U15"""
    site.reply("/", Reply(body=b"x" * 200_000))
    sink = Kept(pause=0.6)

    reply = await sender.stream(request(site.url("/")), replace(OPEN, min_speed=200_000, speed_window=0.5), sink)

    assert isinstance(reply, Response)
    assert sum(map(len, sink.pieces)) == 200_000


async def test_a_stream_ends_at_its_size_limit(site: Site, sender: HttpSender) -> None:
    """U15, F03"""
    site.reply("/", endless())
    sink = Kept()

    with bounded_memory():
        reply = await sender.stream(request(site.url("/")), SMALL, sink)

    assert not isinstance(reply, Response)
    assert reply.reason is Reason.TOO_LARGE
    assert sum(map(len, sink.pieces)) <= MIB


async def test_a_slow_sink_hears_why_the_rest_was_given_up(site: Site, sender: HttpSender, snapshot: Snapshot) -> None:
    """U15, F03"""
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n"
    site.reply("/", Reply(raw=lambda: itertools.chain([head], itertools.repeat(b"0" * 65_536))))
    sink = Kept(pause=0.3)

    reply = await sender.stream(request(site.url("/")), OPEN, sink)

    assert isinstance(reply, Failure)
    assert reply.reason is Reason.BAD_RESPONSE
    assert "4,194,304" in reply.detail
    snapshot(reply.detail)
    assert sink.pieces == [b"hello"]


async def test_what_a_sink_raises_comes_out_and_closes_the_connection(site: Site, sender: HttpSender) -> None:
    """U15"""
    site.reply("/", endless())

    with pytest.raises(OSError, match="disk full"):
        await sender.stream(request(site.url("/")), OPEN, Kept(error=OSError("disk full")))

    await site.left()
    assert (await get(sender, site.url("/other"))).status == 404
