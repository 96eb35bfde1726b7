"""Content codings undone in bounded steps."""

import gzip
import random
import time
import zlib
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from curtsy.http.decoding import Damaged, Decoder, Truncated, UnknownCoding, decoder_of
from curtsy.system.zstd import zstd
from tests.support.bounds import cpu_within, slowness
from tests.support.site import bomb, encoded

CODINGS = ["gzip", "x-gzip", "deflate", "raw deflate", "br", "zstd"]
LARGEST_STEP = 8 * 1024 * 1024 + 131_072


def coded(body: bytes, coding: str) -> bytes:
    made = encoded(body, coding).body
    assert isinstance(made, bytes)
    return made


def decoder(coding: str) -> Decoder:
    made = decoder_of(coding.replace("raw ", ""))
    assert made is not None
    return made


@pytest.mark.parametrize("transfer", ["gzip, chunked", "gzip", "GZIP , Chunked, chunked"])
def test_a_transfer_coding_is_undone_before_the_content_coding(transfer: str) -> None:
    """F08: RFC 9112, 6.1"""
    inner = decoder_of("br", transfer)

    assert inner is not None
    assert b"".join(inner.feed(coded(b"words", "br, gzip"))) == b"words"


def test_chunks_are_no_coding_but_around_all_others() -> None:
    """F08"""
    assert decoder_of(None, "chunked") is None
    with pytest.raises(UnknownCoding):
        decoder_of(None, "chunked, gzip")


def pieces(data: bytes, size: int) -> Iterator[bytes]:
    for start in range(0, len(data), size):
        yield data[start : start + size]


def decoded(data: bytes, coding: str, size: int = 65_536) -> bytes:
    inner = decoder(coding)
    out = b"".join(out for piece in pieces(data, size) for out in inner.feed(piece))
    inner.finish()
    return out


@pytest.mark.parametrize("coding", [*CODINGS, "gzip, br", "zstd, gzip", "deflate, br"])
@given(body=st.binary(max_size=2000), size=st.integers(1, 700), times=st.sampled_from([1, 300]))
def test_a_coded_body_comes_back_however_it_is_cut(coding: str, body: bytes, size: int, times: int) -> None:
    """F01"""
    body *= times

    assert decoded(coded(body, coding), coding, size) == body


@pytest.mark.parametrize("value", [None, "", "identity", " Identity ", "none", "utf-8", "identity, none"])
def test_no_coding_needs_no_decoder(value: str | None) -> None:
    """F01"""
    assert decoder_of(value) is None


@pytest.mark.parametrize("value", ["compress", "gzip, rot13", "gzip, gzip, gzip", "br, zstd, gzip", "x" * 5000])
def test_what_cannot_be_undone_is_said(value: str) -> None:
    """F01"""
    with pytest.raises(UnknownCoding):
        decoder_of(value)


@pytest.mark.parametrize("coding", CODINGS)
def test_a_body_of_no_bytes_is_complete(coding: str) -> None:
    """F06"""
    decoder(coding).finish()


@pytest.mark.parametrize("coding", CODINGS)
@given(cut=st.integers(1, 400))
def test_a_coded_body_that_breaks_off_is_noticed(coding: str, cut: int) -> None:
    """F06"""
    data = coded(bytes(range(256)) * 4, coding)

    with pytest.raises(Truncated):
        decoded(data[: max(1, len(data) - cut)], coding)


@pytest.mark.parametrize("coding", CODINGS)
def test_a_damaged_body_is_noticed(coding: str) -> None:
    """F08"""
    with pytest.raises((Damaged, Truncated)):
        decoded(b"\xff\x00this is not what it says" * 20, coding)


@pytest.mark.parametrize("coding", ["gzip", "deflate"])
def test_a_flipped_byte_is_noticed_by_the_checksum(coding: str) -> None:
    """F08"""
    data = bytearray(coded(b"hello world " * 50, coding))
    data[-3] ^= 1

    with pytest.raises(Damaged):
        decoded(bytes(data), coding)


@pytest.mark.parametrize("size", [1, 7, 65_536])
def test_gzip_may_have_several_members(size: int) -> None:
    """F01"""
    assert decoded(gzip.compress(b"one") + gzip.compress(b"two"), "gzip", size) == b"onetwo"


@pytest.mark.parametrize("rest", [b"\0" * 100, b"\r\n", b"\x1f", b"<!-- cached -->"])
@pytest.mark.parametrize("size", [1, 65_536])
def test_what_follows_gzip_and_is_none_is_passed_over(rest: bytes, size: int) -> None:
    """F08"""
    assert decoded(gzip.compress(b"page") + rest, "gzip", size) == b"page"


@pytest.mark.parametrize("size", [1, 65_536])
def test_zstd_may_have_several_frames(size: int) -> None:
    """F01"""
    frames = zstd.compress(b"one") + zstd.compress(b"two")

    assert decoded(frames, "zstd", size) == b"onetwo"


def test_a_window_larger_than_the_standard_allows_is_refused() -> None:
    """F01: the sender does not choose how much memory we take."""
    wide: dict[int, int] = {
        zstd.CompressionParameter.window_log: 27,
        zstd.CompressionParameter.enable_long_distance_matching: 1,
    }
    maker = zstd.ZstdCompressor(options=wide)
    data = maker.compress(b"x") + maker.flush()

    with pytest.raises(Damaged):
        decoded(data, "zstd")


@pytest.mark.parametrize("coding", ["gzip", "gzip members", "deflate", "br", "zstd"])
def test_no_step_of_a_bomb_is_large(coding: str) -> None:
    """F01"""
    data = bomb(coding, 1 << 26).body
    assert isinstance(data, bytes)
    inner = decoder(coding.split()[0])

    steps = [len(out) for piece in pieces(data, 65_536) for out in inner.feed(piece)]

    assert sum(steps) == 1 << 26
    assert max(steps) <= LARGEST_STEP


def test_a_bomb_within_a_bomb_is_no_larger_a_step() -> None:
    """F01"""
    data = bomb("gzip", 1 << 28).body
    assert isinstance(data, bytes)
    inner = decoder_of("gzip, gzip")
    assert inner is not None

    first = [len(out) for out, _ in zip(inner.feed(gzip.compress(data)), range(20), strict=False)]

    assert max(first) <= LARGEST_STEP


def test_raw_and_wrapped_deflate_are_told_apart() -> None:
    """F08"""
    body = b"told apart " * 10

    assert decoded(zlib.compress(body), "deflate", 1) == body
    assert decoded(coded(body, "raw deflate"), "deflate", 1) == body


EMPTY = {
    "gzip": gzip.compress(b"", mtime=0),
    "zstd": bytes.fromhex("28b52ffd0058010000"),
    "skipped": bytes.fromhex("502a4d18") + bytes(4),
}
"""What one gzip member, zstd frame or skippable frame has that means nothing."""


@pytest.mark.parametrize("kind", EMPTY)
@pytest.mark.parametrize("outer", ["", ", gzip", ", deflate", ", br", ", zstd"])
def test_parts_that_mean_nothing_cost_nothing(kind: str, outer: str) -> None:
    """F01: 80 bytes of br can be 40 MB of empty gzip members, which took nine seconds."""
    coding = ("gzip" if kind == "gzip" else "zstd") + outer
    data = EMPTY[kind] * (40_000_000 // len(EMPTY[kind]) if outer else 500_000)
    data = coded(data, outer.removeprefix(", ")) if outer else data

    with cpu_within(0.5), pytest.raises(Damaged):
        decoded(data, coding)


@pytest.mark.parametrize("inner", ["gzip", "deflate", "raw deflate", "br", "zstd"])
@pytest.mark.parametrize("outer", ["gzip", "br", "zstd"])
def test_what_comes_between_two_codings_is_bounded_by_what_it_means(inner: str, outer: str) -> None:
    """F01: the outer coding makes the bytes behind the end of the inner body, too, which are never used."""
    data = coded(coded(b"page", inner) + bytes(1 << 26), outer)

    with cpu_within(0.5), pytest.raises(Damaged):
        decoded(data, f"{inner}, {outer}")


@pytest.mark.parametrize("coding", ["gzip", "zstd"])
@given(sizes=st.lists(st.integers(256, 3000), min_size=38, max_size=40))
@settings(max_examples=10)
def test_members_that_mean_something_may_be_as_many_as_they_like(coding: str, sizes: list[int]) -> None:
    """F01"""
    bodies = [bytes(size) for size in sizes] * 30

    assert decoded(b"".join(coded(body, coding) for body in bodies), coding) == b"".join(bodies)


@pytest.mark.parametrize("coding", [*CODINGS, "gzip, gzip", "gzip, br", "zstd, zstd"])
@given(seed=st.binary(max_size=40), times=st.integers(0, 200_000))
@settings(max_examples=15)
def test_no_step_takes_long(coding: str, seed: bytes, times: int) -> None:
    """F01: between two pieces there is always a chance to look at the clock."""
    inner, data, longest = decoder(coding), coded(seed * times, coding), 0.0
    begun = time.thread_time()

    for piece in inner.feed(data):
        longest = max(longest, time.thread_time() - begun)
        assert len(piece) <= LARGEST_STEP
        begun = time.thread_time()

    assert longest < 0.25 * slowness()


def test_a_body_that_does_not_shrink_may_be_coded_twice() -> None:
    """F01: what cannot be compressed is a little larger afterwards, and no attack."""
    body = random.Random(1).randbytes(2 << 20)

    assert decoded(coded(body, "gzip, gzip"), "gzip, gzip") == body
