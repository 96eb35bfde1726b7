"""Content codings undone in bounded steps, so that a bomb is noticed by its first megabytes (F01).

A decoder is fed what comes from the network and hands on what it means, a piece at a time:

    for piece in decoder.feed(chunk):
        ...                                 # at most some megabytes, whatever the chunk holds
    decoder.finish()                        # raises Truncated if the end is missing

`feed()` is lazy: whoever has seen enough stops asking, and the rest is never decoded.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from typing import Protocol

STEP = 131_072
"""Bytes that are decoded at a time, where the library lets us say so."""

ZSTD_STEP = 256
"""Bytes of zstd that are fed at a time. Its library bounds only the input; a block of 4 bytes can mean 128 KiB, so
this is at most 8 MiB a step."""

ZSTD_WINDOW = 8 * 1024 * 1024
"""The largest window that a sender may ask us to keep in memory (RFC 9659, 3)."""

MAX_CODINGS = 3
"""More codings on top of one another than this are an attack or a mistake."""

PLAIN = frozenset({"", "identity", "none", "binary", "utf-8"})
"""Codings that are none. All but the first two are mistakes that are seen, and that browsers pass over."""


class Damaged(ValueError):
    """The body is not what its Content-Encoding says."""


class Truncated(ValueError):
    """The coded body ends before its end."""


class UnknownCoding(ValueError):
    """A Content-Encoding that cannot be undone."""


class Decoder(Protocol):
    """Undoes a coding. Fed in order, to the end or until the caller has had enough."""

    def feed(self, data: bytes) -> Iterator[bytes]:
        """What `data` means, lazily, in pieces of bounded size. Raises Damaged."""
        ...

    def finish(self) -> None:
        """Check that the end has come. Raises Truncated. A body of no bytes at all is complete."""
        ...


class Gzip:
    """gzip (RFC 1952): any number of members; what follows the last and is none is passed over, as browsers do."""

    def __init__(self) -> None:
        self._member: zlib._Decompress | None = None
        self._begin = b""
        self._over = False

    def feed(self, data: bytes) -> Iterator[bytes]:
        """What `data` means. Raises Damaged."""
        while data and not self._over:
            if self._member is None:
                data = self._begin + data
                self._begin = b""
                if len(data) == 1 and data == b"\x1f":
                    self._begin = data  # the mark of a member is two bytes long
                    return
                if self._started and not data.startswith(b"\x1f\x8b"):
                    self._over = True
                    return
                self._member = zlib.decompressobj(wbits=31)
            yield from _inflate(self._member, data)
            data = b""
            if self._member.eof:
                data, self._member, self._started = self._member.unused_data, None, True

    _started = False
    """Whether a whole member has come."""

    def finish(self) -> None:
        """Check that the last member is whole. Raises Truncated."""
        if self._member is not None or (self._begin and not self._started):
            raise Truncated


class Deflate:
    """deflate: with the zlib wrapper that RFC 9110 asks for, or without it, as many servers have it."""

    def __init__(self) -> None:
        self._begin = b""
        self._inner: zlib._Decompress | None = None

    def feed(self, data: bytes) -> Iterator[bytes]:
        """What `data` means. Raises Damaged."""
        if self._inner is None:
            data = self._begin + data
            if len(data) < 2:
                self._begin = data
                return
            # RFC 1950, 2.2: method 8, and a check that makes the first two bytes a multiple of 31.
            wrapped = data[0] & 0x0F == 8 and int.from_bytes(data[:2], "big") % 31 == 0
            self._inner = zlib.decompressobj(wbits=15 if wrapped else -15)
        if not self._inner.eof:
            yield from _inflate(self._inner, data)

    def finish(self) -> None:
        """Check that the end has come. Raises Truncated."""
        if self._begin if self._inner is None else not self._inner.eof:
            raise Truncated


def _inflate(inner: zlib._Decompress, data: bytes) -> Iterator[bytes]:
    while not inner.eof:
        try:
            piece = inner.decompress(data, STEP)
        except zlib.error as error:
            raise Damaged(str(error)) from None
        data = inner.unconsumed_tail
        if piece:
            yield piece  # and once more even if all input is taken: a full step can leave output behind
        elif not data:
            return


class Brotli:
    """br (RFC 7932)."""

    def __init__(self) -> None:
        import brotli  # type: ignore[import-untyped]  # only for those who are sent it

        self._inner = brotli.Decompressor()
        self._error: type[Exception] = brotli.error
        self._fed = False

    def feed(self, data: bytes) -> Iterator[bytes]:
        """What `data` means. Raises Damaged."""
        self._fed = self._fed or bool(data)
        while not self._inner.is_finished():
            try:
                piece = self._inner.process(data, output_buffer_limit=STEP)
            except self._error as error:
                raise Damaged(str(error)) from None
            if not piece and self._inner.can_accept_more_data():
                return
            data = b""  # kept inside; asked again with nothing until nothing more comes out
            yield piece

    def finish(self) -> None:
        """Check that the end has come. Raises Truncated."""
        if self._fed and not self._inner.is_finished():
            raise Truncated


class Zstd:
    """zstd (RFC 8878): any number of frames."""

    def __init__(self) -> None:
        import zstandard  # only for those who are sent it

        self._library = zstandard.ZstdDecompressor(max_window_size=ZSTD_WINDOW)
        self._error = zstandard.ZstdError
        self._frame = self._library.decompressobj(write_size=STEP)
        self._inside = False

    def feed(self, data: bytes) -> Iterator[bytes]:
        """What `data` means. Raises Damaged."""
        for start in range(0, len(data), ZSTD_STEP):
            fed = data[start : start + ZSTD_STEP]
            while fed:
                try:
                    piece = self._frame.decompress(fed)
                except self._error as error:
                    raise Damaged(str(error)) from None
                self._inside, fed = True, b""
                if self._frame.eof:
                    fed, self._inside = self._frame.unused_data, False
                    self._frame = self._library.decompressobj(write_size=STEP)
                if piece:
                    yield piece

    def finish(self) -> None:
        """Check that the last frame is whole. Raises Truncated."""
        if self._inside:
            raise Truncated


class Chain:
    """Several codings, undone one after the other; each step of one is taken through all the others."""

    def __init__(self, first: Decoder, then: Decoder) -> None:
        self._first = first
        self._then = then

    def feed(self, data: bytes) -> Iterator[bytes]:
        """What `data` means. Raises Damaged."""
        for piece in self._first.feed(data):
            yield from self._then.feed(piece)

    def finish(self) -> None:
        """Check that all ends have come. Raises Truncated."""
        self._first.finish()
        self._then.finish()


_DECODERS: dict[str, Callable[[], Decoder]] = {
    "gzip": Gzip,
    "x-gzip": Gzip,  # RFC 9110, 8.4.1.3
    "deflate": Deflate,
    "br": Brotli,
    "zstd": Zstd,
}


def decoder_of(content_encoding: str | None, transfer_encoding: str | None = None) -> Decoder | None:
    """A fresh decoder for these fields, or None if there is nothing to undo but chunks. Raises UnknownCoding."""
    if transfer_encoding == "chunked":
        transfer_encoding = None
    if content_encoding is None and transfer_encoding is None:
        return None  # as of most
    codings = [] if content_encoding is None else _listed(content_encoding)
    if transfer_encoding is not None:
        transfer = _listed(transfer_encoding)
        while transfer and transfer[-1] == "chunked":  # the parser has undone it, as the last only
            transfer.pop()
        codings += transfer
    if len(codings) > MAX_CODINGS:
        raise UnknownCoding(f"{len(codings)} codings on top of one another")
    chain: Decoder | None = None
    for coding in codings:
        make = _DECODERS.get(coding)
        if make is None:
            raise UnknownCoding(coding[:50])
        # Listed in the order in which they were applied (RFC 9110, 8.4): the last is undone first.
        chain = make() if chain is None else Chain(make(), chain)
    return chain


def _listed(codings: str) -> list[str]:
    return [each for each in map(str.strip, codings.lower().split(",")) if each not in PLAIN]
