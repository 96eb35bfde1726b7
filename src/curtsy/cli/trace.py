"""Trace of a fetch: its events, and their output as lines (`-v`) or as the current step on a terminal.

The client's store and sender are wrapped, because every step passes through one of them. The store's answers explain
waits; the sender's requests are those sent.
"""

from __future__ import annotations

import re
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Self

from curtsy.cli import console
from curtsy.cli.logs import logging_above
from curtsy.core.decision import Wait
from curtsy.core.message import Failure, Headers, Reply, Request, Url, whole_number
from curtsy.core.messages import because, span
from curtsy.core.policy import Policies
from curtsy.core.rules import Busy, Claimed, Known
from curtsy.http.sender import Limits, Sender, Sink
from curtsy.stores import Answer, AsyncStore, Step, WrappedStore

if TYPE_CHECKING:
    from rich.live import Live
    from rich.progress import Progress as Columns
    from rich.text import Text

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


class TracedStore(WrappedStore):
    """Store that reports to a listener why requests wait."""

    def __init__(self, inner: AsyncStore, listener: Listener) -> None:
        super().__init__(inner)
        self._listener = listener
        self._wanted: set[str] = set()

    async def update(self, key: str, step: Step[Answer]) -> Answer:
        """Apply `step` to one record atomically, and return its answer."""
        answer = await super().update(key, step)
        self._tell(key, answer)
        return answer

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

    async def locate(self, url: Url, limits: Limits) -> str:
        """Return the address of a URL's host; empty if it is unknown."""
        return await self._inner.locate(url, limits)

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


TELLING = 0.05
"""Seconds below which a wait is not shown."""


def waiting_for(event: Waiting, policies: Policies) -> str:
    """Return the text of a wait."""
    if event.domain == "global":
        return f"the global rate of {policies.global_qps or 0:g} requests per second"
    return because(event.because, policies.of(event.domain))


class StepLines:
    """Listener that writes each step as a line on standard error, with the seconds since the start."""

    def __init__(self, policies: Policies) -> None:
        self._policies = policies
        self._began = time.monotonic()
        self._asked: Counter[str] = Counter()
        """Number of requests by method and URL."""
        self._hosts: dict[str, int] = {}
        """Requests by host, without a first one for robots.txt: 0 if only that was sent."""
        self._waits: dict[str, tuple[str, float]] = {}
        """Reason and end of the wait by host, so that a repeated wait is written once."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Do nothing: no resources are open."""

    def pause(self) -> None:
        """Do nothing: lines need no clearing before output."""

    def line(self, text: str) -> None:
        """Write a line of text."""
        passed = time.monotonic() - self._began
        print(f"[{passed:6.2f} s] {console.plain(text)}", file=sys.stderr, flush=True)

    def __call__(self, event: Event) -> None:
        """Write one step."""
        match event:
            case Waiting(domain, seconds, reason):
                self._wait(event, domain, seconds, reason)
            case RulesWanted(origin, is_renewal):
                known = "has expired, and is requested again" if is_renewal else "is unknown, and is requested first"
                self.line(f"{origin}/robots.txt {known}")
            case RulesAwaited(origin):
                self._once(origin, "robots", f"{origin}/robots.txt is being requested by another process; waiting")
            case RulesKnown(origin, seconds, is_remembered, why_not):
                known = f"is known, valid for {span(seconds)}" if is_remembered else f"is valid for {span(seconds)}"
                self.line(f"{origin}/robots.txt " + (f"cannot be fetched: {why_not}" if why_not else known))
            case Asking():
                self._ask(event)
            case Answered():
                self.line(_reply(event))
            case Receiving():
                pass

    def _wait(self, event: Waiting, domain: str, seconds: float, reason: str) -> None:
        if seconds < TELLING:
            return
        text = f"waiting {span(seconds)} for {waiting_for(event, self._policies)}"
        if domain != "global":
            text += f" to {domain}" if reason in ("rate", "pause", "delay") else f" ({domain})"
            if self._hosts.get(domain) == 0:
                text += " after robots.txt"
        self._once(domain, reason, text, seconds)

    def _once(self, name: str, reason: str, text: str, seconds: float = 0.0) -> None:
        ends = time.monotonic() + seconds
        before = self._waits.get(name)
        if before is None or before[0] != reason or (seconds and ends > before[1] + 1.0):
            self._waits[name] = reason, ends
            self.line(text)

    def _ask(self, event: Asking) -> None:
        request = event.request
        domain, is_rules = request.url.domain, request.url.target == "/robots.txt"
        self._waits.pop(domain, None)
        self._hosts[domain] = self._hosts[domain] + 1 if domain in self._hosts else int(not is_rules)
        key = f"{request.method} {request.url.text}"
        self._asked[key] += 1
        words = ""
        if "if-none-match" in request.headers or "if-modified-since" in request.headers:
            words = ", if modified"
        if "range" in request.headers:
            words = f", {request.headers['range']}"
        if self._asked[key] > 1:
            words += f" (attempt {self._asked[key]})"
        self.line(key + words)


def _reply(event: Answered) -> str:
    reply = event.reply
    if isinstance(reply, Failure):
        return f"no response: {reply.detail}"
    words = f"{reply.status}, {console.size(reply.wire_bytes)} in {console.brief(event.took)}"
    if reply.status == 304:
        words += ": the cached copy is still valid"
    elif 300 <= reply.status < 400 and (location := reply.headers.get("location")):
        words += f", to {location[:300]}"
    if retry_after := reply.headers.get("retry-after"):
        words += f", Retry-After: {retry_after[:100]}"
    return words


class Progress:
    """Listener that shows the current step on a terminal, without lasting output; silent elsewhere."""

    def __init__(self, policies: Policies) -> None:
        self._policies = policies
        self._live: Live | None = None
        self._above = ExitStack()
        """Redirection of the log while the step is shown."""
        self._is_shown = sys.stderr.isatty()
        self._text = ""
        self._until = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.pause()

    def __call__(self, event: Event) -> None:
        """Show one step."""
        if not self._is_shown:
            return
        self._until = 0.0
        match event:
            case Waiting(domain, seconds):
                if seconds < TELLING:
                    return
                self._until = time.monotonic() + seconds
                self._text = f"{domain}: waiting for {waiting_for(event, self._policies)}"
            case Asking(request):
                self._text = f"{request.method} {request.url.text}"
            case RulesAwaited(origin):
                self._text = f"{origin}: another process requests its robots.txt"
            case _:
                return
        if self._live is None:
            from rich.live import Live

            self._live = Live(
                console=console.err(), get_renderable=self._view, refresh_per_second=8, transient=True,
                redirect_stdout=False, redirect_stderr=False,
            )  # fmt: skip
            self._live.start()
            self._above.enter_context(logging_above(self._live.console))

    def _view(self) -> Text:
        from rich.text import Text

        left = self._until - time.monotonic()
        words = f"{span(left)}  " if left > 0 else ""
        return Text(f"{words}{console.plain(self._text)}", style="dim", no_wrap=True, overflow="ellipsis")

    def pause(self) -> None:
        """Clear the display before other output; the next step shows it again."""
        self._above.close()
        if self._live is not None:
            self._live.stop()
            self._live = None


class ProgressBar(Progress):
    """Listener that shows waits, then the progress of a download."""

    def __init__(self, policies: Policies) -> None:
        super().__init__(policies)
        self._bar: Columns | None = None

    def __call__(self, event: Event) -> None:
        """Show one step."""
        if not isinstance(event, Receiving):
            super().__call__(event)
            return
        if not self._is_shown:
            return
        if self._bar is None:
            from rich.progress import BarColumn, DownloadColumn, TimeRemainingColumn, TransferSpeedColumn
            from rich.progress import Progress as Columns

            self.pause()
            self._bar = Columns(
                BarColumn(), DownloadColumn(binary_units=True), TransferSpeedColumn(), TimeRemainingColumn(),
                console=console.err(), transient=True, redirect_stdout=False, redirect_stderr=False,
            )  # fmt: skip
            self._bar.add_task("")
            self._bar.start()
            self._above.enter_context(logging_above(self._bar.console))
        self._bar.update(self._bar.task_ids[0], total=event.total, completed=event.start + event.size)

    def pause(self) -> None:
        """Clear the bar before other output."""
        super().pause()
        if self._bar is not None:
            self._bar.stop()
            self._bar = None
