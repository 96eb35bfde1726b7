"""The built-in sender and bodies at their worst: every fault is a value, in bounded time and memory."""

import asyncio
import gzip
import itertools
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from curtsy.core.errors import Reason
from curtsy.http.response import MAX_FRAMING
from curtsy.http.sender import HttpSender
from tests.support.bounds import MIB, bounded_memory, cpu_within, ends_within
from tests.support.sending import OPEN, fail, get
from tests.support.site import (
    Reply,
    Site,
    bomb,
    cut_short,
    dripping,
    encoded,
    endless,
    garbage,
)

QUICK = replace(OPEN, timeout=1.0, connect_timeout=0.8)
SMALL = replace(OPEN, max_body=MIB)


@pytest.fixture
async def sender(site: Site) -> AsyncIterator[HttpSender]:
    sender = HttpSender(resolver=site.names, connections=1)
    yield sender
    await sender.close()


@pytest.mark.parametrize(
    ("coding", "size"),
    [("gzip", 1 << 30), ("gzip members", 1 << 30), ("deflate", 1 << 28), ("br", 1 << 27), ("zstd", 1 << 30)],
)
async def test_a_bomb_is_given_up_at_the_body_limit(site: Site, sender: HttpSender, coding: str, size: int) -> None:
    """F01"""
    site.reply("/", bomb(coding, size))

    with bounded_memory():
        failure = await fail(sender, site.url("/"))

    assert (failure.reason, failure.status) == (Reason.TOO_LARGE, 200)
    assert site.count() == 1
    await site.left()


async def test_a_coded_body_that_means_nothing_ends_at_the_limit_too(site: Site, sender: HttpSender) -> None:
    """F01: empty members without end are bytes on the wire, though none come out."""
    members = gzip.compress(b"") * 1000
    site.reply("/", Reply(body=lambda: itertools.repeat(members), headers={"Content-Encoding": "gzip"}, chunked=True))

    failure = await fail(sender, site.url("/"), SMALL)

    assert failure.reason is Reason.TOO_LARGE
    await site.left()
    assert site.journal[0].taken <= MIB + MIB


@pytest.mark.parametrize("coding", ["gzip, br", "gzip, gzip", "zstd, zstd"])
async def test_codings_within_codings_take_no_time_of_ours(site: Site, sender: HttpSender, coding: str) -> None:
    """F01: some hundred bytes took many seconds on the event loop, whatever the deadline was."""
    inner, _, outer = coding.partition(", ")
    made = encoded(b"", inner).body
    assert isinstance(made, bytes)
    body = encoded(made * (40_000_000 // len(made)), outer).body
    site.reply("/", Reply(body=body, headers={"Content-Encoding": coding}))

    with cpu_within(1.0):
        failure = await fail(sender, site.url("/"))

    assert (failure.reason, failure.status) == (Reason.TOO_LARGE, 200)


async def test_three_codings_are_a_bad_response(site: Site, sender: HttpSender) -> None:
    """F01"""
    site.reply("/", encoded(b"page", "gzip, gzip, gzip"))

    failure = await fail(sender, site.url("/"))

    assert (failure.reason, failure.status) == (Reason.BAD_RESPONSE, 200)


async def test_decoding_ends_at_the_deadline_and_lets_others_run(site: Site, sender: HttpSender) -> None:
    """F01: a gigabyte that comes in one piece of some kilobytes is decoded in many steps."""
    site.reply("/", bomb("zstd", 1 << 30))
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    counting = asyncio.ensure_future(count())
    with bounded_memory(900 * MIB):
        failure = await fail(sender, site.url("/"), replace(OPEN, max_body=None, timeout=0.15))
        turns_until_head, turns = turns, 0
    counting.cancel()

    assert failure.reason is Reason.TIMEOUT
    assert turns_until_head > 3


@pytest.mark.parametrize("coding", [None, "gzip"])
async def test_a_body_that_may_be_cut_is_read_no_further(site: Site, sender: HttpSender, coding: str | None) -> None:
    """F28"""
    headers = {} if coding is None else {"Content-Encoding": coding}
    piece = b"line\n" * 10_000 if coding is None else gzip.compress(b"line\n" * 10_000)
    site.reply("/", Reply(body=lambda: itertools.repeat(piece), headers=headers, length=1 << 40))

    answer = await get(sender, site.url("/"), replace(OPEN, max_body=MIB // 2, cut=True))

    assert answer.body == (b"line\n" * MIB)[: MIB // 2]
    await site.left()
    assert site.journal[0].taken <= MIB


async def test_a_coded_body_that_means_nothing_is_cut_too(site: Site, sender: HttpSender) -> None:
    """F28"""
    members = gzip.compress(b"x") + gzip.compress(b"") * 1000
    site.reply("/", Reply(body=lambda: itertools.repeat(members), headers={"Content-Encoding": "gzip"}, chunked=True))

    answer = await get(sender, site.url("/"), replace(OPEN, max_body=MIB // 2, cut=True))

    assert set(answer.body) == {ord("x")}
    await site.left()
    assert site.journal[0].taken <= MIB


@pytest.mark.parametrize("reply", [endless(), endless(chunked=False)], ids=["chunked", "until close"])
async def test_an_endless_body_is_given_up_at_the_limit(site: Site, sender: HttpSender, reply: Reply) -> None:
    """F03"""
    site.reply("/", reply)

    with bounded_memory():
        failure = await fail(sender, site.url("/"))

    assert (failure.reason, failure.status) == (Reason.TOO_LARGE, 200)
    await site.left()
    assert site.journal[0].taken <= 10 * MIB + MIB


@pytest.mark.parametrize(
    "reply",
    [
        Reply(body=lambda: itertools.repeat(b"x" * 65_536), length=1 << 50),
        Reply(length=1 << 50, end="hang"),
        Reply(length=1 << 50, end="hang", headers={"Content-Encoding": "gzip"}),
    ],
    ids=["sent", "silent", "coded"],
)
async def test_an_announced_length_over_the_limit_is_refused_before_reading(
    site: Site, sender: HttpSender, reply: Reply
) -> None:
    """F03"""
    site.reply("/", reply)

    with bounded_memory(), ends_within(3, work=2):
        failure = await fail(sender, site.url("/"))

    assert failure.reason is Reason.TOO_LARGE
    assert "1,125,899,906,842,624" in failure.detail
    await site.left()
    assert site.journal[0].taken <= 2 * MIB


async def test_a_length_that_cannot_be_a_number_is_no_answer(site: Site, sender: HttpSender) -> None:
    """F03"""
    site.reply("/", Reply(length="9" * 30))

    assert (await fail(sender, site.url("/"))).reason is Reason.BAD_RESPONSE


async def test_a_body_of_exactly_the_limit_comes_whole(site: Site, sender: HttpSender) -> None:
    """F03"""
    site.page("/", b"x" * MIB)

    assert len((await get(sender, site.url("/"), SMALL)).body) == MIB


async def test_no_limit_is_no_limit(site: Site, sender: HttpSender) -> None:
    """F03"""
    site.page("/", b"x" * (11 * MIB))

    assert len((await get(sender, site.url("/"), replace(OPEN, max_body=None))).body) == 11 * MIB


@pytest.mark.parametrize(
    "reply",
    [dripping(b"x" * 1000, 0.05), Reply(body=b"x" * 1000, chunked=True, drip=(1, 0.05)), endless(b"xxx")],
    ids=["drip", "chunked drip", "endless"],
)
async def test_a_body_that_drips_ends_at_the_deadline(site: Site, sender: HttpSender, reply: Reply) -> None:
    """F04"""
    site.reply("/", replace(reply, drip=(1, 0.05)))

    with ends_within(4, work=1):
        failure = await fail(sender, site.url("/"), QUICK)

    assert (failure.reason, failure.status) == (Reason.TIMEOUT, 200)
    assert failure.sent_ago is not None
    assert failure.sent_ago >= 0.9
    # The slot is free: the sender has one connection only.
    assert (await get(sender, site.url("/other"))).status == 404


async def test_a_fast_endless_body_ends_at_the_deadline_too(site: Site, sender: HttpSender) -> None:
    """F04: a stream that is never empty never waits, and so would never be timed out."""
    site.reply("/", endless())

    with ends_within(4, work=1):
        failure = await fail(sender, site.url("/"), replace(QUICK, max_body=None))

    assert failure.reason is Reason.TIMEOUT


async def test_a_body_below_the_least_speed_is_given_up(site: Site, sender: HttpSender) -> None:
    """F04"""
    site.reply("/", dripping(b"x" * 10_000, 0.02, size=10))

    with ends_within(4, work=1):
        failure = await fail(sender, site.url("/"), replace(OPEN, min_speed=5000, speed_window=0.3))

    assert (failure.reason, failure.status) == (Reason.TOO_SLOW, 200)


async def test_a_body_above_the_least_speed_may_take_several_windows(site: Site, sender: HttpSender) -> None:
    """F04"""
    site.reply("/", dripping(b"x" * 10_000, 0.02, size=500))

    answer = await get(sender, site.url("/"), replace(OPEN, min_speed=2000, speed_window=0.1))

    assert len(answer.body) == 10_000


async def test_a_body_that_falls_silent_is_incomplete(site: Site, sender: HttpSender) -> None:
    """F06"""
    site.reply("/", cut_short(b"x" * 1000, 400, end="hang"))

    with ends_within(4, work=1):
        failure = await fail(sender, site.url("/"), replace(OPEN, speed_window=0.3))

    assert (failure.reason, failure.status, failure.wire_bytes) == (Reason.INCOMPLETE, 200, 400)


@pytest.mark.parametrize(
    "reply",
    [
        cut_short(b"x" * 1000, 400),
        cut_short(b"x" * 1000, 400, chunked=True),
        cut_short(b"x" * 1000, 400, end="reset"),
        cut_short(b"x" * 1000, 400, end="reset", chunked=True),
        Reply(body=b"x" * 1000, length=None, stop_after=400, end="reset"),
        Reply(body=b"x", length=1000, end="close"),
        replace(encoded(b"word " * 1000, "gzip"), length=None, stop_after=20, end="close"),
        replace(encoded(b"word " * 1000, "br"), length=None, stop_after=5, end="close"),
        replace(encoded(b"word " * 1000, "zstd"), length=None, stop_after=20, end="close"),
    ],
    ids=["length", "chunked", "reset", "reset chunked", "reset until close", "lie", "gzip", "br", "zstd"],
)
async def test_a_body_that_breaks_off_is_incomplete(site: Site, sender: HttpSender, reply: Reply) -> None:
    """F06"""
    site.reply("/", reply)

    failure = await fail(sender, site.url("/"))

    assert (failure.reason, failure.status) == (Reason.INCOMPLETE, 200)
    assert failure.sent_ago is not None


@pytest.mark.parametrize(
    "size",
    [b"zz", b"-1", b"FFFFFFFFFFFFFFFFF", b"", b"0x10", b"1" * 5000],
    ids=["hex", "-1", "2^68", "none", "0x", "long"],
)
async def test_broken_chunk_framing_is_a_bad_response(site: Site, sender: HttpSender, size: bytes) -> None:
    """F08"""
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    site.reply("/", garbage(head + b"5\r\nhello\r\n" + size + b"\r\n" + b"x" * 5000, end="hang"))

    with bounded_memory(), ends_within(3, work=2):
        failure = await fail(sender, site.url("/"))

    assert failure.reason is Reason.BAD_RESPONSE
    await site.left()


async def test_framing_that_breaks_after_the_head_was_read_is_noticed_at_once(site: Site, sender: HttpSender) -> None:
    """F08"""
    pieces = [b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n", b"zz\r\n"]
    site.reply("/", Reply(raw=lambda: pieces, drip=(1, 0.1), end="hang"))

    with ends_within(3, work=2):
        failure = await fail(sender, site.url("/"))

    assert failure.reason is Reason.BAD_RESPONSE


async def test_a_chunk_of_nearly_all_there_is_ends_at_the_limit(site: Site, sender: HttpSender) -> None:
    """F08"""
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nFFFFFFFFFFFFFFFF\r\n"
    site.reply("/", Reply(raw=lambda: itertools.chain([head], itertools.repeat(b"x" * 65_536))))

    with bounded_memory():
        failure = await fail(sender, site.url("/"), SMALL)

    assert failure.reason in (Reason.TOO_LARGE, Reason.BAD_RESPONSE)


CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"

ENDLESS_FRAMING = {
    "an extension": (b"5;", b"a" * 65_536),
    "extensions": (b"", b"1;" + b"a" * 60_000 + b"\r\nx\r\n"),
    "a size": (b"", b"0" * 65_536),
    "trailers": (b"5\r\nhello\r\n0\r\n", b"X: " + b"a" * 60_000 + b"\r\n"),
}


@pytest.mark.parametrize("kind", ENDLESS_FRAMING)
async def test_framing_without_end_is_given_up(site: Site, sender: HttpSender, kind: str) -> None:
    """F03, F11: it is neither head nor body, but it is taken from the site"""
    begin, piece = ENDLESS_FRAMING[kind]
    site.reply("/", Reply(raw=lambda: itertools.chain([CHUNKED + begin], itertools.repeat(piece))))

    with bounded_memory(), ends_within(3, work=2):
        failure = await fail(sender, site.url("/"))

    assert (failure.reason, failure.status) == (Reason.BAD_RESPONSE, 200)
    await site.left()
    assert site.journal[0].taken <= MAX_FRAMING + MIB


async def test_a_chunk_for_each_byte_is_no_framing_without_end(site: Site, sender: HttpSender) -> None:
    """F03: some programs send a page so"""
    raw = CHUNKED + b"1\r\nx\r\n" * 500_000 + b"0\r\n\r\n"
    site.reply("/", Reply(raw=raw))

    answer = await get(sender, site.url("/"))

    assert answer.body == b"x" * 500_000


UNREADABLE = {
    "cut short": Reply(body=b"slow down", length=100, end="close"),
    "reset": Reply(body=b"slow down", length=100, end="reset"),
    "silent": Reply(body=b"slow down", length=100, end="hang"),
    "dripping": Reply(body=b"slow down" * 1000, drip=(9, 0.05)),
    "not gzip": Reply(body=b"slow down", headers={"Content-Encoding": "gzip"}, end="hang"),
    "half of gzip": Reply(body=gzip.compress(b"slow down" * 99)[:-9], headers={"Content-Encoding": "gzip"}, end="hang"),
    "an unknown coding": Reply(body=b"slow down", headers={"Content-Encoding": "lzma"}, end="hang"),
    "announced too long": Reply(length=1 << 50, end="hang"),
    "endless": endless(b"slow down" * 1000),
    "a bomb": bomb("gzip", 1 << 28),
}


@pytest.mark.parametrize("kind", UNREADABLE)
@pytest.mark.parametrize("status", [302, 404, 429])
async def test_an_error_or_a_redirect_is_an_answer_whatever_its_body_is(
    site: Site, sender: HttpSender, kind: str, status: int
) -> None:
    """C2, U3, F06: and its connection is closed"""
    reply = UNREADABLE[kind]
    site.reply("/", replace(reply, status=status, headers={**dict(reply.headers), "Retry-After": "60"}))

    with bounded_memory(), ends_within(4, work=1):
        answer = await get(sender, site.url("/"), replace(QUICK, max_body=MIB))

    assert (answer.status, answer.headers.get("retry-after")) == (status, "60")
    assert not answer.is_whole
    assert len(answer.body) <= MIB
    await site.left()
    assert site.journal[0].taken <= 2 * MIB


async def test_broken_framing_of_an_error_hides_no_status(site: Site, sender: HttpSender) -> None:
    """C2, F08"""
    raw = b"HTTP/1.1 429 Slow\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"
    site.reply("/", garbage(raw, end="hang"))

    assert (await get(sender, site.url("/"))).status == 429


async def test_a_transfer_coding_is_undone(site: Site, sender: HttpSender) -> None:
    """F08"""
    body = gzip.compress(b"words")
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n"
    site.reply("/", Reply(raw=head + b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)))

    assert (await get(sender, site.url("/"))).body == b"words"


@pytest.mark.parametrize("coding", ["gzip", "br", "zstd", "deflate", "compress", "gzip, gzip, gzip, gzip"])
async def test_a_body_that_is_not_what_it_says_is_a_bad_response(site: Site, sender: HttpSender, coding: str) -> None:
    """F08"""
    site.reply("/", Reply(body=b"\xff\xfeplain text" * 100, headers={"Content-Encoding": coding}))

    failure = await fail(sender, site.url("/"))

    assert (failure.reason, failure.status) == (Reason.BAD_RESPONSE, 200)
