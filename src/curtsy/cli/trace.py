"""What happens to a fetch, step by step, told to a listener.

The client is not asked to tell: its store and its sender are the two doors that every step goes through, and each is
watched from outside. What the store answers is why somebody waits; what the sender is given is what goes out.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from curtsy.core.admission import Wait
from curtsy.core.message import Headers, Now, Reply, Request, whole_number
from curtsy.core.rules import Busy, Claimed, Known
from curtsy.http.sender import Limits, Sender, Sink
from curtsy.stores import Answer, AsyncStore, Step

_RANGE = re.compile(r"bytes (\d{1,18})-\d{1,18}/(\d{1,18}|\*)", re.ASCII)


@dataclass(frozen=True, slots=True)
class Waiting:
    """A request must wait."""

    domain: str
    """Whose turn it is not yet; `global` for the rate of all hosts together."""

    seconds: float
    because: str


@dataclass(frozen=True, slots=True)
class RulesWanted:
    """An origin's robots.txt is not known, and is asked for first."""

    origin: str
    is_renewal: bool
    """Whether an older copy is known."""


@dataclass(frozen=True, slots=True)
class RulesAwaited:
    """Another process is asking for an origin's robots.txt."""

    origin: str


@dataclass(frozen=True, slots=True)
class RulesKnown:
    """An origin's robots.txt is known."""

    origin: str
    seconds: float
    """For how long it need not be asked for."""

    is_remembered: bool
    """Whether nothing had to be asked for it now."""

    why_not: str
    """How the last attempt to have it failed; empty if it did not."""


@dataclass(frozen=True, slots=True)
class Asking:
    """A request goes out."""

    request: Request


@dataclass(frozen=True, slots=True)
class Receiving:
    """A part of a download has come."""

    size: int
    """Bytes of this answer so far."""

    start: int
    """Bytes that were there before."""

    total: int | None
    """Bytes of the whole file, if the server said."""


@dataclass(frozen=True, slots=True)
class Answered:
    """A reply came, or none will."""

    request: Request
    reply: Reply
    took: float


Event = Waiting | RulesWanted | RulesAwaited | RulesKnown | Asking | Receiving | Answered
Listener = Callable[[Event], None]


class TracedStore:
    """A store whose answers a listener is told of, as far as they say why somebody waits."""

    def __init__(self, inner: AsyncStore, listener: Listener) -> None:
        self._inner = inner
        self._listener = listener
        self._wanted: set[str] = set()

    @property
    def identity(self) -> str:
        """That of the store inside."""
        return self._inner.identity

    @property
    def share(self) -> float:
        """This process's share of the global limit; the gate asks for it."""
        share: float = getattr(self._inner, "share", 1.0)
        return share

    async def update(self, key: str, step: Step[Answer]) -> Answer:
        """Change one record by `step`, as one atomic step, and return its answer."""
        answer = await self._inner.update(key, step)
        self._tell(key, answer)
        return answer

    async def update_many(self, steps: Sequence[tuple[str, Step[Any]]]) -> list[Any]:
        """Do several updates at once: each is atomic by itself."""
        return await self._inner.update_many(steps)

    async def read(self, key: str) -> Any:
        """The record under `key`, or None."""
        return await self._inner.read(key)

    async def keys(self, prefix: str = "") -> list[str]:
        """All keys that begin with `prefix`, in order."""
        return await self._inner.keys(prefix)

    async def forget(self, key: str) -> None:
        """Remove the record under `key`, if there is one."""
        await self._inner.forget(key)

    async def now(self) -> Now:
        """The store's own present."""
        return await self._inner.now()

    async def close(self) -> None:
        """Close the store inside."""
        await self._inner.close()

    def _tell(self, key: str, answer: object) -> None:
        kind, _, name = key.partition(":")
        decision = answer[0] if isinstance(answer, tuple) else answer  # a charge answers with the time besides
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
    """A sender whose requests and replies a listener is told of."""

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
        """Send one request, once, and give the body away as it comes."""
        began = time.monotonic()
        self._listener(Asking(request))
        reply = await self._inner.stream(request, limits, _TracedSink(sink, self._listener))
        self._listener(Answered(request, reply, time.monotonic() - began))
        return reply

    async def close(self) -> None:
        """Close all connections."""
        await self._inner.close()


class _TracedSink:
    """A sink that tells how much has come."""

    def __init__(self, inner: Sink, listener: Listener) -> None:
        self._inner = inner
        self._listener = listener
        self._came = 0
        self._start = 0
        self._total: int | None = None

    @property
    def decodes(self) -> bool:
        """Whether the body is decoded."""
        return self._inner.decodes

    def begin(self, status: int, headers: Headers) -> bool:
        """A body comes: note how long it will be."""
        self._came, self._start, self._total = 0, 0, None
        if status == 206:  # the rest of what an earlier try has left
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
