"""Events of a fetch, reported to a listener.

The client's store and sender are wrapped, because every step passes through one of them. The store's answers explain
waits; the sender's requests are those sent.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from curtsy.core.decision import Wait
from curtsy.core.message import Headers, Now, Reply, Request, whole_number
from curtsy.core.rules import Busy, Claimed, Known
from curtsy.http.sender import Limits, Sender, Sink
from curtsy.stores import Answer, AsyncStore, Step

_RANGE = re.compile(r"bytes (\d{1,18})-\d{1,18}/(\d{1,18}|\*)", re.ASCII)


@dataclass(frozen=True, slots=True)
class Waiting:
    """A request must wait."""

    domain: str
    """Host that is not ready; `global` for the rate of all hosts together."""

    seconds: float
    because: str


@dataclass(frozen=True, slots=True)
class RulesWanted:
    """The robots.txt of an origin is unknown or expired, and is requested first."""

    origin: str
    is_renewal: bool
    """True if an older copy is known."""


@dataclass(frozen=True, slots=True)
class RulesAwaited:
    """Another process requests the robots.txt of an origin."""

    origin: str


@dataclass(frozen=True, slots=True)
class RulesKnown:
    """The robots.txt of an origin is known."""

    origin: str
    seconds: float
    """Seconds until it must be requested again."""

    is_remembered: bool
    """True if it was cached."""

    why_not: str
    """Error of the last request for it; empty if that succeeded."""


@dataclass(frozen=True, slots=True)
class Asking:
    """A request is sent."""

    request: Request


@dataclass(frozen=True, slots=True)
class Receiving:
    """A part of a download has arrived."""

    size: int
    """Bytes of this response so far."""

    start: int
    """Bytes from earlier attempts."""

    total: int | None
    """Bytes of the whole file; None if the server did not say."""


@dataclass(frozen=True, slots=True)
class Answered:
    """A reply arrived, or the request failed."""

    request: Request
    reply: Reply
    took: float


Event = Waiting | RulesWanted | RulesAwaited | RulesKnown | Asking | Receiving | Answered
Listener = Callable[[Event], None]


class TracedStore:
    """Store that reports to a listener why requests wait."""

    def __init__(self, inner: AsyncStore, listener: Listener) -> None:
        self._inner = inner
        self._listener = listener
        self._wanted: set[str] = set()

    @property
    def identity(self) -> str:
        """Identity of the wrapped store."""
        return self._inner.identity

    @property
    def share(self) -> float:
        """This process's share of the global limit, read by the gate."""
        share: float = getattr(self._inner, "share", 1.0)
        return share

    async def update(self, key: str, step: Step[Answer]) -> Answer:
        """Apply `step` to one record atomically, and return its answer."""
        answer = await self._inner.update(key, step)
        self._tell(key, answer)
        return answer

    async def update_many(self, steps: Sequence[tuple[str, Step[Any]]]) -> list[Any]:
        """Apply several updates; each is atomic by itself."""
        return await self._inner.update_many(steps)

    async def read(self, key: str) -> Any:
        """Return the record under `key`, or None."""
        return await self._inner.read(key)

    async def keys(self, prefix: str = "") -> list[str]:
        """Return all keys that begin with `prefix`, in order."""
        return await self._inner.keys(prefix)

    async def forget(self, key: str) -> None:
        """Remove the record under `key`, if any."""
        await self._inner.forget(key)

    async def now(self) -> Now:
        """Return the store's current time."""
        return await self._inner.now()

    async def close(self) -> None:
        """Close the wrapped store."""
        await self._inner.close()

    def _tell(self, key: str, answer: object) -> None:
        kind, _, name = key.partition(":")
        decision = answer[0] if isinstance(answer, tuple) else answer  # a charge also returns the time
        match decision:
            case Wait(seconds, because):
                self._listener(Waiting(name or kind, seconds, because))
            case Claimed(rules):
                self._wanted.add(name)
                self._listener(RulesWanted(name, rules is not None and rules.is_known))
            case Busy():
                self._listener(RulesAwaited(name))
            case Known(rules, seconds):
                is_remembered = name not in self._wanted
                self._wanted.discard(name)
                self._listener(RulesKnown(name, seconds, is_remembered, rules.why))


class TracedSender:
    """Sender that reports requests and replies to a listener."""

    def __init__(self, inner: Sender, listener: Listener) -> None:
        self._inner = inner
        self._listener = listener

    async def send(self, request: Request, limits: Limits) -> Reply:
        """Send one request, once."""
        began = time.monotonic()
        self._listener(Asking(request))
        reply = await self._inner.send(request, limits)
        self._listener(Answered(request, reply, time.monotonic() - began))
        return reply

    async def stream(self, request: Request, limits: Limits, sink: Sink) -> Reply:
        """Send one request, once, and stream the body to the sink."""
        began = time.monotonic()
        self._listener(Asking(request))
        reply = await self._inner.stream(request, limits, _TracedSink(sink, self._listener))
        self._listener(Answered(request, reply, time.monotonic() - began))
        return reply

    async def close(self) -> None:
        """Close all connections."""
        await self._inner.close()


class _TracedSink:
    """Sink that reports the received size."""

    def __init__(self, inner: Sink, listener: Listener) -> None:
        self._inner = inner
        self._listener = listener
        self._came = 0
        self._start = 0
        self._total: int | None = None

    @property
    def decodes(self) -> bool:
        """True if the body is decoded."""
        return self._inner.decodes

    def begin(self, status: int, headers: Headers) -> bool:
        """Record the expected size of a body."""
        self._came, self._start, self._total = 0, 0, None
        if status == 206:  # rest of an earlier attempt
            if (found := _RANGE.match(headers.get("content-range") or "")) is not None:
                self._start, self._total = whole_number(found[1]) or 0, whole_number(found[2])
        elif status == 200 and not (self.decodes and "content-encoding" in headers):
            self._total = whole_number(headers.get("content-length"))
        return self._inner.begin(status, headers)

    async def write(self, piece: bytes) -> None:
        """Take the next piece."""
        self._came += len(piece)
        await self._inner.write(piece)
        self._listener(Receiving(self._came, self._start, self._total))
