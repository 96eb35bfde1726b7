"""Body of a response: read within limits, which stop decompression bombs, and written to a sink or returned whole."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

from curtsy.core.errors import Reason
from curtsy.core.policy import Policy
from curtsy.core.request import Headers
from curtsy.http.connection import STOOD_STILL, Connection
from curtsy.http.decoding import Damaged, Decoder, Truncated, WastefulBody
from curtsy.http.response import ReplyError

SLICES = 512
"""Number of slices per chunk of an encoded robots.txt, so that the part before damaged data is used (C21)."""

TURN = 0.01
"""Seconds of decoding after which other tasks run and the deadline is checked."""


_DEFAULT = Policy()


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one request. The settings among them are declared by `Policy`."""

    timeout: float = _DEFAULT.timeout
    """Seconds for the whole request, from connect to the last byte; for a stream, to the end of the response's head."""

    connect_timeout: float = _DEFAULT.connect_timeout
    """Seconds for name lookup, connection and TLS handshake together."""

    max_body: int | None = _DEFAULT.max_body
    """Bytes of body, both before and after decompression; None for no limit."""

    max_head: int = _DEFAULT.max_head
    """Bytes of head, interim responses included."""

    min_speed: float = _DEFAULT.min_speed
    """Bytes per second, averaged over each `speed_window`, below which the body is abandoned; 0 for no limit."""

    speed_window: float = 10.0
    allow_private: bool = _DEFAULT.allow_private
    """True if private, loopback, link-local and reserved addresses may be connected to."""

    cut: bool = False
    """True if a body above `max_body` is truncated there instead of refused. The rest is not read."""

    counts_waiting: bool = False
    """True if `timeout` includes the wait for a free connection. Otherwise it starts after that wait."""

    patience: float | None = None
    """Seconds for that wait and the response together, if more than `timeout`; None for no limit."""

    @staticmethod
    def of(policy: Policy) -> Limits:
        """Return the limits of a policy."""
        return _limits_of(policy)


@lru_cache(maxsize=1024)
def _limits_of(policy: Policy) -> Limits:
    return Limits(
        timeout=policy.timeout,
        connect_timeout=policy.connect_timeout,
        max_body=policy.max_body,
        max_head=policy.max_head,
        min_speed=policy.min_speed,
        allow_private=policy.allow_private,
    )


class Sink(Protocol):
    """Destination of a streamed body."""

    @property
    def decodes(self) -> bool:
        """Return whether the body is to be decoded; otherwise it is written as the server sent it."""
        ...

    def begin(self, status: int, headers: Headers) -> bool:
        """Return whether the sink takes the body; otherwise the body becomes part of the reply."""
        ...

    async def write(self, piece: bytes) -> None:
        """Write the next piece. An exception ends the exchange and is raised by `stream()`."""
        ...


def too_large(limits: Limits, how: str = "") -> ReplyError:
    """Return the error for a body above `max_body`; `how` says more about its size."""
    return ReplyError(Reason.TOO_LARGE, f"its body is larger than {limits.max_body:,} bytes{how}")


class Body:
    """Body that is being read."""

    def __init__(self, limits: Limits, deadline: float, sink: Sink | None, decoder: Decoder | None) -> None:
        self._limits = limits
        self._sink = sink
        self._decoder = decoder
        self._deadline = deadline if sink is None else math.inf
        self._clock: _Clock | None = None
        """Created on the first wait or decoding, because most bodies are already complete."""

        self._size = 0
        """Bytes after decoding."""

        self.wire_bytes = 0
        """Bytes received from the network."""

        self.is_cut = False
        """True if the rest was not read."""

        self.parts: list[bytes] = []
        """Decoded pieces that did not go to a sink."""

    async def read(self, connection: Connection) -> bytes:
        """Read to the end or to the limit. Raises ReplyError, and exceptions of the sink."""
        decoder = self._decoder
        try:
            while not self.is_cut:
                # Received data needs no clock, and usually it is the whole body.
                chunk = connection.take()
                if not chunk:
                    if connection.response.is_complete:
                        break
                    chunk = await self._timed().read(connection, self.wire_bytes)
                    if not chunk:
                        break
                await self._take(chunk)
            if decoder is not None and not self.is_cut:
                decoder.finish()
        except WastefulBody as error:
            if not self._limits.cut:
                raise ReplyError(Reason.TOO_LARGE, f"the body is a decompression bomb: {error}") from None
            self.is_cut = True
        except Damaged as error:
            raise ReplyError(Reason.BAD_RESPONSE, f"the body cannot be decoded: {error}") from None
        except Truncated:
            why = f"the coded body breaks off after {self.wire_bytes:,} bytes"
            raise ReplyError(Reason.INCOMPLETE, why) from None
        return self.parts[0] if len(self.parts) == 1 else b"".join(self.parts)

    def _timed(self) -> _Clock:
        if self._clock is None:
            self._clock = _Clock(self._limits, self._deadline)
        return self._clock

    async def _take(self, chunk: bytes) -> None:
        """Decode a chunk, and keep it or write it to the sink."""
        cap, sink, decoder = self._limits.max_body, self._sink, self._decoder
        clock = None if decoder is None else self._timed()
        self.wire_bytes += len(chunk)
        if cap is not None and self.wire_bytes > cap and not self._limits.cut:
            raise too_large(self._limits)
        for piece in (chunk,) if decoder is None else _decoded(chunk, decoder, self._limits.cut):
            if clock is not None and clock.is_turn_due():
                await clock.turn(self.wire_bytes)
            self._size += len(piece)
            if cap is not None and self._size > cap:
                if not self._limits.cut:
                    raise too_large(self._limits, f" after decompression ({self.wire_bytes:,} bytes were received)")
                self.is_cut = True
                self.parts.append(piece[: cap - self._size])
                return
            if piece and sink is None:
                self.parts.append(piece)
            elif piece and sink is not None:
                await self._timed().aside(sink.write(piece))
        # Limits an encoded body that decodes to little or nothing.
        self.is_cut = cap is not None and self.wire_bytes > cap


def _decoded(chunk: bytes, decoder: Decoder, in_slices: bool) -> Iterator[bytes]:
    """Decode a chunk. With `in_slices`, yield also the data before damage, which libraries discard (C21)."""
    step = max(1, len(chunk) // SLICES) if in_slices else max(1, len(chunk))
    for start in range(0, len(chunk), step):
        yield from decoder.feed(chunk[start : start + step])


class _Clock:
    """Clock of one body: its deadline, and the minimum of bytes in each speed window."""

    def __init__(self, limits: Limits, deadline: float) -> None:
        self._limits = limits
        self._deadline = deadline
        self._least = limits.min_speed * limits.speed_window
        self._came = 0
        self._loop = asyncio.get_running_loop()
        self._turn_at = self._loop.time()
        """Loop time at which other tasks last ran."""

        self._ends = self._turn_at + limits.speed_window if self._least else math.inf
        """Loop time at which the speed window ends."""

    async def read(self, connection: Connection, before: int) -> bytes:
        """Return the next bytes after the `before` first ones; empty at the end. Raises ReplyError."""
        loop = self._loop
        begun = loop.time()
        while True:
            until = min(self._ends, self._deadline)
            chunk = await connection.read(until)
            if chunk == b"":
                return chunk
            now = loop.time()
            if now - begun > TURN:  # a shorter wait may have returned buffered data without running other tasks
                self._turn_at = now
            if now - until >= STOOD_STILL:  # this program was suspended: data received meanwhile is still unread
                late = now - until + STOOD_STILL / 2
                self._deadline, self._ends = self._deadline + late, self._ends + late
            self._came += len(chunk or b"")
            self._check_deadline(now, before)
            self._check_speed(now, before)
            if chunk is not None:
                return chunk

    def _check_deadline(self, now: float, size: int) -> None:
        if now >= self._deadline:
            why = f"the body was not there within {self._limits.timeout:g} s, after {size:,} bytes of it"
            raise ReplyError(Reason.TIMEOUT, why)

    def _check_speed(self, now: float, size: int) -> None:
        if now < self._ends:
            return
        window, after = self._limits.speed_window, f"after {size:,} bytes of it"
        if not self._came:
            raise ReplyError(Reason.INCOMPLETE, f"the body fell silent for {window:g} s, {after}")
        if self._came < self._least:
            slow = f"{self._came:,} bytes of the body came in {window:g} s"
            least = f"less than {self._limits.min_speed:g} a second"
            raise ReplyError(Reason.TOO_SLOW, f"{slow}, {least}, {after}")
        self._ends, self._came = now + window, 0

    def is_turn_due(self) -> bool:
        """Return whether decoding has run for longer than `TURN`."""
        return self._loop.time() - self._turn_at > TURN

    async def turn(self, size: int) -> None:
        """Let other tasks run during decoding of a body's first `size` bytes. Raises ReplyError at the deadline."""
        begun = self._turn_at
        await asyncio.sleep(0)
        now = self._turn_at = self._loop.time()
        if now - begun >= STOOD_STILL:  # no decoding step takes so long: the program was suspended
            self._deadline += now - begun
        self._ends += now - begun
        self._check_deadline(now, size)

    async def aside(self, work: Awaitable[None]) -> None:
        """Await `work` without counting its time against the site's speed."""
        begun = self._loop.time()
        await work
        now = self._turn_at = self._loop.time()
        self._ends += now - begun
