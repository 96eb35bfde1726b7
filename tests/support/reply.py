"""What the test site sends: a `Reply`, good or broken in every way, and functions that name the common faults."""

from __future__ import annotations

import gzip
import itertools
import struct
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, reduce
from typing import Any, Literal

from curtsy.system.zstd import zstd

PIECE = 65_536
"""Bytes written at a time. Also the size of the kernel's send buffer, so that `taken` means taken."""

Body = bytes | str | Callable[[], Iterable[bytes]]
Fields = Mapping[str, str] | Sequence[tuple[str, str]]
End = Literal["keep", "close", "reset", "hang"]


@dataclass(frozen=True, slots=True)
class Reply:
    """What is sent for one request."""

    status: int = 200
    body: Body = b""
    """Bytes, text, or a function that makes an iterable of bytes, which may be endless."""

    headers: Fields = ()
    reason: str | None = None
    version: str = "1.1"

    wait: float = 0.0
    """Seconds before the head."""

    wait_body: float = 0.0
    """Seconds between head and body."""

    drip: tuple[int, float] | None = None
    """How many bytes of body go at a time, and the seconds before each of these pieces, or between those of `raw`."""

    chunked: bool = False
    length: int | str | None = "true"
    """The Content-Length announced: the true one, a lie, or None for none, and a body that ends with the connection."""

    stop_after: int | None = None
    """Bytes of body after which `end` comes; None for all."""

    end: End = "keep"
    """What becomes of the connection: kept for the next request, closed, reset, or held without another word."""

    raw: bytes | Callable[[], Iterable[bytes]] | None = None
    """Sent exactly so, instead of head and body."""


def redirect(to: str, status: int = 302) -> Reply:
    """Somewhere else."""
    return Reply(status, headers={"Location": to})


def later(after: float | str | None = None, status: int = 429) -> Reply:
    """Not now; perhaps with a Retry-After."""
    return Reply(status, "later", {} if after is None else {"Retry-After": str(after)})


def hang() -> Reply:
    """Never a byte of an answer."""
    return Reply(raw=b"", end="hang")


def reset() -> Reply:
    """A TCP reset instead of an answer."""
    return Reply(raw=b"", end="reset")


def garbage(raw: bytes, end: End = "close") -> Reply:
    """Exactly these bytes."""
    return Reply(raw=raw, end=end)


def cut_short(body: bytes, after: int, end: End = "close", *, chunked: bool = False) -> Reply:
    """The first bytes of a body, then the end."""
    return Reply(body=body, stop_after=after, end=end, chunked=chunked)


def dripping(body: bytes, every: float, size: int = 1) -> Reply:
    """A body in pieces of `size` bytes, one each `every` seconds."""
    return Reply(body=body, drip=(size, every))


def endless(piece: bytes = b"x" * PIECE, *, chunked: bool = True) -> Reply:
    """A body that never ends."""
    return Reply(body=lambda: itertools.repeat(piece), chunked=chunked, length=None)


def encoded(body: bytes, coding: str, **more: Any) -> Reply:
    """A body in one or more codings (`gzip`, `deflate`, `raw deflate`, `br`, `zstd`; "gzip, br" applies both)."""
    for each in coding.split(","):
        body = _encode(body, each.strip())
    return Reply(body=body, headers={"Content-Encoding": coding.replace("raw ", "")}, **more)


def _encode(body: bytes, coding: str) -> bytes:
    match coding:
        case "gzip" | "x-gzip":
            return gzip.compress(body)
        case "deflate":
            return zlib.compress(body)
        case "raw deflate":
            maker = zlib.compressobj(wbits=-15)
            return maker.compress(body) + maker.flush()
        case "br":
            import brotli  # type: ignore[import-untyped]

            packed = brotli.compress(body, quality=4)
            assert isinstance(packed, bytes)
            return packed
        case "zstd":
            return zstd.compress(body)
    raise ValueError(f"coding = {coding!r} is none that the site knows.")


def bomb(coding: str, size: int = 1 << 30) -> Reply:
    """A small body that means `size` zeros (`gzip`, `gzip members`, `deflate`, `br`, `zstd`)."""
    return Reply(body=_bomb(coding, size), headers={"Content-Encoding": coding.split()[0]})


@lru_cache
def _bomb(coding: str, size: int) -> bytes:
    block = b"\0" * (1 << 20)
    count = size // len(block)
    match coding:
        case "gzip members":
            return gzip.compress(block, mtime=0) * count
        case "gzip" | "deflate":
            # After a full flush the same zeros are the same bytes: made once, said `count` times.
            maker = zlib.compressobj(9, wbits=-15)
            first = maker.compress(block) + maker.flush(zlib.Z_FULL_FLUSH)
            again = maker.compress(block) + maker.flush(zlib.Z_FULL_FLUSH)
            deflated = first + again * (count - 1) + maker.flush()
            if coding == "gzip":
                crc = reduce(lambda so_far, _: zlib.crc32(block, so_far), range(count), 0)
                return gzip.compress(b"")[:10] + deflated + struct.pack("<II", crc, size)
            adler = reduce(lambda so_far, _: zlib.adler32(block, so_far), range(count), 1)
            return b"\x78\xda" + deflated + struct.pack(">I", adler)
        case "br":
            import brotli

            maker_br = brotli.Compressor(quality=3, lgwin=24)
            return b"".join([maker_br.process(block) for _ in range(count)]) + bytes(maker_br.finish())
        case "zstd":
            maker_zstd = zstd.ZstdCompressor()
            return b"".join([maker_zstd.compress(block) for _ in range(count)]) + maker_zstd.flush()
    raise ValueError(f"coding = {coding!r} is none that the site makes bombs of.")
