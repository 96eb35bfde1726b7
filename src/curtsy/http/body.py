"""The body of an answer: read within its limits, decoded in steps, and given to a sink or returned whole."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections.abc import Awaitable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

import aiohttp
from aiohttp.http_exceptions import HttpProcessingError

from curtsy.core.errors import Reason
from curtsy.core.message import Headers
from curtsy.core.policy import Policy
from curtsy.http.decoding import Bomb, Damaged, Decoder, Truncated
from curtsy.http.pool import STOOD_STILL

log = logging.getLogger("curtsy")

SLICES = 512
"""Into how many slices a chunk of a coded robots.txt is cut: what comes before a damage is used (C21)."""

TURN = 0.01
"""Seconds for which a body is decoded before other tasks have a turn and the deadline is checked."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What one request may take. Seconds and bytes."""

    timeout: float = 30.0
    """The whole request, from connect to the last byte; of a stream, to the head of the answer."""

    connect_timeout: float = 5.0
    """Name, connection and TLS handshake together."""

    max_body: int | None = 10 * 1024 * 1024
    """Bytes of body, after decompression and before it; None for no limit."""

    max_head: int = 65_536
    """Bytes of head, interim answers included."""

    min_speed: float = 100.0
    """Bytes per second, over each `speed_window`, below which a body is given up; 0 for no limit."""

    speed_window: float = 10.0
    allow_private: bool = False
    """Whether private, loopback, link-local and reserved addresses may be connected to."""

    cut: bool = False
    """Whether a body above `max_body` is cut there, and the rest not read, instead of being refused."""

    counts_waiting: bool = False
    """Whether `timeout` is the caller's patience, in which one of our own connections must become free, too.
    The site's time begins when there is one."""

    patience: float | None = None
    """Seconds for that wait and the answer together, where they are more than `timeout`; None for any number."""

    @staticmethod
    def of(policy: Policy) -> Limits:
        """The limits that a policy sets."""
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
    """Where a streamed body goes."""

    @property
    def decodes(self) -> bool:
        """Return whether the body is decoded; if not, it comes as the server has sent it."""
        ...

    def begin(self, status: int, headers: Headers) -> bool:
        """A body comes: whether it is wanted. If not, it is read as any other, and is the body of the reply."""
        ...

    async def write(self, piece: bytes) -> None:
        """Take the next piece. What it raises ends the exchange and comes out of `stream()`."""
        ...


class Unreadable(Exception):
    """The body cannot be used: why, as a reason and in words."""

    def __init__(self, reason: Reason, detail: str) -> None:
        self.reason = reason
        self.detail = detail


def too_large(limits: Limits, how: str) -> Unreadable:
    """The error for a body above `max_body`."""
    return Unreadable(Reason.TOO_LARGE, f"the body is larger than {limits.max_body:,} bytes: {how}")


class Body:
    """One body, as far as it has come."""

    def __init__(self, limits: Limits, deadline: float, sink: Sink | None, decoder: Decoder | None) -> None:
        self._limits = limits
        self._sink = sink
        self._decoder = decoder
        self._deadline = deadline if sink is None else math.inf
        self._clock: _Clock | None = None
        """Made when the first byte is waited for or decoded: most bodies are there at once."""

        self._size = 0
        """Bytes that were decoded."""

        self.wire_bytes = 0
        """Bytes that came over the network."""

        self.is_cut = False
        """Whether the rest was not read."""

        self.parts: list[bytes] = []
        """The decoded bytes that no sink took."""

    async def read(self, content: aiohttp.StreamReader, announced: str | None) -> bytes:
        """Read to the end, or to where it is cut. Raises Unreadable, and what the sink raises."""
        decoder = self._decoder
        try:
            while not self.is_cut:
                is_all = content.is_eof()
                # What has come already needs no clock, and usually that is all.
                chunk = content.read_nowait(-1) if is_all else await self._next(content, announced)
                if not chunk:
                    break
                await self._take(chunk)
                if is_all:
                    break
            if decoder is not None and not self.is_cut:
                decoder.finish()
        except Bomb as error:
            if not self._limits.cut:
                raise Unreadable(Reason.TOO_LARGE, f"the body is a decompression bomb: {error}") from None
            self.is_cut = True
        except Damaged as error:
            raise Unreadable(Reason.BAD_RESPONSE, f"the body cannot be decoded: {error}") from None
        except Truncated:
            why = f"the coded body breaks off after {self.wire_bytes:,} bytes"
            raise Unreadable(Reason.INCOMPLETE, why) from None
        return self.parts[0] if len(self.parts) == 1 else b"".join(self.parts)

    async def _next(self, content: aiohttp.StreamReader, announced: str | None) -> bytes:
        """The next bytes, or none at the end. Raises Unreadable."""
        try:
            return await self._timed().read(content)
        except Unreadable as error:
            raise Unreadable(error.reason, f"{error.detail}, after {self.wire_bytes:,} bytes of it") from None
        except HttpProcessingError as error:
            await self._salvage(content)
            why = f"the body's framing is broken: {first_line(error.message)}"
            raise Unreadable(Reason.BAD_RESPONSE, why) from None
        except Exception as error:
            await self._salvage(content)
            if not isinstance(error, aiohttp.ClientError | OSError | RuntimeError):
                log.warning("an error that was not foreseen ended a body", exc_info=error)
            whole = f" of {announced[:20]}" if announced else ""
            why = f"the body broke off after {self.wire_bytes:,}{whole} bytes"
            raise Unreadable(Reason.INCOMPLETE, why) from None

    async def _salvage(self, content: aiohttp.StreamReader) -> None:
        """Take what came before an error and was not read yet, if a part is useful: aiohttp raises the error first."""
        if self._limits.cut:
            with contextlib.suppress(Damaged, Unreadable):
                await self._take(content._read_nowait(-1))

    def _timed(self) -> _Clock:
        if self._clock is None:
            self._clock = _Clock(self._limits, self._deadline)
        return self._clock

    async def _take(self, chunk: bytes) -> None:
        """Decode what came, and keep it or give it to the sink."""
        cap, sink, decoder = self._limits.max_body, self._sink, self._decoder
        clock = None if decoder is None else self._timed()
        self.wire_bytes += len(chunk)
        if cap is not None and self.wire_bytes > cap and not self._limits.cut:
            raise too_large(self._limits, "more than that came")
        for piece in (chunk,) if decoder is None else _decoded(chunk, decoder, self._limits.cut):
            if clock is not None and clock.is_turn_due():
                await clock.turn()
            self._size += len(piece)
            if cap is not None and self._size > cap:
                if not self._limits.cut:
                    raise too_large(self._limits, f"{self.wire_bytes:,} bytes were more than that when decoded")
                self.is_cut = True
                self.parts.append(piece[: cap - self._size])
                return
            if piece and sink is None:
                self.parts.append(piece)
            elif piece and sink is not None:
                await self._timed().aside(sink.write(piece))
        # A coded body that means little may not go on for ever, either.
        self.is_cut = cap is not None and self.wire_bytes > cap


def _decoded(chunk: bytes, decoder: Decoder, in_slices: bool) -> Iterator[bytes]:
    """Decode a chunk; with `in_slices` also what comes before a damage in it, which a library keeps to itself (C21)."""
    step = max(1, len(chunk) // SLICES) if in_slices else max(1, len(chunk))
    for start in range(0, len(chunk), step):
        yield from decoder.feed(chunk[start : start + step])


class _Clock:
    """The clock of one body: its deadline, and the bytes that must come in each window of time."""

    def __init__(self, limits: Limits, deadline: float) -> None:
        self._limits = limits
        self._deadline = deadline
        self._least = limits.min_speed * limits.speed_window
        self._ends = 0.0 if self._least else math.inf
        self._came = 0
        self._loop = asyncio.get_running_loop()
        self._turn_at = self._loop.time()
        """When other tasks last had a turn."""

    async def read(self, content: aiohttp.StreamReader) -> bytes:
        """The next bytes, or none at the end. Raises Unreadable."""
        loop = self._loop
        begun = loop.time()
        if not self._ends:
            self._ends = begun + self._limits.speed_window
        while True:
            until = min(self._ends, self._deadline)
            chunk = None
            try:
                async with asyncio.timeout_at(until if until < math.inf else None):
                    chunk = await content.readany()
            except TimeoutError:
                pass
            if chunk == b"":
                return chunk
            now = loop.time()
            if now - begun > TURN:  # else these bytes may have been there already, so that no other task has run
                self._turn_at = now
            if now - until >= STOOD_STILL:  # it was this program that did: what came meanwhile is still to be read
                late = now - until + STOOD_STILL / 2
                self._deadline, self._ends = self._deadline + late, self._ends + late
            self._check_deadline(now)
            self._came += len(chunk or b"")
            if now >= self._ends:
                if not self._came:
                    raise Unreadable(Reason.INCOMPLETE, f"the body fell silent for {self._limits.speed_window:g} s")
                if self._came < self._least:
                    raise Unreadable(
                        Reason.TOO_SLOW,
                        f"{self._came:,} bytes of the body came in {self._limits.speed_window:g} s, "
                        f"less than {self._limits.min_speed:g} a second",
                    )
                self._ends, self._came = now + self._limits.speed_window, 0
            if chunk is not None:
                return chunk

    def _check_deadline(self, now: float) -> None:
        if now >= self._deadline:
            raise Unreadable(Reason.TIMEOUT, f"the body was not there within {self._limits.timeout:g} s")

    def is_turn_due(self) -> bool:
        """Return whether a body has been decoded for long enough."""
        return self._loop.time() - self._turn_at > TURN

    async def turn(self) -> None:
        """Let other tasks run while a body is decoded. Raises Unreadable at the deadline."""
        begun = self._turn_at
        await asyncio.sleep(0)
        now = self._turn_at = self._loop.time()
        if now - begun >= STOOD_STILL:  # no step of a decoder takes so long: the program stood still
            self._deadline += now - begun
        self._ends += now - begun
        self._check_deadline(now)

    async def aside(self, work: Awaitable[None]) -> None:
        """Do something that is not the site's fault: the time it takes is not counted."""
        begun = self._loop.time()
        await work
        now = self._turn_at = self._loop.time()
        self._ends += now - begun


def first_line(text: str) -> str:
    """The first line of an error's text."""
    return text.strip().partition("\n")[0].rstrip(": ")[:200]
