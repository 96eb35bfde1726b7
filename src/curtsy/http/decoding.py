"""Content decoding in bounded steps, so that `http/body.py` can stop a decompression bomb at `max_body` (F01).

A decoder is fed the received data and yields decoded pieces:

    for piece in decoder.feed(chunk):
        ...                                 # at most some megabytes, possibly empty, after some milliseconds of work
    decoder.finish()                        # raises Truncated if the end is missing

`feed()` is lazy: if the caller stops at a piece, the rest is never decoded. An empty piece means that input was decoded
without output. It lets the caller check the clock and run other tasks.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Protocol

STEP = 131_072
"""Bytes of output per step, where the library supports a limit."""

SLICE = 16_384
"""Bytes of input per call of a library. zlib copies the rest of its input at the end of each gzip member."""

ZSTD_WINDOW_LOG = 23
"""Binary logarithm of the largest zstd window that a sender may require: 8 MiB (RFC 9659, 3)."""

MAX_CODINGS = 2
"""Largest number of nested codings. More are an attack or a mistake."""

FREE_MEMBERS = 1000
LEAST_MEMBER = 256
"""Number of gzip members or zstd frames that is always accepted, and average bytes of output required of the others.

An empty member has 20 bytes and costs as much time as some kilobytes of text.
"""

OVERHEAD = 1024 * 1024
"""Bytes by which the output of one coding may exceed twice the output of the next coding.

An encoded body is hardly ever larger than the decoded one. So the limit on the last output limits the whole chain.
"""

PLAIN = frozenset({"", "identity", "none", "binary", "utf-8"})
"""Codings without effect. All but the first two are mistakes seen in practice, which browsers ignore."""


class Damaged(ValueError):
    """Body that does not match its Content-Encoding."""


class WastefulBody(Damaged):
    """Body that costs far more work than its output justifies."""


class Truncated(ValueError):
    """Encoded body whose end is missing."""


class UnknownCoding(ValueError):
    """Content-Encoding that is not supported."""


class Decoder(Protocol):
    """Decoder of one coding. It is fed in order, to the end or until the caller stops."""

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Yield the decoded data lazily, in pieces of bounded size and work; some are empty. Raises Damaged."""
        ...

    def finish(self) -> None:
        """Check that the body is complete. Raises Truncated. An empty body is complete."""
        ...


class _Members:
    """Counter of a body's members. Too many with little output are an attack."""

    def __init__(self) -> None:
        self._count = 0
        self._made = 0

    def made(self, size: int) -> None:
        """Count bytes of output."""
        self._made += size

    def end(self) -> None:
        """Count a member. Raises WastefulBody if there are too many for the output."""
        self._count += 1
        if self._count > FREE_MEMBERS + self._made // LEAST_MEMBER:
            raise WastefulBody(f"{self._count:,} members have only {self._made:,} bytes in them")

    def __bool__(self) -> bool:
        """Return whether a complete member was received."""
        return self._count > 0


class _Inflater(Protocol):
    """Object that `zlib.decompressobj` returns; zlib has no public name for its type."""

    @property
    def eof(self) -> bool: ...

    @property
    def unused_data(self) -> bytes: ...

    @property
    def unconsumed_tail(self) -> bytes: ...

    def decompress(self, data: bytes, /, max_length: int = 0) -> bytes: ...


class Gzip:
    """Decoder of gzip (RFC 1952) with any number of members. Ignores other data after the last, as browsers do."""

    def __init__(self) -> None:
        self._member: _Inflater | None = None
        self._members = _Members()
        self._begin = b""
        self._over = False

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Yield the decoded data. Raises Damaged."""
        for part in _slices(data, SLICE):
            if self._over:
                return
            yield from self._slice(part)
            yield b""

    def _slice(self, data: bytes) -> Iterator[bytes]:
        while data and not self._over:
            if self._member is None:
                data = self._begin + data
                self._begin = b""
                if len(data) == 1 and data == b"\x1f":
                    self._begin = data  # the magic number has two bytes
                    return
                if self._members and not data.startswith(b"\x1f\x8b"):
                    self._over = True
                    return
                self._member = zlib.decompressobj(wbits=31)
            for piece in _inflate(self._member, data):
                self._members.made(len(piece))
                yield piece
            data = b""
            if self._member.eof:
                data, self._member = self._member.unused_data, None
                self._members.end()

    def finish(self) -> None:
        """Check that the last member is complete. Raises Truncated."""
        if self._member is not None or (self._begin and not self._members):
            raise Truncated


class Deflate:
    """Decoder of deflate: with the zlib wrapper that RFC 9110 requires, or without it, as many servers send it."""

    def __init__(self) -> None:
        self._begin = b""
        self._inner: _Inflater | None = None

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Yield the decoded data. Raises Damaged."""
        if self._inner is None:
            data = self._begin + data
            if len(data) < 2:
                self._begin = data
                return
            # RFC 1950, 2.2: method 8, and a check that makes the first two bytes a multiple of 31.
            wrapped = data[0] & 0x0F == 8 and int.from_bytes(data[:2], "big") % 31 == 0
            self._inner = zlib.decompressobj(wbits=15 if wrapped else -15)
        for part in _slices(data, SLICE):
            if self._inner.eof:
                return
            yield from _inflate(self._inner, part)
            yield b""

    def finish(self) -> None:
        """Check that the body is complete. Raises Truncated."""
        if self._begin if self._inner is None else not self._inner.eof:
            raise Truncated


def _slices(data: bytes, size: int) -> Iterator[bytes]:
    if len(data) <= size:
        yield data
        return
    for start in range(0, len(data), size):
        yield data[start : start + size]


def _inflate(inner: _Inflater, data: bytes) -> Iterator[bytes]:
    while not inner.eof:
        try:
            piece = inner.decompress(data, STEP)
        except zlib.error as error:
            raise Damaged(str(error)) from None
        data = inner.unconsumed_tail
        if piece:
            yield piece  # then call it again even without input: a full step can leave output behind
        elif not data:
            return


class Brotli:
    """Decoder of br (RFC 7932)."""

    def __init__(self) -> None:
        import brotli  # type: ignore[import-untyped]  # loaded only if needed

        self._inner = brotli.Decompressor()
        self._error: type[Exception] = brotli.error
        self._fed = False

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Yield the decoded data. Raises Damaged."""
        self._fed = self._fed or bool(data)
        for part in _slices(data, SLICE):
            yield from self._slice(part)
            yield b""

    def _slice(self, data: bytes) -> Iterator[bytes]:
        while not self._inner.is_finished():
            try:
                piece = self._inner.process(data, output_buffer_limit=STEP)
            except self._error as error:
                raise Damaged(str(error)) from None
            if not piece and self._inner.can_accept_more_data():
                return
            data = b""  # the library holds the rest; call it without input until it yields nothing
            yield piece

    def finish(self) -> None:
        """Check that the body is complete. Raises Truncated."""
        if self._fed and not self._inner.is_finished():
            raise Truncated


class Zstd:
    """Decoder of zstd (RFC 8878) with any number of frames."""

    def __init__(self) -> None:
        from curtsy.system.zstd import zstd  # loaded only if needed

        self._error = zstd.ZstdError
        options: dict[int, int] = {zstd.DecompressionParameter.window_log_max: ZSTD_WINDOW_LOG}
        self._begin = partial(zstd.ZstdDecompressor, options=options)
        self._frame = self._begin()
        self._frames = _Members()
        self._inside = False

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Yield the decoded data. Raises Damaged."""
        for part in _slices(data, SLICE):
            yield from self._slice(part)
            yield b""

    def _slice(self, data: bytes) -> Iterator[bytes]:
        while data or not self._frame.needs_input:  # the library holds the rest of the input
            try:
                piece = self._frame.decompress(data, STEP)
            except self._error as error:
                raise Damaged(str(error)) from None
            self._inside, data = True, b""
            self._frames.made(len(piece))
            if self._frame.eof:
                data, self._inside = self._frame.unused_data, False
                self._frames.end()
                self._frame = self._begin()
            if piece:
                yield piece

    def finish(self) -> None:
        """Check that the last frame is complete. Raises Truncated."""
        if self._inside:
            raise Truncated


class Chain:
    """Two decoders in sequence; each step of the first goes through the second."""

    def __init__(self, first: Decoder, then: Decoder) -> None:
        self._first = first
        self._then = then
        self._between = 0
        """Bytes of output of the first decoder."""
        self._made = 0
        """Bytes of output of the second decoder."""

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Yield the decoded data. Raises Damaged."""
        for piece in self._first.feed(data):
            self._between += len(piece)
            for part in self._then.feed(piece):
                self._made += len(part)
                yield part
            if self._between > OVERHEAD + 2 * self._made:
                raise WastefulBody(f"{self._between:,} bytes in the inner coding mean only {self._made:,}")
            yield b""

    def finish(self) -> None:
        """Check that both codings are complete. Raises Truncated."""
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
    """Return a new decoder for these header values; None if only `chunked` applies. Raises UnknownCoding."""
    if transfer_encoding == "chunked":
        transfer_encoding = None
    if content_encoding is None and transfer_encoding is None:
        return None
    codings = [] if content_encoding is None else _listed(content_encoding)
    if transfer_encoding is not None:
        transfer = _listed(transfer_encoding)
        while transfer and transfer[-1] == "chunked":  # the parser decodes only a final `chunked`
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
